"""mapo report as typed: every kind of run, several of them, damaged and hostile ones."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from dataclasses import replace
from html.parser import HTMLParser

import numpy as np
import pytest

from mapo.errors import InputError
from mapo.report import build, write, write_report
from mapo.report.document import numbers, plots
from mapo.report.document.blocks import (
    BulletList,
    DialogueColumn,
    DialoguePair,
    Heading,
    Paragraph,
    Report,
    StatTiles,
)
from mapo.report.document.markdown import markdown_page
from mapo.report.document.page import html_page
from mapo.report.training import setting_text, training_report
from mapo.runs.kind import Kind, kind_of
from mapo.runs.training import read_training
from mapo.scoring.reference import reference_text
from mapo.scripted.world import World, world_notice
from mapo.show.figures import Panel, Picture
from mapo.show.tables import Table
from support.command import mapo
from support.report_runs import ablation, bench, empa, group, saying, step, talk, training, write_lines

matplotlib = pytest.importorskip("matplotlib")

PAPER = {
    "fig_reward_by_turn",
    "fig_return_by_turn",
    "fig_learning_curves",
    "fig_gradient_norms",
    "fig_trajectories",
}
TEST_WORLD = f"{world_notice([World('empathy')])} {reference_text(World('empathy'))}"
VOID = {"meta", "br", "img", "link", "input", "hr"}
EVIL = "| `x` ![a](http://b) <script>alert(1)</script><img onerror=alert(2)>\"'><svg onload=alert(3)>\u202e"


class Page(HTMLParser):
    """A page taken apart: its elements, attributes and text; raises where tags do not close."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict]] = []
        self.words: list[str] = []
        self.open: list[str] = []
        self.feed(text)
        assert not [tag for tag in self.open if tag not in ("use", "path")], self.open

    def handle_starttag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))

    def handle_endtag(self, tag):
        assert self.open.pop() == tag, tag

    def handle_data(self, data):
        self.words.append(data)

    @property
    def text(self) -> str:
        return " ".join(" ".join(self.words).split())

    def ids(self) -> list[str]:
        return [a["id"] for _, a in self.tags if "id" in a]


def check(text: str) -> Page:
    """What holds of every report: nothing runs, nothing is fetched, ids are unique."""
    page = Page(text)
    names = {tag for tag, _ in page.tags}
    assert not names & {"script", "iframe", "object", "embed", "link", "base", "form", "img", "image", "a"}
    for _, attributes in page.tags:
        assert not [name for name in attributes if name.startswith("on")]
        for name in ("src", "href", "xlink:href"):
            assert attributes.get(name, "#").startswith("#")
        assert not [
            v for k, v in attributes.items() if k not in ("aria-label", "http-equiv") and v and "http" in v
        ]
    style = text[text.index("<style>") : text.index("</style>")]
    assert "default-src 'none'" in text and "http" not in style and "@import" not in style
    urls = re.findall(r"url\(([^)]*)\)", text)
    assert all(url.startswith("#") for url in urls)
    ids = page.ids()
    assert len(ids) == len(set(ids))
    assert {url[1:] for url in urls} <= set(ids)
    return page


def headings(report: Report) -> list[str]:
    return [block.text for block in report.blocks if isinstance(block, Heading)]


def drawn(report: Report) -> set[str]:
    return {block.name for block in report.blocks if isinstance(block, Picture)}


def problems(report: Report) -> str:
    return " ".join(line for b in report.blocks if isinstance(b, BulletList) for line in b.lines)


# ---- a real one


@pytest.fixture(scope="module")
def real(tmp_path_factory):
    pytest.importorskip("torch")
    from support import small_run as small

    model = small.model_folder(tmp_path_factory.mktemp("model"))
    out = tmp_path_factory.mktemp("runs") / "real"
    small.trained(model, out, "optim.steps=3", "eval.test_repeats=2", "eval.every=0")
    return out


@pytest.mark.figures
def test_a_real_run_is_told_as_it_was_recorded(real):
    run = read_training(real)
    assert not run.problems and sorted(run.played) == [1, 2, 3]
    report = training_report(run)
    assert drawn(report) >= PAPER | {"fig_update", "fig_dialogues", "fig_parts", "fig_speed"}
    table = next(b for b in report.blocks if isinstance(b, Table))
    for row, when in zip(table.rows, ("before", "after"), strict=True):
        assert row[1] == f"{run.summary[when]['epm_q']:.1f}"
        low, high = run.summary[when]["interval"]
        assert row[2] == f"{low:.1f} to {high:.1f}"
    check(html_page(report))


def test_the_credit_shown_is_the_credit_that_trained(real):
    run = read_training(real)
    for line in run.steps:
        usable, found = numbers.step_credit(run.played[line["step"]], run.advantage, real)
        mask = np.concatenate(found.mask)
        assert np.concatenate(found.mixed)[mask].std() == pytest.approx(line["advantage_std"])
        returns = numbers.known_returns(usable, found)
        assert np.mean([row[0] for row in returns]) == pytest.approx(line["return_by_turn"][0])


def test_matplotlib_is_imported_when_something_is_drawn():
    shown = "import sys, mapo.report; print('matplotlib' in sys.modules, 'torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", shown], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["False", "False"]


# ---- one training run


def test_a_training_run(tmp_path):
    root = training(tmp_path / "mine")
    report = build([str(root)])
    assert report.title == "mapo on pocket" and "seed 0" in report.lead and "7 min of training" in report.lead
    assert headings(report) == [
        "Held-out test", "Movement per axis", "Judgements", "Learning", "Update", "Reward per axis",
        "Training dialogues",
        "Simulated users",
        "Reward and credit", "Trajectories", "One dialogue, before and after", "Speed",
        "Configuration",
    ]  # fmt: skip
    assert drawn(report) >= PAPER
    (tiles,) = (b for b in report.blocks if isinstance(b, StatTiles))
    table = next(b for b in report.blocks if isinstance(b, Table))
    before, after = table.rows
    assert tiles.tiles[0].value == f"{before[1]} → {after[1]}"
    change = float(tiles.tiles[1].value)
    assert change == pytest.approx(float(after[1]) - float(before[1]), abs=0.11) and change > 0
    page = check(html_page(report))
    assert page.text.count("reward") > 3 and "credit" in page.text and "mapo 1.2.3" in page.text
    assert "advantage.gamma" in page.text and "95 % interval" in page.text
    figures = [a["id"] for tag, a in page.tags if tag == "figure"]
    assert set(figures) == drawn(report)
    svgs = [a for tag, a in page.tags if tag == "svg"]
    assert len(svgs) == sum(len(b.panels) for b in report.blocks if isinstance(b, Picture))
    assert all(a["role"] == "img" and a["aria-label"] for a in svgs)


@pytest.mark.figures
def test_the_page_is_dark_where_the_reader_is_and_no_wider_than_a_phone(tmp_path):
    text = html_page(build([str(training(tmp_path / "mine"))]))
    assert "prefers-color-scheme: dark" in text and "@media print" in text and "max-width: 40rem" in text
    assert "width=device-width" in text
    colours = set(re.findall(r'(?:fill|stroke): ([^;"]+)', text.partition("</style>")[2]))
    assert {"currentColor", "var(--c0)", "var(--c1)"} <= colours
    assert not {c for c in colours if c.startswith("#") and c != "#ffffff"}  # every colour is the page's


@pytest.mark.figures
def test_the_same_run_gives_the_same_page(tmp_path):
    root = training(tmp_path / "mine", steps=2)
    assert html_page(build([str(root)])) == html_page(build([str(root)]))


def test_a_run_under_way_and_an_empty_one(tmp_path):
    root = training(tmp_path / "mine", finished=False)
    report = build([str(root)])
    assert report.blocks[0] == Paragraph(
        "This run has not finished: the report covers what has been recorded so far."
    )
    assert report.title == "mapo on pocket"
    empty = tmp_path / "empty"
    empty.mkdir()
    (empty / "manifest.json").write_text('{"schema": "mapo.train/1"}')
    report = build([str(empty)])
    assert (
        report.blocks[0].text.startswith("This run is empty")
        and report.title == "unknown method on unknown model"
    )
    check(html_page(report))


def test_a_run_tested_on_one_side_only(tmp_path):
    root = training(tmp_path / "mine")
    for file in (root / "eval" / "after").iterdir():
        file.unlink()
    report = build([str(root)])
    assert not [b for b in report.blocks if isinstance(b, StatTiles | DialoguePair)]
    assert [row[0] for row in next(b for b in report.blocks if isinstance(b, Table)).rows] == ["before"]
    write_lines(root / "eval" / "after" / "dialogues.jsonl", [talk([1, 1], id="z_1", scenario="z")])
    assert any(
        "No scenario was played both" in b.text for b in build([str(root)]).blocks if isinstance(b, Paragraph)
    )


def test_passed_dialogues_are_told_of_as_many_as_there_were(tmp_path):
    root = training(tmp_path / "mine")
    assert ("Passes", "0 → 0 of 3") in tiles_of(build([str(root)]))
    write_lines(root / "eval" / "after" / "dialogues.jsonl", [talk([1, 1], id="c0_1", scenario="c0")])
    assert ("Passes", "0 of 3 → 0 of 1") in tiles_of(build([str(root)]))


def tiles_of(report: Report) -> list[tuple[str, str]]:
    (found,) = (b for b in report.blocks if isinstance(b, StatTiles))
    return [(tile.label, tile.value) for tile in found.tiles]


@pytest.mark.parametrize("kinds", [1, 3, 4, 6])
def test_the_legend_of_endings_stays_within_its_picture(tmp_path, kinds):
    from matplotlib.figure import Figure

    root = training(tmp_path / "mine", steps=2)
    names = ("success", "failure", "stagnation", "timeout", "director", "length")[:kinds]
    lines = [step(n, endings=dict.fromkeys(names, 1)) for n in (1, 2)]
    (root / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    panels = [p for b in build([str(root)]).blocks if isinstance(b, Picture) for p in b.panels]
    panel = next(p for p in panels if p.title == "Endings")
    figure = Figure(figsize=(3.7, 2.5))
    axes = figure.add_axes((0.2, 0.2, 0.77, 0.8 - panel.above / 2.5))
    with matplotlib.rc_context({"legend.fontsize": 9}):
        panel.draw(axes)
    figure.draw_without_rendering()
    assert axes.get_legend().get_window_extent().y1 <= figure.bbox.y1


def test_a_caption_stands_below_its_figure(tmp_path):
    page = html_page(build([str(training(tmp_path / "mine"))]))
    own = page[page.index('<figure id="fig_gradient_norms">') :]
    assert re.search(r"</svg></div>\s*</div>\s*<figcaption>Gradient norm", own)
    assert not re.search(r"\bfigure[^{}]*\{[^}]*grid", page)  # nothing beside nothing


def test_a_single_step_is_shown_once(tmp_path):
    report = build([str(training(tmp_path / "mine", steps=1))])
    by_turn = next(b for b in report.blocks if isinstance(b, Picture) and b.name == "fig_reward_by_turn")
    assert [p.title for p in by_turn.panels] == ["Reward: step 1"]


def test_judge_calls_and_roles_without_their_addresses(tmp_path):
    from mapo.config import dump_config, load_config

    root = training(tmp_path / "mine")
    told = ["roles.agents=llm", "roles.everyone.model=big", "roles.everyone.base_url=https://secret.example"]
    (root / "config.toml").write_text(dump_config(load_config(None, told)))
    row = {"role": "judge", "model": "big", "calls": 7, "prompt": 5000, "cost": None}
    (root / "ledger.json").write_text(json.dumps({"rows": [row]}))
    page = check(html_page(build([str(root)])))
    assert "The models have no price, so there is no total cost." in page.text and "5,000" in page.text
    assert "secret" not in page.text and "model big" in page.text


def test_panel_judges_are_shown_without_their_addresses(tmp_path):
    from mapo.config import dump_config, load_config

    root = training(tmp_path / "mine")
    judges = 'roles.judges=[{model="a", temperature=0.2}, {model="b", base_url="https://secret.example"}]'
    config = load_config(None, ["roles.agents=llm", "roles.everyone.model=big", judges])
    (root / "config.toml").write_text(dump_config(config))
    page = check(html_page(build([str(root)])))
    assert "secret" not in page.text
    assert "model a, temperature 0.2; model b" in page.text


def test_scores_of_the_scripted_world_are_said_to_be_no_measure_of_empathy(tmp_path):
    from mapo.config import dump_config, load_config

    mine, other = training(tmp_path / "mine"), training(tmp_path / "other")
    for report in (build([str(mine)]), build([str(empa(tmp_path / "eval"))]), build([str(mine), str(other)])):
        assert report.caution == TEST_WORLD
        assert TEST_WORLD in check(html_page(report)).text and TEST_WORLD in markdown_page(report, "")
    models = ["roles.agents=llm", "roles.everyone.model=big", "roles.everyone.base_url=http://h"]
    (other / "config.toml").write_text(dump_config(load_config(None, models)))
    alone = build([str(other)])
    assert alone.caution == "" and TEST_WORLD not in html_page(alone) + markdown_page(alone, "")
    both = build([str(mine), str(other), str(tmp_path / "eval")])
    assert both.caution == f"mine, eval: {TEST_WORLD}"
    # the dialogues know better than a config that is lost
    (other / "config.toml").unlink()
    assert build([str(other)]).caution == ""
    people = "Test world, not a measure of empathy: user and director are scripted (docs/scripted-world.md)."
    people += " Reference EPM-Q on the test scenarios of this test world: nothing happens 33.3."
    casts = (("scripted", "scripted", TEST_WORLD), ("scripted", "big", people), ("big", "big", ""))
    for user, judge, said in casts:
        cast = {"user": user, "director": user, "judge": judge}
        played = [talk([1, 1], id="c0_1", scenario="c0", cast=cast)]
        write_lines(other / "eval" / "after" / "dialogues.jsonl", played)
        assert build([str(other)]).caution == said


# ---- evaluations


def test_an_empa_evaluation(tmp_path):
    report = build([str(empa(tmp_path / "eval"))])
    assert report.title == "EMPA: m" and "judge: scripted" in report.lead
    assert {"fig_breakdown", "fig_trajectories"} <= drawn(report)
    heads = [b.columns[0] for b in report.blocks if isinstance(b, Table)]
    assert heads == [
        "model, rubric, profile", "model, rubric, profile", "by category", "by difficulty", "ending",
        "axis", "share of", "role", "setting",
    ]  # fmt: skip
    difficulty = next(b for b in report.blocks if isinstance(b, Table) and b.columns[0] == "by difficulty")
    assert [row[0] for row in difficulty.rows] == ["easy", "hard"]
    (shown,) = (b for b in report.blocks if isinstance(b, DialoguePair))
    assert shown.left.title.startswith("lowest") and shown.right.title.startswith("highest")
    assert "Total cost: 0.25" in check(html_page(report)).text
    assert build([f"mine={tmp_path / 'eval'}"]).title == "EMPA: mine"


def test_another_domain_goes_by_its_name_and_its_points_have_no_end(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name in ("honest", "praiser"):
        given = ("--domain", "tutoring", "--model", f"scripted:{name}", "--out", name)
        assert mapo("eval", "empa", *given).returncode == 0
    assert build(["honest"]).title == "Tutoring: scripted:honest"
    told = mapo("compare", "honest", "praiser").stdout
    assert "EPM-Q: tutoring, " in told.replace("\n", " ") and "EMPA" not in told and "of 100" not in told
    for folders in (["honest"], ["honest", "praiser"]):
        report = build(folders)
        assert "0 to 100" not in check(html_page(report)).text
        shown = {p.draw for b in report.blocks if isinstance(b, Picture) for p in b.panels}
        drawn_on = [label_of(draw) for draw in shown]
        assert not [label for label in drawn_on if "100" in label]


def test_a_dot_beyond_100_is_drawn_where_it_is():
    from matplotlib.figure import Figure

    axes = Figure().subplots()
    plots.bars([("EPM-Q", [numbers.Point(0.0, 107.19, 104.0, 110.0)])], ["m"], "EPM-Q (points)")(axes)
    assert axes.get_xlim()[1] > 110 and axes.get_xlabel() == "EPM-Q (points)"


def label_of(draw):
    """What stands at the axes of a panel."""
    from matplotlib.figure import Figure

    axes = Figure().subplots()
    draw(axes)
    return f"{axes.get_xlabel()} {axes.get_ylabel()}"


def test_the_simulated_people_are_looked_at(tmp_path):
    def said(root) -> tuple[Table, str]:
        report = build([str(root)])
        table = next(b for b in report.blocks if isinstance(b, Table) and b.columns[0] == "share of")
        return table, check(html_page(report)).text

    table, text = said(training(tmp_path / "t"))
    assert table.columns == ["share of", "early", "late", "usual maximum"] and "usual maximum" in text
    root = empa(tmp_path / "e", cases=8)
    helpful = [
        saying(talk([1, 1, 1], id=f"c{k}_1", scenario=f"c{k}"), "How can I help you?") for k in range(8)
    ]
    write_lines(root / "dialogues" / "empa.jsonl", helpful)
    table, text = said(root)
    assert {row[0]: row[1] for row in table.rows}["lines that sound like an assistant"] == "100.0 %"
    assert "users speak like an assistant: 100%, usual maximum 2%" in text
    write_lines(root / "dialogues" / "empa.jsonl", helpful[:1])
    table, text = said(root)
    assert {row[0]: row[1] for row in table.rows}["lines that sound like an assistant"] == "–"
    assert "There is too little to report." in text


def test_empa_records_that_cannot_be_scored(tmp_path):
    root = empa(tmp_path / "eval", cases=2)
    file = root / "dialogues" / "empa.jsonl"
    from mapo.types import Ending, StopReason

    broken = replace(talk([1], id="x"), error="gone", ending=Ending(StopReason.BROKEN))
    write_lines(file, [broken])
    report = build([str(root)])
    assert "empty" in report.blocks[0].text and "1 broken dialogue is" in problems(report)
    write_lines(file, [broken, talk([1, 1], id="y")])
    with open(file, "ab") as more:
        more.write(b'{"schema": "mapo.dial')
    report = build([str(root)])
    assert "torn" in problems(report) and not [b for b in report.blocks if isinstance(b, DialoguePair)]


def test_a_benchmark(tmp_path):
    report = build([str(bench(tmp_path / "emo"))])
    assert report.title == "EmoBench: m" and drawn(report) == {"fig_scores"}
    (tiles,) = (b for b in report.blocks if isinstance(b, StatTiles))
    assert [(t.label, t.value) for t in tiles.tiles] == [("EA", "50.0"), ("EU", "50.0"), ("Overall", "50.0")]
    text = check(html_page(report)).text
    assert "by / en / EA" in text and "temperature" in text
    incomplete = build([str(bench(tmp_path / "part", of=99))])
    assert "no score" in check(html_page(incomplete)).text and "incomplete" in incomplete.blocks[1].text


def test_a_benchmark_that_did_not_end_or_was_changed(tmp_path):
    (tmp_path / "manifest.json").write_text('{"schema": "mapo.emobench/1"}')
    with pytest.raises(InputError, match="has not finished"):
        build([str(tmp_path)])
    root = bench(tmp_path / "emo")
    data = json.loads((root / "result.json").read_text())
    (root / "result.json").write_text(json.dumps({**data, "scores": {"EA": 0.9}}))
    with pytest.raises(InputError, match="the mean of its items is"):
        build([str(root)])


# ---- several


@pytest.mark.figures
def test_several_runs_of_two_methods(tmp_path):
    runs = [
        training(tmp_path / f"{m}{s}", method=m, seed=s, after=a)
        for m, s, a in (("mapo", 0, 30.0), ("mapo", 1, 34.0), ("grpo", 0, 25.0))
    ]
    report = build([str(r) for r in runs])
    assert report.title == "3 runs" and drawn(report) >= PAPER
    table = next(b for b in report.blocks if isinstance(b, Table))
    assert [row[1] for row in table.rows] == ["mapo", "mapo", "grpo"]
    assert [row[8] for row in table.rows] == ["+10.0", "+14.0", "+5.0"]
    assert "Scores side by side" in headings(report)
    check(html_page(report))


def test_runs_are_grouped_by_what_tells_them_apart(tmp_path):
    from mapo.report.sections.several import grouped

    a0 = read_training(training(tmp_path / "a0", seed=0, steps=1))
    a1 = read_training(training(tmp_path / "a1", seed=1, steps=1))
    b0 = read_training(training(tmp_path / "b0", method="grpo", steps=1))
    assert {k: len(v) for k, v in grouped([a0, a1, b0]).items()} == {"mapo (2 seeds)": 2, "b0": 1}
    assert list(grouped([a0, a1, b0], by_name=False)) == ["mapo (2 seeds)", "grpo"]
    assert list(grouped([a0, a0])) == ["a0"]  # the same run twice
    bare = replace(a1, config=None)
    assert list(grouped([a0, bare])) == ["a0", "a1"]  # settings differ
    other = replace(a0, summary={**a0.summary, "model": "big"}, name="c")
    assert list(grouped([a0, other])) == ["a0", "c"]
    assert list(grouped([a0, other], by_name=False)) == ["pocket", "big"]


def test_runs_without_metrics_have_no_curves(tmp_path):
    runs = [training(tmp_path / name, steps=0) for name in ("a", "b")]
    assert drawn(build([str(run) for run in runs])) == {"fig_trajectories", "fig_scores"}


def test_runs_of_different_kinds(tmp_path):
    given = [f"one={empa(tmp_path / 'one')}", f"two={empa(tmp_path / 'two')}", str(bench(tmp_path / "emo"))]
    report = build(given)
    differences = [b for b in report.blocks if isinstance(b, Table) and b.columns[2:3] == ["difference"]]
    assert [row[0] for row in differences[0].rows] == ["two", "two"]
    assert "fig_scores" in drawn(report) and report.lead == "one, two, emo."
    check(html_page(report))


def test_some_of_several_cannot_be_read(tmp_path):
    good, bad, grid = training(tmp_path / "good"), tmp_path / "bad", ablation(tmp_path / "grid", seeds=(0,))
    done = mapo("report", good, bad, grid, "--out", tmp_path / "all.html")
    assert done.returncode == 1
    text = check((tmp_path / "all.html").read_text()).text
    assert "the folder does not exist" in text and "Report it on its own" in text and "1 run " in text
    assert (
        "left out: " in done.stderr
        and "the folder does not exist" in done.stderr
        and "Report it on its own" in done.stderr
    )
    assert mapo("report", bad, tmp_path / "worse").returncode == 2
    only = build([str(training(tmp_path / "x", finished=False)), str(empa(tmp_path / "e"))])
    assert only.title == "2 runs"


def test_results_that_disagree_are_said(tmp_path):
    one, two = empa(tmp_path / "one"), empa(tmp_path / "two")
    lines = (two / "dialogues" / "empa.jsonl").read_text().splitlines()
    (two / "dialogues" / "empa.jsonl").write_text("\n".join(lines[:-1]) + "\n")
    report = build([str(one), str(two)])
    assert "two different results" in problems(report)
    foreign = tmp_path / "foreign"
    foreign.mkdir()
    report = build([str(one), str(foreign)])
    assert "holds no result files" in problems(report) and report.title == "1 run"
    assert "holds no result files" in report.lacking[0]


def test_an_unreadable_evaluation_among_others_ends_with_1(tmp_path):
    good, foreign = training(tmp_path / "good"), tmp_path / "foreign"
    foreign.mkdir()
    done = mapo("report", good, foreign, "--out", tmp_path / "r.html")
    assert done.returncode == 1 and "left out" in done.stderr and "holds no result files" in done.stderr
    other = tmp_path / "other"
    other.mkdir()
    done = mapo("report", foreign, other)
    assert done.returncode == 2 and "nothing to report" in done.stderr


def test_an_evaluation_of_broken_dialogues_alone_says_why_it_ends_with_2(tmp_path):
    from mapo.types import Ending, StopReason

    broken = replace(talk([1], id="x"), error="gone", ending=Ending(StopReason.BROKEN))
    write_lines(tmp_path / "e" / "dialogues" / "empa.jsonl", [broken])
    done = mapo("report", tmp_path / "e")
    assert done.returncode == 2 and "no dialogue can be scored" in done.stderr
    assert (tmp_path / "e" / "report.html").exists()


def test_one_name_for_two_runs_is_refused(tmp_path):
    a, b = training(tmp_path / "a"), training(tmp_path / "b")
    done = mapo("report", f"x={a}", f"x={b}")
    assert done.returncode == 2 and "two runs are named 'x'" in done.stderr


def test_runs_are_called_the_same_everywhere(tmp_path):
    a, b = training(tmp_path / "one" / "run"), training(tmp_path / "two" / "run", method="grpo")
    report = build([str(a), str(b)])
    assert report.lead == "one/run, two/run."
    tables = [b for b in report.blocks if isinstance(b, Table)]
    runs, compared = (next(t for t in tables if t.columns[0] == head) for head in ("run", "model"))
    assert [row[0] for row in runs.rows] == ["one/run", "two/run"]
    assert [row[0] for row in compared.rows][:2] == ["one/run, before", "one/run, after"]
    named = build([f"first={a}", f"second={b}"])
    assert named.lead == "first, second."
    curve = next(b for b in named.blocks if isinstance(b, Picture) and b.name == "fig_learning_curves")
    from matplotlib.figure import Figure

    axes = Figure().subplots()
    curve.panels[0].draw(axes)
    assert [text.get_text() for text in axes.get_legend().get_texts()] == ["first", "second"]


def test_a_run_whose_numbers_cannot_be_drawn_costs_no_other(tmp_path, monkeypatch):
    good, bad = training(tmp_path / "good"), training(tmp_path / "bad")
    real = numbers.recomputed

    def breaks(dialogues, root, told):
        if root.name == "bad":
            raise ZeroDivisionError("no such number")
        return real(dialogues, root, told)

    monkeypatch.setattr(numbers, "recomputed", breaks)
    report = build([str(good), str(bad)])
    assert "ZeroDivisionError: no such number" in report.lacking[0] and "bad" in report.lacking[0]
    assert drawn(report) >= PAPER and "ZeroDivisionError" in problems(report)


@pytest.mark.figures
def test_a_panel_that_cannot_be_drawn_costs_no_other(tmp_path):
    def fine(axes):
        axes.plot([1, 2], [1, 2])

    def breaks(axes):
        raise OverflowError("too <b>large")

    report = Report("t", "l", [Picture("fig_x", "c", [Panel("one", breaks), Panel("two", fine)])])
    text = check(html_page(report)).text
    assert "cannot be drawn (OverflowError: too <b>large)" in text and html_page(report).count("<svg") == 1
    paths = write(report, tmp_path / "r.html", figures=tmp_path / "f")
    assert [path.suffix for path in paths[1:]] == [".png", ".pdf", ".svg"]


# ---- ablations


@pytest.mark.figures
def test_an_ablation(tmp_path):
    root = ablation(tmp_path / "grid")
    report = build([str(root)])
    assert report.title == "Ablation: grid" and drawn(report) >= PAPER
    titles = [b.title for b in report.blocks if isinstance(b, Table)]
    assert "Held-out EPM-Q (passes)" in titles and "Paired by seed: held-out EPM-Q, idr" in titles
    cells = next(b for b in report.blocks if isinstance(b, Table) and "gradient norm" in b.columns)
    assert [row[:3] for row in cells.rows] == [["mapo", "idr", "2"], ["grpo", "idr", "2"]]
    assert report.caution == TEST_WORLD and check(html_page(report)).text.count(TEST_WORLD) == 1


@pytest.mark.figures
def test_an_ablation_of_other_settings(tmp_path):
    root = tmp_path / "grid"
    for weight in ("0", "0.5"):
        for seed in (0, 1):
            training(root / f"turn_weight-{weight}_judge-x_seed{seed}", seed=seed, steps=3)
    vary = {"advantage.turn_weight": [0, 0.5], "roles.judge.model": ["x"]}
    grid = {"schema": "mapo.ablate/2", "vary": vary, "seeds": [0, 1]}
    (root / "manifest.json").write_text(json.dumps(grid))
    report = build([str(root)])
    assert report.lead == "4 of 4 runs; turn_weight 0, turn_weight 0.5; judge x."
    tables = {b.title: b for b in report.blocks if isinstance(b, Table)}
    assert list(tables["Held-out EPM-Q (passes)"].columns) == ["turn_weight", "judge x"]
    assert list(tables["All cells"].columns)[:4] == ["turn_weight", "judge", "training judge", "test judge"]
    assert [row[:2] for row in tables["Gradient norm before clipping"].rows] == [["0", "x"], ["0.5", "x"]]
    check(html_page(report))


@pytest.mark.figures
def test_a_damaged_ablation(tmp_path):
    root = ablation(tmp_path / "grid")
    (root / "grpo_idr_seed1" / "summary.json").write_text('{"method": ["x"], "reward": {}}')
    (root / "mapo_idr_seed0" / "summary.json").write_text("{")
    metrics = root / "mapo_idr_seed1" / "metrics.jsonl"
    odd = {"step": 2, "dialogues": "x"}, {"step": 3, "dialogues": 4, "score": "high", "validation": [1]}
    metrics.write_text("".join(json.dumps(line) + "\n" for line in (step(1), *odd)))
    report = build([str(root)])
    assert report.lead.startswith("2 of 4 runs") and "not a valid summary" in problems(report)
    check(html_page(report))
    (root / "manifest.json").write_text('{"schema": "mapo.ablate/1", "seeds": 3}')
    report = build([str(root)])
    assert "empty" in report.blocks[0].text and "not the manifest of an ablation grid" in problems(report)


# ---- damaged and hostile


def test_damaged_files_are_said_and_the_rest_is_shown(tmp_path):
    root = training(tmp_path / "mine")
    with open(root / "metrics.jsonl", "ab") as file:
        file.write(b'[1]\n{"step": "x"}\n{"step": 7, "reward": NaN}\n\xff\xfe\n{"step": 8, "rew')
    (root / "summary.json").write_text("[]")
    (root / "config.toml").write_text("[model\n")
    (root / "ledger.json").write_text("nothing")
    (root / "dialogues" / "step_00002.jsonl").write_bytes(b"\x00\xff\n" + b"x" * 1000)
    (root / "dialogues" / "notes.jsonl").write_text("{}\n")
    (root / "dialogues" / "step_00003.jsonl").unlink()
    (root / "dialogues" / "step_00003.jsonl").mkdir()
    (root / "manifest.json").unlink()
    (root / "manifest.json").mkdir()
    report = build([str(root)])
    told = problems(report)
    lines = ("not a JSON object", "without a step", "not JSON")
    files = (
        "summary.json: not a JSON object",
        "config.toml: not valid TOML",
        "ledger.json: not JSON",
        "not named after a step",
        "not a regular file",
    )
    for what in (*lines, *files, "cannot be read"):
        assert what in told, what
    assert "fig_learning_curves" in drawn(report)
    text = check(html_page(report)).text
    assert "Problems" in text and "more" in text


@pytest.mark.figures
def test_metrics_of_the_wrong_kind_are_left_out(tmp_path):
    root = training(tmp_path / "mine")
    odd = [
        step(
            7, reward="<b>", score=1e308, endings=[1], grad_norm=True, turns=None, validation={"epm_q": "x"}
        ),
        {"step": 8, "endings": {EVIL: 1, "ok": "x"}, "score": 10**400 % 10**300},
        {"step": 10**30},
    ]
    with open(root / "metrics.jsonl", "a") as file:
        file.write("".join(json.dumps(line) + "\n" for line in odd))
        file.write('{"step": 9, "score": 1e999}\n')
    report = build([str(root)])
    score = next(
        b for b in report.blocks if isinstance(b, Picture) and b.name == "fig_learning_curves"
    ).panels[1]
    from matplotlib.figure import Figure

    axes = Figure().subplots()
    score.draw(axes)
    assert max(axes.lines[0].get_ydata()) == 26
    check(html_page(report))


@pytest.mark.parametrize("schema", [[], {}])
def test_a_record_whose_schema_is_no_name_is_said(tmp_path, schema):
    root, other = training(tmp_path / "t"), empa(tmp_path / "e")
    line = json.dumps({"schema": schema}) + "\n"
    for file in (root / "eval" / "before" / "dialogues.jsonl", other / "dialogues" / "empa.jsonl"):
        file.write_text(line + file.read_text())

    def said(*runs) -> str:
        try:
            return problems(build([str(run) for run in runs]))
        except InputError as error:
            return str(error)

    for runs in ((root,), (other,), (root, other)):
        assert "schema is" in said(*runs)


@pytest.mark.figures
def test_hostile_words_are_text(tmp_path):
    root = training(tmp_path / EVIL.replace("/", "_").strip()[:80])
    for name in ("summary.json", "manifest.json"):
        data = json.loads((root / name).read_text())
        told = {"method": EVIL, "model": EVIL, "versions": {EVIL: EVIL}, "seed": EVIL}
        (root / name).write_text(json.dumps({**data, **told}))
    for label in ("before", "after"):
        evil = saying(talk([1, 0, 1], id="c_1", scenario=EVIL), EVIL + "\x00" + "long " * 20_000)
        evil = replace(
            evil, turns=(*evil.turns, replace(evil.turns[0], levels=None, reward=None, unscored=EVIL))
        )
        write_lines(root / "eval" / label / "dialogues.jsonl", [evil])
    played = [replace(d, id=EVIL + d.id, scenario=EVIL) for d in group(1)]
    huge = replace(played[0], turns=tuple(replace(t, reward=1e308) for t in played[0].turns))
    write_lines(root / "dialogues" / "step_00001.jsonl", [huge, *played[1:]])
    report = build([str(root)])
    text = html_page(report)
    page = check(text)
    assert "&lt;script&gt;alert(1)" in text and "<script" not in text
    assert "\u202e" not in text and "\x00" not in text
    assert "more characters" in page.text and len(text) < 1_500_000
    words = markdown_page(report, "figures")
    assert "<script" not in words and "\u202e" not in words and "](http" not in words.replace("\\](", "")


@pytest.mark.figures
def test_hostile_records_of_evaluations(tmp_path):
    root = empa(tmp_path / "eval", model=EVIL)
    check(html_page(build([str(root)])))
    data = {"model": EVIL, "notes": [EVIL], "details": {EVIL: {EVIL: EVIL}}, "settings": {EVIL: EVIL}}
    check(html_page(build([str(bench(tmp_path / "emo", **data))])))
    check(html_page(build([str(root), str(tmp_path / "emo")])))


def test_what_is_no_run(tmp_path):
    with pytest.raises(InputError, match="the folder does not exist"):
        build([str(tmp_path / "none")])
    with pytest.raises(InputError, match="holds no result files"):
        build([str(tmp_path)])
    assert kind_of(training(tmp_path / "t")) is Kind.TRAINING and kind_of(empa(tmp_path / "e")) is Kind.EMPA
    (tmp_path / "t" / "manifest.json").write_text("{")
    assert kind_of(tmp_path / "t") is Kind.TRAINING  # by what else is there


# ---- files


def test_html_markdown_and_figures(tmp_path):
    root = bench(tmp_path / "mine")
    done = mapo("report", root, "--out", tmp_path / "sent" / "mine", "--markdown")
    assert done.returncode == 0, done.stderr
    page, words = tmp_path / "sent" / "mine.html", tmp_path / "sent" / "mine.md"
    assert f"report: {page}" in done.stderr and f"report: {words}" in done.stderr and page.exists()
    links = re.findall(r"\]\((.*?)\)", words.read_text())
    assert links == ["mine_figures/fig_scores.png"]
    assert (tmp_path / "sent" / links[0]).read_bytes().startswith(b"\x89PNG")


@pytest.mark.slow
def test_figures_of_a_training_for_a_paper(tmp_path):
    root, paper = training(tmp_path / "mine"), tmp_path / "paper"
    done = mapo("report", root, "--markdown", "--figures", paper)
    assert (root / "report.html").exists() and "30 files" in done.stderr
    assert {f"{name}.{kind}" for name in PAPER for kind in ("png", "pdf", "svg")} <= {
        path.name for path in paper.iterdir()
    }
    words = (root / "report.md").read_text()
    assert "| before: " in words and "reward" in words
    links = re.findall(r"\]\((.*?)\)", words)
    assert {f"report_figures/{name}.png" for name in PAPER} <= set(links)
    assert all((root / link).read_bytes().startswith(b"\x89PNG") for link in links)


def test_markdown_has_its_figures_beside_it_wherever_the_others_go(tmp_path):
    report = build([str(bench(tmp_path / "emo"))])
    paths = write(report, tmp_path / "a" / "r.html", markdown=True, figures=tmp_path / "b")
    assert "](r_figures/fig_scores.png)" in paths[1].read_text()
    assert (tmp_path / "a" / "r_figures" / "fig_scores.png").exists()
    assert {p.name for p in (tmp_path / "b").iterdir()} == {f"fig_scores.{k}" for k in ("png", "pdf", "svg")}


def test_without_matplotlib_the_words_stay(tmp_path, monkeypatch):
    root = training(tmp_path / "mine")
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    done = mapo("report", root, "--markdown")
    assert done.returncode == 0, done.stderr
    text = (root / "report.html").read_text()
    assert "Figures are omitted" in text and "<svg" not in text and "One dialogue" in text
    assert "![" not in (root / "report.md").read_text()
    assert mapo("report", root, "--figures", tmp_path / "f").returncode == 2
    check(write_report(root).read_text())


def test_long_lists_are_cut_in_both_forms():
    side = DialogueColumn("left: x", talk([1]))
    longer = DialogueColumn("right: x", talk([1, None, -1]))
    report = Report("t", "l", [BulletList([f"line {i}" for i in range(20)]), DialoguePair(side, longer)])
    for text in (check(html_page(report)).text, markdown_page(report, "")):
        assert "line 11" in text and "line 12" not in text and "and 8 more" in text
        assert "credit" not in text and "unscored" in text


def test_one_run_that_cannot_be_read_costs_no_other(tmp_path):
    good, deep = training(tmp_path / "good"), training(tmp_path / "deep")
    (deep / "rubric.toml").write_text("x = " + "[" * 5000)
    page = html_page(build([str(good), str(deep)]))
    assert "nested too deeply" in page and "2 runs" in page


def test_a_folder_of_runs_is_no_evaluation(tmp_path):
    (tmp_path / "runs" / "one").mkdir(parents=True)
    (tmp_path / "runs" / "one" / "manifest.json").write_text('{"schema": "mapo.train/1"}')
    with pytest.raises(InputError, match="this is a folder of runs"):
        build([str(tmp_path / "runs")])


def test_a_folder_that_is_no_run_is_refused_without_a_report(tmp_path):
    (tmp_path / "config.json").write_text("{}")
    done = mapo("report", tmp_path)
    assert done.returncode == 2 and "the folder is not a run" in done.stderr
    assert not (tmp_path / "report.html").exists()


def test_a_file_is_refused_and_its_folder_named(tmp_path):
    file = training(tmp_path / "run") / "manifest.json"
    done = mapo("report", file)
    assert done.returncode == 2
    assert f"this is a file, not a folder. Give its folder: {tmp_path / 'run'}" in done.stderr


def test_an_incomplete_evaluation_says_so_next_to_its_score(tmp_path):
    root = empa(tmp_path / "part", cases=4)
    manifest = json.loads((root / "manifest.json").read_text())
    scenarios = {f"c{i}": "x" for i in range(12)}
    (root / "manifest.json").write_text(json.dumps({**manifest, "scenarios": scenarios, "repeats": 1}))
    report = build([str(root)])
    assert report.caution.startswith("Incomplete evaluation: 4 of 12 dialogues.")
    tiles = next(b for b in report.blocks if isinstance(b, StatTiles)).tiles
    assert tiles[0].detail.startswith("4 of 12 dialogues, incomplete")


def test_made_scenarios_have_a_report(tmp_path):
    root = tmp_path / "made"
    (root / "scenarios").mkdir(parents=True)
    (root / "scenarios" / "made-1.toml").write_text('id = "made-1"\ntopic = "<b>A flat tyre"\n')
    (root / "manifest.json").write_text('{"schema": "mapo.realsim/1"}')
    counts = {"files": 1, "asked": 3, "made": 1, "refused": [{"id": "made-2"}], "failed": ["made-3"]}
    (root / "report.json").write_text(json.dumps({**counts, "found": {"email": 2}}))
    page = check(html_page(build([str(root)])))
    assert "3 conversations from 1 file" in page.text
    assert "A flat tyre" in page.text
    assert "Incomplete: 1 conversation failed." in page.text


def test_settings_are_shown_as_words():
    assert [setting_text(value) for value in (["tensorboard"], [], None, True)] == [
        *("tensorboard", "none", "not set", "yes")
    ]
