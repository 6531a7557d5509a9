"""What the writer learns from: replies of known kinds to lines, and verdicts on whether a reply makes sense.

Every line is one tree: the prompt (the line and those before it) and the replies to it as branches, which share the prompt
but do not see each other. Trees are packed into rows of fixed width.
"""

from __future__ import annotations

import random
import zlib
from collections import defaultdict
from collections.abc import Container, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from corpus import stays_with, verdicts
from documents import is_clean_reply, is_short
from texts import Person

BEFORE = 3
"""Lines before the one that is replied to, at most."""
LONGEST_PROMPT, LONGEST_BRANCH = 256, 96
"""Ids. Prompts lose their beginning; longer branches are left out."""
ROW = 1024
"""Ids of a row of packed trees."""
OWN, FREE = ":", ";"
"""After a kind: the reply is of plain words and the person's own (`corpus.stays_with`), or may bring in others."""
MARK = "reply:"
"""Instead of a kind, before a reply that is read to tell whether it makes sense."""
HELD_OUT = 10
"""One line in so many has verdicts that are not learned."""
POOL = 1024
"""Trees that are packed together."""
FILE = "examples.npz"
NO_VERDICT = -1


@dataclass(slots=True)
class Branch:
    """The ids of a label, a reply and the end. Without a verdict, the ids after the label are learned; with one (0 or 1),
    the verdict is, at the end."""

    ids: np.ndarray
    label: int
    """Ids of the label."""
    verdict: int = NO_VERDICT


@dataclass(slots=True)
class Tree:
    """A prompt and replies to it. `held_out` trees are not trained on."""

    prompt: np.ndarray
    branches: list[Branch]
    held_out: bool = False

    @property
    def size(self) -> int:
        return len(self.prompt) + sum(len(branch.ids) for branch in self.branches)


class Encoder:
    """Turns texts into ids, in the same way for training, writing and rating. Prompt, label and reply are encoded apart."""

    def __init__(self, tokenizer: Any) -> None:
        self.tokenizer = tokenizer
        self.end: int = tokenizer.eos_token_id

    def _encode(self, texts: Sequence[str]) -> list[list[int]]:
        return self.tokenizer(texts, add_special_tokens=False)["input_ids"] if texts else []

    def prompts(self, rows: Sequence[Sequence[str]]) -> list[list[int]]:
        """Return the ids of prompts, each given as lines that end with the one to reply to."""
        texts = ["\n".join(lines[-BEFORE - 1 :]) + "\n" for lines in rows]
        return [ids[-LONGEST_PROMPT:] for ids in self._encode(texts)]

    def labels(self, texts: Sequence[str]) -> list[list[int]]:
        return self._encode(texts)

    def replies(self, texts: Sequence[str]) -> list[list[int]]:
        return self._encode([f" {text}" for text in texts])

    def text(self, ids: Sequence[Sequence[int]]) -> list[str]:
        return [" ".join(text.split()) for text in self.tokenizer.batch_decode(ids, skip_special_tokens=True)]


def lines_before(person: Person) -> list[list[str]]:
    """Return what each line of a person is replied to with: the lines before it, and the line. Guarded and eased lines can
    come anywhere in the story; their place is drawn, always the same."""
    rng, story, shown, place = random.Random(person.id), [x.text for x in person.of_mood("story")], [], 0
    for line in person.lines:
        end = place if line.mood == "story" else rng.randint(min(1, len(story)), len(story))
        place += line.mood == "story"
        shown.append([*story[max(0, end - BEFORE) : end], line.text])
    return shown


def is_held_out(line: str) -> bool:
    """Return whether the verdicts on replies to a line are not learned, so that they can be tested on."""
    return zlib.crc32(line.encode()) % HELD_OUT == 0


def reply_trees(
    people: Sequence[Person], encoder: Encoder, left_out: Container[str] = frozenset()
) -> list[Tree]:
    """Return the short, clean replies to the lines of people, each with its kind as label, without the lines in
    `left_out`."""
    rows = [lines for person in people for lines in lines_before(person)]
    pairs = [
        (number, f"{kind}{OWN if stays_with(line.text, reply) else FREE}", reply)
        for number, line in enumerate(line for person in people for line in person.lines)
        if line.text not in left_out
        for kind, reply in line.replies
        if is_short(reply) and is_clean_reply(reply, line.text)
    ]
    return _trees(rows, [(number, label, reply, NO_VERDICT) for number, label, reply in pairs], encoder)


def verdict_trees(rows: Sequence[dict[str, Any]], encoder: Encoder) -> list[Tree]:
    """Return the verdicts of rows of sense.jsonl, those on a part of the lines held out."""
    by_lines: dict[tuple[str, ...], list[dict[str, Any]]] = defaultdict(list)
    for row in rows:
        by_lines[tuple(row["lines"])].append(row)
    pairs = [
        (number, MARK, row["reply"], int(row["sense"] != 0))
        for number, some in enumerate(by_lines.values())
        for row in some
    ]
    held_out = [is_held_out(lines[-1]) for lines in by_lines]
    return _trees([*by_lines], pairs, encoder, held_out)


def _trees(
    rows: Sequence[Sequence[str]],
    pairs: Sequence[tuple[int, str, str, int]],
    encoder: Encoder,
    held_out: Sequence[bool] = (),
) -> list[Tree]:
    """Return trees of `rows` of lines; of the pairs, each has the number of its row, a label, a reply and a verdict."""
    labels = dict.fromkeys(label for _, label, _, _ in pairs)
    labels = dict(zip(labels, encoder.labels([*labels]), strict=True))
    branches: dict[int, list[Branch]] = defaultdict(list)
    for (number, label, _, verdict), ids in zip(pairs, encoder.replies([p[2] for p in pairs]), strict=True):
        whole = np.array([*labels[label], *ids, encoder.end], dtype=np.int32)
        if len(whole) <= LONGEST_BRANCH:
            branches[number].append(Branch(whole, len(labels[label]), verdict))
    trees = []
    for number, prompt in enumerate(encoder.prompts(rows)):
        ids = np.array(prompt, dtype=np.int32)
        most = (ROW - len(ids)) // LONGEST_BRANCH
        some = branches[number]
        held = bool(held_out and held_out[number])
        trees += [Tree(ids, some[k : k + most], held) for k in range(0, len(some), most)]
    return trees


def prepare(
    people: Sequence[Person], further: Sequence[Person], encoder: Encoder, verdict_rows: int | None = None
) -> tuple[list[Tree], np.ndarray]:
    """Return the trees, and the ids that may be sampled: those of replies and of what people say, `further` people
    included. Replies to lines whose verdicts are held out are not learned either: a model that has learned what is said
    to a line would rate the replies to it better than those to new lines."""
    rows = verdicts()[:verdict_rows]
    tested = {line for line in (row["lines"][-1] for row in rows) if is_held_out(line)}
    trees = [*reply_trees(people, encoder, tested), *verdict_trees(rows, encoder)]
    learned = [b.ids[b.label :] for tree in trees for b in tree.branches if b.verdict == NO_VERDICT]
    spoken = [line.text for person in (*people, *further) for line in person.lines]
    return trees, np.unique(np.concatenate([*learned, *encoder.replies(spoken), [encoder.end]])).astype(
        np.int32
    )


def save_examples(folder: Path, trees: Sequence[Tree], tokens: np.ndarray) -> None:
    """Write the trees and the ids that may be sampled to a folder, as plain arrays with a row per prompt and branch."""
    pieces = [
        piece
        for tree in trees
        for piece in ((tree.prompt, 0, NO_VERDICT), *((b.ids, b.label, b.verdict) for b in tree.branches))
    ]
    ids, label, verdict = zip(*pieces, strict=True)
    np.savez_compressed(
        folder / FILE,
        ids=np.concatenate(ids),
        size=np.array([*map(len, ids)], dtype=np.int32),
        label=np.array(label, dtype=np.int16),  # 0 for a prompt
        verdict=np.array(verdict, dtype=np.int8),
        held_out=np.array([tree.held_out for tree in trees]),
        tokens=tokens,
    )


def load_examples(folder: Path) -> tuple[list[Tree], np.ndarray]:
    """Return what `save_examples` has written."""
    with np.load(folder / FILE) as data:
        arrays = {name: data[name] for name in data.files}
    pieces = np.split(arrays["ids"], arrays["size"].cumsum()[:-1])
    trees: list[Tree] = []
    rows = zip(pieces, arrays["label"].tolist(), arrays["verdict"].tolist(), strict=True)
    for ids, label, verdict in rows:
        if label:
            trees[-1].branches.append(Branch(ids, label, verdict))
        else:
            trees.append(Tree(ids, [], bool(arrays["held_out"][len(trees)])))
    return trees, arrays["tokens"]


def packed(trees: Sequence[Tree]) -> list[list[Tree]]:
    """Return rows of trees of up to ROW ids in all: the largest first, each in the first row that has room."""
    rows: list[tuple[int, list[Tree]]] = []
    for tree in sorted(trees, key=lambda tree: -tree.size):
        for k, (room, row) in enumerate(rows):
            if tree.size <= room:
                row.append(tree)
                rows[k] = (room - tree.size, row)
                break
        else:
            rows.append((ROW - tree.size, [tree]))
    return [row for _, row in rows]


@dataclass(slots=True)
class Batch:
    """Rows of packed trees. `ids`, `positions`, `tree` and `branch` are [rows, ROW]; padding has tree -1 and a prompt branch
    0. The hidden states at the flat indices `text_at` learn the next ids, given as indices of the ids that may be sampled;
    those at `verdict_at` learn the verdicts."""

    ids: torch.Tensor
    positions: torch.Tensor
    tree: torch.Tensor
    branch: torch.Tensor
    text_at: torch.Tensor
    text: torch.Tensor
    verdict_at: torch.Tensor
    verdicts: torch.Tensor
    used: int
    """Ids that are no padding."""

    def to(self, device: str) -> Batch:
        values = {name: getattr(self, name) for name in self.__slots__}
        return Batch(
            **{n: v.to(device, non_blocking=True) if torch.is_tensor(v) else v for n, v in values.items()}
        )

    def mask(self) -> torch.Tensor:
        """Return which ids each id sees, [rows, 1, ROW, ROW]: those of its branch and of its prompt up to itself."""
        tree, branch = self.tree, self.branch
        causal = torch.ones(ROW, ROW, dtype=torch.bool, device=tree.device).tril()
        of_tree = tree[:, :, None] == tree[:, None, :]
        of_branch = (branch[:, None, :] == 0) | (branch[:, :, None] == branch[:, None, :])
        return (causal & of_tree & of_branch)[:, None]


def batch_of(rows: Sequence[Sequence[Tree]], place_of: np.ndarray) -> Batch:
    """Return the batch of packed rows; `place_of` maps an id to its index among those that may be sampled."""
    ids, positions, branch = (np.zeros((len(rows), ROW), dtype=np.int64) for _ in range(3))
    tree = np.full_like(ids, -1)
    text_at, text, verdict_at, verdict = [], [], [], []
    used = 0
    for k, row in enumerate(rows):
        at = 0
        for number, one in enumerate(row):
            start = len(one.prompt)
            tree[k, at : at + one.size] = number
            for n, piece in enumerate((one.prompt, *(b.ids for b in one.branches))):
                mine = slice(at, at + len(piece))
                ids[k, mine], branch[k, mine] = piece, n
                positions[k, mine] = np.arange(len(piece)) + (start if n else 0)
                if n:
                    b = one.branches[n - 1]
                    flat = k * ROW + at
                    if b.verdict == NO_VERDICT:
                        text_at.append(np.arange(flat + b.label - 1, flat + len(piece) - 1))
                        text.append(place_of[piece[b.label :]])
                    else:
                        verdict_at.append(flat + len(piece) - 1)
                        verdict.append(b.verdict)
                at += len(piece)
        used += at
    none = np.zeros(0, dtype=np.int64)
    return Batch(
        *map(torch.from_numpy, (ids, positions, tree, branch)),
        torch.from_numpy(np.concatenate([none, *text_at])),
        torch.from_numpy(np.concatenate([none, *text])),
        torch.tensor(verdict_at, dtype=torch.int64),
        torch.tensor(verdict, dtype=torch.float32),
        used,
    )


def batches_of(
    trees: Sequence[Tree], tokens: np.ndarray, budget: int, rng: np.random.Generator | None = None
) -> Iterator[Batch]:
    """Yield the trees once, in batches of `budget` ids with padding; in random order if `rng` is given. All batches have the same
    shape, so that compiled code fits them."""
    place_of = np.full(int(tokens.max()) + 1, -1, dtype=np.int64)
    place_of[tokens] = np.arange(len(tokens))
    order = rng.permutation(len(trees)) if rng else np.arange(len(trees))
    count = max(1, budget // ROW)
    waiting: list[list[Tree]] = []
    for k in range(0, len(order), POOL):
        rows = packed([trees[n] for n in order[k : k + POOL]])
        waiting += [rows[n] for n in (rng.permutation(len(rows)) if rng else range(len(rows)))]
        while len(waiting) >= count:
            yield batch_of(waiting[:count], place_of)
            waiting = waiting[count:]
    if waiting:
        yield batch_of([*waiting, *[[]] * (count - len(waiting))], place_of)
