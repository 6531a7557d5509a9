"""Preflight checks: endpoints that answer or do not, models that exist or do not, GPUs."""

from __future__ import annotations

import asyncio
import socket

import pytest

from mapo.errors import EndpointError, InputError
from mapo.local_model.shipped import SHIPPED
from mapo.players.preflight import check_endpoints, check_models, check_processes, enumeration
from mapo.players.spec import ModelSpec
from mapo.testing.server import LoopbackServer


def check(timeout: float = 5.0, **models: ModelSpec) -> list[str]:
    return asyncio.run(check_endpoints(models, timeout=timeout))


def test_a_listed_model_is_not_called():
    with LoopbackServer(models=("m",)) as server:
        assert check(user=ModelSpec("m", server.base_url)) == []
        assert server.calls == 0


def test_roles_with_one_endpoint_share_one_completion_of_an_unlisted_model():
    with LoopbackServer(models=("other",)) as server:
        spec = ModelSpec("m", server.base_url)
        [warning] = check(user=spec, director=spec, judge=spec)
        assert warning.endswith(f"{server.base_url} lists 1 model, and 'm' is not among them")
        assert server.calls == 1


def test_a_key_variable_that_is_named_but_not_set_gets_a_warning(monkeypatch):
    monkeypatch.delenv("MAPO_NO_SUCH_KEY", raising=False)
    with LoopbackServer(models=("m",)) as server:
        [warning] = check(user=ModelSpec("m", server.base_url, key_env="MAPO_NO_SUCH_KEY"))
    assert "MAPO_NO_SUCH_KEY is not set" in warning


def test_an_address_without_a_key_variable_gets_a_warning():
    with LoopbackServer(models=("m",)) as server:
        warnings = check(judge=ModelSpec("m", server.base_url, key_env=""))
    assert warnings == ["judge: no variable is named, so no API key is sent"]


def test_a_dead_endpoint_is_named_with_its_roles_and_cause():
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{closed.getsockname()[1]}/v1"
        with pytest.raises(EndpointError) as failure:
            check(user=ModelSpec("m", url), judge=ModelSpec("m", url))
    assert f"user and judge m at {url}: no connection" in str(failure.value)


def test_an_endpoint_that_never_answers_is_refused_after_the_timeout():
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        silent.listen()
        url = f"http://127.0.0.1:{silent.getsockname()[1]}/v1"
        with pytest.raises(EndpointError, match=r"no answer within 0\.5 s"):
            check(timeout=0.5, judge=ModelSpec("m", url))


def test_a_slow_model_gets_a_warning():
    with LoopbackServer(latency=30.0) as server:
        warning, _ = check(timeout=0.5, judge=ModelSpec("unlisted", server.base_url))
    assert "took longer than 0.5 s for one token" in warning


def test_a_wrong_key_is_refused():
    with LoopbackServer(key="sk-right-right") as server, pytest.raises(EndpointError, match="HTTP 401"):
        check(judge=ModelSpec("unlisted", server.base_url, key_env="MAPO_NO_SUCH_KEY"))


def test_a_busy_endpoint_passes():
    with LoopbackServer(fault=lambda *_: "429") as server:
        assert check(judge=ModelSpec("m", server.base_url)) == []


def test_scripted_and_embedded_models_need_nothing():
    assert check(policy=ModelSpec("scripted:warm")) == []
    assert check_models([ModelSpec("scripted:warm"), ModelSpec("local:pocket")]) == []


def test_a_model_that_mapo_fetch_downloads_says_so(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(InputError, match="Run: mapo fetch smollm2"):
        check_models([ModelSpec("local:models/smollm2-135m-instruct")])


def test_a_missing_or_empty_folder_is_refused(tmp_path):
    with pytest.raises(InputError, match="there is no such folder"):
        check_models([ModelSpec(f"local:{tmp_path / 'none'}")])
    with pytest.raises(InputError, match=r"no config\.json"):
        check_models([ModelSpec(f"local:{tmp_path}")])


def test_a_mistyped_path_is_not_looked_up_on_the_hub(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("mapo.players.preflight._check_hub", lambda name: pytest.fail(name))
    (tmp_path / "models" / "x").mkdir(parents=True)
    with pytest.raises(
        InputError, match=rf"there is no such folder: {tmp_path}/modles/x. Did you mean models/x?"
    ):
        check_models([ModelSpec("local:./modles/x")])
    (tmp_path / "models" / "large").mkdir()
    with pytest.raises(InputError, match=rf"there is no such folder: {tmp_path}/models/lagre"):
        check_models([ModelSpec("local:models/lagre")])
    asked = []
    monkeypatch.setattr("mapo.players.preflight._check_hub", asked.append)
    check_models([ModelSpec("local:models/something-else")])  # may be a name on the hub
    assert asked == ["models/something-else"]


def test_a_file_is_no_model_and_its_folder_is_named(tmp_path):
    (tmp_path / "model.safetensors").write_text("")
    with pytest.raises(InputError, match=rf"this is a file.*Give its folder: {tmp_path}"):
        check_models([ModelSpec(f"local:{tmp_path / 'model.safetensors'}")])


def test_a_training_run_is_refused_with_the_place_of_its_model(tmp_path):
    (tmp_path / "manifest.json").write_text('{"schema": "mapo.train/1"}')
    (tmp_path / "checkpoints" / "step_00003").mkdir(parents=True)
    with pytest.raises(InputError, match=rf"mapo export {tmp_path} .*{tmp_path}/checkpoints/step_00003"):
        check_models([ModelSpec(f"local:{tmp_path}")])


def test_a_hub_that_cannot_be_reached_is_one_line(monkeypatch):
    def unreachable(*_, **__):
        raise OSError("Name or service not known")

    monkeypatch.setattr("huggingface_hub.HfApi.model_info", unreachable)
    with pytest.raises(InputError, match="hub cannot be reached"):
        check_models([ModelSpec("local:nobody/no-such-model")])


def test_a_config_that_needs_a_gpu_is_refused_without_one(monkeypatch):
    monkeypatch.setattr("mapo.local_model.devices.has_gpu", lambda: False)
    with pytest.raises(InputError, match="needs a GPU"):
        check_models([ModelSpec("local:pocket")], device="cuda")
    assert check_models([ModelSpec("local:pocket")], device="cpu") == []


def test_a_shipped_model_that_is_missing_is_not_looked_for_elsewhere(tmp_path, monkeypatch):
    monkeypatch.setitem(SHIPPED, "pocket", tmp_path / "missing")
    (tmp_path / "pocket").mkdir()
    monkeypatch.chdir(tmp_path)
    with pytest.raises(InputError, match="'pocket' is missing from this installation"):
        check_models([ModelSpec("local:pocket")])


@pytest.mark.parametrize(("processes", "device"), [(2, "cuda"), (2, "auto"), (9, "auto")])
def test_more_processes_than_gpus_are_refused(processes, device, monkeypatch):
    monkeypatch.setattr("mapo.local_model.devices.gpu_count", lambda: 1)
    with pytest.raises(InputError, match=f"run.processes: there are {processes} processes and 1 GPU. Use at"):
        check_processes(processes, device)


@pytest.mark.parametrize(
    ("processes", "device", "gpus"), [(2, "cpu", 1), (2, "auto", 0), (2, "cuda", 2), (1, "cuda", 1)]
)
def test_a_gpu_for_each_process_or_none_at_all_is_enough(processes, device, gpus, monkeypatch):
    monkeypatch.setattr("mapo.local_model.devices.gpu_count", lambda: gpus)
    check_processes(processes, device)


def test_a_large_model_without_a_gpu_gets_a_warning(monkeypatch, tmp_path):
    (tmp_path / "config.json").write_text("{}")
    with open(tmp_path / "model.safetensors", "wb") as file:
        file.truncate(4 << 30)
    monkeypatch.setattr("mapo.local_model.devices.has_gpu", lambda: False)
    (warning,) = check_models([ModelSpec(f"local:{tmp_path}")])
    assert "4 GiB of weights" in warning


def test_enumeration():
    assert enumeration(["user"]) == "user"
    assert enumeration(["user", "director", "judge"]) == "user, director and judge"
