"""mapo export"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, cast

import typer

from mapo.cli.common.stop import tidy
from mapo.errors import InputError

if TYPE_CHECKING:
    from typing import Literal


def export(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="A run's folder, or one checkpoint of it.")],
    out: Annotated[Path, typer.Option(help="The folder to create.")],
    step: Annotated[str, typer.Option(help="best, last or a number.")] = "best",
    dtype: Annotated[str | None, typer.Option(help="float32 or bfloat16 (default: as trained).")] = None,
    adapter: Annotated[
        bool, typer.Option("--adapter", help="Leave a LoRA adapter as it is instead of merging it.")
    ] = False,
) -> None:
    """Make a plain Hugging Face folder of a trained model, for mapo eval, vLLM and others."""
    if dtype not in (None, "float32", "bfloat16"):
        raise InputError(f"no such dtype: {dtype}", where="--dtype", fix="float32 or bfloat16")
    try:
        from mapo.train import export as exporting
    except ModuleNotFoundError as error:
        raise InputError(
            f"{error.name} is not installed", where="mapo export", fix="Run: pip install 'mapo[train]'"
        ) from error
    kind = cast("Literal['float32', 'bfloat16'] | None", dtype)
    chosen = exporting.find_checkpoint(run, step)
    with tidy(out):
        made = exporting.export(chosen, out, merge=not adapter, dtype=kind)
    typer.echo(f"{made}: ready, from {chosen}{_whether_finished(run)}")


def _whether_finished(run: Path) -> str:
    """A run is exported at any time; that it is still under way should not go unsaid."""
    from mapo.store import RunDir

    under_way = RunDir(run).manifest.exists() and not RunDir(run).summary.exists()
    return " (the run is not finished)" if under_way else ""
