"""Options that every benchmark has, declared once."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

DOMAIN = "A domain's name or folder (default: the one the scenarios name). A folder's Python files are run."

Out = Annotated[Path, typer.Option(help="Where the run goes.")]
Model = Annotated[str, typer.Option(help="The model: a name at an endpoint, or local:FOLDER (local:pocket).")]
Domain = Annotated[str | None, typer.Option(help=DOMAIN)]
BaseUrl = Annotated[str | None, typer.Option(help="Its OpenAI-compatible endpoint.")]
KeyEnv = Annotated[str, typer.Option(help="Environment variable with its key.")]
Context = Annotated[int, typer.Option(min=64, help="Longest conversation of a local model, tokens.")]
Concurrency = Annotated[int, typer.Option(min=1, help="Conversations at once.")]
RequestsPerMinute = Annotated[int | None, typer.Option(min=1, help="Per endpoint.")]
TokensPerMinute = Annotated[int | None, typer.Option(min=1, help="Per endpoint.")]
Timeout = Annotated[float, typer.Option(min=0.1, help="Seconds a call may take.")]
Retries = Annotated[int, typer.Option(min=0, help="Tries after the first.")]
Cache = Annotated[str, typer.Option(help="record, replay, refresh or off.")]
CacheFile = Annotated[Path | None, typer.Option(help="Where model calls are kept (default: in --out).")]
Prices = Annotated[Path | None, typer.Option(help="JSON: model -> prices per million tokens.")]
Resume = Annotated[bool, typer.Option("--resume", help="Go on with the run in --out.")]
JudgePanel = Annotated[
    str | None,
    typer.Option(help="Several judges as one, the median of each level: a,b,c or NAME@URL (docs/judges.md)."),
]
