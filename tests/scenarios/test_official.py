"""EMPA's published cards: their splits, their hashes, and what may not be trained on."""

from __future__ import annotations

import json
import logging
import tarfile
from dataclasses import replace

import pytest

from mapo.errors import InputError, ScenarioError
from mapo.scenarios import official
from mapo.scenarios.empa_cards import official_cases
from mapo.scenarios.official import (
    card_hash,
    card_split,
    choose_cases,
    content_hash,
    official_ids,
    official_test_cards,
)
from mapo.scenarios.sets import count_scenarios, load_scenarios, read_set
from support.cards import CARD, put_cards
from support.command import mapo
from support.published import published


@pytest.fixture(scope="module")
def empa(tmp_path_factory):
    folder = tmp_path_factory.mktemp("empa")
    with tarfile.open(published("cards.tar.gz")) as archive:
        archive.extractall(folder, filter="data")
    return folder


def varied(number: int) -> str:
    """Return a card about somebody else."""
    return CARD.replace("渡船停了，我怎么回家", f"第{number}班渡船停了").replace("码头", f"第{number}个码头")


@pytest.fixture
def made_up(tmp_path, monkeypatch):
    """Four cards of which one is the official test, and their manifest."""
    folder = put_cards(tmp_path, *(varied(n) for n in range(1, 5)), stories=[])
    scenarios = {s.id: s for s in load_scenarios(folder)}
    hashes = {case: card_hash(varied(int(case[-1]))) for case in scenarios}
    manifest = {
        "train": {case: digest for case, digest in hashes.items() if case != "script_002"},
        "test": {"script_002": hashes["script_002"]},
        "test_content": {"script_002": content_hash(scenarios["script_002"])},
    }
    (tmp_path / "manifest.json").write_text(json.dumps(manifest))
    monkeypatch.setattr(official, "CARDS", tmp_path / "manifest.json")
    official._manifest.cache_clear()
    yield folder
    official._manifest.cache_clear()


def test_the_manifest_has_697_cards_to_train_and_30_to_test():
    assert [len(card_split(split)) for split in ("train", "test", "published-727")] == [697, 30, 727]
    ids = [f"script_{n:03d}" for n in range(1, 728)]
    assert sorted(card_split("published-727")) == ids
    assert not set(card_split("train")) & set(card_split("test"))


def test_the_manifest_holds_no_text():
    data = json.loads(official.CARDS.read_text(encoding="ascii"))
    values = [value for part in data.values() if isinstance(part, dict) for value in part.values()]
    assert all(len(value) == 64 and int(value, 16) >= 0 for value in values)


def test_the_published_cards_are_those_of_the_manifest(empa, caplog):
    with caplog.at_level(logging.WARNING):
        train, test = (load_scenarios(f"{empa}:{split}") for split in ("train", "test"))
    assert (len(train), len(test)) == (697, 30) and not caplog.records
    assert {s.id for s in test} == set(official_cases(empa)) == set(official_ids(empa))
    assert official_test_cards([*train, *test]) == sorted(official_cases(empa))
    assert official_test_cards(train) == []


def test_splits_of_a_folder_of_cards(made_up):
    ids = {split: [s.id for s in load_scenarios(f"{made_up}:{split}")] for split in official.CARD_SPLITS}
    assert ids["test"] == ["script_002"]
    assert ids["train"] == ["script_001", "script_003", "script_004"]
    assert ids["published-727"] == sorted([*ids["train"], *ids["test"]])


def test_scenarios_are_counted_without_the_cards():
    assert count_scenarios("nowhere:train") == 697
    assert count_scenarios("nowhere:published-727") == 727
    assert count_scenarios("builtin:test") == 12


def test_a_card_that_was_changed_is_reported(made_up, caplog):
    card = made_up / "cases/script_003.md"
    card.write_text(card.read_text(encoding="utf-8") + "新的一句\n", encoding="utf-8")
    with caplog.at_level(logging.WARNING):
        loaded = read_set(f"{made_up}:train")
    assert len(loaded.scenarios) == 3 and "text-differs" in loaded.irregular["script_003"]
    assert "1 of the 3 cards" in caplog.text and "script_003" in caplog.text


def test_line_ends_and_trailing_blanks_change_no_hash():
    assert card_hash("\ufeffa \r\nb\r\n\r\n") == card_hash("a\nb")
    assert card_hash("a\nb") != card_hash("a\nc")


def test_a_missing_card_is_an_error(made_up):
    (made_up / "cases/script_004.md").unlink()
    with pytest.raises(ScenarioError, match="1 of the 3 cards of the split are missing"):
        load_scenarios(f"{made_up}:train")


def test_a_folder_without_cards_has_no_published_splits(tmp_path):
    with pytest.raises(ScenarioError, match="contains no EMPA cards"):
        load_scenarios(f"{tmp_path}:train")


def test_the_official_cases_come_from_the_folder_or_from_the_package(made_up, caplog):
    scenarios = load_scenarios(made_up)
    assert [s.id for s in choose_cases(scenarios, "official", str(made_up))] == ["script_002"]
    (made_up / "official_cases.txt").write_text("script_001\n")
    with caplog.at_level(logging.WARNING):
        assert [s.id for s in choose_cases(scenarios, "official", str(made_up))] == ["script_001"]
    assert "does not list the 30 published cases" in caplog.text


def test_other_scenarios_have_no_official_cases():
    with pytest.raises(InputError, match="and 25 more.*folder of EMPA's cards"):
        choose_cases(load_scenarios("builtin:test"), "official", "builtin:test")


def test_a_renamed_copy_of_a_test_card_is_found(made_up):
    [test] = load_scenarios(f"{made_up}:test")
    copy = replace(test, id="mine", persona=replace(test.persona, name="别人"), stages=(), language="en")
    assert official_test_cards([copy]) == ["mine"]
    assert official_test_cards([replace(copy, topic="另一件事", wants_to_say="")]) == []


def test_an_edited_test_card_is_known_by_its_id(made_up):
    [test] = load_scenarios(f"{made_up}:test")
    assert official_test_cards([replace(test, topic="另一件事")]) == ["script_002"]


def test_the_split_command_keeps_the_official_cases_for_the_test(empa, tmp_path):
    out = tmp_path / "splits.json"
    sizes = ("--official", "--sizes", "650/47")
    done = mapo("scenarios", "split", f"{empa}:published-727", "--out", str(out), *sizes)
    assert done.returncode == 0, done.stderr
    splits = json.loads(out.read_text())
    assert {name: len(cases) for name, cases in splits.items()} == {
        "train": 650,
        "validation": 47,
        "test": 30,
    }
    assert set(splits["test"]) == set(card_split("test"))


def test_the_list_command_shows_the_official_cases(empa):
    done = mapo("scenarios", "list", str(empa), "--cases", "official", "--json")
    assert [row["id"] for row in json.loads(done.stdout)] == sorted(card_split("test"))


def test_a_missing_folder_of_cards_is_said_so(tmp_path):
    with pytest.raises(ScenarioError, match="no such folder.*CARDS:train"):
        load_scenarios(f"{tmp_path / 'nowhere'}:train")
