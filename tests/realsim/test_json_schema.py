"""Forms: an example of each part, and an error at every place that is not as asked, which quotes nothing."""

from __future__ import annotations

import json

import pytest

from mapo.errors import InputError
from mapo.realsim.json_schema import BOOLEAN, INTEGER, TEXT, check_form, example, form, list_of, one_of

FORM = form(name=TEXT, old=INTEGER, sure=BOOLEAN, kind=one_of(("a", "b")), lines=list_of(form(says=TEXT)))
FILLED = {"name": " N ", "old": 3, "sure": False, "kind": "a", "lines": [{"says": "x"}]}


def test_a_form_as_it_is_shown_and_read():
    assert json.loads(example(FORM)) == {
        "name": "...",
        "old": 0,
        "sure": True,
        "kind": "a | b",
        "lines": [{"says": "..."}],
    }
    assert check_form(FILLED, FORM) == {**FILLED, "name": "N"}


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"name": 5}, "the form.name: not a text"),
        ({"name": "x" * 5000}, "the form.name: not a text of at most"),
        ({"old": "SECRET"}, "the form.old: not an integer"),
        ({"old": True}, "the form.old: not an integer"),
        ({"sure": 1}, "the form.sure: not true or false"),
        ({"kind": "SECRET"}, "the form.kind: not one of the choices"),
        ({"lines": "SECRET"}, "the form.lines: not a list"),
        ({"lines": [1]}, r"the form.lines\[0\]: not an object"),
        ({"lines": [{}]}, r"the form.lines\[0\]: missing says"),
        ({"SECRET": 1}, "the form: 1 unknown keys"),
    ],
)
def test_what_does_not_fit_is_named_by_its_place(change, told):
    with pytest.raises(InputError, match=told) as caught:
        check_form({**FILLED, **change}, FORM)
    assert "SECRET" not in str(caught.value)
