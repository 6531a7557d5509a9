"""User messages in new frames, so that the model does not just memorise the few frames of the grammar.

*Shaken* lines combine clauses of different lines and replace every content word, often by a made-up word. Only function
words and word order remain. Things that a reply may take up are the words after "the", "my", "a". *Stirred* lines are
written lines with some words replaced; the things to take up stay in place. Signs and names of feelings are neither
replaced nor inserted.
"""

from __future__ import annotations

import re
from functools import lru_cache

from grammar import (
    Rng,
    Utterance,
    articles,
    capital,
    feeling_words,
    feelings,
    function_words,
    noun,
    proper,
    pseudo,
    verbs,
    words,
    you,
)

_DETERMINERS = {
    "the": "the", "a": "the", "an": "the", "my": "your", "our": "your", "his": "his", "her": "her", "their": "their",
    "this": "the", "that": "the", "these": "the", "those": "the", "some": "the", "every": "the", "each": "the",
    "one": "the", "another": "the", "no": "the", "any": "the",
}  # fmt: skip
_CLAUSE = re.compile(r"[^.!?,;:]+[.!?,;:]*")
_TOKEN = re.compile(r"[^\W\d_]+(?:['’][^\W\d_]+)?(?:-[^\W\d_]+)*|[\W\d_]+")


@lru_cache
def small_words() -> frozenset[str]:
    return function_words() | set(_DETERMINERS)


@lru_cache
def _felt() -> tuple[re.Pattern[str], re.Pattern[str]]:
    """Return patterns for the signs and for the names of all feelings."""
    known = feelings().values()
    signs = sorted((re.escape(s) for f in known for s in f["signs"]), key=len, reverse=True)
    names = sorted((re.escape(n) for f in known for n in f["names"]), key=len, reverse=True)
    return re.compile("|".join(signs), re.IGNORECASE), re.compile(rf"\b({'|'.join(names)})\b", re.IGNORECASE)


def shows(text: str) -> bool:
    """Return whether the text has a sign or a name of a feeling."""
    return any(pattern.search(text) for pattern in _felt())


@lru_cache
def clauses(lines: tuple[str, ...]) -> tuple[str, ...]:
    """Return the clauses of three to fourteen words that show no feeling."""
    candidates = [clause.strip() for line in lines for clause in _CLAUSE.findall(line)]
    fit = (c for c in candidates if 3 <= len(c.split()) <= 14 and not re.search(r"[{}\"\d]", c))
    return tuple(dict.fromkeys(clause for clause in fit if not shows(clause)))


def shaken(rng: Rng, lines: tuple[str, ...], sign: str = "") -> Utterance:
    """Return a message of random clauses with replaced words, followed by the sign if there is one."""
    bank = clauses(lines)
    utterance, parts = Utterance(), []
    while not utterance.things or (rng.random() < 0.65 and len(parts) < 4):
        parts.append(_shake(rng, rng.pick(bank), utterance))
    if sign:
        parts.insert(int(rng.random() * (len(parts) + 1)), sign)
    text = ""
    for part in parts:
        ended = not text or text[-1] in ".!?"
        text = f"{text} {capital(part) if ended else part}".strip()
        if text[-1] not in ".!?,;:":
            text += "," if rng.random() < 0.4 else "."
    utterance.text = articles(text.rstrip(",;:.") + "." if text[-1] not in "!?" else text)
    return utterance


def _shake(rng: Rng, clause: str, utterance: Utterance) -> str:
    """Replace the words of a clause and record what it mentions in `utterance`."""
    out: list[str] = []
    small, held, last = small_words(), "", ""
    deed = re.match(r"(?:and |but |so |then )?I [a-z]+ ", clause)
    for token in _TOKEN.findall(clause):
        low = token.lower()
        if not token[0].isalpha() or low in small:
            out.append(token)
            if token[0].isalpha():
                held, last = _DETERMINERS.get(low, ""), low
            elif token.strip():
                held = ""
            continue
        if last == "i":
            new = rng.pick(verbs())[0] if rng.random() < 0.7 else pseudo(rng, "ed")
        elif token[0].isupper() and out and last:
            new = proper(rng)
            utterance.things.append(new)
        else:
            new = _like(rng, low, thing=bool(held))
            if held:
                utterance.things.append(f"{held} {new}")
        out.append(new)
        held, last = "", low
    text = "".join(out)
    if deed:
        phrase = articles(re.sub(r"^.*?\bI ", "", text).rstrip(".,;:!? "))
        if 2 <= len(phrase.split()) <= 9:
            utterance.deeds.append(you(phrase))
    return text


def _like(rng: Rng, word: str, *, thing: bool) -> str:
    """Return a replacement for a word, with the same ending."""
    end = next((e for e in ("ing", "ed", "ly") if word.endswith(e) and len(word) > len(e) + 2), "")
    r = rng.random()
    if end:
        new = pseudo(rng, end) if r < 0.5 else rng.pick(verbs())[1] + ("" if end == "ly" else end)
    elif thing:
        new = noun(rng)
    elif r < 0.35:
        new = pseudo(rng)
    else:
        new = rng.pick(words("nouns", "more_nouns") if r < 0.8 else words("adjectives"))
    return new if new not in feeling_words() else _like(rng, word, thing=thing)


_ENDINGS = ("ing", "ed", "ly", "s")


def _ending(word: str) -> str:
    return next((e for e in _ENDINGS if word.endswith(e) and len(word) > len(e) + 2), "")


@lru_cache
def _words_by_ending(lines: tuple[str, ...]) -> dict[str, tuple[str, ...]]:
    """Return the content words of these lines by ending, with repetitions, without names of feelings."""
    small = small_words() | feeling_words()
    by_ending: dict[str, list[str]] = {end: [] for end in (*_ENDINGS, "")}
    for line in lines:
        for token in _TOKEN.findall(line):
            if token.isalpha() and token.islower() and token not in small:
                by_ending[_ending(token)].append(token)
    return {end: tuple(some) for end, some in by_ending.items()}


BEFORE = 24
"""The judge looks for a "not" in this many characters before the name of a feeling; they are kept too."""


def stirred(rng: Rng, text: str, share: float, keep: tuple[str, ...], lines: tuple[str, ...]) -> str:
    """Replace this share of the words by words of other lines; gaps, feelings and `keep` stay."""
    signs, names = _felt()
    protected = [m.span() for m in signs.finditer(text)]
    protected += [(m.start() - BEFORE, m.end()) for m in names.finditer(text)]
    protected += [m.span() for k in keep if (m := re.search(re.escape(k), text, re.IGNORECASE))]
    out, bank, small = [], _words_by_ending(lines), small_words()
    for match in _TOKEN.finditer(text):
        token, (start, end) = match[0], match.span()
        word = token.lower()
        stays = any(start < b and end > a for a, b in protected) or not token[0].isalpha() or word in small
        if stays or rng.random() > share:
            out.append(token)
            continue
        new = pseudo(rng) if rng.random() < 0.15 else rng.pick(bank[_ending(word)])
        out.append(capital(new) if token[0].isupper() else new)
    return articles("".join(out))
