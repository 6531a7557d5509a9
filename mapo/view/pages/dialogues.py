"""Pages of dialogues: the searchable list, one dialogue with its credit, and two side by side."""

from __future__ import annotations

import re
import shlex
import sqlite3
from pathlib import Path
from typing import Any

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response

from mapo.errors import MapoError
from mapo.judges.explain import read_explanations
from mapo.runs.contents import advantage_of
from mapo.sandbox.faults.detect import ROLES
from mapo.types import Dialogue
from mapo.view.index import queries, sets
from mapo.view.index.calls import cache_files, calls_of
from mapo.view.index.context import context_of
from mapo.view.index.facts import config_of
from mapo.view.index.files import rubric_of
from mapo.view.index.queries import MATCHES, PAGE, DialogueFilter
from mapo.view.pages import transcript
from mapo.view.pages.charts import trajectory_figures
from mapo.view.pages.credit import Credit, credit_of
from mapo.view.pages.runs import SCENARIO_COLUMNS
from mapo.view.pages.site import Params, all_sets, as_json, ordered, page, reading, requested_run


def search(request: Request) -> Response:
    params = Params(request)
    wanted = DialogueFilter(
        run=params.text("run"),
        part=params.text("part"),
        step=params.integer("step"),
        scenario=params.text("scenario"),
        ending=params.text("ending"),
        low=params.number("low"),
        high=params.number("high"),
        fault=params.text("fault"),
        words=params.text("q"),
        sort=params.text("sort") or "newest",
        page=min(max(1, params.integer("page") or 1), 10**6),
    )
    with reading(request) as db:
        run = queries.run_named(db, wanted.run) if wanted.run else None
        rows, total = queries.dialogues(db, wanted)
        choices: dict[str, Any] = {
            "parts": queries.parts_of(db, wanted.run) if wanted.run else {},
            "endings": queries.endings(db, wanted.run),
            "scenarios": queries.scenarios(db, wanted.run) if wanted.run else [],
            "sorts": queries.SORTS,
            "faults": (queries.ANY_FAULT, *ROLES),
        }
    items = [{"row": row, "snippet": snippet(row, wanted.words)} for row in rows]
    scored = [row for row in rows if row["epm_q"] is not None]
    players = ("domain", "user_player", "director", "judge", "prompts")
    roles = {tuple(row[key] for key in players): row for row in scored}
    contexts = [context_of([row]) for row in roles.values()]
    query = {k: v for k, v in request.query_params.items() if k != "page" and v}
    return page(
        request,
        "dialogues.html",
        wanted=wanted,
        run=run,
        items=items,
        total=total,
        query=query,
        pages=-(-total // PAGE),
        notes=params.notes,
        judges=sorted({context["judge"] for context in contexts}),
        context=next((c for key in ("notice", "prompts_note") for c in contexts if c[key]), None),
        capped=MATCHES if wanted.words and total >= MATCHES else 0,
        **choices,
    )


def snippet(row: sqlite3.Row, words: str) -> dict[str, str] | None:
    """Return the text around the first match in a dialogue."""
    if not words.split():
        return None
    try:
        dialogue = transcript.dialogue_at(row)
    except MapoError:
        return None
    for text in (text for turn in dialogue.turns for text in (turn.user, turn.reply.text)):
        for word in words.split():
            if match := re.search(re.escape(word), text, re.IGNORECASE):
                a, b = match.span()
                return {"before": text[max(0, a - 60) : a], "hit": text[a:b], "after": text[b : b + 90]}
    return None


# ---- one dialogue


def one(request: Request) -> Response:
    with reading(request) as db:
        row = requested_dialogue(request, db)
        run, files = requested_run(request, db, row["run"])
        batch = queries.batch_of(db, row)
    dialogue = transcript.dialogue_at(row)
    settings, problem = advantage_of(config_of(files)[0])
    rubric = rubric_of(files, dialogue.rubric)
    trained = row["part"] == "train"
    credit = Credit(settings, {})
    if trained:
        credit = credit_of(batch, settings, problem, load=transcript.dialogue_at, rubric=rubric, shown=row)
    siblings = transcript.siblings_of(row, batch)
    explanations, problems = read_explanations(files.root)
    turns = transcript.turns_of(dialogue, rubric, credit.turns.get(row["n"]), explanations)
    return page(
        request,
        "dialogue.html",
        run=run,
        row=row,
        dialogue=dialogue,
        turns=turns,
        unexplained=any(turn["read_out"] and not turn["explained_by"] for turn in turns),
        explain_command=_explain_command(files.root, dialogue),
        explanation_problems=problems,
        credit=credit,
        trained=trained,
        replacement=None if row["counts"] else _replacement(row, batch),
        largest=max(credit.largest_of(each["n"] for each in siblings), 1e-9),
        continued=credit.continuation_of(row["n"]),
        beside=transcript.side_by_side(siblings, credit, rubric) if len(siblings) > 1 else None,
        titles={axis.key: axis.title for axis in rubric.axes} if rubric else {},
        neighbours=neighbours(batch, row),
        pairs=_pairs(len(dialogue.start)),
        has_calls=bool(cache_files(files.root)),
    )


def _explain_command(root: Path, dialogue: Dialogue) -> str:
    """Return the command that writes reasons for the levels of a dialogue."""
    judge = dialogue.cast.get("judge", "").partition(" ")[0]
    model = judge if judge.startswith("local:") else "local:FOLDER"
    return shlex.join(["mapo", "judge", "explain", str(root), "--dialogue", dialogue.id, "--judge", model])


def _replacement(row: sqlite3.Row, batch: list[sqlite3.Row]) -> sqlite3.Row | None:
    """Return the record that counts, of a dialogue that was played again."""
    same = (each for each in batch if (each["model"], each["id"]) == (row["model"], row["id"]))
    return next(same, None)


def neighbours(batch: list[sqlite3.Row], row: sqlite3.Row) -> tuple[sqlite3.Row | None, sqlite3.Row | None]:
    """Return the previous and the next dialogue of the batch."""
    names = [each["id"] for each in batch]
    if row["id"] not in names:
        return None, None
    at = names.index(row["id"])
    return (batch[at - 1] if at else None), (batch[at + 1] if at + 1 < len(batch) else None)


def _pairs(axes: int) -> list[str]:
    return [f"pair_{a}_{b}" for a in range(axes) for b in range(a + 1, axes)][:15]


def requested_dialogue(request: Request, db: sqlite3.Connection) -> sqlite3.Row:
    """Return the dialogue that a URL names."""
    p = request.path_params
    row = queries.dialogue_row(db, p["run"], p["file"], p["line"])
    if row is None:
        raise HTTPException(404, "There is no such dialogue. Its file may have changed.")
    return row


def requested_turn(request: Request) -> tuple[Dialogue, int, str]:
    """Return the dialogue, the index of the turn, and the key of the run."""
    with reading(request) as db:
        row = requested_dialogue(request, db)
    dialogue = transcript.dialogue_at(row)
    turn: int = request.path_params["turn"]
    if not 1 <= turn <= len(dialogue.turns):
        raise HTTPException(404, "There is no such turn.")
    return dialogue, turn - 1, row["run"]


def full_text(request: Request) -> Response:
    """A complete message as plain text."""
    dialogue, at, _ = requested_turn(request)
    turn = dialogue.turns[at]
    text = {"user": turn.user, "reply": turn.reply.text}.get(request.path_params["speaker"])
    if text is None:
        raise HTTPException(404, "The last part of the URL must be user or reply.")
    return PlainTextResponse(text.encode("utf-8", "replace"))


def tokens(request: Request) -> Response:
    dialogue, at, run = requested_turn(request)
    with reading(request) as db:
        _, files = requested_run(request, db, run)
    first = max(0, Params(request).integer("from") or 0)
    return as_json(transcript.tokens_of(dialogue.turns[at], files, first))


def calls(request: Request) -> Response:
    """The recorded model calls of a turn."""
    dialogue, at, run = requested_turn(request)
    with reading(request) as db:
        _, files = requested_run(request, db, run)
    return as_json(calls_of(files, dialogue, at + 1))


def trajectory(request: Request) -> Response:
    """The trajectory of a dialogue and of its siblings, as charts."""
    with reading(request) as db:
        row = requested_dialogue(request, db)
        _, files = requested_run(request, db, row["run"])
        siblings = transcript.siblings_of(row, queries.batch_of(db, row))[1 : transcript.SIBLINGS]
    dialogue = transcript.dialogue_at(row)
    rubric = rubric_of(files, dialogue.rubric)
    size = len(dialogue.start)
    axes = (
        [a.title for a in rubric.axes]
        if rubric and len(rubric.axes) == size
        else [f"axis {i + 1}" for i in range(size)]
    )
    others = [
        (each.id, transcript.states_of(each))
        for each in map(_or_none, siblings)
        if each and len(each.start) == size
    ]
    return as_json(
        trajectory_figures(axes, transcript.states_of(dialogue), others, rubric.zone if rubric else 1.0)
    )


def _or_none(row: sqlite3.Row) -> Dialogue | None:
    try:
        return transcript.dialogue_at(row)
    except MapoError:
        return None


# ---- two dialogues


def compare(request: Request) -> Response:
    """The same scenarios in two sets: before and after training, or of two runs."""
    params = Params(request)
    with reading(request) as db:
        every = all_sets(request, db)
        a, b = _two_sets(params, every)
        pairs = pairs_of(db, a, b) if a and b else []
        table = sets.scenario_table(db, a["key"], b["key"]) if a and b else None
    sort = params.text("sort") or "difference"
    if table:
        table["rows"] = ordered(table["rows"], sort, SCENARIO_COLUMNS)
    wanted = params.text("scenario")
    chosen = next((p for p in pairs if wanted in (p["id"], p["a"]["scenario"])), pairs[0] if pairs else None)
    sides = [_side(chosen[s]) for s in ("a", "b")] if chosen else []
    length = max((len(s["turns"]) for s in sides), default=0)
    return page(
        request,
        "compare.html",
        sets=_offered(every, (a, b)),
        table=table,
        sort=sort,
        query={"a": a["key"], "b": b["key"]} if a and b else {},
        a=a,
        b=b,
        pairs=pairs[:500],
        chosen=chosen,
        picked_scenario=bool(wanted),
        sides=sides,
        length=length,
    )


def _offered(sets: list[dict[str, Any]], named: tuple[dict[str, Any] | None, ...]) -> list[dict[str, Any]]:
    """Return the sets for a menu, including those in use."""
    first = sets[:300]
    return first + [s for s in named if s and s not in first]


def _two_sets(
    params: Params, sets: list[dict[str, Any]]
) -> tuple[dict[str, Any] | None, dict[str, Any] | None]:
    """Return the requested sets, else before and after training of the requested or the newest run."""
    by_key = {s["key"]: s for s in sets}
    if (a := params.text("a")) and (b := params.text("b")):
        return by_key.get(a), by_key.get(b)
    for run in [params.text("run")] if params.text("run") else dict.fromkeys(s["run"] for s in sets):
        if f"{run}|before" in by_key and f"{run}|after" in by_key:
            return by_key[f"{run}|before"], by_key[f"{run}|after"]
    return None, None


def pairs_of(db: sqlite3.Connection, a: dict[str, Any], b: dict[str, Any]) -> list[dict[str, Any]]:
    """Return dialogues with the same id in both sets, the largest gain first."""
    left, right = ({row["id"]: row for row in queries.set_rows(db, s["run"], s["part"])} for s in (a, b))
    pairs = []
    for name in left.keys() & right.keys():
        one, other = left[name]["epm_q"], right[name]["epm_q"]
        gain = other - one if one is not None and other is not None else None
        pairs.append({"id": name, "a": left[name], "b": right[name], "gain": gain})
    return sorted(pairs, key=lambda p: (p["gain"] is None, -(p["gain"] or 0.0), p["id"]))


def _side(row: sqlite3.Row) -> dict[str, Any]:
    try:
        dialogue = transcript.dialogue_at(row)
    except MapoError as error:
        return {"row": row, "turns": [], "problem": str(error)}
    return {"row": row, "turns": transcript.turns_of(dialogue, None, None), "problem": ""}
