"""The file that says which role a model was trained for."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from mapo.errors import InputError
from mapo.local_model.role_file import (
    NAME,
    RoleFile,
    check_role,
    read_role_file,
    rubric_fingerprint,
    write_role_file,
)
from mapo.measure.calibration import Calibration
from mapo.measure.rubric import Rubric

EMPATHY = Rubric.load("empathy")
JUDGE = RoleFile(
    "judge",
    "empathy",
    rubric_fingerprint(EMPATHY),
    calibration=Calibration((1.0,) * 6, ((0.5, 1.5),) * 6),
    trained_on={"dialogues": 3},
)


def test_what_is_written_is_read(tmp_path):
    assert read_role_file(tmp_path) is None
    write_role_file(tmp_path, JUDGE)
    assert read_role_file(tmp_path) == JUDGE
    check_role(JUDGE, "judge", EMPATHY, "here")


@pytest.mark.parametrize(
    "change",
    [
        {"schema": "other"},
        {"role": "policy"},
        {"rubric": 3},
        {"layout": "1"},
        {"calibration": {"temperatures": [0], "cuts": []}},
        {"calibration": {"temperatures": [1.0] * 6, "cuts": [[1, 0]] * 6}},
        {"calibration": None},
        {"trained_on": []},
    ],
)
def test_damaged_files_are_refused(tmp_path, change):
    write_role_file(tmp_path, JUDGE)
    path = tmp_path / NAME
    path.write_text(json.dumps({**json.loads(path.read_text()), **change}))
    with pytest.raises(InputError, match="mapo_role.json"):
        read_role_file(tmp_path)


def test_files_that_are_not_json_are_refused(tmp_path):
    (tmp_path / NAME).write_text("[1, ")
    with pytest.raises(InputError, match="cannot be read"):
        read_role_file(tmp_path)


def test_other_roles_rubrics_and_layouts_are_refused():
    with pytest.raises(InputError, match="trained to be a judge, not a user"):
        check_role(JUDGE, "user", EMPATHY, "here")
    with pytest.raises(InputError, match="rubric 'empathy' as it was then, not for 'tutoring'"):
        check_role(JUDGE, "judge", Rubric.load("tutoring"), "here")
    with pytest.raises(InputError, match="layout 0"):
        check_role(replace(JUDGE, layout=0), "judge", EMPATHY, "here")
    with pytest.raises(InputError, match="does not fit"):
        check_role(replace(JUDGE, calibration=Calibration((1.0,), ((0.5, 1.5),))), "judge", EMPATHY, "here")
