"""Hostile bytes: whatever arrives, the decoder gives a datagram or a reason, and nothing else ever.

Half of the mutants get a correct checksum, or the checksum would hide everything behind it.
"""

from collections import Counter
from collections.abc import Callable
from itertools import product
from random import Random
from struct import pack_into, unpack_from
from typing import get_args
from zlib import crc32

import pytest

from gapless.errors import RemoteProtocolError
from gapless.identity import Address, RosterEntry, ViewId
from gapless.run import ACKED, FIRST_FRAGMENT, FRAGMENT, LAST_FRAGMENT, NO_LOOPBACK, Run
from gapless.wire import (
    Ack,
    Close,
    Data,
    Frame,
    Gone,
    Nak,
    OutOfBand,
    OutOfBandAck,
    Stable,
    StreamProgress,
    Tail,
    Unreliable,
    Vote,
    codec,
    decode,
    encode,
)
from gapless.wire.codec import HEADER_BYTES
from gapless.wire.frames import (
    FIRST_CONNECTION_EPOCH,
    Alive,
    AskView,
    Beacon,
    Join,
    Leave,
    MergeAsk,
    MergeReply,
    NameTaken,
    NewView,
    Signature,
    StateAsk,
    StateChunk,
    StateOffer,
    StatePull,
    Suspect,
)
from gapless.wire.primitives import REASONS

MUTANTS = 200_000
HALVES = 2
TELLING = (*range(11), 0x10, 0x20, 0x40, 0x60, 0x7F, 0x80, 0xFE, 0xFF)

A, B = Address(0xA, 1), Address(0xB, 7)
LINK = FIRST_CONNECTION_EPOCH + 0xC
FRAMES: list[Frame] = [
    Data(Run.of(A, 1, [b"one", b"", b"three"], view=1, sent_ns=5)),
    Data(Run.of(A, 900, [b"again"], NO_LOOPBACK), repair=True),
    Data(Run.of(B, 4, [b"first piece"], FRAGMENT | FIRST_FRAGMENT)),
    Data(Run.of(B, 6, [b"last piece"], FRAGMENT | LAST_FRAGMENT)),
    Data(Run.of(B, 50, [b"z"] * 30)),
    Ack(A, 17, 200_000),
    Nak(A, ()),
    Nak(B, ((1, 3), (5, 5), (9, 40))),
    Gone(B, 12),
    Tail(A, 3, 80, None),
    Tail(A, 3, 80, 60, 2),
    Data(Run.of(A, 5, [b"in a view", b"of its own"], ACKED, view=9), epoch=9),
    Data(Run.of(B, 1, [b"to one member"], ACKED | NO_LOOPBACK), epoch=LINK, first=True),
    Data(Run.of(B, 2, [b"piece"], FRAGMENT), True, LINK),
    Ack(B, 2, 200_000, LINK),
    Ack(A, 6, 200_000, 9),
    Nak(B, (), LINK),
    Nak(A, ((7, 7), (9, 10)), 9),
    Gone(A, 4, 9),
    Gone(B, 1, LINK),
    Tail(B, 1, 2, epoch=LINK),
    Tail(A, 4, 10, 6, 3, 9),
    Close(A, LINK),
    Vote(A, 9, (StreamProgress(A, 6, 10), StreamProgress(B, 50, 80))),
    Stable(
        B,
        9,
        (StreamProgress(A, 4, 4), StreamProgress(Address(0xA, 2), 0, 3), StreamProgress(B, 12, 12)),
    ),
    OutOfBand(Run.of(A, 3, [b"ahead", b"of all"], NO_LOOPBACK, view=9, sent_ns=5), 1),
    OutOfBandAck(A, ((2, 2), (4, 6))),
    Unreliable(Run.of(B, 1, [b"maybe", b"", b"not"], view=9, sent_ns=5)),
    Join(RosterEntry(A, "anna\u00e9", b"locator"), relay=True),
    Join(RosterEntry(B)),
    Leave(A),
    Alive(A, None, includes_receiver=False, reply_wanted=True),
    Alive(A, ViewId(3, B), includes_receiver=True),
    Suspect(A, (B, Address(1, 0), Address(0, 1)), slow_receivers=True),
    NewView(A, ViewId(3, B), None, 0, 2, b"whole"),
    NewView(A, ViewId(3, B), ViewId(2, A), 1, 2, b"change"),
    AskView(B),
    Beacon(A, ViewId(3, B), (Address(1, 0), Address(1, 1))),
    MergeAsk(A, 5),
    MergeReply(A, 5, ViewId(3, B), willing=True),
    StateAsk(A, 7, (StreamProgress(A, 6, 10), StreamProgress(B, 50, 80))),
    StateOffer(A, 7, 0, 1, b"offer"),
    StatePull(A, 7, 100, 1000),
    StateChunk(A, 7, 100, b"state"),
    NameTaken(RosterEntry(A, "anna", b"locator"), B),
    Signature(A, 9, 7, bytes(range(64))),
]
"""Every kind of frame, and every kind of epoch where there may be one."""


def corpus(random: Random) -> list[bytes]:
    alone = [encode(1, A, [frame]) for frame in FRAMES]
    data = [frame for frame in FRAMES if isinstance(frame, Data)]
    alone += [encode(1, A, [frame], to, bare=True) for frame in data for to in (None, 7)]
    mixes = [random.choices(FRAMES, k=random.randint(2, 5)) for _ in range(20)]
    return alone + [encode(random.getrandbits(64), B, mix) for mix in mixes]


def somewhere(datagram: bytearray, random: Random) -> int:
    """Choose a position; half of the time in a header or a prefix, where a byte means most."""
    if not datagram:
        return 0
    return random.randrange(
        len(datagram) if random.random() < 0.5 else min(len(datagram), HEADER_BYTES + 44)
    )


def flip_bits(datagram: bytearray, random: Random, _seeds: list[bytes]) -> None:
    for _ in range(random.randint(1, 4)):
        if datagram:
            datagram[somewhere(datagram, random)] ^= 1 << random.randrange(8)


def set_bytes(datagram: bytearray, random: Random, _seeds: list[bytes]) -> None:
    for _ in range(random.randint(1, 3)):
        if datagram:
            datagram[somewhere(datagram, random)] = random.choice(TELLING)


def truncate(datagram: bytearray, random: Random, _seeds: list[bytes]) -> None:
    del datagram[random.randrange(len(datagram) + 1) :]


def extend(datagram: bytearray, random: Random, _seeds: list[bytes]) -> None:
    datagram += random.randbytes(random.randint(1, 60))


def splice(datagram: bytearray, random: Random, seeds: list[bytes]) -> None:
    other = random.choice(seeds)
    datagram[somewhere(datagram, random) :] = other[random.randrange(len(other)) :]


def some_frame(datagram: bytearray, random: Random) -> int | None:
    """Walk from frame to frame and stop at one."""
    starts = []
    at = HEADER_BYTES
    while at + 20 <= len(datagram):
        starts.append(at)
        at += 4 + unpack_from("<H", datagram, at + 2)[0]
    return random.choice(starts) if starts else None


def edit_length(datagram: bytearray, random: Random, _seeds: list[bytes]) -> None:
    """Make the length of a frame, or a count or number in its body, say something else."""
    at = some_frame(datagram, random)
    field = random.choice((2, 2, 20, 24, 28, 40, 48))
    if at is not None and at + field + 2 <= len(datagram):
        (said,) = unpack_from("<H", datagram, at + field)
        edited = random.choice((said - 1, said + 1, said + 12, random.getrandbits(16), 0, 0xFFFF))
        pack_into("<H", datagram, at + field, edited & 0xFFFF)


def resize_frame(datagram: bytearray, random: Random, _seeds: list[bytes]) -> None:
    """Cut a frame short or make it longer, and let its length field tell the truth about it."""
    at = some_frame(datagram, random)
    if at is not None:
        (length,) = unpack_from("<H", datagram, at + 2)
        resized = random.choice(
            (16, random.randint(16, max(16, length)), length + random.randint(1, 24))
        )
        end = at + 4 + length
        datagram[min(end, at + 4 + resized) : end] = bytes(max(0, resized - length))
        pack_into("<H", datagram, at + 2, resized & 0xFFFF)


def repeat_chunk(datagram: bytearray, random: Random, _seeds: list[bytes]) -> None:
    start = somewhere(datagram, random)
    chunk = datagram[start : start + random.randint(1, 60)]
    datagram[start:start] = chunk * random.randint(1, 3)


MUTATIONS: list[Callable[[bytearray, Random, list[bytes]], None]] = [
    flip_bits,
    set_bytes,
    truncate,
    extend,
    splice,
    edit_length,
    resize_frame,
    repeat_chunk,
]


def mutant(random: Random, seeds: list[bytes]) -> bytes:
    datagram = bytearray(random.choice(seeds))
    for mutation in random.choices(MUTATIONS, k=random.choice((1, 1, 1, 2, 3))):
        mutation(datagram, random, seeds)
    if random.random() < 0.5 and len(datagram) >= 8:
        pack_into(
            "<I",
            datagram,
            4,
            crc32(memoryview(datagram)[8 : covered(bytes(datagram))], datagram[3]),
        )
    return bytes(datagram)


def covered(datagram: bytes) -> int:
    """Return where the checksum of a datagram ends."""
    try:
        return (
            codec._checksummed_bytes(datagram, datagram[3])
            if datagram[3] & codec.BARE
            else len(datagram)
        )
    except RemoteProtocolError:
        return len(datagram)


def shape(frame: Frame) -> tuple[type[Frame], str]:
    """Return of which kind a frame is, and which kind of epoch it has."""
    epoch = getattr(frame, "epoch", 0)
    return type(frame), "connection" if epoch >= FIRST_CONNECTION_EPOCH else "view" if epoch else ""


def test_the_corpus_holds_every_kind() -> None:
    assert {type(frame) for frame in FRAMES} == set(get_args(Frame))
    with_epoch = set(product((Data, Ack, Nak, Gone, Tail), ("view", "connection")))
    assert {shape(frame) for frame in FRAMES if shape(frame)[1]} == {
        *with_epoch,
        (Close, "connection"),
    }
    assert {Data, Ack, Nak, Gone, Tail} < {type(frame) for frame in FRAMES if not shape(frame)[1]}


@pytest.mark.parametrize("half", range(HALVES))
def test_hostile_bytes_give_a_datagram_or_a_reason(half: int) -> None:
    random = Random(half)
    seeds = corpus(random)
    seen: Counter[str] = Counter()
    shapes: Counter[tuple[type[Frame], str]] = Counter()
    for _ in range(MUTANTS // HALVES):
        datagram = mutant(random, seeds)
        try:
            decoded = decode(datagram)
        except RemoteProtocolError as error:
            seen[error.reason] += 1
        else:
            seen["decoded"] += 1
            assert encode(*decoded) == datagram
            shapes.update(map(shape, decoded.frames))
    assert seen.keys() == {*REASONS, "decoded"}
    assert shapes.keys() == set(map(shape, FRAMES))
    # A fuzzer that stops at the checksum, or that hardly changes anything, tests nothing.
    assert seen["checksum"] < seen.total() // 2
    assert seen.total() // 50 < seen["decoded"] < seen.total() // 2
