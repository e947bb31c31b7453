"""Checks of this machine: each tries one need of a group, and returns a finding with advice.

Verdicts: ``ok``; ``note`` (a group works, but an option is not available); ``warning`` (a group
works worse than possible); ``bad`` (a group does not work).
"""

from __future__ import annotations

import os
import platform
import resource
import socket
import sys
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from functools import partial
from importlib.util import find_spec
from ipaddress import IPv6Address
from pathlib import Path
from struct import Struct
from typing import Any, NamedTuple

from gapless.compilation import compiled_modules
from gapless.discovery import Multicast, default_group
from gapless.errors import ConfigError, GaplessError
from gapless.group.group_keys import INSECURE_VARIABLE, insecure_by_environment
from gapless.keys import keyring
from gapless.keys.ciphers import can_encrypt, encryption_steps, plain_problem
from gapless.keys.identities import (
    ENVIRONMENT_VARIABLE as IDENTITY_VARIABLE,
    Identity,
    default_identity_path,
)
from gapless.keys.secret_files import KeyringError, exists
from gapless.transport import socket_options
from gapless.transport.base import RECEIVE_BUFFER_BYTES
from gapless.transport.udp import PORTS
from gapless.units import format_count, format_size

PROBE_GROUP = "gapless doctor"
"""The name of the group that the checks use."""
MIN_VALID_S = 3 * 86_400
"""How long a certificate should still be valid: later, members refuse its connections."""
MIN_OPEN_FILES = 256
"""Minimum number of open files that groups and their connections need."""

_SIOCGIFADDR, _SIOCGIFFLAGS = 0x8915, 0x8913
_UP, _LOOPBACK, _MULTICAST = 0x1, 0x8, 0x1000
_FLAGS = Struct("16xH")


class DoctorFinding(NamedTuple):
    """The result of one check."""

    check: str
    verdict: str
    found: str
    advice: str = ""


class SecurityFiles(NamedTuple):
    """The files that members would use; None for those of the environment and of this user."""

    keys: Path | None = None
    identity: Path | None = None
    tls: Path | None = None
    """The folder of the certificates; None without."""


def run_checks(
    host: str | None = None, ports: int | range | None = None, files: SecurityFiles | None = None
) -> list[DoctorFinding]:
    """Run every check; an error in one check does not stop the others."""
    files = files or SecurityFiles()
    chosen = host or socket_options.default_host()
    checks: list[tuple[str, Callable[[], DoctorFinding]]] = [
        ("python", python),
        ("compiled", compiled),
        ("interfaces", interfaces),
        ("address", lambda: address(chosen)),
        ("group of two", lambda: group_of_two(chosen)),
        ("multicast, IPv4", lambda: multicast(4, chosen)),
        ("multicast, IPv6", lambda: multicast(6)),
        ("receive buffer", lambda: buffer("receive", socket.SO_RCVBUF, "rmem_max")),
        ("send buffer", lambda: buffer("send", socket.SO_SNDBUF, "wmem_max")),
        ("offload", offload),
        ("ports", lambda: free_ports(chosen, PORTS if ports is None else ports)),
        ("meeting place", rendezvous),
        ("keys", lambda: keys(files.keys)),
        ("identity", lambda: identity(files.identity, files.keys)),
        *([] if files.tls is None else [("certificates", partial(certificates, files.tls))]),
        ("open files", open_files),
        ("clock", clock),
        ("processors", processors),
        ("java", java),
        ("spark", spark),
        ("extras", extras),
    ]
    findings = []
    for name, check in checks:
        try:
            findings.append(check())
        except (OSError, GaplessError) as error:
            findings.append(
                DoctorFinding(
                    name,
                    "bad",
                    str(error),
                    "fix the cause of this error, then run gapless doctor again",
                )
            )
    return findings


def python() -> DoctorFinding:
    """Return the version of Python and the system."""
    system = f"{platform.system()} {platform.release()}, {platform.machine()}"
    found = f"Python {platform.python_version()} on {system}"
    if sys.platform != "linux":
        return DoctorFinding(
            "python",
            "note",
            found,
            "Gapless is tested on Linux; elsewhere plain socket calls are used",
        )
    return DoctorFinding("python", "ok", found)


def compiled() -> DoctorFinding:
    """Return how many modules run compiled."""
    if modules := compiled_modules():
        return DoctorFinding("compiled", "ok", f"{len(modules)} modules, by mypyc")
    return DoctorFinding(
        "compiled",
        "note",
        "no module: everything runs in pure Python",
        "in a compiled wheel the state machine takes less processor time; docs/start/install.md"
        " says how to build one",
    )


# The network


class NetworkInterface(NamedTuple):
    """One interface of this machine that is up."""

    name: str
    addresses: tuple[str, ...]
    loopback: bool
    multicast: bool


def list_interfaces() -> list[NetworkInterface]:
    """Return the interfaces that are up."""
    sixes = _ipv6_addresses()
    found = []
    for _, name in socket.if_nameindex():
        flags = _ioctl(name, _SIOCGIFFLAGS)
        number = 0 if flags is None else _FLAGS.unpack_from(flags)[0]
        if not number & _UP:
            continue
        four = _ioctl(name, _SIOCGIFADDR)
        fours = [] if four is None else [socket.inet_ntoa(four[20:24])]
        addresses = (*fours, *sixes.get(name, ()))
        found.append(
            NetworkInterface(name, addresses, bool(number & _LOOPBACK), bool(number & _MULTICAST))
        )
    return found


def _ioctl(name: str, request: int) -> bytes | None:
    if sys.platform != "linux":
        return None
    from fcntl import ioctl

    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe, suppress(OSError):
        answer: bytes = ioctl(probe, request, name.encode()[:15].ljust(256, b"\0"))
        return answer
    return None


def _ipv6_addresses() -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    with suppress(OSError):
        for line in Path("/proc/net/if_inet6").read_text(encoding="ascii").splitlines():
            digits, *_, name = line.split()
            found.setdefault(name, []).append(str(IPv6Address(bytes.fromhex(digits))))
    return found


def _describe(interface: NetworkInterface) -> str:
    addresses = ", ".join(interface.addresses) or "no address"
    return f"{interface.name} ({addresses}{', multicast' if interface.multicast else ''})"


def interfaces() -> DoctorFinding:
    """Check which interfaces are up."""
    found = list_interfaces()
    shown = "; ".join(map(_describe, found))
    if not any(one.addresses for one in found):
        return DoctorFinding(
            "interfaces", "bad", shown or "none is up", "bring an interface up, at least lo"
        )
    if all(one.loopback for one in found if one.addresses):
        return DoctorFinding(
            "interfaces",
            "warning",
            shown,
            "only loopback: members on other machines are out of reach",
        )
    return DoctorFinding("interfaces", "ok", shown)


def address(host: str) -> DoctorFinding:
    """Check which address members use, and the size of frames there."""
    from gapless.locator import Locator

    with socket_options.bind(host, [0]) as probe:
        locator = Locator.from_sockaddr(probe.getsockname())
        frame = format_size(socket_options.path_frame_bytes(locator))
    found = f"{host}, frames of {frame}"
    if locator.ip.is_loopback:
        return DoctorFinding(
            "address", "note", found, "reaches this machine only; choose another address with host="
        )
    return DoctorFinding("address", "ok", found)


def group_of_two(host: str) -> DoctorFinding:
    """Check that two members find each other over UDP, and that a message arrives."""
    from gapless import blocking

    quick = {"found_after": "100ms", "join_interval": "20ms"}
    with socket_options.bind(host, [0]) as one, socket_options.bind(host, [0]) as two:
        ports = one.getsockname()[1], two.getsockname()[1]
    where = f"[{host}]" if ":" in host else host
    seeds = f"seeds://{where}:{ports[0]},{where}:{ports[1]}"
    start_s = time.monotonic()
    options: dict[str, Any] = {
        "discover": seeds,
        "host": host,
        "config": quick,
        "transport": "udp",
        "timeout": 10,
        "keys": keyring.Keyring.new(),  # of this check alone; nothing is written
    }
    with (
        blocking.join(PROBE_GROUP, ports=ports[0], **options) as first,
        blocking.join(PROBE_GROUP, ports=ports[1], **options) as second,
    ):
        first.wait_for_members(2, timeout=10)
        met_ms = (time.monotonic() - start_s) * 1000
        start_s = time.monotonic()
        second.send(b"are you there?")
        first.receive(timeout=10)
        took_ms = (time.monotonic() - start_s) * 1000
    return DoctorFinding(
        "group of two", "ok", f"met in {met_ms:.0f} ms on {host}, a message took {took_ms:.1f} ms"
    )


def multicast(family: int, host: str = "") -> DoctorFinding:
    """Check that a multicast group loops datagrams back on the interface of ``host``."""
    name = f"multicast, IPv{family}"
    group = Multicast(default_group(PROBE_GROUP, 6 if family == 6 else 4), port=_free_udp_port())
    if socket_options.multicast_loops_back(group, host):
        return DoctorFinding(name, "ok", f"{group.address} loops datagrams back")
    why = (
        "; ".join(problem.last for problem in group.problems.of(group.name))
        or "no datagram came back"
    )
    return DoctorFinding(
        name,
        "note",
        f"{group.address} does not work: {why}",
        "not needed: members meet in a directory on one machine, or by discover='seeds://…'"
        " (docs/guides/discovery.md)",
    )


def _free_udp_port() -> int:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def buffer(what: str, option: int, sysctl: str) -> DoctorFinding:
    """Check the size of the socket buffer that the kernel grants."""
    name = f"{what} buffer"
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        with suppress(OSError):
            probe.setsockopt(socket.SOL_SOCKET, option, RECEIVE_BUFFER_BYTES)
        granted_bytes = probe.getsockopt(socket.SOL_SOCKET, option) // (
            2 if sys.platform == "linux" else 1
        )
    limit = _read(f"/proc/sys/net/core/{sysctl}")
    found = f"asked for {format_size(RECEIVE_BUFFER_BYTES)}, granted {format_size(granted_bytes)}"
    found += f" (net.core.{sysctl} = {limit})" if limit else ""
    if granted_bytes >= RECEIVE_BUFFER_BYTES:
        return DoctorFinding(name, "ok", found)
    advice = f"bursts are limited to this size: sysctl -w net.core.{sysctl}={RECEIVE_BUFFER_BYTES}"
    return DoctorFinding(name, "warning", found, advice)


def _read(path: str) -> str:
    with suppress(OSError):
        return Path(path).read_text(encoding="utf-8").strip()
    return ""


def offload() -> DoctorFinding:
    """Check whether one system call can send, and receive, many datagrams."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        able = {
            "UDP_SEGMENT": socket_options.supports_gso(probe),
            "UDP_GRO": socket_options.enable_gro(probe),
        }
    found = ", ".join(f"{name} {'yes' if can else 'no'}" for name, can in able.items())
    if all(able.values()):
        return DoctorFinding("offload", "ok", found)
    return DoctorFinding(
        "offload", "note", found, "slower: one call for each datagram; Linux 5.0 and later has both"
    )


def free_ports(host: str, ports: int | range) -> DoctorFinding:
    """Check how many of the ports that members try are free."""
    tried: Iterable[int] = [ports] if isinstance(ports, int) else ports
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    used = []
    for port in tried:
        with socket.socket(family, socket.SOCK_DGRAM) as probe:
            try:
                probe.bind((host, port))
            except OSError:
                used.append(port)
    total = len(list(tried))
    found = f"{total - len(used)} of {total} are free on {host}" + (
        f"; in use: {_sample(used)}" if used else ""
    )
    if len(used) == total:
        return DoctorFinding("ports", "bad", found, "choose other ports, or 0 for any free port")
    return DoctorFinding("ports", "ok", found)


def _sample(ports: list[int]) -> str:
    return ", ".join(map(str, ports[:8])) + (" …" if len(ports) > 8 else "")


def rendezvous() -> DoctorFinding:
    """Check whether members on this machine can meet in a directory."""
    from gapless.group.join_options import local_rendezvous as find

    found = find()
    if found is None:
        advice = (
            "use discover='seeds://127.0.0.1:7800-7810', or make the folder for temporary files"
            " writable for this user only"
        )
        return DoctorFinding(
            "meeting place", "warning", "members of this machine cannot meet in a directory", advice
        )
    return DoctorFinding(
        "meeting place", "ok", f"{found}, for members of this user on this machine"
    )


# Keys, identities and certificates


def keys(given: Path | None = None) -> DoctorFinding:
    """Check the keyring ``given``, or that of this user."""
    try:
        if given is None and insecure_by_environment():
            return DoctorFinding(
                "keys",
                "warning",
                f"{INSECURE_VARIABLE} is set: groups have no keys, and everybody who reaches a"
                " member can take part",
                f"unset {INSECURE_VARIABLE}, and run gapless keys new",
            )
        path = given or keyring.default_path()
        if not _is_named(given, keyring.ENVIRONMENT_VARIABLE) and not exists(path):
            return _local_keys(path)
        found = keyring.Keyring.read(path)
    except KeyringError as error:
        return DoctorFinding("keys", "bad", error.problem, error.advice)
    except ConfigError as error:
        return DoctorFinding("keys", "bad", str(error), "correct the variable")
    shown = (
        f"ring {found.ring.label} in {path}, {format_count(len(found.keys), 'key')},"
        f" {found.sealing_key.label} seals"
    )
    if problem := plain_problem(found.ring):
        return DoctorFinding("keys", "warning", f"{shown}; {problem}", encryption_steps(path))
    if found.new_keys:
        return DoctorFinding(
            "keys",
            "note",
            f"{shown}, and the newer key {found.new_keys[-1].label} is open: a rotation was not"
            " complete when this file was copied",
            f"if a member stays alone, the others may have retired {found.sealing_key.label}: copy"
            " the newest keyring to this machine, and compare the files with gapless keys check",
        )
    return DoctorFinding("keys", "ok", shown)


def _local_keys(path: Path) -> DoctorFinding:
    """Return the finding of a user without a keyring of an operator in ``path``."""
    local = keyring.local_path()
    found = f"no keyring in {path}: groups stay on this machine, with the keys of {local}"
    advice = "to reach other machines run gapless keys new, and copy the file to every machine"
    if exists(local) and (problem := plain_problem(keyring.Keyring.read(local).ring)):
        return DoctorFinding(
            "keys", "note", f"{found}; {problem}", f"{encryption_steps(local)}; {advice}"
        )
    return DoctorFinding("keys", "note", found, advice)


def identity(given: Path | None = None, keys: Path | None = None) -> DoctorFinding:
    """Check the identity ``given``, or that of this user, and which groups allow the identity."""
    try:
        path = given or default_identity_path()
    except KeyringError as error:  # without a home directory
        return DoctorFinding("identity", "note", error.problem, error.advice)
    try:
        allowed = _allowed_identities(keys)
        groups = ", ".join(dict.fromkeys(each.group for each in allowed))
        if not _is_named(given, IDENTITY_VARIABLE) and not exists(path):
            found = f"no identity in {path}"
            if not groups:
                return DoctorFinding("identity", "ok", f"{found}, and no group here needs one")
            return DoctorFinding(
                "identity",
                "note",
                f"{found}; the keyring names the identities that may join {groups}",
                "to join these groups run gapless keys identity, and let the operator allow its"
                " public key",
            )
        own = Identity.read(path)
    except KeyringError as error:
        return DoctorFinding("identity", "bad", error.problem, error.advice)
    except ConfigError as error:
        problem, _, advice = str(error).partition(": run ")
        return DoctorFinding("identity", "bad", problem, f"run {advice}" if advice else problem)
    public = own.public_key.hex()
    may = {each.group: each.certificate for each in allowed if each.certificate.node == own.node}
    missing = sorted({each.group for each in allowed} - may.keys())
    shown = [f"{group} (as {one.name!r}, {one.role})" for group, one in sorted(may.items())]
    found = f"{public} in {path}, allowed in {', '.join(shown) or 'no group of the keyring'}"
    if not missing:
        return DoctorFinding("identity", "ok", found)
    return DoctorFinding(
        "identity",
        "note",
        f"{found}; not allowed in {', '.join(missing)}",
        f"to join, let the operator run gapless keys allow NAME {public} --group"
        f" {missing[0]}, and copy the keyring to every member",
    )


def _is_named(given: Path | None, variable: str) -> bool:
    """Return whether the user has named a file, so that the file must exist."""
    return given is not None or bool(os.environ.get(variable))


def _allowed_identities(given: Path | None) -> tuple[keyring.AllowedIdentity, ...]:
    """Return the identities in the keyring of this user; none if there is no usable keyring."""
    with suppress(ConfigError):  # the check of the keys has the error
        return keyring.Keyring.read(given or keyring.default_path()).identities
    return ()


def certificates(folder: Path) -> DoctorFinding:
    """Check the certificates in ``folder`` as other members check them."""
    from gapless.transport.tcp.tls import Certificates
    from gapless.transport.tcp.tls_files import TlsFiles

    try:
        found = Certificates(TlsFiles.of(folder))
    except ConfigError as error:
        problem, _, advice = str(error).partition("; ")
        return DoctorFinding("certificates", "bad", problem, advice or "name another folder")
    shown = f"{found.files.cert} is valid until {found.expires}"
    if found.expires_s - time.time() < MIN_VALID_S:
        return DoctorFinding(
            "certificates",
            "warning",
            shown,
            "replace the certificate soon (docs/guides/operating/certificates.md)",
        )
    return DoctorFinding("certificates", "ok", shown)


# The machine


def open_files() -> DoctorFinding:
    """Check how many files a process may open."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    found = "no limit" if soft == resource.RLIM_INFINITY else f"at most {soft:,}"
    if soft != resource.RLIM_INFINITY and soft < MIN_OPEN_FILES:
        return DoctorFinding(
            "open files", "warning", found, "run ulimit -n 1024 before starting members"
        )
    return DoctorFinding("open files", "ok", found)


def clock() -> DoctorFinding:
    """Check the resolution of the clock, and how late short sleeps end."""
    resolution_ns = time.get_clock_info("monotonic").resolution * 1e9
    late_ms = 0.0
    for _ in range(20):
        start_s = time.monotonic()
        time.sleep(0.001)
        late_ms = max(late_ms, (time.monotonic() - start_s) * 1000 - 1)
    source = _read("/sys/devices/system/clocksource/clocksource0/current_clocksource")
    found = (
        f"{f'{source}, ' if source else ''}resolution {resolution_ns:.0f} ns,"
        f" waits of 1 ms end {late_ms:.1f} ms late"
    )
    if time.time() < 1_700_000_000:
        return DoctorFinding(
            "clock",
            "bad",
            f"{found}; the date is before 2023",
            "set the clock: a new incarnation is recognized by a later time",
        )
    if late_ms > 50:
        return DoctorFinding(
            "clock",
            "warning",
            found,
            "the machine is busy: members may be suspected; raise suspect_after",
        )
    return DoctorFinding("clock", "ok", found)


def processors() -> DoctorFinding:
    """Check how busy the processors are."""
    cores, load = os.cpu_count() or 1, os.getloadavg()[0]
    found = f"{cores}, load {load:.1f}"
    if load > 2 * cores:
        return DoctorFinding(
            "processors",
            "warning",
            found,
            "the load exceeds the processors: measurements will be low and uneven",
        )
    return DoctorFinding("processors", "ok", found)


# Spark


def java() -> DoctorFinding:
    """Check for Java, which only Spark needs."""
    from pyspark_gapless.runtime.java import JavaMissingError, find_java

    try:
        found = find_java()
    except JavaMissingError as error:
        return DoctorFinding(
            "java", "note", error.problem, f"only Spark needs Java: {error.advice}"
        )
    shown = f"{found.program}, version {found.version}, found by {found.found_in}"
    if found.rejected:
        shown = f"{shown}; skipped: {'; '.join(found.rejected)}"
        return DoctorFinding("java", "note", shown, "fix or remove the skipped installations")
    return DoctorFinding("java", "ok", shown)


def spark() -> DoctorFinding:
    """Check for a Spark that the data pipeline can use, and its master."""
    from pyspark_gapless.runtime.spark_config import choose_master, external_settings
    from pyspark_gapless.runtime.spark_install import SparkMissingError, find_installation

    try:
        spark_install = find_installation()
        master = choose_master(None, external_settings(spark_install.home, os.environ), os.environ)
    except SparkMissingError as error:
        return DoctorFinding(
            "spark", "note", error.problem, f"only the data pipeline needs Spark: {error.advice}"
        )
    except ConfigError as error:
        return DoctorFinding(
            "spark", "note", str(error), "correct the setting, or unset it to run on this machine"
        )
    packages = ", ".join(f"{name} {version}" for name, version in spark_install.packages.items())
    reach = (
        "" if spark_install.has_connect else "; no Spark Connect (pip install 'gapless[connect]')"
    )
    return DoctorFinding(
        "spark",
        "ok",
        f"PySpark {spark_install.version} in {spark_install.home}, with {packages};"
        f" runs on {master.url}{reach}",
    )


def extras() -> DoctorFinding:
    """Check which optional packages are installed."""
    wanted = {
        "cryptography": "encryption of groups and spools, identities",
        "pyspark": "the data pipeline",
        "opentelemetry": "metrics",
    }
    uses: dict[bool, list[str]] = {True: [], False: []}
    for name, use in wanted.items():
        uses[find_spec(name) is not None].append(f"{name} ({use})")
    found = "; ".join(
        f"{word}: {', '.join(uses[there]) or 'none'}"
        for word, there in (("installed", True), ("missing", False))
    )
    if can_encrypt():
        return DoctorFinding("extras", "ok", found)
    return DoctorFinding(
        "extras",
        "note",
        f"{found}; without cryptography new keys authenticate datagrams and do not encrypt them",
        "run pip install 'gapless[secure]' to encrypt",
    )
