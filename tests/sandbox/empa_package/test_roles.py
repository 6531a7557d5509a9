"""EMPA's roles when something goes wrong: bad forms, failing models, a missing or different package."""

from __future__ import annotations

import asyncio
import json
import sys

import pytest

from mapo.config import load_config
from mapo.errors import AnswerError, EndpointError, InputError
from mapo.measure.rubric import Rubric
from mapo.models.chat import DEFAULT_SAMPLING
from mapo.players.session import open_cast
from mapo.sandbox.cast import Job
from mapo.sandbox.empa_package import cards as cards_module
from mapo.sandbox.empa_package.package import load_package
from mapo.sandbox.empa_package.prompts import EmpaPrompts
from mapo.sandbox.empa_package.roles import EmpaJudge, parse_start, parse_turn
from mapo.sandbox.model_cast import model_cast
from mapo.sandbox.panel import model_judge, with_judges
from mapo.sandbox.rollout import Rules, play
from mapo.scenarios.empa_cards import load_json
from mapo.scenarios.sets import read_set
from mapo.train.run import rules_of
from support.cards import CARD, STORY, put_cards
from support.command import mapo
from support.miniature_empa import write_miniature
from support.roles import Told

EMPATHY, TUTORING = Rubric.load("empathy"), Rubric.load("tutoring")


def turn_form(level: int = 1, **changes: object) -> dict:
    keys = [f"{axis}_{kind}" for axis in "CAP" for kind in ("Prog", "Neg")]
    form = {f"{key}_level": level if key.endswith("Prog") else 0 for key in keys}
    return {
        **form,
        **{f"{key}_{part}": "words" for key in keys for part in ("evidence", "reasoning")},
        **changes,
    }


START = {f"{item.key}_{part}": 2 if part == "level" else "words"
         for item in EMPATHY.indicators for part in ("level", "evidence", "reasoning")}  # fmt: skip


def forget() -> None:
    load_package.cache_clear()
    for name in [name for name in sys.modules if name.split(".")[0] == "empa"]:
        del sys.modules[name]


@pytest.fixture
def miniature(tmp_path, monkeypatch):
    forget()
    folder = write_miniature(tmp_path / "package")
    monkeypatch.syspath_prepend(str(folder))
    yield folder
    forget()


@pytest.fixture
def cards(tmp_path):
    (tmp_path / "cards").mkdir()
    return read_set(put_cards(tmp_path / "cards", CARD, stories=[STORY]))


def dialogue_of(cards, user, director, judge, turns: int = 3, **rules):
    prompts = EmpaPrompts.load(cards.files, EMPATHY)
    job = Job(cards.scenarios[0], "d")
    casting = model_cast(user, director, judge, EMPATHY, prompts=prompts)
    settings = Rules(EMPATHY, "released", min_turns=turns, max_turns=turns, **rules)
    return asyncio.run(play(job, prompts.policy(lambda _: Told("Mm."))(job), casting(job), settings))


@pytest.mark.usefixtures("miniature")
def test_a_form_that_never_fits_is_missing_data_after_three_equal_requests(cards):
    judge = Told(json.dumps(START), json.dumps(turn_form(C_Prog_level="1")))
    dialogue = dialogue_of(cards, Told("a b"), Told("fine"), judge, turns=1)
    first, *rest = judge.requests[1:]
    assert dialogue.turns[0].levels is None
    assert "C_Prog_level" in dialogue.turns[0].unscored
    assert [request.messages for request in rest] == [first.messages] * 2
    assert len({request.nonce for request in (first, *rest)}) == 3


@pytest.mark.usefixtures("miniature")
def test_a_failing_director_is_handled_as_by_the_package(cards):
    class Failing(Told):
        async def reply(self, request):
            raise EndpointError("down")

    user = Told("a b")
    dialogue = dialogue_of(cards, user, Failing(""), Told(json.dumps(START), json.dumps(turn_form())))
    assert dialogue.error is None
    assert dialogue.turns[1].direction.act == "go_on"
    assert dialogue.turns[1].direction.reason == "the miniature failed, go on"
    assert user.requests[1].messages[-1].content.endswith("note: the miniature failed, go on")


@pytest.mark.usefixtures("miniature")
def test_an_unscored_turn_moves_nothing_for_the_director(cards):
    director = Told("fine")
    judge = Told(json.dumps(START), "no form", "no form", "no form", json.dumps(turn_form()))
    dialogue_of(cards, Told("a b"), director, judge, turns=3)
    assert "'P_t': (-14, -18, -18), 'epm_summary': '0 gained" in director.requests[0].messages[0].content
    assert "'P_t': (-13, -17, -17)" in director.requests[1].messages[0].content


@pytest.mark.usefixtures("miniature")
def test_an_empty_user_breaks_the_dialogue(cards):
    dialogue = dialogue_of(cards, Told("<think>hm"), Told("fine"), Told(json.dumps(START)))
    assert "empty message" in dialogue.error


@pytest.mark.usefixtures("miniature")
def test_a_panel_of_judges_gets_the_package_s_prompts(cards):
    prompts = EmpaPrompts.load(cards.files, EMPATHY)
    chats = [Told(json.dumps(START)) for _ in range(2)]
    judges = [model_judge(chat, EMPATHY, name=str(n), prompts=prompts) for n, chat in enumerate(chats)]
    base = model_cast(Told("a b"), Told("fine"), Told(""), EMPATHY, prompts=prompts)
    job = Job(cards.scenarios[0], "d")
    judge = with_judges(base, judges)(job).judge
    asyncio.run(judge.start())
    assert chats[0].requests[0].messages[0].content.startswith("miniature start form")


def test_levels_outside_the_table_are_refused():
    for changes in (
        {"C_Prog_level": 3},
        {"A_Neg_level": 1},
        {"P_Neg_level": True},
        {"P_Neg_level": None},
    ):
        with pytest.raises(InputError, match=next(iter(changes))):
            parse_turn(turn_form(**changes), EMPATHY)
    with pytest.raises(InputError, match="C.1_level"):
        parse_start({**START, "C.1_level": 4}, EMPATHY)
    with pytest.raises(InputError, match="not an object"):
        parse_turn([], EMPATHY)


def test_evidence_0_is_none():
    form = parse_turn(turn_form(C_Neg_evidence="0", A_Neg_evidence=0), EMPATHY)
    assert form["C"].regression.evidence == form["A"].regression.evidence == ""
    assert form["C"].progress.evidence == "words"


def test_only_levels_decide_whether_a_form_is_usable():
    form = parse_turn(turn_form(P_Neg_reasoning=None, C_Prog_evidence=["odd"]), EMPATHY)
    assert form["P"].regression.reason == form["C"].progress.evidence == ""
    assert form["C"].progress.level == parse_turn(turn_form(), EMPATHY)["C"].progress.level


def test_without_the_package_the_hint_says_how_to_install_it(monkeypatch):
    forget()
    monkeypatch.setitem(sys.modules, "empa", None)
    with pytest.raises(InputError, match="needs the Python package 'empa'") as caught:
        load_package()
    assert "pip install" in caught.value.fix


@pytest.mark.parametrize(
    ("file", "text"),
    [
        ("agents/actor.py", ""),
        ("orchestrator/chat_loop.py", None),
        ("agents/test_model.py", "class TestModel:\n    def __init__(self, llm, *, system_prompt): ..."),
    ],
)
def test_another_layout_is_said_clearly(miniature, file, text):
    path = miniature / "empa" / file
    path.unlink() if text is None else path.write_text(text)
    with pytest.raises(InputError, match="another layout"):
        load_package()


def test_a_package_that_counts_levels_differently_is_refused(miniature, cards):
    config = miniature / "empa" / "rubric" / "empathy_v2" / "config.py"
    config.write_text(config.read_text().replace("(0, -2, -5)", "(0, -2, -6)"))
    with pytest.raises(InputError, match="counts level -2 of A.Neg as -6"):
        EmpaPrompts.load(cards.files, EMPATHY)


@pytest.mark.usefixtures("miniature")
def test_another_rubric_is_refused(cards):
    with pytest.raises(InputError, match="tutoring"):
        EmpaPrompts.load(cards.files, TUTORING)


def test_the_fingerprint_changes_with_the_package(miniature, cards):
    before = EmpaPrompts.load(cards.files, EMPATHY).fingerprint("empathy")
    with (miniature / "empa" / "agents" / "actor.py").open("a") as file:
        file.write("# changed\n")
    assert EmpaPrompts.load(cards.files, EMPATHY).fingerprint("empathy") != before


MODELS = (
    "--agents-model",
    "m",
    "--agents-base-url",
    "http://127.0.0.1:9/v1",
    "--base-url",
    "http://127.0.0.1:9/v1",
)


@pytest.mark.usefixtures("miniature")
@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ((*MODELS, "--scenarios", "builtin:test"), "is not one of EMPA's cards"),
        (MODELS, "EMPA's package has no cards"),
        (("--scenarios", "builtin:test"), "--prompts empa is for models"),
    ],
)
def test_bad_combinations_are_refused_before_anything_is_written(tmp_path, options, problem):
    done = mapo("eval", "empa", "--model", "m", "--prompts", "empa", "--out", tmp_path / "run", *options)
    assert done.returncode == 2
    assert problem in " ".join(done.stderr.split())
    assert not (tmp_path / "run").exists()


@pytest.mark.usefixtures("miniature")
@pytest.mark.parametrize("entry", [{"P_0": {"C": 0, "A": 0, "P": 0}}, {"iedr": {}}, {"epm": {"v_star_0": 1}}])
def test_a_damaged_start_file_is_refused(tmp_path, cards, entry):
    levels = {item.key: 1 for item in EMPATHY.indicators}
    position = dict(zip("CAP", EMPATHY.start(levels), strict=True))
    file = tmp_path / "cards" / "precomputed" / "iedr_batch_results.json"
    file.parent.mkdir()
    file.write_text(
        json.dumps({"script_001": {"status": "success", "iedr": levels, "P_0": position, **entry}})
    )
    with pytest.raises(InputError, match=r"script_001"):
        EmpaPrompts.load(cards.files, EMPATHY)


def test_an_answer_error_is_what_a_judge_raises(miniature, cards):
    prompts = EmpaPrompts.load(cards.files, EMPATHY)
    judge = prompts.judge(Told("no form"), Job(cards.scenarios[0], "d"), EMPATHY, DEFAULT_SAMPLING)
    with pytest.raises(AnswerError, match="3 attempts"):
        asyncio.run(judge.start())


@pytest.mark.usefixtures("miniature")
def test_a_config_that_names_the_package_gets_its_roles(tmp_path, cards):
    folder = tmp_path / "cards"
    llm = ["roles.agents=llm", "roles.everyone.model=m", "roles.everyone.base_url=http://127.0.0.1:9/v1"]
    splits = [f"scenarios.{split}={folder}" for split in ("train", "validation", "test")]
    config = load_config(None, [*llm, *splits, "roles.prompts=empa", "rollout.system=true"])

    async def cast():
        async with open_cast(config, tmp_path / "run") as (casting, _, _):
            return casting(Job(cards.scenarios[0], "d", step=1))

    made = asyncio.run(cast())
    assert made.prompts.startswith("empa ")
    assert isinstance(made.judge, EmpaJudge)
    assert rules_of(config).system(cards.scenarios[0]) == "You are the policy."


@pytest.mark.usefixtures("miniature")
def test_the_stories_of_a_folder_are_read_once(tmp_path, monkeypatch):
    (tmp_path / "many").mkdir()
    stories = [{**STORY, "剧本编号": f"script_{n:03}"} for n in range(1, 4)]
    several = read_set(put_cards(tmp_path / "many", CARD, CARD, CARD, stories=stories))
    read = []
    monkeypatch.setattr(cards_module, "load_json", lambda file: read.append(file) or load_json(file))
    assert len(EmpaPrompts.load(several.files, EMPATHY).cards) == 3
    assert len(read) == 1
