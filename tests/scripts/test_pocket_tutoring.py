"""The grammar of lessons: mixed in when asked for, the default text untouched, nothing held out in it."""

import json
import re
import sys
import tomllib
from pathlib import Path

import pytest

from mapo.domains.tutoring.scripted import phrases
from mapo.scripted.reading import Reader, words

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "scripts" / "pocket"))

import answers  # noqa: E402
import grammar  # noqa: E402
import tutoring  # noqa: E402

FOLDER = ROOT / "mapo" / "domains" / "tutoring"


def lessons(count=60, seed="test"):
    rng = grammar.Rng(seed)
    return [tutoring.dialogue(rng) for _ in range(count)]


def replies(text):
    return re.findall(r"<\|assistant\|>(.*?)<\|end\|>", text)


def grams(text, n=7):
    told = words(text)
    return {tuple(told[i : i + n]) for i in range(len(told) - n + 1)}


def test_the_same_seed_writes_the_same_lessons():
    assert lessons(4) == lessons(4) != lessons(4, "other")
    assert all(text.count("<|user|>") == text.count("<|assistant|>") >= 8 for text in lessons(4))


def test_the_default_mix_is_what_it_was():
    pytest.importorskip("tokenizers")
    import make_pocket

    rng = grammar.Rng("s")
    assert make_pocket.write_text("s", 3) == [answers.dialogue(rng) for _ in range(3)]
    both = make_pocket.write_text("s", 4, ("empathy", "tutoring"))
    rng = grammar.Rng("s")
    assert both[0] == answers.dialogue(rng) and both[1] == tutoring.dialogue(rng)


def test_no_line_of_a_held_out_lesson_is_written():
    splits = json.loads((FOLDER / "splits.json").read_text(encoding="utf-8"))
    held = set()
    for name in [*splits["validation"], *splits["test"]]:
        card = tomllib.loads((FOLDER / "scenarios" / f"{name}.toml").read_text(encoding="utf-8"))
        for line in [card["opening"], *(x for b in card["stages"] + card["memories"] for x in b["says"])]:
            held |= grams(line)
    assert held and not any(grams(text) & held for text in lessons())


def test_a_thing_brings_its_determiner():
    for kind, bank in tutoring.sentences().items():
        assert not any(re.search(r"(?i)\bthe \{[abe]\}", frame) for frame in bank), kind
    assert not any(
        re.search(r"\{\w\}|\bthe the\b|\bthe your\b", r) for text in lessons() for r in replies(text)
    )


def test_good_sentences_are_sound_and_do_what_they_are_for():
    fill = {
        "a": "the tray",
        "e": "the dough",
        "d": "weighed it twice",
        "w": "draw the cake again",
        "x": "so it is",
    }
    does = {"contrast": "beside", "tie": "beside", "affirm": "affirm", "step": "step", "offer": "offer"}
    for kind, what in does.items():
        for frame in tutoring.sentences()[kind]:
            reading = Reader(phrases()).read(frame.format(**fill))
            assert reading.does(what), frame
    bad = {"praise": ["praise"], "order": ["order"], "dismiss": ["shame", "easy"], "answer": ["tell"]}
    for kind, some in bad.items():
        for frame in tutoring.sentences()[kind]:
            text = frame.format(**fill)
            assert any(Reader(phrases()).read(text).finds(what) for what in some), frame


def test_most_things_of_a_lesson_are_exchanged():
    rng, kept, count = grammar.Rng("exchanged"), 0, 0
    for beat in tutoring.beats():
        said = " ".join(line.text for line in tutoring.exchanged(rng, beat)[0]).lower()
        kept += sum(tutoring.bare(thing).lower() in said for thing in beat["about"])
        count += len(beat["about"])
    # a thing stays in 1 - 0.85 of its places, or elsewhere in the beat as part of a longer word
    assert 0.10 < kept / count < 0.25
