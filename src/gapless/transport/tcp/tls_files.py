"""The files of a member with certificates: the authorities, its own certificate, and the key.

On reading: a file that is missing, is something else, or could be read or replaced by other users
is refused with the step to take. No error shows the content of a file.
"""

from __future__ import annotations

import os
import stat
from dataclasses import dataclass
from pathlib import Path

from gapless.errors import ConfigError
from gapless.output.private_files import file_stamp
from gapless.units import MIB

CA_NAME, CERTIFICATE_NAME, KEY_NAME = "ca.pem", "cert.pem", "key.pem"
"""The names of the files in a folder."""
MAX_FILE_BYTES = MIB
"""Maximum size of a file."""
_CERTIFICATE_MARK = b"-----BEGIN CERTIFICATE-----"
_KEY_MARK = b"PRIVATE KEY-----"
_ENCRYPTED_MARKS = (b"ENCRYPTED PRIVATE KEY-----", b"Proc-Type: 4,ENCRYPTED")

Stamp = tuple[tuple[int, ...] | None, ...]
"""What changes when a file, its mode or its owner changes; None for a missing file."""


@dataclass(frozen=True)
class TlsFiles:
    """The files for TLS, in PEM format.

    Args:
        ca: The certificates of the authorities: a peer must have a certificate of one of them.
        cert: The certificate of this member; intermediate certificates follow.
        key: The private key of this member, without a passphrase, for its owner only (mode 0600).
    """

    ca: Path
    cert: Path
    key: Path

    @classmethod
    def of(cls, given: str | Path | TlsFiles) -> TlsFiles:
        """Return the files ``ca.pem``, ``cert.pem`` and ``key.pem`` in a folder.

        Raises:
            ConfigError: The home directory in the path is unknown.
        """
        if isinstance(given, TlsFiles):
            return given
        try:
            folder = Path(given).expanduser().absolute()
        except RuntimeError as error:
            raise ConfigError(f"tls={str(given)!r}: {error}; name the folder in full") from None
        return cls(folder / CA_NAME, folder / CERTIFICATE_NAME, folder / KEY_NAME)

    def stamp(self) -> Stamp:
        """Return a value that changes when a file is replaced or changed."""
        return tuple(map(file_stamp, (self.ca, self.cert, self.key)))

    def check(self) -> None:
        """Raise ConfigError if a file cannot be used; the text says why, and what to do."""
        for path in (self.ca, self.cert):
            if _CERTIFICATE_MARK not in _read(path, is_secret=False):
                raise ConfigError(
                    f"tls: {path} has no certificate; expected {_CERTIFICATE_MARK.decode()!r}"
                )
        key = _read(self.key, is_secret=True)
        if any(mark in key for mark in _ENCRYPTED_MARKS):
            raise ConfigError(
                f"tls: {self.key} is encrypted with a passphrase, which nobody could enter after a"
                " restart; write the key without a passphrase (openssl pkey -in … -out …)"
            )
        if _KEY_MARK not in key:
            raise ConfigError(
                f"tls: {self.key} has no private key; expected '-----BEGIN PRIVATE KEY-----'"
            )


def _read(path: Path, *, is_secret: bool) -> bytes:
    """Return the content of a file that no other user can change, or read if it is secret."""
    try:
        # A pipe in the place of the file would block without this flag.
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    except FileNotFoundError:
        raise ConfigError(
            f"tls: there is no file {path}; expected a folder with {CA_NAME}, {CERTIFICATE_NAME}"
            f" and {KEY_NAME}, or TlsFiles(ca=…, cert=…, key=…)"
        ) from None
    except OSError as error:
        raise ConfigError(f"tls: {path} cannot be read: {error.strerror}") from None
    try:
        _check_file(path, os.fstat(descriptor), is_secret=is_secret)
        with open(descriptor, "rb", closefd=False) as file:
            data = file.read(MAX_FILE_BYTES + 1)
    finally:
        os.close(descriptor)
    if len(data) > MAX_FILE_BYTES:
        raise ConfigError(f"tls: {path} has more than {MAX_FILE_BYTES} bytes; name a PEM file")
    return data


def _check_file(path: Path, status: os.stat_result, *, is_secret: bool) -> None:
    mode = stat.S_IMODE(status.st_mode)
    if not stat.S_ISREG(status.st_mode):
        raise ConfigError(f"tls: {path} is not a regular file; name a PEM file")
    if status.st_uid not in (os.geteuid(), 0):
        raise ConfigError(
            f"tls: {path} belongs to another user (uid {status.st_uid}); make a copy of your own,"
            f" or run: chown {os.geteuid()} {path}"
        )
    if is_secret and mode & 0o077:
        raise ConfigError(
            f"tls: other users can access the private key {path} (mode {mode:04o}); run: chmod 600"
            f" {path}; if others had access, replace the key and its certificate"
        )
    if mode & 0o022:
        raise ConfigError(
            f"tls: other users can write to {path} (mode {mode:04o}); run: chmod go-w {path}"
        )
