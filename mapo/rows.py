"""Dialogues and their advantages -> token rows: what the policy loss is taken over. NumPy, no torch.

A dialogue's ids are its replies' `prompt_ids` and `token_ids` in order, as they stood in the model's
context; nothing is tokenised again. So one dialogue is one row. Where the chat template rewrites earlier
turns, a reply brings its whole context (`Reply.whole_prompt`) and a new row starts there: then every turn
trains in the context it was sampled in, and earlier turns stand in that row as the template shows them, as
plain context.

Every sampled token of turn t carries that turn's advantage. A turn that may not enter the loss
(`Advantages.mask`) stays in the row as context.
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
    """One context and what is learnt in it; all arrays have one entry a token.

    `mask` marks the tokens that enter the loss, `logprobs` their log-probability when they were sampled
    (0 where nothing was sampled), `turns` the turn a sampled token belongs to (-1 elsewhere). `dialogue` is
    the dialogue's place in the batch.
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
        """How many of its tokens enter the loss."""
        return int(self.mask.sum())


def rows_of(dialogues: Sequence[Dialogue], credit: Advantages) -> list[Row]:
    """The rows of a batch, in the order of its dialogues; rows with nothing to learn are left out.

    Tokens whose advantage happens to be 0 do count: the loss is a mean over all unmasked tokens.
    """
    if not len(dialogues) == len(credit.mixed) == len(credit.mask):
        raise InputError(
            f"{len(dialogues)} dialogues but advantages of {len(credit.mixed)}",
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
        raise InputError("an advantage that is not finite", where=f"dialogue {dialogue.id}")
    for turns in _contexts(dialogue):
        trained = [t for t in turns if mask[t] and dialogue.turns[t].reply.token_ids != ()]
        if trained:  # and nothing can be learnt from what comes after the last of them
            yield _row(dialogue, range(turns[0], trained[-1] + 1), advantage, mask, index)


def _contexts(dialogue: Dialogue) -> Iterator[range]:
    """Stretches of turns whose ids follow one another; a reply with a whole prompt begins a new one."""
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
    parts = [_checked(dialogue, t, first=t == turns[0]) for t in turns]
    # Per turn a stretch of context, then a stretch of sampled tokens.
    lengths = np.array([n for prompt, tokens, _ in parts for n in (len(prompt), len(tokens))])
    which = np.array([n for t in turns for n in (-1, t)], dtype=np.int32)
    turn = np.repeat(which, lengths)
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


_Parts = tuple[tuple[int, ...], tuple[int, ...], tuple[float, ...]]


def _checked(dialogue: Dialogue, turn: int, *, first: bool) -> _Parts:
    """A reply's prompt ids, token ids and log-probabilities, all there and fitting."""
    reply: Reply = dialogue.turns[turn].reply
    where = f"dialogue {dialogue.id}, turn {turn + 1}"
    if reply.prompt_ids is None or reply.token_ids is None or reply.logprobs is None:
        raise InputError(
            "the reply has no token ids and log-probabilities",
            where=where,
            fix="Train on dialogues whose policy was sampled locally",
        )
    if len(reply.token_ids) != len(reply.logprobs):
        told = f"{len(reply.token_ids)} token ids but {len(reply.logprobs)} log-probabilities"
        raise InputError(told, where=where)
    if first and not reply.prompt_ids:
        raise InputError("the context is empty before the first sampled token", where=where)
    if not np.isfinite(reply.logprobs).all():
        raise InputError("a log-probability that is not finite", where=where)
    return reply.prompt_ids, reply.token_ids, reply.logprobs
