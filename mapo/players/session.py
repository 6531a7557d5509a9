"""Opening models: endpoints that share rate limits, a cache and a ledger; local samplers; casts."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, overload

from mapo.body_fields import compact_body
from mapo.config import Config
from mapo.errors import InputError
from mapo.players.casting import (
    CHECK_ROLE,
    cast_from_config,
    check_from_config,
    evaluation_cast,
    every_model,
    ranker_from_config,
)
from mapo.players.local_models import ROLE_CONTEXT, LocalModels, refuse_tool_prompts, role_sampling
from mapo.players.prompts import prompts_from_config, templates_of
from mapo.players.reading import (
    check_forms,
    check_trained_roles,
    judge_prompts,
    reading_prompts,
    refuse_as_policy,
)
from mapo.players.spec import CastSpec, ModelSpec, PanelSpec, models_by_role

if TYPE_CHECKING:
    from mapo.local_model.memory import MemoryPlan
    from mapo.local_model.policy import Device, LocalPolicy
    from mapo.measure.rubric import Rubric
    from mapo.models.cache import Cache
    from mapo.models.chat import Answer, Chat, ChatFactory, Request
    from mapo.models.endpoint import Endpoint
    from mapo.models.ledger import Ledger
    from mapo.models.rate_limit import Limiter
    from mapo.sandbox.cast import Cast, Casting, Job, Policy, RolePrompts
    from mapo.sandbox.panel import NamedJudge


class LocalRole(Protocol):
    """A local model in one role: a Chat, and a Reader if its answers can be read out."""

    @property
    def name(self) -> str: ...

    async def reply(self, request: Request) -> Answer: ...

    def end_session(self, prefix: str) -> None:
        """Free what the model holds for the sessions of one dialogue."""


OpenRole = Callable[[ModelSpec, str], Awaitable[LocalRole]]
"""Opens a local model in a role."""


@dataclass(slots=True)
class ModelSession:
    """Opens models and closes them at the end.

    Endpoints at one address share its rate limits; all of them share one cache and one ledger.
    """

    cache: Path | None = None
    cache_mode: str = "record"
    ledger_file: Path | None = None
    prices: dict[str, Any] = field(default_factory=dict)
    concurrency: int = 64
    requests_per_minute: int | None = None
    tokens_per_minute: int | None = None
    timeout: float = 120.0
    retries: int = 5
    context: int = 4096
    """The longest dialogue of a local policy, in tokens."""
    role_context: int = ROLE_CONTEXT
    """The longest prompt and answer of a local model in another role, in tokens."""
    dialogues: int | None = None
    """Dialogues that local models play at once (default: `concurrency`)."""
    device: Device = "auto"
    open_role: OpenRole | None = None
    """Opens local models that run elsewhere and are checked there; with None, they run in this process."""
    stack: AsyncExitStack = field(default_factory=AsyncExitStack)
    _limiters: dict[str | None, Limiter] = field(default_factory=dict)
    _cache: Cache | None = None
    _ledger: Ledger | None = None
    _endpoints: list[Endpoint] = field(default_factory=list)
    _local: LocalModels | None = None
    _role_chats: list[LocalRole] = field(default_factory=list)

    async def __aenter__(self) -> ModelSession:
        return self

    async def __aexit__(self, *details: object) -> None:
        await self.stack.aclose()

    @property
    def ledger(self) -> Ledger:
        from mapo.models.ledger import Ledger

        if self._ledger is None:
            file = self.ledger_file
            self._ledger = Ledger.load(file, self.prices, journal=True) if file else Ledger(self.prices)
        return self._ledger

    @property
    def local(self) -> LocalModels:
        """The local models of this session."""
        if self._local is None:
            dialogues = self.dialogues or self.concurrency
            self._local = LocalModels(self.stack, dialogues, self.context, self.role_context, self.device)
        return self._local

    def cost(self) -> float | None:
        return self.ledger.total_cost

    def check(self, models: Mapping[str, ModelSpec], domain: str | None = None) -> None:
        """Raise InputError for invalid names, addresses and modes of models, by role. Nothing is opened or
        written.

        Scripted policies belong to a domain and are rejected without one.
        """
        from mapo.local_model.requirements import require_torch
        from mapo.local_model.shipped import SHIPPED
        from mapo.models.cache import MODES
        from mapo.models.endpoint import Endpoint
        from mapo.runs.kind import refuse_run_as_model
        from mapo.sandbox.domain import scripted_policy

        if self.cache_mode not in MODES:
            raise InputError(f"--cache is '{self.cache_mode}'", fix=f"Use one of: {', '.join(MODES)}")
        for role, spec in models.items():
            if role == "policy":
                refuse_as_policy(spec)
            if spec.sampling.body and spec.address is None:
                raise InputError(
                    f"'{spec.model}' is not at an endpoint, so body fields have no effect",
                    fix="Leave out --body (local models: model.thinking in a config)",
                )
            if spec.scripted is not None:
                if domain is None:
                    raise InputError(
                        f"'{spec.model}' is not a model",
                        fix="Give a model name at an endpoint, or local:FOLDER",
                    )
                scripted_policy(domain, spec.scripted)
            elif spec.local is not None:
                if spec.local not in SHIPPED:
                    refuse_run_as_model(spec.local)
                require_torch()
            else:
                Endpoint(spec.model, spec.base_url, key_env=spec.key_env)
        self.local.expect(models)

    def endpoint(self, spec: ModelSpec, role: str) -> Endpoint:
        from mapo.models.cache import Cache
        from mapo.models.endpoint import Endpoint
        from mapo.models.rate_limit import Limiter, Limits

        if self._cache is None and self.cache is not None and self.cache_mode != "off":
            self._cache = Cache(self.cache, self.cache_mode)  # type: ignore[arg-type]
            self.stack.callback(self._cache.close)
        limiter = self._limiters.get(spec.address)
        if limiter is None:
            limits = Limits(self.concurrency, self.requests_per_minute, self.tokens_per_minute)
            limiter = self._limiters[spec.address] = Limiter(limits)
        endpoint = Endpoint(
            spec.model,
            spec.base_url,
            key_env=spec.key_env,
            timeout=self.timeout,
            retries=self.retries,
            limits=limiter,
            cache=self._cache,
            ledger=self.ledger,
            role=role,
            body=spec.sampling.body,
        )
        self.stack.push_async_callback(endpoint.aclose)
        self._endpoints.append(endpoint)
        return endpoint

    def left_out(self) -> dict[str, list[str]]:
        """Return, by role, the sampling parameters that one of its endpoints has refused so far."""
        refused: dict[str, set[str]] = {}
        for endpoint in self._endpoints:
            if endpoint.left_out:
                refused.setdefault(endpoint.role, set()).update(endpoint.left_out)
        return {role: sorted(names) for role, names in refused.items()}

    async def policy(self, spec: ModelSpec, domain: str) -> Policy:
        """Open the model that replies in dialogues: scripted, local or an endpoint."""
        from mapo.sandbox.domain import scripted_policy

        if spec.scripted is not None:
            return scripted_policy(domain, spec.scripted)
        refuse_as_policy(spec)
        if spec.local is not None:
            sampler = await self.local.sampler(spec.local, "policy")
            return lambda job: sampler.policy(job, self.context)
        endpoint = self.endpoint(spec, "policy")
        return lambda _: endpoint

    async def chat_factory(self, spec: ModelSpec, role: str = "policy") -> ChatFactory:
        """Open the model that answers a benchmark's questions, one conversation per name."""
        if spec.local is not None:
            from mapo.sampling.sampler import LocalChat

            sampler = await self.local.sampler(spec.local, role)
            return lambda name: LocalChat(sampler, name, self.context)
        endpoint = self.endpoint(spec, role)
        return lambda _: endpoint

    async def chat(self, spec: ModelSpec, role: str) -> Chat:
        """Open the model of a role: a local one, or an endpoint."""
        if spec.scripted is not None:
            raise InputError(
                f"'{spec.model}' cannot be used as {role}",
                fix="Give a model name at an endpoint, or local:FOLDER",
            )
        if spec.local is None:
            return self.endpoint(spec, role)
        chat: LocalRole
        if self.open_role is not None:
            chat = await self.open_role(spec, role)
        else:
            chat = (await self.local.sampler(spec.local, role)).role(role)
        self._role_chats.append(chat)
        return chat

    async def casting(
        self, cast: CastSpec | None, rubric: Rubric, domain: str, prompts: RolePrompts | None = None
    ) -> Casting:
        """Open the models of user, director and judge; None is the domain's scripted cast. Without a user and
        a director in `cast`, these are scripted. Without `prompts`, models get mapo's own."""
        from mapo.sandbox.domain import scripted_cast
        from mapo.sandbox.intent_user import IntentPrompts
        from mapo.sandbox.model_cast import SHIPPED_PROMPTS, judged_by_model, model_cast
        from mapo.sandbox.panel import with_judges

        if cast is None:
            return scripted_cast(domain)
        prompts = prompts or SHIPPED_PROMPTS
        judges = cast["judge"]
        panel = judges if isinstance(judges, PanelSpec) else None
        one = {role: x.members[0] if isinstance(x, PanelSpec) else x for role, x in cast.items()}
        if isinstance(prompts, IntentPrompts):  # no director is asked
            cast = {role: player for role, player in cast.items() if role != "director"}
        elif "director" in one:
            refuse_tool_prompts(one["director"], prompts)
        check_trained_roles(models_by_role(cast), rubric)
        self.local.expect(models_by_role(cast))
        roles = [role for role in ("user", "director", "judge") if role in cast]
        chats = {role: await self._role(one[role], role, rubric) for role in roles}
        judge, user = chats["judge"], chats.get("user")
        sampling = {role: role_sampling(role, spec) for role, spec in one.items()}
        reading = reading_prompts(prompts, one)
        if user is None:
            casting = judged_by_model(scripted_cast(domain), judge, rubric, sampling["judge"], reading)
        else:
            director = chats.get("director", user)
            casting = model_cast(user, director, judge, rubric, sampling, reading)
        if panel is not None:
            members = await self.judges(panel, rubric, prompts)
            casting = with_judges(casting, members, panel.mode, require_all=panel.require_all)
        return self._releasing(casting)

    async def _role(self, spec: ModelSpec, role: str, rubric: Rubric, kind: str | None = None) -> Chat:
        """Open the model of a role, and check that it can fill in the forms of its kind: those of the role,
        or of a judge."""
        chat = await self.chat(spec, role)
        if spec.local is not None and self.open_role is None:
            check_forms(await self.local.sampler(spec.local, role), spec, kind or role, rubric)
        return chat

    def _releasing(self, casting: Casting) -> Casting:
        """Return the casting with casts that free the KV caches of local models when they are closed, also
        of models that are opened later."""

        def cast(job: Job) -> Cast:
            def close() -> None:
                for chat in self._role_chats:
                    chat.end_session(job.session)

            return replace(casting(job), close=close)

        return cast

    async def judges(
        self, panel: PanelSpec, rubric: Rubric, prompts: RolePrompts | None = None, role: str = "judge"
    ) -> list[NamedJudge]:
        """Open the judges of a panel, for the ledger in this `role`. Those with the same model, address, key
        and body share an endpoint."""
        from mapo.sandbox.model_cast import SHIPPED_PROMPTS
        from mapo.sandbox.panel import model_judge

        check_trained_roles({f"judge {n}": spec for n, spec in enumerate(panel.members)}, rubric)
        chats: dict[tuple[str, str | None, str, str], Chat] = {}
        judges = []
        for name, spec in zip(panel.names, panel.members, strict=True):
            key = (spec.model, spec.address, spec.key_env, compact_body(spec.sampling.body))
            if key not in chats:
                chats[key] = await self._role(spec, role, rubric, "judge")
            sampling, own = role_sampling("judge", spec), judge_prompts(prompts or SHIPPED_PROMPTS, spec)
            judges.append(model_judge(chats[key], rubric, sampling, name, own))
        return judges


@asynccontextmanager
async def open_cast(
    config: Config,
    out: Path,
    rank: int = 0,
    shared_by: int = 1,
    *,
    plan: MemoryPlan | None = None,
    start: LocalPolicy | None = None,
    open_role: OpenRole | None = None,
) -> AsyncIterator[tuple[Casting, Callable[[], None], Ledger]]:
    """Open the cast that a config names. Yields it, a function that writes the ledger to disk, and the
    ledger.

    This is process `rank` of `shared_by`. Each has its own cache and ledger and its share of the limits, but
    all share the start forms. `plan` has the slots of local models; `start` is the policy before training,
    for roles that it plays; `open_role` opens local models that run elsewhere.
    """
    from mapo.measure.rubric import Rubric
    from mapo.players.start_forms import StartForms, with_shared_starts
    from mapo.sandbox.model_cast import SHIPPED_PROMPTS
    from mapo.sandbox.monitoring.spot_check import with_check
    from mapo.sandbox.ranking import with_ranker
    from mapo.store import RunDir

    roles, domain, cast = config.roles, config.scenarios.domain, cast_from_config(config)
    models, check = every_model(config), check_from_config(config)
    ledger, of = RunDir(out).ledger_of(rank), shared_by if models else 1
    session = ModelSession(
        cache=RunDir(out).cache_of(rank),
        ledger_file=ledger,
        concurrency=_share(roles.requests, "requests", rank, of),
        requests_per_minute=_share(roles.requests_per_minute, "requests_per_minute", rank, of),
        tokens_per_minute=_share(roles.tokens_per_minute, "tokens_per_minute", rank, of),
        timeout=roles.timeout,
        retries=roles.retries,
        role_context=roles.context,
        dialogues=config.rollout.at_once,
        device=config.model.device,
        open_role=open_role,
    )

    def flush() -> None:
        if models:
            session.ledger.flush(ledger)

    if models:
        session.check(models, domain)
        if start is not None:
            session.local.adopt(config.model.source, start)
        session.local.keep_slots(plan.slots if plan else {})
    async with session:
        try:
            prompts = prompts_from_config(config) if models else None
            rubric = Rubric.load(domain)
            forms = StartForms(RunDir(out).start_levels, rubric)
            training = await session.casting(cast, rubric, domain, prompts)
            if cast is not None:
                training = with_shared_starts(training, forms, "judge")
            evaluation = training
            if ranker := ranker_from_config(config):
                chat = await session.chat(ranker, "ranker")
                templates = templates_of(prompts or SHIPPED_PROMPTS)
                training = with_ranker(training, chat, rubric, ranker.sampling, templates)
            if check and config.roles.check:
                (judge,) = await session.judges(PanelSpec((check,)), rubric, prompts, role=CHECK_ROLE)
                training = with_check(training, judge, config.roles.check.share, roles.timeout)
            if config.eval.judge is not None:
                evaluation = await session.casting(evaluation_cast(config), rubric, domain, prompts)
                evaluation = with_shared_starts(evaluation, forms, "test judge")
            # Only the jobs of training steps have a step.
            yield (
                lambda job: (training if job.step is not None else evaluation)(job),
                flush,
                session.ledger,
            )
        finally:
            flush()


@overload
def _share(limit: int, name: str, rank: int, of: int) -> int: ...
@overload
def _share(limit: None, name: str, rank: int, of: int) -> None: ...
def _share(limit: int | None, name: str, rank: int, of: int) -> int | None:
    """Return the share of process `rank` in a limit that all processes share."""
    if limit is None or of == 1:
        return limit
    if limit < of:
        raise InputError(
            f"roles.{name} is {limit}, but {of} processes share it",
            fix=f"Set roles.{name} to {of} or more, or use fewer processes",
        )
    return limit // of + (rank < limit % of)
