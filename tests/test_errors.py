"""Error messages: how a location, a problem and a fix are joined, and one style for all of them."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

import mapo
from mapo.errors import MapoError

ROOT = Path(mapo.__file__).parent
NAMES = ("EMPA", "EQ-Bench", "EmoBench", "JSON", "LoRA", "MAPOTrainer")
"""Words that keep their capital at the start of a problem."""


def texts(node: ast.AST | None) -> Iterator[tuple[str, str]]:
    """Yield the first and last characters that are known of each text that an expression can be."""
    match node:
        case ast.Constant(value=str(text)) if text:
            yield text, text
        case ast.JoinedStr(values=[first, *_, last]):
            yield next(texts(first), ("", ""))[0], next(texts(last), ("", ""))[1]
        case ast.JoinedStr(values=[only]):
            yield from texts(only)
        case ast.BinOp(left=left, op=ast.Add(), right=right):
            yield from ((first, "") for first, _ in texts(left))
            yield from (("", last) for _, last in texts(right))
        case ast.BoolOp(values=values):
            for value in values:
                yield from texts(value)
        case ast.IfExp(body=body, orelse=other):
            yield from texts(body)
            yield from texts(other)


def name_of(node: ast.AST) -> str:
    return getattr(node, "id", getattr(node, "attr", ""))


def violations(source: str) -> list[str]:
    """Return the problems and fixes in a module that break the rule of CONTRIBUTING.md."""
    found = []
    for node in ast.walk(ast.parse(source)):
        problem, fix = None, None
        match node:
            case ast.Call(func=func, args=args, keywords=keywords) if name_of(func).endswith("Error"):
                problem = args[0] if args else None
                fix = next((word.value for word in keywords if word.arg == "fix"), None)
            case ast.Assign(targets=[ast.Name(id="problem")], value=problem):
                pass
        for first, last in texts(problem):
            if (first[:1].isupper() and not first.startswith(NAMES)) or ends_in_period(last):
                found.append(f"line {node.lineno}, problem: {first or last}")
        for first, last in texts(fix):
            if first[:1].islower() or ends_in_period(last):
                found.append(f"line {node.lineno}, fix: {first or last}")
    return found


def ends_in_period(text: str) -> bool:
    return text.endswith(".") and not text.endswith("...")


def test_problems_begin_in_lower_case_and_fixes_with_a_capital_and_neither_ends_in_a_period():
    found = {
        str(file.relative_to(ROOT)): lines
        for file in sorted(ROOT.rglob("*.py"))
        if file.relative_to(ROOT).parts[0] != "view"  # its texts are shown as sentences on pages
        and (lines := violations(file.read_text()))
    }
    assert found == {}


@pytest.mark.parametrize(
    "source",
    [
        "raise InputError('The file is empty')",
        "raise InputError('the file is empty.')",
        "raise InputError(f'The file {name} is empty')",
        "raise InputError(f'{name} is empty.')",
        "raise InputError('the file' + (' is empty.' if empty else ''))",
        "raise InputError(problem or 'The file is empty')",
        "raise InputError('the file is empty', fix='write to it')",
        "raise InputError('the file is empty', fix=f'Write {word} to it.')",
        "error = ValueError('The file is empty')",
        "problem = 'The file is empty'",
    ],
)
def test_another_style_is_noticed(source):
    assert len(violations(source)) == 1


@pytest.mark.parametrize(
    "source",
    [
        "raise InputError('EMPA files are missing', fix='Download them')",
        "raise InputError(f'{name} is empty', where='Line 1.', fix='Use 0, 1, ...')",
        "raise InputError(str(error))",
    ],
)
def test_the_style_of_the_rule_is_accepted(source):
    assert violations(source) == []


def test_an_error_joins_location_problem_and_fix():
    error = MapoError("the file is empty", where="a.json", fix="Write to it")
    assert str(error) == "a.json: the file is empty. Write to it"
