"""Blind pairs: the same case played by the base model and by a trained one, in an order that is hidden.

WORK/pairs/README.md       how to read them         WORK/pairs/pair_01.md ...   the dialogues
WORK/pairs/verdicts.csv    to be filled in          WORK/pairs_key.json         which is which: read it last
"""

from __future__ import annotations

import csv
import io
import json
import math
import random
from collections import Counter
from pathlib import Path
from typing import Any

from measures import left_out, read_run
from study import BASE, Run, Study

from mapo.errors import InputError
from mapo.measure.stats import wilson
from mapo.store import write_atomic
from mapo.types import Dialogue

VERDICTS = ("1", "2", "tie")
RUBRIC = """# Which dialogue helps more?

Each file holds two dialogues, 1 and 2, in which the same person talks to two different models. Their order is
random, and it is not known here which is which. Read both and ask of each:

1. **Understanding.** Do the replies take up what this person said, in substance and in feeling, rather than
   what anyone might have said?
2. **Movement.** Does the person get anywhere: say more, see something differently, find a next step of their
   own?
3. **Manner.** Are the replies natural and honest in this conversation? Repetition, flattery, lectures, orders
   and empty phrases count against them, and so do nonsense and a change of language.

Then decide which model you would rather have talked to in this person's place. Length is no merit in itself.
Write 1, 2 or tie into `verdicts.csv`, with a reason in a few words, before you open any key.
"""


def make_pairs(study: Study) -> int:
    """Write the pairs, unless they exist; return their number. Pairs that exist are never drawn again."""
    settings, folder = study.settings.pairs, study.work / "pairs"
    key_file = study.work / "pairs_key.json"
    if key_file.exists():
        return len(json.loads(key_file.read_text("utf-8"))["pairs"])
    trained = next((run for run in study.trainings if run.name == settings.trained), None)
    if trained is None:
        raise InputError(f"there is no training '{settings.trained}'", where="pairs.trained")
    base = Run(BASE, trained.seed if trained.seed < study.settings.test.base_seeds else 0)
    sides = {name: _by_case(study, run) for name, run in (("base", base), ("trained", trained))}
    cases = sorted((sides["base"].keys() & sides["trained"].keys()) - left_out(study).keys())
    rng = random.Random(f"pairs/{settings.seed}")  # noqa: S311 (a shuffle, not security)
    rng.shuffle(cases)
    key: dict[str, dict[str, str]] = {}
    for number, case in enumerate(cases[: settings.count], 1):
        order = ["base", "trained"]
        rng.shuffle(order)
        key[f"{number:02d}"] = {"case": case, "1": order[0], "2": order[1]}
        text = _page(number, [sides[side][case] for side in order], settings.turns)
        write_atomic(folder / f"pair_{number:02d}.md", text)
    if not key:
        print("no case was played by both models: no pairs yet")
        return 0
    rows = "".join(f"{number},,\n" for number in key)
    write_atomic(folder / "README.md", RUBRIC)
    write_atomic(folder / "verdicts.csv", f"pair,verdict,reason\n{rows}")
    models = {"base": base.name, "trained": trained.name}
    write_atomic(key_file, json.dumps({"models": models, "pairs": key}, indent=1, ensure_ascii=False) + "\n")
    return len(key)


def _by_case(study: Study, run: Run) -> dict[str, Dialogue]:
    return {d.scenario: d for d in reversed(read_run(study.test(run)))}


def _page(number: int, dialogues: list[Dialogue], turns: int) -> str:
    parts = [f"# Pair {number:02d}"]
    for title, dialogue in zip("12", dialogues, strict=True):
        parts.append(f"## Dialogue {title}")
        for turn in dialogue.turns[:turns]:
            parts += [f"**Person:** {_quoted(turn.user)}", f"**Model:** {_quoted(turn.reply.text)}"]
        if len(dialogue.turns) > turns:
            parts.append(f"*The first {turns} turns.*")
    return "\n\n".join(parts) + "\n"


def _quoted(text: str) -> str:
    """Return a text as one paragraph, without what Markdown would take for a heading or HTML."""
    return " ".join(text.split()).replace("<", "&lt;").replace("*", "\\*").replace("#", "\\#")


def count_verdicts(study: Study, file: Path | None = None) -> dict[str, Any]:
    """Count the verdicts of a reader, and write them to WORK/pairs_counts.json."""
    path = file or study.work / "pairs" / "verdicts.csv"
    key_file = study.work / "pairs_key.json"
    if not key_file.exists():
        raise InputError("there are no pairs yet", where=str(key_file), fix="Run the stage `pairs` first")
    key = json.loads(key_file.read_text("utf-8"))
    try:
        rows = list(csv.DictReader(io.StringIO(path.read_text("utf-8-sig"))))
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise InputError(f"the verdicts cannot be read ({error})", where=str(path)) from None
    counts, positions = Counter[str](), Counter[str]()
    seen: set[str] = set()
    for number, row in enumerate(rows, 2):
        pair, verdict = (row.get("pair") or "").strip().zfill(2), (row.get("verdict") or "").strip().lower()
        if not verdict:
            continue
        if pair not in key["pairs"] or verdict not in VERDICTS or pair in seen:
            raise InputError(
                f"pair '{pair}' with the verdict '{verdict}'",
                where=f"{path}, line {number}",
                fix=f"Give every pair once, with one of: {', '.join(VERDICTS)}",
            )
        seen.add(pair)
        counts[key["pairs"][pair].get(verdict, "tie")] += 1
        positions[verdict] += 1
    trained, base, ties = counts["trained"], counts["base"], counts["tie"]
    decided = trained + base
    result = {
        "models": key["models"],
        "read": len(seen),
        "of": len(key["pairs"]),
        "trained": trained,
        "base": base,
        "tie": ties,
        "share": trained / decided if decided else None,
        "interval": wilson(trained, decided) if decided else None,
        "p": sign_test(trained, base),
        "first_preferred": positions["1"],
    }
    write_atomic(study.work / "pairs_counts.json", json.dumps(result, indent=1) + "\n")
    return result


def sign_test(a: int, b: int) -> float | None:
    """Return the two-sided p of the sign test: 2 P(X >= max(a, b)) for X ~ Binomial(a + b, 1/2)."""
    n = a + b
    if not n:
        return None
    return min(1.0, 2 * sum(math.comb(n, k) for k in range(max(a, b), n + 1)) / 2**n)
