"""Rules of stream frames beyond their layout.

On sending and on reception the same rules hold, as in primitives.py: a check raises
RemoteProtocolError with a reason, and on sending the encoder turns the error into a
LocalProtocolError.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from gapless.errors import RemoteProtocolError
from gapless.run import ACKED, FIRST_FRAGMENT, FRAGMENT, LAST_FRAGMENT, NO_LOOPBACK
from gapless.wire.frames import FIRST_CONNECTION_EPOCH
from gapless.wire.primitives import SEQNO_MAX

if TYPE_CHECKING:
    from gapless.wire.frames import Range, StreamProgress

HAS_START = 0x01
"""Tail flag: the fields start and receiver incarnation are valid."""
DATA_FLAGS = FRAGMENT | FIRST_FRAGMENT | LAST_FRAGMENT | NO_LOOPBACK | ACKED
"""The flags of a run."""
_FRAGMENT_FLAGS = frozenset((0, FRAGMENT, FRAGMENT | FIRST_FRAGMENT, FRAGMENT | LAST_FRAGMENT))


def check_run(first: int, count: int, flags: int) -> None:
    """Check the seqnos and the flags of a run."""
    if not count:
        raise RemoteProtocolError("count", "a run without messages")
    if not 0 < first <= SEQNO_MAX - count + 1:
        raise RemoteProtocolError("seqno", f"a run of {count} at {first}")
    if flags:
        if flags & ~DATA_FLAGS:
            raise RemoteProtocolError("flags", f"flags {flags:#x} on a DATA frame")
        if flags & ~(NO_LOOPBACK | ACKED) not in _FRAGMENT_FLAGS or (
            flags & FRAGMENT and count != 1
        ):
            raise RemoteProtocolError("piece", f"flags {flags:#x} on a run of {count}")


def check_unordered_flags(flags: int) -> int:
    """Return the flags of a message outside a stream, which is never a fragment."""
    if flags & ~NO_LOOPBACK:
        raise RemoteProtocolError("flags", f"flags {flags:#x} on a message outside of a stream")
    return flags


def check_unnumbered(first: int) -> int:
    """Return the first seqno of messages without numbers, which must be 1."""
    if first != 1:
        raise RemoteProtocolError("seqno", f"messages without numbers start at {first}")
    return first


def check_floor(floor: int, first: int) -> None:
    """Check that a floor lies below the messages of the frame."""
    if floor >= first:
        raise RemoteProtocolError("seqno", f"a floor of {floor} at {first}")


def check_first(first: bool, epoch: int) -> None:
    """Check that only a connection has a first message."""
    if first and epoch < FIRST_CONNECTION_EPOCH:
        raise RemoteProtocolError(
            "epoch", f"only a connection has a first message and an end, not {epoch:#x}"
        )


def check_nonempty_ranges(ranges: tuple[Range, ...]) -> None:
    """Check that an ack names a range."""
    if not ranges:
        raise RemoteProtocolError("count", "an ack of nothing")


def check_nonempty_progress(progress: tuple[StreamProgress, ...]) -> None:
    """Check that a vote or a stability message has an entry."""
    if not progress:
        raise RemoteProtocolError("count", "a digest of nothing")


def check_tail(low: int, high: int, start: int, receiver_incarnation: int, flags: int) -> None:
    """Check that the marks of a tail rise, and that a start names an incarnation."""
    if not low <= high <= SEQNO_MAX or start > (high if flags & HAS_START else 0):
        raise RemoteProtocolError("seqno", f"low {low}, high {high}, start {start}")
    if receiver_incarnation and not flags & HAS_START:
        raise RemoteProtocolError("flags", f"a start for {receiver_incarnation:#x} without a start")


def check_mark(seqno: int) -> int:
    """Return a seqno that may be zero."""
    if seqno > SEQNO_MAX:
        raise RemoteProtocolError("seqno", f"{seqno} is beyond the largest seqno")
    return seqno
