"""Removal of an API key from text that an endpoint returned, however the endpoint transformed it.

A long random key is looked for by its letters and digits only, without case, so separators and escapes do not
hide it; a part of it counts from `MIN_RUN` characters. Other keys ("not-needed") are only replaced as they
are: words like theirs occur in ordinary text.
"""

from __future__ import annotations

import base64
import re
from functools import lru_cache
from itertools import pairwise
from urllib.parse import quote

WINDOW = 12
STRIDE = 4
MIN_RUN = WINDOW + STRIDE - 1
"""Consecutive letters and digits of a key that are always found."""
MIN_KEY = 8
"""Shorter keys are placeholders like "none" or "EMPTY", which may occur in answers."""
MIN_RANDOM = 16
"""Letters and digits, a digit among them, from which a key is taken to be random."""
MASK = "***"
_SEPARATORS = re.compile(r"[\W_]+")


def scrub(text: str, key: str) -> str:
    """Replace the key in `text`, also encoded (base64, hex, URL), reversed, spaced out or in part."""
    if len(key) < MIN_KEY or not text:
        return text
    text = text.replace(key, MASK)
    letters = _SEPARATORS.sub("", key)
    if len(letters) < MIN_RANDOM or not any(map(str.isdigit, letters)):
        return text
    windows = _windows(key)
    compact = _SEPARATORS.sub("", text)
    # The lower case of a few characters is longer than one character.
    compact = compact.lower() if compact.isascii() else "".join(char.lower()[0] for char in compact)
    matches = [
        at for at in range(0, len(compact) - WINDOW + 1, STRIDE) if compact[at : at + WINDOW] in windows
    ]
    if not matches:
        return text
    places = [index for index, char in enumerate(text) if not _SEPARATORS.match(char)]
    spans: list[tuple[int, int]] = []
    for at in matches:
        first = last = at
        while first > 0 and compact[first - 1 : first - 1 + WINDOW] in windows:
            first -= 1
        while compact[last + 1 : last + 1 + WINDOW] in windows:
            last += 1
        spans.append((places[first], places[last + WINDOW - 1] + 1))
    edges = [0, *(edge for span in _joined(spans) for edge in span), len(text)]
    return MASK.join(text[start:end] for start, end in list(pairwise(edges))[::2])


def _joined(spans: list[tuple[int, int]]) -> list[tuple[int, int]]:
    joined = [spans[0]]
    for start, end in spans[1:]:
        if start <= joined[-1][1]:
            joined[-1] = (joined[-1][0], max(end, joined[-1][1]))
        else:
            joined.append((start, end))
    return joined


@lru_cache(maxsize=16)
def _windows(key: str) -> frozenset[str]:
    """Return all parts of `WINDOW` characters of the key's forms."""
    data = key.encode()
    forms = {key, key[::-1], quote(key, safe=""), data.hex(), "".join(f"%{byte:02x}" for byte in data)}
    for offset in range(3):  # the key may be at any offset in a longer base64 text
        encoded = base64.b64encode(b"\0" * offset + data).decode()
        forms.add(encoded[(0, 2, 3)[offset] : len(encoded) - (0, 2, 3)[-(offset + len(data)) % 3]])
    compact = [_SEPARATORS.sub("", form).lower() for form in forms]
    return frozenset(form[at : at + WINDOW] for form in compact for at in range(len(form) - WINDOW + 1))
