"""Write mapo/data/empa_cards.json: the ids and hashes of EMPA's published cards, without their text.

    python scripts/make_card_manifest.py FOLDER            # FOLDER/cases/script_*.md, FOLDER/official_cases.txt
    python scripts/make_card_manifest.py FOLDER --check    # change nothing; exit 1 if the file is out of date

The set is script_001 to script_727. Further cards in the folder are in no published experiment.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

from mapo.scenarios.empa_cards import official_cases, read_cards
from mapo.scenarios.official import CARDS, card_hash, content_hash
from mapo.scenarios.scenario import read_text

SIZE = 727


def manifest(folder: Path) -> str:
    """Return the content of the manifest."""
    scenarios = {s.id: s for s in read_cards(folder).scenarios}
    ids = [f"script_{number:03d}" for number in range(1, SIZE + 1)]
    hashes = {case: card_hash(read_text(folder / "cases" / f"{case}.md")) for case in ids}
    test = official_cases(folder)
    data = {
        "schema": "mapo.cards/1",
        "train": {case: hashes[case] for case in ids if case not in test},
        "test": {case: hashes[case] for case in ids if case in test},
        "test_content": {case: content_hash(scenarios[case]) for case in ids if case in test},
    }
    return json.dumps(data, indent=0) + "\n"


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folder", type=Path)
    parser.add_argument("--check", action="store_true")
    options = parser.parse_args()
    text = manifest(options.folder)
    if options.check:
        return 0 if CARDS.read_text(encoding="utf-8") == text else 1
    CARDS.write_text(text, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
