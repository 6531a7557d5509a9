"""mapo plan: the simulation against closed forms, rates, recommendations, the command."""

from __future__ import annotations

import json
import math
import tomllib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mapo.config import Config, read_config
from mapo.errors import InputError
from mapo.planning.bounds import LONGEST, PLACES, bounds
from mapo.planning.load import check, draw, server_names, servers_of, shape_of
from mapo.planning.plan import NEAR, make_plan
from mapo.planning.rates import EXAMPLE, merged, read_override, read_rates
from mapo.planning.simulate import Route, Server, Visit, simulate
from support.command import mapo

AGENTS = {"agents": "llm", "everyone": {"model": "m"}}


def route(*works: float, server: int = 0, **more) -> Route:
    return Route(tuple(Visit("policy", server, work) for work in works), **more)


def circle(turns: int, *works: float) -> Route:
    """Calls to servers 0, 1, 2 ... in turn, so many rounds."""
    return Route(tuple(Visit(f"r{i}", i, work) for _ in range(turns) for i, work in enumerate(works)))


def config(**rollout) -> Config:
    sizes = {"scenarios": 8, "siblings": 4, "max_turns": 5, "max_tokens": 200, **rollout}
    return read_config({"roles": AGENTS, "rollout": sizes}, "test")


def rates(**changes):
    """All calls take a fixed second; the judge is on its own server."""
    call = {"output": 10, "seconds": 1.0, "spread": 0.0}
    told = {
        "servers": {"policy": {"streams": 64}, "judge": {"streams": 2}, "everyone": {"streams": 64}},
        "calls": {role: dict(call) for role in ("policy", "judge", "director", "user")},
        "update": {"seconds": 0.0},
    }
    return read_rates(merged(told, changes), "test")


# ---- the simulation against closed forms


@pytest.mark.parametrize(("n", "k"), [(1, 1), (7, 3), (12, 4), (5, 8)])
def test_one_station_with_k_servers_and_a_fixed_time(n, k):
    got = simulate([route(2.0)] * n, [Server("s", slots=k)], at_once=n)
    assert got.seconds == 2.0 * math.ceil(n / k)
    assert got.roles["policy"].calls == n and got.roles["policy"].work == 2.0 * n
    # the i-th (from 0) is done after floor(i / k) + 1 rounds
    assert got.roles["policy"].stay == sum(2.0 * (i // k + 1) for i in range(n))


def test_without_contention_it_is_the_critical_path():
    routes = [circle(turns, 1.0, 0.5, 0.25) for turns in (3, 9, 5)]
    got = simulate(routes, [Server("a"), Server("b"), Server("c")], at_once=3)
    assert got.seconds == pytest.approx(9 * 1.75)
    assert sum(t.stay for t in got.roles.values()) == pytest.approx(17 * 1.75)


def test_a_saturated_server_obeys_the_bottleneck_law():
    servers = [Server("a", 64), Server("b", 2), Server("c", 64)]
    routes = [circle(20, 1.0, 0.5, 0.25)] * 32
    got = simulate(routes, servers, at_once=32)
    work = 32 * 20 * 0.5
    assert got.seconds == pytest.approx(work / 2, rel=0.02) and got.seconds >= work / 2
    assert bounds(routes, servers, 32)["b"] == work / 2


def test_few_places_for_dialogues():
    got = simulate([route(1.0, 1.0)] * 10, [Server("s")], at_once=3)
    assert got.seconds == 2.0 * math.ceil(10 / 3)


def test_shared_speed():
    # two calls on one stream's speed: both at half of it until the short one has done its 1 s of work at 2 s;
    # then the long one has 1 s left
    got = simulate([route(1.0), route(2.0)], [Server("s", full=1)], at_once=2)
    assert (got.seconds, got.roles["policy"].stay) == (3.0, 5.0)
    # n equal calls: n / full times as long
    assert simulate([route(2.0)] * 9, [Server("s", full=4.5)], at_once=9).seconds == pytest.approx(4.0)
    # two let in, which share; then the third alone
    assert simulate([route(1.0)] * 3, [Server("s", slots=2, full=1)], at_once=3).seconds == pytest.approx(3.0)


def test_siblings_wait_for_the_start_form_of_the_first():
    first = Route((Visit("start", 0, 5.0), Visit("policy", 0, 1.0)), head=1)
    second = route(1.0, follows=0)
    got = simulate([first, second, second], [Server("s")], at_once=3)
    assert got.seconds == 6.0 and got.roles["start"].calls == 1
    late = simulate([first, second], [Server("s")], at_once=1)  # it is answered when the second begins
    assert late.seconds == 7.0


works = st.lists(st.floats(0.01, 5), min_size=1, max_size=6)


@given(
    st.lists(works, min_size=1, max_size=8),
    st.integers(1, 5),
    st.floats(0.5, 6),
    st.integers(1, 9),
)
def test_nothing_beats_the_bounds_and_all_work_is_done(works_D, slots, full, at_once):
    routes = [
        Route(tuple(Visit(f"r{i % 2}", i % 2, work) for i, work in enumerate(works))) for works in works_D
    ]
    servers = [Server("a", slots, full), Server("b", slots + 1)]
    got = simulate(routes, servers, at_once)
    assert got.seconds >= max(bounds(routes, servers, at_once).values()) * (1 - 1e-9)
    assert sum(t.work for t in got.roles.values()) == pytest.approx(sum(r.work for r in routes))
    one = simulate(routes, servers[1:] * 2, at_once=1)
    assert one.seconds == pytest.approx(sum(r.work for r in routes))


# ---- the dialogues of a step


def test_the_calls_of_a_step_are_those_of_play():
    shape = shape_of(config())
    routes = draw(shape, rates(), seed=1)
    assert len(routes) == 32
    turn = ["policy", "judge", "director", "user"]
    assert [v.role for v in routes[5].visits] == turn * 4 + ["policy", "judge"]
    assert all(r.follows is None for r in routes)
    scripted = read_config({"rollout": {"max_turns": 3}}, "test")
    assert [v.role for v in draw(shape_of(scripted), rates(), 0)[0].visits] == ["policy"] * 3


def test_a_start_form_is_asked_for_once_a_scenario():
    told = rates(calls={"start": {"output": 10, "seconds": 2.0, "spread": 0.0}})
    routes = draw(shape_of(config()), told, 0)
    heads = [r.visits[0].role for r in routes]
    assert heads == ["start", "policy", "policy", "policy"] * 8
    assert [r.follows for r in routes[4:8]] == [None, 4, 4, 4] and routes[4].head == 1
    assert told.server_of("start") == "judge"


def test_work_of_a_call():
    server = {"streams": 8, "tokens_per_s": 50.0, "prefill_per_s": 1000.0, "latency": 0.25}
    judge = {"prompt": 1000, "growth": 100, "cached": 0.9, "output": 25, "seconds": 0.5}
    told = merged(rates().model_dump(exclude_none=True), {"servers": {"judge": server}})
    told["calls"]["judge"] = {**judge, "spread": 0.0}
    del told["calls"]["judge"]["seconds"]
    visits = draw(shape_of(config()), read_rates(told, "test"), 0)[0].visits
    third = [v for v in visits if v.role == "judge"][2]
    # 0.25 s + (1000 + 2 * 100) * 0.1 / 1000 + 25 / 50
    assert third.work == pytest.approx(0.25 + 0.12 + 0.5)
    assert (third.prompt, third.cached, third.output) == (1200, 1080, 25)


def test_spread_repeats_and_turns_have_their_means():
    told = rates(
        calls={"judge": {"spread": 0.5, "again": 1.25}, "policy": {"output": 150, "spread": 1.0}},
        dialogues={"turns": [2, 4, 9]},
    )
    shape = shape_of(config(scenarios=400))
    visits = [v for r in draw(shape, told, 3) for v in r.visits]
    turns = sum(r.turns for r in draw(shape, told, 3)) / shape.dialogues
    assert turns == pytest.approx((2 + 4 + 5) / 3, rel=0.03)  # at most max_turns
    judge = [v.work for v in visits if v.role == "judge"]
    policy = [v for v in visits if v.role == "policy"]
    assert len(judge) / len(policy) == pytest.approx(2.25, rel=0.03)
    assert sum(judge) / len(judge) == pytest.approx(1.0, rel=0.03)
    deviation = (sum((w - 1) ** 2 for w in judge) / len(judge)) ** 0.5
    assert deviation == pytest.approx(0.5, rel=0.1)
    assert max(v.output for v in policy) == 200  # rollout.max_tokens


def test_servers_have_what_replicas_and_requests_allow():
    told = rates(servers={"judge": {"tokens_per_s": 10, "throughput": 25, "replicas": 2}})
    shape = shape_of(read_config({"roles": {**AGENTS, "requests": 100}}, "test"))
    assert server_names(shape, told) == ["policy", "judge", "everyone"]
    policy, judge, everyone = servers_of(shape, told, {"policy": 3, "judge": 2, "everyone": 9})
    assert (policy.slots, policy.full) == (192, math.inf)
    assert (judge.slots, judge.full, judge.capacity) == (4, 5, 4)
    assert everyone.slots == 100
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
    assert (two.at_once, two.requests, two.requests_per_minute) == (10, 128, 14)
    assert two.tokens_per_minute is None


# ---- the plan


def test_a_judge_that_holds_everything_up_and_the_replicas_that_free_it():
    found = make_plan(shape_of(config(max_turns=10, at_once=32)), rates())
    # 32 dialogues x 10 turns x 1 s on 2 streams; every other call waits for nothing
    assert found.bottleneck == "judge" and found.bounds_s["judge"] == 160
    assert found.rollout_s == pytest.approx(160, rel=0.05) and found.step_s == found.rollout_s
    judge = next(s for s in found.servers if s.server == "judge")
    assert judge.utilisation == pytest.approx(160 / found.rollout_s)
    # nobody waits: 10 turns of policy and judge, 9 of director and user
    assert found.floor_s == pytest.approx(38) and found.floor_bottleneck in (LONGEST, PLACES)
    assert judge.recommended is not None
    tried = {t.replicas: t.over_floor for t in found.tries if t.server == "judge"}
    assert tried[judge.recommended] <= NEAR < tried[judge.recommended - 1]
    assert [s.recommended for s in found.servers if s.server != "judge"] == [None, 1]
    shares = {r.role: r.share for r in found.roles}
    assert sum(shares.values()) == pytest.approx(1) and shares["judge"] > 0.7
    assert {r.role: r.calls for r in found.roles} == {
        "policy": 320,
        "judge": 320,
        "director": 288,
        "user": 288,
    }


@pytest.mark.parametrize(
    ("at_once", "turns", "seconds", "spread"),
    [
        (8, 4, 2.0, 0.5),
        pytest.param(32, 6, 2.0, 0.5, marks=pytest.mark.slow),
        pytest.param(32, 8, 1.0, 0.0, marks=pytest.mark.slow),
        pytest.param(32, 6, 1.0, 0.5, marks=pytest.mark.slow),
    ],
)
def test_of_several_scarce_servers_none_could_have_less(at_once, turns, seconds, spread):
    calls = {"user": {"seconds": seconds, "spread": spread}, "judge": {"spread": spread}}
    scarce = {name: {"streams": 1} for name in ("judge", "user", "director")}
    shape = shape_of(config(max_turns=turns, at_once=at_once))
    found = make_plan(shape, rates(servers=scarce, calls=calls), draws=2)
    best = {s.server: s.recommended for s in found.servers if s.recommended}
    assert found.recommended_s <= NEAR * found.floor_s
    assert all(n > 1 for n in best.values()) and set(best) == set(scarce)
    for name in best:
        fewer = {k: {"streams": 1, "replicas": n - (k == name)} for k, n in best.items()}
        step_s = make_plan(shape, rates(servers=fewer, calls=calls), draws=2).step_s
        assert step_s > NEAR * found.floor_s, name


def test_updates_limits_and_notes():
    told = rates(
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
    found = make_plan(shape, told, draws=2)
    # 32 dialogues, the last prompt 100 + 4 * 50, and the reply of 10
    assert found.update_s == pytest.approx(32 * 310 / 320)
    # director and user share a server: 2 * 32 * 4 calls, 12 a minute
    assert found.limits_s == pytest.approx(256 / 12 * 60) and found.step_s == found.limits_s
    said = " ".join(found.notes)
    for word in ("roles.requests", "rollout.at_once", "dialogues.turns", "rollout.context", "a minute"):
        assert word in said
    scripted = make_plan(shape_of(read_config({}, "test")), rates(dialogues={"turns": 3}))
    assert "plain code" in scripted.notes[0] and not scripted.tries and len(scripted.servers) == 1


# ---- rates


def test_the_example_is_whole():
    told = read_rates(tomllib.loads(EXAMPLE), "example")
    check(shape_of(config()), told)
    assert told.server_of("judge") == "everyone" and told.servers["everyone"].full == 40


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"servers": {"judge": {"streams": 0}}}, "servers.judge.streams"),
        ({"servers": {"judge": {"throughput": 5}}}, "throughput needs"),
        ({"servers": {"judge": {"tokens_per_s": 9, "throughput": 5}}}, "throughput needs"),
        ({"calls": {"judge": {"outputs": 3}}}, "calls.judge.outputs"),
        ({"calls": {"judge": {"cached": 1.5}}}, "calls.judge.cached"),
        ({"update": {"tokens_per_s": 3}}, "either seconds or tokens_per_s"),
        ({"dialogues": {"turns": []}}, "empty list"),
    ],
)
def test_rates_that_cannot_be(change, told):
    with pytest.raises(InputError, match=told):
        rates(**change)


def test_rates_that_do_not_say_enough():
    shape = shape_of(config())
    with pytest.raises(InputError, match=r"no \[calls.user\]"):
        check(shape, rates(calls={"user": None}))
    with pytest.raises(InputError, match="how long a call of the judge takes"):
        check(shape, rates(calls={"judge": {"seconds": None}}))
    with pytest.raises(InputError, match=r"no \[servers.nobody\]"):
        check(shape, rates(calls={"user": {"server": "nobody"}}))
    with pytest.raises(InputError, match="rollout.max_tokens"):
        check(shape, rates(calls={"policy": {"output": 201}}))


def test_settings_are_toml_or_text():
    assert read_override("servers.judge.replicas=3") == {"servers": {"judge": {"replicas": 3}}}
    assert read_override("calls.user.server=judge") == {"calls": {"user": {"server": "judge"}}}
    with pytest.raises(InputError, match="no setting"):
        read_override("servers.=3")


# ---- the command


@pytest.fixture
def rates_file(tmp_path):
    path = tmp_path / "rates.toml"
    path.write_text(mapo("plan", "--example").stdout)
    return path


def test_the_command(rates_file):
    done = mapo("plan", "paper-8b", "--rates", rates_file, "rollout.at_once=64", "--draws", 2)
    assert done.returncode == 0, done.stderr
    for word in ("A step takes", "judge, director, user", "recommended", "over the least", "45 steps"):
        assert word in done.stdout
    assert "every dialogue is taken to last 15 turns" in done.stderr


def test_json_and_settings_of_both_kinds(rates_file):
    one = json.loads(mapo("plan", "paper-8b", "--rates", rates_file, "--json", "--draws", 2).stdout)
    assert one["schema"] == "mapo.plan/1" and one["measured_rollout_s"] is None
    assert one["step_s"] == pytest.approx(one["rollout_s"] + one["update_s"])
    got = mapo(
        "plan",
        "paper-8b",
        "--rates",
        rates_file,
        "--json",
        "--draws",
        2,
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
    done = mapo("plan", "pocket", "--rates", path)
    assert done.returncode == 0 and "plain code" in done.stderr and "over the least" not in done.stdout


@pytest.mark.parametrize(
    ("args", "told"),
    [
        ([], "nothing says what the servers can do"),
        (["--rates", "absent.toml"], "cannot be read"),
        (["--rates", "RATES", "a.toml", "b.toml"], "two configs"),
        (["--rates", "RATES", "absent.toml"], "no config"),
        (["--rates", "RATES", "rollout.scenarios=0"], "rollout.scenarios"),
        (["--rates", "RATES", "servers.judge.speed=3"], "servers.judge"),
        (["--from", "absent"], "no dialogues in it"),
    ],
)
def test_bad_input_is_refused_with_its_place(rates_file, args, told):
    done = mapo("plan", *(rates_file if arg == "RATES" else arg for arg in args))
    assert done.returncode == 2 and told in done.stderr
