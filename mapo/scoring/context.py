"""The context a score must be read in: judge, user, director and scenario set."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass

from mapo.domain_folders import known_folder
from mapo.errors import InputError
from mapo.scenarios.sets import BUILTIN, MANIFEST, SPLITS, read_manifest
from mapo.scoring.reference import reference_text
from mapo.scoring.result import Result
from mapo.scripted.notice import scripted_world
from mapo.types import Dialogue

SCRIPTED = "scripted"
UNKNOWN = "unknown"
ROLES = ("user", "director", "judge")
_OR = " or "


@dataclass(frozen=True, slots=True)
class ScoreContext:
    """Who played user, director and judge, and which scenarios were played."""

    domain: str
    user: str
    director: str
    judge: str
    scenarios: str

    @property
    def scripted_roles(self) -> list[str]:
        """Roles that were scripted in at least one dialogue."""
        return [role for role in ROLES if SCRIPTED in getattr(self, role).split(_OR)]

    @property
    def notice(self) -> str:
        """The sentence that stands above a score from a scripted user or judge; empty for other scores."""
        roles = self.scripted_roles
        if not {"user", "judge"} & set(roles):
            return ""
        return scripted_world([self.domain], f"{_joined(roles)} {'is' if len(roles) == 1 else 'are'}")

    @property
    def reference(self) -> str:
        """The reference scores of the scripted world as a sentence; empty for other worlds."""
        everyone = {getattr(self, role) for role in ROLES}
        return reference_text(self.domain) if everyone == {SCRIPTED} else ""

    @property
    def roles(self) -> str:
        """Judge, user and director in one line. Roles with the same player are joined."""
        players: dict[str, list[str]] = {}
        for role in ("judge", "user", "director"):
            players.setdefault(getattr(self, role), []).append(role)
        return "; ".join(f"{_joined(roles)}: {player}" for player, roles in players.items())

    def as_json(self) -> dict[str, str]:
        return asdict(self)

    def describe(self) -> str:
        """Return roles and scenario set in one line."""
        named = "scenarios: " if self.scenarios.startswith(BUILTIN) else ""
        line = f"{self.roles}; {named}{self.scenarios}"
        return line[0].upper() + line[1:]


def context_of_results(results: Sequence[Result]) -> ScoreContext:
    """Return the context of recomputed dialogues of one rubric."""
    domain = results[0].path.rubric.name if results else ""
    return _context(domain, [r.cast for r in results], {r.case for r in results})


def context_of_dialogues(dialogues: Sequence[Dialogue]) -> ScoreContext:
    """Return the context of dialogues of one rubric."""
    domain = dialogues[0].rubric if dialogues else ""
    return _context(domain, [d.cast for d in dialogues], {d.scenario for d in dialogues})


def scenario_set(domain: str, cases: Iterable[str]) -> str:
    """Name a set of scenarios: "builtin:test (12 scenarios)", or only their number for other sets."""
    chosen = set(cases)
    number = f"{len(chosen)} scenario{'' if len(chosen) == 1 else 's'}"
    splits = _builtin_splits(domain)
    for name, members in {**splits, "all": set().union(*splits.values())}.items():
        if chosen and chosen == members:
            return f"{BUILTIN}{name} ({number})"
        if chosen and chosen < members:
            return f"{BUILTIN}{name} ({len(chosen)} of {len(members)} scenarios)"
    return number


def _context(domain: str, casts: Sequence[Mapping[str, str]], cases: Iterable[str]) -> ScoreContext:
    def player(role: str) -> str:
        names = dict.fromkeys(cast.get(role) or UNKNOWN for cast in casts)
        return _OR.join(names) or UNKNOWN

    return ScoreContext(
        domain, player("user"), player("director"), player("judge"), scenario_set(domain, cases)
    )


def _builtin_splits(domain: str) -> dict[str, set[str]]:
    folder = known_folder(domain)
    if folder is None or not (folder / MANIFEST).is_file():
        return {}
    try:
        splits = read_manifest(folder / MANIFEST)
    except InputError:
        return {}  # a damaged manifest is reported where scenarios are loaded; here only the name is missing
    return {name: set(splits[name]) for name in SPLITS if name in splits}


def _joined(names: Sequence[str]) -> str:
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"
