"""Free fields of a request body: parameters of one server or model that have no setting of their own.

    {"chat_template_kwargs": {"enable_thinking": false}, "top_k": 20}

They come from command lines and config files, go into every request of a role, and are recorded in manifests.
So they are checked first: plain JSON of limited size, nothing that replaces what mapo sends itself, and no
keys or passwords.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping
from typing import Any

from mapo.errors import InputError

MAX_CHARS = 4096
MAX_DEPTH = 8
MAX_NUMBER = 2**53
SHOWN_CHARS = 120
"""Longest text of `compact_body`; a longer one is cut and gets a hash."""

OWN_OPTIONS = ("temperature", "top_p", "max_tokens")
"""Body fields that are settings and options of a role."""
RESERVED = frozenset(
    {"model", "messages", "stream", "stream_options", "n", "tools", "tool_choice", "parallel_tool_calls"}
    | {"functions", "function_call", "response_format", "max_completion_tokens", *OWN_OPTIONS}
)
"""Body fields that a request sets itself, or that change what an answer looks like."""

_SECRET = re.compile(
    r"apikey|authorization|password|passwd|secret|credential|bearer|(access|auth|id|session)token"
    r"|^(auth|token|cookies?|headers|extraheaders|defaultheaders)$"
)
_KEY_LIKE = re.compile(r"\b(sk-|hf_|Bearer\s+)[\w*.\-/+=]{8,}")
_UNSENDABLE = re.compile("[\x00\ud800-\udfff]")
_PLAIN_NAME = re.compile(r"[A-Za-z0-9_-]+")
_EFFORT = re.compile(r"[A-Za-z0-9_-]{1,32}")


def body_option(text: str | None, where: str) -> dict[str, Any]:
    """Parse body fields from an option: JSON, or the settings `thinking=BOOL` and `reasoning_effort=WORD`,
    separated by commas. `where` is the option's name. Raises InputError."""
    if text is None:
        return {}
    if text.lstrip().startswith(("{", "[")):
        return parse_body(text, where)
    settings = dict(part.partition("=")[::2] for part in text.replace(" ", "").split(","))
    thinking, effort = settings.pop("thinking", None), settings.pop("reasoning_effort", None)
    if settings or thinking not in (None, "true", "false"):
        raise InputError(
            f"'{text[:60]}' is neither JSON nor a known setting",
            where=where,
            fix="Write a JSON object, thinking=true, thinking=false or reasoning_effort=low",
        )
    named = {} if effort is None else {"reasoning_effort": check_effort(effort, where)}
    return with_thinking(named, None if thinking is None else thinking == "true", where)


def parse_body(text: str, where: str) -> dict[str, Any]:
    """Parse body fields from an option; `where` is its name. Raises InputError."""
    fix = 'Write a JSON object, such as \'{"chat_template_kwargs": {"enable_thinking": false}}\''
    if len(text) > MAX_CHARS:
        raise InputError(f"more than {MAX_CHARS} characters", where=where, fix="Shorten the JSON")
    try:
        data = json.loads(text, object_pairs_hook=_unique)
    except RecursionError:
        raise InputError("the JSON is nested too deeply", where=where, fix=fix) from None
    except ValueError as error:
        raise InputError(f"this is not valid JSON ({error})", where=where, fix=fix) from None
    return check_body(data, where)


def check_body(data: object, where: str = "body") -> dict[str, Any]:
    """Return body fields as plain data. Raises InputError for what may not or cannot be sent."""
    if not isinstance(data, Mapping):
        raise InputError("this is not a JSON object", where=where, fix='Write {"name": value, ...}')
    for name in data:
        if name in RESERVED:
            own = f"Set {name} of the role" if name in OWN_OPTIONS else "Leave it out"
            raise InputError(
                f"the field '{name}' is set by mapo and cannot be replaced", where=where, fix=own
            )
    plain: dict[str, Any] = _plain(data, where, 1)
    if len(_canonical(plain)) > MAX_CHARS:
        raise InputError(
            f"more than {MAX_CHARS} characters of JSON", where=where, fix="Send fewer or shorter fields"
        )
    return plain


def check_effort(effort: object, where: str = "reasoning_effort") -> str:
    """Return a reasoning effort if it is one word, whichever words the server knows. Raises InputError."""
    if not isinstance(effort, str) or not _EFFORT.fullmatch(effort):
        raise InputError(
            f"{str(effort)[:40]!r} is not a reasoning effort",
            where=where,
            fix="Give one word that the server knows, such as none, low, medium or high",
        )
    return effort


def with_thinking(
    body: Mapping[str, Any] | None, thinking: bool | None, where: str = "body"
) -> dict[str, Any]:
    """Return body fields with thinking switched on or off in the chat template, as vLLM, SGLang and
    llama.cpp understand it; None leaves them unchanged."""
    fields = check_body(body or {}, where)
    if thinking is None:
        return fields
    template = fields.get("chat_template_kwargs", {})
    if not isinstance(template, dict) or template.get("enable_thinking", thinking) != thinking:
        raise InputError(
            "the body fields set chat_template_kwargs.enable_thinking differently from thinking",
            where=where,
            fix="Set one of the two",
        )
    return {**fields, "chat_template_kwargs": {**template, "enable_thinking": thinking}}


def merge_bodies(first: Mapping[str, Any], second: Mapping[str, Any]) -> dict[str, Any]:
    """Return both sets of fields; `second` wins. Objects such as `chat_template_kwargs` are merged."""
    merged = dict(first)
    for name, value in second.items():
        old = merged.get(name)
        both = isinstance(old, Mapping) and isinstance(value, Mapping)
        merged[name] = {**old, **value} if both else value  # type: ignore[dict-item]
    return merged


def compact_body(body: Mapping[str, Any]) -> str:
    """Return body fields on one short line, for records: `chat_template_kwargs.enable_thinking=false`.

    Different fields give different texts: a long text is cut and ends with a hash.
    """
    text = " ".join(f"{name}={_canonical(value)}" for name, value in _flat(body))
    if len(text) <= SHOWN_CHARS:
        return text
    digest = hashlib.sha256(_canonical(body).encode()).hexdigest()[:8]
    return f"{text[: SHOWN_CHARS - 13]}... #{digest}"


def _flat(body: Mapping[str, Any], prefix: str = "") -> list[tuple[str, Any]]:
    pairs: list[tuple[str, Any]] = []
    for name, value in sorted(body.items()):
        path = prefix + (name if _PLAIN_NAME.fullmatch(name) else json.dumps(name))
        inner = isinstance(value, Mapping) and value
        pairs += _flat(value, f"{path}.") if inner else [(path, value)]
    return pairs


def _plain(value: object, where: str, depth: int) -> Any:
    if depth > MAX_DEPTH + 1:
        raise InputError(f"nested deeper than {MAX_DEPTH} levels", where=where, fix="Flatten the fields")
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, int | float):
        if not (-MAX_NUMBER <= value <= MAX_NUMBER):
            raise InputError(
                "a number is not finite or too large", where=where, fix=f"Stay below {MAX_NUMBER}"
            )
        return value
    if isinstance(value, str):
        return _text(value, where)
    if isinstance(value, Mapping):
        return {_name(name, where): _plain(inner, where, depth + 1) for name, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(inner, where, depth + 1) for inner in value]
    raise InputError(
        f"a value of type {type(value).__name__} is not JSON",
        where=where,
        fix="Use text, numbers, true, false, lists and objects",
    )


def _text(text: str, where: str) -> str:
    if _UNSENDABLE.search(text):
        raise InputError("a text contains characters that cannot be sent", where=where, fix="Remove them")
    if _KEY_LIKE.search(text):
        raise InputError(
            "a text looks like an API key, and body fields are recorded",
            where=where,
            fix="Put the key into the environment variable that key_env names",
        )
    return text


def _name(name: object, where: str) -> str:
    if not isinstance(name, str):
        raise InputError("a field's name is not text", where=where, fix="Put names in quotes")
    if _SECRET.search(re.sub(r"[\W_]", "", name).lower()):
        raise InputError(
            f"the field '{name[:40]}' may hold a secret, and body fields are recorded",
            where=where,
            fix="Put the key into the environment variable that key_env names",
        )
    return _text(name, where)


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    data = dict(pairs)
    if len(data) != len(pairs):
        raise ValueError("a name occurs twice in one object")
    return data


def _canonical(data: object) -> str:
    return json.dumps(data, sort_keys=True, separators=(",", ":"), default=dict)
