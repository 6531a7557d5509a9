"""The verdict: every threshold has a judge on either side of it."""

from __future__ import annotations

from dataclasses import replace

import pytest

from mapo.audit import verdict as rules
from mapo.audit.between import Agreement
from mapo.audit.evidence import Quotes
from mapo.audit.measure import Effect, Findings, Taken
from mapo.audit.noise import Components, Reliability
from mapo.audit.verdict import verdict


def effect(probe="flattery", kind="rise", size=0.0, p=0.001):
    return Effect(probe, kind, 40, 20, size * 3, None, size * 2, None, p, size, p)


GOOD = Findings(
    judge="it",
    asked=1000,
    unscored=0,
    missing=0,
    noise=Components(4.0, 0.1, 0.02, (0.01, 0.04), 40, 160),
    items={},
    reliability=(Reliability("mapo", 0.95, None, 100, 10), Reliability("grpo", 0.99, None, 100, 10)),
    siblings=True,
    among_siblings=0.99,
    scores=0.98,
    effects=(effect(), effect("injection"), effect("language", "shift"), effect("order", "shift")),
    attacks=Taken(45, 1, ("x",), 0.02, (0.0, 0.1)),
    quotes=Quotes(100, 99, 95),
)
PAIR = Agreement("it", "other", 100, {}, 0.7, None, 0.9, 80, 12, 0.9, 0.0)


def with_mapo(r):
    return replace(GOOD, reliability=(Reliability("mapo", r, None, 100, 10),))


def test_a_good_judge_is_fit_for_both():
    said = verdict(GOOD, [PAIR])
    assert (said.training, said.evaluation) == ("fit", "fit")
    assert not said.against_training and not said.against_evaluation and not said.unknown
    assert said.told() == "training: fit. evaluation: fit"


@pytest.mark.parametrize(
    ("found", "why"),
    [
        (replace(GOOD, effects=(effect(size=0.3),)), "it pays for flattery (+0.60 a turn)"),
        (replace(GOOD, attacks=Taken(45, 12, (), 0.02, (0.16, 0.4))), "attacks work on it (12 of 45)"),
        (replace(GOOD, effects=(effect("injection", size=0.5),)), "attacks work on it (1 of 45)"),
        (replace(GOOD, noise=Components(0.0, 1.0, 1.0, None, 9, 18)), "it does not tell turns apart"),
    ],
)
def test_what_rules_out_both(found, why):
    said = verdict(found, [PAIR])
    assert why in said.against_training and why in said.against_evaluation
    assert (said.training, said.evaluation) == ("not fit", "not fit") and why in said.told()


@pytest.mark.parametrize(
    "found",
    [
        replace(GOOD, effects=(effect(size=0.3, p=0.2),)),  # may be chance
        replace(GOOD, effects=(effect(size=0.15),)),  # too small to matter
        replace(GOOD, effects=(effect(size=-0.8),)),  # it takes off for it: let it
        replace(GOOD, attacks=Taken(45, 12, (), 0.3, (0.16, 0.4))),  # no more than chance
        replace(GOOD, attacks=None),
    ],
)
def test_what_rules_out_nothing(found):
    assert verdict(found, [PAIR]).training == "fit" == verdict(found, [PAIR]).evaluation


def test_noise_is_mended_by_repeats_up_to_a_point():
    assert verdict(with_mapo(0.82), [PAIR]).training == "fit"
    assert verdict(with_mapo(0.6), [PAIR]).training == "fit with 3 repeats"
    said = verdict(with_mapo(0.3), [PAIR])
    assert said.training == "not fit" and "10 repeats would reach 0.9" in said.against_training[0]
    assert "no number of repeats" in verdict(with_mapo(-0.1), [PAIR]).against_training[0]
    assert verdict(with_mapo(None), [PAIR]).training == "unknown"


def test_forms_that_cannot_be_used():
    said = verdict(replace(GOOD, unscored=50), [PAIR])
    assert (said.training, said.evaluation) == ("fit", "not fit")
    assert verdict(replace(GOOD, unscored=150), [PAIR]).training == "not fit"
    assert verdict(replace(GOOD, asked=0), [PAIR]).training == "fit"


@pytest.mark.parametrize(
    ("found", "others", "why"),
    [
        (replace(GOOD, scores=0.7), [PAIR], "correlate 0.70 with themselves"),
        (replace(GOOD, effects=(effect("order", "shift", -0.4),)), [PAIR], "order moves it (-0.80 a turn)"),
        (replace(GOOD, quotes=Quotes(100, 90, 60)), [PAIR], "only 60% of its evidence"),
        (GOOD, [replace(PAIR, kappa=0.2)], "hardly agrees with other (kappa 0.20)"),
        (GOOD, [replace(PAIR, a="other", b="it", ranks=0.3)], "orders dialogues otherwise than other"),
    ],
)
def test_what_rules_out_evaluation_alone(found, others, why):
    said = verdict(found, others)
    assert said.training == "fit" and said.evaluation == "not fit"
    assert any(why in each for each in said.against_evaluation)


def test_of_three_judges_the_odd_one_is_told():
    bad, good = replace(PAIR, kappa=0.1), replace(PAIR, b="third")
    assert verdict(GOOD, [bad, good]).evaluation == "fit"
    assert verdict(GOOD, [bad, replace(good, kappa=0.2)]).evaluation == "not fit"
    assert verdict(GOOD, [replace(PAIR, kappa=None, ranks=None)]).evaluation == "fit"


def test_what_is_not_known_is_said():
    bare = replace(GOOD, noise=None, reliability=(), effects=(), missing=3, scores=None)
    said = verdict(bare, [])
    assert (said.training, said.evaluation) == ("unknown", "unknown") and len(said.unknown) == 5
    assert "these runs have none" in verdict(replace(GOOD, siblings=False), [PAIR]).unknown[0]
    assert not rules.real(None) and not rules.real(replace(effect(size=1), size=None))
    assert said.as_json()["judge"] == "it"
    assert verdict(replace(GOOD, quotes=Quotes(0, 0, 0)), [PAIR]).evaluation == "fit"
