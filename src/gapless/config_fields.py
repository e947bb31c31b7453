"""Settings: name, kind, bounds and meaning, and how each is parsed, checked and printed.

A setting has two forms. The machine uses the *inner* form (``xmit_interval_ns = 500_000_000``); a
person writes the *outer* form (``xmit_interval = "500ms"``). ``gapless.config.Config`` declares its
fields with the functions at the end of this file. Validation, the table in the docs and the command
line read the declaration.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING, Any, TypeVar, cast

from gapless.errors import ConfigError
from gapless.units import (
    MAX_DIGITS,
    NS_PER_MS,
    format_duration,
    format_size,
    parse_duration,
    parse_size,
)

if TYPE_CHECKING:
    from collections.abc import Iterable

Value = int | bool | str
"""The value of a setting, in either form."""

_T = TypeVar("_T", bound=Value)

_BOOLEANS = {"true": True, "false": False}


class Kind(StrEnum):
    """The kinds of values of settings."""

    DURATION = "duration"
    SIZE = "size"
    COUNT = "count"
    PERCENT = "percent"
    FLAG = "flag"
    CHOICE = "choice"


@dataclass(frozen=True, slots=True, kw_only=True)
class SettingSpec:
    """One setting, with bounds in the inner form; ``maximum`` is None without an upper bound."""

    name: str
    kind: Kind
    default: Value
    meaning: str
    minimum: int = 0
    maximum: int | None = None
    choices: tuple[str, ...] = ()
    aliases: tuple[tuple[bool, str], ...] = ()

    @property
    def key(self) -> str:
        """The name in the outer form: the name of the field without the unit."""
        return self.name.removesuffix("_ns")

    @property
    def allowed(self) -> str:
        """The allowed values, in words."""
        if self.kind is Kind.CHOICE:
            return f"one of {', '.join(self.choices)}"
        if self.kind is Kind.FLAG:
            return "true or false"
        what = {Kind.DURATION: "a duration", Kind.SIZE: "a size"}.get(self.kind, "a whole number")
        if self.maximum is None:
            return f"{what} of at least {self.format(self.minimum)}"
        return f"{what} from {self.format(self.minimum)} to {self.format(self.maximum)}"

    def format(self, inner: Value) -> Value:
        """Return the outer form of an inner value; ``parse`` is the inverse."""
        if self.kind is Kind.DURATION:
            return format_duration(int(inner))
        if self.kind is Kind.SIZE:
            return format_size(int(inner))
        return inner

    def parse(self, outer: object) -> Value:
        """Return the inner form of a value from Python code or a TOML file."""
        value = self._parse(outer)
        self.check(value, shown=outer)
        return cast("Value", value)

    def parse_text(self, text: str) -> Value:
        """Return the inner form of a property; a duration without a unit is in milliseconds."""
        outer: object = text
        if text.isascii() and text.isdigit() and len(text) <= MAX_DIGITS:
            outer = int(text)
            if self.kind is Kind.DURATION:
                self.check(outer * NS_PER_MS, shown=text)
                return outer * NS_PER_MS
        elif self.kind is Kind.FLAG or self.aliases:
            outer = _BOOLEANS.get(text.lower(), text)
        return self.parse(outer)

    def check(self, inner: object, *, shown: object = None) -> None:
        """Raise ConfigError unless ``inner`` is allowed; ``shown`` is the text of the user."""
        if self.kind is Kind.CHOICE:
            fits = inner in self.choices
        elif self.kind is Kind.FLAG:
            fits = isinstance(inner, bool)
        else:
            fits = (
                isinstance(inner, int)
                and not isinstance(inner, bool)
                and self.minimum <= inner
                and (self.maximum is None or inner <= self.maximum)
            )
        if not fits:
            raise self._error(inner if shown is None else shown, f"expected {self.allowed}")

    def _parse(self, outer: object) -> object:
        bare_number = isinstance(outer, (int, float)) and not isinstance(outer, bool)
        try:
            if self.kind is Kind.DURATION and bare_number:
                raise ConfigError(
                    f'a duration needs a unit; write "{outer}ms" if you mean milliseconds'
                )
            if self.kind is Kind.DURATION and isinstance(outer, str):
                return parse_duration(outer)
            if self.kind is Kind.SIZE and isinstance(outer, str):
                return parse_size(outer)
        except ConfigError as error:
            raise self._error(outer, str(error)) from None
        if isinstance(outer, bool):
            return dict(self.aliases).get(outer, outer)
        return outer

    def _error(self, shown: object, problem: str) -> ConfigError:
        near = close_matches(shown, self.choices, 1) if isinstance(shown, str) else []
        hint = f"; did you mean {near[0]!r}?" if near else ""
        return ConfigError(f"{self.key} = {shown!r}: {problem}{hint}")


def close_matches(word: str, choices: Iterable[str], most: int) -> list[str]:
    """Return at most ``most`` choices similar to ``word``, the most similar first."""
    from difflib import get_close_matches  # imported late: needed for errors only

    return get_close_matches(word, list(choices), most)


def unknown_setting(name: str, keys: Iterable[str]) -> ConfigError:
    """Return the error for an unknown setting, with similar names first, then all names."""
    choices = sorted(keys)
    near = close_matches(name, choices, 3)
    hint = f"did you mean {' or '.join(repr(key) for key in near)}? " if near else ""
    return ConfigError(f"unknown setting {name!r}: {hint}The settings are {', '.join(choices)}")


def duration(default: str, meaning: str, *, minimum: str = "0s", maximum: str = "1h") -> int:
    """Declare a field that holds a duration in nanoseconds."""
    return _declare(
        Kind.DURATION,
        parse_duration(default),
        meaning,
        minimum=parse_duration(minimum),
        maximum=parse_duration(maximum),
    )


def size(default: str, meaning: str, *, minimum: str, maximum: str | None = None) -> int:
    """Declare a field that holds a number of bytes."""
    limit = None if maximum is None else parse_size(maximum)
    return _declare(
        Kind.SIZE, parse_size(default), meaning, minimum=parse_size(minimum), maximum=limit
    )


def count(default: int, meaning: str, *, minimum: int = 0, maximum: int | None = None) -> int:
    """Declare a field that holds a count."""
    return _declare(Kind.COUNT, default, meaning, minimum=minimum, maximum=maximum)


def percent(default: int, meaning: str) -> int:
    """Declare a field that holds a share between 0 and 100."""
    return _declare(Kind.PERCENT, default, meaning, maximum=100)


def flag(default: bool, meaning: str) -> bool:
    """Declare a field that is on or off."""
    return _declare(Kind.FLAG, default, meaning)


def choice(
    default: str,
    choices: tuple[str, ...],
    meaning: str,
    *,
    aliases: tuple[tuple[bool, str], ...] = (),
) -> Any:
    """Declare a field with a few allowed words; ``aliases`` maps true and false to two of them."""
    return _declare(Kind.CHOICE, default, meaning, choices=choices, aliases=aliases)


def _declare(kind: Kind, default: _T, meaning: str, **bounds: Any) -> _T:
    return field(default=default, metadata={"kind": kind, "meaning": meaning, **bounds})
