"""Splits by scenario and by policy."""

from __future__ import annotations

from dataclasses import replace

import pytest

from mapo.errors import InputError
from mapo.roles.splits import CELLS, folds, split, split_for_test
from support.recordings import recordings

OWN = recordings(8, 10, turns=1)


def names(own):
    return {r.dialogue.model for r in own}, {r.scenario.id for r in own}


def test_the_strict_test_shares_neither_policies_nor_scenarios_with_training():
    parts = split(OWN)
    policies, cases = names((*parts.train, *parts.validation))
    test_policies, test_cases = names(parts.both)
    assert not policies & test_policies and not cases & test_cases
    assert len(test_policies) == 2 and len(test_cases) == 2


def test_every_dialogue_is_in_one_part():
    parts = split(OWN)
    every = [r.id for name in ("train", "validation", *CELLS) for r in getattr(parts, name)]
    assert sorted(every) == sorted(r.id for r in OWN)


def test_validation_scenarios_are_not_trained_on():
    parts = split(OWN)
    assert not names(parts.train)[1] & names(parts.validation)[1]


def test_the_split_depends_on_the_seed_only():
    assert names(split(OWN, seed=1).both) == names(split(OWN[::-1], seed=1).both)
    assert names(split(OWN, seed=1).both) != names(split(OWN, seed=2).both)


def test_folds_hold_out_every_policy():
    held = [names(part.both)[0] for part in folds(OWN, 4)]
    assert set().union(*held) == names(OWN)[0]


def test_without_held_out_policies_unseen_scenarios_are_the_test():
    parts = split([r for r in OWN if r.dialogue.model == "p0"], policies=0)
    assert len(parts.both) == 2 and not parts.new_scenario and not parts.new_policy


def test_too_few_names_are_refused():
    with pytest.raises(InputError, match="2 policies, too few"):
        split([r for r in OWN if r.dialogue.model in ("p0", "p1")])
    one_case = OWN[0].scenario.id
    with pytest.raises(InputError, match="1 scenarios, too few"):
        split([r for r in OWN if r.scenario.id == one_case])


def test_an_empty_part_is_refused():
    parts = split(OWN)
    with pytest.raises(InputError, match="left for the test"):
        split([r for r in OWN if r not in parts.both])


def test_a_test_set_shares_no_scenario_with_the_rest():
    own, other = OWN[:-1], OWN[-1:]
    with pytest.raises(InputError, match=f"scenario '{other[0].scenario.id}' is in"):
        split_for_test(own, other)
    rest = [r for r in OWN if r.scenario.id != other[0].scenario.id]
    parts = split_for_test(rest, other)
    assert list(parts.both) == other and not (parts.new_scenario or parts.new_policy)
    assert len(parts.train) + len(parts.validation) == len(rest)
    assert not names(parts.train)[1] & names(parts.validation)[1]


def test_a_test_set_shares_no_name_with_the_rest():
    first, other = (next(r for r in OWN if r.scenario.id == name) for name in sorted(names(OWN)[1])[:2])
    with pytest.raises(InputError, match="the dialogue"):
        split_for_test([first], [replace(other, dialogue=replace(other.dialogue, id=first.dialogue.id))])


def test_a_test_set_needs_two_other_scenarios():
    one, other = (next(r for r in OWN if r.scenario.id == name) for name in sorted(names(OWN)[1])[:2])
    with pytest.raises(InputError, match="at least 2 scenarios"):
        split_for_test([one], [other])
