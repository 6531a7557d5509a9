"""The report of a trained role, also from files that somebody else wrote."""

from __future__ import annotations

import json

import pytest

from mapo.errors import InputError
from mapo.report.role import role_report
from mapo.store import RunDir


def test_an_unfinished_run_has_no_report(tmp_path):
    with pytest.raises(InputError, match="has not finished"):
        role_report(tmp_path)


@pytest.mark.parametrize(
    "content", [{"role": "judge"}, {"role": "clown", "tests": {}}, {"role": "user", "tests": 3}]
)
def test_a_damaged_file_is_refused(tmp_path, content):
    RunDir(tmp_path).role.write_text(json.dumps(content))
    with pytest.raises(InputError, match="not one of mapo roles train"):
        role_report(tmp_path)
