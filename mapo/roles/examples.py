"""Prompts and recorded answers of a role as token examples.

The prompts are those that the role sees when it plays: `sandbox/readout.py` for answers that are read out,
the user's own prompt for the lines it writes.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, TypeVar

from mapo.judges.sample import Recording
from mapo.local_model.forms import FormTokens, form_tokens
from mapo.local_model.template import Template
from mapo.measure.rubric import Rubric
from mapo.models.chat import Place
from mapo.roles.additions import additions
from mapo.roles.learning import Data
from mapo.roles.packing import Example, pack
from mapo.sandbox.cast import flat_levels
from mapo.sandbox.faults.manners import is_call_failure
from mapo.sandbox.readout import (
    LAYOUT,
    act_menu,
    act_places,
    choice_of,
    director_messages,
    judge_messages,
    open_choices,
    turn_places,
)
from mapo.sandbox.user import ModelUser
from mapo.types import Direction, Levels, Message

REASON_CHARACTERS = 300
"""A recorded reason is learned up to this length."""
_THREADS = 8
_T = TypeVar("_T")
_R = TypeVar("_R")


@dataclass(frozen=True, slots=True)
class Encoder:
    """Turns prompts into token ids, as the sampler does when the role plays."""

    template: Template

    @property
    def tokenizer(self) -> Any:
        return self.template.tokenizer

    def reading(
        self,
        name: str,
        messages: Sequence[Message],
        places: Sequence[Place],
        answers: Sequence[int],
        kind: str = "recorded",
    ) -> Example:
        """Return an example whose answers are read out after a prompt."""
        form: FormTokens = form_tokens(self.tokenizer, places)
        prompt = self.template.full_prompt(messages)
        return Example(
            name,
            (*prompt, *form.ids),
            tuple(len(prompt) + at for at in form.reads),
            tuple(map(tuple, form.options)),
            tuple(answers),
            kind=kind,
        )

    def writing(self, name: str, messages: Sequence[Message], text: str, kind: str = "recorded") -> Example:
        """Return an example whose text, with the token that ends it, is written after a prompt."""
        prompt = self.template.full_prompt(messages)
        words = self.tokenizer.encode(self.template.escape_controls(text), add_special_tokens=False)
        return Example(name, (*prompt, *words, min(self.template.end_ids)), text=len(prompt), kind=kind)


def magnitudes(levels: Levels, rubric: Rubric) -> tuple[int, ...]:
    """Return the levels of a form as counted from 0, in the order of `turn_places`."""
    return tuple(abs(level) for level in flat_levels(levels, rubric))


def judge_examples(recording: Recording, encoder: Encoder, layout: int = LAYOUT) -> list[Example]:
    """Return one example per judged turn."""
    rubric, places = recording.rubric, turn_places(recording.rubric)
    return [
        encoder.reading(
            turn_name(recording, number),
            judge_messages(recording.scenario, rubric, recording.dialogue.turns[:number], layout=layout),
            places,
            magnitudes(turn.levels, rubric),
        )
        for number, turn in enumerate(recording.dialogue.turns, 1)
        if turn.levels is not None
    ]


def added_examples(
    recording: Recording,
    encoder: Encoder,
    others: Sequence[str],
    share: float,
    seed: int,
    layout: int = LAYOUT,
) -> list[Example]:
    """Return examples of worthless replies for about `share` of the judged turns."""
    rubric = recording.rubric
    return [
        encoder.reading(
            turn_name(recording, addition.number),
            judge_messages(recording.scenario, rubric, addition.turns, layout=layout),
            turn_places(rubric),
            magnitudes(addition.levels, rubric),
            kind="addition",
        )
        for addition in additions(recording, others, share, seed, rubric)
    ]


def reason_examples(
    recording: Recording, encoder: Encoder, per_turn: int, seed: int, layout: int = LAYOUT
) -> list[Example]:
    """Return the recorded reasons of up to `per_turn` marks per turn, as text after the prompt of the
    form. Marks other than 0 come first."""
    rubric, examples = recording.rubric, []
    rng = random.Random(f"{seed}/{recording.id}/reasons")  # noqa: S311 (sampling, not security)
    for number, turn in enumerate(recording.dialogue.turns, 1):
        if turn.levels is None or not per_turn:
            continue
        marks = [
            (f"{key} {side}", mark)
            for key in rubric.keys
            for side in ("progress", "regression")
            if (mark := getattr(turn.levels[key], side)).reason
        ]
        rng.shuffle(marks)
        marks.sort(key=lambda pair: pair[1].level == 0)
        turns = recording.dialogue.turns[:number]
        messages = judge_messages(recording.scenario, rubric, turns, layout=layout)
        examples += [
            encoder.writing(
                turn_name(recording, number),
                messages,
                f"{name} {abs(mark.level)}: {mark.reason[:REASON_CHARACTERS]}",
                kind="reason",
            )
            for name, mark in marks[:per_turn]
        ]
    return examples


def user_examples(recording: Recording, encoder: Encoder) -> list[Example]:
    """Return one example per line of the user, without the first, which is the scenario's opening, and
    without the texts of failed calls."""
    turns = recording.dialogue.turns
    user = ModelUser(None, recording.scenario, recording.rubric, recording.dialogue.seed or 0)  # type: ignore[arg-type]
    return [
        encoder.writing(
            turn_name(recording, number + 1),
            user.messages(turns[:number], turn.direction or Direction("go_on")),
            turn.user,
        )
        for number, turn in enumerate(turns[1:], 1)
        if not is_call_failure(turn.user)
    ]


def director_examples(recording: Recording, encoder: Encoder) -> list[Example]:
    """Return one example per recorded act that the scenario's menu contains."""
    scenario, rubric, turns = recording.scenario, recording.rubric, recording.dialogue.turns
    rules, menu = rubric.ending, act_menu(scenario, rubric)
    least = recording.dialogue.min_turns or rules.min_turns
    most = recording.dialogue.max_turns or rules.max_turns
    examples = []
    for number, turn in enumerate(turns[1:], 1):
        if turn.direction is None:
            continue
        choices = open_choices(menu, scenario, turns[:number], least)
        choice = choice_of(turn.direction, choices)
        if choice is not None and len(choices) > 1:
            messages = director_messages(scenario, rubric, turns[:number], least, most)
            examples.append(
                encoder.reading(turn_name(recording, number + 1), messages, act_places(choices), (choice,))
            )
    return examples


def turn_name(recording: Recording, number: int) -> str:
    """Return the unique name of a turn, counted from 1."""
    return f"{recording.id}@{number}"


def each(items: Sequence[_T], make: Callable[[_T], _R]) -> list[_R]:
    """Return what `make` returns for each item, in order; tokenizers work in several threads."""
    with ThreadPoolExecutor(_THREADS) as pool:
        return list(pool.map(make, items))


def packed(groups: Sequence[Sequence[Example]], limit: int, *, branching: bool) -> tuple[Data, int]:
    """Return the examples of all dialogues with their rows, and the number of examples that are too long."""
    examples: list[Example] = []
    rows = []
    dropped = 0
    for group in groups:
        fitting = [example for example in group if example.needed <= limit]
        dropped += len(group) - len(fitting)
        numbers = range(len(examples), len(examples) + len(fitting))
        examples += fitting
        rows += pack(fitting, numbers, limit, branching=branching)
    return Data(examples, rows), dropped


def replies_elsewhere(recordings: Sequence[Recording]) -> dict[str, list[str]]:
    """Return, for each scenario, the replies in all other scenarios. Those of the same scenario may fit."""
    return {
        own: [turn.reply.text for r in recordings if r.scenario.id != own for turn in r.dialogue.turns]
        for own in {r.scenario.id for r in recordings}
    }
