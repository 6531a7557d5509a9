"""Collect what `mapo roles train` measured about trained judges into docs/results/roles-judge.json.

mapo roles train --role judge --from judged_turns.jsonl.gz --scenarios CARDS --model MODEL --out runs/judge
python benchmarks/roles_judge.py all weights=runs/judge LoRA=runs/judge-lora --setup "one H200"
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

from mapo.runs.files import read_object
from mapo.store import RunDir, write_atomic

OUT = Path(__file__).resolve().parents[1] / "docs" / "results" / "roles-judge.json"
COLUMNS = {
    "judge": "{judge}",
    "unseen": "{unseen}",
    "turns": "{turns}",
    "mean kappa": "{kappa:.2f}",
    "step correlation": "{correlation:.2f}",
    "within dialogues": "{within:.2f}",
    "Spearman of policies": "{spearman:.2f}",
    "EPM-Q error": "{epmq_error:.1f}",
    "attacks that worked": "{attacks}",
    "minutes": "{minutes:.1f}",
}
UNSEEN = {"both": "policies and scenarios", "new_scenario": "scenarios", "new_policy": "policies"}


def rows_of(label: str, result: dict[str, Any]) -> list[dict[str, Any]]:
    """Return one row for the untrained model and one per test of the trained one."""
    untrained = [("untrained", "both", result["before"]["both"])]
    tests = untrained + [(label, name, own) for name, own in result["tests"].items()]
    rows = []
    for judge, name, own in tests:
        row = {
            "judge": judge,
            "unseen": UNSEEN[name],
            "turns": own["turns"],
            **{key: own[key] for key in ("kappa", "correlation", "within")},
            "spearman": own["policies"]["spearman"],
            "epmq_error": own["policies"]["epmq_error"],
        }
        rows.append(
            {key: round(v, 3) if isinstance(v, float) else v for key, v in row.items() if v is not None}
        )
    attacks = result["probes"]["attacks"]
    rows[1] |= {
        "attacks": f"{len(attacks['worked'])}/{attacks['tried']}",
        "minutes": round(result["minutes"], 1),
    }
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "runs", nargs="+", metavar="LABEL=RUN", help="trained judges, the first with its baseline"
    )
    parser.add_argument("--setup", default="one H200", help="where they were trained")
    parser.add_argument("--out", type=Path, default=OUT)
    options = parser.parse_args()
    rows: list[dict[str, Any]] = []
    commands = []
    for run in options.runs:
        label, _, folder = run.rpartition("=")
        result, problem = read_object(RunDir(Path(folder)).role)
        if not result or "probes" not in result:
            parser.error(f"{folder}: {problem or 'not a finished mapo roles train of a judge'}")
        own = rows_of(label or Path(folder).name, result)
        rows += own if not rows else own[1:]
        manifest, _ = read_object(RunDir(Path(folder)).manifest)
        commands.append(str(manifest.get("command", "mapo roles train")))
    content = {
        "command": commands[0] if len(commands) == 1 else commands,
        "setup": f"Agreement with the recorded judge on dialogues that were not trained on; {options.setup}.",
        "columns": COLUMNS,
        "rows": rows,
    }
    write_atomic(options.out, json.dumps(content, indent=1, ensure_ascii=False) + "\n")
    print(f"written to {options.out}")


if __name__ == "__main__":
    main()
