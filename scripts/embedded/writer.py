"""Write replies with a larger model that has learned from the natural ones, and rate whether replies make sense.

    PYTHONPATH=. python scripts/embedded/writer.py prepare --model QWEN --out examples
    PYTHONPATH=. python scripts/embedded/writer.py train --model QWEN --examples examples --out adapter
    PYTHONPATH=. python scripts/embedded/writer.py write --model QWEN --adapter adapter --out written
    PYTHONPATH=. python scripts/embedded/writer.py read --model QWEN --adapter adapter --sampled sampled.jsonl.gz --out read.jsonl.gz

QWEN is the folder of Qwen2.5-Coder-1.5B-Instruct (mapo fetch qwen2.5-coder-1.5b). It learns two things at once: from the
natural replies, to reply to a line in a kind that a label names, and from the verdicts of sense.jsonl, to tell whether a reply
makes sense (a linear head on its last hidden state).
"""

from __future__ import annotations

import argparse
import gzip
import hashlib
import json
import math
import random
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from corpus import stays_with
from documents import is_clean_reply, is_short, new_rows
from kinds import train_namer
from reply_files import REPLIES
from safetensors.torch import load_file, save_file
from small import new_folder, options_of
from speaker import Speaker, batches, padded
from texts import GOOD, KINDS, POOR, Mood, Person, known_people, natural_people, train_scenarios
from torch.nn.functional import binary_cross_entropy_with_logits, cross_entropy, linear
from transformers import AutoModelForCausalLM, AutoTokenizer
from writer_examples import (
    FILE,
    FREE,
    MARK,
    NO_VERDICT,
    OWN,
    Batch,
    Encoder,
    Tree,
    batches_of,
    lines_before,
    load_examples,
    prepare,
    save_examples,
)

from mapo.local_model.layers import tune_for_training

VERDICT_FILE, MADE = "verdict.safetensors", "made.json"
VERDICT_WEIGHT = 0.5
HEAD_LR = 1e-4
WARM_UP = 30
"""Steps until the full learning rate."""
PRINT_EVERY = 25
THRESHOLDS = (0.8, 0.9, 0.95)
TEMPERATURE, TOP_P = 0.9, 0.95
LONGEST = 26
"""Ids of a written reply, at most. A reply of 11 words has fewer."""
GOOD_SHARE, OWN_SHARE = 0.5, 0.9
"""Share of replies that are to be of a good kind, and of those that are to stay with what was said: a policy learns no
others (`corpus.sayable_replies`), a judge does."""
SHARD = 4096
"""Lines whose replies are written to a file at once."""
FINGERPRINTED = ("*.safetensors", "*.bin", "*config.json", "tokenizer.json")
"""Files of a model or an adapter that change what is written."""
ADAPTED = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]


class Verdict(torch.nn.Linear):
    """The head that maps a last hidden state to the probability that a reply makes sense."""

    def __init__(self, width: int) -> None:
        super().__init__(width, 1)
        torch.nn.init.zeros_(self.weight)
        torch.nn.init.zeros_(self.bias)

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        with torch.autocast(hidden.device.type, enabled=False):
            return super().forward(hidden.float())[:, 0]

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        return self.logits(hidden).sigmoid()


def load_model(folder: Path, device: str) -> Any:
    dtype = torch.bfloat16 if device == "cuda" else torch.float32
    return AutoModelForCausalLM.from_pretrained(folder, dtype=dtype, attn_implementation="sdpa").to(device)


def load_encoder(folder: Path) -> Encoder:
    return Encoder(AutoTokenizer.from_pretrained(folder))


def run_prepare(args: argparse.Namespace) -> None:
    encoder = load_encoder(args.model)
    people = natural_people()[: args.people]
    speaking = [*known_people()[: args.people], *train_scenarios()[: args.people]]
    trees, tokens = prepare(people, speaking, encoder, args.verdicts)
    with new_folder(args.out) as new:
        save_examples(new, trees, tokens)
    branches = [b for tree in trees for b in tree.branches]
    rated = sum(b.verdict != NO_VERDICT for b in branches)
    print(
        f"{len(people)} people, {len(branches) - rated} replies, {rated} verdicts, "
        f"{sum(tree.size for tree in trees) / 1e6:.1f}M ids, {len(tokens)} distinct"
    )


def area(probabilities: np.ndarray, truth: np.ndarray) -> float | None:
    """Return the area under the ROC curve: the chance that a positive has a higher probability than a negative; a tie
    counts one half. It is None if either is missing.

    (R - n (n + 1) / 2) / (n m), where R is the sum of the ranks of the n positives among all, and m is the number of negatives.
    """
    positives, negatives = int(truth.sum()), int((1 - truth).sum())
    if not positives or not negatives:
        return None
    _, inverse, counts = np.unique(probabilities, return_inverse=True, return_counts=True)
    ranks = counts.cumsum() - (counts - 1) / 2  # the mean rank of equal probabilities
    total = ranks[inverse][truth == 1].sum()
    return round(float((total - positives * (positives + 1) / 2) / (positives * negatives)), 4)


def measured(probabilities: np.ndarray, truth: np.ndarray) -> dict[str, Any]:
    """Return the area under the ROC curve and, for each threshold, the share of replies that are kept and the share of
    these that make sense (None if none is kept)."""
    rows = {}
    for threshold in THRESHOLDS:
        kept = probabilities >= threshold
        right = round(float(truth[kept].mean()), 3) if kept.any() else None
        rows[str(threshold)] = {"kept": round(float(kept.mean()), 3), "sense": right}
    share = round(float(truth.mean()), 3)
    return {"verdicts": len(truth), "sense": share, "area": area(probabilities, truth), "thresholds": rows}


def run_train(args: argparse.Namespace) -> None:
    from peft import LoraConfig, get_peft_model

    torch.manual_seed(args.seed)
    trees, tokens = load_examples(args.examples)
    learned, held = [t for t in trees if not t.held_out], [t for t in trees if t.held_out]
    config = LoraConfig(
        r=args.rank, lora_alpha=2 * args.rank, target_modules=ADAPTED, task_type="CAUSAL_LM", lora_dropout=0.0
    )
    model = get_peft_model(load_model(args.model, args.device), config)
    tune_for_training(model, checkpointing=args.checkpointing, compile=args.compile)
    base = model.get_base_model()
    verdict = Verdict(base.config.hidden_size).to(args.device)
    sampled = torch.from_numpy(tokens).long().to(args.device)
    weight = base.get_output_embeddings().weight.detach()[sampled]

    def hidden_of(batch: Batch) -> torch.Tensor:
        """Return the last hidden states of all ids, [ids, width]."""
        with torch.autocast(args.device, torch.bfloat16):
            body = base.get_decoder()
            out = body(
                input_ids=batch.ids,
                position_ids=batch.positions,
                attention_mask=batch.mask(),
                use_cache=False,
            )
        return out.last_hidden_state.flatten(0, 1)

    def loss_of(batch: Batch) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
        hidden = hidden_of(batch)
        parts = {}
        if len(batch.text):
            logits = linear(hidden[batch.text_at].to(weight.dtype), weight).float()
            parts["text"] = cross_entropy(logits, batch.text)
        if len(batch.verdicts):
            logits = verdict.logits(hidden[batch.verdict_at])
            parts["verdicts"] = binary_cross_entropy_with_logits(logits, batch.verdicts)
        weights = {"text": 1.0, "verdicts": VERDICT_WEIGHT}
        return sum(weights[n] * part for n, part in parts.items()), {n: p.detach() for n, p in parts.items()}

    adapted = [p for p in model.parameters() if p.requires_grad]
    groups = [{"params": adapted, "lr": args.lr}, {"params": [*verdict.parameters()], "lr": HEAD_LR}]
    optimizer = torch.optim.AdamW(groups, betas=(0.9, 0.95), weight_decay=0.01)
    schedule = [group["lr"] for group in optimizer.param_groups]
    rng = np.random.default_rng(args.seed)
    total = args.passes * sum(tree.size for tree in learned)
    began, used, padding, step, done = time.monotonic(), 0, 0, 0, 0.0
    mean: dict[str, torch.Tensor] = {}
    model.train()
    for number in range(args.passes):
        for batch in batches_of(learned, tokens, args.batch, rng):
            rate = min(1.0, (step + 1) / WARM_UP) * (0.03 + 0.97 * 0.5 * (1 + math.cos(math.pi * done)))
            for group, lr in zip(optimizer.param_groups, schedule, strict=True):
                group["lr"] = lr * rate
            loss, parts = loss_of(batch.to(args.device))
            loss.backward()
            torch.nn.utils.clip_grad_norm_([*adapted, *verdict.parameters()], 1.0)
            optimizer.step()
            optimizer.zero_grad()
            mean |= {name: 0.9 * mean.get(name, part) + 0.1 * part for name, part in parts.items()}
            used, padding, step = used + batch.used, padding + batch.ids.numel() - batch.used, step + 1
            done = min(1.0, max(used / total, (time.monotonic() - began) / 60 / args.minutes))
            if step % PRINT_EVERY == 0 or step == 1 or done >= 1:
                shown = " ".join(f"{name} {value:.3f}" for name, value in sorted(mean.items()))
                speed = used / (time.monotonic() - began) / 1e3
                print(f"step {step} {done:.1%} {shown} {speed:.1f}k ids/s", flush=True)
            if done >= 1:
                break
        if done >= 1:
            break
        print(
            f"pass {number + 1}: {json.dumps(held_out(hidden_of, verdict, held, tokens, args))}", flush=True
        )
    model.eval()
    made = {
        "steps": step,
        "ids": used,
        "padding": round(padding / (used + padding), 4),
        "seconds": round(time.monotonic() - began),
        "text_loss": round(mean["text"].item(), 4),
        "held_out": held_out(hidden_of, verdict, held, tokens, args),
        "options": options_of(args),
    }
    print(json.dumps(made, indent=1))
    state = {name: value.detach().cpu().contiguous() for name, value in verdict.state_dict().items()}
    with new_folder(args.out) as new:
        model.save_pretrained(new)
        save_file({**state, "tokens": sampled.cpu()}, new / VERDICT_FILE)
        (new / MADE).write_text(json.dumps(made, indent=1) + "\n", encoding="utf-8")


@torch.no_grad()
def held_out(
    hidden_of: Callable[[Batch], torch.Tensor],
    verdict: Verdict,
    trees: Sequence[Tree],
    tokens: np.ndarray,
    args: argparse.Namespace,
) -> dict[str, Any]:
    """Measure the verdicts on held-out lines."""
    probabilities, truth = [], []
    for batch in batches_of(trees, tokens, args.batch):
        hidden = hidden_of(batch.to(args.device))
        probabilities.append(verdict(hidden[batch.verdict_at.to(args.device)]).cpu().numpy())
        truth.append(batch.verdicts.numpy())
    if not truth:
        return {"verdicts": 0}
    return measured(np.concatenate(probabilities), np.concatenate(truth))


def load_writer(args: argparse.Namespace) -> tuple[Speaker, Encoder, Verdict]:
    """Return the model with its adapter merged in, its encoder and the head."""
    from peft import PeftModel

    state = load_file(args.adapter / VERDICT_FILE)
    model = PeftModel.from_pretrained(load_model(args.model, args.device), args.adapter).merge_and_unload()
    verdict = Verdict(model.config.hidden_size)
    tokens = state.pop("tokens").tolist()
    verdict.load_state_dict(state)
    return Speaker(model.eval(), tokens), load_encoder(args.model), verdict.to(args.device).eval()


KindWeights = dict[Mood, dict[str, float]]


def kind_weights(people: Sequence[Person]) -> KindWeights:
    """Return how often each kind is to be written to lines of a mood. Kinds that are written more often in the person's own
    words are drawn more often, but less than in proportion."""
    count: dict[Mood, Counter[str]] = defaultdict(Counter)
    for person in people:
        for line in person.lines:
            count[line.mood].update(
                kind for kind, reply in line.replies if is_short(reply) and stays_with(line.text, reply)
            )
    weights: KindWeights = {}
    for mood in ("story", "guarded", "eased"):
        weights[mood] = {}
        for kinds, share in ((GOOD, GOOD_SHARE), (POOR, 1 - GOOD_SHARE)):
            roots = {kind: math.sqrt(count[mood][kind] + 1) for kind in kinds}
            weights[mood] |= {kind: share * root / sum(roots.values()) for kind, root in roots.items()}
    return weights


Job = tuple[list[str], list[str], frozenset[str]]
"""Lines that end with the one to reply to, the kinds of the replies, and the replies it has already."""


def jobs_of(people: Sequence[Person], weights: KindWeights, each: int, seed: int) -> list[Job]:
    """Return what is to be written, in random order. A line that several people say comes once."""
    jobs: dict[str, Job] = {}
    for person in people:
        for line, lines in zip(person.lines, lines_before(person), strict=True):
            rng = random.Random(f"{seed}/{person.id}/{line.text}")
            chosen = weights[line.mood]
            kinds = rng.choices([*chosen], [*chosen.values()], k=each)
            jobs.setdefault(line.text, (lines, kinds, frozenset(reply for _, reply in line.replies)))
    return random.Random(seed).sample([*jobs.values()], len(jobs))


def run_write(args: argparse.Namespace) -> None:
    args.out.mkdir(parents=True, exist_ok=True)
    known = known_people()[: args.people]
    weights = kind_weights(natural_people()[: args.people])
    jobs = jobs_of([*known, *train_scenarios()[: args.people]], weights, args.each, args.seed)
    options = {
        name: getattr(args, name) for name in ("each", "people", "seed", "shard", "temperature", "top_p")
    }
    lines = json.dumps([lines for lines, _, _ in jobs]).encode()
    options |= {
        "adapter": fingerprint(args.adapter),
        "model": fingerprint(args.model),
        "lines": hashlib.sha256(lines).hexdigest(),
    }
    _same_options(args.out / MADE, options)
    shards = {
        args.out / f"replies-{number:03d}.jsonl.gz": jobs[start : start + args.shard]
        for number, start in enumerate(range(0, len(jobs), args.shard))
    }
    missing = {path: some for path, some in shards.items() if not path.exists()}
    print(f"{len(jobs)} lines; {len(shards) - len(missing)} of {len(shards)} files are there", flush=True)
    if not missing:
        return
    writer = load_writer(args)
    began, longest = time.monotonic(), 0.0
    for number, (path, some) in enumerate(missing.items()):
        start = time.monotonic()
        if number and start - began + longest > 60 * args.minutes:
            raise SystemExit(
                f"{args.out} is incomplete: time is over and {len(missing) - number} of {len(shards)} files are missing. "
                "Run the same command again to continue."
            )
        torch.manual_seed(args.seed + int(path.name.removesuffix(".jsonl.gz").split("-")[1]))
        written, sensible = 0, 0
        with new_rows(path) as add:
            for row in written_replies(writer, some, args):
                add(row)
                written, sensible = written + 1, sensible + (row["sense"] >= THRESHOLDS[-1])
        longest = max(longest, time.monotonic() - start)
        print(
            f"{path.name}: {written} of {len(some) * args.each} replies are new and clean, {sensible} make sense "
            f"(p >= {THRESHOLDS[-1]}), {time.monotonic() - start:.0f} s",
            flush=True,
        )


def fingerprint(folder: Path) -> str:
    """Return a hash of the weights, configurations and tokenizer of a model or an adapter."""
    digest = hashlib.sha256()
    for path in sorted(path for pattern in FINGERPRINTED for path in folder.glob(pattern)):
        with path.open("rb") as file:
            digest.update(f"{path.name} {hashlib.file_digest(file, 'sha256').hexdigest()}\n".encode())
    return digest.hexdigest()


def _same_options(path: Path, options: dict[str, Any]) -> None:
    """Note the options of a folder of replies, or check that they are those of the run that is continued."""
    if path.exists():
        before = json.loads(path.read_text(encoding="utf-8"))
        if before != options:
            different = ", ".join(name for name in options if before.get(name) != options[name])
            raise SystemExit(
                f"{path.parent} was begun with other options or texts ({different}). Choose another --out, or the same "
                "options and texts."
            )
        return
    if any(path.parent.glob(REPLIES)):
        raise SystemExit(
            f"{path.parent} has replies but no {path.name} to tell their options. Choose another --out."
        )
    path.write_text(json.dumps(options, indent=1) + "\n", encoding="utf-8")


def written_replies(
    writer: tuple[Speaker, Encoder, Verdict], jobs: Sequence[Job], args: argparse.Namespace
) -> list[dict[str, Any]]:
    """Sample and rate replies, and return those that are clean and new to their line."""
    speaker, encoder, verdict = writer
    labels = [f"{kind}{mark}" for kind in KINDS for mark in (OWN, FREE)]
    label_ids = dict(zip(labels, encoder.labels(labels), strict=True))
    [mark] = encoder.labels([MARK])
    prompts = encoder.prompts([lines for lines, _, _ in jobs])
    rng = random.Random(f"{args.seed}/{jobs[0][0][-1]}")
    rows = []
    for chosen in batches([*map(len, prompts)], max(1, args.rows // args.each)):
        ids, sizes = padded([prompts[n] for n in chosen], args.device)
        kinds = [kind for n in chosen for kind in jobs[n][1]]
        forced = [label_ids[f"{kind}{OWN if rng.random() < OWN_SHARE else FREE}"] for kind in kinds]
        replies, senses = speaker.speak(
            ids,
            sizes,
            forced,
            args.each,
            LONGEST,
            encoder.end,
            temperature=args.temperature,
            top_p=args.top_p,
            head=verdict,
            mark=mark,
        )
        assert senses is not None
        texts = encoder.text(replies)
        for k, n in enumerate(chosen):
            lines, _, known = jobs[n]
            seen = set(known)
            mine = slice(k * args.each, (k + 1) * args.each)
            for kind, text, sense in zip(kinds[mine], texts[mine], senses[mine], strict=True):
                if text and text not in seen and is_clean_reply(text, lines[-1]):
                    seen.add(text)
                    rows.append({"line": lines[-1], "kind": kind, "reply": text, "sense": round(sense, 4)})
    return rows


def run_read(args: argparse.Namespace) -> None:
    with gzip.open(args.sampled, "rt", encoding="utf-8") as file:
        sampled = [json.loads(row) for row in file]
    name_kind = train_namer(known_people()[: args.people])
    speaker, encoder, verdict = load_writer(args)
    [mark] = encoder.labels([MARK])
    sampled = [row for row in sampled if row["replies"]]
    prompts = encoder.prompts([row["lines"] for row in sampled])
    flat = iter(encoder.replies([reply for row in sampled for reply in row["replies"]]))
    replies = [[next(flat) for _ in row["replies"]] for row in sampled]
    began, rated, count = time.monotonic(), [0] * len(THRESHOLDS), 0
    each = max((len(some) for some in replies), default=1)
    with new_rows(args.out) as add:
        for chosen in batches([*map(len, prompts)], max(1, args.rows // each)):
            ids, sizes = padded([prompts[n] for n in chosen], args.device)
            senses = speaker.rate(ids, sizes, [replies[n] for n in chosen], encoder.end, verdict, mark)
            for n, probabilities in zip(chosen, senses, strict=True):
                lines = sampled[n]["lines"]
                for reply, sense in zip(sampled[n]["replies"], probabilities, strict=True):
                    kind = name_kind(lines[-1], reply)
                    add({"lines": lines, "kind": kind, "reply": reply, "sense": round(sense, 4)})
                    count += 1
                    rated = [r + (sense >= t) for r, t in zip(rated, THRESHOLDS, strict=True)]
    shares = ", ".join(f"{r / max(count, 1):.0%} from {t} on" for r, t in zip(rated, THRESHOLDS, strict=True))
    print(
        f"{count} replies, of which make sense with a probability {shares}; {time.monotonic() - began:.0f} s"
    )


def arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    commands = parser.add_subparsers(dest="command", required=True)

    def command(name: str, text: str) -> argparse.ArgumentParser:
        one = commands.add_parser(name, help=text, description=text)
        one.add_argument("--model", type=Path, required=True, help="folder of Qwen2.5-Coder-1.5B-Instruct")
        one.add_argument("--out", type=Path, required=True, help="folder or file to write")
        return one

    prepare_ = command("prepare", "Write the examples to learn from.")
    prepare_.add_argument("--verdicts", type=int, help="only so many verdicts, to try it out")

    train = command("train", "Train an adapter and the head for verdicts.")
    train.add_argument("--examples", type=Path, required=True, help="folder of prepare")
    train.add_argument("--passes", type=int, default=2, help="how often the examples are read")
    train.add_argument("--minutes", type=float, default=8.0, help="longest time of training")
    train.add_argument("--batch", type=int, default=8192, help="ids per step")
    train.add_argument("--rank", type=int, default=16, help="rank of the adapter")
    train.add_argument("--lr", type=float, default=4e-4)
    train.add_argument("--checkpointing", action="store_true", help="keep less in memory, for smaller GPUs")
    train.add_argument("--compile", action=argparse.BooleanOptionalAction, default=torch.cuda.is_available())

    write = command("write", "Write replies to all lines of known people and train scenarios.")
    write.add_argument("--each", type=int, default=12, help="replies per line")
    write.add_argument(
        "--minutes",
        type=float,
        default=20.0,
        help="longest time; it then fails, and the same command continues",
    )
    write.add_argument("--temperature", type=float, default=TEMPERATURE)
    write.add_argument("--top-p", type=float, default=TOP_P)
    write.add_argument("--shard", type=int, default=SHARD, help="lines per file")

    read = command("read", "Rate the replies of sample_replies.py and name their kinds.")
    read.add_argument("--sampled", type=Path, required=True, help="file of sample_replies.py")
    for one in (write, read):
        one.add_argument("--adapter", type=Path, required=True, help="folder of train")
        one.add_argument("--rows", type=int, default=6144, help="replies at once")
    for one in (prepare_, write, read):
        one.add_argument("--people", type=int, help="only so many people, to try it out")
    for one in (train, write, read):
        one.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    for one in (train, write):
        one.add_argument("--seed", type=int, default=0)
    args = parser.parse_args(argv)
    if not (args.model / "tokenizer.json").is_file():
        parser.error(f"{args.model} is not the folder of a model. Get it with: mapo fetch qwen2.5-coder-1.5b")
    for option, file in (("examples", FILE), ("adapter", VERDICT_FILE)):
        folder = getattr(args, option, None)
        if folder and not (folder / file).is_file():
            parser.error(
                f"{folder} has no {file}. Make it with: writer.py {'prepare' if file == FILE else 'train'}"
            )
    return args


def main(argv: Sequence[str] | None = None) -> None:
    args = arguments(argv)
    run = {"prepare": run_prepare, "train": run_train, "write": run_write, "read": run_read}[args.command]
    run(args)


if __name__ == "__main__":
    main()
