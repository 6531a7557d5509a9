"""Reading files from elsewhere: bounded in size, regular files only, and no input that hangs a parser.

`open_regular` and `read_file` report everything as OSError, `parse_toml` and `parse_json` as ValueError, so
callers handle odd files like missing or broken ones.
"""

from __future__ import annotations

import errno
import json
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


def open_regular(path: Path, mode: str = "rb", *, links: bool = True) -> Any:
    """Open a regular file in mode "rb", "ab" or "ab+" (unbuffered).

    Another kind of file raises OSError at once instead of waiting for data, and so does a symbolic link
    unless `links` are followed.
    """
    append = os.O_APPEND | os.O_CREAT
    flags = {"rb": os.O_RDONLY, "ab": os.O_WRONLY | append, "ab+": os.O_RDWR | append}[mode]
    flags |= os.O_NONBLOCK | os.O_CLOEXEC | (0 if links else os.O_NOFOLLOW)
    try:
        descriptor = os.open(path, flags, 0o666)
    except OSError as error:
        if error.errno == errno.ELOOP and path.is_symlink():
            raise OSError(errno.ELOOP, "a symbolic link", str(path)) from None
        raise
    kind = os.fstat(descriptor).st_mode
    if not stat.S_ISREG(kind):
        os.close(descriptor)
        if stat.S_ISDIR(kind):
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
        raise OSError(errno.EINVAL, "not a regular file", str(path))
    return open(descriptor, mode, buffering=0 if mode == "ab+" else -1)


def read_file(path: Path, limit: int = MAX_BYTES) -> bytes:
    """Return the content of a regular file of at most `limit` bytes. A pipe or device raises OSError at once
    instead of waiting for data."""
    with open_regular(path) as file:
        content: bytes = file.read(limit + 1)
    if len(content) > limit:
        raise OSError(errno.EFBIG, f"larger than the limit of {limit} bytes", str(path))
    return content


def parse_json(content: bytes) -> Any:
    """Parse JSON. Deep nesting raises ValueError, like everything else that cannot be parsed."""
    try:
        return json.loads(content)
    except RecursionError:
        raise ValueError("nested too deeply") from None


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
