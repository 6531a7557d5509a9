"""Numbers as text, for sentences and tables."""

from __future__ import annotations


def num(value: float | None, digits: int = 2) -> str:
    """Format a number with few digits; very large and small ones in scientific notation."""
    if value is None:
        return "–"
    if isinstance(value, int) and abs(value) < 1e15:
        return f"{value:,}".replace("-", "−")
    if value and not 1e-4 <= abs(value) < 1e7:
        return f"{value:.2e}".replace("-", "−")
    return f"{value:,.{digits}f}".replace("-", "−")


def signed(value: float | None, digits: int = 2) -> str:
    """Format a number with its sign."""
    text = num(value, digits)
    if not any(digit in text for digit in "123456789"):
        return text.removeprefix("−")  # a value that rounds to zero has no sign
    return f"+{text}" if value is not None and value > 0 else text
