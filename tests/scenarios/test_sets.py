"""Sets of scenarios: sources, manifests, splits."""

from __future__ import annotations

import json
import logging
import shutil
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest

from mapo.errors import ScenarioError
from mapo.scenarios.overlap import compare_sets
from mapo.scenarios.scenario import check_scenario
from mapo.scenarios.sets import (
    MANIFEST,
    SPLITS,
    domain_folder,
    file_hash,
    load_scenarios,
    read_manifest,
    read_set,
)
from mapo.scenarios.split import split_scenarios
from support.cards import CARD, put_cards

BUILTIN = domain_folder("empathy")


@pytest.fixture
def own(tmp_path) -> Path:
    """A copy of the shipped set that may be spoilt."""
    shutil.copytree(BUILTIN / "scenarios", tmp_path / "scenarios")
    shutil.copy(BUILTIN / MANIFEST, tmp_path / MANIFEST)
    return tmp_path


def first_of(folder: Path) -> Path:
    return min((folder / "scenarios").glob("*.toml"))


def test_the_shipped_splits(empathy):
    sets = {name: load_scenarios(f"builtin:{name}") for name in SPLITS}
    assert [len(x) for x in sets.values()] == [168, 12, 12]
    everything = load_scenarios("builtin:all")
    assert sorted(s.id for x in sets.values() for s in x) == [s.id for s in everything]
    assert {s.id for s in everything} == {x.stem for x in (BUILTIN / "scenarios").glob("*.toml")}
    assert [p for s in everything for p in check_scenario(s, empathy)] == []
    assert compare_sets(sets) == ([], [])
    shares = [(28, 56, 0), (2, 4, 3), (2, 4, 3)]
    for name, (category, axis, difficulty) in zip(SPLITS, shares, strict=True):
        assert Counter(s.category for s in sets[name]) == dict.fromkeys(
            ("career", "relationships", "health", "living", "leisure", "values"), category
        )
        assert Counter(s.axis for s in sets[name]) == dict.fromkeys("CAP", axis)
        graded = Counter(s.difficulty for s in sets[name])
        assert len(graded) == 4 and (set(graded.values()) == {difficulty} or name == "train")


def test_a_folder_a_file_and_a_manifest(own):
    folder = own / "scenarios"
    assert load_scenarios(folder) == load_scenarios(str(folder)) == load_scenarios("builtin:all")
    assert [s.id for s in load_scenarios(first_of(own))] == [first_of(own).stem]
    assert load_scenarios(f"{own / MANIFEST}:test") == load_scenarios("builtin:test")
    assert len(load_scenarios(own / MANIFEST)) == 192


def test_cards_as_a_source(tmp_path, caplog):
    folder = put_cards(tmp_path, CARD.replace("渡船", "客船"), CARD)
    assert [s.id for s in load_scenarios(folder)] == ["script_001", "script_002"]
    assert load_scenarios(folder / "cases")[0].opening == "客船停了，我怎么回家"
    (folder / "cases" / "script_001.md").write_text("nothing", encoding="utf-8")
    with caplog.at_level(logging.WARNING):
        assert [s.id for s in load_scenarios(folder)] == ["script_002"]
    assert "script_001" in caplog.text
    (folder / "cases" / "script_002.md").write_text("nothing", encoding="utf-8")
    with pytest.raises(ScenarioError, match="none of the cards can be read"):
        load_scenarios(folder)


def test_cards_can_be_split_too(tmp_path):
    folder = put_cards(tmp_path, CARD, CARD.replace("渡船", "客船"))
    case = folder / "cases" / "script_001.md"
    (folder / MANIFEST).write_text(json.dumps({"train": {"script_001": file_hash(case)}}), encoding="utf-8")
    assert [s.id for s in load_scenarios(f"{folder / MANIFEST}:train")] == ["script_001"]


def test_a_changed_or_missing_file_breaks_its_split(own):
    test = read_manifest(own / MANIFEST)["test"]
    path = own / "scenarios" / f"{min(test)}.toml"
    before = path.read_bytes()
    path.write_bytes(before + b"\n")
    with pytest.raises(ScenarioError, match=rf"{path.name}: the file was changed after splits.json") as error:
        load_scenarios(f"{own / MANIFEST}:test")
    assert "mapo scenarios split" in error.value.fix
    assert len(load_scenarios(f"{own / MANIFEST}:train")) == 168
    path.write_bytes(before)
    assert len(load_scenarios(f"{own / MANIFEST}:test")) == 12
    path.unlink()
    with pytest.raises(ScenarioError, match=f"{path.stem} is missing"):
        load_scenarios(f"{own / MANIFEST}:test")


def test_all_faults_of_a_folder_are_told_at_once(own):
    folder = own / "scenarios"
    (folder / "zz-copy.toml").write_bytes(first_of(own).read_bytes())
    (folder / "zz-none.toml").write_text("=", encoding="utf-8")
    (folder / "zz-binary.toml").write_bytes(b"\xff")
    (folder / "zz-folder.toml").mkdir()
    found = read_set(folder)
    assert len(found.scenarios) == 192
    text = "\n".join(map(str, found.errors))
    assert f"zz-copy.toml, id: the id '{first_of(own).stem}' is already used by {first_of(own)}" in text
    assert all(
        x in text for x in ("zz-none.toml: not a readable TOML", "zz-binary.toml: not UTF-8", "zz-folder")
    )
    with pytest.raises(ScenarioError, match=r"zz-binary.toml.*lists all 4"):
        load_scenarios(folder)


@pytest.mark.parametrize(
    ("source", "says"),
    [
        ("builtin:holdout", "no split 'holdout'.*train, validation, test, all"),
        ("no/such/place", "no such file or folder"),
        ("no/splits.json:train", "the manifest of splits cannot be read"),
    ],
)
def test_sources_that_are_not_there(source, says):
    with pytest.raises(ScenarioError, match=says):
        load_scenarios(source)


def test_empty_folders_and_other_domains(tmp_path, own):
    (tmp_path / "empty").mkdir()
    with pytest.raises(ScenarioError, match="contains no scenarios"):
        load_scenarios(tmp_path / "empty")
    with pytest.raises(ScenarioError, match="domain is 'empathy', but 'tutoring' was requested"):
        load_scenarios(own / "scenarios", "tutoring")
    for name in ("../empathy", "nowhere", ""):
        with pytest.raises(ScenarioError, match="no domain"):
            domain_folder(name)


@pytest.mark.parametrize(
    ("data", "says"),
    [
        ("[", "not a readable JSON"),
        ("[]", "not a JSON object of splits"),
        ('{"train": ["a"]}', "train: not an object of ids"),
        ('{"train": {"a": "123"}}', "train: not an object of ids"),
        (json.dumps({"train": {"a": "0" * 64}, "test": {"a": "0" * 64}}), "a is both in train and in test"),
    ],
)
def test_bad_manifests(tmp_path, data, says):
    (tmp_path / MANIFEST).write_text(data, encoding="utf-8")
    with pytest.raises(ScenarioError, match=says):
        read_manifest(tmp_path / MANIFEST)


def test_the_split_is_even_and_repeats():
    scenarios = load_scenarios("builtin:all")
    sizes = dict(zip(SPLITS, (168, 12, 12), strict=True))
    first = split_scenarios(scenarios, sizes, 0)
    assert split_scenarios(scenarios, sizes, 0) == first
    other = split_scenarios(scenarios, sizes, 1)
    assert other != first
    by_id = {s.id: s for s in scenarios}
    assert set(Counter(by_id[x].category for x in other["test"]).values()) == {2}


def test_near_duplicates_stay_together():
    scenarios = load_scenarios("builtin:all")[:12]
    copies = [
        replace(s, id=f"{s.id}-copy", persona=replace(s.persona, name="Zed"), topic="Retold", category="x")
        for s in scenarios[:6]
    ]
    for seed in range(5):
        found = split_scenarios([*scenarios, *copies], {"train": 10, "test": 8}, seed)
        side = {case: name for name, cases in found.items() for case in cases}
        assert [len(x) for x in found.values()] == [10, 8]
        assert all(side[s.id] == side[f"{s.id}-copy"] for s in scenarios[:6])


def test_splits_that_cannot_be():
    scenarios = load_scenarios("builtin:all")[:4]
    with pytest.raises(ScenarioError, match="sizes 2/1 do not fit 4"):
        split_scenarios(scenarios, {"train": 2, "test": 1}, 0)
    with pytest.raises(ScenarioError, match="sizes 4/0 do not fit 4"):
        split_scenarios(scenarios, {"train": 4, "test": 0}, 0)
    copies = [replace(scenarios[0], id=f"copy-{n}") for n in range(4)]
    with pytest.raises(ScenarioError, match="4 near-identical scenarios do not fit"):
        split_scenarios(copies, {"train": 3, "test": 1}, 0)
