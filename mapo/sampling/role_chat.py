"""A local model in a role other than the policy: replies, JSON forms and answers read out.

One `RoleChat` serves a role of all dialogues. Every dialogue has its own session, whose ids stay in the KV
cache while there are slots. Each request renders its complete prompt; the part that it shares with the
session's previous ids is not computed again.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Protocol

from mapo.errors import ContextError, InputError
from mapo.local_model.forms import FormTokens, form_tokens
from mapo.local_model.template import Template
from mapo.models.chat import Answer, Place, ReadRequest, Request, Usage
from mapo.sampling.calls import ReadCall, RoleSession, SampleCall, SlotHolder, check_ids, common_prefix
from mapo.sampling.guides import Guides
from mapo.types import Reply

_SHORTEST_REPLY = 64  # tokens: a context with less room than this is full


class Host(Protocol):
    """What a role needs of its sampler."""

    name: str
    template: Template
    end_ids: frozenset[int]
    context: int
    vocabulary: int
    epoch: int
    guides: Guides

    async def ask(self, call: SampleCall | ReadCall) -> None: ...

    def release(self, chat: SlotHolder) -> None: ...


class RoleChat:
    """A Chat and a Reader for one role. A request without a session leaves nothing in the cache."""

    supports_tools = False

    def __init__(self, sampler: Host, role: str) -> None:
        self.role = role
        self._sampler = sampler
        self._sessions: dict[str, RoleSession] = {}
        self._forms: dict[tuple[Place, ...], FormTokens] = {}

    @property
    def name(self) -> str:
        return self._sampler.name

    async def reply(self, request: Request) -> Answer:
        """Sample a reply. With a schema it is JSON that follows the schema. The limit on its tokens is
        lowered to what fits into the context."""
        sampler = self._sampler
        if request.tools:
            raise InputError("a local model supports no tools", where=f"{self.role} '{self.name}'")
        async with self._session(request.session) as session:
            ids = sampler.template.full_prompt(request.messages)
            limit = min(request.max_tokens, sampler.context - len(ids))
            least = self._least_tokens(request)
            if limit < least:
                raise self._too_long(len(ids), least)
            guide = None if request.schema is None else sampler.guides.guide(request.schema, limit)
            request = replace(request, max_tokens=limit)
            done = asyncio.get_running_loop().create_future()
            call = SampleCall(session, ids, self._cached(session, ids), request, done, guide=guide)
            await sampler.ask(call)
            # The last id of a reply has not been fed to the model, nor have forced ids at the end of a form,
            # nor the prompt of a form that was forced completely.
            session.ids = ids if guide else [*ids, *call.token_ids[:-1]]
            session.cached = call.cached if guide and not guide.sampled else len(session.ids)
        return Answer(self._reply(call), usage=Usage(len(ids), call.cached, len(call.token_ids)))

    async def read(self, request: ReadRequest) -> tuple[tuple[float, ...], ...]:
        """Return, for each place, the log-probabilities of its options, normalised over the options."""
        form = self._form(request.places)
        async with self._session(request.session) as session:
            prompt = self._sampler.template.full_prompt(request.messages)
            ids = [*prompt, *form.ids]
            if len(ids) > self._sampler.context:
                raise self._too_long(len(prompt), len(form.ids))
            reads = [len(prompt) + at for at in form.reads]
            done = asyncio.get_running_loop().create_future()
            call = ReadCall(session, ids, self._cached(session, ids), reads, form.options, done)
            await self._sampler.ask(call)
            session.ids, session.cached = ids, len(ids)
        return call.logprobs

    def end_session(self, prefix: str) -> None:
        """Free the slots of the sessions of one dialogue: those named `prefix` or below it."""
        for name in [n for n in self._sessions if n == prefix or n.startswith(f"{prefix}/")]:
            self._sampler.release(self._sessions.pop(name))

    @asynccontextmanager
    async def _session(self, name: str) -> AsyncIterator[RoleSession]:
        """Hold the session for one call. A call that fails leaves nothing of it in the cache."""
        session = self._sessions.get(name) or RoleSession(name, self.role, epoch=self._sampler.epoch)
        if name and name not in self._sessions:
            # Sessions that have lost their slots have nothing to keep.
            kept = {n: s for n, s in self._sessions.items() if s.slot is not None or s.lock.locked()}
            self._sessions = {**kept, name: session}
        async with session.lock:
            if session.epoch != self._sampler.epoch:
                session.epoch, session.cached = self._sampler.epoch, 0
            try:
                yield session
            except BaseException:
                session.cached = 0
                self._sampler.release(session)
                raise
            if self._sessions.get(name) is not session:  # without a name, or ended meanwhile
                self._sampler.release(session)

    def _least_tokens(self, request: Request) -> int:
        if request.schema is None:
            return min(request.max_tokens, _SHORTEST_REPLY)
        least = self._sampler.guides.needed(request.schema)
        if request.max_tokens < least:
            raise InputError(
                f"the form takes up to {least} tokens, but max_tokens is {request.max_tokens}",
                where=f"{self.role} '{self.name}'",
                fix=f"Set max_tokens to {least} or more",
            )
        return least

    def _cached(self, session: RoleSession, ids: list[int]) -> int:
        cached = min(common_prefix(ids, session.ids[: session.cached]), len(ids) - 1)
        check_ids(ids[cached:], self._sampler.vocabulary, self.name)
        return cached

    def _form(self, places: tuple[Place, ...]) -> FormTokens:
        if places not in self._forms:
            self._forms[places] = form_tokens(self._sampler.template.tokenizer, places)
        return self._forms[places]

    def _reply(self, call: SampleCall) -> Reply:
        ended = bool(call.token_ids) and call.token_ids[-1] in self._sampler.end_ids
        ids = call.token_ids[:-1] if ended else call.token_ids
        text = self._sampler.template.tokenizer.decode(ids, skip_special_tokens=True)
        complete = ended or (call.guide is not None and call.guide.complete)
        if complete and call.guide is not None:
            text = _canonical(text)
        return Reply(text=text, finish="stop" if complete else "length")

    def _too_long(self, prompt: int, more: int) -> ContextError:
        return ContextError(
            f"{prompt} tokens and {more} more do not fit into a context of {self._sampler.context}",
            where=f"{self.role} '{self.name}'",
            fix="Set a larger context or fewer turns",
        )


def _canonical(text: str) -> str:
    """Write JSON anew, without keys that occur twice: no grammar can exclude them."""
    return json.dumps(json.loads(text), ensure_ascii=False, separators=(",", ":"))
