"""Durations and sizes, to and from text.

Internally a duration is a whole number of nanoseconds, and a size a whole number of bytes. A person
writes ``"500ms"`` or ``"16MiB"``. The parsers read the texts of ``format_duration`` and
``format_size`` back to the same numbers.
"""

from __future__ import annotations

import re
from fractions import Fraction

from gapless.errors import ConfigError

NS_PER_US = 1_000
NS_PER_MS = 1_000_000
NS_PER_S = 1_000_000_000

KIB = 1024
MIB = 1024**2
GIB = 1024**3

# Largest first: printing takes the first that divides.
_DURATION_NS = {
    "h": 3600 * NS_PER_S,
    "min": 60 * NS_PER_S,
    "s": NS_PER_S,
    "ms": NS_PER_MS,
    "us": NS_PER_US,
    "ns": 1,
}
_SIZE_BYTES = {"GiB": GIB, "MiB": MIB, "KiB": KIB, "B": 1}
# Parsed, never printed: buffers are powers of two, which binary units print exactly.
_DECIMAL_SIZE_BYTES = {"GB": 1000**3, "MB": 1000**2, "kB": 1000}

MAX_DIGITS = 40
"""Maximum number of digits; no setting needs more, and Python refuses a few thousand."""
_QUANTITY = re.compile(r"\s*(\d+(?:\.\d+)?)\s*([A-Za-zµ]*)\s*", re.ASCII)


def parse_duration(text: str) -> int:
    """Return the nanoseconds of a text such as ``"500ms"`` or ``"1.5s"``.

    Examples:
        >>> parse_duration("1.5s")
        1500000000
    """
    number, unit = _split(text, "a duration", _DURATION_NS, '"500ms"')
    if not unit:
        raise ConfigError(
            f'a duration needs a unit; write "{text.strip()}ms" if you mean milliseconds'
        )
    return _whole(number * _DURATION_NS[unit], text, "nanoseconds")


def parse_size(text: str) -> int:
    """Return the bytes of a text such as ``"16MiB"``, ``"64kB"`` or, without a unit, ``"1400"``."""
    number, unit = _split(text, "a size", _SIZE_BYTES | _DECIMAL_SIZE_BYTES, '"16MiB"')
    factor = (_SIZE_BYTES | _DECIMAL_SIZE_BYTES)[unit] if unit else 1
    return _whole(number * factor, text, "bytes")


def format_duration(duration_ns: int) -> str:
    """Return the exact text of a duration, in the largest unit without a fraction."""
    return _format(duration_ns, _DURATION_NS, zero="0s")


def format_size(size_bytes: int) -> str:
    """Return the exact text of a size, in the largest binary unit without a fraction."""
    return _format(size_bytes, _SIZE_BYTES, zero="0B")


def format_count(number: int, noun: str, plural: str = "") -> str:
    """Return a number with its noun: ``1 key``, ``2 keys``.

    Examples:
        >>> format_count(1, "key"), format_count(1200, "reply", "replies")
        ('1 key', '1,200 replies')
    """
    return f"{number:,} {noun if number == 1 else plural or f'{noun}s'}"


def _split(text: str, what: str, units: dict[str, int], example: str) -> tuple[Fraction, str]:
    match = _QUANTITY.fullmatch(text)
    if match is None:
        raise ConfigError(f"expected {what} such as {example}")
    number, unit = match.groups()
    if len(number) > MAX_DIGITS:
        raise ConfigError(
            f"a number of {len(number)} digits is too long for {what}; use at most"
            f" {MAX_DIGITS} digits"
        )
    unit = "us" if unit == "µs" else unit
    if unit and unit not in units:
        raise ConfigError(f"unknown unit {unit!r}; the units of {what} are {', '.join(units)}")
    return Fraction(number), unit


def _whole(number: Fraction, text: str, unit: str) -> int:
    if number.denominator != 1:
        raise ConfigError(f"{text.strip()} is not a whole number of {unit}")
    return number.numerator


def _format(number: int, units: dict[str, int], *, zero: str) -> str:
    if number < 0:
        raise ValueError(f"{number} is negative; expected a duration or size of 0 or more")
    if number == 0:
        return zero
    return next(
        f"{number // factor}{unit}" for unit, factor in units.items() if number % factor == 0
    )
