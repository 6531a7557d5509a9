"""Train a role on recordings: split, train, measure, train again on everything, and write the model with its
report.

The figures are those of the measured model, which has not seen the held-out recordings. The model that is
written is trained on all recordings, for as long as was best for the measured one (`refit`), but never on a
test set of its own. Everything lies in one folder, which can then be used as `local:DIR`.
"""

from __future__ import annotations

import hashlib
import math
import shutil
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from mapo.config import Lora
from mapo.errors import InputError, TrainError
from mapo.judges.sample import Recording
from mapo.local_model.policy import Device, LocalPolicy, folder_of, load_policy, load_tokenizer, max_context
from mapo.local_model.role_file import RoleFile, read_role_file, rubric_fingerprint, write_role_file
from mapo.local_model.template import read_template
from mapo.measure.calibration import Calibration
from mapo.measure.rubric import Rubric
from mapo.players.identity import fingerprint
from mapo.records import encode
from mapo.roles.examples import Encoder, each, packed, replies_elsewhere
from mapo.roles.kinds import HeldOut, JudgeKind, RoleKind, UserKind, make_kind
from mapo.roles.learning import MICRO, Data, Predictions, Progress, Settings, predict, train
from mapo.roles.packing import Example, pack
from mapo.roles.probes import probe
from mapo.roles.recordings import Recordings
from mapo.roles.replay import replay, trained_judge
from mapo.roles.splits import Split, folds, split, split_for_test
from mapo.runs.claim import check_folder, claim
from mapo.runs.files import read_object
from mapo.sandbox.readout import BRIEF, LAYOUT
from mapo.store import JsonlWriter, RunDir, write_atomic
from mapo.text import plural
from mapo.train.checkpoint import save_model

SCHEMA = "mapo.roles/1"
PROBED_TURNS = 64
EVERY = 10
"""Steps between two lines about the progress."""
DEFAULTS = Settings()
Say = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Options:
    """The choices of `mapo roles train`."""

    role: str
    model: str
    out: Path
    settings: Settings = DEFAULTS
    lora: int = 0
    additions: float = 0.15
    reasons: int = 0
    folds: int = 1
    refit: bool = True
    test_policies: float = 0.25
    test_scenarios: float = 0.2
    device: Device = "auto"
    resume: bool = False
    judge: str = ""
    """Folder of a trained judge that judges what a trained user replays."""
    brief: bool = False
    """Whether a judge sees the conversation only, without rubric and person."""

    @property
    def layout(self) -> int:
        """The layout of a judge's prompts."""
        return BRIEF if self.brief else LAYOUT


def train_role(
    recordings: Recordings, options: Options, say: Say, tests: Sequence[Recording] = ()
) -> dict[str, Any]:
    """Train, measure and write a role; return what was measured. Nothing is written before the input is
    checked. With `tests`, agreement is measured there and nothing else is held out for it."""
    training = _Training(recordings, options, say, tests)
    check_folder(options.out, training.manifest(), resume=options.resume)
    if options.resume and read_role_file(options.out) is not None:  # the last file that a run writes
        result, _ = read_object(RunDir(options.out).role)
        if result:
            say("the run is complete")
            return result
    training.encode()
    claim(options.out, training.manifest())
    with JsonlWriter(RunDir(options.out).metrics) as metrics:
        training.metrics = metrics
        try:
            result = training.run()
        except torch.OutOfMemoryError:
            tokens = min(MICRO, options.settings.tokens) // 2
            raise TrainError(
                "the memory of the GPU is too small to train this model",
                where=options.model,
                fix=f"In another --out, train adapters with --lora 32, or lower --tokens to {tokens} or less "
                "(longer examples are left out)",
            ) from None
    shutil.rmtree(RunDir(options.out).checkpoints, ignore_errors=True)
    return result


class _Training:
    """One run: the checked input, and the steps from examples to files."""

    def __init__(
        self, recordings: Recordings, options: Options, say: Say, tests: Sequence[Recording]
    ) -> None:
        self.recordings, self.options, self.say = recordings, options, say
        self.tests = tuple(tests)
        self.rubric: Rubric = recordings.rubric
        self.metrics: JsonlWriter | None = None
        self.run_dir = RunDir(options.out)
        encoder = Encoder(read_template(load_tokenizer(options.model)))
        self.kind: RoleKind = make_kind(
            options.role,
            encoder,
            self.rubric,
            additions=options.additions,
            reasons=options.reasons,
            seed=options.settings.seed,
            layout=options.layout,
        )
        self.encoder = encoder
        if problem := self.kind.problem(recordings.dialogues):
            raise InputError(
                problem, where="--from", fix=f"Give recordings from which a {options.role} can learn"
            )
        if options.folds > 1 and not options.refit:
            raise InputError(
                "several folds train several models, and none of them is the model to keep",
                where="--no-refit",
                fix="Remove --no-refit, or use --folds 1",
            )
        if options.folds > 1 and tests:
            raise InputError(
                "there is only one way to test on recordings of your own",
                where="--folds",
                fix="Remove --folds, or --test",
            )
        if options.judge:
            trained_judge(options.judge, self.rubric)
        shares = {"policies": options.test_policies, "scenarios": options.test_scenarios}
        seed = options.settings.seed
        if tests:
            self.splits = [split_for_test(recordings.dialogues, tests, seed=seed)]
        elif options.folds > 1:
            self.splits = list(folds(recordings.dialogues, options.folds, seed=seed, **shares))
        else:
            self.splits = [split(recordings.dialogues, seed=seed, **shares)]
        self.limit = min(options.settings.tokens, max_context(options.model) or options.settings.tokens)
        self.examples: dict[str, list[Example]] = {}
        self.too_long = 0
        self.branching = True

    def manifest(self) -> dict[str, Any]:
        """Return what identifies the run."""
        o = self.options
        folder = folder_of(o.model)
        settings = {
            name: value
            for name, value in asdict(o.settings).items()
            if name not in ("max_minutes", "save_minutes")
        }
        names = sorted(r.id for r in self.recordings.dialogues)
        return {
            "schema": SCHEMA,
            "role": o.role,
            "model": o.model,
            **({"weights": fingerprint(folder)} if folder else {}),
            "rubric": self.rubric.name,
            "rubric_sha": rubric_fingerprint(self.rubric),
            "recordings": {
                "dialogues": len(names),
                "turns": sum(len(r.dialogue.turns) for r in self.recordings.dialogues),
                "sha": _digest(self.recordings.dialogues),
                "judges": sorted(
                    {r.dialogue.cast.get("judge", "unknown") for r in self.recordings.dialogues}
                ),
            },
            "settings": settings,
            "lora": o.lora,
            "additions": o.additions,
            "reasons": o.reasons,
            "refit": o.refit,
            **({"layout": BRIEF} if o.brief else {}),
            **({"tests": _digest(self.tests)} if self.tests else {}),
            "splits": [part.describe() for part in self.splits],
        }

    def run(self) -> dict[str, Any]:
        """Measure every split, train the final model and write everything."""
        began = time.monotonic()
        folds_measured = [self._measure(number, part) for number, part in enumerate(self.splits)]
        measured = folds_measured[0] if len(folds_measured) == 1 else self._joined(folds_measured)
        final = self._final(folds_measured)
        result = {
            "schema": SCHEMA,
            "role": self.kind.name,
            "measured_on": "held-out recordings; the written model is "
            + (self._refitted() if self.options.refit else "the measured one"),
            "new_policies": self._has_new_policies(),
            **measured.summary,
            "too_long": self.too_long,
            "minutes": (time.monotonic() - began) / 60,
        }
        write_atomic(self.run_dir.role, encode(result, str(self.run_dir.role)) + b"\n")
        self._write_predictions(folds_measured)
        self._write_model(final, measured, result)
        return result

    def _refitted(self) -> str:
        return f"trained on all {'other ' * bool(self.tests)}recordings"

    def _has_new_policies(self) -> bool:
        """Return whether the policies of the strict test are in no recording that is trained on."""
        if not self.tests:
            return self.options.test_policies > 0
        known = {r.dialogue.model for r in self.recordings.dialogues}
        return known.isdisjoint(r.dialogue.model for r in self.tests)

    # ---- examples

    def encode(self) -> None:
        """Tokenise all examples. Raise InputError if a part of a split has none that fits."""
        dialogues = (*self.recordings.dialogues, *self.tests)
        self.say(f"{plural(len(dialogues), 'dialogue')}: tokenising")
        for recording, examples in zip(dialogues, each(dialogues, self.kind.examples), strict=True):
            self.examples[recording.id] = [e for e in examples if e.needed <= self.limit]
            self.too_long += len(examples) - len(self.examples[recording.id])
        if self.too_long:
            self.say(f"note: {plural(self.too_long, 'example')} of more than {self.limit} tokens left out")
        for part in self.splits:
            for name, own in {"train": part.train, "validation": part.validation, **part.tests}.items():
                if not any(self.examples[r.id] for r in own):
                    raise InputError(
                        f"no example of the part '{name}' has at most {self.limit} tokens",
                        where="--tokens",
                        fix="Raise --tokens, or use a model with a longer context or more recordings",
                    )

    def _data(self, recordings: Sequence[Recording], *, training: bool = False) -> Data:
        groups = [self.examples[r.id] for r in recordings]
        if training:
            others = replies_elsewhere(recordings)
            added = each(recordings, lambda r: self.kind.added(r, others[r.scenario.id]))
            groups = [own + more for own, more in zip(groups, added, strict=True)]
        return packed(groups, self.limit, branching=self.branching)[0]

    # ---- measuring

    def _measure(self, number: int, part: Split) -> _Measured:
        label = f"fold {number + 1}: " if len(self.splits) > 1 else ""
        policy = self._load()
        self.branching = not _slides(policy.model.config)
        data, validation = self._data(part.train, training=True), self._data(part.validation)
        tests = {name: self._data(own) for name, own in part.tests.items()}
        self.say(
            f"{label}training on {plural(len(part.train), 'dialogue')} "
            f"({plural(len(data.examples), 'example')}, {data.tokens:,} tokens per epoch), "
            f"validating on {len(part.validation)}, "
            f"testing on {sum(map(len, part.tests.values()))}"
        )
        self.say(f"{label}measuring the untrained model")
        before = self._agreements(policy, part, tests, Calibration())
        folder = self.run_dir.checkpoints / f"fold_{number}"
        watch = self._watch(f"measured {number}")
        progress = train(policy, data, validation, self.options.settings, folder, watch)
        self.say(f"{label}measuring the model of step {progress.best_step or progress.step}")
        validated = HeldOut(part.validation, validation.examples, self._predict(policy, validation))
        calibration = self.kind.calibrate([validated])
        after = self._agreements(policy, part, tests, calibration)
        summary: dict[str, Any] = {
            "before": {name: measured for name, (_, measured) in before.items()},
            "tests": {name: measured for name, (_, measured) in after.items()},
            "training": _training_summary(progress, data, self.options.settings),
        }
        if isinstance(self.kind, JudgeKind):
            summary["probes"] = self._probe(policy, part, calibration)
        elif isinstance(self.kind, UserKind):
            summary["replay"] = self._replay(policy, part)
        held_out = [validated, *(own for own, _ in after.values())]
        share = progress.best_step / max(1, progress.planned)
        return _Measured(summary, held_out, calibration, share or 1.0, None if self.options.refit else policy)

    def _agreements(
        self, policy: LocalPolicy, part: Split, tests: Mapping[str, Data], calibration: Calibration
    ) -> dict[str, tuple[HeldOut, dict[str, Any]]]:
        """Return the predictions and the agreement for every test."""
        agreements = {}
        for name, data in tests.items():
            held_out = HeldOut(getattr(part, name), data.examples, self._predict(policy, data))
            agreements[name] = held_out, self.kind.measure(held_out, calibration)
        return agreements

    def _predict(self, policy: LocalPolicy, data: Data) -> Predictions:
        return predict(policy, data.examples, data.rows, 2 * self.options.settings.tokens)

    def _probe(self, policy: LocalPolicy, part: Split, calibration: Calibration) -> dict[str, Any]:
        def ask(examples: Sequence[Example]) -> list[list[list[float]]]:
            rows = [row for n, e in enumerate(examples) for row in pack([e], [n], e.needed)]
            return predict(policy, examples, rows, 2 * self.options.settings.tokens).reads

        self.say("probing the judge with changed replies")
        seed, layout = self.options.settings.seed, self.options.layout
        return probe(part.both, self.encoder, ask, calibration, PROBED_TURNS, seed, self.limit, layout)

    def _replay(self, policy: LocalPolicy, part: Split) -> dict[str, Any]:
        o = self.options
        self.say("playing recorded dialogues again")
        return replay(
            policy, part.both, context=self.limit, seed=o.settings.seed, judge=o.judge, device=o.device
        )

    def _joined(self, measured: Sequence[_Measured]) -> _Measured:
        """Return the measures over the strict tests of all folds, with the numbers of each fold."""
        first = measured[0]
        means = _mean_numbers([own.summary["tests"]["both"] for own in measured])
        if "pooled_kappa" in means:
            means["pooled_kappa"]["interval"] = None  # that of the first fold is not one of the mean
        summary = {
            **first.summary,
            "tests": {**first.summary["tests"], "both": means},
            "folds": [own.summary["tests"]["both"] for own in measured],
        }
        held_out = [part for own in measured for part in own.held_out]
        return replace(first, summary=summary, held_out=held_out)

    # ---- the final model

    def _final(self, measured: Sequence[_Measured]) -> LocalPolicy:
        if not self.options.refit:
            policy = measured[-1].policy
            assert policy is not None
            return policy
        policy = self._load()
        data = self._data(self.recordings.dialogues, training=True)
        share = float(np.mean([own.share for own in measured]))
        epochs = share * self.options.settings.epochs
        self.say(
            f"training on all {plural(len(self.recordings.dialogues), 'dialogue')} for {epochs:.2f} epochs"
        )
        folder = self.run_dir.checkpoints / "final"
        train(policy, data, None, self.options.settings, folder, self._watch("final"), stop_at=share)
        return policy

    def _load(self) -> LocalPolicy:
        o = self.options
        torch.manual_seed(o.settings.seed)  # new adapters are initialised at random
        lora = Lora(rank=o.lora, alpha=2 * o.lora) if o.lora else None
        return load_policy(o.model, lora=lora, device=o.device)

    def _watch(self, part: str) -> Callable[[dict[str, Any]], None]:
        def watch(record: dict[str, Any]) -> None:
            assert self.metrics is not None
            self.metrics.write({"schema": SCHEMA, "part": part, **record})
            if record["step"] % EVERY == 0 or "validation_loss" in record or record["step"] == record["of"]:
                checked = (
                    f", validation {record['validation_loss']:.4f}" if "validation_loss" in record else ""
                )
                self.say(
                    f"step {record['step']}/{record['of']}, epoch {record['epoch']:.2f}, "
                    f"loss {record['loss']:.4f}{checked}, {record['seconds']:.0f} s"
                )

        return watch

    def _write_model(self, policy: LocalPolicy, measured: _Measured, result: Mapping[str, Any]) -> None:
        calibration = measured.calibration
        if self.options.refit and not self.tests:  # all held-out predictions: more than the validation alone
            calibration = self.kind.calibrate(measured.held_out)
        self.say("writing the model")
        draft = self.options.out / ".model.tmp"
        shutil.rmtree(draft, ignore_errors=True)
        draft.mkdir()
        save_model(draft, policy)
        for file in sorted(draft.iterdir()):
            file.replace(self.options.out / file.name)
        draft.rmdir()
        trained_on = {
            "dialogues": len(self.recordings.dialogues),
            "recordings": _digest(self.recordings.dialogues),
            "model": self.options.model,
            "kappa": result["tests"]["both"].get("kappa"),
        }
        # written last: without this file the folder is not a role
        write_role_file(
            self.options.out,
            RoleFile(
                self.kind.name,
                self.rubric.name,
                rubric_fingerprint(self.rubric),
                self.options.layout,
                calibration,
                trained_on={key: value for key, value in trained_on.items() if value is not None},
            ),
        )

    def _write_predictions(self, measured: Sequence[_Measured]) -> None:
        """Write the predictions for held-out turns as numbers, without text."""
        lines = [
            encode(
                {
                    "schema": SCHEMA,
                    "fold": number,
                    "turn": example.name,
                    "recorded": list(example.answers),
                    "logprobs": [[round(x, 4) for x in place] for place in part.predictions.reads[k]],
                    "text": round(float(part.predictions.text[k]), 4),
                },
                str(self.run_dir.predictions),
            )
            for number, own in enumerate(measured)
            for part in own.held_out
            for k, example in enumerate(part.examples)
        ]
        write_atomic(self.run_dir.predictions, b"\n".join(lines) + b"\n")


@dataclass(frozen=True, slots=True)
class _Measured:
    """What was measured on one split. `share` is the part of the planned steps that was best."""

    summary: dict[str, Any]
    held_out: list[HeldOut]
    calibration: Calibration
    share: float
    policy: LocalPolicy | None


def _training_summary(progress: Progress, data: Data, settings: Settings) -> dict[str, Any]:
    return {
        "steps": progress.step,
        "best_step": progress.best_step,
        "planned_steps": progress.planned,
        "best_validation_loss": None if math.isinf(progress.best_loss) else progress.best_loss,
        "validation_losses": [list(pair) for pair in progress.losses],
        "tokens_per_epoch": data.tokens,
        "seconds": progress.seconds,
        "epochs": settings.epochs,
    }


def _slides(config: Any) -> bool:
    """Return whether a model's attention sees a window only, which a mask for branches would override."""
    window = getattr(config, "sliding_window", None)
    return bool(window) and getattr(config, "use_sliding_window", True) is not False


def _digest(recordings: Sequence[Recording]) -> str:
    hasher = hashlib.sha256()
    for recording in sorted(recordings, key=lambda r: r.id):
        hasher.update(repr((recording.id, recording.dialogue.turns)).encode())
    return hasher.hexdigest()[:16]


def _mean_numbers(items: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Return the mean of every number over objects of the same shape; other values are those of the first."""
    mean: dict[str, Any] = {}
    for key, value in items[0].items():
        own = [item.get(key) for item in items]
        if isinstance(value, dict) and all(isinstance(x, dict) for x in own):
            mean[key] = _mean_numbers(own)  # type: ignore[arg-type]
        elif isinstance(value, float) and all(isinstance(x, float) for x in own):
            mean[key] = float(np.mean(own))  # type: ignore[arg-type]
        else:
            mean[key] = value
    return mean
