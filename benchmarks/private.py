"""The local pass of `mapo scenarios make`: what it finds of planted items, what it takes by chance, how long.

    .venv/bin/python benchmarks/private.py [FOLDER_OF_EMPA_CARDS]

Recall is measured on `tests/support/planted.py`. By chance: a value found in one text, held against another
text of the same set; in the shipped scenarios and, where a folder is given, in EMPA's cards. With
`phonenumbers` and `python-stdnum` installed, it also shows which numbers, accounts and ids they find.
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
from mapo.realsim.reading.read import LONGEST_TURN
from mapo.realsim.redaction.folding import squeeze
from mapo.realsim.redaction.redact import leaks, redact
from mapo.scenarios.sets import load_scenarios
from support.planted import FRESH, HELD_OUT, PLANTED, UNSEEN, left_of

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
    sets = {"planted": PLANTED, "second set": HELD_OUT, "unseen": UNSEEN, "fresh": FRESH}
    for name, items in sets.items():
        total = Counter((p.kind, p.language) for p in items)
        found = Counter(
            (p.kind, p.language)
            for p in items
            if squeeze(p.item) not in squeeze(redact([p.sentence]).texts[0])
        )
        whole = Counter((p.kind, p.language) for p in items if not left_of(p, redact([p.sentence]).texts[0]))
        print(f"{name}: {sum(found.values())} of {len(items)}, {sum(whole.values())} as a whole")
        for key in total:
            kind, language = key
            print(f"  {kind:13} {language}  {found[key]:3} of {total[key]}, {whole[key]:3} as a whole")


def by_chance(name: str, texts: list[str]) -> None:
    random.Random(0).shuffle(texts)
    values = [redact([text]).values for text in texts[:60]]
    others = [text[:900] for text in texts[60:90]]
    found = [leaks(one, other) for one, other in product(values, others)]
    words = Counter(word for some in found for word in some)
    print(f"{name}: {sum(map(bool, found)) / len(found):.1%} of {len(found)} pairs", words.most_common(5))


def hostile() -> None:
    slowest = 0.0
    for piece in HOSTILE:
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
        spent, looked = between - began, time.perf_counter() - between
        found = len(cleaned.values.written)
        print(f"ten turns of {name}: {spent:.2f} s, {found} values; looked for in one turn: {looked:.2f} s")


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
