"""Audits of judges that are read out: calibrated by axis, one prompt, no evidence to look for."""

from __future__ import annotations

import asyncio

from mapo.judges.audit.evidence import count_quotes
from mapo.judges.audit.probes import PROBES, unchanged_input
from mapo.judges.audit.questions import AuditQuestion, question_solver, reading_asker
from mapo.judges.sample import RecordedTurn
from mapo.measure.calibration import Calibration
from mapo.sandbox.readout import reordered, turn_places
from support.judging import EMPATHY, recordings
from support.readers import FixedReader

TURN = RecordedTurn(recordings()[0], 5)
CAUTIOUS_C = Calibration(cuts=((1.9, 1.95), *(((0.5, 1.5),) * 5)))
"""Level 0 for the progress of C whatever the model says; other marks as they are most likely."""


def all_ones() -> FixedReader:
    return FixedReader(lambda _place, _request: 1)


def answer(question: AuditQuestion) -> dict:
    asker = reading_asker(all_ones(), EMPATHY, CAUTIOUS_C)
    return asyncio.run(question_solver({"it": asker})(question, 0))


def test_the_calibration_stays_with_its_axes_when_they_are_shown_in_another_order():
    plain, reverse = (answer(AuditQuestion("it", TURN, probe))["levels"] for probe in ("unchanged", "order"))
    assert plain["C"]["progress"]["level"] == 0
    assert plain["P"]["progress"]["level"] == 1
    assert reverse == plain


def test_a_calibration_without_temperatures_and_cuts_stays_empty():
    other = PROBES["order"].change(unchanged_input(TURN), 0).rubric
    assert reordered(Calibration(), EMPATHY, other) == Calibration()
    temperatures = tuple(float(n) for n in range(1, 1 + len(turn_places(EMPATHY))))
    assert reordered(Calibration(temperatures), EMPATHY, other).temperatures == (5.0, 6.0, 3.0, 4.0, 1.0, 2.0)


def test_other_wordings_of_the_prompt_are_skipped():
    probe = next(name for name in PROBES if name.startswith("prompt"))
    assert "one prompt only" in answer(AuditQuestion("it", TURN, probe))["skipped"]


def test_levels_alone_have_no_evidence_to_check():
    form = asyncio.run(reading_asker(all_ones(), EMPATHY)(unchanged_input(TURN), "q"))
    assert count_quotes([(form, "any reply")]).share is None
