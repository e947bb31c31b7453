"""The options of the sink, from text to values."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final, TypeVar

from gapless.config import Config
from gapless.discovery.uri import parse_sources
from gapless.errors import ConfigError
from gapless.group.join_options import TRANSPORTS, read_config
from gapless.units import parse_duration
from pyspark_gapless.option_error import OptionError

T = TypeVar("T")

KNOWN_OPTIONS: Final = {
    name.lower(): name
    for name in (
        "group",
        "discover",
        "transport",
        "host",
        "ports",
        "keys",
        "insecure",
        "tls",
        "config",
        "minMembers",
        "waitFor",
        "joinTimeout",
        "deliverTimeout",
        "stay",
        "staging",
        "format",
        "checkpointLocation",
    )
}
"""The documented spelling of each option, by the lower-case form that Spark passes."""
SETTING_PREFIX: Final = "config."


@dataclass(frozen=True)
class SinkOptions:
    """The checked options of the sink."""

    group: str
    discover: str | None = None
    transport: str = "auto"
    host: str | None = None
    ports: tuple[int, ...] | None = None
    keys: str | None = None
    """The path of a keyring, which the process that publishes reads."""
    insecure: bool = False
    tls: str | None = None
    """A folder with certificates, which the process that publishes reads."""
    config_file: str = ""
    settings: tuple[tuple[str, str], ...] = ()
    min_members: int = 2
    wait_for: tuple[str, ...] = ()
    join_timeout_ns: int = 0
    deliver_timeout_ns: int = 0
    idle_timeout_ns: int = 0
    staging: str = ""
    checkpoint: str = ""
    payload_format: str = ""

    @property
    def config(self) -> Config:
        """The config of the publishing member."""
        knobs = {name: _setting_value(text) for name, text in self.settings}
        return (
            read_config(self.config_file).replace(**knobs)
            if self.config_file
            else read_config(knobs)
        )

    @property
    def member_key(self) -> tuple[object, ...]:
        """The key of a member that several writers may share."""
        return (
            self.group,
            self.discover,
            self.transport,
            self.host,
            self.ports,
            self.keys,
            self.insecure,
            self.tls,
            self.config_file,
            self.settings,
        )


def parse(given: Mapping[str, str]) -> SinkOptions:
    """Return the options of a write."""
    options = {key.lower(): str(value).strip() for key, value in given.items()}
    knobs = {
        key.removeprefix(SETTING_PREFIX): value
        for key, value in options.items()
        if key.startswith(SETTING_PREFIX)
    }
    rest = {key: value for key, value in options.items() if not key.startswith(SETTING_PREFIX)}
    if "path" in rest:
        raise OptionError(
            f"rows go to a group, not to the path {rest['path']!r}: leave it out, and name the "
            f"group by the option"
            " group"
        )
    for key in rest:
        if key not in KNOWN_OPTIONS:
            close = difflib.get_close_matches(key, KNOWN_OPTIONS, n=1)
            hint = (
                f'did you mean "{KNOWN_OPTIONS[close[0]]}"?'
                if close
                else f"the options are {', '.join(KNOWN_OPTIONS.values())}"
            )
            raise OptionError(f'unknown option "{key}"; {hint}')
    if not rest.get("group"):
        raise OptionError(
            'the option "group" is missing; give the name of the group that receives the rows'
        )
    if rest.get("discover"):
        parse_sources(rest["discover"], group=rest["group"])
    parsed = SinkOptions(
        group=rest["group"],
        discover=rest.get("discover") or None,
        transport=_read(rest, "transport", _transport, "auto"),
        host=rest.get("host") or None,
        ports=_read(rest, "ports", _ports, None),
        keys=rest.get("keys") or None,
        insecure=_read(rest, "insecure", _flag, False),
        tls=rest.get("tls") or None,
        config_file=rest.get("config", ""),
        settings=tuple(sorted(knobs.items())),
        min_members=_read(rest, "minmembers", _positive, 2),
        wait_for=_read(rest, "waitfor", _names, ()),
        join_timeout_ns=_read(rest, "jointimeout", _duration, _duration("30s")),
        deliver_timeout_ns=_read(rest, "delivertimeout", _duration, _duration("2min")),
        idle_timeout_ns=_read(rest, "stay", _duration, _duration("30s")),
        staging=rest.get("staging", ""),
        checkpoint=rest.get("checkpointlocation", ""),
        payload_format=rest.get("format", "").lower(),
    )
    _ = parsed.config  # an invalid setting is reported now, not in the middle of a batch
    return parsed


def _read(
    options: Mapping[str, str], key: str, parser: Callable[[str], T], default: T | Any
) -> T | Any:
    text = options.get(key)
    if not text:
        return default
    try:
        return parser(text)
    except ConfigError as error:
        raise OptionError(f'option "{KNOWN_OPTIONS[key]}" is {text!r}: {error}') from None


def _setting_value(text: str) -> object:
    """Return the value of a setting: Spark has text only, settings have numbers and flags, too."""
    if text.isascii() and text.isdigit() and len(text) < 20:
        return int(text)
    return {"true": True, "false": False}.get(text.lower(), text)


def _flag(text: str) -> bool:
    if text.lower() not in {"true", "false"}:
        raise OptionError("expected true or false")
    return text.lower() == "true"


def _transport(text: str) -> str:
    if text not in TRANSPORTS:
        raise OptionError(f"expected one of {', '.join(TRANSPORTS)}")
    return text


def _ports(text: str) -> tuple[int, ...]:
    ports: list[int] = []
    for part in text.split(","):
        first, dash, last = part.strip().partition("-")
        if (
            not first.isdecimal()
            or (dash and not last.isdecimal())
            or not int(first) <= int(last or first) <= 65535
        ):
            raise OptionError("expected ports such as 7800, 7800-7899 or 7800,7900")
        ports += range(int(first), int(last or first) + 1)
    return tuple(ports)


def _positive(text: str) -> int:
    if not text.isdecimal() or not 0 < int(text) < 1_000_000:
        raise OptionError("expected a whole number above zero")
    return int(text)


def _duration(text: str) -> int:
    duration_ns = parse_duration(text if not text.isdecimal() else f"{text}s")
    if not duration_ns:
        raise OptionError("expected a time above zero, such as 30s")
    return duration_ns


def _names(text: str) -> tuple[str, ...]:
    return tuple(part.strip() for part in text.split(",") if part.strip())
