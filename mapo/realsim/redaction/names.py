"""Detection of names of people, places and organisations, without a model.

Latin script: words introduced as a name, titles, known given names in any case, and words with a capital in
the middle of a sentence (except in German, where nouns have one). Chinese: family names with a title, after
words of kinship or introduction, or before characters used in given names; places and organisations by their
last character and by a list. It has false positives, and it misses rare names in lower case and nicknames;
the model that reads the text next is asked to list those.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import lru_cache

from mapo.realsim.redaction.patterns import Pattern, PrivateSpan, read_patterns
from mapo.realsim.redaction.vocabulary import ordinary, words

_WORD = re.compile(r"[^\W\d_]+(?:['’.-][^\W\d_]+)*")
_CYRILLIC = re.compile(r"[\u0400-\u04ff]")
"""There is no Cyrillic vocabulary, so a capital only counts in the middle of a sentence."""
_ENDS_A_SENTENCE = '.!?…\n"“”([*:;—–>'
_GERMAN = frozenset(("der", "die", "das", "und", "ich", "nicht", "ist", "ein", "eine", "mit", "auch", "mich"))
_BEFORE_A_PLACE = frozenset(("in", "from", "near", "around", "outside", "at", "across"))
_GOING = frozenset(("move", "moved", "moving", "go", "going", "went", "gone", "back", "came", "come", "flew"))
_LOOKED_BACK = 80
"""Number of characters before a word that are used as context."""
_KIN_AND_WORD = re.compile(
    r"\b(?:me and|husband|wife|partner|boyfriend|girlfriend|ex|son|daughter|brother|sister|uncle|aunt|cousin|"
    r"nephew|niece|friend|bestie|boss|manager|colleague|coworker|roommate|flatmate|neighbou?r|teacher|dog|cat|baby)"
    r"\s+(?P<x>[a-z]{3,})\b"
)
_GENERIC = re.compile(
    r"(?:某|一|几|各|全|本|外|别|整|同|老|新|大|小|私立|公立|重点|普通|当地|附近|隔壁|上市|国有|互联网|外贸|贸易)*"
    r"(?:人民|中心|儿童|精神)?"
    r"(?:有限公司|公司|集团|大学|学院|中学|小学|高中|初中|医院|银行|派出所|法院|事务所|幼儿园|科技|工厂|律所)"
)


def find_names(text: str) -> Iterator[PrivateSpan]:
    """Yield names in the folded `text`, most reliable first; they may overlap."""
    plain = words("chinese", "ordinary")
    for span in (span for pattern in _patterns() for span in pattern.spans(text)):
        value = text[span.start : span.end]
        first = value.split()[0].casefold() if value.split() else ""
        common = first in words("english", "capitals") or value in words("chinese", "somewhere")
        if not (common or _GENERIC.fullmatch(value)) and not (
            span.kind == "place" and any(value.endswith(x) for x in plain)
        ):
            yield span
    for place in words(
        "chinese", "places"
    ):  # after longer names: a university may contain the name of its town
        at = text.find(place)
        while at >= 0:
            yield PrivateSpan("place", at, at + len(place))
            at = text.find(place, at + len(place))
    if _WORD.search(text):
        yield from _after_kinship_words(text)
        yield from _listed_and_capital(text)


def _after_kinship_words(text: str) -> Iterator[PrivateSpan]:
    """Yield lower-case words that are not English words in the place of a name: "my daughter maddie"."""
    for match in _KIN_AND_WORD.finditer(text):
        if not ordinary(match["x"]):
            yield PrivateSpan("name", *match.span("x"))


@lru_cache
def _patterns() -> tuple[Pattern, ...]:
    def either(names: frozenset[str]) -> str:
        return "|".join(sorted(names, key=lambda x: (-len(x), x)))

    family, given = words("chinese", "family"), words("chinese", "given")
    return read_patterns(
        "name_patterns",
        FAMILY=either(family),
        SURE=either(family - words("chinese", "also_words")),
        TITLE=f"(?:{either(words('chinese', 'titles'))})",
        GIVEN=f"[{''.join(sorted(given))}]",
    )


def _listed_and_capital(text: str) -> Iterator[PrivateSpan]:
    """Yield words from the lists, and runs of capitalised words in the middle of a sentence."""
    given, family, places = (words("english", key) for key in ("given", "family", "places"))
    ambiguous, capitals = words("english", "also_words"), words("english", "capitals")
    either = given | family | ambiguous
    by_capital = _capitals_indicate_names(text)
    run: list[re.Match[str]] = []
    for match in [*_WORD.finditer(text), None]:
        if match is not None:
            word = _stem(match[0])
            low, big = word.casefold(), word[0].isupper() and not (word.isupper() and len(word) > 1)
            known = low in given or low in places
            sure = known and low not in ambiguous
            inside = big and low not in capitals and by_capital and not _letters_of_a_code(text, match)
            if inside and _starts_sentence(text, match.start()):
                inside = not (ordinary(low) or _CYRILLIC.match(word))
            loud = (
                word.isupper() and bool(run) and run[-1][0].isupper() and (low in family or not ordinary(low))
            )
            beside = bool(run) and text[run[-1].end() : match.start()] == " "
            joined = beside and (big or loud) and low not in capitals
            if sure or inside or joined or (big and low in either and _paired(text, match)):
                if not (joined or not run):
                    yield _span(text, run, places)
                    run = []
                run.append(match)
                continue
        if run:
            yield _span(text, run, places)
        run = []


def _span(text: str, run: list[re.Match[str]], places: frozenset[str]) -> PrivateSpan:
    start = run[0].start()
    end = run[-1].start() + len(_stem(run[-1][0]))
    named = any(_stem(word[0]).casefold() in words("english", "given") for word in run)
    listed = any(_stem(word[0]).casefold() in places for word in run)
    before = [word.casefold() for word in text[max(0, start - _LOOKED_BACK) : start].split()[-2:]]
    after_in = before[-1:] != [] and (
        before[-1] in _BEFORE_A_PLACE or (before[-1] == "to" and before[0] in _GOING)
    )
    return PrivateSpan("place" if listed or (after_in and not named) else "name", start, end)


def _stem(word: str) -> str:
    """Return the word without a possessive ending."""
    for end in ("'s", "’s", "'", "’", "'S"):
        word = word.removesuffix(end)
    return word


def _letters_of_a_code(text: str, match: re.Match[str]) -> bool:
    """Return whether a match is a single letter or next to a digit, as in "plan B", "A4", "3fK9"."""
    around = text[match.start() - 1 : match.start()] + text[match.end() : match.end() + 1]
    return len(match[0]) == 1 or any(char.isdigit() or char == "_" for char in around)


def _starts_sentence(text: str, at: int) -> bool:
    """Return whether a sentence may start at position `at`."""
    before = text[max(0, at - _LOOKED_BACK) : at].rstrip(" \t\r")[-1:]
    return not before or before in _ENDS_A_SENTENCE


def _paired(text: str, match: re.Match[str]) -> bool:
    """Return whether a capitalised family name follows."""
    following = _WORD.match(text, match.end() + 1)
    if following is None or not following[0][0].isupper():
        return False
    return _stem(following[0]).casefold() in words("english", "family")


def _capitals_indicate_names(text: str) -> bool:
    """Return whether capitals indicate names: not in all-capitals or German text."""
    letters = [char for char in text if char.isupper() or char.islower()]
    if not letters or sum(char.isupper() for char in letters) > len(letters) * 0.5:
        return False
    plain = [word.casefold() for word in _WORD.findall(text)]
    return sum(word in _GERMAN for word in plain) * 8 <= len(plain)
