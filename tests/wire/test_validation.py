"""The wire format, as it should not be: what a receiver refuses, and what it must not cost."""

import tracemalloc
from struct import pack

import pytest
from hypothesis import given, strategies as st

from gapless.identity import U32_MAX, U64_MAX, Address
from gapless.run import ACKED, FIRST_FRAGMENT, FRAGMENT, LAST_FRAGMENT, NO_LOOPBACK
from gapless.wire import Frame, Nak, Tail, decode, encode
from gapless.wire.codec import SEQNO_MAX
from gapless.wire.frames import FIRST_CONNECTION_EPOCH
from gapless.wire.primitives import REASONS
from tests.support.frames import (
    FIRST,
    GOLDEN,
    GROUP,
    LINK,
    ORIGIN,
    SENDER,
    frame_lists,
    raw,
    raw_data,
    raw_frame,
    raw_members,
    raw_ranges,
    raw_run,
    raw_tail,
    raw_view,
    raw_votes,
    reason_of,
)

ACK = raw_frame(2, pack("<QI", 1, 1))
REFUSED: list[tuple[str, str, bytes]] = [
    ("short", "nothing at all", b""),
    ("short", "a header without its last byte", raw(ACK)[:31]),
    ("magic", "another protocol", raw(ACK, magic=b"GX")),
    ("version", "an older version", raw(ACK, version=0)),
    ("version", "a newer version", raw(ACK, version=2)),
    ("sealed", "an envelope that this member cannot open", raw(ACK, flags=0x01)),
    ("flags", "an unknown header flag", raw(ACK, flags=0x08)),
    ("bare", "an ACK", raw(ACK, flags=0x04)),
    ("bare", "a header and nothing else", raw(b"", flags=0x04)),
    ("bare", "a DATA frame and another", raw(raw_data(), raw_data(), flags=0x04)),
    (
        "bare",
        "a DATA frame that ends before its epoch does",
        raw(raw_frame(1, bytes(22), flags=0x40), flags=0x04),
    ),
    ("checksum", "a checksum of the messages of a bare datagram", raw(raw_data(), flags=0x04)),
    ("flags", "a known and an unknown header flag", raw(ACK, flags=0x82)),
    ("sealed", "an envelope with an unknown header flag", raw(ACK, flags=0x81)),
    ("short", "a header that ends before its addressee", raw(b"1234567", flags=0x02)),
    ("empty", "an addressee and nothing else", raw(b"12345678", flags=0x02)),
    ("flags", "a flag on an ACK", raw(raw_frame(2, pack("<QI", 1, 1), flags=1))),
    ("flags", "a flag on a NAK", raw(raw_frame(3, pack("<H", 0), flags=1))),
    ("flags", "a flag on a GONE", raw(raw_frame(4, pack("<Q", 1), flags=1))),
    ("flags", "an unknown flag on a TAIL", raw(raw_tail(1, 1, 0, flags=2))),
    ("flags", "a TAIL for one reader without a start", raw(raw_tail(1, 1, 0, reader=1))),
    (
        "flags",
        "an unknown flag on an ACK with an epoch",
        raw(raw_frame(2, pack("<QQI", 1, 1, 1), flags=0xC0)),
    ),
    ("flags", "a flag on a VOTE", raw(raw_frame(6, raw_votes((1, 1, 1, 1))[20:], flags=1))),
    (
        "flags",
        "an epoch on a VOTE",
        raw(raw_frame(6, pack("<Q", 1) + raw_votes((1, 1, 1, 1))[20:], flags=0x40)),
    ),
    ("flags", "a flag on a STABLE", raw(raw_frame(7, raw_votes((1, 1, 1, 1))[20:], flags=1))),
    ("flags", "a piece out of band", raw(raw_frame(8, pack("<Q", 0) + raw_run(), flags=FRAGMENT))),
    ("flags", "ACKED out of band", raw(raw_frame(8, pack("<Q", 0) + raw_run(), flags=ACKED))),
    ("flags", "an epoch out of band", raw(raw_frame(8, pack("<QQ", 1, 0) + raw_run(), flags=0x40))),
    ("flags", "a flag on an OUT_OF_BAND_ACK", raw(raw_frame(9, pack("<HQI", 1, 1, 0), flags=1))),
    (
        "flags",
        "an epoch on an OUT_OF_BAND_ACK",
        raw(raw_frame(9, pack("<QHQI", 1, 1, 1, 0), flags=0x40)),
    ),
    ("flags", "a piece of an UNRELIABLE", raw(raw_frame(10, raw_run(), flags=FRAGMENT))),
    ("flags", "ACKED on an UNRELIABLE", raw(raw_frame(10, raw_run(), flags=ACKED))),
    (
        "flags",
        "an epoch on an UNRELIABLE",
        raw(raw_frame(10, pack("<Q", 1) + raw_run(), flags=0x40)),
    ),
    ("flags", "an unknown flag on a CLOSE", raw(raw_frame(0x20, pack("<Q", LINK), flags=0x41))),
    ("epoch", "an epoch of zero", raw(raw_data(flags=0x40, epoch=0))),
    ("epoch", "an epoch above the views", raw(raw_data(flags=0x40, epoch=U32_MAX + 1))),
    (
        "epoch",
        "an epoch below the connections",
        raw(raw_frame(2, pack("<QQI", FIRST_CONNECTION_EPOCH - 1, 1, 1), flags=0x40)),
    ),
    ("epoch", "a first message without an epoch", raw(raw_data(flags=0x20))),
    ("epoch", "a first message of a view", raw(raw_data(flags=0x60, epoch=U32_MAX))),
    ("epoch", "a CLOSE without an epoch", raw(raw_frame(0x20, b""))),
    ("epoch", "a CLOSE of a view", raw(raw_frame(0x20, pack("<Q", 1), flags=0x40))),
    ("order", "a VOTE that names a stream twice", raw(raw_votes((1, 1, 0, 0), (1, 1, 0, 0)))),
    ("order", "a VOTE whose nodes fall", raw(raw_votes((2, 1, 0, 0), (1, 2, 0, 0)))),
    ("order", "a STABLE whose lives fall", raw(raw_votes((1, 2, 0, 0), (1, 1, 0, 0), kind=7))),
    (
        "checksum",
        "a flipped bit in the checksum",
        raw(ACK)[:4] + bytes([raw(ACK)[4] ^ 1]) + raw(ACK)[5:],
    ),
    ("checksum", "a flipped bit at the end", raw(ACK)[:-1] + bytes([raw(ACK)[-1] ^ 1])),
    ("empty", "no frame", raw()),
    ("length", "less than a prefix", raw(ACK, b"\x02")),
    ("length", "a prefix without its last byte", raw(ACK[:19])),
    ("length", "a length beyond the datagram", raw(raw_frame(2, pack("<QI", 1, 1), length=29))),
    ("length", "a length within the prefix", raw(raw_frame(2, pack("<QI", 1, 1), length=15))),
    ("length", "a length within the prefix of an unknown kind", raw(raw_frame(11, b"", length=15))),
    ("length", "a length of zero", raw(raw_frame(2, pack("<QI", 1, 1), length=0))),
    ("length", "an ACK that is too short", raw(raw_frame(2, pack("<QH", 1, 1)))),
    ("length", "an ACK that is too long", raw(raw_frame(2, pack("<QQ", 1, 1)))),
    ("length", "a NAK without a count", raw(raw_frame(3, b""), ACK)),
    ("length", "a NAK with half a count", raw(raw_frame(3, b"\x00"), ACK)),
    ("length", "a NAK without a count at the end", raw(ACK, raw_frame(3, b""))),
    ("length", "a NAK with half a count at the end", raw(ACK, raw_frame(3, b"\x00"))),
    ("length", "a NAK with fewer ranges than it says", raw(raw_ranges((1, 0), count=2), ACK)),
    ("length", "a NAK with more ranges than it says", raw(raw_ranges((1, 0), (3, 0), count=1))),
    ("length", "a GONE that is too short", raw(raw_frame(4, b"\x01"))),
    ("length", "a GONE that is too long", raw(raw_frame(4, pack("<QQ", 1, 1)))),
    ("length", "a TAIL that is too short", raw(raw_frame(5, pack("<QQ", 1, 1)))),
    ("length", "a DATA without its fixed part", raw(raw_frame(1, b"\x01" * 21), ACK)),
    ("length", "a DATA without its fixed part at the end", raw(ACK, raw_frame(1, b"\x01" * 21))),
    ("length", "lengths that promise more", raw(raw_data(lengths=(1, 2), payload=b"xy"), ACK)),
    ("length", "lengths that promise less", raw(raw_data(lengths=(1, 2), payload=b"wxyz"))),
    ("length", "an epoch that is cut short", raw(raw_frame(2, b"\x01" * 7, flags=0x40), ACK)),
    ("length", "an epoch that is missing at the end", raw(ACK, raw_frame(0x20, b"", flags=0x40))),
    (
        "length",
        "an ACK with an epoch in place of its body",
        raw(raw_frame(2, pack("<QI", 1, 1), flags=0x40)),
    ),
    (
        "length",
        "a DATA with an epoch but without its fixed part",
        raw(raw_frame(1, pack("<Q", 1) + bytes(21), flags=0x40), ACK),
    ),
    ("length", "a CLOSE that is too long", raw(raw_frame(0x20, pack("<QB", LINK, 0), flags=0x40))),
    (
        "length",
        "a CLOSE with an epoch that is not announced",
        raw(raw_frame(0x20, pack("<Q", LINK))),
    ),
    ("length", "a VOTE without its counts", raw(raw_frame(6, b"\x01" * 5), ACK)),
    ("length", "a STABLE without its counts at the end", raw(ACK, raw_frame(7, b"\x01" * 5))),
    (
        "length",
        "a VOTE with fewer entries than it says",
        raw(raw_votes((1, 1, 0, 0), count=2), ACK),
    ),
    (
        "length",
        "a VOTE with more entries than it says",
        raw(raw_votes((1, 1, 0, 0), (2, 1, 0, 0), count=1)),
    ),
    ("length", "an OUT_OF_BAND without its floor", raw(raw_frame(8, b"\x01" * 7), ACK)),
    ("length", "an OUT_OF_BAND without its floor at the end", raw(ACK, raw_frame(8, b"\x01" * 7))),
    ("length", "an OUT_OF_BAND with nothing but its floor", raw(raw_frame(8, b"\x01" * 8), ACK)),
    (
        "length",
        "an OUT_OF_BAND that promises more",
        raw(raw_frame(8, pack("<Q", 0) + raw_run(lengths=(2,))), ACK),
    ),
    ("length", "an OUT_OF_BAND_ACK without a count", raw(raw_frame(9, b"\x01"), ACK)),
    (
        "length",
        "an OUT_OF_BAND_ACK with fewer ranges than it says",
        raw(raw_ranges((1, 0), count=2, kind=9), ACK),
    ),
    ("length", "an UNRELIABLE without its fixed part", raw(raw_frame(10, b"\x01" * 21), ACK)),
    ("length", "an UNRELIABLE that promises less", raw(raw_frame(10, raw_run(payload=b"xy")))),
    ("kind", "kind zero", raw(raw_frame(0, pack("<QI", 1, 1)))),
    ("kind", "the kind after the last", raw(raw_frame(11, pack("<QI", 1, 1)))),
    (
        "length",
        "a signature without its last byte",
        raw(raw_frame(0x1E, pack("<QI", 1, 1) + bytes(63))),
    ),
    ("count", "a signature with the number 0", raw(raw_frame(0x1E, pack("<QI", 0, 1) + bytes(64)))),
    ("kind", "the kind kept free for membership", raw(raw_frame(0x1F, b""))),
    ("kind", "a kind kept free for unicast", raw(raw_frame(0x21, pack("<Q", LINK), flags=0x40))),
    ("count", "a DATA with no message", raw(raw_data(lengths=(), payload=b""))),
    ("count", "more messages than the frame has room for", raw(raw_data(count=3), ACK)),
    ("count", "as many messages as can be said", raw(raw_data(count=0xFFFF))),
    (
        "count",
        "a DATA with an epoch and no message",
        raw(raw_data(lengths=(), payload=b"", flags=0x40, epoch=1)),
    ),
    (
        "count",
        "an OUT_OF_BAND with no message",
        raw(raw_frame(8, pack("<Q", 0) + raw_run(1, (), b""))),
    ),
    ("count", "an UNRELIABLE with no message", raw(raw_frame(10, raw_run(1, (), b"")))),
    (
        "count",
        "an UNRELIABLE with more than it has room for",
        raw(raw_frame(10, raw_run(count=3)), ACK),
    ),
    ("count", "an OUT_OF_BAND_ACK of nothing", raw(raw_ranges(kind=9))),
    ("count", "a VOTE about nothing", raw(raw_votes())),
    ("count", "a STABLE about nothing", raw(raw_votes(kind=7))),
    ("seqno", "a run that starts at zero", raw(raw_data(first=0))),
    ("seqno", "a run beyond the largest seqno", raw(raw_data(first=SEQNO_MAX, lengths=(0, 1)))),
    ("seqno", "a run that ends beyond it", raw(raw_data(first=SEQNO_MAX - 1, lengths=(0, 0, 1)))),
    (
        "seqno",
        "a long run that ends beyond it",
        raw(raw_data(SEQNO_MAX - 29_998, [0] * 30_000, b"")),
    ),
    ("seqno", "a run at the end of 64 bits", raw(raw_data(first=U64_MAX))),
    ("seqno", "an ACK beyond the largest seqno", raw(raw_frame(2, pack("<QI", SEQNO_MAX + 1, 0)))),
    ("seqno", "a GONE beyond the largest seqno", raw(raw_frame(4, pack("<Q", SEQNO_MAX + 1)))),
    ("seqno", "a TAIL with low above high", raw(raw_tail(3, 2, 0))),
    ("seqno", "a TAIL beyond the largest seqno", raw(raw_tail(3, SEQNO_MAX + 1, 0))),
    ("seqno", "a TAIL that starts beyond high", raw(raw_tail(1, 2, 3, flags=1))),
    ("seqno", "a TAIL with a start that does not count", raw(raw_tail(1, 2, 1))),
    ("seqno", "an OUT_OF_BAND at zero", raw(raw_frame(8, pack("<Q", 0) + raw_run(first=0)))),
    (
        "seqno",
        "an OUT_OF_BAND that is below its floor",
        raw(raw_frame(8, pack("<Q", 5) + raw_run(first=5))),
    ),
    (
        "seqno",
        "an OUT_OF_BAND beyond the largest",
        raw(raw_frame(8, pack("<Q", 0) + raw_run(SEQNO_MAX + 1))),
    ),
    ("seqno", "an UNRELIABLE at zero", raw(raw_frame(10, raw_run(first=0)))),
    ("seqno", "an UNRELIABLE with a number", raw(raw_frame(10, raw_run(first=2)))),
    ("seqno", "a VOTE for more than there is", raw(raw_votes((1, 1, 4, 3)))),
    (
        "seqno",
        "a STABLE beyond the largest seqno",
        raw(raw_votes((1, 1, 4, SEQNO_MAX + 1), kind=7)),
    ),
    ("range", "an OUT_OF_BAND_ACK of zero", raw(raw_ranges((0, 5), kind=9))),
    (
        "range",
        "an OUT_OF_BAND_ACK whose ranges overlap",
        raw(raw_ranges((1, 5), (6, 0), (6, 0), kind=9)),
    ),
    ("range", "a range that starts at zero", raw(raw_ranges((0, 5)))),
    ("range", "a range beyond the largest seqno", raw(raw_ranges((SEQNO_MAX, 1)))),
    ("range", "ranges that overlap", raw(raw_ranges((1, 5), (6, 0), (6, 0)))),
    ("range", "ranges that fall", raw(raw_ranges((7, 0), (3, 0)))),
    ("piece", "the first piece without the piece flag", raw(raw_data(flags=FIRST_FRAGMENT))),
    (
        "piece",
        "the last piece without the piece flag",
        raw(raw_data(flags=LAST_FRAGMENT | NO_LOOPBACK)),
    ),
    (
        "piece",
        "first and last piece at once",
        raw(raw_data(flags=FRAGMENT | FIRST_FRAGMENT | LAST_FRAGMENT)),
    ),
    (
        "piece",
        "two pieces in one run",
        raw(raw_data(lengths=(1, 1), payload=b"xy", flags=FRAGMENT)),
    ),
]

NOBODY = Address(0, 0)
ENTRY = pack("<QQQQ", 1, 2, 3, 4)
PARTS = pack("<HH", 0, 1)
OF_THE_GROUP: dict[int, tuple[str, bytes]] = {
    0x10: ("JOIN", pack("<BB", 1, 1) + b"nl"),
    0x11: ("LEAVE", b""),
    0x12: ("ALIVE", b""),
    0x13: ("SUSPECT", raw_members(FIRST)),
    0x14: ("NEW_VIEW", raw_view() + PARTS + b"x"),
    0x15: ("ASK_VIEW", b""),
    0x16: ("BEACON", raw_view() + raw_members(FIRST)),
    0x17: ("MERGE_ASK", pack("<Q", 1)),
    0x18: ("MERGE_REPLY", pack("<Q", 1) + raw_view()),
    0x19: ("STATE_ASK", pack("<QH", 1, 1) + ENTRY),
    0x1A: ("STATE_OFFER", pack("<Q", 1) + PARTS + b"x"),
    0x1B: ("STATE_PULL", pack("<QQI", 1, 1, 1)),
    0x1C: ("STATE_CHUNK", pack("<QQ", 1, 1) + b"x"),
    0x1D: ("NAME_TAKEN", pack("<QQ", 1, 2) + pack("<BB", 1, 1) + b"nl"),
}
"""A good body of each kind about membership and state, without flags."""
GROUP_FLAGS = {0x10: 1, 0x12: 7, 0x13: 1, 0x14: 1, 0x18: 1}
REFUSED += [
    ("member", f"a {name} of nobody", raw(raw_frame(kind, body, origin=NOBODY)))
    for kind, (name, body) in OF_THE_GROUP.items()
]
REFUSED += [
    ("flags", f"the flag {1 << bit:#x} on a {name}", raw(raw_frame(kind, body, flags=1 << bit)))
    for kind, (name, body) in OF_THE_GROUP.items()
    for bit in range(8)
    if not GROUP_FLAGS.get(kind, 0) & 1 << bit
]
REFUSED += [
    ("length", f"{at} bytes of a {name}", raw(raw_frame(kind, body[:at]), ACK))
    for kind, (name, body) in OF_THE_GROUP.items()
    for at in range(len(body))
    if (name, len(body) - at) not in {("NEW_VIEW", 1), ("STATE_OFFER", 1), ("STATE_CHUNK", 1)}
]
REFUSED += [
    ("length", f"a {name} that is too long", raw(raw_frame(kind, body + b"x")))
    for kind, (name, body) in OF_THE_GROUP.items()
    if name not in {"NEW_VIEW", "STATE_OFFER", "STATE_CHUNK"}
]


def raw_join(name: bytes, locator: bytes = b"") -> bytes:
    return raw(raw_frame(0x10, pack("<BB", len(name), len(locator)) + name + locator))


def raw_new_view(
    view: bytes, part: int = 0, parts: int = 1, base: bytes = b"", body: bytes = b"x"
) -> bytes:
    return raw(
        raw_frame(0x14, view + pack("<HH", part, parts) + base + body, flags=1 if base else 0)
    )


REFUSED += [
    ("flags", "an ALIVE in no view, but with you", raw(raw_frame(0x12, b"", flags=2))),
    (
        "length",
        "an ALIVE without the view it is in",
        raw(raw_frame(0x12, raw_view()[:-1], flags=1), ACK),
    ),
    (
        "length",
        "an ALIVE with a view that is not announced",
        raw(raw_frame(0x12, raw_view(), flags=4)),
    ),
    ("length", "a name beyond the JOIN", raw(raw_frame(0x10, pack("<BB", 2, 0) + b"n"), ACK)),
    ("length", "a locator beyond the JOIN", raw(raw_frame(0x10, pack("<BB", 1, 255) + b"nl"), ACK)),
    ("length", "a locator that is too long", raw_join(b"", b"l" * 65)),
    (
        "length",
        "a NEW_VIEW without the base it announces",
        raw(raw_frame(0x14, raw_view() + PARTS + b"x", 1), ACK),
    ),
    (
        "length",
        "a SUSPECT with fewer members than it says",
        raw(raw_frame(0x13, raw_members(FIRST, count=2)), ACK),
    ),
    (
        "length",
        "a BEACON that says fewer than it has",
        raw(raw_frame(0x16, raw_view() + raw_members(FIRST, count=0))),
    ),
    ("name", "a name that is too long", raw_join(b"n" * 65)),
    ("name", "a name that is not UTF-8", raw_join(b"\xff")),
    ("name", "a name with half a surrogate", raw_join(b"\xed\xa0\x80")),
    ("name", "a name in more bytes than it needs", raw_join(b"\xc1\x81")),
    *(
        ("name", f"a name with the control character {code:#x}", raw_join(chr(code).encode()))
        for code in (0, 31, 127)
    ),
    *(
        ("name", f"a name with the control character {code:#x}", raw_join(chr(code).encode()))
        for code in (128, 159)
    ),
    ("count", "a SUSPECT of nobody in particular", raw(raw_frame(0x13, raw_members()))),
    ("count", "a NEW_VIEW without bytes", raw_new_view(raw_view(), body=b"")),
    ("count", "a STATE_OFFER without bytes", raw(raw_frame(0x1A, pack("<Q", 1) + PARTS))),
    ("count", "a STATE_CHUNK without bytes", raw(raw_frame(0x1C, pack("<QQ", 1, 1)))),
    ("member", "a SUSPECT of the address zero", raw(raw_frame(0x13, raw_members(NOBODY)))),
    (
        "member",
        "a SUSPECT that names one twice",
        raw(raw_frame(0x13, raw_members(FIRST, (1, 3), FIRST))),
    ),
    (
        "member",
        "a BEACON that hears nobody's address",
        raw(raw_frame(0x16, raw_view() + raw_members(NOBODY))),
    ),
    (
        "member",
        "a BEACON that hears one twice",
        raw(raw_frame(0x16, raw_view() + raw_members(FIRST, FIRST))),
    ),
    ("member", "a view that nobody made", raw(raw_frame(0x12, raw_view(1, NOBODY), flags=1))),
    ("member", "a base that nobody made", raw_new_view(raw_view(2), base=raw_view(1, NOBODY))),
    ("member", "a STATE_ASK about nobody", raw(raw_frame(0x19, pack("<QHQQQQ", 1, 1, 0, 0, 3, 4)))),
    ("view", "an ALIVE in view zero", raw(raw_frame(0x12, raw_view(0), flags=1))),
    ("view", "a NEW_VIEW of view zero", raw_new_view(raw_view(0))),
    ("view", "a change of view zero", raw_new_view(raw_view(), base=raw_view(0))),
    ("view", "a change of the same view", raw_new_view(raw_view(2), base=raw_view(2))),
    ("view", "a change of a later view", raw_new_view(raw_view(2), base=raw_view(3))),
    ("view", "a BEACON of view zero", raw(raw_frame(0x16, raw_view(0) + raw_members()))),
    ("view", "a MERGE_REPLY of view zero", raw(raw_frame(0x18, pack("<Q", 1) + raw_view(0)))),
    ("part", "part one of one", raw_new_view(raw_view(), 1, 1)),
    ("part", "part zero of none", raw_new_view(raw_view(), 0, 0)),
    (
        "part",
        "a STATE_OFFER of which it is the part behind the last",
        raw(raw_frame(0x1A, pack("<QHHB", 1, 2, 2, 0))),
    ),
    (
        "order",
        "a STATE_ASK whose entries fall",
        raw(raw_frame(0x19, pack("<QH", 1, 2) + ENTRY * 2)),
    ),
    (
        "seqno",
        "a STATE_ASK for more than there is",
        raw(raw_frame(0x19, pack("<QHQQQQ", 1, 1, 1, 2, 4, 3))),
    ),
    ("range", "a STATE_PULL beyond any state", raw(raw_frame(0x1B, pack("<QQI", 1, SEQNO_MAX, 1)))),
    (
        "range",
        "a STATE_CHUNK beyond any state",
        raw(raw_frame(0x1C, pack("<QQB", 1, SEQNO_MAX, 1))),
    ),
]


def test_the_bodies_that_are_spoiled_above_are_good() -> None:
    for kind, (_, body) in OF_THE_GROUP.items():
        assert len(decode(raw(raw_frame(kind, body))).frames) == 1
    assert len(decode(raw_new_view(raw_view(2), base=raw_view(1))).frames) == 1
    assert len(decode(raw_join("é".encode() * 32, b"l" * 64)).frames) == 1


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
    assert decode(raw(raw_ranges((1, 4), (6, 0)))).frames == (Nak(ORIGIN, ((1, 5), (6, 6))),)


def test_one_bad_frame_spoils_the_datagram() -> None:
    assert reason_of(raw(ACK, raw_frame(11, b""), ACK)) == "kind"


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
    assert reason_of(bytes(datagram)) in {"magic", "version", "sealed", "bare", "checksum"}


@pytest.mark.parametrize("addressee", [None, 0x1800_0001])
def test_a_flipped_header_flag_is_noticed_even_where_the_rest_still_makes_sense(
    addressee: int | None,
) -> None:
    """The checksum covers the flag ADDRESSED, which decides where the frames begin."""
    origin = Address(0x0030_0105_0000_0000, 5)
    datagram = bytearray(encode(GROUP, SENDER, [Tail(origin, 6, 7, 7, 9, epoch=9)], addressee))
    datagram[3] ^= 0x02
    assert reason_of(bytes(datagram)) == "checksum"


BOASTS = {
    "messages": raw(raw_data(count=0xFFFF)),
    "messages, with the length to match": raw(
        raw_frame(1, pack("<QIQH", 1, 0, 0, 0xFFFF), length=0xFFFF)
    ),
    "ranges": raw(raw_ranges(count=0xFFFF)),
    "ranges, with the length to match": raw(raw_frame(3, pack("<H", 0xFFFF), length=0xFFFF)),
    "bytes in a message": raw(raw_data(lengths=(0xFFFF,), payload=b"")),
    "messages behind an epoch": raw(raw_data(count=0xFFFF, flags=0x40, epoch=LINK)),
    "messages out of band": raw(raw_frame(8, pack("<Q", 0) + raw_run(count=0xFFFF))),
    "unreliable messages": raw(raw_frame(10, raw_run(count=0xFFFF))),
    "out-of-band ranges": raw(raw_ranges((1, 0), count=0xFFFF, kind=9)),
    "entries": raw(raw_votes((1, 1, 1, 1), count=0xFFFF)),
    "entries, with the length to match": raw(raw_frame(7, pack("<IH", 1, 0xFFFF), length=0xFFFF)),
    "suspects": raw(raw_frame(0x13, raw_members(FIRST, count=0xFFFF))),
    "coordinators": raw(raw_frame(0x16, raw_view() + raw_members(FIRST, count=0xFFFF))),
    "starts": raw(raw_frame(0x19, pack("<QH", 1, 0xFFFF) + ENTRY)),
    "names": raw(raw_frame(0x10, pack("<BB", 255, 255) + b"n")),
}


@pytest.mark.parametrize("boast", BOASTS)
def test_a_boast_allocates_nothing(boast: str) -> None:
    reason_of(
        BOASTS[boast]
    )  # what is made once and kept, such as compiled patterns, is not the boast's doing
    tracemalloc.start()
    try:
        reason_of(BOASTS[boast])
        _, peak_bytes = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak_bytes < 20_000


def test_what_is_decoded_and_dropped_leaves_nothing_behind() -> None:
    """Frames of a hundred different lengths, which must not fill a cache on their way."""
    datagrams = [
        raw(frame)
        for count in range(500, 600)
        for frame in (
            raw_data(1, [0] * count, b""),
            raw_ranges(*((seqno, 0) for seqno in range(1, count))),
            raw_ranges(*((seqno, 0) for seqno in range(1, count)), kind=9),
            raw_votes(*((node, 1, 1, 1) for node in range(1, count))),
            raw_frame(0x13, raw_members(*((node, 1) for node in range(1, count)))),
            raw_frame(
                0x19,
                pack("<QH", 1, count)
                + b"".join(pack("<QQQQ", 1, life, 1, 1) for life in range(count)),
            ),
        )
    ]
    decode(datagrams[0])
    tracemalloc.start()
    try:
        for datagram in datagrams:
            decode(datagram)
        kept_bytes, peak_bytes = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert kept_bytes < 100_000, "a cache of a hundred formats would be megabytes"
    assert peak_bytes < 40 * max(map(len, datagrams))
