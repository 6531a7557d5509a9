"""Copies are found, however lightly disguised; independent texts are left in peace."""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import replace
from itertools import combinations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mapo.scenarios.overlap import Overlap, compare_sets, families, normalised, overlaps, texts_of
from mapo.scenarios.scenario import Scenario
from mapo.scenarios.sets import load_scenarios

HANZI = "山川湖海风雨雷电日月星辰春夏秋冬花鸟鱼虫金木水火土东西南北来去上下左右大小多少"


@pytest.fixture(scope="module")
def shipped() -> list[Scenario]:
    return load_scenarios("builtin:all")


def edited(text: str, share: float, seed: int) -> str:
    """Every word has the given chance of becoming another."""
    rng = random.Random(seed)
    return " ".join("something" if rng.random() < share else word for word in text.split())


def made_up(words: int, seed: int) -> str:
    rng = random.Random(seed)
    return " ".join("".join(rng.choices("abcdefgh", k=4)) for _ in range(words))


def by_definition(texts: Mapping[str, str]) -> list[Overlap]:
    """Every pair compared, shingle by shingle: what `overlaps` finds without comparing all with all."""

    def shingles(text: str) -> set[tuple[str, ...]]:
        units, length = (text.split(), 5) if " " in text else (list(text), 8)
        return {tuple(units[i : i + length]) for i in range(max(1, len(units) - length + 1))}

    plain = {key: normalised(text) for key, text in texts.items() if normalised(text)}
    sets = {key: shingles(text) for key, text in plain.items()}
    found = []
    for a, b in combinations(plain, 2):
        both, sizes = len(sets[a] & sets[b]), sorted((len(sets[a]), len(sets[b])))
        jaccard, share = both / (sum(sizes) - both), both / sizes[0]
        if plain[a] == plain[b]:
            found.append(Overlap(a, b, 1.0, "exact"))
        elif jaccard >= 0.12:
            found.append(Overlap(a, b, jaccard, "near"))
        elif sizes[0] >= 10 and share >= 0.4:
            found.append(Overlap(a, b, share, "contained"))
    return sorted(found, key=lambda x: (-x.similarity, x.a, x.b))


def test_normalised_text():
    assert normalised("  Ça VA -- “bien”?\n") == normalised("Ça va, bien!") == "ça va bien"
    assert normalised("ze\u200bro wi\u00addth") == "zero width"
    assert normalised("ＡＢＣ ①") == "abc 1"
    assert normalised("你好，\n世界 ok") == "你好世界ok"
    assert normalised("a word with 一 sign") == "a word with 一 sign"
    assert normalised("!?") == ""


@given(st.text(st.characters(max_codepoint=127)))
def test_ascii_is_normalised_like_any_text(text):
    assert f"{normalised(text)} é".strip() == normalised(f"{text} é")


def test_exact_copies():
    [pair] = overlaps({"a": "The SAME words, again.", "b": "the same words again", "c": "other words here"})
    assert (pair.a, pair.b, pair.similarity, pair.kind) == ("a", "b", 1.0, "exact")
    assert str(pair) == "a and b: exact (1.00)"


def test_jaccard_by_hand():
    # 5-shingles of 8 words: 4. One word added at the end: 5, of which 4 are shared. 4 / (4 + 5 - 4) = 0.8
    [pair] = overlaps(
        {"a": "one two three four five six seven eight", "b": "one two three four five six seven eight nine"}
    )
    assert (pair.similarity, pair.kind) == (0.8, "near")


def test_a_short_text_inside_a_long_one():
    long = made_up(600, 1)
    short = " ".join(long.split()[100:130])  # 26 of 596 shingles: Jaccard 0.04
    [pair] = overlaps({"long": long, "short": short, "other": made_up(600, 2)})
    assert (pair.kind, pair.similarity) == ("contained", 1.0)


def test_empty_and_tiny_texts():
    assert overlaps({"a": "", "b": "", "c": "...", "d": "word"}) == []
    assert overlaps({}) == []


@pytest.mark.parametrize("share", [0.0, 0.05, 0.1])
def test_every_shipped_scenario_is_recognised_with_names_and_words_changed(shipped, share):
    for number, scenario in enumerate(shipped):
        text = scenario.text().replace(scenario.persona.name, "Somebody")
        copy = edited(text, share, number)
        texts = {**texts_of([scenario]), "copy": copy}
        assert len(overlaps(texts)) == 1, scenario.id


def test_the_shipped_scenarios_are_all_different(shipped):
    assert overlaps(texts_of(shipped)) == []


@pytest.mark.parametrize("seed", range(20))
def test_random_texts_by_the_plain_definition(seed):
    rng = random.Random(seed)
    texts = {}
    for n in range(30):
        if n % 2:  # Chinese, some shorter than a shingle
            text = "".join(rng.choices(HANZI, k=rng.choice([1, 5, 8, 30, 200])))
            copy = "".join("某" if rng.random() < 0.2 else c for c in text)
        else:
            text = " ".join(rng.choices(["ka", "lo", "mi", "nu", "pe", "ri"], k=rng.choice([1, 4, 30, 200])))
            copy = edited(text, rng.choice([0.0, 0.1, 0.3]), n)
        start = rng.randrange(len(text))
        texts |= {f"{n:02}": text, f"{n:02} copy": copy, f"{n:02} part": text[start : start + 80]}
    found = overlaps(texts)
    assert found == by_definition(texts)
    assert {x.kind for x in found} >= {"exact", "near"}


def test_the_shipped_scenarios_by_the_plain_definition(shipped):
    texts = texts_of(shipped[::3])
    for number, (key, text) in enumerate(list(texts.items())[:12]):
        texts[f"{key} copy"] = edited(text, 0.1 * (number % 4), number)
        texts[f"{key} part"] = text[: 150 * number]
    found = overlaps(texts)
    assert found == by_definition(texts)
    assert {x.kind for x in found} == {"exact", "near", "contained"}


def test_unspaced_text_with_one_character_in_ten_changed():
    rng = random.Random(0)
    text = "".join(rng.choices(HANZI, k=1500))
    copy = "".join("某" if rng.random() < 0.1 else c for c in text)
    other = "".join(rng.choices(HANZI, k=1500))
    [pair] = overlaps({"a": text, "b": copy, "c": other})
    assert (pair.a, pair.b, pair.kind) == ("a", "b", "near")


def test_a_name_inside_words_is_no_name(shipped):
    scenario = replace(shipped[0], persona=replace(shipped[0].persona, name="An"), opening="An and Anna ran.")
    text = texts_of([scenario])[scenario.id]
    assert "and Anna ran." in text
    assert "An and" not in text


def test_many_copies_are_linked_without_comparing_all_with_all():
    base = made_up(300, 3)
    texts = {f"{n:03}": edited(base, 0.02, n) for n in range(60)}
    texts["alone"] = made_up(300, 4)
    sizes = sorted(len(group) for group in families(texts, overlaps(texts)))
    assert sizes == [1, 60]
    assert set(overlaps(texts)) < set(by_definition(texts))


def test_families_are_transitive():
    base = made_up(300, 5).split()
    chain = {name: " ".join(base[i * 80 : i * 80 + 100]) for i, name in enumerate("abc")}
    assert sorted(map(sorted, families([*chain, "d"], []))) == [["a"], ["b"], ["c"], ["d"]]
    chain |= {"ab": " ".join(base[40:140]), "bc": " ".join(base[120:220])}
    grouped = sorted(map(sorted, families(chain, overlaps(chain))))
    assert grouped == [["a", "ab", "b", "bc", "c"]]


def test_sets_tell_inside_from_between(shipped):
    one, two, three = shipped[:3]
    twin = replace(one, id="twin")
    inside, between = compare_sets({"train": [one, twin, two], "test": [three]})
    assert ([(x.a, x.b) for x in inside], between) == ([(f"train: {one.id}", "train: twin")], [])
    inside, between = compare_sets({"train": [one, two], "test": [twin, three]})
    assert (inside, [(x.a, x.b) for x in between]) == ([], [(f"train: {one.id}", "test: twin")])
