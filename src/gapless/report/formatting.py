"""Formats of numbers, durations, sizes and shares for readers."""

from __future__ import annotations

_DURATIONS = ((1_000_000_000, "s"), (1_000_000, "ms"), (1_000, "µs"), (1, "ns"))
_SIZES = ((1024**4, "TiB"), (1024**3, "GiB"), (1024**2, "MiB"), (1024, "KiB"), (1, "B"))
_THOUSANDS = ((1e12, " T"), (1e9, " G"), (1e6, " M"), (1e3, " k"))
_NBSP = "\N{NO-BREAK SPACE}"
NO_VALUE = "\N{EN DASH}"
"""The text for a missing number."""


def count(number: float | None) -> str:
    """Return a number in full: ``12,345``."""
    if number is None:
        return NO_VALUE
    return f"{number:,.0f}" if number == int(number) or abs(number) >= 100 else f"{number:,.3g}"


def compact(number: float | None) -> str:
    """Return a number in three digits: ``12.3 M``."""
    if number is None:
        return NO_VALUE
    for factor, unit in _THOUSANDS:
        if abs(number) >= factor:
            return f"{_digits(number / factor)}{_NBSP}{unit.strip()}"
    return f"{number:g}" if number == int(number) else _digits(number)


def _digits(number: float) -> str:
    """Return three significant digits, without trailing zeros."""
    size = abs(number)
    shown = f"{number:.0f}" if size >= 100 else f"{number:.1f}" if size >= 10 else f"{number:.2f}"
    return shown.rstrip("0").rstrip(".") if "." in shown else shown


def duration(span_ns: float | None) -> str:
    """Return a time in three digits: ``1.24 ms``, ``3 min 20 s``."""
    if span_ns is None:
        return NO_VALUE
    if span_ns < 0:
        return f"\N{MINUS SIGN}{duration(-span_ns)}"
    if span_ns >= 120e9:
        minutes, seconds = divmod(round(span_ns / 1e9), 60)
        hours, minutes = divmod(minutes, 60)
        parts = (f"{hours} h {minutes} min",) if hours else (f"{minutes} min {seconds} s",)
        return parts[0].replace(" ", _NBSP)
    for factor, unit in _DURATIONS:
        if span_ns >= factor * 0.9995:
            return f"{_digits(span_ns / factor)}{_NBSP}{unit}"
    return f"{_digits(span_ns)}{_NBSP}ns" if span_ns else f"0{_NBSP}s"


def size(length_bytes: float | None) -> str:
    """Return a size in three digits: ``1.5 MiB``."""
    if length_bytes is None:
        return NO_VALUE
    for factor, unit in _SIZES:
        if length_bytes >= factor:
            return f"{_digits(length_bytes / factor)}{_NBSP}{unit}"
    return f"0{_NBSP}B"


def percent(share: float | None) -> str:
    """Return a share: ``12.5 %``."""
    return NO_VALUE if share is None else f"{_digits(100 * share)}{_NBSP}%"


def plural(number: int, one: str, many: str = "") -> str:
    """Return a number with a noun: ``1 gap``, ``2 gaps``."""
    return f"{count(number)}{_NBSP}{one if number == 1 else many or one + 's'}"


def seqnos(first: int, last: int) -> str:
    """Return a range of seqnos: ``5``, ``5..9``."""
    return f"{first}" if last <= first else f"{first}..{last}"
