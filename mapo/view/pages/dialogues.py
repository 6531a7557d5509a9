"""Pages of dialogues: many to search in, one with its credit, two next to each other."""

from __future__ import annotations

import re
import sqlite3
from typing import Any

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response

from mapo.errors import MapoError
from mapo.runs.contents import advantage_of
from mapo.types import Dialogue
from mapo.view.index import queries
from mapo.view.index.facts import config_of
from mapo.view.index.files import rubric_of
from mapo.view.index.queries import MATCHES, PAGE, Wanted
from mapo.view.pages import talk
from mapo.view.pages.credit import Credit, credit_of
from mapo.view.pages.curves import path_figures
from mapo.view.pages.site import Asked, all_sets, as_json, page, reading, run_asked


def search(request: Request) -> Response:
    asked = Asked(request)
    wanted = Wanted(
        run=asked.text("run"),
        part=asked.text("part"),
        step=asked.whole("step"),
        scenario=asked.text("scenario"),
        ending=asked.text("ending"),
        low=asked.number("low"),
        high=asked.number("high"),
        words=asked.text("q"),
        sort=asked.text("sort") or "newest",
        page=min(max(1, asked.whole("page") or 1), 10**6),
    )
    with reading(request) as db:
        run = queries.run_named(db, wanted.run) if wanted.run else None
        rows, total = queries.dialogues(db, wanted)
        choices: dict[str, Any] = {
            "parts": queries.parts_of(db, wanted.run) if wanted.run else {},
            "endings": queries.endings(db, wanted.run),
            "scenarios": queries.scenarios(db, wanted.run) if wanted.run else [],
            "sorts": queries.SORTS,
        }
    found = [{"row": row, "snippet": snippet(row, wanted.words)} for row in rows]
    query = {k: v for k, v in request.query_params.items() if k != "page" and v}
    return page(
        request,
        "dialogues.html",
        wanted=wanted,
        run=run,
        found=found,
        total=total,
        query=query,
        pages=-(-total // PAGE),
        notes=asked.notes,
        capped=MATCHES if wanted.words and total >= MATCHES else 0,
        **choices,
    )


def snippet(row: sqlite3.Row, words: str) -> dict[str, str] | None:
    """Where the first of the words stands in the dialogue."""
    if not words.split():
        return None
    try:
        dialogue = talk.dialogue_at(row)
    except MapoError:
        return None
    for text in (text for turn in dialogue.turns for text in (turn.user, turn.reply.text)):
        for word in words.split():
            if found := re.search(re.escape(word), text, re.IGNORECASE):
                a, b = found.span()
                return {"before": text[max(0, a - 60) : a], "hit": text[a:b], "after": text[b : b + 90]}
    return None


# ---- one dialogue


def one(request: Request) -> Response:
    with reading(request) as db:
        row = place_asked(request, db)
        run, files = run_asked(request, db, row["run"])
        batch = queries.batch_of(db, row)
    dialogue = talk.dialogue_at(row)
    settings, why = advantage_of(config_of(files)[0])
    rubric = rubric_of(files, dialogue.rubric)
    trained = row["part"] == "train"
    credit = credit_of(batch, settings, why) if trained else Credit(settings, {})
    siblings = talk.siblings_of(row, batch)
    return page(
        request,
        "dialogue.html",
        run=run,
        row=row,
        dialogue=dialogue,
        turns=talk.turns_of(dialogue, rubric, credit.turns.get(row["n"])),
        credit=credit,
        trained=trained,
        instead=None if row["counts"] else _instead(row, batch),
        largest=max(credit.largest_of(each["n"] for each in siblings), 1e-9),
        beside=talk.side_by_side(siblings, credit) if len(siblings) > 1 else None,
        axes=[axis.title for axis in rubric.axes] if rubric else [],
        neighbours=neighbours(batch, row),
        pairs=_pairs(len(dialogue.start)),
    )


def _instead(row: sqlite3.Row, batch: list[sqlite3.Row]) -> sqlite3.Row | None:
    """The record that counts of a dialogue that was played again."""
    same = (each for each in batch if (each["model"], each["id"]) == (row["model"], row["id"]))
    return next(same, None)


def neighbours(batch: list[sqlite3.Row], row: sqlite3.Row) -> tuple[sqlite3.Row | None, sqlite3.Row | None]:
    """The dialogue before and the one after in the batch."""
    names = [each["id"] for each in batch]
    if row["id"] not in names:
        return None, None
    at = names.index(row["id"])
    return (batch[at - 1] if at else None), (batch[at + 1] if at + 1 < len(batch) else None)


def _pairs(axes: int) -> list[str]:
    return [f"pair_{a}_{b}" for a in range(axes) for b in range(a + 1, axes)][:15]


def place_asked(request: Request, db: sqlite3.Connection) -> sqlite3.Row:
    """The dialogue an address names."""
    p = request.path_params
    row = queries.place(db, p["run"], p["file"], p["line"])
    if row is None:
        raise HTTPException(404, "no such dialogue: its file has changed, or it was never there")
    return row


def turn_asked(request: Request) -> tuple[Dialogue, int, str]:
    """The dialogue, the place of the turn in it, and the run's key."""
    with reading(request) as db:
        row = place_asked(request, db)
    dialogue = talk.dialogue_at(row)
    turn: int = request.path_params["turn"]
    if not 1 <= turn <= len(dialogue.turns):
        raise HTTPException(404, "no such turn")
    return dialogue, turn - 1, row["run"]


def whole_text(request: Request) -> Response:
    """What was said in one turn, all of it, as plain text."""
    dialogue, at, _ = turn_asked(request)
    turn = dialogue.turns[at]
    said = {"user": turn.user, "reply": turn.reply.text}.get(request.path_params["who"])
    if said is None:
        raise HTTPException(404, "user or reply")
    return PlainTextResponse(said.encode("utf-8", "replace"))


def tokens(request: Request) -> Response:
    dialogue, at, run = turn_asked(request)
    with reading(request) as db:
        _, files = run_asked(request, db, run)
    first = max(0, Asked(request).whole("from") or 0)
    return as_json(talk.tokens_of(dialogue.turns[at], files, first))


def path(request: Request) -> Response:
    """The way through the space of deficits, and the siblings' ways, as figures."""
    with reading(request) as db:
        row = place_asked(request, db)
        _, files = run_asked(request, db, row["run"])
        siblings = talk.siblings_of(row, queries.batch_of(db, row))[1 : talk.SIBLINGS]
    dialogue = talk.dialogue_at(row)
    rubric = rubric_of(files, dialogue.rubric)
    size = len(dialogue.start)
    axes = (
        [a.title for a in rubric.axes]
        if rubric and len(rubric.axes) == size
        else [f"axis {i + 1}" for i in range(size)]
    )
    others = [
        (each.id, talk.positions(each))
        for each in map(_or_none, siblings)
        if each and len(each.start) == size
    ]
    return as_json(path_figures(axes, talk.positions(dialogue), others, rubric.zone if rubric else 1.0))


def _or_none(row: sqlite3.Row) -> Dialogue | None:
    try:
        return talk.dialogue_at(row)
    except MapoError:
        return None


# ---- two dialogues


def compare(request: Request) -> Response:
    """The same scenario in two sets: before and after training, or of two runs."""
    asked = Asked(request)
    with reading(request) as db:
        sets = all_sets(request, db)
        a, b = _two_sets(asked, sets)
        pairs = pairs_of(db, a, b) if a and b else []
    wanted = asked.text("scenario")
    chosen = next((p for p in pairs if p["id"] == wanted), pairs[0] if pairs else None)
    sides = [_side(chosen[s]) for s in ("a", "b")] if chosen else []
    length = max((len(s["turns"]) for s in sides), default=0)
    return page(
        request,
        "compare.html",
        sets=_offered(sets, (a, b)),
        a=a,
        b=b,
        pairs=pairs[:500],
        chosen=chosen,
        sides=sides,
        length=length,
    )


def _offered(sets: list[dict[str, Any]], named: tuple[dict[str, Any] | None, ...]) -> list[dict[str, Any]]:
    """Not more than a menu can hold, the ones in use among them."""
    first = sets[:300]
    return first + [s for s in named if s and s not in first]


def _two_sets(
    asked: Asked, sets: list[dict[str, Any]]
) -> tuple[dict[str, Any] | None, dict[str, Any] | None]:
    """Those named; else the test before and after of the run named, or of the newest one that has both."""
    by_key = {s["key"]: s for s in sets}
    if (a := asked.text("a")) and (b := asked.text("b")):
        return by_key.get(a), by_key.get(b)
    for run in [asked.text("run")] if asked.text("run") else dict.fromkeys(s["run"] for s in sets):
        if f"{run}|before" in by_key and f"{run}|after" in by_key:
            return by_key[f"{run}|before"], by_key[f"{run}|after"]
    return None, None


def pairs_of(db: sqlite3.Connection, a: dict[str, Any], b: dict[str, Any]) -> list[dict[str, Any]]:
    """Dialogues of the same id in both sets (the last of an id counts); the largest gain first."""
    left, right = ({row["id"]: row for row in queries.set_rows(db, s["run"], s["part"])} for s in (a, b))
    found = []
    for name in left.keys() & right.keys():
        one, other = left[name]["epm_q"], right[name]["epm_q"]
        gain = other - one if one is not None and other is not None else None
        found.append({"id": name, "a": left[name], "b": right[name], "gain": gain})
    return sorted(found, key=lambda p: (p["gain"] is None, -(p["gain"] or 0.0), p["id"]))


def _side(row: sqlite3.Row) -> dict[str, Any]:
    try:
        dialogue = talk.dialogue_at(row)
    except MapoError as error:
        return {"row": row, "turns": [], "problem": str(error)}
    return {"row": row, "turns": talk.turns_of(dialogue, None, None), "problem": ""}
