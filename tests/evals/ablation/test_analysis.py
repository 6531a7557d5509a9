"""Reading a grid of finished runs, and what is said about them, on runs made up for the purpose."""

from __future__ import annotations

import json
import math
from xml.etree import ElementTree

import pytest

from mapo.errors import InputError
from mapo.evals.ablation.analysis import GridRun, analyse, read_run
from mapo.evals.ablation.cells import METHOD, REWARD, GridCell
from mapo.evals.ablation.report import draw, markdown, picture
from mapo.records import encode_dialogue
from mapo.scoring.context import ScoreContext
from mapo.scoring.score import score_dialogues
from mapo.scripted.world import World, world_notice
from support.builders import dialogue, marks


def made(
    method: str, reward: str, seed: int, scores: list, *, after=50.0, norm=1.0, jobs=None, **more
) -> GridRun:
    """A run of 64 dialogues a step with these training scores."""
    steps = [
        {"step": i, "dialogues": 64, "score": s, "grad_norm": norm + i / 100} for i, s in enumerate(scores, 1)
    ]
    if steps:
        steps[-1]["validation"] = {"epm_q": after - 1, "passes": 3, "n": 6}
    summary = {
        "method": method,
        "reward": reward,
        "seed": seed,
        "model": "pocket",
        "dialogues": 64 * len(scores),
        "before": {"epm_q": 20.0 + seed, "interval": None, "passes": 0, "n": 12},
        "after": {"epm_q": after, "interval": None, "passes": 6, "n": 12},
    }
    return GridRun(
        GridCell.of({METHOD: method, REWARD: reward}, seed), {**summary, **more}, steps, jobs or {}
    )


def write(root, run: GridRun, dialogues=()):
    folder = root / run.cell.name
    (folder / "eval" / "after").mkdir(parents=True)
    lines = [json.dumps(line) for line in run.steps]
    (folder / "metrics.jsonl").write_text("\n".join([*lines, '{"step": 9, "dial']))
    (folder / "summary.json").write_text(json.dumps(run.summary))
    file = folder / "eval" / "after" / "dialogues.jsonl"
    file.write_bytes(b"".join(encode_dialogue(d) + b"\n" for d in dialogues))
    return folder


def test_a_run_is_read_with_its_test_dialogues(tmp_path, empathy):
    run = made("reinforce++_turn", "adr", 3, [10.0, 20.0])
    played = [
        dialogue(empathy, [marks(empathy, 1 + k)] * 12, id=f"s{k}_1", scenario=f"s{k}") for k in range(2)
    ]
    broken = dialogue(empathy, [marks(empathy, 2)], id="s9_1", scenario="s9", error="gone")
    write(tmp_path, run, [*played, broken])
    found = read_run(tmp_path, run.cell)
    assert found.summary == run.summary and found.steps == run.steps
    assert set(found.jobs) == {("s0", "s0_1"), ("s1", "s1_1")}
    # EPM-Q is linear in the mean indices, so a set's score is the mean over its dialogues
    whole = score_dialogues("", played, empathy).composite.epm_q
    assert sum(found.jobs.values()) / 2 == pytest.approx(whole)


def test_after_a_resume_the_last_line_of_a_step_counts(tmp_path):
    run = made("mapo", "idr", 0, [10.0, 20.0])
    folder = write(tmp_path, run)
    again = {**run.steps[1], "score": 33.0}
    (folder / "metrics.jsonl").write_text("".join(json.dumps(x) + "\n" for x in [*run.steps, again]))
    assert [line["score"] for line in read_run(tmp_path, run.cell).steps] == [10.0, 33.0]


def test_what_is_not_finished_or_not_a_run(tmp_path):
    cell = GridCell.of({METHOD: "mapo", REWARD: "idr"}, 0)
    assert read_run(tmp_path, cell) is None
    folder = write(tmp_path, made("mapo", "idr", 0, [1.0]))
    (folder / "summary.json").write_text('{"method": "turn", "reward": "idr", "seed": 0, "dialogues": 1}')
    with pytest.raises(InputError, match="turn_idr_seed0"):
        read_run(tmp_path, cell)
    (folder / "summary.json").write_text("[]")
    with pytest.raises(InputError, match="summary"):
        read_run(tmp_path, cell)
    with pytest.raises(InputError, match="no run is finished"):
        analyse([])


def test_dialogues_needed_by_the_running_mean_of_three_steps():
    run = made("mapo", "idr", 0, [0.0, 30.0, 0.0, 30.0, 30.0])
    # means of three: 10, 20, 20 at steps 3, 4, 5; the single 30 at step 2 does not count
    assert run.smooth() == [(192, 10.0), (256, 20.0), (320, 20.0)]
    assert run.need(15) == 256 and run.need(10) == 192 and math.isinf(run.need(21))
    short = made("mapo", "idr", 0, [4.0, 8.0])
    assert short.smooth() == [(128, 6.0)]
    unscored = made("mapo", "idr", 0, [None, 3.0, None, 3.0, 3.0])
    assert unscored.smooth() == [(320, 3.0)]
    assert made("mapo", "idr", 0, []).need(0) == math.inf


def grid() -> list[GridRun]:
    """mapo is best and fastest, batch has the largest gradients, idr beats adr; grpo never reaches 40."""
    plan = {"mapo": (60, 2, 1.0), "turn": (55, 4, 0.9), "batch": (52, 5, 3.0), "grpo": (45, 5, 0.5)}
    runs = []
    for seed in range(5):
        for lost, reward in ((0, "idr"), (10, "adr")):
            for i, (method, (after, slow, norm)) in enumerate(plan.items(), 1):
                top = 30 if method == "grpo" else 45
                slow += seed % 2 if method == "mapo" else 0
                scores = [10.0] * slow + [top + 0.1 * seed] * (8 - slow)
                wobble = 0.3 * ((i * seed + lost // 10) % 5)  # over the seeds 0, 0.3, ... 1.2 in some order
                end = after - lost + wobble
                jobs = {(f"s{k}", f"s{k}_1"): end + k for k in range(4)}
                runs.append(made(method, reward, seed, scores, after=end, norm=norm + wobble / 10, jobs=jobs))
    return runs


def test_the_whole_report():
    report = analyse(grid(), wanted=48, reach=40.0)
    json.dumps(report, allow_nan=False)
    assert report["runs"] == 40 and report["wanted"] == 48 and report["notes"] == []
    cell = next(c for c in report["cells"] if (c["method"], c["reward"]) == ("mapo", "idr"))
    assert cell["epm_q"]["mean"] == pytest.approx(60.6)
    assert cell["gain"]["mean"] == pytest.approx(60.6 - 22)
    # 60 + 0.3 * {0..4}: sd = 0.3 * sqrt(2.5), half = t(4) * sd / sqrt(5)
    half = 2.7764451 * 0.3 * math.sqrt(2.5) / math.sqrt(5)
    assert cell["epm_q"]["interval"] == pytest.approx((60.6 - half, 60.6 + half))
    assert cell["need"] == {"by_seed": [320.0, 384.0, 320.0, 384.0, 320.0], "reached": 5, "median": 320.0}
    never = next(c for c in report["cells"] if (c["method"], c["reward"]) == ("grpo", "idr"))
    assert never["need"] == {"by_seed": [None] * 5, "reached": 0, "median": None}
    assert cell["grad_norm"]["mean"] == pytest.approx(1.0 + 0.045 + 0.06)  # i/100 over 8 steps; wobble/10
    curve = next(c for c in report["curves"] if (c["method"], c["reward"]) == ("mapo", "idr"))
    assert [p["dialogues"] for p in curve["training"]] == [64 * i for i in range(1, 9)]
    assert curve["training"][-1]["mean"] == pytest.approx(45.2) and curve["training"][-1]["n"] == 5
    assert curve["validation"] == [{**curve["validation"][0], "dialogues": 512.0, "n": 5}]
    assert [c["verdict"] for c in report["claims"]] == ["holds"] * 4 + ["supported"] * 2
    assert cell["grad_peak"]["mean"] == pytest.approx(1.0 + 0.08 + 0.06)
    # the steps' norms end 0.08 above; wobble/10 is the same multiset for both: 3.08.. / 1.08.. by seed
    assert report["claims"][4]["ratio"]["mean"] == pytest.approx(2.78, abs=0.1)
    against = report["paired"]["epm_q/idr"][-1]
    assert (against["a"], against["b"], against["n"], against["scenarios"]) == ("mapo", "grpo", 5, 4)
    # exact with five pairs of one sign: 2/32, times three comparisons
    assert against["p_flip"] == 0.0625 and against["p_flip_holm"] == pytest.approx(0.1875)
    assert set(report["paired"]) == {
        *(f"{what}/{r}" for what in ("epm_q", "need", "grad_norm") for r in ("idr", "adr")),
        "epm_q/rewards",
    }


def test_a_run_that_never_got_there_counts_with_all_it_was_given():
    report = analyse([r for r in grid() if r.cell.shown[REWARD] == "idr"], reach=40.0)
    need = {c["b"]: c for c in report["paired"]["need/idr"]}
    # mapo is there after 5 or 6 steps of 64, turn after 7; grpo never in its 8 steps: 320 - 512
    assert need["grpo"]["differences"] == (-192.0, -128.0, -192.0, -128.0, -192.0)
    assert need["turn"]["differences"] == (-128.0, -64.0, -128.0, -64.0, -128.0)


def test_the_default_target_is_where_grpo_ends():
    report = analyse(grid())
    assert report["reach"] == {"score": pytest.approx(30.2), "source": "the final score of grpo with idr"}
    other = analyse([made("turn", "adr", 0, [1.0, 2.0, 3.0])])
    assert other["reach"] == {"score": 2.0, "source": "the final score of turn with adr"}
    assert other["claims"] == [] and other["paired"] == {}


def test_incomplete_grids_and_unequal_runs_are_noted():
    runs = grid()[:9]
    runs[1].summary["dialogues"] = 99
    runs[2].summary["before"]["epm_q"] = 1.0
    notes = " ".join(analyse(runs)["notes"])
    assert "number of dialogues: 99, 512" in notes and "seed 0 start at different scores" in notes
    assert "finished seeds" in notes


def test_without_a_held_out_test_there_is_still_a_report():
    runs = [made(m, "idr", s, [1.0, 2.0, 3.0]) for m in ("mapo", "grpo") for s in (0, 1)]
    for run in runs:
        run.summary["after"] = run.summary["before"] = None
    report = analyse(runs)
    assert report["cells"][0]["epm_q"]["mean"] is None and "epm_q/idr" not in report["paired"]
    assert "not tested" in markdown(report)


def test_tables_and_figure(tmp_path):
    report = json.loads(json.dumps(analyse(grid(), reach=40.0)))
    text = markdown(report)
    assert "| mapo | 60.6 ± 0.6 (6.0/12) | 50.6 ± 0.6 (6.0/12) |" in text
    assert "| grpo | idr | &gt; 512 | 0 of 5 |" in text
    assert "| mapo | idr | 1.105 ± 0.059 | 1.140 ± 0.059 | 0.0 % |" in text
    assert "Beware." not in text and "\n\n**Beware.**\n\n" in markdown(report, caution="Beware.")
    assert ": holds. " in text and "| mapo - turn | +5.0 |" in text and "5 x 4" in text
    paths = draw(report, tmp_path)
    assert [p.name for p in paths] == ["ablation.png", "ablation.svg"]
    assert paths[0].read_bytes()[:4] == b"\x89PNG"
    first = paths[1].read_bytes()
    ElementTree.fromstring(first)
    draw(report, tmp_path)
    assert paths[1].read_bytes() == first  # the same numbers, the same file


def test_a_scripted_world_is_no_measure_of_its_domains():
    notice = (
        "Test world, not a measure of {}: user, director and judge are scripted (docs/scripted-world.md)."
    )
    assert world_notice([World("empathy")]) == notice.format("empathy")
    assert world_notice([*map(World, ("/my/haggling", "tutoring", "tutoring"))]) == notice.format(
        "haggling or tutoring"
    )
    assert world_notice([]) == notice.format("conversation")


def test_a_notice_names_the_shipped_judge():
    small = World("empathy", "pocket-judge")
    judge = "the judge is a small trained model that comes with mapo (docs/scripted-world.md)."
    assert world_notice([small]).endswith(f"user and director are scripted, and {judge}")
    assert world_notice([small, World("empathy")]).endswith(f"are scripted, and for some scores {judge}")


def test_one_seed_and_no_steps_can_be_drawn(tmp_path):
    report = analyse([made("mapo", "idr", 0, [5.0, 6.0]), made("turn", "idr", 0, [])])
    assert len(draw(report, tmp_path)) == 2
    assert "- | - |" in markdown(report)


def test_of_one_seed_there_is_no_interval():
    runs = [made(m, "idr", 0, [5.0, 6.0, 7.0], after=end) for m, end in (("mapo", 60.0), ("grpo", 50.0))]
    text = markdown(analyse(runs))
    assert "against grpo +10.0, 1 of 1 seed, p unknown" in text and "nan" not in text


def test_the_report_names_the_tested_checkpoint():
    runs = [made("mapo", "idr", 0, [5.0, 6.0])]
    assert "with the checkpoint that was best in validation." in markdown(analyse(runs))
    for line in runs[0].steps:
        line.pop("validation", None)
    assert "with the last checkpoint." in markdown(analyse(runs))


# ---- other settings than methods and rewards


def varied(settings: dict, seed: int, *, after=50.0, judge="", tested="", **more) -> GridRun:
    run = made("mapo", "idr", seed, [10.0, 20.0, 30.0], after=after, **more)
    context = ScoreContext("empathy", "u", "d", tested, "2 scenarios") if tested else None
    return GridRun(GridCell.of(settings, seed), run.summary, run.steps, run.jobs, context, judge)


def test_any_settings_are_rows_columns_and_lines(tmp_path):
    runs = [
        varied({"advantage.turn_weight": w, "advantage.scope": scope}, seed, after=50 + 10 * w + seed / 10)
        for w in (0, 0.5, 1)
        for scope in ("group", "batch")
        for seed in range(3)
    ]
    report = json.loads(json.dumps(analyse(runs), allow_nan=False))
    assert [axis["label"] for axis in report["axes"]] == ["turn_weight", "scope"]
    assert report["axes"][0]["values"] == ["0", "0.5", "1"]
    text = markdown(report)
    assert "| turn\\_weight | scope group | scope batch |" in text
    assert "| 0.5 | 55.1 ± 0.2 (6.0/12) | 55.1 ± 0.2 (6.0/12) |" in text
    assert "No claim can be tested" in text and "final score of turn\\_weight 0 with scope group" in text
    family = report["paired"]["epm_q/turn_weight, scope batch"]
    assert [(c["a"], c["b"], c["differences"]) for c in family] == [
        ("0", "0.5", pytest.approx([-5.0] * 3)),
        ("0", "1", pytest.approx([-10.0] * 3)),
    ]
    titles = [panel.title for panel in picture(report, "x").panels]
    assert titles == [f"Scope {s}: {w}" for w in ("learning", "held-out test") for s in ("group", "batch")]
    assert len(draw(report, tmp_path)) == 2


def test_one_setting_alone(tmp_path):
    report = analyse([varied({"optim.lr": lr}, seed) for lr in (1e-5, 1e-4) for seed in (0, 1)])
    assert "| lr | EPM-Q (passes) |" in markdown(report)
    assert list(report["paired"]) == ["epm_q/lr"] and len(draw(report, tmp_path)) == 2


def test_seeds_alone(tmp_path):
    report = analyse([varied({}, seed) for seed in (0, 1)])
    assert report["axes"] == [] and "50.0 ± 0.0 (6.0/12)" in markdown(report)
    assert len(draw(report, tmp_path)) == 2


def test_scores_of_different_judges_are_not_compared():
    key = "roles.judge.model"
    own = [varied({key: j}, seed, judge=j, tested=j) for j in ("a", "b") for seed in (0, 1)]
    report = analyse(own)
    assert report["paired"] == {}
    notes = " ".join(report["notes"])
    assert "trained by different judges (a, b): training scores" in notes
    assert "held-out tests have different judges (a, b)" in notes and "eval.judge" in notes
    fixed = [varied({key: j}, seed, judge=j, tested="referee") for j in ("a", "b") for seed in (0, 1)]
    report = analyse(fixed)
    assert list(report["paired"]) == ["epm_q/judge"] and "held-out tests" not in " ".join(report["notes"])
    text = markdown(report)
    assert "| judge | training judge | test judge |" in text and "| b | b | referee |" in text
    assert "not comparable across judges" in text


def test_the_settings_of_a_run_are_checked_against_its_config(tmp_path):
    run = varied({"optim.lr": 1e-5}, 0)
    folder = write(tmp_path, run)
    (folder / "config.toml").write_text("[optim]\nlr = 1e-05\n")
    assert read_run(tmp_path, run.cell).cell == run.cell
    (folder / "config.toml").write_text("[optim]\nlr = 0.5\n")
    with pytest.raises(InputError, match="belongs to lr-0.5_seed0, not lr-1e-05_seed0"):
        read_run(tmp_path, run.cell)
