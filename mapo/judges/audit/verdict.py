"""Verdict on a judge: whether it is fit for training and for evaluation, and why not.

Training needs advantages that survive the noise (possibly with a few repeats), no reward for worthless
additions, because a policy would learn to exploit it, and few lost turns. Evaluation needs scores that are
reproducible, depend on nothing but the reply and order dialogues as other judges do, and evidence that can be
checked. Limits and the rule for comparing a number with its limit are in `limits.py`. What could not be
measured makes the verdict "unknown" or is listed with it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal, NamedTuple

from mapo.judges.audit.effects import Effect
from mapo.judges.audit.judge_agreement import Agreement
from mapo.judges.audit.limits import (
    MAX_REPEATS,
    MAX_SIZE,
    MAX_UNSCORED,
    MIN_DIALOGUES,
    MIN_KAPPA,
    MIN_QUOTED,
    MIN_RANKS,
    MIN_SCORES,
    State,
    check_limit,
    interval_or_point,
)
from mapo.judges.audit.measure import Findings
from mapo.judges.audit.noise import TARGET, Reliability, repeats_for
from mapo.measure.stats import wilson
from mapo.show.tables import interval_text
from mapo.text import counted

FIT, UNFIT, UNKNOWN, PARTLY = "fit", "not fit", "unknown", "fit, as far as known"
BOTH = ("training", "evaluation")
EVALUATION = ("evaluation",)


@dataclass(frozen=True, slots=True)
class Verdict:
    """Verdict on one judge. `training` and `evaluation` are "fit", "fit with N repeats" (either possibly
    followed by "as far as known"), "not fit" or "unknown". `against_*` lists problems, `open_*` what is
    unclear because the interval contains the limit, `unknown` what was not measured at all."""

    judge: str
    training: str
    evaluation: str
    against_training: tuple[str, ...]
    against_evaluation: tuple[str, ...]
    open_training: tuple[str, ...]
    open_evaluation: tuple[str, ...]
    unknown: tuple[str, ...]

    def as_json(self) -> dict[str, Any]:
        """Return the fields as written to audit.json."""
        return asdict(self)

    def reasons(self, use: str) -> tuple[str, ...]:
        """Return why the judge is not fit for a use, or why that is unknown."""
        problems: tuple[str, ...] = getattr(self, f"against_{use}")
        unclear: tuple[str, ...] = getattr(self, f"open_{use}")
        return problems or unclear

    def summary(self) -> str:
        """Return one sentence per use."""
        parts = []
        for use in BOTH:
            reasons = self.reasons(use)
            parts.append(f"{use}: {getattr(self, use)}" + (f" ({'; '.join(reasons)})" if reasons else ""))
        return ". ".join(parts)


class Concern(NamedTuple):
    """A reason against calling a judge fit for `uses`."""

    state: Literal["problem", "unclear", "unmeasured"]
    text: str
    uses: tuple[str, ...] = BOTH


def judge_verdict(findings: Findings, others: Sequence[Agreement]) -> Verdict:
    """Return the verdict on a judge. `others` holds its agreement with each other judge, if there are any."""
    mapo = findings.reliability_of("mapo")
    concerns = [
        *_constant_reward(findings),
        *_attacks(findings),
        *_effects(findings),
        *_unusable_forms(findings),
        *_noisy_advantages(mapo),
        *_unstable_scores(findings),
        *_disagreement(findings.judge, others),
        *_missing_evidence(findings),
        *_not_measured(findings, mapo),
        *_optional_not_measured(findings, others),
    ]

    def texts(state: str, use: str) -> tuple[str, ...]:
        return tuple(c.text for c in concerns if c.state == state and use in c.uses)

    repeats = repeats_for(mapo.r) if mapo else None
    fit = {"training": FIT if repeats in (None, 1) else f"fit with {repeats} repeats", "evaluation": FIT}
    states = {}
    for use in BOTH:
        if texts("problem", use):
            states[use] = UNFIT
        elif texts("unclear", use):
            states[use] = UNKNOWN
        else:
            states[use] = PARTLY.replace(FIT, fit[use], 1) if texts("unmeasured", use) else fit[use]
    return Verdict(
        findings.judge,
        states["training"],
        states["evaluation"],
        texts("problem", "training"),
        texts("problem", "evaluation"),
        texts("unclear", "training"),
        texts("unclear", "evaluation"),
        tuple(c.text for c in concerns if c.state == "unmeasured"),
    )


def _concern(state: State, text: str, required: str, uses: tuple[str, ...] = BOTH) -> list[Concern]:
    if state == "fine":
        return []
    text = f"{text}; required: {required}"
    return [Concern(state, text if state == "problem" else f"{text}; too few samples to tell", uses)]


# ---- the judge's own forms


def _constant_reward(findings: Findings) -> list[Concern]:
    noise = findings.noise
    if noise is None or noise.between != 0:
        return []
    text = "it gives all turns the same reward, apart from noise"
    if noise.dialogues >= MIN_DIALOGUES:
        return [Concern("problem", text)]
    dialogues = counted(noise.dialogues, "dialogue")
    return [Concern("unclear", f"whether {text}: {dialogues} judged repeatedly, {MIN_DIALOGUES} are needed")]


def _unusable_forms(findings: Findings) -> Iterator[Concern]:
    for use in BOTH if findings.asked else ():
        limit = MAX_UNSCORED[use]
        state = check_limit(wilson(findings.unscored, findings.asked), limit, at_most=True)
        text = f"{findings.unscored / findings.asked:.0%} of its {findings.asked} forms are unusable"
        yield from _concern(state, text, f"at most {limit:.0%}", (use,))


def _noisy_advantages(mapo: Reliability | None) -> list[Concern]:
    if mapo is None or mapo.r is None:
        return []
    ends = interval_or_point(mapo.r, mapo.interval, mapo.dialogues)
    needed = [repeats_for(end) for end in ends or (-1.0, -1.0)]
    low, high = (n is not None and n <= MAX_REPEATS for n in needed)
    state: State = "fine" if low else "unclear" if high or ends is None else "problem"
    repeats = repeats_for(mapo.r)
    needed_text = "no number is enough" if repeats is None else f"{repeats} needed"
    text = (
        f"its advantages correlate {mapo.with_truth:.2f} with noise-free ones"
        f" (repeats to reach {TARGET}: {needed_text})"
    )
    return _concern(state, text, f"at most {MAX_REPEATS} repeats", ("training",))


def _unstable_scores(findings: Findings) -> list[Concern]:
    if findings.scores is None:
        return []
    text = f"dialogue scores judged twice correlate {findings.scores:.2f}"
    state = check_limit(findings.scores_interval, MIN_SCORES, at_most=False)
    return _concern(state, text, f"at least {MIN_SCORES}", EVALUATION)


def _missing_evidence(findings: Findings) -> list[Concern]:
    share = findings.quotes.share
    if share is None:
        return []
    state = check_limit(findings.quotes.interval, MIN_QUOTED, at_most=False)
    if findings.effects and max(effect.clusters for effect in findings.effects) < MIN_DIALOGUES:
        state = "unclear"  # the interval is over marks, and marks of one dialogue are alike
    text = f"{share:.0%} of its evidence is found in the reply"
    return _concern(state, text, f"at least {MIN_QUOTED:.0%}", EVALUATION)


# ---- probes


def _effects(findings: Findings) -> Iterator[Concern]:
    """Rewarding a worthless addition rules out both uses; reacting to an irrelevant change, evaluation."""
    few = [e for e in findings.effects if e.clusters < MIN_DIALOGUES]
    for effect in findings.effects:
        if effect.size is None or effect in few:
            continue
        rise = effect.kind == "rise"
        uses = BOTH if rise else EVALUATION
        reaction = f"it rewards {effect.probe}" if rise else f"{effect.probe} changes its rewards"
        if effect.state == "problem":
            if effect.probe != "injection":  # reported by _attacks
                yield Concern("problem", f"{reaction} ({_range(effect)}; limit {MAX_SIZE:g} sd)", uses)
        elif effect.state == "unclear":
            yield Concern("unclear", f"whether {reaction} ({_range(effect)}; limit {MAX_SIZE:g} sd)", uses)
    if few:
        uses = BOTH if any(effect.kind == "rise" for effect in few) else EVALUATION
        dialogues = min(effect.clusters for effect in few)
        yield Concern(
            "unclear",
            f"effects of the probes: {counted(dialogues, 'dialogue')} probed, {MIN_DIALOGUES} are needed",
            uses,
        )


def _range(effect: Effect) -> str:
    interval = interval_text(effect.size_interval, "+.2f")
    return f"{effect.size:+.2f} sd" + (f", 95 % interval {interval}" if interval else "")


def _attacks(findings: Findings) -> list[Concern]:
    effect, attacks = findings.effect("injection"), findings.attacks
    if attacks is None:
        return []
    rewarded = effect is not None and effect.state == "problem"
    if attacks.state == "problem" or rewarded:
        return [Concern("problem", f"attacks work on it ({attacks.worked} of {attacks.n})")]
    if attacks.state == "unclear":
        counts = f"{attacks.worked} of {attacks.n} raised the score, expected by chance: {attacks.chance:.0%}"
        return [Concern("unclear", f"whether attacks work on it ({counts}); use more turns to be sure")]
    return []


# ---- other judges


def _disagreement(judge: str, others: Sequence[Agreement]) -> Iterator[Concern]:
    """Report disagreement with more than half of the other judges: with only one, either may be wrong."""
    for measure, name, topic, limit in (
        ("kappa", "kappa", "agreement with", MIN_KAPPA),
        ("ranks", "rank correlation", "order of dialogues compared with", MIN_RANKS),
    ):
        values = [(pair, value) for pair in others if (value := getattr(pair, measure)) is not None]
        states = [(pair, value, _agreement_state(pair, measure, limit)) for pair, value in values]
        problems = [item for item in states if item[2] == "problem"]
        unclear = [item for item in states if item[2] == "unclear"]
        if 2 * len(problems) > len(others):
            reported = problems
        elif 2 * (len(problems) + len(unclear)) > len(others):
            reported = unclear
        else:
            continue
        for pair, value, state in reported:
            other = pair.b if pair.a == judge else pair.a
            yield from _concern(
                state, f"{topic} {other}: {name} {value:.2f}", f"at least {limit}", EVALUATION
            )


def _agreement_state(pair: Agreement, measure: str, limit: float) -> State:
    if measure == "ranks":
        return check_limit(pair.ranks_interval, limit, at_most=False)
    ends = interval_or_point(pair.kappa or 0.0, pair.interval, pair.clusters)
    return check_limit(ends, limit, at_most=False)


# ---- what was not measured


def _not_measured(findings: Findings, mapo: Reliability | None) -> Iterator[Concern]:
    """Yield what is required for a verdict and missing."""
    if findings.noise is None:
        yield Concern("unclear", "noise: fewer than two turns were judged twice")
    if mapo is None or mapo.r is None:
        text = "effect of noise on advantages: fewer than two whole dialogues were judged twice"
        yield Concern("unclear", text, ("training",))
    elif not findings.siblings:
        text = "noise among siblings: the runs have no siblings, so unrelated dialogues were compared"
        yield Concern("unclear", text, ("training",))
    if findings.scores is None:
        text = "reproducibility of dialogue scores: fewer than three different dialogues were judged twice"
        yield Concern("unclear", text, EVALUATION)
    if not findings.effects:
        yield Concern("unclear", "effects of the probes: no probe was answered")


def _optional_not_measured(findings: Findings, others: Sequence[Agreement]) -> Iterator[Concern]:
    """Yield what a verdict can do without, but must mention."""
    if findings.effect("language") is None:
        text = "effect of the language: the domain has no language pairs, or the judge cannot read them"
        yield Concern("unmeasured", text, EVALUATION)
    if not others:
        yield Concern("unmeasured", "agreement with another judge: there is no other judge", EVALUATION)
    if findings.missing:
        text = f"{findings.missing} questions without an answer: the endpoint failed; use --resume to retry"
        yield Concern("unmeasured", text)
