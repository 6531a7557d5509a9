"""verl's synchronous trainer, with what a run of ours leaves behind.

verl decides the order of things; here is what it does not know of: that a turn may be left out of the loss,
how a validation is scored, what a line of metrics.jsonl holds, that a deaf judge ends the run. Chosen by
`trainer.v1.trainer_mode=mapo`.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
import transfer_queue as tq
from tensordict import TensorDict
from torchdata.stateful_dataloader import StatefulDataLoader
from verl.trainer.ppo.utils import create_rl_dataset
from verl.trainer.ppo.v1.trainer_base import register_trainer
from verl.trainer.ppo.v1.trainer_sync import PPOTrainerSync
from verl.utils.dataset.rl_dataset import collate_fn

from mapo.engines.verl import records
from mapo.engines.verl.estimator import counted, credit_of, find_turns, options_of
from mapo.engines.verl.settings import METHODS
from mapo.errors import TrainError
from mapo.store import RunDir
from mapo.train.setup import load_run_config


@register_trainer("mapo")
class MapoTrainer(PPOTrainerSync):  # type: ignore[misc]
    # The registry knows this trainer as "mapo"; all of verl's own questions are answered as by its "sync".
    trainer_mode = property(lambda _: "sync", lambda _, __: None)

    def __init__(self, config: Any) -> None:
        super().__init__(config)
        self.run = RunDir(Path(config.trainer.mapo_run))
        self.ours = load_run_config(self.run.root)
        self.validation: dict[str, Any] | None = None

    # ---- data

    def _init_dataloader(self) -> None:
        super()._init_dataloader()
        data = self.config.data
        tested = create_rl_dataset(data.mapo_test, data, self.tokenizer, self.processor, is_train=False)
        self.test_dataloader = StatefulDataLoader(
            tested, batch_size=max(1, len(tested)), collate_fn=collate_fn, shuffle=False
        )

    # ---- a step

    def on_step_begin(self) -> None:
        super().on_step_begin()
        records.set_aside(self.run, self.global_steps)

    def step(self, metrics: dict[str, Any], timing_raw: dict[str, Any]) -> Any:
        try:
            batch = super().step(metrics, timing_raw)
        except Exception as problem:
            records.check_usable(self.run, self.ours, self.global_steps)
            self._stop_if_told(problem)
            raise
        self._stop_if_told(None)
        return batch

    def _stop_if_told(self, problem: Exception | None) -> None:
        if told := records.why_stopped(self.run):
            raise TrainError(told, where=str(self.run.root)) from problem

    def _compute_advantage(self, batch: Any, metrics: dict[str, Any]) -> Any:
        """As in verl; then the turns our estimator leaves out (no sibling to compare with) leave the mask, so
        that they are not counted in the mean over tokens either."""
        batch = super()._compute_advantage(batch, metrics)
        where = {"keys": batch.keys, "partition_id": batch.partition_id}
        data = tq.kv_batch_get(**where, select_fields=["uid", "response_mask", "rm_scores"])
        nested = data["response_mask"]
        mask, rewards = (data[name].to_padded_tensor(0) for name in ("response_mask", "rm_scores"))
        turns = find_turns(rewards, mask)
        method = METHODS[self.config.algorithm.adv_estimator]
        credit = credit_of(turns, list(data["uid"]), method, options_of(self.config.algorithm))
        kept = counted(turns, credit, mask)
        rows = [row[:length] for row, length in zip(kept, nested.offsets().diff().tolist(), strict=True)]
        new = nested_like(rows)
        fields = TensorDict({"response_mask": new, "loss_mask": new}, batch_size=len(rows))
        return tq.kv_batch_put(**where, fields=fields)

    # ---- what is left behind

    def _compute_metrics(
        self, batch: Any, metrics: dict[str, Any], timing_raw: dict[str, Any], global_steps: int, epoch: int
    ) -> None:
        super()._compute_metrics(batch, metrics, timing_raw, global_steps, epoch)
        record = records.step_record(self.run, self.ours, global_steps, metrics, timing_raw)
        if self.validation is not None:
            record["validation"], self.validation = self.validation, None
        records.log(self.run, record)
        metrics.update(records.for_trackers(record))

    def _validate(self) -> dict[str, float]:
        found: dict[str, float] = super()._validate()
        score = records.score_validation(self.run, self.ours, self.global_steps)
        self.validation = score if self.global_steps else None  # before the first step it is nobody's
        records.keep_best(self.run)
        if self.ours.eval.test_repeats and self.global_steps in (0, self.total_training_steps):
            with self._test_data():
                super()._validate()
        return found

    @contextmanager
    def _test_data(self) -> Iterator[None]:
        usual = self.val_dataloader  # type: ignore[has-type]
        self.val_dataloader = self.test_dataloader
        try:
            yield
        finally:
            self.val_dataloader = usual

    def _save_checkpoint(self) -> None:
        super()._save_checkpoint()
        records.link_checkpoints(self.run, Path(self.config.trainer.default_local_dir))


def nested_like(rows: list[Any]) -> Any:
    """Rows of unequal length as one tensor, the way verl keeps them."""
    return torch.nested.as_nested_tensor(rows, layout=torch.jagged)
