"""The stages of an experiment: `mapo` commands that train, export and test its models.

Every stage has a folder of its own in the folder of the reproduction: train-NAME, model-NAME, test-NAME.
Experiments that need the same training share it if they are given the same folder.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from mapo.config import EMPA_PROMPTS, Config, load_config, shipped_configs
from mapo.errors import InputError
from mapo.evals.reproduce.experiments import Experiment, Row, Training
from mapo.players.spec import ModelSpec

PROFILES = ("paper", "scripts")
ONE_CARD = (
    "model.lora",
    "roles.requests",
    "rollout.max_tokens",
    "rollout.context",
    "rollout.at_once",
    "optim.lr",
    "optim.weight_decay",
    "optim.tokens",
)
"""The settings in which the configs for one card (paper-SIZE-lora) differ from those for several."""
LOCAL_SIZES = ("7b", "8b", "14b")
"""The sizes whose training with LoRA fits on one card of 80 GB."""
NO_TESTS = ["eval.every=0", "eval.test_repeats=0"]
"""The paper tests the last checkpoint, with a judge of its own; that is a stage of its own here."""
TEST_TURNS = 45
TEST_CASES = 30
TEST_MODEL = "gemini-2.5-pro"
"""The model of user, director and judge in the paper's tests; the one of a dry run that names none."""
CLEAN_CARDS = 697
"""EMPA's training cards without the official test cases."""
BILLIONS = {"7b": 7.6, "8b": 8.2, "14b": 14.8, "32b": 32.8}
"""Weights of the models, in billions."""
KV_BYTES = {"7b": 57_344, "8b": 147_456, "14b": 163_840, "32b": 262_144}
"""Bytes of the KV cache per token, in bfloat16."""
SMALL_CASES = 4
SMALL_TURNS = 15
SMALL = [
    "optim.steps=2",
    "optim.updates=1",
    "rollout.scenarios=2",
    "rollout.max_turns=12",
    "roles.judge.model=",
    "run.processes=1",
    "run.checkpoint_every=2",
]
"""Settings that reduce a training to a test of the pipeline."""


@dataclass(frozen=True, slots=True)
class Recipe:
    """How an experiment is carried out here.

    `tester` plays user, director and judge in tests. `settings` are changes to the configs of all trainings.
    `small` tests the pipeline: the embedded model in the scripted world.
    """

    engine: str = "verl"
    profile: str = "paper"
    cards: Path | None = None
    start_levels: Path | None = None
    prompts: str | None = None
    tester: ModelSpec | None = None
    settings: tuple[str, ...] = ()
    small: bool = False

    def check(self, *, dry_run: bool = False) -> None:
        """Raise InputError if something is missing or contradictory. A dry run needs no cards or models."""
        if self.profile not in PROFILES:
            raise InputError(f"--profile is '{self.profile}'", fix=f"Use one of: {', '.join(PROFILES)}")
        if self.engine not in ("local", "verl"):
            raise InputError(f"--engine is '{self.engine}'", fix="Use local or verl")
        if self.small:
            given = {"--cards": self.cards, "--start-levels": self.start_levels, "--prompts": self.prompts}
            for option, value in {**given, "--test-model": self.tester}.items():
                if value is not None:
                    raise InputError(
                        f"{option} has no effect with --small: scenarios are built in, roles are scripted",
                        fix="Leave one of them out",
                    )
            return
        if dry_run:
            return
        if self.cards is None:
            raise InputError(
                "the paper trains and tests on EMPA's character cards, which mapo does not contain",
                fix="Give their folder (with cases/ and scenarios/): --cards DIR, or try --small",
            )
        if self.tester is None:
            raise InputError(
                "no model plays user, director and judge in the tests",
                fix="Give --test-model NAME (the paper: gemini-2.5-pro) and --test-base-url URL",
            )

    @property
    def cards_name(self) -> str:
        """The folder of the cards, or a placeholder in a dry run."""
        return str(self.cards or "CARDS")

    def config_name(self, size: str) -> str:
        """Return the config that trains models of this size."""
        if self.small:
            return "pocket"
        if self.engine == "local" and size not in LOCAL_SIZES:
            raise InputError(f"{size} does not fit on one card", fix="Use --engine verl")
        name = f"{self.profile}-{size}"
        lora = f"{name}-lora"
        return lora if self.engine == "local" and lora in shipped_configs() else name

    def settings_of(self, training: Training) -> list[str]:
        """Return the settings of a training, over those of its config."""
        settings = [*training.settings, *NO_TESTS]
        if self.small:
            settings += SMALL
        else:
            settings += [f"scenarios.{split}={self.cards_name}:{split}" for split in ("train", "test")]
            if self.engine == "local" and not self.config_name(training.size).endswith("-lora"):
                settings += _one_card(training.size)
            settings += [f"scenarios.start_levels={self.start_levels}"] if self.start_levels else []
            settings += [f'roles.prompts="{self.prompts}"'] if self.prompts else []
        return [*settings, *self.settings]

    def config(self, training: Training) -> Config:
        """Return the complete config of a training."""
        return load_config(self.config_name(training.size), self.settings_of(training))


def _one_card(size: str) -> list[str]:
    """Return the settings with which a training of this size fits on one card."""
    config: Any = load_config(f"paper-{size}-lora")
    values = {}
    for key in ONE_CARD:
        section, name = key.split(".")
        values[key] = getattr(getattr(config, section), name)
    lora = values.pop("model.lora").model_dump()
    table = ", ".join(f"{key} = {value}" for key, value in lora.items())
    return [f"model.lora={{{table}}}", *(f"{key}={value}" for key, value in values.items())]


@dataclass(frozen=True, slots=True)
class Stage:
    """One `mapo` command. `after` names the stages it needs; `identity` is what a resume must agree in."""

    name: str
    kind: str
    folder: Path
    arguments: tuple[str, ...]
    identity: tuple[str, ...]
    after: tuple[str, ...] = ()
    row: Row | None = field(default=None, compare=False)


def stages_of(experiment: Experiment, recipe: Recipe, out: Path) -> list[Stage]:
    """Return the stages in the order in which they run: each model is tested as soon as it is trained."""
    stages: dict[str, Stage] = {}
    for row in experiment.rows:
        needed = [*_training_stages(row, recipe, out), _test_stage(row, recipe, out)]
        for stage in needed:
            stages.setdefault(stage.name, stage)
    return list(stages.values())


def test_folder(out: Path, row: Row) -> Path:
    """Return the folder of a row's test."""
    return out / f"test-{row.test}"


def train_folder(out: Path, training: Training) -> Path:
    """Return the folder of a training."""
    return out / f"train-{training.name}"


def _training_stages(row: Row, recipe: Recipe, out: Path) -> list[Stage]:
    if row.training is None:
        return []
    run, model = train_folder(out, row.training), out / f"model-{row.model}"
    config, settings = recipe.config_name(row.size), recipe.settings_of(row.training)
    engine = "local" if recipe.small else recipe.engine
    train = Stage(
        run.name,
        "train",
        run,
        ("train", config, *settings, "--engine", engine, "--out", str(run)),
        (config, engine, *(text for text in settings if not _is_address(text))),
        row=row,
    )
    arguments = ("export", str(run), "--step", "last", "--out", str(model))
    return [train, Stage(model.name, "export", model, arguments, (run.name,), (run.name,), row)]


def _test_stage(row: Row, recipe: Recipe, out: Path) -> Stage:
    folder = test_folder(out, row)
    after: tuple[str, ...] = ()
    if row.training is not None:
        shown = f"model-{row.model}"
        source, after = str(out / shown), (shown,)
    else:
        source = shown = load_config(recipe.config_name(row.size), recipe.settings).model.source
    chosen, addresses = _test_arguments(row, recipe)
    arguments = ("eval", "empa", "--model", f"local:{source}", *chosen, *addresses, "--out", str(folder))
    return Stage(folder.name, "test", folder, arguments, (shown, *chosen), after, row)


def _test_arguments(row: Row, recipe: Recipe) -> tuple[list[str], list[str]]:
    """Return the arguments of a test: what is tested, and how (addresses and concurrency)."""
    if recipe.small:
        limits = ["--limit", str(SMALL_CASES), "--max-turns", str(SMALL_TURNS), "--max-tokens", "48"]
        return ["--agents", "scripted", "--no-system", *limits], []
    tester = recipe.tester or ModelSpec(TEST_MODEL)
    rollout = recipe.config(Training(row.size)).rollout
    context = rollout.context or 32768
    chosen = ["--scenarios", f"{recipe.cards_name}:test", "--agents-model", tester.model]
    chosen += ["--max-turns", str(TEST_TURNS), "--context", str(context)]
    if recipe.prompts != EMPA_PROMPTS:  # EMPA's package has a limit of its own
        chosen += ["--max-tokens", str(rollout.max_tokens)]
    chosen += ["--judge-model", row.judge] if row.judge else []
    chosen += ["--start-levels", str(recipe.start_levels)] if recipe.start_levels else []
    chosen += ["--prompts", recipe.prompts] if recipe.prompts else []
    how = ["--concurrency", str(_concurrency(row.size, context))]
    how += ["--agents-base-url", tester.base_url] if tester.base_url else []
    return chosen, [*how, "--agents-key-env", tester.key_env]


def _concurrency(size: str, context: int) -> int:
    """Return how many dialogues of a test fit into the KV cache of one card, which is allocated in full."""
    memory = 141e9 if size == "32b" else 80e9
    free = memory - 2e9 * BILLIONS[size] - 8e9
    return max(1, min(32, int(free / (KV_BYTES[size] * context)) - 1))


def _is_address(setting: str) -> bool:
    key = setting.partition("=")[0].strip()
    return key.startswith("roles.") and key.rpartition(".")[2] in ("base_url", "key_env")
