"""Measure the redaction of `mapo scenarios make`: recall on planted items, false matches, and speed.

    .venv/bin/python benchmarks/private.py [FOLDER_OF_EMPA_CARDS ...]

Recall is measured on `tests/support/planted.py`. False matches: values found in one text that match another
text of the same set, in the shipped scenarios and in the given folders of EMPA cards. If `phonenumbers` and
`python-stdnum` are installed, the phone numbers, accounts and ids they find are counted too.
"""

from __future__ import annotations

import argparse
import random
import sys
import time
from collections import Counter
from importlib.util import find_spec
from itertools import product
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent / "tests"))
from mapo.realsim.reading.read import LONGEST_TURN
from mapo.realsim.redaction.folding import squeeze
from mapo.realsim.redaction.redact import leaks, redact
from mapo.scenarios.sets import load_scenarios
from support.planted import FRESH, HELD_OUT, PLANTED, UNSEEN, left_of

DIFFICULT = (
    "a",
    "1",
    "1-",
    "1 ",
    "A ",
    "a.",
    "a-",
    "王",
    "路1号",
    "a dot ",
    "one ",
    "a@a.",
    "my son ",
    "12 a ",
    "在王",
    "u/",
    "a(dot)",
    "1,",
    "ab:",
    "A1-",
    "一 ",
    "加我v",
    "first of ",
)


def _word(chance: random.Random) -> str:
    return "".join(chance.choices("abcdefghij", k=4))


MANY = {
    "numbers": lambda chance: str(chance.randrange(10**7, 10**11)),
    "names": lambda chance: f"{_word(chance).capitalize()},",
    "people of one name": lambda chance: f"Anna {_word(chance).capitalize()},",
    "addresses": lambda chance: f"{_word(chance)}@{_word(chance)}.com",
}
REGIONS = ("US", "GB", "CN")


def recall() -> None:
    """Print how many planted items are redacted, by kind and language."""
    sets = {"planted": PLANTED, "second set": HELD_OUT, "unseen": UNSEEN, "fresh": FRESH}
    for name, items in sets.items():
        total = Counter((p.kind, p.language) for p in items)
        redacted = Counter(
            (p.kind, p.language)
            for p in items
            if squeeze(p.item) not in squeeze(redact([p.sentence]).texts[0])
        )
        complete = Counter(
            (p.kind, p.language) for p in items if not left_of(p, redact([p.sentence]).texts[0])
        )
        print(f"{name}: {sum(redacted.values())} of {len(items)}, {sum(complete.values())} completely")
        for key in total:
            kind, language = key
            print(f"  {kind:13} {language}  {redacted[key]:3} of {total[key]}, {complete[key]:3} completely")


def false_matches(name: str, texts: list[str]) -> None:
    """Print how often values found in one text match another text."""
    random.Random(0).shuffle(texts)
    values = [redact([text]).values for text in texts[:60]]
    others = [text[:900] for text in texts[60:90]]
    matches = [leaks(one, other) for one, other in product(values, others)]
    words = Counter(word for match in matches for word in match)
    print(
        f"{name}: {sum(map(bool, matches)) / len(matches):.1%} of {len(matches)} pairs", words.most_common(5)
    )


def speed() -> None:
    """Print the time for texts that are hard for regular expressions, and for many values."""
    slowest = 0.0
    for piece in DIFFICULT:
        began = time.perf_counter()
        redact([(piece * LONGEST_TURN)[:LONGEST_TURN]])
        slowest = max(slowest, time.perf_counter() - began)
    print(f"slowest turn of {LONGEST_TURN} characters: {slowest:.2f} s")
    chance = random.Random(0)
    for name, many in MANY.items():
        turns = [" ".join(many(chance) for _ in range(LONGEST_TURN))[:LONGEST_TURN] for _ in range(10)]
        began = time.perf_counter()
        cleaned = redact(turns)
        between = time.perf_counter()
        leaks(cleaned.values, "\n".join(turns)[:LONGEST_TURN])
        redacting, searching = between - began, time.perf_counter() - between
        count = len(cleaned.values.written)
        print(
            f"ten turns of {name}: {redacting:.2f} s, {count} values; search in one turn: {searching:.2f} s"
        )


def libraries() -> None:
    """Print what phonenumbers and python-stdnum find of the same items."""
    if not find_spec("phonenumbers") or not find_spec("stdnum"):
        print("phonenumbers and python-stdnum are not installed")
        return
    import phonenumbers
    from stdnum import iban, luhn
    from stdnum.cn import ric

    phones = [p.sentence for p in PLANTED if p.kind == "phone"]
    for leniency in (phonenumbers.Leniency.POSSIBLE, phonenumbers.Leniency.VALID):
        matches = sum(
            any(phonenumbers.PhoneNumberMatcher(text, region, leniency).has_next() for region in REGIONS)
            for text in phones
        )
        print(f"phonenumbers, leniency {leniency}: {matches} of {len(phones)}")
    accounts = [p.item for p in PLANTED if p.kind == "account"]
    valid_accounts = sum(
        luhn.is_valid(x.replace(" ", "").replace("-", "")) or iban.is_valid(x) for x in accounts
    )
    ids = [p.item for p in PLANTED if p.kind == "national_id"]
    valid_ids = sum(map(ric.is_valid, ids))
    print(f"stdnum: {valid_accounts} of {len(accounts)} accounts and {valid_ids} of {len(ids)} ids are valid")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folders", nargs="*", metavar="FOLDER", help="a folder of EMPA cards")
    folders = parser.parse_args().folders
    recall()
    false_matches("false matches, shipped scenarios", [s.text() for s in load_scenarios("builtin:all")])
    for folder in folders:
        false_matches(f"false matches, {folder}", [s.text() for s in load_scenarios(folder)])
    speed()
    libraries()


if __name__ == "__main__":
    main()
