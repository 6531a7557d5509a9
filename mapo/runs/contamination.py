"""Which test scenarios a policy was trained on, as runs and exported models record it.

A training run lists them in its manifest (`trained_on_test`), an exported model in `mapo_training.json`, and
an evaluation of either in its own manifest. A model behind an endpoint does not say how it was trained.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

from mapo.runs.files import read_object
from mapo.scenarios.official import trained_on_test
from mapo.store import RunDir

KEY = "trained_on_test"
MARK = "mapo_training.json"


def trained_test_scenarios(model: Path) -> list[str]:
    """Return the ids of the test scenarios that the model in a folder was trained on, if it is an exported
    model or a checkpoint in a run directory; [] if nothing is known."""
    for file in (model / MARK, RunDir(model.parent.parent).manifest):
        ids = read_object(file)[0].get(KEY) if file.is_file() else None
        if isinstance(ids, list):
            return sorted({str(case) for case in ids})
    return []


def mark_export(model: Path, folder: Path) -> None:
    """Write to `folder`, an exported copy of `model`, which test scenarios it was trained on, if any."""
    if ids := trained_test_scenarios(model):
        (folder / MARK).write_text(json.dumps({KEY: ids}, indent=1) + "\n", encoding="utf-8")


def marks(model: str | None, tested: Collection[str]) -> dict[str, Any]:
    """Return the manifest entry of an evaluation of a local model on the scenarios `tested`."""
    ids = trained_test_scenarios(Path(model)) if model and Path(model).is_dir() else []
    shared = sorted(set(ids) & set(tested))
    return {KEY: shared} if shared else {}


def notice_of(manifest: Mapping[str, Any]) -> str:
    """Return the notice about a run whose policy was trained on test scenarios; "" for other runs."""
    return trained_on_test(manifest.get(KEY))
