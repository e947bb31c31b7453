"""Static seeds and DNS names: places that somebody has written down.

On starting:   addresses written as numbers are known at once, names are looked up in the thread of
the source. While running: every address of a name counts (A and AAAA), at each of its ports. Names
are looked up again when somebody asks and the rest is over. A look-up that fails is the problem
``lookup``; the last answer still counts. On leaving:    nothing; others have not learned of this
member from here.
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
"""Time between two look-ups of the same names."""

MAX_PORTS = 1024
"""Ports that one range may span: each of them gets a datagram with every try to join."""

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
    """A host, by address or by name, and the ports to try there."""

    host: str
    ports: range
    is_name: bool

    @classmethod
    def parse(cls, text: str) -> Seed:
        """Return the seed that ``a:7800``, ``192.0.2.1:7800-7803`` or ``[::1]:7800`` names."""
        expected = "expected host:port or host:first-last, such as a:7800, 192.0.2.1:7800-7803 or [::1]:7800"
        match = _SEED.fullmatch(text.strip())
        if match is None:
            raise ConfigError(f"{text.strip()!r} is no seed: {expected}")
        low = int(match["low"])
        high = int(match["high"] or low)
        if not 1 <= low <= high <= 65535:
            raise ConfigError(
                f"{text.strip()!r} names no ports: expected numbers from 1 to 65535, the lower one first"
            )
        if high - low >= MAX_PORTS:
            raise ConfigError(
                f"{text.strip()!r} spans {high - low + 1} ports, and each gets a datagram at every try; name at most"
                f" {MAX_PORTS}"
            )
        host = match["v6"] or match["host"]
        is_name = match["v6"] is None and _NUMBERS.fullmatch(host) is None
        if not is_name:
            Locator.of(host, low)
        elif _NAME.fullmatch(host) is None:
            raise ConfigError(f"{host!r} is neither an address nor the name of a host: {expected}")
        return cls(host, range(low, high + 1), is_name)

    def locators_at(self, address: str) -> list[Locator]:
        """Return the places of this seed at one address."""
        return [Locator.of(address, port) for port in self.ports]


def resolve_host(name: str) -> list[str]:
    """Return every address of a host's name, by the resolver of this machine; it may take long."""
    return [
        str(sockaddr[0]) for *_, sockaddr in socket.getaddrinfo(name, None, type=socket.SOCK_DGRAM)
    ]


class Seeds(BackgroundSource):
    """A list of hosts and ports; ``Seeds(["192.0.2.1:7800", "b.internal:7800-7803"])``."""

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
            raise ConfigError("there is no seed in this list; write seeds://host:port,host:port")
        super().__init__(
            name or "seeds://" + ",".join(_text(seed) for seed in self._seeds), rest_ns
        )
        self._resolve = resolve
        self._has_names = any(seed.is_name for seed in self._seeds)
        self._answers: dict[str, tuple[str, ...]] = {
            seed.host: (seed.host,) for seed in self._seeds if not seed.is_name
        }
        self._found = self._locators()

    def announce(self, place: RosterEntry) -> None:
        """Do nothing: a seed is found because others have it on their list."""

    def locate(self, now_ns: int) -> list[Locator]:
        """Return the places on the list, those of names as far as they have been looked up."""
        return super().locate(now_ns) if self._has_names else list(self._found)

    def wait(self, timeout_s: float) -> bool:
        """Wait until every name has been looked up once more."""
        return super().wait(timeout_s) if self._has_names else True

    def _refresh(self, place: RosterEntry | None) -> tuple[Locator, ...]:  # noqa: ARG002 - nothing is announced here
        for host in dict.fromkeys(seed.host for seed in self._seeds if seed.is_name):
            try:
                addresses = [
                    address for address in self._resolve(host) if self._usable(host, address)
                ]
            except (OSError, UnicodeError) as error:
                self.problems.add(
                    "lookup",
                    f"cannot look up {host}: {error}; the last answer still counts, if any",
                )
                continue
            self._answers[host] = tuple(addresses)
        return self._locators()

    def _usable(self, host: str, address: str) -> bool:
        try:
            Locator.of(address, 1)
        except ConfigError as error:
            self.problems.add("record", f"{host} has a record that leads nowhere: {error}")
            return False
        return True

    def _locators(self) -> tuple[Locator, ...]:
        places = (
            place
            for seed in self._seeds
            for ip in self._answers.get(seed.host, ())
            for place in seed.locators_at(ip)
        )
        return tuple(dict.fromkeys(places))


class Dns(Seeds):
    """One name that stands for all members: ``Dns("orders.internal:7800")``."""

    def __init__(
        self, seed: str, *, rest_ns: int = REST_NS, resolve: Resolver = resolve_host
    ) -> None:
        if not Seed.parse(seed).is_name:
            raise ConfigError(
                f"{seed!r} is an address, there is nothing to look up; write seeds://{seed}"
            )
        super().__init__([seed], rest_ns=rest_ns, resolve=resolve, name=f"dns://{seed}")


def _text(seed: Seed) -> str:
    host = f"[{seed.host}]" if ":" in seed.host else seed.host
    last = f"-{seed.ports[-1]}" if len(seed.ports) > 1 else ""
    return f"{host}:{seed.ports[0]}{last}"
