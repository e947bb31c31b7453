"""State transfer: the state and later messages together are everything, once."""

from random import Random

import pytest
from hypothesis import HealthCheck, given, settings, strategies as st

from gapless.delivery_mode import DeliveryMode
from gapless.protocol.events import Lost, StateReceived
from gapless.protocol.ready import OUT_OF_BAND
from gapless.protocol.state_transfer.block_fetch import BLOCK_BYTES
from gapless.wire.frames import (
    Ack,
    Data,
    Frame,
    OutOfBand,
    StateAsk,
    StateChunk,
    StateOffer,
    StatePull,
)
from tests.support.virtual_group import MS, SECOND
from tests.support.virtual_state_transfer import StateTransferGroup, address, kinds


def noise(size_bytes: int, seed: int = 1) -> bytes:
    return Random(seed).randbytes(size_bytes)


def chunk_bytes(company: StateTransferGroup, by: str) -> int:
    return sum(len(chunk.body) for chunk in company.frames(StateChunk, by=by))


# The state and what follows


def test_a_new_member_gets_the_state_and_what_follows() -> None:
    company = StateTransferGroup("ab")
    company.send("a", b"a1", b"a2")
    company.send("b", b"b1")
    company.run_for(SECOND)
    company.enter("c")
    company.until_state("c")
    company.send("a", b"a3")
    company.send("c", b"c1")
    company.run_for(SECOND)
    assert company.apps["c"].received == [StateReceived(address("a"), b"a1\0a2\0b1")]
    assert company.apps["c"].of("a") == [b"a1", b"a2", b"a3"]
    company.same("a", "b", "c", origins="abc")
    assert not company.transfer("c").is_filtering, "nothing has to be looked at any more"
    assert company.transfer("a").due_ns is None, "the provider has forgotten the transfer"


def test_alone_there_is_no_state() -> None:
    company = StateTransferGroup("")
    company.enter("a")
    assert company.apps["a"].received == [StateReceived(None, b"")]
    company.send("a", b"a1")
    assert company.apps["a"].log == [b"a1"]


@pytest.mark.parametrize(
    "size_bytes", [0, 1, BLOCK_BYTES - 1, BLOCK_BYTES, BLOCK_BYTES + 1, 5_000_000]
)
def test_a_state_of_any_size_comes_whole(size_bytes: int) -> None:
    padding = noise(size_bytes)
    company = StateTransferGroup("ab", padding=padding)
    company.enter("c")
    company.until_state("c")
    assert company.apps["c"].received == [StateReceived(address("a"), padding)]
    assert chunk_bytes(company, "a") == size_bytes, "every byte once"


def test_a_large_state_comes_through_a_bad_network() -> None:
    padding = noise(1_000_000)
    company = StateTransferGroup("ab", padding=padding, loss=0.1, twice=0.1, delay_ns=(MS, 20 * MS))
    company.enter("c")
    company.until_state("c")
    assert company.apps["c"].received == [StateReceived(address("a"), padding)]
    assert chunk_bytes(company, "a") < 2 * len(padding), "what has come is not asked for again"


def test_no_more_is_asked_for_at_once_than_the_window_allows() -> None:
    company = StateTransferGroup(
        "ab", padding=noise(300_000), state_window_bytes="32KiB", delay_ns=(10 * MS, 10 * MS)
    )
    company.enter("c")
    worst = 0

    def look() -> bool:
        nonlocal worst
        fetch = company.transfer("c").requester._fetch
        worst = max(worst, fetch.outstanding_bytes if fetch is not None else 0)
        return company.has_state("c")

    assert company.run_for(60 * SECOND, look)
    assert 16 * 1024 < worst <= 32 * 1024
    assert max(pull.length for pull in company.frames(StatePull)) <= 32 * 1024


def test_a_long_offer_goes_out_bit_by_bit() -> None:
    company = StateTransferGroup("ab", padding=bytes(200 * BLOCK_BYTES), state_window_bytes="1KiB")
    company.enter("c")
    most_bytes, seen = 0, 0

    def look() -> bool:
        nonlocal most_bytes, seen
        offers = company.frames(StateOffer, by="a")
        most_bytes, seen = (
            max(most_bytes, sum(len(offer.body) for offer in offers[seen:])),
            len(offers),
        )
        return company.has_state("c")

    assert company.run_for(60 * SECOND, look)
    assert 1024 <= most_bytes < 1024 + 1400, "at one go, of 3200 bytes of hashes"
    assert len(company.apps["c"].received[0].state) == 200 * BLOCK_BYTES


def test_equal_blocks_are_fetched_once() -> None:
    company = StateTransferGroup("ab", padding=bytes(20 * BLOCK_BYTES))
    company.enter("c")
    company.until_state("c")
    assert chunk_bytes(company, "a") == BLOCK_BYTES
    assert company.apps["c"].received[0].state == bytes(20 * BLOCK_BYTES)


# Exactly once


def test_what_the_state_covers_and_comes_late_is_dropped() -> None:
    company = StateTransferGroup("ab")
    company.enter("c", lag_ns=0)
    company.run_for(3 * MS)
    late = company.lose(Data, to="c")
    company.send("a", *(b"a%d" % number for number in range(50)))
    company.until_state("c")
    assert company.apps["c"].of("a") == [b"a%d" % number for number in range(50)], (
        "all of it in the state"
    )
    company.tampers.remove(late)
    company.send("a", b"a50")
    company.run_for(2 * SECOND)
    company.same("a", "b", "c", origins="a")
    assert company["c"].counters["dropped.covered"] == 50
    assert not company.transfer("c").is_filtering


def test_a_run_across_the_mark_is_cut() -> None:
    company = StateTransferGroup("ab", max_frame_bytes="1400B")
    company.send("a", b"a0")
    company.run_for(SECOND)
    company.enter("c", lag_ns=0)
    company.run_for(3 * MS)
    # The provider delivers the first three alone, the new member gets all of them in one run.
    hold = company.lose(Data, to="c")
    for number in range(1, 4):
        company.send("a", b"a%d" % number)
    company.until_state("c")
    assert company.apps["c"].received[0].state.endswith(b"a3")
    del hold
    company.tampers.clear()
    company.send("a", *(b"a%d" % number for number in range(4, 7)))
    company.run_for(2 * SECOND)
    company.same("a", "c", origins="a")


def test_the_provider_waits_until_it_has_delivered_what_the_new_member_will_not_get() -> None:
    company = StateTransferGroup("ab", padding=b"p")
    company.lose(Data, to="a")
    company.send("b", b"b1", b"b2")
    company.run_for(50 * MS)
    company.enter("c", lag_ns=0)
    company.run_for(SECOND)
    assert not company.has_state("c"), "a has not what b sent before c came"
    assert company["c"].inbound[address("b")].start == 2
    company.tampers.clear()
    company.until_state("c")
    assert company.apps["c"].received == [StateReceived(address("a"), b"pb1\0b2")]
    assert company.apps["c"].events.count(company.apps["c"].received[0]) == 1
    assert company["a"].counters["state.wanted"] == 1
    assert "state.again" not in company["c"].counters


def test_a_message_that_the_new_member_gets_the_end_of_is_in_the_state() -> None:
    company = StateTransferGroup("ab", capacity=8)
    large = b"b" + noise(40_000).replace(b"\0", b"\1")
    company.send("b", large)
    company.run_for(2 * MS)
    cut = company["b"].outbound.window.high + 2

    def keep_end(source: str, target: str, frame: Frame) -> Frame | None:
        last = isinstance(frame, Data) and frame.run.last > cut
        return None if source == "b" and target == "a" and last else frame

    company.tampers.append(keep_end)
    company.enter("c", lag_ns=0)
    company.run_for(SECOND)
    assert (
        company["c"].inbound[address("b")].start
        < company["a"].inbound[address("b")].window.delivered  # type: ignore[union-attr]
    )
    assert not company.has_state("c"), (
        "a has more than what c will not get, but not the whole message"
    )
    company.tampers.clear()
    company.send("b", b"b2")
    company.until_state("c")
    company.run_for(SECOND)
    assert company.apps["c"].of("b") == [large, b"b2"]
    company.same("a", "b", "c", origins="b")


def test_a_message_that_the_provider_has_begun_to_send_is_in_the_state() -> None:
    company = StateTransferGroup("ab", capacity=8)
    large = b"a" + noise(40_000).replace(b"\0", b"\1")
    company.lose(Ack, by="b")
    company.send("a", large)
    company.run_for(10 * MS)
    company.enter("c", lag_ns=0)
    company.run_for(SECOND)
    assert company["c"].inbound[address("a")].start == company["a"].outbound.window.delivered == 8
    assert not company.has_state("c"), "a has sent as much, but not the whole message"
    company.tampers.clear()
    company.until_state("c")
    company.run_for(SECOND)
    company.same("a", "b", "c", origins="a")
    assert company.apps["c"].of("a") == [large]


def test_a_message_in_pieces_of_which_the_provider_has_a_part_comes_behind_the_state() -> None:
    company = StateTransferGroup("ab", capacity=64)
    large = b"b" + noise(20_000).replace(b"\0", b"\1")
    company.enter("c", lag_ns=0)
    late = company.lose(StateAsk)
    company.run_for(100 * MS)

    def cut_end(source: str, target: str, frame: Frame) -> Frame | None:
        last = isinstance(frame, Data) and frame.run.last > 10
        return None if source == "b" and target == "a" and last else frame

    company.tampers.append(cut_end)
    company.tampers.remove(late)
    company.send("b", large)
    company.until_state("c")
    assert company["a"].inbound[address("b")].window.delivered == 10  # type: ignore[union-attr]
    company.tampers.clear()
    company.run_for(2 * SECOND)
    assert company.apps["c"].received[0].state == b""
    assert company.apps["c"].of("b") == [large]
    company.same("a", "b", "c", origins="b")


def test_connections_are_held_and_all_handed_out() -> None:
    company = StateTransferGroup("ab", padding=noise(200_000))
    company.enter("c", lag_ns=0)
    company.run_for(2 * MS)
    company.send("a", b"one", to=address("c"))
    company.send("a", b"u", mode=DeliveryMode.UNRELIABLE)
    company.run_for(3 * MS)
    assert not company.has_state("c")
    assert company.apps["c"].direct == []
    company.until_state("c")
    assert company.apps["c"].direct == [b"one"]
    assert company.apps["c"].unreliable == [b"u"]


def test_out_of_band_messages_are_in_the_state_or_handed_out() -> None:
    company = StateTransferGroup("ab")
    company.lose(StateAsk)
    company.enter("c", lag_ns=0)
    company.run_for(3 * MS)
    company.send("b", b"b-both", mode=DeliveryMode.OUT_OF_BAND)
    company.send("b", b"b-alone", mode=DeliveryMode.OUT_OF_BAND, to=address("c"))
    company.run_for(5 * MS)
    company.send("b", b"b-more", mode=DeliveryMode.OUT_OF_BAND)
    company.run_for(5 * MS)
    assert company["a"].out_of_band.delivered()[address("b")] == ((1, 3),), (
        "b is done with its second, which was not for a"
    )
    late = company.lose(OutOfBand, to="a")
    company.send("b", b"b-late", mode=DeliveryMode.OUT_OF_BAND)
    company.tampers = [late]
    company.until_state("c")
    assert company.apps["c"].received[0].state == b"b-both\0b-more"
    company.tampers.remove(late)
    company.run_for(2 * SECOND)
    assert sorted(company.apps["c"].log) == [b"b-alone", b"b-both", b"b-late", b"b-more"]
    assert sorted(company.apps["a"].log) == [b"b-both", b"b-late", b"b-more"]


def test_an_out_of_band_message_that_comes_behind_the_state_is_not_handed_out_again() -> None:
    company = StateTransferGroup("ab")
    company.enter("c", lag_ns=0)
    company.run_for(3 * MS)
    late = company.lose(OutOfBand, to="c")
    company.send("b", b"b1", mode=DeliveryMode.OUT_OF_BAND)
    company.until_state("c")
    company.tampers.remove(late)
    company.run_for(2 * SECOND)
    assert company.apps["c"].log == [b"b1"]
    assert not kinds(company.apps["c"].deliveries, OUT_OF_BAND)
    assert company["b"].is_quiet, "it was acknowledged all the same"


def test_one_that_has_just_got_the_state_gives_a_state_that_covers_as_much() -> None:
    company = StateTransferGroup("ab")
    company.crash("b")
    company.leave_out("b")
    company.enter("cd", lag_ns=0)
    company.run_for(3 * MS)
    company.lose(Data, by="a", to="c")
    company.lose(StateOffer, by="a", to="d")
    company.send("a", *(b"a%d" % number for number in range(10)))
    company.until_state("c")
    assert company.transfer("c").is_filtering, "c has the messages only by its state"
    company.crash("a")
    company.leave_out("a")
    company.until_state("d")
    company.run_for(3 * SECOND)
    assert company.apps["d"].received[0].provider == address("c")
    assert company.apps["d"].of("a") == [b"a%d" % number for number in range(10)]


def test_what_one_that_left_sent_and_the_provider_never_got_is_reported() -> None:
    company = StateTransferGroup("abz")
    company.lose(Data, by="z", to="a")
    company.lose(Data, by="z", to="b")
    company.send("z", b"z1", b"z2")
    company.run_for(5 * MS)
    company.enter("c", lag_ns=0)
    company.run_for(100 * MS)
    company.send("z", b"z3")
    company.run_for(100 * MS)
    company.crash("z")
    company.leave_out("z")
    company.until_state("c")
    assert company.apps["c"].of("z") == [b"z3"]
    assert [event for event in company.apps["c"].events if isinstance(event, Lost)] == [
        Lost(address("z"), 1, 2)
    ]


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.data())
def test_state_and_messages_together_are_everything_once(data: st.DataObject) -> None:
    draw = data.draw
    seed = draw(st.integers(0, 2**32))
    rng = Random(seed)
    company = StateTransferGroup(
        "ab",
        seed=seed,
        loss=draw(st.sampled_from([0.0, 0.05, 0.2])),
        twice=draw(st.sampled_from([0.0, 0.2])),
        delay_ns=draw(st.sampled_from([(MS, MS), (MS, 30 * MS)])),
        padding=noise(draw(st.sampled_from([0, 100, 3 * BLOCK_BYTES]))),
        profile=draw(st.sampled_from(["nakack4", "nakack"])),
        capacity=draw(st.sampled_from([16, 256])),
        unread_limit=draw(st.sampled_from([0, 7])),
        state_backlog_bytes=draw(st.sampled_from(["1KiB", "64MiB"])),
        state_timeout="1s",
    )
    company.answer_ns = draw(st.sampled_from([0, 30 * MS]))
    serial = dict.fromkeys("abcde", 0)

    def chatter(name: str) -> None:
        if name not in company.members or company[name].view is None:
            return
        serial[name] += 1
        size_bytes = rng.choice([0, 3, 50, 5000])
        body = b"%s %d %s" % (name.encode(), serial[name], bytes(size_bytes).replace(b"\0", b"."))
        company.send(name, body)

    for _ in range(draw(st.integers(0, 60))):
        for name in "abcd":
            company.at(company.now_ns + rng.randrange(3 * SECOND), lambda name=name: chatter(name))  # type: ignore[misc]
    company.run_for(rng.randrange(SECOND))
    company.enter("c", lag_ns=rng.randrange(1, 100 * MS))
    if draw(st.booleans()):
        company.run_for(rng.randrange(SECOND))
        company.enter("d", lag_ns=rng.randrange(1, 100 * MS))
    newcomers = company.view_names[2:]
    if draw(st.booleans()):
        company.run_for(rng.randrange(100 * MS))
        company.lose(StateOffer, StateChunk, by="a", to="c")
    company.until_state(*newcomers, within_ns=120 * SECOND)
    company.tampers.clear()
    company.loss = 0.0
    company.run_for(10 * SECOND)
    for name in company.view_names:
        company.same("a", "b", *newcomers, origins=name)
        assert len(company.apps["a"].of(name)) == serial[name]


def test_before_the_state_is_taken_the_starts_of_later_joiners_are_waited_for() -> None:
    company = StateTransferGroup("ab", padding=noise(1000), state_timeout="3s")
    late = company.lose(StateChunk)
    company.enter("c", lag_ns=0)
    assert company.run_for(SECOND, lambda: bool(company.frames(StatePull)))
    mute = company.lose(by="d", to="c")
    company.begin("d")
    company.view("abcd")
    company.tampers.remove(late)
    company.run_for(SECOND)
    assert company.frames(StateChunk)
    assert not company.has_state("c"), (
        "d may have sent something that is neither in the state nor will come"
    )
    company.tampers.remove(mute)
    company.until_state("c", within_ns=SECOND)
    assert company.apps["c"].received == [StateReceived(address("a"), noise(1000))]


def test_a_start_that_is_never_told_does_not_keep_the_state_away() -> None:
    company = StateTransferGroup("ab", padding=b"x", state_timeout="1s")
    company.lose(by="b", to="c")
    company.enter("c", lag_ns=0)
    company.until_state("c", within_ns=1100 * MS)
    assert company.apps["c"].received == [StateReceived(address("a"), b"x")]
