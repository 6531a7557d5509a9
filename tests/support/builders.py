"""Small builders used by several tests."""

from __future__ import annotations

from collections.abc import Mapping

from mapo import AxisMarks, Dialogue, Mark, Reply, Rubric, Trajectory, Turn
from mapo.types import Ending, Levels


def form(levels: Mapping[str, int] | None, keys: str = "CAP") -> Levels:
    """The published data's flat levels as a turn form; absent judgements and keys count as 0."""
    levels = levels or {}
    return {k: AxisMarks(Mark(levels.get(f"{k}_Prog", 0)), Mark(levels.get(f"{k}_Neg", 0))) for k in keys}


def marks(rubric: Rubric, progress: int, regression: int = 0) -> Levels:
    """The same two levels on every axis."""
    return rubric.levels(**dict.fromkeys(rubric.keys, (progress, regression)))


def walk(path: Trajectory, forms: list[Levels | None]) -> Ending | None:
    """Advance until an ending or the last form."""
    for item in forms:
        path.judge(item)
        if ending := path.ending():
            return ending
    return None


def dialogue(rubric: Rubric, forms: list[Levels | None], level: int = 2, **kw) -> Dialogue:
    """A recorded dialogue as play() would leave it, with all start indicators at `level`."""
    start = {i.key: Mark(level) for i in rubric.indicators}
    path = Trajectory(rubric, rubric.start(start))
    turns, ending = [], None
    for number, item in enumerate(forms, 1):
        state = path.judge(item)
        turns.append(
            Turn(f"line {number}", Reply(f"reply {number}"), item, state, unscored=None if item else "x")
        )
        ending = path.ending()
    known = {
        "id": "d1",
        "scenario": "s1",
        "model": "m",
        "start_levels": start,
        "start": path.start,
        "turns": tuple(turns),
        "ending": ending,
        "rubric": rubric.name,
        "profile": "published",
    }
    return Dialogue(**{**known, **kw})


def empa_result(case: str = "script_001", forms: int = 12, level: int = 2) -> dict:
    """A made-up result file of the EMPA format, consistent: steady progress, one failed judgement."""
    rubric = Rubric.load("empathy")
    start = {i.key: level for i in rubric.indicators}
    path = Trajectory(rubric, rubric.start(start))
    goal = path.goal
    trajectory: list[dict] = [{"turn": 0, "P_t": list(path.start), "v_t": [0, 0, 0]}]
    for number in range(1, forms + 1):
        failed = number == 2
        flat = {}
        for key in rubric.keys:
            flat |= {f"{key}_Prog_level": 2, f"{key}_Prog_evidence": "e", f"{key}_Prog_reasoning": "r"}
            flat |= {f"{key}_Neg_level": 0, f"{key}_Neg_evidence": "0", f"{key}_Neg_reasoning": "r"}
        state = path.advance((0.0,) * 3 if failed else rubric.step(marks(rubric, 2)))
        entry = {
            "turn": number,
            "P_t": [int(x) for x in state.position],
            "v_t": [int(x) for x in state.step or ()],
            "distance": state.distance,
            "in_zone": state.in_zone,
            "epm": {
                "v_t_norm": state.step_norm,
                "alignment": state.alignment,
                "delta_E": state.delta_energy,
                "E_total": state.energy,
                "P_norm": state.norm,
                "projection": state.projection,
            },
        }
        trajectory.append(entry if failed else {**entry, "mdep_analysis": flat})
    return {
        "script_id": case,
        "status": "success",
        "termination_reason": "Success: Positional Victory",
        "epj": {
            "K": 1,
            "epsilon": 1.0,
            "P_0_initial_deficit": [int(x) for x in path.start],
            "trajectory": trajectory,
            "iedr_details": {"filled_iedr": start, "source": "precomputed"},
            "epm_params": {
                "v_star_0": list(goal.direction),
                "epsilon_distance": goal.distance,
                "epsilon_direction": goal.crossing,
                "epsilon_energy": goal.energy,
            },
        },
    }
