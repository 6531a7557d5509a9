"""Supervised training of a role: answers that are read out, text that is written, or both.

The loss of a batch is the mean cross-entropy of its answers, over the options of each answer only, plus the
mean cross-entropy of its text tokens times `text_weight`. Rare answers weigh more: the weight of an answer is
the inverse of its frequency at its place to the power `balance`, scaled so that the mean weight of a place is
1.

Training stops when the validation loss has not improved for `patience` checks; the weights of the best check
are kept. A killed run continues from its last checkpoint, with the same result.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel

from mapo.errors import StoreError, TrainError
from mapo.local_model.attention import without_mask
from mapo.local_model.files import read_tensors, write_tensors
from mapo.local_model.policy import LocalPolicy
from mapo.roles.packing import Example, Row, batches
from mapo.train import checkpoint
from mapo.train.head import head_scores
from mapo.train.loss import body_and_head
from mapo.train.optim import Optimizer, lr_at, make_optimizer

MULTIPLE = 64
"""Rows are padded to a multiple of this many tokens: attention kernels need aligned masks."""
MICRO = 8192
"""Tokens of one forward and backward pass; a step of more tokens adds up several. All weights of a 1.5B
model and 16,384 tokens took 120 GB."""
BEST = "best.safetensors"
_MASKED = [SDPBackend.EFFICIENT_ATTENTION, SDPBackend.MATH]
"""Attention of rows with a mask. On padded rows, cuDNN's gradients were not finite (torch 2.11, H200)."""
Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Settings:
    """How a role is trained."""

    epochs: float = 3.0
    lr: float = 1e-5
    tokens: int = 24576
    """Tokens per optimizer step, padding included."""
    balance: float = 0.5
    text_weight: float = 1.0
    weight_decay: float = 0.01
    checks: int = 2
    """Validations per epoch."""
    patience: int = 3
    seed: int = 0
    max_minutes: float = math.inf
    save_minutes: float = 10.0
    """Time between checkpoints."""


@dataclass(frozen=True, slots=True)
class Answers:
    """The answers of all examples as arrays: option tokens, which of them each place allows, and the recorded
    one."""

    tokens: tuple[int, ...]
    """All tokens that are an option of any place."""
    allowed: NDArray[np.bool_]
    """[answers, tokens]"""
    recorded: NDArray[np.int64]
    """Index of the recorded option among the tokens."""
    weights: NDArray[np.float32]
    first: NDArray[np.int64]
    """Index of the first answer of each example."""

    @staticmethod
    def of(examples: Sequence[Example], balance: float = 0.0) -> Answers:
        """Collect the answers of examples."""
        tokens = tuple(sorted({token for e in examples for own in e.options for token in own}))
        at = {token: k for k, token in enumerate(tokens)}
        own_options = [own for e in examples for own in e.options]
        recorded = [own[a] for e in examples for own, a in zip(e.options, e.answers, strict=True)]
        places = [place for e in examples for place in range(len(e.options))]
        allowed = np.zeros((len(own_options), len(tokens)), np.bool_)
        for row, own in zip(allowed, own_options, strict=True):
            row[[at[token] for token in own]] = True
        first = np.cumsum([0, *(len(e.options) for e in examples)])[:-1]
        index = np.array([at[token] for token in recorded], np.int64)
        weights = _balanced(np.array(places, np.int64), index, balance)
        return Answers(tokens, allowed, index, weights, first)


def _balanced(places: NDArray[np.int64], answers: NDArray[np.int64], balance: float) -> NDArray[np.float32]:
    """Return the weight of each answer: frequency^-balance at its place, with mean 1 per place."""
    weights = np.ones(len(places), np.float32)
    for place in np.unique(places):
        own = places == place
        _, inverse, counts = np.unique(answers[own], return_inverse=True, return_counts=True)
        raw = (counts / counts.sum()) ** -balance
        weights[own] = (raw / (raw * counts).sum() * counts.sum())[inverse]
    return weights


@dataclass(slots=True)
class Batch:
    """Padded rows on a device, with the answers and texts in them."""

    ids: Tensor
    positions: Tensor
    mask: Tensor | None
    read_at: Tensor
    answer: NDArray[np.int64]
    text_at: Tensor
    text_target: Tensor
    text_example: NDArray[np.int64]


def make_batch(rows: Sequence[Row], answers: Answers, device: torch.device) -> Batch:
    """Pad rows on the right and compute their attention mask, if they have branches."""
    length = -(-max(map(len, rows)) // MULTIPLE) * MULTIPLE
    shape = (len(rows), length)
    ids, positions = np.zeros(shape, np.int64), np.zeros(shape, np.int64)
    segment, visible = np.full(shape, -1, np.int64), np.zeros(shape, np.int64)
    for i, row in enumerate(rows):
        for table, values in (
            (ids, row.ids),
            (positions, row.positions),
            (segment, row.segment),
            (visible, row.visible),
        ):
            table[i, : len(row)] = values
    offsets = [i * length for i in range(len(rows))]
    read_at = np.concatenate([row.read_at + start for row, start in zip(rows, offsets, strict=True)])
    text_at = np.concatenate([row.text_at + start for row, start in zip(rows, offsets, strict=True)])
    answer = np.concatenate([answers.first[row.read_example] + row.read_place for row in rows])
    branching = any(row.branches for row in rows)
    return Batch(
        _on(ids, device),
        _on(positions, device),
        _mask(_on(segment, device), _on(visible, device)) if branching else None,
        _on(read_at, device),
        answer,
        _on(text_at, device),
        _on(np.concatenate([row.text_target for row in rows]), device),
        np.concatenate([row.text_example for row in rows]),
    )


def _on(values: NDArray[Any], device: torch.device) -> Tensor:
    tensor = torch.from_numpy(values)
    return tensor.pin_memory().to(device, non_blocking=True) if device.type == "cuda" else tensor


def _mask(segment: Tensor, visible: Tensor) -> Tensor:
    """Return which tokens see which, [rows, 1, length, length]: earlier tokens of the own segment, and the
    visible part of the trunk."""
    index = torch.arange(segment.shape[1], device=segment.device)
    own = (segment[:, :, None] == segment[:, None, :]) & (index[:, None] >= index[None, :])
    trunk = (segment == 0)[:, None, :] & (index[None, None, :] < visible[:, :, None])
    return (own | (trunk & (segment[:, :, None] > 0)))[:, None]


class Scorer:
    """Scores batches with a model: log-probabilities of options, and of text tokens."""

    def __init__(self, policy: LocalPolicy, answers: Answers) -> None:
        self.policy = policy
        self.answers = answers
        device = policy.device
        self._tokens = torch.tensor(answers.tokens, device=device, dtype=torch.long)
        self._allowed = torch.from_numpy(answers.allowed).to(device)
        self.recorded = torch.from_numpy(answers.recorded).to(device)
        self.weights = torch.from_numpy(answers.weights).to(device)

    def __call__(self, batch: Batch) -> tuple[Tensor, Tensor]:
        """Return log-probabilities [answers, tokens], normalised over the options of each, and those of
        text."""
        body, head = body_and_head(self.policy.model)
        # Positions are passed with a mask only: without one, transformers would look for packed sequences.
        mask = {} if batch.mask is None else {"attention_mask": batch.mask, "position_ids": batch.positions}
        inputs = {"input_ids": batch.ids, "use_cache": False, **mask}
        if head is None:
            with nullcontext() if mask else without_mask(body):
                every = self.policy.model(**inputs).logits.flatten(0, 1)
            read = every.index_select(0, batch.read_at).index_select(1, self._tokens).float()
            text = torch.log_softmax(every.index_select(0, batch.text_at).float(), -1)
            return self._normalised(read, batch), text.gather(1, batch.text_target[:, None])[:, 0]
        with sdpa_kernel(_MASKED) if mask else without_mask(body):
            hidden = body(**inputs).last_hidden_state.flatten(0, 1)
        weight = head.weight.index_select(0, self._tokens).float()
        read = hidden.index_select(0, batch.read_at).float() @ weight.T
        if head.bias is not None:
            read = read + head.bias.index_select(0, self._tokens).float()
        if len(batch.text_at):
            text, _ = head_scores(
                hidden.index_select(0, batch.text_at), head.weight, head.bias, batch.text_target
            )
        else:
            text = read.new_zeros(0)
        return self._normalised(read, batch), text

    def _normalised(self, logits: Tensor, batch: Batch) -> Tensor:
        allowed = self._allowed.index_select(0, torch.from_numpy(batch.answer).to(logits.device))
        return torch.log_softmax(logits.masked_fill(~allowed, -1e30), -1)


def batch_loss(scorer: Scorer, batch: Batch, answers: int, text: float) -> Tensor:
    """Return a batch's part of the loss of a step with that many `answers`; the loss of a token of text
    counts `text`."""
    read, written = scorer(batch)
    at = torch.from_numpy(batch.answer).to(read.device)
    target, weight = scorer.recorded.index_select(0, at), scorer.weights.index_select(0, at)
    nll = -(weight * read.gather(1, target[:, None])[:, 0]).sum()
    return nll / max(1, answers) - text * written.sum()


@dataclass(frozen=True, slots=True)
class Predictions:
    """What a model predicts for examples. `reads[i]` are the log-probabilities of the options of each
    place of example i, `text[i]` the sum of the log-probabilities of its text and `tokens[i]` their
    number."""

    reads: list[list[list[float]]]
    text: Floats
    tokens: NDArray[np.int64]


@torch.no_grad()
def predict(
    policy: LocalPolicy, examples: Sequence[Example], rows: Sequence[Row], tokens: int
) -> Predictions:
    """Score examples in batches."""
    answers = Answers.of(examples)
    scorer = Scorer(policy, answers)
    policy.model.eval()
    logprobs = np.zeros(answers.allowed.shape, np.float64)
    text, counts = np.zeros(len(examples)), np.zeros(len(examples), np.int64)
    for indices in batches(rows, tokens):
        batch = make_batch([rows[i] for i in indices], answers, policy.device)
        read, written = scorer(batch)
        logprobs[batch.answer] = read.cpu().numpy()
        np.add.at(text, batch.text_example, written.double().cpu().numpy())
        np.add.at(counts, batch.text_example, 1)
    at = {token: k for k, token in enumerate(answers.tokens)}
    reads = [
        [logprobs[first + k][[at[token] for token in own]].tolist() for k, own in enumerate(e.options)]
        for e, first in zip(examples, answers.first, strict=True)
    ]
    return Predictions(reads, text, counts)


def mean_loss(examples: Sequence[Example], predictions: Predictions, text_weight: float = 1.0) -> float:
    """Return the loss of predictions without class weights: the mean over answers, plus that over text
    tokens."""
    nll = [
        -place[answer]
        for e, places in zip(examples, predictions.reads, strict=True)
        for place, answer in zip(places, e.answers, strict=True)
    ]
    loss = sum(nll) / len(nll) if nll else 0.0
    words = int(predictions.tokens.sum())
    return loss - (text_weight * float(predictions.text.sum()) / words if words else 0.0)


@dataclass(frozen=True, slots=True)
class Data:
    """Examples with their rows."""

    examples: Sequence[Example]
    rows: Sequence[Row]

    @property
    def tokens(self) -> int:
        """Tokens of one epoch."""
        return sum(map(len, self.rows))


@dataclass(slots=True)
class Progress:
    """Where training stands; saved with every checkpoint."""

    step: int = 0
    planned: int = 0
    best_step: int = 0
    best_loss: float = math.inf
    worse: int = 0
    seconds: float = 0.0
    losses: list[tuple[int, float]] = field(default_factory=list)


Watch = Callable[[dict[str, Any]], None]
"""Receives the metrics of a step."""


def train(
    policy: LocalPolicy,
    data: Data,
    validation: Data | None,
    settings: Settings,
    folder: Path,
    watch: Watch,
    *,
    stop_at: float | None = None,
) -> Progress:
    """Train until the last epoch, until validation stops improving, or until the share `stop_at` of all
    steps; leave the best weights in the policy. Checkpoints are written below `folder`."""
    answers = Answers.of(data.examples, settings.balance)
    scorer = Scorer(policy, answers)
    optimizer = make_optimizer(policy.model, settings.weight_decay, betas=(0.9, 0.95))
    orders = [
        order
        for epoch in range(math.ceil(settings.epochs))
        for order in batches(data.rows, settings.tokens, settings.seed * 1000 + epoch)
    ]
    per_epoch = max(1, len(orders) // math.ceil(settings.epochs))
    total = max(1, round(per_epoch * settings.epochs))
    last = total if stop_at is None else max(1, min(total, round(stop_at * total)))
    every = max(1, per_epoch // settings.checks)
    state, best = _resume(folder, policy, optimizer)
    state.planned = total
    began, saved = time.monotonic() - state.seconds, time.monotonic()
    while state.step < last and state.worse < settings.patience:
        elapsed = time.monotonic() - began
        if elapsed > 60 * settings.max_minutes:
            break
        done = max(state.step, min(total - 1, int(total * elapsed / (60 * settings.max_minutes))))
        lr = lr_at(done, total, settings.lr)
        loss, norm = _step(policy, scorer, optimizer, data, orders[state.step], settings, lr, state.step)
        state.step += 1
        state.seconds = time.monotonic() - began
        record: dict[str, Any] = {"step": state.step, "loss": loss, "grad_norm": norm, "lr": lr}
        ends = state.step == last or state.seconds > 60 * settings.max_minutes
        checked = validation is not None and (state.step % every == 0 or ends)
        if checked and validation is not None:
            predictions = predict(policy, validation.examples, validation.rows, 2 * settings.tokens)
            value = mean_loss(validation.examples, predictions, settings.text_weight)
            state.losses.append((state.step, value))
            record["validation_loss"] = value
            best = _note_check(state, value, policy) or best
        watch({**record, "epoch": state.step / per_epoch, "of": last, "seconds": state.seconds})
        if time.monotonic() - saved > 60 * settings.save_minutes:
            _save(folder, policy, optimizer, state, best)
            saved = time.monotonic()
    if best is not None and state.best_step != state.step:
        _restore(policy, best)
    policy.model.eval()
    return state


def _step(
    policy: LocalPolicy,
    scorer: Scorer,
    optimizer: Optimizer,
    data: Data,
    order: Sequence[int],
    settings: Settings,
    lr: float,
    step: int,
) -> tuple[float, float]:
    policy.model.train()
    torch.manual_seed(settings.seed * 1_000_003 + step)  # for dropout
    rows = [data.rows[i] for i in order]
    answers, words = sum(len(row.read_at) for row in rows), sum(len(row.text_at) for row in rows)
    text = settings.text_weight / max(1, words)
    value = 0.0
    for part in batches(rows, min(MICRO, settings.tokens)):
        batch = make_batch([rows[i] for i in part], scorer.answers, policy.device)
        loss = batch_loss(scorer, batch, answers, text)
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.absorb()
        value += float(loss.detach())
    norm = optimizer.clip(1.0)
    if not (math.isfinite(value) and math.isfinite(norm)):
        raise TrainError(
            f"the loss of step {step + 1} is not finite", fix="Use a smaller --lr, or check the model"
        )
    optimizer.step(lr)
    optimizer.zero_grad()
    return value, norm


def _note_check(state: Progress, value: float, policy: LocalPolicy) -> dict[str, Tensor] | None:
    """Note a validation loss; return the weights on the host if it is the best so far."""
    if value < state.best_loss:
        state.best_loss, state.best_step, state.worse = value, state.step, 0
        return {
            n: p.detach().to("cpu", copy=True) for n, p in policy.model.named_parameters() if p.requires_grad
        }
    state.worse += 1
    return None


@torch.no_grad()
def _restore(policy: LocalPolicy, weights: dict[str, Tensor]) -> None:
    for name, parameter in policy.model.named_parameters():
        if parameter.requires_grad:
            parameter.copy_(weights[name])


def _save(
    folder: Path, policy: LocalPolicy, optimizer: Optimizer, state: Progress, best: dict[str, Tensor] | None
) -> None:
    content = {name: getattr(state, name) for name in Progress.__slots__}
    if math.isinf(state.best_loss):
        content["best_loss"] = None
    if best is not None:
        folder.mkdir(parents=True, exist_ok=True)
        temporary = folder / f".{BEST}.tmp"
        write_tensors(temporary, best)
        temporary.replace(folder / BEST)
    checkpoint.save(folder / f"step_{state.step:05d}", policy, optimizer, content)
    checkpoint.remove_old(folder, 1)


def _resume(
    folder: Path, policy: LocalPolicy, optimizer: Optimizer
) -> tuple[Progress, dict[str, Tensor] | None]:
    """Return the progress and the best weights of the newest complete checkpoint, and load it."""
    latest = checkpoint.latest(folder)
    if latest is None:
        return Progress(), None
    content = checkpoint.load(latest, policy, optimizer, verify=False)
    try:
        state = Progress(**{**content, "losses": [(int(s), float(v)) for s, v in content["losses"]]})
        state.best_loss = math.inf if content["best_loss"] is None else float(content["best_loss"])
    except (KeyError, TypeError, ValueError) as error:
        raise StoreError(
            f"the checkpoint is not one of a role ({error})", where=str(latest), fix="Use another --out"
        ) from None
    return state, read_tensors(folder / BEST) if (folder / BEST).is_file() else None
