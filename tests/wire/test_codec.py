"""The wire format, from three sides: golden bytes, round trips, refusals."""

import tracemalloc
from collections.abc import Iterable
from struct import pack
from zlib import crc32

import pytest
from hypothesis import example, given, strategies as st

from gapless.errors import LocalProtocolError, RemoteProtocolError
from gapless.identity import U32_MAX, U64_MAX, Address
from gapless.run import BEGIN, END, NOT_BACK, PIECE, Run
from gapless.wire import Ack, Data, Datagram, Frame, Gone, Nak, Tail, codec, decode, encode
from gapless.wire.codec import REASONS, SEQNO_MAX

GROUP = 0xA1A2A3A4A5A6A7A8
SENDER = Address(0xB1B2B3B4B5B6B7B8, 0xC1C2C3C4C5C6C7C8)
ORIGIN = Address(0x0102030405060708, 0x1112131415161718)

HEADER_HEX = "a8a7a6a5a4a3a2a1 b8b7b6b5b4b3b2b1 c8c7c6c5c4c3c2c1"
ORIGIN_HEX = "0807060504030201 1817161514131211"

GOLDEN: list[tuple[Frame, str]] = [
    (
        Data(Run.of(ORIGIN, 0x21, [b"hi", b"", b"you"], view=7, sent_ns=0x31)),
        f"01 00 3100 {ORIGIN_HEX} 2100000000000000 07000000 3100000000000000 0300 0200 0000 0300 6869 796f75",
    ),
    (
        Data(Run.of(ORIGIN, 0x0102030405060708, [b"!"], NOT_BACK, view=U32_MAX, sent_ns=U64_MAX), repair=True),
        f"01 88 2900 {ORIGIN_HEX} 0807060504030201 ffffffff ffffffffffffffff 0100 0100 21",
    ),
    (
        Data(Run.of(ORIGIN, 1, [b"p"], PIECE | BEGIN)),
        f"01 03 2900 {ORIGIN_HEX} 0100000000000000 00000000 0000000000000000 0100 0100 70",
    ),
    (
        Data(Run.of(ORIGIN, 2, [b"q"], PIECE)),
        f"01 01 2900 {ORIGIN_HEX} 0200000000000000 00000000 0000000000000000 0100 0100 71",
    ),
    (
        Data(Run.of(ORIGIN, 3, [b"r"], PIECE | END | NOT_BACK)),
        f"01 0d 2900 {ORIGIN_HEX} 0300000000000000 00000000 0000000000000000 0100 0100 72",
    ),
    (Ack(ORIGIN, 0x0A0B, 0x0C0D), f"02 00 1c00 {ORIGIN_HEX} 0b0a000000000000 0d0c0000"),
    (Nak(ORIGIN, ()), f"03 00 1200 {ORIGIN_HEX} 0000"),
    (
        Nak(ORIGIN, ((5, 5), (7, 0x1006))),
        f"03 00 2a00 {ORIGIN_HEX} 0200 0500000000000000 00000000 0700000000000000 ff0f0000",
    ),
    (Gone(ORIGIN, SEQNO_MAX), f"04 00 1800 {ORIGIN_HEX} ffffffffffffff7f"),
    (Tail(ORIGIN, 2, 9), f"05 00 3000 {ORIGIN_HEX} 0200000000000000 0900000000000000 {'00' * 16}"),
    (Tail(ORIGIN, 2, 9, 4, 7), f"05 01 3000 {ORIGIN_HEX} 0200000000000000 0900000000000000 04{'00' * 7} 07{'00' * 7}"),
    (Tail(ORIGIN, 0, 0, 0, 0), f"05 01 3000 {ORIGIN_HEX} {'00' * 32}"),
]


def raw(*frames: bytes, magic: bytes = b"GL", version: int = 1, flags: int = 0) -> bytes:
    """Build a datagram by hand, so that the tests do not ask the codec what it thinks."""
    rest = bytes.fromhex(HEADER_HEX) + b"".join(frames)
    return pack("<2sBBI", magic, version, flags, crc32(rest)) + rest


def raw_frame(kind: int, body: bytes, flags: int = 0, length: int | None = None) -> bytes:
    head = pack("<BBH", kind, flags, 16 + len(body) if length is None else length)
    return head + bytes.fromhex(ORIGIN_HEX) + body


def raw_data(
    first: int = 1,
    lengths: Iterable[int] = (1,),
    payload: bytes = b"x",
    flags: int = 0,
    count: int | None = None,
) -> bytes:
    table = list(lengths)
    body = (
        pack("<QIQH", first, 0, 0, len(table) if count is None else count) + pack(f"<{len(table)}H", *table) + payload
    )
    return raw_frame(1, body, flags)


def raw_nak(*ranges: tuple[int, int], count: int | None = None) -> bytes:
    return raw_frame(
        3, pack("<H", len(ranges) if count is None else count) + b"".join(pack("<QI", *entry) for entry in ranges)
    )


def raw_tail(low: int, high: int, start: int, flags: int = 0, reader: int = 0) -> bytes:
    return raw_frame(5, pack("<QQQQ", low, high, start, reader), flags)


def reason_of(datagram: bytes) -> str:
    with pytest.raises(RemoteProtocolError) as caught:
        decode(datagram)
    assert str(caught.value).startswith(caught.value.reason)
    return caught.value.reason


# The exact layout


@pytest.mark.parametrize(("frame", "layout"), GOLDEN, ids=[f"{frame}" for frame, _ in GOLDEN])
def test_each_frame_has_exactly_these_bytes(frame: Frame, layout: str) -> None:
    expected = raw(bytes.fromhex(layout))
    assert encode(GROUP, SENDER, [frame]) == expected
    assert decode(expected) == Datagram(GROUP, SENDER, (frame,))
    assert codec.size_bytes(frame) == len(bytes.fromhex(layout))


def test_a_datagram_has_exactly_these_bytes() -> None:
    datagram = encode(GROUP, SENDER, [frame for frame, _ in GOLDEN[5:7]])
    assert datagram.hex() == (
        "474c" "01" "00" "26d56db4" + HEADER_HEX.replace(" ", "")
        + "".join(layout.replace(" ", "") for _, layout in GOLDEN[5:7])
    )  # fmt: skip
    assert crc32(datagram[8:]) == 0xB46DD526


def test_the_sizes_that_others_compute_with() -> None:
    assert codec.HEADER_BYTES == 32
    assert codec.DATA_OVERHEAD_BYTES == 42
    assert codec.NAK_OVERHEAD_BYTES == 22
    assert codec.RANGE_BYTES == 12
    assert codec.DATAGRAM_MAX_BYTES == 65_507


@pytest.mark.parametrize("max_frame_bytes", [200, 1400, 60_000, 65_507])
def test_a_run_that_fills_its_room_fills_the_frame(max_frame_bytes: int) -> None:
    room_bytes = codec.run_room_bytes(max_frame_bytes)
    frame = Data(Run.of(ORIGIN, 1, [b"x" * (room_bytes - 2)]))
    assert len(encode(GROUP, SENDER, [frame])) == max_frame_bytes


def test_kinds_kept_free_do_not_meet_the_kinds_in_use() -> None:
    free = {*codec.MEMBERSHIP_KINDS, *codec.UNICAST_KINDS}
    assert len(free) == 32
    assert free.isdisjoint({codec.DATA, codec.ACK, codec.NAK, codec.GONE, codec.TAIL})


def test_a_nak_for_a_million_messages_fits_a_packet() -> None:
    """S-18: what a request costs does not grow with what is missing, only with the number of gaps."""
    gaps = [(first, first + 9_998) for first in range(1, 1_000_000, 10_000)]
    datagram = encode(GROUP, SENDER, [Nak(ORIGIN, tuple(gaps))])
    assert len(datagram) == 32 + 22 + 100 * 12 <= 1400


# Round trips

u32 = st.integers(0, U32_MAX)
u64 = st.integers(0, U64_MAX)
marks = st.integers(0, SEQNO_MAX)
addresses = st.builds(Address, u64, u64)


@st.composite
def data_frames(draw: st.DrawFn) -> Data:
    messages = draw(st.lists(st.binary(max_size=20), min_size=1, max_size=20))
    first = draw(st.integers(1, SEQNO_MAX - len(messages) + 1))
    pieces = [PIECE, PIECE | BEGIN, PIECE | END] if len(messages) == 1 else []
    flags = draw(st.sampled_from([0, *pieces])) | draw(st.sampled_from([0, NOT_BACK]))
    return Data(Run.of(draw(addresses), first, messages, flags, draw(u32), draw(u64)), draw(st.booleans()))


@st.composite
def nak_frames(draw: st.DrawFn) -> Nak:
    ranges: list[tuple[int, int]] = []
    floor = draw(st.integers(0, SEQNO_MAX - 2**40))
    for gap, more in draw(st.lists(st.tuples(st.integers(1, 5), st.integers(0, U32_MAX)), max_size=20)):
        ranges.append((floor + gap, floor + gap + more))
        floor = ranges[-1][1]
    return Nak(draw(addresses), tuple(ranges))


@st.composite
def tail_frames(draw: st.DrawFn) -> Tail:
    low, high = sorted((draw(marks), draw(marks)))
    start = draw(st.none() | st.integers(0, high))
    return Tail(draw(addresses), low, high, start, 0 if start is None else draw(st.integers(0, U64_MAX)))


frame_kinds: dict[str, st.SearchStrategy[Frame]] = {
    "data": data_frames(),
    "ack": st.builds(Ack, addresses, marks, u32),
    "nak": nak_frames(),
    "gone": st.builds(Gone, addresses, marks),
    "tail": tail_frames(),
}
frame_lists = st.lists(st.one_of(*frame_kinds.values()), min_size=1, max_size=6)


def assert_round_trip(group: int, sender: Address, frames: list[Frame]) -> None:
    datagram = encode(group, sender, frames)
    assert decode(datagram) == Datagram(group, sender, tuple(frames))
    assert len(datagram) == codec.HEADER_BYTES + sum(map(codec.size_bytes, frames))


@pytest.mark.parametrize("kind", frame_kinds)
def test_each_kind_survives_the_wire(kind: str) -> None:
    @given(u64, addresses, frame_kinds[kind])
    def check(group: int, sender: Address, frame: Frame) -> None:
        assert_round_trip(group, sender, [frame])

    check()


@given(u64, addresses, frame_lists)
def test_any_mix_of_frames_survives_the_wire(group: int, sender: Address, frames: list[Frame]) -> None:
    assert_round_trip(group, sender, frames)


EXTREMES: list[Frame] = [
    Data(Run.of(ORIGIN, SEQNO_MAX, [b"last"])),
    Data(Run.of(ORIGIN, SEQNO_MAX - 2, [b"", b"", b""])),
    Data(Run.of(ORIGIN, 1, [b""] * 32_748)),
    *(Data(Run.of(ORIGIN, 1, [b"ab"] * count)) for count in (62, 63, 64, 65, 5000)),
    Data(Run.of(ORIGIN, 1, [b"x" * 65_495])),
    Ack(ORIGIN, SEQNO_MAX, U32_MAX),
    Ack(ORIGIN, 0, 0),
    Nak(ORIGIN, ((1, 1), (SEQNO_MAX, SEQNO_MAX))),
    Nak(ORIGIN, ((SEQNO_MAX - U32_MAX, SEQNO_MAX),)),
    Nak(ORIGIN, tuple((seqno, seqno) for seqno in range(1, 5460))),
    Gone(ORIGIN, 0),
    Tail(ORIGIN, SEQNO_MAX, SEQNO_MAX, SEQNO_MAX, U64_MAX),
    Tail(Address(0, 0), 0, SEQNO_MAX, None),
]


@pytest.mark.parametrize("frame", EXTREMES, ids=[f"{frame}"[:40] for frame in EXTREMES])
def test_the_extremes_survive_the_wire(frame: Frame) -> None:
    assert_round_trip(0, Address(U64_MAX, 0), [frame])


# What must not be sent

wild = st.integers(-2, 3) | st.integers(SEQNO_MAX - 2, SEQNO_MAX + 2) | st.integers(U64_MAX - 1, U64_MAX + 2)
wild_addresses = st.builds(Address, wild, wild)
wild_frames: st.SearchStrategy[Frame] = st.one_of(
    st.builds(
        Data,
        st.builds(
            Run.of, wild_addresses, wild, st.just([b"a"]) | st.just([b"a", b"b"]), st.integers(-1, 257), wild, wild
        ),
        st.booleans(),
    ),
    st.builds(Ack, wild_addresses, wild, wild),
    st.builds(Nak, wild_addresses, st.lists(st.tuples(wild, wild), max_size=3).map(tuple)),
    st.builds(Gone, wild_addresses, wild),
    st.builds(Tail, wild_addresses, wild, wild, st.none() | wild),
)


@given(wild, wild_addresses, st.lists(wild_frames, max_size=2))
@example(GROUP, SENDER, [Data(Run.of(ORIGIN, 1, [b"x" * 65_496]))])
@example(GROUP, SENDER, [Data(Run.of(ORIGIN, 1, [b""] * 65_536))])
@example(GROUP, SENDER, [Nak(ORIGIN, tuple((seqno, seqno) for seqno in range(1, 5462)))])
@example(GROUP, SENDER, [Nak(ORIGIN, ((1, U32_MAX + 2),))])
@example(GROUP, SENDER, [Data(Run.of(ORIGIN, 1, [b"a"], flags=codec.REPAIR))])
@example(GROUP, SENDER, [])
def test_what_cannot_be_received_is_refused_at_the_sender(group: int, sender: Address, frames: list[Frame]) -> None:
    try:
        datagram = encode(group, sender, frames)
    except LocalProtocolError:
        return
    assert decode(datagram) == Datagram(group, sender, tuple(frames))


BAD_FRAMES: list[Frame] = [
    Data(Run.of(ORIGIN, 0, [b"a"])),
    Data(Run.of(ORIGIN, SEQNO_MAX, [b"a", b"b"])),
    Data(Run.of(ORIGIN, 1, [b"a", b"b"], flags=PIECE)),
    Data(Run.of(ORIGIN, 1, [b"a"], flags=PIECE | BEGIN | END)),
    Data(Run.of(ORIGIN, 1, [b"a"], flags=0x10)),
    Data(Run.of(ORIGIN, 1, [b"x" * 65_496])),
    Ack(ORIGIN, SEQNO_MAX + 1, 0),
    Ack(ORIGIN, 1, U32_MAX + 1),
    Nak(ORIGIN, ((3, 2),)),
    Nak(ORIGIN, ((5, 5), (5, 6))),
    Nak(ORIGIN, ((0, 2),)),
    Gone(ORIGIN, -1),
    Gone(Address(-1, 0), 1),
    Tail(ORIGIN, 3, 2, None),
    Tail(ORIGIN, 1, 2, 3),
    Tail(ORIGIN, 1, 2, None, 3),
]


@pytest.mark.parametrize("frame", BAD_FRAMES, ids=[f"{frame}"[:60] for frame in BAD_FRAMES])
def test_a_frame_that_says_nonsense_is_not_sent(frame: Frame) -> None:
    with pytest.raises(LocalProtocolError):
        encode(GROUP, SENDER, [frame])


def test_a_datagram_without_a_frame_is_not_sent() -> None:
    with pytest.raises(LocalProtocolError, match="at least one frame"):
        encode(GROUP, SENDER, [])


# What must not be believed

ACK = raw_frame(2, pack("<QI", 1, 1))
REFUSED: list[tuple[str, str, bytes]] = [
    ("short", "nothing at all", b""),
    ("short", "a header without its last byte", raw(ACK)[:31]),
    ("magic", "another protocol", raw(ACK, magic=b"GX")),
    ("version", "an older version", raw(ACK, version=0)),
    ("version", "a newer version", raw(ACK, version=2)),
    ("sealed", "an envelope that this member cannot open", raw(ACK, flags=0x01)),
    ("flags", "an unknown header flag", raw(ACK, flags=0x02)),
    ("flags", "a known and an unknown header flag", raw(ACK, flags=0x81)),
    ("flags", "a flag on an ACK", raw(raw_frame(2, pack("<QI", 1, 1), flags=1))),
    ("flags", "a flag on a NAK", raw(raw_frame(3, pack("<H", 0), flags=1))),
    ("flags", "a flag on a GONE", raw(raw_frame(4, pack("<Q", 1), flags=1))),
    ("flags", "an unknown flag on a TAIL", raw(raw_tail(1, 1, 0, flags=2))),
    ("flags", "a TAIL for one reader without a start", raw(raw_tail(1, 1, 0, reader=1))),
    ("flags", "an unknown flag on a DATA", raw(raw_data(flags=0x10))),
    ("flags", "an unknown flag on a repair", raw(raw_data(flags=0xC0))),
    ("checksum", "a flipped bit in the checksum", raw(ACK)[:4] + bytes([raw(ACK)[4] ^ 1]) + raw(ACK)[5:]),
    ("checksum", "a flipped bit at the end", raw(ACK)[:-1] + bytes([raw(ACK)[-1] ^ 1])),
    ("empty", "no frame", raw()),
    ("length", "less than a prefix", raw(ACK, b"\x02")),
    ("length", "a prefix without its last byte", raw(ACK[:19])),
    ("length", "a length beyond the datagram", raw(raw_frame(2, pack("<QI", 1, 1), length=29))),
    ("length", "a length within the prefix", raw(raw_frame(2, pack("<QI", 1, 1), length=15))),
    ("length", "a length within the prefix of an unknown kind", raw(raw_frame(9, b"", length=15))),
    ("length", "a length of zero", raw(raw_frame(2, pack("<QI", 1, 1), length=0))),
    ("length", "an ACK that is too short", raw(raw_frame(2, pack("<QH", 1, 1)))),
    ("length", "an ACK that is too long", raw(raw_frame(2, pack("<QQ", 1, 1)))),
    ("length", "a NAK without a count", raw(raw_frame(3, b""), ACK)),
    ("length", "a NAK with half a count", raw(raw_frame(3, b"\x00"), ACK)),
    ("length", "a NAK without a count at the end", raw(ACK, raw_frame(3, b""))),
    ("length", "a NAK with half a count at the end", raw(ACK, raw_frame(3, b"\x00"))),
    ("length", "a NAK with fewer ranges than it says", raw(raw_nak((1, 0), count=2), ACK)),
    ("length", "a NAK with more ranges than it says", raw(raw_nak((1, 0), (3, 0), count=1))),
    ("length", "a GONE that is too short", raw(raw_frame(4, b"\x01"))),
    ("length", "a GONE that is too long", raw(raw_frame(4, pack("<QQ", 1, 1)))),
    ("length", "a TAIL that is too short", raw(raw_frame(5, pack("<QQ", 1, 1)))),
    ("length", "a DATA without its fixed part", raw(raw_frame(1, b"\x01" * 21), ACK)),
    ("length", "a DATA without its fixed part at the end", raw(ACK, raw_frame(1, b"\x01" * 21))),
    ("length", "lengths that promise more", raw(raw_data(lengths=(1, 2), payload=b"xy"), ACK)),
    ("length", "lengths that promise less", raw(raw_data(lengths=(1, 2), payload=b"wxyz"))),
    ("kind", "kind zero", raw(raw_frame(0, pack("<QI", 1, 1)))),
    ("kind", "the kind after the last", raw(raw_frame(6, pack("<QI", 1, 1)))),
    ("kind", "a kind kept free for membership", raw(raw_frame(0x10, b""))),
    ("kind", "a kind kept free for unicast", raw(raw_frame(0x20, b""))),
    ("count", "a DATA with no message", raw(raw_data(lengths=(), payload=b""))),
    ("count", "more messages than the frame has room for", raw(raw_data(count=3), ACK)),
    ("count", "as many messages as can be said", raw(raw_data(count=0xFFFF))),
    ("seqno", "a run that starts at zero", raw(raw_data(first=0))),
    ("seqno", "a run beyond the largest seqno", raw(raw_data(first=SEQNO_MAX, lengths=(0, 1)))),
    ("seqno", "a run that ends beyond it", raw(raw_data(first=SEQNO_MAX - 1, lengths=(0, 0, 1)))),
    ("seqno", "a long run that ends beyond it", raw(raw_data(SEQNO_MAX - 29_998, [0] * 30_000, b""))),
    ("seqno", "a run at the end of 64 bits", raw(raw_data(first=U64_MAX))),
    ("seqno", "an ACK beyond the largest seqno", raw(raw_frame(2, pack("<QI", SEQNO_MAX + 1, 0)))),
    ("seqno", "a GONE beyond the largest seqno", raw(raw_frame(4, pack("<Q", SEQNO_MAX + 1)))),
    ("seqno", "a TAIL with low above high", raw(raw_tail(3, 2, 0))),
    ("seqno", "a TAIL beyond the largest seqno", raw(raw_tail(3, SEQNO_MAX + 1, 0))),
    ("seqno", "a TAIL that starts beyond high", raw(raw_tail(1, 2, 3, flags=1))),
    ("seqno", "a TAIL with a start that does not count", raw(raw_tail(1, 2, 1))),
    ("range", "a range that starts at zero", raw(raw_nak((0, 5)))),
    ("range", "a range beyond the largest seqno", raw(raw_nak((SEQNO_MAX, 1)))),
    ("range", "ranges that overlap", raw(raw_nak((1, 5), (6, 0), (6, 0)))),
    ("range", "ranges that fall", raw(raw_nak((7, 0), (3, 0)))),
    ("piece", "the first piece without the piece flag", raw(raw_data(flags=BEGIN))),
    ("piece", "the last piece without the piece flag", raw(raw_data(flags=END | NOT_BACK))),
    ("piece", "first and last piece at once", raw(raw_data(flags=PIECE | BEGIN | END))),
    ("piece", "two pieces in one run", raw(raw_data(lengths=(1, 1), payload=b"xy", flags=PIECE))),
]


@pytest.mark.parametrize(
    ("reason", "datagram"),
    [(reason, datagram) for reason, _, datagram in REFUSED],
    ids=[f"{reason}: {what}" for reason, what, _ in REFUSED],
)
def test_refused_with_its_reason(reason: str, datagram: bytes) -> None:
    assert reason_of(datagram) == reason


def test_every_reason_has_a_test() -> None:
    assert {reason for reason, _, _ in REFUSED} == set(REASONS)
    assert len(set(REASONS)) == len(REASONS)


def test_ranges_that_touch_are_allowed() -> None:
    assert decode(raw(raw_nak((1, 4), (6, 0)))).frames == (Nak(ORIGIN, ((1, 5), (6, 6))),)


def test_one_bad_frame_spoils_the_datagram() -> None:
    assert reason_of(raw(ACK, raw_frame(9, b""), ACK)) == "kind"


@given(frame_lists, st.data())
def test_every_truncation_is_refused(frames: list[Frame], data: st.DataObject) -> None:
    datagram = encode(GROUP, SENDER, frames)
    kept = data.draw(st.integers(0, len(datagram) - 1))
    assert reason_of(datagram[:kept]) == ("short" if kept < 32 else "checksum")


def test_every_truncation_of_every_kind_is_refused_even_with_a_good_checksum() -> None:
    whole = [bytes.fromhex(layout) for _, layout in GOLDEN]
    body = b"".join(whole)
    ends = {sum(map(len, whole[:count])): count for count in range(len(whole) + 1)}
    for kept in range(len(body)):
        if kept == 0:
            assert reason_of(raw()) == "empty"
        elif kept in ends:
            assert len(decode(raw(body[:kept])).frames) == ends[kept]
        else:
            assert reason_of(raw(body[:kept])) == "length"


@given(frame_lists, st.integers(0), st.integers(0, 7))
def test_every_flipped_bit_is_noticed(frames: list[Frame], where: int, bit: int) -> None:
    datagram = bytearray(encode(GROUP, SENDER, frames))
    datagram[where % len(datagram)] ^= 1 << bit
    reason = reason_of(bytes(datagram))
    assert reason in {"magic", "version", "sealed", "flags", "checksum"}


BOASTS = {
    "messages": raw(raw_data(count=0xFFFF)),
    "messages, with the length to match": raw(raw_frame(1, pack("<QIQH", 1, 0, 0, 0xFFFF), length=0xFFFF)),
    "ranges": raw(raw_nak(count=0xFFFF)),
    "ranges, with the length to match": raw(raw_frame(3, pack("<H", 0xFFFF), length=0xFFFF)),
    "bytes in a message": raw(raw_data(lengths=(0xFFFF,), payload=b"")),
}


@pytest.mark.parametrize("boast", BOASTS)
def test_a_boast_allocates_nothing(boast: str) -> None:
    reason_of(BOASTS[boast])  # what is made once and kept, such as compiled patterns, is not the boast's doing
    tracemalloc.start()
    try:
        reason_of(BOASTS[boast])
        _, peak_bytes = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak_bytes < 20_000
