"""Writer of EMPA result files, so that other tools can read the dialogues."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from mapo.measure.potential import Trajectory, moving_probabilities
from mapo.measure.rubric import Rubric
from mapo.records import encode
from mapo.store import write_atomic
from mapo.types import Dialogue, PotentialState, StopReason, Turn

_REASONS = {
    StopReason.SUCCESS: "Success",
    StopReason.FAILURE: "Failure",
    StopReason.STAGNATION: "Failure: stagnation",
    StopReason.TIMEOUT: "Reached max turns, timeout",
    StopReason.DIRECTOR: "Ended by the director",
    StopReason.USER: "Ended by the user",
    StopReason.LENGTH: "A context is full",
}


def write_result(dialogue: Dialogue, rubric: Rubric, folder: Path) -> Path:
    """Write `folder/ID_result.json` and return its path. Do not call it for broken dialogues."""
    path = result_path(dialogue, folder)
    write_atomic(path, encode(empa_result(dialogue, rubric), str(path)))
    return path


def result_path(dialogue: Dialogue, folder: Path) -> Path:
    return folder / f"{dialogue.id}_result.json"


def empa_result(dialogue: Dialogue, rubric: Rubric) -> dict[str, Any]:
    """Return the content of a result file. An unscored turn becomes an entry without judgement, which EMPA
    counts as no movement."""
    path = Trajectory(
        rubric,
        dialogue.start,
        dialogue.profile,
        goal=dialogue.goal,
        min_turns=dialogue.min_turns,
        max_turns=dialogue.max_turns,
    )
    start = path.now
    states = [path.judge(turn.levels, moving_probabilities(dialogue, turn)) for turn in dialogue.turns]
    goal, ending = path.goal, dialogue.ending
    reason = _REASONS.get(ending.reason, "") if ending else ""
    params = {
        "v_star_0": list(goal.direction),
        "epsilon_distance": goal.distance,
        "epsilon_direction": goal.crossing,
        "epsilon_energy": goal.energy,
        "E_total_final": round(path.now.energy_sum, 4),
    }
    levels = {key: mark.level for key, mark in dialogue.start_levels.items()}
    return {
        "total_turns": len(dialogue.turns),
        "termination_reason": f"{reason}: {', '.join(ending.detail)}" if ending and ending.detail else reason,
        "script_id": dialogue.scenario,
        "scenario": {"script_id": dialogue.scenario},
        "history": [line for turn in dialogue.turns for line in _lines(turn)],
        "test_model_name": dialogue.model,
        "actor_model": dialogue.cast.get("user", ""),
        "judger_model": dialogue.cast.get("judge", ""),
        "director_model": dialogue.cast.get("director", ""),
        "prompts": dialogue.prompts,
        "status": "success",
        "epj": {
            "P_0_initial_deficit": list(dialogue.start),
            "P_final_position": list(path.now.position),
            "trajectory": [
                _entry(start, None),
                *(_entry(s, t) for s, t in zip(states, dialogue.turns, strict=True)),
            ],
            "total_evaluations": sum(turn.levels is not None for turn in dialogue.turns),
            "K": 1,
            "epsilon": rubric.zone,
            "iedr_details": {
                "filled_iedr": levels,
                "P_0": list(dialogue.start),
                "source": "precomputed" if dialogue.goal else "mapo",
            },
            "epm_enabled": True,
            "epm_params": params,
            "epm_victory_analysis": {
                "primary_victory_type": ending.detail[0]
                if ending and ending.reason is StopReason.SUCCESS and ending.detail
                else None
            },
        },
    }


def _lines(turn: Turn) -> list[dict[str, str]]:
    return [{"role": "actor", "content": turn.user}, {"role": "test_model", "content": turn.reply.text}]


def _entry(state: PotentialState, turn: Turn | None) -> dict[str, Any]:
    entry: dict[str, Any] = {
        "turn": state.turn,
        "P_t": list(state.position),
        "v_t": list(state.step or (0,) * len(state.position)),
        "distance": state.distance,
        "in_zone": state.in_zone,
    }
    if turn is not None and turn.levels is not None:
        entry["mdep_analysis"] = {
            f"{key}_{kind}_{name}": value
            for key, marks in turn.levels.items()
            for kind, mark in (("Prog", marks.progress), ("Neg", marks.regression))
            for name, value in (
                ("level", mark.level),
                ("evidence", mark.evidence),
                ("reasoning", mark.reason),
            )
        }
    metrics = {"P_norm": state.norm, "projection": state.projection, "E_total": state.energy}
    movement = {"v_t_norm": state.step_norm, "alignment": state.alignment, "delta_E": state.delta_energy}
    return {**entry, "epm": {**metrics, **movement}}
