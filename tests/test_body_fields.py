"""Free body fields: what may be sent, and how it is recorded."""

from __future__ import annotations

import datetime
import json

import pytest

from mapo.body_fields import (
    MAX_CHARS,
    check_body,
    check_effort,
    compact_body,
    merge_bodies,
    parse_body,
    with_thinking,
)
from mapo.errors import InputError


def nested(depth):
    return {"a": nested(depth - 1)} if depth else 1


def test_json_from_an_option():
    text = '{"chat_template_kwargs": {"enable_thinking": false}, "top_k": 20}'
    assert parse_body(text, "--body") == {"chat_template_kwargs": {"enable_thinking": False}, "top_k": 20}


@pytest.mark.parametrize(
    "text",
    [
        "thinking",
        "[1]",
        "3",
        "{",
        '{"a": NaN}',
        '{"a": 1e999}',
        '{"a": 1, "a": 2}',
        '{"a": "\\ud800"}',
        '{"a": %s}' % ("9" * 4000),
        '{"a": "%s"}' % ("x" * MAX_CHARS),
        '{"a":' * 500 + "1" + "}" * 500,
        "[" * 4000,
    ],
)
def test_what_is_no_small_json_object_is_refused_in_one_line(text):
    with pytest.raises(InputError) as error:
        parse_body(text, "--judge-body")
    assert str(error.value).startswith("--judge-body: ")
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    "name", ["messages", "model", "stream", "tools", "n", "response_format", "max_tokens"]
)
def test_what_mapo_sends_itself_cannot_be_replaced(name):
    with pytest.raises(InputError, match=f"'{name}' is set by mapo"):
        check_body({name: 1})


@pytest.mark.parametrize(
    "body",
    [
        {"api_key": "x"},
        {"Authorization": "x"},
        {"extra_headers": {"a": "b"}},
        {"provider": {"openai-api-key": "x"}},
        {"a": [{"client_secret": 1}]},
        {"a": "sk-abcdefgh12345"},
        {"a": "Bearer abcdefgh12345"},
    ],
)
def test_secrets_are_refused(body):
    with pytest.raises(InputError, match="environment variable") as error:
        check_body(body)
    assert "abcdefgh" not in str(error.value)


def test_names_about_tokens_and_thinking_are_not_secrets():
    body = {
        "thinking_budget": 10,
        "stop_token_ids": [1],
        "max_thinking_tokens": 5,
        "reasoning": {"max_tokens": 9},
    }
    assert check_body(body) == body


def test_depth_is_limited():
    assert check_body(nested(8))
    with pytest.raises(InputError, match="nested deeper than 8"):
        check_body(nested(9))


def test_values_that_are_no_json_are_refused():
    with pytest.raises(InputError, match="type date is not JSON"):
        check_body({"a": datetime.date(2020, 1, 1)})


def test_thinking_is_a_field_of_the_chat_template():
    body = {"chat_template_kwargs": {"other": 1}, "top_k": 2}
    expected = {"chat_template_kwargs": {"other": 1, "enable_thinking": False}, "top_k": 2}
    assert with_thinking(body, thinking=False) == expected
    assert with_thinking(body, thinking=None) == body


def test_thinking_and_a_field_that_contradicts_it_are_refused():
    with pytest.raises(InputError, match="Set one of the two"):
        with_thinking({"chat_template_kwargs": {"enable_thinking": True}}, thinking=False)


def test_merging_keeps_the_other_fields_of_the_template():
    first, second = {"chat_template_kwargs": {"a": 1, "b": 1}, "top_k": 1}, {"chat_template_kwargs": {"b": 2}}
    assert merge_bodies(first, second) == {"chat_template_kwargs": {"a": 1, "b": 2}, "top_k": 1}


def test_the_compact_form():
    body = {"top_k": 20, "chat_template_kwargs": {"enable_thinking": False}, "empty": {}}
    assert compact_body(body) == "chat_template_kwargs.enable_thinking=false empty={} top_k=20"


def test_odd_names_are_quoted_in_the_compact_form():
    assert compact_body({"a.b": 1}) != compact_body({"a": {"b": 1}})
    assert compact_body({"\x1b[31m\n": 1}) == '"\\u001b[31m\\n"=1'


def test_long_fields_are_cut_in_the_compact_form_and_stay_distinct():
    one, other = ({"stop": ["x" * 300 + end]} for end in "ab")
    assert compact_body(one) != compact_body(other)
    assert max(len(compact_body(one)), len(compact_body(other))) <= 120


@pytest.mark.parametrize("effort", ["", "a b", "x" * 33, 3, "low\n"])
def test_a_reasoning_effort_is_one_word(effort):
    with pytest.raises(InputError, match="is not a reasoning effort"):
        check_effort(effort)


def test_checked_fields_are_plain_json():
    body = check_body({"a": (1, 2.5, None, True), "b": {"c": "ü"}})
    assert json.loads(json.dumps(body)) == body
