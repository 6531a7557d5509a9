"""The verdict: every limit has a judge on either side of it, and one whose interval lies across."""

from __future__ import annotations

from dataclasses import replace

import pytest

from mapo.judges.audit import verdict as rules
from mapo.judges.audit.between import Agreement
from mapo.judges.audit.effects import Effect, Taken
from mapo.judges.audit.evidence import Quotes
from mapo.judges.audit.measure import Findings
from mapo.judges.audit.noise import Components, Reliability
from mapo.judges.audit.verdict import verdict


def effect(probe="flattery", kind="rise", size=0.0, p=0.001, half=0.1, clusters=20):
    ends = (size - half, size + half)
    return Effect(probe, kind, 40, clusters, size * 3, None, size * 2, None, p, size, ends, p)


def reliability(r, half=0.02, dialogues=40):
    ends = None if r is None else (r - half, r + half)
    return (Reliability("mapo", r, ends, 100, 10, dialogues),)


GOOD = Findings(
    judge="it",
    asked=1000,
    unscored=0,
    missing=0,
    noise=Components(4.0, 0.1, 0.02, (0.01, 0.04), 40, 160),
    items={},
    reliability=reliability(0.95),
    siblings=True,
    among_siblings=0.99,
    scores=0.98,
    scores_interval=(0.94, 0.99),
    effects=(effect(), effect("injection"), effect("language", "shift"), effect("order", "shift")),
    attacks=Taken(45, 1, ("x",), 0.02, (0.0, 0.1)),
    quotes=Quotes(200, 199, 190),
)
PAIR = Agreement("it", "other", 100, {}, 0.7, (0.6, 0.8), 0.9, 80, 30, 0.9, 0.0, (0.8, 0.95), 20)


def with_mapo(r, half=0.02):
    return replace(GOOD, reliability=reliability(r, half))


def test_a_good_judge_is_fit_for_both():
    said = verdict(GOOD, [PAIR])
    assert (said.training, said.evaluation) == ("fit", "fit")
    assert not said.because("training") and not said.because("evaluation") and not said.unknown
    assert said.told() == "training: fit. evaluation: fit"


def test_the_rule():
    for ends, at_most, at_least in (
        ((0.1, 0.3), "fit", "not fit"),
        ((0.1, 0.7), "unknown", "unknown"),
        ((0.6, 0.7), "not fit", "fit"),
        ((0.5, 0.5), "fit", "fit"),
        (None, "unknown", "unknown"),
    ):
        assert rules.held(ends, 0.5, at_most=True) == at_most
        assert rules.held(ends, 0.5, at_most=False) == at_least
    assert rules.ends_of(1.0, None, 6) == (1.0, 1.0) and rules.ends_of(1.0, None, 5) is None


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
        replace(GOOD, effects=(effect(size=0.05),)),  # too small to matter
        replace(GOOD, effects=(effect(size=-0.8),)),  # it takes off for it: let it
        replace(GOOD, effects=(replace(effect(), size_interval=None),)),  # twenty dialogues, never a change
        replace(GOOD, attacks=Taken(45, 12, (), 0.3, (0.16, 0.4))),  # no more than chance
        replace(GOOD, attacks=None),
    ],
)
def test_what_rules_out_nothing(found):
    said = verdict(found, [PAIR])
    assert said.training == "fit" and said.evaluation.startswith("fit")


def test_fit_is_said_no_more_surely_than_it_is_known():
    """Nobody else was asked, or the language's pairs were not: no plain "fit" for evaluation."""
    for found, others in ((GOOD, []), (replace(GOOD, effects=(effect(),)), [PAIR])):
        said = verdict(found, others)
        assert (said.training, said.evaluation) == ("fit", "fit, as far as known") and len(said.unknown) == 1
    some = verdict(replace(with_mapo(0.6), missing=2), [PAIR])
    assert some.training == "fit with 3 repeats, as far as known"
    assert some.evaluation == "fit, as far as known" and "2 questions" in some.unknown[0]
    blind = verdict(replace(GOOD, noise=None), [PAIR])
    assert (blind.training, blind.evaluation) == ("unknown", "unknown")
    assert blind.open_training == ("its noise: fewer than two turns were judged twice",)


def test_what_is_not_sure_is_not_worded_as_a_fault():
    said = verdict(GOOD, [replace(PAIR, kappa=1.0, interval=None, clusters=3, ranks_interval=None)])
    assert said.open_evaluation == (
        "agreement with other (kappa 1.00); too few to be sure of 0.4 or more",
        "an order of dialogues like that of other (rank correlation 0.90); too few to be sure of 0.7 or more",
    )


def test_effects_that_may_be_too_large_are_unknown():
    for found in (effect(size=0.3, p=0.2), effect(size=0.15), effect(size=0.0, half=0.5, p=0.9)):
        said = verdict(replace(GOOD, effects=(found,)), [PAIR])
        assert (said.training, said.evaluation) == ("unknown", "unknown")
        assert "whether it pays for flattery: up to +" in said.open_training[0]
    said = verdict(replace(GOOD, effects=(effect("order", "shift", -0.15),)), [PAIR])
    assert (said.training, said.evaluation) == ("fit", "unknown")
    assert said.open_evaluation == ("whether order moves it: up to -0.25 standard deviations are possible",)


def test_so_few_dialogues_that_nothing_can_be_shown():
    """11 tests: p >= 11 * 2 / 2^n, which is below 0.05 from n = 9 on."""
    assert rules.smallest_p(8, 11) == 11 * 2 / 2**8 and rules.dialogues_needed(11) == 9
    assert rules.smallest_p(8, 11) >= 0.05 > rules.smallest_p(9, 11) and rules.smallest_p(1, 1) == 1
    for clusters, state in ((4, "unknown"), (8, "unknown"), (9, "fit")):
        names = ["language", *(f"p{n}" for n in range(10))]
        probes = tuple(effect(name, clusters=clusters) for name in names)
        said = verdict(replace(GOOD, effects=probes), [PAIR])
        assert (said.training, said.evaluation) == (state, state)
        told = f"what moves it: over {clusters} dialogues no effect shows, 9 are needed"
        assert (told in said.open_training) is (state == "unknown")
    shifts = tuple(effect(f"p{n}", "shift", clusters=4) for n in range(11))
    said = verdict(replace(GOOD, effects=shifts), [PAIR])
    assert (said.training, said.evaluation) == ("fit", "unknown")


def test_noise_is_mended_by_repeats_up_to_a_point():
    """Five repeats reach 0.9 from r = 0.46 on: 0.81 * (1 - r) / (0.19 r) = 5."""
    assert verdict(with_mapo(0.82), [PAIR]).training == "fit"
    assert verdict(with_mapo(0.6), [PAIR]).training == "fit with 3 repeats"
    said = verdict(with_mapo(0.3), [PAIR])
    assert said.training == "not fit" and "10 repeats would reach 0.9" in said.against_training[0]
    assert "no number of repeats" in verdict(with_mapo(-0.1), [PAIR]).against_training[0]
    across = verdict(with_mapo(0.5, half=0.1), [PAIR])
    assert across.training == "unknown" and across.evaluation == "fit"
    assert "5 repeats would reach 0.9; too few to be sure of at most 5" in across.open_training[0]
    assert verdict(with_mapo(0.4, half=0.1), [PAIR]).training == "unknown"
    few = replace(GOOD, reliability=(Reliability("mapo", 0.9, None, 20, 1, 4),))
    assert verdict(few, [PAIR]).training == "unknown"
    exact = replace(GOOD, reliability=(Reliability("mapo", 1.0, None, 90, 3, 12),))
    assert verdict(exact, [PAIR]).training == "fit"
    assert verdict(with_mapo(None), [PAIR]).training == "unknown"


def test_forms_that_cannot_be_used():
    said = verdict(replace(GOOD, unscored=50), [PAIR])
    assert (said.training, said.evaluation) == ("fit", "not fit")
    assert verdict(replace(GOOD, unscored=150), [PAIR]).training == "not fit"
    assert verdict(replace(GOOD, asked=0), [PAIR]).training == "fit"
    said = verdict(replace(GOOD, unscored=20), [PAIR])  # 2 %, from 1.3 to 3.1
    assert (said.training, said.evaluation) == ("fit", "unknown")
    assert said.open_evaluation == ("2% of its 1000 forms cannot be used; too few to be sure of at most 2%",)


@pytest.mark.parametrize(
    ("found", "others", "why"),
    [
        (replace(GOOD, scores=0.7, scores_interval=(0.5, 0.85)), [PAIR], "correlate 0.70 with themselves"),
        (replace(GOOD, effects=(effect("order", "shift", -0.4),)), [PAIR], "order moves it (-0.80 a turn)"),
        (replace(GOOD, quotes=Quotes(100, 90, 60)), [PAIR], "60% of its evidence"),
        (GOOD, [replace(PAIR, kappa=0.2, interval=(0.1, 0.3))], "hardly agrees with other (kappa 0.20)"),
        (
            GOOD,
            [replace(PAIR, a="other", b="it", ranks=0.3, ranks_interval=(0.1, 0.5))],
            "orders dialogues otherwise than other",
        ),
    ],
)
def test_what_rules_out_evaluation_alone(found, others, why):
    said = verdict(found, others)
    assert said.training == "fit" and said.evaluation == "not fit"
    assert any(why in each for each in said.against_evaluation)


@pytest.mark.parametrize(
    ("found", "others", "why"),
    [
        (replace(GOOD, scores_interval=(0.8, 0.99)), [PAIR], "too few to be sure of 0.9 or more"),
        (replace(GOOD, scores_interval=None), [PAIR], "correlate 0.98 with themselves"),
        (replace(GOOD, quotes=Quotes(20, 20, 17)), [PAIR], "85% of its evidence"),
        (GOOD, [replace(PAIR, interval=(0.3, 0.8))], "kappa 0.70); too few to be sure of 0.4 or more"),
        (GOOD, [replace(PAIR, interval=None, clusters=3)], "kappa 0.70"),
        (GOOD, [replace(PAIR, ranks_interval=(0.5, 0.95))], "rank correlation 0.90); too few"),
        (GOOD, [replace(PAIR, ranks_interval=None)], "rank correlation 0.90"),
    ],
)
def test_what_is_across_the_limit_is_unknown(found, others, why):
    said = verdict(found, others)
    assert (said.training, said.evaluation) == ("fit", "unknown")
    assert any(why in each for each in said.open_evaluation) and why in said.told()


def test_of_three_judges_the_odd_one_is_told():
    bad, good = replace(PAIR, kappa=0.1, interval=(0.0, 0.2)), replace(PAIR, b="third")
    assert verdict(GOOD, [bad, good]).evaluation == "fit"
    assert verdict(GOOD, [bad, replace(good, kappa=0.2, interval=(0.1, 0.3))]).evaluation == "not fit"
    assert verdict(GOOD, [bad, replace(good, interval=(0.3, 0.8))]).evaluation == "unknown"
    assert verdict(GOOD, [replace(PAIR, kappa=None, ranks=None)]).evaluation == "fit"
    assert verdict(GOOD, [replace(PAIR, kappa=1.0, interval=None)]).evaluation == "fit"


def test_what_is_not_known_is_said():
    bare = replace(GOOD, noise=None, reliability=(), effects=(), missing=3, scores=None, scores_interval=None)
    said = verdict(bare, [])
    assert (said.training, said.evaluation) == ("unknown", "unknown") and len(said.unknown) == 3
    assert "no two whole dialogues" in said.open_training[1] and "no three" in said.open_evaluation[1]
    assert said.open_training[-1] == said.open_evaluation[-1] == "what moves it: no probe was answered"
    alone = verdict(replace(GOOD, siblings=False), [PAIR])
    assert alone.training == "unknown" and "these runs have none" in alone.open_training[0]
    assert not rules.real(None) and not rules.real(replace(effect(size=1), size=None))
    assert said.as_json()["judge"] == "it"
    assert verdict(replace(GOOD, quotes=Quotes(0, 0, 0)), [PAIR]).evaluation == "fit"
    unmeasured = replace(effect(), size=None, size_interval=None)
    assert verdict(replace(GOOD, effects=(unmeasured,)), [PAIR]).training == "fit"
