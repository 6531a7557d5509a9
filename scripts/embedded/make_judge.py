"""Train an embedded judge: a small Llama whose levels are read out.

    PYTHONPATH=. python scripts/embedded/make_judge.py --stories stories.jsonl.gz --part even \\
        --tokenizer mapo/local_model/pocket/tokenizer.json --out mapo/local_model/pocket_judge

It reads dialogues put together from replies of known kinds (`dialogues.py`), among them spoiled ones, and learns their
levels in the brief layout of `mapo.sandbox.readout`. The calibration is fitted, and agreement measured, on different
halves of held-out written people.
"""

from __future__ import annotations

import argparse
import json
import random
from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from corpus import TURNS, Draw, PolicyReplies, add_text_options, draw_dialogue, in_parallel, read_texts
from dialogues import SPOILED, Exchange
from small import ASSISTANT, CONTEXT, add_dropout, batches, fast, new_model, padded, save, train
from texts import KINDS, Person
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
UNKNOWN = -100
RUBRIC = Rubric.load("empathy")


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


def draw_row(rng: random.Random, draw: Draw, encoder: Encoder, policy_replies: PolicyReplies) -> Row:
    drawn = draw_dialogue(rng, draw, policy_replies)
    return encoder.row(drawn.threshold, drawn.exchanges)


def batch(rows: list[Row]) -> tuple[torch.Tensor, ...]:
    """Return ids, positions, levels and kinds. The number of turns depends only on the shape of the ids; those that are
    missing are UNKNOWN."""
    ids = padded([row.ids for row in rows])
    size = len(rows) * TURNS
    at, levels = np.zeros((size, 6), dtype=np.int64), np.full((size, 6), UNKNOWN)
    kinds = np.full(size, UNKNOWN)
    for n, row in enumerate(rows):
        mine = slice(n * TURNS, n * TURNS + len(row.at))
        at[mine] = row.at + n * ids.shape[1]
        levels[mine], kinds[mine] = row.levels, row.kinds
    return ids, *map(torch.from_numpy, (at, levels, kinds))


def held_out_rows(people: list[Person], encoder: Encoder, policy_replies: PolicyReplies) -> list[Row]:
    rng = random.Random("held out")
    return [draw_row(rng, Draw(people, []), encoder, policy_replies) for _ in range(300)]


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
    table = np.array(
        [[*a.progress] if side == 0 else [*a.regression] for a in RUBRIC.axes for side in (0, 1)]
    )
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
    return {
        "turns": len(levels),
        "kappa": kappas,
        "step_correlation": round(r, 3),
        "kinds: turns, meant, read": dict(by_kind),
    }


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add_text_options(parser)
    parser.add_argument(
        "--start", help="folder of a judge to go on from, as after collecting what deceived it"
    )
    parser.add_argument("--part", choices=("all", "even", "odd"), default="even", help="people to learn from")
    parser.add_argument("--tokenizer", type=Path, required=True, help="tokenizer.json of the policy")
    parser.add_argument("--out", type=Path, required=True, help="folder to write")
    parser.add_argument("--tokens", type=float, default=110e6, help="tokens to train on")
    parser.add_argument("--dialogues", type=int, default=60000, help="distinct dialogues")
    parser.add_argument("--width", type=int, default=256)
    parser.add_argument("--layers", type=int, default=5)
    parser.add_argument("--batch", type=int, default=16384, help="tokens per step")
    parser.add_argument("--minutes", type=float, default=60.0, help="longest time of training")
    parser.add_argument("--dropout", type=float, default=0.1)
    parser.add_argument("--lr", type=float, default=2e-3)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument(
        "--device", choices=("cpu", "cuda"), default="cuda" if torch.cuda.is_available() else "cpu"
    )
    return parser.parse_args()


def main() -> None:
    args = arguments()
    tokenizer = Tokenizer.from_file(str(args.tokenizer))
    encoder = Encoder(tokenizer)
    encoder.check()
    texts = read_texts(args, args.part)
    written, generated, held = texts.written, texts.generated, texts.held_out
    policy_replies = texts.replies
    draw = Draw(written, generated)
    pool = in_parallel(
        lambda rng: draw_row(rng, draw, encoder, policy_replies), args.dialogues, f"judge/{args.seed}"
    )
    print(
        f"{len(written)} written and {len(generated)} generated people, {sum(len(r.ids) for r in pool) / 1e6:.1f}M tokens",
        flush=True,
    )
    vocabulary = tokenizer.get_vocab_size()
    model = new_model(vocabulary, args.width, args.layers, args.seed + 1000)
    if args.start:
        model.load_state_dict(LlamaForCausalLM.from_pretrained(args.start, dtype=torch.float32).state_dict())
    add_dropout(model, args.dropout)
    model = model.to(args.device)
    kind_head = torch.nn.Linear(args.width, len(ALL_KINDS)).to(args.device)
    print(f"{sum(p.numel() for p in model.parameters()) / 1e6:.2f}M weights", flush=True)
    options = torch.tensor(encoder.form.options[0], device=args.device)
    stream = batches([len(row.ids) for row in pool], args.batch, np.random.default_rng(args.seed))

    def batch_of() -> tuple[torch.Tensor, ...]:
        return batch([pool[k] for k in next(stream)])

    def loss_of(batch: tuple[torch.Tensor, ...]) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
        ids, at, levels, kinds = batch
        hidden = model.model(input_ids=ids, use_cache=False).last_hidden_state
        head = model.get_output_embeddings().weight
        read = hidden.flatten(0, 1)[at]
        scores = read @ head[options].T
        answers = cross_entropy(scores.flatten(0, 1).float(), levels.flatten(), ignore_index=UNKNOWN)
        kind = cross_entropy(kind_head(read[:, 0]).float(), kinds, ignore_index=UNKNOWN)
        logits = (hidden[:, :-1] @ head.T).flatten(0, 1).float()
        text = cross_entropy(logits, ids[:, 1:].flatten(), ignore_index=0)
        loss = answers + KIND_WEIGHT * kind + TEXT_WEIGHT * text
        return loss, {"answers": answers.detach(), "kind": kind.detach(), "text": text.detach()}

    fitted, tests = held[::2], held[1::2]
    watched = held_out_rows(tests, encoder, {})[:100]

    def held_out_loss() -> str:
        logprobs = predict(model, watched, options, args.device)
        truth = np.concatenate([row.levels for row in watched])
        return f"held out {-np.take_along_axis(logprobs, truth[..., None], -1).mean():.3f}"

    made = train(
        model,
        (kind_head,),
        batch_of,
        loss_of,
        tokens=args.tokens,
        minutes=args.minutes,
        lr=args.lr,
        device=args.device,
        check=held_out_loss,
    )
    model.float()
    drawn = {
        "fit": held_out_rows(fitted, encoder, {}) + held_out_rows(fitted, encoder, policy_replies),
        "written": held_out_rows(tests, encoder, {}),
        "with a policy's replies": held_out_rows(tests, encoder, policy_replies),
    }
    logprobs = {name: predict(model, rows, options, args.device) for name, rows in drawn.items()}
    levels = {name: np.concatenate([row.levels for row in rows]) for name, rows in drawn.items()}
    calibration = fit([logprobs["fit"][:, k] for k in range(6)], [levels["fit"][:, k] for k in range(6)])
    measured = {
        name: agreement(
            logprobs[name], levels[name], np.concatenate([row.kinds for row in rows]), calibration
        )
        for name, rows in drawn.items()
        if name != "fit"
    }
    print(json.dumps(measured, indent=1), flush=True)
    made |= {
        "part": args.part,
        "written": len(written),
        "generated": len(generated),
        "seed": args.seed,
        "held_out": measured,
    }
    save(model, tokenizer, args.out, made)
    trained_on = {"texts": "scripts/embedded", "part": args.part, "people": len(written) + len(generated)}
    write_role_file(
        args.out, RoleFile("judge", RUBRIC.name, rubric_fingerprint(RUBRIC), BRIEF, calibration, trained_on)
    )


if __name__ == "__main__":
    main()
