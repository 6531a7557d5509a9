"""mapo plan: the bounds against hand-computed values, rates, recommendations, the command."""

from __future__ import annotations

import json
import tomllib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mapo.config import Config, read_config
from mapo.errors import InputError
from mapo.planning.demand import (
    check,
    dialogue_demand,
    longest_dialogue_s,
    roles_of,
    shape_of,
    step_demand,
)
from mapo.planning.plan import CONCURRENCY, LONGEST, make_plan
from mapo.planning.rates import EXAMPLE, merged, read_override, read_rates
from support.command import mapo

AGENTS = {"agents": "llm", "everyone": {"model": "m"}}


def config(**rollout) -> Config:
    sizes = {"scenarios": 8, "siblings": 4, "max_turns": 5, "max_tokens": 200, **rollout}
    return read_config({"roles": AGENTS, "rollout": sizes}, "test")


def rates(**changes):
    """All calls take a fixed second; the judge is on its own server."""
    call = {"output": 10, "seconds": 1.0}
    stated = {
        "servers": {"policy": {"streams": 64}, "judge": {"streams": 2}, "everyone": {"streams": 64}},
        "calls": {role: dict(call) for role in ("policy", "judge", "director", "user")},
        "update": {"seconds": 0.0},
    }
    return read_rates(merged(stated, changes), "test")


# ---- the work of a step


def test_the_calls_of_a_step_are_those_of_play():
    stated = rates(calls={"judge": {"again": 0.25}})
    shape = shape_of(config())
    # 32 dialogues of 5 turns: policy and judge in each, director and user in all but the last
    calls = {role: step_demand(shape, stated, role).calls for role in roles_of(shape, stated)}
    assert calls == {"policy": 160, "judge": 200, "director": 128, "user": 128}


def test_scripted_roles_make_no_calls():
    assert roles_of(shape_of(read_config({}, "test")), rates()) == ["policy"]


def test_a_start_form_is_asked_for_once_per_scenario_and_delays_every_dialogue():
    stated = rates(calls={"start": {"output": 10, "seconds": 2.0}})
    shape = shape_of(config())
    assert stated.server_of("start") == "judge"
    assert step_demand(shape, stated, "start").seconds == 8 * 2.0
    assert longest_dialogue_s(shape, stated) == 2.0 + 5 + 5 + 4 + 4


def test_demand_of_a_call():
    server = {"streams": 8, "tokens_per_s": 50.0, "prefill_per_s": 1000.0, "latency": 0.25}
    stated = merged(rates().model_dump(exclude_none=True), {"servers": {"judge": server}})
    stated["calls"]["judge"] = {"prompt": 1000, "growth": 100, "cached": 0.9, "output": 25}
    found = dialogue_demand(read_rates(stated, "test"), "judge", 3)
    # per turn 0.25 s + fresh prompt tokens / 1000 + 25 / 50; prompts of 1000, 1100 and 1200 tokens
    assert found.seconds == pytest.approx(3 * 0.75 + 3300 * 0.1 / 1000)
    assert (found.prompt, found.cached, found.output) == (3300, 2970, 75)


def test_turns_are_capped_and_averaged():
    stated = rates(dialogues={"turns": [2, 4, 9]})
    found = step_demand(shape_of(config()), stated, "policy")
    assert found.calls == pytest.approx(32 * (2 + 4 + 5) / 3)  # max_turns is 5


def test_the_longest_of_several_dialogues():
    stated = rates(dialogues={"turns": [2, 4]})
    shape = shape_of(config(scenarios=1, siblings=3))
    # a dialogue of n turns takes n + n + (n - 1) + (n - 1) s; all three are short with probability 1/8
    assert longest_dialogue_s(shape, stated) == pytest.approx(6 / 8 + 14 * 7 / 8)


def test_processes_have_their_own_dialogues_and_share_the_limits():
    two = shape_of(
        read_config(
            {
                "roles": {**AGENTS, "requests_per_minute": 7},
                "run": {"processes": 2},
                "rollout": {"at_once": 5},
            },
            "test",
        )
    )
    assert (two.at_once, two.requests, two.requests_per_minute) == (10, 64, 7)
    assert two.tokens_per_minute is None


# ---- the plan


def test_a_slow_judge_is_the_bottleneck_and_gets_replicas():
    found = make_plan(shape_of(config(max_turns=10, at_once=32)), rates())
    # 32 dialogues x 10 turns x 1 s on 2 streams
    assert found.bottleneck == "judge"
    assert found.rollout_s == found.step_s == found.bounds_s["judge"] == 160
    # 10 turns of policy and judge, 9 of director and user
    assert found.floor_s == pytest.approx(38) and found.floor_bottleneck in (LONGEST, CONCURRENCY)
    # 320 s of work in 38 s on 2 streams per replica: 4.2
    assert [s.recommended for s in found.servers] == [None, 5, 1]
    assert found.recommended_s == found.floor_s
    assert {r.role: r.share for r in found.roles} == pytest.approx(
        {"policy": 10 / 38, "judge": 10 / 38, "director": 9 / 38, "user": 9 / 38}
    )


def test_few_concurrent_dialogues_bound_the_rollout():
    found = make_plan(shape_of(config(at_once=8)), rates(servers={"judge": {"streams": 64}}))
    # 32 dialogues of 18 s, 8 at a time
    assert found.bottleneck == CONCURRENCY and found.rollout_s == pytest.approx(32 * 18 / 8)


def test_throughput_limits_a_replica():
    stated = rates(servers={"judge": {"streams": 64, "tokens_per_s": 10, "throughput": 25, "replicas": 2}})
    # 160 calls of 1 s; a replica does 2.5 s of work per second
    assert make_plan(shape_of(config()), stated).bounds_s["judge"] == pytest.approx(160 / 5)


def test_requests_limit_every_server_but_the_policys():
    roles = {**AGENTS, "requests": 4}
    sizes = {"scenarios": 8, "siblings": 4, "max_turns": 5, "at_once": 32}
    shape = shape_of(read_config({"roles": roles, "rollout": sizes}, "test"))
    found = make_plan(shape, rates(servers={"judge": {"streams": 64}}))
    assert found.bounds_s["judge"] == 160 / 4 and found.bounds_s["policy"] == 160 / 64
    assert found.floor_s == found.step_s == found.bounds_s["everyone"] == 256 / 4


counts = st.integers(1, 40)


@given(counts, counts, counts, counts, st.floats(0.1, 5))
def test_recommended_replicas_reach_the_floor_and_one_less_does_not(streams, users, turns, at_once, seconds):
    shape = shape_of(config(max_turns=turns, at_once=at_once))
    servers = {"judge": {"streams": streams}, "user": {"streams": users}}
    found = make_plan(shape, rates(servers=servers, calls={"user": {"seconds": seconds}}))
    assert found.floor_s <= found.step_s * (1 + 1e-9)
    assert found.recommended_s == pytest.approx(found.floor_s)
    for server in found.servers:
        if server.recommended and server.recommended > 1:
            one_less = {server.server: {"replicas": server.recommended - 1}}
            fewer = rates(servers=merged(servers, one_less), calls={"user": {"seconds": seconds}})
            assert make_plan(shape, fewer).step_s > found.floor_s


def test_updates_limits_and_notes():
    stated = rates(
        calls={"policy": {"prompt": 100, "growth": 50}}, update={"seconds": None, "tokens_per_s": 320}
    )
    shape = shape_of(
        read_config(
            {
                "roles": {**AGENTS, "requests": 4, "requests_per_minute": 12, "tokens_per_minute": 100000},
                "rollout": {"scenarios": 8, "siblings": 4, "max_turns": 5, "at_once": 16, "context": 300},
            },
            "test",
        )
    )
    found = make_plan(shape, stated)
    # 32 dialogues, the last prompt 100 + 4 * 50, and the reply of 10
    assert found.update_s == pytest.approx(32 * 310 / 320)
    # director and user share a server: 2 * 32 * 4 calls, 12 a minute
    assert found.limits_s == pytest.approx(256 / 12 * 60) and found.step_s == found.limits_s
    notes = " ".join(found.notes)
    for word in ("roles.requests", "rollout.at_once", "dialogues.turns", "rollout.context", "per minute"):
        assert word in notes
    scripted = make_plan(shape_of(read_config({}, "test")), rates(dialogues={"turns": 3}))
    assert "scripted roles take no time" in scripted.notes[0] and len(scripted.servers) == 1


# ---- rates


def test_the_example_is_complete():
    stated = read_rates(tomllib.loads(EXAMPLE), "example")
    check(shape_of(config()), stated)
    assert stated.server_of("judge") == "everyone" and stated.servers["everyone"].full == 40


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"servers": {"judge": {"streams": 0}}}, "servers.judge.streams"),
        ({"servers": {"judge": {"throughput": 5}}}, "throughput needs"),
        ({"servers": {"judge": {"tokens_per_s": 9, "throughput": 5}}}, "throughput needs"),
        ({"calls": {"judge": {"outputs": 3}}}, "calls.judge.outputs"),
        ({"calls": {"judge": {"cached": 1.5}}}, "calls.judge.cached"),
        ({"update": {"tokens_per_s": 3}}, "either seconds or tokens_per_s"),
        ({"dialogues": {"turns": []}}, "must not be an empty list"),
    ],
)
def test_invalid_rates_are_rejected(change, message):
    with pytest.raises(InputError, match=message):
        rates(**change)


def test_rates_files_with_a_spread_are_still_read():
    assert rates(calls={"judge": {"spread": 0.3}}).calls.judge.spread == 0.3


def test_incomplete_rates_are_rejected():
    shape = shape_of(config())
    with pytest.raises(InputError, match=r"no \[calls.user\]"):
        check(shape, rates(calls={"user": None}))
    with pytest.raises(InputError, match="the duration of a judge call is not set"):
        check(shape, rates(calls={"judge": {"seconds": None}}))
    with pytest.raises(InputError, match=r"no \[servers.nobody\]"):
        check(shape, rates(calls={"user": {"server": "nobody"}}))
    with pytest.raises(InputError, match="rollout.max_tokens"):
        check(shape, rates(calls={"policy": {"output": 201}}))


def test_settings_are_toml_or_text():
    assert read_override("servers.judge.replicas=3") == {"servers": {"judge": {"replicas": 3}}}
    assert read_override("calls.user.server=judge") == {"calls": {"user": {"server": "judge"}}}
    with pytest.raises(InputError, match="not a setting"):
        read_override("servers.=3")


# ---- the command


@pytest.fixture
def rates_file(tmp_path):
    path = tmp_path / "rates.toml"
    path.write_text(mapo("plan", "--example").stdout)
    return path


def test_the_command(rates_file):
    done = mapo("plan", "paper-8b", "--rates", rates_file, "rollout.at_once=64")
    assert done.returncode == 0, done.stderr
    for word in ("A step takes at least", "lower bounds", "Recommended", "everyone", "44 steps"):
        assert word in done.stdout
    assert "every dialogue is assumed to last 15 turns" in done.stderr


def test_json_and_settings_of_both_kinds(rates_file):
    one = json.loads(mapo("plan", "paper-8b", "--rates", rates_file, "--json").stdout)
    assert one["schema"] == "mapo.plan/2" and one["measured_rollout_s"] is None
    assert one["step_s"] == pytest.approx(one["rollout_s"] + one["update_s"])
    got = mapo(
        "plan",
        "paper-8b",
        "--rates",
        rates_file,
        "--json",
        "rollout.scenarios=4",
        "servers.everyone.replicas=3",
        "dialogues.turns=[4]",
        "rollout.max_tokens=120",
    )
    two = json.loads(got.stdout)
    assert two["shape"]["scenarios"] == 4 and two["turns"] == 4 and two["step_s"] < one["step_s"]
    assert [s["replicas"] for s in two["servers"]] == [1, 3]


def test_scripted_roles_need_no_server(tmp_path):
    path = tmp_path / "r.toml"
    path.write_text(
        "servers.policy.streams = 8\ncalls.policy = {output = 20, seconds = 0.1}\nupdate.seconds = 1"
    )
    done = mapo("plan", "pocket", "roles.judge.model=", "--rates", path)
    assert (
        done.returncode == 0
        and "scripted roles take no time" in done.stderr
        and "unlimited replicas" not in done.stdout
    )


@pytest.mark.parametrize(
    ("args", "message"),
    [
        ([], "the server speeds are not known"),
        (["--rates", "absent.toml"], "cannot be read"),
        (["--rates", "RATES", "a.toml", "b.toml"], "more than one config"),
        (["--rates", "RATES", "absent.toml"], "no config"),
        (["--rates", "RATES", "rollout.scenarios=0"], "rollout.scenarios"),
        (["--rates", "RATES", "servers.judge.speed=3"], "servers.judge"),
        (["--from", "absent"], "there are no dialogues in it"),
    ],
)
def test_bad_input_is_rejected_with_its_place(rates_file, args, message):
    done = mapo("plan", *(rates_file if arg == "RATES" else arg for arg in args))
    assert done.returncode == 2 and message in done.stderr


def test_output_fits_80_columns(rates_file, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    lines = mapo("plan", "paper-8b", "--rates", rates_file).stdout.splitlines()
    assert max(map(len, lines)) <= 80


def test_a_missing_section_is_named_with_the_way_to_set_it():
    data = tomllib.loads(EXAMPLE)
    del data["update"]
    with pytest.raises(InputError, match=r"the rates lack \[update\].*--rates.*update.seconds=30"):
        read_rates(data, "runs/eval")


def test_a_step_with_fewer_dialogues_than_at_once_is_not_bound_by_that_setting():
    from mapo.planning.demand import Shape
    from mapo.planning.plan import CONCURRENCY
    from mapo.planning.table import _name

    few = Shape(3, 2, 12, 512, at_once=64, requests=8, agents=True)
    assert _name(CONCURRENCY, few) == "the number of dialogues per step (6, all concurrent)"
    many = Shape(16, 8, 12, 512, at_once=64, requests=8, agents=True)
    assert "rollout.at_once" in _name(CONCURRENCY, many)
