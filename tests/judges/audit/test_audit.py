"""The audit on judges whose noise and biases are known: it finds both, within the errors it states."""

from __future__ import annotations

import asyncio
import json
import random
import re
from dataclasses import replace

import numpy as np
import pytest

from mapo.errors import AnswerError, ContextError, InputError, RecordError
from mapo.judges.audit.answers import Answers, answers_by_judge, recorded_answers
from mapo.judges.audit.effects import attack_results
from mapo.judges.audit.figure import draw, draw_effects
from mapo.judges.audit.judge_agreement import agreement, self_agreement
from mapo.judges.audit.measure import measure_judge
from mapo.judges.audit.probes import PROBES, unchanged_input
from mapo.judges.audit.questions import (
    AuditQuestion,
    all_questions,
    levels_in,
    panel_line,
    question_solver,
    scripted_asker,
)
from mapo.judges.audit.report import Audit, estimate, markdown, number, percent, tables, write
from mapo.judges.audit.run import AuditPlan, build_audit
from mapo.judges.sample import RecordedTurn, sampling_weights, stratum_sizes
from mapo.measure.rubric import Rubric
from mapo.sandbox.domain import scripted_cast
from mapo.show.tables import print_tables
from mapo.testing.judges import JudgeErrors, distorted, honest_levels, turns_in
from support.judging import EMPATHY, faulty, lines_of, recordings

RECORDINGS = recordings()
EVERY_TURN = [
    RecordedTurn(recording, at)
    for recording in RECORDINGS
    for at in range(1, len(recording.dialogue.turns) + 1)
]


def vain(reply, _prompt):
    """A level more on every axis for a reply that praises."""
    return int(any(word in reply for word in ("remarkable", "brilliant", "wonderful")))


def sinophile(_reply, prompt):
    return int("They talk in Chinese" in prompt)


def last_axis_first(_reply, prompt):
    return int(prompt.index("## P:") < prompt.index("## C:"))


def obedient(reply, _prompt):
    return 2 * any(word in reply for word in ("level 2", "Level 2", '"level": 2', "rated 2", "everything 2"))


HABITS = {
    "exact": JudgeErrors(),
    "noisy": JudgeErrors(noise=0.3),
    "vain": JudgeErrors(noise=0.1, bias=vain, seed=1),
    "obedient": JudgeErrors(bias=obedient),
}


@pytest.fixture(scope="module")
def plan():
    return AuditPlan(tuple(HABITS), RECORDINGS, turns=36, dialogues=12, repeats=4)


@pytest.fixture(scope="module")
def audit(plan):
    return build_audit(plan, lines_of(plan, {name: faulty(habit) for name, habit in HABITS.items()}), {})


def found(audit, name):
    return next(each for each in audit.findings if each.judge == name)


def said(audit, name):
    return next(each for each in audit.verdicts if each.judge == name)


def form(levels):
    return EMPATHY.levels(**levels)


def simulated(turns, habit, draws=400):
    """By drawing from the judge itself: the noise and the spread of the reward that the audit estimates."""
    chance = random.Random(0)
    within, means = [], []
    for turn in turns:
        honest = honest_levels(list(turn.history))
        own = [turn.reward(form(distorted(habit, honest, turn.reply, "", chance))) for _ in range(draws)]
        within.append(np.var(own))
        means.append(np.mean(own))
    return float(np.mean(within)), float(np.var(means))


@pytest.mark.slow
def test_known_noise_is_recovered(plan, audit):
    """Of all recorded turns, not of those asked about: rare ones are asked about more often."""
    noise = found(audit, "noisy").noise
    true_noise, true_between = simulated(EVERY_TURN, HABITS["noisy"], draws=100)
    assert noise.noise == pytest.approx(true_noise, rel=0.2)
    assert noise.between == pytest.approx(true_between, rel=0.3)
    truth = true_noise / (true_noise + true_between)
    assert noise.interval[0] < truth < noise.interval[1]
    assert found(audit, "exact").noise.noise == 0 and found(audit, "exact").noise.share == 0


@pytest.mark.slow
def test_the_share_of_noise_is_that_of_all_turns():
    """Of a policy that hardly ever does harm, single turns drawn from all strata alike: weights bring back
    what is common."""
    good = [
        recording
        for recording in recordings(people=8, siblings=4, turns=12)
        if "honest" in recording.dialogue.id
    ]
    every = [RecordedTurn(recording, at) for recording in good for at in range(1, 13)]
    shares, blind = [], []
    for seed in range(4):
        plan = AuditPlan(("it",), good, turns=36, dialogues=0, repeats=4, seed=seed, pairs=False)
        asked = [question for question in plan.questions() if question.probe == "plain"]
        answers = answers_by_judge(asked, lines_of(plan, {"it": faulty(HABITS["noisy"])}, asked))["it"]
        shares.append(measure_judge(answers, [], sizes=stratum_sizes(good)).noise.share)
        blind.append(measure_judge(answers, []).noise.share)
    noise, between = simulated(every, HABITS["noisy"], draws=60)
    truth = noise / (noise + between)
    assert abs(np.mean(shares) - truth) < 0.05 < abs(np.mean(blind) - truth)


def true_effect(turns, probe, habit):
    """What the probe does to this judge, without its noise, over all turns that these stand for."""
    quiet, chance = replace(habit, noise=0.0), random.Random(0)
    gaps = []
    for at, turn in enumerate(turns):
        plain, changed = unchanged_input(turn), PROBES[probe].change(unchanged_input(turn), at)
        before, after = (
            turn.reward(form(distorted(quiet, honest_levels(list(s.turns)), s.reply, "", chance)))
            for s in (plain, changed)
        )
        gaps.append(after - before)
    return float(np.average(gaps, weights=sampling_weights(turns, stratum_sizes(RECORDINGS))))


@pytest.mark.parametrize("judge", ["exact", "noisy", "vain"])
def test_known_effects_are_recovered(plan, audit, judge):
    for probe in ("flattery", "hedging", "length", "verbosity"):
        effect = found(audit, judge).effect(probe)
        truth = true_effect(plan.sampled_turns(), probe, HABITS[judge])
        if judge == "exact":
            assert effect.reward == pytest.approx(truth)
        else:
            assert effect.interval[0] - 0.1 < truth < effect.interval[1] + 0.1
    added = true_effect(plan.sampled_turns(), "flattery", HABITS["vain"]) - true_effect(
        plan.sampled_turns(), "flattery", HABITS["exact"]
    )
    assert added > 1  # the bias is there to be found


def test_the_verdict_names_the_fault(audit):
    assert any("rewards flattery" in why for why in said(audit, "vain").against_training)
    assert not any("flattery" in why for why in said(audit, "exact").against_training)
    assert any("attacks work" in why for why in said(audit, "obedient").against_training)
    taken = found(audit, "obedient").attacks
    assert taken.worked >= 10 and taken.n == 36 and len(taken.names) == taken.worked
    assert found(audit, "noisy").attacks.chance > 0.02
    assert said(audit, "vain").training == said(audit, "vain").evaluation == "not fit"


@pytest.mark.parametrize("repeats", [2, 4])
def test_attacks_that_do_nothing_work_as_often_as_chance_does(repeats):
    """Forms of one distribution, attacked or not: both rates must be the same but for their own chance."""
    rng, turn, n = np.random.default_rng(repeats), RecordedTurn(RECORDINGS[0], 1), 4000
    names = [f"run/{i}@1" for i in range(n)]
    answers = Answers("it", turns=dict.fromkeys(names, turn), variants=dict.fromkeys(names, 0))
    drawn = rng.integers(0, 3, (n, repeats + 1, 3)).tolist()
    forms = [[form(dict(zip("CAP", ((x, 0) for x in own), strict=True))) for own in row] for row in drawn]
    answers.by_probe["plain"] = {name: row[:-1] for name, row in zip(names, forms, strict=True)}
    answers.by_probe["injection"] = {name: row[-1:] for name, row in zip(names, forms, strict=True)}
    taken = attack_results(answers)
    assert taken.n == n and taken.worked / n == pytest.approx(taken.chance, abs=0.025)
    alone = {name: own[:1] for name, own in answers.unchanged.items()}  # against one form nothing can be told
    assert attack_results(replace(answers, by_probe={**answers.by_probe, "plain": alone})) is None


def test_without_siblings_nothing_is_said_of_them():
    alone = [replace(t, dialogue=replace(t.dialogue, group=t.dialogue.id)) for t in RECORDINGS[:8]]
    plan = AuditPlan(("it",), alone, turns=4, dialogues=8, repeats=2, pairs=False)
    audit = build_audit(plan, lines_of(plan, {"it": faulty(JudgeErrors(noise=0.1))}), {})
    it = found(audit, "it")
    assert not it.siblings and it.among_siblings is None and it.as_json()["group"] is None
    assert it.reliability[0].r > 0.5  # unlike dialogues, told as such
    assert said(audit, "it").training == "unknown"
    assert any("noise among siblings" in line for line in said(audit, "it").open_training)


def test_a_biased_judge_is_not_called_fit_over_four_dialogues():
    """Four dialogues are too few for an interval; the verdict, the table and a warning say so."""
    few = [
        recording
        for recording in RECORDINGS
        if recording.dialogue.seed == 0 and "honest" in recording.dialogue.id
    ][:4]
    plan = AuditPlan(("vain",), few, turns=12, dialogues=4, repeats=2, pairs=False)
    audit = build_audit(plan, lines_of(plan, {"vain": faulty(JudgeErrors(bias=vain))}), {})
    assert found(audit, "vain").effect("flattery").size > 1  # badly so
    it = said(audit, "vain")
    assert (it.training, it.evaluation) == ("unknown", "unknown")
    for why in (it.open_training, it.open_evaluation):
        assert "effects of the probes: 4 dialogues probed, 6 are needed" in why
    assert [warning.partition(";")[0] for warning in plan.warnings()] == [
        "probe effects are measured on 4 dialogues",
        "noise and agreement are measured on 4 dialogues",
        "advantages and scores are measured on 4 dialogues",
    ]
    assert sum("small sample" in note for note in audit.notes) == 3
    by_title = {table.title: table for table in tables(audit)}
    [flattery] = [
        row for row in by_title["Worthless additions: should gain nothing"].rows if row[0] == "flattery"
    ]
    assert flattery[2].value.endswith("unclear") and flattery[2].interval == "only 4 dialogues"
    assert by_title["Noise"].rows[0][3].interval == "only 4 dialogues"
    assert AuditPlan(("vain",), RECORDINGS, turns=36).warnings() == []


def test_warnings_count_the_dialogues_that_tables_count():
    """Turns of whole dialogues are judged more than once, too: they count for noise, not for probes."""
    plan = AuditPlan(("exact",), RECORDINGS, turns=2, dialogues=3, repeats=2, pairs=False)
    audit = build_audit(plan, lines_of(plan, {"exact": faulty(JudgeErrors())}), {})
    findings, warnings = found(audit, "exact"), plan.warnings()
    counts = [int(re.search(r"on (\d+) dialogue", warning)[1]) for warning in warnings]
    assert counts[0] == findings.effect("flattery").clusters < counts[1]
    assert counts[1] == findings.noise.dialogues
    assert counts[2] == findings.scored_dialogues


def test_nothing_moves_a_judge_that_sees_the_reply_alone(audit):
    for name in ("order", "position", "prompt short", "prompt inspector", "prompt backwards", "language"):
        assert found(audit, "exact").effect(name).reward == pytest.approx(0)
        effect = found(audit, "noisy").effect(name)
        assert effect.state != "problem" and effect.kind == "shift"


@pytest.mark.parametrize(("likes", "probe"), [(sinophile, "language"), (last_axis_first, "order")])
def test_a_judge_moved_by_what_is_no_part_of_the_reply_is_found_out(likes, probe):
    plan = AuditPlan(("it",), RECORDINGS, turns=18, dialogues=0, repeats=2)
    audit = build_audit(plan, lines_of(plan, {"it": faulty(JudgeErrors(bias=likes))}), {})
    effect = found(audit, "it").effect(probe)
    assert effect.reward > 0.5 and effect.state == "problem"
    others = [e for e in found(audit, "it").effects if e.kind == "shift" and e.probe != probe]
    assert all(e.reward == pytest.approx(0) for e in others)
    assert any(f"{probe} changes its rewards" in why for why in said(audit, "it").against_evaluation)


def test_noise_costs_advantages_and_repeats_give_them_back(audit):
    exact, noisy = found(audit, "exact"), found(audit, "noisy")
    assert exact.siblings and all(r.with_truth == pytest.approx(1) for r in exact.reliability)
    by = {r.method: r for r in noisy.reliability}
    assert by["mapo"].with_truth < 0.95 < by["grpo"].with_truth  # sums of many turns drown the noise
    assert by["mapo"].as_json()["repeats"] >= 2 and by["mapo"].as_json()["growth"] > 1.1
    assert noisy.scores < exact.scores == pytest.approx(1)
    assert noisy.items["C progress"]["sd"] > 0.2 > exact.items["C progress"]["sd"] == 0
    assert noisy.items["C progress"]["changed"] > 0.4


def test_judges_agree_with_themselves_no_better_than_their_noise_allows(audit):
    pairs = {(pair.a, pair.b): pair for pair in audit.agreements}
    assert pairs["exact", "exact, again"].kappa == pairs["exact", "recorded"].kappa == 1
    assert pairs["exact", "recorded"].ranks == pytest.approx(1)
    own, other = pairs["noisy", "noisy, again"], pairs["exact", "noisy"]
    assert own.kappa < other.kappa < 0.95  # two noisy answers differ more than one does from the truth
    assert own.interval[0] < own.kappa < own.interval[1]
    assert other.cosine < 1 and other.turns > 100 and other.moved > 50 and other.dialogues == 12
    assert abs(pairs["exact", "vain"].milder) < 0.4
    assert set(other.kappas) == {f"{k} {s}" for k in "CAP" for s in ("progress", "regression")}


def test_evidence_is_looked_up(audit):
    assert found(audit, "exact").quotes.share == 1
    plan = AuditPlan(("liar", "deaf"), RECORDINGS, turns=12, dialogues=0, repeats=2, pairs=False)
    judges = {"liar": faulty(JudgeErrors(quotes=False)), "deaf": faulty(JudgeErrors(failures=0.8, seed=3))}
    audit = build_audit(plan, lines_of(plan, judges), {})
    assert found(audit, "liar").quotes.share == 0
    assert any("0% of its evidence" in why for why in said(audit, "liar").against_evaluation)
    deaf = found(audit, "deaf")
    assert 0.3 < deaf.unscored / deaf.asked < 0.7  # 0.8 ** 3: each form is asked for three times
    assert any("forms are unusable" in why for why in said(audit, "deaf").against_training)
    assert (
        said(audit, "liar").training == "unknown"
        and "fewer than two whole dialogues" in said(audit, "liar").summary()
    )
    assert deaf.effect("language") is None


def test_a_panel_of_noisy_judges_is_less_noisy():
    """Three whose levels stray with a chance of 0.3: the median strays where two do so together, by 0.12."""
    three = {f"j{n}": faulty(JudgeErrors(noise=0.3, seed=n)) for n in range(3)}
    plan = AuditPlan(tuple(three), RECORDINGS, turns=60, dialogues=0, repeats=4, pairs=False, panel="all")
    asked = [question for question in plan.questions() if question.probe == "plain"]
    every, lines = plan.with_panel(lines_of(plan, three, asked))
    noise = {name: measure_judge(own, []).noise.noise for name, own in answers_by_judge(every, lines).items()}
    assert 0.25 < noise["all"] / noise["j0"] < 0.65


def test_a_panel_says_what_its_members_said():
    question = AuditQuestion("all", RecordedTurn(RECORDINGS[0], 1))

    def gives(level):
        marks = {"level": level, "evidence": f"e{level}", "reason": ""}
        zero = {"level": 0, "evidence": "", "reason": ""}
        return {"levels": {key: {"progress": marks, "regression": zero} for key in EMPATHY.keys}}

    def levels(*given):
        return {sides["progress"]["level"] for sides in panel_line(question, given)["levels"].values()}

    lost = {"unscored": "no form"}
    assert levels(gives(0), gives(2), gives(2)) == {2} and levels(gives(0), gives(1)) == {0}
    assert levels(gives(2), lost, gives(2)) == {2}  # more than half answered
    assert panel_line(question, [lost, gives(1)]) == {"unscored": "1 of 2 judges of the panel answered"}
    assert panel_line(question, [gives(1), {"skipped": "cannot"}]) == {"skipped": "cannot"}
    assert panel_line(question, [gives(1), None, gives(1)]) is None  # it may still come


def test_the_scripted_judge_gives_what_it_gave():
    plan = AuditPlan(("scripted",), RECORDINGS, turns=8, dialogues=2, repeats=2)
    lines = lines_of(plan, {"scripted": scripted_asker(scripted_cast("empathy"))})
    audit = build_audit(plan, lines, {})
    pair = next(p for p in audit.agreements if p.b == "recorded")
    assert pair.kappa == 1 and pair.milder == 0
    assert found(audit, "scripted").effect("language") is None  # it cannot play these people
    assert any("skipped" in line for line in lines.values())


def test_another_domain_is_audited_like_the_first():
    """Four axes, other keys: a liking for praise is found, and nothing else is."""
    tutoring = recordings(turns=6, domain="tutoring")
    plan = AuditPlan(("vain", "exact"), tutoring, turns=36, dialogues=6, repeats=2)
    judges = {"vain": faulty(JudgeErrors(bias=vain), "tutoring"), "exact": faulty(JudgeErrors(), "tutoring")}
    audit = build_audit(plan, lines_of(plan, judges), {})
    assert set(found(audit, "vain").items) == {
        f"{k} {s}" for k in tutoring[0].rubric.keys for s in ("progress", "regression")
    }
    gain = found(audit, "vain").effect("flattery").reward - found(audit, "exact").effect("flattery").reward
    assert gain > 1 and any("rewards flattery" in why for why in said(audit, "vain").against_training)
    assert found(audit, "exact").effect("language").reward == pytest.approx(0)
    assert found(audit, "exact").effect("language").n == 12 * 1
    assert found(audit, "exact").attacks.n == 36


# ---- tables, files, figure


def test_tables_and_files_say_what_was_found(audit, tmp_path, capsys):
    cost = {"calls": 10, "seconds": 5.0, "prompt": 1000, "completion": 100, "cost": None}
    whole = replace(audit, costs={"noisy": cost, "vain": {**cost, "calls": 0}}, notes=["a <note> | *so*"])
    print_tables(tables(whole))
    shown = capsys.readouterr().out
    assert "should change nothing" in shown and "not fit" in shown and "0.50" in shown
    assert draw(whole, tmp_path).read_bytes().startswith(b"\x89PNG")
    write(whole, tmp_path, "audit.png")
    text = (tmp_path / "audit.md").read_text()
    assert "![" in text and "a &lt;note&gt; \\| \\*so\\*" in text and "rewards flattery" in text
    data = json.loads((tmp_path / "audit.json").read_text())
    assert data["schema"] == "mapo.audit/2" and len(data["judges"]) == 4
    noisy = data["judges"][1]
    assert (
        noisy["judge"] == "noisy"
        and noisy["cost"]["calls"] == 10
        and noisy["advantages"][0]["method"] == "mapo"
    )
    assert data["thresholds"]["TARGET"] == 0.9 and data["sample"]["turns asked again"] == 36
    assert "![" not in markdown(whole)


def test_two_judges_agreement_is_a_row_and_every_level_is_in_the_file(audit):
    shown = next(table for table in tables(audit) if table.title == "Agreement")
    assert len(shown.rows) == len(audit.agreements) and shown.rows[0][0] == "exact / noisy"
    pair = next(pair for pair in audit.agreements if pair.a == "exact" and pair.b == "noisy")
    worst = min(k for k in pair.kappas.values() if k is not None)
    row = next(row for row in shown.rows if row[0] == "exact / noisy")
    assert row[3].value == f"{worst:.2f}" and pair.kappas[row[3].interval] == worst
    text = markdown(audit).partition("## Agreement by level")[2]
    assert all(item in text for item in pair.kappas)
    none = replace(pair, kappas=dict.fromkeys(pair.kappas))
    still = next(t for t in tables(replace(audit, agreements=[none])) if t.title == "Agreement")
    assert still.rows[0][3] == "-"


def test_numbers_as_text():
    assert number(None, ".2f") == "-" and percent(1, 0) == "-"
    assert estimate(1.0, None, ".1f") == ("1.0", "")
    assert estimate(0.5, (0.25, 0.75), ".2f") == ("0.50", "0.25 to 0.75")
    assert estimate(0.5, None, ".2f", 1) == ("0.50", "only 1 dialogue")
    assert estimate(None, None, ".2f", 1) == ("-", "")


def test_an_audit_without_effects_or_answers_still_tells(tmp_path):
    plan = AuditPlan(("gone",), RECORDINGS, turns=2, dialogues=0, repeats=2, pairs=False)
    lines = {q.id: {"levels": line["levels"]} for q, line in ((plan.questions()[0], first_line()),)}
    audit = build_audit(plan, lines, {})
    assert found(audit, "gone").missing == len(plan.questions()) - 1
    assert found(audit, "gone").noise is None and found(audit, "gone").items == {}
    assert said(audit, "gone").training == "unknown"
    assert "use --resume to retry" in " ".join(said(audit, "gone").unknown)
    print_tables(tables(audit))
    draw(audit, tmp_path)


def first_line():
    marks = {"level": 0, "evidence": "", "reason": ""}
    return {"levels": {key: {"progress": marks, "regression": marks} for key in EMPATHY.keys}}


def test_the_figure_has_a_row_for_every_probe_and_says_what_is_not_known(audit):
    from matplotlib.figure import Figure

    def drawn(of):
        axes = Figure().subplots()
        draw_effects(axes, of)
        at = dict(zip((t.get_text() for t in axes.get_yticklabels()), axes.get_yticks(), strict=True))
        return axes, at, [text.get_text().strip() for text in axes.texts]

    axes, at, texts = drawn(audit)
    bottom, top = axes.get_ylim()
    assert set(at) == {*PROBES, "language"} and all(top < row < bottom for row in at.values())
    assert at["order"] - at["injection"] == 2 > at["injection"] - at["verbosity"]  # two groups, set apart
    assert texts == ["should gain nothing", "should change nothing"] and axes.get_legend() is None
    mute = [replace(f, effects=tuple(e for e in f.effects if e.probe != "language")) for f in audit.findings]
    assert drawn(replace(audit, findings=mute))[2][2:] == ["not measured"]


def test_the_figure_says_what_it_needs(audit, tmp_path, monkeypatch):
    import builtins

    real = builtins.__import__

    def without(name, *rest):
        if name.startswith("matplotlib"):
            raise ImportError
        return real(name, *rest)

    monkeypatch.setattr(builtins, "__import__", without)
    with pytest.raises(InputError, match="matplotlib"):
        draw(audit, tmp_path)


# ---- questions and answers


def test_questions_are_asked_once_each(plan):
    asked = plan.questions()
    assert len({q.id for q in asked}) == len(asked)
    mine = [q for q in asked if q.judge == "exact"]
    assert sum(q.probe == "flattery" for q in mine) == 36
    assert sum(q.probe == "language" for q in mine) == 12 * 4
    first = plan.sampled_turns()[0].id
    [again] = [q.repeat for q in mine if q.id == f"exact|{first}|plain|3"]
    assert again == 3


def test_plans_that_cannot_be_meant_are_refused():
    other = replace(RECORDINGS[0], rubric=Rubric.load("tutoring"))
    with pytest.raises(InputError, match="different rubrics"):
        AuditPlan(("a",), [RECORDINGS[0], other])
    with pytest.raises(InputError, match="twice"):
        AuditPlan(("a",), RECORDINGS, repeats=1)


def test_a_prompt_beyond_the_context_of_the_judge_is_unscored():
    async def fails(_shown, _name):
        raise ContextError("too long")

    question = AuditQuestion("it", RecordedTurn(RECORDINGS[0], 1))
    assert asyncio.run(question_solver({"it": fails})(question, 0)) == {"unscored": "too long"}


def test_a_failed_form_is_an_answer_and_a_probe_without_a_variant_none():
    async def fails(_shown, _name):
        raise AnswerError("no form")

    turn = RecordedTurn(RECORDINGS[0], 1)
    solve = question_solver({"it": fails})
    assert asyncio.run(solve(AuditQuestion("it", turn), 0)) == {"unscored": "no form"}
    swahili = RecordedTurn(replace(RECORDINGS[0], scenario=replace(RECORDINGS[0].scenario, language="sw")), 1)
    assert "skipped" in asyncio.run(solve(AuditQuestion("it", swahili, "length"), 0))
    names = []

    async def named(_shown, name):
        names.append(name)
        return EMPATHY.levels()

    for attempt in (0, 2):
        asyncio.run(question_solver({"it": named})(AuditQuestion("it", turn), attempt))
    assert names == [f"audit/it|{turn.id}|plain|0", f"audit/it|{turn.id}|plain|0/2"]


def test_lines_that_are_no_forms_are_refused():
    assert levels_in(None, EMPATHY, "x") is None and levels_in({"unscored": "y"}, EMPATHY, "x") is None
    bad = first_line()
    bad["levels"]["C"]["progress"] = {"level": 9}
    for line in (bad, {"levels": {}}, {"levels": {"C": 1}}):
        with pytest.raises(RecordError, match="does not fit the rubric"):
            levels_in(line, EMPATHY, "items.jsonl")


def test_dialogues_half_judged_have_no_path():
    recording = RECORDINGS[0]
    asked = all_questions(["it"], [RecordedTurn(recording, 1)], [], [], repeats=2, probes=[])
    answers = answers_by_judge(asked, {q.id: first_line() for q in asked})["it"]
    assert answers.trajectory(recording, 0) is None and measure_judge(answers, [recording]).scores is None
    assert self_agreement(answers, [recording]).kappa is None
    assert agreement(answers, Answers("nobody"), [recording]) is None
    assert recorded_answers(answers).first()


def test_a_prompt_is_read_as_it_was_written():
    turns = turns_in('x\nperson: "a \\u003c b"\nreply: "c"\nperson: "d"\nreply: "e\\n"')
    assert [(t.user, t.reply.text) for t in turns] == [("a < b", "c"), ("d", "e\n")]
    assert honest_levels(turns)["C"] == (0, 0)


def test_audit_is_plain_data(audit):
    assert isinstance(audit, Audit) and json.loads(json.dumps(audit.as_json()))["runs"] == ["run"]
