"""Chat templates: messages to token ids, and whether a template is append-only.

A template is append-only if the prompt of turn t is a prefix of the prompt of turn t+1. Then `next_turn`
gives the ids between one reply and the next, no text is tokenised twice, and a dialogue is one training row.
Other templates rewrite earlier turns, for example to strip old thinking; for them `full_prompt` renders every
turn from the start.

Messages are untrusted: control tokens spelled out in their text are broken up before rendering, so that they
stay text.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal, TypeVar

from jinja2.exceptions import TemplateError

from mapo.errors import InputError
from mapo.local_model.template_cost import check_template_cost
from mapo.types import Message

_K = TypeVar("_K")
_T = TypeVar("_T")
_MAX_ESCAPE_ROUNDS = 8
_REMEMBERED = 16384  # texts whose ids are kept
_SYSTEM = Message("system", "Keep to plain words.")
_PROBE = ("Hello there.", "Good day to you.", "It rains.", "So it does, again.", "What now?")


@dataclass(frozen=True)
class Template:
    """A tokenizer's chat template and what was found out about it.

    description: one sentence on whether it is append-only.
    end_ids: the ids that end a reply.
    folds_system: it has no system role; the system prompt becomes part of the first user message.
    options: arguments for the template.
    controls: ids of control tokens, which no message text may produce; `spelled` matches their text.
    verbatim: earlier turns stay as they were sampled, whatever the template would make of them.
    separators: matches the tokens that the tokenizer splits off first, if the text between them can be
        tokenised piece by piece. Prompts that grow then cost only their new pieces.
    """

    tokenizer: Any
    append_only: bool
    description: str
    end_ids: frozenset[int]
    folds_system: bool = False
    options: dict[str, Any] = field(default_factory=dict)
    controls: frozenset[int] = frozenset()
    spelled: re.Pattern[str] | None = None
    verbatim: bool = False
    separators: re.Pattern[str] | None = None
    _pieces: dict[str, tuple[list[int], bool]] = field(default_factory=dict, compare=False, repr=False)
    _escaped: dict[str, str] = field(default_factory=dict, compare=False, repr=False)
    _probes: dict[tuple[Message, ...], str] = field(default_factory=dict, compare=False, repr=False)

    def full_prompt(self, messages: Sequence[Message]) -> list[int]:
        """Return the ids of all messages, up to where the reply begins."""
        return self._ids_of(lambda escape: self._text(messages, escape))

    def next_turn(self, finish: Literal["stop", "length"], user_text: str) -> list[int]:
        """Return the ids between a reply and the next one: template text, the user's message, the generation
        prompt. They start with the end token only if the reply was cut off (`finish` is "length")."""
        if not self.append_only:
            raise InputError("this chat template rewrites earlier turns", where=_name(self.tokenizer))
        ids = self._ids_of(lambda escape: self._turn_text(user_text, escape))
        ends = [at for at, token in enumerate(ids) if token in self.end_ids]
        return ids[ends[0] + 1 :] if ends and finish == "stop" else ids

    def _turn_text(self, user_text: str, escape: Callable[[str], str]) -> str:
        between = self._after if self.verbatim else self._between
        text = between(_dialogue(_PROBE[:1]), _PROBE[1], user_text, escape)
        if text is None:
            raise InputError("this chat template rewrites earlier turns", where=_name(self.tokenizer))
        return text

    def _ids_of(self, render: Callable[[Callable[[str], str]], str]) -> list[int]:
        """Return the ids of a text; `render` makes it, with each message escaped by the given function."""
        if self.separators is None:
            return self._ids(render(self.escape_controls))
        # Escaping tokenises every message once more. It is needed only if a message that spells no control
        # token has one all the same.
        text = render(self._without_spellings)
        if not all(self._piece(piece)[1] for piece in self.separators.split(text)[::2]):
            text = render(self.escape_controls)
        return self._ids_by_piece(text, self.separators)

    def escape_controls(self, text: str) -> str:
        """Break up every control token in `text`, so that it is tokenised as plain text."""
        if text not in self._escaped:
            _remember(self._escaped, text, self._escape(text))
        return self._escaped[text]

    def _without_spellings(self, text: str) -> str:
        # This terminates: no spelling starts or ends with a space, so every match either loses its only
        # character or gets a wider gap after its first one, and no spelling contains gaps of any width.
        while self.spelled and self.spelled.search(text):
            text = self.spelled.sub(_break_up, text)
        return text

    def _escape(self, text: str) -> str:
        text = self._without_spellings(text)
        for _ in range(_MAX_ESCAPE_ROUNDS):  # spellings that only match after the tokenizer's normalisation
            ids = self._ids(text)
            if not self.controls & set(ids):
                return text
            text = self.tokenizer.decode([token for token in ids if token not in self.controls])
        return ""  # drop the text rather than pass on a control token

    def _ids(self, text: str) -> list[int]:
        try:
            ids: list[int] = self.tokenizer.encode(text, add_special_tokens=False)
        except BaseException as error:
            # The tokenizers library panics where a regular expression from elsewhere takes too long.
            if type(error).__name__ != "PanicException":
                raise
            raise InputError(
                f"the tokenizer fails ({error})",
                where=_name(self.tokenizer),
                fix="Check the patterns in its tokenizer.json",
            ) from None
        return ids

    def _ids_by_piece(self, text: str, separators: re.Pattern[str]) -> list[int]:
        ids: list[int] = []
        for piece in separators.split(text):
            ids += self._piece(piece)[0]
        return ids

    def _piece(self, text: str) -> tuple[list[int], bool]:
        """Return the ids of a piece, and whether no control token is among them."""
        if text not in self._pieces:
            ids = self._ids(text)
            _remember(self._pieces, text, (ids, self.controls.isdisjoint(ids)))
        return self._pieces[text]

    def _text(self, messages: Sequence[Message], escape: Callable[[str], str] | None = None) -> str:
        if self.folds_system:
            messages = _fold_system(messages)
        escape = escape or self.escape_controls
        turns = [{"role": m.role, "content": escape(m.content)} for m in messages]
        try:
            text: str = self.tokenizer.apply_chat_template(
                turns, tokenize=False, add_generation_prompt=True, **self.options
            )
        except (TemplateError, TypeError, ValueError) as error:
            roles = ", ".join(m.role for m in messages)
            raise InputError(
                f"the chat template does not accept the roles {roles}: {error}", where=_name(self.tokenizer)
            ) from None
        return text

    def _between(
        self,
        messages: Sequence[Message],
        reply: str,
        user_text: str,
        escape: Callable[[str], str] | None = None,
    ) -> str | None:
        """Return the text between `reply` and the next reply, after the user's message `user_text`; None if
        the template did not append."""
        before = self._probe_text(tuple(messages)) + reply
        longer = [*messages, Message("assistant", reply), Message("user", user_text)]
        after = self._text(longer, escape)
        return after.removeprefix(before) if after.startswith(before) else None

    def _probe_text(self, messages: tuple[Message, ...]) -> str:
        """Return the text of one of the few dialogues by which the template is examined."""
        if messages not in self._probes:
            _remember(self._probes, messages, self._text(messages))
        return self._probes[messages]

    def _after(
        self,
        messages: Sequence[Message],
        reply: str,
        user_text: str,
        escape: Callable[[str], str] | None = None,
    ) -> str | None:
        """Return the text after `reply`, however the template rendered what comes before."""
        text = self._text([*messages, Message("assistant", reply), Message("user", user_text)], escape)
        return text.partition(reply)[2] if reply in text else None


def keep_turns_verbatim(template: Template) -> Template:
    """Return an append-only version of a template. Where it would rewrite earlier turns (remove old thinking
    or an empty thinking block), they stay in the context as sampled. Raises InputError if that is
    impossible."""
    if template.append_only:
        return template
    separators = {
        template._after([*first, *_dialogue(_PROBE[:turn])], _PROBE[turn], _PROBE[4])
        for first in ([], [_SYSTEM])
        for turn in (1, 3)
    }
    if len(separators) > 1 or None in separators:
        raise InputError(
            "the text that this chat template puts between two replies changes from turn to turn",
            where=_name(template.tokenizer),
            fix="Use the local engine, which makes each turn a row of its own",
        )
    description = "Chat template rewrites earlier turns; they are kept as sampled"
    return replace(template, append_only=True, verbatim=True, description=description)


def read_template(tokenizer: Any, **options: Any) -> Template:
    """Read and check the tokenizer's chat template. `options` are passed to the template; thinking is off by
    default."""
    source = tokenizer.chat_template
    if not source:
        raise InputError(
            "the tokenizer has no chat template",
            where=_name(tokenizer),
            fix="Use an instruction-tuned model, or set tokenizer.chat_template",
        )
    for text in source.values() if isinstance(source, dict) else (source,):
        check_template_cost(str(text), _name(tokenizer))
    if "enable_thinking" in str(source):
        options = {"enable_thinking": False, **options}
    spelled, controls = _controls(tokenizer)
    draft = Template(tokenizer, False, "", frozenset(), False, options, controls, spelled)
    draft = replace(draft, folds_system=not _takes_system(draft))
    append_only = _is_append_only(draft, thinks="</think>" in str(source))
    ends = frozenset(token for token in (_end_token(draft), tokenizer.eos_token_id) if token is not None)
    if not ends:
        raise InputError("neither chat template nor tokenizer has an end token", where=_name(tokenizer))
    description = (
        "Chat template is append-only; the KV cache is reused across turns"
        if append_only
        else "Chat template rewrites earlier turns; each turn is a full prefill and a row of its own"
    )
    separators = _separators(draft)
    return replace(
        draft, append_only=append_only, description=description, end_ids=ends, separators=separators
    )


def _remember(memory: dict[_K, _T], key: _K, value: _T) -> None:
    if len(memory) >= _REMEMBERED:
        memory.clear()
    memory[key] = value


def _separators(template: Template) -> re.Pattern[str] | None:
    """Return a pattern of the tokens that are split off as they stand, before anything else happens to the
    text; None if text between them is tokenised differently on its own."""
    tokens = template.tokenizer.added_tokens_decoder.values()
    exact = [t.content for t in tokens if not (t.normalized or t.lstrip or t.rstrip or t.single_word)]
    if not exact:
        return None
    pattern = re.compile(f"({'|'.join(map(re.escape, sorted(exact, key=len, reverse=True)))})")
    texts = [" a b ", "\n", " \n\n\u0338e\u0301", "", "\u3000x\n "]
    probe = "".join(f"{text}{token}" for token in exact[:8] for text in texts)
    return pattern if template._ids_by_piece(probe, pattern) == template._ids(probe) else None


def _break_up(match: re.Match[str]) -> str:
    return f"{match[0][0]} {match[0][1:]}" if match[0][1:] else " "


def _is_append_only(template: Template, *, thinks: bool) -> bool:
    """Return whether the text between two replies is appended and the same at every turn, with and without a
    system prompt."""
    separators: set[str | None] = set()
    for first in ([], [_SYSTEM]):
        for turn in (1, 3):
            history = [*first, *_dialogue(_PROBE[:turn])]
            separators.add(template._between(history, _PROBE[turn], _PROBE[4]))
            if thinks:  # a template that strips old thinking is append-only only for replies without it
                reply = f"<think>\nHm.\n</think>\n\n{_PROBE[turn]}"
                separators.add(template._between(history, reply, _PROBE[4], str))
    return len(separators) == 1 and None not in separators


def _takes_system(template: Template) -> bool:
    try:
        return _SYSTEM.content in template._text([_SYSTEM, *_dialogue(_PROBE[:1])])
    except InputError:
        return False


def _end_token(template: Template) -> int | None:
    """Return the first control token between a reply's text and the next user message."""
    text = template._text([*_dialogue(_PROBE[:2]), Message("user", _PROBE[4])])
    after = text.partition(_PROBE[1])[2].partition(_PROBE[4])[0]
    return next((token for token in template._ids(after) if token in template.controls), None)


def _dialogue(lines: Sequence[str]) -> list[Message]:
    return [Message("assistant" if at % 2 else "user", line) for at, line in enumerate(lines)]


def _fold_system(messages: Sequence[Message]) -> list[Message]:
    """Prepend the system prompt to the first user message."""
    system = "\n\n".join(m.content for m in messages if m.role == "system")
    rest = [m for m in messages if m.role != "system"]
    if system and rest:
        rest[0] = Message(rest[0].role, f"{system}\n\n{rest[0].content}")
    return rest


def _controls(tokenizer: Any) -> tuple[re.Pattern[str] | None, frozenset[int]]:
    """Return a pattern of the control tokens' spellings, and their ids. Control tokens are all special tokens
    and added ones that look like tags. Spellings are stripped of spaces, which a template could add."""
    tokens = {
        at: token.content
        for at, token in tokenizer.added_tokens_decoder.items()
        if token.special or re.fullmatch(r"[<\[].*[>\]]", token.content, re.DOTALL)
    }
    stripped = {spelling.strip() for spelling in tokens.values()} - {""}
    spelled = sorted(map(re.escape, stripped), key=len, reverse=True)
    return (re.compile("|".join(spelled)) if spelled else None), frozenset(tokens)


def _name(tokenizer: Any) -> str:
    return str(getattr(tokenizer, "name_or_path", "") or type(tokenizer).__name__)
