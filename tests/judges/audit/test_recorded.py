"""What records alone tell: our own, EMPA's, and the published ones."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest

from mapo.errors import InputError, RecordError
from mapo.judges.audit.evidence import count_quotes
from mapo.judges.audit.recorded import read_judged, tables, two_way
from mapo.records import encode_dialogue
from mapo.types import AxisMarks, Mark
from support.builders import dialogue, empa_result, marks
from support.judging import EMPATHY
from support.published import published


def put(folder, *records):
    file = folder / "dialogues" / "empa.jsonl"
    file.parent.mkdir(parents=True)
    file.write_bytes(b"".join(encode_dialogue(r) + b"\n" for r in records) + b"{torn")
    return folder


def text_of(found):
    return {table.title: [list(row) for row in table.rows] for table in found}


def test_our_own_records(tmp_path):
    quoting = {key: AxisMarks(Mark(1, "reply 1"), Mark(0)) for key in EMPATHY.keys}
    first = dialogue(EMPATHY, [quoting, None, *[marks(EMPATHY, 1)] * 10], cast={"judge": "j"})
    turns = [replace(t, panel={"a": (1, 0) * 3, "b": (n % 2, 0) * 3}) for n, t in enumerate(first.turns)]
    other = replace(first, id="d2", scenario="s2", turns=tuple(turns))
    root = put(tmp_path / "run", first, other, replace(first, id="d3", error="broke"))
    judged = read_judged(root)
    assert len(judged) == 24 and {turn.judge for turn in judged} == {"j"}
    found = text_of(tables([root]))
    # 66 marks not 0 in 22 judged turns of 3; 2 x 3 of them quote the reply
    assert found["As recorded"] == [[str(root), "j", "24", "8.3%", "66", ("9%", "4% to 18%"), "90.9%"]]
    assert found["Levels along the dialogue"][0][1:] == ["+3.00", "+3.00", "+3.00"]
    assert found["Variance of EPM-Q"] == []  # one model
    [panel] = found["Panels"]
    assert panel[1:3] == ["a / b", "12"]


def test_empas_files(tmp_path):
    for model in ("m1", "m2"):
        for case in ("script_001", "script_002"):
            data = empa_result(case, forms=12 if model == "m1" else 14)
            replies = [{"role": "test_model", "content": "say e now"}] * 14
            data["history"] = [{"role": "actor", "content": "hi"}, *replies]
            data["judger_model"] = "gem"
            file = tmp_path / model / f"{case}_result.json"
            file.parent.mkdir(exist_ok=True)
            file.write_text(json.dumps(data))
    found = text_of(tables([tmp_path / "m1", tmp_path / "m2"]))
    assert found["As recorded"][0][1:4] == ["gem", "24", "8.3%"]
    assert found["As recorded"][0][5].value == "100%"
    assert found["Variance of EPM-Q"][0][0] == "2 models x 2 cases"
    (tmp_path / "m1" / "script_001_result.json").write_text("{}")
    with pytest.raises(RecordError, match="not an EMPA result"):
        read_judged(tmp_path / "m1")


def test_nothing_judged_is_said(tmp_path):
    with pytest.raises(InputError, match="no judged dialogue"):
        read_judged(tmp_path)


def test_variance_of_rows_columns_and_the_rest():
    rng = np.random.default_rng(0)
    found = [
        two_way(rng.normal(0, 3, (12, 1)) + rng.normal(0, 2, (1, 30)) + rng.normal(0, 1, (12, 30)))
        for _ in range(60)
    ]
    means = {name: np.mean([f[name] for f in found]) for name in found[0]}
    assert means == pytest.approx({"models": 9, "cases": 4, "rest": 1}, rel=0.2)
    assert two_way(np.array([[1.0, 2.0], [2.0, 1.0]]))["models"] == 0


def test_the_published_judge_quotes_what_was_said(two_models):
    """One judge made all published records: it can be held against no other, but its evidence is there."""
    published("results_two_models.tar.gz")
    folders = sorted(f for f in two_models.iterdir() if f.is_dir())
    for folder in folders:
        judged = read_judged(folder)
        assert {turn.judge for turn in judged} == {"google/gemini-2.5-pro"}
        lost = sum(turn.levels is None for turn in judged) / len(judged)
        found = count_quotes((turn.levels, turn.reply) for turn in judged if turn.levels is not None)
        assert 0.005 < lost < 0.02 and found.share > 0.95 and found.marks > 2000
    [row] = text_of(tables(folders))["Variance of EPM-Q"]
    assert row[0] == "2 models x 30 cases" and float(row[3].rstrip("%")) < 30
