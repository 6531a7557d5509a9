"""mapo export: write a trained policy as a Hugging Face folder."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, cast

import typer

from mapo.cli.common.messages import say
from mapo.cli.common.stop import tidy
from mapo.errors import InputError, install_hint
from mapo.store import RunDir

if TYPE_CHECKING:
    from typing import Literal


def export(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="A run directory or one of its checkpoints.")],
    out: Annotated[Path, typer.Option(help="Folder to create.")],
    step: Annotated[str, typer.Option(help="Checkpoint: best, last or the number of a step.")] = "best",
    dtype: Annotated[str | None, typer.Option(help="float32 or bfloat16 (default: as trained).")] = None,
    adapter: Annotated[
        bool, typer.Option("--adapter", help="Write the LoRA adapter alone instead of merging it.")
    ] = False,
) -> None:
    """Write a trained policy as a Hugging Face folder, for mapo eval, vLLM and other tools."""
    if dtype not in (None, "float32", "bfloat16"):
        raise InputError(f"--dtype is '{dtype}'", fix="Use float32 or bfloat16")
    say("loading the checkpoint ...")
    try:
        from mapo.train import export as exporting
    except ModuleNotFoundError as error:
        raise InputError(
            f"{error.name} is not installed", where="mapo export", fix=install_hint("train")
        ) from error
    checkpoint = exporting.find_checkpoint(run, step)
    with tidy(out):
        target_dtype = cast("Literal['float32', 'bfloat16'] | None", dtype)
        folder = exporting.export(checkpoint, out, merge=not adapter, dtype=target_dtype)
    unfinished = RunDir(run).manifest.exists() and not RunDir(run).summary.exists()
    note = " (the run is not finished)" if unfinished else ""
    typer.echo(f"{folder}: ready, from {checkpoint}{note}")
