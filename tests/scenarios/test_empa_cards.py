"""EMPA's cards: the published set by its known counts, and made-up cards that misbehave."""

from __future__ import annotations

import json
import tarfile
import time
from collections import Counter
from pathlib import Path

import pytest

from mapo.errors import ScenarioError
from mapo.scenarios.empa_cards import official_cases, read_cards
from mapo.scenarios.scenario import check_scenario
from mapo.scenarios.start_levels import read_start_levels
from support.cards import CARD, STORY, put_cards
from support.published import published


@pytest.fixture(scope="module")
def empa(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("cards")
    with tarfile.open(published("cards.tar.gz")) as archive:
        archive.extractall(folder, **({"filter": "data"} if hasattr(tarfile, "data_filter") else {}))
    return folder


def test_all_published_cards_load_with_the_known_irregularities(empa, empathy):
    found = read_cards(empa)
    assert len(found.scenarios) == 1010
    assert found.unreadable == {}
    counts = Counter(kind for kinds in found.irregular.values() for kind in kinds)
    # Counts of shared/data/README.md; "without a present situation" there is one under a longer label.
    assert counts == {
        "no-behaviour-block": 487,
        "elided-preamble": 285,
        "short-style": 111,
        "priority-not-per-axis": 62,
        "age-not-a-number": 41,
        "present-situation-label": 19,
        "no-high-priority": 22,
        "markdown-residue": 14,
        "stage-title": 2,
        "repeated-topic": 5,
        "heading-depth": 899,
        "repeated-label": 1,
        "no-growth-line": 1,
    }
    for s in found.scenarios:
        assert (len(s.stages), len(s.memories), len(s.priorities)) == (7, 4, 3), s.id
        assert s.persona.age and s.opening and s.wants_to_say and s.hopes_for, s.id
        assert check_scenario(s, empathy) == [], s.id
    assert Counter(s.threshold for s in found.scenarios) == {"medium": 540, "high": 401, "low": 69}


def test_the_official_cases_carry_their_tags(empa):
    tagged = {s.id: s for s in read_cards(empa).scenarios if s.category}
    assert set(tagged) == set(official_cases(empa))
    assert set(Counter(s.category for s in tagged.values()).values()) == {5}
    assert Counter(s.axis for s in tagged.values()) == {"C": 10, "A": 10, "P": 10}
    difficulties = {"hard": 11, "medium": 10, "extreme": 5, "easy": 4}
    assert Counter(s.difficulty for s in tagged.values()) == difficulties


def test_published_start_levels_from_result_files(two_models, replay):
    levels = read_start_levels(two_models)
    assert len(levels) == 30
    expected = {record["case"]: record["iedr_levels"] for record in replay}
    assert all(levels[case] == expected[case] for case in levels)


def test_what_a_card_becomes(tmp_path):
    metadata = {
        "sampled_cases": [
            {"script_id": "script_001", "category": "生涯发展", "difficulty": "极难", "dominant_axis": "P"}
        ]
    }
    found = read_cards(put_cards(tmp_path, CARD, metadata=metadata))
    assert (found.irregular, found.unreadable) == ({}, {})
    [s] = found.scenarios
    assert (s.persona.name, s.persona.age, s.persona.traits) == ("丁香", 33, ("爽快", "胆小"))
    assert s.persona.speech == "说话简短"
    assert "人物共情阈值：怕催" in s.persona.background
    assert s.topic == s.opening == "渡船停了，我怎么回家"
    assert (s.wants_to_say, s.hopes_for) == ("想说说码头\n的旧事", "有人陪着等")
    assert (s.threshold, s.priorities) == ("low", {"C": "high", "A": "medium", "P": "low"})
    assert [(m.period, m.says) for m in s.memories] == [
        ("childhood", ("在船上学走路",)),
        ("youth", ("划船上学",)),
        ("adulthood", ("卖过船票",)),
        ("recent", ("住在对岸",)),
    ]
    assert [(x.kind, *x.says) for x in s.stages] == [
        ("start", "末班船取消了"),
        ("turn", "第1段"),
        ("turn", "第2段"),
        ("turn", "第3段"),
        ("turn", "一只鸥鸟"),
        ("outburst", "第4段"),
        ("outcome", "她走回去了"),
    ]
    assert s.tags == {"category": "career", "axis": "P", "difficulty": "extreme"}
    assert (s.language, s.domain, s.start_levels) == ("zh", "empathy", {})


@pytest.mark.parametrize(
    ("old", "new", "kind"),
    [
        ("年龄：33", "年龄：33岁", "age-not-a-number"),
        ("年龄：33", "年龄：不详", "age-not-a-number"),
        ("# 角色当前行为\n  - 正在等车\n", "", "no-behaviour-block"),
        ("说话简短", "你说话不会超过9个字", "short-style"),
        ("高优先级", "低优先级", "no-high-priority"),
        ("【低】", "【?】", "no-threshold"),
        ("童年经历：在船上学走路\n", "", "no-childhood"),
        ("现在的情况：", "现在的情况（大概）：", "present-situation-label"),
        ("现在的情况：住在对岸\n", "", "no-present-situation"),
        ("姓名：丁香", "名字：丁香", "no-name"),
        ("在船上", "**在**船上", "markdown-residue"),
        ("# 角色现状", "### 角色现状", "heading-depth"),
        ("<character_info>", "(此处省略)<character_info>", "elided-preamble"),
        ("<experience>", "<experience><experience>", "tag-not-once"),
        ("</scenario>", "", "tag-not-once"),
        ("<experience>", "", "tag-not-once"),
        ("故事的起因：末", "故事的起因：今夜\n故事的起因：末", "repeated-label"),
    ],
)
def test_irregular_cards_are_read_and_reported(tmp_path, old, new, kind):
    assert old in CARD
    found = read_cards(put_cards(tmp_path, CARD.replace(old, new, 1)))
    assert len(found.scenarios) == 1
    assert kind in found.irregular["script_001"]
    text = found.scenarios[0].text()
    assert "*" not in text and "<" not in text


@pytest.mark.parametrize(
    ("lines", "expected"),
    [
        ("情感共情 > 动机共情 > 认知共情。先安抚", {"A": "high", "P": "medium", "C": "low"}),
        (
            "1.动机共情（最优先）；2.认知共情（其次）；3.情感共情（最后）",
            {"P": "high", "C": "medium", "A": "low"},
        ),
        ("情感共情：[核心]\n认知共情：[核心]\n动机共情：[次要]", {"A": "high", "C": "high", "P": "medium"}),
        (
            "情感共情：[最高优先级]\n认知共-情：[最低优先级]\n动机共情：[中等]",
            {"A": "high", "C": "low", "P": "medium"},
        ),
        ("说不清", {}),
    ],
)
def test_priorities_in_other_words(tmp_path, lines, expected):
    head, _, rest = CARD.partition("当下共情需求优先级：")
    card = (
        f"{head}当下共情需求优先级：\n{lines}\n</psychological_profile>"
        + rest.partition("</psychological_profile>")[2]
    )
    found = read_cards(put_cards(tmp_path, card))
    assert found.scenarios[0].priorities == expected
    assert "priority-not-per-axis" in found.irregular["script_001"]


def test_stories_may_be_missing_or_broken(tmp_path):
    def kinds(story: object) -> list[str]:
        found = read_cards(put_cards(tmp_path, CARD, stories=[story]))
        assert found.scenarios[0].stages[0].says == ("末班船取消了",)
        return found.irregular.get("script_001", [])

    assert kinds({"剧本编号": "script_999"}) == ["no-story"]
    assert kinds({**STORY, "故事的结果": ""}) == ["story-incomplete"]
    assert kinds({**STORY, "故事的经过": [1, 2]}) == ["stage-title", "story-incomplete"]
    assert kinds({"剧本编号": "script_001", "故事的插曲": 7}) == ["stage-title", "story-incomplete"]


def test_an_unreadable_card_does_not_stop_the_others(tmp_path):
    folder = put_cards(
        tmp_path, CARD, "", CARD.replace("渡船停了，我怎么回家", ""), CARD.replace("渡船", "客船")
    )
    (folder / "cases" / "script_005.md").write_bytes(b"\xff\xfe\xff")
    (folder / "cases" / "script_bad id.md").write_text(CARD, encoding="utf-8")
    (folder / "cases" / "script_007.md").write_bytes(b"x" * (2 << 20))
    found = read_cards(folder)
    assert [s.id for s in found.scenarios] == ["script_001", "script_004"]
    assert set(found.unreadable) == {"script_002", "script_003", "script_005", "script_bad id", "script_007"}
    assert "opening" in found.unreadable["script_003"]


def test_hostile_cards_take_no_time(tmp_path):
    noise = ("**" + "现在的情况" + "（" + "-" * 30) * 2500  # about 100,000 characters in one line
    cards = [
        CARD.replace("住在对岸", noise),
        CARD.replace("丁香", "- * " * 25_000),
        CARD.replace("[中优先级", "情感共情" * 25_000),
        "<experience>" * 8_000 + CARD,
        CARD.replace("# 角色故事", "#" * 100_000),
    ]
    started = time.perf_counter()
    found = read_cards(put_cards(tmp_path, *cards))
    assert time.perf_counter() - started < 2
    assert len(found.scenarios) + len(found.unreadable) == 5
    assert any(s.id == "script_001" for s in found.scenarios)


def test_folders_that_are_no_card_sets(tmp_path):
    with pytest.raises(ScenarioError, match="no EMPA cards"):
        read_cards(tmp_path)
    put_cards(tmp_path, CARD, metadata=[1])
    with pytest.raises(ScenarioError, match="sampled_cases"):
        read_cards(tmp_path)
    (tmp_path / "scenarios" / "character_stories.json").write_text("{", encoding="utf-8")
    with pytest.raises(ScenarioError, match=r"character_stories.json: not a readable JSON"):
        read_cards(tmp_path)


def test_start_levels_in_both_forms(tmp_path):
    file = tmp_path / "levels.json"
    file.write_text('{"a": {"C.1": 2, "A.1": 0}, "b": {"levels": {"C.1": 1}, "note": "x"}}', encoding="utf-8")
    assert read_start_levels(file) == {"a": {"C.1": 2, "A.1": 0}, "b": {"C.1": 1}}


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("[]", "not a JSON object of cases"),
        ("{}", "not a JSON object of cases"),
        ("{", "not a readable JSON"),
        ('{"a": 3}', "a: not an object of levels"),
        ('{"a": {}}', "a: not an object of levels"),
        ('{"a": {"C.1": true}}', r"a, C\.1: level True"),
        ('{"a": {"C.1": "2"}}', r"a, C\.1: level '2'"),
        ('{"a": {"C.1": -1}}', r"a, C\.1: level -1"),
    ],
)
def test_bad_start_levels_are_refused(tmp_path, text, says):
    file = tmp_path / "levels.json"
    file.write_text(text, encoding="utf-8")
    with pytest.raises(ScenarioError, match=says):
        read_start_levels(file)


def test_result_folders_must_agree(tmp_path):
    def result(name: str, level: object) -> None:
        record = {
            "script_id": "script_001",
            "epj": {"iedr_details": {"filled_iedr": {"C.1": level, "epm": {}}}},
        }
        (tmp_path / name).write_text(json.dumps(record), encoding="utf-8")

    with pytest.raises(ScenarioError, match="no \\*_result"):
        read_start_levels(tmp_path)
    result("a_result.json", 1)
    assert read_start_levels(tmp_path) == {"script_001": {"C.1": 1}}
    result("b_result.json", 2)
    with pytest.raises(ScenarioError, match="differ"):
        read_start_levels(tmp_path)
    (tmp_path / "a_result.json").write_text('{"epj": 3}', encoding="utf-8")
    with pytest.raises(ScenarioError, match="no start form"):
        read_start_levels(tmp_path)
    with pytest.raises(ScenarioError, match="cannot be read"):
        read_start_levels(tmp_path / "none.json")


FORM = dict.fromkeys(("C.1", "C.2", "C.3", "A.1", "A.2", "A.3", "P.1", "P.2", "P.3"), 1)
START = {"C": -7, "A": -9, "P": -9}  # level 1: C.1 C.2 A.1 P.1 -> -2; C.3 A.3 P.3 -> -3; A.2 P.2 -> -4


@pytest.mark.parametrize("as_list", [False, True])
def test_the_precomputed_start_file_of_empa_is_read(tmp_path, as_list):
    good = {"status": "success", "P_0": START, "iedr": {**FORM, "C.1_reason": "x"}, "epm": {"P_0_norm": 1}}
    entries = {"script_003": good, "script_010": {"status": "error"}}
    listed = [{"script_id": case, **entry} for case, entry in entries.items()]
    listed.append({"script_id": "script_003", "status": "error"})  # the first of a case counts
    file = tmp_path / "iedr_batch_results.json"
    file.write_text(json.dumps(listed if as_list else entries))
    assert read_start_levels(file) == {"script_003": FORM}


def test_a_precomputed_start_must_agree_with_its_levels(tmp_path):
    file = tmp_path / "start.json"
    entry = {"status": "success", "P_0": {**START, "C": -8}, "iedr": FORM}
    file.write_text(json.dumps({"script_003": entry}))
    with pytest.raises(ScenarioError, match="P_0 is"):
        read_start_levels(file)
