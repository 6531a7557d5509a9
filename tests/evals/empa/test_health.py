"""An evaluation leaves what its simulated people were like, and whoever reads the folder knows the file."""

from __future__ import annotations

import json

from mapo.report import build
from mapo.report.document.blocks import Heading
from mapo.scoring.folders import read_folders
from mapo.view.index.files import find_runs
from mapo.view.pages.runs import people_of
from support.command import mapo


def test_an_evaluation_leaves_health_json(tmp_path):
    out = tmp_path / "run"
    asked = ("eval", "empa", "--model", "scripted:comforter", "--out", out, "--repeats", 2)
    done = mapo(*asked)
    assert done.returncode == 0, done.stderr
    told = json.loads((out / "health.json").read_text())
    assert told["schema"] == "mapo.health/1" and told["scripted"] and told["told_early"] == 0.0
    assert told["lines"] > 100 and 0 < told["repeated"] < 0.5 and told["misses"] > 20
    assert told["warnings"] and all(f"warning: {warning}" in done.stderr for warning in told["warnings"])
    [folder] = read_folders(out)
    assert folder.bad == [] and len(folder.results) == told["dialogues"]
    [run] = find_runs(tmp_path)
    assert run.other == [] and people_of(run)["rows"][0].value == told["repeated"]
    assert "The simulated people" in [b.text for b in build([str(out)]).blocks if isinstance(b, Heading)]
