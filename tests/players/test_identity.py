"""Which model a run was made with."""

from __future__ import annotations

from mapo.local_model import shipped
from mapo.players.identity import fingerprint, identity, moved
from mapo.players.spec import ModelSpec


def model(folder, weights=b"0123456789" * 300_000, config="{}"):
    folder.mkdir(exist_ok=True)
    (folder / "config.json").write_text(config)
    (folder / "model.safetensors").write_bytes(weights)
    (folder / "README.md").write_text("words")
    return folder


def test_other_weights_of_the_same_size_are_another_model(tmp_path):
    first = fingerprint(model(tmp_path / "a"))
    assert fingerprint(model(tmp_path / "b")) == first
    (tmp_path / "b" / "README.md").write_text("other words")
    assert fingerprint(tmp_path / "b") == first
    trained = bytes(255 - byte for byte in b"0123456789" * 300_000)
    seen = {
        first,
        fingerprint(model(tmp_path / "b", trained)),
        fingerprint(model(tmp_path / "b", b"0123456789" * 300_001)),
        fingerprint(model(tmp_path / "b", config='{"layers": 2}')),
        fingerprint(model(tmp_path / "b", b"")),
    }
    assert len(seen) == 5


def test_a_folder_has_weights_and_an_endpoint_an_address(tmp_path, monkeypatch):
    monkeypatch.delenv("OPENAI_BASE_URL", raising=False)
    folder = model(tmp_path / "a")
    found = identity(model=ModelSpec(f"local:{folder}"), judge=ModelSpec("big", "http://x:1/v1/"), user=None)
    assert found == {"addresses": {"judge": "http://x:1/v1"}, "weights": {"model": fingerprint(folder)}}
    assert identity(model=ModelSpec("scripted:honest")) == {"addresses": {}}
    assert identity(model=ModelSpec("m"))["addresses"] == {"model": "https://api.openai.com/v1"}
    monkeypatch.setenv("OPENAI_BASE_URL", "http://y/v1")
    assert identity(model=ModelSpec("m"))["addresses"] == {"model": "http://y/v1"}


def test_a_shipped_model_is_the_folder_of_the_package_and_not_one_here(tmp_path, monkeypatch):
    packaged = model(tmp_path / "packaged")
    model(tmp_path / "pocket-judge", b"other weights")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setitem(shipped.SHIPPED, "pocket-judge", packaged)
    recorded = identity(judge=ModelSpec("local:pocket-judge"))
    assert recorded == {"addresses": {}, "weights": {"judge": fingerprint(packaged)}}


def test_a_move_is_told_and_a_manifest_without_addresses_tells_nothing():
    now = {"addresses": {"model": "http://b"}}
    [line] = moved({"addresses": {"model": "http://a"}}, now)
    assert line == "model was at http://a, and is now at http://b: is it the same model?"
    assert moved({}, now) == moved(now, now) == []
