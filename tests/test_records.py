"""Lines as we write them are read in one go; whatever is odd about them is refused all the same."""

from __future__ import annotations

import json

import pytest

from mapo import Rubric
from mapo.errors import RecordError
from mapo.records import _DIALOGUE_PREFIX, decode_dialogue, encode_dialogue
from support.builders import dialogue, marks

RUBRIC = Rubric.load("empathy")
LINE = encode_dialogue(dialogue(RUBRIC, [marks(RUBRIC, 1), None]))


def test_lines_are_written_as_the_quick_way_expects_them():
    assert LINE.startswith(_DIALOGUE_PREFIX)


def test_both_ways_read_the_same():
    spaced = json.dumps(json.loads(LINE)).encode()
    assert not spaced.startswith(_DIALOGUE_PREFIX) and decode_dialogue(spaced) == decode_dialogue(LINE)


@pytest.mark.parametrize(
    ("line", "words"),
    [
        (
            _DIALOGUE_PREFIX + b'"schema":"mapo.dialogue/9"' + LINE[len(_DIALOGUE_PREFIX) - 1 :],
            "schema is 'mapo.dialogue/9'",
        ),
        (LINE[:-1] + b',"seconds":NaN}', "not a JSON number"),
        (LINE[:-1] + b',"seconds":1e999}', "seconds"),
        (LINE[:-1] + b',"more":1}', "more"),
        (LINE[:-1] + b',"seed":"1"}', "seed"),
        (LINE + b" and more", "not JSON"),
        (LINE[:-20], "not JSON"),
        (LINE.replace(b'"model":', b'"model":"\xff",'), "not JSON"),
    ],
)
def test_what_is_odd_is_refused_by_its_key(line, words):
    with pytest.raises(RecordError, match=words):
        decode_dialogue(line)


def test_a_record_without_readout_does_not_mention_it():
    assert b"probabilities" not in LINE
    assert b"steps" not in LINE


@pytest.mark.parametrize("values", [b"[[NaN]]", b"[[1e999]]", b'[["1"]]', b"[0.5]", b"{}", b'"x"'])
def test_probabilities_that_are_no_numbers_are_refused(values):
    with pytest.raises(RecordError, match="probabilities|not a JSON number"):
        decode_dialogue(LINE.replace(b'"user":', b'"probabilities":' + values + b',"user":', 1))


def test_an_unknown_kind_of_steps_is_refused():
    with pytest.raises(RecordError, match="steps"):
        decode_dialogue(LINE[:-1] + b',"steps":"median"}')
