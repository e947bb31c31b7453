"""Datagrams that arrive together: runs that continue each other are joined, no other changes."""

from collections.abc import Iterable, Sequence
from zlib import crc32

import pytest
from hypothesis import given, strategies as st

from gapless.errors import RemoteProtocolError
from gapless.identity import Address
from gapless.run import ACKED, FIRST_FRAGMENT, FRAGMENT, DatagramRun, Run
from gapless.wire import Ack, Data, Frame, decode, encode
from gapless.wire.coalesce import decode_coalesced
from gapless.wire.codec import SEQNO_MAX, split_datagram
from gapless.wire.frames import FIRST_CONNECTION_EPOCH, Datagram

A, B = Address(1, 1), Address(2, 1)
GROUP = 7

Said = tuple[object, ...]


def run(
    first: int,
    count: int = 1,
    origin: Address = A,
    size_bytes: int = 20,
    flags: int = 0,
    sent_ns: int = 5,
) -> Run:
    messages = [b"%d %d" % (origin.node, seqno) for seqno in range(first, first + count)]
    return Run.of(
        origin, first, [message.ljust(size_bytes) for message in messages], flags, 3, sent_ns
    )


def plain(
    first: int, count: int = 1, origin: Address = A, *, bare: bool = False, **how: int
) -> bytes:
    return encode(GROUP, origin, [Data(run(first, count, origin, **how))], None, bare)


def one_by_one(datagrams: Iterable[bytes]) -> dict[bytes, list[Said]]:
    """What each sender says to each group, message by message."""
    found: dict[bytes, list[Said]] = {}
    for datagram in datagrams:
        try:
            said = decode(datagram)
        except RemoteProtocolError as error:
            found.setdefault(b"", []).append((error.reason,))
            continue
        found.setdefault(repr((said.group, said.sender)).encode(), []).extend(
            messages(said.frames, said.group, said.addressee)
        )
    return found


def messages(frames: Sequence[Frame], *where: object) -> Iterable[Said]:
    for frame in frames:
        if isinstance(frame, Data):
            about = (
                frame.run.origin,
                frame.run.flags,
                frame.run.view,
                frame.run.sent_ns,
                *frame[1:],
                *where,
            )
            yield from ((seqno, message, *about) for seqno, message in frame.run)
        else:
            yield (frame, *where)


def at_once(datagrams: Sequence[bytes]) -> dict[bytes, list[Said]]:
    found: dict[bytes, list[Said]] = {}
    total = 0
    for said, times in decode_coalesced(datagrams):
        total += times
        if isinstance(said, RemoteProtocolError):
            found.setdefault(b"", []).append((said.reason,))
        else:
            found.setdefault(repr((said.group, said.sender)).encode(), []).extend(
                messages(said.frames, said.group, said.addressee)
            )
            assert decode(encode(*said)) == said, "it is a datagram"
    assert total == len(datagrams)
    return found


def sizes(datagrams: Sequence[bytes]) -> list[int]:
    """How many datagrams became each one."""
    return [times for _, times in decode_coalesced(datagrams)]


@pytest.mark.parametrize("bare", [False, True])
def test_neighbours_become_one_run(bare: bool) -> None:
    datagrams = [
        plain(first, count, bare=bare) for first, count in ((1, 3), (4, 1), (5, 40), (45, 1))
    ]
    ((said, times),) = decode_coalesced(datagrams)
    assert not isinstance(said, RemoteProtocolError)
    assert said.frames == (Data(run(1, 45)),)
    assert times == 4


def test_senders_that_take_turns_have_a_run_each() -> None:
    datagrams = [plain(at, origin=origin) for at in range(1, 20) for origin in (A, B)]
    assert sizes(datagrams) == [19, 19]
    assert at_once(datagrams) == one_by_one(datagrams)


def test_what_a_sender_says_stays_in_its_order() -> None:
    """An ack between two runs of its sender ends the run; one of somebody else does not."""
    ack = Ack(B, 3, 4)
    datagrams = [
        plain(1),
        plain(2),
        encode(GROUP, A, [ack]),
        plain(3),
        encode(GROUP, B, [ack]),
        plain(4),
    ]
    assert sizes(datagrams) == [2, 1, 1, 2]
    assert at_once(datagrams) == one_by_one(datagrams)


@pytest.mark.parametrize(
    "second",
    [
        pytest.param(plain(3), id="a gap"),
        pytest.param(plain(1), id="the same again"),
        pytest.param(plain(2, sent_ns=6), id="sent later"),
        pytest.param(plain(2, bare=True), id="bare"),
        pytest.param(plain(2, flags=ACKED), id="another mode"),
        pytest.param(plain(2, flags=FRAGMENT | FIRST_FRAGMENT), id="a piece"),
        pytest.param(encode(GROUP, A, [Data(run(2), True)]), id="a repair"),
        pytest.param(encode(GROUP, A, [Data(run(2), False, 4)]), id="a view's stream"),
        pytest.param(
            encode(GROUP, A, [Data(run(2), False, FIRST_CONNECTION_EPOCH + 1)]), id="a connection"
        ),
        pytest.param(encode(GROUP, A, [Data(run(2))], 1), id="to one life"),
        pytest.param(encode(GROUP, A, [Data(run(2)), Data(run(3))]), id="two frames"),
        pytest.param(encode(GROUP, A, [Data(run(2, origin=B))]), id="another origin"),
        pytest.param(encode(GROUP + 1, A, [Data(run(2))]), id="another group"),
        pytest.param(plain(2)[:-1], id="cut short"),
        pytest.param(plain(2)[:60], id="no frame"),
        pytest.param(plain(2) + b"\0", id="a byte more"),
        pytest.param(b"", id="nothing"),
    ],
)
def test_what_does_not_continue_the_run_stands_by_itself(second: bytes) -> None:
    datagrams = [plain(1), second]
    assert sizes(datagrams) == [1, 1]
    assert at_once(datagrams) == one_by_one(datagrams)


@pytest.mark.parametrize("before", [1, 3], ids=["of another size", "of the same size"])
@pytest.mark.parametrize("bare", [False, True])
@given(at=st.integers(0, 10_000), change=st.integers(1, 255))
def test_a_datagram_that_was_changed_on_its_way_is_refused_as_ever(
    before: int, bare: bool, at: int, change: int
) -> None:
    """Whatever byte it is, and with whatever in front of it."""
    after = plain(1 + before, 3, bare=bare)
    changed = bytearray(after)
    changed[at % len(changed)] ^= change
    datagrams = [plain(1, before, bare=bare), bytes(changed), after]
    assert at_once(datagrams) == one_by_one(datagrams)


@pytest.mark.parametrize("before", [1, 3], ids=["of another size", "of the same size"])
@given(at=st.integers(8, 10_000), change=st.integers(1, 255))
def test_a_datagram_that_is_whole_and_says_something_else_is_not_taken_for_the_next(
    before: int, at: int, change: int
) -> None:
    """A sender may say anything, with the right checksum."""
    made = bytearray(plain(1 + before, 3))
    made[8 + at % (len(made) - 8)] ^= change
    made[4:8] = crc32(made[8:]).to_bytes(4, "little")
    datagrams = [plain(1, before), bytes(made), plain(1 + before, 3)]
    assert at_once(datagrams) == one_by_one(datagrams)


@given(
    st.lists(st.tuples(st.sampled_from((A, B)), st.integers(1, 6), st.integers(1, 3)), max_size=20)
)
def test_any_datagrams_say_together_what_they_say_one_by_one(
    said: list[tuple[Address, int, int]],
) -> None:
    datagrams = [plain(first, count, origin) for origin, first, count in said]
    assert at_once(datagrams) == one_by_one(datagrams)


def test_a_run_does_not_outgrow_the_largest_frame() -> None:
    datagrams = [plain(at, size_bytes=1000) for at in range(1, 400)]
    found = [
        said for said, _ in decode_coalesced(datagrams) if not isinstance(said, RemoteProtocolError)
    ]
    runs = [frame.run for said in found for frame in said.frames if isinstance(frame, Data)]
    assert len(runs) == 2
    assert max(one.size_bytes for one in runs) < 258_000
    assert at_once(datagrams) == one_by_one(datagrams)


@pytest.mark.parametrize("bare", [False, True])
def test_large_datagrams_become_one_run_and_are_copied_only_if_somebody_wants_them_so(
    bare: bool,
) -> None:
    whole = run(1, 200, size_bytes=1000)
    datagrams = split_datagram(encode(GROUP, A, [Data(whole)], None, bare), 65_000)
    assert len(datagrams) == 4
    ((said, times),) = decode_coalesced([*datagrams])
    assert times == 4
    assert isinstance(said, Datagram)
    (frame,) = said.frames
    assert isinstance(frame, Data)
    assert isinstance(frame.run, DatagramRun)
    assert [datagram for datagram, _ in frame.run._sources] == datagrams, "they lie where they came"
    assert (frame.run.size_bytes, frame.run.last) == (whole.size_bytes, 200)
    assert frame.run.part(64, 67) == whole.part(64, 67)
    assert frame.run.messages() == whole.messages()
    assert bytes(frame.run.buffer) == frame.run.payload == whole.payload
    assert frame.run == whole
    assert at_once(datagrams) == one_by_one(datagrams)
    without_one = [datagrams[0], *datagrams[2:]]
    assert at_once(without_one) == one_by_one(without_one)


def test_the_last_seqnos_are_not_passed() -> None:
    datagrams = [plain(SEQNO_MAX - 1), plain(SEQNO_MAX)]
    assert at_once(datagrams) == one_by_one(datagrams)


@pytest.mark.parametrize("bare", [False, True])
def test_a_changed_byte_has_the_effect_as_in_a_lone_datagram(bare: bool) -> None:
    """A plain run is decoded in one step, and everything else as usual."""
    datagram = plain(7, 3, bare=bare)
    assert at_once([datagram]) == one_by_one([datagram])
    for at in range(len(datagram)):
        changed = bytearray(datagram)
        changed[at] ^= 0x41
        right = bytearray(changed)
        right[4:8] = crc32(right[8 : 74 + 6 if bare else None], right[3]).to_bytes(4, "little")
        for one in (bytes(changed), bytes(right), bytes(changed[:at])):
            assert at_once([one]) == one_by_one([one]), f"byte {at}"
            ((found, times),) = decode_coalesced([one])
            assert times == 1
            if isinstance(found, Datagram):
                assert found == decode(one)
