"""--help, of every command and at every width: whole."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import typer

from mapo.cli import app, run
from mapo.cli.common.help import WIDTH
from support.command import mapo


def everything() -> Iterator[tuple[tuple[str, ...], Any]]:
    """Every command and group, with the words that call it."""
    found: list[tuple[tuple[str, ...], Any]] = [((), typer.main.get_command(app))]
    for words, command in found:
        yield words, command
        found += [((*words, name), inner) for name, inner in getattr(command, "commands", {}).items()]


def test_the_walk_comes_to_every_command():
    names = {words for words, _ in everything()}
    assert {(), ("train",), ("eval", "empa"), ("judge", "audit"), ("scenarios", "screen")} <= names


@pytest.mark.parametrize("columns", [None, 60, 80, 200])
def test_nothing_is_cut_off(columns, monkeypatch):
    monkeypatch.delenv("COLUMNS", raising=False)
    if columns:
        monkeypatch.setenv("COLUMNS", str(columns))
    for words, command in everything():
        told = mapo(*words, "--help").stdout
        assert "…" not in told, words
        assert max(map(len, told.splitlines())) <= max(min(columns or 80, WIDTH), 60), words
        flat = "".join(told.split())
        for param in command.params:
            assert all(name in told for name in (*param.opts, *param.secondary_opts) if name[0] == "-"), words
            assert "".join((param.help or "").split()) in flat, (words, param.name)
        for name, inner in getattr(command, "commands", {}).items():
            first = inner.help.partition("\n\n")[0]
            assert name in told and "".join(first.split()) in flat, (words, name)


def test_a_wide_terminal_is_used(monkeypatch):
    longest = {}
    for columns in (80, 200):
        monkeypatch.setenv("COLUMNS", str(columns))
        longest[columns] = max(map(len, mapo("eval", "empa", "--help").stdout.splitlines()))
    assert longest[80] <= 80 < longest[200] <= WIDTH


def test_what_is_mistyped_is_answered_in_plain_words():
    done = mapo("trian")
    assert done.returncode == 2 and "'train'" in done.stderr and "╭" not in done.stderr
    assert "Commands:" in mapo().stderr + mapo().stdout


@pytest.mark.parametrize(
    ("words", "usage"),
    [
        (["report"], "report [OPTIONS] RUN..."),
        (["judge", "audit"], "judge audit [OPTIONS] RUN..."),
        (["train"], "train [OPTIONS] [CONFIG] [KEY.PATH=VALUE]..."),
        (["export"], "export [OPTIONS] RUN"),
        (["play"], "play [OPTIONS] [SCENARIO]"),
        (["scenarios", "check"], "scenarios check [OPTIONS] [SOURCE]..."),
        (["doctor"], "doctor [OPTIONS]"),
    ],
)
def test_the_usage_line_has_plain_arguments(words, usage):
    first = mapo(*words, "--help").stdout.splitlines()[0]
    assert first.endswith(f" {usage}")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["eval", "emobench", "--model=x"], "Missing option '--data'. What to give: a checkout of EmoBench"),
        (
            ["eval", "eqbench", "--model=x"],
            "Missing option '--data'. What to give: a checkout of the benchmark",
        ),
        (["report"], "Missing argument 'RUN'. What to give: folders of mapo train"),
    ],
)
def test_a_missing_option_or_argument_is_described(words, message):
    done = mapo(*words)
    assert done.returncode == 2 and message in done.stderr


def test_ctrl_c_while_the_commands_are_loaded_is_no_traceback(monkeypatch):
    def interrupted():
        raise KeyboardInterrupt

    monkeypatch.setattr("mapo.cli._command", interrupted)
    with pytest.raises(SystemExit) as exit_:
        run()
    assert exit_.value.code == 130


def test_ctrl_c_before_a_command_starts_exits_without_a_traceback(monkeypatch):
    from mapo import cli
    from mapo.__main__ import main

    def interrupted():
        raise KeyboardInterrupt

    monkeypatch.setattr(cli, "run", interrupted)
    with pytest.raises(SystemExit) as stopped:
        main()
    assert stopped.value.code == 130
