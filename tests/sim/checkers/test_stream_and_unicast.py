"""Every check holds for an honest exchange, and fails on a hand-made step that breaks exactly its promise."""

import pytest

from gapless.identity import Address, View
from gapless.protocol.events import Accepted, Lost, Started
from gapless.protocol.ready import Delivery, Ready, TraceEntry
from gapless.protocol.stream.retransmit import _RecentRepair
from gapless.run import Run
from gapless.sim.link_counters import LinkCounters
from gapless.sim.oracle.oracle import SAMPLE_STEPS
from gapless.units import NS_PER_MS, NS_PER_S
from gapless.wire import Ack, Data, Datagram, Gone, Nak, Tail
from tests.support.oracle_pair import GROUP, A, B, Court, says


def run_of(origin: Address, first: int, *messages: bytes) -> Run:
    return Run.of(origin, first, messages, view=1)


def heard_two() -> Court:
    """Return a court in which ``b`` has got two messages of ``a`` and acknowledged them."""
    court = Court(ack_threshold=1)
    ready = court.receive(B, court.send(A, b"one", b"two"))
    court.receive(A, ready.transmits[0].datagram)
    return court


def test_an_honest_exchange_breaks_nothing() -> None:
    court = heard_two()
    assert court.lives[A].member.outbound.window.low == 2
    assert court.broken == set()


# What is delivered


def test_s1_a_delivery_of_what_was_never_sent() -> None:
    court = heard_two()
    court.forge(B, ready=Ready(deliveries=[Delivery(A, 3, 3, run_of(A, 3, b"three"))]))
    assert "S1" in court.broken


def test_s1_a_first_transmission_of_what_the_application_never_gave() -> None:
    court = Court()
    court.forge(A, Data(run_of(A, 1, b"forged")))
    assert court.broken == {"S1"}


def test_s1_a_first_transmission_with_other_bytes_than_were_given() -> None:
    court = Court()
    life = court.lives[A]
    court.judge.on_send(life, [b"given"], Ready(ticket=1))
    court.forge(A, Data(run_of(A, 1, b"forged")))
    assert court.broken == {"S1"}


def test_s1_an_answer_with_numbers_that_were_not_taken() -> None:
    court = heard_two()
    court.forge(A, ready=Ready(events=[Accepted(1, 1, 3)]))
    assert court.broken == {"S1"}


def test_s2_a_message_delivered_twice() -> None:
    court = heard_two()
    court.forge(B, ready=Ready(deliveries=[Delivery(A, 2, 2, run_of(A, 2, b"two"))]))
    assert court.broken == {"S2"}


def test_s3_a_message_left_out() -> None:
    court = Court()
    court.send(A, b"one", b"two")
    court.forge(B, ready=Ready(deliveries=[Delivery(A, 2, 2, run_of(A, 2, b"two"))]))
    assert court.broken == {"S3"}


def test_s3_a_start_that_nobody_told() -> None:
    court = Court()
    court.send(A, b"one", b"two")
    court.forge(B, ready=Ready(events=[Started(A, 1)]))
    assert "S3" in court.broken


def test_s3_a_loss_that_is_not_gone() -> None:
    court = heard_two()
    court.forge(B, ready=Ready(events=[Lost(A, 3, 4)]))
    assert "S3" in court.broken


def test_s4_other_bytes() -> None:
    court = Court()
    court.send(A, b"one")
    court.forge(B, ready=Ready(deliveries=[Delivery(A, 1, 1, run_of(A, 1, b"eno"))]))
    assert court.broken == {"S4"}


def test_s4_the_same_bytes_cut_at_another_place() -> None:
    court = Court()
    court.send(A, b"one", b"two")
    court.forge(B, ready=Ready(deliveries=[Delivery(A, 1, 2, run_of(A, 1, b"on", b"etwo"))]))
    assert court.broken == {"S4"}


# Windows and marks


def test_s6_more_outstanding_than_the_capacity() -> None:
    court = Court(capacity=2)
    court.lives[A].member.outbound.window.high = 3
    court.forge(A)
    assert "S6" in court.broken


def test_s6_something_stored_that_never_came() -> None:
    court = heard_two()
    window = court.lives[B].member.inbound[A].window
    assert window is not None
    window.stored += 1
    court.send(A, b"three")
    court.receive(B, court.send(A, b"four"))
    assert court.broken == {"S6"}


def test_s7_a_mark_that_goes_back() -> None:
    court = heard_two()
    court.lives[A].member.outbound.window.low = 1
    court.forge(A)
    assert "S7" in court.broken


def test_s7_an_ack_that_goes_back() -> None:
    court = heard_two()
    court.lives[A].stream.acks[B] = 2
    court.lives[A].member.outbound.acks._acks[B] = 1
    court.forge(A, cause="receive", said=Datagram(GROUP, B, (Ack(A, 0, 1000),)))
    assert court.broken == {"S7"}


def test_s7_a_trace_that_says_otherwise() -> None:
    court = heard_two()
    court.forge(B, rows=(TraceEntry("STATE", A, low=2, delivered=2, high=3),))
    assert court.broken == {"S7"}


def test_s7_a_trace_that_is_silent() -> None:
    court = heard_two()
    court.judge.steps = SAMPLE_STEPS - 1
    court.forge(B, Ack(A, 2, 1000), to=A)
    assert court.broken == {"S7"}


def test_s7_a_mark_that_moves_when_nobody_looks() -> None:
    court = heard_two()
    court.judge.settled = True
    window = court.lives[B].member.inbound[A].window
    assert window is not None
    window.low = window.delivered = window.high = 3
    court.judge.close(0)
    assert court.broken == {"S7"}


# Acks and purging


def test_s8_an_ack_for_what_was_not_delivered() -> None:
    court = heard_two()
    court.forge(B, Ack(A, 3, 1000), to=A)
    assert court.broken == {"S8"}


def test_s8_an_ack_that_comes_in_and_is_not_true() -> None:
    court = Court()
    court.send(A, b"one", b"two")
    court.receive(A, says(B, Ack(A, 2, 1000)))
    assert "S8" in court.broken


def test_s9_a_purge_without_acks() -> None:
    court = Court()
    court.send(A, b"one")
    window = court.lives[A].member.outbound.window
    window.purge(1)
    court.forge(A, rows=(TraceEntry("PURGE", A, 1, 1),))
    assert court.broken == {"S9"}


def test_s9_an_announcement_beyond_the_window() -> None:
    court = heard_two()
    court.forge(A, Tail(A, 2, 3, None))
    court.forge(A, Gone(A, 3), to=B)
    assert [violation.check for violation in court.judge.violations] == ["S9", "S9"]


def test_s9_a_loss_at_one_who_counts() -> None:
    court = heard_two()
    court.lives[B].inbound[A].gone = 3
    court.forge(B, ready=Ready(events=[Lost(A, 3, 3)]))
    assert "S9" in court.broken


# Repairs, naks, acceptance


def waiting_for_one(use_mcast_xmit: str = "auto") -> Court:
    """Return a court in which ``a`` has sent two messages one by one, and ``b`` has only the second."""
    court = Court(use_mcast_xmit=use_mcast_xmit)
    court.send(A, b"one")
    court.receive(B, court.send(A, b"two"))
    court.now_ns += NS_PER_S
    return court


NAK_ONE = Datagram(GROUP, B, (Nak(A, ((1, 1),)),))


def test_s10_a_repair_that_nobody_asked_for() -> None:
    court = waiting_for_one()
    court.forge(
        A, Data(run_of(A, 1, b"one"), repair=True), to=B, rows=(TraceEntry("REPAIR", A, 1, 1, B),)
    )
    assert "S10" in court.broken


def test_s10_a_nak_without_an_answer() -> None:
    court = waiting_for_one()
    court.forge(A, cause="receive", said=NAK_ONE)
    assert court.broken == {"S10"}


def test_s10_a_repair_with_other_bytes() -> None:
    court = waiting_for_one()
    forged = Data(run_of(A, 1, b"eno"), repair=True)
    court.forge(
        A, forged, to=B, cause="receive", said=NAK_ONE, rows=(TraceEntry("REPAIR", A, 1, 1, B),)
    )
    assert court.broken == {"S10"}


def test_s10_a_repair_again_within_a_moment() -> None:
    court = waiting_for_one()
    honest = Data(run_of(A, 1, b"one"), repair=True)
    rows = (TraceEntry("REPAIR", A, 1, 1, B),)
    court.forge(A, honest, to=B, cause="receive", said=NAK_ONE, rows=rows)
    court.now_ns += court.config.min_retry_ns // 2
    court.forge(A, honest, to=B, cause="receive", said=NAK_ONE, rows=rows)
    assert court.broken == set()
    court.now_ns += court.config.min_retry_ns // 2 - 1
    court.forge(A, honest, to=B, cause="receive", said=NAK_ONE, rows=rows)
    assert court.broken == {"S10"}


@pytest.mark.parametrize(("rule", "to"), [("always", B), ("never", None)])
def test_s10_a_repair_to_others_than_it_should_go_to(rule: str, to: Address | None) -> None:
    court = waiting_for_one(use_mcast_xmit=rule)
    honest = Data(run_of(A, 1, b"one"), repair=True)
    court.forge(
        A, honest, to=to, cause="receive", said=NAK_ONE, rows=(TraceEntry("REPAIR", A, 1, 1, to),)
    )
    assert court.broken == {"S10"}


@pytest.mark.parametrize("reason", ["repeat", "budget", "mood"])
def test_s10_a_repair_held_back_for_a_false_reason(reason: str) -> None:
    court = waiting_for_one()
    court.forge(
        A,
        cause="receive",
        said=NAK_ONE,
        rows=(TraceEntry("SUPPRESSED", A, 1, 1, B, reason=reason),),
    )
    assert court.broken == {"S10"}


def test_s10_an_honest_answer() -> None:
    court = waiting_for_one()
    asked = court.tick(B)
    court.receive(A, asked.transmits[-1].datagram)
    assert court.broken == set()


@pytest.mark.parametrize(
    ("what", "ranges"),
    [("held", ((2, 2),)), ("unknown", ((3, 3),)), ("delivered", ((0, 1),)), ("start", ())],
)
def test_s11_a_nak_for_what_is_not_missing(what: str, ranges: tuple[tuple[int, int], ...]) -> None:
    court = waiting_for_one()
    court.forge(B, Nak(A, ranges), to=A)
    assert court.broken == {"S11"}, what


def test_s11_a_nak_before_the_grace_is_over() -> None:
    court = Court(min_grace="1ms")
    court.send(A, b"one")
    court.receive(B, court.send(A, b"two"))
    court.forge(B, Nak(A, ((1, 1),)), to=A)
    assert court.broken == {"S11"}


def test_s11_a_nak_again_at_once() -> None:
    court = waiting_for_one()
    court.forge(B, Nak(A, ((1, 1),)), to=A)
    assert court.broken == set()
    court.now_ns += court.config.min_retry_ns - 1
    court.forge(B, Nak(A, ((1, 1),)), to=A)
    assert court.broken == {"S11"}


@pytest.mark.parametrize(
    "rows",
    [
        (),
        (TraceEntry("STORE", A, 1, 1, A, 2),),
        (TraceEntry("DROPPED", A, 1, 1, A, 1, reason="duplicate"),),
        (TraceEntry("DROPPED", A, 1, 1, A, 1, reason="far"),),
    ],
)
def test_s12_data_in_range_that_is_not_taken(rows: tuple[TraceEntry, ...]) -> None:
    court = Court()
    court.send(A, b"one")
    said = Datagram(GROUP, A, (Data(run_of(A, 1, b"one")),))
    court.forge(B, cause="receive", said=said, rows=rows)
    assert "S12" in court.broken


def test_s12_data_out_of_reach_of_one_who_counts() -> None:
    court = Court(capacity=2)
    said = Datagram(GROUP, A, (Data(run_of(A, 3, b"three")),))
    rows = (TraceEntry("DROPPED", A, 3, 3, A, 1, reason="far"),)
    court.forge(B, cause="receive", said=said, rows=rows)
    assert court.broken == {"S12"}


def test_s12_no_room_although_there_is() -> None:
    court = Court()
    court.send(A, b"one")
    said = Datagram(GROUP, A, (Data(run_of(A, 1, b"one")),))
    court.forge(
        B, cause="receive", said=said, rows=(TraceEntry("DROPPED", A, 1, 1, A, 1, reason="full"),)
    )
    assert "S12" in court.broken


# Hostile bytes, memory, views


def refusal(reason: str) -> tuple[TraceEntry, ...]:
    return (TraceEntry("DROPPED", reason=reason),)


def test_s13_nonsense_that_changes_the_state() -> None:
    court = heard_two()
    court.forge(B, cause="receive", before="another state", rows=refusal("checksum"))
    assert court.broken == {"S13"}


def test_s13_nonsense_that_is_dropped_without_a_reason() -> None:
    court = heard_two()
    before = court.judge.fingerprint(court.lives[B])
    court.forge(B, cause="receive", before=before, rows=refusal("checksum"))
    assert court.broken == set()
    court.forge(B, cause="receive", before=before)
    assert court.broken == {"S13"}


def test_s13_another_group_that_has_an_effect() -> None:
    court = heard_two()
    before = court.judge.fingerprint(court.lives[B])
    said = Datagram(GROUP + 1, A, (Tail(A, 2, 2, None),))
    ready = Ready(deliveries=[Delivery(A, 2, 2, run_of(A, 2, b"two"))])
    court.forge(B, cause="receive", said=said, before=before, ready=ready, rows=refusal("group"))
    assert "S13" in court.broken


def test_s14_a_table_that_grows() -> None:
    court = Court(capacity=2)
    recent = court.lives[A].member.outbound.retransmit_handler._recent
    recent += [_RecentRepair(1, 1, B, 0)] * 17
    check = next(check for check in court.judge.checkers if check.id == "S14")
    court.judge.current_member = court.lives[A]
    check.measure(court.lives[A])  # type: ignore[attr-defined]
    assert court.broken == {"S14"}


def test_s14_books_that_do_not_add_up() -> None:
    court = heard_two()
    court.lives[A].member.outbound.window.stored_bytes += 1
    check = next(check for check in court.judge.checkers if check.id == "S14")
    check.measure(court.lives[A])  # type: ignore[attr-defined]
    assert court.broken == {"S14"}


def test_s15_a_stranger_that_changes_the_state() -> None:
    court = heard_two()
    said = Datagram(GROUP, Address(9, 1), (Ack(A, 2, 1000),))
    court.forge(A, cause="receive", said=said, before="another state", rows=refusal("stranger"))
    assert court.broken == {"S15"}


def test_s15_views_that_go_back_or_have_two_lists() -> None:
    court = heard_two()
    court.judge.on_install(court.lives[A], View.of(1, A, B), None, 0)
    assert court.broken == {"S15"}
    court.judge.violations.clear()
    court.judge.on_install(court.lives[A], View.of(2, A, B), None, 0)
    assert court.broken == set()
    court.judge.on_install(court.lives[B], View.of(2, B), None, 0)
    assert court.broken == {"S15"}


def test_s18_books_that_do_not_balance() -> None:
    court = heard_two()
    court.judge.settled = True
    books = court.judge.link_counters["a", "b"] = LinkCounters()
    books.sent = books.intact = 3
    court.judge.close(0)
    assert court.broken == set()
    books.sent += 1
    court.judge.close(0)
    assert court.broken == {"S18"}


# Liveness, quiet, cost


def test_l1_a_message_that_does_not_arrive_in_time() -> None:
    court = Court(calm_ns=0)
    court.send(A, b"one")
    court.now_ns = NS_PER_S
    court.forge(B)
    assert court.broken == set()
    court.now_ns += 2
    court.forge(B)
    assert court.broken == {"L1"}


def test_l1_counts_from_the_calm_for_what_was_sent_before() -> None:
    court = Court(calm_ns=5 * NS_PER_S)
    court.send(A, b"one")
    court.now_ns = 5 * NS_PER_S
    court.forge(B)
    court.now_ns += NS_PER_S
    court.forge(B)
    assert court.broken == set()
    court.now_ns += 2
    court.forge(B)
    assert court.broken == {"L1"}


def test_l2_a_message_that_does_not_become_stable_in_time() -> None:
    court = Court(calm_ns=0, ack_threshold=5)
    court.receive(B, court.send(A, b"one"))
    court.now_ns = 2 * NS_PER_S + 2
    court.forge(B)
    assert court.broken == {"L2"}


def test_l2_a_wait_that_does_not_end() -> None:
    court = heard_two()
    court.judge.settled = True
    court.forge(A, rows=(TraceEntry("BLOCK", seqno=5),))
    court.judge.close(0)
    assert court.broken == {"L2"}


def test_l2_a_wait_that_ends_and_never_began() -> None:
    court = heard_two()
    court.forge(A, rows=(TraceEntry("UNBLOCK", seqno=5, reason="ack"),))
    assert court.broken == {"L2"}


def test_l2_a_group_that_does_not_come_to_rest() -> None:
    court = heard_two()
    court.judge.close(0)
    assert court.broken == {"L2"}


def test_l3_data_at_rest() -> None:
    court = heard_two()
    court.judge.resting = True
    court.send(A, b"three")
    assert court.broken == {"L3"}


def test_l3_a_nak_at_rest() -> None:
    court = waiting_for_one()
    court.judge.resting = True
    court.tick(B)
    assert "L3" in court.broken


def test_l4_more_repairs_than_losses() -> None:
    court = waiting_for_one()
    court.judge.settled = True
    for _ in range(3):
        court.now_ns += NS_PER_S
        court.receive(A, says(B, *NAK_ONE.frames))
    court.judge.cost = 2, 1
    court.judge.close(0)
    assert court.broken == set()
    court.judge.cost = 1, 1
    court.judge.close(0)
    assert court.broken == {"L4"}


def test_l4_naks_without_a_loss() -> None:
    court = waiting_for_one()
    court.judge.settled = True
    court.tick(B)
    court.judge.cost = 0, 0
    court.judge.close(0)
    assert court.broken == {"L4"}


def test_s16_chatter_at_rest() -> None:
    court = heard_two()
    court.judge.resting = True
    court.now_ns += 100 * NS_PER_MS
    court.forge(A, Tail(A, 2, 2, None))
    assert court.broken == {"S16"}
