"""What training needs of a sampler of the policy, whichever engine computes the replies."""

from __future__ import annotations

from types import TracebackType
from typing import Protocol

from mapo.local_model.template import Template
from mapo.models.chat import Answer, Request
from mapo.sampling.decoder import Stats
from mapo.sandbox.cast import Job


class PolicyChat(Protocol):
    """The policy of one dialogue; no replies are possible after `end_dialogue`."""

    @property
    def name(self) -> str: ...

    async def reply(self, request: Request) -> Answer: ...

    def end_dialogue(self) -> None: ...


class PolicySampler(Protocol):
    """Samples the replies of a policy in training. Use it inside `async with`.

    Between rollouts the weights may change: call `make_room` before an update, and `forget_all` after the
    weights have changed.
    """

    name: str
    template: Template

    @property
    def stats(self) -> Stats: ...

    @property
    def decoding(self) -> str:
        """How replies are decoded, for logs and manifests; empty on a CPU."""
        ...

    def policy(self, job: Job, longest: int | None = None) -> PolicyChat:
        """Return the policy of one dialogue, of at most `longest` ids."""
        ...

    def make_room(self) -> None:
        """Free the memory that an update may need. Call `forget_all` before the next reply."""
        ...

    def forget_all(self) -> None:
        """Drop everything computed with earlier weights. Dialogues may continue."""
        ...

    async def __aenter__(self) -> PolicySampler: ...

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...
