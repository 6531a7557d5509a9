"""Options that every benchmark has, declared once, and what they come to."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from dataclasses import MISSING, dataclass, fields
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, get_type_hints

import typer

if TYPE_CHECKING:
    from mapo.players.session import ModelSession
    from mapo.players.spec import PartialSpec

DOMAIN = "A domain's name or folder (default: the scenarios' domain). Python files in a folder are executed."

Out = Annotated[Path, typer.Option(help="Run directory.")]
Model = Annotated[str, typer.Option(help="The model: a name at an endpoint, or local:FOLDER (local:pocket).")]
Domain = Annotated[str | None, typer.Option(help=DOMAIN)]
BaseUrl = Annotated[
    str | None, typer.Option(help="Its OpenAI-compatible endpoint (default: $OPENAI_BASE_URL, or OpenAI's).")
]
KeyEnv = Annotated[str, typer.Option(help="Environment variable with its key.")]
Context = Annotated[int, typer.Option(min=64, help="Longest conversation of a local model, in tokens.")]
Concurrency = Annotated[int, typer.Option(min=1, help="Conversations in parallel.")]
RequestsPerMinute = Annotated[int | None, typer.Option(min=1, help="Limit per endpoint.")]
TokensPerMinute = Annotated[int | None, typer.Option(min=1, help="Limit per endpoint.")]
Timeout = Annotated[float, typer.Option(min=0.1, help="Timeout of a call, in seconds.")]
Retries = Annotated[int, typer.Option(min=0, help="Attempts after the first.")]
Cache = Annotated[str, typer.Option(help="How to use the cache: record, replay, refresh or off.")]
CacheFile = Annotated[Path | None, typer.Option(help="Cache of model calls (default: in --out).")]
Prices = Annotated[Path | None, typer.Option(help="JSON: model -> prices per million tokens.")]
Resume = Annotated[bool, typer.Option("--resume", help="Resume the run in --out.")]
JudgePanel = Annotated[
    str | None,
    typer.Option(
        help="A panel of judges, a,b,c or NAME@URL; the median of each level counts (docs/judges.md)."
    ),
]
Limit = Annotated[int | None, typer.Option(min=1, help="Only the first N items, as a trial: no score.")]


@dataclass(frozen=True, slots=True)
class Run:
    """Where a run goes, where its model is, and how it is asked."""

    out: Out
    base_url: BaseUrl = None
    key_env: KeyEnv = "OPENAI_API_KEY"
    context: Context = 4096
    concurrency: Concurrency = 32
    requests_per_minute: RequestsPerMinute = None
    tokens_per_minute: TokensPerMinute = None
    timeout: Timeout = 120.0
    retries: Retries = 5
    cache: Cache = "record"
    cache_file: CacheFile = None
    prices: Prices = None
    resume: Resume = False

    @property
    def endpoint(self) -> PartialSpec:
        """What the other models of a command inherit from --base-url and --key-env."""
        from mapo.players.spec import PartialSpec

        return PartialSpec(None, self.base_url, self.key_env)

    def session(self) -> ModelSession:
        """Return a session with its ledger in `out`, and its cache too unless another is given."""
        from mapo.cli.common.models import session_in

        return session_in(
            self.out,
            cache_file=self.cache_file,
            prices=self.prices,
            cache_mode=self.cache,
            concurrency=self.concurrency,
            requests_per_minute=self.requests_per_minute,
            tokens_per_minute=self.tokens_per_minute,
            timeout=self.timeout,
            retries=self.retries,
            context=self.context,
        )


def with_run(
    *, without: Sequence[str] = (), **defaults: Any
) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """A command that takes a `run` has the options of `Run`, with other `defaults` where it says so, and
    `without` those that mean nothing to it or that it has in a form of its own."""

    def given_to(command: Callable[..., None]) -> Callable[..., None]:
        hints = get_type_hints(Run, include_extras=True)
        taken = [f for f in fields(Run) if f.name not in without]
        shared = [_option(f.name, hints[f.name], defaults.get(f.name, f.default)) for f in taken]
        own = [p for p in inspect.signature(command, eval_str=True).parameters.values() if p.name != "run"]
        both = [*(_option(p.name, p.annotation, p.default) for p in own), *shared]

        @wraps(command)
        def called(**given: Any) -> None:
            run = Run(**{option.name: given.pop(option.name) for option in shared})
            command(run=run, **given)

        called.__signature__ = inspect.Signature(both)  # type: ignore[attr-defined]
        called.__annotations__ = {option.name: option.annotation for option in both}
        return called

    return given_to


def _option(name: str, annotation: Any, default: Any) -> inspect.Parameter:
    none = inspect.Parameter.empty
    value = none if default is MISSING else default
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=value, annotation=annotation)
