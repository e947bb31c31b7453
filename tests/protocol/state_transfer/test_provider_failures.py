"""State transfer when providers fail, many join at once, or the joiner's buffer is full."""

from random import Random

import pytest

from gapless.delivery_mode import DeliveryMode
from gapless.protocol.events import StateReceived, StateWanted
from gapless.protocol.state_transfer.block_fetch import BLOCK_BYTES
from gapless.run import Run
from gapless.wire.frames import Data, Frame, StateAsk, StateChunk, StateOffer, StatePull
from tests.support.virtual_group import MS, SECOND
from tests.support.virtual_state_transfer import StateTransferGroup, address


def noise(size_bytes: int, seed: int = 1) -> bytes:
    return Random(seed).randbytes(size_bytes)


def chunk_bytes(company: StateTransferGroup, by: str) -> int:
    return sum(len(chunk.body) for chunk in company.frames(StateChunk, by=by))


# Providers that fail


@pytest.mark.parametrize("same", [True, False])
def test_when_the_provider_dies_another_is_asked_and_equal_blocks_are_not_fetched_again(
    same: bool,
) -> None:
    padding = noise(40 * BLOCK_BYTES)
    company = StateTransferGroup("ab", padding=padding, delay_ns=(5 * MS, 5 * MS))
    if not same:
        company.apps["b"].padding = noise(40 * BLOCK_BYTES, seed=2)
    company.enter("c")
    assert company.run_for(SECOND, lambda: chunk_bytes(company, "a") > 20 * BLOCK_BYTES)
    company.crash("a")
    company.leave_out("a")
    company.apps["c"].padding = company.apps["b"].padding
    company.until_state("c")
    assert company.apps["c"].received == [StateReceived(address("b"), company.apps["b"].padding)]
    if same:
        assert chunk_bytes(company, "b") < 25 * BLOCK_BYTES
        assert company["c"].counters["state.blocks kept"] > 15
    else:
        assert chunk_bytes(company, "b") >= 40 * BLOCK_BYTES


def test_blocks_are_known_again_at_another_place() -> None:
    head, rest = noise(BLOCK_BYTES, seed=5), noise(9 * BLOCK_BYTES)
    company = StateTransferGroup("ab", padding=rest, delay_ns=(5 * MS, 5 * MS))
    company.apps["b"].padding = head + rest
    company.enter("c")
    assert company.run_for(SECOND, lambda: chunk_bytes(company, "a") >= 9 * BLOCK_BYTES)
    company.crash("a")
    company.leave_out("a")
    company.apps["c"].padding = company.apps["b"].padding
    company.until_state("c")
    assert company["c"].counters["state.blocks kept"] >= 6
    assert company.apps["c"].received[0].state == head + rest


def test_silence_is_no_failure_while_the_group_may_not_know_the_new_member_yet() -> None:
    company = StateTransferGroup(
        "ab", state_timeout="100ms", suspect_after="2s", verify_timeout="1s"
    )
    company.send("a", b"a1")
    losing = company.lose(StateOffer)
    company.enter("c", lag_ns=0)
    company.run_for(SECOND)
    assert company.apps["c"].received == []
    assert {target for _, target, frame in company.crossings if isinstance(frame, StateAsk)} == {
        "a",
        "b",
    }
    company.tampers.remove(losing)
    company.until_state("c")
    assert company.apps["c"].received[0].provider is not None


def test_a_silent_provider_is_left_for_the_next_one_and_everything_fails_in_the_end() -> None:
    company = StateTransferGroup(
        "ab", state_timeout="1s", suspect_after="400ms", verify_timeout="400ms"
    )
    company.send("a", b"a1")
    company.lose(StateOffer)
    start_ns = company.now_ns
    company.enter("c", lag_ns=0)
    company.run_for(3 * MS)
    company.send("a", b"a2")
    company.until_state("c")
    assert company.apps["c"].received == [StateReceived(None, b"")]
    assert 4 * SECOND <= company.now_ns - start_ns <= 5 * SECOND, "two members, twice each"
    assert {target for _, target, frame in company.crossings if isinstance(frame, StateAsk)} == {
        "a",
        "b",
    }
    company.run_for(SECOND)
    assert company.apps["c"].of("a") == [b"a2"], "what came for c is handed out"


def test_a_member_without_a_state_refuses_and_the_next_one_is_asked_at_once() -> None:
    company = StateTransferGroup("ab", padding=b"x")
    company.apps["a"].able = False
    company.enter("c")
    company.until_state("c", within_ns=100 * MS)
    assert company.apps["c"].received == [StateReceived(address("b"), b"x")]


def test_when_nobody_has_a_state_there_is_none() -> None:
    company = StateTransferGroup("ab")
    company.apps["a"].able = company.apps["b"].able = False
    company.enter("c")
    company.until_state("c", within_ns=SECOND)
    assert company.apps["c"].received == [StateReceived(None, b"")]


def test_two_that_wait_for_the_state_do_not_wait_for_each_other() -> None:
    company = StateTransferGroup("a", state_timeout="1s")
    company.lose(StateOffer, by="a")
    company.enter("bc")
    company.until_state("b", "c")
    assert {company.apps[name].received[0].provider for name in "bc"} <= {
        None,
        address("b"),
        address("c"),
    }


def test_an_application_that_takes_its_time_is_waited_for() -> None:
    company = StateTransferGroup("ab", state_timeout="1s", padding=b"x")
    company.answer_ns = 3 * SECOND
    company.enter("c")
    company.until_state("c")
    assert company.apps["c"].received == [StateReceived(address("a"), b"x")]
    assert not company.frames(StateAsk, to="b")


def test_an_application_that_never_answers_is_not() -> None:
    company = StateTransferGroup("ab", state_timeout="1s", padding=b"x")
    company.apps["a"].answers = False
    company.enter("c")
    company.until_state("c")
    assert company.apps["c"].received == [StateReceived(address("b"), b"x")]
    company.run_for(10 * SECOND)
    assert company.transfer("a").provider.due_ns is None, "nothing is left of it"


def test_an_application_that_never_answers_does_not_block_a_lone_requester_for_ever() -> None:
    company = StateTransferGroup("a", state_timeout="1s")
    company.apps["a"].answers = False
    company.enter("c")
    company.until_state("c")
    assert company.apps["c"].received == [StateReceived(None, b"")]
    assert company["a"].counters["state.unanswered"] == 2


def test_a_block_that_is_spoilt_again_and_again_makes_the_member_turn_to_another() -> None:
    company = StateTransferGroup("ab", padding=noise(1000))

    def spoil(source: str, target: str, frame: Frame) -> Frame | None:
        return (
            frame._replace(body=bytes(len(frame.body)))
            if isinstance(frame, StateChunk) and source == "a"
            else frame
        )

    company.tampers.append(spoil)
    company.enter("c")
    company.until_state("c")
    assert company.apps["c"].received[0].provider == address("b")
    assert company["c"].counters["dropped.state hash"] == 3


def test_a_provider_forgets_one_that_is_silent() -> None:
    company = StateTransferGroup("ab", padding=noise(200_000), state_timeout="1s")
    company.enter("c")
    company.run_for(SECOND, lambda: bool(company.frames(StateChunk)))
    company.crash("c")
    assert company.transfer("a").provider._provided_states()
    company.run_for(5 * SECOND)
    assert not company.transfer("a").provider._provided_states()
    assert company.transfer("a").due_ns is None


def test_a_provider_forgets_one_that_has_left() -> None:
    company = StateTransferGroup("ab", padding=noise(200_000))
    company.enter("c")
    company.run_for(SECOND, lambda: bool(company.frames(StateChunk)))
    company.crash("c")
    company.leave_out("c")
    assert company.transfer("a").due_ns is None


# Many at once


def test_many_that_come_at_once_share_one_state() -> None:
    company = StateTransferGroup("ab", padding=noise(100_000))
    newcomers = "cdefghijklmnopqrst"
    company.enter(newcomers, lag_ns=0)
    company.until_state(*newcomers)
    assert {company.apps[name].received[0].provider for name in newcomers} == {address("a")}
    wanted = [event for event in company.apps["a"].events if isinstance(event, StateWanted)]
    assert len(wanted) <= 2, "sixteen are served at once, the others after them"
    company.run_for(10 * MS)
    assert company.transfer("a").due_ns is None


@pytest.mark.parametrize("profile", ["nakack4", "classic"])
def test_a_state_that_was_taken_for_another_is_not_given_to_one_that_needs_a_later_one(
    profile: str,
) -> None:
    company = StateTransferGroup("ab", padding=noise(1000), profile=profile)
    company.lose(StatePull, by="c")
    company.enter("c", lag_ns=0)
    assert company.run_for(SECOND, lambda: bool(company.frames(StatePull)))
    company.send("a", b"a1")
    company.run_for(100 * MS)
    company.enter("d", lag_ns=0)
    company.until_state("d", within_ns=300 * MS)
    assert company.apps["d"].of("a") == [b"a1"]
    assert company["a"].counters["state.wanted"] == 2
    assert "state.again" not in company["d"].counters


def test_two_that_came_one_after_the_other_share_a_state_only_if_it_covers_both() -> None:
    company = StateTransferGroup("ab", padding=noise(1000))
    lagging = company.lose(Data, by="b", to="a")
    company.lose(StatePull, by="c")
    silent = company.lose(StateAsk)
    company.enter("c", lag_ns=0)
    company.run_for(20 * MS)
    company.send("b", b"b1", b"b2")
    company.run_for(20 * MS)
    company.enter("d", lag_ns=0)
    company.run_for(20 * MS)
    company.tampers.remove(silent)
    assert company.run_for(SECOND, lambda: bool(company.frames(StatePull, by="c"))), (
        "c needs nothing of b"
    )
    company.run_for(SECOND)
    assert not company.has_state("d")
    company.tampers.remove(lagging)
    company.until_state("d")
    assert "state.again" not in company["d"].counters
    company.tampers.clear()
    company.until_state("c")
    company.run_for(SECOND)
    company.same("a", "b", "c", "d", origins="b")


def test_a_question_about_many_streams_fits_its_frames() -> None:
    names = "".join(chr(ord("a") + number) for number in range(26))
    company = StateTransferGroup(names, max_frame_bytes="256B")
    for name in names:
        company.send(name, name.encode())
    company.run_for(2 * SECOND)
    company.enter("{", lag_ns=0)
    company.until_state("{")
    assert len(company.frames(StateAsk)) > 4
    company.same("a", "{", origins=names)


# Back-pressure


def test_a_full_backlog_makes_senders_wait_and_loses_nothing() -> None:
    company = StateTransferGroup(
        "ab",
        capacity=32,
        state_backlog_bytes="4KiB",
        padding=noise(500_000),
        delay_ns=(2 * MS, 2 * MS),
    )
    company.apps["a"].answers = company.apps["b"].answers = False
    company.enter("c", lag_ns=0)
    company.run_for(100 * MS)
    for number in range(300):
        company.send("a", b"a%d" % number + bytes(100).replace(b"\0", b"."))
    company.send("a", b"a out of band", mode=DeliveryMode.OUT_OF_BAND)
    company.run_for(2 * SECOND)
    held_bytes = company.transfer("c").held_deliveries.held_bytes
    assert company.transfer("c").full
    assert held_bytes < 4096 + 32 * 200, "no more than one window beyond the limit"
    assert company["a"].outbound.window.high < 120, "the sender waits"
    assert company["c"].counters["dropped.backlog"], "out-of-band messages come again"
    company.step("a", lambda m: m.provide(1, company.padding, company.now_ns))
    company.until_state("c")
    assert not company["c"].deliveries.awaiting_credit, "what had to wait goes on in the same step"
    company.run_for(3 * SECOND)
    assert company["a"].is_quiet
    assert len(company.apps["c"].log) == len(set(company.apps["c"].log)) == 301


def test_messages_that_are_held_or_dropped_take_no_room_from_the_application() -> None:
    company = StateTransferGroup("ab", unread_limit=5)
    company.enter("c", lag_ns=0)
    company.run_for(3 * MS)
    late = company.lose(Data, to="c")
    company.send("a", *(b"a%d" % number for number in range(40)))
    company.until_state("c")
    assert len(company.apps["c"].log) == 40
    whole = Run.of(address("a"), 1, [b"a%d" % number for number in range(40)], view=company.number)
    company.receive("c", "a", Data(whole))
    window = company["c"].inbound[address("a")].window
    assert window is not None
    assert window.delivered == 40, "the application would never report them as consumed"
    company.tampers.remove(late)
    company.run_for(3 * SECOND)
    company.send("a", b"a40", b"a41")
    company.run_for(SECOND)
    company.same("a", "b", "c", origins="a")
    assert company["c"].credit.outstanding == 0


def test_one_that_lives_and_does_not_come_on_is_left_for_another() -> None:
    company = StateTransferGroup("ab", padding=b"p", state_timeout="1s")
    company.lose(Data, by="b", to="a")
    company.send("b", b"b1")
    company.run_for(50 * MS)
    start_ns = company.now_ns
    company.enter("c", lag_ns=0)
    company.until_state("c", within_ns=10 * SECOND)
    assert company.apps["c"].received == [StateReceived(address("b"), b"pb1")]
    assert company.now_ns - start_ns >= 4 * SECOND, "it said that its offer would come"
    assert "state.failed" not in company["c"].counters
