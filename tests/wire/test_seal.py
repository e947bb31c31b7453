"""Sealed datagrams: what opens, what is rejected, and that a rejection changes nothing."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress
from random import Random
from typing import Any

import pytest
from hypothesis import given, strategies as st

from gapless.errors import ConfigError, LocalProtocolError, RemoteProtocolError
from gapless.identity import Address
from gapless.keys.ciphers import SECRET_SUITES, SUITE_NAMES, suites_of
from gapless.run import Run
from gapless.wire import seal as wire_seal
from gapless.wire.cipher import TAG_BYTES, WithoutInto
from gapless.wire.coalesce import decode_coalesced
from gapless.wire.codec import (
    ADDRESSED,
    HEADER_BYTES,
    SEALED,
    VIEW_KEY,
    decode,
    encode,
    encode_split,
)
from gapless.wire.frames import Ack, Data, Frame
from gapless.wire.seal import (
    LARGE_BYTES,
    MAX_FOREIGN_KEYS,
    MAX_SENDERS,
    SEAL_OVERHEAD_BYTES,
    WINDOW,
    HeardMember,
    ReplayWindow,
    Seal,
    control_note,
    is_control,
)
from gapless.wire.seal_keys import KeyRing, KeyState, SealKey, sealed_incarnation
from tests.support.processes import ROOT

GROUP = 7
A, B = Address(1, 100), Address(2, 200)
SUITES = pytest.mark.parametrize("cipher", SUITE_NAMES)


def key(
    number: int, state: KeyState = KeyState.SEAL, cipher: str = "blake2b", salt: int = 0
) -> SealKey:
    return SealKey(number, bytes([number % 256, salt]) * 16, state, cipher)


def ring(*keys: SealKey, secret: int = 9) -> KeyRing:
    return KeyRing(bytes([secret]) * 32, keys or (key(1),))


def sealer(*keys: SealKey, secret: int = 9) -> Seal:
    made = ring(*keys, secret=secret)
    return Seal(made, suites_of(made))


def datagram(
    text: bytes = b"x", sender: Address = A, to: int | None = None, *, bare: bool = False
) -> bytes:
    frames = (Data(Run.of(sender, 1, [text])),)
    return encode(GROUP, sender, frames, to, bare=bare)


def reason_of(seal: Seal, sealed: bytes) -> str:
    """Return why a datagram is rejected; check that nothing but the counters changes."""
    before = state_of(seal)
    with pytest.raises(RemoteProtocolError) as caught:
        seal.open(sealed)
    assert state_of(seal) == before
    seal.check_invariants()
    return caught.value.reason


def state_of(seal: Seal) -> Any:
    return {
        fields: [(window.top, window._run, window._seen) for window in one.windows]
        for fields, one in {**seal._parked, **seal._senders}.items()
    }


@SUITES
@pytest.mark.parametrize("to", [None, 200])
@pytest.mark.parametrize("bare", [False, True])
def test_what_is_sealed_opens_as_the_same_frames(cipher: str, to: int | None, bare: bool) -> None:
    plain = datagram(b"hello" * 50, to=to, bare=bare)
    sealed = sealer(key(1, cipher=cipher)).seal(plain)
    opened = sealer(key(1, cipher=cipher)).open(sealed)
    assert len(sealed) == len(plain) + SEAL_OVERHEAD_BYTES
    assert decode(opened, opened=True) == decode(plain)
    assert (b"hello" in sealed) == (cipher not in SECRET_SUITES)


@given(st.binary(min_size=1, max_size=2000), st.sampled_from([None, 0, 200]))
def test_every_payload_survives(text: bytes, to: int | None) -> None:
    plain = datagram(text, to=to)
    assert decode(sealer().open(sealer().seal(plain)), opened=True) == decode(plain)


@SUITES
def test_a_changed_datagram_does_not_open(cipher: str) -> None:
    mine, other = sealer(key(1, cipher=cipher)), sealer(key(1, cipher=cipher))
    for to in (None, 200):
        sealed = mine.seal(datagram(b"pay 1", to=to))
        for at in range(len(sealed)):
            for bit in (1, 128):
                changed = bytearray(sealed)
                changed[at] ^= bit
                assert reason_of(other, bytes(changed)) in wire_seal.SEAL_REASONS
        for size_bytes in range(len(sealed)):
            assert reason_of(other, sealed[:size_bytes]) in wire_seal.SEAL_REASONS
        assert reason_of(other, sealed + b"x") == "seal"
        other.open(sealed)


def test_a_datagram_opens_once() -> None:
    mine, other = sealer(), sealer()
    sealed = [mine.seal(datagram()) for _ in range(3)]
    other.open(sealed[2])
    other.open(sealed[0])
    assert [reason_of(other, one) for one in (sealed[0], sealed[2])] == ["replay", "replay"]
    other.open(sealed[1])
    assert reason_of(other, sealed[1]) == "replay"


def test_a_datagram_of_another_sender_or_group_is_not_spliced_in() -> None:
    other = sealer()
    of_a, of_b = sealer().seal(datagram(sender=A)), sealer().seal(datagram(sender=B))
    assert reason_of(other, of_b[:HEADER_BYTES] + of_a[HEADER_BYTES:]) == "seal"
    assert reason_of(other, of_a[:HEADER_BYTES] + of_b[HEADER_BYTES:]) == "seal"


def test_incarnations_at_the_same_time_have_different_numbers() -> None:
    clock_ns, rng = 1_700_000_000_123_456_789, Random(3)
    numbers = [sealed_incarnation(clock_ns, rng) for _ in range(20)]
    assert len(set(numbers)) == len(numbers)
    assert {number >> 16 for number in numbers} == {clock_ns >> 16}


def test_each_incarnation_and_each_key_counts_from_one() -> None:
    mine = sealer()
    counters = []
    for sender in (A, A, Address(A.node, 101), A._replace(incarnation=102)):
        sealed = mine.seal(datagram(sender=sender))
        counters.append(int.from_bytes(sealed[HEADER_BYTES : HEADER_BYTES + 8], "little"))
    assert counters == [1, 2, 1, 1]


def test_no_pair_of_key_and_counter_occurs_twice_through_rotations() -> None:
    seen: set[tuple[bytes, bytes]] = set()
    states = ((KeyState.SEAL, KeyState.OPEN), (KeyState.OPEN, KeyState.SEAL))
    mine, rng = sealer(key(1), key(2, KeyState.OPEN)), Random(5)
    for _ in range(50):
        first, second = rng.choice(states)
        rotated = ring(key(1, first), key(2, second))
        mine.replace_ring(rotated, suites_of(rotated))
        for _ in range(rng.randrange(3)):
            sealed = mine.seal(datagram())
            pair = sealed[4:HEADER_BYTES], sealed[HEADER_BYTES : HEADER_BYTES + 8]
            assert pair not in seen
            seen.add(pair)
    assert len(seen) > 20


def test_the_key_is_selected_by_its_id_and_never_tried() -> None:
    mine, other = sealer(key(1)), sealer(key(2, salt=1), key(3, KeyState.OPEN))
    # The same secret under another id does not open.
    assert reason_of(other, mine.seal(datagram())) == "key"
    assert other.foreign_keys == {1: 1}
    renamed = sealer(SealKey(5, key(1).secret, KeyState.SEAL, "blake2b"))
    assert reason_of(renamed, mine.seal(datagram())) == "key"


def test_foreign_keys_are_counted_within_bounds() -> None:
    other = sealer()
    for number in range(2, 250):
        reason_of(other, sealer(key(number)).seal(datagram()))
    assert len(other.foreign_keys) == MAX_FOREIGN_KEYS
    assert other.rejected == {**dict.fromkeys(wire_seal.SEAL_REASONS, 0), "key": 248}
    often = sealer(key(250))
    for _ in range(50):
        reason_of(other, often.seal(datagram()))
    for number in range(2, 100):
        reason_of(other, sealer(key(number)).seal(datagram()))
    assert other.foreign_keys[250] == 50, "invented ids displace no key that is heard often"


def test_a_retired_key_opens_nothing_and_an_open_one_seals_nothing() -> None:
    old, new = key(1), key(2)
    mine = sealer(old)
    both = sealer(old._replace(state=KeyState.OPEN), new)
    both.open(mine.seal(datagram()))
    assert int.from_bytes(both.seal(datagram(sender=B))[4:8], "little") == 2
    retired = ring(old._replace(state=KeyState.RETIRED), new)
    both.replace_ring(retired, suites_of(retired))
    assert reason_of(both, mine.seal(datagram())) == "key"


def test_a_rotation_makes_no_replay_possible() -> None:
    mine, other = sealer(), sealer()
    sealed = mine.seal(datagram())
    other.open(sealed)
    rotated = ring(key(1, KeyState.OPEN), key(2))
    other.replace_ring(rotated, suites_of(rotated))
    assert reason_of(other, sealed) == "replay"


def test_a_key_that_returns_finds_the_windows_of_before() -> None:
    mine, other = sealer(), sealer()
    sealed = mine.seal(datagram())
    other.open(sealed)
    without, again = ring(key(1, KeyState.RETIRED), key(2)), ring(key(1, KeyState.OPEN), key(2))
    other.replace_ring(without, suites_of(without))
    assert reason_of(other, sealed) == "key"
    other.replace_ring(again, suites_of(again))
    assert reason_of(other, sealed) == "replay"
    other.open(mine.seal(datagram()))


def test_another_key_with_the_same_id_is_another_key() -> None:
    mine, other = sealer(), sealer()
    other.open(mine.seal(datagram()))
    mine.seal(datagram())
    replaced = ring(key(1, salt=5))
    for one in (mine, other):
        one.replace_ring(replaced, suites_of(replaced))
    sealed = mine.seal(datagram())
    assert int.from_bytes(sealed[HEADER_BYTES : HEADER_BYTES + 8], "little") == 1
    other.open(sealed)


def counter_of(sealed: bytes) -> int:
    return int.from_bytes(sealed[HEADER_BYTES : HEADER_BYTES + 8], "little")


def test_a_datagram_of_a_former_incarnation_continues_its_counter() -> None:
    """It may have waited for a stream over TCP while the member came back."""
    mine, other = sealer(), sealer()
    senders = [Address(1, 5), Address(1, 6), Address(1, 5), Address(1, 6), Address(1, 5)]
    sealed = [mine.seal(datagram(sender=sender)) for sender in senders]
    assert [counter_of(one) for one in sealed] == [1, 1, 2, 2, 3]
    for one in sealed:
        other.open(one)
    with pytest.raises(LocalProtocolError, match="belongs to one member"):
        mine.seal(datagram(sender=Address(2, 7)))


def test_a_forgotten_incarnation_never_seals_again(monkeypatch: pytest.MonkeyPatch) -> None:
    assert wire_seal.MAX_OWN_KEYS == 256
    monkeypatch.setattr(wire_seal, "MAX_OWN_KEYS", 4)
    mine = sealer()
    for incarnation in range(1, 10):
        mine.seal(datagram(sender=Address(1, incarnation)))
    assert len(mine._own_keys) == 4
    for incarnation in range(1, 6):
        with pytest.raises(LocalProtocolError, match="last incarnations"):
            mine.seal(datagram(sender=Address(1, incarnation)))
    assert counter_of(mine.seal(datagram(sender=Address(1, 6)))) == 2


def test_paths_have_windows_of_their_own() -> None:
    """Datagrams to all may wait in one socket while those to one member overtake them."""
    mine, other = sealer(), sealer()
    waiting = [mine.seal(datagram()) for _ in range(20)]
    alone = [mine.seal(datagram(to=200)) for _ in range(WINDOW + 50)]
    note = mine.seal_control(b"note", GROUP, A)
    for one in (note, *alone[50:], *waiting):
        other.open(one)
    assert {reason_of(other, one) for one in (note, alone[-1], waiting[3])} == {"replay"}
    assert reason_of(other, alone[0]) == "replay", "older than the window"


def test_the_newest_datagram_of_a_sender_is_known() -> None:
    mine, other = sealer(), sealer()
    sealed = [mine.seal(datagram()) for _ in range(3)]
    found = []
    for number in (0, 2, 1):
        other.open(sealed[number])
        found.append(other.was_newest)
    assert found == [True, True, False]


def test_the_other_members_of_the_group_that_were_heard_are_known_with_their_keys() -> None:
    old, new = key(1), key(2, KeyState.OPEN)
    mine = sealer(old, new)
    theirs = sealer(key(1, KeyState.RETIRED), key(2))
    assert mine.heard_members() == []
    mine.seal(datagram(sender=B))
    mine.open(theirs.seal(datagram()))
    assert mine.heard_members() == [HeardMember(A, 2, 1)]
    for to in (None, 200):
        mine.open(theirs.seal(datagram(to=to)))
    assert mine.heard_members() == [HeardMember(A, 2, 5)]  # numbers 2, and 3 on its path
    elsewhere = encode(GROUP + 1, A, (Data(Run.of(A, 1, [b"x"])),), None)
    mine.open(sealer(old, new).seal(elsewhere))
    before = sealer(old, new)
    mine.open(before.seal(datagram(sender=Address(B.node, B.incarnation - 1))))
    assert mine.heard_members() == [HeardMember(A, 2, 5)]


def test_an_own_datagram_that_comes_back_is_a_replay() -> None:
    mine = sealer()
    assert reason_of(mine, mine.seal(datagram())) == "replay"


def test_an_own_datagram_is_a_replay_after_a_rotation_and_in_a_later_incarnation() -> None:
    mine = sealer()
    sealed = mine.seal(datagram())
    rotated = ring(key(1, KeyState.OPEN), key(2))
    mine.replace_ring(rotated, suites_of(rotated))
    assert reason_of(mine, sealed) == "replay"
    later = mine.seal(datagram(sender=A._replace(incarnation=101)))
    assert {reason_of(mine, one) for one in (sealed, later)} == {"replay"}


def test_another_ring_is_refused() -> None:
    mine, other = sealer(), ring(secret=8)
    with pytest.raises(LocalProtocolError, match="join again to use another ring"):
        mine.replace_ring(other, suites_of(other))
    assert ring().group_id("orders") != other.group_id("orders")
    assert ring().group_id("orders") == ring(key(5)).group_id("orders")


def test_plain_datagrams_are_rejected_by_members_with_keys_and_sealed_ones_without() -> None:
    assert reason_of(sealer(), datagram()) == "unsealed"
    for garbage in (b"", b"GL", b"\0" * 100, b"GLM1" + bytes(60)):
        assert reason_of(sealer(), garbage) == "noise"
    with pytest.raises(RemoteProtocolError) as caught:
        decode(sealer().seal(datagram()))
    assert caught.value.reason == "sealed"


def test_control_datagrams_are_sealed_and_marked() -> None:
    mine, other = sealer(), sealer()
    opened = other.open(mine.seal_control(b"a note", GROUP, A))
    assert is_control(opened)
    assert control_note(opened) == b"a note"
    with pytest.raises(RemoteProtocolError):
        decode(opened, opened=True)
    assert not is_control(other.open(mine.seal(datagram())))


def test_the_table_of_senders_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    assert MAX_SENDERS == 4096
    monkeypatch.setattr(wire_seal, "MAX_SENDERS", 8)
    mine, other = sealer(), sealer()
    recorded = [mine.seal(datagram(sender=A)) for _ in range(40)]
    for node in range(10, 40):
        other.open(recorded[node - 10])
        other.open(sealer().seal(datagram(sender=Address(node, 1))))
    other.check_invariants()
    assert len(other._senders) == 8
    assert reason_of(other, recorded[0]) == "replay", "a sender that is heard keeps its window"


def test_a_stranger_fills_no_table() -> None:
    other = sealer()
    for node in range(1, 200):
        stranger = sealer(key(1, salt=4))
        assert reason_of(other, stranger.seal(datagram(sender=Address(node, 1)))) == "seal"
    assert not other._senders


# Runs and large datagrams


def without_checksum(plain: bytes) -> bytes:
    """Return the plain form as the machine of a sealed group makes it."""
    return plain[:4] + bytes(4) + plain[8:]


def a_run(count: int, size_bytes: int = 300) -> list[bytes]:
    """Return plain datagrams of equal size with numbered messages."""
    return [without_checksum(datagram(b"%0*d" % (size_bytes, at))) for at in range(count)]


def opened_by(seal: Seal, sealed: list[bytes], *, data: bytes = b"") -> list[bytes]:
    """Return what ``open_run`` finds in datagrams of equal size; all were handled."""
    found: list[bytes] = []
    data = data or b"".join(sealed)
    assert seal.open_run(data, len(sealed[0]), found) == len(data)
    seal.check_invariants()
    return found


@SUITES
def test_a_run_is_sealed_as_its_datagrams_one_by_one(cipher: str) -> None:
    one, other = sealer(key(1, cipher=cipher)), sealer(key(1, cipher=cipher))
    plain = [
        *a_run(5),
        without_checksum(datagram(to=200)),
        datagram(b"with a checksum"),
        *a_run(3, LARGE_BYTES),
        without_checksum(datagram(sender=Address(1, 101))),
        *a_run(2),
    ]
    assert one.seal_run(plain) == [other.seal(datagram) for datagram in plain]
    assert one.seal_run([]) == []
    one.check_invariants()


@SUITES
def test_a_run_opens_in_one_call(cipher: str) -> None:
    mine, other = sealer(key(1, cipher=cipher)), sealer(key(1, cipher=cipher))
    first, *plain = a_run(30)
    other.open(mine.seal(first))
    sealed = mine.seal_run(plain)
    assert opened_by(other, sealed) == plain
    assert other.was_newest is True
    assert opened_by(other, sealed) == []
    newest: bool = other.was_newest
    assert (newest, other.rejected["replay"]) == (False, len(sealed))


def test_the_window_after_a_run_is_the_window_after_its_datagrams() -> None:
    rng = Random(3)
    for _ in range(30):
        mine, one, other = sealer(), sealer(), sealer()
        sealed = [mine.seal(plain) for plain in a_run(40)]
        for seal in (one, other):
            seal.open(sealed[0])
        order = [rng.choice(sealed) if rng.random() < 0.3 else each for each in sealed]
        for at in range(rng.randrange(5)):
            order[at : at + 20] = rng.sample(order[at : at + 20], 20)
        expected = []
        for each in order:
            with suppress(RemoteProtocolError):
                expected.append(other.open(each))
        assert opened_by(one, order) == expected
        assert state_of(one) == state_of(other)
        assert one.rejected == other.rejected


@SUITES
def test_changed_datagrams_of_a_run_are_left_out(cipher: str) -> None:
    mine, other = sealer(key(1, cipher=cipher)), sealer(key(1, cipher=cipher))
    first, *plain = a_run(6)
    other.open(mine.seal(first))
    sealed = mine.seal_run(plain)
    size_bytes = len(sealed[0])
    for at in range(HEADER_BYTES, size_bytes, 7):
        changed = bytearray(b"".join(sealed))
        changed[2 * size_bytes + at] ^= 1
        other = sealer(key(1, cipher=cipher))
        other.open(sealed[0])
        expected = [plain[1], *plain[3:]]
        found = opened_by(other, sealed[1:], data=bytes(changed[size_bytes:]))
        assert found == expected
        assert other.rejected["seal"] + other.rejected["replay"] == 1
        assert other.open(sealed[2]) == plain[2], "a rejection takes no counter"


def test_only_the_ordinary_front_of_a_run_is_opened_together() -> None:
    mine, other = sealer(), sealer()
    plain = a_run(4)
    sealed = mine.seal_run(plain)
    size_bytes = len(sealed[0])
    found: list[bytes] = []
    assert other.open_run(b"".join(sealed), size_bytes, found) == 0, "a sender not met before"
    other.open(sealed[0])
    strange = bytearray(sealed[2])
    strange[HEADER_BYTES - 1] ^= 1
    data = sealed[1] + bytes(strange) + sealed[3] + sealed[2][:100]
    assert other.open_run(data, size_bytes, found) == size_bytes
    assert found == [plain[1]]
    assert other.open_run(sealed[2] + sealed[3][:100], size_bytes, found) == size_bytes
    assert other.open_run(sealed[3], HEADER_BYTES + SEAL_OVERHEAD_BYTES - 1, found) == 0
    note = mine.seal_control(b"a note", GROUP, A)
    private = mine.seal(datagram(to=200))
    for each in (note, private):
        other.open(each)
        assert other.open_run(each * 2, len(each), found) == 0
    assert found == [plain[1], plain[2]]


@SUITES
@pytest.mark.parametrize("to", [None, 200])
def test_large_datagrams_use_memory_of_the_caller_and_memory_again(
    cipher: str, to: int | None
) -> None:
    mine, other = sealer(key(1, cipher=cipher)), sealer(key(1, cipher=cipher))
    for size_bytes in (LARGE_BYTES, 60_000, 20_000):
        plain = without_checksum(datagram(b"%d" % (size_bytes % 7) * size_bytes, to=to))
        buffer = memoryview(bytearray(len(plain) + SEAL_OVERHEAD_BYTES + 10))
        sealed = buffer[: mine.seal_into(plain, buffer)]
        assert len(sealed) == len(plain) + SEAL_OVERHEAD_BYTES
        assert not any(buffer[len(sealed) :])
        changed = bytearray(sealed)
        changed[-TAG_BYTES - 1] ^= 1
        assert reason_of(other, bytes(changed)) == "seal"
        opened = other.open(sealed)
        buffer[:] = bytes(len(buffer))
        assert opened == plain
        other.open(mine.seal(plain[:-1] + b"?"))
        assert type(opened) is bytes
        assert opened == plain, "what was opened stays as it was"


@pytest.mark.parametrize("cipher", SECRET_SUITES)
def test_ciphers_of_older_packages_write_into_memory_too(cipher: str) -> None:
    suites = suites_of(ring(key(1, cipher=cipher)))
    older = WithoutInto.of(suites[cipher].new)(bytes(32))
    newer = suites[cipher].new(bytes(32))
    nonce, header, plain = bytes(12), b"header", b"text" * 100
    for one, other in ((older, newer), (newer, older)):
        room = memoryview(bytearray(len(plain) + TAG_BYTES))
        assert one.encrypt_into(nonce, plain, header, room) == len(room)
        assert other.encrypt(nonce, plain, header) == room
        found = memoryview(bytearray(len(plain)))
        assert one.decrypt_into(nonce, room, header, found) == len(plain)
        assert found == plain
        room[3] ^= 1
        with pytest.raises(suites[cipher].invalid):
            one.decrypt_into(nonce, room, header, found)


def test_a_removed_sender_leaves_no_path(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wire_seal, "MAX_SENDERS", 4)
    other = sealer()
    for node in range(1, 20):
        mine = sealer()
        for to in (None, 200):
            other.open(mine.seal(datagram(sender=Address(node, 1), to=to)))
        other.check_invariants()
    assert len(other._paths) == 8
    rotated = ring(key(1, KeyState.RETIRED), key(2))
    other.replace_ring(rotated, suites_of(rotated))
    assert not other._paths
    other.check_invariants()


def test_unknown_flags_of_a_member_fill_no_table() -> None:
    mine, other = sealer(), sealer()
    for flags in range(256):
        if not flags & (SEALED | VIEW_KEY):
            plain = bytearray(datagram(to=200))
            plain[3] = flags | ADDRESSED
            other.open(mine.seal(bytes(plain)))
    assert len(other._paths) <= 4
    other.check_invariants()


def test_opened_datagrams_are_joined_like_plain_ones() -> None:
    run = Run.of(A, 1, [b"%d" % number for number in range(1000)])
    plain = encode_split(GROUP, A, Data(run), 300)
    mine, other = sealer(), sealer()
    opened = [other.open(mine.seal(one)) for one in plain]
    assert len(opened) > 5
    assert runs(decode_coalesced(opened, opened=True)) == runs(decode_coalesced(plain))


def runs(found: Iterable[tuple[Any, int]]) -> list[tuple[list[bytes], int]]:
    return [(one.frames[0].run.messages(), times) for one, times in found]


def test_flags_of_the_header_are_authenticated() -> None:
    sealed = sealer().seal(encode(GROUP, A, _frames(), 200))
    assert sealed[3] == SEALED | ADDRESSED
    assert reason_of(sealer(), sealed[:3] + bytes([SEALED]) + sealed[4:]) == "seal"


def _frames() -> tuple[Frame, ...]:
    return (Ack(A, 5, 1000),)


# The window


class Model:
    """A window as a set of all counters that were opened."""

    def __init__(self) -> None:
        self.opened: set[int] = set()

    def is_new(self, counter: int) -> bool:
        top = max(self.opened, default=0)
        return counter > 0 and counter not in self.opened and counter > top - WINDOW


@given(st.lists(st.integers(-3, 40), min_size=1, max_size=200), st.integers(0, 3 * WINDOW))
def test_the_window_is_the_set_of_opened_counters(steps: list[int], jump: int) -> None:
    window, model, at = ReplayWindow(), Model(), 0
    for number, step in enumerate(steps):
        at = max(1, at + step + (jump if number == len(steps) // 2 else 0))
        for counter in {at, max(1, at - 1), max(1, at - WINDOW), max(1, at - WINDOW + 1)}:
            assert window.is_new(counter) == model.is_new(counter)
        if window.is_new(at):
            window.add(at)
            model.opened.add(at)
        window.check_invariants()


@pytest.mark.parametrize("seed", range(5))
def test_the_window_under_random_orders(seed: int) -> None:
    rng, window, model = Random(seed), ReplayWindow(), Model()
    for number in range(1, 3000):
        for counter in (number, max(1, number - rng.randrange(WINDOW + 100))):
            assert window.is_new(counter) == model.is_new(counter)
            if model.is_new(counter) and rng.random() < 0.8:
                window.add(counter)
                model.opened.add(counter)
    window.check_invariants()


def test_the_edges_of_the_window() -> None:
    window = ReplayWindow()
    assert not window.is_new(0)
    window.add(WINDOW + 5)
    assert window.is_new(6)
    assert not window.is_new(5)
    for counter in (WINDOW + 6, WINDOW + 7):
        window.add(counter)
    assert [window.is_new(counter) for counter in (7, 8, WINDOW + 5, WINDOW + 7)] == [
        False,
        True,
        False,
        False,
    ]
    window.add(8)
    assert not window.is_new(8)
    window.add(2**63)
    assert not window.is_new(WINDOW + 7)


# Keys


@pytest.mark.parametrize(
    "keys",
    [(key(1, KeyState.OPEN),), (key(1), key(2)), (key(1), key(1, KeyState.OPEN)), ()],
)
def test_a_ring_has_one_key_that_seals_and_no_id_twice(keys: tuple[SealKey, ...]) -> None:
    with pytest.raises(ConfigError):
        KeyRing(bytes(32), keys)


def test_no_text_shows_a_secret() -> None:
    made = ring(key(0x41))
    shown = f"{made!r} {made.keys!r} {made.keys[0]} {made.label} {made.keys[0].label}"
    assert made.secret.hex() not in shown
    assert made.keys[0].secret.hex() not in shown
    assert repr(made.keys[0].secret) not in shown


def test_an_unknown_cipher_is_an_error() -> None:
    with pytest.raises(ConfigError, match="rot13"):
        suites_of(ring(key(1, cipher="rot13")))
    suites_of(ring(key(1), key(2, KeyState.RETIRED, cipher="rot13")))


# Known answers, for other implementations


@SUITES
def test_the_vectors_of_the_wire_page(cipher: str) -> None:
    """docs/reference/wire.md shows how each suite seals one datagram."""
    known = SealKey(0x3F9A77B1, bytes(range(32)), KeyState.SEAL, cipher)
    made = KeyRing(bytes(range(32, 64)), (known,))
    sender = Address(0x0102030405060708, 0x1112131415161718)
    group = made.group_id("orders")
    plain = encode(group, sender, (Ack(sender, 5, 4096),), addressee=0x2122232425262728)
    page = (ROOT / "docs/reference/wire.md").read_text()
    assert f"`{group:016x}`" in page
    assert f"`{made.label}`" in page
    sealed = Seal(made, suites_of(made)).seal(plain)
    shown = "".join(
        page.partition(f"`{cipher}` seals it as\n\n```\n")[2].partition("```")[0].split()
    )
    assert shown == sealed.hex()
    assert "".join(
        page.partition("The plain datagram\n\n```\n")[2].partition("```")[0].split()
    ) == (plain.hex())


@SUITES
def test_only_a_late_own_datagram_is_an_own_datagram(cipher: str) -> None:
    """A reader of the network may keep a datagram; only one of the last ``WINDOW`` counts."""
    mine, other = sealer(key(1, cipher=cipher)), sealer(key(1, cipher=cipher))
    first, *plain = a_run(3)
    assert not mine.is_own(mine.seal(first)[:-1])
    sealed = mine.seal(first)
    assert mine.is_own(sealed)
    assert not other.is_own(sealed), "opened by others, and not their own"
    for at in range(len(sealed)):
        changed = bytearray(sealed)
        changed[at] ^= 1
        assert not mine.is_own(bytes(changed)), at
    for _ in range(WINDOW // len(plain) + 1):
        mine.seal_run(plain)
    assert not mine.is_own(sealed), "too old"
