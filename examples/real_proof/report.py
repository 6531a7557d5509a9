"""Result files and a page of tables: the primary comparison first, everything else as secondary.

The files have the form of docs/results (scripts/docs_tables.py).
"""

from __future__ import annotations

import json
import runpy
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import background
from measures import (
    MAX_LOST,
    MethodScores,
    agreement,
    agreement_by_step,
    all_pairs,
    complete_tests,
    differences,
    left_out,
    method_scores,
    quality_of,
    read_run,
    rejudged,
    scores_with_zeros,
)
from plan import read_plan
from study import BASE, HERE, Run, Study
from tables import EMPTY_TABLE, Row, Table, add_mean, table, with_interval

from mapo.errors import MapoError
from mapo.evals.compare.comparison import compare
from mapo.report import build, write
from mapo.runs.claim import digest
from mapo.store import RunDir, read_steps, write_atomic

AllScores = Mapping[str, Mapping[str, MethodScores]]
"""Scores by judge and method."""
COMMAND = "python examples/real_proof/proof.py {} --work WORK"


def write_results(study: Study) -> list[str]:
    """Write results/*.json, trainings.html and report.md; return the names of the tables."""
    scores = {judge: method_scores(study, judge) for judge in "ba"}
    tables = (
        ("primary", "Primary comparison", "test", _primary),
        ("methods", "Test", "test", lambda _: methods_table(scores)),
        (
            "differences",
            "Other paired differences",
            "test",
            lambda study: differences_table(scores, read_plan(study).get("comparisons", ())),
        ),
        ("left_out", "Cases left out", "test", _left_out),
        ("quality", "Replies", "quality", _quality),
        ("agreement", "Agreement of the judges over training", "quality", _agreement),
        ("keep", "What the models could do before", "keep", _keep),
        ("pairs", "Blind pairs", "verdicts", _pairs),
        ("judges", "Judges", "judges", background.judges),
        ("people", "User and director", "people", background.people),
        ("tuning", "Learning rates", "tune", background.tuning),
        ("cost", "Cost", "train", background.cost),
    )
    parts, written = ["# MAPO on a real language model"], []
    for name, title, stage, make in tables:
        if text := write_table(study.results / f"{name}.json", COMMAND.format(stage), make(study)):
            parts += [f"## {title}", text]
            written.append(name)
        if name == "primary":
            parts += [*_notes(study), "# Secondary results"]
    if _write_curves(study):
        parts.append("Learning curves: [trainings.html](results/trainings.html)")
    write_atomic(study.work / "report.md", "\n\n".join(parts) + "\n")
    return written


def write_table(file: Path, command: str, content: Table) -> str:
    """Write a result file and return its table as text; without rows, neither."""
    file.unlink(missing_ok=True)
    setup, columns, rows = content
    if not rows:
        return ""
    result = {"command": command, "setup": setup, "columns": columns, "rows": rows}
    write_atomic(file, json.dumps(result, indent=1, ensure_ascii=False, allow_nan=False) + "\n")
    render = runpy.run_path(str(HERE.parents[1] / "scripts" / "docs_tables.py"))["render"]
    return str(render(result)).strip()


def _write_curves(study: Study) -> bool:
    """Write results/trainings.html, the report of `mapo report` on all trainings."""
    folders = {run.name: study.run(run) for run in study.trainings}
    runs = [f"{name}={folder}" for name, folder in folders.items() if RunDir(folder).metrics.exists()]
    try:
        return bool(runs and write(build(runs), study.results / "trainings.html"))
    except MapoError as error:
        print(f"no learning curves: {error}")
        return False


def _notes(study: Study) -> list[str]:
    plan, notes = read_plan(study), []
    if plan:
        notes.append(
            f"Named on {plan['written']}, before the trainings (`plan.json`, {digest(plan)[:12]}). Metric: "
            f"{plan['metric']}. Test: {plan['test']}. Correction: {plan['correction']}; level "
            f"{plan['level']:g}. Everything below is secondary."
        )
        cases, missing = plan["cases"]["count"], left_out(study, among=plan["runs"])
        notes.append(
            f"Left out: {len(missing)} of {cases} cases, for all methods and seeds alike, because a test of "
            "these comparisons could not play them (see below)."
            if missing
            else f"Left out: none of {cases} cases."
        )
        if _has_failed(study, plan):
            notes.append(
                f"The primary comparison has failed: its tests together could not play {len(missing)} of "
                f"{cases} cases, more than {MAX_LOST:.0%}. It has no p values."
            )
    complete = complete_tests(study)
    if waiting := [run.name for run in study.tested if run not in complete]:
        notes.append(f"Not tested, or lost too many cases, so not in any table: {', '.join(waiting)}.")
    notes.append(
        f"Policy: {Path(study.inputs.model).name}. Training judge: A. Test judge: B. The two learned from "
        "different policies' recordings, with different seeds. Tests are played under B, whose levels also "
        "steer the director and end the dialogues. A's scores are of the same dialogues, judged again: a "
        "dialogue that A would have continued counts as not passed, so read A's scores for their order and "
        "differences, not for passes."
    )
    return notes


def _waiting(study: Study, plan: Mapping[str, Any]) -> list[str]:
    """Return the runs of the primary comparison that have no complete test."""
    tested = {run.name for run in complete_tests(study)}
    return [name for name in plan["runs"] if name not in tested]


def _has_failed(study: Study, plan: Mapping[str, Any]) -> bool:
    """Return whether the tests of the primary comparison, all complete, lost too many cases together."""
    lost = left_out(study, among=plan["runs"])
    return not _waiting(study, plan) and len(lost) > MAX_LOST * plan["cases"]["count"]


def _primary(study: Study) -> Table:
    """Return the table of the plan. It depends on the runs in the plan alone: what other tests lost must not
    change it."""
    plan = read_plan(study)
    if not plan:
        return EMPTY_TABLE
    runs, waiting = plan["runs"], _waiting(study, plan)
    pairs = [(a, b) for a, _, b in (text.partition(" - ") for text in plan["comparisons"])]
    zeros = differences(scores_with_zeros(study, runs), pairs) if left_out(study, among=runs) else []
    with_zeros = {found["difference"]: found["p_holm"] for found in zeros}
    rows = []
    for found in differences(method_scores(study, "b", runs), pairs):
        row = primary_row(found, plan["level"], waiting, _has_failed(study, plan))
        if "p" in row:
            row["zeros"] = with_zeros.get(found["difference"])
        rows.append(row)
    return table("Paired by case and seed; 95 % bootstrap over cases and seeds.", PRIMARY_COLUMNS, rows)


PRIMARY_COLUMNS = {
    "comparison": "{difference}",
    **with_interval("EPM-Q, judge B", "mean", "+.1f"),
    "seeds": "{seeds}",
    "cases": "{cases}",
    "p": "{p:.3f}",
    "p (Holm)": "{p_holm:.3f}",
    "p (Holm), left out as 0": "{zeros:.3f}",
    "p (t over seeds)": "{p_seeds:.3f}",
    "verdict": "{verdict}",
}


def primary_row(found: Row, level: float, waiting: Sequence[str], failed: bool) -> Row:
    """Return the row of a planned comparison. Only a complete one that has not failed gets p values."""
    row = {key: found[key] for key in ("difference", "seeds", "cases")}
    add_mean(row, "mean", found)
    if waiting:
        return {**row, "verdict": f"not complete: {', '.join(waiting)}"}
    if failed:
        return {**row, "verdict": "failed: too many cases are lost"}
    row |= {key: found[key] for key in ("p", "p_holm", "p_seeds")}
    sure = found["p_holm"] is not None and found["p_holm"] < level
    return {**row, "verdict": ("higher" if found["mean"] > 0 else "lower") if sure else "undecided"}


def _left_out(study: Study) -> Table:
    """Return a table of the cases that count for no method."""
    planned = set(read_plan(study).get("runs", ()))
    rows = [
        {
            "judge": judge.upper(),
            "case": case,
            "runs": ", ".join(runs),
            "primary": "left out" if judge == "b" and planned & set(runs) else None,
        }
        for judge in "ba"
        for case, runs in left_out(study, judge).items()
    ]
    columns = {
        "judge": "{judge}",
        "case": "{case}",
        "missing in": "{runs}",
        "primary comparison": "{primary}",
    }
    setup = (
        "Cases without a judged dialogue in one of the tests. They count for no method and seed in "
        "the secondary tables of this judge, so that all methods are compared on the same cases. The primary "
        "comparison leaves out only those that one of its own tests lost."
    )
    return table(setup, columns, rows)


def methods_table(scores: AllScores) -> Table:
    rows = []
    for name, own in scores["b"].items():
        passes, n = own.passes
        row: Row = {"method": name, "seeds": len(own.seeds), "passes": f"{passes}/{n}"}
        low, high = own.passes_interval
        row |= {"passes_low": 100 * low, "passes_high": 100 * high}
        add_mean(row, "b", {"mean": own.mean, "interval": own.interval})
        if again := scores["a"].get(name):
            add_mean(row, "a", {"mean": again.mean, "interval": again.interval})
        rows.append(row)
    columns = {
        "method": "{method}",
        "seeds": "{seeds}",
        **with_interval("EPM-Q, judge B", "b", ".1f"),
        "passed": "{passes}",
        "95 %, passed": "{passes_low:.0f} to {passes_high:.0f} %",
        **with_interval("EPM-Q, judge A", "a", ".1f"),
    }
    return table(
        "Test scenarios, played under judge B; A judged the same dialogues again. 95 % bootstrap over cases, "
        "and over seeds where there are several; passes: Wilson over cases.",
        columns,
        rows,
    )


def differences_table(scores: AllScores, primary: Sequence[str]) -> Table:
    """Return all differences but the primary ones, which are tested under judge B."""
    rows = []
    for judge, methods in scores.items():
        pairs = [p for p in all_pairs(methods) if judge == "a" or " - ".join(p) not in primary]
        for found in differences(methods, pairs):
            row = {key: found[key] for key in ("difference", "seeds", "cases", "p", "p_holm", "p_seeds")}
            row["judge"] = judge.upper()
            add_mean(row, "mean", found)
            rows.append(row)
    columns = {
        "judge": "{judge}",
        "difference": "{difference}",
        **with_interval("EPM-Q", "mean", "+.1f"),
        "seeds": "{seeds}",
        "cases": "{cases}",
        "p": "{p:.3f}",
        "p (Holm)": "{p_holm:.3f}",
        "p (t over seeds)": "{p_seeds:.3f}",
    }
    return table(
        "Paired by case and seed. Intervals: 95 % bootstrap over cases, and over seeds where several are "
        "shared. p: sign-flip test over cases; Holm: over the rows of a judge.",
        columns,
        rows,
    )


def _quality(study: Study) -> Table:
    rows = []
    for method in (BASE, *study.settings.methods):
        runs = [run for run in study.tested if run.method == method]
        if (found := quality_of(study, runs)) is None:
            continue
        row: Row = {
            "method": method,
            "turns": found["turns"],
            "shared_replies": 100 * found["shared_replies"],
        }
        for name in ("tokens", "distinct_2", "fluency", "kl"):
            add_mean(row, name, found[name])
        for name in ("cut", "repeated_replies", "repeated_sentences"):
            row[name] = None if found[name] is None else 100 * found[name]["mean"]
        test = [agreement(read_run(study.test(r)), _again(study, r)) for r in runs]
        kappas = [x["kappa"] for x in test if x and x["kappa"] is not None]
        row["kappa"] = sum(kappas) / len(kappas) if kappas else None
        rows.append(row)
    columns = {
        "method": "{method}",
        "turns": "{turns:.1f}",
        **with_interval("tokens per reply", "tokens", ".0f"),
        "cut": "{cut:.1f} %",
        **with_interval("distinct bigrams", "distinct_2", ".2f"),
        "replies repeated in a dialogue": "{repeated_replies:.1f} %",
        "sentences repeated": "{repeated_sentences:.1f} %",
        "replies in several places": "{shared_replies:.1f} %",
        **with_interval("fluency", "fluency", ".2f"),
        **with_interval("KL from the start", "kl", ".3f"),
        "kappa of A and B": "{kappa:.2f}",
    }
    setup = (
        "Replies in the test. Fluency: mean log-probability per token under the untouched base model; KL: "
        "mean log-ratio of policy and base model, per token. Means over cases, 95 % bootstrap."
    )
    return table(setup, columns, rows)


def _again(study: Study, run: Any) -> Sequence[Any]:
    folder = rejudged(study.test_a, run.name)
    return read_run(folder) if folder else []


def _agreement(study: Study) -> Table:
    rows = []
    for run in (Run(BASE, 0), *study.trainings):
        kl = {s["step"]: s.get("kl_start") for s in read_steps(RunDir(study.run(run)).metrics)}
        for found in agreement_by_step(study, run):
            row: Row = {"run": run.name, "step": found["step"], "turns": found["turns"]}
            add_mean(row, "kappa", {"mean": found["kappa"], "interval": found["interval"]})
            row |= {"a": found["epm_q_a"], "b": found["epm_q_b"], "kl": kl.get(found["step"])}
            rows.append(row)
    columns = {
        "run": "{run}",
        "step": "{step}",
        "turns": "{turns}",
        **with_interval("kappa of A and B", "kappa", ".2f"),
        "EPM-Q, A": "{a:.1f}",
        "EPM-Q, B": "{b:.1f}",
        "KL from the start": "{kl:.3f}",
    }
    setup = (
        "Validation dialogues, played under A and judged again by B; base: those in which user and director "
        "were chosen. Falling agreement, or A rising alone, is what gaming A looks like."
    )
    return table(setup, columns, rows)


def _keep(study: Study) -> Table:
    runs = [
        f"{run.method if run.method == BASE else run.name}={folder}"
        for run in (Run(BASE, 0), *study.trainings)
        for name in ("emobench", "eqbench")
        if RunDir(folder := study.kept(run, name)).result.exists()
    ]
    if not runs:
        return EMPTY_TABLE
    try:
        found = compare(runs)
    except MapoError as error:
        print(f"keep: {error}")
        return EMPTY_TABLE
    rows = []
    for (model, label), entry in found.cells.items():
        row: Row = {"model": model, "score": f"{entry.benchmark}, {label}", "n": f"{entry.n}/{entry.of}"}
        row["value"] = entry.value
        if (difference := found.difference(model, label)) is not None:
            add_mean(row, "difference", {"mean": difference.mean, "interval": difference.interval})
            row |= {"p": difference.p, "p_holm": difference.p_holm}
        rows.append(row)
    columns = {
        "model": "{model}",
        "score": "{score}",
        "items": "{n}",
        "points": "{value:.1f}",
        **with_interval("difference from base", "difference", "+.1f"),
        "p": "{p:.3f}",
        "p (Holm)": "{p_holm:.3f}",
    }
    return table("`mapo compare`: paired by item, 95 % bootstrap, sign-flip test.", columns, rows)


def _pairs(study: Study) -> Table:
    file = study.work / "pairs_counts.json"
    if not file.exists():
        return EMPTY_TABLE
    found = json.loads(file.read_text("utf-8"))
    row: Row = {
        **{k: found[k] for k in ("trained", "base", "tie", "p")},
        "read": f"{found['read']}/{found['of']}",
    }
    row |= {"model": found["models"]["trained"], "first": found["first_preferred"]}
    share = None if found["share"] is None else {"mean": found["share"], "interval": found["interval"]}
    add_mean(row, "share", share)
    columns = {
        "trained model": "{model}",
        "pairs read": "{read}",
        "trained preferred": "{trained}",
        "base preferred": "{base}",
        "tie": "{tie}",
        **with_interval("share of decided", "share", ".2f"),
        "p (sign test)": "{p:.3f}",
        "first preferred": "{first}",
    }
    return table("Read blind, by the rubric in pairs/README.md. Wilson interval.", columns, [row])
