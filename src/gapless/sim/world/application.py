"""The simulated application of a group that hands its state to new members.

Its state is what it has been handed: of every origin the last seqno, how many messages, and a hash
over all of them, in one form of bytes for one state. It is padded, so that it takes more than one
frame to bring it over.
"""

from __future__ import annotations

from typing import TYPE_CHECKING
from zlib import crc32

from gapless.identity import Address
from gapless.protocol.ready import GROUP

if TYPE_CHECKING:
    from gapless.protocol.ready import Delivery


class SimulatedApplication:
    """What one life of one node has been handed."""

    def __init__(self) -> None:
        self.applied: dict[tuple[Address, int], tuple[int, int, int]] = {}

    def apply(self, delivery: Delivery) -> None:
        """Take in a delivery of a stream to the group."""
        if delivery.kind != GROUP:
            return
        key = delivery.origin, delivery.epoch
        _, count, content_hash = self.applied.get(key, (0, 0, 0))
        for message in delivery.messages():
            count += 1
            content_hash = crc32(message, content_hash)
        self.applied[key] = delivery.last, count, content_hash

    def serialize(self, giver: str, size_bytes: int) -> bytes:
        """Return the state, of at least ``size_bytes``; ``giver`` says whose it is."""
        lines = [giver]
        for (origin, epoch), (last, count, content_hash) in sorted(self.applied.items()):
            lines.append(
                f"{origin.node} {origin.incarnation} {epoch} {last} {count} {content_hash}"
            )
        text = "\n".join(lines).encode()
        return text + b"\n" * max(1, size_bytes - len(text))

    def load(self, state: bytes) -> None:
        """Become what ``state`` says."""
        self.applied = {}
        for line in state.decode().strip().splitlines()[1:]:
            node, incarnation, epoch, last, count, content_hash = map(int, line.split())
            self.applied[Address(node, incarnation), epoch] = last, count, content_hash
