"""Certificates for tests: an authority, and folders with what the authority has signed."""

from __future__ import annotations

import ssl
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("cryptography")

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import (
    BestAvailableEncryption,
    Encoding,
    NoEncryption,
    PrivateFormat,
)
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

DAY = timedelta(days=1)
BOTH = (ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH)
SERVER_ONLY = BOTH[:1]


class Authority:
    """An authority that signs certificates."""

    def __init__(self, name: str = "an authority") -> None:
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._name = _name(name)
        now = datetime.now(UTC)
        made = _builder(self._name, self._name, self._key.public_key(), now - DAY, now + 365 * DAY)
        made = made.add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        self.pem = made.sign(self._key, hashes.SHA256()).public_bytes(Encoding.PEM)

    def write(
        self,
        folder: Path,
        name: str = "a member",
        *,
        expired: bool = False,
        early: bool = False,
        purposes: Any = BOTH,
        passphrase: bytes = b"",
    ) -> Path:
        """Write ``ca.pem``, ``cert.pem`` and ``key.pem`` with a new key; return the folder."""
        folder.mkdir(exist_ok=True)
        key = ec.generate_private_key(ec.SECP256R1())
        now = datetime.now(UTC)
        first, last = (now - 2 * DAY, now - DAY) if expired else (now - DAY, now + 10 * DAY)
        if early:
            first, last = now + DAY, now + 10 * DAY
        made = _builder(_name(name), self._name, key.public_key(), first, last)
        made = made.add_extension(x509.ExtendedKeyUsage(list(purposes)), critical=False)
        cipher = BestAvailableEncryption(passphrase) if passphrase else NoEncryption()
        _replace(folder / "ca.pem", self.pem)
        _replace(
            folder / "cert.pem", made.sign(self._key, hashes.SHA256()).public_bytes(Encoding.PEM)
        )
        _replace(
            folder / "key.pem", key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, cipher), 0o600
        )
        return folder


def stranger_context(
    folder: Path | None, version: ssl.TLSVersion = ssl.TLSVersion.TLSv1_3
) -> ssl.SSLContext:
    """Return a context to connect with, which trusts everybody; ``folder`` has its certificate."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    context.maximum_version = version
    if folder is not None:
        context.load_cert_chain(folder / "cert.pem", folder / "key.pem")
    return context


def _name(name: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])


def _builder(
    subject: x509.Name, issuer: x509.Name, key: Any, first: datetime, last: datetime
) -> x509.CertificateBuilder:
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(first)
        .not_valid_after(last)
    )


def _replace(path: Path, data: bytes, mode: int = 0o644) -> None:
    """Replace a file as an operator does: the new file has another inode."""
    new = path.with_suffix(".new")
    new.write_bytes(data)
    new.chmod(mode)
    new.replace(path)
