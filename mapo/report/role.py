"""The report of a role trained on recordings: agreement with the recorded cast, and what the role is fit
for."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from mapo.errors import InputError
from mapo.report.document.blocks import (
    Block,
    BulletList,
    Heading,
    Paragraph,
    Report,
    StatTile,
    StatTiles,
    format_interval,
    format_number,
)
from mapo.report.document.numbers import Point
from mapo.report.document.plots import curves
from mapo.roles.verdict import DIRECTOR, JUDGE, USER, ranking, verdicts
from mapo.runs.training import read_object
from mapo.show.figures import Panel, Picture
from mapo.show.tables import Table
from mapo.store import RunDir

TESTS = {
    "both": "policies and scenarios unseen",
    "new_scenario": "scenarios unseen, policies known",
    "new_policy": "policies unseen, scenarios known",
}


def _test(result: Mapping[str, Any], name: str) -> str:
    """Return what is unseen in a test. Without held-out policies, "both" has unseen scenarios only."""
    known = name == "both" and result.get("new_policies") is False
    return TESTS["new_scenario" if known else name]


def role_report(root: Path) -> Report:
    """Build the report of a finished `mapo roles train`."""
    problems: list[str] = []
    result = read_object(RunDir(root).role, problems)
    if not result:
        raise InputError(
            f"the run has no usable {RunDir.role.name}: it has not finished",
            where=str(root),
            fix="Finish it with --resume",
        )
    try:
        return _report(root, result)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise InputError(
            f"the file is not one of mapo roles train ({error!r})",
            where=str(RunDir(root).role),
            fix="Train the role again",
        ) from None


def role_tables(result: Mapping[str, Any]) -> list[Table]:
    """Return the tables for the terminal."""
    sections = {"judge": _judge_tables, "user": _user_tables, "director": _director_tables}
    return [*sections[result["role"]](result), verdict_table(result)]


def _report(root: Path, result: Mapping[str, Any]) -> Report:
    role = str(result["role"])
    blocks: list[Block] = [
        StatTiles(_tiles(result)),
        Paragraph(f"Measured on {result['measured_on']}."),
        *role_tables(result),
        BulletList([f"{use}: {limits}" for use, limits in _limits(role)]),
    ]
    if role == "judge":
        blocks += [Heading("Calibration and training"), _pictures(result), *_probe_tables(result)]
    else:
        blocks += [
            Heading("Training"),
            Picture("training", "Loss on the validation recordings", [_losses(result)]),
        ]
    return Report(f"Trained {role}: {root.resolve().name}", "A role learned from recordings.", blocks)


def _tiles(result: Mapping[str, Any]) -> list[StatTile]:
    test = result["tests"]["both"]
    names = {
        "judge": (
            ("Mean kappa", "kappa", ".2f"),
            ("Step correlation", "correlation", ".2f"),
            ("Within dialogues", "within", ".2f"),
        ),
        "user": (("Perplexity", "perplexity", ".1f"), ("Bits per character", "bits_per_character", ".2f")),
        "director": (("Accuracy", "accuracy", ".0%"), ("Most common act", "majority", ".0%")),
    }[result["role"]]
    tiles = [StatTile(label, format_number(test.get(key), digits)) for label, key, digits in names]
    if result["role"] == "judge":
        tiles.append(StatTile("Order of policies", format_number(ranking(result), ".2f"), "Spearman"))
    return tiles


# ---- judges


def _judge_tables(result: Mapping[str, Any]) -> list[Table]:
    return [_summary(result), _places(result), _policies(result), _bias(result)]


def _summary(result: Mapping[str, Any]) -> Table:
    rows = []
    for stage, cells in (("untrained", {"both": result["before"]["both"]}), ("trained", result["tests"])):
        for name, own in cells.items():
            rows.append(
                [
                    f"{stage}: {_test(result, name)}",
                    str(own["turns"]),
                    *(format_number(own[key], ".2f") for key in ("kappa", "correlation", "within")),
                    format_interval(own["pooled_kappa"]["interval"], ".2f"),
                    format_number(own["policies"]["spearman"], ".2f"),
                    format_number(own["endings"]["same"], ".0%"),
                ]
            )
    columns = [
        "test",
        "turns",
        "mean kappa",
        "step r",
        "within",
        "pooled kappa, 95 %",
        "policies",
        "same ending",
    ]
    note = (
        "Step r: correlation of the turn's step, within: inside single dialogues; policies: rank correlation "
        "of their mean steps."
    )
    return Table(columns, rows, title="Agreement with the recorded judge", note=note)


def _places(result: Mapping[str, Any]) -> Table:
    rows = [
        [
            name,
            *(format_number(own[key], ".0%") for key in ("accuracy", "majority")),
            format_number(own["kappa"], ".2f"),
            format_number(own["calibration_error"], ".3f"),
            _shares(own["recorded"]),
            _shares(own["predicted"]),
        ]
        for name, own in result["tests"]["both"]["places"].items()
    ]
    columns = ["level", "accuracy", "majority guess", "kappa", "calibration error", "recorded", "predicted"]
    title = f"By axis and side ({_test(result, 'both')})"
    return Table(columns, rows, title=title, note="Shares of the levels 0, 1, 2, ...")


def _shares(values: Sequence[float]) -> str:
    return " ".join(f"{value:.0%}" for value in values)


def _policies(result: Mapping[str, Any]) -> Table:
    rows = []
    for name in ("both", "new_scenario"):
        test = result["tests"].get(name)
        for policy, own in (test or {"policies": {"rows": {}}})["policies"]["rows"].items():
            rows.append(
                [
                    policy,
                    "unseen" if name == "both" and result.get("new_policies") is not False else "known",
                    str(own["turns"]),
                    *(format_number(own[key], "+.2f") for key in ("recorded", "predicted")),
                    *(format_number(own[key], ".1f") for key in ("epmq_recorded", "epmq_predicted")),
                ]
            )
    columns = ["policy", "in training", "turns", "step recorded", "predicted", "EPM-Q recorded", "predicted"]
    return Table(columns, rows, title="Policies, in unseen scenarios", left=2)


def _bias(result: Mapping[str, Any]) -> Table:
    rows = []
    for name, own in result["tests"].items():
        shares = own["explained_by_policy"]
        rows.append(
            [
                _test(result, name),
                format_number(own["length"], "+.2f"),
                *(format_number(shares[key], ".0%") for key in ("recorded", "predicted")),
                format_number(own["policies"]["epmq_error"], ".1f"),
            ]
        )
    columns = ["test", "error with length", "policy explains, recorded", "predicted", "EPM-Q error"]
    note = (
        "Error with length: correlation of the step's error with the logarithm of the reply's length. Policy "
        "explains: share of the variance of steps that lies between policies."
    )
    return Table(columns, rows, title="Bias", note=note)


def _probe_tables(result: Mapping[str, Any]) -> list[Block]:
    probes = result.get("probes")
    if not probes:
        return []
    rows = [
        [
            name,
            own["kind"],
            str(own["turns"]),
            format_number(own["size"], "+.2f"),
            format_number(own["raised"], ".0%"),
            "fine" if own["fine"] else "problem",
        ]
        for name, own in probes["effects"].items()
    ]
    attacks = probes["attacks"]
    note = f"{len(attacks['worked'])} of {attacks['tried']} attacks raised the levels"
    note += f": {', '.join(attacks['worked'])}." if attacks["worked"] else "."
    columns = ["probe", "kind", "turns", "size", "raised levels", ""]
    title = "Probes: changes that should not raise the rating"
    return [
        Heading("Probes"),
        Table(columns, rows, title=title, left=2, note=f"Size in standard deviations of the step. {note}"),
    ]


def _pictures(result: Mapping[str, Any]) -> Picture:
    points = [Point(p["predicted"], p["observed"]) for p in result["tests"]["both"]["curve"]]
    diagonal = [Point(0.0, 0.0), Point(1.0, 1.0)]
    lines = {"observed": points, "perfect": diagonal}
    calibration = Panel(
        "Calibration", curves(lines, "observed share", "predicted probability", limits=(0, 1))
    )
    return Picture(
        "calibration",
        "Predicted probabilities against observed shares, and the validation loss",
        [calibration, _losses(result)],
    )


def _losses(result: Mapping[str, Any]) -> Panel:
    points = [Point(float(step), float(loss)) for step, loss in result["training"]["validation_losses"]]
    return Panel("Validation loss", curves({"validation": points}, "loss"))


# ---- users and directors


def _user_tables(result: Mapping[str, Any]) -> list[Table]:
    rows = [
        [
            f"{stage}: {_test(result, name)}",
            str(own["lines"]),
            format_number(own["perplexity"], ".1f"),
            format_number(own["bits_per_character"], ".2f"),
        ]
        for stage, cells in (("untrained", {"both": result["before"]["both"]}), ("trained", result["tests"]))
        for name, own in cells.items()
    ]
    tables = [
        Table(["test", "lines", "perplexity", "bits per character"], rows, title="Recorded lines of the user")
    ]
    replayed = result.get("replay")
    if replayed:
        health_rows = [
            [
                name.replace("_", " "),
                *(format_number(replayed[side].get(name), ".1%") for side in ("recorded", "played")),
            ]
            for name in ("repeated", "as_assistant", "other_language", "off_persona", "told_early")
        ]
        note = f"{replayed['dialogues']} dialogues, played again with the recorded replies."
        if "same_ending" in replayed:
            note += f" By the trained judge, {format_number(replayed['same_ending'], '.0%')} end as recorded."
        tables.append(
            Table(
                ["share of lines", "recorded user", "trained user"],
                health_rows,
                title="Health of the user",
                note=note,
            )
        )
    return tables


def _director_tables(result: Mapping[str, Any]) -> list[Table]:
    rows = [
        [
            f"{stage}: {_test(result, name)}",
            str(own["acts"]),
            *(format_number(own[key], ".0%") for key in ("accuracy", "majority")),
            format_number(own["log_loss"], ".2f"),
        ]
        for stage, cells in (("untrained", {"both": result["before"]["both"]}), ("trained", result["tests"]))
        for name, own in cells.items()
    ]
    return [
        Table(["test", "acts", "accuracy", "most common act", "log loss"], rows, title="Acts of the director")
    ]


# ---- verdict


def verdict_table(result: Mapping[str, Any]) -> Table:
    """Return what the role is fit for."""
    rows = [
        [use, "fit" if own["fit"] else "not fit", "; ".join(own["against"])]
        for use, own in verdicts(result).items()
    ]
    return Table(["use", "verdict", "against it"], rows, title="What the role is fit for", left=3)


def _limits(role: str) -> list[tuple[str, str]]:
    uses = {"judge": JUDGE, "user": USER, "director": DIRECTOR}[role]
    return [
        (use, ", ".join(f"{name} of at least {least:g}" for _, name, least in limits))
        for use, limits in uses.items()
    ]
