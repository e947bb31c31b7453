"""Checks of the options of ``join`` and of methods: a wrong type or value names the choices."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gapless.discovery import Discovery
from gapless.errors import ConfigError, GaplessError, LocalProtocolError, RemoteProtocolError
from gapless.group.timeouts import duration_ns
from gapless.identity import Address
from gapless.keys.identities import Identity
from gapless.keys.keyring import Keyring
from gapless.transport.tcp.tls_files import TlsFiles
from gapless.wire.primitives import NAME_MAX_BYTES, check_durable_name

if TYPE_CHECKING:
    from gapless.group.join_options import MemberOptions

_FLAGS = ("listen", "rejoin", "stores", "allow_lossy", "insecure")
_TEXTS = ("display_name", "durable_name", "trace_mode")
LOOPBACK_CHOICES = "True, False, or None for the setting loopback"
"""The values of the argument ``loopback`` of a send."""
_MAX_PORT, _MAX_NODE = 65535, (1 << 64) - 1


def check_options(options: MemberOptions) -> None:
    """Raise ConfigError for an option of a wrong type or with an impossible value."""
    if options.timeout is not None:
        try:
            duration_ns(options.timeout)
        except GaplessError:
            expected = 'seconds from 0, text such as "5s", or None for no limit'
            raise _wrong("timeout", options.timeout, expected) from None
    for name in _FLAGS:
        if type(value := getattr(options, name)) is not bool:
            raise _wrong(name, value, "True or False")
    for name in _TEXTS:
        if not isinstance(value := getattr(options, name), str):
            raise _wrong(name, value, "text")
    _check_keys(options)
    _check_tls(options.tls)
    _check_identity(options)
    _check_durable_name(options.durable_name or options.name or "")
    if options.host is not None and not isinstance(options.host, str):
        raise _wrong("host", options.host, "an address of this machine as text, or None")
    if type(options.min_members) is not int or options.min_members < 1:
        raise _wrong("min_members", options.min_members, "a number of members from 1")
    if options.node is not None and not (
        type(options.node) is int and 0 <= options.node <= _MAX_NODE
    ):
        raise _wrong("node", options.node, "a number from 0 to 2**64 - 1, or None")
    if options.discover is not None and not isinstance(options.discover, (str, Discovery)):
        raise _wrong("discover", options.discover, "a discovery URL, a Discovery, or None")
    if options.resume is not None and not _is_resume(options.resume):
        raise _wrong("resume", options.resume, "a mapping of addresses to seqnos, or None")
    seeds: Any = options.seeds
    if (
        isinstance(seeds, str)
        or not isinstance(seeds, Collection)
        or not all(isinstance(seed, str) for seed in seeds)
    ):
        raise _wrong("seeds", seeds, "a list such as ['host:7800']")
    if not isinstance(options.transport, str) and not hasattr(options.transport, "sockets"):
        raise _wrong("transport", options.transport, "the name of a transport, or an open one")


def _check_durable_name(name: str) -> None:
    try:
        check_durable_name(name)
    except RemoteProtocolError as error:
        expected = f"text of at most {NAME_MAX_BYTES} bytes in UTF-8, without control characters"
        raise _wrong("durable_name", name, f"{expected} ({error})") from None


def _check_keys(options: MemberOptions) -> None:
    if options.keys is None:
        return
    if not isinstance(options.keys, (str, Path, Keyring)):
        # The value is not shown: it may be a secret.
        raise ConfigError("keys=…: expected the path of a keyring file, a Keyring, or None")
    if not isinstance(options.keys, Keyring) and not str(options.keys).strip("\0 "):
        raise ConfigError("keys='': expected the path of a keyring file; omit keys= for no keys")
    if "\0" in str(options.keys):
        raise ConfigError("keys=…: a path has no NUL character")
    if options.insecure:
        raise ConfigError("keys= and insecure=True contradict each other: omit one of them")


def _check_tls(given: object) -> None:
    if given is None or isinstance(given, TlsFiles):
        return
    expected = "a folder with ca.pem, cert.pem and key.pem, a TlsFiles, or None"
    if not isinstance(given, (str, Path)) or not str(given).strip() or "\0" in str(given):
        raise _wrong("tls", given, expected)


def _check_identity(options: MemberOptions) -> None:
    given = options.identity
    if given is not None and not isinstance(given, (str, Path, Identity)):
        # The value is not shown: it may be a secret.
        raise ConfigError("identity=…: expected the path of an identity file, an Identity, or None")
    if isinstance(given, str) and not given.strip("\0 "):
        raise ConfigError("identity='': expected the path of an identity file, or None")


def _is_resume(marks: object) -> bool:
    """Return whether ``marks`` maps addresses to seqnos."""
    return isinstance(marks, Mapping) and all(
        isinstance(member, Address) and type(seqno) is int and seqno >= 0
        for member, seqno in marks.items()
    )


def read_ports(ports: Any) -> list[int] | None:
    """Return the ports to try; None for the default."""
    if ports is None:
        return None
    listed = [ports] if isinstance(ports, int) else ports
    if isinstance(listed, Iterable) and not isinstance(listed, (str, bytes)):
        found = list(listed)
        if found and all(type(port) is int and 0 <= port <= _MAX_PORT for port in found):
            return found
    raise _wrong(
        "ports",
        ports,
        "a port such as 7800, a range such as range(7800, 7900), 0 for any free port, or None",
    )


def _wrong(name: str, value: object, expected: str) -> ConfigError:
    return ConfigError(f"{name}={value!r}: expected {expected}")


# Arguments of methods


def wrong_argument(name: str, value: object, expected: str) -> LocalProtocolError:
    """Return the error of an argument of a wrong type, or with an impossible value."""
    return LocalProtocolError(f"{name}={value!r}: expected {expected}")


def check_member_count(count: object) -> None:
    """Raise LocalProtocolError unless ``count`` is a number of members."""
    if type(count) is not int or count < 0:
        raise wrong_argument("count", count, "a number of members")


def check_handler(handler: object) -> None:
    """Raise LocalProtocolError unless ``handler`` can be called with a request."""
    if not callable(handler):
        raise wrong_argument(
            "handler", handler, "a function that takes a Request and returns the reply as bytes"
        )


def check_marks(name: str, marks: object) -> None:
    """Raise LocalProtocolError unless ``marks`` maps addresses to seqnos."""
    if not _is_resume(marks):
        raise wrong_argument(name, marks, "a mapping of addresses to seqnos")
