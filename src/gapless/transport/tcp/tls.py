"""TLS 1.3 with certificates in both directions, for the streams of a TCP mesh.

On a new connection: either side must present a certificate of an authority in ``ca``, valid now,
for servers and for clients. Names in certificates are not compared with addresses: a certificate of
the authority is what makes a member. Sessions are not resumed, because a resumption checks no
certificate.

While running: ``check`` looks at the files. After a change new connections use the new files;
established connections stay. Files that cannot be used change nothing, and are logged, unless they
are replaced within the next look: three files cannot be replaced at once.

The own certificate is checked as others check it, by a handshake with itself in memory.
"""

from __future__ import annotations

import ssl
import time
from typing import NamedTuple

from gapless.errors import ConfigError, RemoteProtocolError
from gapless.logger import log
from gapless.transport.tcp.tls_files import TlsFiles
from gapless.units import KIB, NS_PER_S

CHECK_NS = NS_PER_S
"""How often the files are looked at."""
READ_BYTES = 256 * KIB
"""Size of the buffer for encrypted bytes."""

_ROUNDS = 8
_EXPIRED = 10
_REASONS = {
    "PEER_DID_NOT_RETURN_A_CERTIFICATE": ("missing", "the peer has no certificate"),
    **dict.fromkeys(
        ("UNSUPPORTED_PROTOCOL", "WRONG_SSL_VERSION", "TLSV1_ALERT_PROTOCOL_VERSION"),
        ("version", "the peer does not speak TLS 1.3"),
    ),
    **dict.fromkeys(
        ("WRONG_VERSION_NUMBER", "HTTP_REQUEST", "HTTPS_PROXY_REQUEST"),
        ("plain", "the peer does not speak TLS: join with tls= everywhere, or nowhere"),
    ),
}
"""The reason of a counter and the text, by the name that OpenSSL gives an error."""


class Session(NamedTuple):
    """TLS of one connection: plain bytes on one side, encrypted bytes on the other."""

    tls: ssl.SSLObject
    incoming: ssl.MemoryBIO
    outgoing: ssl.MemoryBIO
    buffer: memoryview
    """Where encrypted bytes are read; shared by all connections of a member."""


class _Contexts(NamedTuple):
    """What new connections use: one context to connect, one to be connected to."""

    client: ssl.SSLContext
    server: ssl.SSLContext
    expires_s: float


class Certificates:
    """The certificates of a member, which follow its files.

    Raises:
        ConfigError: The files cannot be used; the text says why, and what to do.
    """

    def __init__(self, files: TlsFiles) -> None:
        self.files = files
        self.refused = 0
        """How many connections were refused, by this member or by a peer."""
        self.last_refusal = ""
        """Why the last connection was refused, for people."""
        self._buffer = memoryview(bytearray(READ_BYTES))
        # The stamp comes first: a file that is replaced while it is read is read again.
        self._stamp = self._failed_stamp = files.stamp()
        self._contexts = _load(files)
        self._problem = ""
        self._is_expired = False

    @property
    def expires_s(self) -> float:
        """When the own certificate expires, as seconds since 1970."""
        return self._contexts.expires_s

    @property
    def expires(self) -> str:
        """When the own certificate expires, for people."""
        return time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(self._contexts.expires_s))

    def new_session(self, *, dialled: bool) -> Session:
        """Return TLS for a new connection."""
        incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        context = self._contexts.client if dialled else self._contexts.server
        tls = context.wrap_bio(incoming, outgoing, server_side=not dialled)
        return Session(tls, incoming, outgoing, self._buffer)

    def note_refusal(self, text: str) -> None:
        """Record why a connection was refused."""
        self.refused += 1
        self.last_refusal = text

    def check(self) -> bool:
        """Read the files if they have changed; return whether new connections use others."""
        self._warn_if_expired()
        stamp = self.files.stamp()
        if stamp == self._stamp:
            return False
        try:
            contexts = _load(self.files)
        except ConfigError as error:
            if stamp == self._failed_stamp and str(error) != self._problem:
                self._problem = str(error)
                log.error("the certificates stay as they are: %s", error)
            self._failed_stamp = stamp
            return False
        self._stamp, self._contexts = stamp, contexts
        self._problem, self._is_expired = "", False
        log.info("new connections use %s, valid until %s", self.files.cert, self.expires)
        return True

    def _warn_if_expired(self) -> None:
        if not self._is_expired and time.time() >= self._contexts.expires_s:
            self._is_expired = True
            log.error(
                "%s has expired at %s: other members refuse new connections; replace the file",
                self.files.cert,
                self.expires,
            )


def _load(files: TlsFiles) -> _Contexts:
    """Return contexts with the content of the files.

    Raises:
        ConfigError: A file cannot be used, or the files do not fit together.
    """
    files.check()
    client, server = (
        _context(protocol, files) for protocol in (ssl.PROTOCOL_TLS_CLIENT, ssl.PROTOCOL_TLS_SERVER)
    )
    try:
        return _Contexts(client, server, _shake_hands(client, server))
    except ssl.SSLCertVerificationError as error:
        raise ConfigError(
            f"tls: other members would refuse {files.cert}: {error.verify_message}; expected a"
            f" certificate that is valid now, signed by an authority in {files.ca}, for servers"
            " and for clients"
        ) from None
    except ssl.SSLError as error:
        raise ConfigError(
            f"tls: {files.cert} and {files.key} cannot be used: {error.reason or error}; expected a"
            " certificate and a key for TLS 1.3, such as ECDSA on the curve P-256"
        ) from None


def _context(protocol: int, files: TlsFiles) -> ssl.SSLContext:
    context = ssl.SSLContext(protocol)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.check_hostname = False
    context.verify_mode = ssl.CERT_REQUIRED
    # An authority in ``ca`` is trusted as it is, also without the one that has signed it.
    context.verify_flags |= ssl.VerifyFlags.VERIFY_X509_PARTIAL_CHAIN
    context.options |= ssl.OP_NO_TICKET
    if protocol == ssl.PROTOCOL_TLS_SERVER:
        context.num_tickets = 0
    try:
        context.load_verify_locations(files.ca)
    except (ssl.SSLError, OSError) as error:
        raise ConfigError(
            f"tls: {files.ca} cannot be used: {_reason(error)}; expected certificates of"
            " authorities in PEM format"
        ) from None
    try:
        context.load_cert_chain(files.cert, files.key, password=_no_passphrase)
    except (ssl.SSLError, OSError, ValueError) as error:
        if getattr(error, "reason", None) == "KEY_VALUES_MISMATCH":
            raise ConfigError(
                f"tls: {files.key} is not the key of {files.cert}; replace both together"
            ) from None
        raise ConfigError(
            f"tls: {files.cert} with {files.key} cannot be used: {_reason(error)}; expected a"
            " certificate and its private key in PEM format"
        ) from None
    return context


def _no_passphrase() -> str:
    raise ValueError("the key is encrypted with a passphrase")


def _reason(error: Exception) -> str:
    return getattr(error, "reason", None) or getattr(error, "strerror", None) or str(error)


def _shake_hands(client: ssl.SSLContext, server: ssl.SSLContext) -> float:
    """Connect a member with itself in memory; return when its certificate expires."""
    forth, back = ssl.MemoryBIO(), ssl.MemoryBIO()
    sides = [client.wrap_bio(back, forth), server.wrap_bio(forth, back, server_side=True)]
    waiting = list(sides)
    for _ in range(_ROUNDS):
        for side in list(waiting):
            try:
                side.do_handshake()
            except ssl.SSLWantReadError:
                continue
            waiting.remove(side)
    assert not waiting, "a handshake has few steps"
    certificate = sides[1].getpeercert()
    assert certificate is not None, "the certificate was checked"
    return float(ssl.cert_time_to_seconds(str(certificate["notAfter"])))


def tls_error(error: ssl.SSLError) -> RemoteProtocolError:
    """Return the error of a refused connection: a reason for a counter, and a text for people."""
    if isinstance(error, ssl.SSLCertVerificationError):
        reason = "tls.expired" if error.verify_code == _EXPIRED else "tls.untrusted"
        return RemoteProtocolError(
            reason, f"the certificate of the peer is refused: {error.verify_message}"
        )
    name = error.reason or ""
    if name in _REASONS:
        reason, text = _REASONS[name]
        return RemoteProtocolError(f"tls.{reason}", text)
    if "ALERT" in name:
        alert = name.partition("ALERT_")[2].replace("_", " ").lower()
        return RemoteProtocolError(
            "tls.refused",
            f"the peer refuses this member's certificate or connection: {alert}",
        )
    return RemoteProtocolError("tls.failed", f"the connection is damaged: {name or error}")
