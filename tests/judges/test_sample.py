"""Which turns are asked about: spread over strata, siblings together, and only what can be judged again."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import replace

import pytest

from mapo import domain_folders as places
from mapo.domain_folders import domain_folder, known_folder
from mapo.errors import InputError, RubricError
from mapo.judges.sample import (
    RecordedTurn,
    Recording,
    choose_dialogues,
    choose_turns,
    read_recordings,
    rubric_of,
)
from mapo.measure.potential import zone_distance
from mapo.records import encode_dialogue
from mapo.scenarios.scenario import scenario_digest
from mapo.scenarios.sets import load_scenarios
from mapo.types import Ending, StopReason
from support.builders import dialogue, marks
from support.judging import EMPATHY, recordings
from support.roles import boat_shed

SCENARIO = boat_shed()
MIXED = [marks(EMPATHY, 2), None, marks(EMPATHY, 0, -1), marks(EMPATHY, 0), *[marks(EMPATHY, 1)] * 8]


def talk(name="d1", forms=MIXED, **kw):
    return Recording("run", dialogue(EMPATHY, forms, id=name, scenario=SCENARIO.id, **kw), SCENARIO, EMPATHY)


def test_a_recorded_turn_knows_its_place_and_what_the_reply_was_worth():
    first, second, third, fourth = (RecordedTurn(talk(), at) for at in (1, 2, 3, 4))
    assert [m.stratum for m in (first, second, third, fourth)] == [
        ("early", "good"),
        ("early", "unscored"),
        ("early", "harm"),
        ("early", "nothing"),
    ]
    assert RecordedTurn(talk(), 8).stratum[0] == "middle" and RecordedTurn(talk(), 12).stratum[0] == "late"
    assert third.id == "run/d1@3" and third.reply == "reply 3" and len(third.history) == 3
    start = talk().dialogue.start
    assert first.before == start and second.before == third.before  # an unscored turn moves nothing
    up = [p + 3 for p in start]
    assert first.reward(marks(EMPATHY, 2)) == pytest.approx(
        zone_distance(start, EMPATHY) - zone_distance(up, EMPATHY)
    )
    assert RecordedTurn(talk(step=4), 1).id == "run/4/d1@1"


def test_the_reward_of_the_records_own_levels_is_the_recorded_one():
    for each in recordings()[:4]:
        for at, turn in enumerate(each.dialogue.turns, 1):
            assert RecordedTurn(each, at).reward(turn.levels) == pytest.approx(turn.reward)


def test_turns_are_drawn_from_all_strata_and_by_the_seed():
    chosen = choose_turns(recordings(), 24, seed=1)
    strata = Counter(turn.stratum for turn in chosen)
    there = {RecordedTurn(t, at).stratum for t in recordings() for at in range(1, len(t.dialogue.turns) + 1)}
    assert set(strata) == there and max(strata.values()) - min(strata.values()) <= 1
    assert [m.id for m in chosen] == [m.id for m in choose_turns(recordings(), 24, seed=1)]
    assert [m.id for m in chosen] != [m.id for m in choose_turns(recordings(), 24, seed=2)]
    assert len({m.id for m in chosen}) == 24
    assert len(choose_turns([talk()], 99)) == 12


def test_whole_groups_come_first_and_single_dialogues_fill_up():
    many = [talk(f"g{g}_{k}", group=f"g{g}") for g in range(3) for k in range(4)]
    many += [talk(f"s{k}", group=f"s{k}") for k in range(5)]
    groups = Counter(t.group for t in choose_dialogues(many, 10))
    assert sorted(groups.values()) == [1, 1, 4, 4]
    assert len(choose_dialogues(many, 3)) == 3  # too few for a group: single ones
    assert len(choose_dialogues(many[:12], 3)) == 3  # nothing but groups: a part of one
    assert choose_dialogues(many, 0) == []


def run(tmp_path, *records, manifest=None, where="dialogues/empa.jsonl"):
    file = tmp_path / where
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_bytes(b"".join(encode_dialogue(r) + b"\n" for r in records))
    if manifest:
        (tmp_path / "manifest.json").write_text(json.dumps(manifest))
    return tmp_path


PEOPLE = {SCENARIO.id: SCENARIO}


def test_a_run_is_read_as_far_as_it_can_be_judged_again(tmp_path):
    good = talk().dialogue
    broken = replace(good, id="d2", error="x", ending=Ending(StopReason.BROKEN))
    stranger = replace(good, id="d3", scenario="nobody")
    root = run(tmp_path, good, broken, stranger)
    with open(root / "dialogues" / "empa.jsonl", "ab") as file:
        file.write(b"{torn")
    found, problems = read_recordings(root, PEOPLE, "mine")
    assert [t.id for t in found] == ["mine/d1"]
    assert any("'nobody' was not found" in p for p in problems) and any("torn" in p for p in problems)
    with pytest.raises(InputError, match="can be judged again"):
        read_recordings(root, {})


def test_a_scenario_that_has_changed_is_not_the_one_that_was_played(tmp_path):
    known = {"schema": "mapo.empa/1", "scenarios": {SCENARIO.id: scenario_digest(SCENARIO)}}
    root = run(tmp_path, talk().dialogue, manifest=known)
    assert len(read_recordings(root, PEOPLE)[0]) == 1
    with pytest.raises(InputError, match="has changed since the run"):
        read_recordings(root, {SCENARIO.id: replace(SCENARIO, topic="something else")})


def test_a_training_has_its_steps_and_its_tests(tmp_path):
    run(
        tmp_path,
        talk(step=1).dialogue,
        manifest={"schema": "mapo.train/1"},
        where="dialogues/step_00001.jsonl",
    )
    for when in ("before", "after"):
        run(tmp_path, talk().dialogue, where=f"eval/{when}/dialogues.jsonl")
    found, _ = read_recordings(tmp_path, PEOPLE, "t")
    assert [t.id for t in found] == ["t/1/d1", "t/before/d1", "t/after/d1"]


def test_a_runs_own_rubric_goes_before_the_shipped_one(tmp_path):
    text = (load_folder() / "rubric.toml").read_text(encoding="utf-8")
    (tmp_path / "rubric.toml").write_text(text.replace("zone = 1.0", "zone = 2.0"))
    own = talk().dialogue
    assert rubric_of(own, tmp_path).name == "empathy"
    assert rubric_of(replace(own, rubric="tutoring"), tmp_path).name == "tutoring"
    assert rubric_of(own, tmp_path / "none") == EMPATHY
    (tmp_path / "rubric.toml").write_text("name = ")
    with pytest.raises(RubricError, match="not a readable TOML"):
        rubric_of(own, tmp_path)


def test_a_path_in_a_record_is_a_name_and_no_place_to_go_to(tmp_path):
    """A folder with a rubric would become a domain of this process, roles in Python and all."""
    text = (load_folder() / "rubric.toml").read_text(encoding="utf-8")
    trap = tmp_path / "trap"
    trap.mkdir()
    (trap / "rubric.toml").write_text(text.replace('name = "empathy"', 'name = "trap"'))
    own = talk().dialogue
    for named in (str(trap), str(trap / "rubric.toml"), "trap"):
        assert rubric_of(replace(own, rubric=named), tmp_path) is None
    assert known_folder("trap") is None
    root = run(tmp_path / "run", own, replace(own, id="d2", rubric=str(trap)))
    found, problems = read_recordings(root, PEOPLE)
    assert [t.dialogue.id for t in found] == ["d1"] and "was not found" in problems[0]
    domain_folder(trap)  # named by a person, it is known
    try:
        assert rubric_of(replace(own, rubric="trap"), tmp_path).name == "trap"
    finally:
        places._by_path.clear()


def load_folder():
    from mapo.domain_folders import domain_folder

    assert load_scenarios("builtin:test")
    return domain_folder("empathy")


def test_the_position_before_a_turn_follows_expected_steps():
    """Each turn moves by 0.5 * 1 on every axis: progress 0 or 1 with the same probability, no regression."""
    recording = talk(forms=[marks(EMPATHY, 1)] * 3)
    even = ((0.5, 0.5, 0.0), (1.0, 0.0, 0.0)) * 3
    turns = tuple(replace(turn, probabilities=even) for turn in recording.dialogue.turns)
    for steps, moved in (("", 2.0), ("expected", 1.0)):
        played = replace(recording.dialogue, turns=turns, steps=steps)
        before = RecordedTurn(replace(recording, dialogue=played), 3).before
        assert before == tuple(x + moved for x in played.start)
