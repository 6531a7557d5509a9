"""Prompt templates (`prompts/*.md`) and the scenario's person as text.

`$domain` in a template is replaced by the file of the same name in the domain's own `prompts/` folder, if it
exists, so that everything about a domain stays in its folder. Constant text comes first, then the person:
siblings share the whole beginning of their prompts, and the calls of one dialogue differ only in what
follows. A folder of the user's own can replace any of the templates (`Prompts`).
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable
from functools import lru_cache
from importlib.resources import files
from pathlib import Path
from string import Template

from mapo.domain_folders import known_folder
from mapo.errors import InputError
from mapo.measure.rubric import Rubric
from mapo.scenarios.scenario import Beat, Scenario
from mapo.untrusted import parse_toml, read_file

_LANGUAGES = {
    "en": "English",
    "zh": "Chinese",
    "de": "German",
    "es": "Spanish",
    "fr": "French",
    "ja": "Japanese",
}

# "<" opens the special tokens of most chat templates and our own delimiters; others are "[INST]", "[gMASK]".
OPENERS = re.compile(r"<|\[(?=/?g?[A-Z]{3})")
_TEMPLATES = Path(str(files("mapo") / "sandbox" / "prompts"))
REMEMBERED = 8192
"""Texts of which a function keeps the result: prompts repeat the scenario and all earlier turns."""
OWN_NAME = "mapo"
"""The name of the shipped templates in manifests and records."""
_FRAGMENTS = {"read_turn": "judge_turn", "read_start": "judge_start", "read_act": "director"}
"""Templates that take the domain's text for another template."""
MAX_BYTES = 1 << 18
UNUSUAL = {"intent", "rank", "rank_ask", "explain_ask", "read_turn", "read_start", "read_act"}
"""Templates of roles that few runs have. The fingerprint leaves them out, so that runs without these roles
keep theirs."""
_OPTIONAL = {"domain", "language", "period"}
"""Placeholders that an own template may leave out."""


class Prompts:
    """The templates of a run: the files of `folder`, and the shipped ones for those it does not have.

    A folder is data from elsewhere. A file that is unknown, too large or not text, and a template that lacks
    a placeholder of the shipped one or has another, raises InputError here, before anything is played.
    """

    def __init__(self, folder: Path | None = None) -> None:
        self.name = folder.resolve().name if folder else OWN_NAME
        self._texts = {file.name: _read(file) for file in sorted(_TEMPLATES.iterdir())}
        if folder:
            self._texts |= _own_texts(folder, self._texts)
        self._tables = {
            name.removesuffix(".toml"): _parse_table(text)
            for name, text in self._texts.items()
            if name.endswith(".toml")
        }

    def fill(self, name: str, domain: str = "", **values: str | int) -> str:
        """Fill in the template `name`. A missing value raises KeyError."""
        template = Template(self._texts[f"{name}.md"])
        return template.substitute(values, domain=fragment(domain, name)).strip()

    def table(self, name: str) -> dict[str, str]:
        """Return a table of short texts by key."""
        return self._tables[name]

    def fingerprint(self, domain: str) -> str:
        """Return a hash of every template but the `UNUSUAL` ones, with what the domain adds to it."""
        return self._hash((file for file in self._texts if file.partition(".")[0] not in UNUSUAL), domain)

    def fingerprint_of(self, name: str, domain: str = "") -> str:
        """Return a hash of the templates whose name begins with `name`."""
        return self._hash((file for file in self._texts if file.startswith(name)), domain)

    def _hash(self, files: Iterable[str], domain: str) -> str:
        digest = hashlib.sha256()
        for file in sorted(files):
            for part in (file, self._texts[file], fragment(domain, file.removesuffix(".md"))):
                digest.update(len(part.encode()).to_bytes(8) + part.encode())
        return digest.hexdigest()[:16]


def fragment(domain: str, name: str) -> str:
    """Return the text that a domain adds to a template, empty if it has no such file."""
    folder = known_folder(domain)
    file = folder / "prompts" / f"{_FRAGMENTS.get(name, name)}.md" if folder else None
    return _read(file).strip() if file and file.is_file() else ""


@lru_cache
def _read(file: Path) -> str:
    return file.read_text(encoding="utf-8")


def _parse_table(text: str) -> dict[str, str]:
    return {key: str(value) for key, value in parse_toml(text).items()}


def _own_texts(folder: Path, shipped: dict[str, str]) -> dict[str, str]:
    """Read the templates of a folder and check them against the shipped ones."""
    fix = f"Start from a copy of a file in {_TEMPLATES}"
    try:
        files = sorted(file for file in folder.iterdir() if file.suffix in (".md", ".toml"))
    except OSError as error:
        raise InputError(
            f"the folder of prompts cannot be read ({error.strerror})", where=str(folder), fix=fix
        ) from None
    if not files:
        raise InputError("the folder holds no templates", where=str(folder), fix=fix)
    texts = {}
    for file in files:
        if file.name not in shipped:
            raise InputError(
                "there is no template of this name", where=str(file), fix=f"Known: {', '.join(shipped)}"
            )
        try:
            texts[file.name] = read_file(file, MAX_BYTES).decode("utf-8")
            problem = _template_problem(texts[file.name], shipped[file.name], table=file.suffix == ".toml")
        except (OSError, ValueError) as error:
            problem = f"cannot be read ({error})"
        if problem:
            raise InputError(problem, where=str(file), fix=fix)
    return texts


def _template_problem(text: str, shipped: str, *, table: bool) -> str:
    """Return what is wrong with an own template or table; empty if it can replace the shipped one."""
    if not table:
        return _placeholder_problem(text, shipped)
    own, known = _parse_table(text), _parse_table(shipped)
    if own.keys() != known.keys():
        return f"the keys are {', '.join(own) or 'missing'}; expected {', '.join(known)}"
    problems = (
        f"{key}: {problem}" for key in known if (problem := _placeholder_problem(own[key], known[key]))
    )
    return next(problems, "")


def _placeholder_problem(text: str, shipped: str) -> str:
    own, known = Template(text), set(Template(shipped).get_identifiers())
    if not own.is_valid():
        return "a '$' does not start a placeholder; write $$ for the character itself"
    used = set(own.get_identifiers())
    if unknown := sorted(used - known):
        return (
            f"unknown placeholder ${unknown[0]}; known: {', '.join(f'${x}' for x in sorted(known)) or 'none'}"
        )
    if missing := sorted(known - used - _OPTIONAL):
        return f"the placeholder ${missing[0]} is missing"
    return ""


DEFAULT_PROMPTS = Prompts()
"""The shipped templates."""


def language_of(scenario: Scenario) -> str:
    """Return the name of the scenario's language for a prompt."""
    return _LANGUAGES.get(scenario.language, f"the language with the code '{escaped(scenario.language)}'")


def persona_text(scenario: Scenario, rubric: Rubric) -> str:
    """Describe the person without the stages and memories that are revealed later."""
    persona = scenario.persona
    facts = {
        "Name": persona.name,
        "Age": "" if persona.age is None else str(persona.age),
        "Character": ", ".join(persona.traits),
        "Way of speaking": persona.speech,
        "Background": persona.background,
        "Topic": scenario.topic if scenario.topic != scenario.opening else "",
        "First words": scenario.opening,
        "Hopes for": scenario.hopes_for,
        "Threshold": scenario.threshold,
    }
    lines = [f"{name}: {escaped(text)}" for name, text in facts.items() if text]
    lines += [
        f"Need ({scenario.priorities[axis.key]}): {axis.title}. {axis.asks}"
        for axis in rubric.axes
        if axis.key in scenario.priorities
    ]
    return "\n".join(lines)


def full_persona(scenario: Scenario, rubric: Rubric) -> str:
    """Describe the person completely, with stages and memories numbered from 0, for director and judge."""
    lines = [persona_text(scenario, rubric)]
    if scenario.wants_to_say:
        lines.append(f"Wants to say: {escaped(scenario.wants_to_say)}")
    if scenario.stages:
        lines += ["", "Stages of the story, in order:"]
        lines += [f"{i} ({x.kind}) {escaped(x.title)}: {beat_text(x)}" for i, x in enumerate(scenario.stages)]
    if scenario.memories:
        lines += ["", "Memories:"]
        lines += [f"{i} ({x.period}): {beat_text(x)}" for i, x in enumerate(scenario.memories)]
    return "\n".join(lines)


def beat_text(beat: Beat) -> str:
    """Return what the person says in a beat, as one line."""
    return escaped(" ".join(beat.says))


@lru_cache(maxsize=REMEMBERED)
def escaped(text: str) -> str:
    """Escape scenario text for a prompt, so that it cannot start a line or open a special token.

    Text without line breaks and such openings is unchanged.
    """
    return "\n    | ".join(OPENERS.sub(lambda match: f"\\u{ord(match[0]):04x}", text).splitlines())
