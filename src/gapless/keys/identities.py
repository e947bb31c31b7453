"""Identities of members: a private key in a file, and the signatures of Ed25519.

An identity file is readable for its owner only, and never leaves its machine:

    secret = "<64 hexadecimal digits>"
    public = "<64 hexadecimal digits>"

The public key goes into the keyring of the group, with a name and a role. The functions need the
package ``cryptography`` (``pip install 'gapless[secure]'``). No error, no ``repr`` and no log line
contains the private key.
"""

from __future__ import annotations

import os
import secrets
from functools import lru_cache
from hashlib import blake2b, sha512
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gapless.errors import ConfigError
from gapless.keys.ciphers import SECRET_SUITES
from gapless.keys.keyring import config_folder
from gapless.keys.secret_files import (
    DamagedFileError,
    KeyringError,
    check_fields,
    create_private,
    damaged,
    decode_text,
    errors_name,
    parse_toml,
    read_private,
    read_secret,
)
from gapless.wire.identities import WRAPPED_BYTES, Credentials, KeyExchange, node_of

if TYPE_CHECKING:
    from typing import Self

    from gapless.keys.keyring import Keyring
    from gapless.wire.identities import AllowList

ENVIRONMENT_VARIABLE = "GAPLESS_IDENTITY"
"""The environment variable that names the identity file."""
SECRET_BYTES = 32
"""The length of a private key."""
VIEW_KEY_BYTES = 1 + SECRET_BYTES
"""The length of the key of a view: one byte for the cipher, and the secret."""
_PRIME = 2**255 - 19
_PERSON = b"gapless-wrap-1"
_NONCE = bytes(12)
_HEADER = (
    "# The private key of one member: keep the file on this machine. `gapless keys identity`\n"
)


class IdentityExistsError(KeyringError):
    """The file of a new identity exists already, and was left unchanged."""


class Identity:
    """The identity of a member: signs in the name of its public key.

    Raises:
        ConfigError: The package ``cryptography`` is missing, or the private key has a wrong length.
    """

    __slots__ = ("_exchange_key", "_key", "_secret", "public_key")

    def __init__(self, secret: bytes) -> None:
        if len(secret) != SECRET_BYTES:
            raise ConfigError(f"the private key of an identity has {SECRET_BYTES} bytes")
        self._secret = secret
        self._key = _ed25519().Ed25519PrivateKey.from_private_bytes(secret)
        self.public_key: bytes = self._key.public_key().public_bytes_raw()
        self._exchange_key = x25519_key(secret)

    @classmethod
    def new(cls) -> Self:
        """Return a random identity."""
        return cls(secrets.token_bytes(SECRET_BYTES))

    @property
    def node(self) -> int:
        """The node of the addresses of this identity."""
        return node_of(self.public_key)

    def sign(self, text: bytes) -> bytes:
        """Return the signature of a text."""
        signature: bytes = self._key.sign(text)
        return signature

    def wrap(self, public_key: bytes, key: bytes, context: bytes) -> bytes:
        """Return a secret key that only the owner of ``public_key`` can unwrap."""
        try:
            wrapping = self._wrapping(public_key, context)
        except ValueError:  # a public key that is no point of the curve has no owner
            return bytes(WRAPPED_BYTES)
        wrapped: bytes = wrapping.encrypt(_NONCE, key, None)
        return wrapped

    def unwrap(self, public_key: bytes, wrapped: bytes, context: bytes) -> bytes | None:
        """Return a key that the owner of ``public_key`` has wrapped for this identity, or None."""
        from cryptography.exceptions import InvalidTag

        try:
            key: bytes = self._wrapping(public_key, context).decrypt(_NONCE, wrapped, None)
        except (InvalidTag, ValueError):  # another's key, or a public key that is no point
            return None
        return key if len(key) == VIEW_KEY_BYTES and key[0] < len(SECRET_SUITES) else None

    def _wrapping(self, public_key: bytes, context: bytes) -> Any:
        """Return the cipher for one key between this identity and another."""
        from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305

        shared = self._exchange_key.exchange(x25519_public(public_key))
        # Each context occurs once, so each key of this cipher encrypts once.
        secret = blake2b(context, key=shared, person=_PERSON, digest_size=32).digest()
        return ChaCha20Poly1305(secret)

    def credentials(self, allowed: AllowList, cipher: str = SECRET_SUITES[0]) -> Credentials:
        """Return the credentials of a member; it draws keys of views for ``cipher``."""
        suite = bytes([SECRET_SUITES.index(cipher)])
        exchange = KeyExchange(
            lambda: suite + secrets.token_bytes(SECRET_BYTES), self.wrap, self.unwrap
        )
        return Credentials(self.public_key, self.sign, verify, exchange, allowed)

    def __repr__(self) -> str:
        return f"Identity({self.public_key.hex()})"

    # Files

    @classmethod
    def read(cls, path: str | Path) -> Self:
        """Return the identity of a file.

        Raises:
            ConfigError: The file cannot be read, other users can read or replace the file, or its
                content is damaged; the text names the file, the problem and the remedy.
        """
        path = Path(path)
        _ed25519()  # without the package no file helps
        # A copied identity would be that of two members, so the remedy is a new one.
        renewal = (
            f"make a new identity (remove the file, then run gapless keys identity {path}), allow"
            " the new one and disallow the old one (gapless keys allow, gapless keys disallow)"
        )
        with errors_name(path, "cannot be read", "run as the owner of the file"):
            try:
                return cls._parse(parse_toml(decode_text(read_private(path, renewal))))
            except FileNotFoundError:
                raise KeyringError(
                    "no such identity", f"run gapless keys identity {path}"
                ) from None
            except DamagedFileError as error:
                raise KeyringError(
                    error.problem, f"restore the file from a backup, or {renewal}"
                ) from None

    @classmethod
    def _parse(cls, values: dict[str, Any]) -> Self:
        check_fields(values, ("secret", "public"), "the identity")
        found = cls(read_secret(values["secret"], "secret"))
        if read_secret(values["public"], "public") != found.public_key:
            raise damaged("public: not the public key of secret")
        return found

    def create(self, path: str | Path) -> None:
        """Write a new file, and its missing folders, for this user only.

        Raises:
            IdentityExistsError: The file exists, and is left unchanged.
            ConfigError: The file cannot be written, or other users can write to its folder.
        """
        text = f'{_HEADER}secret = "{self._secret.hex()}"\npublic = "{self.public_key.hex()}"\n'
        try:
            create_private(path, text)
        except FileExistsError:
            raise IdentityExistsError(
                f"{path}: the file exists, and a new identity would replace it",
                "name another file",
            ) from None


def default_identity_path() -> Path:
    """Return the path of the identity of this user.

    ``$GAPLESS_IDENTITY``, else ``identity.toml`` beside the default keyring.

    Raises:
        ConfigError: This user has no home directory.
    """
    if named := os.environ.get(ENVIRONMENT_VARIABLE):
        try:
            return Path(named).expanduser()
        except RuntimeError as error:
            raise ConfigError(f"{ENVIRONMENT_VARIABLE}={named!r}: {error}") from None
    return config_folder() / "identity.toml"


def verify(public_key: bytes, signature: bytes, text: bytes) -> bool:
    """Return whether ``signature`` is the signature of ``text`` by the owner of ``public_key``."""
    key, invalid = _verifier(public_key)
    try:
        key.verify(signature, text)
    except invalid:
        return False
    return True


@lru_cache(maxsize=1024)
def _verifier(public_key: bytes) -> tuple[Any, type[Exception]]:
    from cryptography.exceptions import InvalidSignature

    return _ed25519().Ed25519PublicKey.from_public_bytes(public_key), InvalidSignature


def x25519_key(secret: bytes) -> Any:
    """Return the key for key exchange of the identity with this private key (RFC 8032, 7748)."""
    return _x25519().X25519PrivateKey.from_private_bytes(sha512(secret).digest()[:32])


@lru_cache(maxsize=1024)
def x25519_public(public_key: bytes) -> Any:
    """Return the public key for key exchange of an identity.

    Both curves are the same up to coordinates: u = (1 + y) / (1 - y) modulo the prime.

    Raises:
        ValueError: ``public_key`` is no point of the curve with a coordinate u.
    """
    y = int.from_bytes(public_key, "little") & ~(1 << 255)
    u = (1 + y) * pow(1 - y, -1, _PRIME) % _PRIME
    return _x25519().X25519PublicKey.from_public_bytes(u.to_bytes(32, "little"))


def _x25519() -> Any:
    from cryptography.hazmat.primitives.asymmetric import x25519

    return x25519


def _ed25519() -> Any:
    try:
        from cryptography.hazmat.primitives.asymmetric import ed25519
    except ImportError as error:
        raise ConfigError(
            "identities need the package cryptography: run pip install 'gapless[secure]'"
        ) from error
    return ed25519


def make_credentials(keyring: Keyring, group: str, identity: Identity | None) -> Credentials | None:
    """Return the credentials of a member; None if the group has no identities.

    Raises:
        ConfigError: The group takes only members with an allowed identity, and ``identity`` is
            none of them; the text says what to do.
    """
    allowed = keyring.allow_list(group)
    if allowed is None:
        return None
    if identity is None:
        raise ConfigError(
            f"the keyring names the identities that may join {group!r}, and this member has none:"
            " run gapless keys identity, and let the operator allow its public key"
        )
    if allowed.find(identity.node) is None:
        raise ConfigError(
            f"the identity {identity.public_key.hex()} may not join {group!r}: run gapless keys"
            f" allow NAME {identity.public_key.hex()} --group {group}, and copy the keyring to"
            " every member"
        )
    cipher = keyring.ring.sealing_key.cipher
    return identity.credentials(allowed, cipher if cipher in SECRET_SUITES else SECRET_SUITES[0])
