"""The identities of a group: who may take part, under which name, and in which role.

An identity is a pair of keys (Ed25519). The node of a member's address is derived from the public
key, so an address names the identity of a member, and a roster names the identities of all members.
An allow-list has a certificate for each identity of a group. The functions that sign, verify, wrap
and unwrap are handed in, because this package depends on no other.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import StrEnum
from hashlib import blake2b
from typing import TYPE_CHECKING, NamedTuple

from gapless.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Iterable

    from gapless.identity import RosterEntry

PUBLIC_KEY_BYTES = 32
"""The length of a public key of Ed25519."""
WRAPPED_BYTES = 49
"""The length of the key of a view, encrypted for one member: 33 bytes of key and a tag."""
_NODE_PERSON = b"gapless-node-1"


class Role(StrEnum):
    """What an identity may do in a group."""

    MEMBER = "member"
    """Send and receive."""
    OBSERVER = "observer"
    """Receive only: the other members drop messages of an observer."""
    PUBLISHER = "publisher"
    """Send only: the other members give a publisher no state."""
    COLLECTOR = "collector"
    """Send, receive, and hold a durable name: the name of the certificate."""


def node_of(public_key: bytes) -> int:
    """Return the node of the addresses of an identity."""
    digest = blake2b(public_key, person=_NODE_PERSON, digest_size=8).digest()
    return int.from_bytes(digest, "little")


class Certificate(NamedTuple):
    """An allowed identity: the name for people, the role and the public key."""

    name: str
    role: Role
    public_key: bytes

    @property
    def node(self) -> int:
        """The node of the addresses of the identity."""
        return node_of(self.public_key)


class AllowList:
    """The certificates of a group; names and nodes are unique.

    Raises:
        ConfigError: Two certificates have the same name or key, or a key has the wrong length.
    """

    __slots__ = ("_by_node", "certificates")

    def __init__(self, certificates: Iterable[Certificate]) -> None:
        self.certificates = tuple(certificates)
        self._by_node = {each.node: each for each in self.certificates}
        if any(len(each.public_key) != PUBLIC_KEY_BYTES for each in self.certificates):
            raise ConfigError(f"a public key has {PUBLIC_KEY_BYTES} bytes")
        if len(self._by_node) < len(self.certificates):
            raise ConfigError("two identities of a group have the same public key: remove one")
        if len({each.name for each in self.certificates}) < len(self.certificates):
            raise ConfigError("two identities of a group have the same name: rename one")

    def find(self, node: int) -> Certificate | None:
        """Return the certificate of the identity with this node, or None."""
        return self._by_node.get(node)

    def refusal(self, entry: RosterEntry) -> str:
        """Return why a member may not take part as ``entry`` says, or an empty string."""
        found = self._by_node.get(entry.address.node)
        if found is None:
            return "identity"
        if entry.name and (found.role is not Role.COLLECTOR or found.name != entry.name):
            return "name"
        return ""

    def __eq__(self, other: object) -> bool:
        return isinstance(other, AllowList) and self.certificates == other.certificates

    def __hash__(self) -> int:
        return hash(self.certificates)

    def __repr__(self) -> str:
        return f"AllowList({', '.join(f'{each.name}: {each.role}' for each in self.certificates)})"


Sign = Callable[[bytes], bytes]
"""Returns the signature of a text by the own identity."""
Verify = Callable[[bytes, bytes, bytes], bool]
"""Returns whether a signature is right: public key, signature, text."""


class KeyExchange(NamedTuple):
    """How the coordinator of a view passes a secret key to the members of the view.

    A wrapped key is bound to a context, and opens only there.
    """

    draw: Callable[[], bytes]
    """Returns a new key."""
    wrap: Callable[[bytes, bytes, bytes], bytes]
    """Encrypts a key for another identity: public key, key, context."""
    unwrap: Callable[[bytes, bytes, bytes], bytes | None]
    """Returns a key wrapped by another identity, or None: public key, wrapped key, context."""


class Credentials(NamedTuple):
    """What a member needs to take part in a group with identities."""

    public_key: bytes
    sign: Sign
    verify: Verify
    exchange: KeyExchange
    allowed: AllowList

    @property
    def node(self) -> int:
        """The node of the own addresses."""
        return node_of(self.public_key)
