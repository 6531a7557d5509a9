"""The people whose lines the pocket model reads: written soundly, and no held-out life copied.

What is counted here is words. It sees a life that was taken over, part of it changed; one told anew in other
words it does not see: that takes somebody who reads both.
"""

import json
import math
import re
import sys
import tomllib
from collections import Counter
from functools import lru_cache
from pathlib import Path

import pytest

from mapo.domains.empathy.reading import content, feelings, grams, named_feelings

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "scripts" / "pocket"))

import story  # noqa: E402

EMPATHY = ROOT / "mapo" / "domains" / "empathy"
SIGNS = re.compile("|".join(re.escape(s) for f in feelings().values() for s in f["signs"]), re.IGNORECASE)
READ = sorted((ROOT / "scripts" / "pocket" / "read").glob("*.toml"))
SPLITS = json.loads((EMPATHY / "splits.json").read_text(encoding="utf-8"))
HELD_OUT = [*SPLITS["validation"], *SPLITS["test"]]

ALIKE = 64.0
"""Content words that two lives share, each by its rarity, from which on it cannot be chance. Two men who
know a friend abroad by chess on postcards had 91; of those who are read the nearest has 61."""


@lru_cache
def people():
    found = {}
    for path in READ:
        for k, person in enumerate(tomllib.loads(path.read_text(encoding="utf-8"))["people"]):
            found[f"{path.stem}-{k}"] = person
    return found


@lru_cache
def scenario(name):
    card = tomllib.loads((EMPATHY / "scenarios" / f"{name}.toml").read_text(encoding="utf-8"))
    return {**card, "beats": [*card["stages"], *card["memories"]]}


def lines(person):
    said = [line for beat in person["beats"] for line in beat["says"]]
    return [person["opening"], *person["guarded"], *person["eased"], *said]


def told(person):
    """What this person talks about; signs of feelings are everybody's."""
    return _told(" ".join(lines(person)))


@lru_cache(maxsize=1024)
def _told(text):
    return content(SIGNS.sub(" . ", text))


@lru_cache
def rarity():
    """Inverse document frequency of a stem, over everybody who is read, learnt from or held out."""
    everybody = [*people().values(), *(scenario(name) for split in SPLITS.values() for name in split)]
    count = Counter(stem for person in everybody for stem in told(person))
    return {stem: math.log(len(everybody) / n) for stem, n in count.items()}


def alike(one, other):
    return sum(rarity().get(stem, math.log(len(people()))) for stem in told(one) & told(other))


def signs_of(said):
    return {f for f, known in feelings().items() if any(sign.lower() in said for sign in known["signs"])}


def shown(beat):
    """Is the feeling of this beat there to be seen?"""
    said, cues = " ".join(beat["says"]).lower(), beat["cues"]
    return cues["feeling"] in (named_feelings(said) if cues["shown"] == "yes" else signs_of(said))


def problems(person):
    """What is wrong with how a person is written."""
    found = []
    if not person["opening"].strip() or len(person["beats"]) != 8:
        found.append("no opening, or not eight beats")
    if any(len(set(person[kind])) != 5 for kind in ("guarded", "eased")):
        found.append("not five guarded and five eased lines")
    for number, beat in enumerate(person["beats"], 1):
        said, cues = " ".join(beat["says"]).lower(), beat["cues"]
        if len(beat["says"]) != 2 or not 2 <= len(beat["about"]) <= 3:
            found.append(f"{number}: not two lines about two or three things")
        if set(cues) - {"feeling", "shown", "deed", "wish", "value"} or cues.get("feeling") not in feelings():
            found.append(f"{number}: cues nobody knows")
        elif not shown(beat):
            found.append(f"{number}: nothing shows '{cues['feeling']}'")
        elif signs_of(said) - {cues["feeling"]}:
            found.append(f"{number}: another feeling shows")
        phrases = [*beat["about"], *(cues[kind] for kind in ("deed", "wish", "value") if kind in cues)]
        found += [f"{number}: '{x}' is not said" for x in phrases if x.lower() not in said]
    return found


@pytest.mark.parametrize("name", people())
def test_everybody_is_written_soundly(name):
    assert not problems(people()[name])


def test_what_is_wrong_with_a_person_is_seen():
    good = people()["night-0"]
    beat = good["beats"][0]
    others = good["beats"][1:]
    wrong = {
        "no opening": {**good, "opening": " "},
        "not eight": {**good, "beats": others},
        "five guarded": {**good, "guarded": good["eased"][:4]},
        "two lines": {**good, "beats": [{**beat, "says": [" ".join(beat["says"])]}, *others]},
        "nobody knows": {**good, "beats": [{**beat, "cues": {"feeling": "bored", "shown": "no"}}, *others]},
        "nothing shows": {**good, "beats": [{**beat, "cues": {"feeling": "torn", "shown": "yes"}}, *others]},
        "another feeling": {**good, "beats": [{**beat, "says": ["I wake at four.", "It's grey."]}, *others]},
        "is not said": {**good, "beats": [{**beat, "about": ["cotton tape", "zeppelin"]}, *others]},
    }
    for words, person in wrong.items():
        assert any(words in found for found in problems(person)), words


def test_everybody_is_read_and_nobody_twice():
    read = [person["opening"] for person in story.people()]
    assert len(set(read)) == len(read) == len(people()) + len(SPLITS["train"])
    assert {person["opening"] for person in people().values()} <= set(read)


def test_nobody_who_is_read_shares_the_rare_words_of_a_held_out_life():
    near = {
        (name, held): alike(person, scenario(held)) for name, person in people().items() for held in HELD_OUT
    }
    assert not {pair: round(score, 1) for pair, score in near.items() if score >= ALIKE}


def test_half_of_a_held_out_life_is_seen():
    """Its stages among the beats of somebody else are far over the bound."""
    person = people()["night-0"]
    for held in HELD_OUT:
        mixed = {**person, "beats": [*person["beats"][:4], *scenario(held)["beats"][:5]]}
        assert alike(mixed, scenario(held)) > 1.5 * ALIKE, held


@lru_cache
def held_out_grams():
    """Seven words in a row of what is said in validation and test, the signs apart."""
    said = [part for held in HELD_OUT for line in lines(scenario(held)) for part in SIGNS.split(line)]
    return frozenset().union(*(grams(part, 7) for part in said))


def test_no_line_that_is_read_has_seven_words_of_a_held_out_one():
    """Shaken and stirred lines are made of these, so it holds for all that people say. Lines of fewer words
    are common ones ("Okay, okay."), and some are alike."""
    assert len(held_out_grams()) > 2000
    assert not [line for line in story._all_lines() if grams(line, 7) & held_out_grams()]


@pytest.mark.parametrize("name", SPLITS["train"])
def test_no_train_scenario_shares_seven_words_with_a_held_out_one(name):
    assert not [line for line in lines(scenario(name)) if grams(line, 7) & held_out_grams()]


def test_validation_and_test_share_no_seven_words():
    apart = []
    for split in ("validation", "test"):
        said = [part for name in SPLITS[split] for x in lines(scenario(name)) for part in SIGNS.split(x)]
        apart.append(set().union(*(grams(part, 7) for part in said)))
    assert apart[0].isdisjoint(apart[1])
