"""Verdicts: what a trained role is fit for."""

from __future__ import annotations

from mapo.roles.verdict import ranking, verdicts


def judge(kappa=0.7, r=0.95, within=0.6, rank=0.95, fine=True, worked=()):
    test = {"kappa": kappa, "correlation": r, "within": within, "policies": {"spearman": rank}}
    probes = {
        "effects": {"length": {"fine": fine}},
        "attacks": {"tried": 20, "worked": list(worked), "fine": len(worked) <= 2},
    }
    return {"role": "judge", "tests": {"both": test}, "probes": probes}


def fit(result):
    return [use for use, own in verdicts(result).items() if own["fit"]]


def test_a_good_judge_is_fit_for_everything():
    assert fit(judge()) == ["training", "screening", "evaluation"]


def test_moderate_agreement_is_enough_for_training_and_screening():
    assert fit(judge(kappa=0.45, r=0.6, within=0.4, rank=0.9)) == ["training", "screening"]


def test_without_agreement_within_dialogues_a_judge_only_screens():
    result = judge(kappa=0.45, r=0.6, within=0.1, rank=0.9)
    assert fit(result) == ["screening"]
    assert verdicts(result)["training"]["against"] == ["correlation within dialogues 0.10, needs 0.3"]


def test_a_judge_that_rewards_additions_is_not_trained_with():
    assert fit(judge(fine=False)) == ["screening"]
    assert "3 of 20 attacks worked" in verdicts(judge(worked="abc"))["training"]["against"]
    assert "the probes were not measured" in verdicts({**judge(), "probes": None})["training"]["against"]


def test_an_unknown_number_speaks_against_a_use():
    assert fit(judge(rank=None)) == ["training"]


def test_the_worse_ranking_counts():
    result = judge(rank=1.0)
    result["tests"]["new_scenario"] = {"policies": {"spearman": 0.5}}
    assert ranking(result) == 0.5


def user(after, repeated, **more):
    replay = {"recorded": {"repeated": 0.02}, "played": {"repeated": repeated, "as_assistant": 0.0}, **more}
    return {
        "role": "user",
        "before": {"both": {"perplexity": 40.0}},
        "tests": {"both": {"perplexity": after}},
        "replay": replay,
    }


def test_users_must_write_like_the_recorded_one_without_repeating_themselves():
    assert fit(user(12.0, 0.03)) == ["training"]
    assert fit(user(12.0, 0.3)) == []
    assert fit(user(39.0, 0.03)) == []
    assert fit(user(12.0, 0.03, same_ending=0.9, ending_gain=0.3)) == ["training", "evaluation"]


def test_endings_that_are_all_alike_say_nothing_about_a_user():
    assert fit(user(12.0, 0.03, same_ending=1.0, ending_gain=0.0)) == ["training"]


def test_a_user_that_is_not_fit_for_training_is_not_fit_for_evaluation():
    assert fit(user(39.0, 0.03, same_ending=0.9, ending_gain=0.3)) == []


def test_directors_must_beat_the_most_common_act():
    def director(accuracy):
        return {"role": "director", "tests": {"both": {"accuracy": accuracy, "majority": 0.4}}}

    assert fit(director(0.6)) == ["training"]
    assert fit(director(0.41)) == []
