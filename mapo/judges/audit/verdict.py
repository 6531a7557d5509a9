"""What a judge is fit for, in plain words. The thresholds are conventions, set here and nowhere else.

Training asks that the advantages survive the noise (or that a few repeats make them), that nothing worthless
is paid for, because a policy will find it, and that few turns are lost. Evaluation asks that the score is the
same when asked again, that nothing but the reply moves it, that another judge would order the dialogues
alike, and that the evidence can be looked up.

One rule for all numbers: a judge fails where the whole interval of a number is beyond its limit, is fit where
all of it is within, and where the limit lies inside the interval, or there is none, it is unknown. A probe
also fails a judge whose mean change is beyond the limit and certainly not 0. What could not be measured is
said to be unknown, never passed over.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any, NamedTuple

from mapo.judges.audit.between import Agreement
from mapo.judges.audit.effects import Effect
from mapo.judges.audit.measure import Findings
from mapo.judges.audit.noise import TARGET, Reliability, repeats_for
from mapo.measure.stats import FEWEST, Interval, wilson

MAX_REPEATS = 5
"""Answers a turn beyond which a noisy judge is too dear to train with."""
MAX_SIZE = 0.2
"""Effect of a probe, in standard deviations of the reward between turns, that may not be passed."""
SURE = 0.05
"""The corrected p below which an effect is taken for real."""
MAX_WORKED = 0.05
"""Share of attacks that may work beyond chance."""
MAX_UNSCORED = {"training": 0.10, "evaluation": 0.02}
MIN_SCORES = 0.9
"""Correlation of dialogue scores with themselves, asked again."""
MIN_KAPPA = 0.4
"""Mean kappa with each other judge: below it agreement is called poor to fair."""
MIN_RANKS = 0.7
"""Rank correlation of dialogue scores with each other judge's."""
MIN_QUOTED = 0.8
"""Share of marks whose evidence is in the reply."""

FIT, UNFIT, UNKNOWN, PARTLY = "fit", "not fit", "unknown", "fit, as far as known"
BOTH = ("training", "evaluation")


@dataclass(frozen=True, slots=True)
class Verdict:
    """`training` and `evaluation` are "fit", "fit with N repeats" (either "as far as known"), "not fit" or
    "unknown"; with what speaks against it, and with what is open: not measured surely enough."""

    judge: str
    training: str
    evaluation: str
    against_training: tuple[str, ...]
    against_evaluation: tuple[str, ...]
    open_training: tuple[str, ...]
    open_evaluation: tuple[str, ...]
    unknown: tuple[str, ...]

    def as_json(self) -> dict[str, Any]:
        return asdict(self)

    def because(self, use: str) -> tuple[str, ...]:
        """Why it is not fit, or why that is not known."""
        against: tuple[str, ...] = getattr(self, f"against_{use}")
        unsure: tuple[str, ...] = getattr(self, f"open_{use}")
        return against or unsure

    def told(self) -> str:
        """One sentence a use."""
        parts = []
        for use in BOTH:
            why = self.because(use)
            parts.append(f"{use}: {getattr(self, use)}" + (f" ({'; '.join(why)})" if why else ""))
        return ". ".join(parts)


class Said(NamedTuple):
    """What one number says: `state` is UNFIT, UNKNOWN or PARTLY, `uses` what for."""

    state: str
    words: str
    uses: tuple[str, ...] = BOTH


def verdict(found: Findings, others: Sequence[Agreement]) -> Verdict:
    """`others` are this judge's agreements with other judges, as far as there are any."""
    mapo = next((r for r in found.reliability if r.method == "mapo"), None)
    every = [*_blind(found), *_taken_in(found), *_probed(found), *_lost(found), *_too_noisy(mapo)]
    every += [*_unsteady(found), *_alone(found.judge, others), *_unquoted(found)]
    every += [*_unmeasured(found, mapo), *_unknown(found, others)]

    def of(state: str, use: str) -> tuple[str, ...]:
        return tuple(said.words for said in every if said.state == state and use in said.uses)

    repeats = repeats_for(mapo.r) if mapo else None
    fit = {"training": FIT if repeats in (None, 1) else f"fit with {repeats} repeats", "evaluation": FIT}
    fit = {use: PARTLY.replace(FIT, fit[use], 1) if of(PARTLY, use) else fit[use] for use in BOTH}
    state = {use: UNFIT if of(UNFIT, use) else UNKNOWN if of(UNKNOWN, use) else fit[use] for use in BOTH}
    return Verdict(
        found.judge,
        state["training"],
        state["evaluation"],
        of(UNFIT, "training"),
        of(UNFIT, "evaluation"),
        of(UNKNOWN, "training"),
        of(UNKNOWN, "evaluation"),
        tuple(said.words for said in every if said.state == PARTLY),
    )


def held(ends: Interval | None, limit: float, *, at_most: bool) -> str:
    """The rule: an interval against the limit that its number may at most, or must at least, reach."""
    if ends is None:
        return UNKNOWN
    low, high, most = (*ends, limit) if at_most else (-ends[1], -ends[0], -limit)
    return UNFIT if low > most else UNKNOWN if high > most else FIT


def ends_of(value: float, interval: Interval | None, rows: int) -> Interval | None:
    """An interval; the number itself where many rows never differed; None for too few."""
    return interval or ((value, value) if rows >= FEWEST else None)


def _against(state: str, words: str, limit: str, uses: tuple[str, ...] = BOTH) -> list[Said]:
    if state == FIT:
        return []
    return [Said(state, words if state == UNFIT else f"{words}; too few to be sure of {limit}", uses)]


# ---- the judge itself


def _blind(found: Findings) -> list[Said]:
    nothing = found.noise is not None and found.noise.between == 0
    return [Said(UNFIT, "it does not tell turns apart")] if nothing else []


def _lost(found: Findings) -> Iterator[Said]:
    for use in BOTH if found.asked else ():
        limit = MAX_UNSCORED[use]
        state = held(wilson(found.unscored, found.asked), limit, at_most=True)
        words = f"{found.unscored / found.asked:.0%} of its {found.asked} forms cannot be used"
        yield from _against(state, words, f"at most {limit:.0%}", (use,))


def _too_noisy(mapo: Reliability | None) -> list[Said]:
    if mapo is None or mapo.r is None:
        return []
    ends = ends_of(mapo.r, mapo.interval, mapo.dialogues)
    needed = [repeats_for(end) for end in ends or (-1.0, -1.0)]
    low, high = (n is not None and n <= MAX_REPEATS for n in needed)
    state = FIT if low else UNKNOWN if high or ends is None else UNFIT
    repeats = repeats_for(mapo.r)
    need = "no number of repeats" if repeats is None else f"{repeats} repeat{'s' * (repeats > 1)}"
    words = (
        f"its advantages correlate {mapo.with_truth:.2f} with noise-free ones; {need} would reach {TARGET}"
    )
    return _against(state, words, f"at most {MAX_REPEATS}", ("training",))


def _unsteady(found: Findings) -> list[Said]:
    if found.scores is None:
        return []
    words = f"asked again, its scores of dialogues correlate {found.scores:.2f} with themselves"
    state = held(found.scores_interval, MIN_SCORES, at_most=False)
    return _against(state, words, f"{MIN_SCORES} or more", ("evaluation",))


def _unquoted(found: Findings) -> list[Said]:
    share = found.quotes.share
    if share is None:
        return []
    state = held(found.quotes.interval, MIN_QUOTED, at_most=False)
    words = f"{share:.0%} of its evidence is in the reply"
    return _against(state, words, f"{MIN_QUOTED:.0%} or more", ("evaluation",))


# ---- what moves it


def smallest_p(clusters: int, tests: int) -> float:
    """The least p that a sign-flip test over so many dialogues can have after Holm's correction of so many
    tests: of 2^n assignments of signs, the one seen and its mirror image are as far from 0."""
    return min(1.0, tests * 2.0 ** (1 - clusters))


def dialogues_needed(tests: int) -> int:
    """How many dialogues it takes until an effect can be shown at all."""
    return next(n for n in range(1, 64) if smallest_p(n, tests) < SURE)


def real(effect: Effect | None) -> bool:
    """Whether an effect is there, and large enough to matter."""
    if effect is None or effect.size is None or effect.p_holm is None:
        return False
    return effect.p_holm < SURE and abs(effect.size) > MAX_SIZE


def _probed(found: Findings) -> Iterator[Said]:
    """What it pays for rules out both uses; what else moves it, evaluation."""
    few = []
    for effect in found.effects:
        rise = effect.kind == "rise"
        uses = BOTH if rise else ("evaluation",)
        if real(effect) and (effect.reward > 0 or not rise):
            does = f"it pays for {effect.probe}" if rise else f"{effect.probe} moves it"
            if effect.probe != "injection":  # told with the attacks
                yield Said(UNFIT, f"{does} ({effect.reward:+.2f} a turn)", uses)
        elif smallest_p(effect.clusters, len(found.effects)) >= SURE:
            few.append((effect.clusters, uses))
        elif effect.size is not None:
            ends = effect.size_interval or (effect.size, effect.size)
            end = ends[1] if rise else max(ends, key=abs)
            if (end if rise else abs(end)) > MAX_SIZE:
                asks = f"whether it pays for {effect.probe}" if rise else f"whether {effect.probe} moves it"
                yield Said(UNKNOWN, f"{asks}: up to {end:+.2f} standard deviations are possible", uses)
    if few:
        uses = BOTH if any(uses == BOTH for _, uses in few) else ("evaluation",)
        need = dialogues_needed(len(found.effects))
        over = min(n for n, _ in few)
        yield Said(UNKNOWN, f"what moves it: over {over} dialogues no effect shows, {need} are needed", uses)


def _taken_in(found: Findings) -> list[Said]:
    effect, attacks = found.effect("injection"), found.attacks
    if attacks is None:
        return []
    beyond = attacks.worked / attacks.n - attacks.chance
    sure = attacks.interval[0] > attacks.chance
    moved = effect is not None and real(effect) and effect.reward > 0
    if (sure and beyond > MAX_WORKED) or moved:
        return [Said(UNFIT, f"attacks work on it ({attacks.worked} of {attacks.n})")]
    return []


# ---- other judges


def _alone(judge: str, others: Sequence[Agreement]) -> Iterator[Said]:
    """Told where it disagrees with more than half of the others: of two it may be either."""
    for apart_from, as_far_as, measure, least in (
        ("it hardly agrees with", "agreement with", "kappa", MIN_KAPPA),
        ("it orders dialogues otherwise than", "an order of dialogues like that of", "ranks", MIN_RANKS),
    ):
        known = [(o, value) for o in others if (value := getattr(o, measure)) is not None]
        states = [(o, value, _state(o, measure, least)) for o, value in known]
        apart = [s for s in states if s[2] == UNFIT]
        unsure = [s for s in states if s[2] == UNKNOWN]
        if 2 * len(apart) > len(others):
            told = apart
        elif 2 * (len(apart) + len(unsure)) > len(others):
            told = unsure
        else:
            continue
        for other, value, state in told:
            name = "kappa" if measure == "kappa" else "rank correlation"
            words = apart_from if state == UNFIT else as_far_as
            words += f" {other.b if other.a == judge else other.a} ({name} {value:.2f})"
            yield from _against(state, words, f"{least} or more", ("evaluation",))


def _state(pair: Agreement, measure: str, least: float) -> str:
    if measure == "ranks":
        return held(pair.ranks_interval, least, at_most=False)
    ends = ends_of(pair.kappa or 0.0, pair.interval, pair.clusters)
    return held(ends, least, at_most=False)


# ---- what was not measured


def _unmeasured(found: Findings, mapo: Reliability | None) -> Iterator[Said]:
    """Without these there is no verdict."""
    if found.noise is None:
        yield Said(UNKNOWN, "its noise: fewer than two turns were judged twice")
    if mapo is None or mapo.r is None:
        told = "what its noise does to advantages: no two whole dialogues were judged twice"
        yield Said(UNKNOWN, told, ("training",))
    elif not found.siblings:
        told = "its noise among siblings: these runs have none, and unlike dialogues stood in for them"
        yield Said(UNKNOWN, told, ("training",))
    if found.scores is None:
        told = "whether its scores of dialogues are the same again: no three that differ were judged twice"
        yield Said(UNKNOWN, told, ("evaluation",))
    if not found.effects:
        yield Said(UNKNOWN, "what moves it: no probe was answered")


def _unknown(found: Findings, others: Sequence[Agreement]) -> Iterator[Said]:
    """A verdict without these says so."""
    if found.effect("language") is None:
        told = "whether the language moves it: no pairs for this domain, or it cannot read them"
        yield Said(PARTLY, told, ("evaluation",))
    if not others:
        yield Said(PARTLY, "whether another judge agrees: there is no other", ("evaluation",))
    if found.missing:
        yield Said(PARTLY, f"{found.missing} questions: the endpoint failed; --resume asks them again")
