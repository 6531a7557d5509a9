"""Remake the pictures of docs/images.

    python scripts/docs_pictures.py                       # train the embedded model first (minutes)
    python scripts/docs_pictures.py --run RUN             # from a finished training run
    python scripts/docs_pictures.py --ablation DIR        # with the learning curves of an ablation

view-dialogue.png, view-path.png and view-phone.png are pages of `mapo view`, photographed with chromium (make
test-browser installs it and playwright; MAPO_CHROMIUM names another browser). They show one training dialogue: of
those in the last third of training that ended in success, the one whose first three replies earned the most reward.
If none did, because training dialogues are short, it is chosen among all of them. --dialogue FILE/LINE chooses
another one.

ablation.png shows the held-out scores of docs/results/ablation.json with the reference scores of their test world,
whose judge the file may name (`judge`).
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from PIL import Image

from mapo.evals.ablation.report import picture
from mapo.show.figures import Picture, save_picture
from mapo.store import RunDir

ROOT = Path(__file__).resolve().parents[1]
IMAGES = ROOT / "docs" / "images"
RESULTS = ROOT / "docs" / "results" / "ablation.json"
TRAINED = ROOT / ".cache" / "pictures" / "pocket-mapo"
LARGEST = 300_000
"""Bytes of a picture."""
ARGS = ["--headless", "--no-sandbox", "--disable-gpu", "--enable-unsafe-swiftshader"]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--run", type=Path, help="a finished training run (default: train one)")
    parser.add_argument("--dialogue", help="the dialogue to show, as FILE/LINE below RUN/dialogues")
    parser.add_argument("--ablation", type=Path, help="a folder of mapo ablate (default: docs/results)")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        draw_ablation(options.ablation, Path(folder))
        photograph(options.run or trained(), options.dialogue, Path(folder))
    for file in sorted(IMAGES.glob("*.png")):
        size = shrunk(file)
        sys.stdout.write(f"{file.relative_to(ROOT)}: {size:,} bytes\n")
        if size > LARGEST:
            sys.exit(f"{file} has more than {LARGEST:,} bytes.")


def shrunk(file: Path) -> int:
    """Store a picture with 256 colours and return its size in bytes."""
    with Image.open(file) as image:
        small = image.convert("RGB").quantize(256, dither=Image.Dither.NONE)
    small.save(file, optimize=True)
    return file.stat().st_size


# ---- the ablation


def draw_ablation(folder: Path | None, temporary: Path) -> None:
    if folder:
        report = json.loads((folder / "ablation.json").read_text())
        drawn = picture(report, "ablation")
    else:
        drawn = held_out(json.loads(RESULTS.read_text()))
    shutil.copy(save_picture(drawn, temporary, ("png",))[0], IMAGES / "ablation.png")


def held_out(table: dict[str, Any]) -> Picture:
    """Return the held-out scores of a result file as the panels that mapo ablate draws."""
    cells = [
        {
            "method": row["method"],
            "reward": reward,
            "settings": {"advantage.method": row["method"], "reward.name": reward},
            "epm_q": {
                "mean": row[reward],
                "interval": [row[reward] - row[f"{reward}_pm"], row[reward] + row[f"{reward}_pm"]],
                "by_seed": [],
            },
        }
        for reward in ("idr", "adr")
        for row in table["rows"]
    ]
    curves = [{**cell, "training": [], "validation": []} for cell in cells]
    roles = {"user": "scripted", "director": "scripted", "judge": table.get("judge") or "scripted"}
    context = {"domain": "empathy", "scenarios": "builtin:test", **roles}
    report = {"cells": cells, "curves": curves, "reach": {"score": None}, "context": context}
    drawn = picture(report, "ablation")
    return replace(drawn, panels=drawn.panels[len(drawn.panels) // 2 :])


# ---- pages of the viewer


def trained() -> Path:
    """Return a training run of the embedded model, made once."""
    if not RunDir(TRAINED).summary.exists():
        command = [sys.executable, "-m", "mapo", "train", "pocket", "--out", str(TRAINED)]
        subprocess.run(command, check=True, cwd=ROOT)
    return TRAINED


def photograph(run: Path, dialogue: str | None, temporary: Path) -> None:
    from playwright.sync_api import sync_playwright

    runs = temporary / "runs"
    kept = shutil.ignore_patterns("checkpoints", "tensorboard")
    shutil.copytree(run, runs / "pocket-mapo", ignore=kept)
    name, _, line = (dialogue or chosen_dialogue(runs / "pocket-mapo")).rpartition("/")
    with served(runs, temporary / "cache") as site, sync_playwright() as playwright:
        path = os.environ.get("MAPO_CHROMIUM", "/usr/bin/chromium")
        browser = playwright.chromium.launch(executable_path=path, args=ARGS)
        page = browser.new_page(viewport={"width": 1280, "height": 1040})
        page.goto(f"{site}/run/pocket-mapo/d/dialogues:{name}/{line}")
        page.screenshot(path=IMAGES / "view-dialogue.png")
        for figure in page.locator("[data-figure]").all():
            figure.scroll_into_view_if_needed()
            figure.locator("xpath=self::*[@data-drawn='yes']").wait_for(timeout=60_000)
        page.locator("#trajectory").evaluate("heading => heading.scrollIntoView()")
        page.wait_for_timeout(500)
        page.screenshot(path=IMAGES / "view-path.png")
        phone = browser.new_page(
            viewport={"width": 390, "height": 844}, device_scale_factor=2, color_scheme="dark"
        )
        phone.goto(f"{site}/run/pocket-mapo")
        phone.screenshot(path=IMAGES / "view-phone.png")
        browser.close()


def chosen_dialogue(run: Path) -> str:
    """Return FILE/LINE of the successful dialogue of late training that began best; of all, if none succeeded."""
    files = sorted(RunDir(run).dialogues.glob("step_*.jsonl"))
    began: dict[str, float] = {}
    succeeded = set()
    for file in files[-max(1, len(files) // 3) :]:
        for number, line in enumerate(file.read_text().splitlines(), 1):
            record = json.loads(line)
            place = f"{file.name}/{number}"
            began[place] = sum(turn["reward"] or 0.0 for turn in record["turns"][:3])
            if (record.get("ending") or {}).get("reason") == "success":
                succeeded.add(place)
    if not began:
        sys.exit(f"{run} has no training dialogues.")
    return max(succeeded or began, key=lambda place: began[place])


@contextmanager
def served(runs: Path, cache: Path) -> Iterator[str]:
    """Serve a folder of runs with mapo view, once every run is indexed."""
    import uvicorn

    from mapo.view.app import make_app
    from mapo.view.index.index import Index

    index = Index(runs, cache)
    index.refresh()
    listener = socket.create_server(("127.0.0.1", 0))
    server = uvicorn.Server(uvicorn.Config(make_app(index), log_level="warning", access_log=False, ws="none"))
    thread = threading.Thread(target=server.run, args=([listener],), daemon=True)
    thread.start()
    while not server.started:
        time.sleep(0.05)
    yield f"http://127.0.0.1:{listener.getsockname()[1]}"
    server.should_exit = True
    thread.join(30)
    listener.close()
    index.close()


if __name__ == "__main__":
    main()
