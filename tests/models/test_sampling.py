"""Sampling parameters of a role: what they override, and their name in records."""

from __future__ import annotations

import pytest

from mapo.errors import InputError
from mapo.models.chat import DEFAULT_SAMPLING, Request, Sampling
from mapo.types import Message

REQUEST = Request((Message("user", "hello"),), body={"chat_template_kwargs": {"a": 1}})


def test_nothing_is_overridden_by_default():
    assert DEFAULT_SAMPLING.of(REQUEST) == REQUEST
    assert str(DEFAULT_SAMPLING) == ""


def test_body_fields_are_added_to_those_of_the_request():
    sampling = Sampling(reasoning_effort="low", body={"chat_template_kwargs": {"enable_thinking": False}})
    expected = {"chat_template_kwargs": {"a": 1, "enable_thinking": False}, "reasoning_effort": "low"}
    assert sampling.of(REQUEST).body == expected


def test_the_reasoning_effort_is_a_body_field_and_may_be_given_as_one():
    assert Sampling(body={"reasoning_effort": "low"}) == Sampling(reasoning_effort="low")


def test_the_name_in_records_is_compact():
    sampling = Sampling(0.5, max_tokens=64, reasoning_effort="low", body={"top_k": 20, "a": {"b": True}})
    assert str(sampling) == "temperature 0.5, max_tokens 64, reasoning_effort low, body a.b=true top_k=20"


def test_a_sampling_can_be_a_key():
    assert len({Sampling(body={"top_k": 1}), Sampling(body={"top_k": 1}), Sampling()}) == 2


def test_wrong_fields_are_refused_before_any_call():
    with pytest.raises(InputError, match="'messages' is set by mapo"):
        Sampling(body={"messages": []})
    with pytest.raises(InputError, match="reasoning effort"):
        Sampling(reasoning_effort="very high")
