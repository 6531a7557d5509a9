"""Guides: the tokens that keep a reply a valid JSON form, from llguidance.

A schema is compiled once into a grammar; every reply has its own matcher. Lengths are bounded in the grammar,
so that a model cannot fill its limit with one string. If the limit comes near all the same, the guide closes
the form: it then forces the tokens of a short completion.
"""

from __future__ import annotations

import importlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mapo.errors import InputError, TrainError, install_hint

SHORTEST_TEXT, LONGEST_TEXT = 40, 200
"""Characters that a string of a form may have: its share of the limit, within these bounds."""
MAX_ITEMS = 30
MAX_KEYS = 30
LARGEST_NUMBER = 1_000_000
_ANY_DEPTH = 4  # how deep the values of an object without a schema may be nested
_ITEMS_EXPECTED = 3  # of a list, when the limit is shared among strings
_CLOSING = '"}]0123456789tfn,:'  # characters that lead to the end of a form, best first
_MAX_GRAMMARS = 64
_OPTIONS = {
    "whitespace_flexible": False,
    "json_allowed_escapes": '"\\n',
    "json_allow_general_unicode_escapes": False,
}

Schema = dict[str, Any]
Bits = NDArray[np.int32]
"""A bit per token, set if it is allowed: [rows, (vocabulary + 31) // 32]."""


class Guide:
    """The matcher of one reply of at most `limit` tokens: forced and sampled tokens take turns."""

    def __init__(self, guides: Guides, matcher: Any, limit: int, reserve: int) -> None:
        self._guides, self._left, self._reserve = guides, limit, reserve
        self.matcher = matcher
        self.ended = False
        self.sampled = 0  # tokens that were not forced

    @property
    def words(self) -> int:
        """Words of 32 bits that hold a bit for every token."""
        return self._guides.words

    @property
    def complete(self) -> bool:
        """Whether the form is complete."""
        return bool(self.matcher.is_accepting())

    def force(self) -> list[int]:
        """Advance by the forced tokens, or by those that close the form, and return them."""
        if close := self._left <= self._reserve:
            tokens = self._guides.closing(self.matcher, self._left)
        else:
            tokens = self.matcher.compute_ff_tokens()
        self._advance(tokens)
        self.ended = self.ended or close
        return tokens

    def consume(self, token: int) -> None:
        """Advance by a sampled token."""
        self.sampled += 1
        if token in self._guides.end_ids and self.complete:
            self.ended = True
        else:
            self._advance([token])

    def _advance(self, tokens: list[int]) -> None:
        self._left -= len(tokens)
        if tokens and not self.matcher.consume_tokens(tokens):
            raise TrainError(f"structured decoding failed: {self.matcher.get_error()[:200]}")
        self.ended = bool(self.matcher.is_stopped())


@dataclass(frozen=True, slots=True)
class _Bounds:
    """Least tokens that any form of a schema needs, and how many strings share the rest."""

    reserve: int
    strings: int


class Guides:
    """Makes the guides of one model. `vocabulary` is the number of its logits."""

    def __init__(self, tokenizer: Any, vocabulary: int, end_ids: frozenset[int]) -> None:
        self.vocabulary, self.words = vocabulary, (vocabulary + 31) // 32
        self.end_ids = frozenset(token for token in end_ids if 0 <= token < vocabulary)
        self._tokenizer = tokenizer
        self._inner: Any = None
        self._bounds: dict[str, _Bounds] = {}
        self._grammars: dict[tuple[str, int], Any] = {}
        self._preferred: list[int] = []
        self._by_length: NDArray[np.int64] | None = None

    def needed(self, schema: Mapping[str, Any]) -> int:
        """Return how many tokens a reply must be allowed so that its form can always be completed."""
        return self._bounds_of(schema).reserve

    def guide(self, schema: Mapping[str, Any], limit: int) -> Guide:
        """Return a guide for a reply of at most `limit` tokens, which must be `needed` or more."""
        bounds = self._bounds_of(schema)
        share = (limit - bounds.reserve) // max(bounds.strings, 1)
        length = min(max(share - share % 20, SHORTEST_TEXT), LONGEST_TEXT)
        return Guide(self, self._matcher(schema, length).deep_copy(), limit, bounds.reserve)

    def closing(self, matcher: Any, limit: int) -> list[int]:
        """Return a short sequence of tokens that completes the form."""
        matcher, path = matcher.deep_copy(), list[int]()
        while not matcher.is_accepting() and len(path) < limit:
            tokens = matcher.compute_ff_tokens() or [self._closing_token(matcher)]
            if not matcher.consume_tokens(tokens):
                raise TrainError(f"structured decoding failed: {matcher.get_error()[:200]}")
            path += tokens
        return path[:limit]

    def _closing_token(self, matcher: Any) -> int:
        words = _masks([matcher], self.words)[0]
        bits = np.unpackbits(words.view(np.uint8), bitorder="little")[: self.vocabulary]
        if not self._preferred:
            pieces = [self._inner.greedy_tokenize(character) for character in _CLOSING]
            self._preferred = [piece[0] for piece in pieces if len(piece) == 1]
        for token in self._preferred:
            if bits[token]:
                return token
        if self._by_length is None:  # in the middle of a character, or of a choice
            sizes = [len(self._inner.decode_bytes([token])) for token in range(self.vocabulary)]
            self._by_length = np.argsort(sizes, kind="stable")
        order = self._by_length
        return int(order[np.argmax(bits[order])])

    def _bounds_of(self, schema: Mapping[str, Any]) -> _Bounds:
        key = json.dumps(schema)
        if key not in self._bounds:
            bounded = _bounded(dict(schema), SHORTEST_TEXT)
            example, leaves = _longest_stub(bounded)
            tokens = self._tokenizer.encode(example, add_special_tokens=False)
            # Two tokens more per value, because its neighbours may be split elsewhere, and a few to finish
            # an escape or a character.
            self._bounds[key] = _Bounds(len(tokens) + 2 * leaves + 16, _strings(bounded))
        return self._bounds[key]

    def _matcher(self, schema: Mapping[str, Any], length: int) -> Any:
        key = json.dumps(schema), length
        if key not in self._grammars:
            library = _llguidance()
            if self._inner is None:
                self._inner = self._read_tokenizer(library)
            bounded = _bounded(dict(schema), length)
            grammar = library.LLMatcher.grammar_from_json_schema(bounded, overrides=_OPTIONS)
            matcher = library.LLMatcher(self._inner, grammar, log_level=0)
            if matcher.is_error():
                raise InputError(
                    f"the schema of the form cannot be enforced: {matcher.get_error()[:200]}",
                    fix="Use objects, lists, strings, integers, booleans and enums",
                )
            if len(self._grammars) >= _MAX_GRAMMARS:
                self._grammars.clear()
            self._grammars[key] = matcher
        return self._grammars[key]

    def _read_tokenizer(self, library: Any) -> Any:
        try:
            text = self._tokenizer.backend_tokenizer.to_str()
            return library.LLTokenizer(text, n_vocab=self.vocabulary, eos_token=sorted(self.end_ids))
        except Exception as problem:
            raise InputError(
                f"structured output does not support this tokenizer ({str(problem)[:200]})",
                where=str(getattr(self._tokenizer, "name_or_path", "")),
                fix="Use a model with a tokenizer.json",
            ) from problem


def allowed_tokens(guides: Sequence[Guide]) -> Bits:
    """Return the tokens that may be sampled next, a row per guide of the same model."""
    return _masks([guide.matcher for guide in guides], guides[0].words)


def _masks(matchers: Sequence[Any], words: int) -> Bits:
    bits = np.zeros((len(matchers), words), dtype=np.int32)
    if len(matchers) == 1:
        matchers[0].unsafe_compute_mask_ptr(bits.ctypes.data, bits.nbytes)
    else:
        numbered = [(matcher, row) for row, matcher in enumerate(matchers)]
        _executor().unsafe_compute_mask_ptr(numbered, bits.ctypes.data, 4 * words, len(matchers))
    return bits


@cache
def _executor() -> Any:
    """Return the threads that compute the masks of several rows."""
    return _llguidance().LLExecutor()


def _llguidance() -> Any:
    try:
        return importlib.import_module("llguidance")
    except ImportError:
        raise InputError(
            "forms filled in by a local model need llguidance, which is not installed",
            fix=install_hint("train"),
        ) from None


def _bounded(schema: Schema, length: int) -> Schema:
    """Return the schema with bounds on strings of up to `length` characters, lists and numbers."""
    if "enum" in schema:
        return schema
    kind = schema.get("type")
    if kind == "object" and not schema.get("properties"):
        return _any_object(length, _ANY_DEPTH)
    if kind == "object":
        parts = {key: _bounded(part, length) for key, part in schema["properties"].items()}
        return {**schema, "properties": parts}
    if kind == "array":
        return {"maxItems": MAX_ITEMS, **schema, "items": _bounded(schema.get("items", {}), length)}
    if kind == "string":
        return {"maxLength": length, **schema}
    if kind in ("integer", "number"):
        return {"minimum": -LARGEST_NUMBER, "maximum": LARGEST_NUMBER, **schema}
    return schema if kind else _any_value(length, _ANY_DEPTH - 1)


def _any_object(length: int, depth: int) -> Schema:
    return {
        "type": "object",
        "additionalProperties": _any_value(length, depth - 1),
        "maxProperties": MAX_KEYS,
    }


def _any_value(length: int, depth: int) -> Schema:
    simple = [_bounded({"type": kind}, length) for kind in ("string", "integer", "boolean", "null")]
    if depth < 1:
        return {"anyOf": simple}
    items = {"type": "array", "items": _any_value(length, depth - 1), "maxItems": MAX_ITEMS}
    return {"anyOf": [*simple, items, _any_object(length, depth)]}


def _longest_stub(schema: Schema) -> tuple[str, int]:
    """Return the longest form with empty strings and one item in every list, and its number of values."""
    if "enum" in schema:
        return max((json.dumps(choice, ensure_ascii=False) for choice in schema["enum"]), key=len), 1
    if "anyOf" in schema:
        return max((_longest_stub(choice) for choice in schema["anyOf"]), key=lambda stub: len(stub[0]))
    kind = schema.get("type")
    if kind == "object":
        parts = schema.get("properties") or {"": schema["additionalProperties"]}
        stubs = {key: _longest_stub(part) for key, part in parts.items()}
        texts = [f"{json.dumps(key, ensure_ascii=False)}:{text}" for key, (text, _) in stubs.items()]
        return "{" + ",".join(texts) + "}", sum(leaves + 1 for _, leaves in stubs.values())
    if kind == "array":
        text, leaves = _longest_stub(schema["items"])
        return f"[{text}]", leaves + 1
    return {"string": '""', "boolean": "false", "null": "null"}.get(str(kind), str(-LARGEST_NUMBER)), 1


def _strings(schema: Schema) -> int:
    """Return how many strings a form is expected to have."""
    if "anyOf" in schema:
        return max(_strings(choice) for choice in schema["anyOf"])
    kind = schema.get("type")
    if kind == "object":
        parts = schema.get("properties") or {"": schema["additionalProperties"]}
        return sum(map(_strings, parts.values()))
    if kind == "array":
        return _ITEMS_EXPECTED * _strings(schema["items"])
    return int(kind == "string" and "enum" not in schema)
