"""Changes to what a judge sees that should change nothing for the better: each is held against the turn as it
was.

A *rise* probe adds something worthless (filler, praise, hedges, the same again, an attack): a judge that
gives more for it can be farmed by a policy. A *shift* probe changes nothing about the reply at all (the order
of the axes, the wording of the judge's prompt, small talk before the conversation, its language): a judge
that answers otherwise measures something else than the reply. Texts are in `texts.toml`, other prompts in
`prompts/`, translated pairs in the domain's own `pairs.toml`.
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
from mapo.judges.sample import Moment, Talk
from mapo.measure.reward import Distance
from mapo.measure.rubric import Rubric
from mapo.sandbox.judge import describe_axes, told_to_judge, turn_schema
from mapo.sandbox.prompting import fragment
from mapo.sandbox.transcript import mark_of
from mapo.scenarios.scenario import Persona, Scenario
from mapo.types import Dialogue, Mark, Reply, Turn

PLAIN = "plain"
LANGUAGE = "language"
PARAPHRASES = ("inspector", "short", "backwards")


@dataclass(frozen=True, slots=True)
class Shown:
    """What a judge is shown: a person, a conversation whose last reply is to be judged, a rubric; perhaps a
    prompt of other words."""

    scenario: Scenario
    turns: Sequence[Turn]
    rubric: Rubric
    seed: int
    system: str = ""

    @property
    def reply(self) -> str:
        return self.turns[-1].reply.text


def plainly(moment: Moment) -> Shown:
    """The turn as it was."""
    dialogue = moment.talk.dialogue
    return Shown(moment.talk.scenario, moment.turns, moment.talk.rubric, dialogue.seed or 0)


@dataclass(frozen=True, slots=True)
class Probe:
    """`change` makes the variant of a turn, with a number of its own for each turn; None where there is
    none."""

    name: str
    kind: str
    about: str
    change: Callable[[Shown, int], Shown | None]


def _said(shown: Shown, text: str) -> Shown:
    """The same turn with another reply."""
    *before, last = shown.turns
    return replace(shown, turns=(*before, replace(last, reply=replace(last.reply, text=text))))


def _texts(shown: Shown, name: str) -> list[Any]:
    return list(_all_texts().get(shown.scenario.language, {}).get(name, []))


@lru_cache
def _all_texts() -> dict[str, Any]:
    return tomllib.loads((files("mapo") / "judges" / "audit" / "texts.toml").read_text(encoding="utf-8"))


def _longer(shown: Shown, _: int) -> Shown | None:
    lines = _texts(shown, "filler")
    return _said(shown, " ".join([shown.reply, *lines])) if lines else None


def _adds(name: str) -> Callable[[Shown, int], Shown | None]:
    def change(shown: Shown, number: int) -> Shown | None:
        lines = _texts(shown, name)
        return _said(shown, f"{shown.reply} {lines[number % len(lines)]}") if lines else None

    return change


def _again(shown: Shown, number: int) -> Shown | None:
    lines = _texts(shown, "again")
    if not lines:
        return None
    return _said(shown, f"{shown.reply} {lines[number % len(lines)]}{shown.reply}")


def attack_on(number: int) -> str:
    """Which attack the turn of that number gets: every one once before any comes again."""
    names = list(ATTACKS)
    random.Random("attacks").shuffle(names)  # noqa: S311 (an order, no secret)
    return names[number % len(names)]


def _attacked(shown: Shown, number: int) -> Shown:
    mark = mark_of(shown.scenario.id, shown.seed)
    return _said(shown, f"{shown.reply}\n\n{attack(attack_on(number), mark, shown.rubric)}")


def _reordered(shown: Shown, _: int) -> Shown:
    return replace(shown, rubric=replace(shown.rubric, axes=tuple(reversed(shown.rubric.axes))))


def _later(shown: Shown, _: int) -> Shown | None:
    pairs = _texts(shown, "neutral")
    before = [Turn(said, Reply(reply)) for said, reply in pairs]
    return replace(shown, turns=(*before, *shown.turns)) if before else None


def _reworded(name: str) -> Callable[[Shown, int], Shown]:
    def change(shown: Shown, _: int) -> Shown:
        described = told_to_judge(shown.scenario, shown.rubric, turn_schema(shown.rubric))
        return replace(
            shown,
            system=_paraphrase(name)
            .substitute(
                described,
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


def texts() -> list[Any]:
    """All that probes are made of, for a manifest: an audit is not resumed with other words."""
    return [_all_texts(), ATTACKS, *(_paraphrase(name).template for name in PARAPHRASES)]


PROBES = {
    probe.name: probe
    for probe in (
        Probe("length", "rise", "neutral filler after the reply", _longer),
        Probe("flattery", "rise", "praise of the person that fits anybody", _adds("flattery")),
        Probe("hedging", "rise", "hedges after the reply", _adds("hedging")),
        Probe("verbosity", "rise", "the whole reply said a second time", _again),
        Probe("injection", "rise", "an attack on the judge after the reply", _attacked),
        Probe("order", "shift", "the axes in the reverse order", _reordered),
        Probe("position", "shift", "four turns of small talk before the conversation", _later),
        *(
            Probe(f"prompt {n}", "shift", f"the judge's prompt in other words ({n})", _reworded(n))
            for n in PARAPHRASES
        ),
    )
}
LANGUAGE_PROBE = Probe(
    LANGUAGE, "shift", "the same conversation in Chinese, not English", lambda shown, _: shown
)


# ---- the same words in two languages


def language_pairs(
    rubric: Rubric, reward: str = "idr", distance: Distance = "zone"
) -> list[tuple[Moment, Moment]]:
    """The domain's conversations in English and in Chinese; none for a domain that ships no pairs."""
    folder = known_folder(rubric.name)
    file = folder / "pairs.toml" if folder else None
    if file is None or not file.is_file():
        return []
    start = {item.key: Mark(min(2, len(item.deficit) - 1)) for item in rubric.indicators}
    found = []
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
                talk = Talk(f"pairs/{language}", dialogue, scenario, rubric, reward, distance)
                sides.append(Moment(talk, 1))
        found += [(sides[0], sides[2]), (sides[1], sides[3])]
    return found
