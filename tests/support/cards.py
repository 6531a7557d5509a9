"""A made-up EMPA card with its story, and a folder of such cards."""

from __future__ import annotations

import json
from pathlib import Path

CARD = """<character_info>
# 角色信息
  - 姓名：丁香
  - 性别：女
  - 年龄：33

# 角色特征
  - 社交性格：爽快
  - 内核性格：胆小

# 角色输出格式
    说话简短
    姓名：某某

# 角色当前行为
  - 正在等车
</character_info>
<empathy_threshold>
# 角色基础共情阈值
共情阈值【低】，随便聊聊
</empathy_threshold>
<psychological_profile>
# 聊天话题
    渡船停了，我怎么回家

# 共情需求
想要找人倾诉的想法与内容：想说说码头
的旧事
倾诉中想要获得的共情点：有人陪着等
人物共情阈值：怕催
当下共情需求优先级：
    情感共情：[中优先级 + 陪着]
    认知共情：[高优先级 + 明白]
    动机共情：[低优先级 + 不急]
</psychological_profile>
<experience>
# 角色过往经历
童年经历：在船上学走路
少年经历：划船上学
青年经历：卖过船票
隐形成长主线脉络：一直在水边
# 角色现状
现在的情况：住在对岸
现在的人生主线目标：买一条小船
现在的人生愿景与动力：看海
</experience>
<scenario>
# 角色故事
故事的起因：末班船取消了
</scenario>
"""
STORY = {
    "剧本编号": "script_001",
    "故事的经过": {
        f"阶段{n}": {"标题": title, "内容": f"第{n}段"}
        for n, title in enumerate(("引发回忆", "引发思考", "引发自审", "情绪崩发"), 1)
    },
    "故事的结果": "她走回去了",
    "故事的插曲": "一只鸥鸟",
}


def put_cards(folder: Path, *cards: str, stories: object = None, metadata: object = None) -> Path:
    (folder / "cases").mkdir(exist_ok=True)
    (folder / "scenarios").mkdir(exist_ok=True)
    for number, card in enumerate(cards, 1):
        (folder / "cases" / f"script_{number:03}.md").write_bytes(card.replace("\n", "\r\n").encode())
    told = [STORY] if stories is None else stories
    (folder / "scenarios" / "character_stories.json").write_text(json.dumps(told), encoding="utf-8")
    if metadata is not None:
        (folder / "case_metadata.json").write_text(json.dumps(metadata), encoding="utf-8")
    return folder
