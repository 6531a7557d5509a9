"""The texts of the embedded models: complete, of known kinds, and apart from the held-out scenarios."""

from __future__ import annotations

import json
import math
import random
import re
import sys
import tomllib
from collections import Counter
from functools import cache, lru_cache
from itertools import pairwise
from pathlib import Path

import pytest

from mapo.domains.empathy.reading import content, feelings, grams

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "scripts" / "embedded"))

import corpus  # noqa: E402
import dialogues  # noqa: E402
import documents  # noqa: E402
import kinds  # noqa: E402
import nouns  # noqa: E402
import texts  # noqa: E402

EMPATHY = ROOT / "mapo" / "domains" / "empathy"
SPLITS = json.loads((EMPATHY / "splits.json").read_text(encoding="utf-8"))
HELD_OUT = [*SPLITS["validation"], *SPLITS["test"]]
ALIKE = 75.0
"""Sum of the rarities of shared content words from which two stories are not independent. Half of a story
inside another one has more than 1.5 times as much. With more stories, all sums grow."""

SIGNS = re.compile("|".join(re.escape(s) for f in feelings().values() for s in f["signs"]), re.IGNORECASE)
"""The signs of feelings belong to everybody."""
WRITTEN = texts.written_people()


def sevens(text):
    """Return the sequences of seven words of a text, outside of signs."""
    return frozenset().union(*(grams(part, 7) for part in SIGNS.split(text)))


@lru_cache
def scenario_lines(name):
    card = tomllib.loads((EMPATHY / "scenarios" / f"{name}.toml").read_text(encoding="utf-8"))
    said = [line for beat in (*card["stages"], *card["memories"]) for line in beat["says"]]
    return [card["opening"], *card["guarded"], *card["eased"], *said]


@lru_cache
def held_out_grams():
    return frozenset().union(*(sevens(line) for held in HELD_OUT for line in scenario_lines(held)))


def lines_of(person):
    return [line.text for line in person.lines]


def told(lines):
    """Return the content words of a story; the signs of feelings belong to everybody."""
    return _told(" ".join(lines))


@cache
def _told(text):
    return content(SIGNS.sub(" . ", text))


@lru_cache
def rarity():
    """Return the inverse document frequency of each stem over all stories."""
    stories = [lines_of(p) for p in (*WRITTEN, *texts.train_scenarios())] + [*map(scenario_lines, HELD_OUT)]
    count = Counter(stem for lines in stories for stem in told(lines))
    return {stem: math.log(len(stories) / n) for stem, n in count.items()}


def alike(one, other):
    return sum(rarity()[stem] for stem in told(one) & told(other))


@pytest.mark.parametrize("person", WRITTEN, ids=lambda person: person.id)
def test_a_written_person_is_complete(person):
    story, guarded, eased = (len(person.of_mood(mood)) for mood in ("story", "guarded", "eased"))
    assert (story, guarded, eased) in ((17, 5, 5), (13, 3, 3))
    assert {line.feeling for line in person.of_mood("story")[1:]} <= set(feelings())
    assert len({line.text for line in person.lines}) == story + guarded + eased


@pytest.mark.parametrize("person", WRITTEN, ids=lambda person: person.id)
def test_lines_have_replies_of_both_sorts(person):
    for line in person.of_mood("story"):
        kinds = [kind for kind, _ in line.replies]
        assert set(kinds) & set(texts.GOOD) and set(kinds) & set(texts.POOR), line.text


def test_no_reply_is_written_twice_to_a_line():
    for person in (*WRITTEN, *texts.train_scenarios()):
        for line in person.lines:
            assert len({reply for _, reply in line.replies}) == len(line.replies)


def test_no_text_shares_seven_words_with_a_held_out_scenario():
    assert len(held_out_grams()) > 2000
    people = (*WRITTEN, *texts.train_scenarios())
    everything = [
        text for p in people for line in p.lines for text in (line.text, *(r for _, r in line.replies))
    ]
    for row in corpus.verdicts():
        everything += [*row["lines"], row["reply"]]
    suspects = [text for text in everything if grams(text, 7) & held_out_grams()]
    assert not [text for text in suspects if sevens(text) & held_out_grams()]


def test_no_written_story_shares_the_rare_words_of_a_held_out_one():
    held = {name: scenario_lines(name) for name in HELD_OUT}
    near = {(p.id, name): alike(lines_of(p), lines) for p in WRITTEN for name, lines in held.items()}
    assert not {pair: round(score, 1) for pair, score in near.items() if score >= ALIKE}


def test_half_of_a_held_out_story_would_be_noticed():
    for name in HELD_OUT:
        mixed = lines_of(WRITTEN[0])[:8] + scenario_lines(name)[11:21]
        assert alike(mixed, scenario_lines(name)) > 1.5 * ALIKE, name


@pytest.mark.parametrize("name", SPLITS["train"])
def test_no_train_scenario_shares_seven_words_with_a_held_out_one(name):
    assert not [line for line in scenario_lines(name) if sevens(line) & held_out_grams()]


@pytest.mark.parametrize(
    ("kind", "trust", "threshold", "expected"),
    [
        ("detail", 0, "high", (1, 0, 0, 0, 0, 0)),
        ("step", 0, "low", (0, 0, 0, 0, 0, 1)),
        ("step", 1, "low", (1, 0, 0, 0, 1, 0)),
        ("step", 2, "low", (1, 0, 0, 0, 2, 0)),
        ("beneath", 0, "high", (1, 0, 1, 1, 0, 0)),
        ("beneath", 3, "high", (1, 0, 2, 0, 0, 0)),
        ("link", 1, "low", (1, 0, 0, 0, 0, 0)),
        ("link", 2, "low", (2, 0, 0, 0, 0, 0)),
        ("dismiss", 9, "low", (0, 1, 0, 2, 0, 0)),
        ("affirm", 9, "low", (1, 0, 0, 0, 2, 0)),
    ],
)
def test_levels_follow_from_kind_and_trust(kind, trust, threshold, expected):
    line = texts.Line("I put the blue kettle on the stove.")
    assert dialogues.levels(kind, line, "Your kettle again.", trust, threshold) == expected


def test_a_reply_that_names_nothing_of_the_line_takes_up_nothing():
    line = texts.Line("I put the blue kettle on the stove.")
    hollow = {
        kind: dialogues.levels(kind, line, "What was it like?", 9, "low")
        for kind in ("ask", "beneath", "feel", "affirm", "step")
    }
    worth_nothing = dict.fromkeys(("ask", "beneath", "feel", "affirm"), dialogues.NOTHING)
    assert hollow == worth_nothing | {"step": (0, 0, 0, 0, 1, 0)}


def test_the_same_way_to_begin_is_soon_worth_nothing():
    story = [
        texts.Line(f"I sold bicycle {n}.", replies=[("ask", f"What was bicycle {n} like?")]) for n in range(3)
    ]
    talk = dialogues.Talk(texts.Person("x", story, []), random.Random(0), WRITTEN, 1.0)
    first, second = talk.play(2)
    assert first.levels == (1, 0, 0, 0, 0, 0)
    assert dialogues.opening(first.reply) == dialogues.opening(second.reply) == "what was bicycle"
    assert second.levels == dialogues.NOTHING


def test_room_is_worth_something_only_from_time_to_time():
    guarded = [
        texts.Line(f"Leave it, {n}.", "guarded", replies=[("room", f"{n} {n} {n}, then.")]) for n in range(8)
    ]
    story = texts.Line("I sold a bicycle.", replies=[("order", "Buy another one.")])
    talk = dialogues.Talk(texts.Person("x", [story, *guarded], []), random.Random(0), WRITTEN, 1.0)
    played = talk.play(2)
    assert [x.kind for x in played] == ["order", "room"] and played[1].levels[2] == 1
    assert talk._levels("room", guarded[0], "Whenever you like.") == dialogues.NOTHING


def test_made_up_words_keep_number_and_are_rarely_known_nouns():
    rng = random.Random(0)
    words = [nouns.made_up("bicycle", rng) for _ in range(200)]
    assert all(word.isalpha() and word.islower() for word in words) and len(set(words)) > 190
    plural = min(nouns.nouns()[1])
    assert all(nouns.made_up(plural, rng).endswith("s") for _ in range(20))
    assert sum(word in nouns.nouns()[0] for word in words) < 10


def test_exchanged_nouns_agree_between_line_and_reply():
    line = texts.Line("I sold a bicycle.", replies=[("ask", "What was the bicycle like?")])
    assert "bicycle" in nouns.known_nouns(line.text)
    changed = nouns.exchanged(texts.Person("x", [line], []), random.Random(0), 1.0).lines[0]
    noun = changed.text.removesuffix(".").split()[-1]
    assert noun != "bicycle" and changed.replies == [("ask", f"What was the {noun} like?")]


def test_exchanged_numbers_agree_between_line_and_reply():
    line = texts.Line("Eleven years I worked there.", replies=[("detail", "Years, eleven of them.")])
    changed = nouns.exchanged(texts.Person("x", [line], []), random.Random(0), 1.0).lines[0]
    number = changed.text.split()[0]
    assert number != "Eleven" and number[0].isupper()
    assert changed.replies == [("detail", f"Years, {number.lower()} of them.")]


@pytest.mark.parametrize("word", ["bicycle", "eleven"])
def test_another_word_is_never_the_same(word):
    assert all(nouns.other(word, random.Random(k)) != word for k in range(5000))


def test_articles_follow_exchanged_nouns():
    assert nouns.with_nouns("A bicycle and an umbrella.", {"bicycle": "apple", "umbrella": "ladder"}) == (
        "An apple and a ladder."
    )


def test_a_person_holds_back_after_harm_and_goes_on_after_help():
    person = WRITTEN[0]
    guarded = {line.text for line in person.of_mood("guarded")}
    played = [dialogues.Talk(person, random.Random(k), WRITTEN, 0.5).play(12) for k in range(40)]
    for talk in played:
        for before, now in pairwise(talk):
            harmed = any(before.levels[k] for k in (1, 3, 5))
            helped = any(before.levels[k] for k in (0, 2, 4))
            if harmed or helped:
                assert (now.line in guarded) == harmed


def test_spoiled_replies_differ_from_what_they_were_made_of_and_are_worth_nothing():
    talks = [dialogues.Talk(p, random.Random(p.id), WRITTEN, 0.5, 1.0).play(8) for p in WRITTEN[:12]]
    spoiled = [x for talk in talks for x in talk if x.kind in dialogues.SPOILED]
    assert {x.kind for x in spoiled} == set(dialogues.SPOILED)
    assert all(not any(x.levels[k] for k in (0, 2, 4)) for x in spoiled)
    written = {reply for p in WRITTEN for line in p.lines for _, reply in line.replies}
    assert not [
        x.reply for x in spoiled if x.kind in ("broken", "nonsense", "stuffed") and x.reply in written
    ]


def test_a_policys_replies_count_as_the_kinds_they_were_named():
    said = {
        line.text: [("nonsense", "The of it, is there."), ("order", "Stop it now.")]
        for p in WRITTEN[:12]
        for line in p.lines
    }
    talks = [dialogues.Talk(p, random.Random(p.id), WRITTEN, 0.5, 0.0, said).play(8) for p in WRITTEN[:12]]
    found = {x.reply: (x.kind, x.levels) for talk in talks for x in talk}
    assert found["The of it, is there."] == ("senseless", dialogues.HARM["senseless"])
    assert found["Stop it now."] == ("order", dialogues.HARM["order"])


def test_a_fixed_sentence_names_the_feeling_or_one_that_is_not_near():
    talks = [
        dialogues.Talk(p, random.Random(n), WRITTEN, 0.5, 0.4).play(12) for n, p in enumerate(WRITTEN[:150])
    ]
    feelings = {line.text: line.feeling for person in WRITTEN for line in person.lines}
    found = {kind: [x for talk in talks for x in talk if x.kind == kind] for kind in ("felt", "misfelt")}
    assert all(len(exchanges) > 10 for exchanges in found.values())
    for kind, exchanges in found.items():
        for x in exchanges:
            right = dialogues.FEELING_WORDS[feelings[x.line]]
            assert any(word in x.reply for word in right) == (kind == "felt"), x
    assert {x.levels for x in found["felt"]} <= {dialogues.FELT, dialogues.NOTHING}


def test_dialogues_are_reproducible():
    one, two = (dialogues.Talk(WRITTEN[3], random.Random(5), WRITTEN, 0.4, 0.2).play(20) for _ in range(2))
    assert one == two


def test_verdicts_are_on_replies_to_people_that_models_may_learn_from():
    rows = corpus.verdicts()
    assert {row["sense"] for row in rows} - set(texts.KINDS) == {0, 1}
    assert {row["by"] for row in rows} == {"policy", "trained policy", "writer"}
    held_out = {line.text for person in texts.held_out_people() for line in person.of_mood("story")}
    assert not held_out & {line for row in rows for line in row["lines"]}


def test_a_verdict_of_sense_needs_a_kind(monkeypatch):
    rows = [
        {"lines": ["Hello.", "I sold it."], "reply": reply, "sense": sense}
        for reply, sense in (("Who bought it?", 1), ("The of it.", 0), ("Buy it back.", "order"))
    ]
    monkeypatch.setattr(corpus, "verdicts", lambda: rows)
    named = corpus.policy_replies(lambda line, reply: f"{line} {reply}")
    assert named == {
        "I sold it.": [
            ("I sold it. Who bought it?", "Who bought it?"),
            ("nonsense", "The of it."),
            ("order", "Buy it back."),
        ]
    }


def test_the_parts_share_nobody():
    (even, held), (odd, _) = corpus.split("even"), corpus.split("odd")
    ids = [{person.id for person in people} for people in (even, odd, held)]
    assert len(set().union(*ids)) == sum(map(len, ids)) > 2000


def test_the_kind_of_most_written_replies_is_named_from_their_words():
    people = corpus.sayable_replies(texts.known_people()[:300])
    name = kinds.train_namer(people[:240])
    pairs = [(line.text, *pair) for p in people[240:] for line in p.lines for pair in line.replies]
    right = sum(name(line, reply) == kind for line, kind, reply in pairs)
    assert right / len(pairs) > 0.6  # there are 15 kinds


@pytest.mark.parametrize("folder", ["natural", "pieces"])
def test_short_replies_are_clean_and_of_both_sorts(folder):
    people = texts.natural_people(folder)
    assert len(people) > 1000
    assert not {p.id for p in people} & {p.id for p in texts.held_out_people()}
    pairs = [(line.text, *pair) for p in people for line in p.lines for pair in line.replies]
    assert not [reply for line, _, reply in pairs if not documents.is_clean_reply(reply, line)]
    assert {kind for _, kind, _ in pairs} >= {*texts.KINDS} - {"link"}


@pytest.mark.parametrize(
    ("reply", "expected"),
    [
        ("You keep the kettle on the stove.", True),
        ("Why the stove?", True),
        ("A kettle, and a stove.", False),
        ("Two rounds, and bread now.", False),
    ],
)
def test_fragments_are_no_sentences_and_worth_nothing(reply, expected):
    line = texts.Line("I put the blue kettle on the stove.")
    assert dialogues.is_sentence(reply) is expected
    assert bool(dialogues.levels("detail", line, reply, 0, "low")[0]) is (expected and "stove" in reply)


@pytest.mark.parametrize(
    ("reply", "expected"),
    [
        ("What did you say at the gate?", True),
        ("Sunday, and you looked at his bell.", True),
        ("What did you do with the dog?", False),
        ("What did she say?", False),
    ],
)
def test_a_sayable_reply_brings_in_nothing_and_nobody(reply, expected):
    assert corpus.stays_with("I went to his gate on Sunday and looked at the bell.", reply) is expected


def test_a_clause_said_twice_is_broken():
    spoiled = {dialogues.broken("I saw it, and you stayed.", random.Random(seed)) for seed in range(200)}
    assert "I saw it, and I saw it." in spoiled
    spoiled = {dialogues.broken("You carried them in, I think.", random.Random(seed)) for seed in range(200)}
    assert "You carried them in, so you carried them in." in spoiled


def test_scraps_have_a_word_of_the_line_each():
    nouns = ["gate", "kettle", "harbour"]
    for seed in range(50):
        parts = re.findall(r"[^.]+\.", dialogues.scraps(nouns, random.Random(seed)))
        named = [part for part in parts if any(noun in part.lower() for noun in nouns)]
        assert len(named) in (2, 3)
        assert len(parts) - len(named) <= 1  # a feeling at the end
