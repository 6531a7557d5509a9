"""The web application: routes, static files and error pages."""

from __future__ import annotations

import gzip
import hashlib
import importlib.util
from collections.abc import Collection
from functools import lru_cache
from pathlib import Path

from starlette.applications import Starlette
from starlette.convertors import Convertor, register_url_convertor
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import ASGIApp

from mapo.errors import InputError, MapoError, install_hint
from mapo.view.guard import Guard
from mapo.view.index.index import Index
from mapo.view.pages import benchmarks, dialogues, runs
from mapo.view.pages.site import ViewState, as_json, page

STATIC = Path(__file__).parent / "static"
MEDIA_TYPES = {
    ".css": "text/css; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
}


def make_app(index: Index, *, names: Collection[str] = (), token: str = "") -> ASGIApp:
    """Return the application over an index. The caller refreshes the index (`serve.py`). The guard wraps
    everything, error pages included."""
    register_url_convertor("number", _NumberConvertor())
    one = "/run/{run}/d/{file}/{line:number}"
    routes = [
        Route("/", runs.all_runs, name="runs"),
        Route("/overlay", runs.overlay, name="overlay"),
        Route("/run/{run}", runs.one_run, name="run"),
        Route("/run/{run}/configuration", runs.configuration, name="configuration"),
        Route("/run/{run}/scenarios", runs.scenarios, name="scenarios"),
        Route("/run/{run}/audit.png", runs.figure),
        Route("/dialogues", dialogues.search, name="dialogues"),
        Route(one, dialogues.one, name="dialogue"),
        Route(f"{one}/text/{{turn:number}}/{{speaker}}", dialogues.full_text, name="text"),
        Route("/compare", dialogues.compare, name="compare"),
        Route("/benchmarks", benchmarks.benchmarks, name="benchmarks"),
        Route("/api/version", version),
        Route("/api/figures", runs.figures),
        Route("/api/run/{run}/grid", runs.grid_data),
        Route("/api/radar", benchmarks.radar),
        Route(f"/api{one}/trajectory", dialogues.trajectory),
        Route(f"/api{one}/tokens/{{turn:number}}", dialogues.tokens),
        Route(f"/api{one}/calls/{{turn:number}}", dialogues.calls),
        Route("/static/{name}", static, name="static"),
    ]
    app = Starlette(
        routes=routes,
        exception_handlers={HTTPException: _http_error, MapoError: _unreadable, 500: _internal_error},
    )
    app.state.view = ViewState(index, _static_version())
    return Guard(app, names=names, token=token)


class _NumberConvertor(Convertor[int]):
    """A number in a URL, of a length that Python can convert."""

    regex = "[0-9]{1,15}"

    def convert(self, value: str) -> int:
        return int(value)

    def to_string(self, value: int) -> str:
        return str(value)


def version(request: Request) -> Response:
    """The version of the index, polled by live pages."""
    index: Index = request.app.state.view.index
    return as_json({"version": index.version, "busy": index.busy})


# ---- static files


def static(request: Request) -> Response:
    name = request.path_params["name"]
    body = _static(name)
    if body is None:
        raise HTTPException(404, "There is no such file.")
    headers = {"Cache-Control": "public, max-age=31536000, immutable", "Vary": "Accept-Encoding"}
    if "gzip" in request.headers.get("accept-encoding", ""):
        body, headers = _compressed(name), {**headers, "Content-Encoding": "gzip"}
    return Response(body, media_type=MEDIA_TYPES[Path(name).suffix], headers=headers)


@lru_cache(maxsize=1)
def _names() -> dict[str, Path]:
    """Return the static files by name. Nothing else is ever opened."""
    files = {file.name: file for file in STATIC.iterdir() if file.suffix in MEDIA_TYPES}
    return {**files, "plotly.js": plotly_file()}


@lru_cache(maxsize=32)
def _static(name: str) -> bytes | None:
    path = _names().get(name)
    return path.read_bytes() if path else None


@lru_cache(maxsize=32)
def _compressed(name: str) -> bytes:
    return gzip.compress(_static(name) or b"", 6)


@lru_cache(maxsize=1)
def _static_version() -> str:
    """Return a hash of all static files. It is part of their URLs, so that browsers can cache them."""
    digest = hashlib.sha256()
    for name in sorted(_names()):
        digest.update(_static(name) or b"")
    return digest.hexdigest()[:12]


def plotly_file() -> Path:
    """Return the plotly.min.js of the Python package."""
    spec = importlib.util.find_spec("plotly")
    file = Path(spec.origin).parent / "package_data" / "plotly.min.js" if spec and spec.origin else None
    if file is None or not file.is_file():
        raise InputError("plotly is not installed", fix=install_hint("view"))
    return file


# ---- error pages


def _http_error(request: Request, error: Exception) -> Response:
    status = error.status_code if isinstance(error, HTTPException) else 500
    problem = str(getattr(error, "detail", "")) or "The request was refused."
    return page(request, "problem.html", status, problem=problem)


def _unreadable(request: Request, error: Exception) -> Response:
    return page(request, "problem.html", 409, problem=str(error))


def _internal_error(request: Request, _: Exception) -> Response:
    return page(
        request, "problem.html", 500, problem="An internal error occurred. See the terminal for details."
    )
