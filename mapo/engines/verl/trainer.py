"""verl's synchronous trainer with mapo's records, selected by `trainer.v1.trainer_mode=mapo`.

verl controls the order of operations. This class adds what verl does not know: turns excluded from the loss,
scoring of validations, the lines of metrics.jsonl, and stopping when the judge fails too often.
"""

from __future__ import annotations

import fcntl
import os
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, TextIO

import ray
import torch
import transfer_queue as tq
from omegaconf import OmegaConf, open_dict
from tensordict import TensorDict
from torchdata.stateful_dataloader import StatefulDataLoader
from verl.trainer.ppo.core_algos import ADV_ESTIMATOR_REGISTRY
from verl.trainer.ppo.utils import create_rl_dataset
from verl.trainer.ppo.v1.trainer_base import register_trainer
from verl.trainer.ppo.v1.trainer_sync import PPOTrainerSync
from verl.utils.dataset.rl_dataset import collate_fn

from mapo.config import Optim, load_config
from mapo.engines.verl import records
from mapo.engines.verl.estimator import compute_credit, estimate, find_turns, loss_mask, parse_options
from mapo.engines.verl.roles import check_gpus, start_hosts
from mapo.engines.verl.settings import METHODS, checkpoint_due, schedule_end
from mapo.errors import InputError, TrainError
from mapo.local_model.gpu_memory import MemoryWatch, memory_reader
from mapo.store import RunDir, write_stop_reason
from mapo.train.loss import surrogate

NODE_SECONDS = 2.0
"""How often the nodes of the cluster are checked."""
DETECTION_SECONDS = 30.0
"""Ray needs about half of this to declare a node dead."""
LOCK_SECONDS = 300
"""How long a new start waits for processes of a killed one to exit."""


@register_trainer("mapo")
class MapoTrainer(PPOTrainerSync):  # type: ignore[misc]
    """PPOTrainerSync that writes a mapo run directory."""

    def __init__(self, config: Any) -> None:
        self.run = RunDir(Path(config.trainer.mapo_run))
        self.mapo_config = load_config(self.run.verl_config, flat=True)
        if OmegaConf.select(config, "algorithm.rollout_correction.rollout_rs"):
            raise InputError(
                "rejection of tokens (rollout_rs) is not supported",
                where="algorithm.rollout_correction",
                fix="Remove the setting: rejected tokens would split a turn in the response mask",
            )
        self._lock = wait_for_lock(self.run.verl_trainer_lock)
        with self._stop_reason_on_error():
            check_gpus(self.mapo_config)
        super().__init__(config)
        self.node_watch = NodeWatch(self.run)
        self.gpu_memory = MemoryWatch(memory_reader()).__enter__()  # until this process exits
        self.weights_seconds = 0.0
        self.role_hosts: list[Any] = []

    @property
    def trainer_mode(self) -> str:
        """verl's checks compare the mode with "sync"; only the registry uses "mapo"."""
        return "sync"

    @trainer_mode.setter
    def trainer_mode(self, _: str) -> None: ...

    def _init_dataloader(self) -> None:
        super()._init_dataloader()
        with open_dict(self.config):
            self.config.actor_rollout_ref.actor.optim.total_training_steps = schedule_end(self.mapo_config)
        data = self.config.data
        test_data = create_rl_dataset(data.mapo_test, data, self.tokenizer, self.processor, is_train=False)
        test = StatefulDataLoader(
            test_data, batch_size=max(1, len(test_data)), collate_fn=collate_fn, shuffle=False
        )
        validation = self.val_dataloader  # type: ignore[has-type]
        self.held_out = {"validation": validation, "test": test}

    def on_init_end(self) -> None:
        """Start the local models of roles: after the samplers, which measure the memory that is free."""
        with self._stop_reason_on_error():
            pools = self.resource_pool_manager.resource_pool_dict.values()
            groups = [group for pool in pools for group in pool.get_placement_groups()]
            self.role_hosts = start_hosts(self.mapo_config, self.run.root, groups)
        super().on_init_end()

    def fit(self, agent_loop_manager: Any) -> None:
        try:
            super().fit(agent_loop_manager)
        except Exception:
            self.node_watch.wait_after_error()
            raise

    def on_step_begin(self) -> None:
        super().on_step_begin()
        records.move_interrupted_step(self.run, self.global_steps)

    def step(self, metrics: dict[str, Any], timing_raw: dict[str, Any]) -> Any:
        """Run verl's step, then write its line of metrics.jsonl, before its checkpoint."""
        step, began = self.global_steps, time.monotonic()
        try:
            batch = super().step(metrics, timing_raw)
        except Exception as error:
            records.check_usable(self.run, self.mapo_config, step)
            self._raise_stop_reason(error)
            raise
        records.check_judge(self.run, self.mapo_config, "train", step)
        self._raise_stop_reason()
        records.check_gradient(metrics, step, self.run.root)
        checks = records.restored_checks(self.run, self.mapo_config, step)
        timing = {**timing_raw, "update_weights": self.weights_seconds}
        timing["step"] = time.monotonic() - began + self.weights_seconds
        if (peak := self.gpu_memory.peak_gb()) is not None:
            metrics["mapo/gpu_gb"] = peak
        self.record = records.step_record(self.run, self.mapo_config, step, metrics, timing, checks)
        records.append_metrics(self.run, self.record)
        records.check_agreement(self.run, self.mapo_config, checks)
        self._raise_stop_reason()
        metrics.update(records.tracker_metrics(self.record))
        return batch

    def on_step_end(self) -> None:
        """Send the weights to the sampler. The time counts for the next step, which samples with them: the
        line of this step is written already."""
        super().on_step_end()
        self.weights_seconds = float(self.timing_raw.get("update_weights", 0.0))

    @contextmanager
    def _stop_reason_on_error(self) -> Iterator[None]:
        try:
            yield
        except Exception as error:
            write_stop_reason(self.run, error, keep_first=True)
            raise

    def _raise_stop_reason(self, cause: Exception | None = None) -> None:
        """Raise TrainError if a process of the run has written a stop reason."""
        if reason := records.stop_reason(self.run):
            raise TrainError(reason, where=str(self.run.root)) from cause

    def _compute_advantage(self, batch: Any, metrics: dict[str, Any]) -> Any:
        """Run verl's computation, then remove turns that the estimator excludes from the mask.

        A turn is excluded if no sibling reaches it. It must not count in the mean over tokens either.
        """
        location = {"keys": batch.keys, "partition_id": batch.partition_id}
        name = self.config.algorithm.adv_estimator
        method = METHODS[name]
        extra = tq.kv_batch_get(**location, select_fields=["extra_fields"])["extra_fields"]
        inputs = [fields.get("credit_inputs") for fields in extra]
        ADV_ESTIMATOR_REGISTRY[name] = partial(estimate, method, inputs=inputs)
        super()._compute_advantage(batch, metrics)
        names = ["rm_scores", "advantages", "old_log_probs", "rollout_log_probs"]
        data = tq.kv_batch_get(**location, select_fields=["uid", "response_mask", *names])
        nested = data["response_mask"]
        mask, rewards, values, now, sampled = (
            data[name].to_padded_tensor(0) for name in ("response_mask", *names)
        )
        turns = find_turns(rewards, mask)
        options = parse_options(self.config.algorithm)
        credit = compute_credit(turns, list(data["uid"]), method, options, inputs)
        trained = loss_mask(turns, credit, mask)
        metrics.update(token_metrics(trained.bool(), values, now, sampled, self.mapo_config.optim))
        rows = [row[:length] for row, length in zip(trained, nested.offsets().diff().tolist(), strict=True)]
        new_mask = torch.nested.as_nested_tensor(rows, layout=torch.jagged)  # verl's layout
        fields = TensorDict({"response_mask": new_mask, "loss_mask": new_mask}, batch_size=len(rows))
        return tq.kv_batch_put(**location, fields=fields)

    def _validate(self) -> dict[str, float]:
        """Play the validation and the test if they are due and not yet complete on disk."""
        step, metrics = self.global_steps, {"mapo/validated": float(self.global_steps)}
        for split in records.due_splits(self.run, self.mapo_config, step):
            with self._validation_data(split):
                metrics |= super()._validate()
            records.check_judge(self.run, self.mapo_config, split, step)
            self._raise_stop_reason()
        self._record_validation(step)
        return metrics

    def _record_validation(self, step: int) -> None:
        """Append the step's line again with its validation score; the last line of a step counts.

        Called even if nothing was played, because a kill may have come between the last dialogue and this.
        """
        line = records.step_line(self.run, step)
        if line is not None and "validation" not in line:
            score = records.score_validation(self.run, self.mapo_config, step)
            if score is not None:
                records.append_metrics(self.run, {**line, "validation": score})
        self._link_checkpoints()
        records.keep_best(self.run)

    @contextmanager
    def _validation_data(self, split: str) -> Iterator[None]:
        self.val_dataloader = self.held_out[split]
        try:
            yield
        finally:
            self.val_dataloader = self.held_out["validation"]

    def _save_checkpoint(self) -> None:
        if checkpoint_due(self.mapo_config, self.global_steps):
            super()._save_checkpoint()
            self._link_checkpoints()

    def _link_checkpoints(self) -> None:
        records.link_checkpoints(self.run, self.run.verl_checkpoints, self.mapo_config.model)


def token_metrics(mask: Any, advantages: Any, now: Any, sampled: Any, clips: Optim) -> dict[str, float]:
    """Return statistics of the trained tokens: their advantages, and the mean difference between the
    trainer's (`now`) and the sampler's (`sampled`) log-probabilities. Those named `first` are of the ratios
    between the two, with which an update would begin if the trainer did not recompute the sampler's."""
    if not mask.any():
        return {}
    values = advantages[mask].double()
    drift = (now - sampled)[mask].abs().mean().item()
    clipped = surrogate(
        now[mask], sampled[mask], values, low=clips.clip_low, high=clips.clip_high, dual=clips.dual_clip
    ).clipped
    return {
        "mapo/tokens": float(mask.sum()),
        "mapo/first_drift": drift,
        "mapo/first_ratio_max": (now - sampled)[mask].max().clamp(max=20.0).exp().item(),
        "mapo/first_clip_fraction": clipped.double().mean().item(),
        "mapo/advantage_max": values.max().item(),
        "mapo/advantage_min": values.min().item(),
        "mapo/advantage_mean": values.mean().item(),
        "mapo/drift": drift,
    }


class NodeWatch:
    """Ends this process when a node of the cluster is lost. verl might wait forever for what ran there."""

    def __init__(self, run: RunDir) -> None:
        self.run = run
        self.nodes = {node["NodeID"]: node["NodeManagerAddress"] for node in ray.nodes() if node["Alive"]}
        if len(self.nodes) > 1:
            threading.Thread(target=self._watch, name="node-watch", daemon=True).start()

    def _watch(self) -> None:
        while True:
            time.sleep(NODE_SECONDS)
            alive = {node["NodeID"] for node in ray.nodes() if node["Alive"]}
            if lost := [address for node, address in self.nodes.items() if node not in alive]:
                count = f"{len(lost)} of {len(self.nodes)} Ray nodes were lost"
                write_stop_reason(self.run, f"{count}: {', '.join(lost)}")
                os._exit(1)

    def wait_after_error(self) -> None:
        """Wait until Ray would have noticed a lost node: errors that follow from it often come first."""
        if len(self.nodes) > 1:
            time.sleep(DETECTION_SECONDS)


def wait_for_lock(file: Path) -> TextIO:
    """Lock a file for the life of this process. Processes of a killed start may still hold it for a while."""
    lock = open(file, "w", encoding="utf-8")  # noqa: SIM115 (held until the process exits)
    deadline = time.monotonic() + LOCK_SECONDS
    while True:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return lock
        except OSError:
            if time.monotonic() > deadline:
                lock.close()
                raise TrainError("another process is training this run", where=str(file.parent)) from None
            time.sleep(1.0)
