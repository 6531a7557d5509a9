"""Training with a user at fault: what is recorded, and what is left out of the loss."""

from __future__ import annotations

from dataclasses import replace

import pytest

from mapo.config import Advantage
from mapo.sandbox.domain import scripted_cast
from mapo.store import read_dialogues, read_jsonl
from mapo.train.metrics import fault_metrics
from support import small_run as small

LINE = "I have told you about the boat shed that my father built"


class Repeater:
    """A user who says the same thing again and again."""

    async def speak(self, turns, direction):
        return LINE


def casting(job):
    cast = scripted_cast("empathy")(job)
    return replace(cast, user=Repeater(), names={**cast.names, "user": "repeater"})


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """One step with and one without masking."""
    folder = tmp_path_factory.mktemp("runs")
    model = small.model_folder(folder / "model")
    for name in ("true", "false"):
        options = ("optim.steps=1", "eval.every=0", f"advantage.mask_faults={name}")
        small.trained(model, folder / name, *options, casting=casting)
    return folder


def test_faults_are_recorded(runs):
    for dialogue in read_dialogues(runs / "false" / "dialogues" / "step_00001.jsonl"):
        users = [[fault for fault in turn.faults if fault.startswith("user")] for turn in dialogue.turns]
        assert users == [[], [], ["user: repeats itself"]]


def test_turns_with_a_fault_of_the_user_are_not_trained(runs):
    (plain,), (masked,) = (list(read_jsonl(runs / name / "metrics.jsonl")) for name in ("false", "true"))
    assert plain["turns_trained"] == 24
    assert masked["turns_trained"] == 16
    assert masked["masked_faults"] == pytest.approx(1 / 3)
    assert "masked_faults" not in plain
    assert masked["faults"]["turns"]["user"] == pytest.approx(1 / 3)
    assert masked["faults"]["blamed"] == {"user": 8}
    assert small.weights(runs / "true", 1) != small.weights(runs / "false", 1)


def test_no_share_without_turns():
    assert fault_metrics([], Advantage(mask_faults=True)) == {"masked_faults": 0.0}
