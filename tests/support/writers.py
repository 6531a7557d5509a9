"""A model that plays all parts of the making over HTTP, with leaks, copies and refusals where asked."""

from __future__ import annotations

import hashlib
import json
import random
import re
from collections import Counter
from collections.abc import Callable
from typing import Any

_ENGLISH_WORDS = """
lantern orchard gravel thimble meadow copper saddle harbour kettle ribbon anvil barley cellar dagger
ember feather garnet hollow icicle jacket kernel ladder marble needle oyster pebble quarry rafter
sickle timber umbrella velvet willow yarrow zipper acorn bramble cinder drizzle flannel gutter
hammock ivory jigsaw knapsack limestone mitten nutmeg otter parsley quilt rosehip spindle tallow
urchin varnish walnut
"""
_CHINESE_WORDS = """
灯笼 果园 碎石 针线 草地 铜壶 马鞍 港口 水壶 丝带 铁砧 大麦 地窖 余烬 羽毛 石榴 冰柱
夹克 果核 梯子 弹珠 牡蛎 卵石 采石 木梁 镰刀 雨伞 绒布 杨柳 拉链 橡果 荆棘 炉渣 细雨
法兰 水沟 吊床 象牙 拼图 背包 石灰 手套 豆蔻 水獭 欧芹 棉被 纺锤 核桃
"""
_ENGLISH, _CHINESE = _ENGLISH_WORDS.split(), _CHINESE_WORDS.split()
NOTES = ("situation", "feelings", "needs", "at_stake", "relations", "history", "speech", "course")


def parts_of(body: dict[str, Any]) -> set[str]:
    return set(body["response_format"]["json_schema"]["schema"]["properties"])


def kind_of(body: dict[str, Any]) -> str:
    """Which form is asked for."""
    keys = parts_of(body)
    if "identifying" in keys:
        return "decontextualise"
    if "persona" in keys:
        return "recontextualise"
    return "review" if "safe" in keys else "levels"


def shown(body: dict[str, Any]) -> str:
    """All that the person at the model sees, its quotations decoded."""
    text = "\n".join(message["content"] for message in body["messages"][1:])
    return text.encode().decode() if "\\u" not in text else _decoded(text)


def _decoded(text: str) -> str:
    return re.sub(r"\\u([0-9a-f]{4})", lambda found: chr(int(found[1], 16)), text)


class Lines:
    """Sentences that are like no other, the same for the same seed."""

    def __init__(self, seed: str, chinese: bool) -> None:
        self.random = random.Random(seed)
        self.chinese = chinese

    def __call__(self, words: int = 9) -> str:
        if self.chinese:
            return "".join(self.random.choice(_CHINESE) for _ in range(words)) + "。"
        return " ".join(self.random.choice(_ENGLISH) for _ in range(words)).capitalize() + "."


class Writer:
    """An `answer` for LoopbackServer. The hooks change what is said:

    `found(text)` gives what the model lists as identifying; `notes` and `person` may spoil an answer, told
    the number of the try (a second one is told what was wrong); `level(key, n)` is the n-th form's level.
    """

    def __init__(
        self,
        found: Callable[[str], list[str]] = lambda _: [],
        notes: Callable[[dict, str, int], dict] = lambda form, _text, _try: form,
        person: Callable[[dict, str, int], dict] = lambda form, _text, _try: form,
        level: Callable[[str, int], int] = lambda _key, _n: 2,
        verdicts: Callable[[str], dict[str, bool]] = lambda _: {},
    ) -> None:
        self.found, self.notes, self.person, self.level, self.verdicts = found, notes, person, level, verdicts
        self.calls: Counter[str] = Counter()
        self.bodies: list[dict] = []

    def __call__(self, body: dict[str, Any]) -> str:
        kind = kind_of(body)
        self.calls[kind] += 1
        self.bodies.append(body)
        text = shown(body)
        tries = sum(message["role"] == "assistant" for message in body["messages"]) + 1
        first = body["messages"][1]["content"]
        said = Lines(hashlib.sha256(first.encode()).hexdigest(), "Chinese" in body["messages"][0]["content"])
        if kind == "decontextualise":
            found = [{"text": item, "kind": "name"} for item in self.found(text)]
            form = {"identifying": found, "usable": True, **{key: said() for key in NOTES}}
            return json.dumps(self.notes(form, text, tries), ensure_ascii=False)
        if kind == "recontextualise":
            axes = list(_schema(body)["properties"]["priorities"]["properties"])
            return json.dumps(self.person(person_of(said, axes), text, tries), ensure_ascii=False)
        if kind == "review":
            failed = self.verdicts(text)
            return json.dumps({key: {"fine": failed.get(key, True), "problem": ""} for key in parts_of(body)})
        return json.dumps(
            {
                key: {"level": self.level(key, self.calls["levels"]), "evidence": "e", "reason": "r"}
                for key in _schema(body)["properties"]
            }
        )


def _schema(body: dict[str, Any]) -> dict[str, Any]:
    return body["response_format"]["json_schema"]["schema"]


def person_of(said: Lines, axes: list[str]) -> dict[str, Any]:
    kinds = ("start", "turn", "outburst", "outcome")
    return {
        "persona": {
            "name": "Ilvane",
            "age": 41,
            "traits": ["dry"],
            "speech": said(4),
            "background": said(),
        },
        "topic": said(6),
        "category": "career",
        "opening": said(),
        "wants_to_say": said(),
        "hopes_for": said(),
        "threshold": "medium",
        "priorities": {axis: "high" if number == 0 else "medium" for number, axis in enumerate(axes)},
        "stages": [{"kind": kind, "title": said(2), "says": [said(), said()]} for kind in kinds],
        "memories": [{"period": period, "says": [said(), said()]} for period in ("childhood", "recent")],
        "guarded": [said(5)],
        "eased": [said(5)],
    }


def talk(*lines: str) -> dict[str, Any]:
    """A conversation in the common shape: the person first, then turn by turn."""
    roles = ("user", "assistant")
    return {"messages": [{"role": roles[i % 2], "content": text} for i, text in enumerate(lines)]}


def write_jsonl(path, talks) -> None:
    path.write_text("".join(json.dumps(x, ensure_ascii=False) + "\n" for x in talks), encoding="utf-8")
