"""The prompts that a config names: loaded for roles and policy, recorded, and never a package by itself."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest

from mapo.cli.training.checks import check_run_config
from mapo.config import load_config
from mapo.errors import InputError
from mapo.players.prompts import prompts_from_config
from mapo.players.session import open_cast
from mapo.sandbox.cast import Job, prompts_id
from mapo.scenarios.sets import load_scenarios
from mapo.train.run import chosen_scenarios, rules_of
from mapo.train.setup import check_run, claim_run, manifest

LLM = ["roles.agents=llm", "roles.everyone.model=m", "roles.everyone.base_url=http://127.0.0.1:9/v1"]
SCENARIO = load_scenarios("builtin:validation")[0]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "policy.md").write_text("Mine.")
    return tmp_path / "mine"


def test_policy_and_roles_of_a_training_get_the_templates_of_a_folder(folder, tmp_path):
    config = load_config(None, [*LLM, "rollout.system=true", f"roles.prompts={folder}"])

    async def cast():
        async with open_cast(config, tmp_path / "run") as (casting, _, _):
            return casting(Job(SCENARIO, "d", step=1))

    assert rules_of(config).system(SCENARIO) == "Mine."
    assert asyncio.run(cast()).prompts == prompts_id(prompts_from_config(config), "empathy")
    assert manifest(config, chosen_scenarios(config))["prompts"].startswith("mine ")


def test_a_folder_in_a_config_is_relative_to_it(folder):
    (folder.parent / "mine.toml").write_text('[roles]\nprompts = "mine"\n')
    assert load_config(folder.parent / "mine.toml").roles.prompts == str(folder.resolve())


def test_empas_package_is_not_a_path(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert load_config(None, [*LLM, "roles.prompts=empa"]).roles.prompts == "empa"


def test_empas_package_needs_models():
    with pytest.raises(InputError, match=r"set roles.agents = 'llm'"):
        load_config(None, ["roles.prompts=empa"])


def test_a_run_directory_cannot_ask_for_a_package(tmp_path):
    config = load_config(None, [*LLM, "roles.prompts=empa"])
    with pytest.raises(InputError, match="imports the Python package empa"):
        check_run_config(config, tmp_path, "mapo train")


@pytest.mark.parametrize(("agents", "refused"), [(LLM, True), ([], False)], ids=["models", "scripted"])
def test_a_training_is_not_resumed_with_other_templates_for_its_models(folder, tmp_path, agents, refused):
    config = load_config(None, [*agents, f"roles.prompts={folder}"])
    scenarios = chosen_scenarios(config)
    claim_run(tmp_path / "run", config, scenarios)
    check_run(tmp_path / "run", config, scenarios, resume=True)
    (folder / "policy.md").write_text("Changed.")
    if refused:
        with pytest.raises(InputError, match="the prompts"):
            check_run(tmp_path / "run", config, scenarios, resume=True)
    else:
        check_run(tmp_path / "run", config, scenarios, resume=True)


def test_a_training_of_an_earlier_version_can_be_resumed(tmp_path):
    config = load_config(None, LLM)
    scenarios = chosen_scenarios(config)
    claim_run(tmp_path / "run", config, scenarios)
    file = tmp_path / "run" / "manifest.json"
    content = json.loads(file.read_text())
    del content["prompts"]
    file.write_text(json.dumps(content))
    check_run(tmp_path / "run", config, scenarios, resume=True)
