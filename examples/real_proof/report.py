"""Result files and a page of tables. The files have the form of docs/results (scripts/docs_tables.py)."""

from __future__ import annotations

import json
import runpy
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from costs import stage_seconds, training_costs
from measures import (
    agreement,
    agreement_by_step,
    differences,
    method_scores,
    quality_of,
    read_run,
    rejudged,
)
from stages import kept, tuning_scores
from study import BASE, HERE, Run, Study

from mapo.errors import InputError, MapoError
from mapo.evals.compare.comparison import compare
from mapo.show.figures import Panel, Picture, label_axes, looks_of, save_picture
from mapo.store import RunDir, read_steps, write_atomic

Row = dict[str, Any]
COMMAND = "python examples/real_proof/proof.py {} --work WORK"
TITLES = {
    "methods": "Test",
    "differences": "Paired differences",
    "tuning": "Learning rates",
    "judges": "Judges",
    "people": "User and director",
    "quality": "Replies",
    "agreement": "Agreement of the judges over training",
    "keep": "What the models could do before",
    "pairs": "Blind pairs",
    "cost": "Cost",
}


def write_results(study: Study) -> list[str]:
    """Write results/*.json, curves.json, curves.png and report.md; return the names of the tables."""
    tables = {
        "methods": (_methods(study), "test"),
        "differences": (_differences(study), "test"),
        "tuning": (_tuning(study), "tune"),
        "judges": (_judges(study), "judges"),
        "people": (_people(study), "people"),
        "quality": (_quality(study), "quality"),
        "agreement": (_agreement(study), "quality"),
        "keep": (_keep(study), "keep"),
        "pairs": (_pairs(study), "verdicts"),
        "cost": (_cost(study), "cost"),
    }
    written = []
    for name, ((setup, columns, rows), stage) in tables.items():
        if rows:
            table = {"command": COMMAND.format(stage), "setup": setup, "columns": columns, "rows": rows}
            _write(study.results / f"{name}.json", table)
            written.append(name)
    curves = _curves(study)
    _write(study.results / "curves.json", curves)
    figure = _draw(study, curves)
    _write(study.results / "seconds.json", stage_seconds(study))
    render = runpy.run_path(str(HERE.parents[1] / "scripts" / "docs_tables.py"))["render"]
    parts = ["# MAPO on a real language model", *_notes(study)]
    for name in written:
        table = json.loads((study.results / f"{name}.json").read_text("utf-8"))
        parts += [f"## {TITLES[name]}", render(table).strip()]
    if figure:
        parts += ["## Learning curves", "![EPM-Q in training and validation](results/curves.png)"]
    write_atomic(study.work / "report.md", "\n\n".join(parts) + "\n")
    return written


def write_cost(study: Study) -> int:
    """Write results/cost.json alone; return the number of finished trainings."""
    setup, columns, rows = _cost(study)
    if rows:
        table = {"command": COMMAND.format("cost"), "setup": setup, "columns": columns, "rows": rows}
        _write(study.results / "cost.json", table)
    return len(rows)


def _write(path: Path, data: Any) -> None:
    write_atomic(path, json.dumps(data, indent=1, ensure_ascii=False, allow_nan=False) + "\n")


def _notes(study: Study) -> list[str]:
    model = Path(study.inputs.model).name
    return [
        f"Policy: {model}. Training judge: A. Test judge: B. The two learned from different policies' "
        "recordings, with different seeds.",
        "Tests are played under B, whose levels also steer the director and end the dialogues. A's scores "
        "are of the same dialogues, judged again: a dialogue that A would have continued counts as not "
        "passed, so read A's scores for their order and differences, not for passes.",
    ]


Table = tuple[str, dict[str, str], list[Row]]


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


def _methods(study: Study) -> Table:
    under_b, under_a = method_scores(study, "b"), method_scores(study, "a")
    rows = []
    for name, scores in under_b.items():
        passes, n = scores.passes
        row: Row = {"method": name, "seeds": len(scores.seeds), "passes": f"{passes}/{n}"}
        low, high = scores.passes_interval
        row |= {"passes_low": 100 * low, "passes_high": 100 * high}
        _flat(row, "b", {"mean": scores.mean, "interval": scores.interval})
        if name in under_a:
            _flat(row, "a", {"mean": under_a[name].mean, "interval": under_a[name].interval})
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


def _differences(study: Study) -> Table:
    rows = []
    for judge in ("b", "a"):
        for found in differences(method_scores(study, judge)):
            row = {key: found[key] for key in ("difference", "seeds", "cases", "p", "p_holm", "p_seeds")}
            row["judge"] = judge.upper()
            _flat(row, "mean", {"mean": found["mean"], "interval": found["interval"]})
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
    scores = tuning_scores(study)
    methods = [name for name, method in study.settings.methods.items() if not method.rate_of]
    chosen = {m: study.rate(m) for m in methods} if study.rates_file.exists() else {}
    rows = [{**row, "chosen": "yes" if chosen.get(row["method"]) == row["rate"] else ""} for row in scores]
    columns = {
        "method": "{method}",
        "rate": "{rate:g}",
        "validation EPM-Q": "{epm_q:.1f}",
        "chosen": "{chosen}",
    }
    steps, seed = study.settings.tune.steps, study.settings.tune.seed
    return _table(f"{steps} steps each, seed {seed}, validation under judge A.", columns, rows)


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
        return "", {}, []
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
        for run in kept(study)
        for name in ("emobench", "eqbench")
        if RunDir(folder := study.kept(run, name)).result.exists()
    ]
    if not runs:
        return "", {}, []
    try:
        found = compare(runs)
    except MapoError as error:
        print(f"keep: {error}")
        return "", {}, []
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
        return "", {}, []
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
    rows, priced = [], []
    for found in training_costs(study):
        costs = found.pop("judge_cost")
        cast = found.pop("cast_cost")
        priced = list(costs)
        found |= {f"judge_{i}": costs[m] for i, m in enumerate(costs)}
        found |= {f"cast_{i}": cast[m] for i, m in enumerate(cast)}
        found["judge_tokens"] = (found.pop("judge_prompt_tokens") + found.pop("judge_output_tokens")) / 1e6
        found["sampled_tokens"] /= 1e6
        found["trained_tokens"] /= 1e6
        found.pop("judge_calls")
        rows.append(found)
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


# ---- curves


def _curves(study: Study) -> list[Row]:
    curves = []
    for run in study.trainings:
        steps = read_steps(RunDir(study.run(run)).metrics)
        if steps:
            keys = (
                "step",
                "dialogues",
                "score",
                "reward",
                "kl_start",
                "entropy",
                "reply_tokens",
                "grad_norm",
            )
            lines = [{key: step.get(key) for key in keys} for step in steps]
            checks = [{"step": s["step"], **s["validation"]} for s in steps if "validation" in s]
            curves.append({"run": run.name, "method": run.method, "steps": lines, "validation": checks})
    return curves


def _draw(study: Study, curves: list[Row]) -> list[Path]:
    """Draw training scores, validation scores, KL and length by step, one line per run."""
    methods = list(dict.fromkeys(curve["method"] for curve in curves))
    looks = dict(zip(methods, looks_of(methods), strict=True))

    def panel(title: str, part: str, key: str, label: str) -> Panel:
        def draw(axes: Any) -> None:
            for curve in curves:
                points = [(p["step"], p[key]) for p in curve[part] if p.get(key) is not None]
                look = looks[curve["method"]]
                if points:
                    axes.plot(*zip(*points, strict=True), color=look.colour, linestyle=look.line)
            label_axes(axes, "step", label, whole=True)

        return Panel(title, draw)

    picture = Picture(
        "curves",
        "",
        [
            panel("Training, judge A", "steps", "score", "EPM-Q"),
            panel("Validation, judge A", "validation", "epm_q", "EPM-Q"),
            panel("Distance from the start", "steps", "kl_start", "KL"),
            panel("Length", "steps", "reply_tokens", "tokens per reply"),
        ],
        key=[(looks[m], m) for m in methods],
    )
    try:
        return save_picture(picture, study.results, ("png", "svg")) if curves else []
    except InputError as error:
        print(f"no figure: {error}")
        return []
