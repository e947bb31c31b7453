"""A network with packet loss: a namespace for each member, on a bridge with a dropping filter.

Each packet is dropped on the way into a member's namespace, with the same chance for UDP and TCP
and for every library, so that losses differ between receivers. Segmentation by the interface is
off, and the filter stands before any reassembly: a drop affects a single packet, as on a wire. A
datagram larger than the MTU is lost with any of its fragments. The network needs administrator
rights, ``ip``, and ``nft`` or ``iptables``; only a try shows whether the network works.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Self

NET = "10.213.77"
MTU = 1500


class UnavailableError(Exception):
    """This machine does not allow the construction of the network."""


class Network:
    """Namespaces for members, and another namespace for a server."""

    def __init__(self, members: int) -> None:
        self.members = members
        self._names = [f"gapless-{os.getpid()}-{at}" for at in range(members + 2)]
        self._filter = ""
        self._undo = ExitStack()

    @property
    def _hub(self) -> str:
        return self._names[-1]

    @property
    def way(self) -> str:
        """How packets are dropped."""
        where = "on their way into each member's network namespace"
        return f"{self._filter} drops packets {where}, MTU {MTU}"

    def host(self, at: int) -> str:
        """Return the address of a member; the address after the last belongs to the server."""
        return f"{NET}.{at + 1}"

    def prefix(self, at: int) -> list[str]:
        """Return the prefix of a command to run in the namespace."""
        return ["ip", "netns", "exec", self._names[at]]

    def __enter__(self) -> Self:
        try:
            self._build()
        except BaseException:
            self._undo.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self._undo.close()

    def _build(self) -> None:
        if not shutil.which("ip"):
            raise UnavailableError("there is no ip (iproute2)")
        _remove_stale()
        for name in self._names:
            _call("ip", "netns", "add", name)
            self._undo.callback(_call, "ip", "netns", "del", name)
            _call("ip", "-n", name, "link", "set", "lo", "up")
        _call("ip", "-n", self._hub, "link", "add", "hub", "type", "bridge", "mcast_snooping", "0")
        _call("ip", "-n", self._hub, "link", "set", "hub", "up", "mtu", str(MTU))
        for at, name in enumerate(self._names[:-1]):
            self._connect(at, name)
        self._filter = self._find_filter()

    def _connect(self, at: int, name: str) -> None:
        hub = self._hub
        _call(
            "ip",
            "link",
            "add",
            f"v{at}",
            "netns",
            hub,
            "type",
            "veth",
            "peer",
            "name",
            "eth0",
            "netns",
            name,
        )
        for space, link in ((hub, f"v{at}"), (name, "eth0")):
            # one packet for each frame of the wire, whichever member sends it
            _call(
                "ip",
                "-n",
                space,
                "link",
                "set",
                link,
                "mtu",
                str(MTU),
                "gso_max_segs",
                "1",
                "gso_max_size",
                "1536",
            )
            _call("ip", "-n", space, "link", "set", link, "up")
        _call("ip", "-n", hub, "link", "set", f"v{at}", "master", "hub")
        _call("ip", "-n", name, "addr", "add", f"{self.host(at)}/24", "brd", "+", "dev", "eth0")
        _call("ip", "-n", name, "route", "add", "default", "dev", "eth0")

    def _find_filter(self) -> str:
        problems = []
        for name in ("nft", "iptables"):
            if not shutil.which(name):
                problems.append(f"there is no {name}")
                continue
            self._filter = name
            try:
                self.set_loss(0.5)
                self.set_loss(0)
            except UnavailableError as error:
                problems.append(str(error))
            else:
                return name
        raise UnavailableError("; ".join(problems))

    def set_loss(self, share: float) -> None:
        """Drop the given share of all packets of UDP and TCP from now on."""
        for at in range(self.members + 1):
            if self._filter == "nft":
                self._nft(at, share)
            else:
                self._iptables(at, share)

    def _nft(self, at: int, share: float) -> None:
        rule = (
            "meta l4proto { tcp, udp } numgen random mod 100000"
            f" < {round(share * 100_000)} drop\n"
            if share
            else ""
        )
        # Before conntrack (-400) and before local delivery: both put fragments together.
        chain = f"chain loss {{\ntype filter hook prerouting priority -500;\n{rule}}}\n"
        script = f"add table ip bench\ndelete table ip bench\ntable ip bench {{\n{chain}}}\n"
        _call(*self.prefix(at), "nft", "-f", "-", said=script)

    def _iptables(self, at: int, share: float) -> None:
        _call(*self.prefix(at), "iptables", "-t", "raw", "-F", "PREROUTING")
        if share:
            luck = ["-m", "statistic", "--mode", "random", "--probability", str(share)]
            for protocol in ("udp", "tcp"):
                rule = ["-A", "PREROUTING", "-p", protocol, *luck, "-j", "DROP"]
                _call(*self.prefix(at), "iptables", "-t", "raw", *rule)


def _remove_stale() -> None:
    """Remove the remains of a killed run."""
    listed = subprocess.run(
        ["ip", "netns", "list"], capture_output=True, text=True, check=False
    ).stdout
    for line in listed.splitlines():
        name = line.split()[0] if line.strip() else ""
        words = name.split("-")
        if (
            len(words) == 3
            and words[0] == "gapless"
            and words[1].isdecimal()
            and not Path(f"/proc/{words[1]}").exists()
        ):
            _call("ip", "netns", "del", name)


def _call(*command: str, said: str | None = None) -> None:
    done = subprocess.run(command, input=said, capture_output=True, text=True, check=False)
    if done.returncode:
        shown: Sequence[str] = command[4:] if command[:3] == ("ip", "netns", "exec") else command
        raise UnavailableError(
            f"{' '.join(shown)}: {next(iter(done.stderr.strip().splitlines()), '')}"
        )
