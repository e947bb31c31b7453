"""The wire page says what the code does: its tables, its limits, its reasons and its example."""

import re
from pathlib import Path
from struct import Struct

import pytest

from gapless.errors import LocalProtocolError
from gapless.identity import U64_MAX, Address, RosterEntry, group_id
from gapless.run import (
    ACKED,
    FIRST_FRAGMENT,
    FRAGMENT,
    LAST_FRAGMENT,
    MAX_ENTRY_BYTES,
    NO_LOOPBACK,
    PRIVATE,
    Run,
)
from gapless.wire import (
    Ack,
    Data,
    Datagram,
    Frame,
    Nak,
    OutOfBand,
    OutOfBandAck,
    Stable,
    StreamProgress,
    Unreliable,
    Vote,
    codec,
    control_frames,
    decode,
    encode,
    primitives as fields,
    roster,
    state_offer,
)
from gapless.wire.frames import (
    FIRST_CONNECTION_EPOCH,
    Alive,
    Beacon,
    Join,
    NameTaken,
    NewView,
    StateAsk,
    StateChunk,
    StateOffer,
    Suspect,
)
from gapless.wire.primitives import REASONS
from gapless.wire.validation import HAS_START
from tests.support.frames import GOLDEN

PAGE = (Path(__file__).parents[2] / "docs/reference/wire.md").read_text(encoding="utf-8")
ORIGIN = Address(1, 1)
KINDS = {
    getattr(codec, name): name
    for name in (
        *("DATA", "ACK", "NAK", "GONE", "TAIL", "VOTE", "STABLE"),
        *("OUT_OF_BAND", "OUT_OF_BAND_ACK", "UNRELIABLE", "CLOSE"),
    )
} | {
    getattr(control_frames, name): name
    for name in (
        *(
            "JOIN",
            "LEAVE",
            "ALIVE",
            "SUSPECT",
            "NEW_VIEW",
            "ASK_VIEW",
            "BEACON",
            "MERGE_ASK",
            "MERGE_REPLY",
        ),
        *("STATE_ASK", "STATE_OFFER", "STATE_PULL", "STATE_CHUNK", "NAME_TAKEN", "SIGNATURE"),
    )
}


def section(heading: str) -> str:
    found = re.search(rf"^#+ {heading}\n(.*?)(?=^#+ |\Z)", PAGE, re.DOTALL | re.MULTILINE)
    assert found, heading
    return found[1]


def rows(heading: str, columns: str) -> list[list[str]]:
    """The rows of the table with this first line, under this heading."""
    found = re.search(rf"^\| {columns}.*\n\|[-:| ]+\n((?:\|.*\n)+)", section(heading), re.MULTILINE)
    assert found, f"{heading}: {columns}"
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in found[1].splitlines()]


LAYOUTS: list[tuple[str, str, int, list[Struct]]] = [
    ("Header", "offset", 0, [codec._HEADER]),
    ("Addressee", "offset", 32, [codec._EPOCH]),
    ("Frames", "offset", 0, [codec._PREFIX]),
    ("Epochs", "offset", 20, [codec._EPOCH]),
    ("DATA", "offset", 20, [codec._DATA]),
    ("ACK", "offset", 20, [codec._ACK]),
    ("NAK", "offset", 20, [codec._NAK]),
    ("GONE", "offset", 20, [codec._GONE]),
    ("TAIL", "offset", 20, [codec._TAIL]),
    ("VOTE", "offset", 20, [codec._COUNTS]),
    ("VOTE", "in the entry", 0, [codec._PROGRESS]),
    ("OUT_OF_BAND", "offset", 20, [codec._FLOOR, codec._DATA]),
    ("OUT_OF_BAND_ACK", "offset", 20, [codec._NAK]),
    ("UNRELIABLE", "offset", 20, [codec._DATA]),
    ("JOIN", "offset", 20, [fields.ENTRY_LENGTHS]),
    ("ALIVE", "offset", 20, [fields.VIEW_ID]),
    ("SUSPECT", "offset", 20, [fields.COUNT]),
    ("NEW_VIEW", "offset", 20, [fields.VIEW_ID, control_frames._PARTS]),
    ("BEACON", "offset", 20, [fields.VIEW_ID, fields.COUNT]),
    ("MERGE_ASK", "offset", 20, [control_frames._MERGE]),
    ("MERGE_REPLY", "offset", 20, [control_frames._MERGE, fields.VIEW_ID]),
    ("STATE_ASK", "offset", 20, [control_frames._ASK]),
    ("STATE_OFFER", "offset", 20, [control_frames._OFFER]),
    ("STATE_PULL", "offset", 20, [control_frames._PULL]),
    ("STATE_CHUNK", "offset", 20, [control_frames._CHUNK]),
    ("NAME_TAKEN", "offset", 20, [fields.ADDRESS, fields.ENTRY_LENGTHS]),
    ("SIGNATURE", "offset", 20, [control_frames._SIGNATURE]),
    ("Rosters", "offset", 0, [roster._WHOLE]),
    ("Rosters", "in a change", 0, [roster._CHANGE]),
    ("Rosters", "in an entry", 0, [fields.ADDRESS, fields.ENTRY_LENGTHS]),
    ("Offers", "offset", 0, [state_offer._OFFER]),
    ("Offers", "in the out-of-band entry", 0, [state_offer._OUT_OF_BAND]),
]
SIZES = {"B": 1, "H": 2, "I": 4, "Q": 8, "2s": 2}


@pytest.mark.parametrize(
    ("heading", "column", "start", "structs"), LAYOUTS, ids=[layout[0] for layout in LAYOUTS]
)
def test_the_tables_have_the_offsets_and_sizes_of_the_code(
    heading: str, column: str, start: int, structs: list[Struct]
) -> None:
    fields = [
        (int(row[0]), int(row[1]))
        for row in rows(heading, column)
        if row[0].isdigit() and row[1].isdigit()
    ]
    sizes = [SIZES[code] for struct in structs for code in re.findall(r"2s|[BHIQ]", struct.format)]
    assert [size for _, size in fields] == sizes
    assert [offset for offset, _ in fields] == [start + sum(sizes[:at]) for at in range(len(sizes))]
    behind = [row[0] for row in rows(heading, column) if not row[1].isdigit()]
    assert not behind or behind[0] == str(start + sum(sizes))


def test_the_kinds_are_those_of_the_code() -> None:
    kinds = rows("Frames", "kind")
    named = {
        int(row[0], 16): re.sub(r"\W|#.*", "", row[1].partition("]")[0]) for row in kinds if row[1]
    }
    assert named == KINDS
    assert set(named) == set(codec._DECODERS)
    kept = [range(int(row[0][:4], 16), int(row[0][-4:], 16) + 1) for row in kinds if not row[1]]
    assert kept == [codec.MEMBERSHIP_KINDS, codec.UNICAST_KINDS]


def test_the_flags_are_those_of_the_code() -> None:
    run = {
        "FRAGMENT": FRAGMENT,
        "FIRST_FRAGMENT": FIRST_FRAGMENT,
        "LAST_FRAGMENT": LAST_FRAGMENT,
        "NO_LOOPBACK": NO_LOOPBACK,
        "ACKED": ACKED,
    }
    assert flags_of("DATA") == {
        **run,
        "FIRST": codec.FIRST,
        "EPOCH": codec.EPOCH,
        "REPAIR": codec.REPAIR,
    }
    assert flags_of("TAIL") == {"HAS_START": HAS_START, "EPOCH": codec.EPOCH}
    assert flags_of("OUT_OF_BAND") == {"NO_LOOPBACK": NO_LOOPBACK, "PRIVATE": PRIVATE}
    assert flags_of("UNRELIABLE") == {"NO_LOOPBACK": NO_LOOPBACK}
    assert flags_of("CLOSE") == {"EPOCH": codec.EPOCH}
    assert flags_of("JOIN") == {"RELAY": control_frames.RELAY}
    assert flags_of("ALIVE") == {
        "IN_VIEW": control_frames.IN_VIEW,
        "INCLUDES_RECEIVER": control_frames.INCLUDES_RECEIVER,
        "REPLY_WANTED": control_frames.REPLY_WANTED,
        "EXPELLED": control_frames.EXPELLED,
    }
    assert flags_of("SUSPECT") == {"SLOW_RECEIVERS": control_frames.SLOW_RECEIVERS}
    assert flags_of("NEW_VIEW") == {"BASE": control_frames.BASE}
    assert flags_of("MERGE_REPLY") == {"WILLING": control_frames.WILLING}
    assert f"`SEALED` {codec.SEALED:#04x}" in section("Header")
    assert f"`ADDRESSED` {codec.ADDRESSED:#04x}" in section("Header")
    assert f"`BARE` {codec.BARE:#04x}" in section("Header")
    assert f"EPOCH, {codec.EPOCH:#04x}," in section("Epochs")


@pytest.mark.parametrize("kind", KINDS)
def test_each_kind_has_the_flags_of_its_table_and_no_others(kind: int) -> None:
    name = KINDS[kind]
    named = sum(flags_of(name).values()) if "| flag |" in section(name) else 0
    (epoch,) = [row[1] for row in rows("Epochs", "kind") if name in row[0].split(", ")]
    assert codec._KNOWN_FLAGS.get(kind, 0) == named | (0 if epoch == "Never." else codec.EPOCH)


def flags_of(heading: str) -> dict[str, int]:
    return {row[1]: int(row[0], 16) for row in rows(heading, "flag")}


def test_the_epochs_are_those_of_the_code() -> None:
    spans = [
        [int(end, 16) for end in re.findall(r"\w+", row[0])] for row in rows("Epochs", "epoch")[1:]
    ]
    assert spans == [[1, 0xFFFFFFFF], [FIRST_CONNECTION_EPOCH, U64_MAX]]
    for low, high in spans:
        told = {
            epoch: encodes(Ack(ORIGIN, 1, 1, epoch))
            for epoch in (low - 1, low, high, high + 1)
            if epoch
        }
        assert told == {epoch: low <= epoch <= high for epoch in told}


def test_the_sizes_are_those_of_the_code() -> None:
    sizes = {row[0]: row[1:3] for row in rows("Sizes", "kind")}
    assert set(sizes) == set(KINDS.values())
    told = set()
    for frame, layout in GOLDEN:
        name, with_epoch = KINDS[bytes.fromhex(layout)[0]], bool(getattr(frame, "epoch", 0))
        assert (
            int(sizes[name][with_epoch]) + varying_bytes(frame)
            == len(bytes.fromhex(layout))
            == codec.size_bytes(frame)
        )
        told.add((name, with_epoch))
    assert told == {(name, at == 1) for name, row in sizes.items() for at in (0, 1) if row[at]}


def varying_bytes(frame: Frame) -> int:
    """Return what the last column of the table comes to for this frame."""
    if isinstance(frame, (Data, OutOfBand, Unreliable)):
        return sum(2 + len(message) for message in frame.run.messages())
    if isinstance(frame, (Nak, OutOfBandAck)):
        return 12 * len(frame.ranges)
    if isinstance(frame, (Vote, Stable, StateAsk)):
        return 32 * len(frame.starts if isinstance(frame, StateAsk) else frame.progress)
    if isinstance(frame, (Suspect, Beacon)):
        return 16 * len(frame.members if isinstance(frame, Suspect) else frame.heard)
    if isinstance(frame, (Join, NameTaken)):
        return len(frame.entry.name.encode()) + len(frame.entry.locator)
    if isinstance(frame, (NewView, StateOffer, StateChunk)):
        return len(frame.body) + (
            20 if isinstance(frame, NewView) and frame.base is not None else 0
        )
    return 20 if isinstance(frame, Alive) and frame.view is not None else 0


def test_the_reasons_are_those_of_the_code() -> None:
    assert sorted(row[0].strip("`") for row in rows("Reasons", "reason")) == sorted(REASONS)
    assert "twenty" in PAGE
    assert len(REASONS) == 20


def encodes(frame: Frame) -> bool:
    try:
        encode(1, ORIGIN, [frame])
    except LocalProtocolError:
        return False
    return True


def test_the_limits_are_those_of_the_code() -> None:
    limits = {row[0]: int(row[1].split()[0]) for row in rows("Limits", "what")}
    assert limits.pop("seqno") == codec.SEQNO_MAX
    assert limits.pop("datagram") == codec.DATAGRAM_MAX_BYTES
    room_bytes = limits.pop("lengths and messages in a datagram with one DATA frame")
    assert room_bytes == codec.run_room_bytes(codec.DATAGRAM_MAX_BYTES)

    def data(count: int, size: int) -> Data:
        return Data(Run.of(ORIGIN, 1, [b"x" * size] * count))

    def nak(count: int) -> Nak:
        return Nak(ORIGIN, tuple((seqno, seqno) for seqno in range(1, count + 1)))

    def aside(count: int, size: int) -> OutOfBand:
        return OutOfBand(data(count, size).run, 0)

    most = limits.pop("messages in a DATA frame")
    assert (encodes(data(most, 0)), encodes(data(most + 1, 0))) == (True, False)
    count, size = (
        limits.pop("messages in another frame"),
        limits.pop("one message in another frame"),
    )
    assert (encodes(aside(count, 0)), encodes(aside(count + 1, 0))) == (True, False)
    assert (encodes(aside(1, size)), encodes(aside(1, size + 1))) == (True, False)
    assert codec.run_room_bytes(codec.DATAGRAM_MAX_BYTES, 1) == room_bytes - 8
    assert limits.pop("frame that is not DATA") == codec.size_bytes(aside(1, size))
    assert limits.pop("one message in a DATA frame") == MAX_ENTRY_BYTES
    ranges, span = (
        limits.pop("ranges in a NAK or OUT_OF_BAND_ACK"),
        limits.pop("messages in a range"),
    )
    assert (encodes(nak(ranges)), encodes(nak(ranges + 1))) == (True, False)
    assert (encodes(nak(ranges)._replace(epoch=1)), encodes(nak(ranges + 1)._replace(epoch=1))) == (
        True,
        False,
    )
    acks = [OutOfBandAck(ORIGIN, nak(many).ranges) for many in (ranges, ranges + 1)]
    assert list(map(encodes, acks)) == [True, False]
    assert (encodes(Nak(ORIGIN, ((1, span),))), encodes(Nak(ORIGIN, ((1, span + 1),)))) == (
        True,
        False,
    )
    entries = limits.pop("entries in a VOTE or STABLE")
    for kind in (Vote, Stable):
        many = [StreamProgress(Address(1, life), 0, 0) for life in range(entries + 1)]
        assert (
            encodes(kind(ORIGIN, 1, tuple(many[1:]))),
            encodes(kind(ORIGIN, 1, tuple(many))),
        ) == (True, False)
    last_view = limits.pop("view that is an epoch")
    assert (encodes(Ack(ORIGIN, 1, 1, last_view)), encodes(Ack(ORIGIN, 1, 1, last_view + 1))) == (
        True,
        False,
    )
    check_limits_of_the_group(limits)
    assert not limits, "a limit without a check"
    assert codec.run_room_bytes(1400) == 1318
    assert 12 * 102 <= 1318 < 13 * 102


def check_limits_of_the_group(limits: dict[str, int]) -> None:
    name, locator = limits.pop("name of a member"), limits.pop("locator of a member")
    for more, fits in ((0, True), (1, False)):
        assert encodes(Join(RosterEntry(ORIGIN, "n" * (name + more)))) is fits
        assert encodes(Join(RosterEntry(ORIGIN, "", b"l" * (locator + more)))) is fits
    members, entries = limits.pop("members in a SUSPECT"), limits.pop("entries in a STATE_ASK")
    parts = limits.pop("parts of a roster or an offer")
    assert parts == roster.PARTS_MAX_COUNT
    for more, fits in ((0, True), (1, False)):
        assert (
            encodes(Suspect(ORIGIN, tuple(Address(1, life) for life in range(members + more))))
            is fits
        )
        starts = tuple(StreamProgress(Address(1, life), 0, 0) for life in range(entries + more))
        assert encodes(StateAsk(ORIGIN, 1, starts)) is fits
        assert encodes(StateOffer(ORIGIN, 1, 0, parts + more, b"x")) is fits
    assert limits.pop(
        "bytes of a part of a roster in a datagram of 1400 bytes"
    ) == codec.new_view_room_bytes(1400)
    assert limits.pop(
        "bytes of a part of an offer in a datagram of 1400 bytes"
    ) == codec.state_offer_room_bytes(1400)
    assert limits.pop(
        "bytes of the state in a datagram of 1400 bytes"
    ) == codec.state_chunk_room_bytes(1400)


def test_the_annotated_bytes_are_the_datagram_of_the_example() -> None:
    found = re.search(r"^```text\n(.*?)^```$", section("An example"), re.DOTALL | re.MULTILINE)
    assert found
    lines = [line for line in found[1].splitlines() if line]
    datagram = bytes.fromhex("".join(line.split("   ")[0] for line in lines))
    bob, alice = Address(0xB0B, 1), Address(0xA11CE, 3)
    run = Run.of(bob, 41, [b"hello", b"you"], view=2, sent_ns=1_000_000_000)
    expected = Datagram(group_id("demo"), bob, (Data(run), Ack(alice, 17, 212_992)))
    assert decode(datagram) == expected
    assert encode(*expected) == datagram
