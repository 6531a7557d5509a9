"""mapo view: a local web page over run directories."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from mapo.cli.common.messages import say
from mapo.errors import InputError, install_hint


def view(
    folder: Annotated[
        Path, typer.Argument(metavar="DIR", help="A run directory, or a folder of run directories.")
    ] = Path("runs"),
    port: Annotated[
        int, typer.Option(help="Port to listen on; 0 picks a free one.", min=0, max=65535)
    ] = 8765,
    host: Annotated[
        str,
        typer.Option(
            help="Address to listen on. Any other than loopback requires a token: $MAPO_VIEW_TOKEN, or a "
            "random one that is printed."
        ),
    ] = "127.0.0.1",
    allow_host: Annotated[
        list[str] | None,
        typer.Option(help="Further host name to accept, for example of a proxy. Repeatable."),
    ] = None,
) -> None:
    """Show runs, curves, dialogues and turn credit in the browser, updated while they run."""
    import importlib.util

    if not folder.is_dir():
        is_file = folder.exists()
        problem = "this is a file, not a folder" if is_file else "the folder does not exist"
        hint = "Pass a run directory, or a folder of run directories"
        fix = f"Pass its folder: mapo view {folder.parent}" if is_file else hint
        raise InputError(problem, where=str(folder), fix=fix)
    missing = [name for name in ("starlette", "uvicorn", "plotly") if not importlib.util.find_spec(name)]
    if missing:
        raise InputError(f"the viewer needs {', '.join(missing)}", fix=install_hint("view"))
    from mapo.view.serve import serve

    serve(folder, host=host, port=port, names=allow_host or [], say=say)
