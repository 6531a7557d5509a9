"""Options shared by the commands that run a benchmark."""

from __future__ import annotations

import inspect
import re
import time
from collections.abc import Callable, Sequence
from dataclasses import MISSING, dataclass, fields
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, get_type_hints

import typer

if TYPE_CHECKING:
    from mapo.players.session import ModelSession
    from mapo.players.spec import ModelSpec, PartialSpec

DOMAIN = "A domain's name or folder (default: the scenarios' domain). Python files in a folder are executed."

Out = Annotated[Path, typer.Option(help="Run directory.")]
Model = Annotated[
    str, typer.Option(help="Model to evaluate: its name at an endpoint, or local:FOLDER (local:pocket).")
]
Domain = Annotated[str | None, typer.Option(help=DOMAIN)]
BaseUrl = Annotated[
    str | None,
    typer.Option(help="OpenAI-compatible endpoint of the model (default: $OPENAI_BASE_URL, or OpenAI)."),
]
KeyEnv = Annotated[str, typer.Option(help="Environment variable that holds its API key.")]
FIELDS = "JSON, thinking=false or reasoning_effort=low"
Body = Annotated[str | None, typer.Option(help=f"Further fields of its requests: {FIELDS}.")]
JudgeBody = Annotated[str | None, typer.Option(help=f"Further fields of the judge's requests: {FIELDS}.")]
AgentsBody = Annotated[
    str | None, typer.Option(help=f"Further fields of the requests of all three: {FIELDS}.")
]
Context = Annotated[int, typer.Option(min=64, help="Context length of a local model, in tokens.")]
RoleContext = Annotated[
    int, typer.Option(min=64, help="Context length of local models in other roles, in tokens.")
]
Concurrency = Annotated[int, typer.Option(min=1, help="Concurrent conversations.")]
RequestsPerMinute = Annotated[int | None, typer.Option(min=1, help="Limit of requests, per endpoint.")]
TokensPerMinute = Annotated[int | None, typer.Option(min=1, help="Limit of tokens, per endpoint.")]
Timeout = Annotated[float, typer.Option(min=0.1, help="Timeout of a call, in seconds.")]
Retries = Annotated[int, typer.Option(min=0, help="Retries of a failed call.")]
Cache = Annotated[str, typer.Option(help="Cache mode: record, replay, refresh or off.")]
CacheFile = Annotated[Path | None, typer.Option(help="Cache of model calls (default: in --out).")]
Prices = Annotated[Path | None, typer.Option(help="JSON file of prices per million tokens, by model.")]
Resume = Annotated[bool, typer.Option("--resume", help="Resume the run in --out.")]
JudgePanel = Annotated[
    str | None,
    typer.Option(
        help="A panel of judges, a,b,c or NAME@URL; the median of each level counts (docs/judges.md)."
    ),
]
Judging = Annotated[
    str | None,
    typer.Option(
        help="How a local judge (and director) answers: form, or readout, one forward pass without text "
        "(default: form; readout for a model trained for it)."
    ),
]
Limit = Annotated[int | None, typer.Option(min=1, help="Only the first N items, as a trial: no score.")]


@dataclass(frozen=True, slots=True)
class RunOptions:
    """Options for the run directory, the model's endpoint and how it is called."""

    out: Out
    base_url: BaseUrl = None
    key_env: KeyEnv = "OPENAI_API_KEY"
    body: Body = None
    context: Context = 4096
    role_context: RoleContext = 8192
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
        """The address and key that a command's other models inherit."""
        from mapo.players.spec import PartialSpec

        return PartialSpec(None, self.base_url, self.key_env)

    def model_spec(self, model: str) -> ModelSpec:
        """Return the model that the options describe: its address, key and body fields."""
        from mapo.body_fields import body_option
        from mapo.models.chat import Sampling
        from mapo.players.spec import ModelSpec

        sampling = Sampling(body=body_option(self.body, "--body"))
        return ModelSpec(model, self.base_url, self.key_env, sampling)

    def session(self) -> ModelSession:
        """Return a session with its ledger in `out`, and its cache there unless `cache_file` is set."""
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
            role_context=self.role_context,
        )


def with_run_options(
    *, without: Sequence[str] = (), benchmark: str = "", **defaults: Any
) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Add the options of `RunOptions` to a command, which receives them as its argument `run`.

    `defaults` replaces default values and `without` leaves options out. With `benchmark`, --out is optional:
    its default is runs/BENCHMARK-MODEL-TIME, with the command's argument `model`.
    """

    def decorate(command: Callable[..., None]) -> Callable[..., None]:
        hints = get_type_hints(RunOptions, include_extras=True)
        if benchmark:
            defaults["out"] = None
            text = f"Run directory (default: runs/{benchmark}-MODEL-TIME)."
            hints["out"] = Annotated[Path | None, typer.Option(help=text)]
        included = [f for f in fields(RunOptions) if f.name not in without]
        shared = [_option(f.name, hints[f.name], defaults.get(f.name, f.default)) for f in included]
        signature = inspect.signature(command, eval_str=True)
        specific = [p for p in signature.parameters.values() if p.name != "run"]
        options = [*(_option(p.name, p.annotation, p.default) for p in specific), *shared]

        @wraps(command)
        def wrapper(**values: Any) -> None:
            if benchmark and values["out"] is None:
                values["out"] = default_out(benchmark, values["model"], resume=values["resume"])
            run = RunOptions(**{option.name: values.pop(option.name) for option in shared})
            command(run=run, **values)

        wrapper.__signature__ = inspect.Signature(options)  # type: ignore[attr-defined]
        wrapper.__annotations__ = {option.name: option.annotation for option in options}
        return wrapper

    return decorate


def role_body(role: str, own: str | None, agents: str | None = None) -> dict[str, Any]:
    """Return the body fields of a role: those of --agents-body and of --ROLE-body, which win."""
    from mapo.body_fields import body_option, merge_bodies

    return merge_bodies(body_option(agents, "--agents-body"), body_option(own, f"--{role}-body"))


def default_out(benchmark: str, model: str, *, resume: bool) -> Path:
    """Return runs/BENCHMARK-MODEL-TIME. A run can only be resumed with an explicit --out."""
    from mapo.errors import InputError

    if resume:
        raise InputError("--resume needs the run directory", where="--out", fix="Give the run's --out")
    name = re.sub(r"[^\w.-]+", "-", model.rstrip("/").rpartition("/")[2]).strip("-.") or "model"
    return Path("runs") / f"{benchmark}-{name}-{time.strftime('%Y%m%d-%H%M%S')}"


def _option(name: str, annotation: Any, default: Any) -> inspect.Parameter:
    value = inspect.Parameter.empty if default is MISSING else default
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=value, annotation=annotation)
