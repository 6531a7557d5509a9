"""The audit of ranking judges finds the errors that simulated judges have, and no others."""

from __future__ import annotations

import asyncio
import json
import random
from dataclasses import replace

import pytest

from mapo.errors import InputError, RecordError
from mapo.judges.audit.probes import probe_texts
from mapo.judges.audit.ranking.comparisons import (
    AGAIN,
    BROKEN,
    RISES,
    RankQuestion,
    choose_comparisons,
    rank_questions,
    rank_solver,
)
from mapo.judges.audit.ranking.measure import measure_ranking
from mapo.judges.audit.ranking.report import RankPlan, build_rank_audit, tables, write
from mapo.models.chat import DEFAULT_SAMPLING
from mapo.testing.server import LoopbackServer
from mapo.types import Reply
from support.command import mapo
from support.ranking import quality, scored, siblings
from support.roles import Told


def audited(score, recordings=None, comparisons=16, repeats=3):
    plan = RankPlan(("it",), recordings or siblings(), comparisons, repeats)
    chat = Told(lambda request: scored(request.messages[1].content, score))
    solve = rank_solver({"it": (chat, DEFAULT_SAMPLING)})

    async def answers():
        questions = plan.questions()
        return {q.id: {"id": q.id, "error": None, **await solve(q, 0)} for q in questions}

    return build_rank_audit(plan, asyncio.run(answers()))


def honest(reply, _place):
    return quality(reply)


def test_an_honest_judge_is_fit():
    audit = audited(honest)
    (f,), (verdict,) = audit.findings, audit.verdicts
    assert f.consistency.value == f.noise.value == pytest.approx(1)
    assert f.position.value == pytest.approx(0)
    assert f.broken.value == f.levels.value == 1
    assert all(gain.value == pytest.approx(0) for gain in f.gains.values()) and set(f.gains) == set(RISES)
    assert verdict.training == "fit" and verdict.evaluation == "does not apply"


def test_a_judge_that_prefers_the_first_place_is_not_fit():
    (f,) = (audit := audited(lambda reply, place: quality(reply) - 2 * place)).findings
    assert f.position.interval[1] < -0.2 and f.noise.value == pytest.approx(1) and f.consistency.value < 0.9
    assert audit.verdicts[0].training == "not fit"
    assert "the place of a reply changes its score" in " ".join(audit.verdicts[0].against_training)


def test_a_noisy_judge_is_told_by_its_repeats():
    rng = random.Random(0)
    (f,) = audited(lambda reply, _: rng.randint(0, 10)).findings
    assert f.consistency.interval[1] < 0.5 and f.noise.value < 0.5


def test_a_judge_that_likes_praise_is_not_fit():
    praise = probe_texts()[0]["en"]["flattery"]
    audit = audited(lambda reply, _: quality(reply) + 3 * any(line in reply for line in praise))
    assert audit.findings[0].gains["flattery"].interval[0] > 0.2
    assert audit.verdicts[0].training == "not fit"
    assert "it rewards flattery" in " ".join(audit.verdicts[0].against_training)


def test_a_judge_that_does_not_read_the_words_is_not_fit():
    audit = audited(lambda reply, _: sum(map(int, filter(str.isdigit, reply))) % 11)
    assert audit.findings[0].broken.value < 0.8
    assert "shuffled words" in " ".join(audit.verdicts[0].against_training)


def test_a_judge_against_the_levels_is_not_fit():
    audit = audited(lambda reply, _: 10 - quality(reply))
    assert audit.findings[0].levels.value == 0
    assert "recorded levels" in " ".join(audit.verdicts[0].against_training)


def test_equal_scores_are_a_problem():
    audit = audited(lambda *_: 5)
    assert audit.verdicts[0].against_training == ("it gives all replies the same score",)


def test_few_groups_give_no_verdict():
    audit = audited(honest, siblings(groups=3))
    assert audit.findings[0].position.interval is None
    assert audit.verdicts[0].training == "unknown"


def test_unusable_answers_are_counted():
    chat = Told("no form")
    (comparison,) = choose_comparisons(siblings(), 1)
    line = asyncio.run(rank_solver({"it": (chat, DEFAULT_SAMPLING)})(RankQuestion("it", comparison), 0))
    assert "no usable answer" in line["unscored"]
    questions = rank_questions(["it"], [comparison], 2)
    f = measure_ranking("it", questions, {q.id: {"error": None, **line} for q in questions})
    assert f.asked == f.unscored == len(questions) and f.consistency is None


def test_missing_answers_are_asked_again():
    questions = rank_questions(["it"], choose_comparisons(siblings(), 2), 2)
    f = measure_ranking("it", questions, {questions[0].id: {"error": "gone"}})
    assert f.missing == len(questions) and f.asked == 0


def test_recorded_scores_that_do_not_fit_are_refused():
    questions = rank_questions(["it"], choose_comparisons(siblings(), 1), 2)
    with pytest.raises(RecordError, match="do not fit the comparison"):
        measure_ranking("it", questions, {questions[0].id: {"error": None, "scores": [0.1, 7]}})


def test_siblings_are_compared_at_turns_that_two_have():
    recordings = siblings(groups=2, size=3, turns=4)
    chosen = choose_comparisons(recordings, 100)
    assert len(chosen) == 8 and {c.group for c in chosen[:2]} == {c.group for c in chosen}
    assert all(len({turn.recording.scenario.id for turn in c.turns}) == 1 for c in chosen)


def test_without_siblings_runs_are_compared_with_each_other():
    one, other = siblings(groups=2, size=1), siblings(groups=2, size=1, seed=5)
    both = [*one, *(replace(r, run="other") for r in other)]
    assert {turn.recording.run for turn in choose_comparisons(both, 1)[0].turns} == {"run", "other"}
    with pytest.raises(InputError, match="no scenario has two dialogues"):
        choose_comparisons(one, 1)


def with_replies(recordings, text):
    def changed(recording):
        turns = tuple(replace(turn, user="u", reply=Reply(text)) for turn in recording.dialogue.turns)
        return replace(recording, dialogue=replace(recording.dialogue, turns=turns))

    return [changed(recording) for recording in recordings]


def test_equal_replies_cannot_be_compared():
    with pytest.raises(InputError, match="are equal"):
        choose_comparisons(with_replies(siblings(), "Mm."), 1)


def test_replies_without_words_to_shuffle_are_skipped():
    short, other = siblings(groups=1, size=1), siblings(groups=1, size=1, seed=7)
    both = [*with_replies(short, "Mm."), *(replace(r, run="other") for r in other)]
    comparison = replace(choose_comparisons(both, 1)[0], target=0)
    solve = rank_solver({"it": (Told("asked"), DEFAULT_SAMPLING)})
    assert "skipped" in asyncio.run(solve(RankQuestion("it", comparison, BROKEN), 0))


def test_a_failed_endpoint_is_asked_again():
    plan = RankPlan(("it",), siblings(), 2, 2)
    (verdict,) = build_rank_audit(plan, {}).verdicts
    assert verdict.training == "unknown" and "use --resume" in verdict.unknown[0]


def test_runs_of_different_rubrics_are_refused():
    recordings = siblings(groups=1)
    other = replace(recordings[0], rubric=replace(recordings[0].rubric, name="other"))
    with pytest.raises(InputError, match="different rubrics"):
        RankPlan(("it",), [*recordings, other])


def test_a_repeat_has_another_order_and_a_probe_the_first():
    (comparison,) = choose_comparisons(siblings(size=6), 1)
    orders = [RankQuestion("it", comparison, repeat=n).order for n in range(6)]
    assert len({tuple(order) for order in orders}) > 2
    assert all(RankQuestion("it", comparison, probe).order == orders[0] for probe in (AGAIN, BROKEN, *RISES))


def test_the_files_and_tables(tmp_path):
    audit = audited(honest, comparisons=4)
    write(audit, tmp_path)
    data = json.loads((tmp_path / "audit.json").read_text())
    assert data["schema"] == "mapo.rank-audit/1" and data["judges"][0]["verdict"]["training"] == "unknown"
    assert "# Audit of it as ranking judges" in (tmp_path / "audit.md").read_text()
    assert tables(audit)[0].title == "Verdict"


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    from mapo.scenarios.sets import load_scenarios

    out = tmp_path_factory.mktemp("run")
    cases = ",".join(sorted(s.id for s in load_scenarios("builtin:test"))[:2])
    runs = []
    for name in ("honest", "parrot"):
        done = mapo(
            *("eval", "empa", "--model", f"scripted:{name}", "--out", out / name, "--cases", cases),
            *("--max-turns", 3),
        )
        assert done.returncode == 0, done.stderr
        runs.append(out / name)
    return runs


def test_the_command(run, tmp_path):
    def answer(body):
        return scored(body["messages"][1]["content"], lambda reply, _: len(reply) % 11)

    out = tmp_path / "audit"
    with LoopbackServer(answer, models=("it",)) as server:
        asked = ("judge", "audit", *run, "--rank", "--judge", "it", "--base-url", server.base_url)
        where = ("--turns", 3, "--repeats", 2, "--out", out)
        done = mapo(*asked, *where)
        assert done.returncode == 0, done.stderr
        calls = server.calls
        assert mapo(*asked, *where, "--resume").returncode == 0 and server.calls == calls
    data = json.loads((out / "audit.json").read_text())
    assert data["judges"][0]["asked"] == calls and data["sample"]["comparisons"] == 3
    assert json.loads((out / "manifest.json").read_text())["ranking"] is True
    assert "Worthless additions" in done.stdout


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (("--rank",), "--rank needs a judge"),
        (("--rank", "--judge", "scripted"), "a scripted judge cannot rank"),
        (("--rank", "--judge", "it", "--panel"), "cannot be combined"),
    ],
)
def test_what_cannot_be_ranked_is_refused(run, tmp_path, options, words):
    done = mapo("judge", "audit", *run, *options, "--out", tmp_path / "a")
    assert done.returncode == 2 and words in done.stderr
