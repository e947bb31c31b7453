"""Datagrams under the keys of views: who opens them, which wait, and what is never repeated."""

from __future__ import annotations

import pytest

from gapless.errors import LocalProtocolError, RemoteProtocolError
from gapless.identity import Address
from gapless.keys.ciphers import suites_of, view_seal_key, view_suites
from gapless.run import Run
from gapless.wire import seal as wire_seal
from gapless.wire.codec import VIEW_KEY, decode, encode
from gapless.wire.frames import Ack, Data
from gapless.wire.seal import Seal
from gapless.wire.seal_keys import KeyRing, KeyState, SealKey

GROUP = 7
A, B = Address(1, 100), Address(2, 200)
RING = KeyRing(bytes(32), (SealKey(1, bytes(32), KeyState.SEAL),))


def view_key(number: int) -> bytes:
    return bytes([0]) + bytes([number]) * 32


def sealer(me: Address, *numbers: int) -> Seal:
    """Return the seal of a member that has sent, with the keys of these views."""
    seal = Seal(RING, suites_of(RING))
    seal.expect_view_keys()
    seal.seal(encode(GROUP, me, (Ack(me, 1, 1),)))
    if numbers:
        use(seal, *numbers)
    return seal


def use(seal: Seal, *numbers: int) -> None:
    seal.replace_view_keys([view_seal_key(view_key(number)) for number in numbers], view_suites())
    seal.check_invariants()


def message(text: bytes = b"x", me: Address = A, to: int | None = None) -> bytes:
    return encode(GROUP, me, (Data(Run.of(me, 1, [text])),), to, view_key=True)


def reason_of(seal: Seal, sealed: bytes) -> str:
    with pytest.raises(RemoteProtocolError) as caught:
        seal.open(sealed)
    seal.check_invariants()
    return caught.value.reason


@pytest.mark.parametrize("to", [None, 200])
@pytest.mark.parametrize("text", [b"small", b"large" * 10_000])
def test_a_message_opens_with_the_key_of_its_view_only(to: int | None, text: bytes) -> None:
    plain = message(text, to=to)
    sealed = sealer(A, 1).seal(plain)
    opened = decode(sealer(B, 1).open(sealed), opened=True)
    assert opened.view_key
    assert opened == decode(plain)
    assert reason_of(sealer(B), sealed) == "view key"
    assert reason_of(sealer(B, 2), sealed) == "view key"


def test_a_run_of_messages_opens_like_single_ones() -> None:
    mine, other = sealer(A, 1), sealer(B, 1)
    plain = [message(b"%03d" % number) for number in range(20)]
    sealed = mine.seal_run(plain)
    opened = [other.open(sealed[0])]
    other.open_run(b"".join(sealed[1:]), len(sealed[1]), opened)
    assert [decode(one, opened=True) for one in opened] == [decode(one) for one in plain]


def test_the_flag_decides_which_kind_of_key_opens() -> None:
    mine, other = sealer(A, 1), sealer(B, 1)
    under_ring = bytearray(mine.seal(encode(GROUP, A, (Ack(A, 1, 1),))))
    under_ring[3] |= VIEW_KEY
    assert reason_of(other, bytes(under_ring)) == "view key"
    under_view = bytearray(mine.seal(message()))
    under_view[3] &= ~VIEW_KEY
    assert reason_of(other, bytes(under_view)) == "key"


def test_a_key_of_the_ring_with_the_id_of_a_view_opens_no_message() -> None:
    """A coordinator may look for a key with such an id."""
    of_view = view_seal_key(view_key(1))
    ring = KeyRing(bytes(32), (SealKey(of_view.key_id, bytes(32), KeyState.SEAL),))
    mine, other = (Seal(ring, suites_of(ring)) for _ in range(2))
    for seal in (mine, other):
        seal.replace_view_keys([of_view], view_suites())
    for _ in range(2):
        other.open(mine.seal(encode(GROUP, A, (Ack(A, 1, 1),))))
        other.open(mine.seal(message()))
    changed = bytearray(mine.seal(encode(GROUP, A, (Ack(A, 1, 1),))))
    changed[3] |= VIEW_KEY
    assert reason_of(other, bytes(changed)) == "seal"
    other.check_invariants()


def test_no_counter_is_used_twice_when_kinds_and_views_alternate() -> None:
    mine, seen = sealer(A, 1), set()
    for number in (1, 2, 3, 4):
        use(mine, number, *range(max(1, number - 2), number))
        for _ in range(3):
            for plain in (message(), encode(GROUP, A, (Ack(A, 1, 1),)), message(to=200)):
                sealed = mine.seal(plain)
                at = 40 if sealed[3] & 2 else 32
                nonce = bytes(sealed[3:4]) if sealed[3] & VIEW_KEY else b""
                seen.add((nonce[:0] + sealed[4:8], sealed[at : at + 8]))
    assert len(seen) == 4 * 3 * 3


def test_a_key_in_use_keeps_its_counters_when_a_former_key_is_retired() -> None:
    mine, seen = sealer(A, 2, 1), set()
    for numbers in ((2, 1), (2, 1), (2,)):
        use(mine, *numbers)
        seen.add(mine.seal(message())[32:40])
    assert len(seen) == 3


def test_a_retired_key_opens_nothing() -> None:
    mine, other = sealer(A, 1), sealer(B, 1)
    other.open(mine.seal(message()))
    use(other, 2, 1)
    other.open(mine.seal(message(b"late")))
    use(other, 2)
    assert reason_of(other, mine.seal(message(b"too late"))) == "view key"
    assert not any(one.is_view for one in other._senders.values())


def test_a_message_of_the_next_view_waits_for_its_key() -> None:
    mine, other = sealer(A, 2), sealer(B, 1)
    sealed = [mine.seal(message(b"%d" % number)) for number in range(3)]
    for one in sealed:
        assert reason_of(other, one) == "view key"
    use(other, 2, 1)
    opened = other.take_early()
    assert [decode(one, opened=True) for one in opened] == [
        decode(message(b"%d" % number)) for number in range(3)
    ]
    assert reason_of(other, sealed[0]) == "replay"
    assert other.take_early() == []


def test_a_message_of_the_view_after_next_waits_on() -> None:
    mine, other = sealer(A, 3), sealer(B, 1)
    reason_of(other, mine.seal(message()))
    use(other, 2, 1)
    assert other.take_early() == []
    use(other, 3, 2)
    assert len(other.take_early()) == 1


def test_messages_that_wait_fill_a_bounded_place_and_are_of_the_own_group() -> None:
    other = sealer(B, 1)
    mine = sealer(A, 2)
    alien = bytearray(mine.seal(message()))
    alien[8] ^= 1
    reason_of(other, bytes(alien))
    assert not other._early
    for _ in range(2 * wire_seal.EARLY_BYTES // 50_000):
        reason_of(other, mine.seal(message(bytes(50_000))))
    assert other._early is not None
    assert sum(map(len, *other._early.values())) <= wire_seal.EARLY_BYTES
    use(other, 2)
    opened = other.take_early()
    assert 10 < len(opened) < 30
    assert other._early_bytes == 0


def test_messages_that_never_open_make_room_for_the_next_view() -> None:
    """A former member, and any stranger, can send what looks like messages of a coming view."""
    other = sealer(B, 1)
    stranger, mine = sealer(A, 3), sealer(A, 2)
    for _ in range(2 * wire_seal.EARLY_BYTES // 50_000):
        reason_of(other, stranger.seal(message(bytes(50_000))))
    reason_of(other, mine.seal(message(b"next")))
    use(other, 2)
    assert [decode(one, opened=True) for one in other.take_early()] == [decode(message(b"next"))]


def test_many_small_messages_of_invented_views_are_bounded_too() -> None:
    other = sealer(B, 1)
    sealed = bytearray(sealer(A, 2).seal(message()))
    for number in range(wire_seal.EARLY_BYTES // 100):
        sealed[4:8] = number.to_bytes(4, "little")
        reason_of(other, bytes(sealed))
    assert other._early is not None
    assert len(other._early) < wire_seal.EARLY_BYTES // 256


def test_a_late_message_does_not_wait() -> None:
    mine, other = sealer(A, 1), sealer(B, 1)
    use(other, 2)
    assert reason_of(other, mine.seal(message(b"too late"))) == "view key"
    assert not other._early


def test_a_former_key_with_the_id_of_the_present_one_gives_way() -> None:
    """A coordinator may look for such a key: the members would not hear each other."""
    present, former = (view_seal_key(view_key(number)) for number in (2, 1))
    mine, other = sealer(A, 1), sealer(B, 1)
    for seal in (mine, other):
        keys = [present, former._replace(key_id=present.key_id)]
        seal.replace_view_keys(keys, view_suites())
    other.open(mine.seal(message()))
    other.check_invariants()


def test_small_messages_that_wait_are_copies_and_count_with_what_they_need() -> None:
    """A datagram as the socket has returned it may pin its whole receive buffer."""
    mine, other = sealer(A, 2), sealer(B, 1)
    sealed = mine.seal(message())
    for _ in range(wire_seal.EARLY_BYTES // len(sealed)):
        reason_of(other, sealed)
    assert other._early is not None
    (waiting,) = other._early.values()
    assert all(kept == sealed and kept is not sealed for kept in waiting)
    assert len(waiting) < wire_seal.EARLY_BYTES // (len(sealed) + 60)


def test_a_member_without_identities_keeps_nothing() -> None:
    other = Seal(RING, suites_of(RING))
    other.seal(encode(GROUP, B, (Ack(B, 1, 1),)))
    assert reason_of(other, sealer(A, 1).seal(message())) == "view key"
    use(other, 1)
    assert other.take_early() == []


def test_a_message_without_a_view_is_a_mistake_of_the_caller() -> None:
    with pytest.raises(LocalProtocolError, match="install a view"):
        sealer(A).seal(message())


def test_a_quoted_datagram_is_known_under_either_key() -> None:
    mine = sealer(A, 1)
    under_ring = mine.seal(encode(GROUP, A, (Ack(A, 1, 1),)))
    under_view = mine.seal(message())
    assert mine.is_own(under_ring)
    assert mine.is_own(under_view)
    assert not mine.is_own(sealer(A, 2).seal(message()))


def test_a_rotation_of_the_ring_leaves_the_key_of_the_view() -> None:
    mine, other = sealer(A, 1), sealer(B, 1)
    new = KeyRing(bytes(32), (SealKey(2, bytes([5]) * 32, KeyState.SEAL, "blake2b"),))
    for seal in (mine, other):
        seal.replace_ring(new, suites_of(new))
    other.open(mine.seal(message()))
    other.open(mine.seal(encode(GROUP, A, (Ack(A, 1, 1),))))
    other.check_invariants()
