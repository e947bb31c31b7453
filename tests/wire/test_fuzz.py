"""Hostile bytes: whatever arrives, the decoder gives a datagram or a reason, and nothing else ever.

Half of the mutants get a correct checksum, or the checksum would hide everything behind it.
"""

from collections import Counter
from collections.abc import Callable
from random import Random
from struct import pack_into, unpack_from
from zlib import crc32

import pytest

from gapless.errors import RemoteProtocolError
from gapless.identity import Address
from gapless.run import BEGIN, END, NOT_BACK, PIECE, Run
from gapless.wire import Ack, Data, Frame, Gone, Nak, Tail, decode, encode
from gapless.wire.codec import HEADER_BYTES, REASONS

MUTANTS = 200_000
HALVES = 2
TELLING = (0, 1, 2, 3, 4, 5, 6, 8, 0x10, 0x20, 0x7F, 0x80, 0xFE, 0xFF)

A, B = Address(0xA, 1), Address(0xB, 7)
FRAMES: list[Frame] = [
    Data(Run.of(A, 1, [b"one", b"", b"three"], view=1, sent_ns=5)),
    Data(Run.of(A, 900, [b"again"], NOT_BACK), repair=True),
    Data(Run.of(B, 4, [b"first piece"], PIECE | BEGIN)),
    Data(Run.of(B, 6, [b"last piece"], PIECE | END)),
    Data(Run.of(B, 50, [b"z"] * 30)),
    Ack(A, 17, 200_000),
    Nak(A, ()),
    Nak(B, ((1, 3), (5, 5), (9, 40))),
    Gone(B, 12),
    Tail(A, 3, 80, None),
    Tail(A, 3, 80, 60, 2),
]


def corpus(random: Random) -> list[bytes]:
    alone = [encode(1, A, [frame]) for frame in FRAMES]
    mixes = [random.choices(FRAMES, k=random.randint(2, 5)) for _ in range(20)]
    return alone + [encode(random.getrandbits(64), B, mix) for mix in mixes]


def somewhere(datagram: bytearray, random: Random) -> int:
    """Choose a position; half of the time in a header or a frame's prefix, where a byte means most."""
    if not datagram:
        return 0
    return random.randrange(len(datagram) if random.random() < 0.5 else min(len(datagram), HEADER_BYTES + 44))


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
    """Make the length of a frame, or the count or number in its body, say something else."""
    at = some_frame(datagram, random)
    field = random.choice((2, 2, 20, 40))
    if at is not None and at + field + 2 <= len(datagram):
        (said,) = unpack_from("<H", datagram, at + field)
        edited = random.choice((said - 1, said + 1, said + 12, random.getrandbits(16), 0, 0xFFFF))
        pack_into("<H", datagram, at + field, edited & 0xFFFF)


def resize_frame(datagram: bytearray, random: Random, _seeds: list[bytes]) -> None:
    """Cut a frame short or make it longer, and let its length field tell the truth about it."""
    at = some_frame(datagram, random)
    if at is not None:
        (length,) = unpack_from("<H", datagram, at + 2)
        resized = random.choice((16, random.randint(16, max(16, length)), length + random.randint(1, 24)))
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
        pack_into("<I", datagram, 4, crc32(memoryview(datagram)[8:]))
    return bytes(datagram)


@pytest.mark.parametrize("half", range(HALVES))
def test_hostile_bytes_give_a_datagram_or_a_reason(half: int) -> None:
    random = Random(half)
    seeds = corpus(random)
    seen: Counter[str] = Counter()
    for _ in range(MUTANTS // HALVES):
        datagram = mutant(random, seeds)
        try:
            decoded = decode(datagram)
        except RemoteProtocolError as error:
            seen[error.reason] += 1
        else:
            seen["decoded"] += 1
            assert encode(*decoded) == datagram
    assert seen.keys() == {*REASONS, "decoded"}
    # A fuzzer that stops at the checksum, or that hardly changes anything, tests nothing.
    assert seen["checksum"] < seen.total() // 2
    assert seen.total() // 50 < seen["decoded"] < seen.total() // 2
