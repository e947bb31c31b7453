"""State transfer with unexpected frames and answers, and with each kind of held delivery."""

from collections.abc import Callable
from random import Random
from typing import Any

import pytest

from gapless.config import Config
from gapless.errors import LocalProtocolError
from gapless.identity import Address, View
from gapless.protocol.events import StateReceived, StateWanted
from gapless.protocol.ready import GROUP, OUT_OF_BAND, UNICAST, UNRELIABLE, Delivery
from gapless.protocol.ready_builder import ReadyBuilder
from gapless.protocol.state_transfer.block_fetch import (
    BLOCK_BYTES,
    COMPLETE,
    DUPLICATE,
    FRESH,
    MAX_BLOCKS,
    UNREQUESTED,
    WRONG,
    BlockFetcher,
    block_hashes,
)
from gapless.protocol.state_transfer.held_deliveries import HeldDeliveries, StateCoverage
from gapless.protocol.state_transfer.requester import MAX_OFFER_BYTES, NO_STATE, NOT_YET
from gapless.run import PRIVATE, Run
from gapless.wire.frames import Frame, StateAsk, StateChunk, StateOffer, StatePull, StreamProgress
from gapless.wire.state_offer import OfferContent, encode_offer
from tests.support.virtual_group import MS, SECOND
from tests.support.virtual_state_transfer import StateTransferGroup, address

A, B, C, D = map(address, "abcd")
STATE = Random(3).randbytes(100_000)


# Frames


def pulling() -> StateTransferGroup:
    """A company in which c has the offer of a and waits for the chunks."""
    company = StateTransferGroup("ab", padding=STATE)
    company.lose(StateChunk)
    company.enter("c", lag_ns=0)
    assert company.run_for(SECOND, lambda: bool(company.frames(StatePull, by="c")))
    return company


def asking() -> StateTransferGroup:
    """A company in which c has asked a and has no offer yet."""
    company = StateTransferGroup("ab", padding=STATE)
    company.lose(StateOffer)
    company.enter("c", lag_ns=0)
    assert company.run_for(SECOND, lambda: bool(company.frames(StateAsk, by="c")))
    return company


def offer(**what: Any) -> bytes:
    sound = OfferContent(len(STATE), BLOCK_BYTES, (), (), block_hashes(STATE))
    return encode_offer(sound._replace(**what))


WHILE_ASKING: list[tuple[str, str, Frame]] = [
    ("state offer", "a", StateOffer(A, 9, 0, 1, offer())),
    ("state offer", "b", StateOffer(B, 1, 0, 1, offer())),
    ("origin", "b", StateOffer(A, 1, 0, 1, offer())),
    ("state chunk", "a", StateChunk(A, 1, 0, b"x")),
    ("state pull", "a", StatePull(A, 1, 0, 1)),
    ("stranger", "z", StateOffer(Address(26, 1), 1, 0, 1, offer())),
]


@pytest.mark.parametrize(
    ("reason", "by", "frame"), WHILE_ASKING, ids=[row[0] + " " + row[1] for row in WHILE_ASKING]
)
def test_what_was_not_asked_for_is_dropped(reason: str, by: str, frame: Frame) -> None:
    company = asking()
    before = company.transfer("c").snapshot()
    company.receive("c", by, frame)
    assert company["c"].counters[f"dropped.{reason}"] == 1
    assert company.transfer("c").snapshot() == before


def test_a_refusal_or_a_wait_of_somebody_else_is_dropped() -> None:
    company = asking()
    for word in (NO_STATE, NOT_YET):
        company.receive("c", "b", StateOffer(B, 1, 0, 1, word))
    assert company.transfer("c").requester.provider == A
    assert company["c"].counters["dropped.state offer"] == 2


@pytest.mark.parametrize(
    ("reason", "body"),
    [
        ("length", b"nonsense"),
        ("length", offer()[:-1]),
        ("state size", offer(block_bytes=2 * BLOCK_BYTES, hashes=block_hashes(STATE)[:1])),
        (
            "state size",
            offer(
                size_bytes=BLOCK_BYTES * (MAX_BLOCKS + 1), hashes=(b"h" * 16,) * (MAX_BLOCKS + 1)
            ),
        ),
    ],
    ids=["nonsense", "short", "other blocks", "too large"],
)
def test_an_offer_that_is_not_sound_makes_the_member_turn_to_another(
    reason: str, body: bytes
) -> None:
    company = asking()
    size_bytes = 60_000
    parts = [body[at : at + size_bytes] for at in range(0, len(body), size_bytes)]
    for number, part in enumerate(parts):
        company.receive("c", "a", StateOffer(A, 1, number, len(parts), part))
    assert company["c"].counters[f"dropped.{reason}"] == 1
    assert company.transfer("c").requester.provider == B
    company.tampers.clear()
    company.until_state("c")
    assert company.apps["c"].received == [StateReceived(B, STATE)]


def test_an_offer_without_end_is_given_up() -> None:
    company = asking()
    for number in range(MAX_OFFER_BYTES // 60_000 + 1):
        company.receive("c", "a", StateOffer(A, 1, number, 0xFFFF, bytes(60_000)))
    assert company["c"].counters["dropped.state size"] == 1
    assert company.transfer("c").requester.provider == B


def test_parts_that_contradict_each_other_or_come_twice_are_dropped() -> None:
    company = asking()
    body = offer()
    company.receive("c", "a", StateOffer(A, 1, 0, 2, body[:10]))
    company.receive("c", "a", StateOffer(A, 1, 0, 2, body[:10]))
    company.receive("c", "a", StateOffer(A, 1, 1, 3, body[10:]))
    assert company["c"].counters["dropped.state duplicate"] == 1
    assert company["c"].counters["dropped.state parts"] == 1
    company.receive("c", "a", StateOffer(A, 1, 1, 2, body[10:]))
    assert company.transfer("c").requester.stage == "pulling"


@pytest.mark.parametrize(
    "chunk",
    [
        StateChunk(A, 1, len(STATE), b"x"),
        StateChunk(A, 1, len(STATE) - 1, b"xy"),
        StateChunk(A, 1, 2**50, b"x"),
        StateChunk(A, 1, BLOCK_BYTES - 1, b"xy"),
        StateChunk(A, 2, 0, b"x"),
        StateChunk(A, 0, 0, b"x"),
    ],
)
def test_a_chunk_outside_of_what_was_pulled_is_dropped(chunk: StateChunk) -> None:
    company = pulling()
    before = company.transfer("c").snapshot()
    company.receive("c", "a", chunk)
    assert company["c"].counters["dropped.state chunk"] == 1
    assert company.transfer("c").snapshot() == before
    company.tampers.clear()
    company.until_state("c")
    assert company.apps["c"].received == [StateReceived(A, STATE)]


@pytest.mark.parametrize(
    "pull",
    [
        StatePull(C, 1, len(STATE), 1),
        StatePull(C, 1, len(STATE) - 1, 2),
        StatePull(C, 1, 0, BLOCK_BYTES + 1),
        StatePull(C, 2, 0, 1),
        StatePull(C, 2, 0, 0),
    ],
)
def test_a_pull_of_what_is_not_on_offer_is_dropped(pull: StatePull) -> None:
    company = pulling()
    sent = len(company.frames(StateChunk))
    company.receive("a", "c", pull)
    assert company["a"].counters["dropped.state pull"] == 1
    assert len(company.frames(StateChunk)) == sent


def test_an_older_question_does_not_take_the_place_of_a_later_one() -> None:
    company = pulling()
    company.receive("a", "c", StateAsk(C, 0, ()))
    assert company["a"].counters["dropped.state ask"] == 1
    company.tampers.clear()
    company.until_state("c")
    assert company.apps["c"].received[0].provider == A


def test_frames_of_nobody_in_particular_at_one_that_has_no_part_in_any_transfer() -> None:
    company = StateTransferGroup("ab")
    before = company.transfer("a").snapshot()
    company.receive(
        "a", "b", StateOffer(B, 1, 0, 1, offer()), StateChunk(B, 1, 0, b"x"), StatePull(B, 1, 0, 1)
    )
    assert company.transfer("a").snapshot() == before
    counters = company["a"].counters
    assert [counters[f"dropped.state {word}"] for word in ("offer", "chunk", "pull")] == [1, 1, 1]


def test_an_offer_is_not_sent_twice_for_questions_that_follow_each_other_closely() -> None:
    company = StateTransferGroup("ab", padding=STATE)
    company.lose(StatePull)
    company.enter("c", lag_ns=0)
    assert company.run_for(SECOND, lambda: company.transfer("c").requester.stage == "pulling")
    sent = len(company.frames(StateOffer, by="a"))
    for _ in range(100):
        company.receive("a", "c", StateAsk(C, 1, ()))
    assert len(company.frames(StateOffer, by="a")) == sent
    company.run_for(150 * MS)
    company.receive("a", "c", StateAsk(C, 1, ()))
    assert len(company.frames(StateOffer, by="a")) == sent + 1


def test_a_state_that_does_not_reach_the_start_of_a_stream_is_not_taken() -> None:
    company = asking()
    company.send("b", b"b1", b"b2")
    company.run_for(10 * MS)
    company["c"].inbound[B].start = 2  # as if b had told c its start late
    company.receive("c", "a", StateOffer(A, 1, 0, 1, offer(digest=(StreamProgress(B, 1, 1),))))
    assert company.transfer("c").requester.stage == "asking", "it would have a gap between 1 and 3"
    assert company["c"].counters["state.again"] == 1
    company.tampers.clear()
    company.until_state("c")
    asked = company.frames(StateAsk, by="c")[-1]
    assert (asked.transfer, asked.starts) == (2, (StreamProgress(B, 2, 2),))


# The application's answer


def wanted() -> tuple[StateTransferGroup, int]:
    company = StateTransferGroup("ab", padding=STATE)
    company.apps["a"].answers = False
    company.enter("c", lag_ns=0)
    assert company.run_for(
        SECOND, lambda: any(isinstance(event, StateWanted) for event in company.apps["a"].events)
    )
    return company, 1


@pytest.mark.parametrize(
    ("act", "says"),
    [
        pytest.param(
            *(lambda m, number: m.provide(number, "text", 0), "encode the state"),
            marks=pytest.mark.interpreted("compiled code checks the type, with a TypeError"),
        ),
        (lambda m, number: m.provide(number + 1, b"", 0), "StateWanted"),
        (lambda m, number: m.provide(0, b"", 0), "StateWanted"),
        (lambda m, number: (m.provide(number, b"", 0), m.provide(number, b"", 0)), "before"),
    ],
    ids=["no bytes", "no such number", "zero", "twice"],
)
def test_an_answer_that_makes_no_sense_is_an_error(
    act: Callable[[Any, int], Any], says: str
) -> None:
    company, number = wanted()
    with pytest.raises(LocalProtocolError, match=says):
        act(company["a"], number)


def test_an_answer_that_nobody_waits_for_any_more_is_only_counted() -> None:
    company, number = wanted()
    company.crash("c")
    company.leave_out("c")
    company.step("a", lambda m: m.provide(number, STATE, company.now_ns))
    assert company["a"].counters["state.late"] == 1
    assert company.transfer("a").due_ns is None


def test_one_that_has_a_view_cannot_ask_for_the_state() -> None:
    company = StateTransferGroup("ab")
    with pytest.raises(LocalProtocolError, match="before joining"):
        company["a"].request_state()


# Deliveries


def context() -> ReadyBuilder:
    return ReadyBuilder(A, 1, Config(), None, tracing=True)


def run(origin: Address, first: int, last: int, **how: Any) -> Run:
    return Run.of(origin, first, [b"%d" % seqno for seqno in range(first, last + 1)], **how)


def group(first: int, last: int, origin: Address = B, epoch: int = 0) -> Delivery:
    return Delivery(origin, first, last, run(origin, first, last), GROUP, epoch)


def sifted(
    covered: StateCoverage, *deliveries: Delivery, starts: dict[Address, int | None] | None = None
) -> list[Delivery]:
    backlog = HeldDeliveries(1 << 20)
    backlog.waiting = True
    backlog.on_view((A, B, C))
    answer = context()
    backlog.hold(deliveries, answer)
    assert backlog.take(answer) == []
    backlog.release(covered, starts or {}, answer)
    return backlog.take(answer)


def test_of_each_stream_what_lies_behind_the_mark_is_left() -> None:
    covered = StateCoverage(0, {B: 5, C: 2}, {})
    found = sifted(covered, group(1, 3), group(1, 4, C), group(4, 8), group(9, 9), group(1, 2, A))
    assert found == [group(3, 4, C), group(6, 8), group(9, 9), group(1, 2, A)]
    assert [delivery.messages() for delivery in found[:2]] == [[b"3", b"4"], [b"6", b"7", b"8"]]


def test_a_message_in_pieces_is_whole_or_not_there() -> None:
    whole = Delivery(B, 4, 8, b"large")
    assert sifted(StateCoverage(0, {B: 8}, {}), whole) == []
    assert sifted(StateCoverage(0, {B: 3}, {}), whole) == [whole]
    assert sifted(StateCoverage(0, {B: 6}, {}), whole) == [whole], "nobody has delivered a half"


def test_what_is_for_one_member_or_unreliable_is_left() -> None:
    deliveries = [
        Delivery(B, 1, 2, run(B, 1, 2), UNICAST, 1 << 63),
        Delivery(B, 0, 0, run(B, 1, 1), UNRELIABLE),
        Delivery(B, 3, 3, run(B, 3, 3, flags=PRIVATE), OUT_OF_BAND),
    ]
    assert sifted(StateCoverage(0, {B: 9}, {B: ((1, 9),)}), *deliveries) == deliveries


def test_out_of_band_messages_are_left_by_number() -> None:
    aside = Delivery(B, 1, 6, run(B, 1, 6), OUT_OF_BAND)
    found = sifted(StateCoverage(0, {B: 9}, {B: ((1, 2), (5, 5))}), aside)
    assert [(delivery.first, delivery.last, delivery.messages()) for delivery in found] == [
        (3, 4, [b"3", b"4"]),
        (6, 6, [b"6"]),
    ]


def test_where_numbers_restart_an_earlier_view_is_covered_and_a_later_one_is_not() -> None:
    covered = StateCoverage(5, {B: 2}, {})
    assert sifted(covered, group(1, 9, epoch=4), group(1, 3, epoch=5), group(1, 1, epoch=6)) == [
        group(3, 3, epoch=5),
        group(1, 1, epoch=6),
    ]


def test_the_mark_of_one_that_is_not_here_yet_counts_when_it_comes() -> None:
    backlog, answer = HeldDeliveries(1 << 20), context()
    backlog.waiting = True
    backlog.on_view((A, B))
    backlog.release(StateCoverage(0, {B: 0, D: 4}, {}), {}, answer)
    assert backlog.take(answer) == []
    before = backlog.active
    backlog.on_view((A, B, D))
    meanwhile = backlog.active
    backlog.hold([group(3, 6, D)], answer)
    assert backlog.take(answer) == [group(5, 6, D)]
    assert (before, meanwhile, backlog.active) == (False, True, False)


def test_a_stream_that_starts_behind_its_mark_is_not_looked_at() -> None:
    backlog, answer = HeldDeliveries(1 << 20), context()
    backlog.waiting = True
    backlog.on_view((A, B))
    backlog.release(StateCoverage(0, {B: 4}, {}), {B: 4}, answer)
    assert backlog.take(answer) == []
    assert not backlog.active


def test_empty_messages_fill_the_backlog_too_and_unreliable_ones_are_then_dropped() -> None:
    backlog, answer = HeldDeliveries(1024), context()
    backlog.waiting = True
    empty = Delivery(B, 1, 1, Run.of(B, 1, [b""]))
    unreliable = Delivery(B, 0, 0, Run.of(B, 1, [b"u"]), UNRELIABLE)
    backlog.hold([unreliable, *[empty] * 20, unreliable], answer)
    assert backlog.full
    assert answer.counters == {"dropped.backlog": 1}


def test_where_numbers_restart_with_every_view_the_state_and_the_messages_are_everything_too() -> (
    None
):
    company = StateTransferGroup("ab", profile="classic", padding=STATE)
    for number in range(10):
        company.send("a", b"a%d" % number)
    company.run_for(SECOND)
    company.enter("c", lag_ns=0)
    for number in range(10, 40):
        company.send("a", b"a%d" % number)
        company.run_for(2 * MS)
    company.until_state("c")
    company.run_for(2 * SECOND)
    company.enter("d", lag_ns=0)
    company.run_for(10 * MS)
    company.send("c", b"c1")
    company.until_state("d")
    company.run_for(2 * SECOND)
    company.same("a", "b", "c", "d", origins="ac")
    assert len(company.apps["d"].of("a")) == 40


# Blocks


def fetch(state: bytes, known: dict[bytes, bytes] | None = None, **knobs: Any) -> BlockFetcher:
    sound = OfferContent(len(state), BLOCK_BYTES, (), (), block_hashes(state))
    return BlockFetcher(sound, known or {}, Config.make(**knobs))


def test_chunks_may_be_cut_anyhow_within_what_was_pulled() -> None:
    found, rng = fetch(STATE, state_window_bytes="1KiB"), Random(4)
    while not found.is_complete:
        for first, last in found.pull(0):
            at = first
            while at <= last:
                end = min(last + 1, at + rng.randint(1, 300))
                assert found.on_chunk(at, STATE[at:end], 0) in {FRESH, COMPLETE}
                assert found.on_chunk(at, STATE[at:end], 0) in {DUPLICATE, UNREQUESTED}
                at = end
    assert found.state() == STATE
    assert found.outstanding_bytes == 0


def test_a_spoilt_block_is_pulled_again_from_its_beginning() -> None:
    found = fetch(STATE)
    spoilt = bytes(len(STATE))
    pulled = found.pull(0)
    last = [found.on_chunk(first, spoilt[first : last + 1], 0) for first, last in pulled]
    assert last.count(WRONG) == 2
    again = found.pull(0)
    assert sorted(again) == sorted(pulled)
    for first, last_byte in again:
        found.on_chunk(first, STATE[first : last_byte + 1], 0)
    assert found.state() == STATE


def test_what_is_missing_is_pulled_again_and_no_more() -> None:
    found = fetch(STATE)
    (first, last), *others = found.pull(0)
    for other, end in others:
        found.on_chunk(other, STATE[other : end + 1], 10 * MS)
    found.on_chunk(first + 100, STATE[first + 100 : first + 200], 10 * MS)
    assert found.due_ns is not None
    again = list(found.pull_again(found.due_ns))
    assert again == [(first, first + 99), (first + 200, last)]
    assert list(found.pull_again(found.due_ns - 1)) == []


def test_a_range_that_comes_in_slowly_is_not_pulled_again() -> None:
    found = fetch(STATE[:3000])
    found.pull(0)
    for at in range(0, 3000, 1000):
        now_ns = 190 * MS * (at // 1000 + 1)
        assert found.due_ns is not None
        assert found.due_ns > now_ns
        found.on_chunk(at, STATE[at : at + 1000], now_ns)
    assert found.is_complete


def test_many_gaps_are_pulled_again_in_few_frames() -> None:
    found = fetch(STATE)
    (first, last), *_ = found.pull(0)
    for at in range(first, last, 200):
        found.on_chunk(at, STATE[at : at + 100], MS)
    again = [(low, high) for low, high in found.pull_again(SECOND) if low <= last]
    assert len(again) <= 8
    assert again[-1][1] == last


def test_the_pause_before_pulling_again_doubles_up_to_a_limit() -> None:
    found = fetch(b"x", state_timeout="5s", join_interval="200ms")
    found.pull(0)
    pauses, now_ns = [], 0
    for _ in range(6):
        assert found.due_ns is not None
        pauses.append((found.due_ns - now_ns) // MS)
        now_ns = found.due_ns
        assert list(found.pull_again(now_ns)) == [(0, 0)]
    assert pauses == [200, 400, 800, 1250, 1250, 1250]


def test_a_view_of_its_own_ends_the_wait_of_one_that_is_left_alone() -> None:
    company = asking()
    company.members = {"c": company["c"]}
    company.number += 1
    view = View.of(company.number, C)
    company.step("c", lambda m: m.install(view, company.now_ns))
    assert company.apps["c"].received == [StateReceived(None, b"")]
