"""mapo scenarios, as a person runs it."""

from __future__ import annotations

import json
import random
import shutil
import tarfile
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from mapo.cli.scenarios import app
from mapo.errors import InputError, ScenarioError
from mapo.scenarios.sets import MANIFEST, domain_folder, load_scenarios, read_manifest
from support.cards import CARD, put_cards
from support.published import published

BUILTIN = domain_folder("empathy")


def mapo(*args: object) -> Result:
    done = CliRunner().invoke(app, list(map(str, args)), catch_exceptions=False)
    assert done.exit_code in (0, 1), done.output
    return done


@pytest.fixture
def own(tmp_path) -> Path:
    """The shipped scenarios, to be spoilt."""
    shutil.copytree(BUILTIN / "scenarios", tmp_path / "scenarios")
    return tmp_path / "scenarios"


def part(own: Path, name: str, ids: list[str]) -> Path:
    """A folder with some of the scenarios."""
    folder = own.parent / name
    folder.mkdir()
    for case in ids:
        shutil.copy(own / f"{case}.toml", folder)
    return folder


def test_list(monkeypatch):
    monkeypatch.setenv("COLUMNS", "120")
    rows = json.loads(mapo("list", "builtin:test", "--json").stdout)
    assert [row["id"] for row in rows] == [s.id for s in load_scenarios("builtin:test")]
    assert set(rows[0]) == {"id", "category", "axis", "difficulty", "threshold", "language"}
    text = mapo("list").stdout
    assert all(s.id in text for s in load_scenarios("builtin:all"))
    with pytest.raises(ScenarioError, match="no such file"):
        mapo("list", "nowhere")


def test_list_shows_no_control_characters(own):
    path = min(own.glob("*.toml"))
    text = path.read_text(encoding="utf-8").replace('category = "career"', 'category = "\\u001b[31m[bold]x"')
    path.write_text(text, encoding="utf-8")
    shown = mapo("list", path).stdout
    assert "\x1b" not in shown
    assert "[bold]x" in shown


def test_check_passes_the_shipped_splits():
    done = mapo("check")
    assert done.exit_code == 0, done.output
    assert "builtin:train: 168 scenarios" in done.stdout
    assert "no problem found" in done.stdout


def test_check_lists_all_that_is_invalid(own):
    one, two, three = sorted(own.glob("*.toml"))[:3]
    one.write_text("=", encoding="utf-8")
    two.write_text(two.read_text(encoding="utf-8").replace('"C.1" = ', '"C.1" = 1'), encoding="utf-8")
    three.write_text(three.read_text(encoding="utf-8").replace("topic =", "theme ="), encoding="utf-8")
    done = mapo("check", own, "no/such/folder")
    assert done.exit_code == 1
    assert f"{one}: not a readable TOML" in done.stderr
    assert f"{two}: start form, C.1: level" in done.stderr
    assert f"{three}, " in done.stderr
    assert "no/such/folder: no such file or folder" in done.stderr
    assert "no problem found" not in done.stdout
    assert "4 invalid fields or files and 0 overlaps; fix them" in done.stderr
    alone = mapo("check", "no/such/folder")
    assert "1 invalid field or file and 0 overlaps; fix them" in alone.stderr


def test_check_warns_of_copies_in_one_set(own):
    path = min(own.glob("*.toml"))
    copy = path.read_text(encoding="utf-8").replace(f'id = "{path.stem}"', 'id = "twin"')
    (own / "twin.toml").write_text(copy, encoding="utf-8")
    done = mapo("check", own)
    assert done.exit_code == 0
    assert f"warning: similar scenarios in one set: {own}: {path.stem} and {own}: twin: exact" in done.stderr


def test_check_catches_an_exact_copy_between_sets(own):
    ids = sorted(x.stem for x in own.glob("*.toml"))
    train, test = part(own, "train", ids[:10]), part(own, "test", ids[10:14])
    assert mapo("check", train, test).exit_code == 0
    text = (own / f"{ids[3]}.toml").read_text(encoding="utf-8")
    (test / "planted.toml").write_text(text.replace(f'id = "{ids[3]}"', 'id = "planted"'), encoding="utf-8")
    done = mapo("check", train, test)
    assert done.exit_code == 1
    assert f"error: leakage: {train}: {ids[3]} and {test}: planted: exact (1.00)" in done.stderr
    assert "0 invalid fields or files and 1 overlap; fix them" in done.stderr
    shutil.copy(own / f"{ids[0]}.toml", test)
    assert f"error: leakage: {ids[0]} is in {train} and in {test}" in mapo("check", train, test).stderr


def test_check_catches_a_copy_with_names_and_words_changed(own):
    ids = sorted(x.stem for x in own.glob("*.toml"))
    train, test = part(own, "train", ids[:10]), part(own, "test", ids[10:14])
    rng = random.Random(0)
    changed = []
    for line in (own / f"{ids[3]}.toml").read_text(encoding="utf-8").splitlines():
        words = line.split(" ")
        if line.startswith(("    ", "opening", "wants", "hopes", "topic")):  # prose; keys and quotes stay
            words = [
                "whatever" if word.isalpha() and rng.random() < 0.2 and n > 1 else word
                for n, word in enumerate(words)
            ]
        changed.append(" ".join(words))
    [scenario] = load_scenarios(own / f"{ids[3]}.toml")
    text = "\n".join(changed).replace(scenario.persona.name, "Somebody").replace(ids[3], "planted")
    (test / "planted.toml").write_text(text, encoding="utf-8")
    assert text.count("whatever") > len(scenario.text().split()) / 10
    done = mapo("check", train, test)
    assert done.exit_code == 1
    assert f"error: leakage: {train}: {ids[3]} and {test}: planted: near" in done.stderr


def test_check_sums_up_what_is_irregular_in_cards(tmp_path):
    cards = [CARD.replace("年龄：33", "年龄：33岁"), CARD.replace("渡船停了", "下雨了")]
    folder = put_cards(tmp_path, *cards)
    done = mapo("check", folder)
    assert done.exit_code == 0
    rows = [line.split() for line in done.stdout.splitlines()]
    assert ["age-not-a-number", "1", "script_001"] in rows
    assert ["no-story", "1", "script_002"] in rows
    assert "script_001: age-not-a-number" not in done.stdout
    assert "script_001: age-not-a-number" in mapo("check", folder, "--all").stdout
    (folder / "cases" / "script_003.md").write_text("nothing", encoding="utf-8")
    done = mapo("check", folder)
    assert done.exit_code == 1
    assert "script_003.md" in done.stderr


def test_split_writes_a_manifest_that_loads(own):
    out = own.parent / MANIFEST
    done = mapo("split", own, "--out", out)
    assert [len(cases) for cases in read_manifest(out).values()] == [96, 48, 48]
    assert ["category", "career", "16", "8", "8"] in [line.split() for line in done.stdout.splitlines()]
    assert len(load_scenarios(f"{out}:test")) == 48
    names = [f"{out}:{split}" for split in ("train", "validation", "test")]
    assert mapo("check", *names).exit_code == 0
    mapo("split", own, "--out", out, "--sizes", "184/8", "--seed", 3)
    assert {name: len(cases) for name, cases in read_manifest(out).items()} == {"train": 184, "test": 8}


@pytest.mark.parametrize("sizes", ["24", "24/12", "a/b/c", "10/10/10/18", "-1/25/24", "24/24/0", ""])
def test_split_refuses_sizes_that_do_not_fit(own, sizes):
    out = own.parent / MANIFEST
    with pytest.raises(InputError, match="sizes"):
        mapo("split", own, "--out", out, "--sizes", sizes)
    assert not out.exists()


def test_split_refuses_a_set_with_broken_files(own):
    (own / "broken.toml").write_text("=", encoding="utf-8")
    with pytest.raises(ScenarioError, match="1 scenarios cannot be read"):
        mapo("split", own, "--out", own.parent / MANIFEST)


def test_a_planted_copy_moves_with_its_original(own):
    one, *_, last = sorted(own.glob("*.toml"))
    text = one.read_text(encoding="utf-8").replace(f'id = "{one.stem}"', f'id = "{last.stem}"')
    last.write_text(text, encoding="utf-8")
    for seed in range(3):
        out = own.parent / MANIFEST
        mapo("split", own, "--out", out, "--seed", seed)
        assert any({one.stem, last.stem} <= set(cases) for cases in read_manifest(out).values())


def test_published_cards_do_not_overlap_with_ours(tmp_path):
    with tarfile.open(published("cards.tar.gz")) as archive:
        members = [x for x in archive.getmembers() if x.name.endswith(("1.md", ".json"))]
        archive.extractall(
            tmp_path, members, **({"filter": "data"} if hasattr(tarfile, "data_filter") else {})
        )
    done = mapo("check", tmp_path, "builtin:all")
    assert done.exit_code == 0, done.output
    assert f"{tmp_path}: 101 scenarios" in done.stdout
