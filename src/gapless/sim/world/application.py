"""The simulated application of a group with state transfer.

The state of an application summarizes its deliveries: for every origin the last seqno, the number
of messages, and a hash over all messages. Equal states have equal bytes. Padding makes a state
larger than a frame.
"""

from __future__ import annotations

from typing import TYPE_CHECKING
from zlib import crc32

from gapless.identity import Address
from gapless.protocol.ready import GROUP

if TYPE_CHECKING:
    from gapless.protocol.ready import Delivery


class SimulatedApplication:
    """The deliveries to an incarnation, as a state."""

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
        """Return the state, of at least ``size_bytes``; ``giver`` names the provider."""
        lines = [giver]
        for (origin, epoch), (last, count, content_hash) in sorted(self.applied.items()):
            lines.append(
                f"{origin.node} {origin.incarnation} {epoch} {last} {count} {content_hash}"
            )
        text = "\n".join(lines).encode()
        return text + b"\n" * max(1, size_bytes - len(text))

    def load(self, state: bytes) -> None:
        """Replace the own state by ``state``."""
        self.applied = {}
        for line in state.decode().strip().splitlines()[1:]:
            node, incarnation, epoch, last, count, content_hash = map(int, line.split())
            self.applied[Address(node, incarnation), epoch] = last, count, content_hash
