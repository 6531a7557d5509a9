"""Forms whose answers are read out of a model, as token ids. Reading and training share this layout."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from mapo.errors import InputError
from mapo.models.chat import FILLER, Place


@dataclass(frozen=True, slots=True)
class FormTokens:
    """A form as ids, appended to the prompt of a reply.

    The logits at `ids[reads[k]]`, the last id of label k, predict the answer at place k; `options[k]` are the
    ids of its options.
    """

    ids: list[int]
    reads: list[int]
    options: list[list[int]]


def form_tokens(tokenizer: Any, places: Sequence[Place]) -> FormTokens:
    """Return the form of `places`: the labels, with a filler in place of each answer except the last.

    Labels and fillers are tokenised separately. Raises InputError if an option is not a single token, or two
    options of a place are the same token.
    """
    ids: list[int] = []
    reads, options = [], []
    for place in places:
        if ids:
            ids += _encode(tokenizer, FILLER)
        label = _encode(tokenizer, place.label)
        if not label:
            raise InputError("a place of a form has no label", where=_name(tokenizer))
        ids += label
        reads.append(len(ids) - 1)
        options.append(_option_ids(tokenizer, place))
    return FormTokens(ids, reads, options)


def _option_ids(tokenizer: Any, place: Place) -> list[int]:
    encoded = [_encode(tokenizer, option) for option in place.options]
    for option, ids in zip(place.options, encoded, strict=True):
        if len(ids) != 1:
            raise InputError(
                f"the answer '{option}' is {len(ids)} tokens, so its probability cannot be read out",
                where=_name(tokenizer),
                fix="Use a model whose tokenizer has a token for it, or judging = 'form'",
            )
    single = [ids[0] for ids in encoded]
    if len(set(single)) < max(len(single), 1):
        raise InputError(
            f"the answers {', '.join(place.options) or '(none)'} do not have a token each",
            where=_name(tokenizer),
            fix="Use different answers, at least one",
        )
    return single


def _encode(tokenizer: Any, text: str) -> list[int]:
    ids: list[int] = tokenizer.encode(text, add_special_tokens=False)
    return ids


def _name(tokenizer: Any) -> str:
    return str(getattr(tokenizer, "name_or_path", "") or type(tokenizer).__name__)
