"""Reading files from elsewhere: bounded in size, regular files only, and no input that hangs a parser.

`read_file` reports everything as OSError and `parse_toml` as ValueError (tomllib.TOMLDecodeError is one), so
callers handle odd files like missing or broken ones.
"""

from __future__ import annotations

import errno
import os
import re
import stat
import sys
import tomllib
from pathlib import Path
from typing import Any

PYTHON = [sys.executable, "-P"]
"""Command of a Python process that imports nothing from the current folder, which may be a downloaded one."""
MAX_BYTES = 64 << 20
MAX_KEY_PARTS = 32

_QUOTED = re.compile(r""""(?:[^"\\]|\\.)*"|'[^']*'""")
_KEY_BORDERS = re.compile(r"[={}\[\],#]")


def read_file(path: Path, limit: int = MAX_BYTES) -> bytes:
    """Return the content of a regular file of at most `limit` bytes. A pipe or device raises OSError at once
    instead of waiting for data."""
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        mode = os.fstat(descriptor).st_mode
        if stat.S_ISDIR(mode):
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
        if not stat.S_ISREG(mode):
            raise OSError(errno.EINVAL, "not a regular file", str(path))
        with open(descriptor, "rb", closefd=False) as file:
            content = file.read(limit + 1)
    finally:
        os.close(descriptor)
    if len(content) > limit:
        raise OSError(errno.EFBIG, f"larger than the limit of {limit} bytes", str(path))
    return content


def own_environment() -> dict[str, str]:
    """Return the environment in which a `PYTHON` process finds this package, wherever it lies."""
    paths = [str(Path(__file__).parent.parent), *filter(None, [os.environ.get("PYTHONPATH")])]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(paths)}


def parse_toml(text: str) -> dict[str, Any]:
    """Parse TOML. Deep nesting raises ValueError, and so do keys of very many parts, which the parser takes
    hours for."""
    for line in text.splitlines():
        if line.count(".") >= MAX_KEY_PARTS:
            for part in _KEY_BORDERS.split(_QUOTED.sub("x", line)):
                names = part.split(".")
                if len(names) > MAX_KEY_PARTS and all(map(_is_key, names)):
                    raise tomllib.TOMLDecodeError(f"a key has more than {MAX_KEY_PARTS} parts")
    try:
        return tomllib.loads(text)
    except RecursionError:
        raise tomllib.TOMLDecodeError("nested too deeply") from None


def _is_key(text: str) -> bool:
    return bool(text.strip()) and " " not in text.strip()
