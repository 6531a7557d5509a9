"""Who plays: names, addresses and keys in commands and configs; panels in sessions and manifests."""

from __future__ import annotations

import asyncio
import json

import pytest

from mapo.config import load_config, read_config
from mapo.errors import InputError
from mapo.measure.rubric import Rubric
from mapo.models.chat import Sampling
from mapo.players.casting import cast_from_config, cast_from_options, with_judge_panel, with_sampling
from mapo.players.session import ModelSession, open_cast
from mapo.players.spec import ModelSpec, PanelSpec, PartialSpec, inherit, models_by_role, parse_judges
from mapo.testing.server import LoopbackServer
from mapo.testing.world import ROLES, world
from support.command import mapo

TWO = 'roles.judges=[{model="a", temperature=0.3}, {model="b", base_url="http://there/v1"}]'
MODELS = ("roles.agents=llm", "roles.everyone.model=big", "roles.everyone.base_url=http://here/v1")


HERE, THERE = "http://here/v1", "http://there/v1"


@pytest.mark.parametrize(
    ("own", "default", "expected"),
    [
        ((None, None, None), ("m", HERE, "KEY"), ("m", HERE, "KEY")),
        (("own", None, None), ("m", HERE, "KEY"), ("own", HERE, "KEY")),
        (("own", HERE, None), ("m", HERE, "KEY"), ("own", HERE, "KEY")),  # the same address has the same key
        (("own", f"{HERE}/", None), ("m", HERE, "KEY"), ("own", f"{HERE}/", "KEY")),
        (("own", THERE, None), ("m", HERE, "KEY"), ("own", THERE, "")),  # the key is not sent elsewhere
        ((None, THERE, None), ("m", None, "KEY"), ("m", THERE, "")),  # nor from the default address
        (
            ("own", "https://api.openai.com/v1", None),
            ("m", HERE, "KEY"),
            ("own", "https://api.openai.com/v1", None),
        ),
        ((None, THERE, "OWN"), ("m", HERE, "KEY"), ("m", THERE, "OWN")),
        ((None, None, "OWN"), ("m", HERE, "KEY"), ("m", HERE, "OWN")),
        ((None, None, None), ("m", None, "KEY"), ("m", None, "KEY")),
        ((None, "", ""), ("m", HERE, "KEY"), ("m", HERE, "KEY")),  # empty is missing
        (("own", HERE, "OWN"), (None, None, None), ("own", HERE, "OWN")),
        ((None, None, None), (None, None, None), (None, None, None)),
    ],
)
def test_a_model_inherits_what_it_lacks_and_a_key_only_with_its_address(own, default, expected):
    assert inherit(PartialSpec(*own), PartialSpec(*default)) == expected


def test_options_and_config_inherit_alike():
    everyone, judge = PartialSpec("m", HERE, "KEY"), PartialSpec("j", THERE)
    cast = cast_from_options(None, everyone, user=PartialSpec(), director=PartialSpec(), judge=judge)
    assert cast == {
        "user": ModelSpec("m", HERE, "KEY"),
        "director": ModelSpec("m", HERE, "KEY"),
        "judge": ModelSpec("j", THERE, ""),
    }
    config = ["roles.agents=llm", f"roles.everyone={{model='m', base_url='{HERE}', key_env='KEY'}}"]
    config.append(f"roles.judge={{model='j', base_url='{THERE}'}}")
    assert cast_from_config(load_config(None, config)) == cast


def test_a_model_without_a_name_is_refused():
    with pytest.raises(InputError, match="no model is named"):
        PartialSpec(None, HERE).complete()


def test_judges_are_named_with_or_without_an_address():
    here = PartialSpec(base_url="http://here/v1")
    plain, placed, odd = parse_judges(["a", "b@https://there:1/v1", "x@y"], here, ["KEY"])
    assert plain == ModelSpec("a", "http://here/v1", "KEY")
    assert (placed.model, placed.base_url) == ("b", "https://there:1/v1")
    assert (odd.model, odd.base_url) == ("x@y", "http://here/v1")
    assert [w.key_env for w in parse_judges(["a", "b"], here, ["K1", "K2"])] == ["K1", "K2"]
    assert parse_judges(["a"], here)[0].key_env == "OPENAI_API_KEY"
    for named, keys in ((["@http://x/v1"], []), ([" "], []), (["a", "b", "c"], ["K1", "K2"])):
        with pytest.raises(InputError):
            parse_judges(named, here, keys)


def test_a_panel_is_told_by_its_members():
    here, there = ModelSpec("a", "http://here/v1"), ModelSpec("a", "http://there/v1")
    assert str(PanelSpec((here, ModelSpec("b")))) == "panel of a, b"
    assert str(PanelSpec((here, here, ModelSpec("b")), "alternate")) == "one at a time of a, a #2, b"
    assert PanelSpec((here, there)).names == ["a", "a #2"]
    assert list(models_by_role({"user": here, "judge": PanelSpec((here, there))})) == [
        "user",
        "judge 1",
        "judge 2",
    ]
    assert models_by_role(None) == {}


def test_configs_name_several_judges():
    cast = cast_from_config(load_config(None, [*MODELS, TWO, "roles.everyone.top_p=0.9"]))
    panel = cast["judge"]
    assert panel.mode == "panel" and str(cast["user"]) == "big (top_p 0.9)"
    assert [(w.model, w.base_url, w.sampling.temperature, w.sampling.top_p) for w in panel.members] == [
        ("a", "http://here/v1", 0.3, 0.9),
        ("b", "http://there/v1", None, 0.9),
    ]
    again = cast_from_config(load_config(None, [*MODELS, TWO, "roles.judging=alternate"]))
    assert again["judge"].mode == "alternate"


@pytest.mark.parametrize(
    ("told", "problem"),
    [
        ([*MODELS, 'roles.judges=[{model="a"}]'], "at least two judges"),
        ([*MODELS, TWO, "roles.judge.model=c"], "replaces roles.judge"),
        ([TWO], "roles.judges are models"),
        (
            ["roles.agents=llm", "roles.user.model=u", "roles.director.model=d", "roles.judges=[{},{}]"],
            "judge 1",
        ),
        ([*MODELS, TWO, "roles.judging=alternate", "advantage.scope=batch"], "compares groups"),
        ([*MODELS, TWO, "roles.judging=alternate", "advantage.method=reinforce++"], "compares groups"),
        ([*MODELS, TWO, "roles.judging=vote"], "roles.judging"),
    ],
)
def test_judges_that_cannot_be_meant_are_refused(told, problem):
    with pytest.raises(InputError, match=problem):
        load_config(None, told)


THINKING = "roles.judge.body={chat_template_kwargs={enable_thinking=true}, top_k=5}"


def test_roles_think_as_the_config_says():
    told = [*MODELS, "roles.everyone.thinking=false", "roles.user.reasoning_effort=low", THINKING]
    cast = cast_from_config(load_config(None, told))
    off = {"chat_template_kwargs": {"enable_thinking": False}}
    assert cast["director"].sampling.body == off
    assert cast["user"].sampling.body == {**off, "reasoning_effort": "low"}
    assert cast["judge"].sampling.body == {"chat_template_kwargs": {"enable_thinking": True}, "top_k": 5}


def test_body_fields_of_a_config_may_be_json():
    told = [*MODELS, 'roles.judge.body={"chat_template_kwargs": {"enable_thinking": true}, "top_k": 5}']
    assert cast_from_config(load_config(None, told)) == cast_from_config(
        load_config(None, [*MODELS, THINKING])
    )


def test_a_config_with_body_fields_is_written_and_read_back():
    import tomllib

    from mapo.config import dump_config

    config = load_config(None, [*MODELS, THINKING, "roles.user.thinking=true"])
    assert read_config(tomllib.loads(dump_config(config)), "x") == config


@pytest.mark.parametrize(
    ("override", "problem"),
    [
        ("roles.judge.body={messages=[]}", "roles.judge.body: the field 'messages' is set by mapo"),
        ("roles.judge.body={api_key='x'}", "may hold a secret"),
        ("roles.judge.body=3", "not a JSON object"),
        ("roles.judge.body={a=2020-01-01}", "type date is not JSON"),
        ("roles.user.reasoning_effort='very high'", "not a reasoning effort"),
        ("roles.user={thinking=true, body={chat_template_kwargs={enable_thinking=false}}}", "differently"),
        ("roles.user={reasoning_effort='low', body={reasoning_effort='high'}}", "set one of the two"),
    ],
)
def test_body_fields_that_cannot_be_sent_are_refused(override, problem):
    with pytest.raises(InputError, match=problem):
        load_config(None, [*MODELS, override])


def test_a_config_of_several_judges_is_written_and_read_back():
    import tomllib

    from mapo.config import dump_config

    config = load_config(None, [*MODELS, TWO])
    assert read_config(tomllib.loads(dump_config(config)), "x") == config


def test_the_command_line_takes_a_panel():
    judge = ModelSpec("j", "http://here/v1", "KEY")
    cast = dict.fromkeys(("user", "director", "judge"), judge)
    panel = with_judge_panel(cast, "a, b@http://there/v1")["judge"]
    assert [(w.model, w.base_url, w.key_env) for w in panel.members] == [
        ("a", "http://here/v1", "KEY"),
        ("b", "http://there/v1", ""),  # a key goes to the address it was given for
    ]
    assert with_judge_panel(cast, None) == cast and with_judge_panel(None, None) is None
    warm = with_sampling({**cast, "judge": panel}, judge=Sampling(0.5), user=Sampling())
    assert [w.sampling.temperature for w in warm["judge"].members] == [0.5, 0.5]
    for given, named in ((None, "a,b"), (cast, "a")):
        with pytest.raises(InputError, match="--judge-panel"):
            with_judge_panel(given, named)


@pytest.mark.parametrize("way", ["panel", "alternate"])
def test_a_training_is_judged_as_its_config_says(way, tmp_path):
    from mapo.sandbox.cast import Job
    from mapo.sandbox.rollout import Rules, play_all
    from mapo.scenarios.sets import load_scenarios
    from mapo.testing.fakes import FakeChat

    def answer(body):
        if body["model"] in ("j1", "j2", "j3"):
            return world(lambda _: int(body["model"][1]) - 1)({**body, "model": "judge"})
        return (
            '{"act": "go_on", "item": "", "reason": "x"}' if "tools" in body else "Well. That is how it is."
        )

    async def played(url):
        told = ["roles.agents=llm", "roles.everyone.model=big", f"roles.everyone.base_url={url}"]
        told += ['roles.judges=[{model="j1"}, {model="j2"}, {model="j3"}]', f"roles.judging={way}"]
        assert cast_from_config(load_config(None, told))["judge"].require_all  # siblings are compared
        rules = Rules(Rubric.load("empathy"), min_turns=1, max_turns=1)
        scenarios = load_scenarios("builtin:validation")[:6]
        jobs = [Job(s, f"{s.id}_{k}", group=s.id, step=1) for s in scenarios for k in range(2)]
        async with open_cast(load_config(None, told), tmp_path) as (casting, flush, _):
            found = await play_all(jobs, lambda _: FakeChat(lambda _: "Mm."), casting, rules)
            flush()
        return found

    with LoopbackServer(answer) as server:
        dialogues = asyncio.run(played(server.base_url))
    judges = {}
    for dialogue in dialogues:
        judges.setdefault(dialogue.group, set()).add(dialogue.cast["judge"])
    if way == "panel":
        assert {d.turns[0].levels["C"].progress.level for d in dialogues} == {1}
        assert all(len(d.turns[0].panel) == 3 for d in dialogues)
    else:
        assert all(len(own) == 1 for own in judges.values())  # siblings share their judge
        assert len(set.union(*judges.values())) > 1  # and scenarios do not
        levels = {d.cast["judge"]: d.turns[0].levels["C"].progress.level for d in dialogues}
        assert all(level == int(name[1]) - 1 for name, level in levels.items())
    ledger = json.loads((tmp_path / "ledger.json").read_text())
    assert {row["model"] for row in ledger["rows"] if row["role"] == "judge"} >= {"j2"}


@pytest.fixture
def limits_of(tmp_path, monkeypatch):
    """Return the concurrency and requests per minute that one of several processes gets."""
    opened = []
    real = ModelSession.casting

    def casting(session, *args):
        opened.append((session.concurrency, session.requests_per_minute))
        return real(session, *args)

    monkeypatch.setattr(ModelSession, "casting", casting)

    async def open_one(config, rank, processes):
        async with open_cast(config, tmp_path, rank, processes):
            return opened[-1]

    return lambda rank, processes, *overrides: asyncio.run(
        open_one(load_config(None, [*MODELS, *overrides]), rank, processes)
    )


def test_processes_divide_limits_without_remainder(limits_of):
    overrides = ("roles.requests=7", "roles.requests_per_minute=10")
    assert [limits_of(rank, 3, *overrides) for rank in range(3)] == [(3, 4), (2, 3), (2, 3)]


def test_a_limit_smaller_than_the_number_of_processes_is_refused(limits_of):
    with pytest.raises(InputError, match=r"roles.requests_per_minute is 2, but 3 processes share it"):
        limits_of(0, 3, "roles.requests_per_minute=2")


def test_one_model_on_several_seats_shares_its_endpoint_and_no_answers():
    async def judges():
        async with ModelSession() as session:
            who = ModelSpec("a", "http://127.0.0.1:9/v1")
            found = await session.judges(
                PanelSpec((who, who, ModelSpec("b", "http://127.0.0.1:9/v1"))), Rubric.load("empathy")
            )
            for endpoint, left in zip(session._endpoints, ("seed", "top_p"), strict=True):
                endpoint.left_out.add(left)
            return found, session.left_out()

    found, left_out = asyncio.run(judges())
    assert [member.name for member in found] == ["a", "a #2", "b"]
    assert left_out == {"judge": ["seed", "top_p"]}


def test_a_panel_evaluates_over_http_and_is_the_identity_of_the_result(tmp_path):
    play = world()

    def answer(body):
        name = body["model"]
        if name.startswith("judge"):
            up = int(name[-1]) - 1
            return world(lambda _: up)({**body, "model": "judge"})
        return play(body)

    def run(out, *more):
        with LoopbackServer(answer, models=ROLES) as server:
            url = server.base_url
            return mapo(
                *("eval", "empa", "--model", "policy", "--base-url", url, "--agents-model", "user"),
                *("--agents-base-url", url, "--director-model", "director", "--out", tmp_path / out),
                *("--cases", "career-tied-up", "--max-turns", 2, *more),
            )

    done = run("panel", "--judge-panel", "judge1,judge2,judge3")
    assert done.returncode == 0, done.stderr
    [line] = (tmp_path / "panel" / "dialogues" / "empa.jsonl").read_text().splitlines()
    record = json.loads(line)
    assert record["cast"]["judge"] == "panel of judge1, judge2, judge3"
    assert record["turns"][0]["levels"]["C"]["progress"]["level"] == 1
    assert set(record["turns"][0]["panel"]) == {"judge1", "judge2", "judge3"}
    manifest = json.loads((tmp_path / "panel" / "manifest.json").read_text())
    assert manifest["cast"]["judge"] == "panel of judge1, judge2, judge3"
    assert {"judge 1", "judge 2", "judge 3"} <= set(manifest["addresses"])
    # a resume with another panel is another run, and another judge is another column
    assert "another one" in run("panel", "--judge-panel", "judge1,judge2", "--resume").stderr
    assert run("single", "--judge-model", "judge2").returncode == 0
    compared = mapo("compare", f"a={tmp_path / 'panel'}", f"b={tmp_path / 'single'}", "--json")
    columns = [c["label"] for c in json.loads(compared.stdout)["columns"]]
    assert any("judge panel of judge1, judge2, judge3" in c for c in columns)
    assert any(c.endswith("judge judge2") for c in columns)


def test_a_panel_judges_whoever_plays():
    def answer(body):
        if body["model"].startswith("judge"):
            return world(lambda _: int(body["model"][-1]))({**body, "model": "judge"})
        return "Well, that is how it is."

    with LoopbackServer(answer) as server:
        done = mapo(
            *("play", "career-night-ward", "--scenarios", "builtin:all", "--agents-model", "big"),
            *("--agents-base-url", server.base_url, "--judge-panel", "judge0,judge2,judge2"),
            typed="Hello there, you.\n\n",
        )
    assert done.returncode == 0, done.stderr
    assert "C +2" in done.stdout and "[not judged" not in done.stdout
