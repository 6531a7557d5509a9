"""Reads EMPA's character cards and stories into `Scenario`.

A set of cards is a folder with `cases/*.md` (Chinese, five tagged parts per card) and optionally
`scenarios/character_stories.json`, `case_metadata.json` and `official_cases.txt`. The cards are not uniform:
irregularities are reported by card and kind (docs/scenarios.md lists the kinds) and never stop the import.
Stages and memories of the cards describe the person in the third person.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter, ValidationError

from mapo.errors import ScenarioError
from mapo.scenarios.scenario import Grade, Memory, Period, Persona, Scenario, Stage, StageKind, read_text
from mapo.untrusted import read_file

STORIES = "scenarios/character_stories.json"
METADATA = "case_metadata.json"
OFFICIAL = "official_cases.txt"

# Chinese terms of the cards -> names used here.

TAGS = ("character_info", "empathy_threshold", "psychological_profile", "experience", "scenario")
FIELDS = {
    "姓名": "name",
    "性别": "gender",
    "年龄": "age",
    "社交性格": "social-trait",
    "内核性格": "core-trait",
    "想要找人倾诉的想法与内容": "wants-to-say",
    "倾诉中想要获得的共情点": "hopes-for",
    "人物共情阈值": "sensitivity",
    "当下共情需求优先级": "priorities",
    "童年经历": "childhood",
    "少年经历": "youth",
    "青年经历": "adulthood",
    "隐形成长主线脉络": "growth-line",
    "现在的情况": "present-situation",
    "现在的人生主线目标": "goal",
    "现在的人生愿景与动力": "vision",
    "故事的起因": "cause",
}
"""Label on a card -> field name. A card without the label is reported as "no-NAME"."""
HEADINGS = {
    "聊天话题": "topic",
    "角色输出格式": "style",
    "角色当前行为": "behaviour",
    "角色聊天原则": "principle",
    "角色聊天策略": "strategy",
}
AXES = {"认知": "C", "情感": "A", "动机": "P"}
GRADES: dict[str, Grade] = {"高": "high", "中": "medium", "低": "low"}
RANKS: tuple[Grade, ...] = ("high", "medium", "low")
GRADE_WORDS: tuple[tuple[str, Grade], ...] = (
    ("最低|较低|再次|最后|低", "low"),
    ("其次|次级|次要|中", "medium"),
    ("最高|极高|最优先|核心|高", "high"),
)
CATEGORIES = {
    "生涯发展": "career",
    "人际关系": "relationships",
    "身心健康": "health",
    "生活状况": "living",
    "休闲娱乐": "leisure",
    "观念认同": "values",
}
DIFFICULTIES = {"较易": "easy", "中等": "medium", "困难": "hard", "极难": "extreme"}
MEMORIES: tuple[tuple[str, Period], ...] = (
    ("childhood", "childhood"),
    ("youth", "youth"),
    ("adulthood", "adulthood"),
    ("present-situation", "recent"),
)
STAGE_TITLES = ("引发回忆", "引发思考", "引发自审", "情绪崩发")

_LABEL = re.compile(r"[-*\s]{0,8}([^：:（(\s]{2,14})(（[^）]{0,40}）)?[：:]")
_RULE = re.compile(r"(?:---+|\*\*\*+|___+)")
_EMPHASIS = re.compile(r"(?<![A-Za-z*])\*\*([^*\n]{1,200})\*\*(?!\*)")


@dataclass(frozen=True, slots=True)
class CardSet:
    """The scenarios of a folder of cards, the irregularities by card, and the errors of unreadable cards."""

    scenarios: list[Scenario]
    irregular: dict[str, list[str]]
    unreadable: dict[str, str] = field(default_factory=dict)


def card_files(folder: Path) -> list[Path]:
    inner = folder / "cases"
    return sorted((inner if inner.is_dir() else folder).glob("script_*.md"))


def official_cases(folder: Path) -> list[str]:
    """Return the ids of the 30 official test cases."""
    return read_text(folder / OFFICIAL).split()


def read_cards(folder: Path) -> CardSet:
    """Read all cards of a folder."""
    files = card_files(folder)
    if not files:
        raise ScenarioError(
            "the folder contains no EMPA cards",
            where=str(folder),
            fix="Expected cases/script_*.md, as in EMPA's repository",
        )
    stories = _by_case(folder / STORIES, "剧本编号")
    metadata = _by_case(folder / METADATA, "script_id", inside="sampled_cases")
    cards = CardSet([], {})
    topics: set[str] = set()
    for path in files:
        case = path.stem
        try:
            scenario, kinds = _read_card(path, stories.get(case), metadata.get(case, {}))
        except ScenarioError as error:
            cards.unreadable[case] = str(error)
            continue
        kinds += ["repeated-topic"] * (scenario.topic in topics)
        topics.add(scenario.topic)
        cards.scenarios.append(scenario)
        if kinds:
            cards.irregular[case] = kinds
    return cards


def _read_card(path: Path, story: Any, metadata: dict[str, Any]) -> tuple[Scenario, list[str]]:
    text = read_text(path).replace("\r\n", "\n")
    preamble, _, rest = text.partition(f"<{TAGS[0]}>")
    kinds = ["elided-preamble"] * ("此处省略" in preamble)
    parts: dict[str, str] = {}
    depths: set[int] = set()
    for tag in TAGS:
        if not text.count(f"<{tag}>") == text.count(f"</{tag}>") == 1:
            kinds.append("tag-not-once")
        after = text.partition(f"<{tag}>")[2]
        parts[tag] = after.partition(f"</{tag}>")[0]
    kinds += ["markdown-residue"] * ("**" in rest)
    fields: dict[str, str] = {}
    for tag in TAGS:
        _collect(parts[tag], fields, kinds, depths)
    kinds += ["heading-depth"] * (len(depths) > 1)
    kinds += [f"no-{name}" for name in FIELDS.values() if not fields.get(name)]
    kinds += ["no-behaviour-block"] * ("behaviour" not in fields)
    kinds += ["short-style"] * ("不会超过" in fields.get("style", ""))
    age = fields.get("age", "")
    kinds += ["age-not-a-number"] * (not age.isdecimal())
    years = re.match(r"\d{1,3}", age)
    threshold = re.search(r"【([高中低])】", parts["empathy_threshold"])
    kinds += ["no-threshold"] * (threshold is None)
    priorities = _priorities(fields.get("priorities", ""), kinds)
    data = {
        "id": path.stem,
        "persona": Persona(
            name=fields.get("name") or path.stem,
            age=int(years[0]) if years else None,
            traits=tuple(fields[x] for x in ("social-trait", "core-trait") if fields.get(x)),
            speech=_speech(fields),
            background="\n".join(
                f"{label}：{fields[name]}"
                for label, name in FIELDS.items()
                if name in ("gender", "sensitivity", "growth-line", "goal", "vision") and fields.get(name)
            ),
        ),
        "topic": fields.get("topic", ""),
        "opening": fields.get("topic", ""),
        "wants_to_say": fields.get("wants-to-say", ""),
        "hopes_for": fields.get("hopes-for", ""),
        "threshold": GRADES[threshold[1]] if threshold else "medium",
        "priorities": priorities,
        "memories": tuple(Memory((fields[x],), period=y) for x, y in MEMORIES if fields.get(x)),
        "stages": _stages(fields.get("cause", ""), story, kinds),
        "category": _translated(CATEGORIES, metadata.get("category"), kinds),
        "difficulty": _translated(DIFFICULTIES, metadata.get("difficulty"), kinds),
        "axis": _translated({x: x for x in AXES.values()}, metadata.get("dominant_axis"), kinds),
        "language": "zh",
        "domain": "empathy",
    }
    try:
        return _ADAPTER.validate_python(data), list(dict.fromkeys(kinds))
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        key = ".".join(map(str, first["loc"]))
        raise ScenarioError(first["msg"], where=f"{path}, {key}") from None


_ADAPTER = TypeAdapter(Scenario)


def _collect(part: str, fields: dict[str, str], kinds: list[str], depths: set[int]) -> None:
    """Collect the labelled fields of one tagged part; a line without a label continues the field
    before it.
    """
    name = ""
    for raw in part.split("\n"):
        line = _EMPHASIS.sub(r"\1", raw.strip())
        if not line or _RULE.fullmatch(line):
            continue
        if line.startswith("#"):
            title = line.lstrip("#")
            depths.add(len(line) - len(title))
            name = HEADINGS.get(title.strip(), "")
            if name:
                fields.setdefault(name, "")
            continue
        label = _LABEL.match(line)
        # The section "output format" has an example line that looks like a label.
        if label and label[1] in FIELDS and name != "style":
            name, line = FIELDS[label[1]], line[label.end() :].strip()
            if label[2] and name == "present-situation":
                kinds.append("present-situation-label")
            if fields.get(name):
                kinds.append("repeated-label")
        if name:
            fields[name] = f"{fields[name]}\n{line}" if fields.get(name) else line


def _speech(fields: dict[str, str]) -> str:
    """Return how the person writes and, if the card says so, how they behave in a chat."""
    parts = [fields.get("style", "").split("\n")[0], fields.get("principle", ""), fields.get("strategy", "")]
    return "\n".join(line.lstrip("- ") for part in parts for line in part.split("\n") if line)


def _priorities(text: str, kinds: list[str]) -> dict[str, Grade]:
    """Return the grade of each axis: written next to it, or derived from rank words or the order of
    the list.
    """
    priorities: dict[str, Grade] = {}
    for word, axis in AXES.items():
        if match := re.search(rf"{word}共情[^\n]{{0,8}}?([高中低])", text):
            priorities[axis] = GRADES[match[1]]
    if len(priorities) < len(AXES):
        kinds.append("priority-not-per-axis")
        priorities = _ranked(text)
    if "high" not in priorities.values():
        kinds.append("no-high-priority")
    return {axis: priorities[axis] for axis in AXES.values() if axis in priorities}


def _ranked(text: str) -> dict[str, Grade]:
    priorities: dict[str, Grade] = {}
    for match in re.finditer(r"(认知|情感|动机)共-?情([^\n；>]{0,8})", text):
        axis = AXES[match[1]]
        if axis not in priorities:
            grades = [grade for pattern, grade in GRADE_WORDS if re.search(pattern, match[2])]
            priorities[axis] = grades[0] if grades else RANKS[len(priorities)]
    return priorities


def _stages(cause: str, story: Any, kinds: list[str]) -> tuple[Stage, ...]:
    """Return the stages: cause, three turns, the interlude as another turn, the outburst, the outcome."""
    story = story if isinstance(story, dict) else {}
    kinds += ["no-story"] * (not story)
    course = story.get("故事的经过")
    steps = [x for x in course.values() if isinstance(x, dict)] if isinstance(course, dict) else []
    acts = [(str(step.get("标题", "")), step.get("内容")) for step in steps]
    kinds += ["stage-title"] * (bool(story) and tuple(title for title, _ in acts) != STAGE_TITLES)
    parts: list[tuple[StageKind, str, Any]] = [
        ("start", "故事的起因", cause),
        *(("turn", title, text) for title, text in acts[:-1]),
        ("turn", "故事的插曲", story.get("故事的插曲")),
        *(("outburst", title, text) for title, text in acts[-1:]),
        ("outcome", "故事的结果", story.get("故事的结果")),
    ]
    stages = tuple(
        Stage((text.strip(),), kind=kind, title=title)
        for kind, title, text in parts
        if isinstance(text, str) and text.strip()
    )
    kinds += ["story-incomplete"] * (bool(story) and len(stages) < 3 + len(STAGE_TITLES))
    return stages


def _translated(names: dict[str, str], value: Any, kinds: list[str]) -> str:
    if value is not None and value not in names:
        kinds.append("unknown-tag")
    return names.get(value, "") if isinstance(value, str) else ""


def _by_case(path: Path, key: str, inside: str = "") -> dict[str, Any]:
    """Return the objects of a JSON list by case, empty if the file does not exist."""
    if not path.exists():
        return {}
    data = load_json(path)
    if inside:
        data = data.get(inside) if isinstance(data, dict) else None
    if not isinstance(data, list):
        raise ScenarioError("not a JSON list of cases", where=f"{path}{inside and ', ' + inside}")
    return {str(item[key]): item for item in data if isinstance(item, dict) and key in item}


def load_json(path: Path) -> Any:
    """Read a JSON file. Raises ScenarioError if it cannot be read."""
    try:
        return json.loads(read_file(path))
    except OSError as error:
        raise ScenarioError(f"cannot be read ({error.strerror})", where=str(path)) from error
    except (ValueError, RecursionError) as error:
        raise ScenarioError(f"not a readable JSON file ({error})", where=str(path)) from error
