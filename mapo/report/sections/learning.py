"""Training by step: reward and scores, update statistics, dialogue statistics, speed."""

from __future__ import annotations

from collections.abc import Sequence

from mapo.measure.stats import MIN_ROWS
from mapo.report.document import numbers, plots
from mapo.report.document.blocks import Block, Heading
from mapo.report.document.numbers import Point, series
from mapo.runs.training import TrainingRun
from mapo.show.figures import Panel, Picture


def learning(run: TrainingRun) -> list[Block]:
    """Show reward and EPM-Q with intervals, gradient norm, entropy, KL and clip fraction."""
    blocks: list[Block] = []
    panels = learning_panels(run)
    if panels:
        read = len(run.played)
        some = f" ({read} steps sampled evenly)" if 0 < read < len(run.steps) else ""
        caption = (
            "Mean reward per turn; EPM-Q of the training dialogues (line) and of the validation scenarios "
            f"(dots). Bands: 95 % bootstrap intervals over the scenarios of a step{some}; none with fewer "
            f"than {MIN_ROWS} scenarios."
            f"{' Dotted lines: reference scores of the test world.' if run.world else ''}"
        )
        blocks += [Heading("Learning"), Picture("fig_learning_curves", caption, panels)]
    norms = series(run.steps, "grad_norm")
    if norms:
        panel = Panel("Gradient norm", plots.curves({"gradient norm": norms}, "norm, before clipping"))
        update = _panels(
            ("Entropy", "entropy", "nats per token"),
            ("KL from the sampling policy", "kl_old", "nats per token"),
            ("KL from the initial policy", "kl_start", "nats per token"),
            ("Clip fraction", "clip_fraction", "share of tokens"),
            steps=run.steps,
        )
        caption = "Gradient norm, mean over the updates of a step."
        blocks += [Heading("Update"), Picture("fig_gradient_norms", caption, [panel])]
        if update:
            caption = (
                "Entropy of the policy at the sampled tokens; KL divergence from the policy that sampled the "
                "dialogues and from the policy before training; share of tokens whose gradient was clipped."
            )
            blocks.append(Picture("fig_update", caption, update))
    return blocks


def learning_panels(run: TrainingRun) -> list[Panel]:
    reward = series(run.steps, "reward")
    score = series(run.steps, "score")
    held = series(run.steps, "validation", "epm_q")
    panels = []
    if reward:
        line = numbers.with_intervals(reward, numbers.reward_intervals(run.played))
        panels.append(Panel("Reward per turn", plots.curves({"reward": line}, "mean reward")))
    if score or held:
        ends = numbers.score_intervals(run.played, run.root, run.problems)
        lines = {"training": numbers.with_intervals(score, ends)} if score else {}
        dots = {"validation": held} if held else None
        references = plots.references_of(run.world)
        panels.append(
            Panel("EPM-Q", plots.curves(lines, "EPM-Q (points)", points=dots, references=references))
        )
    return panels


def dialogue_statistics(run: TrainingRun) -> list[Block]:
    """Show dialogue lengths, endings and failed judgements."""
    turns = series(run.steps, "turns")
    ends = numbers.endings(run.steps)
    panels = []
    if turns:
        panels.append(Panel("Turns per dialogue", plots.curves({"turns": turns}, "mean turns")))
    panels += _panels(("Tokens per reply", "reply_tokens", "mean tokens"), steps=run.steps)
    if ends:
        shares = plots.stacked(ends, "share of dialogues")
        panels.append(Panel("Endings", shares, above=plots.legend_height(len(ends))))
    unscored = {
        name: line
        for name, key in (("unscored turns", "unscored"), ("truncated replies", "cut"))
        if (line := series(run.steps, key))
    }
    if unscored:
        top = max(p.y for line in unscored.values() for p in line)
        limits = (-0.02 * max(0.05, top), max(0.05, 1.15 * top))
        panels.append(
            Panel(
                "Unscored turns and truncated replies",
                plots.curves(unscored, "share of turns", limits=limits),
            )
        )
    if not panels:
        return []
    caption = (
        "Training dialogues by step. An unscored turn is missing data: it enters no mean and no gradient."
    )
    return [Heading("Training dialogues"), Picture("fig_dialogues", caption, panels)]


def speed(run: TrainingRun) -> list[Block]:
    sampled, trained = series(run.steps, "sampled_per_s"), series(run.steps, "trained_per_s")
    lines = {name: line for name, line in (("sampled", sampled), ("trained on", trained)) if line}
    clock = {
        name: line
        for name, key in (
            ("rollout", "rollout_s"),
            ("policy model in rollout", "model_s"),
            ("update", "update_s"),
        )
        if (line := series(run.steps, key))
    }
    panels = []
    if lines:
        panels.append(
            Panel("Tokens per second", plots.curves(lines, "tokens / s", limits=_from_zero(lines.values())))
        )
    if clock:
        panels.append(
            Panel("Time per step", plots.curves(clock, "seconds", limits=_from_zero(clock.values())))
        )
    caption = "Tokens of the policy only."
    if "policy model in rollout" in clock:
        caption += (
            " The rest of the rollout is spent on user, director and judge, waiting for other processes, and "
            "overhead."
        )
    return [Heading("Speed"), Picture("fig_speed", caption, panels)] if panels else []


def _from_zero(lines: object) -> tuple[float, float]:
    top = max((p.y for line in lines for p in line), default=1.0)  # type: ignore[attr-defined]
    return 0.0, 1.1 * max(top, 1e-9)


def _panels(*wanted: tuple[str, str, str], steps: Sequence[dict[str, object]]) -> list[Panel]:
    """Return a panel for each (title, metric, axis label) that was recorded."""
    found: list[tuple[str, str, list[Point]]] = [(t, label, series(steps, key)) for t, key, label in wanted]
    return [Panel(title, plots.curves({title: line}, label)) for title, label, line in found if line]
