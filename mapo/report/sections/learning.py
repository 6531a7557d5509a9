"""How a training went, step by step: scores, the update's own measures, the dialogues, the speed."""

from __future__ import annotations

from collections.abc import Sequence

from mapo.report.document import numbers, plots
from mapo.report.document.blocks import Block, Heading
from mapo.report.document.numbers import Point, series
from mapo.runs.training import Training
from mapo.show.figures import Panel, Picture


def learning(run: Training) -> list[Block]:
    """Reward and EPM-Q with intervals; gradient norm; entropy, KL, clip fraction."""
    blocks: list[Block] = []
    panels = learning_panels(run)
    if panels:
        read = len(run.played)
        some = f" (of {read} steps, spread over the run)" if 0 < read < len(run.steps) else ""
        caption = (
            "The mean reward of a turn; EPM-Q of the training dialogues and, as dots, of the validation "
            f"scenarios. Bands: 95 % bootstrap over the dialogues of a step{some}."
        )
        blocks += [Heading("Learning"), Picture("fig_learning_curves", caption, panels)]
    norms = series(run.steps, "grad_norm")
    if norms:
        panel = Panel("Gradient norm", plots.curves({"gradient norm": norms}, "norm, before clipping"))
        update = _panels(
            ("Entropy", "entropy", "nats a token"),
            ("KL from the policy that played", "kl_old", "nats a token"),
            ("Distance from the start", "kl_start", "nats a token"),
            ("Clip fraction", "clip_fraction", "share of tokens"),
            steps=run.steps,
        )
        caption = "The norm of the gradient, mean over the updates of a step."
        blocks += [Heading("The update"), Picture("fig_gradient_norms", caption, [panel])]
        if update:
            caption = (
                "Entropy of the policy at the tokens it sampled; how far an update carried it from the "
                "policy that played the dialogues, and from where training began; tokens whose gradient "
                "was clipped away."
            )
            blocks.append(Picture("fig_update", caption, update))
    return blocks


def learning_panels(run: Training) -> list[Panel]:
    reward = series(run.steps, "reward")
    score = series(run.steps, "score")
    held = series(run.steps, "validation", "epm_q")
    panels = []
    if reward:
        line = numbers.with_intervals(reward, numbers.reward_intervals(run.played))
        panels.append(Panel("Reward of a turn", plots.curves({"reward": line}, "mean reward")))
    if score or held:
        ends = numbers.score_intervals(run.played, run.root, run.problems)
        lines = {"training": numbers.with_intervals(score, ends)} if score else {}
        dots = {"validation": held} if held else None
        panels.append(Panel("EPM-Q", plots.curves(lines, "EPM-Q (points)", points=dots)))
    return panels


def play(run: Training) -> list[Block]:
    """Lengths, endings, and what the judge failed on."""
    turns = series(run.steps, "turns")
    ends = numbers.endings(run.steps)
    panels = []
    if turns:
        panels.append(Panel("Turns a dialogue", plots.curves({"turns": turns}, "mean turns")))
    panels += _panels(("Tokens a reply", "reply_tokens", "mean tokens"), steps=run.steps)
    if ends:
        shares = plots.stacked(ends, "share of dialogues")
        panels.append(Panel("How dialogues ended", shares, above=plots.room_above(len(ends))))
    unscored = {
        name: line
        for name, key in (("turns without a judgement", "unscored"), ("replies cut off", "cut"))
        if (line := series(run.steps, key))
    }
    if unscored:
        top = max(p.y for line in unscored.values() for p in line)
        limits = (-0.02 * max(0.05, top), max(0.05, 1.15 * top))
        panels.append(Panel("Unscored and cut off", plots.curves(unscored, "share of turns", limits=limits)))
    if not panels:
        return []
    caption = (
        "Training dialogues by step. A turn the judge failed on is missing data: in no mean, in no gradient."
    )
    return [Heading("The dialogues"), Picture("fig_dialogues", caption, panels)]


def speed(run: Training) -> list[Block]:
    sampled, trained = series(run.steps, "sampled_per_s"), series(run.steps, "trained_per_s")
    lines = {name: line for name, line in (("sampled", sampled), ("trained on", trained)) if line}
    clock = {
        name: line
        for name, key in (
            ("playing", "rollout_s"),
            ("its model at work", "model_s"),
            ("updating", "update_s"),
        )
        if (line := series(run.steps, key))
    }
    panels = []
    if lines:
        panels.append(
            Panel("Tokens a second", plots.curves(lines, "tokens / s", limits=_from_zero(lines.values())))
        )
    if clock:
        panels.append(
            Panel("Time of a step", plots.curves(clock, "seconds", limits=_from_zero(clock.values())))
        )
    caption = "The policy's own tokens."
    if "its model at work" in clock:
        caption += (
            " What playing takes beyond its model's work goes to user, director and judge, to waiting for "
            "other processes, and to the loop itself."
        )
    return [Heading("Speed"), Picture("fig_speed", caption, panels)] if panels else []


def _from_zero(lines: object) -> tuple[float, float]:
    top = max((p.y for line in lines for p in line), default=1.0)  # type: ignore[attr-defined]
    return 0.0, 1.1 * max(top, 1e-9)


def _panels(*wanted: tuple[str, str, str], steps: Sequence[dict[str, object]]) -> list[Panel]:
    """A panel for each (title, metric, label) that was recorded."""
    found: list[tuple[str, str, list[Point]]] = [(t, label, series(steps, key)) for t, key, label in wanted]
    return [Panel(title, plots.curves({title: line}, label)) for title, label, line in found if line]
