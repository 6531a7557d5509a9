"""MAPO on a real language model, among simulated people and judges that read: every stage of the comparison.

    python examples/real_proof/proof.py all --work runs/proof --model models/qwen2.5-coder-1.5b-instruct \\
        --cards CARDS --results RESULTS --turns judged_turns.jsonl.gz [--emobench DIR] [--eqbench DIR]

Later calls need only --work. A finished command is not repeated, an interrupted one continues. See README.md
beside this file for the stages, and proof.toml for the settings.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable
from pathlib import Path

import typer
from commands import OutOfTimeError, Runner
from packing import pack, seconds_to_pack, unpack
from stages import RUNNING, tidy
from study import Inputs, Study, kept_if_refused, open_study

from mapo.cli.common.stop import until_stopped
from mapo.errors import InputError, MapoError
from mapo.evals.processes import SECONDS_TO_END, locked


def pairs(study: Study) -> None:
    from pairs import make_pairs

    print(f"{make_pairs(study)} pairs in {study.work / 'pairs'}")


def report(study: Study) -> None:
    from pooling import write_scores
    from report import write_results

    write_scores(study)
    tables = ", ".join(write_results(study)) or "no finished tests yet"
    print(f"{tables}: {study.work / 'report.md'}")


QUIET: dict[str, Callable[[Study], None]] = {"pairs": pairs, "report": report}
"""Stages that run no model."""
STAGES = (*RUNNING, *QUIET)
REQUIRED = ("prepare", "judges", "people", "tune")
"""Without these stages the later ones cannot begin. The others go on with what there is."""
STOPPED = 3
SECONDS_OF_GROWTH = 20
"""How much longer packing takes than it would have at the beginning."""


def main() -> int:
    args = _arguments()
    inputs = {name: getattr(args, name) for name in Inputs.__dataclass_fields__}
    try:
        if not args.part_mb >= 0.001:  # without content in its parts, the archive would be empty
            raise InputError("--part-mb is too small", fix="Give the size of a part in MB, such as 50")
        if args.stage == "unpack":
            unpack(args.work, _file(args))
            return 0
        if args.stage == "pool":
            return _pool(args)
        with locked(args.work, "stage"), kept_if_refused(args.work):
            study = open_study(args.work, args.settings, args.set, inputs)
            tidy(study)
            return _run(study, args)
    except MapoError as error:
        print(error, file=sys.stderr)
        return 2
    except typer.Exit as stop:  # a signal, after a message
        return stop.exit_code


def _pool(args: argparse.Namespace) -> int:
    from pooling import pool

    if not args.scores:
        raise InputError("--scores is missing", fix="Name the files results/scores.json of several studies")
    print(pool(args.scores, args.work))
    return 0


def _run(study: Study, args: argparse.Namespace) -> int:
    if args.stage == "verdicts":
        from pairs import count_verdicts

        result = count_verdicts(study, args.file)
        print(", ".join(f"{key} {result[key]}" for key in ("trained", "base", "tie", "p")))
    elif args.stage == "pack":
        _pack(study, _file(args), args)
    elif args.stage == "time":
        from costs import stage_seconds

        for name, seconds in stage_seconds(study).items():
            print(f"{seconds:8.0f} s  {name}")
    else:
        try:
            return _run_stages(study, args)
        finally:
            if args.pack is not None:
                tidy(study)
                _pack(study, args.pack, args)
    return 0


def _run_stages(study: Study, args: argparse.Namespace) -> int:
    runner = Runner(study.work, args.jobs, _deadline(study, args), args.only)
    for name in STAGES if args.stage == "all" else (args.stage,):
        print(f"== {name}", flush=True)
        if name in QUIET:
            QUIET[name](study)
            continue
        try:
            work = RUNNING[name](study, runner)
            until_stopped(work, study.work, lambda: "finished commands are kept", command="the same command")
        except OutOfTimeError:
            print(f"stopped in stage {name} within {args.minutes:g} minutes; run the same command to go on")
            return STOPPED
        if runner.failed and name in REQUIRED:
            break
    for command, problem in runner.failed.items():
        print(f"failed: {command}: {problem} ({study.work / 'logs' / command}.log)", file=sys.stderr)
    return 1 if runner.failed else 0


def _deadline(study: Study, args: argparse.Namespace) -> float | None:
    """Return when the commands are stopped: early enough to end them, and to pack, within --minutes."""
    if args.minutes is None:
        return None
    seconds = 60 * float(args.minutes)
    spare = SECONDS_TO_END + (0 if args.pack is None else SECONDS_OF_GROWTH + seconds_to_pack(study))
    return time.monotonic() + max(seconds - spare, seconds / 2)


def _pack(study: Study, file: Path, args: argparse.Namespace) -> None:
    parts = pack(study, file, everything=args.everything, part_bytes=int(1e6 * args.part_mb))
    size = sum(part.stat().st_size for part in parts) / 1e6
    print(f"{file}: {size:.1f} MB in {len(parts)} files, and their index {file}.json")


def _file(args: argparse.Namespace) -> Path:
    if args.file is None:
        raise InputError("--file is missing", fix="Give the name of the archive: --file proof.tar.gz")
    return Path(args.file)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("stage", choices=[*STAGES, "all", "verdicts", "pack", "unpack", "time", "pool"])
    parser.add_argument("--work", type=Path, required=True, help="folder of everything that is written")
    parser.add_argument("--settings", type=Path, help="settings of the study (default: proof.toml)")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="change a setting")
    parser.add_argument(
        "--only", action="append", default=[], metavar="NAME", help="only these commands, as mapo_0"
    )
    parser.add_argument(
        "--minutes", type=float, help=f"end cleanly within this time, with status {STOPPED} if work is left"
    )
    parser.add_argument("--pack", type=Path, metavar="FILE", help="pack at the end, within --minutes")
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
    parser.add_argument("--file", type=Path, help="verdicts to count, or the archive of pack and unpack")
    parser.add_argument(
        "--scores", type=Path, nargs="+", default=[], help="scores.json of the studies that pool reads"
    )
    parser.add_argument("--everything", action="store_true", help="pack what only a reader needs, too")
    parser.add_argument("--part-mb", type=float, default=50, help="largest file of an archive (default: 50)")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
