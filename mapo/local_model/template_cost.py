"""A check that a chat template from elsewhere renders in reasonable time and memory.

A template is a small program: nested loops or a repeated string can take hours or gigabytes. Templates that
only contain harmless constructs, as nearly all do, are accepted as they are. Others are first rendered in
a process with limits, for a few dialogues; a template that behaves differently for others is not found.
"""

from __future__ import annotations

import json
import subprocess
from functools import lru_cache
from typing import Any

from jinja2 import Environment, TemplateError, nodes
from jinja2.ext import Extension

from mapo.errors import InputError
from mapo.untrusted import PYTHON

SECONDS = 10
MEGABYTES = 1024
LENGTHS = (1, 3, 41, 121)
"""Numbers of messages that are rendered."""

_FILTERS = {
    "trim",
    "tojson",
    "length",
    "count",
    "string",
    "upper",
    "lower",
    "capitalize",
    "join",
    "list",
    "safe",
}
_FILTERS |= {
    "default",
    "d",
    "selectattr",
    "rejectattr",
    "map",
    "select",
    "reject",
    "first",
    "last",
    "items",
    "int",
}
_FUNCTIONS = {"raise_exception", "strftime_now", "namespace", "dict"}
_METHODS = {
    "strip",
    "lstrip",
    "rstrip",
    "split",
    "rsplit",
    "startswith",
    "endswith",
    "replace",
    "get",
    "items",
}
_METHODS |= {"keys", "values", "append", "lower", "upper", "title"}
_GROWING = (nodes.Mul, nodes.Pow, nodes.Macro, nodes.CallBlock, nodes.Include, nodes.Import, nodes.FromImport)
_MAX_DEPTH = 2
"""Loops in loops: messages, and their parts or tool calls."""

_RENDER = """
import json, resource, sys
from transformers.utils.chat_template_utils import render_jinja_template
task = json.load(sys.stdin)
with open("/proc/self/statm") as file:
    used = int(file.read().split()[0]) * resource.getpagesize()
limit = used + (task["megabytes"] << 20)
resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
spent = resource.getrusage(resource.RUSAGE_SELF)
seconds = int(spent.ru_utime + spent.ru_stime) + task["seconds"] + 1
resource.setrlimit(resource.RLIMIT_CPU, (seconds, seconds))
print("ready", flush=True)
for count in task["lengths"]:
    turns = [{"role": ("user", "assistant")[n % 2], "content": f"Message {n}."} for n in range(count)]
    for first in ([], [{"role": "system", "content": "Keep to plain words."}]):
        try:
            render_jinja_template([first + turns], chat_template=task["template"], add_generation_prompt=True)
        except MemoryError:
            raise
        except Exception:
            pass
"""


@lru_cache(maxsize=64)
def check_template_cost(template: str, where: str) -> None:
    """Raise InputError if rendering the template takes too long or too much memory."""
    if _is_plain(template):
        return
    task = {"template": template, "lengths": LENGTHS, "megabytes": MEGABYTES, "seconds": SECONDS}
    try:
        done = subprocess.run(  # noqa: S603
            [*PYTHON, "-c", _RENDER],
            input=json.dumps(task),
            capture_output=True,
            text=True,
            timeout=SECONDS + 50,  # imports may take long on a busy machine
            check=False,
        )
        if "ready" not in done.stdout:
            last = (done.stderr.strip().splitlines() or ["no message"])[-1]
            raise InputError(f"its chat template could not be tried ({last[:200]})", where=where)
        failed = done.returncode != 0
    except subprocess.TimeoutExpired:
        failed = True
    if failed:
        raise InputError(
            f"its chat template takes more than {SECONDS} s or {MEGABYTES} MB for a short dialogue",
            where=where,
            fix="Use another model; a template from a source you do not trust may be meant to do harm",
        )


def _is_plain(template: str) -> bool:
    """Return whether the template can only take time and memory in proportion to the messages."""
    try:
        tree = Environment(  # noqa: S701  # only parsed
            extensions=["jinja2.ext.loopcontrols", _Generation]
        ).parse(template)
    except (TemplateError, RecursionError):
        return False
    nodes_of_tree = list(tree.find_all(nodes.Node))
    assignments = [node for node in nodes_of_tree if isinstance(node, nodes.Assign | nodes.AssignBlock)]
    assigned = {name for node in assignments for name in _names(node.target)}
    return (
        _depth(tree) <= _MAX_DEPTH
        and all(map(_is_harmless, nodes_of_tree))
        and not any(_may_grow(node, assigned) for node in assignments)
    )


class _Generation(Extension):
    """Parses the `generation` block of transformers as its content."""

    tags = {"generation"}  # noqa: RUF012

    def parse(self, parser: Any) -> Any:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


def _depth(node: nodes.Node) -> int:
    deepest = max((_depth(child) for child in node.iter_child_nodes()), default=0)
    return deepest + isinstance(node, nodes.For)


def _is_harmless(node: nodes.Node) -> bool:
    if isinstance(node, _GROWING):
        return False
    if isinstance(node, nodes.For):
        return not node.recursive
    if isinstance(node, nodes.Filter):
        return node.name in _FILTERS
    if isinstance(node, nodes.Call):
        callee = node.node
        names = _FUNCTIONS if isinstance(callee, nodes.Name) else _METHODS
        return _name_of(callee) in names
    if isinstance(node, nodes.Mod):  # the left side may be a format string with a width
        is_text = isinstance(node.left, nodes.Const) and isinstance(node.left.value, str)
        return not is_text and isinstance(node.right, nodes.Const) and isinstance(node.right.value, int)
    if isinstance(node, nodes.Const):
        return not isinstance(node.value, int) or abs(node.value) < 10**6
    return True


def _name_of(node: nodes.Node) -> str:
    return str(getattr(node, "name", getattr(node, "attr", "")))


def _joins(value: nodes.Node) -> bool:
    """Return whether a value may be longer than the variables in it."""
    for node in [value, *value.find_all(nodes.Node)]:
        if isinstance(node, nodes.Add | nodes.Sub):
            if not any(
                isinstance(side, nodes.Const) and isinstance(side.value, int)
                for side in (node.left, node.right)
            ):
                return True
        elif isinstance(node, nodes.Concat | nodes.Output | nodes.List) or _name_of(node) in (
            "replace",
            "join",
        ):
            return True
    return False


def _may_grow(node: nodes.Assign | nodes.AssignBlock, assigned: set[str]) -> bool:
    """Return whether an assignment makes a value longer from variables that were assigned themselves: a few
    such lines, or one in a loop, double a text again and again."""
    values = [node.node] if isinstance(node, nodes.Assign) else list(node.body)
    return bool(_names(*values) & assigned) and any(map(_joins, values))


def _names(*parts: nodes.Node) -> set[str]:
    """Return the names of variables; "namespace.attribute" for those of a namespace."""
    names = set()
    for part in parts:
        for node in [part, *part.find_all(nodes.Node)]:
            if isinstance(node, nodes.NSRef):
                names.add(f"{node.name}.{node.attr}")
            elif isinstance(node, nodes.Getattr) and isinstance(node.node, nodes.Name):
                names.add(f"{node.node.name}.{node.attr}")
            elif isinstance(node, nodes.Name):
                names.add(node.name)
    return names
