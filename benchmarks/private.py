"""The local pass of `mapo scenarios make`: what it finds of planted items, what it takes by chance, how long.

    .venv/bin/python benchmarks/private.py [FOLDER_OF_EMPA_CARDS]

Recall is over `tests/planted.py`. By chance: a value found in one text, held against another text of the same
set; in the shipped scenarios and, where a folder is given, in EMPA's cards. With `phonenumbers` and
`python-stdnum` installed, what they find of the telephone numbers and accept of accounts and ids.
"""

from __future__ import annotations

import random
import sys
import time
from collections import Counter
from importlib.util import find_spec
from itertools import product
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent / "tests"))
from planted import HELD_OUT, PLANTED, UNSEEN

from mapo.realsim.private import clean, leaks, squeezed
from mapo.realsim.read import LONGEST_TURN
from mapo.sandbox.scenarios import load_scenarios

HOSTILE = (
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
)

REGIONS = ("US", "GB", "CN")


def recall() -> None:
    for name, items in (("planted", PLANTED), ("second set", HELD_OUT), ("unseen", UNSEEN)):
        total = Counter((p.kind, p.language) for p in items)
        found = Counter(
            (p.kind, p.language)
            for p in items
            if squeezed(p.item) not in squeezed(clean([p.sentence]).texts[0])
        )
        print(f"{name}: {sum(found.values())} of {len(items)}")
        for kind, language in total:
            print(f"  {kind:12} {language}  {found[kind, language]:3} of {total[kind, language]}")


def by_chance(name: str, texts: list[str]) -> None:
    random.Random(0).shuffle(texts)
    values = [clean([text]).values for text in texts[:60]]
    others = [text[:900] for text in texts[60:90]]
    found = [leaks(one, other) for one, other in product(values, others)]
    words = Counter(word for some in found for word in some)
    print(f"{name}: {sum(map(bool, found)) / len(found):.1%} of {len(found)} pairs", words.most_common(5))


def hostile() -> None:
    slowest = 0.0
    for piece in HOSTILE:
        began = time.perf_counter()
        clean([(piece * LONGEST_TURN)[:LONGEST_TURN]])
        slowest = max(slowest, time.perf_counter() - began)
    print(f"slowest turn of {LONGEST_TURN} characters: {slowest:.2f} s")


def libraries() -> None:
    if not find_spec("phonenumbers") or not find_spec("stdnum"):
        print("phonenumbers and python-stdnum are not installed")
        return
    import phonenumbers
    from stdnum import iban, luhn
    from stdnum.cn import ric

    phones = [p.sentence for p in PLANTED if p.kind == "phone"]
    for leniency in (phonenumbers.Leniency.POSSIBLE, phonenumbers.Leniency.VALID):
        found = sum(
            any(
                phonenumbers.PhoneNumberMatcher(text, region, leniency).has_next()
                for region in ("US", "GB", "CN")
            )
            for text in phones
        )
        print(f"phonenumbers, leniency {leniency}: {found} of {len(phones)}")
    accounts = [p.item for p in PLANTED if p.kind == "account"]
    fine = sum(luhn.is_valid(x.replace(" ", "").replace("-", "")) or iban.is_valid(x) for x in accounts)
    ids = [p.item for p in PLANTED if p.kind == "national_id"]
    valid = sum(map(ric.is_valid, ids))
    print(f"stdnum: {fine} of {len(accounts)} accounts, {valid} of {len(ids)} ids are valid")


if __name__ == "__main__":
    recall()
    by_chance("by chance, shipped scenarios", [s.text() for s in load_scenarios("builtin:all")])
    for folder in sys.argv[1:]:
        by_chance("by chance, EMPA's cards", [s.text() for s in load_scenarios(folder)])
    hostile()
    libraries()
