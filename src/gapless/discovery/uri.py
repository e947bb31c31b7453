"""Discovery URLs, for configuration files and command lines.

    text     = source *( "," source )                         spaces around commas do not matter
    source   = "multicast://" [ address ] [ ":" port ] [ options ]
             | "seeds://" seed *( "," seed ) [ options ]
             | "dns://" name ":" ports [ options ]
             | "dir://" path [ options ]
             | "file://" path [ options ]
    seed     = ( address | name ) ":" ports
    ports    = port [ "-" port ]
    address  = IPv4 | "[" IPv6 "]"
    path     = "/" …
    options  = "?" key "=" value *( "&" key "=" value )

A comma ends an item. An item with ``://`` starts a source; an item without it is a further seed. In
a path and in the value of an option, ``%`` and two hexadecimal digits stand for any character, such
as ``%2C`` for a comma and ``%3F`` for a question mark.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Literal
from urllib.parse import unquote

from gapless.config_fields import close_matches
from gapless.discovery.directory import REFRESH_NS, STALE_NS, Directory
from gapless.discovery.multicast import PORT, Multicast, default_group
from gapless.discovery.seeds import REST_NS, Dns, Seeds
from gapless.discovery.shared_file import SharedFile
from gapless.errors import ConfigError
from gapless.units import parse_duration

if TYPE_CHECKING:
    from collections.abc import Callable

    from gapless.discovery.source import DiscoverySource

OPTIONS = {
    "multicast": ("interface", "ttl", "family"),
    "seeds": ("rest",),
    "dns": ("rest",),
    "dir": ("refresh", "stale"),
    "file": ("refresh", "stale"),
}
"""The kinds of source, and the options of each."""

_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*)://(.*)", re.DOTALL)
_MULTICAST = re.compile(
    r"(?:\[(?P<v6>[^\[\]]+)\]|(?P<v4>[^\[\]:]+))?(?::(?P<port>[0-9]{1,5}))?", re.ASCII
)
_ESCAPE = re.compile(r"%(?![0-9A-Fa-f]{2})")


def parse_sources(text: str, *, group: str) -> list[DiscoverySource]:
    """Return the sources of a discovery URL, for the Gapless group ``group``."""
    return [_parse_source(scheme, items, group) for scheme, items in _split(text)]


def _split(text: str) -> list[tuple[str, list[str]]]:
    """Return the kind and the items of each source; only seeds have several items."""
    found: list[tuple[str, list[str]]] = []
    for item in (part.strip() for part in text.split(",")):
        if not item:
            raise ConfigError(
                f"discovery {text!r} has an empty item before, after or between commas; expected"
                " sources such as seeds://a:7800,b:7800, dir:///shared/orders"
            )
        match = _SCHEME.fullmatch(item)
        if match is not None:
            scheme = match[1].lower()
            if scheme not in OPTIONS:
                hint = _suggestion(scheme, OPTIONS, "{}://")
                raise ConfigError(f"unknown source {match[1]}:// in {item!r}; {hint}")
            found.append((scheme, [match[2]]))
        elif not found:
            hint = _suggestion(item, OPTIONS, "{}://")
            raise ConfigError(f"{item!r} is not a discovery URL; {hint}, as in seeds://{item}")
        elif found[-1][0] != "seeds" or "?" in found[-1][1][-1]:
            raise ConfigError(
                f"{item!r} follows a source that takes no further item; start a source, such as"
                f" seeds://{item}, or write %2C for a comma in a path"
            )
        else:
            found[-1][1].append(item)
    return found


def _parse_source(scheme: str, items: list[str], group: str) -> DiscoverySource:
    items[-1], mark, rest = items[-1].partition("?")
    options = _options(scheme, rest) if mark else {}
    where = f"{scheme}://{','.join(items)}"
    try:
        if scheme == "seeds":
            return Seeds(items, rest_ns=_duration(options, "rest", REST_NS))
        if scheme == "dns":
            return Dns(items[0], rest_ns=_duration(options, "rest", REST_NS))
        if scheme == "multicast":
            return _multicast(items[0], options, group)
        kind: Callable[..., DiscoverySource] = Directory if scheme == "dir" else SharedFile
        refresh_ns = _duration(options, "refresh", REFRESH_NS)
        stale_ns = _duration(options, "stale", max(STALE_NS, 10 * refresh_ns))
        return kind(_path(scheme, items[0]), group=group, refresh_ns=refresh_ns, stale_ns=stale_ns)
    except ConfigError as error:
        raise ConfigError(f"{where}: {error}") from error


def _multicast(text: str, options: dict[str, str], group: str) -> Multicast:
    match = _MULTICAST.fullmatch(text)
    if match is None:
        raise ConfigError(
            f"{text!r} is not a multicast group: expected 239.255.1.2:7799, [ff15::1:2]:7799,"
            " or nothing"
        )
    address = match["v6"] or match["v4"]
    family = options.get("family", "6" if match["v6"] else "4")
    if family not in {"4", "6"}:
        raise ConfigError(f"family={family} is not valid; expected 4 or 6")
    version: Literal[4, 6] = 4 if family == "4" else 6
    if address and "family" in options:
        raise ConfigError(
            f"family={family} applies only to a group without an address; omit family= or {address}"
        )
    ttl = options.get("ttl", "1")
    if re.fullmatch("[0-9]{1,3}", ttl, re.ASCII) is None:
        raise ConfigError(
            f"ttl={ttl} is not a number; expected 0 (this machine) to 255, 1 for the local network"
        )
    return Multicast(
        address or default_group(group, version),
        int(match["port"] or PORT),
        interface=options.get("interface", ""),
        ttl=int(ttl),
    )


def _path(scheme: str, text: str) -> str:
    if not text.startswith("/") or "\0" in (path := _unescape(text)) or not path.strip("/"):
        raise ConfigError(
            f"{text!r} is not an absolute path; expected three slashes, as in {scheme}:///shared/orders"
        )
    return path


def _options(scheme: str, text: str) -> dict[str, str]:
    found: dict[str, str] = {}
    for part in text.split("&"):
        key, mark, value = part.partition("=")
        if not mark or not value:
            raise ConfigError(
                f"{part!r} is not an option of {scheme}://; expected key=value, separated by &"
            )
        if key not in OPTIONS[scheme]:
            raise ConfigError(
                f"{scheme}:// has no option {key!r}; {_suggestion(key, OPTIONS[scheme], '{}=')}"
            )
        if key in found:
            raise ConfigError(f"{scheme}:// has the option {key} twice; omit one")
        found[key] = _unescape(value)
    return found


def _duration(options: dict[str, str], key: str, default_ns: int) -> int:
    if key not in options:
        return default_ns
    try:
        duration_ns = parse_duration(options[key])
    except ConfigError as error:
        raise ConfigError(f"{key}={options[key]}: {error}") from error
    if not parse_duration("10ms") <= duration_ns <= parse_duration("24h"):
        raise ConfigError(f"{key}={options[key]} is out of range; expected 10ms to 24h")
    return duration_ns


def _unescape(text: str) -> str:
    if _ESCAPE.search(text):
        raise ConfigError(
            f"{text!r} has a % without two hexadecimal digits; write %25 for a percent sign"
        )
    return unquote(text)


def _suggestion(word: str, known: tuple[str, ...] | dict[str, tuple[str, ...]], form: str) -> str:
    close = close_matches(word, known, 1)
    hint = f"did you mean {form.format(close[0])}? " if close else ""
    return f"{hint}expected one of {', '.join(form.format(name) for name in known)}"
