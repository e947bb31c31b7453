"""Rosters and offers as bytes: whole or as a change, in parts, and what is refused."""

from collections import Counter
from random import Random
from struct import pack

import pytest
from hypothesis import given, strategies as st

from gapless.errors import LocalProtocolError, RemoteProtocolError
from gapless.identity import U32_MAX, U64_MAX, Address, Roster, RosterEntry, ViewId
from gapless.wire.codec import SEQNO_MAX
from gapless.wire.frames import Range, StreamProgress
from gapless.wire.roster import decode_roster, encode_roster, is_change, split_body
from gapless.wire.state_offer import OfferContent, decode_offer, encode_offer
from tests.support.frames import locators, names, ranges, starts, u64

A, B, C, D = (
    RosterEntry(Address(node, 1), name, b"")
    for node, name in ((1, "a"), (2, ""), (3, "c"), (4, "d"))
)
B2 = RosterEntry(Address(2, 2), "", b"elsewhere")
VIEW = ViewId(7, A.address)
BASE = Roster(ViewId(6, A.address), (A, B, C))

# Any roster, and any change of it


@st.composite
def some_places(
    draw: st.DrawFn, nodes: list[int], *, taken: set[str], named: bool = False
) -> list[RosterEntry]:
    """One place for each of the nodes, with names that nobody has yet."""
    found = []
    for node in nodes:
        name = draw(names)
        if name in taken or not name:
            name = f"n{len(taken)}-{node}" if named else ""
        taken |= {name} - {""}
        found.append(
            RosterEntry(
                Address(node, draw(st.integers(1, 3) | st.integers(4, U64_MAX))),
                name,
                draw(locators),
            )
        )
    return found


node_lists = st.lists(st.integers(0, 12) | u64, unique=True, max_size=6)


@st.composite
def rosters(draw: st.DrawFn) -> Roster:
    taken: set[str] = set()
    places = draw(some_places(draw(node_lists.filter(len)), taken=taken))
    lives = {place.address for place in places}
    away = [
        p
        for p in draw(some_places(draw(node_lists), taken=taken, named=True))
        if p.address not in lives
    ]
    number = draw(st.integers(1, U32_MAX))
    return Roster(ViewId(number, places[0].address), tuple(places), tuple(away))


@st.composite
def changes(draw: st.DrawFn) -> tuple[Roster, Roster]:
    """A base, and a roster that is a change of it: departed, new and absent members."""
    base = draw(rosters())
    stay = [place for place in base.entries if draw(st.booleans())]
    taken = {place.name for place in stay}
    nodes = {place.address.node for place in stay}
    fresh = [node for node in draw(node_lists | node_lists.filter(len)) if node not in nodes]
    new = [place for place in draw(some_places(fresh, taken=taken)) if place not in base.entries]
    places = (*stay, *new) or (base.entries[0],)
    taken |= {place.name for place in places}
    lives = {place.address for place in places}
    left = [
        p
        for p in (*base.entries, *base.absent)
        if p.name and p.name not in taken and p.address not in lives
    ]
    by_name = {place.name: place for place in left if draw(st.booleans())}
    away = {place.address: place for place in by_name.values()}
    return base, Roster(ViewId(base.id.number + 1, places[0].address), places, tuple(away.values()))


@given(rosters())
def test_a_whole_roster_survives(roster: Roster) -> None:
    body = encode_roster(roster)
    assert decode_roster(roster.id, body, None) == roster


@given(changes())
def test_a_change_gives_the_same_roster(pair: tuple[Roster, Roster]) -> None:
    base, roster = pair
    roster = roster._replace(id=ViewId(min(roster.id.number, U32_MAX), roster.id.coordinator))
    assert is_change(roster, base)
    body = encode_roster(roster, base)
    assert decode_roster(roster.id, body, base) == roster
    assert encode_roster(decode_roster(roster.id, body, base), base) == body


@given(rosters(), rosters())
def test_what_is_no_change_is_not_told_as_one(base: Roster, roster: Roster) -> None:
    if is_change(roster, base):
        assert decode_roster(roster.id, encode_roster(roster, base), base) == roster
    else:
        with pytest.raises(LocalProtocolError, match="keep the order"):
            encode_roster(roster, base)


@pytest.mark.parametrize(
    ("places", "expected"),
    [
        ((A, B, C), True),
        ((A, C), True),
        ((B,), True),
        ((D,), True),
        ((A, C, D, B2), True),
        ((A, C, B), False),
        ((B, A, C), False),
        ((D, A), False),
        ((A, D, C), False),
        ((A, B._replace(locator=b"moved"), C), False),
        ((A, C, B._replace(locator=b"moved")), True),
    ],
)
def test_who_stays_keeps_the_order_and_who_is_new_is_behind(
    places: tuple[RosterEntry, ...], *, expected: bool
) -> None:
    roster = Roster(ViewId(7, places[0].address), places)
    assert is_change(roster, BASE) is expected


def test_rosters_have_exactly_these_bytes() -> None:
    roster = Roster(VIEW, (A, C, B2), (D,))
    a = bytes.fromhex(f"01{'00' * 7} 01{'00' * 7} 01 00 61")
    b2 = bytes.fromhex(f"02{'00' * 7} 02{'00' * 7} 00 09") + b"elsewhere"
    c = bytes.fromhex(f"03{'00' * 7} 01{'00' * 7} 01 00 63")
    d = bytes.fromhex(f"04{'00' * 7} 01{'00' * 7} 01 00 64")
    assert encode_roster(roster) == bytes.fromhex("00 0300 0100") + a + c + b2 + d
    assert encode_roster(roster, BASE) == bytes.fromhex("01 0100 0100 0100 0100") + b2 + d


def test_one_that_joins_a_thousand_costs_one_place() -> None:
    places = tuple(RosterEntry(Address(node, 1), "", b"127.0.0.1:7000") for node in range(1, 1001))
    base = Roster(ViewId(1, places[0].address), places[:-1])
    roster = Roster(ViewId(2, places[0].address), places)
    assert len(encode_roster(roster, base)) == 7 + 18 + 14
    assert len(encode_roster(roster)) == 5 + 1000 * (18 + 14)


# What is refused


def raw_place(place: RosterEntry) -> bytes:
    name = place.name.encode()
    return pack("<QQBB", *place.address, len(name), len(place.locator)) + name + place.locator


def raw_whole(
    *places: RosterEntry, away: tuple[RosterEntry, ...] = (), counts: tuple[int, int] | None = None
) -> bytes:
    told = b"".join(map(raw_place, (*places, *away)))
    return pack("<BHH", 0, *(counts or (len(places), len(away)))) + told


def raw_change(
    gone: tuple[int, ...], *new: RosterEntry, counts: tuple[int, int, int] | None = None
) -> bytes:
    head = pack("<BHHH", 1, *(counts or (len(gone), len(new), 0)))
    return head + pack(f"<{len(gone)}H", *gone) + b"".join(map(raw_place, new))


REFUSED: list[tuple[str, str, bytes, Roster | None]] = [
    ("length", "nothing", b"", None),
    ("length", "half a head", raw_whole(A)[:4], None),
    ("length", "half a head of a change", raw_change(())[:6], BASE),
    ("length", "more places than bytes", raw_whole(A, counts=(2, 0)), None),
    ("length", "more away than bytes", raw_whole(A, counts=(1, 1)), None),
    ("length", "as many as can be said", raw_whole(A, counts=(0xFFFF, 0xFFFF)), None),
    ("length", "a place too many", raw_whole(A, B, counts=(1, 0)), None),
    ("length", "a place that is cut short", raw_whole(A)[:-1], None),
    ("length", "a long place that is followed by half a place", raw_whole(B2, B)[:-10], None),
    ("length", "more gone than bytes", raw_change((1,), counts=(9, 0, 0)), BASE),
    ("flags", "a form that means nothing", b"\x02" + raw_whole(A)[1:], None),
    ("flags", "a change without a base", raw_change((1,)), None),
    ("flags", "a whole roster with a base", raw_whole(A), BASE),
    ("order", "one gone twice", raw_change((1, 1)), BASE),
    ("order", "indices that fall", raw_change((2, 1)), BASE),
    ("order", "one gone that was not there", raw_change((3,)), BASE),
    ("order", "one that is gone and new", raw_change((2,), C), BASE),
    ("count", "a roster of nobody", raw_whole(), None),
    ("count", "a change that leaves nobody", raw_change((0, 1, 2)), BASE),
    ("member", "another first than the coordinator", raw_whole(B, A), None),
    ("member", "a change in which the coordinator is gone", raw_change((0,)), BASE),
    ("member", "nobody's address", raw_whole(A, RosterEntry(Address(0, 0))), None),
    ("member", "one place twice", raw_whole(A, B, B), None),
    ("member", "two incarnations of one node", raw_whole(A, B, B2), None),
    ("member", "one that is here and away", raw_whole(A, B, away=(B._replace(name="b"),)), None),
    ("member", "one that is away twice", raw_whole(A, away=(C, C._replace(name="d"))), None),
    ("name", "a name twice", raw_whole(A, B2._replace(name="a")), None),
    ("name", "a name here and away", raw_whole(A, away=(D._replace(name="a"),)), None),
    ("name", "one without a name away", raw_whole(A, away=(B,)), None),
    ("name", "a control character", raw_whole(A._replace(name="\n")), None),
]


@pytest.mark.parametrize(
    ("reason", "body", "base"),
    [(reason, body, base) for reason, _, body, base in REFUSED],
    ids=[f"{reason}: {what}" for reason, what, _, _ in REFUSED],
)
def test_refused_with_its_reason(reason: str, body: bytes, base: Roster | None) -> None:
    with pytest.raises(RemoteProtocolError) as caught:
        decode_roster(VIEW, body, base)
    assert caught.value.reason == reason


def test_what_is_spoiled_above_is_good() -> None:
    assert decode_roster(VIEW, raw_whole(A, B, away=(D,)), None) == Roster(VIEW, (A, B), (D,))
    assert decode_roster(VIEW, raw_change((1, 2), B2, D), BASE) == Roster(VIEW, (A, B2, D))


@pytest.mark.parametrize("view", [ViewId(0, A.address), ViewId(1, Address(0, 0))])
def test_a_roster_of_no_view_is_refused(view: ViewId) -> None:
    with pytest.raises(RemoteProtocolError):
        decode_roster(view, raw_whole(A), None)


@pytest.mark.parametrize(
    "roster",
    [
        Roster(VIEW, ()),
        Roster(VIEW, (B, A)),
        Roster(VIEW, (A, B, B2)),
        Roster(VIEW, (A,), (A,)),
        Roster(VIEW, (A,), (B,)),
        Roster(VIEW, (A, D._replace(name="a"))),
        Roster(VIEW, (A._replace(name="x" * 65),)),
        Roster(VIEW, (A._replace(locator=b"x" * 65),)),
        Roster(VIEW, (A, RosterEntry(Address(U64_MAX + 1, 1)))),
        Roster(ViewId(0, A.address), (A,)),
        Roster(VIEW, (A, *(RosterEntry(Address(node, 1)) for node in range(2, 0x10001)))),
    ],
    ids=lambda roster: f"{roster}"[:60],
)
def test_a_roster_that_breaks_the_rules_is_not_told(roster: Roster) -> None:
    with pytest.raises(LocalProtocolError):
        encode_roster(roster)


@pytest.mark.parametrize("base", [None, BASE], ids=["whole", "change"])
def test_hostile_bytes_give_a_roster_or_a_reason(base: Roster | None) -> None:
    random = Random(1)
    seeds = [
        encode_roster(Roster(VIEW, (A, C, B2), (D,)), base),
        encode_roster(Roster(VIEW, (A, B), (C, D)), base),
    ]
    seen: Counter[str] = Counter()
    for _ in range(30_000):
        body = spoiled(random.choice(seeds), random)
        try:
            roster = decode_roster(VIEW, body, base)
        except RemoteProtocolError as error:
            seen[error.reason] += 1
        else:
            seen["decoded"] += 1
            assert encode_roster(roster, base) == body
    assert seen.keys() == {
        "length",
        "flags",
        "member",
        "name",
        *(["order"] if base else []),
        "decoded",
    }
    assert 30_000 // 100 < seen["decoded"] < 30_000 // 2


def spoiled(body: bytes, random: Random) -> bytes:
    """Set a byte or two, or cut out, repeat or add some."""
    changed = bytearray(body)
    for _ in range(random.choice((1, 1, 2))):
        at = (
            random.randrange(len(changed))
            if random.random() < 0.5
            else random.randrange(min(len(changed), 24))
        )
        what = random.randrange(5)
        if what == 0:
            del changed[at : at + random.choice((1, 2, 8, 16, 18, 32))]
        elif what == 1:
            changed[at:at] = changed[at : at + random.choice((1, 2, 8, 16, 18, 32))]
        elif changed:
            changed[at] = random.choice(
                (0, 1, 2, 3, changed[at] ^ 1 << random.randrange(8), 0x7F, 0xFF)
            )
        if not changed:
            break
    return bytes(changed)


# Parts


@given(st.binary(max_size=100), st.integers(1, 120))
def test_parts_end_to_end_are_the_body(body: bytes, max_bytes: int) -> None:
    parts = split_body(body, max_bytes)
    assert b"".join(parts) == body
    assert len(parts) == -(-len(body) // max_bytes)
    assert all(0 < len(part) <= max_bytes for part in parts)


@pytest.mark.parametrize(("size_bytes", "max_bytes"), [(1, 0), (1, -3), (0x10000, 1)])
def test_what_no_parts_can_hold_is_not_split(size_bytes: int, max_bytes: int) -> None:
    with pytest.raises(LocalProtocolError):
        split_body(bytes(size_bytes), max_bytes)
    assert len(split_body(bytes(0xFFFF), 1)) == 0xFFFF


# Offers


@st.composite
def offers(draw: st.DrawFn) -> OfferContent:
    block_bytes = draw(st.integers(1, U32_MAX) | st.integers(1, 9))
    size_bytes = draw(st.integers(0, min(SEQNO_MAX, 6 * block_bytes)))
    count = -(-size_bytes // block_bytes)
    hashes = draw(st.lists(st.binary(min_size=16, max_size=16), min_size=count, max_size=count))
    origins = sorted(entry.origin for entry in draw(starts))
    aside = tuple((origin, draw(ranges(1))) for origin in origins)
    return OfferContent(
        size_bytes, block_bytes, draw(starts), aside, tuple(hashes), draw(st.integers(0, U32_MAX))
    )


@given(offers())
def test_an_offer_survives(offer: OfferContent) -> None:
    body = encode_offer(offer)
    assert decode_offer(body) == offer
    for kept in (0, 7, len(body) // 2, len(body) - 1):
        with pytest.raises(RemoteProtocolError):
            decode_offer(body[:kept])


HASH = b"0123456789abcdef"
OFFER = OfferContent(
    9,
    4,
    (StreamProgress(A.address, 5, 6),),
    ((C.address, ((1, 2), (4, 4))),),
    (HASH, HASH[::-1], HASH),
    7,
)
FAR: tuple[Range, ...] = ((1, SEQNO_MAX),)


def test_an_offer_has_exactly_these_bytes() -> None:
    head = bytes.fromhex(f"09{'00' * 7} 04000000 07000000 0100 0100")
    digest = pack("<QQQQ", 1, 1, 5, 6)
    aside = pack("<QQIQQQQ", 3, 1, 2, 1, 2, 4, 4)
    assert encode_offer(OFFER) == head + digest + aside + HASH + HASH[::-1] + HASH
    assert encode_offer(OfferContent(0, 1, (), (), ())) == bytes.fromhex(
        f"{'00' * 8} 01000000 00000000 0000 0000"
    )
    far = OFFER._replace(out_of_band=((C.address, FAR),))
    assert decode_offer(encode_offer(far)) == far


def raw_offer(size: int, block: int, rest: bytes = b"", digest: int = 0, aside: int = 0) -> bytes:
    return pack("<QIIHH", size, block, 0, digest, aside) + rest


BAD_OFFERS: list[tuple[str, str, bytes]] = [
    ("length", "nothing", b""),
    ("length", "fewer hashes than blocks", raw_offer(9, 4, HASH * 2)),
    ("length", "more hashes than blocks", raw_offer(8, 4, HASH * 3)),
    ("length", "half a hash", raw_offer(9, 4, HASH * 3)[:-1]),
    ("length", "a state of more blocks than memory", raw_offer(SEQNO_MAX, 1, HASH)),
    ("length", "more streams than bytes", raw_offer(0, 1, digest=0xFFFF)),
    ("length", "more aside than bytes", raw_offer(0, 1, aside=0xFFFF)),
    ("length", "more ranges than bytes", raw_offer(0, 1, pack("<QQI", 1, 1, U32_MAX), aside=1)),
    (
        "length",
        "half of the second aside",
        raw_offer(0, 1, pack("<QQIQQ", 1, 1, 1, 1, 1) + b"x" * 4, aside=2),
    ),
    ("range", "blocks of nothing", raw_offer(0, 0)),
    ("range", "a state beyond all", raw_offer(SEQNO_MAX + 1, U32_MAX)),
    ("range", "a range that falls", raw_offer(0, 1, pack("<QQIQQ", 1, 1, 1, 2, 1), aside=1)),
    ("count", "no out-of-band range", raw_offer(0, 1, pack("<QQI", 1, 1, 0), aside=1)),
    ("order", "aside that falls", raw_offer(0, 1, pack("<QQIQQ", 1, 1, 1, 1, 1) * 2, aside=2)),
    ("order", "a digest that falls", raw_offer(0, 1, pack("<QQQQ", 1, 1, 1, 1) * 2, digest=2)),
    ("member", "aside of nobody", raw_offer(0, 1, pack("<QQIQQ", 0, 0, 1, 1, 1), aside=1)),
    ("member", "a digest of nobody", raw_offer(0, 1, pack("<QQQQ", 0, 0, 1, 1), digest=1)),
    ("seqno", "a digest beyond the end", raw_offer(0, 1, pack("<QQQQ", 1, 1, 2, 1), digest=1)),
]


@pytest.mark.parametrize(
    ("reason", "body"),
    [(reason, body) for reason, _, body in BAD_OFFERS],
    ids=[f"{reason}: {what}" for reason, what, _ in BAD_OFFERS],
)
def test_a_bad_offer_is_refused_with_its_reason(reason: str, body: bytes) -> None:
    with pytest.raises(RemoteProtocolError) as caught:
        decode_offer(body)
    assert caught.value.reason == reason


@pytest.mark.parametrize(
    "offer",
    [
        OFFER._replace(hashes=(HASH,)),
        OFFER._replace(hashes=(HASH, HASH, HASH[1:])),
        OFFER._replace(block_bytes=0),
        OFFER._replace(block_bytes=U32_MAX + 1, hashes=(HASH,)),
        OFFER._replace(size_bytes=-1, hashes=()),
        OFFER._replace(out_of_band=((C.address, ()),)),
        OFFER._replace(out_of_band=((Address(-1, 1), FAR),)),
        OFFER._replace(digest=(StreamProgress(C.address, 0, 0), StreamProgress(A.address, 0, 0))),
    ],
    ids=lambda offer: f"{offer}"[:60],
)
def test_a_bad_offer_is_not_made(offer: OfferContent) -> None:
    with pytest.raises(LocalProtocolError):
        encode_offer(offer)


def test_hostile_bytes_give_an_offer_or_a_reason() -> None:
    random = Random(2)
    seed = encode_offer(OFFER)
    seen: Counter[str] = Counter()
    for _ in range(30_000):
        body = spoiled(seed, random)
        try:
            offer = decode_offer(body)
        except RemoteProtocolError as error:
            seen[error.reason] += 1
        else:
            seen["decoded"] += 1
            assert encode_offer(offer) == body
    assert seen.keys() == {"length", "range", "count", "order", "seqno", "decoded"}
    assert 30_000 // 100 < seen["decoded"] < 30_000 // 2
