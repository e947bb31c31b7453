"""The options of ``join``, and how they become a handle.

Without discovery options, members find each other by multicast and, on one machine, by a directory
under the system's folder for temporary files, writable only for this user. Without keys a group
stays on this machine, sealed with the keys of this user (group_keys.py). A first program thus needs
no configuration, no privileges and no network.
"""

from __future__ import annotations

import os
import socket
import stat
import time
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gapless.config import SETTINGS, Config
from gapless.discovery import Directory, Discovery, Multicast, Seeds, default_group
from gapless.errors import ConfigError
from gapless.group.deprecated import warn_renamed
from gapless.group.group_identity import choose_identity
from gapless.group.group_keys import (
    GroupKeys,
    check_open_transport,
    choose_keys,
    log_protection,
)
from gapless.group.option_checks import check_options, read_ports
from gapless.group.timeouts import Duration
from gapless.keys.keyring import Keyring
from gapless.logger import log
from gapless.runtime.handle import MemberHandle
from gapless.transport.udp import PORTS, UdpMesh, UdpMulticast, open_udp
from gapless.units import NS_PER_MS, NS_PER_S

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from gapless.discovery import DiscoverySource
    from gapless.identity import Address
    from gapless.keys.identities import Identity
    from gapless.locator import Locator
    from gapless.runtime.delivery_queue import DeliverySink
    from gapless.trace.recorder import Recorder
    from gapless.transport.base import Transport
    from gapless.transport.tcp.tls_files import TlsFiles


def _open_tcp(*args: Any, **options: Any) -> Transport:
    from gapless.transport.tcp.transport import TcpMesh

    return TcpMesh(*args, **options)


TRANSPORTS: Mapping[str, Callable[..., Transport]] = {
    "auto": open_udp,
    "udp": open_udp,
    "multicast": UdpMulticast,
    "mesh": UdpMesh,
    "tcp": _open_tcp,
}
"""The named transports, and the function that opens each."""


class StateHooks:
    """The application's functions that provide and replace its state."""

    def __init__(self, hooks: Any) -> None:
        get: Any = getattr(hooks, "get_state", None)
        take: Any = getattr(hooks, "set_state", None)
        if isinstance(hooks, tuple) and len(hooks) == 2:
            get, take = hooks
        self.get: Callable[[], bytes] = get
        self.set: Callable[[bytes], object] = take
        if not (callable(get) and callable(take)):
            raise ConfigError(
                f"state={hooks!r}: expected an object with get_state() -> bytes and"
                " set_state(bytes), or a pair of such functions"
            )


FOUND_EARLY_NS = 75 * NS_PER_MS
"""How long a member waits for an answer where an answer takes milliseconds."""

_member_numbers = count(1)


def default_display_name() -> str:
    """Return the display name of a member without a given one: host, pid, number in the process."""
    return f"{socket.gethostname().partition('.')[0]}-{os.getpid()}-{next(_member_numbers)}"


@dataclass(frozen=True, kw_only=True)
class MemberOptions:
    """The options of ``join``, checked."""

    group: str
    timeout: Duration | None = None
    """How long joining may take; None for no limit."""
    discover: str | Discovery | None = None
    seeds: Sequence[str] = ()
    min_members: int = 1
    """How many members the group must have before joining succeeds."""
    transport: str | Transport = "auto"
    config: Config | Mapping[str, object] | str | Path | None = None
    display_name: str = ""
    durable_name: str = ""
    name: str | None = None
    state: Any = None
    node: int | None = None
    listen: bool = True
    rejoin: bool = True
    keys: str | Path | Keyring | None = None
    """The keyring of the group; by default that of the environment or of this user."""
    identity: str | Path | Identity | None = None
    """The identity of this member; by default that of the environment or of this user."""
    insecure: bool = False
    """Whether the group has no keys."""
    tls: TlsFiles | str | Path | None = None
    """The files for TLS, or their folder: connections only with certificates."""
    allow_lossy: bool = False
    """Whether retransmission may be off although the transport may lose datagrams."""
    host: str | None = None
    ports: Iterable[int] | int | None = None
    resume: Mapping[Address, int] | None = None
    stores: bool = False
    trace: Recorder | Path | str | None = None
    trace_mode: str = ""

    def __post_init__(self) -> None:
        check_options(self)
        object.__setattr__(self, "ports", read_ports(self.ports))
        object.__setattr__(self, "seeds", tuple(self.seeds))
        if self.name is not None:
            # The level names the caller of join: __init__, join and this method lie between.
            warn_renamed("join(name=)", "durable_name=", stacklevel=5)
            object.__setattr__(self, "durable_name", self.durable_name or self.name)
        if not self.display_name:
            display_name = self.durable_name or default_display_name()
            object.__setattr__(self, "display_name", display_name)
        if self.state is not None and not isinstance(self.state, StateHooks):
            object.__setattr__(self, "state", StateHooks(self.state))
        if type(self.group) is not str or not self.group:
            raise ConfigError(f"group {self.group!r}: expected a name, the same for all members")
        if self.state is not None and not self.listen:
            raise ConfigError(
                "a member that does not listen keeps no state; omit state= or listen=False"
            )
        if self.stores and not self.durable_name:
            raise ConfigError("stores=True needs a durable member; pass durable_name=")
        if self.trace_mode or self.trace is not None:
            self._check_trace()
        if isinstance(self.transport, str):
            if self.transport not in TRANSPORTS:
                raise ConfigError(
                    f"transport {self.transport!r}: expected one of {', '.join(TRANSPORTS)}"
                )
            if self.tls is not None and self.transport != "tcp":
                raise ConfigError(
                    f"tls= with transport={self.transport!r}: certificates protect TCP connections"
                    " only; pass transport='tcp' too, or keys= in place of tls="
                )
        elif self.keys is not None or self.tls is not None:
            name, what = ("tls", "certificates") if self.keys is None else ("keys", "keys")
            raise ConfigError(
                f"an open transport has its own {what}: omit {name}, or name the transport"
            )
        elif (self.discover, self.host, self.ports) != (None, None, None) or self.seeds:
            raise ConfigError(
                "an open transport has its own address and discovery: omit discover, seeds, host"
                " and ports, or name the transport"
            )

    def _check_trace(self) -> None:
        from gapless.trace.recorder import (  # most members record nothing
            Recorder,
            parse_recording_mode,
        )

        if self.trace_mode:
            parse_recording_mode(self.trace_mode)
            if not isinstance(self.trace, (str, Path)):
                raise ConfigError(
                    "trace_mode= needs a folder as trace=; a Recorder has its own mode"
                )
        if not isinstance(self.trace, (str, Path, Recorder)):
            raise ConfigError(f"trace={self.trace!r}: expected the path of a folder, or a Recorder")

    def open(self, sink: DeliverySink) -> MemberHandle:
        """Open the transport and return a joining handle; opening may block for a moment."""
        config = read_config(self.config)
        self._check_loss(config)
        keys = GroupKeys(None)
        if isinstance(self.transport, str):
            keys = choose_keys(self)
            transport = self._open_transport(self.transport, keys)
        else:
            transport = self.transport
            check_open_transport(self, transport)
        try:
            credentials = choose_identity(self, keys, config)
        except BaseException:
            transport.close()
            raise
        log_protection(self, transport, keys)
        join: dict[str, Any] = {"state": self.state is not None}
        if self.durable_name:
            join.update(resume=self.resume, stores=self.stores)
        elif self.state is None and _may_found_early(config, transport):
            join["found_early_ns"] = FOUND_EARLY_NS
        try:
            return MemberHandle(
                self.group,
                transport,
                config,
                name=self.durable_name,
                display_name=self.display_name,
                node=self.node,
                join=join,
                rejoin=self.rejoin,
                sink=sink,
                trace=self._recorder(),
                keyring=keys.path,
                credentials=credentials,
            )
        except BaseException:
            transport.close()
            raise

    def _check_loss(self, config: Config) -> None:
        """Refuse a transport that may lose messages if nobody would send them again."""
        if not config.retransmits:
            how = (
                f"profile {config.profile!r}" if config.profile == "ordered" else "xmit_interval=0"
            )
            self.check_loss_allowed(self.transport, how)

    def check_loss_allowed(self, transport: Transport | str, how: str) -> None:
        """Refuse to switch retransmission off by ``how`` over a transport that may lose messages.

        Raises:
            ConfigError: ``transport`` may lose messages, and ``allow_lossy`` is false.
        """
        if isinstance(transport, str):
            may_lose, name = transport != "tcp", f"transport={transport!r} (UDP)"
        else:
            may_lose, name = transport.may_lose, f"the transport {type(transport).__name__}"
        if may_lose and not self.allow_lossy:
            raise ConfigError(
                f"{how} never resends a message, and {name} may lose messages; use"
                " transport='tcp', another profile, or allow_lossy=True"
            )

    def _recorder(self) -> Recorder | None:
        if isinstance(self.trace, (str, Path)):
            from gapless.trace.recorder import Recorder, parse_recording_mode

            return Recorder(self.trace, **parse_recording_mode(self.trace_mode or "full"))
        return self.trace

    def _open_transport(self, name: str, keys: GroupKeys) -> Transport:
        ports = PORTS if self.ports is None else self.ports
        discovery = read_discovery(self.discover, self.group, self.seeds)
        host = keys.choose_host(self.host, discovery)
        more: dict[str, Any] = {} if self.tls is None else {"tls": self.tls}
        return TRANSPORTS[name](host, ports, discovery=discovery, seal=keys.new_seal(), **more)


def _may_found_early(config: Config, transport: Transport) -> bool:
    """Return whether an answer to a join request takes milliseconds, so that silence means nobody.

    That holds for multicast on the local network, and for processes of this machine; over TCP only
    for the latter, because a lost SYN is repeated after a second. A member without multicast first
    reads the directory of this machine. A setting ``found_after`` of the user is kept.
    """
    if config.found_after_ns != SETTINGS["found_after"].default:
        return False
    discovery, own = transport.book.discovery, transport.locator
    if isinstance(transport, UdpMesh):
        if not discovery.sources or not all(
            isinstance(source, (Multicast, Directory)) or _are_seeds_here(source, own)
            for source in discovery.sources
        ):
            return False
        return isinstance(transport, UdpMulticast) or discovery.wait(FOUND_EARLY_NS / NS_PER_S)
    # Multicast finds nobody over TCP, so the other sources decide.
    sources = [source for source in discovery.sources if not isinstance(source, Multicast)]
    return (
        bool(sources)
        and _is_tcp(transport)
        and all(isinstance(source, Directory) or _are_seeds_here(source, own) for source in sources)
        and discovery.wait(FOUND_EARLY_NS / NS_PER_S)
        and all(_is_here(source, own) for source in sources)
    )


def _is_tcp(transport: Transport) -> bool:
    from gapless.transport.tcp.transport import TcpMesh  # members without TCP never need it

    return isinstance(transport, TcpMesh)


def _are_seeds_here(source: DiscoverySource, own: Locator) -> bool:
    """Return whether ``source`` has only known seeds, all on this machine."""
    known = type(source) is Seeds and bool(source.locate(time.monotonic_ns()))
    return known and _is_here(source, own)


def _is_here(source: DiscoverySource, own: Locator) -> bool:
    """Return whether all locators of ``source`` are ports of this machine."""
    found = source.locate(time.monotonic_ns())
    return all(one.ip.is_loopback or one.ip == own.ip for one in found)


def read_config(config: Config | Mapping[str, object] | str | Path | None) -> Config:
    """Return a config from a Config, a mapping of settings, or the path of a TOML file."""
    if config is None:
        return Config()
    if isinstance(config, Config):
        return config
    if isinstance(config, (str, Path)):
        return Config.load(config)
    try:
        return Config.make(**config)
    except TypeError:
        raise ConfigError(
            f"config={config!r}: expected a Config, a mapping of settings, or the path of a"
            " TOML file"
        ) from None


def read_discovery(
    discover: str | Discovery | None, group: str, seeds: Sequence[str] = ()
) -> Discovery:
    """Return the discovery of a discovery URL and of seeds, or the default without either."""
    if seeds:
        sources = Discovery.parse(f"seeds://{','.join(seeds)}", group=group).sources
        given = () if discover is None else read_discovery(discover, group).sources
        return Discovery((*sources, *given))
    if isinstance(discover, Discovery):
        return discover
    if discover is not None:
        return Discovery.parse(discover, group=group)
    defaults: list[DiscoverySource] = [Multicast(default_group(group))]
    if (directory := local_rendezvous()) is not None:
        defaults.append(Directory(directory, group=group))
    return Discovery(defaults)


def local_rendezvous() -> Path | None:
    """Return the directory where members of this user meet on this machine; None if not usable."""
    import tempfile  # slow to import

    path = Path(tempfile.gettempdir()).absolute() / f"gapless-{os.getuid()}"
    try:
        path.mkdir(mode=0o700, exist_ok=True)
        found = path.lstat()
    except OSError as error:
        log.warning("%s cannot be used for discovery: %s; pass discover= or seeds=", path, error)
        return None
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid() or found.st_mode & 0o022:
        log.warning(
            "%s is not used for discovery: other users can write to it; pass discover= or seeds=",
            path,
        )
        return None
    return path
