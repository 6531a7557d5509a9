"""Who plays, and what with: policies, casts, endpoints that share limits, one cache and one ledger."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING, Any, overload

from mapo.config import Config, Role, Roles
from mapo.errors import InputError
from mapo.models.chat import Sampling
from mapo.players.who import Panel as Panel
from mapo.players.who import Players, everyone_in
from mapo.players.who import Who as Who

if TYPE_CHECKING:
    from mapo.measure.rubric import Rubric
    from mapo.models.chat import Talker
    from mapo.models.endpoint import Endpoint
    from mapo.models.ledger import Ledger
    from mapo.sampling.sampler import Sampler
    from mapo.sandbox.cast import Casting, Policy
    from mapo.sandbox.panel import Seat


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
        from mapo.models.ledger import Ledger

        if self._ledger is None:
            file = self.ledger_file
            self._ledger = Ledger.load(file, self.prices, journal=True) if file else Ledger(self.prices)
        ledger: Ledger = self._ledger
        return ledger

    def cost(self) -> float | None:
        return self.ledger.total_cost

    def check(self, everyone: list[Who], domain: str | None = None) -> None:
        """Refuse names, addresses and modes that cannot be used, with nothing opened or written."""
        from mapo.models.cache import MODES
        from mapo.models.endpoint import Endpoint
        from mapo.sandbox.domain import scripted_policy

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
                refuse_run(who.local)
                need_torch()
            else:
                Endpoint(who.model, who.base_url, key_env=who.key_env)

    def endpoint(self, who: Who, role: str) -> Endpoint:
        from mapo.models.cache import Cache
        from mapo.models.endpoint import Endpoint
        from mapo.models.rate_limit import Limiter, Limits

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
        """By role, the parameters that its endpoint, or one of its endpoints, refused so far."""
        found: dict[str, set[str]] = {}
        for endpoint in self._endpoints:
            if endpoint.left_out:
                found.setdefault(endpoint.role, set()).update(endpoint.left_out)
        return {role: sorted(names) for role, names in found.items()}

    async def policy(self, who: Who, domain: str) -> Policy:
        from mapo.sandbox.domain import scripted_policy

        if who.scripted is not None:
            return scripted_policy(domain, who.scripted)
        if who.local is not None:
            return (await self._sampler(who.local)).policy
        endpoint = self.endpoint(who, "policy")
        return lambda _: endpoint

    async def talker(self, who: Who, role: str = "policy") -> Talker:
        """Who answers a benchmark's questions, one conversation a name (`mapo.evals.items`)."""
        if who.local is not None:
            from mapo.sampling.sampler import Seat

            sampler = await self._sampler(who.local)
            return lambda name: Seat(sampler, name)
        endpoint = self.endpoint(who, role)
        return lambda _: endpoint

    async def _sampler(self, source: str) -> Sampler:
        from mapo.sampling.local import local_sampler

        sampler = local_sampler(source, slots=self.concurrency, context=self.context)
        return await self.stack.enter_async_context(sampler)

    def casting(self, roles: Players | None, rubric: Rubric, domain: str) -> Casting:
        """The scripted cast for None, else models for user, director and judge."""
        from mapo.sandbox.domain import scripted_cast
        from mapo.sandbox.model_cast import model_cast
        from mapo.sandbox.panel import judged_by

        if roles is None:
            return scripted_cast(domain)
        for role, who in everyone_in(roles).items():
            if who.scripted is not None or who.local is not None:
                raise InputError(f"'{who.model}' as {role}", fix="Serve the model, and give its base URL")
        judges = roles["judge"]
        several = judges if isinstance(judges, Panel) else None
        one = {role: (who if isinstance(who, Who) else who.members[0]) for role, who in roles.items()}
        user, director, judge = (self.endpoint(one[r], r) for r in ("user", "director", "judge"))
        casting = model_cast(user, director, judge, rubric, {role: who.sampling for role, who in one.items()})
        if several is None:
            return casting
        return judged_by(casting, self.seats(several, rubric), several.way, whole=several.whole)

    def seats(self, judges: Panel, rubric: Rubric) -> list[Seat]:
        """The judges of a panel; those of one model at one address share its endpoint."""
        from mapo.sandbox.panel import model_seat

        chats: dict[tuple[str, str | None, str], Endpoint] = {}
        found = []
        for name, who in zip(judges.names, judges.members, strict=True):
            key = (who.model, who.address, who.key_env)
            chat = chats.get(key) or chats.setdefault(key, self.endpoint(who, "judge"))
            found.append(model_seat(chat, rubric, who.sampling, name))
        return found


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


def cast_in(config: Config) -> dict[str, Who | Panel] | None:
    """Who plays user, director and judge; None for plain code. A role takes from everyone what it lacks."""
    roles = config.roles
    if roles.agents == "scripted":
        return None
    given = {
        name: (role.model, role.base_url, role.key_env) if role else (None, None, None)
        for name, role in (("user", roles.user), ("director", roles.director), ("judge", roles.judge))
    }
    judges = {f"judge {n}": role for n, role in enumerate(roles.judges, 1)}
    if judges:
        given.pop("judge")
    members = {name: (role.model, role.base_url, role.key_env) for name, role in judges.items()}
    everyone = (roles.everyone.model, roles.everyone.base_url, roles.everyone.key_env)
    cast = cast_of("llm", everyone, **given, **members) or {}
    found: dict[str, Who | Panel] = {
        name: replace(cast[name], sampling=sampling_of(roles, name)) for name in given
    }
    if judges:
        sampled = (replace(cast[n], sampling=sampling_of(roles, "judge", role)) for n, role in judges.items())
        found["judge"] = Panel(tuple(sampled), roles.judging, whole=True)
    return found


def sampling_of(roles: Roles, name: str, member: Role | None = None) -> Sampling:
    """A role's own settings, everyone's where it has none; a panel's member goes before its role."""

    def pick(key: str) -> Any:
        asked = (member, getattr(roles, name), roles.everyone)
        return next((own for part in asked if (own := getattr(part, key, None)) is not None), None)

    return Sampling(pick("temperature"), pick("top_p"), pick("max_tokens"))


@asynccontextmanager
async def casting_of(
    config: Config, out: Path, rank: int = 0, shared_by: int = 1
) -> AsyncIterator[tuple[Casting, Callable[[], None]]]:
    """The cast as the config names it, and what writes its ledger down; closed in the end.

    One of `shared_by` processes, each with a cache and a ledger of its own and its share of the limits.
    """
    from mapo.measure.rubric import Rubric
    from mapo.store import RunDir

    roles, domain, who = config.roles, config.scenarios.domain, cast_in(config)
    run = RunDir(out)
    ledger = run.ledger_of(rank)
    stage = Stage(
        cache=run.cache_of(rank),
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
        stage.check(list(everyone_in(who).values()), domain)
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


def refuse_run(source: str) -> None:
    """Refuse the folder of a training run where a model is expected, and name the models in it."""
    from mapo.runs.kind import Kind, kind_of
    from mapo.store import RunDir

    run = RunDir(Path(source).expanduser())
    model = any((run.root / name).is_file() for name in ("config.json", "adapter_config.json"))
    if not model and kind_of(run.root) in (Kind.TRAINING, Kind.ABLATION):
        steps = sorted(run.checkpoints.glob("step_*"))
        fix = f"Make a model of it: mapo export {quote(source)} --out DIR, then local:DIR"
        also = f". Or take a checkpoint: local:{steps[-1]}" if steps else ""
        raise InputError("is a training run, not a model", where=f"local:{source}", fix=fix + also)


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
