"""mapo roles train: train a judge, user or director on what a recorded cast did."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Annotated

import typer

from mapo.cli.common.messages import say, say_all
from mapo.cli.common.options import Domain
from mapo.cli.common.stop import resume_command


def train(
    role: Annotated[str, typer.Option(help="judge, user or director.")],
    sources: Annotated[
        list[Path],
        typer.Option(
            "--from", help="Run directory, folder of EMPA result files, or file of judged turns; repeatable."
        ),
    ],
    model: Annotated[str, typer.Option(help="Folder of the model to start from.")],
    out: Annotated[Path, typer.Option(help="Folder for the trained model, its report and metrics.")],
    scenarios: Annotated[str, typer.Option(help="Scenarios of the recordings.")] = "builtin:all",
    domain: Domain = None,
    lora: Annotated[int, typer.Option(min=0, help="Rank of LoRA adapters; 0 trains all weights.")] = 0,
    epochs: Annotated[float, typer.Option(min=0.1, help="Passes over the recordings, at most.")] = 3.0,
    lr: Annotated[
        float | None, typer.Option(min=1e-9, help="Learning rate (default: 1e-5, with LoRA 1e-4).")
    ] = None,
    tokens: Annotated[int, typer.Option(min=64, help="Tokens per optimizer step.")] = 24576,
    balance: Annotated[
        float, typer.Option(min=0, max=1, help="Weight of rare answers: inverse frequency to this power.")
    ] = 0.5,
    additions: Annotated[
        float, typer.Option(min=0, max=1, help="Share of turns with an added worthless reply (judges).")
    ] = 0.15,
    reasons: Annotated[
        int, typer.Option(min=0, help="Recorded reasons per turn to learn as text (judges).")
    ] = 0,
    folds: Annotated[int, typer.Option(min=1, help="Cross-validation with this many splits.")] = 1,
    test: Annotated[
        list[Path] | None,
        typer.Option(
            help="Recordings of other scenarios to test on, instead of the shares held out; repeatable."
        ),
    ] = None,
    test_policies: Annotated[float, typer.Option(min=0, max=0.9, help="Share of policies held out.")] = 0.25,
    test_scenarios: Annotated[
        float, typer.Option(min=0.01, max=0.9, help="Share of scenarios held out.")
    ] = 0.2,
    seed: Annotated[int, typer.Option(help="Seed of the split and of training.")] = 0,
    refit: Annotated[
        bool, typer.Option("--refit/--no-refit", help="Train the written model on all recordings.")
    ] = True,
    judge: Annotated[
        str, typer.Option(help="local:DIR of a trained judge, for dialogues that a trained user replays.")
    ] = "",
    brief: Annotated[
        bool,
        typer.Option(
            "--brief", help="Show a judge the conversation only; files of judged turns need no scenarios."
        ),
    ] = False,
    max_minutes: Annotated[float | None, typer.Option(min=0.1, help="Time limit of each training.")] = None,
    save_minutes: Annotated[
        float, typer.Option(min=0, help="Time between checkpoints, from which a killed run continues.")
    ] = 10.0,
    device: Annotated[str, typer.Option(help="auto, cpu or cuda.")] = "auto",
    resume: Annotated[bool, typer.Option("--resume", help="Continue a run that was stopped.")] = False,
) -> None:
    """Train a local model to play a role as recorded, and measure it on scenarios and policies it has not
    seen.

    Exit status: 0 success; 2 bad input; 130 interrupted (continue with --resume).
    """
    from mapo.errors import InputError
    from mapo.local_model.requirements import require_torch
    from mapo.local_model.shipped import local_folder

    require_torch()
    from mapo.domain_folders import domain_folder
    from mapo.local_model.devices import has_gpu
    from mapo.measure.rubric import Rubric
    from mapo.report import write
    from mapo.report.role import role_report, role_tables
    from mapo.roles.learning import Settings
    from mapo.roles.recordings import read_all
    from mapo.roles.run import Options, train_role
    from mapo.scenarios.sets import load_scenarios
    from mapo.show.tables import print_tables
    from mapo.store import RunDir

    if role not in ("judge", "user", "director"):
        raise InputError(f"unknown role '{role}'", where="--role", fix="Use judge, user or director")
    if judge and role != "user":
        raise InputError("only for users", where="--judge", fix="Remove it, or use --role user")
    if brief and role != "judge":
        raise InputError("only for judges", where="--brief", fix="Remove it, or use --role judge")
    if device not in ("auto", "cpu", "cuda"):
        raise InputError(f"unknown device '{device}'", where="--device", fix="Use auto, cpu or cuda")
    source = model.removeprefix("local:")
    if not local_folder(source).is_dir():
        raise InputError("there is no such folder", where=f"--model {source}", fix="Give a model's folder")
    if device == "cuda" and not has_gpu():
        raise InputError("torch finds no GPU here", where="--device cuda", fix="Use --device cpu or auto")
    known = load_scenarios(scenarios, domain)
    rubric = Rubric.load(domain_folder(known[0].domain))
    recordings = read_all(sources, {s.id: s for s in known}, rubric, brief=brief)
    tests = read_all(test, {s.id: s for s in known}, rubric, brief=brief) if test else None
    say_all("warning", [*recordings.problems, *(tests.problems if tests else ())])
    settings = Settings(
        epochs=epochs,
        lr=lr or (1e-4 if lora else 1e-5),
        tokens=tokens,
        balance=balance,
        text_weight=1.0 if role == "user" else 0.2,
        seed=seed,
        max_minutes=math.inf if max_minutes is None else max_minutes,
        save_minutes=save_minutes,
    )
    options = Options(
        role,
        source,
        out,
        settings,
        lora,
        additions,
        reasons,
        folds,
        refit,
        test_policies,
        test_scenarios,
        device,  # type: ignore[arg-type]
        resume,
        judge.removeprefix("local:"),
        brief,
    )
    try:
        result = train_role(recordings, options, say, tests.dialogues if tests else ())
    except KeyboardInterrupt:
        say(f"stopped; resume with: {resume_command(out)}")
        raise typer.Exit(130) from None
    print_tables(role_tables(result))
    write(role_report(out), RunDir(out).report, markdown=True)
    say(f"model: local:{out}")
    say(f"report: {RunDir(out).report}")
