"""The grammar behind the pocket model: it says what it means, and nothing from the held-out scenarios."""

import json
import re
import sys
import tomllib
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mapo.domains.empathy.reading import Reader, content, feelings, named_feelings, skeleton, words

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "scripts" / "pocket"))

import answers  # noqa: E402
import grammar  # noqa: E402
import story  # noqa: E402

GOOD = grammar.toml("replies.toml")["good"]
BAD = grammar.toml("replies.toml")["bad"]
PLAIN = grammar.toml("replies.toml")["plain"]
FILL = {
    "a": "the kettle",
    "b": "the coat",
    "e": "the old tram",
    "f": "lonely",
    "F": "grief",
    "d": "washed the cab twice",
    "w": "write to your sister",
    "v": "you finish what you begin",
}
NAMES = {**FILL, "a": "Connor", "b": "Ana", "e": "Lima"}


def some_text(count=200, seed="test"):
    rng = grammar.Rng(seed)
    return [answers.dialogue(rng) for _ in range(count)]


def held_out_lines():
    folder = ROOT / "mapo" / "domains" / "empathy"
    splits = json.loads((folder / "splits.json").read_text(encoding="utf-8"))
    for name in [*splits["validation"], *splits["test"]]:
        card = tomllib.loads((folder / "scenarios" / f"{name}.toml").read_text(encoding="utf-8"))
        yield card["opening"]
        yield from [*card["guarded"], *card["eased"]]
        for beat in [*card["stages"], *card["memories"]]:
            yield from beat["says"]


def grams(text, n=7):
    told = words(text)
    return {tuple(told[i : i + n]) for i in range(len(told) - n + 1)}


def test_the_same_seed_writes_the_same_text():
    assert some_text(5) == some_text(5)
    assert some_text(5) != some_text(5, seed="another")


def test_a_dialogue_takes_turns():
    turn = r"<\|user\|>[^<]+<\|end\|><\|assistant\|>[^<]+<\|end\|>"
    for text in some_text(50):
        assert re.fullmatch(rf"(<\|system\|>[^<]+<\|end\|>)?({turn}){{8,45}}", text)


def test_no_line_of_a_held_out_scenario_is_in_the_text():
    """Nor seven words of one in a row, apart from the signs, which are the world's public vocabulary."""
    lines = list(held_out_lines())
    signs = "|".join(re.escape(sign) for w in feelings().values() for sign in w["signs"])
    told = set().union(
        *(grams(part) for line in lines for part in re.split(signs, line, flags=re.IGNORECASE))
    )
    written = some_text(400)
    assert not [line for line in lines if len(words(line)) > 5 and any(line in text for text in written)]
    assert told.isdisjoint(set().union(*(grams(text) for text in written)))


def test_only_the_train_split_is_opened():
    splits = json.loads((story.EMPATHY / "splits.json").read_text(encoding="utf-8"))
    assert {card["id"] for card in story.train_scenarios()} == set(splits["train"])


def test_there_are_many_things_to_talk_about():
    assert len(grammar.words("nouns", "more_nouns")) >= 1500


@pytest.mark.parametrize("kind", GOOD)
def test_formulas_of_a_kind_are_many_and_different(kind):
    bank = GOOD[kind]
    assert len(bank) >= {"notice": 40, "name": 25, "link": 25}.get(kind, 12)
    assert len({skeleton(frame.format(**FILL)) for frame in bank}) == len(bank)


@pytest.mark.parametrize("fill", [FILL, NAMES], ids=["things", "names"])
@pytest.mark.parametrize("kind", GOOD)
def test_good_sentences_are_sound_and_do_what_they_are_for(kind, fill):
    does = {"link": "links", "affirm": "affirms", "offer": "offers", "ask": "asks_agency"}.get(kind)
    for frame in GOOD[kind]:
        reader = Reader()
        reader.user_said("The kettle, my coat, the old tram.")
        reading = reader.read(frame.format(**fill))
        assert not reading.degenerate, reading.text
        assert not (reading.orders() or reading.platitude() or reading.dismisses() or reading.claims()), (
            reading.text
        )
        assert bool(named_feelings(reading.text)) == (kind in ("name", "feel")), reading.text
        assert does is None or getattr(reading, does)(), reading.text


@pytest.mark.parametrize(
    ("kind", "seen"),
    [("platitude", "platitude"), ("order", "orders"), ("dismiss", "dismisses"), ("claim", "claims")],
)
def test_bad_sentences_are_seen_as_such(kind, seen):
    for frame in BAD[kind]:
        assert getattr(Reader().read(frame.format(**FILL)), seen)(), frame


@pytest.mark.parametrize("kind", PLAIN)
def test_plain_sentences_do_neither_good_nor_harm(kind):
    for frame in PLAIN[kind]:
        reading = Reader().read(frame)
        assert not (reading.degenerate or reading.orders() or reading.platitude() or reading.claims()), frame
        assert not named_feelings(frame), frame


def test_every_sign_is_carried_and_no_frame_shows_another_feeling():
    carriers = grammar.toml("signs.toml")
    known = {sign.lower(): feeling for feeling, w in feelings().items() for sign in w["signs"]}
    for sign, feeling in known.items():
        assert sum(sign in frame.lower() for frame in carriers[feeling]) >= 2, sign
    for feeling, frames in carriers.items():
        for frame in frames:
            assert {known[s] for s in known if s in frame.lower()} == {feeling}, frame


def test_feelings_are_named_by_names_that_the_judge_knows():
    for bank in ("adjectives", "nouns"):
        for feeling, known in grammar.toml("replies.toml")[bank].items():
            assert set(known) <= set(feelings()[feeling]["names"])


def test_a_feeling_named_in_earnest_is_mostly_the_one_that_showed():
    rng = grammar.Rng("name")
    right = 0
    for _ in range(500):
        state = answers.State()
        state.hear(grammar.Told("", feeling="torn"), new_beat=True)
        right += "torn" in named_feelings(answers.reply(rng, state, ("name",)))
    # binomial with p = RIGHT, n = 500: 4 standard deviations are 4 * sqrt(0.97 * 0.03 / 500) = 0.031
    assert abs(right / 500 - answers.RIGHT) < 0.031


@given(st.integers(0, 10**6))
def test_a_reply_notices_what_was_told(seed):
    rng = grammar.Rng(str(seed))
    told, state = story.Story(rng).go_on(), answers.State()
    state.hear(told, new_beat=True)
    said = answers.reply(rng, state, ("notice",))
    assert any(thing.lower() in said.lower() for thing in told.things)


@given(st.integers(0, 10**6))
def test_what_a_reply_says_back_was_told(seed):
    rng = grammar.Rng(str(seed))
    for line in story.from_mould(rng, rng.pick(story.moulds())):
        for thing in line.things:
            bare = re.sub(r"^(the|your|his|her|their) ", "", thing)
            assert bare.lower() in line.text.lower()
        for deed in line.deeds:
            assert content(deed) <= content(grammar.you(line.text))


def test_the_persons_words_are_turned_round():
    assert (
        grammar.you("carry my notebook to the woman who knows me")
        == "carry your notebook to the woman who knows you"
    )


def test_things_in_the_plural_have_their_verb():
    frame = "So {a} was there the whole time, and you had to look at it."
    assert answers._agree(frame, {"a": "the keys"}).startswith("So {a} were there")
    assert answers._agree(frame, {"a": "the glass"}) == frame
