"""The grammar, third part: lines whose frame nobody has seen.

Frames are few, and a model that knows them all has learnt frames, not listening. So some of the beats are
*shaken*: clauses of different lines are put together, and every word that carries meaning is exchanged for another
one, often for a word that does not exist. What is left of English is its small words and its order. What a reply may
take up is then found as a listener finds it: what stands after "the", "my", "a". Others are *stirred*: some words
of a written line are exchanged, and what is to be taken up stays in its place. Signs and names of feelings stay as
they are, and none is put in.
"""

from __future__ import annotations

import re
from functools import lru_cache

from grammar import (
    Rng,
    Told,
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
    """The signs of all feelings, and their names."""
    known = feelings().values()
    signs = sorted((re.escape(s) for f in known for s in f["signs"]), key=len, reverse=True)
    names = sorted((re.escape(n) for f in known for n in f["names"]), key=len, reverse=True)
    return re.compile("|".join(signs), re.IGNORECASE), re.compile(rf"\b({'|'.join(names)})\b", re.IGNORECASE)


def shows(text: str) -> bool:
    """Is there any sign or name of a feeling?"""
    return any(pattern.search(text) for pattern in _felt())


@lru_cache
def clauses(lines: tuple[str, ...]) -> tuple[str, ...]:
    """Stretches of three to fourteen words between two stops in which no feeling shows."""
    found = [clause.strip() for line in lines for clause in _CLAUSE.findall(line)]
    fit = (c for c in found if 3 <= len(c.split()) <= 14 and not re.search(r"[{}\"\d]", c))
    return tuple(dict.fromkeys(clause for clause in fit if not shows(clause)))


def shaken(rng: Rng, lines: tuple[str, ...], sign: str = "") -> Told:
    """One line of a person: some clauses from anywhere, other words in them, and the sign if there is one."""
    bank = clauses(lines)
    told, parts = Told(), []
    while not told.things or (rng.random() < 0.65 and len(parts) < 4):
        parts.append(_shake(rng, rng.pick(bank), told))
    if sign:
        parts.insert(int(rng.random() * (len(parts) + 1)), sign)
    text = ""
    for part in parts:
        ended = not text or text[-1] in ".!?"
        text = f"{text} {capital(part) if ended else part}".strip()
        if text[-1] not in ".!?,;:":
            text += "," if rng.random() < 0.4 else "."
    told.text = articles(text.rstrip(",;:.") + "." if text[-1] not in "!?" else text)
    return told


def _shake(rng: Rng, clause: str, told: Told) -> str:
    """The clause with other words, and what is in it noted in `told`."""
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
            told.things.append(new)
        else:
            new = _like(rng, low, thing=bool(held))
            if held:
                told.things.append(f"{held} {new}")
        out.append(new)
        held, last = "", low
    text = "".join(out)
    if deed:
        phrase = articles(re.sub(r"^.*?\bI ", "", text).rstrip(".,;:!? "))
        if 2 <= len(phrase.split()) <= 9:
            told.deeds.append(you(phrase))
    return text


def _like(rng: Rng, word: str, *, thing: bool) -> str:
    """Another word in the place of this one, with its ending."""
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
    """The words of these lines that carry meaning, often used ones as often; none that names a feeling."""
    small = small_words() | feeling_words()
    found: dict[str, list[str]] = {end: [] for end in (*_ENDINGS, "")}
    for line in lines:
        for token in _TOKEN.findall(line):
            if token.isalpha() and token.islower() and token not in small:
                found[_ending(token)].append(token)
    return {end: tuple(some) for end, some in found.items()}


BEFORE = 24
"""So many characters before a name of a feeling the judge looks for a "not"; they stay as well."""


def stirred(rng: Rng, text: str, share: float, keep: tuple[str, ...], lines: tuple[str, ...]) -> str:
    """This share of its words exchanged for others of these lines; gaps, feelings and `keep` stay."""
    signs, names = _felt()
    kept = [m.span() for m in signs.finditer(text)]
    kept += [(m.start() - BEFORE, m.end()) for m in names.finditer(text)]
    kept += [m.span() for k in keep if (m := re.search(re.escape(k), text, re.IGNORECASE))]
    out, bank, small = [], _words_by_ending(lines), small_words()
    for match in _TOKEN.finditer(text):
        token, (start, end) = match[0], match.span()
        word = token.lower()
        stays = any(start < b and end > a for a, b in kept) or not token[0].isalpha() or word in small
        if stays or rng.random() > share:
            out.append(token)
            continue
        new = pseudo(rng) if rng.random() < 0.15 else rng.pick(bank[_ending(word)])
        out.append(capital(new) if token[0].isupper() else new)
    return articles("".join(out))
