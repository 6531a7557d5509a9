"""Train an embedded judge: a small Llama whose levels are read out.

    PYTHONPATH=. python scripts/embedded/make_judge.py --policy made/policy --start --part all --out made/judge

It reads dialogues put together from replies of known kinds (`dialogues.py`), among them spoiled ones, and learns their
levels in the brief layout of `mapo.sandbox.readout`. The calibration is fitted, and agreement measured, on different
halves of held-out written people.

A teacher reads better than a model this small: SmolLM2-135M-Instruct, which has read much more, learns the levels first,
and the judge then learns its probabilities of them:

    make_judge.py --policy made/policy --base models/smollm2-135m-instruct --whole --lr 2e-4 --out made/judge_teacher
    make_judge.py --policy made/policy --start --teacher made/judge_teacher --out made/judge
"""

from __future__ import annotations

import argparse
import json
import random
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from corpus import TURNS, Corpus, PolicyReplies, draw_dialogue, in_parallel, policy_replies, split
from dialogues import SPOILED, Exchange
from kinds import train_namer
from small import (
    ASSISTANT,
    CONTEXT,
    Batch,
    add_dropout,
    attention,
    cut_embeddings,
    fast,
    load_teacher,
    mixed_precision,
    new_model,
    options_of,
    save,
    train,
    whole_model,
)
from texts import GOOD, KINDS, Person
from tokenizers import Tokenizer
from torch.nn.functional import cross_entropy
from transformers import LlamaForCausalLM

from mapo import Rubric
from mapo.local_model.forms import FormTokens, form_tokens
from mapo.local_model.role_file import RoleFile, rubric_fingerprint, write_role_file
from mapo.local_model.template import read_template
from mapo.measure.agreement import quadratic_kappa
from mapo.measure.calibration import Calibration, fit
from mapo.sandbox.readout import BRIEF, judge_messages, turn_places
from mapo.types import Reply, Turn

ALL_KINDS = (*KINDS, *SPOILED, "senseless")
TEXT_WEIGHT, KIND_WEIGHT = 0.2, 0.3
TEACHER_WEIGHT = 0.8
"""Weight of the teacher's probabilities in the loss of the levels; the rest is that of the levels as meant."""
UNKNOWN = -100
SHORT_ROW, LONG_ROW, SHORT_ROWS_UNTIL = 512, 1024, 0.88
"""Tokens of a training row. The last part of the training has long rows, with long dialogues in them."""
SHORT_TURNS, LONG_TURNS = (2, 4, 6), (10, 14)
TOKENS_PER_TURN = 55
"""Fewest tokens of a turn, on average over a batch."""
RUBRIC = Rubric.load("empathy")
STEPS = [steps for axis in RUBRIC.axes for steps in (axis.progress, axis.regression)]
"""The step of each level, by place."""


@dataclass(slots=True)
class Row:
    """One dialogue as ids; `at` are the positions of the answers, six per turn."""

    ids: np.ndarray
    at: np.ndarray
    levels: np.ndarray
    kinds: np.ndarray
    """Index of each turn's kind, UNKNOWN where two are mixed."""


def messages(threshold: str, exchanges: list[Exchange]) -> Any:
    turns = [Turn(user=x.line, reply=Reply(x.reply)) for x in exchanges]
    return judge_messages(SimpleNamespace(threshold=threshold), RUBRIC, turns, layout=BRIEF)  # type: ignore[arg-type]


class Encoder:
    """Turns dialogues into rows."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self.tokenizer = tokenizer
        self.form: FormTokens = form_tokens(fast(tokenizer), turn_places(RUBRIC))
        self.mark = tokenizer.token_to_id(ASSISTANT)

    def row(self, threshold: str, exchanges: list[Exchange]) -> Row:
        shown = messages(threshold, exchanges)
        text = "".join(f"<|{m.role}|>{m.content}<|end|>" for m in shown) + ASSISTANT
        ids = np.array([*self.tokenizer.encode(text, add_special_tokens=False).ids, *self.form.ids])
        starts = np.flatnonzero(ids == self.mark)
        keep = [n for n, s in enumerate(starts) if s + len(self.form.ids) < CONTEXT]
        at = np.array([[starts[n] + 1 + r for r in self.form.reads] for n in keep])
        kinds = [ALL_KINDS.index(x.kind) if x.kind in ALL_KINDS else UNKNOWN for x in exchanges]
        levels = np.array([x.levels for x in exchanges])
        return Row(ids[:CONTEXT].astype(np.uint16), at, levels[keep], np.array(kinds)[keep])

    def check(self) -> None:
        """Compare a row with the prompt that a playing judge sees."""
        exchanges = [Exchange('I said "no" at 5.', "What did they say?", "ask", (1, 0, 0, 0, 0, 0))] * 3
        row, template = self.row("high", exchanges), read_template(fast(self.tokenizer))
        expected = [*template.full_prompt(messages("high", exchanges)), *self.form.ids]
        assert row.ids.tolist() == expected, "rows differ from prompts"


def draw_row(rng: random.Random, corpus: Corpus, encoder: Encoder, turns: Sequence[int]) -> Row:
    drawn = draw_dialogue(rng, corpus, rng.choice(turns))
    return encoder.row(drawn.threshold, drawn.exchanges)


def rows_of(short: Sequence[Row], long: Sequence[Row], budget: int, seed: int) -> Callable[[float], Batch]:
    """Return a function that draws the batch at a part of the training: rows filled with whole dialogues, the positions of
    the answers, their levels and kinds, and positions whose next token is learned as text."""
    rng = np.random.default_rng(seed)

    def shuffled(pool: Sequence[Row]) -> Iterator[Row]:
        while True:
            yield from (pool[k] for k in rng.permutation(len(pool)))

    streams = {SHORT_ROW: shuffled(short), LONG_ROW: shuffled(long)}
    waiting = {width: next(stream) for width, stream in streams.items()}

    def batch_of(done: float) -> Batch:
        width = SHORT_ROW if done < SHORT_ROWS_UNTIL else LONG_ROW
        ids = np.zeros((budget // width, width), dtype=np.int64)
        at = np.zeros((budget // TOKENS_PER_TURN, 6), dtype=np.int64)
        levels = np.full_like(at, UNKNOWN)
        kinds, turn = np.full(len(at), UNKNOWN), 0
        for k, row_ids in enumerate(ids):
            used = 0
            while used + len((row := waiting[width]).ids) <= width and turn + len(row.at) <= len(at):
                row_ids[used : used + len(row.ids)] = row.ids
                mine = slice(turn, turn + len(row.at))
                at[mine] = row.at + k * width + used
                levels[mine], kinds[mine] = row.levels, row.kinds
                used, turn = used + len(row.ids), turn + len(row.at)
                waiting[width] = next(streams[width])
        text = rng.integers(0, ids.size - 1, budget // 8)
        return tuple(map(torch.from_numpy, (ids, at, levels, kinds, text)))

    return batch_of


def held_out_rows(people: Sequence[Person], encoder: Encoder, replies: PolicyReplies) -> list[Row]:
    rng, corpus = random.Random("held out"), Corpus(people, replies)
    return [draw_row(rng, corpus, encoder, TURNS) for _ in range(300)]


def predict(model: Any, rows: list[Row], options: torch.Tensor, device: str) -> np.ndarray:
    """Return the log-probabilities of all levels: [turns, places, levels]."""
    result = []
    head = model.get_output_embeddings().weight[options].float()
    with torch.no_grad():
        for row in rows:
            hidden = model.model(
                input_ids=torch.from_numpy(row.ids.astype(np.int64))[None].to(device)
            ).last_hidden_state[0]
            scores = hidden[torch.from_numpy(row.at).to(device)].float() @ head.T
            result.append(scores.log_softmax(-1).cpu().numpy())
    return np.concatenate(result)


def agreement(
    logprobs: np.ndarray, levels: np.ndarray, kinds: np.ndarray, calibration: Calibration
) -> dict[str, Any]:
    """Return kappa per place and the mean step of each kind, as meant and as read."""
    read = np.array([calibration.levels(calibration.apply(turn.tolist())) for turn in logprobs])
    names = [f"{key} {side}" for key in RUBRIC.keys for side in ("progress", "regression")]
    kappas = {
        n: round(quadratic_kappa(levels[:, k].tolist(), read[:, k].tolist()) or 0.0, 3)
        for k, n in enumerate(names)
    }
    table = np.array(STEPS)
    step = lambda x: sum(table[k][x[:, k]] for k in range(6))  # noqa: E731
    meant, seen = step(levels), step(read)
    by_kind: dict[str, list[float]] = defaultdict(list)
    for n, kind in enumerate(ALL_KINDS):
        if (mine := kinds == n).any():
            by_kind[kind] = [
                int(mine.sum()),
                round(float(meant[mine].mean()), 2),
                round(float(seen[mine].mean()), 2),
            ]
    r = float(np.corrcoef(meant, seen)[0, 1])
    good, senseless = (
        np.isin(kinds, [ALL_KINDS.index(k) for k in GOOD]),
        kinds == ALL_KINDS.index("senseless"),
    )
    return {
        "turns": len(levels),
        "kappa": kappas,
        "step_correlation": round(r, 3),
        "good above senseless": round(share_above(seen[good], seen[senseless]), 3),
        "kinds: turns, meant, read": dict(by_kind),
    }


def share_above(these: np.ndarray, those: np.ndarray) -> float:
    """Return how often a random one of these is above a random one of those; equal ones count half."""
    difference = these[:, None] - those
    return float(((difference > 0) + (difference == 0) / 2).mean()) if difference.size else 0.5


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--policy", type=Path, required=True, help="folder of the policy: tokenizer and shape"
    )
    start = parser.add_mutually_exclusive_group(required=True)
    start.add_argument("--start", action="store_true", help="start from the policy's weights")
    start.add_argument(
        "--base", type=Path, help="start from the word embeddings of SmolLM2-135M-Instruct alone"
    )
    start.add_argument(
        "--judge", type=Path, help="go on with a judge, as after adding verdicts on what deceives it"
    )
    parser.add_argument(
        "--whole",
        action="store_true",
        help="train all layers of SmolLM2-135M-Instruct, as a teacher (--base)",
    )
    parser.add_argument(
        "--teacher",
        type=Path,
        help="folder of a judge with the same tokenizer, whose probabilities are learned",
    )
    parser.add_argument("--part", choices=("all", "even", "odd"), default="even", help="people to learn from")
    parser.add_argument("--out", type=Path, required=True, help="folder to write")
    parser.add_argument("--tokens", type=float, default=10e6, help="tokens to train on")
    parser.add_argument("--minutes", type=float, default=120.0, help="longest time of training")
    parser.add_argument("--dialogues", type=int, default=25000, help="distinct dialogues")
    parser.add_argument(
        "--width", type=int, default=320, help="width where it does not start from the policy"
    )
    parser.add_argument(
        "--layers", type=int, default=4, help="layers; of a policy to start from, the first ones"
    )
    parser.add_argument("--batch", type=int, default=6144, help="tokens per step")
    parser.add_argument("--dropout", type=float, default=0.0)
    parser.add_argument("--lr", type=float, default=1.2e-3)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    args = parser.parse_args()
    if args.whole and not args.base:
        parser.error("--whole needs --base.")
    for folder in filter(None, (args.policy, args.base, args.judge, args.teacher)):
        if not (folder / "tokenizer.json").is_file():
            parser.error(f"{folder} is not the folder of a model")
    return args


def starting_model(args: argparse.Namespace, tokenizer: Tokenizer) -> LlamaForCausalLM:
    """Return a model of the judge's shape that starts as `args` say."""
    if args.whole:
        return whole_model(args.base, tokenizer)
    start = args.judge or (args.policy if args.start else None)
    weights = LlamaForCausalLM.from_pretrained(start, dtype=torch.float32) if start else None
    width = weights.config.hidden_size if weights is not None else args.width
    model = new_model(tokenizer.get_vocab_size(), width, args.layers, args.seed + 1000)
    if weights is not None:
        model.load_state_dict(weights.state_dict(), strict=False)  # its first layers
    else:
        with torch.no_grad():
            model.model.embed_tokens.weight.copy_(cut_embeddings(args.base, tokenizer, width))
    return model


def main() -> None:
    args = arguments()
    tokenizer = Tokenizer.from_file(str(args.policy / "tokenizer.json"))
    encoder = Encoder(tokenizer)
    encoder.check()
    people, held = split(args.part)
    replies = policy_replies(train_namer(people))
    corpus = Corpus(people, replies)

    def pool(turns: Sequence[int], count: int, longest: int) -> list[Row]:
        make = lambda rng: draw_row(rng, corpus, encoder, turns)  # noqa: E731
        rows = in_parallel(make, count, f"judge/{args.seed}/{longest}")
        return [row for row in rows if len(row.ids) <= longest]

    short = pool(SHORT_TURNS, args.dialogues, SHORT_ROW)
    long = pool(LONG_TURNS, args.dialogues // 15, LONG_ROW)
    model = starting_model(args, tokenizer)
    add_dropout(model, args.dropout)
    model.set_attn_implementation(attention(args.device))
    model.to(args.device)
    kind_head = torch.nn.Linear(model.config.hidden_size, len(ALL_KINDS)).to(args.device)
    size = sum(p.numel() for p in model.parameters())
    count = sum(map(len, replies.values()))
    print(
        f"{len(people)} people, {count} replies of policies, {sum(len(r.ids) for r in short + long) / 1e6:.1f}M tokens, "
        f"{size / 1e6:.2f}M weights",
        flush=True,
    )
    options = torch.tensor(encoder.form.options[0], device=args.device)
    teacher = load_teacher(args.teacher, tokenizer, args.device) if args.teacher else None

    def with_teacher(batch: Batch) -> Batch:
        """Add the teacher's probabilities of the levels to a batch."""
        if teacher is None:
            return batch
        ids, at = batch[:2]
        with torch.no_grad(), mixed_precision(args.device):
            hidden = teacher.model(input_ids=ids, use_cache=False).last_hidden_state.flatten(0, 1)
            scores = hidden[at] @ teacher.lm_head.weight[options].T
            return (*batch, scores.flatten(0, 1).float().softmax(-1))

    def loss_of(
        ids: torch.Tensor,
        at: torch.Tensor,
        levels: torch.Tensor,
        kinds: torch.Tensor,
        text: torch.Tensor,
        teacher_probabilities: torch.Tensor | None = None,
    ) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
        hidden = model.model(input_ids=ids, use_cache=False).last_hidden_state.flatten(0, 1)
        head = model.lm_head.weight
        read = hidden[at]
        scores, meant = (read @ head[options].T).flatten(0, 1).float(), levels.flatten()
        answers = cross_entropy(scores, meant, ignore_index=UNKNOWN)
        kind = cross_entropy(kind_head(read[:, 0]).float(), kinds, ignore_index=UNKNOWN)
        next_token = cross_entropy((hidden[text] @ head.T).float(), ids.flatten()[text + 1], ignore_index=0)
        shown = {"answers": answers.detach(), "kind": kind.detach(), "text": next_token.detach()}
        if teacher_probabilities is not None:
            known = meant != UNKNOWN
            each = cross_entropy(scores, teacher_probabilities, reduction="none")
            from_teacher = (each * known).sum() / known.sum()
            shown["teacher"] = from_teacher.detach()
            answers = (1 - TEACHER_WEIGHT) * answers + TEACHER_WEIGHT * from_teacher
        return answers + KIND_WEIGHT * kind + TEXT_WEIGHT * next_token, shown

    fitted, tests = held[::2], held[1::2]
    watched = held_out_rows(tests, encoder, {})[:100]

    def held_out_loss() -> str:
        logprobs = predict(model, watched, options, args.device)
        truth = np.concatenate([row.levels for row in watched])
        return f"held out {-np.take_along_axis(logprobs, truth[..., None], -1).mean():.3f}"

    made = train(
        model,
        (kind_head,),
        rows_of(short, long, args.batch, args.seed),
        loss_of,
        tokens=args.tokens,
        minutes=args.minutes,
        lr=args.lr,
        check=held_out_loss,
        extend_batch=with_teacher,
    )
    measured, calibration = measure(model, encoder, options, args.device, fitted, tests, replies)
    print(json.dumps(measured, indent=1), flush=True)
    made |= {
        "people": len(people),
        "options": options_of(args),
        "weights": size,
        "held_out": measured,
    }
    save(model, tokenizer, args.out, made)
    trained_on = {"texts": "scripts/embedded", "part": args.part, "people": len(people)}
    write_role_file(
        args.out, RoleFile("judge", RUBRIC.name, rubric_fingerprint(RUBRIC), BRIEF, calibration, trained_on)
    )


def measure(
    model: LlamaForCausalLM,
    encoder: Encoder,
    options: torch.Tensor,
    device: str,
    fitted: Sequence[Person],
    tests: Sequence[Person],
    replies: PolicyReplies,
) -> tuple[dict[str, Any], Calibration]:
    """Fit the calibration on some held-out people and measure the agreement on others."""
    drawn = {
        "fit": held_out_rows(fitted, encoder, {}) + held_out_rows(fitted, encoder, replies),
        "written": held_out_rows(tests, encoder, {}),
        "with a policy's replies": held_out_rows(tests, encoder, replies),
    }
    logprobs = {name: predict(model, rows, options, device) for name, rows in drawn.items()}
    levels = {name: np.concatenate([row.levels for row in rows]) for name, rows in drawn.items()}
    calibration = fit([logprobs["fit"][:, k] for k in range(6)], [levels["fit"][:, k] for k in range(6)])
    measured = {
        name: agreement(
            logprobs[name], levels[name], np.concatenate([row.kinds for row in rows]), calibration
        )
        for name, rows in drawn.items()
        if name != "fit"
    }
    return measured, calibration


if __name__ == "__main__":
    main()
