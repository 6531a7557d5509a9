"""Architecture: imports point one way, torch stays out of the core, public names stay put."""

from __future__ import annotations

import ast
import functools
import graphlib
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Collection, Mapping
from pathlib import Path

import mapo

ROOT = Path(mapo.__file__).parent
ORDER = [
    "errors",
    "untrusted",
    "listening",
    "connections",
    "text",
    "types",
    "body_fields",
    "domain_folders",
    "config",
    "estimators",
    "advantage",
    "records",
    "store",
    "show",
    "rows",
    "measure",
    "credit",
    "models",
    "scenarios",
    "sandbox",
    "scripted",
    "domains",
    "runs",
    "scoring",
    "local_model",
    "sampling.streamed",
    "sampling",
    "players",
    "train",
    "engines.trl",
    "engines.verifiers",
    "engines.openenv",
    "engines.verl.cpu",
    "engines.verl",
    "engines",
    "evals",
    "evals.empa",
    "evals.emobench",
    "evals.eqbench",
    "evals.compare",
    "evals.ablation",
    "evals.inspect",
    "judges",
    "judges.audit",
    "judges.audit.ranking",
    "judges.swap",
    "roles",
    "realsim.redaction",
    "realsim.reading",
    "realsim.fidelity",
    "realsim",
    "planning",
    "evals.reproduce",
    "testing",
    "report.document",
    "report.sections",
    "report",
    "view.index",
    "view.pages",
    "view",
    "cli.common",
    "cli.evaluate",
    "cli.judge",
    "cli.roles",
    "cli.scenarios",
    "cli.training",
    "cli",
    "__main__",
]
"""Folders and top-level modules from the bottom up. Each may import only from itself and from those above it
in this list. Imports inside functions and under TYPE_CHECKING count."""
HEAVY = {"torch", "transformers", "accelerate", "peft", "verl", "trl", "ray"}
MAY_BE_HEAVY = {"local_model", "sampling", "train", "engines", "roles"}


def place(module: str) -> str:
    """Return the entry of ORDER that a module belongs to: the longest one that its name starts with."""
    parts = module.split(".")[1:]
    return next((name for n in range(len(parts), 0, -1) if (name := ".".join(parts[:n])) in ORDER), "")


@functools.cache
def import_statements(text: str) -> list[ast.Import | ast.ImportFrom]:
    return [node for node in ast.walk(ast.parse(text)) if isinstance(node, ast.Import | ast.ImportFrom)]


def imports(text: str, known: Collection[str]) -> set[str]:
    """Return the modules that a source text imports, at the top or anywhere else."""
    found = set()
    for node in import_statements(text):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        else:
            assert node.level == 0, "relative import"
            inner = {f"{node.module}.{alias.name}" for alias in node.names}
            found |= (inner & set(known)) or {node.module or ""}
    return found


@functools.cache
def sources() -> dict[str, str]:
    """Return the text of every module of the package, by its name."""
    return {
        ".".join(["mapo", *path.relative_to(ROOT).with_suffix("").parts]).removesuffix(".__init__"): (
            path.read_text(encoding="utf-8")
        )
        for path in ROOT.rglob("*.py")
    }


def edges(texts: Mapping[str, str]) -> dict[str, set[str]]:
    """Return which modules each module imports. `mapo` itself, the public namespace, is left out."""
    return {
        name: {found for found in imports(text, texts) if found in texts} - {"mapo", name}
        for name, text in texts.items()
        if name != "mapo"
    }


def upward_imports(texts: Mapping[str, str]) -> list[str]:
    """Return the imports that point from a module to one that is higher in ORDER."""
    rank = {name: at for at, name in enumerate(ORDER)}
    return [
        f"{name} imports {target}"
        for name, targets in edges(texts).items()
        for target in targets
        if rank[place(target)] > rank[place(name)]
    ]


def circles(texts: Mapping[str, str]) -> list[str]:
    """Return one cycle of imports between modules, or nothing."""
    try:
        graphlib.TopologicalSorter(edges(texts)).prepare()
    except graphlib.CycleError as error:
        return error.args[1]
    return []


def test_every_import_points_down():
    assert upward_imports(sources()) == []


def test_an_upward_import_is_noticed_even_inside_a_function():
    added = "def later():\n    from mapo.train.run import run\n"
    texts = {**sources(), "mapo.measure.rubric": sources()["mapo.measure.rubric"] + added}
    assert upward_imports(texts) == ["mapo.measure.rubric imports mapo.train.run"]


def test_no_two_modules_import_each_other():
    assert circles(sources()) == []


def test_a_circle_inside_a_folder_is_noticed():
    added = "def later():\n    from mapo.measure import reward\n"
    texts = {**sources(), "mapo.measure.potential": sources()["mapo.measure.potential"] + added}
    assert {"mapo.measure.potential", "mapo.measure.reward"} <= set(circles(texts))


def test_folders_hold_few_modules():
    """A folder with more than fifteen modules holds several concepts: give each a folder of its own."""
    counts = Counter(path.parent for path in ROOT.rglob("*.py") if path.name != "__init__.py")
    assert {str(folder): n for folder, n in counts.items() if n > 15} == {}


def domain_of(name: str) -> str:
    parts = name.split(".")
    return parts[2] if parts[1:2] == ["domains"] and len(parts) > 2 else ""


def test_no_module_imports_a_domain_from_outside_it():
    """Domains are found by name or folder (`sandbox/domain.py`): one code path for all of them."""
    wrong = [
        f"{name} imports {target}"
        for name, targets in edges(sources()).items()
        for target in targets
        if domain_of(target) and domain_of(target) != domain_of(name)
    ]
    assert not wrong
    assert any(domain_of(name) for name in sources())


NAMES_OF_DOMAINS_STAND_IN = {
    "judges/audit/recorded.py": "EMPA's published dialogues are about empathy",
    "config.py": "the default of a config",
    "scoring/empa_files.py": "EMPA's result files are about empathy",
    "evals/eqbench/v3.py": "a criterion of EQ-Bench is called so",
    "scenarios/empa_cards.py": "EMPA's cards are about empathy",
    "sandbox/empa_package/package.py": "modules of EMPA's package",
    "sandbox/empa_package/roles.py": "a function of EMPA's director",
    "domain_folders.py": "the default of everything else",
    "measure/potential.py": "the model's name in its paper",
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
    for name, text in sources().items():
        assert name == "mapo" or place(name), name
        if text.strip():
            assert ast.get_docstring(ast.parse(text)), name


def test_only_the_engines_import_heavy_libraries():
    wrong = [
        f"{name} imports {target}"
        for name, text in sources().items()
        if place(name).split(".")[0] not in MAY_BE_HEAVY
        for target in imports(text, ())
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
