"""Who plays, and what with: policies, casts, endpoints that share limits, one cache and one ledger."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, overload

from mapo.config import Config, Roles
from mapo.errors import InputError
from mapo.sandbox.chat import OWN_WAY, Sampling

if TYPE_CHECKING:
    from mapo.evals.bench import Talker
    from mapo.sandbox.cast import Casting, Policy
    from mapo.sandbox.endpoint import Endpoint
    from mapo.sandbox.ledger import Ledger
    from mapo.sandbox.rubric import Rubric
    from mapo.train.sampler import Sampler


@dataclass(frozen=True, slots=True)
class Who:
    """A model and where it is. `scripted:NAME` is played by plain code, `local:SOURCE` sampled here."""

    model: str
    base_url: str | None = None
    key_env: str = "OPENAI_API_KEY"
    sampling: Sampling = OWN_WAY

    def __str__(self) -> str:
        """Who plays, for the record."""
        way = str(self.sampling)
        return f"{self.model} ({way})" if way else self.model

    @property
    def address(self) -> str | None:
        """Where its endpoint is; None for one that has none."""
        from mapo.sandbox.endpoint import DEFAULT_URL

        if self.scripted is not None or self.local is not None:
            return None
        return (self.base_url or os.environ.get("OPENAI_BASE_URL") or DEFAULT_URL).rstrip("/")

    @property
    def scripted(self) -> str | None:
        return self.model.removeprefix("scripted:") if self.model.startswith("scripted:") else None

    @property
    def local(self) -> str | None:
        return self.model.removeprefix("local:") if self.model.startswith("local:") else None


@dataclass(slots=True)
class Stage:
    """Makes endpoints that share limits, cache and ledger, and closes them."""

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
    _limiters: dict[str, Any] = field(default_factory=dict)
    _cache: Any = None
    _ledger: Any = None
    _endpoints: list[Endpoint] = field(default_factory=list)

    async def __aenter__(self) -> Stage:
        return self

    async def __aexit__(self, *details: object) -> None:
        await self.stack.aclose()

    @property
    def ledger(self) -> Ledger:
        from mapo.sandbox.ledger import Ledger

        if self._ledger is None:
            self._ledger = (
                Ledger.load(self.ledger_file, self.prices) if self.ledger_file else Ledger(self.prices)
            )
        ledger: Ledger = self._ledger
        return ledger

    def cost(self) -> float | None:
        return self.ledger.total_cost

    def check(self, everyone: list[Who], domain: str | None = None) -> None:
        """Refuse names, addresses and modes that cannot be used, with nothing opened or written."""
        from mapo.sandbox.cache import MODES
        from mapo.sandbox.domain import scripted_policy
        from mapo.sandbox.endpoint import Endpoint

        if self.cache_mode not in MODES:
            raise InputError(f"--cache is '{self.cache_mode}'", fix=f"Use one of: {', '.join(MODES)}")
        for who in everyone:
            if who.scripted is not None:
                if domain is None:
                    raise InputError(
                        f"'{who.model}' is no model", fix="A name at an endpoint, or local:FOLDER"
                    )
                scripted_policy(domain, who.scripted)
            elif who.local is not None:
                need_torch()
            else:
                Endpoint(who.model, who.base_url, key_env=who.key_env)

    def endpoint(self, who: Who, role: str) -> Endpoint:
        from mapo.sandbox.cache import Cache
        from mapo.sandbox.endpoint import Endpoint
        from mapo.sandbox.limits import Limiter, Limits

        if self._cache is None and self.cache is not None and self.cache_mode != "off":
            self._cache = Cache(self.cache, self.cache_mode)  # type: ignore[arg-type]
            self.stack.callback(self._cache.close)
        address = (who.base_url or os.environ.get("OPENAI_BASE_URL") or "").rstrip("/")
        limiter = self._limiters.get(address)
        if limiter is None:
            limits = Limits(self.concurrency, self.requests_per_minute, self.tokens_per_minute)
            limiter = self._limiters.setdefault(address, Limiter(limits))
        endpoint = Endpoint(
            who.model,
            who.base_url,
            key_env=who.key_env,
            timeout=self.timeout,
            retries=self.retries,
            limits=limiter,
            cache=self._cache,
            ledger=self.ledger,
            role=role,
        )
        self.stack.push_async_callback(endpoint.aclose)
        self._endpoints.append(endpoint)
        return endpoint

    def left_out(self) -> dict[str, list[str]]:
        """By role, the parameters that its endpoint refused so far."""
        return {e.role: sorted(e.left_out) for e in self._endpoints if e.left_out}

    async def policy(self, who: Who, domain: str) -> Policy:
        from mapo.sandbox.domain import scripted_policy

        if who.scripted is not None:
            return scripted_policy(domain, who.scripted)
        if who.local is not None:
            return (await self._sampler(who.local)).policy
        endpoint = self.endpoint(who, "policy")
        return lambda _: endpoint

    async def talker(self, who: Who, role: str = "policy") -> Talker:
        """Who answers a benchmark's questions, one conversation a name (`mapo.evals.bench`)."""
        if who.local is not None:
            from mapo.train.seat import Seat

            sampler = await self._sampler(who.local)
            return lambda name: Seat(sampler, name)
        endpoint = self.endpoint(who, role)
        return lambda _: endpoint

    async def _sampler(self, source: str) -> Sampler:
        from mapo.train.local import local_sampler

        sampler = local_sampler(source, slots=self.concurrency, context=self.context)
        return await self.stack.enter_async_context(sampler)

    def casting(self, roles: dict[str, Who] | None, rubric: Rubric, domain: str) -> Casting:
        """The scripted cast for None, else models for user, director and judge."""
        from mapo.sandbox.domain import scripted_cast

        if roles is None:
            return scripted_cast(domain)
        for role, who in roles.items():
            if who.scripted is not None or who.local is not None:
                raise InputError(f"'{who.model}' as {role}", fix="Serve the model, and give its base URL")
        from mapo.sandbox.models import model_cast

        user, director, judge = (self.endpoint(roles[r], r) for r in ("user", "director", "judge"))
        ways = {role: who.sampling for role, who in roles.items()}
        return model_cast(user, director, judge, rubric, ways)


Given = tuple[str | None, str | None, str | None]
"""Model, base URL, key variable, as far as they were given."""


def cast_of(agents: str | None, everyone: Given, **split: Given) -> dict[str, Who] | None:
    """Who plays user, director and judge: None for the scripted cast.

    A role takes what it was not given from `everyone`; a key goes to the address it was given for.
    """
    model, base_url, key_env = everyone
    given = any(x is not None for x in (model, base_url, *(y for part in split.values() for y in part)))
    agents = agents or ("llm" if given else "scripted")
    if agents not in ("scripted", "llm"):
        raise InputError(f"--agents is '{agents}'", fix="Use scripted or llm")
    if agents == "scripted":
        if given:
            raise InputError("scripted roles, but a model or address for one", fix="Leave one of them out")
        return None
    chosen = {}
    for role, (name, url, key) in split.items():
        if not (name or model):
            raise InputError(f"no model for the {role}", fix=f"Give --agents-model or --{role}-model")
        inherited = key_env if url in (None, base_url) else "OPENAI_API_KEY"
        chosen[role] = Who(str(name or model), url or base_url, key or inherited or "OPENAI_API_KEY")
    return chosen


def cast_in(config: Config) -> dict[str, Who] | None:
    """Who plays user, director and judge; None for plain code. A role takes from everyone what it lacks."""
    roles = config.roles
    if roles.agents == "scripted":
        return None
    given = {
        name: (role.model, role.base_url, role.key_env) if role else (None, None, None)
        for name, role in (("user", roles.user), ("director", roles.director), ("judge", roles.judge))
    }
    everyone = roles.everyone
    cast = cast_of("llm", (everyone.model, everyone.base_url, everyone.key_env), **given)
    return {name: replace(who, sampling=sampling_of(roles, name)) for name, who in (cast or {}).items()}


def sampling_of(roles: Roles, name: str) -> Sampling:
    """A role's own settings, everyone's where it has none."""

    def pick(key: str) -> Any:
        own = getattr(getattr(roles, name), key, None)
        return own if own is not None else getattr(roles.everyone, key)

    return Sampling(pick("temperature"), pick("top_p"), pick("max_tokens"))


@asynccontextmanager
async def casting_of(
    config: Config, out: Path, rank: int = 0, shared_by: int = 1
) -> AsyncIterator[tuple[Casting, Callable[[], None]]]:
    """The cast as the config names it, and what writes its ledger down; closed in the end.

    One of `shared_by` processes, each with a cache and a ledger of its own and its share of the limits.
    """
    from mapo.evals.folder import CACHE
    from mapo.sandbox.rubric import Rubric

    roles, domain, who = config.roles, config.scenarios.domain, cast_in(config)
    mine = f".{rank}" if rank else ""
    ledger = out / f"ledger{mine}.json"
    stage = Stage(
        cache=out / f"{CACHE}{mine}",
        ledger_file=ledger,
        concurrency=_part(roles.requests, shared_by),
        requests_per_minute=_part(roles.requests_per_minute, shared_by),
        tokens_per_minute=_part(roles.tokens_per_minute, shared_by),
        timeout=roles.timeout,
        retries=roles.retries,
    )

    def flush() -> None:
        if who:
            stage.ledger.flush(ledger)

    if who:
        stage.check(list(who.values()), domain)
    async with stage:
        try:
            yield stage.casting(who, Rubric.load(domain), domain), flush
        finally:
            flush()


@overload
def _part(limit: int, of: int) -> int: ...
@overload
def _part(limit: None, of: int) -> None: ...
def _part(limit: int | None, of: int) -> int | None:
    return None if limit is None else max(1, limit // of)


def calm_threads(threads: int | None = None) -> None:
    """Before torch is there: threads that wait do not spin, and no tokenizer starts its own."""
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    if threads:
        os.environ.setdefault("OMP_NUM_THREADS", str(threads))


def need_torch() -> None:
    """Refuse what needs the local engine where it is not installed."""
    from importlib.util import find_spec

    wanted = ("torch", "transformers", "safetensors", "tomli_w")
    missing = [name for name in wanted if find_spec(name) is None]
    if missing:
        raise InputError(
            f"this needs {', '.join(missing)}, not installed here", fix="pip install 'mapo[train]'"
        )
    calm_threads()
