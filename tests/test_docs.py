"""The documentation: links, settings, length, and the site."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from mapo.config import Config

ROOT = Path(__file__).parents[1]
PAGES = sorted((ROOT / "docs").glob("*.md"))
OUTSIDE = [
    *(ROOT / name for name in ("README.md", "README.zh.md", "CONTRIBUTING.md")),
    *(ROOT / "examples" / name / "README.md" for name in ("own_domain", "real_proof")),
]


def _anchors(page):
    """Return the anchors that GitHub makes of a page's headings."""
    headings = re.findall(r"^#+ (.*)$", page.read_text(encoding="utf-8"), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def _settings(model, prefix=""):
    for name, field in model.model_fields.items():
        kind = field.annotation
        if isinstance(kind, type) and hasattr(kind, "model_fields") and not prefix:
            yield from _settings(kind, f"{name}.")
        else:
            yield f"{prefix}{name}"


@pytest.mark.parametrize("page", [*PAGES, *OUTSIDE], ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_somewhere(page):
    text = re.sub(r"```.*?```", "", page.read_text(encoding="utf-8"), flags=re.DOTALL)
    for target in re.findall(r"\]\(([^)\s]+)\)", text):
        if target.startswith("http"):
            continue
        path, _, anchor = target.partition("#")
        linked = (page.parent / path).resolve() if path else page
        assert linked.exists(), target
        assert not anchor or anchor in _anchors(linked), target


def test_messages_name_pages_that_exist():
    named = {
        name
        for file in [*(ROOT / "mapo").rglob("*.py"), *(ROOT / "configs").glob("*.toml")]
        for name in re.findall(r"docs/[\w-]+\.md", file.read_text(encoding="utf-8"))
    }
    assert [name for name in sorted(named) if not (ROOT / name).exists()] == []


def test_every_setting_is_documented():
    text = (ROOT / "docs/settings.md").read_text(encoding="utf-8")
    documented = set(re.findall(r"^\| `([a-z_]+\.[a-z_]+)` \|", text, re.MULTILINE))
    assert documented == set(_settings(Config))


def test_the_config_of_the_quickstart_is_valid_and_sets_all_three_splits():
    import tomllib

    text = (ROOT / "docs/quickstart.md").read_text(encoding="utf-8")
    (block,) = re.findall(r"```toml\n(.*?)```", text, re.DOTALL)
    settings = Config.model_validate(tomllib.loads(block))
    assert {"train", "validation", "test"} <= settings.scenarios.model_fields_set


def test_the_reading_path_has_nine_files_of_about_2_000_lines():
    text = (ROOT / "docs/architecture.md").read_text(encoding="utf-8")
    files = re.findall(r"^\| \d \| `(mapo/[\w/]+\.py)` \|", text, re.MULTILINE)
    assert len(files) == 9
    lines = sum(len((ROOT / file).read_text(encoding="utf-8").splitlines()) for file in files)
    assert 1_700 <= lines <= 2_200


def test_both_readmes_have_the_same_links():
    def targets(name):
        text = (ROOT / name).read_text(encoding="utf-8")
        return sorted(set(re.findall(r"\]\(([^)\s]+)\)", text)) - {"README.md", "README.zh.md"})

    assert targets("README.md") == targets("README.zh.md")


def test_the_documentation_stays_within_21_000_words():
    pages = [*PAGES, ROOT / "README.md", ROOT / "CONTRIBUTING.md"]
    texts = [page.read_text(encoding="utf-8") for page in pages]
    assert sum(any(map(str.isalnum, word)) for text in texts for word in text.split()) <= 21_000


def test_the_site_builds_and_a_broken_link_fails(tmp_path):
    pytest.importorskip("mkdocs")
    pytest.importorskip("material")
    for name in ("docs", "mkdocs.yml"):
        source = ROOT / name
        (shutil.copytree if source.is_dir() else shutil.copy)(source, tmp_path / name)
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(tmp_path / "site")]
    environment = {**os.environ, "NO_MKDOCS_2_WARNING": "1"}
    built = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True)
    assert built.returncode == 0, built.stderr
    with open(tmp_path / "docs/index.md", "a", encoding="utf-8") as page:
        page.write("\n[broken](nowhere.md)\n")
    assert subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True).returncode != 0
