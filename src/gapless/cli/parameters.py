"""Types of options: shares, durations and sizes are written the same way in every command.

- A share is ``5%`` or ``0.05``. A bare number above 1 is ambiguous and refused.
- A duration is ``500ms``, ``2s``, ``10min`` or a number of seconds.
- A size is ``64KiB``, ``20GiB``, ``64kB`` or a number of bytes.

Lists are separated by commas. A wrong value ends the command with exit code 2 and one sentence.
"""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from gapless.errors import ConfigError
from gapless.units import NS_PER_S, parse_duration, parse_size

if TYPE_CHECKING:
    from collections.abc import Callable

    # Generic in the type checker's eyes only: click 8.1 has a plain class.
    _ParamType = click.ParamType[Any]
else:
    _ParamType = click.ParamType

MAX_SEED = 2**63 - 1
"""Maximum random seed."""

_SHARE = re.compile(r"(\d{1,20}(?:\.\d{1,20})?|\.\d{1,20}|\d\.?\d{0,20}e-\d{1,2})\s*(%?)")
_MAX_SECONDS = 1e9


def parse_share(text: str) -> float:
    """Return the share in ``5%`` or ``0.05``, from 0 to 1."""
    match = _SHARE.fullmatch(text.strip())
    if match is None:
        raise ConfigError(f"{text!r} is not a share; write 5% or 0.05")
    number, percent = float(match[1]), match[2]
    if percent:
        # Division keeps 5% and 0.05 the same number; a product with 0.01 would not.
        number /= 100
    elif number > 1:
        raise ConfigError(f"{text} is larger than 1; write {match[1]}% for per cent")
    if number > 1:
        raise ConfigError(f"{text} is too large; a share is at most 100%")
    return number


def format_share(share: float) -> str:
    """Return a share as text, such as ``5%``; ``parse_share`` is the inverse."""
    return f"{share * 100:.12g}%"


def parse_seconds(text: str) -> float:
    """Return the seconds in ``500ms``, ``2s`` or a bare number of seconds."""
    try:
        found = float(text)
    except ValueError:
        found = parse_duration(text) / NS_PER_S
    if not 0 <= found < _MAX_SECONDS:
        raise ConfigError(f"{text} is not a duration; write 500ms, 2s or a number of seconds")
    return found


class _Quantity(_ParamType):
    """A number with a unit, or a list of such numbers."""

    def __init__(
        self, name: str, parse: Callable[[str], Any], metavar: str, *, several: bool = False
    ) -> None:
        self.name = name
        self._parse = parse
        self._metavar = f"{metavar},…" if several else metavar
        self._several = several

    def get_metavar(self, param: click.Parameter, ctx: click.Context | None = None) -> str:
        """Return the placeholder of a value in the help; click 8.1 passes no context."""
        del param, ctx
        return self._metavar

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Read one value; a default that is a number already is left unchanged."""
        if not isinstance(value, str):
            return value
        try:
            if not self._several:
                return self._parse(value)
            parts = [part.strip() for part in value.split(",")]
            if not all(parts):
                self.fail(f"{value!r}: the list has an empty item", param, ctx)
            return tuple(dict.fromkeys(self._parse(part) for part in parts))
        except ConfigError as error:
            self.fail(str(error), param, ctx)


SHARE = _Quantity("share", parse_share, "SHARE")
SHARES = _Quantity("shares", parse_share, "SHARE", several=True)
SECONDS = _Quantity("duration", parse_seconds, "TIME")
SIZE = _Quantity("size", parse_size, "SIZE")
SIZES = _Quantity("sizes", parse_size, "SIZE", several=True)


def spool_keys_option(text: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Return the option ``--spool-keys`` with the help ``text``."""
    kind = click.Path(dir_okay=False, path_type=Path)
    return click.option("--spool-keys", type=kind, metavar="FILE", help=text)


def available_cores() -> int:
    """Return the number of cores for this process, the default of ``--workers``."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
