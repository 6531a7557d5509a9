"""The role that a model was trained for: `mapo_role.json` in its folder.

`mapo roles train` writes it. It says which role, rubric and layout of the prompts the model learned, so that
it is not asked for anything else, and how a judge's probabilities are calibrated. Model folders come from
anywhere: the file is checked before anything in it is used.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal, get_args

from mapo.errors import InputError
from mapo.measure.calibration import Calibration
from mapo.measure.rubric import Rubric
from mapo.records import encode
from mapo.runs.claim import digest
from mapo.sandbox.readout import BRIEF, LAYOUT, turn_places
from mapo.store import write_atomic
from mapo.untrusted import parse_json, read_file

NAME = "mapo_role.json"
SCHEMA = "mapo.role/1"
MAX_BYTES = 1 << 20
Role = Literal["judge", "user", "director"]
ROLES: tuple[Role, ...] = get_args(Role)
_FIX = "Train the role again with mapo roles train, or remove the file"


@dataclass(frozen=True, slots=True)
class RoleFile:
    """What a model was trained to play. `trained_on` describes the recordings, without their text."""

    role: Role
    rubric: str
    rubric_sha: str
    layout: int = LAYOUT
    calibration: Calibration = field(default_factory=Calibration)
    trained_on: dict[str, Any] = field(default_factory=dict)


def rubric_fingerprint(rubric: Rubric) -> str:
    """Return a hash of what a role learns of a rubric: its axes and indicators."""
    return digest({key: rubric.measure[key] for key in ("axes", "indicators")})


def write_role_file(folder: Path, role: RoleFile) -> None:
    """Write the file into a model folder."""
    content = {"schema": SCHEMA, **asdict(role), "calibration": role.calibration.to_json()}
    write_atomic(folder / NAME, encode(content, str(folder / NAME)) + b"\n")


def read_role_file(folder: Path) -> RoleFile | None:
    """Return the role of the model in a folder, None if it was not trained for one. Raises InputError if
    the file is damaged."""
    path = folder / NAME
    if not path.exists():
        return None
    try:
        data = parse_json(read_file(path, MAX_BYTES))
        if not isinstance(data, dict) or data.get("schema") != SCHEMA or data.get("role") not in ROLES:
            raise ValueError(f"not a {SCHEMA} object of a known role")
        rubric, sha = data["rubric"], data["rubric_sha"]
        if not (isinstance(rubric, str) and isinstance(sha, str)) or type(data["layout"]) is not int:
            raise ValueError("its rubric or layout is not named")
        if not isinstance(trained_on := data.get("trained_on", {}), dict):
            raise ValueError("trained_on is not an object")
        calibration = Calibration.from_json(data["calibration"], _counts(data["calibration"]), str(path))
    except InputError:
        raise
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise InputError(f"the file cannot be read ({error})", where=str(path), fix=_FIX) from None
    return RoleFile(data["role"], rubric, sha, data["layout"], calibration, trained_on)


def _counts(calibration: Any) -> list[int]:
    """Return the number of levels per place that a calibration was fitted for; the rubric decides later."""
    return [len(cuts) + 1 for cuts in calibration["cuts"]]


def check_role(file: RoleFile, role: str, rubric: Rubric, where: str) -> None:
    """Raise InputError unless the model was trained for this role, rubric and layout."""
    if file.role != role:
        raise InputError(
            f"the model was trained to be a {file.role}, not a {role}",
            where=where,
            fix=f"Use another model as {role}",
        )
    if file.rubric_sha != rubric_fingerprint(rubric):
        scripted = ". In a config, roles.judge.model='' is the scripted judge" if role == "judge" else ""
        raise InputError(
            f"the {role} was trained for the rubric '{file.rubric}' as it was then, not for '{rubric.name}'",
            where=where,
            fix=f"Train it on recordings of this rubric, or use another model{scripted}",
        )
    if file.layout != LAYOUT and (role, file.layout) != ("judge", BRIEF):
        raise InputError(
            f"the {role} was trained for prompts of layout {file.layout}, which this version does not have",
            where=where,
            fix="Train it again with this version",
        )
    expected = [len(place.options) for place in turn_places(rubric)]
    if role == "judge":
        Calibration.from_json(file.calibration.to_json(), expected, where)
