"""Configs: files, overrides, refusals, and the way back to TOML."""

from __future__ import annotations

import tomllib

import pytest

from mapo import Rubric
from mapo.config import Config, dump_config, load_config, shipped_configs, with_steps
from mapo.errors import InputError


@pytest.mark.parametrize("name", shipped_configs())
def test_shipped_configs_load_and_say_what_they_need(name):
    config = load_config(name)
    head = shipped_configs()[name].read_text().partition("\n\n")[0]
    assert all(line.startswith("# ") for line in head.splitlines()) and "Needs" in head
    assert Config.model_validate(tomllib.loads(dump_config(config))) == config


def test_the_default_is_the_embedded_model():
    assert load_config() == load_config("pocket") and load_config().model.source == "pocket"


def test_the_embedded_model_is_tested_on_whole_talks():
    assert load_config("pocket").eval.max_turns == Rubric.load("empathy").ending.max_turns


def test_overrides_are_toml_or_plain_words():
    c = load_config(
        None, ["optim.lr=3e-4", "model.source=some/model", "model.lora.rank=8", "run.trackers=[]"]
    )
    assert (c.optim.lr, c.model.source, c.model.lora.rank, c.run.trackers) == (3e-4, "some/model", 8, ())


@pytest.mark.parametrize(
    ("override", "told"),
    [
        ("optim.lr", "not an override"),
        ("=3", "not an override"),
        ("optim.rate=1", "optim.rate"),
        ("optim.lr=fast", "optim.lr"),
        ("optim.lr=-1", "optim.lr"),
        ("optim.lr=nan", "optim.lr"),
        ("rollout.siblings=1", "rollout.siblings"),
        ("roles.agents=llm", "no model for the user"),
        ("model.source.deeper=1", "is not a section"),
        ("roles.judge.temperature=-1", "roles.judge.temperature"),
        ("roles.user.top_p=0", "roles.user.top_p"),
        ("roles.everyone.max_tokens=0", "roles.everyone.max_tokens"),
        ("rollout.top_p=0.79", "clipped before the first update"),
        ("eval.every=-1", "eval.every"),
    ],
)
def test_what_cannot_be_meant_is_refused_with_its_place(override, told):
    with pytest.raises(InputError, match=told):
        load_config(None, [override])


@pytest.mark.parametrize(
    ("override", "told"),
    [
        ("run.processes=2", "one process"),
        ("run.shard=true", "one process"),
        ("model.device=cpu", "needs a GPU"),
        ("model.dtype=float32", "bfloat16"),
        ("rollout.temperature=0.001", "at least 0.01"),
        ("eval.temperature=0.001", "at least 0.01"),
        ("rollout.vllm_memory=1.5", "rollout.vllm_memory"),
    ],
)
def test_what_vllm_cannot_sample_is_refused(override, told):
    with pytest.raises(InputError, match=told):
        load_config(None, ["rollout.sampler=vllm", "run.processes=1", override])


def test_a_penalty_on_distance_needs_the_start():
    with pytest.raises(InputError, match="reference"):
        load_config(None, ["optim.kl=0.1", "run.reference=false"])


def test_a_missing_or_broken_file_is_said_so(tmp_path):
    with pytest.raises(InputError, match="one of: "):
        load_config("no-such-config")
    broken = tmp_path / "x.toml"
    broken.write_text("[optim\n")
    with pytest.raises(InputError, match=r"x\.toml"):
        load_config(broken)


def test_top_p_may_go_as_low_as_the_clip():
    assert load_config(None, ["rollout.top_p=0.5", "optim.clip_low=0.5"]).rollout.top_p == 0.5
    assert load_config(None, ["eval.top_p=0.1"]).eval.top_p == 0.1


@pytest.mark.parametrize(
    ("every", "last", "steps"), [(2, 5, [2, 4, 5]), (9, 3, [3]), (1, 2, [1, 2]), (0, 4, [])]
)
def test_validations_come_by_their_count_and_at_the_end_or_not_at_all(every, last, steps):
    told = load_config(None, [f"eval.every={every}"]).eval
    assert [step for step in range(1, last + 1) if told.due(step, last)] == steps


def test_every_role_needs_a_model():
    load_config(None, ["roles.agents=llm", "roles.everyone.model=m", "roles.judge.base_url=http://x/v1"])
    with pytest.raises(InputError, match="no model for the director"):
        load_config(None, ["roles.agents=llm", "roles.user.model=m", "roles.judge.model=j"])


def test_a_wrong_setting_is_told_where_it_was_given_and_what_it_may_be():
    with pytest.raises(
        InputError, match=r"'optim.step=3': optim.step: unknown setting. Did you mean optim.steps\?"
    ):
        load_config("pocket", ["optim.step=3"])
    with pytest.raises(
        InputError, match=r"pocket.toml with rollout.top_p=0.5: rollout.top_p is below 1 - optim.clip_low"
    ):
        load_config("pocket", ["rollout.top_p=0.5"])


@pytest.mark.parametrize("setting", ["optim.steps=10000000000000000000", "optim.steps=200000"])
def test_numbers_that_no_run_can_reach_are_refused(setting):
    with pytest.raises(InputError, match=setting.partition("=")[0]):
        load_config(None, [setting])
    with pytest.raises(InputError, match=r"run\.seed"):
        load_config(None, [f"run.seed={2**53 + 1}"])


def test_own_scenarios_in_some_splits_only_are_refused(tmp_path):
    file = tmp_path / "my.toml"
    file.write_text('[scenarios]\ntrain = "s.json:train"\nvalidation = "s.json:validation"\n')
    with pytest.raises(InputError, match=r"scenarios\.train is set, but not scenarios\.test"):
        load_config(file)
    assert load_config(file, ["scenarios.test=builtin:test"]).scenarios.test == "builtin:test"
    assert load_config("pocket", ["scenarios.test=builtin:validation"]).scenarios.train == "builtin:train"


def test_an_unknown_setting_of_a_section_does_not_suggest_the_section():
    with pytest.raises(InputError) as failure:
        load_config("pocket", ["rollout.foo=1"])
    assert "Did you mean rollout?" not in str(failure.value)


def written(folder, name, text):
    path = folder / name
    path.write_text(text)
    return path


@pytest.mark.parametrize(
    ("epochs", "scenarios", "per_step", "steps"),
    [
        (2, 727, 16, 91),
        (1, 727, 16, 46),
        (1, 727, 32, 23),
        (2, 697, 16, 88),
        (0.5, 32, 16, 1),
        (0.1, 10, 1, 1),
    ],
)
def test_epochs_become_steps(epochs, scenarios, per_step, steps):
    # steps = ceil(epochs * scenarios / per_step)
    config = load_config(None, [f"optim.epochs={epochs}", f"rollout.scenarios={per_step}"])
    resolved = with_steps(config, scenarios)
    assert (resolved.optim.steps, resolved.optim.epochs) == (steps, None)


def test_steps_that_are_set_stay():
    config = load_config(None, ["optim.steps=3"])
    assert with_steps(config, 727) is config


def test_steps_and_epochs_in_one_place_are_refused(tmp_path):
    with pytest.raises(InputError, match="steps and epochs are both set"):
        load_config(None, ["optim.steps=3", "optim.epochs=1"])
    with pytest.raises(InputError, match="steps and epochs are both set"):
        load_config(written(tmp_path, "x.toml", "[optim]\nsteps = 3\nepochs = 1\n"))


def test_an_override_replaces_the_other_of_steps_and_epochs(tmp_path):
    file = written(tmp_path, "x.toml", "[optim]\nepochs = 2\n")
    assert load_config(file, ["optim.steps=3"]).optim.epochs is None
    assert load_config("pocket", ["optim.epochs=2"]).optim.epochs == 2


def test_a_config_in_epochs_comes_back_from_its_dump():
    config = load_config(None, ["optim.epochs=2"])
    assert Config.model_validate(tomllib.loads(dump_config(config))) == config


def test_a_config_extends_files_beside_it_and_shipped_ones(tmp_path):
    written(tmp_path, "base.toml", 'extends = "pocket"\n[optim]\nepochs = 2\nlr = 0.5\n[eval]\nevery = 7\n')
    file = written(tmp_path, "mine.toml", 'extends = "base.toml"\n[optim]\nsteps = 9\n')
    config = load_config(file, ["eval.every=8"])
    assert (config.optim.steps, config.optim.epochs, config.optim.lr) == (9, None, 0.5)
    assert config.eval.every == 8
    assert config.rollout == load_config("pocket").rollout


def test_the_domain_of_an_extended_file_is_relative_to_that_file(tmp_path):
    (tmp_path / "inner").mkdir()
    base = written(tmp_path, "base.toml", '[scenarios]\ndomain = "./mine"\n')
    file = written(tmp_path, "x.toml", 'extends = "base.toml"\n')
    assert load_config(file).scenarios.domain == load_config(base).scenarios.domain == str(tmp_path / "mine")


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("no-such", "there is no config 'no-such' to extend"),
        ("none.toml", "there is no config 'none.toml' to extend"),
        ("../x.toml", "extends is"),
        ("/etc/x.toml", "extends is"),
        ("", "extends is"),
        ("x.toml", "in a circle"),
    ],
)
def test_bad_names_to_extend_are_refused(tmp_path, name, message):
    with pytest.raises(InputError, match=message):
        load_config(written(tmp_path, "x.toml", f'extends = "{name}"\n'))


def test_a_circle_and_a_long_chain_are_refused(tmp_path):
    written(tmp_path, "a.toml", 'extends = "b.toml"\n')
    written(tmp_path, "b.toml", 'extends = "a.toml"\n')
    with pytest.raises(InputError, match=r"a\.toml -> b\.toml -> a\.toml"):
        load_config(tmp_path / "a.toml")
    for n in range(12):
        written(tmp_path, f"{n}.toml", f'extends = "{n + 1}.toml"\n')
    written(tmp_path, "12.toml", "")
    with pytest.raises(InputError, match="too deeply"):
        load_config(tmp_path / "0.toml")


def test_the_config_of_a_run_directory_extends_nothing(tmp_path):
    with pytest.raises(InputError, match="extends: unknown setting"):
        load_config(written(tmp_path, "config.toml", 'extends = "pocket"\n'), flat=True)


def test_evaluations_need_room_for_their_minimum():
    assert load_config(None, ["eval.min_turns=20"]).eval.min_turns == 20  # of at most 45
    with pytest.raises(InputError, match=r"eval\.min_turns is 20, but evaluations have at most 15 turns"):
        load_config(None, ["eval.min_turns=20", "eval.max_turns=15"])


def test_a_mistyped_config_is_suggested():
    with pytest.raises(InputError, match="Did you mean pocket"):
        load_config("pockt")


@pytest.mark.parametrize(
    "overrides",
    [
        ["reward.steps=expected", "roles.judge.model="],
        ["reward.steps=expected", "roles.agents=llm", "roles.everyone.model=big"],
        [
            "reward.steps=expected",
            "roles.agents=llm",
            "roles.everyone.model=local:a",
            "roles.judge.model=big",
        ],
    ],
)
def test_expected_steps_need_a_judge_that_is_read_out(overrides):
    with pytest.raises(InputError, match="needs a judge that is read out"):
        load_config(None, overrides)


def test_expected_steps_with_a_local_judge():
    overrides = ["reward.steps=expected", "roles.agents=llm", "roles.everyone.model=local:judge"]
    assert load_config(None, overrides).reward.steps == "expected"


@pytest.mark.parametrize("more", [[], ["roles.judge.temperature=0.5"]])
def test_an_empty_model_takes_a_judge_back(more, tmp_path):
    config = written(tmp_path, "x.toml", 'extends = "pocket"\n[roles.judge]\nmodel = "local:pocket-judge"\n')
    assert load_config(config).roles.judge.model == "local:pocket-judge"
    assert load_config(config, ["roles.judge.model=", *more]).roles.judge is None


def test_a_judge_without_a_model_of_its_own_keeps_its_settings():
    settings = ["roles.agents=llm", "roles.everyone.model=big", "roles.judge.temperature=0.5"]
    assert load_config(None, settings).roles.judge.temperature == 0.5


@pytest.mark.parametrize(
    "overrides",
    [
        ["roles.judge.model="],
        ["roles.agents=llm", "roles.everyone.model=big"],
        ["scenarios.domain=tutoring"],
        ["roles.agents=llm", 'roles.judges=[{model="a"}, {model="b"}]', "roles.everyone.model=big"],
    ],
)
def test_the_shipped_judge_leaves_when_other_people_or_another_domain_come(overrides):
    assert load_config("pocket").roles.judge.model == "local:pocket-judge"
    assert load_config("pocket", overrides).roles.judge is None


def test_the_shipped_judge_leaves_a_config_that_extends_its_own(tmp_path):
    other = written(tmp_path, "x.toml", 'extends = "pocket"\n[scenarios]\ndomain = "tutoring"\n')
    assert load_config(other).roles.judge is None
    same = written(tmp_path, "y.toml", 'extends = "pocket"\n[optim]\nlr = 0.5\n')
    assert load_config(same).roles.judge.model == "local:pocket-judge"


def test_the_scripted_judge_of_the_tutoring_domain_judges_there():
    config = load_config("tutoring")
    assert config.roles.judge is None and config.roles.agents == "scripted"
    assert config.eval.max_turns == config.rollout.max_turns == 15


def test_a_judge_that_is_named_stays_for_all_people():
    settings = ["roles.agents=llm", "roles.everyone.model=big", "roles.judge.model=local:pocket-judge"]
    assert load_config("pocket", settings).roles.judge.model == "local:pocket-judge"  # players refuse it
    assert load_config("pocket", ["roles.agents=scripted"]).roles.judge.model == "local:pocket-judge"
