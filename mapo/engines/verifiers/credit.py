"""Advantages of mapo's estimators for rollouts of the sandbox.

Rollouts are verifiers traces, live or read from a file. Their dialogues are in their `info`.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import verifiers.v1 as vf
from pydantic import ValidationError

from mapo.config import Advantage
from mapo.credit import compute_credit
from mapo.domain_folders import domain_folder
from mapo.engines.verifiers.taskset import DIALOGUE
from mapo.errors import InputError
from mapo.measure.reward import RecordedReward
from mapo.measure.rubric import Rubric
from mapo.records import decode_dialogue
from mapo.types import Dialogue

TurnAdvantages = list[float | None] | None
"""One number per turn, None for a turn that is not trained; None for a rollout that is not trained."""


def dialogue_of(trace: vf.Trace) -> Dialogue | None:
    """Return the record of a rollout; None if it has none because the policy failed."""
    record = trace.info.get(DIALOGUE)
    return None if record is None else decode_dialogue(json.dumps(record).encode())


def turn_advantages(
    traces: Sequence[vf.Trace], *, rubric: Rubric | None = None, **options: Any
) -> list[TurnAdvantages]:
    """Return the advantages of the turns of each rollout.

    `traces` is one group, or a batch of several; siblings are the rollouts of one row. `options` are the
    settings of `advantage` in a config of mapo train: method, gamma, ... `rubric` is only needed for a domain
    of your own. Rollouts with an error and unscored turns are left out of the statistics.
    """
    try:
        settings = Advantage.model_validate(options)
    except ValidationError as error:
        problem = error.errors()[0]
        raise InputError(problem["msg"], where=".".join(map(str, problem["loc"]))) from None
    dialogues = [dialogue_of(trace) if trace.ok else None for trace in traces]
    played = [dialogue for dialogue in dialogues if dialogue is not None]
    if not played:
        return [None] * len(traces)
    settings = settings.resolved(RecordedReward.read(played[0].reward).name)
    credit = compute_credit(played, settings, rubric or Rubric.load(domain_folder(played[0].rubric)))
    rows = iter(zip(credit.mixed, credit.mask, strict=True))
    return [None if dialogue is None else _turns(*next(rows)) for dialogue in dialogues]


def assign_advantages(traces: Sequence[vf.Trace], **options: Any) -> list[TurnAdvantages]:
    """Write each turn's advantage to its sampled tokens (`MessageNode.advantages`) and return the advantages.

    `options` are those of `turn_advantages`. Nodes of turns that are not trained keep None.
    """
    result = turn_advantages(traces, **options)
    for trace, advantages in zip(traces, result, strict=True):
        nodes = [node for node in trace.nodes if node.sampled]
        for node in nodes:
            node.advantages = None
        if advantages is None:
            continue
        if len(nodes) != len(advantages):
            raise InputError(
                f"there are {len(nodes)} replies of the model but {len(advantages)} turns",
                where=f"trace {trace.id}",
                fix="Use a harness that calls the model once per turn, such as that of mapo-empa",
            )
        for node, advantage in zip(nodes, advantages, strict=True):
            node.advantages = None if advantage is None else [advantage] * sum(node.mask)
    return result


def _turns(advantages: Any, mask: Any) -> list[float | None]:
    return [float(a) if trained else None for a, trained in zip(advantages, mask, strict=True)]
