"""Frames and datagrams for the tests: golden bytes, bytes made by hand, and any frame at all."""

from collections.abc import Iterable
from struct import pack
from zlib import crc32

import pytest
from hypothesis import strategies as st

from gapless.errors import RemoteProtocolError
from gapless.identity import U32_MAX, U64_MAX, Address, RosterEntry, ViewId
from gapless.run import ACKED, FIRST_FRAGMENT, FRAGMENT, LAST_FRAGMENT, NO_LOOPBACK, PRIVATE, Run
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
    decode,
)
from gapless.wire.codec import SEQNO_MAX
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

GROUP = 0xA1A2A3A4A5A6A7A8
SENDER = Address(0xB1B2B3B4B5B6B7B8, 0xC1C2C3C4C5C6C7C8)
ORIGIN = Address(0x0102030405060708, 0x1112131415161718)

LINK = FIRST_CONNECTION_EPOCH + 0x0A0B
"""The epoch of a connection."""

HEADER_HEX = "a8a7a6a5a4a3a2a1 b8b7b6b5b4b3b2b1 c8c7c6c5c4c3c2c1"
ORIGIN_HEX = "0807060504030201 1817161514131211"
LINK_HEX = "0b0a000000000080"

FIRST, SECOND = Address(1, 2), Address(3, 4)
FIRST_HEX, SECOND_HEX = f"01{'00' * 7} 02{'00' * 7}", f"03{'00' * 7} 04{'00' * 7}"
VIEW, VIEW_HEX = ViewId(0x0102, FIRST), f"02010000 {FIRST_HEX}"
BASE_VIEW, BASE_VIEW_HEX = ViewId(0x0101, SECOND), f"01010000 {SECOND_HEX}"

GOLDEN: list[tuple[Frame, str]] = [
    (
        Data(Run.of(ORIGIN, 0x21, [b"hi", b"", b"you"], view=7, sent_ns=0x31)),
        (
            f"01 00 3100 {ORIGIN_HEX} 2100000000000000 07000000 3100000000000000 "
            "0300 0200 0000 0300 6869 796f75"
        ),
    ),
    (
        Data(
            Run.of(ORIGIN, 0x0102030405060708, [b"!"], NO_LOOPBACK, view=U32_MAX, sent_ns=U64_MAX),
            repair=True,
        ),
        f"01 88 2900 {ORIGIN_HEX} 0807060504030201 ffffffff ffffffffffffffff 0100 0100 21",
    ),
    (
        Data(Run.of(ORIGIN, 1, [b"p"], FRAGMENT | FIRST_FRAGMENT)),
        f"01 03 2900 {ORIGIN_HEX} 0100000000000000 00000000 0000000000000000 0100 0100 70",
    ),
    (
        Data(Run.of(ORIGIN, 2, [b"q"], FRAGMENT)),
        f"01 01 2900 {ORIGIN_HEX} 0200000000000000 00000000 0000000000000000 0100 0100 71",
    ),
    (
        Data(Run.of(ORIGIN, 3, [b"r"], FRAGMENT | LAST_FRAGMENT | NO_LOOPBACK)),
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
    (
        Tail(ORIGIN, 2, 9, 4, 7),
        f"05 01 3000 {ORIGIN_HEX} 0200000000000000 0900000000000000 04{'00' * 7} 07{'00' * 7}",
    ),
    (Tail(ORIGIN, 0, 0, 0, 0), f"05 01 3000 {ORIGIN_HEX} {'00' * 32}"),
    (
        Data(Run.of(ORIGIN, 4, [b"s", b"t"], ACKED), epoch=9),
        (
            f"01 50 3400 {ORIGIN_HEX} 0900000000000000 0400000000000000 "
            f"{'00' * 12} 0200 0100 0100 73 74"
        ),
    ),
    (
        Data(
            Run.of(ORIGIN, 5, [b"u"], FRAGMENT | LAST_FRAGMENT | NO_LOOPBACK | ACKED),
            True,
            LINK,
            True,
        ),
        f"01 fd 3100 {ORIGIN_HEX} {LINK_HEX} 0500000000000000 {'00' * 12} 0100 0100 75",
    ),
    (
        Ack(ORIGIN, 0x0A0B, 0x0C0D, LINK),
        f"02 40 2400 {ORIGIN_HEX} {LINK_HEX} 0b0a000000000000 0d0c0000",
    ),
    (Nak(ORIGIN, (), U32_MAX), f"03 40 1a00 {ORIGIN_HEX} ffffffff00000000 0000"),
    (
        Nak(ORIGIN, ((5, 6),), 1),
        f"03 40 2600 {ORIGIN_HEX} 0100000000000000 0100 0500000000000000 01000000",
    ),
    (Gone(ORIGIN, 3, LINK), f"04 40 2000 {ORIGIN_HEX} {LINK_HEX} 0300000000000000"),
    (
        Tail(ORIGIN, 2, 9, epoch=LINK),
        f"05 40 3800 {ORIGIN_HEX} {LINK_HEX} 02{'00' * 7} 09{'00' * 7} {'00' * 16}",
    ),
    (
        Tail(ORIGIN, 0, 1, 0, 1, 7),
        f"05 41 3800 {ORIGIN_HEX} 07{'00' * 7} {'00' * 8} 01{'00' * 15} 01{'00' * 7}",
    ),
    (
        Vote(ORIGIN, 7, (StreamProgress(Address(1, 2), 3, 4), StreamProgress(ORIGIN, 0, 5))),
        (
            f"06 00 5600 {ORIGIN_HEX} 07000000 0200 "
            f"01{'00' * 7} 02{'00' * 7} 03{'00' * 7} 04{'00' * 7}"
            f"{ORIGIN_HEX} {'00' * 8} 05{'00' * 7}"
        ),
    ),
    (
        Stable(ORIGIN, U32_MAX, (StreamProgress(ORIGIN, SEQNO_MAX, SEQNO_MAX),)),
        f"07 00 3600 {ORIGIN_HEX} ffffffff 0100 {ORIGIN_HEX} {'ffffffffffffff7f' * 2}",
    ),
    (
        OutOfBand(Run.of(ORIGIN, 6, [b"v", b"w"], NO_LOOPBACK | PRIVATE, view=3, sent_ns=4), 5),
        (
            f"08 28 3400 {ORIGIN_HEX} 05{'00' * 7} 06{'00' * 7} "
            f"03000000 04{'00' * 7} 0200 0100 0100 76 77"
        ),
    ),
    (OutOfBandAck(ORIGIN, ((5, 6),)), f"09 00 1e00 {ORIGIN_HEX} 0100 0500000000000000 01000000"),
    (
        Unreliable(Run.of(ORIGIN, 1, [b"", b"x"], view=3, sent_ns=4)),
        f"0a 00 2b00 {ORIGIN_HEX} 01{'00' * 7} 03000000 04{'00' * 7} 0200 0000 0100 78",
    ),
    (Close(ORIGIN, LINK), f"20 40 1800 {ORIGIN_HEX} {LINK_HEX}"),
    (Join(RosterEntry(ORIGIN)), f"10 00 1200 {ORIGIN_HEX} 00 00"),
    (
        Join(RosterEntry(ORIGIN, "zoé", b"\x01\x02"), relay=True),
        f"10 01 1800 {ORIGIN_HEX} 04 02 7a6fc3a9 0102",
    ),
    (Leave(ORIGIN), f"11 00 1000 {ORIGIN_HEX}"),
    (Alive(ORIGIN, None, includes_receiver=False), f"12 00 1000 {ORIGIN_HEX}"),
    (Alive(ORIGIN, None, includes_receiver=False, reply_wanted=True), f"12 04 1000 {ORIGIN_HEX}"),
    (Alive(ORIGIN, VIEW, includes_receiver=False), f"12 01 2400 {ORIGIN_HEX} {VIEW_HEX}"),
    (
        Alive(ORIGIN, VIEW, includes_receiver=False, expelled=True),
        f"12 09 2400 {ORIGIN_HEX} {VIEW_HEX}",
    ),
    (
        Alive(ORIGIN, VIEW, includes_receiver=True, reply_wanted=True),
        f"12 07 2400 {ORIGIN_HEX} {VIEW_HEX}",
    ),
    (Suspect(ORIGIN, (SECOND, FIRST)), f"13 00 3200 {ORIGIN_HEX} 0200 {SECOND_HEX} {FIRST_HEX}"),
    (Suspect(ORIGIN, (FIRST,), slow_receivers=True), f"13 01 2200 {ORIGIN_HEX} 0100 {FIRST_HEX}"),
    (
        NewView(ORIGIN, VIEW, None, 0, 1, b"abc"),
        f"14 00 2b00 {ORIGIN_HEX} {VIEW_HEX} 0000 0100 616263",
    ),
    (
        NewView(ORIGIN, VIEW, BASE_VIEW, 0x0201, 0x0301, b"d"),
        f"14 01 3d00 {ORIGIN_HEX} {VIEW_HEX} 0102 0103 {BASE_VIEW_HEX} 64",
    ),
    (
        NameTaken(RosterEntry(ORIGIN, "n", b"\x01"), SECOND),
        f"1d 00 2400 {ORIGIN_HEX} {SECOND_HEX} 01 01 6e 01",
    ),
    (AskView(ORIGIN), f"15 00 1000 {ORIGIN_HEX}"),
    (Beacon(ORIGIN, VIEW, ()), f"16 00 2600 {ORIGIN_HEX} {VIEW_HEX} 0000"),
    (Beacon(ORIGIN, VIEW, (SECOND,)), f"16 00 3600 {ORIGIN_HEX} {VIEW_HEX} 0100 {SECOND_HEX}"),
    (MergeAsk(ORIGIN, 0x0A0B), f"17 00 1800 {ORIGIN_HEX} 0b0a000000000000"),
    (
        MergeReply(ORIGIN, 0x0A0B, VIEW, willing=False),
        f"18 00 2c00 {ORIGIN_HEX} 0b0a000000000000 {VIEW_HEX}",
    ),
    (
        MergeReply(ORIGIN, 0x0A0B, VIEW, willing=True),
        f"18 01 2c00 {ORIGIN_HEX} 0b0a000000000000 {VIEW_HEX}",
    ),
    (
        Signature(ORIGIN, 0x0A0B, 7, b"s" * 64),
        f"1e 00 5c00 {ORIGIN_HEX} 0b0a000000000000 07000000 {'73' * 64}",
    ),
    (StateAsk(ORIGIN, 0x0A0B, ()), f"19 00 1a00 {ORIGIN_HEX} 0b0a000000000000 0000"),
    (
        StateAsk(ORIGIN, 0x0A0B, (StreamProgress(FIRST, 5, 6),)),
        f"19 00 3a00 {ORIGIN_HEX} 0b0a000000000000 0100 {FIRST_HEX} 05{'00' * 7} 06{'00' * 7}",
    ),
    (
        StateOffer(ORIGIN, 0x0A0B, 1, 2, b"ef"),
        f"1a 00 1e00 {ORIGIN_HEX} 0b0a000000000000 0100 0200 6566",
    ),
    (
        StatePull(ORIGIN, 0x0A0B, 0x0C, 0x0D),
        f"1b 00 2400 {ORIGIN_HEX} 0b0a000000000000 0c{'00' * 7} 0d000000",
    ),
    (
        StateChunk(ORIGIN, 0x0A0B, 0x0C, b"gh"),
        f"1c 00 2200 {ORIGIN_HEX} 0b0a000000000000 0c{'00' * 7} 6768",
    ),
]


def raw(*frames: bytes, magic: bytes = b"GL", version: int = 1, flags: int = 0) -> bytes:
    """Build a datagram by hand: tests of the codec must not use it."""
    rest = bytes.fromhex(HEADER_HEX) + b"".join(frames)
    return pack("<2sBBI", magic, version, flags, crc32(rest, flags)) + rest


def raw_frame(
    kind: int,
    body: bytes,
    flags: int = 0,
    length: int | None = None,
    origin: tuple[int, int] = ORIGIN,
) -> bytes:
    return pack("<BBHQQ", kind, flags, 16 + len(body) if length is None else length, *origin) + body


def raw_run(
    first: int = 1,
    lengths: Iterable[int] = (1,),
    payload: bytes = b"x",
    count: int | None = None,
) -> bytes:
    table = list(lengths)
    fixed = pack("<QIQH", first, 0, 0, len(table) if count is None else count)
    return fixed + pack(f"<{len(table)}H", *table) + payload


def raw_data(
    first: int = 1,
    lengths: Iterable[int] = (1,),
    payload: bytes = b"x",
    flags: int = 0,
    count: int | None = None,
    epoch: int | None = None,
) -> bytes:
    front = b"" if epoch is None else pack("<Q", epoch)
    return raw_frame(1, front + raw_run(first, lengths, payload, count), flags)


def raw_ranges(*ranges: tuple[int, int], count: int | None = None, kind: int = 3) -> bytes:
    table = b"".join(pack("<QI", *entry) for entry in ranges)
    return raw_frame(kind, pack("<H", len(ranges) if count is None else count) + table)


def raw_votes(
    *entries: tuple[int, int, int, int], count: int | None = None, kind: int = 6
) -> bytes:
    table = b"".join(pack("<QQQQ", *entry) for entry in entries)
    return raw_frame(kind, pack("<IH", 1, len(entries) if count is None else count) + table)


def raw_tail(low: int, high: int, start: int, flags: int = 0, reader: int = 0) -> bytes:
    return raw_frame(5, pack("<QQQQ", low, high, start, reader), flags)


def raw_view(number: int = 2, coordinator: Address = FIRST) -> bytes:
    return pack("<IQQ", number, *coordinator)


def raw_members(*addresses: tuple[int, int], count: int | None = None) -> bytes:
    table = b"".join(pack("<QQ", *address) for address in addresses)
    return pack("<H", len(addresses) if count is None else count) + table


def reason_of(datagram: bytes) -> str:
    with pytest.raises(RemoteProtocolError) as caught:
        decode(datagram)
    assert str(caught.value).startswith(caught.value.reason)
    return caught.value.reason


u32 = st.integers(0, U32_MAX)
u64 = st.integers(0, U64_MAX)
marks = st.integers(0, SEQNO_MAX)
addresses = st.builds(Address, u64, u64)


links = st.integers(FIRST_CONNECTION_EPOCH, U64_MAX)
epochs = st.just(0) | st.integers(1, U32_MAX) | links


@st.composite
def runs(
    draw: st.DrawFn, firsts: int = SEQNO_MAX, known: tuple[int, ...] = (NO_LOOPBACK, ACKED)
) -> Run:
    messages = draw(st.lists(st.binary(max_size=20), min_size=1, max_size=20))
    first = draw(st.integers(1, max(1, firsts - len(messages) + 1)))
    pieces = (
        [FRAGMENT, FRAGMENT | FIRST_FRAGMENT, FRAGMENT | LAST_FRAGMENT]
        if len(messages) == 1 and ACKED in known
        else []
    )
    flags = draw(st.sampled_from([0, *pieces])) | sum(draw(st.sets(st.sampled_from(known))))
    return Run.of(draw(addresses), first, messages, flags, draw(u32), draw(u64))


@st.composite
def data_frames(draw: st.DrawFn) -> Data:
    epoch = draw(epochs)
    return Data(
        draw(runs()),
        draw(st.booleans()),
        epoch,
        epoch >= FIRST_CONNECTION_EPOCH and draw(st.booleans()),
    )


@st.composite
def ranges(draw: st.DrawFn, min_size: int = 0) -> tuple[tuple[int, int], ...]:
    drawn: list[tuple[int, int]] = []
    floor = draw(st.integers(0, SEQNO_MAX - 2**40))
    steps = st.lists(
        st.tuples(st.integers(1, 5), st.integers(0, U32_MAX)), min_size=min_size, max_size=20
    )
    for gap, more in draw(steps):
        drawn.append((floor + gap, floor + gap + more))
        floor = drawn[-1][1]
    return tuple(drawn)


@st.composite
def tail_frames(draw: st.DrawFn) -> Tail:
    low, high = sorted((draw(marks), draw(marks)))
    start = draw(st.none() | st.integers(0, high))
    return Tail(draw(addresses), low, high, start, 0 if start is None else draw(u64), draw(epochs))


@st.composite
def progress(draw: st.DrawFn) -> tuple[StreamProgress, ...]:
    close = st.builds(Address, st.integers(0, 3), st.integers(0, 3))
    origins = sorted(draw(st.sets(addresses | close, min_size=1, max_size=10)))
    return tuple(StreamProgress(origin, *sorted((draw(marks), draw(marks)))) for origin in origins)


@st.composite
def out_of_band_frames(draw: st.DrawFn) -> OutOfBand:
    run = draw(runs(known=(NO_LOOPBACK, PRIVATE)))
    return OutOfBand(run, draw(st.integers(0, run.first - 1)))


members = st.builds(Address, u64, u64).filter(any)
close_members = st.builds(Address, st.integers(0, 3), st.integers(0, 3)).filter(any)
member_lists = st.lists(members | close_members, unique=True, max_size=10).map(tuple)
view_ids = st.builds(ViewId, st.integers(1, U32_MAX), members)
names = st.text(st.characters(exclude_categories=("Cc", "Cs")), max_size=64).filter(
    lambda name: len(name.encode()) <= 64
)
locators = st.binary(max_size=64)
places = st.builds(RosterEntry, members, names, locators)
bodies = st.binary(min_size=1, max_size=50)
starts = st.just(()) | progress().map(
    lambda entries: tuple(entry for entry in entries if any(entry.origin))
)


@st.composite
def alive_frames(draw: st.DrawFn) -> Alive:
    view = draw(st.none() | view_ids)
    included = view is not None and draw(st.booleans())
    expelled = view is not None and not included and draw(st.booleans())
    return Alive(draw(members), view, included, draw(st.booleans()), expelled)


@st.composite
def part_numbers(draw: st.DrawFn) -> tuple[int, int]:
    parts = draw(st.integers(1, 0xFFFF))
    return draw(st.integers(0, parts - 1)), parts


@st.composite
def new_view_frames(draw: st.DrawFn) -> NewView:
    view = draw(view_ids)
    base = (
        draw(st.none() | view_ids.filter(lambda base: base.number < view.number))
        if view.number > 1
        else None
    )
    return NewView(draw(members), view, base, *draw(part_numbers()), draw(bodies))


@st.composite
def state_offer_frames(draw: st.DrawFn) -> StateOffer:
    return StateOffer(draw(members), draw(u64), *draw(part_numbers()), draw(bodies))


frame_kinds: dict[str, st.SearchStrategy[Frame]] = {
    "data": data_frames(),
    "ack": st.builds(Ack, addresses, marks, u32, epochs),
    "nak": st.builds(Nak, addresses, ranges(), epochs),
    "gone": st.builds(Gone, addresses, marks, epochs),
    "tail": tail_frames(),
    "vote": st.builds(Vote, addresses, u32, progress()),
    "stable": st.builds(Stable, addresses, u32, progress()),
    "out of band": out_of_band_frames(),
    "out of band ack": st.builds(OutOfBandAck, addresses, ranges(1)),
    "unreliable": st.builds(Unreliable, runs(firsts=1, known=(NO_LOOPBACK,))),
    "close": st.builds(Close, addresses, links),
    "join": st.builds(Join, places, st.booleans()),
    "leave": st.builds(Leave, members),
    "alive": alive_frames(),
    "suspect": st.builds(Suspect, members, member_lists.filter(len), st.booleans()),
    "new view": new_view_frames(),
    "ask view": st.builds(AskView, members),
    "beacon": st.builds(Beacon, members, view_ids, member_lists),
    "merge ask": st.builds(MergeAsk, members, u64),
    "merge reply": st.builds(MergeReply, members, u64, view_ids, st.booleans()),
    "signature": st.builds(
        Signature, members, st.integers(1, U64_MAX), u32, st.binary(min_size=64, max_size=64)
    ),
    "state ask": st.builds(StateAsk, members, u64, starts),
    "state offer": state_offer_frames(),
    "state pull": st.builds(StatePull, members, u64, st.integers(0, SEQNO_MAX - U32_MAX), u32),
    "name taken": st.builds(NameTaken, places, members),
    "state chunk": st.builds(StateChunk, members, u64, st.integers(0, SEQNO_MAX - 50), bodies),
}
frame_lists = st.lists(st.one_of(*frame_kinds.values()), min_size=1, max_size=6)
