"""The wire format, as it should be: golden bytes, round trips, what is not sent."""

from typing import get_args
from zlib import crc32

import pytest
from hypothesis import example, given, strategies as st

from gapless.errors import LocalProtocolError, RemoteProtocolError
from gapless.identity import U32_MAX, U64_MAX, Address, RosterEntry, ViewId
from gapless.run import ACKED, FIRST_FRAGMENT, FRAGMENT, LAST_FRAGMENT, NO_LOOPBACK, Run
from gapless.wire import (
    Ack,
    Close,
    Data,
    Datagram,
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
from tests.support.frames import (
    BASE_VIEW,
    FIRST,
    GOLDEN,
    GROUP,
    HEADER_HEX,
    LINK,
    ORIGIN,
    SECOND,
    SENDER,
    VIEW,
    addresses,
    frame_kinds,
    frame_lists,
    raw,
    u64,
)

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
    assert codec.PROGRESS_OVERHEAD_BYTES == 26
    assert codec.PROGRESS_BYTES == 32
    assert codec.OUT_OF_BAND_OVERHEAD_BYTES == 50
    assert codec.DATAGRAM_MAX_BYTES == 65_507


@pytest.mark.parametrize("epoch", [0, 1, LINK])
@pytest.mark.parametrize("max_frame_bytes", [200, 1400, 60_000, 65_507])
def test_a_run_that_fills_its_room_fills_the_frame(max_frame_bytes: int, epoch: int) -> None:
    room_bytes = codec.run_room_bytes(max_frame_bytes, epoch)
    frame = Data(Run.of(ORIGIN, 1, [b"x" * (room_bytes - 2)]), epoch=epoch)
    assert len(encode(GROUP, SENDER, [frame], addressee=1)) == max_frame_bytes
    assert len(encode(GROUP, SENDER, [frame])) == max_frame_bytes - 8


@pytest.mark.parametrize("max_frame_bytes", [200, 1400, 60_000, 65_507])
def test_a_part_that_fills_its_room_fills_the_frame(max_frame_bytes: int) -> None:
    view = NewView(ORIGIN, VIEW, BASE_VIEW, 0, 1, b"x" * codec.new_view_room_bytes(max_frame_bytes))
    offer = StateOffer(ORIGIN, 1, 0, 1, b"x" * codec.state_offer_room_bytes(max_frame_bytes))
    chunk = StateChunk(ORIGIN, 1, 0, b"x" * codec.state_chunk_room_bytes(max_frame_bytes))
    for frame in (view, offer, chunk):
        assert len(encode(GROUP, SENDER, [frame], addressee=1)) == max_frame_bytes
    assert (
        len(encode(GROUP, SENDER, [view._replace(base=None)], addressee=1)) == max_frame_bytes - 20
    )


def test_kinds_kept_free_do_not_meet_the_kinds_in_use() -> None:
    free = {*codec.MEMBERSHIP_KINDS, *codec.UNICAST_KINDS}
    assert len(free) == 16
    assert free.isdisjoint(codec._DECODERS)


def test_every_kind_of_frame_is_among_the_golden_ones() -> None:
    assert {type(frame) for frame, _ in GOLDEN} == set(get_args(Frame)) == set(codec._ENCODERS)
    assert {bytes.fromhex(layout)[0] for _, layout in GOLDEN} == set(codec._DECODERS)


def test_a_nak_for_a_million_messages_fits_a_packet() -> None:
    """S-18: the size of a request grows with the number of gaps, not of missing messages."""
    gaps = [(first, first + 9_998) for first in range(1, 1_000_000, 10_000)]
    datagram = encode(GROUP, SENDER, [Nak(ORIGIN, tuple(gaps))])
    assert len(datagram) == 32 + 22 + 100 * 12 <= 1400


# Round trips


def assert_round_trip(group: int, sender: Address, frames: list[Frame]) -> None:
    datagram = encode(group, sender, frames)
    assert decode(datagram) == Datagram(group, sender, tuple(frames))
    assert encode(*decode(datagram)) == datagram
    assert len(datagram) == codec.HEADER_BYTES + sum(map(codec.size_bytes, frames))


@pytest.mark.parametrize("kind", frame_kinds)
def test_each_kind_survives_the_wire(kind: str) -> None:
    @given(u64, addresses, frame_kinds[kind])
    def check(group: int, sender: Address, frame: Frame) -> None:
        assert_round_trip(group, sender, [frame])

    check()


@given(u64, addresses, frame_lists)
def test_any_mix_of_frames_survives_the_wire(
    group: int, sender: Address, frames: list[Frame]
) -> None:
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
    *(Ack(ORIGIN, 1, 1, epoch) for epoch in (1, U32_MAX, FIRST_CONNECTION_EPOCH, U64_MAX)),
    Data(Run.of(ORIGIN, 1, [b""] * 32_744), epoch=1),
    Data(Run.of(ORIGIN, 1, [b"x" * 65_487]), epoch=U64_MAX, first=True),
    Data(Run.of(ORIGIN, SEQNO_MAX, [b"last"]), epoch=FIRST_CONNECTION_EPOCH, first=True),
    Nak(ORIGIN, tuple((seqno, seqno) for seqno in range(1, 5460)), 1),
    Vote(ORIGIN, 0, tuple(StreamProgress(Address(0, life), 0, SEQNO_MAX) for life in range(2047))),
    Stable(
        ORIGIN, 1, (StreamProgress(Address(0, U64_MAX), 0, 0), StreamProgress(Address(1, 0), 0, 0))
    ),
    OutOfBand(Run.of(ORIGIN, SEQNO_MAX, [b"last"]), SEQNO_MAX - 1),
    OutOfBand(Run.of(ORIGIN, 1, [b"x" * 65_487]), 0),
    OutOfBandAck(ORIGIN, tuple((seqno, seqno) for seqno in range(1, 5460))),
    Unreliable(Run.of(ORIGIN, 1, [b"x" * 65_495], NO_LOOPBACK)),
    Close(ORIGIN, U64_MAX),
    Join(RosterEntry(Address(0, 1), "n" * 64, b"l" * 64)),
    Join(RosterEntry(Address(1, 0), "é" * 32)),
    Join(RosterEntry(ORIGIN, " \u00a0\U0010ffff~")),
    Alive(ORIGIN, ViewId(U32_MAX, Address(U64_MAX, U64_MAX)), includes_receiver=True),
    Suspect(ORIGIN, tuple(Address(1, life) for life in range(4094))),
    Suspect(ORIGIN, (ORIGIN,)),
    NewView(ORIGIN, ViewId(2, FIRST), ViewId(1, FIRST), 0xFFFE, 0xFFFF, b"x" * 65_475),
    Beacon(ORIGIN, VIEW, tuple(Address(1, life) for life in range(4093))),
    MergeAsk(ORIGIN, 0),
    MergeReply(ORIGIN, U64_MAX, VIEW, willing=True),
    StateAsk(
        ORIGIN,
        U64_MAX,
        tuple(StreamProgress(Address(1, life), 0, SEQNO_MAX) for life in range(2047)),
    ),
    StateOffer(ORIGIN, 0, 0, 1, b"x" * 65_507),
    StatePull(ORIGIN, 0, 0, 0),
    StatePull(ORIGIN, 0, SEQNO_MAX - U32_MAX, U32_MAX),
    StateChunk(ORIGIN, 0, SEQNO_MAX - 1, b"x"),
    StateChunk(ORIGIN, 0, 0, b"x" * 65_503),
]


@pytest.mark.parametrize("frame", EXTREMES, ids=[f"{frame}"[:40] for frame in EXTREMES])
def test_the_extremes_survive_the_wire(frame: Frame) -> None:
    assert_round_trip(0, Address(U64_MAX, 0), [frame])


# What must not be sent

NOBODY = Address(0, 0)

wild = (
    st.integers(-2, 3)
    | st.integers(SEQNO_MAX - 2, SEQNO_MAX + 2)
    | st.integers(U64_MAX - 1, U64_MAX + 2)
)
wild_addresses = st.builds(Address, wild, wild)
wild_epochs = wild | st.integers(U32_MAX - 1, U32_MAX + 2) | st.just(LINK)
wild_flags = st.sampled_from([0, 0, NO_LOOPBACK, ACKED, FRAGMENT | FIRST_FRAGMENT]) | st.integers(
    -1, 257
)
wild_runs = st.builds(
    Run.of, wild_addresses, wild, st.just([b"a"]) | st.just([b"a", b"b"]), wild_flags, wild, wild
) | st.builds(Run, wild_addresses, wild, st.just(b""), st.just(b""))
wild_ranges = st.lists(st.tuples(wild, wild), max_size=3).map(tuple)
wild_progress = st.lists(st.builds(StreamProgress, wild_addresses, wild, wild), max_size=3).map(
    tuple
)
wild_views = st.builds(ViewId, wild | st.integers(U32_MAX - 1, U32_MAX + 2), wild_addresses)
wild_names = st.text(
    st.characters(max_codepoint=0xA1) | st.sampled_from("é\ud800\U0010ffff"), max_size=66
)
wild_places = st.builds(RosterEntry, wild_addresses, wild_names, st.binary(max_size=66))
wild_lists = st.lists(wild_addresses, max_size=3).map(tuple)
wild_bodies = st.binary(max_size=2)
wild_frames: st.SearchStrategy[Frame] = st.one_of(
    st.builds(Data, wild_runs, st.booleans(), wild_epochs, st.booleans()),
    st.builds(Ack, wild_addresses, wild, wild, wild_epochs),
    st.builds(Nak, wild_addresses, wild_ranges, wild_epochs),
    st.builds(Gone, wild_addresses, wild, wild_epochs),
    st.builds(Tail, wild_addresses, wild, wild, st.none() | wild, wild, wild_epochs),
    st.builds(Vote, wild_addresses, wild, wild_progress),
    st.builds(Stable, wild_addresses, wild, wild_progress),
    st.builds(OutOfBand, wild_runs, wild),
    st.builds(OutOfBandAck, wild_addresses, wild_ranges),
    st.builds(Unreliable, wild_runs),
    st.builds(Close, wild_addresses, wild_epochs),
    st.builds(Join, wild_places, st.booleans()),
    st.builds(Leave, wild_addresses),
    st.builds(Alive, wild_addresses, st.none() | wild_views, st.booleans(), st.booleans()),
    st.builds(Suspect, wild_addresses, wild_lists, st.booleans()),
    st.builds(NewView, wild_addresses, wild_views, st.none() | wild_views, wild, wild, wild_bodies),
    st.builds(AskView, wild_addresses),
    st.builds(Beacon, wild_addresses, wild_views, wild_lists),
    st.builds(MergeAsk, wild_addresses, wild),
    st.builds(MergeReply, wild_addresses, wild, wild_views, st.booleans()),
    st.builds(StateAsk, wild_addresses, wild, wild_progress),
    st.builds(StateOffer, wild_addresses, wild, wild, wild, wild_bodies),
    st.builds(StatePull, wild_addresses, wild, wild, wild),
    st.builds(NameTaken, wild_places, wild_addresses),
    st.builds(Signature, wild_addresses, wild, wild, wild_bodies),
    st.builds(StateChunk, wild_addresses, wild, wild, wild_bodies),
)


@given(wild, wild_addresses, st.lists(wild_frames, max_size=2))
@example(GROUP, SENDER, [Data(Run.of(ORIGIN, 1, [b"x" * 65_496]))])
@example(GROUP, SENDER, [Data(Run.of(ORIGIN, 1, [b""] * 65_536))])
@example(GROUP, SENDER, [Nak(ORIGIN, tuple((seqno, seqno) for seqno in range(1, 5462)))])
@example(GROUP, SENDER, [Nak(ORIGIN, ((1, U32_MAX + 2),))])
@example(GROUP, SENDER, [Data(Run.of(ORIGIN, 1, [b"a"], flags=codec.REPAIR))])
@example(GROUP, SENDER, [Data(Run.of(ORIGIN, 1, [b"x" * 65_488]), epoch=1)])
@example(
    GROUP,
    SENDER,
    [Vote(ORIGIN, 0, tuple(StreamProgress(Address(0, life), 0, 0) for life in range(2048)))],
)
@example(GROUP, SENDER, [NewView(ORIGIN, VIEW, BASE_VIEW, 0, 1, b"x" * 65_476)])
@example(GROUP, SENDER, [StateChunk(ORIGIN, 0, 0, b"x" * 65_504)])
@example(GROUP, SENDER, [])
def test_what_cannot_be_received_is_refused_at_the_sender(
    group: int, sender: Address, frames: list[Frame]
) -> None:
    try:
        datagram = encode(group, sender, frames)
    except LocalProtocolError:
        return
    assert decode(datagram) == Datagram(group, sender, tuple(frames))


BAD_FRAMES: list[Frame] = [
    Data(Run.of(ORIGIN, 0, [b"a"])),
    Data(Run.of(ORIGIN, SEQNO_MAX, [b"a", b"b"])),
    Data(Run.of(ORIGIN, 1, [b"a", b"b"], flags=FRAGMENT)),
    Data(Run.of(ORIGIN, 1, [b"a"], flags=FRAGMENT | FIRST_FRAGMENT | LAST_FRAGMENT)),
    *(
        Data(Run.of(ORIGIN, 1, [b"a"], flags))
        for flags in (codec.FIRST, codec.EPOCH, codec.REPAIR, 0x100)
    ),
    Data(Run(ORIGIN, 1, b"", b"")),
    Data(Run.of(ORIGIN, 1, [b"a"]), first=True),
    Data(Run.of(ORIGIN, 1, [b"a"]), epoch=7, first=True),
    *(
        Data(Run.of(ORIGIN, 1, [b"a"]), epoch=epoch)
        for epoch in (-1, U32_MAX + 1, FIRST_CONNECTION_EPOCH - 1, U64_MAX + 1)
    ),
    Data(Run.of(ORIGIN, 1, [b""] * 65_536)),
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
    *(
        Ack(ORIGIN, 1, 1, epoch)
        for epoch in (-1, U32_MAX + 1, FIRST_CONNECTION_EPOCH - 1, U64_MAX + 1)
    ),
    Nak(ORIGIN, (), U32_MAX + 1),
    Gone(ORIGIN, 1, FIRST_CONNECTION_EPOCH - 1),
    Tail(ORIGIN, 1, 1, epoch=U64_MAX + 1),
    *(
        Close(ORIGIN, epoch)
        for epoch in (-1, 0, 1, U32_MAX, FIRST_CONNECTION_EPOCH - 1, U64_MAX + 1)
    ),
    Vote(ORIGIN, 1, ()),
    Stable(ORIGIN, 1, ()),
    Vote(ORIGIN, U32_MAX + 1, (StreamProgress(ORIGIN, 0, 0),)),
    Vote(ORIGIN, 1, (StreamProgress(ORIGIN, 0, 0), StreamProgress(ORIGIN, 1, 1))),
    Stable(ORIGIN, 1, (StreamProgress(Address(2, 1), 0, 0), StreamProgress(Address(1, 2), 0, 0))),
    Vote(ORIGIN, 1, (StreamProgress(ORIGIN, 2, 1),)),
    Vote(ORIGIN, 1, (StreamProgress(ORIGIN, -1, 1),)),
    Stable(ORIGIN, 1, (StreamProgress(ORIGIN, 0, SEQNO_MAX + 1),)),
    *(
        OutOfBand(Run.of(ORIGIN, 1, [b"a"], flags), 0)
        for flags in (FRAGMENT, ACKED, codec.EPOCH, codec.REPAIR)
    ),
    OutOfBand(Run(ORIGIN, 1, b"", b""), 0),
    OutOfBand(Run.of(ORIGIN, 0, [b"a"]), -1),
    OutOfBand(Run.of(ORIGIN, 1, [b"a"]), -1),
    OutOfBand(Run.of(ORIGIN, 5, [b"a"]), 5),
    OutOfBandAck(ORIGIN, ()),
    OutOfBandAck(ORIGIN, ((5, 5), (5, 6))),
    *(
        Unreliable(Run.of(ORIGIN, 1, [b"a"], flags))
        for flags in (FRAGMENT, ACKED, codec.FIRST, codec.REPAIR)
    ),
    Unreliable(Run(ORIGIN, 1, b"", b"")),
    *(Unreliable(Run.of(ORIGIN, first, [b"a"])) for first in (0, 2)),
    Join(RosterEntry(NOBODY)),
    *(
        Join(RosterEntry(ORIGIN, name))
        for name in ("n" * 65, "é" * 33, "a\nb", "\x00", "\x7f", "\x80", "\x9f", "\ud800")
    ),
    Join(RosterEntry(ORIGIN, "n", b"l" * 65)),
    *(kind(NOBODY) for kind in (Leave, AskView)),
    Alive(NOBODY, VIEW, includes_receiver=False),
    Alive(ORIGIN, None, includes_receiver=True),
    Alive(ORIGIN, None, includes_receiver=False, expelled=True),
    Alive(ORIGIN, VIEW, includes_receiver=True, expelled=True),
    *(
        Alive(ORIGIN, ViewId(number, FIRST), includes_receiver=False)
        for number in (-1, 0, U32_MAX + 1)
    ),
    Alive(ORIGIN, ViewId(1, NOBODY), includes_receiver=False),
    Suspect(NOBODY, (FIRST,)),
    *(Suspect(ORIGIN, members) for members in ((), (NOBODY,), (FIRST, SECOND, FIRST))),
    Suspect(ORIGIN, tuple(Address(1, life) for life in range(4095))),
    NewView(NOBODY, VIEW, None, 0, 1, b"x"),
    *(
        NewView(ORIGIN, VIEW, None, part, parts, b"x")
        for part, parts in ((-1, 1), (1, 1), (0, 0), (0, 0x10000))
    ),
    NewView(ORIGIN, VIEW, None, 0, 1, b""),
    NewView(ORIGIN, VIEW, VIEW, 0, 1, b"x"),
    NewView(ORIGIN, VIEW, ViewId(0, FIRST), 0, 1, b"x"),
    NewView(ORIGIN, VIEW, ViewId(1, NOBODY), 0, 1, b"x"),
    NewView(ORIGIN, ViewId(0, FIRST), None, 0, 1, b"x"),
    Beacon(NOBODY, VIEW, ()),
    Beacon(ORIGIN, ViewId(1, NOBODY), ()),
    *(Beacon(ORIGIN, VIEW, heard) for heard in ((NOBODY,), (SECOND, SECOND))),
    MergeAsk(NOBODY, 1),
    *(MergeAsk(ORIGIN, merge) for merge in (-1, U64_MAX + 1)),
    MergeReply(NOBODY, 1, VIEW, willing=True),
    MergeReply(ORIGIN, 1, ViewId(0, FIRST), willing=True),
    StateAsk(NOBODY, 1, ()),
    StateAsk(ORIGIN, 1, (StreamProgress(NOBODY, 0, 0),)),
    StateAsk(ORIGIN, 1, (StreamProgress(SECOND, 0, 0), StreamProgress(FIRST, 0, 0))),
    StateAsk(ORIGIN, 1, (StreamProgress(FIRST, 2, 1),)),
    StateOffer(NOBODY, 1, 0, 1, b"x"),
    *(
        StateOffer(ORIGIN, 1, part, parts, b"x")
        for part, parts in ((-1, 1), (1, 1), (0, 0), (0, 0x10000))
    ),
    StateOffer(ORIGIN, 1, 0, 1, b""),
    StateOffer(ORIGIN, 1, 0, 1, b"x" * 65_508),
    StatePull(NOBODY, 1, 0, 1),
    StatePull(ORIGIN, 1, SEQNO_MAX, 1),
    StatePull(ORIGIN, 1, 0, U32_MAX + 1),
    Signature(NOBODY, 1, 1, b"s" * 64),
    Signature(ORIGIN, 0, 1, b"s" * 64),
    Signature(ORIGIN, 1, 1, b"s" * 63),
    NameTaken(RosterEntry(NOBODY, "n"), SECOND),
    NameTaken(RosterEntry(ORIGIN, "n"), NOBODY),
    StateChunk(NOBODY, 1, 0, b"x"),
    StateChunk(ORIGIN, 1, 0, b""),
    StateChunk(ORIGIN, 1, SEQNO_MAX, b"x"),
]


@pytest.mark.parametrize("frame", BAD_FRAMES, ids=[type(frame).__name__ for frame in BAD_FRAMES])
def test_a_frame_that_says_nonsense_is_not_sent(frame: Frame) -> None:
    with pytest.raises(LocalProtocolError):
        encode(GROUP, SENDER, [frame])


def test_a_datagram_without_a_frame_is_not_sent() -> None:
    with pytest.raises(LocalProtocolError, match="at least one frame"):
        encode(GROUP, SENDER, [])


@pytest.mark.parametrize("repair", [False, True])
@pytest.mark.parametrize(
    ("epoch", "first", "addressee"),
    [(0, False, None), (0, False, 7), (9, False, None), (FIRST_CONNECTION_EPOCH, True, 7)],
)
@pytest.mark.parametrize("flags", [0, NO_LOOPBACK | ACKED])
@pytest.mark.parametrize("bare", [False, True])
def test_a_run_in_parts_is_what_encode_makes_of_each(
    repair: bool, epoch: int, first: bool, addressee: int | None, flags: int, bare: bool
) -> None:
    run = Run.of(SENDER, 5, [b"x" * (at % 7 * 20) for at in range(40)], flags, view=3, sent_ns=99)
    room_bytes = codec.run_room_bytes(300, epoch)
    found = codec.encode_split(
        GROUP, SENDER, Data(run, repair, epoch, first), room_bytes, addressee, bare
    )
    parts = run.split_to_fit(room_bytes)
    assert len(parts) > 5
    expected = [Data(part, repair, epoch, first and part is parts[0]) for part in parts]
    assert found == [encode(GROUP, SENDER, [part], addressee, bare) for part in expected]
    assert max(map(len, found)) <= 300


@pytest.mark.parametrize("addressee", [None, 7])
@pytest.mark.parametrize("bare", [False, True])
def test_a_datagram_to_be_sealed_has_a_checksum_of_0_and_is_the_same_otherwise(
    addressee: int | None, bare: bool
) -> None:
    frame = Data(Run.of(SENDER, 5, [b"x" * 20] * 40))
    room_bytes = codec.run_room_bytes(300)
    plain, to_be_sealed = (
        [
            [encode(GROUP, SENDER, [frame], addressee, bare, checked=checked)],
            codec.encode_split(GROUP, SENDER, frame, room_bytes, addressee, bare, checked=checked),
        ]
        for checked in (True, False)
    )
    for checked, found in zip(plain, to_be_sealed, strict=True):
        assert found == [datagram[:4] + bytes(4) + datagram[8:] for datagram in checked]
        with pytest.raises(RemoteProtocolError):
            decode(found[0])
        assert [decode(one, opened=True) for one in found] == [decode(one) for one in checked]
    whole = encode(GROUP, SENDER, [frame], addressee, bare, checked=False)
    assert codec.split_datagram(whole, 300, checked=False) == codec.encode_split(
        GROUP, SENDER, frame, room_bytes, addressee, bare, checked=False
    )
    with pytest.raises(RemoteProtocolError):
        codec.split_datagram(whole, 300)


def test_a_run_in_parts_that_the_wire_has_no_room_for_is_refused() -> None:
    run = Run.of(SENDER, SEQNO_MAX, [b"x" * 100, b"y" * 100])
    with pytest.raises(LocalProtocolError, match="wire"):
        codec.encode_split(GROUP, SENDER, Data(run), 150)


@pytest.mark.parametrize("addressee", [None, 7])
@pytest.mark.parametrize("frame", [frame for frame, _ in GOLDEN if isinstance(frame, Data)])
def test_the_checksum_of_a_bare_datagram_ends_before_its_messages(
    frame: Data, addressee: int | None
) -> None:
    datagram = encode(GROUP, SENDER, [frame], addressee, bare=True)
    assert decode(datagram) == Datagram(GROUP, SENDER, (frame,), addressee, True)
    covered = len(datagram) - len(frame.run.payload)
    assert datagram[3] & codec.BARE
    assert int.from_bytes(datagram[4:8], "little") == crc32(datagram[8:covered], datagram[3])
    for at in range(covered):
        damaged = bytearray(datagram)
        damaged[at] ^= 0x10
        with pytest.raises(RemoteProtocolError):
            decode(bytes(damaged))


@pytest.mark.parametrize("frames", [[], [Ack(SENDER, 1, 1)], [Data(Run.of(SENDER, 1, [b"x"]))] * 2])
def test_only_one_data_frame_can_be_bare(frames: list[Frame]) -> None:
    with pytest.raises(LocalProtocolError, match="single DATA frame"):
        encode(GROUP, SENDER, frames, None, bare=True)


# Frames that are longer than their length field can say


@pytest.mark.parametrize("bare", [False, True])
@pytest.mark.parametrize(
    ("epoch", "addressee"), [(0, None), (9, None), (FIRST_CONNECTION_EPOCH, 7)]
)
@pytest.mark.parametrize("size_bytes", [200_000, 65_535 - 38 - 7 * 2, 65_535 - 38 - 7 * 2 + 1])
def test_a_long_run_goes_to_the_end_of_its_datagram(
    size_bytes: int, epoch: int, addressee: int | None, bare: bool
) -> None:
    sizes = [size_bytes // 7] * 6 + [size_bytes - size_bytes // 7 * 6]
    frame = Data(Run.of(SENDER, 5, [b"x" * size for size in sizes]), epoch=epoch)
    datagram = encode(GROUP, SENDER, [frame], addressee, bare)
    assert decode(datagram) == Datagram(GROUP, SENDER, (frame,), addressee, bare)
    length = int.from_bytes(
        datagram[(at := 32 if addressee is None else 40) + 2 : at + 4], "little"
    )
    counted = len(datagram) - at - 4
    assert length == (counted if counted <= 0xFFFF else 0)
    assert codec.size_bytes(frame) == len(datagram) - at
    if not epoch:
        assert codec.encode_split(GROUP, SENDER, frame, 250_000, addressee, bare) == [datagram]


def test_a_long_frame_is_the_last_of_its_datagram() -> None:
    long, ack = Data(Run.of(SENDER, 5, [b"x" * 60_000] * 2)), Ack(SENDER, 1, 1)
    assert decode(encode(GROUP, SENDER, [ack, long])).frames == (ack, long)
    with pytest.raises(LocalProtocolError, match="last frame of the datagram"):
        encode(GROUP, SENDER, [long, ack])


@pytest.mark.parametrize("frame", [Data(Run.of(SENDER, 5, [b"x" * 60_000])), Ack(SENDER, 1, 1)])
def test_a_frame_that_could_say_its_length_has_to(frame: Frame) -> None:
    """What can be said can be said in one way only."""
    told = bytearray(encode(GROUP, SENDER, [frame]))
    told[34:36] = bytes(2)
    told[4:8] = crc32(told[8:]).to_bytes(4, "little")
    with pytest.raises(RemoteProtocolError) as refused:
        decode(bytes(told))
    assert refused.value.reason == "length"


def test_only_messages_go_to_the_end_of_a_datagram() -> None:
    told = bytearray(encode(GROUP, SENDER, [Ack(SENDER, 1, 1)]) + bytes(70_000))
    told[34:36] = bytes(2)
    told[4:8] = crc32(told[8:]).to_bytes(4, "little")
    with pytest.raises(RemoteProtocolError) as refused:
        decode(bytes(told))
    assert refused.value.reason == "length"
    with pytest.raises(LocalProtocolError):
        encode(GROUP, SENDER, [StateChunk(ORIGIN, 1, 0, b"x" * 70_000)])
