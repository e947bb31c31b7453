"""The keys of a sealed group, in the form used by the envelope (``Seal``).

Every key has an id. A sealed datagram carries the key id, so a receiver selects the key and never
tries several keys. A key has one of three states: ``open`` (the key opens datagrams), ``seal`` (the
key seals and opens datagrams) or ``retired`` (the key is not used). A ring has exactly one key in
the state ``seal``.
"""

from __future__ import annotations

from enum import StrEnum
from hashlib import blake2b
from typing import TYPE_CHECKING, NamedTuple

from gapless.errors import ConfigError

if TYPE_CHECKING:
    from random import Random

SECRET_BYTES = 32
"""The length of a key's secret, and of the secret of a ring."""
KEY_ID_MAX = 2**32 - 1
"""Maximum id of a key."""
_RANDOM_MASK = 0xFFFF
"""The random bits of the number of an incarnation: 66 microseconds."""
_GROUP_PERSON = b"gapless-group-1"
_ENTRY_PERSON = b"gapless-entries"
_LABEL_PERSON = b"gapless-label-1"


def sealed_incarnation(clock_ns: int, rng: Random) -> int:
    """Return the number of an incarnation that begins at ``clock_ns``.

    The key of an incarnation seals each counter once. Random low bits keep two incarnations apart,
    even if the clock was set back between them.
    """
    return clock_ns & ~_RANDOM_MASK | rng.getrandbits(_RANDOM_MASK.bit_length())


class KeyState(StrEnum):
    """The use of a key."""

    OPEN = "open"
    SEAL = "seal"
    RETIRED = "retired"


class SealKey(NamedTuple):
    """A key of a ring."""

    key_id: int
    secret: bytes
    state: KeyState
    cipher: str = "aes-256-gcm"
    """The name of a cipher suite."""

    @property
    def label(self) -> str:
        """The id of the key for people: eight hexadecimal digits."""
        return f"{self.key_id:08x}"

    def __repr__(self) -> str:
        # A secret never gets into a log or a traceback.
        return f"SealKey({self.label}, {self.state})"


class KeyRing:
    """The keys of one or more groups.

    ``secret`` stays the same for the life of the ring, through all rotations of keys. The id of a
    group on the wire depends on ``secret``, so strangers cannot check guesses of group names.

    Raises:
        ConfigError: A secret has the wrong length, two keys have the same id, or not exactly one
            key seals.
    """

    __slots__ = ("keys", "secret")

    def __init__(self, secret: bytes, keys: tuple[SealKey, ...]) -> None:
        if len(secret) != SECRET_BYTES or any(len(key.secret) != SECRET_BYTES for key in keys):
            raise ConfigError(f"a secret of a keyring has {SECRET_BYTES} bytes")
        if len({key.key_id for key in keys}) != len(keys):
            raise ConfigError("two keys of the keyring have the same id: remove one of them")
        if sum(key.state is KeyState.SEAL for key in keys) != 1:
            raise ConfigError("exactly one key of a keyring has the state 'seal'")
        self.secret = secret
        self.keys = keys

    @property
    def sealing_key(self) -> SealKey:
        """The key that seals."""
        return next(key for key in self.keys if key.state is KeyState.SEAL)

    @property
    def opening_keys(self) -> dict[int, SealKey]:
        """The keys that open, by id."""
        return {key.key_id: key for key in self.keys if key.state is not KeyState.RETIRED}

    @property
    def label(self) -> str:
        """The ring for people: eight hexadecimal digits that reveal no secret."""
        return blake2b(key=self.secret, person=_LABEL_PERSON, digest_size=4).hexdigest()

    @property
    def entry_key(self) -> bytes:
        """The key for discovery entries, the same through all rotations."""
        return blake2b(key=self.secret, person=_ENTRY_PERSON, digest_size=32).digest()

    def group_id(self, name: str) -> int:
        """Return the 64-bit id of a group on the wire; strangers cannot compute the id."""
        digest = blake2b(name.encode(), key=self.secret, person=_GROUP_PERSON, digest_size=8)
        return int.from_bytes(digest.digest(), "little")

    def __repr__(self) -> str:
        count = len(self.keys)
        return f"KeyRing({self.label}, {count} key{'' if count == 1 else 's'})"
