"""Write mapo/scripted/bigrams.txt: which small words follow each other in our own prose.

The scripted judge tells sentences from word salad by it. The prose is the scenarios', the docs' and the
code's own text. Deterministic for the same files.

    .venv/bin/python scripts/make_bigrams.py
"""

from __future__ import annotations

from pathlib import Path

from mapo.domain_folders import SHIPPED
from mapo.scenarios.sets import load_scenarios
from mapo.scripted.reading import small_word_pairs
from mapo.store import write_atomic

ROOT = Path(__file__).resolve().parent.parent
OUT = ROOT / "mapo" / "scripted" / "bigrams.txt"


def main() -> None:
    texts = [path.read_text(encoding="utf-8") for path in sorted(ROOT.glob("docs/*.md"))]
    texts += [path.read_text(encoding="utf-8") for path in sorted(ROOT.glob("mapo/**/*.py"))]
    for scenario in (s for domain in SHIPPED for s in load_scenarios("builtin:all", domain)):
        texts += [scenario.text(), *scenario.guarded, *scenario.eased]
    pairs = sorted({f"{a} {b}" for text in texts for a, b in small_word_pairs(text)})
    write_atomic(OUT, "\n".join(pairs) + "\n")
    print(f"{OUT}: {len(pairs)} pairs")


if __name__ == "__main__":
    main()
