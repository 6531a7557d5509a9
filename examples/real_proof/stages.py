"""The stages that run models: what each of them calls, and what it decides.

Every stage is a coroutine that runs the commands that are still missing.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

from acts import write_acts
from commands import Runner, mapo, script
from inputs import RECORDED_RESULTS, copy_inputs, recorded_lines
from measures import MAX_LOST, complete_tests, left_out, lost_cases, rejudged, scores_of
from plan import read_plan, write_plan
from study import BASE, HERE, Run, Study

from mapo.errors import InputError
from mapo.evals.reproduce.stages import Stage
from mapo.local_model.role_file import NAME as ROLE_FILE
from mapo.realsim.fidelity.compare import compare_users
from mapo.realsim.fidelity.reading import UserMessages, read_simulated
from mapo.runs.claim import digest
from mapo.scenarios.sets import load_scenarios
from mapo.store import BadLine, RunDir, read_dialogues, write_atomic

OFFICIAL = 30
"""Official test cases of EMPA."""
TOKENIZER = ("tokenizer_config.json", "tokenizer.json", "special_tokens_map.json", "chat_template.jinja")
"""Without the first of them, adapters use the tokenizer of their base model."""
PEOPLE_SEED = 7
"""Seed of the dialogues in which the casts are compared."""


# ---- prepare


async def prepare(study: Study, runner: Runner) -> None:
    """Copy the inputs into the work folder, split scenarios and recordings, estimate start levels, and write
    the plan."""
    data = study.settings.data
    if not study.halves.exists():  # the last file of this stage that needs the inputs
        study.need("model", "cards", "turns")
        copy_inputs(study)
    total = len(load_scenarios(study.scenarios))
    rest = total - OFFICIAL if data.official else total - data.test
    sizes = [rest - data.validation, data.validation, *([] if data.official else [data.test])]
    words = ["scenarios", "split", study.scenarios, "--sizes", "/".join(map(str, sizes))]
    split = mapo("split", study.manifest, *words, *(["--official"] if data.official else []))
    parts = [study.split(part) for part in ("train", "validation", "test")]
    commands = [Stage("check", "mapo", study.manifest, ("scenarios", "check", *parts), tuple(parts))]
    known = study.recordings / RECORDED_RESULTS
    if known.exists():
        words = ["scenarios", "start-levels", study.scenarios, "--known", known]
        commands.append(mapo("start_levels", study.start_levels, *words))
    for step in ([split], commands):
        await runner.run(step, always=True)
        if runner.failed:
            return
    write_plan(study)


# ---- judges


async def judges(study: Study, runner: Runner) -> None:
    """Train judge A (training) and judge B (test) on different policies, with different seeds."""
    study.need("model")
    settings = study.settings.judges
    commands = [
        mapo(
            f"judge_{name}",
            study.judge(name),
            *("roles", "train", "--role", "judge", "--from", study.turns(name)),
            *("--scenarios", study.scenarios, "--model", study.inputs.model, "--seed", seed),
            *settings.options,
        )
        for name, seed in zip("ab", settings.seeds, strict=True)
    ]
    try:
        await runner.run(commands)
    finally:
        tidy(study)


def tidy(study: Study) -> None:
    """Drop the tokenizers of finished roles, and keep what the later stages need of finished trainings. A
    folder must not change once it is used, so this comes before every stage, and after those that train."""
    people = study.work / "people"
    for folder in (study.judge("a"), study.judge("b"), people / "user", people / "director"):
        if (folder / ROLE_FILE).exists():
            drop_tokenizer(folder)
    for run in study.trainings:
        if RunDir(study.run(run)).summary.exists():
            keep_adapters(study, run)
            note_turns(study, run)


def drop_tokenizer(folder: Path) -> None:
    """Remove the copy of the base model's tokenizer from adapters: it would be much of what has to be copied
    to another machine."""
    if (folder / "adapter_config.json").exists():
        for name in TOKENIZER:
            (folder / name).unlink(missing_ok=True)


# ---- people


async def people(study: Study, runner: Runner) -> None:
    """Train a user and a director from recordings, let both casts play validation scenarios with the base
    model, and compare their health."""
    settings, folder = study.settings.people, study.work / "people"
    kinds = ("prompted", "learned") if settings.learn else ("prompted",)
    learning = _learning(study)
    try:
        await runner.run(learning)
    finally:
        tidy(study)
    commands = []
    for kind in kinds:
        if kind == "learned" and not all(map(runner.finished, learning)):
            continue
        words = _eval_words(study, study.inputs.model, "a", PEOPLE_SEED, cast=study.cast_of(kind))
        words += ["--scenarios", study.split("validation"), "--max-turns", _training_turns(study)]
        words += settings.options
        commands.append(mapo(f"people_{kind}", folder / kind, *words))
    await runner.run(commands)
    if all(map(runner.finished, [*learning, *commands])) and not _are_compared(study, kinds):
        _compare_people(study, kinds)


def _learning(study: Study) -> list[Stage]:
    """Return the trainings of user and director."""
    settings = study.settings.people
    common = ["--scenarios", study.scenarios, "--model", study.inputs.model]
    sources: dict[str, list[Path]] = {"user": [study.turns("all")]}
    if "director" in settings.learn:
        sources["director"] = _recorded_acts(study)
    options = {"user": settings.user_options, "director": settings.director_options}
    return [
        mapo(
            f"people_{role}",
            study.work / "people" / role,
            *("roles", "train", "--role", role),
            *(word for source in sources[role] for word in ("--from", source)),
            *common,
            *options[role],
        )
        for role in settings.learn
    ]


def _recorded_acts(study: Study) -> list[Path]:
    """Return the run directories with a director's acts, and write them if they are missing."""
    results, folder = study.recordings / RECORDED_RESULTS, study.recordings / "acts"
    if not folder.exists():
        known = {scenario.id: scenario for scenario in load_scenarios(study.scenarios)}
        draft = folder.with_name(".acts.tmp")
        shutil.rmtree(draft, ignore_errors=True)
        if not write_acts(results, known, draft):
            raise InputError(
                "there are no EMPA result files from which a director could learn",
                where=str(results),
                fix="Run `prepare` with --results, or set people.learn=['user']",
            )
        draft.replace(folder)
    return sorted(folder.iterdir())


def _are_compared(study: Study, kinds: Sequence[str]) -> bool:
    if not study.people_file.exists():
        return False
    record = json.loads(study.people_file.read_text("utf-8"))
    return set(record["casts"]) == set(kinds) and study.settings.people.use in ("auto", record["chosen"])


def _compare_people(study: Study, kinds: Sequence[str]) -> None:
    """Write people.json: health and fidelity of both casts, and which one is used."""
    rows: dict[str, dict[str, Any]] = {}
    recorded = list(_recorded_users(study.turns("all")))
    for kind in kinds:
        folder = study.work / "people" / kind
        health = json.loads(RunDir(folder).health.read_text(encoding="utf-8"))
        try:
            fidelity = compare_users(recorded, read_simulated([folder])[0]).as_json()
        except InputError as error:  # too few dialogues for a classifier
            fidelity = {"problem": str(error)}
        rows[kind] = {"health": health, "fidelity": fidelity}
    chosen: str = study.settings.people.use
    if chosen == "auto":  # the first of equals is "prompted"

        def rank(kind: str) -> tuple[int, float]:
            row = rows[kind]
            return len(row["health"]["warnings"]), -float(row["fidelity"].get("score", 0.0))

        chosen = min(rows, key=rank)
    write_atomic(study.people_file, json.dumps({"chosen": chosen, "casts": rows}, indent=1) + "\n")
    print(f"user and director: {chosen}")


def _recorded_users(path: Path) -> Iterator[UserMessages]:
    for line in map(json.loads, recorded_lines(path)):
        messages = tuple(turn["user"] for turn in line["turns"][1:])
        if messages:
            yield UserMessages(line["case"], messages)


# ---- trainings


async def tune(study: Study, runner: Runner) -> None:
    """Train every method with every learning rate for a few steps, and choose by validation under judge A."""
    settings = study.settings.tune
    if len(settings.rates) == 1:
        print(f"one learning rate, {settings.rates[0]:g}: nothing to tune")
        return
    methods = [name for name, method in study.settings.methods.items() if not method.rate_of]
    cells = [(method, rate) for method in methods for rate in settings.rates]
    budget = [f"optim.steps={settings.steps}", f"eval.every={settings.steps}"]
    commands = [
        _train(study, f"tune_{m}_{rate:g}", _tuned(study, m, rate), m, rate, settings.seed, budget)
        for m, rate in cells
    ]
    await runner.run(commands)
    if all(map(runner.finished, commands)) and _rated(study) != cells:
        _choose_rates(study, cells)


def _rated(study: Study) -> list[tuple[str, float]]:
    """Return the methods and rates among which was chosen."""
    if not study.rates_file.exists():
        return []
    return [(row["method"], row["rate"]) for row in json.loads(study.rates_file.read_text("utf-8"))["scores"]]


def _tuned(study: Study, method: str, rate: float) -> Path:
    return study.work / "tune" / f"{method}_{rate:g}"


def _choose_rates(study: Study, cells: Sequence[tuple[str, float]]) -> None:
    """Write rates.json: the last validation score of each short training, on the scenarios that all of them
    could play, and the best rate of each method. A training that lost too many scenarios has no score, so
    that one bad rate does not decide on which scenarios the others are compared."""
    scenarios = {scenario.id for scenario in load_scenarios(study.split("validation"))}
    played = {cell: _validated(_tuned(study, *cell)) for cell in cells}
    lost = {cell: len(scenarios - {case for case, _ in jobs}) for cell, jobs in played.items()}
    candidates = [cell for cell in cells if lost[cell] <= MAX_LOST * len(scenarios)]
    if unusable := [cell for cell in cells if cell[0] not in {method for method, _ in candidates}]:
        best = min(unusable, key=lambda cell: lost[cell])
        raise InputError(
            f"all short trainings of {best[0]} lost more than {MAX_LOST:.0%} of the validation scenarios; "
            f"this one lost the fewest, {lost[best]} of {len(scenarios)}",
            where=str(_tuned(study, *best)),
            fix="Look at its dialogues. If the rates are too high, add a lower one to tune.rates",
        )
    common = set.intersection(*(set(played[cell]) for cell in candidates))
    if not common:
        worst = max(candidates, key=lambda cell: lost[cell])
        raise InputError(
            "no validation scenario was played in all short trainings",
            where=str(_tuned(study, *worst)),
            fix=f"Look at its dialogues. If its rate is too high, take {worst[1]:g} out of tune.rates",
        )
    means = {cell: fmean(played[cell][job] for job in common) for cell in candidates}
    chosen = {
        method: max((cell for cell in candidates if cell[0] == method), key=lambda cell: means[cell])[1]
        for method, _ in cells
    }
    scores = [
        {"method": cell[0], "rate": cell[1], "epm_q": means.get(cell), "lost": lost[cell]} for cell in cells
    ]
    left = len(scenarios - {case for case, _ in common})
    record = {
        "chosen": chosen,
        "scores": scores,
        "scenarios": len(scenarios) - left,
        "left_out": left,
    }
    write_atomic(study.rates_file, json.dumps(record, indent=1) + "\n")
    print("learning rates:", ", ".join(f"{method} {rate:g}" for method, rate in chosen.items()))


def _validated(folder: Path) -> Mapping[tuple[str, str], float]:
    """Return the scores of the last validation of a training, by dialogue."""
    last = max(RunDir(folder).evals.glob("validation_*"), default=None)
    scores = scores_of(last)
    return scores.jobs if scores else {}


async def train(study: Study, runner: Runner) -> None:
    """Train every method and seed, and keep the adapters of the last step."""
    commands = [
        _train(study, f"train_{run.name}", study.run(run), run.method, study.rate(run.method), run.seed)
        for run in study.trainings
    ]
    try:
        await runner.run(commands)
    finally:
        tidy(study)


def note_turns(study: Study, run: Run) -> None:
    """Write the number of turns of every dialogue of a finished training, validations included: the costs
    need no more, so that the dialogues need not travel."""
    source = RunDir(study.run(run))
    if not study.turn_counts(run).exists():
        files = [*source.dialogues.glob("step_*.jsonl"), *source.evals.glob("*/*.jsonl")]
        read = (d for file in sorted(files) for d in read_dialogues(file))
        turns = [len(d.turns) for d in read if not isinstance(d, BadLine) and d.turns]
        write_atomic(study.turn_counts(run), json.dumps(turns) + "\n")


def keep_adapters(study: Study, run: Run) -> None:
    """Write the adapters of a finished training, or all its weights, to policies/NAME, unless they are there.
    Adapters use the tokenizer of the base model."""
    folder, source = Path(study.policy(run)), RunDir(study.run(run))
    if folder.exists() or not source.checkpoints.exists():
        return
    steps = json.loads(source.summary.read_text(encoding="utf-8"))["steps"]
    draft = folder.with_name(f".{folder.name}.tmp")
    shutil.rmtree(draft, ignore_errors=True)
    draft.mkdir(parents=True)
    for file in source.checkpoint(steps).iterdir():
        if file.name not in ("optimizer.safetensors", "state.json"):
            shutil.copyfile(file, draft / file.name)
    drop_tokenizer(draft)
    draft.replace(folder)


def _train(
    study: Study, name: str, out: Path, method: str, rate: float, seed: int, settings: Sequence[str] = ()
) -> Stage:
    model = study.inputs.model
    user, director = study.cast()
    words = [
        f"model.source={model}",
        f"roles.everyone.model=local:{model}",
        f"roles.user.model={user}",
        f"roles.director.model={director}",
        f"roles.judge.model=local:{study.judge('a')}",
        *(f"scenarios.{part}={study.split(part)}" for part in ("train", "validation", "test")),
        *([f"scenarios.start_levels={study.start_levels}"] if study.start_levels.exists() else []),
        *study.settings.train,
        f"optim.lr={rate:g}",
        f"run.seed={study.settings.seed + seed}",
        *study.settings.methods[method].settings,
        *settings,
    ]
    return mapo(name, out, "train", study.work / "train.toml", *words)


def _training_turns(study: Study) -> int:
    from mapo.config import load_config

    words = [f"scenarios.{part}={study.split(part)}" for part in ("train", "validation", "test")]
    return load_config(study.work / "train.toml", [*words, *study.settings.train]).rollout.max_turns


# ---- tests


async def test(study: Study, runner: Runner) -> None:
    """Test everything under judge B, then have judge A read the same dialogues."""
    ready = [run for run in study.tested if run.method == BASE or Path(study.policy(run)).exists()]
    commands = []
    for run in ready:
        words = _eval_words(study, study.policy(run), "b", run.seed, cast=study.cast())
        words += ["--scenarios", study.split("test"), *study.settings.test.options]
        commands.append(mapo(f"test_{run.name}", study.test(run), *words))

    await runner.run(commands, repeat=lambda command: _is_worth_repeating(study, command))
    tests = {run.name: study.test(run) for run in complete_tests(study)}
    await runner.run(rejudging(study, "rejudge", "a", "test", study.test_a, tests), always=True)
    if missing := [run.name for run in study.trainings if run not in ready and run.name not in tests]:
        print(f"not trained yet, so not tested: {', '.join(missing)}")


def _is_worth_repeating(study: Study, command: Stage) -> bool:
    """Return whether a test lost cases that no other test lost: a case that another one lost counts for no
    method. For a run of the primary comparison, the others are the runs of that comparison."""
    name, planned = command.folder.name, read_plan(study).get("runs", ())
    lost = left_out(study, among=planned if name in planned else None)
    return any(lost[case] == [name] for case in lost_cases(command.folder))


def rejudging(
    study: Study, name: str, judge: str, part: str, out: Path, runs: Mapping[str, Path]
) -> list[Stage]:
    """Return one command in which a judge reads the dialogues of all runs that it has not read yet: starting
    a process per run would take longer than judging."""
    missing = {run: folder for run, folder in runs.items() if rejudged(out, run) is None}
    if not missing:
        return []
    number = digest(sorted(missing))[:6]
    words = ["judge", "swap", *(f"{run}={folder}" for run, folder in missing.items())]
    words += ["--scenarios", study.split(part), "--judge", f"local:{study.judge(judge)}"]
    words += study.settings.test.swap_options
    return [mapo(f"{name}_{number}", out / number, *words)]


def _eval_words(study: Study, model: str, judge: str, seed: int, cast: tuple[str, str]) -> list[object]:
    """Return the words of an evaluation in which `model` is the policy."""
    user, director = cast
    levels = ["--start-levels", study.start_levels] if study.start_levels.exists() else []
    roles = ["--user-model", user, "--director-model", director]
    roles += ["--judge-model", f"local:{study.judge(judge)}", "--judging", "readout"]
    seed += study.settings.seed
    return ["eval", "empa", "--model", f"local:{model}", *roles, *levels, "--seed", seed]


# ---- quality


async def quality(study: Study, runner: Runner) -> None:
    """Have judge B read the validation dialogues of every training and of the base model, and compute the
    likelihood of all tested replies under the base model."""
    folders = [*base_validation(study), *(f for run in study.trainings for f in validation_runs(study, run))]
    validations = {folder.name: folder for folder in folders}
    commands = rejudging(study, "agreement", "b", "validation", study.agreement, validations)
    if missing := [run for run in complete_tests(study) if not study.likelihood(run).exists()]:
        pairs = [f"{study.test(run)}={study.likelihood(run)}" for run in missing]
        name = f"likelihood_{digest([run.name for run in missing])[:6]}"
        commands.append(script(name, HERE / "likelihood.py", study.inputs.model, *pairs))
    await runner.run(commands)


def validation_runs(study: Study, run: Run) -> Iterator[Path]:
    """Yield one folder per validation of a finished training, as `mapo judge swap` reads them: the dialogues
    of an evaluation, with the rubric."""
    source = RunDir(study.run(run))
    if not source.summary.exists():
        return
    for folder in sorted(source.evals.glob("validation_*")):
        files = sorted(folder.glob("*.jsonl"))
        yield _validation(study, f"{run.name}.{folder.name}", source.rubric, files)


def base_validation(study: Study) -> Iterator[Path]:
    """Yield the same for the base model, as step 0: the dialogues in which the chosen cast was tried."""
    if study.people_file.exists():
        chosen = json.loads(study.people_file.read_text("utf-8"))["chosen"]
        source = RunDir(study.work / "people" / chosen)
        name = f"{Run(BASE, 0).name}.validation_00000"
        yield _validation(study, name, source.rubric, [source.empa_dialogues])


def _validation(study: Study, name: str, rubric: Path, files: Sequence[Path]) -> Path:
    target = RunDir(study.validations / name)
    if not target.empa_dialogues.exists():
        write_atomic(target.rubric, rubric.read_bytes())
        write_atomic(target.empa_dialogues, b"".join(file.read_bytes() for file in files))
    return target.root


# ---- keep


async def keep(study: Study, runner: Runner) -> None:
    """Run EmoBench and EQ-Bench v2 of the base model and of some trained ones."""
    commands, settings = [], study.settings.keep
    for run in kept(study):
        for name, data, words in (
            ("emobench", study.inputs.emobench, ("eval", "emobench", *settings.emobench)),
            ("eqbench", study.inputs.eqbench, ("eval", "eqbench", "--v2", *settings.eqbench)),
        ):
            if data:
                words = (*words, "--data", data, "--model", f"local:{study.policy(run)}")
                commands.append(mapo(f"{name}_{run.name}", study.kept(run, name), *words))
    if not commands:
        print("neither --emobench nor --eqbench was given: nothing to test")
    await runner.run(commands)


def kept(study: Study) -> list[Run]:
    """Return the base model and the trained models that keep is about, as far as they exist."""
    wanted = [run for run in study.trainings if run.name in study.settings.keep.models]
    return [Run(BASE, 0), *(run for run in wanted if Path(study.policy(run)).exists())]


def needs_policy(study: Study, run: Run) -> bool:
    """Return whether a stage still needs the adapters of a training."""
    needed = ["test"]
    if run.name in study.settings.keep.models:
        needed += [name for name in ("emobench", "eqbench") if getattr(study.inputs, name)]
    records = [study.work / "stages" / f"{name}_{run.name}.json" for name in needed]
    return not all(file.exists() and json.loads(file.read_bytes())["finished"] for file in records)


RUNNING: dict[str, Callable[[Study, Runner], Any]] = {
    "prepare": prepare,
    "judges": judges,
    "people": people,
    "tune": tune,
    "train": train,
    "test": test,
    "quality": quality,
    "keep": keep,
}
