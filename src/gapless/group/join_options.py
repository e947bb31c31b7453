"""From the options of ``join`` to a handle.

Where nothing is said of discovery, members find each other by multicast, and on one machine by a
directory that only this user can write to, under the system's folder for temporary files. So a
first program needs neither configuration nor rights, nor a network.
"""

from __future__ import annotations

import os
import stat
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypedDict

from gapless.config import Config
from gapless.discovery import Directory, Discovery, Multicast, default_group
from gapless.errors import ConfigError
from gapless.logger import log
from gapless.runtime.handle import MemberHandle
from gapless.transport.udp import PORTS, UdpMesh, UdpMulticast, open_udp

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from gapless.discovery import DiscoverySource
    from gapless.group.timeouts import Duration
    from gapless.identity import Address
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
"""The transports that can be named, and what opens each."""


class StateHooks:
    """How the application gives its state to new members, and takes it when it is new itself."""

    def __init__(self, hooks: Any) -> None:
        get: Any = getattr(hooks, "get_state", None)
        take: Any = getattr(hooks, "set_state", None)
        if isinstance(hooks, tuple) and len(hooks) == 2:
            get, take = hooks
        self.get: Callable[[], bytes] = get
        self.set: Callable[[bytes], object] = take
        if not (callable(get) and callable(take)):
            raise ConfigError(
                f"state={hooks!r}: expected an object with get_state() -> bytes and set_state(bytes), or a pair of"
                " such functions"
            )


class JoinOptions(TypedDict, total=False):
    """What ``join`` takes beside the name of the group: docs/channel.md has a table of it."""

    timeout: Duration | None
    discover: str | Discovery | None
    transport: str | Transport
    config: Config | Mapping[str, object] | str | Path | None
    name: str
    state: Any
    node: int | None
    listen: bool
    rejoin: bool
    host: str | None
    ports: Iterable[int] | int | None
    resume: Mapping[Address, int] | None
    stores: bool
    trace: Recorder | Path | str | None
    trace_mode: str


@dataclass(frozen=True, kw_only=True)
class MemberOptions:
    """What a member is made from."""

    group: str
    discover: str | Discovery | None = None
    transport: str | Transport = "auto"
    config: Config | Mapping[str, object] | str | Path | None = None
    name: str = ""
    state: StateHooks | None = None
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
        if type(self.group) is not str or not self.group:
            raise ConfigError(f"group {self.group!r}: expected a name, the same for all members")
        if self.state is not None and not self.listen:
            raise ConfigError(
                "a member that does not listen has no state to keep: leave state or listen=False out"
            )
        if self.stores and not self.name:
            raise ConfigError(
                "a member without a durable name stores nothing for its next life: give it a name"
            )
        if self.trace_mode or self.trace is not None:
            self._check_trace()
        if isinstance(self.transport, str):
            if self.transport not in TRANSPORTS:
                raise ConfigError(
                    f"transport {self.transport!r}: expected one of {', '.join(TRANSPORTS)}"
                )
        elif (self.discover, self.host, self.ports) != (None, None, None):
            raise ConfigError(
                "a transport that is given brings its own place and discovery: leave discover, host and ports out, or"
                " name the transport"
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
                    "trace_mode says how to record in the folder of trace=; a Recorder knows its own mode"
                )
        if not isinstance(self.trace, (str, Path, Recorder)):
            raise ConfigError(f"trace={self.trace!r}: expected the path of a folder, or a Recorder")

    def open(self, woken: Callable[[], None]) -> MemberHandle:
        """Return a handle that has begun to look for the group; this may take a moment."""
        config = read_config(self.config)
        transport = (
            self.transport
            if not isinstance(self.transport, str)
            else self._open_transport(self.transport)
        )
        join: dict[str, Any] = {"state": self.state is not None}
        if self.name:
            join.update(resume=self.resume, stores=self.stores)
        try:
            return MemberHandle(
                self.group,
                transport,
                config,
                name=self.name,
                node=self.node,
                join=join,
                rejoin=self.rejoin,
                on_ready=woken,
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
            self.host, ports, discovery=read_discovery(self.discover, self.group)
        )


def read_config(config: Config | Mapping[str, object] | str | Path | None) -> Config:
    """Return the config that was given in one of its forms: itself, knobs by name, or a TOML file."""
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
            f"config={config!r}: expected a Config, knobs by name, or the path of a TOML file"
        ) from None


def read_discovery(discover: str | Discovery | None, group: str) -> Discovery:
    """Return the discovery that was given, or the one that needs no configuration."""
    if isinstance(discover, Discovery):
        return discover
    if discover is not None:
        return Discovery.parse(discover, group=group)
    sources: list[DiscoverySource] = [Multicast(default_group(group))]
    if (directory := local_rendezvous()) is not None:
        sources.append(Directory(directory, group=group))
    return Discovery(sources)


def local_rendezvous() -> Path | None:
    """Return the directory where members of this user on this machine meet; None if it cannot be had."""
    import tempfile  # it brings much with it

    path = Path(tempfile.gettempdir()).absolute() / f"gapless-{os.getuid()}"
    try:
        path.mkdir(mode=0o700, exist_ok=True)
        found = path.lstat()
    except OSError as error:
        log.warning("members of this machine do not meet in %s: %s; say discover=", path, error)
        return None
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid() or found.st_mode & 0o022:
        log.warning(
            "%s is not a directory that this user alone can write to, and is not used; say discover=",
            path,
        )
        return None
    return path
