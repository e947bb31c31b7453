"""Options of a collector, as text or as numbers: ``max_bytes="20GiB"``, ``max_age=3600``."""

from __future__ import annotations

from dataclasses import dataclass, field
from difflib import get_close_matches
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypedDict

from gapless.config import Config
from gapless.discovery import Discovery
from gapless.errors import ConfigError
from gapless.group.join_options import read_config
from gapless.keys.keyring import Keyring
from gapless.spool.limits import SpoolLimits
from gapless.units import NS_PER_S, parse_duration, parse_size

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from gapless.group.timeouts import Duration

DEFAULT_NAME = "collector"
"""The durable name of a collector with a new spool, if none is given."""
JOIN_TIMEOUT_S = 30.0
"""How long joining the group may take."""


class CollectorOptions(TypedDict, total=False):
    """Options of a ``Collector`` beside spool and group."""

    name: str
    display_name: str
    max_bytes: int | str
    max_age: Duration
    on_full: str
    segment_bytes: int | str
    rotate: Duration
    sync: bool | str
    line_bytes: int | str
    spool_keys: Any
    discover: Any
    transport: Any
    host: str | None
    ports: Any
    min_members: Any
    keys: Any
    identity: Any
    insecure: Any
    tls: Any
    allow_lossy: Any
    config: Any
    properties: str
    join_timeout: Duration
    trace: Any
    trace_mode: str


@dataclass(frozen=True)
class ParsedCollectorOptions:
    """The options of a collector, parsed and checked."""

    name: str = ""
    limits: SpoolLimits = field(default_factory=SpoolLimits)
    sync: bool = True
    line_bytes: int = 64 * 1024 * 1024
    spool_keys: Keyring | Path | None = None
    join_timeout_s: float = JOIN_TIMEOUT_S
    join: Mapping[str, Any] = field(default_factory=dict)

    @classmethod
    def parse(cls, group: str, options: Mapping[str, Any]) -> ParsedCollectorOptions:
        """Return the parsed options; a ConfigError names an unknown or invalid option."""
        for key in options:
            if key not in CollectorOptions.__annotations__:
                raise ConfigError(_unknown(key))
        own: dict[str, Any] = {}
        limits: dict[str, Any] = {}
        for key, (field_name, read) in _LIMITS.items():
            if key in options:
                limits[field_name] = _value(key, options[key], read)
        for key, (field_name, read) in _OWN.items():
            if key in options:
                own[field_name] = _value(key, options[key], read)
        join = {key: options[key] for key in _JOIN if options.get(key) is not None}
        if isinstance(join.get("discover"), str):
            Discovery.parse(join["discover"], group=group)  # an invalid URL is reported at once
        if options.get("ports") is not None:
            join["ports"] = _value("ports", options["ports"], parse_ports)
        if (config := _config(options)) is not None:
            join["config"] = config
        try:
            made = SpoolLimits(**limits)
        except ConfigError as error:
            raise ConfigError(str(error).replace("policy =", "on_full =")) from None
        return cls(limits=made, join=join, **own)


def parse_ports(text: Any) -> Any:
    """Return the ports of a text such as 7800-7899."""
    if not isinstance(text, str):
        return text
    first, dash, last = text.partition("-")
    if not first.isdecimal() or (dash and not last.isdecimal()):
        raise ConfigError(
            f"{text}: expected a port such as 7800, a range such as 7800-7899, or 0 for any"
        )
    return range(int(first), int(last) + 1) if dash else int(first)


def _config(options: Mapping[str, Any]) -> Any:
    config, properties = options.get("config"), options.get("properties")
    if properties is None:
        return None if config is None else read_config(config)
    if config is not None:
        raise ConfigError("config and properties both give settings; pass only one of them")
    return Config.from_properties(properties)


def _value(key: str, given: Any, read: Callable[[Any], Any]) -> Any:
    try:
        return read(given)
    except ConfigError as error:
        raise ConfigError(f"{key} = {given!r}: {error}") from None


def _unknown(key: str) -> str:
    known = sorted(CollectorOptions.__annotations__)
    near = get_close_matches(key, known, n=1)
    hint = f"did you mean {near[0]!r}?" if near else f"expected one of {', '.join(known)}"
    return f"a collector has no option {key!r}; {hint}"


def _size(given: Any) -> int:
    if isinstance(given, str):
        return parse_size(given)
    if type(given) is not int or given < 0:
        raise ConfigError('expected a number of bytes, or text such as "20GiB"')
    return given


def _duration(given: Any) -> int:
    if isinstance(given, str):
        try:
            given = float(given)
        except ValueError:
            return parse_duration(given)
    if type(given) not in {int, float} or not 0 <= given < 1e9:
        raise ConfigError('expected a number of seconds, or text such as "12h"')
    return int(given * NS_PER_S)


def _seconds(given: Any) -> float:
    return _duration(given) / NS_PER_S


def _flag(given: Any) -> bool:
    found = {"true": True, "yes": True, "1": True, "false": False, "no": False, "0": False}.get(
        str(given).lower()
    )
    if found is None:
        raise ConfigError("expected true or false")
    return found


def _text(given: Any) -> str:
    if not isinstance(given, (str, Path)):
        raise ConfigError("expected text")
    return str(given)


def _keys(given: Any) -> Keyring | Path | None:
    if given is None or isinstance(given, Keyring):
        return given
    if not isinstance(given, (str, Path)) or not str(given).strip("\0 "):
        raise ConfigError("expected the path of a keyring file, or a Keyring")
    return Path(given)


_JOIN = (
    "allow_lossy",
    "discover",
    "display_name",
    "host",
    "identity",
    "insecure",
    "keys",
    "min_members",
    "transport",
    "tls",
    "trace",
    "trace_mode",
)
_LIMITS: Mapping[str, tuple[str, Callable[[Any], Any]]] = {
    "max_bytes": ("max_bytes", _size),
    "max_age": ("max_age_ns", _duration),
    "on_full": ("policy", _text),
    "segment_bytes": ("segment_bytes", _size),
    "rotate": ("segment_age_ns", _duration),
}
_OWN: Mapping[str, tuple[str, Callable[[Any], Any]]] = {
    "name": ("name", _text),
    "sync": ("sync", _flag),
    "line_bytes": ("line_bytes", _size),
    "spool_keys": ("spool_keys", _keys),
    "join_timeout": ("join_timeout_s", _seconds),
}
