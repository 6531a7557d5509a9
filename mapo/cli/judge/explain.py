"""mapo judge explain: have a model write evidence and reasons for recorded levels."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from mapo.cli.common.messages import say, say_all, say_failures
from mapo.cli.common.options import Domain
from mapo.cli.judge.options import BaseUrl, MaxTokens, Scenarios, judges_named, recordings_of
from mapo.errors import InputError

if TYPE_CHECKING:
    from mapo.judges.explain import Explanation
    from mapo.judges.sample import RecordedTurn, Recording
    from mapo.players.spec import ModelSpec

Run = Annotated[Path, typer.Argument(help="Run directory of mapo eval empa or mapo train.")]
Judge = Annotated[
    str, typer.Option("--judge-model", "--judge", help="Model: NAME or NAME@URL, or local:FOLDER.")
]
DialogueId = Annotated[str | None, typer.Option("--dialogue", help="Only the dialogue with this id.")]
Number = Annotated[int | None, typer.Option("--turn", min=1, help="Only this turn of it.")]
Most = Annotated[int, typer.Option(min=1, help="Explain at most this many turns.")]
KeyEnv = Annotated[str, typer.Option(help="Environment variable with the API key.")]


def explain(
    run: Run,
    judge: Judge,
    dialogue: DialogueId = None,
    turn: Number = None,
    most: Most = 20,
    base_url: BaseUrl = None,
    key_env: KeyEnv = "OPENAI_API_KEY",
    max_tokens: MaxTokens = None,
    scenarios: Scenarios = "builtin:all",
    domain: Domain = None,
) -> None:
    """Have a model write evidence and reasons for recorded levels, which stay as they are.

    For judges whose levels are read out. The reasons are kept in explanations.jsonl beside the run and shown
    here and in `mapo view`; turns that have reasons are not asked about again. Exit status: 0 success; 1 some
    turns could not be explained.
    """
    from mapo.judges.explain import read_explanations, unexplained

    if turn is not None and dialogue is None:
        raise InputError("--turn is given without --dialogue", fix="Add --dialogue ID")
    [spec] = judges_named([judge], base_url, [key_env], None, max_tokens).members
    turns = _chosen(recordings_of([str(run)], scenarios, domain), dialogue, turn, str(run))
    known, problems = read_explanations(run)
    say_all("warning", problems)
    missing = unexplained(turns, known)
    failed = _explain_all(run, missing[:most], spec) if missing else []
    known, _ = read_explanations(run)
    shown = 0
    for each in turns:
        shown += _show(each, known)
    if not shown and not failed:
        raise InputError("no turn here has levels", where=str(run), fix="Choose a dialogue that was judged")
    if len(missing) > most:
        say(f"turns left without reasons: {len(missing) - most}; repeat the command, or raise --most")
    if failed:
        say_failures("error", "turn", failed)
        raise typer.Exit(1)


def _chosen(
    recordings: list[Recording], dialogue: str | None, number: int | None, where: str
) -> list[RecordedTurn]:
    turns = [
        turn
        for recording in recordings
        if dialogue in (None, recording.dialogue.id)
        for turn in recording.turns
        if number in (None, turn.number)
    ]
    if not turns:
        missing = f"turn {number} of dialogue '{dialogue}'" if number else f"dialogue '{dialogue}'"
        raise InputError(f"there is no {missing}", where=where, fix="The viewer shows the ids (mapo view)")
    return turns


def _explain_all(run: Path, turns: list[RecordedTurn], spec: ModelSpec) -> list[tuple[str, str]]:
    """Explain turns and write each explanation as it is finished. Return the failures by turn."""
    import asyncio

    from mapo.errors import AnswerError, ContextError, EndpointError
    from mapo.judges.explain import explain, write_explanation
    from mapo.players.session import ModelSession
    from mapo.store import JsonlWriter, RunDir

    failed: list[tuple[str, str]] = []

    async def explain_all() -> None:
        slots = asyncio.Semaphore(8)
        async with ModelSession(concurrency=8) as session:
            session.check({"judge": spec})
            chat = await session.chat(spec, "judge")

            async def one(turn: RecordedTurn) -> None:
                async with slots:
                    try:
                        explanation = await explain(turn, chat, str(spec), spec.sampling)
                    except (AnswerError, ContextError, EndpointError) as error:
                        failed.append((turn.id, str(error)))
                    else:
                        write_explanation(writer, explanation)

            await asyncio.gather(*map(one, turns))

    with JsonlWriter(RunDir(run).explanations) as writer:
        asyncio.run(explain_all())
    return failed


def _show(turn: RecordedTurn, known: dict[str, Explanation]) -> bool:
    """Print a turn with its reasons; return whether it has levels."""
    from mapo.judges.explain import turn_key
    from mapo.text import printable

    last = turn.history[-1]
    if last.levels is None:
        return False
    explanation = known.get(turn_key(turn.recording.dialogue, turn.number))
    form = explanation.levels if explanation else last.levels
    lines = [f"{turn.recording.dialogue.id}, turn {turn.number}", f"  user:  {last.user}"]
    lines.append(f"  reply: {last.reply.text}")
    for key, marks in form.items():
        for side, mark in (("progress", marks.progress), ("regression", marks.regression)):
            quoted = f' "{mark.evidence}"' if mark.evidence else ""
            lines.append(f"  {key} {side} {mark.level:+d}:{quoted} {mark.reason or '(no reason)'}")
    lines += [f"  reasons by {explanation.judge}, after the fact"] if explanation else []
    typer.echo(printable("\n".join(line.replace("\n", "\n    ") for line in lines)) + "\n")
    return True
