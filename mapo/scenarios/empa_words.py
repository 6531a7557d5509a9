"""The words EMPA's cards are written in, and our names for them. Data only; `empa_cards.py` reads with it."""

from __future__ import annotations

from mapo.scenarios.scenario import Grade, Period

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
"""Label on a card -> our name for it; a card without it is reported as "no-NAME"."""
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
