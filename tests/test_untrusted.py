import os
import time
import tomllib
from pathlib import Path

import pytest

from mapo.config import load_config
from mapo.errors import InputError, RubricError, ScenarioError
from mapo.measure.rubric import Rubric
from mapo.scenarios.scenario import read_scenario
from mapo.untrusted import parse_toml, read_file

LONG_KEY = ".".join(["a"] * 50_000) + " = 1"
BAD = {
    "long key": LONG_KEY,
    "long key in a table": f"[{'.'.join(['a'] * 50_000)}]",
    "long key in an inline table": "x = {" + LONG_KEY + "}",
    "quoted long key": ".".join(['"a"'] * 50_000) + " = 1",
    "quoted long key with spaces": ".".join(['"a b"'] * 50_000) + " = 1",
    "quoted long key of signs": ".".join(['"="'] * 50_000) + " = 1",
    "single-quoted long key": ".".join(["'a b'"] * 50_000) + " = 1",
    "huge number": "x = " + "9" * 5000,
    "deep": "x = " + "[" * 100_000 + "]" * 100_000,
}


@pytest.mark.parametrize("name", BAD)
def test_toml_that_hangs_or_overflows_the_parser_is_an_error_at_once(name):
    began = time.process_time()
    with pytest.raises(ValueError, match="."):
        parse_toml(BAD[name])
    assert time.process_time() - began < 5


def test_ordinary_toml_is_read():
    dots = "." * 500
    text = f'a.b.c = 1\nx = "{dots} Well. {"so. " * 200}"\n# {dots}\ny = """\n{"a. " * 100}\n"""\n'
    assert parse_toml(text) == tomllib.loads(text)


@pytest.mark.parametrize("name", BAD)
@pytest.mark.parametrize(
    ("read", "error"), [(load_config, InputError), (read_scenario, ScenarioError), (Rubric.load, RubricError)]
)
def test_configs_scenarios_and_rubrics_are_refused_with_one_error(tmp_path, name, read, error):
    (tmp_path / "bad.toml").write_text(BAD[name])
    with pytest.raises(error, match=r"bad\.toml"):
        read(tmp_path / "bad.toml")


@pytest.mark.parametrize(("read", "error"), [(read_scenario, ScenarioError), (Rubric.load, RubricError)])
def test_pipes_are_refused_instead_of_waited_for(tmp_path, read, error):
    os.mkfifo(tmp_path / "pipe.toml")
    with pytest.raises(error, match="not a regular file"):
        read(tmp_path / "pipe.toml")


def test_large_files_are_refused_without_reading_them_whole(tmp_path):
    with open(tmp_path / "large", "wb") as file:
        file.truncate(10 << 30)
    with pytest.raises(OSError, match="larger than the limit of 1000 bytes"):
        read_file(tmp_path / "large", 1000)
    before = len(list(Path("/proc/self/fd").iterdir()))
    for _ in range(5):
        with pytest.raises(IsADirectoryError):
            read_file(tmp_path)
    assert len(list(Path("/proc/self/fd").iterdir())) == before
