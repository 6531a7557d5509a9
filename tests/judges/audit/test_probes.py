"""The probes change what they say and nothing else; paraphrases say the same; pairs are pairs."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest

from mapo.judges.audit.attacks import ATTACKS, attack
from mapo.judges.audit.probes import (
    PARAPHRASES,
    PROBES,
    JudgeInput,
    _paraphrase,
    attack_name,
    language_pairs,
    unchanged_input,
)
from mapo.judges.sample import RecordedTurn
from mapo.measure.rubric import SHIPPED, Rubric
from mapo.sandbox.judge import turn_system
from mapo.sandbox.prompting import fragment
from support.judging import EMPATHY, recordings

TURN = RecordedTurn(recordings()[0], 5)
UNCHANGED = unchanged_input(TURN)
ADDING = ("length", "flattery", "hedging", "verbosity", "injection")


def test_plainly_is_the_turn_as_it_was():
    assert UNCHANGED.turns == TURN.history and UNCHANGED.reply == TURN.reply and UNCHANGED.system == ""
    assert UNCHANGED.rubric is EMPATHY and UNCHANGED.seed == TURN.recording.dialogue.seed


@pytest.mark.parametrize("name", ADDING)
def test_probes_that_add_leave_the_reply_and_all_before_it(name):
    changed = PROBES[name].change(UNCHANGED, 3)
    assert PROBES[name].kind == "rise"
    assert changed.reply.startswith(TURN.reply) and len(changed.reply) > len(TURN.reply)
    assert changed.turns[:-1] == TURN.history[:-1] and changed.turns[-1].user == TURN.history[-1].user
    assert replace(changed, turns=UNCHANGED.turns) == UNCHANGED


@pytest.mark.parametrize("name", [n for n in PROBES if n not in ADDING])
def test_probes_that_shift_leave_every_word_of_the_reply(name):
    changed = PROBES[name].change(UNCHANGED, 3)
    assert PROBES[name].kind == "shift" and changed.reply == TURN.reply and changed != UNCHANGED
    assert list(changed.turns)[-5:] == list(TURN.history)


def test_order_and_position():
    assert PROBES["order"].change(UNCHANGED, 0).rubric.keys == tuple(reversed(EMPATHY.keys))
    later = PROBES["position"].change(UNCHANGED, 0)
    assert len(later.turns) == 9


def test_there_are_texts_in_both_languages_and_none_for_others():
    def shown(language) -> JudgeInput:
        return replace(UNCHANGED, scenario=replace(UNCHANGED.scenario, language=language))

    for name in ("length", "flattery", "hedging", "verbosity", "position"):
        english, chinese = (PROBES[name].change(shown(language), 0) for language in ("en", "zh"))
        assert english != chinese
        assert PROBES[name].change(shown("sw"), 0) is None
    varied = {PROBES["flattery"].change(UNCHANGED, n).reply for n in range(6)}
    assert len(varied) == 3


def test_every_attack_comes_once_before_any_comes_again():
    assert {attack_name(n) for n in range(len(ATTACKS))} == set(ATTACKS)
    assert attack_name(0) == attack_name(len(ATTACKS))


@pytest.mark.parametrize("name", PARAPHRASES)
@pytest.mark.parametrize("rubric", ["empathy", "tutoring"])
def test_paraphrases_say_all_there_is_to_say(name, rubric):
    shown = replace(UNCHANGED, rubric=Rubric.load(rubric))
    system = PROBES[f"prompt {name}"].change(shown, 0).system
    own = turn_system(shown.scenario, shown.rubric)
    assert system != own and _paraphrase(name).is_valid()
    for axis in shown.rubric.axes:
        assert all(text in system for text in (axis.asks, *axis.progress_means, *axis.regression_means))
    assert shown.scenario.persona.name in system and "English" in system and '"evidence": "..."' in system
    assert fragment("empathy", "judge_turn") in system
    sentences = {s.strip() for line in own.splitlines() for s in line.split(". ") if len(s) > 60}
    template = _paraphrase(name).template
    assert not [s for s in sentences if s in template]  # other words, not the same ones moved
    for word in ("empath", "comfort", "cognitive", "affective"):
        assert word not in template.lower()


@pytest.mark.parametrize("domain", SHIPPED)
def test_attacks_speak_of_the_rubric_they_attack(domain):
    rubric = Rubric.load(domain)
    taller = replace(rubric, axes=tuple(replace(a, progress=(*a.progress, 9.0)) for a in rubric.axes))
    for name in ATTACKS:
        text = attack(name, "mark", rubric)
        assert not re.search(r"\{(top|axes|form|mark)\}", text)
    assert ", ".join(rubric.keys) in attack("authority", "mark", rubric)
    assert "give 2 on" in attack("authority", "mark", rubric) and "give 3 on" in attack(
        "authority", "m", taller
    )


@pytest.mark.parametrize("domain", SHIPPED)
def test_pairs_are_the_same_people_in_two_languages(domain):
    pairs = language_pairs(Rubric.load(domain))
    assert len(pairs) == 12 and len({a.recording.scenario.id for a, _ in pairs}) == 6
    for english, chinese in pairs:
        assert english.recording.dialogue.id == chinese.recording.dialogue.id
        assert english.recording.scenario.persona == chinese.recording.scenario.persona
        assert (english.recording.scenario.language, chinese.recording.scenario.language) == ("en", "zh")
        assert english.reply.isascii() and not chinese.reply.isascii()
        assert english.id.replace("pairs/en", "pairs/zh") == chinese.id
        assert max(english.before) < 0
    assert language_pairs(replace(EMPATHY, name="nobodys")) == []
