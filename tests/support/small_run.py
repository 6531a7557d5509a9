"""A training small enough for tests: a tiny model of random weights, real scenarios, scripted roles."""

from __future__ import annotations

import asyncio
from hashlib import sha256
from pathlib import Path

from mapo.config import Config, load_config
from mapo.sandbox.domain import scripted_cast
from mapo.train.run import TrainingOutcome, run
from support import tiny

SMALL = (
    "roles.judge.model=",
    "rollout.scenarios=2",
    "rollout.siblings=4",
    "rollout.max_turns=3",
    "eval.max_turns=3",
    "rollout.max_tokens=7",
    "rollout.context=2048",
    "rollout.at_once=12",
    "optim.steps=4",
    "optim.updates=1",
    "optim.lr=1e-2",
    "optim.tokens=2048",
    "eval.every=2",
    "eval.repeats=1",
    "eval.test_repeats=0",
    "run.checkpoint_every=1",
    "run.trackers=[]",
    "run.threads=1",
    "run.processes=1",
)


def model_folder(folder: Path, family: str = "chatml") -> Path:
    tokenizer = tiny.tokenizer(family)
    model = tiny.model("llama", vocab_size=len(tokenizer), max_position_embeddings=4096, num_hidden_layers=2)
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


def config(model: Path, *overrides: str) -> Config:
    return load_config(None, [*SMALL, f"model.source={model}", *overrides])


def trained(model: Path, out: Path, *overrides: str, resume: bool = False, **kw) -> TrainingOutcome:
    chosen = config(model, *overrides)
    casting = kw.pop("casting", None) or scripted_cast("empathy")
    return asyncio.run(run(chosen, out, casting, resume=resume, **kw))


def weights(out: Path, step: int, file: str = "model.safetensors") -> str:
    """A fingerprint: of two files that differ pytest would draw a diff, for hours where `CI` is set."""
    return sha256((out / "checkpoints" / f"step_{step:05d}" / file).read_bytes()).hexdigest()
