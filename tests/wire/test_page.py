"""docs/wire.md says what the code does: its tables, its limits, its reasons and its example."""

import re
from pathlib import Path
from struct import Struct

import pytest

from gapless.errors import LocalProtocolError
from gapless.identity import Address, group_id
from gapless.run import BEGIN, END, NOT_BACK, PIECE, Run
from gapless.wire import Ack, Data, Datagram, Frame, Nak, codec, decode, encode
from gapless.wire.codec import REASONS

PAGE = (Path(__file__).parents[2] / "docs/wire.md").read_text(encoding="utf-8")
ORIGIN = Address(1, 1)


def section(heading: str) -> str:
    found = re.search(rf"^#+ {heading}\n(.*?)(?=^#+ |\Z)", PAGE, re.DOTALL | re.MULTILINE)
    assert found, heading
    return found[1]


def rows(heading: str, columns: str) -> list[list[str]]:
    """The rows of the table with this first line, under this heading."""
    found = re.search(rf"^\| {columns}.*\n\|[-:| ]+\n((?:\|.*\n)+)", section(heading), re.MULTILINE)
    assert found, f"{heading}: {columns}"
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in found[1].splitlines()]


LAYOUTS: list[tuple[str, int, list[Struct]]] = [
    ("Header", 0, [codec._HEADER]),
    ("Frames", 0, [codec._PREFIX]),
    ("DATA", 20, [codec._DATA]),
    ("ACK", 20, [codec._ACK]),
    ("NAK", 20, [codec._NAK]),
    ("GONE", 20, [codec._GONE]),
    ("TAIL", 20, [codec._TAIL]),
]
SIZES = {"B": 1, "H": 2, "I": 4, "Q": 8, "2s": 2}


@pytest.mark.parametrize(("heading", "start", "structs"), LAYOUTS, ids=[layout[0] for layout in LAYOUTS])
def test_the_tables_have_the_offsets_and_sizes_of_the_code(heading: str, start: int, structs: list[Struct]) -> None:
    fields = [(int(row[0]), int(row[1])) for row in rows(heading, "offset") if row[0].isdigit() and row[1].isdigit()]
    sizes = [SIZES[code] for struct in structs for code in re.findall(r"2s|[BHIQ]", struct.format)]
    assert [size for _, size in fields] == sizes
    assert [offset for offset, _ in fields] == [start + sum(sizes[:at]) for at in range(len(sizes))]


def test_the_kinds_are_those_of_the_code() -> None:
    kinds = rows("Frames", "kind")
    named = {int(row[0], 16): re.sub(r"\W|#.*", "", row[1].partition("]")[0]) for row in kinds if row[1]}
    assert named == {getattr(codec, name): name for name in ("DATA", "ACK", "NAK", "GONE", "TAIL")}
    assert set(named) == set(codec._DECODERS)
    kept = [range(int(row[0][:4], 16), int(row[0][-4:], 16) + 1) for row in kinds if not row[1]]
    assert kept == [codec.MEMBERSHIP_KINDS, codec.UNICAST_KINDS]


def test_the_flags_are_those_of_the_code() -> None:
    data = {row[1]: int(row[0], 16) for row in rows("DATA", "flag")}
    assert data == {"PIECE": PIECE, "BEGIN": BEGIN, "END": END, "NOT_BACK": NOT_BACK, "REPAIR": codec.REPAIR}
    assert {row[1]: int(row[0], 16) for row in rows("TAIL", "flag")} == {"STARTS": codec.STARTS}
    assert f"`SEALED` {codec.SEALED:#04x}" in section("Header")


def test_the_reasons_are_those_of_the_code() -> None:
    assert sorted(row[0].strip("`") for row in rows("Reasons", "reason")) == sorted(REASONS)
    assert "thirteen" in PAGE
    assert len(REASONS) == 13


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

    count, size = limits.pop("messages in a frame"), limits.pop("one message in a frame")
    assert (encodes(data(count, 0)), encodes(data(count + 1, 0))) == (True, False)
    assert (encodes(data(1, size)), encodes(data(1, size + 1))) == (True, False)
    assert limits.pop("frame") == codec.size_bytes(data(1, size))
    ranges, span = limits.pop("ranges in a NAK"), limits.pop("messages in a range")
    assert (encodes(nak(ranges)), encodes(nak(ranges + 1))) == (True, False)
    assert (encodes(Nak(ORIGIN, ((1, span),))), encodes(Nak(ORIGIN, ((1, span + 1),)))) == (True, False)
    assert not limits, "a limit without a check"
    assert codec.run_room_bytes(1400) == 1326 == 13 * 102


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
