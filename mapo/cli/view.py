"""mapo view: a local web page over run directories."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from mapo.cli.common.messages import say
from mapo.errors import InputError


def view(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="A run, or a folder of runs.")] = Path("runs"),
    port: Annotated[
        int, typer.Option(help="Port to listen on; 0 picks a free one.", min=0, max=65535)
    ] = 8765,
    host: Annotated[
        str,
        typer.Option(
            help="Address to listen at. Beyond loopback a token is needed (MAPO_VIEW_TOKEN, or made up)."
        ),
    ] = "127.0.0.1",
    allow_host: Annotated[
        list[str] | None,
        typer.Option(help="Another host name to accept, for use behind a proxy; repeatable."),
    ] = None,
) -> None:
    """Show runs, curves and dialogues in the browser, and why each turn was credited; live while they run."""
    import importlib.util

    if not folder.is_dir():
        there = folder.exists()
        told = "is a file, not a folder" if there else "no such folder"
        fix = f"Give its folder: mapo view {folder.parent}" if there else "Give a run, or a folder of runs"
        raise InputError(told, where=str(folder), fix=fix)
    lacking = [name for name in ("starlette", "uvicorn", "plotly") if not importlib.util.find_spec(name)]
    if lacking:
        raise InputError(f"{', '.join(lacking)} not installed", fix="pip install 'mapo[view]'")
    from mapo.view.serve import serve

    serve(folder, host=host, port=port, names=allow_host or [], say=say)
