"""Dialogues and advantages -> token rows, the input of the policy loss. NumPy only, no torch.

The token ids of a dialogue are the `prompt_ids` and `token_ids` of its replies in order, exactly as they were
in the model's context; nothing is tokenised again. Normally one dialogue is one row. If the chat template
rewrites earlier turns, a reply carries its complete context (`Reply.whole_prompt`) and starts a new row, in
which earlier turns are plain context. Every turn is thus trained in the context in which it was sampled.

Every sampled token of turn t carries the advantage of turn t. Turns that are masked (`Advantages.mask`) stay
in the row as context.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import chain, pairwise

import numpy as np
from numpy.typing import NDArray

from mapo.advantage import Advantages
from mapo.errors import InputError
from mapo.types import Dialogue, Reply


@dataclass(frozen=True, slots=True)
class Row:
    """One context with the tokens to train on in it. All arrays have one entry per token.

    `mask` marks the tokens that enter the loss. `logprobs` are the log-probabilities at sampling time, 0 for
    context tokens. `turns` is the index of the turn that a sampled token belongs to, -1 for context tokens.
    `dialogue` is the index of the dialogue in the batch.
    """

    ids: NDArray[np.int64]
    mask: NDArray[np.bool_]
    advantages: NDArray[np.float32]
    logprobs: NDArray[np.float32]
    turns: NDArray[np.int32]
    dialogue: int

    def __len__(self) -> int:
        return len(self.ids)

    @property
    def trained(self) -> int:
        """The number of tokens that enter the loss."""
        return int(self.mask.sum())


def rows_of(dialogues: Sequence[Dialogue], credit: Advantages) -> list[Row]:
    """Return the rows of a batch in the order of its dialogues, without rows that have no token to train on.

    Tokens with an advantage of 0 are kept: the loss is a mean over all unmasked tokens.
    """
    if not len(dialogues) == len(credit.mixed) == len(credit.mask):
        raise InputError(
            f"{len(dialogues)} dialogues but advantages for {len(credit.mixed)}",
            fix="Compute the advantages from the same dialogues",
        )
    return [row for index, dialogue in enumerate(dialogues) for row in _rows(dialogue, credit, index)]


def _rows(dialogue: Dialogue, credit: Advantages, index: int) -> Iterator[Row]:
    advantage, mask = np.asarray(credit.mixed[index]), np.asarray(credit.mask[index], dtype=bool)
    if not len(dialogue.turns) == len(advantage) == len(mask):
        raise InputError(
            f"{len(dialogue.turns)} turns but {len(advantage)} advantages",
            where=f"dialogue {dialogue.id}",
            fix="Compute the advantages from the same dialogues",
        )
    if not np.isfinite(advantage).all():
        raise InputError("an advantage is not finite", where=f"dialogue {dialogue.id}")
    for turns in _contexts(dialogue):
        trained = [t for t in turns if mask[t] and dialogue.turns[t].reply.token_ids != ()]
        if trained:  # tokens after the last trained turn would have no effect on the loss
            yield _row(dialogue, range(turns[0], trained[-1] + 1), advantage, mask, index)


def _contexts(dialogue: Dialogue) -> Iterator[range]:
    """Yield the ranges of turns that share one context; a reply with a whole prompt starts a new one."""
    starts = [t for t, turn in enumerate(dialogue.turns) if t == 0 or turn.reply.whole_prompt]
    for start, stop in pairwise([*starts, len(dialogue.turns)]):
        yield range(start, stop)


def _row(
    dialogue: Dialogue,
    turns: range,
    advantage: NDArray[np.float64],
    mask: NDArray[np.bool_],
    index: int,
) -> Row:
    parts = [_validated(dialogue, t, first=t == turns[0]) for t in turns]
    # Each turn is a segment of context tokens (turn -1) followed by a segment of sampled tokens.
    lengths = np.array([n for prompt, tokens, _ in parts for n in (len(prompt), len(tokens))])
    segment_turns = np.array([n for t in turns for n in (-1, t)], dtype=np.int32)
    turn = np.repeat(segment_turns, lengths)
    sampled = turn >= 0
    logprobs = np.zeros(len(turn), dtype=np.float32)
    logprobs[sampled] = np.fromiter(chain.from_iterable(p for _, _, p in parts), np.float32)
    ids = chain.from_iterable(chain(prompt, tokens) for prompt, tokens, _ in parts)
    return Row(
        ids=np.fromiter(ids, np.int64, len(turn)),
        mask=sampled & mask[turn],
        advantages=np.where(sampled & mask[turn], advantage[turn], 0.0).astype(np.float32),
        logprobs=logprobs,
        turns=turn,
        dialogue=index,
    )


_Tokens = tuple[tuple[int, ...], tuple[int, ...], tuple[float, ...]]


def _validated(dialogue: Dialogue, turn: int, *, first: bool) -> _Tokens:
    """Return a reply's prompt ids, token ids and log-probabilities, checked for consistency."""
    reply: Reply = dialogue.turns[turn].reply
    where = f"dialogue {dialogue.id}, turn {turn + 1}"
    if reply.prompt_ids is None or reply.token_ids is None or reply.logprobs is None:
        raise InputError(
            "the reply has no token ids and log-probabilities",
            where=where,
            fix="Train on dialogues whose replies were sampled locally",
        )
    if len(reply.token_ids) != len(reply.logprobs):
        problem = f"{len(reply.token_ids)} token ids but {len(reply.logprobs)} log-probabilities"
        raise InputError(problem, where=where)
    if first and not reply.prompt_ids:
        raise InputError("the context before the first sampled token is empty", where=where)
    if not np.isfinite(reply.logprobs).all():
        raise InputError("a log-probability is not finite", where=where)
    return reply.prompt_ids, reply.token_ids, reply.logprobs
