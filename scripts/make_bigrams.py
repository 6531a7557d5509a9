"""Write mapo/scripted/bigrams.txt: the pairs of function words that occur in this repository's prose.

    PYTHONPATH=. .venv/bin/python scripts/make_bigrams.py

The scripted judge uses the list to tell sentences from random words. The prose is that of the scenarios, the
documentation and the code, so the list depends only on these files.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from mapo.domain_folders import SHIPPED
from mapo.scenarios.sets import load_scenarios
from mapo.scripted.reading import small_word_pairs
from mapo.store import write_atomic

ROOT = Path(__file__).resolve().parent.parent
OUT = ROOT / "mapo" / "scripted" / "bigrams.txt"


def main() -> None:
    argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    ).parse_args()
    texts = [path.read_text(encoding="utf-8") for path in sorted(ROOT.glob("docs/*.md"))]
    texts += [path.read_text(encoding="utf-8") for path in sorted(ROOT.glob("mapo/**/*.py"))]
    for scenario in (s for domain in SHIPPED for s in load_scenarios("builtin:all", domain)):
        texts += [scenario.text(), *scenario.guarded, *scenario.eased]
    pairs = sorted({f"{a} {b}" for text in texts for a, b in small_word_pairs(text)})
    write_atomic(OUT, "\n".join(pairs) + "\n")
    print(f"{OUT}: {len(pairs)} pairs")


if __name__ == "__main__":
    main()
