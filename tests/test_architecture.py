"""The rooms of the house: imports go one way, torch stays out of the core, public names stay put."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from pathlib import Path

import mapo

ROOT = Path(mapo.__file__).parent
# A module may import from its own rank and from lower ones.
RANKS = {
    "errors": 0,
    "text": 0,
    "types": 0,
    "config": 1,
    "records": 1,
    "store": 1,
    "advantage": 1,
    "ragged": 1,
    "rows": 1,
    "sandbox": 2,
    "domains": 2,
    "reading": 2,
    "stage": 3,
    "who": 3,
    "train": 3,
    "engines": 3,
    "audit": 4,
    "evals": 3,
    "planning": 3,
    "realsim": 4,
    "testing": 3,
    "view": 4,
    "report": 4,
    "cli": 5,
    "__main__": 6,
}
HEAVY = {"torch", "transformers", "accelerate", "peft", "verl", "trl", "ray"}
MAY_BE_HEAVY = {"train", "engines"}


def room(module: str) -> str:
    return module.split(".")[1] if "." in module else ""


def imports(path: Path) -> set[str]:
    found = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import"
            inner = {f"mapo.{alias.name}" for alias in node.names if alias.name != "__version__"}
            found |= inner if node.module == "mapo" else {node.module or ""}
    return found


def modules():
    for path in ROOT.rglob("*.py"):
        name = ".".join(["mapo", *path.relative_to(ROOT).with_suffix("").parts]).removesuffix(".__init__")
        yield name, path


def test_arrows_go_one_way():
    wrong = [
        f"{name} imports {target}"
        for name, path in modules()
        if name != "mapo"  # the flat public namespace, imported lazily
        for target in imports(path)
        if target.startswith("mapo.") and RANKS[room(target)] > RANKS[room(name)]
    ]
    assert not wrong


def domain_of(name: str) -> str:
    parts = name.split(".")
    return parts[2] if parts[1:2] == ["domains"] and len(parts) > 2 else ""


def test_nobody_imports_a_domain_but_itself():
    """Domains are found by name or folder (`sandbox/domain.py`): one code path for all of them."""
    wrong = [
        f"{name} imports {target}"
        for name, path in modules()
        for target in imports(path)
        if domain_of(target) and domain_of(target) != domain_of(name)
    ]
    assert not wrong
    assert any(domain_of(name) for name, _ in modules())


NAMES_OF_DOMAINS_STAND_IN = {
    "audit/recorded.py": "EMPA's published dialogues are about empathy",
    "config.py": "the default of a config",
    "evals/empa_files.py": "EMPA's result files are about empathy",
    "evals/eqbench3.py": "a criterion of EQ-Bench is called so",
    "sandbox/empa_cards.py": "EMPA's cards are about empathy",
    "sandbox/empa_words.py": "a tag of EMPA's cards is called so",
    "sandbox/places.py": "the default of everything else",
    "sandbox/potential.py": "the model's name in its paper",
    "testing/judges.py": "the default of a fake judge",
}


def test_no_domain_is_named_outside_its_folder():
    """What the code says of a domain, it says of all; the exceptions are listed, with their reason."""
    known = "|".join(sorted(x.parent.name for x in ROOT.glob("domains/*/rubric.toml")))
    named = re.compile(rf"{known}|empath", re.IGNORECASE)
    found = {
        str(path.relative_to(ROOT))
        for pattern in ("**/*.py", "**/*.html", "**/*.js", "sandbox/prompts/*")
        for path in ROOT.glob(pattern)
        if path.relative_to(ROOT).parts[0] != "domains" and named.search(path.read_text(encoding="utf-8"))
    }
    assert found <= set(NAMES_OF_DOMAINS_STAND_IN)


def test_every_module_has_a_rank_and_a_docstring():
    for name, path in modules():
        assert name == "mapo" or room(name) in RANKS, name
        if path.read_text(encoding="utf-8").strip():
            assert ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))), name


def test_only_the_engines_import_heavy_libraries():
    wrong = [
        f"{name} imports {target}"
        for name, path in modules()
        if room(name) not in MAY_BE_HEAVY
        for target in imports(path)
        if target.split(".")[0] in HEAVY
    ]
    assert not wrong


def test_public_names_are_pinned():
    assert mapo.__all__ == [
        "Advantages",
        "Answer",
        "AnswerError",
        "AxisMarks",
        "Cast",
        "Chat",
        "Dialogue",
        "Direction",
        "Ending",
        "EndpointError",
        "InputError",
        "Job",
        "JudgeError",
        "Levels",
        "MapoError",
        "Mark",
        "Message",
        "PotentialState",
        "RecordError",
        "Reply",
        "Request",
        "RewardError",
        "Rubric",
        "RubricError",
        "Rules",
        "Scenario",
        "ScenarioError",
        "StopReason",
        "StoreError",
        "Trajectory",
        "Turn",
        "__version__",
        "advantages",
        "play",
        "play_all",
    ]
    for name in mapo.__all__:
        assert getattr(mapo, name) is not None
    assert set(mapo.__all__) <= set(dir(mapo))


def test_unknown_names_raise_attribute_error():
    assert not hasattr(mapo, "no_such_name")


def loaded_by(code: str) -> set[str]:
    """Top-level modules that a fresh interpreter has after running `code`."""
    shown = f"import sys\n{code}\nprint(*sorted({{m.split('.')[0] for m in sys.modules}}))"
    done = subprocess.run([sys.executable, "-c", shown], capture_output=True, text=True, check=True)
    return set(done.stdout.splitlines()[-1].split())


def test_import_mapo_loads_next_to_nothing():
    assert not loaded_by("import mapo") & (HEAVY | {"numpy", "pydantic", "openai", "typer", "rich"})


def test_help_and_the_estimator_do_without_torch():
    code = "from mapo.cli import app\ntry: app(['--help'])\nexcept SystemExit: pass"
    assert not loaded_by(code) & (HEAVY | {"numpy", "pydantic", "openai"})
    assert not loaded_by("import mapo; mapo.advantages([[1.0]], ['s'])") & (HEAVY | {"pydantic", "openai"})
