"""MAPO on a real language model, among simulated people and judges that read: every stage of the comparison.

    python examples/real_proof/proof.py all --work runs/proof --model models/qwen2.5-coder-1.5b-instruct \\
        --cards CARDS --results RESULTS --turns judged_turns.jsonl.gz [--emobench DIR] [--eqbench DIR]

Later calls need only --work. A finished command is not repeated, an interrupted one continues. See README.md
beside this file for the stages, and proof.toml for the settings.
"""

from __future__ import annotations

import argparse
import sys
import tarfile
import time
from collections.abc import Callable
from pathlib import Path

import typer
from commands import OutOfTimeError, Runner
from stages import RUNNING, tidy
from study import Inputs, Study, kept_if_refused, open_study

from mapo.cli.common.stop import until_stopped
from mapo.errors import MapoError
from mapo.evals.processes import locked
from mapo.local_model.role_file import NAME as ROLE_FILE


def pairs(study: Study) -> None:
    from pairs import make_pairs

    print(f"{make_pairs(study)} pairs in {study.work / 'pairs'}")


def cost(study: Study) -> None:
    from report import write_cost

    print(f"{write_cost(study)} trainings in {study.results / 'cost.json'}")


def report(study: Study) -> None:
    from report import write_results

    tables = ", ".join(write_results(study)) or "no finished tests yet"
    print(f"{tables}: {study.work / 'report.md'}")


QUIET: dict[str, Callable[[Study], None]] = {"pairs": pairs, "cost": cost, "report": report}
"""Stages that run no model."""
STAGES = (*RUNNING, *QUIET)
LEFT_OUT = ("tensorboard", "empa", "logs", "cache.sqlite", "cache.sqlite-wal", "cache.sqlite-shm")
"""What `pack` leaves out: nothing that continues needs it."""
STOPPED = 3


def main() -> int:
    args = _arguments()
    inputs = {name: getattr(args, name) for name in Inputs.__dataclass_fields__}
    try:
        with locked(args.work, "stage"), kept_if_refused(args.work):
            study = open_study(args.work, args.settings, args.set, inputs)
            return _run(study, args)
    except MapoError as error:
        print(error, file=sys.stderr)
        return 2
    except typer.Exit as stop:  # a signal, after a message
        return stop.exit_code


def _run(study: Study, args: argparse.Namespace) -> int:
    if args.stage == "verdicts":
        from pairs import count_verdicts

        result = count_verdicts(study, args.file)
        print(", ".join(f"{key} {result[key]}" for key in ("trained", "base", "tie", "p")))
        return 0
    if args.stage == "pack":
        return _pack(study, args.file or Path(f"{study.work.resolve().name}.tar"), args.leave)
    if args.stage == "time":
        from costs import stage_seconds

        for name, seconds in stage_seconds(study).items():
            print(f"{seconds:8.0f} s  {name}")
        return 0
    deadline = None if args.minutes is None else time.monotonic() + 60 * args.minutes
    runner = Runner(study.work, args.jobs, deadline)
    chosen = STAGES if args.stage == "all" else (args.stage,)
    tidy(study)
    for name in chosen:
        print(f"== {name}", flush=True)
        if name in QUIET:
            QUIET[name](study)
            continue
        try:
            work = RUNNING[name](study, runner, args.only)
            until_stopped(work, study.work, lambda: "finished commands are kept", command="the same command")
        except OutOfTimeError:
            print(f"stopped in stage {name} after {args.minutes:g} minutes; run the same command to continue")
            return STOPPED
        if runner.failed:
            for command, problem in runner.failed.items():
                print(f"failed: {command}: {problem} ({study.work / 'logs' / command}.log)", file=sys.stderr)
            return 1
    return 0


def _pack(study: Study, out: Path, leave: list[str]) -> int:
    """Write what another machine needs to continue, without the model itself and the folders in `leave`."""

    def wanted(info: tarfile.TarInfo) -> tarfile.TarInfo | None:
        path = Path(*Path(info.name).parts[1:])
        over = any(
            folder.name == "checkpoints" and _finished(study, folder) for folder in (path, *path.parents)
        )
        unwanted = set(path.parts) & set(LEFT_OUT) or path.parts[:1] in [(name,) for name in leave]
        return None if over or unwanted else info

    with tarfile.open(out, "w") as archive:
        archive.add(study.work, arcname=study.work.resolve().name, filter=wanted)
    print(f"{out}: {out.stat().st_size / 1e6:.1f} MB; unpack it beside the model and run the same command")
    return 0


def _finished(study: Study, checkpoints: Path) -> bool:
    """Return whether a training or role is complete, so that its checkpoints are not needed."""
    return any((study.work / checkpoints.parent / name).exists() for name in ("summary.json", ROLE_FILE))


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("stage", choices=[*STAGES, "all", "verdicts", "pack", "time"])
    parser.add_argument("--work", type=Path, required=True, help="folder of everything that is written")
    parser.add_argument("--settings", type=Path, help="settings of the study (default: proof.toml)")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="change a setting")
    parser.add_argument(
        "--only", action="append", default=[], metavar="NAME", help="only these commands, as mapo_0"
    )
    parser.add_argument("--minutes", type=float, help=f"stop cleanly after this time, with status {STOPPED}")
    parser.add_argument("--jobs", type=int, default=1, help="commands at a time on this machine")
    parser.add_argument("--model", help="folder of the language model")
    parser.add_argument("--cards", help="folder of EMPA's cards, or of scenarios (data.official=false)")
    parser.add_argument("--results", help="EMPA result files: start levels, and recordings of a director")
    parser.add_argument("--turns", help="file of judged turns (docs/roles.md)")
    parser.add_argument("--emobench", help="checkout of EmoBench (docs/benchmarks.md)")
    parser.add_argument("--eqbench", help="checkout of EQ-Bench v2")
    parser.add_argument(
        "--prices", help='JSON file {"model": [prompt, cached, completion]} per million tokens'
    )
    parser.add_argument("--leave", action="append", default=[], metavar="FOLDER", help="not to be packed")
    parser.add_argument("--file", type=Path, help="verdicts to count, or the archive to pack")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
