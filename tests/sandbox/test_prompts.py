"""Templates of the user's own: used instead of the shipped ones, checked before playing, told apart."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from mapo.errors import InputError
from mapo.measure.rubric import Rubric
from mapo.sandbox.cast import Job, prompts_id
from mapo.sandbox.model_cast import SHIPPED_PROMPTS, TemplatePrompts, model_cast
from mapo.sandbox.panel import model_judge, with_judges
from mapo.sandbox.prompting import DEFAULT_PROMPTS, MAX_BYTES, Prompts
from mapo.sandbox.rollout import Rules, play
from support.roles import Told, boat_shed, turn_form

EMPATHY = Rubric.load("empathy")
JUDGE = "My judge. $axes $form $person"


def own(folder: Path, **files: str) -> Path:
    for name, text in files.items():
        suffix = ".toml" if name in ("director_acts", "user_notes") else ".md"
        (folder / f"{name}{suffix}").write_text(text, encoding="utf-8")
    return folder


def test_own_templates_replace_the_shipped_ones_in_every_role(tmp_path):
    notes = "\n".join(
        f'{act} = "my note {"$item" if "$item" in text else ""}"'
        for act, text in DEFAULT_PROMPTS.table("user_notes").items()
    )
    folder = own(
        tmp_path,
        judge_turn=JUDGE,
        user="My user. $person $limit",
        director="My director. $acts $axes $person",
        policy="My policy.",
        transcript="My transcript. $mark",
        user_notes=notes,
    )
    prompts = TemplatePrompts.of(folder)
    chats = Told("Well, yes, it is so."), Told('{"act": "go_on"}'), Told(turn_form(EMPATHY, 1))
    casting, job = model_cast(*chats, EMPATHY, prompts=prompts), Job(boat_shed(), "d")
    policy, rules = Told("Mm."), Rules(EMPATHY, min_turns=2, max_turns=2, system=prompts.policy_system)
    dialogue = asyncio.run(play(job, policy, casting(job), rules))
    user, director, judge = (chat.requests[-1].messages for chat in chats)
    assert user[0].content.startswith("My user.")
    assert user[-1].content.endswith("my note")
    assert director[0].content.startswith("My director.")
    assert director[1].content.startswith("My transcript.")
    assert judge[0].content.startswith("My judge.")
    assert judge[1].content.startswith("My transcript.")
    assert policy.requests[0].messages[0].content == "My policy."
    assert dialogue.prompts == prompts_id(prompts, "empathy")


def test_a_panel_judges_with_the_same_prompts(tmp_path):
    prompts = TemplatePrompts.of(own(tmp_path, judge_turn=JUDGE))
    chats = [Told(turn_form(EMPATHY, 1)) for _ in range(3)]
    judges = [model_judge(c, EMPATHY, name=str(n), prompts=prompts) for n, c in enumerate(chats)]
    casting = with_judges(model_cast(Told("a b"), Told("{}"), Told(""), EMPATHY, prompts=prompts), judges)
    job = Job(boat_shed(), "d")
    asyncio.run(play(job, Told("Mm."), casting(job), Rules(EMPATHY, min_turns=1, max_turns=1)))
    assert all(chat.requests[0].messages[0].content.startswith("My judge.") for chat in chats)


def test_the_fingerprint_changes_with_any_template_and_with_the_domain(tmp_path):
    first = Prompts(own(tmp_path, user_retry="$problem")).fingerprint("empathy")
    assert first != DEFAULT_PROMPTS.fingerprint("empathy")
    assert Prompts(own(tmp_path, user_retry="$problem!")).fingerprint("empathy") != first
    assert DEFAULT_PROMPTS.fingerprint("tutoring") != DEFAULT_PROMPTS.fingerprint("empathy")


def test_equal_templates_have_the_same_fingerprint(tmp_path):
    text = DEFAULT_PROMPTS._texts["user_retry.md"]
    assert Prompts(own(tmp_path, user_retry=text)).fingerprint("empathy") == DEFAULT_PROMPTS.fingerprint(
        "empathy"
    )


def test_the_names_of_prompts():
    assert SHIPPED_PROMPTS.name == "mapo"


@pytest.mark.parametrize(
    ("name", "text", "problem"),
    [
        ("judge_turn", "$axes $form", r"placeholder \$person is missing"),
        ("judge_turn", f"{JUDGE} $secret", r"unknown placeholder \$secret"),
        ("judge_turn", f"{JUDGE} costs $ 5", r"write \$\$"),
        ("judge_trun", "typo", "no template of this name"),
        ("director_acts", 'wait = "w"', "the keys are wait"),
        ("director_acts", "wait = ", "cannot be read"),
        ("user", "x" * (MAX_BYTES + 1), "larger than the limit"),
    ],
)
def test_a_bad_template_is_refused_with_its_file(tmp_path, name, text, problem):
    with pytest.raises(InputError, match=problem) as caught:
        Prompts(own(tmp_path, **{name: text}))
    assert name in caught.value.where


def test_a_note_without_its_item_is_refused(tmp_path):
    table = "\n".join(f'{act} = "note"' for act in DEFAULT_PROMPTS.table("user_notes"))
    with pytest.raises(InputError, match=r"reveal_stage: the placeholder \$item is missing"):
        Prompts(own(tmp_path, user_notes=table))


def test_text_that_is_not_utf8_is_refused(tmp_path):
    (tmp_path / "user.md").write_bytes(b"\xff\xfe")
    with pytest.raises(InputError, match="cannot be read"):
        Prompts(tmp_path)


@pytest.mark.parametrize("missing", [True, False], ids=["no such folder", "empty folder"])
def test_a_folder_without_templates_is_refused(tmp_path, missing):
    with pytest.raises(InputError, match="folder"):
        Prompts(tmp_path / "none" if missing else tmp_path)
