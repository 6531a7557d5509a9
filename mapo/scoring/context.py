"""The context a score must be read in: judge, user, director, their prompts and the scenario set."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass

from mapo.config import EMPA_PROMPTS
from mapo.domain_folders import DEFAULT, known_folder
from mapo.errors import InputError
from mapo.sandbox.prompting import OWN_NAME
from mapo.scenarios.sets import BUILTIN, MANIFEST, SPLITS, read_manifest
from mapo.scoring.reference import reference_text
from mapo.scoring.result import Result
from mapo.scripted.world import SCRIPTED, World, scripted_notice, world_notice, world_of
from mapo.types import Dialogue

UNKNOWN = "unknown"
ROLES = ("user", "director", "judge")
_OR = " or "
_NOT_COMPARABLE = "so the score does not compare with published EMPA scores (use --prompts empa)"


@dataclass(frozen=True, slots=True)
class ScoreContext:
    """Who played user, director and judge, with which prompts, and which scenarios were played."""

    domain: str
    user: str
    director: str
    judge: str
    scenarios: str
    prompts: str = ""
    """Name and fingerprint of the prompts of models; empty if they were not recorded."""

    @property
    def scripted_roles(self) -> list[str]:
        """Roles that were scripted in at least one dialogue."""
        return [role for role in ROLES if SCRIPTED in getattr(self, role).split(_OR)]

    @property
    def world(self) -> World | None:
        """The test world, if the people were scripted."""
        return world_of(self.domain, {role: getattr(self, role) for role in ROLES})

    @property
    def notice(self) -> str:
        """The sentence that stands above a score from a scripted user or judge; empty for other scores."""
        roles = self.scripted_roles
        if not {"user", "judge"} & set(roles):
            return ""
        if self.world:
            return world_notice([self.world])
        return scripted_notice(
            [self.domain], f"{_joined(roles)} {'is' if len(roles) == 1 else 'are'} scripted"
        )

    @property
    def prompts_note(self) -> str:
        """Whose prompts the models had, where a score would otherwise be taken for one of EMPA's benchmark;
        empty for other domains, for scripted roles and for EMPA's result files."""
        if self.domain != DEFAULT or {"user", "judge"} & set(self.scripted_roles):
            return ""
        names = list(dict.fromkeys(id_.rpartition(" ")[0] or id_ for id_ in self.prompts.split(_OR)))
        if names == [EMPA_PROMPTS]:
            return "Prompts: EMPA's own" if " " in self.prompts else ""
        if names == [""]:
            return f"Prompts: not recorded. mapo's own judge more mildly than EMPA's, {_NOT_COMPARABLE}"
        if names == [OWN_NAME]:
            return f"Prompts: mapo's own, which judge more mildly than EMPA's, {_NOT_COMPARABLE}"
        return f"Prompts: {_OR.join(names)}, not EMPA's, {_NOT_COMPARABLE}"

    @property
    def reference(self) -> str:
        """The reference scores of the test world as a sentence; empty for other worlds."""
        return reference_text(self.world) if self.world else ""

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
        """Return roles, scenario set and prompts in one line."""
        named = "scenarios: " if self.scenarios.startswith(BUILTIN) else ""
        line = f"{self.roles}; {named}{self.scenarios}"
        return ". ".join(filter(None, [line[0].upper() + line[1:], self.prompts_note]))


def context_of_results(results: Sequence[Result]) -> ScoreContext:
    """Return the context of recomputed dialogues of one rubric."""
    domain = results[0].path.rubric.name if results else ""
    return _context(domain, [(r.cast, r.prompts) for r in results], {r.case for r in results})


def context_of_dialogues(dialogues: Sequence[Dialogue]) -> ScoreContext:
    """Return the context of dialogues of one rubric."""
    domain = dialogues[0].rubric if dialogues else ""
    return _context(domain, [(d.cast, d.prompts) for d in dialogues], {d.scenario for d in dialogues})


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


def _context(
    domain: str, casts: Sequence[tuple[Mapping[str, str], str]], cases: Iterable[str]
) -> ScoreContext:
    """Return the context of dialogues, given by their casts and prompts."""

    def player(role: str) -> str:
        names = dict.fromkeys(cast.get(role) or UNKNOWN for cast, _ in casts)
        return _OR.join(names) or UNKNOWN

    prompts = _OR.join(dict.fromkeys(prompts for _, prompts in casts))
    players = player("user"), player("director"), player("judge")
    return ScoreContext(domain, *players, scenario_set(domain, cases), prompts)


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
