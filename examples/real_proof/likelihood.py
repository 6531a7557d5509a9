"""How likely recorded replies are under the model before training, and how far from it the policy is.

    python likelihood.py MODEL RUN=OUT.json ...

RUN is an evaluation with a local policy. OUT gets one entry per dialogue: its tokens, their mean
log-probability under MODEL (fluency), and the mean of log p(policy) - log p(MODEL), a sample estimate of
KL(policy || MODEL) if the replies were sampled at temperature 1. Files that exist are kept.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import numpy as np
import torch

from mapo.advantage import Advantages
from mapo.local_model.policy import LocalPolicy, load_policy
from mapo.rows import rows_of
from mapo.store import BadLine, RunDir, read_dialogues, write_atomic
from mapo.train.batch import micro_batches
from mapo.train.loss import token_logprobs
from mapo.types import Dialogue

TOKENS = 16384
"""Tokens of one forward pass."""


def likelihoods(policy: LocalPolicy, dialogues: list[Dialogue]) -> list[dict[str, object]]:
    """Return one entry per dialogue."""
    one = [np.ones(len(d.turns)) for d in dialogues]
    rows = rows_of(dialogues, Advantages(one, one, one, one, [np.ones(len(x), bool) for x in one]))
    sums = np.zeros((len(dialogues), 3))  # tokens, log-probability under the model, and when sampled
    for batch in micro_batches(rows, TOKENS):
        micro = batch.to(policy.device)
        with torch.no_grad():
            scores = token_logprobs(policy.model, micro.ids, micro.mask, at=micro.at).logprobs
        owners = np.repeat([rows[i].dialogue for i in batch.rows], [rows[i].trained for i in batch.rows])
        sampled = batch.logprobs.flatten()[batch.at].double().numpy()
        for column, values in enumerate((np.ones(len(owners)), scores.double().cpu().numpy(), sampled)):
            np.add.at(sums[:, column], owners, values)
    return [
        {
            "scenario": dialogue.scenario,
            "id": dialogue.id,
            "tokens": int(tokens),
            "fluency": base / tokens,
            "kl": (own - base) / tokens,
        }
        for dialogue, (tokens, base, own) in zip(dialogues, sums.tolist(), strict=True)
        if tokens
    ]


def main(model: str, *pairs: str) -> None:
    todo = [(Path(run), Path(out)) for run, _, out in (pair.rpartition("=") for pair in pairs)]
    policy: LocalPolicy | None = None
    for run, out in todo:
        if out.exists():
            continue
        policy = policy or load_policy(model)
        read = list(read_dialogues(RunDir(run).empa_dialogues))
        dialogues = {d.id: d for d in read if not isinstance(d, BadLine) and d.judged}
        entries = likelihoods(policy, list(dialogues.values()))
        write_atomic(out, json.dumps({"model": model, "dialogues": entries}, indent=1) + "\n")
        print(f"{run}: {len(entries)} dialogues", flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
