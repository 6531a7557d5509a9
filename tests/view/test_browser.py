"""The pages in a real browser: they open, filter, draw and follow a training, and nothing leaves the machine.

make test-browser
"""

from __future__ import annotations

import json
import os
import re
import threading
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from mapo import Rubric
from mapo.types import Mark
from support import view_runs

pytestmark = pytest.mark.browser
EMPATHY = Rubric.load("empathy")
ARGS = [
    "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run",
    "--disable-background-networking", "--disable-component-update", "--disable-sync",
    "--enable-unsafe-swiftshader",
]  # fmt: skip
ONE = "/run/first/d/dialogues:step_00002.jsonl/2"
MARKED = '<b>bold</b><a href="http://evil.example">x</a>&amp;'
EVIL = '<img src="http://evil.example/x" onerror="document.title=1"><script>document.title="owned"</script>'


@contextmanager
def served(root: Path, cache: Path):
    """The real server on a free port, with its index kept fresh."""
    import uvicorn

    from mapo.listening import listening
    from mapo.view import serve
    from mapo.view.app import make_app
    from mapo.view.index.index import Index

    index = Index(root, cache)
    listener = listening("127.0.0.1", 0)
    config = uvicorn.Config(make_app(index), log_level="warning", access_log=False, ws="none")
    server = uvicorn.Server(config)
    thread = threading.Thread(target=server.run, args=([listener],), daemon=True)
    errors: list[Exception] = []
    with serve.kept_fresh(index, errors.append):
        thread.start()
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"
        server.should_exit = True
        thread.join(30)
    listener.close()
    index.close()
    assert errors == []


@pytest.fixture(scope="module")
def browser():
    sync_api = pytest.importorskip("playwright.sync_api")
    with sync_api.sync_playwright() as playwright:
        path = os.environ.get("MAPO_CHROMIUM", "/usr/bin/chromium")
        opened = playwright.chromium.launch(executable_path=path, args=ARGS)
        yield opened
        opened.close()


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    folder = tmp_path_factory.mktemp("browsed")
    root = folder / "runs"
    view_runs.training(root)
    view_runs.training(root, "second", method="grpo")
    view_runs.benchmark(root)
    view_runs.questions(root)
    said = view_runs.talk(EMPATHY, "evil_1", step=2)
    marks = {
        k: replace(m, progress=Mark(1, evidence=EVIL, reason=EVIL)) for k, m in said.turns[0].levels.items()
    }
    turn = replace(
        said.turns[0],
        user=EVIL + " 我今天很难过",
        reply=replace(said.turns[0].reply, text=EVIL),
        levels=marks,
    )
    said = replace(said, turns=(turn, *said.turns[1:]), system=EVIL, scenario=EVIL)
    view_runs.write_lines(root / "first" / "dialogues" / "step_00002.jsonl", [said])
    marked = [
        view_runs.talk(EMPATHY, f"{MARKED}_{i}", step=1, group="g", tags={"category": f"{MARKED} {i}"})
        for i in range(3)
    ]
    view_runs.write_lines(root / "marked" / "dialogues" / "step_00001.jsonl", marked)
    view_runs.write_lines(root / "marked" / "dialogues" / "empa.jsonl", marked)
    with served(root, folder / "cache") as address:
        yield address


@pytest.fixture
def page(browser, site):
    """A page that remembers every complaint and every request that went elsewhere."""
    context = browser.new_context(viewport={"width": 1280, "height": 860}, base_url=site)
    opened = watched(context, site)
    yield opened
    assert opened.complaints == [] and opened.elsewhere == []
    context.close()


def watched(context, site):
    opened = context.new_page()
    opened.complaints, opened.elsewhere = [], []
    opened.on("console", lambda m: opened.complaints.append(m.text) if m.type == "error" else None)
    opened.on("pageerror", lambda error: opened.complaints.append(str(error)))
    inner = ("data:", "blob:")
    opened.on(
        "request",
        lambda r: opened.elsewhere.append(r.url) if not r.url.startswith((f"{site}/", *inner)) else None,
    )
    return opened


def drawn(page, name: str):
    """The figure, once it is drawn."""
    figure = page.locator(f'[data-figure="{name}"]')
    figure.scroll_into_view_if_needed()
    page.wait_for_selector(f'[data-figure="{name}"][data-drawn="yes"]')
    return figure


@pytest.mark.parametrize(
    ("path", "says"),
    [
        ("/", "Runs"),
        ("/run/first", "first"),
        ("/run/bench", "bench"),
        ("/run/quiz", "quiz"),
        ("/overlay?run=first&run=second", "Overlay of 2 runs"),
        ("/dialogues", "Dialogues"),
        (ONE, "000_scenario-0_1"),
        ("/compare?run=first", "Compare two sets"),
        ("/benchmarks", "Benchmarks"),
    ],
)
@pytest.mark.parametrize("look", ["desk", "phone", "dark"])
def test_each_page_opens_and_fits(browser, site, path, says, look):
    size = {"width": 390, "height": 844} if look == "phone" else {"width": 1280, "height": 860}
    context = browser.new_context(
        viewport=size, color_scheme="dark" if look == "dark" else "light", has_touch=look == "phone"
    )
    page = watched(context, site)
    page.goto(site + path)
    page.wait_for_load_state("networkidle")
    assert page.locator("h1").inner_text() == says
    assert page.evaluate("document.documentElement.scrollWidth") <= size["width"]
    ground = page.evaluate("getComputedStyle(document.body).backgroundColor")
    assert (sum(map(int, re.findall(r"\d+", ground)[:3])) < 200) == (look == "dark")
    assert page.complaints == [] and page.elsewhere == []
    context.close()


def test_runs_are_marked_and_laid_over_each_other(page):
    page.goto("/")
    page.get_by_label("Select first").check()
    page.get_by_label("Select second").check()
    page.get_by_role("button", name="Overlay selected runs").click()
    assert page.locator("h1").inner_text() == "Overlay of 2 runs"
    assert drawn(page, "grad_norm").locator(".scatterlayer .trace").count() == 2


def test_curves_are_drawn(page):
    page.goto("/run/first")
    for name in ("reward", "epm_q", "endings", "unscored"):
        assert drawn(page, name).locator("svg.main-svg").count() >= 1
    assert page.locator('[data-figure="reward"] .scatterlayer path.js-line').first.is_visible()


def test_no_toolbar_lies_over_the_data(page):
    page.goto("/run/first")
    chart = drawn(page, "reward")
    chart.hover()
    assert chart.locator(".canvas").bounding_box()["width"] < 560
    assert chart.locator(".modebar").count() == 0
    page.set_viewport_size({"width": 700, "height": 900})
    page.goto("/run/first")
    wide = drawn(page, "reward")
    wide.hover()
    assert wide.locator(".canvas").bounding_box()["width"] >= 560
    bar, plot = wide.locator(".modebar").bounding_box(), wide.locator(".nsewdrag").bounding_box()
    assert bar["y"] + bar["height"] <= plot["y"] + 1


def test_filters_and_search_work(page):
    page.goto("/dialogues?run=first")
    page.locator("[name=part]").select_option("train")
    page.locator("[name=step]").fill("1")
    page.locator("[name=scenario]").fill("scenario-1")
    page.get_by_role("button", name="Show").click()
    assert page.locator("tbody tr").count() == 3
    page.goto("/dialogues?run=first")
    page.keyboard.press("/")
    page.keyboard.type("难过")
    page.keyboard.press("Enter")
    page.wait_for_url(re.compile("q="))
    assert page.locator("tbody tr").count() == 1 and page.locator("mark").inner_text() == "难过"


def test_a_dialogue_has_bars_tokens_and_its_path(page):
    page.goto(ONE)
    assert page.locator(".turn").first.locator("svg.bar").count() == 3
    page.locator(".turn").first.get_by_text("Explanation").click()
    assert page.get_by_text("siblings at turn 1, including this one").first.is_visible()
    page.locator("button[data-tokens]").first.click()
    page.wait_for_selector(".token")
    assert page.locator(".turn").first.locator(".token").count() == 3
    for name in ("pair_0_1", "pair_0_2", "pair_1_2"):
        drawn(page, name)
    assert drawn(page, "space").locator("canvas").count() >= 1
    assert page.locator(".siblings tbody tr").count() == 5


def test_keys_lead_from_dialogue_to_dialogue(page):
    page.goto(ONE)
    page.keyboard.press("j")
    page.wait_for_url(re.compile("/3$"))
    page.keyboard.press("k")
    page.wait_for_url(re.compile("/2$"))
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.textContent") == "Skip to content"
    page.keyboard.press("Enter")
    assert page.evaluate("document.activeElement.id") == "main"
    page.get_by_role("button", name="Shortcuts").click()
    assert page.get_by_role("button", name="Shortcuts").get_attribute("aria-pressed") == "false"
    page.reload()
    page.keyboard.press("/")
    page.keyboard.press("j")
    page.wait_for_load_state("networkidle")
    assert page.url.endswith("/2#main")


def test_two_dialogues_are_compared(page):
    page.goto("/compare?run=first")
    page.locator("[name=scenario]").select_option("held-2_1")
    page.get_by_role("button", name="Show").click()
    assert page.locator("h2").first.inner_text() == "held-2"


def test_a_radar_is_drawn(page):
    page.goto("/benchmarks")
    assert drawn(page, "category").locator(".polarlayer .trace, .scatterlayer .trace").count() >= 1


def test_markup_in_a_record_is_text(page):
    page.goto("/run/first/d/dialogues:step_00002.jsonl/7")
    page.wait_for_load_state("networkidle")
    assert page.title().startswith("evil_1") and page.locator("main img").count() == 0
    assert page.get_by_text('<script>document.title="owned"</script>').count() >= 2


def test_markup_in_the_labels_of_figures_is_text(page):
    page.goto("/benchmarks?set=marked|empa")
    figure = drawn(page, "category")
    for shown in (f"{MARKED[:27]}…", f"{MARKED[:27]}… (2)", f"{MARKED[:27]}… (3)"):  # cut, and kept apart
        assert figure.get_by_text(shown, exact=True).count() >= 1
    assert figure.locator("a[href*=evil], svg [style*=bold]").count() == 0
    page.goto("/run/marked/d/dialogues:step_00001.jsonl/1")
    assert drawn(page, "pair_0_1").locator("a[href*=evil]").count() == 0


def test_a_live_page_grows_new_parts(browser, tmp_path):
    root = tmp_path / "runs"
    (root / "r").mkdir(parents=True)
    (root / "r" / "manifest.json").write_text("{}")
    with served(root, tmp_path / "cache") as site:
        context = browser.new_context(base_url=site)
        page = watched(context, site)
        for _ in range(100):  # until the first look found it
            if page.goto("/run/r").status == 200:
                break
            page.wait_for_timeout(200)
        page.complaints.clear()
        assert page.locator("#sets table, #curves figure, #result table").count() == 0
        view_runs.training(root, "made", steps=2)
        view_runs.questions(root, "asked")
        for part in ("dialogues", "eval"):
            (root / "made" / part).rename(root / "r" / part)
        for file in ("made/metrics.jsonl", "asked/result.json"):
            (root / file).rename(root / "r" / Path(file).name)
        for part in ("#sets table", "#result table"):
            page.wait_for_selector(part, timeout=60_000)
        assert page.complaints + page.elsewhere == []
        (root / "r" / "result.json").unlink()
        (root / "r" / "manifest.json").write_text('{"schema": "mapo.train/1"}')
        page.wait_for_selector("#curves figure", timeout=60_000)
        drawn(page, "grad_norm")
        assert page.complaints + page.elsewhere == []
        context.close()


def test_the_live_pages_follow_a_training(browser, tmp_path):
    root = tmp_path / "runs"
    run = view_runs.training(root, "live", steps=1, done=False)
    with served(root, tmp_path / "cache") as site:
        context = browser.new_context(base_url=site)
        runs, one = watched(context, site), watched(context, site)
        runs.goto("/")
        runs.wait_for_selector(".state.running")
        runs.get_by_label("Select live").check()
        one.goto("/run/live")
        drawn(one, "grad_norm")
        view_runs.write_lines(run / "dialogues" / "step_00002.jsonl", view_runs.step_talks(EMPATHY, 2))
        with open(run / "metrics.jsonl", "a") as file:
            file.write(json.dumps({**view_runs.metrics_line(2), "score": 77.5}) + "\n")
        for page in (runs, one):
            page.bring_to_front()
            page.wait_for_selector("text=77.5", timeout=60_000)
        points = "document.querySelector('[data-figure=grad_norm] .canvas').data[0].x.length"
        for _ in range(300):  # the policy forbids the waiting in the page that playwright has for this
            if one.evaluate(points) == 2:
                break
            one.wait_for_timeout(200)
        assert one.evaluate(points) == 2
        runs.bring_to_front()
        assert runs.get_by_label("Select live").is_checked()
        (run / "summary.json").write_text(json.dumps({"steps": 2, "method": "mapo"}))
        runs.wait_for_selector(".state.finished", timeout=60_000)
        assert runs.complaints + one.complaints + runs.elsewhere + one.elsewhere == []
        context.close()
