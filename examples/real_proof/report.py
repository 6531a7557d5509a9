"""Result files and a page of tables: the primary comparison first, everything else as secondary.

The files have the form of docs/results (scripts/docs_tables.py).
"""

from __future__ import annotations

import json
import runpy
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from costs import training_costs
from measures import (
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

from mapo.errors import MapoError
from mapo.evals.compare.comparison import compare
from mapo.report import build, write
from mapo.runs.claim import digest
from mapo.store import RunDir, read_steps, write_atomic

Row = dict[str, Any]
Table = tuple[str, dict[str, str], list[Row]]
"""What a table is about, its columns (title and format), and its rows."""
AllScores = Mapping[str, Mapping[str, MethodScores]]
"""Scores by judge and method."""
NOTHING: Table = "", {}, []
COMMAND = "python examples/real_proof/proof.py {} --work WORK"


def write_results(study: Study) -> list[str]:
    """Write results/*.json, trainings.html and report.md; return the names of the tables."""
    scores = {judge: method_scores(study, judge) for judge in "ba"}
    tables = (
        ("primary", "Primary comparison", "test", partial(_primary, scores=scores)),
        ("methods", "Test", "test", partial(_methods, scores=scores)),
        ("differences", "Other paired differences", "test", partial(_differences, scores=scores)),
        ("left_out", "Cases left out", "test", _left_out),
        ("quality", "Replies", "quality", _quality),
        ("agreement", "Agreement of the judges over training", "quality", _agreement),
        ("keep", "What the models could do before", "keep", _keep),
        ("pairs", "Blind pairs", "verdicts", _pairs),
        ("judges", "Judges", "judges", _judges),
        ("people", "User and director", "people", _people),
        ("tuning", "Learning rates", "tune", _tuning),
        ("cost", "Cost", "train", _cost),
    )
    render = runpy.run_path(str(HERE.parents[1] / "scripts" / "docs_tables.py"))["render"]
    parts, written = ["# MAPO on a real language model"], []
    for name, title, stage, make in tables:
        file = study.results / f"{name}.json"
        file.unlink(missing_ok=True)
        setup, columns, rows = make(study)
        if rows:
            table = {"command": COMMAND.format(stage), "setup": setup, "columns": columns, "rows": rows}
            _write(file, table)
            written.append(name)
        if rows or name == "primary":
            parts += [f"## {title}", *([render(table).strip()] if rows else [])]
        if name == "primary":
            parts += [*_notes(study), "# Secondary results"]
    runs = [f"{run.name}={folder}" for run in study.trainings if (folder := study.run(run)).exists()]
    if runs:
        write(build(runs), study.results / "trainings.html")
        parts.append("Learning curves: [trainings.html](results/trainings.html)")
    write_atomic(study.work / "report.md", "\n\n".join(parts) + "\n")
    return written


def _write(path: Path, data: Any) -> None:
    write_atomic(path, json.dumps(data, indent=1, ensure_ascii=False, allow_nan=False) + "\n")


def _notes(study: Study) -> list[str]:
    plan, missing = read_plan(study), left_out(study)
    notes = []
    if plan:
        notes.append(
            f"Named on {plan['written']}, before the trainings (`plan.json`, {digest(plan)[:12]}). Metric: "
            f"{plan['metric']}. Test: {plan['test']}. Correction: {plan['correction']}; level "
            f"{plan['level']:g}. Everything below is secondary."
        )
        cases = plan["cases"]["count"]
        notes.append(
            f"Left out: {len(missing)} of {cases} cases, for all methods and seeds alike, because a test "
            "could not play them (see below)."
            if missing
            else f"Left out: none of {cases} cases."
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


def _flat(row: Row, name: str, value: dict[str, Any] | None) -> None:
    """Add a mean and its interval to a row, as far as there are any."""
    if value is None:
        return
    row[name] = value["mean"]
    if value["interval"] is not None:
        row[f"{name}_low"], row[f"{name}_high"] = value["interval"]


def _with_interval(title: str, name: str, digits: str) -> dict[str, str]:
    """Return the columns of a mean and of its interval, which some rows lack."""
    return {
        title: f"{{{name}:{digits}}}",
        f"95 %, {title}": f"{{{name}_low:{digits}}} to {{{name}_high:{digits}}}",
    }


def _table(setup: str, columns: dict[str, str], rows: list[Row]) -> Table:
    """Return a table without missing values, and without the columns that no row can fill."""
    kept = [{key: value for key, value in row.items() if value is not None} for row in rows]
    shown = {title: form for title, form in columns.items() if any(_fits(form, row) for row in kept)}
    return setup, shown, kept


def _fits(form: str, row: Row) -> bool:
    try:
        form.format_map(row)
    except KeyError:
        return False
    return True


def _primary(study: Study, scores: AllScores) -> Table:
    plan = read_plan(study)
    if not plan:
        return NOTHING
    tested = {run.name for run in complete_tests(study)}
    waiting = [name for name in plan["runs"] if name not in tested]
    pairs = [(a, b) for a, _, b in (text.partition(" - ") for text in plan["comparisons"])]
    zeros = differences(scores_with_zeros(study), pairs) if left_out(study) else []
    with_zeros = {found["difference"]: found["p_holm"] for found in zeros}
    rows = []
    for found in differences(scores["b"], pairs):
        row = {key: found[key] for key in ("difference", "seeds", "cases")}
        _flat(row, "mean", found)
        if waiting:
            row["verdict"] = f"not complete: {', '.join(waiting)}"
        else:
            row |= {key: found[key] for key in ("p", "p_holm", "p_seeds")}
            row["zeros"] = with_zeros.get(found["difference"])
            sure = found["p_holm"] is not None and found["p_holm"] < plan["level"]
            row["verdict"] = ("higher" if found["mean"] > 0 else "lower") if sure else "undecided"
        rows.append(row)
    columns = {
        "comparison": "{difference}",
        **_with_interval("EPM-Q, judge B", "mean", "+.1f"),
        "seeds": "{seeds}",
        "cases": "{cases}",
        "p": "{p:.3f}",
        "p (Holm)": "{p_holm:.3f}",
        "p (Holm), left out as 0": "{zeros:.3f}",
        "p (t over seeds)": "{p_seeds:.3f}",
        "verdict": "{verdict}",
    }
    return _table("Paired by case and seed; 95 % bootstrap over cases and seeds.", columns, rows)


def _left_out(study: Study) -> Table:
    """Return a table of the cases that count for no method."""
    rows = [
        {"judge": judge.upper(), "case": case, "runs": ", ".join(runs)}
        for judge in "ba"
        for case, runs in left_out(study, judge).items()
    ]
    columns = {"judge": "{judge}", "case": "{case}", "missing in": "{runs}"}
    setup = (
        "Cases without a judged dialogue in one of the tests. They count for no method and seed in "
        "the tables of this judge, so that all methods are compared on the same cases."
    )
    return _table(setup, columns, rows)


def _methods(_: Study, scores: AllScores) -> Table:
    rows = []
    for name, own in scores["b"].items():
        passes, n = own.passes
        row: Row = {"method": name, "seeds": len(own.seeds), "passes": f"{passes}/{n}"}
        low, high = own.passes_interval
        row |= {"passes_low": 100 * low, "passes_high": 100 * high}
        _flat(row, "b", {"mean": own.mean, "interval": own.interval})
        if again := scores["a"].get(name):
            _flat(row, "a", {"mean": again.mean, "interval": again.interval})
        rows.append(row)
    columns = {
        "method": "{method}",
        "seeds": "{seeds}",
        **_with_interval("EPM-Q, judge B", "b", ".1f"),
        "passed": "{passes}",
        "95 %, passed": "{passes_low:.0f} to {passes_high:.0f} %",
        **_with_interval("EPM-Q, judge A", "a", ".1f"),
    }
    return _table(
        "Test scenarios, played under judge B; A judged the same dialogues again. 95 % bootstrap over cases, "
        "and over seeds where there are several; passes: Wilson over cases.",
        columns,
        rows,
    )


def _differences(study: Study, scores: AllScores) -> Table:
    rows = []
    primary = read_plan(study).get("comparisons", ())
    for judge, methods in scores.items():
        pairs = [p for p in all_pairs(methods) if judge == "a" or " - ".join(p) not in primary]
        for found in differences(methods, pairs):
            row = {key: found[key] for key in ("difference", "seeds", "cases", "p", "p_holm", "p_seeds")}
            row["judge"] = judge.upper()
            _flat(row, "mean", found)
            rows.append(row)
    columns = {
        "judge": "{judge}",
        "difference": "{difference}",
        **_with_interval("EPM-Q", "mean", "+.1f"),
        "seeds": "{seeds}",
        "cases": "{cases}",
        "p": "{p:.3f}",
        "p (Holm)": "{p_holm:.3f}",
        "p (t over seeds)": "{p_seeds:.3f}",
    }
    return _table(
        "Paired by case and seed. Intervals: 95 % bootstrap over cases, and over seeds where several are "
        "shared. p: sign-flip test over cases; Holm: over the rows of a judge.",
        columns,
        rows,
    )


def _tuning(study: Study) -> Table:
    if not study.rates_file.exists():
        return NOTHING
    found = json.loads(study.rates_file.read_text("utf-8"))
    rows = [
        {**row, "chosen": "yes" if found["chosen"][row["method"]] == row["rate"] else ""}
        for row in found["scores"]
    ]
    columns = {
        "method": "{method}",
        "rate": "{rate:g}",
        "validation EPM-Q": "{epm_q:.1f}",
        "chosen": "{chosen}",
    }
    setup = (
        f"{study.settings.tune.steps} steps each, seed {study.settings.tune.seed}, validation under judge A "
        f"on the {found['scenarios']} scenarios that all of them played; {found['left_out']} left out."
    )
    return _table(setup, columns, rows)


def _judges(study: Study) -> Table:
    rows = []
    halves = json.loads(study.halves.read_text("utf-8")) if study.halves.exists() else {}
    for name in "ab":
        file = RunDir(study.judge(name)).role
        if not file.exists():
            continue
        result = json.loads(file.read_text("utf-8"))
        for part, measured in result["tests"].items():
            rows.append(
                {
                    "judge": name.upper(),
                    "policies": ", ".join(halves.get(name, ())),
                    "unseen": part,
                    "turns": measured.get("turns"),
                    "kappa": measured.get("kappa"),
                    "correlation": measured.get("correlation"),
                    "within": measured.get("within"),
                    "attacks": _attacks(result) if part == "both" else None,
                }
            )
    columns = {
        "judge": "{judge}",
        "learned from": "{policies}",
        "unseen": "{unseen}",
        "turns": "{turns}",
        "mean kappa": "{kappa:.2f}",
        "step correlation": "{correlation:.2f}",
        "within dialogues": "{within:.2f}",
        "attacks that worked": "{attacks}",
    }
    return _table("Agreement with the recorded judge on held-out recordings of each half.", columns, rows)


def _attacks(result: Row) -> str | None:
    attacks = (result.get("probes") or {}).get("attacks")
    return f"{len(attacks['worked'])}/{attacks['tried']}" if attacks else None


HEALTH = ("repeated", "shared", "as_assistant", "other_language", "off_persona", "warm_after_miss")


def _people(study: Study) -> Table:
    if not study.people_file.exists():
        return NOTHING
    found = json.loads(study.people_file.read_text("utf-8"))
    rows = []
    for kind, cast in found["casts"].items():
        health, fidelity = cast["health"], cast["fidelity"]
        row: Row = {"cast": kind, "used": "yes" if kind == found["chosen"] else ""}
        row |= {key: 100 * health[key] for key in HEALTH if health.get(key) is not None}
        row |= {
            "lines": health["lines"],
            "warnings": len(health["warnings"]),
            "fidelity": fidelity.get("score"),
        }
        rows.append(row)
    columns = {
        "user and director": "{cast}",
        "lines": "{lines}",
        **{key.replace("_", " "): f"{{{key}:.1f}} %" for key in HEALTH},
        "warnings": "{warnings}",
        "fidelity": "{fidelity:.2f}",
        "used": "{used}",
    }
    setup = (
        "The base model as policy on validation scenarios under judge A. Health: docs/sandbox.md; fidelity: "
        "against the recorded users, 1 if a classifier cannot tell them apart."
    )
    return _table(setup, columns, rows)


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
            _flat(row, name, found[name])
        for name in ("cut", "repeated_replies", "repeated_sentences"):
            row[name] = None if found[name] is None else 100 * found[name]["mean"]
        test = [agreement(read_run(study.test(r)), _again(study, r)) for r in runs]
        kappas = [x["kappa"] for x in test if x and x["kappa"] is not None]
        row["kappa"] = sum(kappas) / len(kappas) if kappas else None
        rows.append(row)
    columns = {
        "method": "{method}",
        "turns": "{turns:.1f}",
        **_with_interval("tokens per reply", "tokens", ".0f"),
        "cut": "{cut:.1f} %",
        **_with_interval("distinct bigrams", "distinct_2", ".2f"),
        "replies repeated in a dialogue": "{repeated_replies:.1f} %",
        "sentences repeated": "{repeated_sentences:.1f} %",
        "replies in several places": "{shared_replies:.1f} %",
        **_with_interval("fluency", "fluency", ".2f"),
        **_with_interval("KL from the start", "kl", ".3f"),
        "kappa of A and B": "{kappa:.2f}",
    }
    setup = (
        "Replies in the test. Fluency: mean log-probability per token under the untouched base model; KL: "
        "mean log-ratio of policy and base model, per token. Means over cases, 95 % bootstrap."
    )
    return _table(setup, columns, rows)


def _again(study: Study, run: Any) -> Sequence[Any]:
    folder = rejudged(study.test_a, run.name)
    return read_run(folder) if folder else []


def _agreement(study: Study) -> Table:
    rows = []
    for run in (Run(BASE, 0), *study.trainings):
        kl = {s["step"]: s.get("kl_start") for s in read_steps(RunDir(study.run(run)).metrics)}
        for found in agreement_by_step(study, run):
            row: Row = {"run": run.name, "step": found["step"], "turns": found["turns"]}
            _flat(row, "kappa", {"mean": found["kappa"], "interval": found["interval"]})
            row |= {"a": found["epm_q_a"], "b": found["epm_q_b"], "kl": kl.get(found["step"])}
            rows.append(row)
    columns = {
        "run": "{run}",
        "step": "{step}",
        "turns": "{turns}",
        **_with_interval("kappa of A and B", "kappa", ".2f"),
        "EPM-Q, A": "{a:.1f}",
        "EPM-Q, B": "{b:.1f}",
        "KL from the start": "{kl:.3f}",
    }
    setup = (
        "Validation dialogues, played under A and judged again by B; base: those in which user and director "
        "were chosen. Falling agreement, or A rising alone, is what gaming A looks like."
    )
    return _table(setup, columns, rows)


def _keep(study: Study) -> Table:
    runs = [
        f"{run.method if run.method == BASE else run.name}={folder}"
        for run in (Run(BASE, 0), *study.trainings)
        for name in ("emobench", "eqbench")
        if RunDir(folder := study.kept(run, name)).result.exists()
    ]
    if not runs:
        return NOTHING
    try:
        found = compare(runs)
    except MapoError as error:
        print(f"keep: {error}")
        return NOTHING
    rows = []
    for (model, label), entry in found.cells.items():
        row: Row = {"model": model, "score": f"{entry.benchmark}, {label}", "n": f"{entry.n}/{entry.of}"}
        row["value"] = entry.value
        if (difference := found.difference(model, label)) is not None:
            _flat(row, "difference", {"mean": difference.mean, "interval": difference.interval})
            row |= {"p": difference.p, "p_holm": difference.p_holm}
        rows.append(row)
    columns = {
        "model": "{model}",
        "score": "{score}",
        "items": "{n}",
        "points": "{value:.1f}",
        **_with_interval("difference from base", "difference", "+.1f"),
        "p": "{p:.3f}",
        "p (Holm)": "{p_holm:.3f}",
    }
    return _table("`mapo compare`: paired by item, 95 % bootstrap, sign-flip test.", columns, rows)


def _pairs(study: Study) -> Table:
    file = study.work / "pairs_counts.json"
    if not file.exists():
        return NOTHING
    found = json.loads(file.read_text("utf-8"))
    row: Row = {
        **{k: found[k] for k in ("trained", "base", "tie", "p")},
        "read": f"{found['read']}/{found['of']}",
    }
    row |= {"model": found["models"]["trained"], "first": found["first_preferred"]}
    share = None if found["share"] is None else {"mean": found["share"], "interval": found["interval"]}
    _flat(row, "share", share)
    columns = {
        "trained model": "{model}",
        "pairs read": "{read}",
        "trained preferred": "{trained}",
        "base preferred": "{base}",
        "tie": "{tie}",
        **_with_interval("share of decided", "share", ".2f"),
        "p (sign test)": "{p:.3f}",
        "first preferred": "{first}",
    }
    return _table("Read blind, by the rubric in pairs/README.md. Wilson interval.", columns, [row])


def _cost(study: Study) -> Table:
    rows, priced = training_costs(study)
    columns = {
        "run": "{run}",
        "steps": "{steps}",
        "dialogues": "{dialogues:,}",
        "turns = judge calls": "{turns:,}",
        "seconds": "{seconds:.0f}",
        "of rollouts": "{rollout_s:.0f}",
        "of updates": "{update_s:.0f}",
        "sampled tokens (M)": "{sampled_tokens:.2f}",
        "trained tokens (M)": "{trained_tokens:.2f}",
        "judge tokens at an API (M)": "{judge_tokens:.1f}",
        **{f"judge: {model}": f"{{judge_{i}:,.2f}}" for i, model in enumerate(priced)},
        **{f"all roles: {model}": f"{{cast_{i}:,.2f}}" for i, model in enumerate(priced)},
    }
    setup = (
        "Seconds include starting and interruptions. API tokens and costs are estimates: counted calls times "
        "the typical call of `mapo plan`."
    )
    return _table(setup, columns, rows)
