"""mapo score"""

from __future__ import annotations

import json
from pathlib import Path
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
            "Without it, the examples shipped with mapo.",
        ),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print a JSON list, one object per model.")] = False,
    profile: Annotated[
        str | None,
        typer.Option(help="Rules to recompute by: published or released. (default: the record's own)"),
    ] = None,
    by: Annotated[str | None, typer.Option(help="Break down by case, category or axis.")] = None,
    rubric: Annotated[
        str | None, typer.Option(help="A rubric's name or TOML file (default: as recorded).")
    ] = None,
    everything: Annotated[
        bool, typer.Option("--all", help="Also show the nine sub-indices of EPM-Q.")
    ] = False,
) -> None:
    """Compute EPM-Q of recorded dialogues from the judge's levels.

    Exit status: 0 success; 1 some files or lines could not be used (the rest is scored); 2 nothing to score.
    """
    from mapo.measure.rubric import Rubric
    from mapo.scoring import score as scoring

    chosen = Rubric.load(rubric) if rubric else None
    folder = _examples() if folder is None else folder
    found = scoring.score(folder, profile=profile, by=by, rubric=chosen)
    if as_json:
        typer.echo(json.dumps([m.as_json() for m in found.models], indent=1, ensure_ascii=False))
    else:
        from mapo.scoring.tables import print_scoring

        print_scoring(found, everything=everything)
    say_all("note", [_of_training(path, steps) for path, steps in found.trainings.items()])
    say_all("warning", [f"{line} (left out)" for line in found.torn])
    say_all("error", found.bad)
    if not found.models:
        raise InputError("no dialogue in it could be scored", where=str(folder))
    if found.bad:
        raise typer.Exit(1)


def _of_training(run: Path, steps: int) -> str:
    many = f"{steps} steps" if steps > 1 else "1 step"
    told = f"{run}: scored are the training dialogues of {many}; they are no held-out result"
    if RunDir(run).eval_of("after").is_dir():
        return f"{told}. For that: mapo score {run / 'eval' / 'after'}, or mapo compare {run}"
    return f"{told}, and there is none yet (eval/after)"


def _examples() -> Path:
    from importlib.resources import files

    return Path(str(files("mapo") / "data" / "examples"))
