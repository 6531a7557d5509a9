"""What a study compares and where its files are: settings, names and paths of the work folder.

WORK/study.json             settings and inputs, so that later calls need only --work
     plan.json              the primary comparison, named before the trainings
     cards/ or scenarios/   the scenarios with splits.json, start_levels.json beside them
     recordings/            recorded turns: all of them, and the halves of the two judges
     judges/a, judges/b     trained judges            people/   learned user and director, both casts at play
     tune/METHOD_RATE       short trainings           rates.json   their scores and the chosen learning rates
     runs/NAME              trainings                 policies/NAME   their adapters
     test/NAME, test_a/     tests under judge B, and the same dialogues judged by A
     quality/, keep/, pairs/, results/, report.md
     stages/, logs/         what is finished, how long it took, and what it printed
"""

from __future__ import annotations

import json
import tomllib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from mapo.errors import InputError, MapoError
from mapo.store import write_atomic

HERE = Path(__file__).resolve().parent
BASE = "base"
"""The model before training; its "seeds" are those of its tests."""
SCHEMA = "mapo.real_proof/1"


class _Section(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class Data(_Section):
    """Scenarios. `official`: EMPA's cards, tested on its 30 official cases; otherwise `test` scenarios are
    drawn too. All others are for training."""

    official: bool = True
    validation: int = 24
    test: int = 0


class Judges(_Section):
    """Training of both judges: options of `mapo roles train`. Their seeds differ."""

    options: tuple[str, ...] = ()
    seeds: tuple[int, int] = (1, 2)


class People(_Section):
    """User and director: the untrained model with prompts, or models that learned from recordings (`learn`).
    `auto` takes the cast with fewer health warnings, then the one that is harder to tell from recorded
    users."""

    learn: tuple[Literal["user", "director"], ...] = ("user", "director")
    use: Literal["auto", "prompted", "learned"] = "auto"
    options: tuple[str, ...] = ()
    """Options of `mapo eval empa`, for the dialogues in which the casts are compared."""
    user_options: tuple[str, ...] = ()
    """Options of `mapo roles train`, as the next ones."""
    director_options: tuple[str, ...] = ()


class Method(_Section):
    """A method: settings of its trainings, number of seeds, and the method whose learning rate it uses
    (default: its own)."""

    settings: tuple[str, ...] = ()
    seeds: int = 1
    rate_of: str = ""


class Tune(_Section):
    """Learning rates to try, with one training of `steps` steps each; with one rate there is none."""

    rates: tuple[float, ...] = (1e-4,)
    steps: int = 5
    seed: int = 100


class Test(_Section):
    """Options of `mapo eval empa` and of `mapo judge swap`, and how many seeds the base model is tested
    with."""

    options: tuple[str, ...] = ()
    swap_options: tuple[str, ...] = ()
    base_seeds: int = 3


class Primary(_Section):
    """The comparisons that decide the study, as "mapo - base". All others are secondary. See plan.py."""

    comparisons: tuple[str, ...] = ()
    level: float = Field(default=0.05, gt=0, lt=1)

    @property
    def pairs(self) -> list[tuple[str, str]]:
        return [(a.strip(), b.strip()) for a, _, b in (text.partition(" - ") for text in self.comparisons)]


class Keep(_Section):
    """The models that are also tested with EmoBench and EQ-Bench v2, and further options of both."""

    models: tuple[str, ...] = ("mapo_0",)
    emobench: tuple[str, ...] = ()
    eqbench: tuple[str, ...] = ()


class Pairs(_Section):
    """Blind pairs: the trained model, how many, the turns shown, and the seed of the shuffle."""

    trained: str = "mapo_0"
    count: int = 20
    turns: int = 15
    seed: int = 0


class Settings(_Section):
    """A study. `seed` is added to the seeds of all trainings and tests, for a further study of the same
    comparison; `train` are settings of all trainings, over those of train.toml."""

    seed: int = 0
    primary: Primary = Primary()
    data: Data = Data()
    judges: Judges = Judges()
    people: People = People()
    methods: dict[str, Method] = {}
    tune: Tune = Tune()
    test: Test = Test()
    keep: Keep = Keep()
    pairs: Pairs = Pairs()
    train: tuple[str, ...] = ()


@dataclass(frozen=True)
class Inputs:
    """The user's files. Paths stay as they were given: relative ones work on any machine with the same
    layout."""

    model: str = ""
    cards: str = ""
    results: str = ""
    turns: str = ""
    emobench: str = ""
    eqbench: str = ""
    prices: str = ""


@dataclass(frozen=True)
class Run:
    """One training, or the base model if `method` is BASE."""

    method: str
    seed: int

    @property
    def name(self) -> str:
        return f"{self.method}_{self.seed}"


class Study:
    """Settings, inputs and paths."""

    def __init__(self, work: Path, settings: Settings, inputs: Inputs) -> None:
        self.work, self.settings, self.inputs = work, settings, inputs
        for name, method in settings.methods.items():
            if method.rate_of and method.rate_of not in settings.methods:
                raise InputError(f"there is no method '{method.rate_of}'", where=f"methods.{name}.rate_of")
        for name in (name for pair in settings.primary.pairs for name in pair):
            if name not in (BASE, *settings.methods):
                fix = "Write two methods, such as 'mapo - base'"
                raise InputError(f"there is no method '{name}'", where="primary.comparisons", fix=fix)
        self.scenarios = work / ("cards" if settings.data.official else "scenarios")
        folder = self.scenarios if settings.data.official else work
        self.manifest = folder / "splits.json"  # a manifest lies beside the scenarios
        self.start_levels = work / "start_levels.json"
        self.recordings = work / "recordings"
        self.halves = self.recordings / "policies.json"
        """The recorded policies from which each judge learns."""
        self.plan = work / "plan.json"
        self.rates_file = work / "rates.json"
        self.results = work / "results"
        self.people_file = work / "people" / "people.json"
        self.test_a = work / "test_a"
        self.validations = work / "quality" / "validation"
        self.agreement = work / "quality" / "agreement"

    # ---- names

    @property
    def trainings(self) -> list[Run]:
        """All trainings; the methods with several seeds first finish one seed each."""
        methods = self.settings.methods
        most = max((method.seeds for method in methods.values()), default=0)
        return [Run(name, seed) for seed in range(most) for name, m in methods.items() if seed < m.seeds]

    @property
    def tested(self) -> list[Run]:
        """What is tested: the base model once per seed, and every training."""
        return [*(Run(BASE, seed) for seed in range(self.settings.test.base_seeds)), *self.trainings]

    def split(self, part: str) -> str:
        """Return the source of train, validation or test scenarios."""
        return f"{self.manifest}:{part}"

    # ---- paths

    def judge(self, name: str) -> Path:
        return self.work / "judges" / name

    def turns(self, name: str) -> Path:
        """Return the recorded turns of judge a or b, or of all policies."""
        return self.recordings / f"turns_{name}.jsonl.gz"

    def run(self, run: Run) -> Path:
        return self.work / "runs" / run.name

    def turn_counts(self, run: Run) -> Path:
        """Return the file with the turns of each dialogue of a finished training."""
        return self.run(run) / "turns.json"

    def policy(self, run: Run) -> str:
        """Return the model of a run: the base model, or its adapters."""
        return self.inputs.model if run.method == BASE else str(self.work / "policies" / run.name)

    def test(self, run: Run) -> Path:
        return self.work / "test" / run.name

    def kept(self, run: Run, benchmark: str) -> Path:
        return self.work / "keep" / f"{benchmark}_{run.name}"

    def likelihood(self, run: Run) -> Path:
        return self.work / "quality" / "likelihood" / f"{run.name}.json"

    # ---- choices made by earlier stages

    def rate(self, method: str) -> float:
        """Return the learning rate of a method: the only one, or the one that stage `tune` chose."""
        tune, chosen = self.settings.tune, self.settings.methods[method].rate_of or method
        if len(tune.rates) == 1:
            return tune.rates[0]
        return float(self._decided(self.rates_file, "tune")["chosen"][chosen])

    def cast(self) -> tuple[str, str]:
        """Return the models of user and director."""
        use = self.settings.people.use
        if use == "auto":
            learn = self.settings.people.learn
            use = self._decided(self.people_file, "people")["chosen"] if learn else "prompted"
        return self.cast_of("learned" if use == "learned" else "prompted")

    def cast_of(self, kind: str) -> tuple[str, str]:
        learned = self.settings.people.learn if kind == "learned" else ()
        user, director = (
            f"local:{self.work / 'people' / role if role in learned else self.inputs.model}"
            for role in ("user", "director")
        )
        return user, director

    def _decided(self, path: Path, stage: str) -> dict[str, Any]:
        if not path.exists():
            raise InputError(
                f"stage '{stage}' is not finished", where=str(path), fix=f"Run it first: {stage}"
            )
        return dict(json.loads(path.read_text(encoding="utf-8")))

    def need(self, *names: str) -> None:
        """Raise InputError if an input is missing."""
        for name in names:
            if not getattr(self.inputs, name):
                raise InputError(f"--{name} is missing", fix=f"Give --{name} (see --help)")


@contextmanager
def kept_if_refused(work: Path) -> Iterator[None]:
    """Keep the earlier study.json if the settings are refused."""
    saved = work / "study.json"
    earlier = saved.read_bytes() if saved.exists() else None
    try:
        yield
    except MapoError:
        if earlier is not None:
            write_atomic(saved, earlier)
        raise


def open_study(work: Path, file: Path | None, changes: Sequence[str], inputs: dict[str, str | None]) -> Study:
    """Read the study of a work folder, or begin one with `file` (default: proof.toml beside this script).

    `changes` are KEY.PATH=VALUE: of the study (tune.steps=2), or of all trainings (rollout.siblings=4).
    """
    saved = work / "study.json"
    known: dict[str, Any] = json.loads(saved.read_text(encoding="utf-8")) if saved.exists() else {}
    if file is not None or not known:
        path = file or HERE / "proof.toml"
        try:
            settings = tomllib.loads(path.read_text(encoding="utf-8"))
        except (OSError, ValueError) as error:
            raise InputError(f"the settings cannot be read ({error})", where=str(path)) from None
    else:
        settings = known["settings"]
    for change in changes:
        _apply(settings, change)
    given = {name: value for name, value in inputs.items() if value is not None}
    try:
        study = Study(work, Settings.model_validate(settings), Inputs(**{**known.get("inputs", {}), **given}))
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        where = ".".join(map(str, first["loc"]))
        raise InputError(f"{first['msg']}", where=where, fix="See proof.toml") from None
    record = {
        "schema": SCHEMA,
        "settings": study.settings.model_dump(mode="json"),
        "inputs": study.inputs.__dict__,
    }
    write_atomic(saved, json.dumps(record, indent=1, ensure_ascii=False) + "\n")
    return study


def _apply(settings: dict[str, Any], change: str) -> None:
    key, equals, value = change.partition("=")
    *sections, name = key.strip().split(".")
    if not equals or not name:
        raise InputError(f"'{change}' is not a setting", fix="Write KEY.PATH=VALUE, such as tune.steps=2")
    if (sections or [name])[0] not in Settings.model_fields:
        by_key = {text.partition("=")[0].strip(): text for text in settings.get("train", [])}
        settings["train"] = list({**by_key, key.strip(): change}.values())
        return
    for section in sections:
        settings = settings.setdefault(section, {})
    try:
        settings[name] = tomllib.loads(f"value = {value}")["value"]
    except ValueError:
        settings[name] = value
