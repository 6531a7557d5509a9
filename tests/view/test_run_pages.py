"""Configuration, scenarios, ablation grids, model calls, and the order and groups of the list of runs."""

from __future__ import annotations

import json
import sqlite3
import zlib
from dataclasses import replace
from pathlib import Path

import pytest

from mapo.measure.rubric import Rubric
from mapo.models.cache import Cache
from mapo.models.chat import Answer, Request, Usage
from mapo.report.sections.learning import learning_panels
from mapo.runs.training import read_training
from mapo.types import Direction, Message, Reply
from mapo.view.index.calls import TEXT
from mapo.view.pages import charts
from mapo.view.pages.run_table import grouped
from mapo.view.pages.settings import judge_settings
from mapo.view.pages.site import direction_label, duration
from support import view_runs

SCRIPTED = dict.fromkeys(("user", "director", "judge"), "scripted")
EVIL = "<script>document.title=1</script>"


def scripted_training(root: Path, name: str, *, method: str = "mapo", seed: int = 7) -> Path:
    run = view_runs.training(root, name, method=method)
    for file in [*(run / "dialogues").iterdir(), *(run / "eval").glob("*/*.jsonl")]:
        records = [json.loads(line) | {"cast": SCRIPTED} for line in file.read_bytes().splitlines()]
        file.write_text("".join(json.dumps(record) + "\n" for record in records))
    summary = json.loads((run / "summary.json").read_text())
    (run / "summary.json").write_text(json.dumps({**summary, "seed": seed}))
    return run


def page_of(client, url: str) -> str:
    answer = client.get(url)
    assert answer.status_code == 200, answer.text[:500]
    return answer.text


# ---- the list of runs


def test_scores_are_shown_with_judge_scenarios_and_world(index, root, client):
    scripted_training(root, "run")
    index.refresh()
    page = page_of(client, "/")
    assert "EPM-Q, after training" in page
    assert "test world, not a measure of empathy" in page
    assert "3 scenarios" in page


def test_scores_of_models_say_whose_prompts_they_had(index, root, client):
    run = scripted_training(root, "run")
    cast = {"user": "small", "director": "small", "judge": "large"}
    for file in (run / "eval").glob("*/*.jsonl"):
        lines = file.read_bytes().splitlines()
        records = [json.loads(line) | {"cast": cast, "prompts": "mapo 0123"} for line in lines]
        file.write_text("".join(json.dumps(record) + "\n" for record in records))
    index.refresh()
    note = "Prompts: mapo&#39;s own, which judge more mildly than EMPA&#39;s"
    assert note in page_of(client, "/benchmarks")
    assert note in page_of(client, "/run/run")


def test_seeds_of_one_method_are_grouped(index, root, client):
    for seed in (1, 2):
        scripted_training(root, f"seed{seed}", seed=seed)
    scripted_training(root, "other", method="grpo", seed=1)
    index.refresh()
    page = page_of(client, "/")
    assert "mapo, reward idr: 2 seeds" in page and page.count('class="grouphead"') == 1
    assert "grouphead" not in page_of(client, "/?group=no")


def test_runs_with_other_settings_are_no_seeds_of_each_other(index, root, client):
    for seed, endings in ((1, "cut"), (2, "held")):
        run = scripted_training(root, f"seed{seed}", seed=seed)
        (run / "config.toml").write_text(f'[advantage]\nmethod = "mapo"\nendings = "{endings}"\n')
    index.refresh()
    assert "2 seeds" not in page_of(client, "/")


@pytest.mark.parametrize(("sort", "names"), [("score", ["b", "a", "c"]), ("score-up", ["a", "b", "c"])])
def test_runs_are_sorted_and_those_without_a_value_come_last(sort, names):
    context = {"judge": "", "scenarios": ""}
    scores = {"a": 1.0, "b": 2.0, "c": None}
    runs = [
        {"key": k, "name": k, "kind": "empa", "score": v, "seed": None, "context": context}
        for k, v in scores.items()
    ]
    assert [entry["runs"][0]["name"] for entry in grouped(runs, sort)] == names


# ---- one run


def test_the_epm_q_chart_of_a_test_world_has_reference_lines(index, root, client):
    scripted_training(root, "run")
    index.refresh()
    names = [t["name"] for t in client.get("/api/figures?run=run").json()["epm_q"]["data"]]
    assert "nothing happens 33" in names and "honest helper 89" in names


def test_a_world_of_models_has_no_reference_lines(shown):
    names = [t["name"] for t in shown.get("/api/figures?run=first").json()["epm_q"]["data"]]
    assert not any("honest" in name for name in names)


def test_the_configuration_shows_command_commit_and_settings(index, root, client):
    run = view_runs.training(root)
    manifest = json.loads((run / "manifest.json").read_text())
    manifest |= {"command": f"mapo train {EVIL}", "git_commit": "abc123", "versions": {"torch": "2.9"}}
    (run / "manifest.json").write_text(json.dumps(manifest))
    index.refresh()
    page = page_of(client, "/run/first/configuration")
    assert "mapo train &lt;script&gt;" in page and "abc123" in page and "torch 2.9" in page
    assert "gamma" in page and "0.85" in page and EVIL not in page


def test_the_configuration_of_an_old_run_says_what_is_missing(shown):
    assert "does not record a command" in page_of(shown, "/run/first/configuration")


def test_judge_settings_stand_on_the_page_of_an_evaluation(index, root, client):
    run = view_runs.benchmark(root)
    manifest = json.loads((run / "manifest.json").read_text())
    manifest |= {
        "cast": {"judge": "big-judge"},
        "addresses": {"judge": "http://host/v1"},
        "profile": "published",
    }
    (run / "manifest.json").write_text(json.dumps(manifest))
    index.refresh()
    page = page_of(client, "/run/bench")
    assert "Judge settings" in page and "big-judge" in page and "http://host/v1" in page


def test_the_default_sampling_of_a_judge_is_shown():
    rows = dict(
        judge_settings({"cast": {"judge": "big-judge"}, "addresses": {"model": "http://host/v1"}}, {})
    )
    assert rows["Judge sampling"] == "temperature 0, max tokens 4096 (defaults)"
    assert rows["Policy address"] == "http://host/v1"


def test_a_run_without_a_judge_has_no_judge_settings():
    assert judge_settings({"addresses": {"model": "http://host/v1"}}, {}) == []


def test_a_screening_shows_its_verdicts_and_lists_the_dialogues_it_played(index, root, client):
    folder = root / "screened"
    view_runs.benchmark(folder, "strong")
    (folder / "manifest.json").write_text('{"schema": "mapo.screen/1", "policies": {"strong": "big"}}')
    scenario = {
        "id": "s1",
        "verdict": "dropped",
        "reason": "too hard",
        "plays": {"strong": {"n": 4, "passes": 0, "epm_q": 40.0}},
        "declared": {"difficulty": "medium", "axis": "A"},
        "measured": {"difficulty": "hard", "axis": "A"},
    }
    screening = {"policies": {"strong": "big"}, "plays": 4, "scenarios": [scenario]}
    (folder / "screen.json").write_text(json.dumps(screening))
    index.refresh()
    page = page_of(client, "/run/screened")
    assert "dropped: too hard" in page and "0 of 4" in page and "hard (declared medium)" in page
    assert 'class="state finished"' in page and "Unknown files" not in page
    assert "screened/strong" in page_of(client, "/")


def test_model_calls_are_offered_only_where_there_is_a_cache(index, root, client):
    run = view_runs.training(root)
    index.refresh()
    url = "/run/first/d/dialogues:step_00002.jsonl/1"
    assert "data-calls" not in page_of(client, url)
    Cache(run / "cache.sqlite").close()
    assert "data-calls" in page_of(client, url)


def test_the_charts_of_a_trajectory_share_their_ranges(shown):
    figures = shown.get("/api/run/first/d/dialogues:step_00002.jsonl/1/trajectory").json()
    layouts = [figure["layout"] for name, figure in figures.items() if name.startswith("pair")]
    assert len({tuple(layout[axis]["range"]) for layout in layouts for axis in ("xaxis", "yaxis")}) == 1


def test_scenarios_have_wins_and_losses(shown):
    page = page_of(shown, "/run/first/scenarios")
    assert page.count('class="result win"') + page.count('class="result loss"') >= 3
    assert "mean difference" in page and "held-0" in page
    assert "wins" not in page_of(shown, "/run/bench/scenarios")


def test_an_overlay_names_runs_that_cannot_be_drawn(shown):
    page = page_of(shown, "/overlay?run=first&run=bench&run=gone")
    assert "no training steps" in page and ">bench<" in page and "Not found" in page


def test_a_running_training_shows_step_elapsed_and_eta(index, root, client):
    run = view_runs.training(root, done=False)
    config = (run / "config.toml").read_text().replace("steps = 3", "steps = 10")
    (run / "config.toml").write_text(config + "[rollout]\nscenarios = 2\nsiblings = 3\n")
    index.refresh()
    page = page_of(client, "/run/first")
    assert "Step 4 of 10" in page and "elapsed" in page and "0 of 6 dialogues finished, 6 in flight" in page
    assert "ETA" in page and "ETA unknown" not in page


@pytest.mark.parametrize(
    ("seconds", "text"), [(None, "–"), (5, "5 s"), (320, "5 min 20 s"), (11_100, "3 h 05 min")]
)
def test_durations(seconds, text):
    assert duration(seconds) == text


# ---- ablations


def grid(root: Path) -> Path:
    folder = root / "grid"
    for method in ("mapo", "grpo"):
        for seed in (1, 2):
            scripted_training(folder, f"{method}_idr_seed{seed}", method=method, seed=seed)
    manifest = {"schema": "mapo.ablate/1", "methods": ["mapo", "grpo", "turn"], "rewards": ["idr"]}
    (folder / "manifest.json").write_text(json.dumps({**manifest, "seeds": [1, 2]}))
    return folder


def test_an_ablation_has_a_page_with_means_over_seeds(index, root, client):
    grid(root)
    index.refresh()
    page = page_of(client, "/run/grid")
    assert "3 methods × 1 reward × 2 seeds" in page and "4 of 6 runs finished" in page
    assert page.count("not started") == 2 and "35.5" in page
    figures = client.get("/api/run/grid/grid").json()
    assert set(figures) == {"curve_0", "test_0"}
    assert {t["name"] for t in figures["curve_0"]["data"]} >= {"mapo", "grpo", "honest helper 89"}
    assert client.get("/api/run/grid:mapo_idr_seed1/grid").status_code == 404


def test_an_ablation_of_other_settings_has_them_as_columns(index, root, client):
    folder = root / "grid"
    for weight in ("0", "0.5"):
        scripted_training(folder, f"turn_weight-{weight}_lr-1e-05_seed1", seed=1)
    vary = {"advantage.turn_weight": [0, 0.5], "optim.lr": [1e-5]}
    manifest = {"schema": "mapo.ablate/2", "vary": vary, "seeds": [1]}
    (folder / "manifest.json").write_text(json.dumps(manifest))
    index.refresh()
    page = page_of(client, "/run/grid")
    assert "2 <bdi>turn_weight</bdi> × 1 <bdi>lr</bdi> × 1 seed" in page and "2 of 2 runs finished" in page
    assert 'data-label="Lr"><bdi>1e-05</bdi>' in page and "not started" not in page
    figures = client.get("/api/run/grid/grid").json()
    assert {t["name"] for t in figures["curve_0"]["data"]} >= {"0", "0.5"}


@pytest.mark.parametrize(
    "data",
    [
        {"methods": 3},
        {"methods": ["a"], "rewards": {}, "seeds": [[]]},
        {"seeds": [1]},
        {"vary": {"a": [None, {"b": None}], "c": 3}, "seeds": [1]},
        {"vary": {str(i): list(range(50)) for i in range(12)}, "seeds": [1]},
    ],
)
def test_an_ablation_of_other_shapes_is_shown(index, root, client, data):
    (root / "grid").mkdir()
    (root / "grid" / "manifest.json").write_text(json.dumps({"schema": "mapo.ablate/1", **data}))
    index.refresh()
    assert "grid" in page_of(client, "/run/grid")
    assert 'href="/run/grid"' in page_of(client, "/")


# ---- model calls

CALLS = "/api/run/r/d/dialogues:empa.jsonl/1/calls"


def with_calls(root: Path, text: str = "Please judge.") -> Path:
    """A run of one dialogue whose first turn has a recorded call of the judge."""
    import asyncio

    dialogue = replace(view_runs.talk(Rubric.load("empathy"), "case-1", turns=2), seed=1)
    run = root / "r"
    view_runs.write_lines(run / "dialogues" / "empa.jsonl", [dialogue])
    cache = Cache(run / "cache.sqlite")
    for reply in (dialogue.turns[0].reply.text, "another dialogue of the same job"):
        messages = (Message("system", text), Message("user", f"The reply:\n> {reply}"))
        request = Request(messages, session="case-1/1/judge", nonce=reply, turn=1, body={"top_k": 5})

        async def answer() -> Answer:
            return Answer(Reply(EVIL), usage=Usage(10, 0, 2))

        asyncio.run(cache.answer("m", request, answer))
        asyncio.run(cache.record_call("m", request, role="judge", seconds=1.25, retries=2))
    cache.close()
    return run


def test_the_calls_of_a_turn_have_prompt_answer_timing_and_retries(index, root, client):
    with_calls(root)
    index.refresh()
    found = client.get(f"{CALLS}/1").json()
    (call,) = found["calls"]  # the other call belongs to another dialogue of the same job
    assert (call["role"], call["seconds"], call["retries"]) == ("judge", 1.25, 2)
    assert call["sampling"] == {"temperature": 1.0, "top_p": 1.0, "max_tokens": 1024, "body": "top_k=5"}
    assert call["messages"][0] == {"role": "system", "text": "Please judge.", "cut": False}
    assert call["answer"]["text"] == EVIL and call["tokens"] == {"prompt": 10, "answer": 2}
    assert found["note"] == ""


def test_a_turn_without_calls_says_why(index, root, client):
    run = with_calls(root)
    index.refresh()
    assert "No calls are recorded" in client.get(f"{CALLS}/2").json()["note"]
    for file in run.glob("cache*"):
        file.unlink()
    assert "has no cache" in client.get(f"{CALLS}/1").json()["note"]
    assert client.get(f"{CALLS}/3").status_code == 404


def test_long_prompts_are_cut(index, root, client):
    with_calls(root, "x" * (TEXT + 1))
    index.refresh()
    message = client.get(f"{CALLS}/1").json()["calls"][0]["messages"][0]
    assert message["cut"] is True and len(message["text"]) == TEXT


def test_reading_calls_writes_nothing_into_the_run(index, root, client):
    run = with_calls(root)
    index.refresh()
    before = sorted(file.name for file in run.iterdir())
    client.get(f"{CALLS}/1")
    assert sorted(file.name for file in run.iterdir()) == before


def test_a_hostile_cache_costs_nothing_but_its_calls(index, root, client):
    run = with_calls(root)
    index.refresh()
    with sqlite3.connect(run / "cache.sqlite") as database:
        database.execute("UPDATE calls SET request = '[1]', seconds = 'x', retries = 1e300, role = x'00'")
        database.execute("UPDATE answers SET answer = '{}'")
    (call, _) = client.get(f"{CALLS}/1").json()["calls"]
    assert call["messages"] == [] and call["answer"] is None and call["seconds"] is None
    (run / "cache.sqlite").write_bytes(b"SQLite format 3\0" + b"\xff" * 5000)
    assert "could not be read" in client.get(f"{CALLS}/1").json()["note"]
    (run / "cache.sqlite").unlink()
    (run / "cache.sqlite").symlink_to("/etc/passwd")
    assert "has no cache" in client.get(f"{CALLS}/1").json()["note"]


def test_a_compression_bomb_is_cut(index, root, client):
    run = with_calls(root)
    index.refresh()
    with sqlite3.connect(run / "cache.sqlite") as database:
        database.execute("UPDATE texts SET body = ?", (zlib.compress(b"y" * (50 << 20), 9),))
    message = client.get(f"{CALLS}/1").json()["calls"][0]["messages"][0]
    assert message["cut"] is True and len(message["text"]) == TEXT


def test_tables_replaced_by_views_are_not_read(index, root, client):
    run = with_calls(root)
    index.refresh()
    with sqlite3.connect(run / "cache.sqlite") as database:
        database.execute("DROP TABLE calls")
        database.execute(
            "CREATE VIEW calls AS WITH RECURSIVE n(i) AS"
            " (SELECT 1 UNION ALL SELECT i + 1 FROM n) SELECT i FROM n"
        )
    assert client.get(f"{CALLS}/1").json()["calls"] == []


# ---- wording


@pytest.mark.parametrize(
    ("direction", "shown"),
    [
        (Direction("reveal_stage", "0"), "reveals stage 1"),
        (Direction("release_memory", "2"), "releases memory 3"),
        (Direction("shift_focus", "A"), "shifts the focus to Affective"),
        (Direction("go_on"), "goes on"),
        (Direction("dance", "all night"), "dance all night"),
    ],
)
def test_what_the_director_decided_is_shown_in_words(direction, shown):
    assert direction_label(direction, {"A": "Affective"}) == shown


def test_axes_have_their_titles(index, root, client):
    view_runs.benchmark(root)
    index.refresh()
    page = page_of(client, "/benchmarks")
    assert "EPM-Q by axis" in page and "<bdi>Affective</bdi>" in page and "<bdi>A</bdi>" not in page
    (line,) = client.get("/api/radar").json()["axis"]["data"]
    assert set(line["theta"]) == {"Cognitive", "Affective", "Proactive"}


def test_viewer_and_report_name_the_same_charts_alike(index, root, client):
    run = scripted_training(root, "run")
    index.refresh()
    shown = [plot for plot, _ in charts.PLOTS.values()]
    drawn = [panel.title for panel in learning_panels(read_training(run))]
    assert set(drawn) <= set(shown)
    assert "bootstrap intervals over the scenarios of a step" in page_of(client, "/run/run")


def test_a_turn_shows_its_alignment_with_the_fixed_and_the_current_direction(index, root, client):
    rubric = Rubric.load("empathy")
    view_runs.write_lines(
        root / "r" / "dialogues" / "empa.jsonl", [view_runs.talk(rubric, "case-1", turns=2)]
    )
    index.refresh()
    page = page_of(client, "/run/r/d/dialogues:empa.jsonl/1")
    assert page.count(" fixed</span>, <span") == 2 and page.count(" dynamic</span>") == 2


def test_rewards_per_axis_and_regression_are_lines_of_their_own(index, root, client):
    run = view_runs.training(root, steps=2)
    view_runs.training(root, "second", steps=2)
    for name in ("first", "second"):
        lines = [
            {**view_runs.metrics_line(k), "axis_rewards": {"C": 1.0 * k, "A": "x", "<b>": -1.0}}
            | {"regression": -0.5 * k, "regressed": 0.25}
            for k in (1, 2)
        ]
        (root / name / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    assert run.exists()
    index.refresh()
    figures = client.get("/api/figures?run=first").json()
    assert {line["name"]: line["y"] for line in figures["axes"]["data"]} == {
        "C": [1.0, 2.0], "&lt;b&gt;": [-1.0, -1.0], "regression": [-0.5, -1.0],
    }  # fmt: skip
    assert figures["regressed"]["data"][0]["y"] == [0.25, 0.25]
    both = client.get("/api/figures?run=first&run=second").json()
    assert [line["name"] for line in both["axes"]["data"]] == ["first", "second"]


def test_a_run_without_rewards_per_axis_has_no_chart_of_them(index, root, client):
    view_runs.training(root)
    index.refresh()
    assert "axes" not in client.get("/api/figures?run=first").json()
