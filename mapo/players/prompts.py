"""The prompts of a run by name: mapo's templates, a folder of the user's own, or EMPA's package."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

from mapo.config import EMPA_PROMPTS, Config
from mapo.domain_folders import domain_folder
from mapo.measure.rubric import Rubric
from mapo.sandbox.cast import RolePrompts
from mapo.sandbox.intent_user import IntentPrompts
from mapo.sandbox.model_cast import SHIPPED_PROMPTS, TemplatePrompts
from mapo.sandbox.prompting import DEFAULT_PROMPTS, Prompts
from mapo.scenarios.sets import read_set


def named_prompts(name: str, rubric: Rubric, files: Callable[[], Mapping[str, Path]]) -> RolePrompts:
    """Return the prompts `name`: "" (mapo's own), "empa", or a folder. `files` returns the files of the
    scenarios by id. Raises InputError for prompts that cannot be used.

    "empa" imports a Python package, so the name must come from the user's command line or own config.
    """
    if name == EMPA_PROMPTS:
        from mapo.sandbox.empa_package.prompts import EmpaPrompts

        return EmpaPrompts.load(files(), rubric)
    return TemplatePrompts.of(Path(name)) if name else SHIPPED_PROMPTS


def prompts_from_config(config: Config) -> RolePrompts:
    """Return the prompts that a config names, for the scenarios that its run plays."""
    s = config.scenarios

    def files() -> dict[str, Path]:
        played = [s.train, *([s.validation] * bool(config.eval.every))]
        sources = dict.fromkeys([*played, *([s.test] * bool(config.eval.test_repeats))])
        return {case: file for source in sources for case, file in read_set(source, s.domain).files.items()}

    prompts = named_prompts(config.roles.prompts, Rubric.load(domain_folder(s.domain)), files)
    return with_intent_user(prompts) if config.roles.user_kind == "intent" else prompts


def rank_prompts_id(config: Config) -> str:
    """Return the fingerprint of the ranking judge's prompts."""
    return templates_of(prompts_from_config(config)).fingerprint_of("rank", config.scenarios.domain)


def with_intent_user(prompts: RolePrompts) -> RolePrompts:
    """Return the prompts with those of a user who gets an intent only, and without a director."""
    return IntentPrompts(prompts, templates_of(prompts))


def templates_of(prompts: RolePrompts) -> Prompts:
    """Return the templates behind prompts, for roles that only mapo has; else the shipped ones."""
    if isinstance(prompts, IntentPrompts):
        return prompts.templates
    return prompts.templates if isinstance(prompts, TemplatePrompts) else DEFAULT_PROMPTS
