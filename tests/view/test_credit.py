"""The explanation of a turn's credit leads to the advantage that was trained on, for every method."""

from __future__ import annotations

import json
import re
from dataclasses import replace

import pytest

from mapo import Rubric
from mapo.advantage import METHODS
from mapo.config import Advantage
from mapo.credit import compute_credit, turns_in_state
from mapo.errors import RecordError
from mapo.types import Ending, StopReason
from mapo.view.pages.credit import credit_of
from support import view_runs

EMPATHY = Rubric.load("empathy")
TALKS = [
    replace(d, ending=Ending(StopReason.SUCCESS if i % 2 else StopReason.FAILURE))
    for i, d in enumerate(view_runs.step_talks(EMPATHY, 2, siblings=4))
]
NUMBER = r"([+−]?[\d,.]+\d)"
COMPARED = re.compile(
    rf"its (?P<what>[\w ]+?) is {NUMBER}.* have a mean (?P=what) of {NUMBER} \(standard deviation {NUMBER}\)"
)
SUM = re.compile(rf"^{NUMBER} × {NUMBER} \+ {NUMBER} × {NUMBER} =$|^{NUMBER} \+ {NUMBER} × {NUMBER} =$")


def rows(talks):
    return [
        {"n": n, "grp": d.group, "error": 0, "rewards": json.dumps(d.rewards), "size": 1}
        for n, d in enumerate(talks)
    ]


def shown(method, talks=TALKS, **options):
    settings = Advantage(method=method, **options).resolved("idr")
    credit = credit_of(rows(talks), settings, load=lambda row: talks[row["n"]], rubric=EMPATHY)
    assert not credit.problem
    return credit, compute_credit(talks, settings, EMPATHY)


def number(text):
    return float(text.replace("−", "-").replace(",", ""))


@pytest.mark.parametrize("endings", ["continued", "held", "cut"])
@pytest.mark.parametrize("method", METHODS)
def test_every_turn_that_counts_has_its_advantage_and_an_explanation(method, endings):
    credit, trained = shown(method, endings=endings)
    for n in range(len(TALKS)):
        for t, turn in enumerate(credit.turns[n]):
            assert turn.mixed == trained.mixed[n][t] and turn.counts == trained.mask[n][t]
            assert bool(turn.why) == turn.counts
            if turn.counts:
                assert turn.why[-1].result == pytest.approx(turn.mixed)


@pytest.mark.parametrize("endings", ["continued", "held", "cut"])
@pytest.mark.parametrize("method", METHODS)
def test_a_comparison_gives_its_result(method, endings):
    """(value - mean of the peers) / standard deviation of the peers, as far as the digits shown go."""
    credit, _ = shown(method, endings=endings, scale=None if method == "turn_gae" else "std")
    checked = 0
    for turn in (turn for turns in credit.turns.values() for turn in turns):
        for reason in turn.why:
            if match := COMPARED.search(reason.text):
                value, mean, std = (number(match[k]) for k in (2, 3, 4))
                z = (value - mean) / std
                if "rloo" in method:
                    continue  # from the mean of the others, in standard deviations of all
                assert z == pytest.approx(reason.result, abs=0.03 / std + 0.01), reason.text
                checked += 1
            elif match := SUM.match(reason.text):
                parts = [number(x) for x in match.groups() if x]
                total = (
                    parts[0] * parts[1] + parts[2] * parts[3]
                    if len(parts) == 4
                    else parts[0] + parts[1] * parts[2]
                )
                assert total == pytest.approx(reason.result, abs=0.02)
    assert checked or method in ("rloo", "rloo_turn", "turn_gae")


def test_leave_one_out_names_the_others():
    credit, trained = shown("rloo", endings="cut")
    text = credit.turns[1][0].why[0].text
    totals = [sum(d.rewards) for d in TALKS[:4]]
    others = (sum(totals) - totals[1]) / 3
    assert "The 3 other siblings have a mean summed reward of" in text
    assert number(re.search(rf"mean summed reward of {NUMBER}", text)[1]) == pytest.approx(others, abs=0.006)
    assert totals[1] - others == pytest.approx(trained.mixed[1][0])


def test_a_dialogue_that_ended_early_says_how_it_is_continued():
    credit, trained = shown("mapo")
    # siblings of 3, 4, 5 and 6 turns
    more = credit.continuation_of(0)
    assert (more.turns, more.last, more.longest) == (3, 3, "longest sibling")
    assert more.pace == pytest.approx(sum(TALKS[0].rewards) / 3)
    assert credit.continuation_of(3) is None
    turn = credit.turns[0][2]
    # G_3 = r_3 + gamma (1 + gamma + gamma^2) pace
    part = 0.85 * (1 + 0.85 + 0.85**2) * more.pace
    assert trained.returns[0][2] == pytest.approx(TALKS[0].rewards[2] + part)
    note = re.search(rf"of which {NUMBER} from 3 continued turns at {NUMBER} each", turn.why[0].text)
    assert [number(x) for x in note.groups()] == pytest.approx([part, more.pace], abs=0.006)
    # the last reward is averaged with the three that continue it
    mean = (TALKS[0].rewards[2] + 3 * more.pace) / 4
    assert number(re.search(rf"its reward is {NUMBER}", turn.why[1].text)[1]) == pytest.approx(
        mean, abs=0.006
    )
    assert shown("mapo", endings="cut")[0].continued == {}


def test_gigpo_says_how_many_turns_share_the_state():
    settings = Advantage(method="gigpo")
    credit, trained = shown("gigpo")
    counts = turns_in_state(TALKS, settings, trained)
    for n, row in enumerate(counts):
        for t, same in enumerate(row):
            text = credit.turns[n][t].why[1].text
            wanted = f"The {same} turns of its group that" if same > 1 else "no other turn of its group"
            assert wanted in text
    assert max(map(max, counts)) > 1  # all siblings start in the same state


def test_gdpo_explains_every_axis():
    credit, _ = shown("gdpo")
    names = [reason.text.partition(":")[0] for reason in credit.turns[0][0].why]
    assert names == ["Cognitive", "Affective", "Proactive", "Advantage"]


def test_dialogues_that_cannot_be_used_have_no_credit_but_a_reason():
    settings = Advantage(method="gdpo")

    def broken(row):
        raise RecordError("gone")

    assert "gone" in credit_of(rows(TALKS), settings, load=broken, rubric=EMPATHY).problem
    assert "needs the rubric" in credit_of(rows(TALKS), settings, load=lambda row: TALKS[row["n"]]).problem
    tutoring = Rubric.load("tutoring")
    found = credit_of(rows(TALKS), settings, load=lambda row: TALKS[row["n"]], rubric=tutoring)
    assert "do not fit the rubric 'tutoring'" in found.problem
    large = [{**row, "size": 10**9} for row in rows(TALKS)]
    assert "too large" in credit_of(large, settings, load=broken, rubric=EMPATHY).problem


def test_the_page_shows_continued_turns_movement_and_regression(root, index, client):
    view_runs.training(root, steps=1, method="gigpo", advantage='endings = "continued"')
    index.refresh()
    page = client.get("/run/first/d/dialogues:step_00001.jsonl/1").text
    assert "This dialogue ended 2 turns before its longest sibling" in page
    assert "2 continued at" in page and ">movement</th>" in page and ">Regression</th>" in page
    assert "Same state:" in page and "z(sum of r, siblings) + c z(G_t" in page
    assert "ended; continued at" in page


def test_a_run_of_an_earlier_version_is_shown_with_cut_endings(root, index, client):
    view_runs.training(root, steps=1)
    index.refresh()
    page = client.get("/run/first/d/dialogues:step_00001.jsonl/1").text
    assert "continued" not in page


def test_a_held_reward_is_named_as_such(root, index, client):
    view_runs.training(root, steps=1, advantage='endings = "held"')
    index.refresh()
    page = client.get("/run/first/d/dialogues:step_00001.jsonl/1").text
    assert "goes on for 2 turns at its last reward" in page and "at its pace" not in page
