"""mapo score: EPM-Q of recorded dialogues, recomputed from the judge's levels."""

from __future__ import annotations

import json
from pathlib import Path
from shlex import quote
from typing import Annotated

import typer

from mapo.cli.common.messages import say_all
from mapo.errors import InputError
from mapo.store import RunDir


def score(
    folder: Annotated[
        Path | None,
        typer.Argument(
            metavar="DIR",
            help="EMPA result files or mapo records: one model, or one folder per model. "
            "Default: the examples shipped with mapo.",
        ),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print a JSON list, one object per model.")] = False,
    profile: Annotated[
        str | None,
        typer.Option(help="Rules for the recomputation: published or released (default: as recorded)."),
    ] = None,
    by: Annotated[
        str | None, typer.Option(help="Break down by case, category, axis, difficulty or dialogue.")
    ] = None,
    rubric: Annotated[
        str | None, typer.Option(help="Name or TOML file of a rubric (default: as recorded).")
    ] = None,
    everything: Annotated[
        bool,
        typer.Option(
            "--all", help="Also show the nine sub-indices of EPM-Q, alignment and movement per axis."
        ),
    ] = False,
) -> None:
    """Compute EPM-Q of recorded dialogues from the judge's levels.

    Exit status: 0 success; 1 some files or lines could not be used (the rest is scored); 2 nothing to score.
    """
    from mapo.measure.rubric import Rubric
    from mapo.scoring import score as scoring

    folder = _examples() if folder is None else folder
    _refuse_model(folder)
    results = scoring.score(folder, profile=profile, by=by, rubric=Rubric.load(rubric) if rubric else None)
    if not results.models:
        say_all("error", results.bad, most=3)
        raise InputError("no dialogue in the folder could be scored", where=str(folder))
    if as_json:
        typer.echo(json.dumps([m.as_json() for m in results.models], indent=1, ensure_ascii=False))
    else:
        from mapo.scoring.tables import print_scoring

        print_scoring(results, everything=everything)
    from mapo.runs.contamination import notice_of
    from mapo.runs.files import read_object

    notices = (notice_of(read_object(RunDir(root).manifest)[0]) for root in _roots(folder))
    say_all("warning", [notice for notice in notices if notice])
    say_all("note", [_training_note(path, steps) for path, steps in results.trainings.items()])
    say_all("warning", [f"{line} (excluded)" for line in results.torn])
    say_all("error", results.bad)
    if results.bad:
        raise typer.Exit(1)


def _roots(folder: Path) -> list[Path]:
    """Return the run directories that dialogues in `folder` may belong to: itself, or two levels up."""
    if folder.name == "before":  # played before the training
        return []
    return [root for root in (folder, *folder.resolve().parents[:2]) if RunDir(root).manifest.is_file()]


def _refuse_model(folder: Path) -> None:
    from mapo.local_model.role_file import NAME as ROLE_FILE

    if not any((folder / name).is_file() for name in ("config.json", "adapter_config.json")):
        return
    if not (folder / ROLE_FILE).is_file() and (
        any(folder.glob("*.jsonl"))
        or any(folder.glob("*_result.json"))
        or any(folder.glob("*/*_result.json"))
    ):
        return
    raise InputError(
        "this is the folder of a model; mapo score needs recorded dialogues",
        where=str(folder),
        fix=f"Evaluate the model first: mapo eval empa --model local:{quote(str(folder))}",
    )


def _training_note(run: Path, steps: int) -> str:
    """Say that the dialogues of training steps were scored, and where the held-out test is."""
    count = f"{steps} steps" if steps > 1 else "1 step"
    note = f"{run}: these are the training dialogues of {count}, not a held-out result"
    if RunDir(run).eval_of("after").is_dir():
        return f"{note}. For that: mapo score {run / 'eval' / 'after'}, or mapo compare {run}"
    return f"{note}; there is none yet (eval/after)"


def _examples() -> Path:
    from importlib.resources import files

    return Path(str(files("mapo") / "data" / "examples"))
