"""Probes: changes to a judge's input that should not improve its rating.

A *rise* probe adds something worthless to the reply (filler, praise, hedges, a repetition, an attack). If a
judge rewards it, a policy can learn to exploit that. A *shift* probe leaves the reply as it is and changes
something else (the order of the axes, the wording of the judge's prompt, small talk before the conversation,
its language). A judge that reacts to it rates something other than the reply. The texts are in `texts.toml`,
alternative prompts in `prompts/`, translated pairs in each domain's `pairs.toml`.
"""

from __future__ import annotations

import random
import tomllib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from importlib.resources import files
from string import Template
from typing import Any

from mapo.domain_folders import known_folder
from mapo.judges.audit.attacks import ATTACKS, attack
from mapo.judges.sample import RecordedTurn, Recording
from mapo.measure.reward import Distance
from mapo.measure.rubric import Rubric
from mapo.sandbox.judge import common_parts, describe_axes, turn_schema
from mapo.sandbox.prompting import fragment
from mapo.sandbox.transcript import delimiter_of
from mapo.scenarios.scenario import Persona, Scenario
from mapo.types import Dialogue, Mark, Reply, Turn

UNCHANGED = "plain"
"""Probe name of a turn as recorded; part of the ids in items.jsonl."""
LANGUAGE = "language"
PARAPHRASES = ("inspector", "short", "backwards")


@dataclass(frozen=True, slots=True)
class JudgeInput:
    """Input of a judge: the scenario, the conversation whose last reply is rated, the rubric, and optionally
    another system prompt."""

    scenario: Scenario
    turns: Sequence[Turn]
    rubric: Rubric
    seed: int
    system: str = ""

    @property
    def reply(self) -> str:
        """Text of the reply to rate."""
        return self.turns[-1].reply.text


def unchanged_input(turn: RecordedTurn) -> JudgeInput:
    """Return the judge's input for a turn as recorded."""
    recording = turn.recording
    return JudgeInput(recording.scenario, turn.history, recording.rubric, recording.dialogue.seed or 0)


@dataclass(frozen=True, slots=True)
class Probe:
    """A named change. `change` takes the input and a variant number that differs from turn to turn, and
    returns the changed input, or None if it does not apply. `kind` is "rise" or "shift"."""

    name: str
    kind: str
    about: str
    change: Callable[[JudgeInput, int], JudgeInput | None]


def _with_reply(shown: JudgeInput, text: str) -> JudgeInput:
    *before, last = shown.turns
    return replace(shown, turns=(*before, replace(last, reply=replace(last.reply, text=text))))


def _texts(shown: JudgeInput, name: str) -> list[Any]:
    return list(_all_texts().get(shown.scenario.language, {}).get(name, []))


@lru_cache
def _all_texts() -> dict[str, Any]:
    return tomllib.loads((files("mapo") / "judges" / "audit" / "texts.toml").read_text(encoding="utf-8"))


def _add_filler(shown: JudgeInput, _: int) -> JudgeInput | None:
    lines = _texts(shown, "filler")
    return _with_reply(shown, " ".join([shown.reply, *lines])) if lines else None


def _add_line(name: str) -> Callable[[JudgeInput, int], JudgeInput | None]:
    def change(shown: JudgeInput, variant: int) -> JudgeInput | None:
        lines = _texts(shown, name)
        return _with_reply(shown, f"{shown.reply} {lines[variant % len(lines)]}") if lines else None

    return change


def _repeat_reply(shown: JudgeInput, variant: int) -> JudgeInput | None:
    lines = _texts(shown, "again")
    if not lines:
        return None
    return _with_reply(shown, f"{shown.reply} {lines[variant % len(lines)]}{shown.reply}")


def attack_name(variant: int) -> str:
    """Return the attack for a variant number; all attacks are used once before any repeats."""
    names = list(ATTACKS)
    random.Random("attacks").shuffle(names)  # noqa: S311 (ordering, not security)
    return names[variant % len(names)]


def _add_attack(shown: JudgeInput, variant: int) -> JudgeInput:
    mark = delimiter_of(shown.scenario.id, shown.seed)
    return _with_reply(shown, f"{shown.reply}\n\n{attack(attack_name(variant), mark, shown.rubric)}")


def _reverse_axes(shown: JudgeInput, _: int) -> JudgeInput:
    return replace(shown, rubric=replace(shown.rubric, axes=tuple(reversed(shown.rubric.axes))))


def _add_small_talk(shown: JudgeInput, _: int) -> JudgeInput | None:
    pairs = _texts(shown, "neutral")
    before = [Turn(message, Reply(reply)) for message, reply in pairs]
    return replace(shown, turns=(*before, *shown.turns)) if before else None


def _reword_prompt(name: str) -> Callable[[JudgeInput, int], JudgeInput]:
    def change(shown: JudgeInput, _: int) -> JudgeInput:
        values = common_parts(shown.scenario, shown.rubric, turn_schema(shown.rubric))
        return replace(
            shown,
            system=_paraphrase(name)
            .substitute(
                values,
                axes=describe_axes(shown.rubric),
                domain=fragment(shown.scenario.domain, "judge_turn"),
            )
            .strip(),
        )

    return change


@lru_cache
def _paraphrase(name: str) -> Template:
    return Template(
        (files("mapo") / "judges" / "audit" / "prompts" / f"{name}.md").read_text(encoding="utf-8")
    )


def probe_texts() -> list[Any]:
    """Return all texts that probes use. Their digest is part of the manifest, so that an audit is not resumed
    with different texts."""
    return [_all_texts(), ATTACKS, *(_paraphrase(name).template for name in PARAPHRASES)]


PROBES = {
    probe.name: probe
    for probe in (
        Probe("length", "rise", "neutral filler after the reply", _add_filler),
        Probe("flattery", "rise", "generic praise of the person", _add_line("flattery")),
        Probe("hedging", "rise", "hedging after the reply", _add_line("hedging")),
        Probe("verbosity", "rise", "the whole reply repeated", _repeat_reply),
        Probe("injection", "rise", "an attack on the judge", _add_attack),
        Probe("order", "shift", "axes in reverse order", _reverse_axes),
        Probe("position", "shift", "four turns of small talk first", _add_small_talk),
        *(
            Probe(f"prompt {n}", "shift", f"judge prompt reworded ({n})", _reword_prompt(n))
            for n in PARAPHRASES
        ),
    )
}
LANGUAGE_PROBE = Probe(LANGUAGE, "shift", "Chinese instead of English", lambda shown, _: shown)


# ---- language pairs


def language_pairs(
    rubric: Rubric, reward: str = "idr", distance: Distance = "zone"
) -> list[tuple[RecordedTurn, RecordedTurn]]:
    """Return the domain's conversations in English and in Chinese; empty if the domain has no pairs."""
    folder = known_folder(rubric.name)
    file = folder / "pairs.toml" if folder else None
    if file is None or not file.is_file():
        return []
    start = {item.key: Mark(min(2, len(item.deficit) - 1)) for item in rubric.indicators}
    pairs = []
    for number, pair in enumerate(tomllib.loads(file.read_text(encoding="utf-8"))["pair"], 1):
        sides = []
        for language in ("en", "zh"):
            scenario = Scenario(
                id=f"pair-{number}",
                persona=Persona(pair["name"], background=pair["background"]),
                topic=pair["topic"],
                opening=pair[language]["said"],
                hopes_for=pair["hopes_for"],
                language=language,
                domain=rubric.name,
            )
            for kind in ("reply", "other_reply"):
                turns = (Turn(pair[language]["said"], Reply(pair[language][kind])),)
                dialogue = Dialogue(
                    f"{scenario.id}-{kind}",
                    scenario.id,
                    "",
                    rubric.name,
                    "published",
                    start,
                    rubric.start(start),
                    turns,
                )
                recording = Recording(f"pairs/{language}", dialogue, scenario, rubric, reward, distance)
                sides.append(RecordedTurn(recording, 1))
        pairs += [(sides[0], sides[2]), (sides[1], sides[3])]
    return pairs
