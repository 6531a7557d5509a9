"""A run directory is data: its config executes no code and sends no key unless the user named it."""

import shutil
from pathlib import Path

import pytest

from mapo.cli.training.checks import check_run_config
from mapo.config import load_config
from mapo.errors import InputError
from support import small_run as small
from support.command import mapo

EVIL = """
from pathlib import Path
Path({marker!r}).write_text("executed")
"""


@pytest.fixture
def evil_domain(tmp_path):
    import mapo as package

    folder = shutil.copytree(Path(package.__file__).parent / "domains" / "empathy", tmp_path / "evil")
    rubric = (folder / "rubric.toml").read_text()
    (folder / "rubric.toml").write_text(rubric.replace('name = "empathy"', 'name = "evil"'))
    (folder / "scripted.py").write_text(EVIL.format(marker=str(tmp_path / "marker")))
    return folder


@pytest.fixture
def run(tmp_path):
    model = small.model_folder(tmp_path / "model")
    settings = [*small.SMALL, f"model.source={model}", "optim.steps=1", "eval.test_repeats=0"]
    assert mapo("train", "pocket", *settings, "--out", tmp_path / "run").returncode == 0
    return tmp_path / "run"


def edit(run, old, new):
    text = (run / "config.toml").read_text()
    assert old in text
    (run / "config.toml").write_text(text.replace(old, new))


@pytest.mark.parametrize("command", [("train", "--resume"), ("ablate",)])
def test_a_domain_named_in_a_run_is_not_executed(run, evil_domain, tmp_path, command):
    edit(run, 'domain = "empathy"', f'domain = "{evil_domain}"')
    if command == ("ablate",):
        (run / "manifest.json").unlink()
    done = mapo(command[0], "--out", run, *command[1:])
    assert done.returncode == 2
    assert f"executes the Python files of the domain {evil_domain}" in done.stderr
    assert f"{command[0]} {run}/config.toml --out {run}" in done.stderr
    assert not (tmp_path / "marker").exists()


def test_verl_settings_in_a_run_are_not_used(run):
    edit(run, "settings = []", 'settings = ["actor_rollout_ref.model.external_lib=evil"]')
    done = mapo("train", "--out", run, "--resume")
    assert done.returncode == 2 and "passes settings to verl, which can load code" in done.stderr


def test_a_key_is_not_sent_to_an_address_in_a_run(run, monkeypatch):
    edit(run, 'agents = "scripted"', 'agents = "llm"')
    address = 'model = "m"\nbase_url = "http://127.0.0.1:9/v1"\nkey_env = "SOME_SECRET"'
    edit(run, "[roles.everyone]", f"[roles.everyone]\n{address}")
    monkeypatch.setenv("SOME_SECRET", "sk-secret-secret")
    done = mapo("train", "--out", run, "--resume")
    assert done.returncode == 2
    assert "sends the key in SOME_SECRET to http://127.0.0.1:9/v1" in done.stderr


def test_an_ordinary_run_is_resumed_by_its_folder_alone(run):
    assert mapo("train", "--out", run, "--resume").returncode == 0


def test_only_the_usual_key_is_sent_to_the_default_address(tmp_path, monkeypatch):
    monkeypatch.delenv("OPENAI_BASE_URL", raising=False)
    monkeypatch.setenv("OPENAI_API_KEY", "sk-usual-key")
    monkeypatch.setenv("SOME_SECRET", "another-secret")
    settings = ["roles.agents=llm", "roles.everyone.model=m"]
    check_run_config(load_config("pocket", settings), tmp_path, "mapo train")
    config = load_config("pocket", [*settings, "roles.user.key_env=SOME_SECRET"])
    with pytest.raises(InputError, match="sends the key in SOME_SECRET to https://api.openai.com/v1"):
        check_run_config(config, tmp_path, "mapo train")
