"""Forms whose answers are read out of a model: the prompts, the places of the answers, and their meaning.

The conversation is shown as a chat. Each turn is a message of the user, and the form that was read after it,
with fillers in place of the answers, is the assistant's reply. A longer conversation therefore extends the
messages of a shorter one: a sampler that keeps its KV cache computes only the new turn, and training can read
all turns of a dialogue in one pass. No answer is ever part of the messages.

Playing (`reading_roles.py`) and training of roles use these functions, so that a model sees in a dialogue
what it was trained on. A layout is a version of the labels, the order of the places and the messages; a
trained role stores the one it learned. In BRIEF, a judge sees the conversation and how fast the person comes
to trust, but neither the rubric, which is in its weights, nor the person's file.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from string import ascii_uppercase

from mapo.measure.calibration import Calibration, Probabilities
from mapo.measure.rubric import Rubric
from mapo.models.chat import FILLER, Place
from mapo.sandbox.director import ITEMS, describe_position
from mapo.sandbox.judge import describe_indicators
from mapo.sandbox.prompting import DEFAULT_PROMPTS, Prompts, escaped, full_persona, language_of
from mapo.sandbox.transcript import quote
from mapo.scenarios.scenario import Scenario
from mapo.types import AxisMarks, Direction, Levels, Mark, Message, StartLevels, Turn

LAYOUT = 1
BRIEF = 2
DIGITS = 4
"""Decimal places of recorded probabilities. Levels and steps are computed from the rounded ones."""


def form_text(places: Sequence[Place]) -> str:
    """Return a form with fillers in place of its answers."""
    return "".join(f"{place.label}{FILLER}" for place in places)


def turn_places(rubric: Rubric) -> tuple[Place, ...]:
    """Return the places of the turn form: progress and regression of every axis, in the order of
    `flat_levels`. The options of a regression are magnitudes.
    """
    return _level_places(
        [
            (f"{axis.key} {side}", len(table))
            for axis in rubric.axes
            for side, table in (("progress", axis.progress), ("regression", axis.regression))
        ]
    )


def start_places(rubric: Rubric) -> tuple[Place, ...]:
    """Return the places of the start form, one per indicator."""
    return _level_places([(f"{item.key} level", len(item.deficit)) for item in rubric.indicators])


def _level_places(items: Sequence[tuple[str, int]]) -> tuple[Place, ...]:
    # Labels neither end in punctuation nor contain line breaks, and only the first starts without a space:
    # byte-level tokenizers then split a whole form exactly at the places.
    return tuple(
        Place(f"{' ' * bool(n)}{name}", tuple(map(str, range(count))))
        for n, (name, count) in enumerate(items)
    )


def judge_messages(
    scenario: Scenario,
    rubric: Rubric,
    turns: Sequence[Turn],
    prompts: Prompts = DEFAULT_PROMPTS,
    layout: int = LAYOUT,
) -> tuple[Message, ...]:
    """Return the messages before the turn form of the last of `turns`."""
    if layout == BRIEF:
        shown = ["\n".join(_quoted(turn)) for turn in turns]
        return _as_chat(f"Trust: {scenario.threshold}", shown, turn_places(rubric))
    system = prompts.fill(
        "read_turn",
        scenario.domain,
        axes=describe_scales(rubric),
        person=full_persona(scenario, rubric),
        language=language_of(scenario),
    )
    shown = [
        "\n".join([f"turn {number}", *_quoted(turn), f"Levels of the reply of turn {number}:"])
        for number, turn in enumerate(turns, 1)
    ]
    return _as_chat(system, shown, turn_places(rubric))


def start_messages(
    scenario: Scenario, rubric: Rubric, prompts: Prompts = DEFAULT_PROMPTS
) -> tuple[Message, ...]:
    """Return the messages before the start form."""
    system = prompts.fill(
        "read_start",
        scenario.domain,
        indicators=describe_indicators(rubric),
        person=full_persona(scenario, rubric),
        language=language_of(scenario),
    )
    return _as_chat(system, [f"Levels of {escaped(scenario.persona.name)}:"], ())


def describe_scales(rubric: Rubric) -> str:
    """Describe each axis: its question and the meaning of each level, with regressions as magnitudes."""
    parts = []
    for axis in rubric.axes:
        lines = [f"{axis.key} ({axis.title}): {axis.asks}"]
        for side, meanings in (("progress", axis.progress_means), ("regression", axis.regression_means)):
            lines += [f"{axis.key} {side} {level}: {means}" for level, means in enumerate(meanings)]
        parts.append("\n".join(lines))
    return "\n\n".join(parts)


def rounded(probabilities: Sequence[Sequence[float]]) -> Probabilities:
    """Return probabilities as they are recorded."""
    return tuple(tuple(round(p, DIGITS) for p in place) for place in probabilities)


def levels_from(probabilities: Sequence[Sequence[float]], rubric: Rubric, calibration: Calibration) -> Levels:
    """Return the turn form that probabilities in the order of `turn_places` stand for."""
    levels = iter(calibration.levels(probabilities))
    return {key: AxisMarks(Mark(next(levels)), Mark(-next(levels))) for key in rubric.keys}


def reordered(calibration: Calibration, rubric: Rubric, other: Rubric) -> Calibration:
    """Return a calibration for `rubric` with its places in the order of `other`, which has the same axes."""
    order = [2 * rubric.keys.index(key) + side for key in other.keys for side in (0, 1)]
    return Calibration(
        tuple(calibration.temperatures[n] for n in order) if calibration.temperatures else (),
        tuple(calibration.cuts[n] for n in order) if calibration.cuts else (),
    )


def start_levels_from(
    probabilities: Sequence[Sequence[float]], rubric: Rubric, calibration: Calibration
) -> StartLevels:
    """Return the start form that probabilities in the order of `start_places` stand for."""
    levels = calibration.levels(probabilities)
    return {item.key: Mark(level) for item, level in zip(rubric.indicators, levels, strict=True)}


@dataclass(frozen=True, slots=True)
class Choice:
    """An act of the director, with its item, and the letter that stands for it in one scenario."""

    letter: str
    act: str
    item: str = ""


def act_menu(scenario: Scenario, rubric: Rubric) -> tuple[Choice, ...]:
    """Return the acts that a scenario has, with their letters. Memories beyond the alphabet are left out.

    The letter of reveal_stage stands for the next stage, whichever that is.
    """
    acts = [("go_on", ""), ("wait", "")]
    acts += [("reveal_stage", "")] * bool(scenario.stages)
    acts += [("turning_point", ""), ("end", "")]
    acts += [("shift_focus", key) for key in rubric.keys]
    acts += [("release_memory", str(n)) for n in range(len(scenario.memories))]
    return tuple(
        Choice(letter, act, item) for letter, (act, item) in zip(ascii_uppercase, acts, strict=False)
    )


def open_choices(
    menu: Sequence[Choice], scenario: Scenario, turns: Sequence[Turn], min_turns: int
) -> tuple[Choice, ...]:
    """Return the choices that the director's rules allow after `turns` (see `ModelDirector.allowed`)."""
    taken = [turn.direction for turn in turns if turn.direction]
    closed = {(d.act, d.item) for d in taken if d.act in ("release_memory", "turning_point")}
    closed |= {("reveal_stage", "")} if next_stage(turns) >= len(scenario.stages) else set()
    closed |= {("end", "")} if len(turns) < min_turns else set()
    return tuple(choice for choice in menu if (choice.act, choice.item) not in closed)


def next_stage(turns: Sequence[Turn]) -> int:
    """Return the number of the stage that is revealed next."""
    return sum(turn.direction is not None and turn.direction.act == "reveal_stage" for turn in turns)


def choice_of(direction: Direction, choices: Sequence[Choice]) -> int | None:
    """Return the index of the choice that a recorded direction made, None if it is not among them."""
    item = "" if direction.act == "reveal_stage" else direction.item
    matches = (n for n, choice in enumerate(choices) if (choice.act, choice.item) == (direction.act, item))
    return next(matches, None)


def act_places(choices: Sequence[Choice]) -> tuple[Place, ...]:
    """Return the place of the director's act, with the letters of the acts that are allowed now."""
    return (Place("Act", tuple(choice.letter for choice in choices)),)


def director_messages(
    scenario: Scenario,
    rubric: Rubric,
    turns: Sequence[Turn],
    min_turns: int,
    max_turns: int,
    prompts: Prompts = DEFAULT_PROMPTS,
) -> tuple[Message, ...]:
    """Return the messages before the director's act that follows the last of `turns`."""
    menu = act_menu(scenario, rubric)
    meanings = prompts.table("director_acts")
    system = prompts.fill(
        "read_act",
        scenario.domain,
        acts="\n".join(f"{choice.letter}: {_described(choice, meanings)}" for choice in menu),
        axes="\n".join(f"{axis.key}: {axis.title}. {axis.asks}" for axis in rubric.axes),
        min_turns=min_turns,
        max_turns=max_turns,
        person=full_persona(scenario, rubric),
        language=language_of(scenario),
    )
    shown = [
        "\n".join(
            [
                f"turn {number}",
                *([f"act before it: {_name(turn.direction)}"] if turn.direction else []),
                *_quoted(turn),
                describe_position(turn, rubric),
                "What happens before the person's next message?",
            ]
        )
        for number, turn in enumerate(turns, 1)
    ]
    return _as_chat(system, shown, act_places(menu))


def _described(choice: Choice, meanings: dict[str, str]) -> str:
    meaning = meanings[choice.act].partition(" Item:")[0].removesuffix(" No item.")
    return f"{meaning} ({ITEMS[choice.act]} {choice.item})" if choice.item else meaning


def _name(direction: Direction) -> str:
    return escaped(f"{direction.act} {direction.item}".rstrip())


def _quoted(turn: Turn) -> list[str]:
    return [f"person: {quote(turn.user)}", f"reply: {quote(turn.reply.text)}"]


def _as_chat(system: str, shown: Sequence[str], places: Sequence[Place]) -> tuple[Message, ...]:
    """Return the system prompt and the texts as messages of the user, with an empty form after each but the
    last.
    """
    form = Message("assistant", form_text(places))
    messages = [Message("system", system), Message("user", shown[0])]
    for text in shown[1:]:
        messages += [form, Message("user", text)]
    return tuple(messages)
