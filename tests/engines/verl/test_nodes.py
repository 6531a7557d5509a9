"""A run over two Ray nodes, one rank and one token server on each: both nodes are on this machine."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("verl.protocol")

import ray
from ray.cluster_utils import Cluster

from mapo.store import read_steps

pytestmark = [pytest.mark.verl, pytest.mark.filterwarnings("default")]

SETTINGS = [
    "pocket",
    "roles.judge.model=",
    "optim.kl=0",
    "run.reference=false",
    "verl.rollout=mapo_cpu",
    "verl.nodes=2",
    "verl.gpus=1",
    "verl.workers=1",
    "verl.offload=true",
    "rollout.scenarios=2",
    "rollout.siblings=2",
    "rollout.max_turns=2",
    "rollout.context=1024",
    "rollout.max_tokens=16",
    "optim.steps=2",
    "optim.updates=1",
    "run.checkpoint_every=1",
    "run.trackers=[]",
    "eval.test_repeats=0",
    "eval.every=0",
]
NODE = {"num_cpus": 12, "num_gpus": 1, "object_store_memory": 200_000_000}


@contextmanager
def two_nodes() -> Iterator[tuple[Cluster, Any]]:
    """A cluster of a first node, which runs mapo, and a second one."""
    cluster = Cluster(initialize_head=True, head_node_args={**NODE, "include_dashboard": False})
    try:
        second = cluster.add_node(**NODE)
        cluster.connect()
        cluster.wait_for_nodes()
        yield cluster, second
    finally:
        ray.shutdown()
        cluster.shutdown()


def start(out: Path, cluster: Cluster, *options: str) -> subprocess.Popen[bytes]:
    command = [
        sys.executable,
        "-m",
        "mapo",
        "train",
        "--engine",
        "verl",
        *SETTINGS,
        "--out",
        str(out),
        *options,
    ]
    with open(out.with_suffix(".txt"), "wb") as output:
        environment = {**os.environ, "RAY_ADDRESS": cluster.address}
        return subprocess.Popen(command, stdout=output, stderr=subprocess.STDOUT, env=environment)


def output_of(out: Path) -> str:
    log = out / "verl" / "log.txt"
    verl_output = log.read_text(errors="replace")[-5000:] if log.exists() else ""
    return out.with_suffix(".txt").read_text() + "\n" + verl_output


def trainer_nodes() -> set[str]:
    """The nodes on which verl has placed ranks."""
    groups = ray.util.placement_group_table().values()
    return {node for group in groups for node in group["bundles_to_node_id"].values() if node}


def test_a_run_over_two_nodes_survives_the_loss_of_one(tmp_path):
    out = tmp_path / "run"
    with two_nodes() as (cluster, second):
        run = start(out, cluster)
        deadline = time.monotonic() + 900
        while not (out / "checkpoints" / "step_00001" / "config.json").exists():
            assert run.poll() is None and time.monotonic() < deadline, output_of(out)
            time.sleep(0.2)
        assert len(trainer_nodes()) == 2
        cluster.remove_node(second, allow_graceful=False)
        assert run.wait(timeout=300) == 2
        # the second, if verl's trainer ran on the lost node
        lost = r"1 of 2 Ray nodes were lost: \S+|a Ray node or a process on it was lost"
        message = out.with_suffix(".txt").read_text()
        assert re.search(rf"error: .*verl exited with status 1: ({lost}).* --resume\n\Z", message), output_of(
            out
        )
    with two_nodes() as (cluster, _):
        run = start(out, cluster, "--resume")
        assert run.wait(timeout=900) == 0, output_of(out)
    assert "resumed at step" in out.with_suffix(".txt").read_text()
    lines = read_steps(out / "metrics.jsonl")
    assert [line["step"] for line in lines] == [1, 2]
    assert all(line["drift"] < 1e-4 for line in lines)  # both servers had the weights of both ranks
    assert json.loads((out / "summary.json").read_bytes())["steps"] == 2
