"""Patterns that detect how a simulated user falls out of its role, without a model.

The patterns (English and Chinese) favour precision over recall. They cover the known failures of models that
play a user: they speak like an assistant, feel comforted by any reply, or write text that nobody would.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Sequence
from typing import Literal

Script = Literal["han", "kana", "hangul", "latin", "cyrillic", "arabic", ""]

FEWEST_LETTERS = 8
"""Fewest letters from which a line has a script: names and exclamations occur in any language."""
_RANGES: tuple[tuple[Script, str], ...] = (
    ("han", "\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff"),
    ("kana", "\u3040-\u30ff"),
    ("hangul", "\uac00-\ud7af"),
    ("latin", "A-Za-z\u00c0-\u024f"),
    ("cyrillic", "\u0400-\u04ff"),
    ("arabic", "\u0600-\u06ff"),
)
_SCRIPTS = tuple((name, re.compile(f"[{chars}]")) for name, chars in _RANGES)
_WIDE = "\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\uac00-\ud7af"
_TOKEN = re.compile(rf"[{_WIDE}]|[^\W_{_WIDE}]+(?:['’][^\W_]+)*")
_SENTENCE = re.compile(r"[.!?。！？…；;\n]+")

_ASSISTANT = re.compile(
    r"\bas an? (?:ai|artificial intelligence|language model|assistant)\b"
    r"|\bi(?: am|['’]m) (?:an ai|a language model|a chatbot|your assistant|here to (?:help|listen to) you)\b"
    r"|\bhow (?:can|may|could) i (?:help|assist|support) you\b"
    r"|\b(?:is|was) there anything else i can\b"
    r"|\bi(?:['’]d| would) be happy to (?:help|assist)\b"
    r"|\b(?:thank you|thanks) for sharing (?:that|this|your)\b"
    r"|\bi(?: am|['’]m) sorry (?:to hear that|you(?: are|['’]re) going through)\b"
    r"|作为(?:一个|一名)?(?:AI|人工智能|语言模型|智能助手|虚拟助手)"
    r"|我是(?:一个|一名|你的|您的)?(?:AI|人工智能|语言模型|智能助手|虚拟助手|聊天机器人)"
    r"|(?:有什么|有没有什么|还有什么)(?:我)?(?:可以|能|能够)(?:帮助?|协助|为)(?:你|您)"
    r"|(?:谢谢|感谢)(?:你|您)(?:的)?(?:分享|倾诉|信任)",
    re.IGNORECASE,
)
_WARM = re.compile(
    r"\b(?:thank you|thanks)\b(?! to\b)(?! for nothing)"
    r"|\byou(?:['’]re| are) (?:so |absolutely |completely |totally )?right\b"
    r"|\bthat (?:really |actually )?(?:helps|helped|makes sense|means a lot)\b"
    r"|\bi (?:already |really )?feel (?:so much |much |a lot |a bit |a little )?(?:better|lighter|calmer)\b"
    r"|谢谢(?:你|您)?|感谢(?:你|您)|你说得对|您说得对|说得(?:真|太)?对|(?:好|舒服|轻松)多了|心里(?:暖|舒服)",
    re.IGNORECASE,
)
_NOT_WARM = re.compile(
    r"\bno,? (?:thank you|thanks)\b|\bthanks? (?:anyway|a lot for nothing)\b|\bdo(?:es)?n['’]?t help\b"
    r"|不(?:用|必|需要)谢|谢谢.{0,4}但|(?:没有?|并没有?|不)(?:觉得|感觉)?.{0,4}(?:好|轻松)多了",
    re.IGNORECASE,
)


def speaks_as_assistant(line: str) -> bool:
    """Return whether the line offers help or says that its speaker is a program."""
    return _ASSISTANT.search(line) is not None


def warm(line: str) -> bool:
    """Return whether the line thanks, agrees, or says that its speaker feels better."""
    return _WARM.search(line) is not None and _NOT_WARM.search(line) is None


_AGE = re.compile(
    r"\bi(?: am|['’]m) (?:only |just |already )?(\d{2})(?: years old\b|(?=\s*(?:[.!?;]|$)))"
    r"|我(?:今年|现在|已经|才|都)?(\d{2})岁(?!那年|那时|时|的时候|之前|以前|就)",
    re.IGNORECASE,
)
_NAME = re.compile(r"\b[Mm]y name(?:['’]s| is) ([A-Z]\w+)|我的名字(?:是|叫)([\u4e00-\u9fff]{2,4})")
_KIN = "brother|sister|mother|father|mum|mom|dad|husband|wife|son|daughter|partner|grandmother|grandfather"
_KIN_ZH = "哥哥|弟弟|姐姐|妹妹|妈妈|母亲|爸爸|父亲|丈夫|老公|妻子|老婆|儿子|女儿|奶奶|爷爷"
_NO_KIN = re.compile(
    rf"\bi (?:do not have|don['’]t have|have no|(?:have )?never had) (?:an? |any )?({_KIN})s?\b"
    rf"(?! any ?more| left| to\b| who\b| that\b)|我(?:没有|从来没有)({_KIN_ZH})",
    re.IGNORECASE,
)


def contradicts(line: str, name: str, age: int | None, words: str) -> bool:
    """Return whether the line contradicts the persona: another age (by more than a year) or name, or denial
    of a relative who is mentioned in the persona's own `words` ("my brother")."""
    ages = [int(a or b) for a, b in _AGE.findall(line)]
    if age is not None and any(abs(stated - age) > 1 for stated in ages):
        return True
    names = [(a or b).casefold() for a, b in _NAME.findall(line)]
    parts = [part[:2] for part in name.casefold().split()]
    if any(stated[:2] not in parts and stated not in name.casefold() for stated in names):
        return True
    missing = [(a or b).casefold() for a, b in _NO_KIN.findall(line)]
    return any(re.search(rf"\bmy (?:\w+ )?{kin}s?\b|我的?{kin}", words.casefold()) for kin in missing)


_MARKER = re.compile(r"<\|[\w ]{1,30}\|>|\[/?INST\]|</?s>|<(?:start|end)_of_turn>|\ufffd")
FEWEST_LETTERS_SHARE = 0.5
LOOP = 8
"""Fewest word sequences that are said again in one text of which a third is repetition: a loop."""


def is_call_failure(text: str) -> bool:
    """Return whether a message is the text that EMPA records in place of one when a call failed."""
    return text.lstrip().startswith("（错误：API")


def unreadable(text: str) -> bool:
    """Return whether a text has markers of a chat template, broken characters, or hardly any letters."""
    plain = "".join(text.split())
    symbols = len(plain) >= 20 and sum(map(str.isalnum, plain)) < FEWEST_LETTERS_SHARE * len(plain)
    # A line of dots or exclamation marks can be read.
    return _MARKER.search(text) is not None or (symbols and len(set(plain)) > 3)


def loops(sequences: Sequence[tuple[str, ...]]) -> bool:
    """Return whether a text, by its word sequences, says the same phrase over and over."""
    again = len(sequences) - len(set(sequences))
    return again >= LOOP and 3 * again >= len(sequences)


_CUT_OFF = re.compile(
    r"(?:[,，、;；(（「“]|\b(?:and|or|but|the|an?|of|to|with|because|my|your|is|are|was))\s*$", re.IGNORECASE
)


def cut_off(line: str) -> bool:
    """Return whether the line ends in the middle of a sentence."""
    return _CUT_OFF.search(line) is not None


def script_of(line: str) -> Script:
    """Return the script of most of the line, or "" for too few letters. Han mixed with kana is Japanese."""
    counts = {name: len(letters.findall(line)) for name, letters in _SCRIPTS}
    if sum(counts.values()) < FEWEST_LETTERS:
        return ""
    if counts["kana"] * 5 > counts["han"]:
        counts["kana"] += counts["han"]
    # One Han character corresponds to several Latin letters: brand names do not make a line English.
    weight: dict[Script, int] = {
        name: n * (3 if name in ("han", "kana", "hangul") else 1) for name, n in counts.items()
    }
    return max(weight, key=lambda name: weight[name])


def tokens(text: str) -> list[str]:
    """Return the normalised words; in scripts without spaces, the characters."""
    return _TOKEN.findall(unicodedata.normalize("NFKC", text).casefold())


def sentences(line: str, fewest: int = 4) -> list[tuple[str, ...]]:
    """Return the sentences as tokens, without short ones ("I don't know."), which anyone repeats."""
    parts = [tuple(tokens(part)) for part in _SENTENCE.split(line)]
    return [s for s in parts if len(s) >= (fewest + 2 if _wide(s) else fewest)]


def shingles(line: str) -> set[tuple[str, ...]]:
    """Return all sequences of five words, or of eight characters in scripts without spaces."""
    return set(word_sequences(tokens(line)))


def word_sequences(words: Sequence[str]) -> list[tuple[str, ...]]:
    """Return the sequences of `shingles` in order, with those that occur twice."""
    size = 8 if _wide(words) else 5
    return list(zip(*(words[i:] for i in range(size)), strict=False))


def _wide(words: Sequence[str]) -> bool:
    return sum(len(w) == 1 and w > "\u2e7f" for w in words) * 2 > len(words)
