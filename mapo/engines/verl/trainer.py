"""verl's synchronous trainer, with what a run of ours leaves behind.

verl decides the order of things; here is what it does not know of: that a turn may be left out of the loss,
how a validation is scored, what a line of metrics.jsonl holds, that a deaf judge ends the run. Chosen by
`trainer.v1.trainer_mode=mapo`.
"""

from __future__ import annotations

import fcntl
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TextIO

import torch
import transfer_queue as tq
from omegaconf import OmegaConf, open_dict
from tensordict import TensorDict
from torchdata.stateful_dataloader import StatefulDataLoader
from verl.trainer.ppo.utils import create_rl_dataset
from verl.trainer.ppo.v1.trainer_base import register_trainer
from verl.trainer.ppo.v1.trainer_sync import PPOTrainerSync
from verl.utils.dataset.rl_dataset import collate_fn

from mapo.config import load_config
from mapo.engines.verl import records
from mapo.engines.verl.estimator import counted, credit_of, find_turns, options_of
from mapo.engines.verl.settings import METHODS, horizon, saves_at
from mapo.errors import InputError, TrainError
from mapo.store import RunDir

LAST_ONES = 300
"""Seconds a new start waits for what a killed one left running."""


@register_trainer("mapo")
class MapoTrainer(PPOTrainerSync):  # type: ignore[misc]
    def __init__(self, config: Any) -> None:
        self.run = RunDir(Path(config.trainer.mapo_run))
        self.ours = load_config(self.run.verl_config)
        if OmegaConf.select(config, "algorithm.rollout_correction.rollout_rs"):
            raise InputError(
                "rejecting tokens (rollout_rs) would cut turns in two",
                where="algorithm.rollout_correction",
                fix="Leave it out: a turn is a run of ones in the response mask",
            )
        self._lock = alone(self.run.verl_trainer_lock)
        super().__init__(config)

    @property
    def trainer_mode(self) -> str:
        """The registry knows this trainer as "mapo"; verl's own questions are answered as by its "sync"."""
        return "sync"

    @trainer_mode.setter
    def trainer_mode(self, _: str) -> None: ...

    # ---- data

    def _init_dataloader(self) -> None:
        super()._init_dataloader()
        with open_dict(self.config):
            self.config.actor_rollout_ref.actor.optim.total_training_steps = horizon(self.ours)
        data = self.config.data
        tested = create_rl_dataset(data.mapo_test, data, self.tokenizer, self.processor, is_train=False)
        test = StatefulDataLoader(
            tested, batch_size=max(1, len(tested)), collate_fn=collate_fn, shuffle=False
        )
        usual = self.val_dataloader  # type: ignore[has-type]
        self.held_out = {"validation": usual, "test": test}

    # ---- a step

    def on_step_begin(self) -> None:
        super().on_step_begin()
        records.set_aside(self.run, self.global_steps)

    def step(self, metrics: dict[str, Any], timing_raw: dict[str, Any]) -> Any:
        """As in verl; then the step's line is on disk, before its checkpoint is."""
        step = self.global_steps
        try:
            batch = super().step(metrics, timing_raw)
        except Exception as problem:
            records.check_usable(self.run, self.ours, step)
            self._stop_if_told(problem)
            raise
        records.check_judge(self.run, self.ours, "train", step)
        self._stop_if_told(None)
        records.check_gradient(metrics, step, self.run.root)
        self.record = records.step_record(self.run, self.ours, step, metrics, timing_raw)
        records.log(self.run, self.record)
        metrics.update(records.for_trackers(self.record))
        return batch

    def _stop_if_told(self, problem: Exception | None) -> None:
        if told := records.why_stopped(self.run):
            raise TrainError(told, where=str(self.run.root)) from problem

    def _compute_advantage(self, batch: Any, metrics: dict[str, Any]) -> Any:
        """As in verl; then the turns our estimator leaves out (no sibling to compare with) leave the mask, so
        that they are not counted in the mean over tokens either."""
        batch = super()._compute_advantage(batch, metrics)
        where = {"keys": batch.keys, "partition_id": batch.partition_id}
        names = ["rm_scores", "advantages", "old_log_probs", "rollout_log_probs"]
        data = tq.kv_batch_get(**where, select_fields=["uid", "response_mask", *names])
        nested = data["response_mask"]
        mask, rewards, *rest = (data[name].to_padded_tensor(0) for name in ("response_mask", *names))
        turns = find_turns(rewards, mask)
        method = METHODS[self.config.algorithm.adv_estimator]
        credit = credit_of(turns, list(data["uid"]), method, options_of(self.config.algorithm))
        kept = counted(turns, credit, mask)
        metrics.update(seen_in(kept.bool(), *rest))
        rows = [row[:length] for row, length in zip(kept, nested.offsets().diff().tolist(), strict=True)]
        new = torch.nested.as_nested_tensor(rows, layout=torch.jagged)  # the way verl keeps rows
        fields = TensorDict({"response_mask": new, "loss_mask": new}, batch_size=len(rows))
        return tq.kv_batch_put(**where, fields=fields)

    # ---- what is left behind

    def _validate(self) -> dict[str, float]:
        """What is due and not on disk yet: at the first start the test; after a kill, what it cut off."""
        step, found = self.global_steps, {"mapo/validated": float(self.global_steps)}
        for split in records.due(self.run, self.ours, step):
            with self._playing(split):
                found |= super()._validate()
            records.check_judge(self.run, self.ours, split, step)
            self._stop_if_told(None)
        self._scored(step)
        return found

    def _scored(self, step: int) -> None:
        """The validation joins its step's line: of two lines of a step, the last one counts. A kill may have
        come after the last dialogue and before this."""
        line = records.line_of(self.run, step)
        if line is not None and "validation" not in line:
            score = records.score_validation(self.run, self.ours, step)
            if score is not None:
                records.log(self.run, {**line, "validation": score})
        records.keep_best(self.run)

    @contextmanager
    def _playing(self, split: str) -> Iterator[None]:
        self.val_dataloader = self.held_out[split]
        try:
            yield
        finally:
            self.val_dataloader = self.held_out["validation"]

    def _save_checkpoint(self) -> None:
        if saves_at(self.ours, self.global_steps):
            super()._save_checkpoint()
            records.link_checkpoints(self.run, Path(self.config.trainer.default_local_dir))


def seen_in(mask: Any, advantages: Any, now: Any, sampled: Any) -> dict[str, float]:
    """What the trained tokens carry, and how far apart sampler and trainer are about their chances."""
    if not mask.any():
        return {}
    carried = advantages[mask].double()
    return {
        "mapo/advantage_max": carried.max().item(),
        "mapo/advantage_min": carried.min().item(),
        "mapo/advantage_mean": carried.mean().item(),
        "mapo/drift": (now - sampled)[mask].abs().mean().item(),
    }


def alone(file: Path) -> TextIO:
    """A lock for this process's life: what a killed start left running may still be at work."""
    lock = open(file, "w", encoding="utf-8")  # noqa: SIM115 (held until the end)
    deadline = time.monotonic() + LAST_ONES
    while True:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return lock
        except OSError:
            if time.monotonic() > deadline:
                lock.close()
                raise TrainError("another process trains this run", where=str(file.parent)) from None
            time.sleep(1.0)
