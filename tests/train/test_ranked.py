"""Training with the reward `rank`: siblings are compared after they were played, and the record keeps it."""

from __future__ import annotations

import asyncio
import json
import re

import pytest

from mapo.config import load_config
from mapo.errors import InputError
from mapo.measure.rubric import Rubric
from mapo.players.casting import every_model
from mapo.players.session import open_cast
from mapo.sandbox.cast import Job
from mapo.sandbox.domain import scripted_cast
from mapo.sandbox.ranking import with_ranker
from mapo.store import read_dialogues, read_jsonl
from mapo.testing.server import LoopbackServer
from mapo.testing.world import world
from mapo.train.callbacks import Callbacks
from support import small_run as small
from support.command import mapo
from support.roles import Told, boat_shed, turns_of

RANK = (
    "roles.agents=llm",
    "roles.everyone.model=m",
    "roles.ranker.model=r",
    "reward.name=rank",
    "optim.steps=1",
    "eval.every=1",
)


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return small.model_folder(tmp_path_factory.mktemp("model"))


def by_length(request) -> str:
    """Prefer the longer reply."""
    parts = re.split(r"Conversation ([A-Z])\n", request.messages[1].content)[1:]
    sizes = {
        x: len(re.findall(r"^reply: (.*)$", t, re.M)[-1])
        for x, t in zip(parts[::2], parts[1::2], strict=True)
    }
    return json.dumps({x: {"reason": "longer", "score": min(10, size // 3)} for x, size in sizes.items()})


class _Full(Callbacks):
    """Stops the run before its first update, as a full disk would."""

    def update_begins(self, step: int) -> None:
        raise OSError("full")


def ranking(*answers):
    return with_ranker(scripted_cast("empathy"), Told(*answers), Rubric.load("empathy"))


def test_the_policy_is_trained_on_the_comparison(model, tmp_path):
    small.trained(model, tmp_path / "run", *RANK, casting=ranking(by_length))
    played = list(read_dialogues(tmp_path / "run" / "dialogues" / "step_00001.jsonl"))
    assert len(played) == len({d.id for d in played}) == 8
    assert {d.reward for d in played} == {"rank/zone"} and {d.cast["ranker"] for d in played} == {"told"}
    first = [d.turns[0] for d in played if d.group == played[0].group]
    assert sum(turn.reward for turn in first) == pytest.approx(0)  # centred within the comparison
    assert all(turn.levels is not None and turn.rank is not None for turn in first)
    (line,) = read_jsonl(tmp_path / "run" / "metrics.jsonl")
    assert line["grad_norm"] > 0
    (folder,) = (tmp_path / "run" / "eval").iterdir()
    (file,) = folder.glob("*.jsonl")
    assert {d.reward for d in read_dialogues(file)} == {"idr/zone"}


def test_comparisons_on_disk_are_used_again(model, tmp_path):
    settings = (*RANK, "eval.every=0")
    out = tmp_path / "run"
    with pytest.raises(OSError, match="full"):
        small.trained(model, out, *settings, casting=ranking(by_length), paid=True, callbacks=_Full())
    before = (out / "dialogues" / "step_00001.jsonl").read_bytes()
    small.trained(model, out, *settings, casting=ranking(RuntimeError("asked")), paid=True, resume=True)
    assert (out / "dialogues" / "step_00001.jsonl").read_bytes() == before


def test_the_ranker_of_a_config_is_opened(tmp_path):
    def answer(body):
        return by_score(body) if body["model"] == "r" else world()(body)

    def by_score(body):
        letters = body["response_format"]["json_schema"]["schema"]["properties"]
        return json.dumps({x: {"reason": "", "score": n} for n, x in enumerate(letters)})

    with LoopbackServer(answer) as server:
        config = load_config(None, [*RANK, f"roles.everyone.base_url={server.base_url}"])
        assert every_model(config)["ranker"].model == "r"
        histories = [turns_of(("Hi", "Mm.")), turns_of(("Hi", "I see."))]

        async def scores():
            async with open_cast(config, tmp_path) as (casting, _, __):
                assert casting(Job(boat_shed(), "d")).ranker is None  # no siblings in evaluations
                return await casting(Job(boat_shed(), "d", step=1)).ranker.scores(histories, "n")

        assert sorted(asyncio.run(scores())) == [0.0, 0.1]


def test_verl_refuses_to_rank():
    from mapo.engines.verl.settings import check_settings

    with pytest.raises(InputError, match="siblings cannot be ranked"):
        check_settings(load_config(None, [*RANK]))


def test_a_local_model_ranks_and_plays_a_user_with_an_intent(cast_model, tmp_path):
    limits = [f"roles.{role}.max_tokens={n}" for role, n in {"user": 12, "judge": 360, "ranker": 200}.items()]
    done = mapo(
        *("train", *small.SMALL, f"model.source={cast_model}", "model.device=cpu", "roles.agents=llm"),
        *(f"roles.{role}.model=local:{cast_model}" for role in ("everyone", "judge", "ranker")),
        *limits,
        *("roles.user_kind=intent", "reward.name=rank", "roles.context=4096", "rollout.scenarios=1"),
        *("rollout.siblings=2", "rollout.max_turns=2", "rollout.at_once=4", "optim.steps=1", "eval.every=0"),
        *("--out", tmp_path / "run"),
    )
    assert done.returncode == 0, done.stderr
    played = list(read_dialogues(tmp_path / "run" / "dialogues" / "step_00001.jsonl"))
    assert [d.cast for d in played] == 2 * [
        {"user": "tiny-cast", "director": "none", "judge": "tiny-cast", "ranker": "tiny-cast"}
    ]
    assert all(d.turns[0].rank is not None for d in played)
