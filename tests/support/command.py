"""The command line, run in the test's own process."""

from __future__ import annotations

import io
import sys
from contextlib import redirect_stderr, redirect_stdout
from typing import NamedTuple
from unittest import mock

import pytest

from mapo.cli import run


class Done(NamedTuple):
    returncode: int
    stdout: str
    stderr: str


def mapo(*args: object, typed: str = "") -> Done:
    """The console script; `typed` is what comes in on standard input."""
    out, err = io.StringIO(), io.StringIO()
    with (
        mock.patch.object(sys, "argv", ["mapo", *map(str, args)]),
        mock.patch.object(sys, "stdin", io.StringIO(typed)),
        redirect_stdout(out),
        redirect_stderr(err),
        pytest.raises(SystemExit) as stop,
    ):
        run()
    return Done(int(stop.value.code or 0), out.getvalue(), err.getvalue())
