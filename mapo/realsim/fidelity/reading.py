"""The messages of real and of simulated users, from conversation files and from recorded dialogues.

The first message of a simulated dialogue is usually the scenario's and not the user's. It is left out on both
sides, so that both begin with the answer to a first reply.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from mapo.errors import InputError
from mapo.judges.sample import dialogue_files
from mapo.realsim.reading.read import read_sources
from mapo.sandbox.faults.manners import is_call_failure
from mapo.scoring.empa_files import read_dialogues_in
from mapo.store import BadLine, read_dialogues
from mapo.types import Dialogue

WHOLE = 100_000
"""Turns used of a real conversation: all of them, because its end counts too."""
_FIX = "Give run directories, or folders of EMPA result files"


@dataclass(frozen=True, slots=True)
class UserMessages:
    """What one user wrote in one dialogue. Dialogues about the same person share `group`."""

    group: str
    messages: tuple[str, ...]


def read_real(paths: Sequence[Path], person: str = "") -> tuple[list[UserMessages], list[str]]:
    """Read conversation files; return the people's messages, and the conversations that were skipped."""
    sources = read_sources(paths, person=person, window=WHOLE)
    users = [
        UserMessages(each.id, tuple(turn.text for turn in each.turns if turn.side == "person")[1:])
        for each in sources.conversations
    ]
    problems = [f"file {each.file}, line {each.line}: {each.text}" for each in sources.problems]
    return users, problems


def read_simulated(folders: Sequence[Path]) -> tuple[list[UserMessages], list[str]]:
    """Read run directories and folders of EMPA result files; return the users' messages, and problems."""
    users, problems = [], list[str]()
    for folder in folders:
        for dialogue in _dialogues(folder, problems):
            messages = tuple(turn.user for turn in dialogue.turns[1:] if not is_call_failure(turn.user))
            if dialogue.usable and messages:
                users.append(UserMessages(dialogue.scenario, messages))
    return users, problems


def _dialogues(folder: Path, problems: list[str]) -> Iterator[Dialogue]:
    for file in (files := dialogue_files(folder)):
        for item in read_dialogues(file):
            if isinstance(item, BadLine):
                problems.append(str(item))
            else:
                yield item
    before = len(problems)
    results = [] if files else list(read_dialogues_in(folder, problems))
    yield from results
    if not files and not results and len(problems) == before:
        raise InputError("no recorded dialogues", where=str(folder), fix=_FIX)
