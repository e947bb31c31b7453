"""The options of ``join``, and the handle that they describe.

Without discovery options, members find each other by multicast and, on one machine, by a directory
that only this user can write to, under the system's folder for temporary files. A first program
thus needs no configuration, no privileges and no network.
"""

from __future__ import annotations

import os
import socket
import stat
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gapless.config import Config
from gapless.discovery import Directory, Discovery, Multicast, default_group
from gapless.errors import ConfigError
from gapless.group.deprecated import warn_renamed
from gapless.group.timeouts import Duration, duration_ns
from gapless.logger import log
from gapless.runtime.handle import MemberHandle
from gapless.transport.udp import PORTS, UdpMesh, UdpMulticast, open_udp

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from gapless.discovery import DiscoverySource
    from gapless.identity import Address
    from gapless.runtime.delivery_queue import DeliverySink
    from gapless.trace.recorder import Recorder
    from gapless.transport.base import Transport


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
    """The application's functions that provide its state and replace it."""

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


_member_numbers = count(1)


def default_display_name() -> str:
    """Return the display name of a member that was given none: host, pid, number in the process."""
    return f"{socket.gethostname().partition('.')[0]}-{os.getpid()}-{next(_member_numbers)}"


@dataclass(frozen=True, kw_only=True)
class MemberOptions:
    """The options of ``join``, checked."""

    group: str
    timeout: Duration | None = None
    """How long joining may take; None: as long as it takes."""
    discover: str | Discovery | None = None
    seeds: Sequence[str] = ()
    transport: str | Transport = "auto"
    config: Config | Mapping[str, object] | str | Path | None = None
    display_name: str = ""
    durable_name: str = ""
    name: str | None = None
    state: Any = None
    node: int | None = None
    listen: bool = True
    rejoin: bool = True
    host: str | None = None
    ports: Iterable[int] | int | None = None
    resume: Mapping[Address, int] | None = None
    stores: bool = False
    trace: Recorder | Path | str | None = None
    trace_mode: str = ""

    def __post_init__(self) -> None:
        if self.timeout is not None:
            duration_ns(self.timeout)  # raises if it is not a duration
        if self.name is not None:
            # The level names the caller of join: __init__, join and this method lie between.
            warn_renamed("join(name=)", "durable_name=", stacklevel=5)
            object.__setattr__(self, "durable_name", self.durable_name or self.name)
        if not self.display_name:
            display_name = self.durable_name or default_display_name()
            object.__setattr__(self, "display_name", display_name)
        if self.state is not None and not isinstance(self.state, StateHooks):
            object.__setattr__(self, "state", StateHooks(self.state))
        if isinstance(self.seeds, str):
            raise ConfigError(f"seeds={self.seeds!r}: expected a list such as ['host:7800']")
        if type(self.group) is not str or not self.group:
            raise ConfigError(f"group {self.group!r}: expected a name, the same for all members")
        if self.state is not None and not self.listen:
            raise ConfigError(
                "a member that does not listen keeps no state: omit state= or listen=False"
            )
        if self.stores and not self.durable_name:
            raise ConfigError("stores=True needs a durable_name: give this member one")
        if self.trace_mode or self.trace is not None:
            self._check_trace()
        if isinstance(self.transport, str):
            if self.transport not in TRANSPORTS:
                raise ConfigError(
                    f"transport {self.transport!r}: expected one of {', '.join(TRANSPORTS)}"
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
                    "trace_mode is for the folder of trace=; a Recorder has its own mode"
                )
        if not isinstance(self.trace, (str, Path, Recorder)):
            raise ConfigError(f"trace={self.trace!r}: expected the path of a folder, or a Recorder")

    def open(self, sink: DeliverySink) -> MemberHandle:
        """Open the transport and return a handle that is joining; this may block for a moment."""
        config = read_config(self.config)
        transport = (
            self.transport
            if not isinstance(self.transport, str)
            else self._open_transport(self.transport)
        )
        join: dict[str, Any] = {"state": self.state is not None}
        if self.durable_name:
            join.update(resume=self.resume, stores=self.stores)
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
            )
        except BaseException:
            transport.close()
            raise

    def _recorder(self) -> Recorder | None:
        if isinstance(self.trace, (str, Path)):
            from gapless.trace.recorder import Recorder, parse_recording_mode

            return Recorder(self.trace, **parse_recording_mode(self.trace_mode or "full"))
        return self.trace

    def _open_transport(self, name: str) -> Transport:
        ports = PORTS if self.ports is None else self.ports
        return TRANSPORTS[name](
            self.host, ports, discovery=read_discovery(self.discover, self.group, self.seeds)
        )


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
            f"config={config!r}: expected a Config, settings by name, or the path of a TOML file"
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
    """Return the directory where this user's local members meet; None if it is not usable."""
    import tempfile  # slow to import

    path = Path(tempfile.gettempdir()).absolute() / f"gapless-{os.getuid()}"
    try:
        path.mkdir(mode=0o700, exist_ok=True)
        found = path.lstat()
    except OSError as error:
        log.warning("local discovery in %s is off: %s; use discover=", path, error)
        return None
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid() or found.st_mode & 0o022:
        log.warning(
            "%s is not used: others can write to it; use discover=",
            path,
        )
        return None
    return path
