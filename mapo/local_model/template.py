"""The tokenizer's chat template, read once before training: messages in, token ids out.

Two questions decide how a dialogue becomes token rows. Does the template only ever *append* (what the model
saw at turn t is a prefix of what it sees at turn t+1), or does it rewrite earlier turns, as templates do
that strip old thinking? And which ids stand between one reply and the next? For an append-only template
`following` gives those ids, so nothing is ever tokenised a second time; otherwise each turn is rendered
anew by `opening`.

What users and models say is untrusted: a control token spelled out in their text is pulled apart
before rendering, so that it stays text.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from jinja2.exceptions import TemplateError

from mapo.errors import InputError
from mapo.types import Message

_ROUNDS = 8
_SYSTEM = Message("system", "Keep to plain words.")
_TALK = ("Hello there.", "Good day to you.", "It rains.", "So it does, again.", "What now?", "Wait a little.")


@dataclass(frozen=True)
class Template:
    """`told` says in one sentence what the check found. `end_ids` are the ids that end a reply.

    `controls` are the ids no one's words may turn into, `spelled` their spellings. With `as_said`, earlier
    turns stay as they were said, whatever the template would make of them.
    """

    tokenizer: Any
    append_only: bool
    told: str
    end_ids: frozenset[int]
    folds_system: bool = False
    options: dict[str, Any] = field(default_factory=dict)
    controls: frozenset[int] = frozenset()
    spelled: re.Pattern[str] | None = None
    as_said: bool = False

    def opening(self, messages: Sequence[Message]) -> list[int]:
        """The whole prompt, up to where the reply begins."""
        return self._ids(self._text(messages))

    def following(self, finish: Literal["stop", "length"], said: str) -> list[int]:
        """What comes between a reply and the next one when the user has said `said`: template marks, their
        turn, the generation prompt. It begins with the end mark only where the reply did not (`length`)."""
        between = self._after if self.as_said else self._between
        text = between(_talk(_TALK[:1]), _TALK[1], said) if self.append_only else None
        if text is None:
            raise InputError("this chat template rewrites earlier turns", where=_name(self.tokenizer))
        ids = self._ids(text)
        ends = [at for at, token in enumerate(ids) if token in self.end_ids]
        return ids[ends[0] + 1 :] if ends and finish == "stop" else ids

    def defuse(self, text: str) -> str:
        """`text` with every control token in it pulled apart, so that it is read as plain text."""
        # It ends: no spelling begins or ends with a space, so a hit loses its only letter or gets a wider gap
        # after its first one, and no spelling holds gaps of any width.
        while self.spelled and self.spelled.search(text):
            text = self.spelled.sub(_apart, text)
        for _ in range(_ROUNDS):  # spelled in a way only the tokenizer's normaliser sees through
            ids = self._ids(text)
            if not self.controls & set(ids):
                return text
            text = self.tokenizer.decode([token for token in ids if token not in self.controls])
        return ""  # rather nothing than a control token

    def _ids(self, text: str) -> list[int]:
        ids: list[int] = self.tokenizer.encode(text, add_special_tokens=False)
        return ids

    def _text(self, messages: Sequence[Message], *, trusted: bool = False) -> str:
        spoken = _folded(messages) if self.folds_system else messages
        heard = str if trusted else self.defuse
        turns = [{"role": m.role, "content": heard(m.content)} for m in spoken]
        try:
            text: str = self.tokenizer.apply_chat_template(
                turns, tokenize=False, add_generation_prompt=True, **self.options
            )
        except (TemplateError, TypeError, ValueError) as error:
            roles = ", ".join(m.role for m in messages)
            raise InputError(
                f"the chat template refuses the roles {roles}: {error}", where=_name(self.tokenizer)
            ) from None
        return text

    def _between(
        self, messages: Sequence[Message], reply: str, said: str, *, trusted: bool = False
    ) -> str | None:
        """The text after `reply` once the user has said `said`; None where the template did not append."""
        before = self._text(messages) + reply
        longer = [*messages, Message("assistant", reply), Message("user", said)]
        after = self._text(longer, trusted=trusted)
        return after.removeprefix(before) if after.startswith(before) else None

    def _after(self, messages: Sequence[Message], reply: str, said: str) -> str | None:
        """The text after the words of `reply`, whatever the template made of what came before them."""
        text = self._text([*messages, Message("assistant", reply), Message("user", said)])
        return text.partition(reply)[2] if reply in text else None


def as_said(template: Template) -> Template:
    """The template for rows that only grow: where it would rewrite earlier turns (take out old thinking, or
    the mark of an empty one), they stay in the context as said. Refused where that cannot be done."""
    if template.append_only:
        return template
    found = {
        template._after([*first, *_talk(_TALK[:turn])], _TALK[turn], _TALK[4])
        for first in ([], [_SYSTEM])
        for turn in (1, 3)
    }
    if len(found) > 1 or None in found:
        raise InputError(
            "what this chat template puts between two replies changes from turn to turn",
            where=_name(template.tokenizer),
            fix="Use the local engine: there each turn is a row of its own",
        )
    told = "The chat template rewrites earlier turns; here they stay as they were said"
    return replace(template, append_only=True, as_said=True, told=told)


def read_template(tokenizer: Any, **options: Any) -> Template:
    """Check the tokenizer's chat template. `options` go to the template; thinking is off unless asked for."""
    source = tokenizer.chat_template
    if not source:
        raise InputError(
            "the tokenizer has no chat template",
            where=_name(tokenizer),
            fix="Use an instruction-tuned model, or set tokenizer.chat_template",
        )
    if "enable_thinking" in str(source):
        options = {"enable_thinking": False, **options}
    spelled, controls = _controls(tokenizer)
    draft = Template(tokenizer, False, "", frozenset(), False, options, controls, spelled)
    draft = replace(draft, folds_system=not _takes_system(draft))
    between = _same_between(draft, thinks="</think>" in str(source))
    mark = _end_mark(draft)
    ends = frozenset(token for token in (mark, tokenizer.eos_token_id) if token is not None)
    if not ends:
        raise InputError("neither chat template nor tokenizer has an end mark", where=_name(tokenizer))
    told = (
        "The chat template only appends: a dialogue is one row, and its cache is kept from turn to turn"
        if between
        else "The chat template rewrites earlier turns: each turn is rendered anew and is a row of its own"
    )
    return replace(draft, append_only=between, told=told, end_ids=ends)


def _apart(hit: re.Match[str]) -> str:
    return f"{hit[0][0]} {hit[0][1:]}" if hit[0][1:] else " "


def _same_between(template: Template, *, thinks: bool) -> bool:
    """Is what stands between two replies appended, and the same at every turn, system prompt or none?"""
    found: set[str | None] = set()
    for first in ([], [_SYSTEM]):
        for turn in (1, 3):
            history = [*first, *_talk(_TALK[:turn])]
            found.add(template._between(history, _TALK[turn], _TALK[4]))
            if thinks:  # a template that strips old thinking appends only as long as nobody thinks
                thought = f"<think>\nHm.\n</think>\n\n{_TALK[turn]}"
                found.add(template._between(history, thought, _TALK[4], trusted=True))
    return len(found) == 1 and None not in found


def _takes_system(template: Template) -> bool:
    try:
        return _SYSTEM.content in template._text([_SYSTEM, *_talk(_TALK[:1])])
    except InputError:
        return False


def _end_mark(template: Template) -> int | None:
    """The first control token after a reply's own words, if it comes before the user's."""
    text = template._text([*_talk(_TALK[:2]), Message("user", _TALK[4])])
    after = text.partition(_TALK[1])[2].partition(_TALK[4])[0]
    return next((token for token in template._ids(after) if token in template.controls), None)


def _talk(lines: Sequence[str]) -> list[Message]:
    return [Message("assistant" if at % 2 else "user", line) for at, line in enumerate(lines)]


def _folded(messages: Sequence[Message]) -> list[Message]:
    """For templates without a system role: its words open the first user message."""
    system = "\n\n".join(m.content for m in messages if m.role == "system")
    rest = [m for m in messages if m.role != "system"]
    if system and rest:
        rest[0] = Message(rest[0].role, f"{system}\n\n{rest[0].content}")
    return rest


def _controls(tokenizer: Any) -> tuple[re.Pattern[str] | None, frozenset[int]]:
    """Spellings and ids of the control tokens: all special ones, and added ones that look like tags.

    Spellings are without the space around: a template could put it there.
    """
    found = {
        at: token.content
        for at, token in tokenizer.added_tokens_decoder.items()
        if token.special or re.fullmatch(r"[<\[].*[>\]]", token.content, re.DOTALL)
    }
    bare = {spelling.strip() for spelling in found.values()} - {""}
    spelled = sorted(map(re.escape, bare), key=len, reverse=True)
    return (re.compile("|".join(spelled)) if spelled else None), frozenset(found)


def _name(tokenizer: Any) -> str:
    return str(getattr(tokenizer, "name_or_path", "") or type(tokenizer).__name__)
