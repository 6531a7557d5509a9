"""From command-line options to who plays: policies, casts, endpoints with one cache and one ledger."""

from __future__ import annotations

import json
import os
from contextlib import AsyncExitStack
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

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
        return endpoint

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


def stage_in(out: Path, *, cache_file: Path | None, prices: Path | None, **settings: Any) -> Stage:
    """The stage of a run in `out`: its ledger there, its cache too unless another is given."""
    from mapo.evals.folder import CACHE

    return Stage(
        cache=cache_file or out / CACHE,
        ledger_file=out / "ledger.json",
        prices=read_prices(prices),
        **settings,
    )


def read_prices(file: Path | None) -> dict[str, Any]:
    """{"model": [prompt, cached, completion]} per million tokens."""
    if file is None:
        return {}
    try:
        data = json.loads(file.read_bytes())
    except (OSError, ValueError) as error:
        raise InputError(f"cannot be read ({error})", where=str(file), fix="A JSON file of prices") from None
    if not isinstance(data, dict) or not all(isinstance(v, list) and len(v) == 3 for v in data.values()):
        raise InputError(
            "not a table of prices",
            where=str(file),
            fix='{"model": [prompt, cached, completion]} per million tokens',
        )
    return {model: tuple(map(float, price)) for model, price in data.items()}


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


def with_temperature(cast: dict[str, Who] | None, **given: float | None) -> dict[str, Who] | None:
    """The cast with these temperatures, as far as they were given."""
    for role, temperature in given.items():
        if temperature is None:
            continue
        if cast is None:
            raise InputError(f"--{role}-temperature, but plain code plays", fix="Give --agents-model")
        cast = {**cast, role: replace(cast[role], sampling=Sampling(temperature))}
    return cast
