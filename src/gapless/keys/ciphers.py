"""The cipher suites of sealed groups, by the cipher names in a keyring.

The encrypting suites need the package ``cryptography`` (``pip install 'gapless[secure]'``). The
suite ``blake2b`` needs no package, authenticates every datagram and so keeps strangers out, but
leaves the datagrams readable on the network.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from hashlib import blake2b
from importlib.util import find_spec

from gapless.errors import ConfigError
from gapless.wire.cipher import BLAKE2B, Cipher, CipherSuite, WithoutInto
from gapless.wire.seal_keys import KeyRing, KeyState, SealKey

SECRET_SUITES = ("aes-256-gcm", "chacha20-poly1305")
"""The suites that need the package cryptography, the default first."""
SUITE_NAMES = (*SECRET_SUITES, BLAKE2B.name)
"""Every name that a key may have."""


def default_suite() -> str:
    """Return the name of the suite of a new key on this machine."""
    return SUITE_NAMES[0] if can_encrypt() else BLAKE2B.name


def can_encrypt() -> bool:
    """Return whether this Python has the package that the encrypting suites need."""
    return find_spec("cryptography") is not None


def plain_problem(ring: KeyRing) -> str:
    """Return that the datagrams of a ring are readable, as a clause; "" if they are encrypted."""
    key = ring.sealing_key
    if key.cipher in SECRET_SUITES:
        return ""
    return (
        f"the key {key.label} authenticates datagrams and does not encrypt them (cipher"
        f" {key.cipher}), so others can read the messages on the network"
    )


def encryption_steps(path: object) -> str:
    """Return how to encrypt the datagrams of the ring in the file ``path``."""
    first = "" if can_encrypt() else "run pip install 'gapless[secure]' for every member, then "
    return f"{first}rotate to a key that encrypts: gapless keys rotate {path} --cipher aes-256-gcm"


def suites_of(ring: KeyRing) -> Mapping[str, CipherSuite]:
    """Return the suites for the keys of a ring.

    Raises:
        ConfigError: A key has an unknown suite, or one that this Python cannot use.
    """
    names = {key.cipher for key in ring.keys if key.state is not KeyState.RETIRED}
    if unknown := sorted(names - set(SUITE_NAMES)):
        raise ConfigError(
            f"the cipher {unknown[0]!r} of a key is unknown: expected one of"
            f" {', '.join(SUITE_NAMES)}; a newer version of gapless may have made the key"
        )
    found = {BLAKE2B.name: BLAKE2B}
    if names - found.keys():
        found |= _secret_suites()
    return found


def secret_suite(name: str) -> CipherSuite:
    """Return the encrypting suite ``name``.

    Raises:
        ConfigError: The suite does not encrypt, or this Python cannot use the suite.
    """
    if name not in SECRET_SUITES:
        raise ConfigError(
            f"the cipher {name!r} does not encrypt: expected one of {', '.join(SECRET_SUITES)};"
            " make a ring that does (gapless keys new --cipher aes-256-gcm)"
        )
    try:
        return _secret_suites()[name]
    except ConfigError:
        raise ConfigError(
            f"the cipher {name} needs the package cryptography: run pip install 'gapless[secure]'"
        ) from None


def view_seal_key(key: bytes) -> SealKey:
    """Return the key of a view as the seal uses it: the first byte names an encrypting suite."""
    key_id = int.from_bytes(blake2b(key, digest_size=4).digest(), "little")
    return SealKey(key_id, key[1:], KeyState.OPEN, SECRET_SUITES[key[0]])


def view_suites() -> Mapping[str, CipherSuite]:
    """Return the suites that keys of views may have."""
    return _secret_suites()


def _secret_suites() -> dict[str, CipherSuite]:
    try:
        from cryptography.exceptions import InvalidTag
        from cryptography.hazmat.primitives.ciphers.aead import AESGCM, ChaCha20Poly1305
    except ImportError as error:
        raise ConfigError(
            "the keys need the package cryptography: run pip install 'gapless[secure]', or make a"
            " ring whose keys authenticate only (gapless keys new --cipher blake2b)"
        ) from error
    suites = {}
    ciphers: tuple[Callable[[bytes], Cipher], ...] = (AESGCM, ChaCha20Poly1305)
    for name, new in zip(SECRET_SUITES, ciphers, strict=True):
        # Versions of cryptography before 47 encrypt only into new memory.
        has_into = hasattr(new, "encrypt_into") and hasattr(new, "decrypt_into")
        suites[name] = CipherSuite(name, new if has_into else WithoutInto.of(new), InvalidTag)
    return suites
