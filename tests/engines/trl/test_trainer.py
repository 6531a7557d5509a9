"""MAPO on TRL's trainer: the local engine's gradients, statistics, groups across processes.

Run as a program (by torchrun) it is one of several processes that train a step together.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from transformers import TrainerCallback

from mapo.advantage import METHODS, SCALES
from mapo.config import Advantage
from mapo.credit import compute_credit
from mapo.engines.trl import MAPOTrainer, rollout_of
from mapo.errors import InputError, TrainError
from mapo.estimators.methods import ESTIMATORS
from mapo.rows import rows_of
from mapo.train.batch import micro_batches
from mapo.train.loss import policy_loss
from support import tiny
from support.trl_rollouts import (
    REWARDS,
    RUBRIC,
    in_sandbox,
    model_of,
    rows,
    sandbox,
    scored,
    settings,
    told,
    trainer_of,
)


class Gradients(TrainerCallback):
    def on_pre_optimizer_step(self, args, state, control, model=None, **_):
        self.found = {name: p.grad.clone() for name, p in model.named_parameters()}


def local_gradients(model, dialogues, options, **clips):
    """What the local engine makes of the same dialogues."""
    usable = [d for d in dialogues if d.error is None]
    credit = compute_credit(usable, Advantage(**options).resolved("idr"), RUBRIC)
    found = rows_of(usable, credit)
    model.zero_grad()
    total = sum(row.trained for row in found)
    for micro in micro_batches(found, 64):
        policy_loss(model, micro, total=total, **clips)[0].backward()
    gradients = {name: p.grad.clone() for name, p in model.named_parameters()}
    model.zero_grad()
    return gradients, total


def distance(a, b):
    a, b = (torch.cat([x.flatten() for x in g.values()]) for g in (a, b))
    return float((a - b).norm() / b.norm())


def with_fault(dialogue):
    """The same dialogue, with the user at fault in its first turn."""
    first = (replace(turn, faults=("user: empty",)) for turn in dialogue.turns[:1])
    return replace(dialogue, turns=(*first, *dialogue.turns[1:]))


OPTIONS = [
    {"method": "mapo", "gamma": 0.85, "turn_weight": 0.3},
    {"method": "mapo", "gamma": 1.0, "scope": "batch", "horizon": "shortest"},
    *({"method": method, "gamma": 0.9} for method in METHODS if method != "mapo"),
    *({"method": "mapo", "endings": "cut", "scale": scale} for scale in SCALES),
    {"method": "mapo", "endings": "held"},
    {"method": "turn_gae", "lam": 0.5, "scale": "none", "endings": "cut"},
    {"method": "mt_grpo", "step_weight": 0.25, "scale": "none", "endings": "cut"},
    {"method": "gigpo", "states": "exact", "step_weight": 2.0, "scale": "batch"},
    {"method": "gdpo", "endings": "cut", "scale": "none"},
    {"method": "mapo", "mask_faults": True},
    {"method": "gigpo", "mask_faults": True},
]


@pytest.mark.parametrize("options", OPTIONS, ids=lambda o: "-".join(map(str, o.values())))
def test_gradients_are_the_local_engines(options, tmp_path):
    """One optimizer step of two micro-batches, as TRL takes it."""
    model = model_of()
    dialogues = [with_fault(scored(model, told(0, i, r))) for i, r in enumerate(REWARDS)]
    expected, total = local_gradients(model, dialogues, options)
    trainer, made = trainer_of(
        tmp_path, dialogues, model, per_device_train_batch_size=4, gradient_accumulation_steps=2, **options
    )
    seen = Gradients()
    trainer.add_callback(seen)
    trainer.train()
    assert distance(seen.found, expected) < 1e-5
    assert (
        made[0]["num_items_in_batch"]
        == total
        < sum(len(t.reply.token_ids) for d in dialogues for t in d.turns)
    )


def test_gradients_are_the_local_engines_off_policy_with_every_clip_at_work(tmp_path):
    """ratio = exp(logp - old) with old far off: both clips and the dual clip cut tokens off."""
    model = model_of()
    dialogues = [scored(model, told(1, i, r), noise=2.0) for i, r in enumerate(REWARDS)]
    clips = {"low": 0.2, "high": 0.28, "dual": 10.0}
    expected, _ = local_gradients(model, dialogues, {"gamma": 0.85}, **clips)
    free, _ = local_gradients(model, dialogues, {"gamma": 0.85}, **{**clips, "dual": 1e9})
    assert distance(free, expected) > 1e-2  # the dual clip does something
    trainer, _ = trainer_of(tmp_path, dialogues, model)
    trainer.current_gradient_accumulation_steps = 1
    model.train()
    batch = trainer._generate_and_score_completions([dict(row) for row in rows() for _ in range(4)])
    batch["old_per_token_logps"] = batch["sampling_per_token_logps"]
    trainer._compute_loss(model, batch).backward()
    assert distance({name: p.grad for name, p in model.named_parameters()}, expected) < 1e-5


@pytest.mark.parametrize("method", [name for name, e in ESTIMATORS.items() if e.needs])
def test_a_rollout_without_what_the_method_needs_ends_the_run_before_training(method, tmp_path):
    dialogues = [told(0, i, r) for i, r in enumerate(REWARDS)]
    trainer = MAPOTrainer(
        model_of(),
        args=settings(tmp_path, method=method),
        train_dataset=rows(),
        rollout_func=lambda prompts, trainer: rollout_of(dialogues, filler=0),
        processing_class=tiny.tokenizer(),
    )
    match = f"the returned dict has no {ESTIMATORS[method].needs}, which the method '{method}' needs"
    with pytest.raises(InputError, match=match):
        trainer.train()
    assert trainer.state.global_step == 0


def test_unscored_turns_and_broken_dialogues_leave_loss_and_statistics(tmp_path):
    dialogues = [told(0, i, r) for i, r in enumerate(REWARDS)]
    trainer, made = trainer_of(tmp_path, dialogues, model_of(), gamma=1.0)
    trainer.train()
    mask, credit = made[0]["tool_mask"], made[0]["advantages"]
    # The scored turns of unbroken dialogues, turn 5 of dialogue 3 apart (nobody else reaches it), and turn 3
    # of dialogue 7 (the one sibling left has two turns).
    taken = {0: [0, 1, 2], 1: [0, 2, 3], 2: [0, 1], 3: [0, 1, 2, 3], 4: [0, 1], 7: [0]}
    expected = [sum(len(dialogues[i].turns[t].reply.token_ids) for t in taken.get(i, [])) for i in range(8)]
    assert mask.sum(1).tolist() == expected
    assert not credit[mask == 0].any()
    line = trainer.state.log_history[0]
    assert line["mapo/broken"] == 1 / 8
    assert line["mapo/unscored"] == pytest.approx(4 / 21)
    assert line["mapo/turns"] == pytest.approx(3.0)
    assert line["mapo/turns_trained"] == 15
    whole = [
        sum(r for r in row if r is not None) for row in REWARDS if row and any(r is not None for r in row)
    ]
    assert line["reward"] == pytest.approx(np.mean(whole))
    shown = list(trainer._logs["advantages"])
    assert len(shown) == 8 and shown[5] == shown[6] == 0.0 and shown[0] != 0.0


def test_a_batch_in_which_everything_broke_ends_the_run(tmp_path):
    dialogues = [told(0, i, None) for i in range(8)]
    trainer, _ = trainer_of(tmp_path, dialogues, model_of())
    with pytest.raises(TrainError, match="no dialogue of step 1 is usable"):
        trainer.train()


# ---- two processes


def step_of(out, processes):
    """One step of this process's share: advantages, and weights afterwards. Then one in the sandbox: what was
    said. All of it in the folder `out`."""
    torch.set_num_threads(1)
    said, dialogues = [], [told(0, i, r) for i, r in enumerate(REWARDS)]
    trainer, made = trainer_of(
        out,
        dialogues,
        model_of(),
        per_device_train_batch_size=8 // processes,
        num_generations=8,
        optim="sgd",
        method="gigpo",  # its states are gathered too
    )
    trainer.train()
    sizes = [sum(len(t.reply.token_ids) + len(t.reply.prompt_ids) for t in d.turns) for d in dialogues]
    batch = {key: made[0][key].tolist() for key in ("advantages", "tool_mask")}
    assert max(map(len, batch["advantages"])) <= max(sizes)
    weights = [float(p.detach().double().abs().sum()) for p in trainer.model.parameters()]
    played = in_sandbox(out, sandbox(on_done=said.append), per_device_train_batch_size=8 // processes)
    played.train()
    said = {d.id: [turn.reply.text for turn in d.turns] for d in said}
    found = {**batch, "items": int(made[0]["num_items_in_batch"]), "weights": weights, "said": said}
    (Path(out) / f"{trainer.accelerator.process_index}.json").write_text(json.dumps(found))


@pytest.mark.slow
def test_a_group_may_span_two_processes(tmp_path):
    """All eight dialogues are siblings; each process plays four of them."""
    (tmp_path / "two").mkdir()
    (tmp_path / "one").mkdir()
    tests = Path(__file__).parents[2]
    environment = {**os.environ, "PYTHONPATH": f"{tests}:{tests.parent}", "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node=2", "--master-addr=127.0.0.1"]
    command += ["--master-port=0", "--rdzv-backend=c10d", "--rdzv-endpoint=127.0.0.1:0", __file__]
    done = subprocess.run(
        [*command, str(tmp_path / "two")], capture_output=True, text=True, timeout=300, env=environment
    )
    assert done.returncode == 0, done.stderr[-3000:]
    step_of(tmp_path / "one", processes=1)
    alone = json.loads((tmp_path / "one" / "0.json").read_text())
    pair = [json.loads((tmp_path / "two" / f"{rank}.json").read_text()) for rank in (0, 1)]
    for key in ("advantages", "tool_mask"):
        together = [_bare(row) for part in pair for row in part[key]]
        assert together == [_bare(row) for row in alone[key]]
    assert [part["items"] for part in pair] == [alone["items"]] * 2
    for part in pair:
        assert part["weights"] == pytest.approx(alone["weights"], rel=1e-6)
    assert pair[0]["said"] | pair[1]["said"] == alone["said"]
    assert len(pair[0]["said"]) == len(pair[1]["said"]) == 4
    start = [float(p.detach().double().abs().sum()) for p in model_of().parameters()]
    assert alone["weights"] != pytest.approx(start, rel=1e-6)


def _bare(row):
    """Without the padding, which depends on who is in the batch."""
    return row[: max((at + 1 for at, x in enumerate(row) if x), default=0)]


if __name__ == "__main__":
    step_of(sys.argv[1], processes=2)
