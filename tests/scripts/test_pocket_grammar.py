"""The grammar behind the pocket model: it says what it means, and nothing from the held-out scenarios."""

import json
import re
import sys
import tomllib
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mapo.domains.empathy.reading import EmpathyReader, content, feelings, named_feelings, skeleton, words

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "scripts" / "pocket"))

import answers  # noqa: E402
import grammar  # noqa: E402
import shaken  # noqa: E402
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


def turns(text):
    """(what the person said, what was answered) of a dialogue"""
    said = re.findall(r"<\|(?:user|assistant)\|>(.*?)<\|end\|>", text, flags=re.DOTALL)
    return list(zip(said[::2], said[1::2], strict=True))


def heard(*beats, feeling=""):
    """A state in which these things were told, beat by beat."""
    state = answers.State()
    for things in beats:
        state.hear(grammar.Utterance("So it is.", list(things), feeling=feeling), new_beat=True)
    return state


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
        reader = EmpathyReader()
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
        assert getattr(EmpathyReader().read(frame.format(**FILL)), seen)(), frame


@pytest.mark.parametrize("kind", PLAIN)
def test_plain_sentences_do_neither_good_nor_harm(kind):
    for frame in PLAIN[kind]:
        reading = EmpathyReader().read(frame)
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
        state.hear(grammar.Utterance("", feeling="torn"), new_beat=True)
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


@pytest.mark.parametrize(
    ("text", "right"),
    [
        ("a apple and an pear", "an apple and a pear"),
        ("An kettle. A oven! An unit", "A kettle. An oven! A unit"),
        ("a hour, a honest man, an one-eyed cat", "an hour, an honest man, a one-eyed cat"),
        ("an used coat, a usher, a untold tale, a élan", "a used coat, an usher, an untold tale, an élan"),
        ("plan A is an X-ray and an RAF cap", "plan A is an X-ray and an RAF cap"),
    ],
)
def test_an_article_goes_by_the_next_word(text, right):
    assert grammar.articles(text) == right


def test_no_article_is_wrong_and_no_determiner_doubled():
    doubled = re.compile(
        r"\{\w\}|\b(?:[Tt]he|[Yy]our|[Hh]is|[Tt]heir) (?:the|an?|my|our|your|his|their|that|every|no)\b"
    )
    for text in some_text():
        for said, answer in turns(text):
            assert not doubled.search(answer), answer
            assert grammar.articles(answer) == answer
            assert grammar.articles(said) == said


@pytest.mark.parametrize(
    ("about", "things"),
    [
        ("the ticket", ["the ticket", "your ticket", "the ticket"]),
        ("every ticket", ["the ticket", "your ticket", "the ticket"]),
        ("Thea", ["Thea"] * 3),
        ("Atlas", ["the Atlas", "your Atlas", "Atlas"]),
    ],
)
def test_a_thing_that_is_told_has_one_determiner(about, things):
    bare = about.split()[-1]
    lines = [f"I lost a {bare} today.", f"I lost my {bare} today.", f"I lost {bare} today."]
    for line, thing in zip(lines, things, strict=True):
        if about == "Thea":
            line = "I lost Thea today."
        mould = story._mould({"says": [line], "about": [about], "cues": {"feeling": "torn"}})
        assert mould.things == (bare,)
        assert f"{mould.dets[0]} {bare}".strip() == thing


def test_no_particular_has_a_determiner_or_is_many():
    assert len(story.particulars()) > 2000
    for term in story.particulars():
        assert story.bare(term) == term and not story._many(term)


@given(st.integers(0, 10**6), st.floats(0, 1))
def test_stirring_leaves_feelings_where_they_are(seed, share):
    rng = grammar.Rng(str(seed))
    lines = story._all_lines()
    text = rng.pick(lines)
    made = shaken.stirred(rng, text, share, (), lines)
    assert named_feelings(made) == named_feelings(text)
    signs = [sign.lower() for w in feelings().values() for sign in w["signs"]]
    assert all(sign in made.lower() for sign in signs if sign in text.lower())


def test_every_line_that_names_a_feeling_names_it_when_stirred():
    rng, lines = grammar.Rng("stirred"), story._all_lines()
    naming = [line for line in lines if named_feelings(line)]
    assert len(naming) > 200
    for line in naming:
        assert named_feelings(shaken.stirred(rng, line, 1.0, (), lines)) == named_feelings(line)


def test_stirring_exchanges_its_share_and_keeps_what_it_is_told_to():
    rng, lines = grammar.Rng("share"), story._all_lines()
    text = "Yesterday the plumber carried his hammer past \x01, and I painted the ladder green."
    assert shaken.stirred(rng, text, 0.0, (), lines) == text
    for _ in range(50):
        made = shaken.stirred(rng, text, 1.0, ("painted the ladder",), lines)
        assert "painted the ladder" in made and "\x01" in made
        assert "plumber" not in made.split() or "hammer" not in made.split()


def test_no_word_that_is_put_in_names_a_feeling():
    names = {name for w in feelings().values() for name in w["names"]}
    bank = shaken._words_by_ending(story._all_lines())
    assert min(map(len, bank.values())) > 100
    assert not names & {word for some in bank.values() for word in some}
    assert not names & set(grammar.words("nouns", "more_nouns", "adjectives", "persons"))
    assert not names & {word for pair in grammar.verbs() for word in pair}


def test_a_made_up_word_is_no_name_of_a_feeling(monkeypatch):
    monkeypatch.setattr(
        grammar, "words", lambda kind: {"onsets": ("t",), "vowels": ("i",), "codas": ("r",)}[kind]
    )
    rng = grammar.Rng("tired")
    assert {grammar.pseudo(rng, "ed") for _ in range(200)} == {"tied", "titied", "titired"}


def test_a_made_up_word_is_no_word():
    rng = grammar.Rng("pseudo")
    made = {grammar.pseudo(rng) for _ in range(20000)}
    assert len(made) > 5000 and not made & (grammar.feeling_words() | grammar.function_words())


def test_words_with_accents_are_whole():
    text = "Señor Müller-Lüdenscheidt's café, number 9, l’été."
    letters = [token for token in shaken._TOKEN.findall(text) if token[0].isalpha()]
    assert letters == ["Señor", "Müller-Lüdenscheidt", "s", "café", "number", "l’été"]
    assert "".join(shaken._TOKEN.findall(text)) == text


def test_in_a_shaken_line_only_its_sign_shows():
    rng = grammar.Rng("shaken")
    for _ in range(300):
        told = shaken.shaken(rng, story._all_lines())
        assert told.things and not shaken.shows(told.text), told.text
        first, second = sorted(story.shaken_beat(rng), key=lambda line: bool(line.feeling))
        assert not shaken.shows(first.text)
        assert any(sign.lower() in second.text.lower() for sign in feelings()[second.feeling]["signs"])


@given(st.integers(0, 10**6))
def test_a_feeling_is_told_where_it_shows(seed):
    rng = grammar.Rng(str(seed))
    mould = rng.pick(story.moulds())
    lines = story.from_mould(rng, mould)
    known = feelings()[mould.cues["feeling"]]
    for told in lines:
        low = told.text.lower()
        seen = any(sign.lower() in low for sign in known["signs"]) or any(
            name in low for name in known["names"]
        )
        assert seen or not told.feeling
    assert {told.feeling for told in lines} >= {mould.cues["feeling"]}


def test_a_spare_line_is_a_written_one_and_says_nothing_to_take_up():
    tale = story.Story(grammar.Rng("spare"))
    for kind in ("guarded", "eased"):
        known = {line for person in story.people() for line in person[kind]} | set(
            grammar.toml("lines.toml")[kind]
        )
        for _ in range(200):
            told = tale.spare(kind)
            assert told.text in known
            assert not (told.things or told.deeds or told.wishes or told.values or told.feeling)


def test_things_are_told_apart_by_their_last_word():
    assert answers.last_word("the six Kettles") == answers.last_word("the kettles")
    state = heard(["the six kettles", "the kettles", "your coat"])
    state.taken = {"kettles"}
    assert state.untaken(state.beats[0]) == ["your coat"]


def test_what_a_sentence_takes_up_is_taken():
    rng = grammar.Rng("taken")
    for _ in range(100):
        state = heard(["the tram"], ["the kettle", "your coat"])
        said = answers.reply(rng, state, ("link",))
        assert "tram" in state.taken and len(state.taken) == 2
        assert all(word in said.lower() for word in state.taken)


def share(rng, state_of, kinds, word, count=400):
    return sum(word in answers.reply(rng, state_of(), kinds) for _ in range(count)) / count


def test_a_reply_looks_for_what_nobody_took_up():
    rng = grammar.Rng("fresh")

    def state_of(*taken):
        state = heard(["the tram"], ["the kettle", "your coat"], feeling="torn")
        state.taken = set(taken)
        return state

    # n = 400: 4 standard deviations are at most 4 * sqrt(0.25 / 400) = 0.1
    assert share(rng, lambda: state_of("kettle"), ("notice",), "coat") > answers.FRESH - 0.1
    # all of the present beat is taken: back to what is older, but for FRESH and REPEATS
    goes_back = answers.FRESH * (1 - answers.REPEATS)
    assert abs(share(rng, lambda: state_of("kettle", "coat"), ("notice",), "tram") - goes_back) < 0.1
    # nothing is left: noticed now and then, else a feeling named, things linked or a question asked
    again = share(rng, lambda: state_of("kettle", "coat", "tram"), ("notice",), "the ")
    assert answers.REPEATS - 0.1 < again < 0.75
    assert share(rng, lambda: state_of("kettle", "coat", "tram"), ("notice", "name"), "tram") == 0
    assert share(rng, lambda: state_of("kettle"), ("link",), "tram") == 1
    state = heard(["the kettle"])
    state.taken = {"kettle"}
    asked = {answers.reply(rng, state, ("notice",)) for _ in range(100)}
    assert any("kettle" in said for said in asked) and asked & set(GOOD["ask"])


def test_in_a_dialogue_little_is_taken_up_twice():
    """A thing that two earnest sentences take up, in all that they do."""
    rng, again, all_of_them = grammar.Rng("twice"), 0, 0
    for _ in range(200):
        tale, state = story.Story(rng), answers.State()
        for turn in range(8):
            state.hear(tale.go_on(), new_beat=turn > 0)
            before = set(state.taken)
            said = answers.reply(rng, state, ("notice",))
            now = state.taken - before
            all_of_them += 1
            again += not now and any(thing in said for thing in state.beats[-1])
    # FRESH leaves one in twenty a free choice among several things
    assert again / all_of_them < 0.05


@pytest.mark.parametrize("sort", answers.SHARES)
def test_who_is_slow_to_trust_closes_up_more(sort):
    assert answers.STAYS_SHUT[sort] > answers.CLOSES_UP[sort]


def test_slow_people_keep_to_the_surface(monkeypatch):
    guarded = {line for person in story.people() for line in person["guarded"]}
    guarded |= set(grammar.toml("lines.toml")["guarded"])

    def closed(slow):
        monkeypatch.setattr(answers, "SLOW", slow)
        told = [said for text in some_text(150) for said, _ in turns(text)[1:]]
        return sum(said in guarded for said in told) / len(told)

    def expected(closes_up):
        return sum(answers.SHARES[sort] * closes_up[sort] for sort in answers.SHARES)

    # 150 dialogues are some 2,000 turns: 4 standard deviations are 4 * sqrt(0.25 / 2000) = 0.045
    assert abs(closed(1.0) - expected(answers.STAYS_SHUT)) < 0.045
    assert abs(closed(0.0) - expected(answers.CLOSES_UP)) < 0.045
