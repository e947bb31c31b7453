"""Seeds: a static list of addresses and DNS names with ports.

On start: IP addresses are known at once; names are resolved in the thread of the source.

While running: every address of a name (A and AAAA) is used, at each port. ``locate`` requests
another look-up if the last look-up is older than the interval. A failed look-up is the problem
``lookup``; the last answer remains valid.

Seeds have no announcements, so leaving withdraws none.
"""

from __future__ import annotations

import re
import socket
from typing import TYPE_CHECKING, NamedTuple

from gapless.discovery.source import BackgroundSource
from gapless.errors import ConfigError
from gapless.locator import Locator
from gapless.units import parse_duration

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from gapless.identity import RosterEntry

    Resolver = Callable[[str], Iterable[str]]

REST_NS = parse_duration("5s")
"""Minimum time between two look-ups of the same names."""

MAX_PORTS = 1024
"""Maximum number of ports in a range: each port gets a datagram with every join request."""

_SEED = re.compile(
    r"(?:\[(?P<v6>[^\[\]]+)\]|(?P<host>[^\[\]:]+)):(?P<low>[0-9]{1,5})(?:-(?P<high>[0-9]{1,5}))?",
    re.ASCII,
)
_NAME = re.compile(
    r"(?=.{1,253}\.?$)(?:[A-Za-z0-9_](?:[A-Za-z0-9_-]{0,61}[A-Za-z0-9_])?(?:\.(?!$)|\.?$))+",
    re.ASCII,
)
_NUMBERS = re.compile(r"[0-9.]+", re.ASCII)


class Seed(NamedTuple):
    """A host, by address or by name, and the ports to try."""

    host: str
    ports: range
    is_name: bool

    @classmethod
    def parse(cls, text: str) -> Seed:
        """Return the seed of a text such as ``a:7800`` or ``192.0.2.1:7800-7803``."""
        expected = (
            "expected host:port or host:first-last, such as a:7800, 192.0.2.1:7800-7803 or"
            " [::1]:7800"
        )
        match = _SEED.fullmatch(text.strip())
        if match is None:
            raise ConfigError(f"{text.strip()!r} is not a valid seed (host:port): {expected}")
        low = int(match["low"])
        high = int(match["high"] or low)
        if not 1 <= low <= high <= 65535:
            raise ConfigError(
                f"{text.strip()!r} has no valid ports: expected numbers from 1 to 65535, the lower"
                " one first"
            )
        if high - low >= MAX_PORTS:
            raise ConfigError(
                f"{text.strip()!r} has {high - low + 1} ports, and each gets a datagram with every"
                f" join request; use at most {MAX_PORTS}"
            )
        host = match["v6"] or match["host"]
        is_name = match["v6"] is None and _NUMBERS.fullmatch(host) is None
        if not is_name:
            Locator.of(host, low)
        elif _NAME.fullmatch(host) is None:
            raise ConfigError(f"{host!r} is neither an IP address nor a host name: {expected}")
        return cls(host, range(low, high + 1), is_name)

    def locators_at(self, address: str) -> list[Locator]:
        """Return the locators of this seed at one address."""
        return [Locator.of(address, port) for port in self.ports]


def resolve_host(name: str) -> list[str]:
    """Return every address of a host name by the system's resolver, which may block."""
    return [
        str(sockaddr[0]) for *_, sockaddr in socket.getaddrinfo(name, None, type=socket.SOCK_DGRAM)
    ]


class Seeds(BackgroundSource):
    """A list of hosts and ports: ``Seeds(["192.0.2.1:7800", "b.internal:7800-7803"])``.

    Args:
        seeds: Hosts with a port or a range of ports, at least one.
        rest_ns: Minimum time between two look-ups of the same names.
        resolve: The function that looks up a name; by default the system's resolver.
        name: The name of the source in problems and logs.

    Raises:
        ConfigError: A seed is malformed, or the list is empty.
    """

    def __init__(
        self,
        seeds: Iterable[str],
        *,
        rest_ns: int = REST_NS,
        resolve: Resolver = resolve_host,
        name: str = "",
    ) -> None:
        self._seeds = [Seed.parse(text) for text in seeds]
        if not self._seeds:
            raise ConfigError("the list of seeds is empty; write seeds://host:port,host:port")
        super().__init__(
            name or "seeds://" + ",".join(_text(seed) for seed in self._seeds), rest_ns
        )
        self._resolve = resolve
        self._has_names = any(seed.is_name for seed in self._seeds)
        self._answers: dict[str, tuple[str, ...]] = {
            seed.host: (seed.host,) for seed in self._seeds if not seed.is_name
        }
        self._found = self._locators()

    def announce(self, member: RosterEntry) -> None:
        """Do nothing: other members find this member in their own list of seeds."""

    def locate(self, now_ns: int) -> list[Locator]:
        """Return the locators of the list, as far as names are resolved."""
        return super().locate(now_ns) if self._has_names else list(self._found)

    def wait(self, timeout_s: float) -> bool:
        """Wait until every name was resolved once more."""
        return super().wait(timeout_s) if self._has_names else True

    def _refresh(self, member: RosterEntry | None) -> tuple[Locator, ...]:  # noqa: ARG002 - seeds announce nothing
        for host in dict.fromkeys(seed.host for seed in self._seeds if seed.is_name):
            try:
                addresses = [
                    address for address in self._resolve(host) if self._usable(host, address)
                ]
            except (OSError, UnicodeError) as error:
                self.problems.add(
                    "lookup",
                    f"cannot look up {host}: {error}; the last answer remains valid",
                )
                continue
            self._answers[host] = tuple(addresses)
        return self._locators()

    def _usable(self, host: str, address: str) -> bool:
        try:
            Locator.of(address, 1)
        except ConfigError as error:
            self.problems.add("record", f"{host} has an unusable record: {error}")
            return False
        return True

    def _locators(self) -> tuple[Locator, ...]:
        locators = (
            locator
            for seed in self._seeds
            for ip in self._answers.get(seed.host, ())
            for locator in seed.locators_at(ip)
        )
        return tuple(dict.fromkeys(locators))


class Dns(Seeds):
    """One name for all members: ``Dns("orders.internal:7800")``."""

    def __init__(
        self, seed: str, *, rest_ns: int = REST_NS, resolve: Resolver = resolve_host
    ) -> None:
        if not Seed.parse(seed).is_name:
            raise ConfigError(f"{seed!r} is an IP address, not a name; write seeds://{seed}")
        super().__init__([seed], rest_ns=rest_ns, resolve=resolve, name=f"dns://{seed}")


def _text(seed: Seed) -> str:
    host = f"[{seed.host}]" if ":" in seed.host else seed.host
    last = f"-{seed.ports[-1]}" if len(seed.ports) > 1 else ""
    return f"{host}:{seed.ports[0]}{last}"
