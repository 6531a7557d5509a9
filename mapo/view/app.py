"""The pages, put together: routes, templates, static files."""

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

from mapo.errors import InputError, MapoError
from mapo.view.guard import Guard
from mapo.view.index.index import Index
from mapo.view.pages import boards, dialogues, runs
from mapo.view.pages.site import Site, as_json, page

HERE = Path(__file__).parent
KINDS = {".css": "text/css; charset=utf-8", ".js": "text/javascript; charset=utf-8", ".svg": "image/svg+xml"}


def make_app(index: Index, *, names: Collection[str] = (), token: str = "") -> ASGIApp:
    """The application over an index; who keeps the index fresh is the caller's business (`serve.py`). The
    guard stands around all of it, so that pages about our own mistakes are guarded too."""
    register_url_convertor("whole", _Whole())
    one = "/run/{run}/d/{file}/{line:whole}"
    routes = [
        Route("/", runs.all_runs, name="runs"),
        Route("/overlay", runs.overlay, name="overlay"),
        Route("/run/{run}", runs.one_run, name="run"),
        Route("/run/{run}/audit.png", runs.figure),
        Route("/dialogues", dialogues.search, name="dialogues"),
        Route(one, dialogues.one, name="dialogue"),
        Route(f"{one}/text/{{turn:whole}}/{{who}}", dialogues.whole_text, name="text"),
        Route("/compare", dialogues.compare, name="compare"),
        Route("/benchmarks", boards.benchmarks, name="benchmarks"),
        Route("/api/version", version),
        Route("/api/figures", runs.figures),
        Route("/api/radar", boards.radar),
        Route(f"/api{one}/path", dialogues.path),
        Route(f"/api{one}/tokens/{{turn:whole}}", dialogues.tokens),
        Route("/static/{name}", static, name="static"),
    ]
    app = Starlette(
        routes=routes,
        exception_handlers={HTTPException: _refused, MapoError: _cannot, 500: _broken},
    )
    app.state.site = Site(index, _stamp())
    return Guard(app, names=names, token=token)


class _Whole(Convertor[int]):
    """A number as an address may hold it: Python reads no longer ones, and no file has more lines."""

    regex = "[0-9]{1,15}"

    def convert(self, value: str) -> int:
        return int(value)

    def to_string(self, value: int) -> str:
        return str(value)


def version(request: Request) -> Response:
    """What a live page asks every few seconds: whether anything is new."""
    index: Index = request.app.state.site.index
    return as_json({"version": index.version, "busy": index.busy})


# ---- static files


def static(request: Request) -> Response:
    name = request.path_params["name"]
    body = _static(name)
    if body is None:
        raise HTTPException(404, "no such file")
    headers = {"Cache-Control": "public, max-age=31536000, immutable", "Vary": "Accept-Encoding"}
    if "gzip" in request.headers.get("accept-encoding", ""):
        body, headers = _packed(name), {**headers, "Content-Encoding": "gzip"}
    return Response(body, media_type=KINDS[Path(name).suffix], headers=headers)


@lru_cache(maxsize=1)
def _names() -> dict[str, Path]:
    """What may be asked for, by name; nothing else is ever opened."""
    found = {file.name: file for file in (HERE / "static").iterdir() if file.suffix in KINDS}
    return {**found, "plotly.js": plotly_file()}


@lru_cache(maxsize=32)
def _static(name: str) -> bytes | None:
    path = _names().get(name)
    return path.read_bytes() if path else None


@lru_cache(maxsize=32)
def _packed(name: str) -> bytes:
    return gzip.compress(_static(name) or b"", 6)


@lru_cache(maxsize=1)
def _stamp() -> str:
    """Changes with any static file: part of their addresses, so that they can be kept for long."""
    told = hashlib.sha256()
    for name in sorted(_names()):
        told.update(_static(name) or b"")
    return told.hexdigest()[:12]


def plotly_file() -> Path:
    """plotly.min.js, as the Python package ships it."""
    found = importlib.util.find_spec("plotly")
    file = Path(found.origin).parent / "package_data" / "plotly.min.js" if found and found.origin else None
    if file is None or not file.is_file():
        raise InputError("plotly is not installed", fix="pip install 'mapo[view]'")
    return file


# ---- what cannot be shown


def _refused(request: Request, error: Exception) -> Response:
    status = error.status_code if isinstance(error, HTTPException) else 500
    told = str(getattr(error, "detail", "")) or "refused"
    return page(request, "problem.html", status, problem=told)


def _cannot(request: Request, error: Exception) -> Response:
    return page(request, "problem.html", 409, problem=str(error))


def _broken(request: Request, _: Exception) -> Response:
    return page(request, "problem.html", 500, problem="something went wrong here; the terminal says what")
