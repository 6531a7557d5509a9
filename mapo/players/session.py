"""Opening models: endpoints that share rate limits, a cache and a ledger; local samplers; casts."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, overload

from mapo.body_fields import compact_body
from mapo.config import Config
from mapo.errors import InputError
from mapo.players.casting import cast_from_config, evaluation_cast, every_model, ranker_from_config
from mapo.players.prompts import prompts_from_config, templates_of
from mapo.players.spec import CastSpec, ModelSpec, PanelSpec, models_by_role

if TYPE_CHECKING:
    from mapo.measure.rubric import Rubric
    from mapo.models.cache import Cache
    from mapo.models.chat import ChatFactory
    from mapo.models.endpoint import Endpoint
    from mapo.models.ledger import Ledger
    from mapo.models.rate_limit import Limiter
    from mapo.sampling.sampler import Sampler
    from mapo.sandbox.cast import Casting, Policy, RolePrompts
    from mapo.sandbox.panel import NamedJudge


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
    """The longest dialogue of a local model, in tokens."""
    stack: AsyncExitStack = field(default_factory=AsyncExitStack)
    _limiters: dict[str | None, Limiter] = field(default_factory=dict)
    _cache: Cache | None = None
    _ledger: Ledger | None = None
    _endpoints: list[Endpoint] = field(default_factory=list)

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

    def cost(self) -> float | None:
        return self.ledger.total_cost

    def check(self, models: Iterable[ModelSpec], domain: str | None = None) -> None:
        """Raise InputError for invalid names, addresses and modes. Nothing is opened or written.

        Scripted policies belong to a domain and are rejected without one.
        """
        from mapo.local_model.requirements import require_torch
        from mapo.models.cache import MODES
        from mapo.models.endpoint import Endpoint
        from mapo.runs.kind import refuse_run_as_model
        from mapo.sandbox.domain import scripted_policy

        if self.cache_mode not in MODES:
            raise InputError(f"--cache is '{self.cache_mode}'", fix=f"Use one of: {', '.join(MODES)}")
        for spec in models:
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
                refuse_run_as_model(spec.local)
                require_torch()
            else:
                Endpoint(spec.model, spec.base_url, key_env=spec.key_env)

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
        if spec.local is not None:
            return (await self._sampler(spec.local)).policy
        endpoint = self.endpoint(spec, "policy")
        return lambda _: endpoint

    async def chat_factory(self, spec: ModelSpec, role: str = "policy") -> ChatFactory:
        """Open the model that answers a benchmark's questions, one conversation per name."""
        if spec.local is not None:
            from mapo.sampling.sampler import LocalChat

            sampler = await self._sampler(spec.local)
            return lambda name: LocalChat(sampler, name)
        endpoint = self.endpoint(spec, role)
        return lambda _: endpoint

    async def _sampler(self, source: str) -> Sampler:
        from mapo.sampling.local import local_sampler

        sampler = local_sampler(source, slots=self.concurrency, context=self.context)
        return await self.stack.enter_async_context(sampler)

    def casting(
        self, cast: CastSpec | None, rubric: Rubric, domain: str, prompts: RolePrompts | None = None
    ) -> Casting:
        """Open the models of user, director and judge; None is the domain's scripted cast. Without `prompts`
        they get mapo's own."""
        from mapo.sandbox.domain import scripted_cast
        from mapo.sandbox.model_cast import SHIPPED_PROMPTS, model_cast
        from mapo.sandbox.panel import with_judges

        if cast is None:
            return scripted_cast(domain)
        for role, spec in models_by_role(cast).items():
            if spec.scripted is not None or spec.local is not None:
                raise InputError(
                    f"'{spec.model}' cannot be used as {role}", fix="Serve the model and give its base URL"
                )
        judges = cast["judge"]
        panel = judges if isinstance(judges, PanelSpec) else None
        one = {role: x.members[0] if isinstance(x, PanelSpec) else x for role, x in cast.items()}
        user, director, judge = (self.endpoint(one[r], r) for r in ("user", "director", "judge"))
        sampling = {role: spec.sampling for role, spec in one.items()}
        prompts = prompts or SHIPPED_PROMPTS
        casting = model_cast(user, director, judge, rubric, sampling, prompts)
        if panel is None:
            return casting
        members = self.judges(panel, rubric, prompts)
        return with_judges(casting, members, panel.mode, require_all=panel.require_all)

    def judges(
        self, panel: PanelSpec, rubric: Rubric, prompts: RolePrompts | None = None
    ) -> list[NamedJudge]:
        """Open the judges of a panel. Those with the same model, address, key and body share an endpoint."""
        from mapo.sandbox.model_cast import SHIPPED_PROMPTS
        from mapo.sandbox.panel import model_judge

        endpoints: dict[tuple[str, str | None, str, str], Endpoint] = {}
        judges = []
        for name, spec in zip(panel.names, panel.members, strict=True):
            key = (spec.model, spec.address, spec.key_env, compact_body(spec.sampling.body))
            if key not in endpoints:
                endpoints[key] = self.endpoint(spec, "judge")
            judge = model_judge(endpoints[key], rubric, spec.sampling, name, prompts or SHIPPED_PROMPTS)
            judges.append(judge)
        return judges


@asynccontextmanager
async def open_cast(
    config: Config, out: Path, rank: int = 0, shared_by: int = 1
) -> AsyncIterator[tuple[Casting, Callable[[], None], Ledger]]:
    """Open the cast that a config names. Yields it, a function that writes the ledger to disk, and the
    ledger.

    This is process `rank` of `shared_by`. Each has its own cache and ledger and its share of the limits.
    """
    from mapo.measure.rubric import Rubric
    from mapo.sandbox.model_cast import SHIPPED_PROMPTS
    from mapo.sandbox.ranking import with_ranker
    from mapo.store import RunDir

    roles, domain, cast = config.roles, config.scenarios.domain, cast_from_config(config)
    ledger, of = RunDir(out).ledger_of(rank), shared_by if cast else 1
    session = ModelSession(
        cache=RunDir(out).cache_of(rank),
        ledger_file=ledger,
        concurrency=_share(roles.requests, "requests", rank, of),
        requests_per_minute=_share(roles.requests_per_minute, "requests_per_minute", rank, of),
        tokens_per_minute=_share(roles.tokens_per_minute, "tokens_per_minute", rank, of),
        timeout=roles.timeout,
        retries=roles.retries,
    )

    def flush() -> None:
        if cast:
            session.ledger.flush(ledger)

    if cast:
        session.check(every_model(config).values(), domain)
    async with session:
        try:
            prompts = prompts_from_config(config) if cast else None
            rubric = Rubric.load(domain)
            training = session.casting(cast, rubric, domain, prompts)
            evaluation = training
            if ranker := ranker_from_config(config):
                if ranker.local is not None or ranker.scripted is not None:
                    raise InputError(
                        f"'{ranker.model}' cannot be used as ranker",
                        fix="Serve the model and give its base URL",
                    )
                chat, templates = session.endpoint(ranker, "ranker"), templates_of(prompts or SHIPPED_PROMPTS)
                training = with_ranker(training, chat, rubric, ranker.sampling, templates)
            if config.eval.judge is not None:
                evaluation = session.casting(evaluation_cast(config), rubric, domain, prompts)
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
