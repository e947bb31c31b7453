"""TCP streams inside TLS: only members with certificates, and nothing is lost or repeated."""

from __future__ import annotations

import logging
import socket
import ssl
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from random import Random
from typing import Any

import pytest

from gapless.errors import ConfigError
from gapless.locator import Locator
from gapless.protocol.ready import Transmit
from gapless.transport import TcpMesh
from gapless.transport.base import TURN_BYTES
from gapless.transport.tcp import tls, transport
from gapless.transport.tcp.link import MAX_DATAGRAM_BYTES
from gapless.transport.tcp.tls_files import TlsFiles
from tests.support.certificates import BOTH, SERVER_ONLY, Authority, stranger_context
from tests.transport.tcp.test_transport import PATIENCE_S, B, Net, cut, exchange_while_cut, link

NAMES = ("ca.pem", "cert.pem", "key.pem")


@pytest.fixture
def net() -> Iterator[Net]:
    made = Net()
    yield made
    for one in made.all:
        one.close()


@pytest.fixture
def authority() -> Authority:
    return Authority()


@pytest.fixture
def folder(authority: Authority, tmp_path: Path) -> Path:
    return authority.write(tmp_path / "tls")


def session(one: TcpMesh, other: TcpMesh) -> Any:
    return link(one, other).stream._tls


def peer_certificate(one: TcpMesh, other: TcpMesh) -> bytes:
    """Return the certificate that ``other`` has shown."""
    found: bytes = session(one, other).getpeercert(binary_form=True)
    return found


def exchange(net: Net, one: TcpMesh, other: TcpMesh) -> None:
    before = len(net.got[one]), len(net.got[other])
    for mesh in (one, other):
        mesh.send([Transmit(None, b"a datagram")])
    net.until(lambda: (len(net.got[one]), len(net.got[other])) > before)
    net.settle()


def certificate_bytes(folder: Path) -> bytes:
    return ssl.PEM_cert_to_DER_cert((folder / "cert.pem").read_text())


@pytest.mark.parametrize("host", ["127.0.0.1", "::1"])
def test_datagrams_of_every_size_arrive_as_they_were(net: Net, host: str, folder: Path) -> None:
    a, b = net.open(host, tls=folder), net.open(host, tls=folder)
    net.meet(a, b)
    rng = Random(1)
    wanted: dict[TcpMesh, list[bytes]] = {a: [], b: []}
    for _ in range(80):
        size = rng.choice([1, 40, 1400, 60_000, MAX_DATAGRAM_BYTES])
        most = 60 if size < MAX_DATAGRAM_BYTES else 12
        for one, other in ((a, b), (b, a)):
            datagrams = [
                rng.randbytes(rng.randrange(1, size + 1)) for _ in range(rng.randrange(1, most))
            ]
            one.send([Transmit(None, datagram) for datagram in datagrams])
            wanted[other] += datagrams
        net.turn(0)
    net.until(lambda: all(len(net.got[one]) >= len(wanted[one]) for one in wanted))
    assert net.got == wanted
    net.settle()
    assert {session(a, b).version(), session(b, a).version()} == {"TLSv1.3"}
    assert a.problems.counters["sent.again"] == b.problems.counters["sent.again"] == 0


def test_a_receiver_that_does_not_read_holds_up_nothing_and_gets_everything(
    net: Net, folder: Path
) -> None:
    """The kernel accepts a part of what TLS has encrypted, again and again."""
    a, b = net.open(tls=folder), net.open(tls=folder)
    net.meet(a, b)
    exchange(net, a, b)
    wanted = [bytes([number]) * MAX_DATAGRAM_BYTES for number in range(160)]
    for datagram in wanted:
        a.send([Transmit(B, datagram)])
    stream = link(a, b).stream
    assert stream.wants_write
    assert stream.unsent, "the kernel is full"
    net.until(lambda: len(net.got[b]) == 161)
    assert net.got[b][1:] == wanted
    net.settle()
    assert not stream.wants_write
    assert not stream.unsent


@pytest.mark.parametrize("turn_bytes", [1000, TURN_BYTES])
def test_bytes_that_tls_holds_are_read_although_the_socket_has_none(
    net: Net, folder: Path, turn_bytes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The end of a large datagram arrives together with small datagrams, and nothing follows."""
    monkeypatch.setattr(transport, "TURN_BYTES", turn_bytes)
    a, b = net.open(tls=folder), net.open(tls=folder)
    assert b.certificates is not None
    b.certificates._buffer = memoryview(bytearray(20_000))
    net.meet(a, b)
    wanted = [b"first", bytes(60_000), b"small", b"again"]
    a.send([Transmit(B, wanted[0])])
    net.until(lambda: net.got[b])
    net.settle()
    a.send([Transmit(B, datagram) for datagram in wanted[1:]])
    net.until(lambda: len(net.got[b]) == len(wanted))
    assert net.got[b] == wanted
    assert not link(b, a).stream.unread
    assert not a.problems.counters["stream.silent"], "the end of the stream made b read on"


def test_a_waiting_handshake_does_not_keep_the_thread_busy(net: Net, folder: Path) -> None:
    """Until the peer answers there is nothing to write, though the socket is writable."""
    a = net.open(tls=folder)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        target = a._connector.get_link(Locator.of(*silent.getsockname()))
        target.enqueue(b"a datagram")
        a._connector.ensure_stream(target)
        stream = target.outgoing
        assert stream is not None
        net.until(lambda: stream.is_connected)
        peer, _ = silent.accept()
        with peer:
            peer.settimeout(PATIENCE_S)
            assert peer.recv(1 << 16).startswith(b"\x16\x03")
            assert not stream.wants_write
            assert stream.write_buffer, "the hello waits"


def test_cut_streams_lose_and_repeat_nothing(net: Net, folder: Path) -> None:
    a, b = net.open(tls=folder), net.open(tls=folder)
    net.meet(a, b)
    assert exchange_while_cut(net, a, b, rounds=30) > 20


# Strangers


@pytest.mark.parametrize(
    ("who", "reason", "text"),
    [
        ("another authority", "tls.untrusted", "unable to get local issuer certificate"),
        ("expired", "tls.expired", "certificate has expired"),
        ("for servers only", "tls.untrusted", "purpose"),
        ("no certificate", "tls.missing", "the peer has no certificate"),
        ("TLS 1.2", "tls.version", "the peer does not speak TLS 1.3"),
        ("no TLS", "tls.plain", "the peer does not speak TLS"),
    ],
)
def test_a_stranger_is_refused_counted_and_logged_once(
    net: Net,
    authority: Authority,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    who: str,
    reason: str,
    text: str,
) -> None:
    a, b = (net.open(tls=authority.write(tmp_path / name)) for name in "ab")
    net.meet(a, b)
    exchange(net, a, b)
    theirs = Authority("another") if who == "another authority" else authority
    folder = theirs.write(
        tmp_path / "stranger",
        expired=who == "expired",
        purposes=SERVER_ONLY if who == "for servers only" else BOTH,
    )
    version = ssl.TLSVersion.TLSv1_2 if who == "TLS 1.2" else ssl.TLSVersion.TLSv1_3
    context = stranger_context(None if who == "no certificate" else folder, version)
    hello = a._connector.get_link(b.locator).hello(77, B, b.locator).encode()
    links = dict(a._connector.links)

    def call() -> bytes:
        """Connect, send a hello in the name of a member, and return the answer."""
        with socket.create_connection(a.locator.sockaddr[:2], PATIENCE_S) as connection:
            connection.settimeout(PATIENCE_S)
            try:
                if who == "no TLS":
                    connection.sendall(hello)
                    return b"".join(iter(lambda: connection.recv(1 << 16), b""))
                with context.wrap_socket(connection) as inside:
                    inside.sendall(hello)
                    return inside.recv(1 << 16)
            except OSError:
                return b""

    with ThreadPoolExecutor(1) as pool:
        for times in (1, 2, 3):
            answer = pool.submit(call)
            net.until(answer.done)
            assert hello[4:20] not in answer.result(), "a stranger gets no hello"
            net.until(lambda: a.problems.counters[reason] == times)  # noqa: B023
    lines = [record.message for record in caplog.records if reason in record.message]
    assert len(lines) == 1, "the first; later ones are counted"
    assert "127.0.0.1 port" in lines[0]
    assert text in lines[0]
    assert a._connector.links == links
    assert not a._connector._handshakes
    assert a.certificates is not None
    assert a.certificates.refused == 3
    exchange(net, a, b)


def test_members_of_two_authorities_do_not_meet(net: Net, tmp_path: Path) -> None:
    a, b = (net.open(tls=Authority(name).write(tmp_path / name)) for name in "ab")
    net.meet(a, b)
    a.send([Transmit(None, b"for members alone")])
    net.until(lambda: a.problems.counters["tls.untrusted"] > 1)
    net.until(lambda: b.problems.counters["tls.refused"] > 0)
    assert net.got == {a: [], b: []}
    assert link(a, b).stream is None
    assert not b._connector.links


@pytest.mark.parametrize("dials", ["with", "without"])
def test_a_member_with_and_one_without_certificates_say_why(
    net: Net, folder: Path, dials: str
) -> None:
    a, b = net.open(tls=folder), net.open()
    net.meet(a, b)
    one = a if dials == "with" else b
    one.send([Transmit(None, b"a datagram")])
    if dials == "with":
        net.until(lambda: b.problems.counters["stream.tls"])
    else:
        net.until(lambda: a.problems.counters["tls.plain"])
    assert net.got == {a: [], b: []}


# Rotation


def test_replaced_certificates_are_used_by_new_connections(
    net: Net, authority: Authority, tmp_path: Path
) -> None:
    a, b = (net.open(tls=authority.write(tmp_path / name)) for name in "ab")
    net.meet(a, b)
    exchange(net, a, b)
    old = certificate_bytes(tmp_path / "b")
    assert peer_certificate(a, b) == old
    stream = link(a, b).stream

    authority.write(tmp_path / "b")
    new = certificate_bytes(tmp_path / "b")
    certificates = b.certificates
    assert certificates is not None
    contexts = certificates._contexts
    net.until(lambda: certificates._contexts is not contexts)
    exchange(net, a, b)
    assert link(a, b).stream is stream, "established connections stay"
    assert peer_certificate(a, b) == old

    cut(a)
    exchange(net, a, b)
    net.until(lambda: link(a, b).stream and link(a, b).stream is not stream)
    assert peer_certificate(a, b) == new


def test_the_authority_can_be_replaced_without_a_pause(net: Net, tmp_path: Path) -> None:
    """Both authorities are trusted for a while; then the former one is not."""
    old, new = Authority("old"), Authority("new")
    a, b = (net.open(tls=old.write(tmp_path / name)) for name in "ab")
    net.meet(a, b)
    exchange(net, a, b)
    for step in ("trust both", "sign with the new", "trust the new alone"):
        for name in "ab":
            folder = tmp_path / name
            if step == "sign with the new":
                new.write(folder)
            (folder / "ca.pem").write_bytes(
                new.pem if step == "trust the new alone" else old.pem + new.pem
            )
        for one in (a, b):
            assert one.certificates is not None
            assert one.certificates.check(), step
        cut(a)
        exchange(net, a, b)
    assert not {name for name in a.problems.counters if name.startswith("tls.")}
    former = old.write(tmp_path / "former")
    c = net.open(tls=former)
    c._connector.get_link(a.locator).enqueue(b"a datagram")
    c._connector.ensure_stream(link(c, a))
    net.until(lambda: c.problems.counters["tls.untrusted"])


def test_files_that_cannot_be_used_change_nothing(
    net: Net, authority: Authority, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    a, b = (net.open(tls=authority.write(tmp_path / name)) for name in "ab")
    net.meet(a, b)
    exchange(net, a, b)
    certificates = a.certificates
    assert certificates is not None
    contexts = certificates._contexts
    key = (tmp_path / "a" / "key.pem").read_bytes()
    (tmp_path / "a" / "key.pem").write_bytes(b"no key")
    assert not certificates.check()
    assert caplog.records == [], "three files cannot be replaced at once"
    for _ in range(3):
        assert not certificates.check()
    (line,) = caplog.records
    assert line.levelno == logging.ERROR
    assert "the certificates stay as they are" in line.message
    assert "key.pem has no private key" in line.message
    assert certificates._contexts is contexts
    cut(a)
    exchange(net, a, b)
    (tmp_path / "a" / "key.pem").write_bytes(key)
    assert certificates.check(), "the file is whole again"


def test_an_own_certificate_that_expires_is_logged_once(
    folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    certificates = tls.Certificates(TlsFiles.of(folder))
    certificates._contexts = certificates._contexts._replace(expires_s=1.0)
    for _ in range(3):
        certificates.check()
    (line,) = caplog.records
    assert "has expired at 1970-01-01 00:00:01 UTC" in line.message


# Wrong files


def test_every_wrong_file_is_an_error_that_says_what_to_do(
    authority: Authority, tmp_path: Path
) -> None:
    other = Authority("another").write(tmp_path / "other")

    def refused(text: str, folder: Path) -> None:
        with pytest.raises(ConfigError, match=text):
            TcpMesh("127.0.0.1", 0, tls=folder)

    refused(
        r"there is no file .*nowhere/ca.pem; expected a folder with ca.pem", tmp_path / "nowhere"
    )
    folder = authority.write(tmp_path / "mode")
    (folder / "key.pem").chmod(0o640)
    refused(r"other users can access the private key .*\(mode 0640\); run: chmod 600", folder)
    (folder / "key.pem").chmod(0o600)
    (folder / "ca.pem").chmod(0o666)
    refused(r"other users can write to .*ca.pem \(mode 0666\); run: chmod go-w", folder)
    folder = authority.write(tmp_path / "passphrase", passphrase=b"secret")
    refused("is encrypted with a passphrase", folder)
    folder = authority.write(tmp_path / "swapped")
    (folder / "key.pem").write_bytes((other / "key.pem").read_bytes())
    refused(r"key.pem is not the key of .*cert.pem; replace both together", folder)
    folder = authority.write(tmp_path / "foreign")
    (folder / "ca.pem").write_bytes((other / "ca.pem").read_bytes())
    refused(r"other members would refuse .*cert.pem: unable to get .*; expected a certif", folder)
    folder = authority.write(tmp_path / "expired", expired=True)
    refused("other members would refuse .*: certificate has expired", folder)
    folder = authority.write(tmp_path / "purpose", purposes=SERVER_ONLY)
    refused("other members would refuse .*purpose", folder)
    for name in ("ca", "cert"):
        folder = authority.write(tmp_path / f"empty-{name}")
        (folder / f"{name}.pem").write_bytes(b"")
        refused("has no certificate; expected '-----BEGIN CERTIFICATE-----'", folder)
    folder = authority.write(tmp_path / "damaged")
    (folder / "cert.pem").write_text("-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----")
    refused("cert.pem with .*key.pem cannot be used", folder)
    folder = authority.write(tmp_path / "folder")
    (folder / "key.pem").unlink()
    (folder / "key.pem").mkdir(mode=0o700)
    refused("key.pem is not a regular file", folder)


def test_files_can_be_named_one_by_one(net: Net, authority: Authority, tmp_path: Path) -> None:
    folder = authority.write(tmp_path / "tls")
    files = TlsFiles(*((folder / name).rename(folder / f"my-{name}") for name in NAMES))
    a, b = net.open(tls=files), net.open(tls=files)
    net.meet(a, b)
    exchange(net, a, b)
