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
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gapless.errors import ConfigError
from gapless.keys.keyring import config_folder
from gapless.keys.secret_files import (
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
from gapless.wire.identities import Credentials, node_of

if TYPE_CHECKING:
    from typing import Self

    from gapless.keys.keyring import Keyring

ENVIRONMENT_VARIABLE = "GAPLESS_IDENTITY"
"""The environment variable that names the identity file."""
SECRET_BYTES = 32
"""The length of a private key."""
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

    __slots__ = ("_key", "_secret", "public_key")

    def __init__(self, secret: bytes) -> None:
        if len(secret) != SECRET_BYTES:
            raise ConfigError(f"the private key of an identity has {SECRET_BYTES} bytes")
        self._secret = secret
        self._key = _ed25519().Ed25519PrivateKey.from_private_bytes(secret)
        self.public_key: bytes = self._key.public_key().public_bytes_raw()

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
        with errors_name(path, "cannot be read", "run as the owner of the file"):
            try:
                values = parse_toml(decode_text(read_private(path)))
            except FileNotFoundError:
                raise KeyringError(
                    "no such identity", f"run gapless keys identity {path}"
                ) from None
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
    return Credentials(identity.public_key, identity.sign, verify, allowed)
