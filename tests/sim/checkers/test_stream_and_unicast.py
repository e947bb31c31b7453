"""Every check passes for an honest exchange, and fails on a forged step that violates it."""

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
from tests.support.oracle_pair import GROUP, A, B, OraclePair, datagram_of


def run_of(origin: Address, first: int, *messages: bytes) -> Run:
    return Run.of(origin, first, messages, view=1)


def heard_two() -> OraclePair:
    """Return a case in which ``b`` has acknowledged two messages of ``a``."""
    case = OraclePair(ack_threshold=1)
    ready = case.receive(B, case.send(A, b"one", b"two"))
    case.receive(A, ready.transmits[0].datagram)
    return case


def test_an_honest_exchange_breaks_nothing() -> None:
    case = heard_two()
    assert case.models[A].member.outbound.window.low == 2
    assert case.broken == set()


# Deliveries


def test_s1_a_delivery_of_what_was_never_sent() -> None:
    case = heard_two()
    case.forge(B, ready=Ready(deliveries=[Delivery(A, 3, 3, run_of(A, 3, b"three"))]))
    assert "S1" in case.broken


def test_s1_a_first_transmission_of_what_the_application_never_gave() -> None:
    case = OraclePair()
    case.forge(A, Data(run_of(A, 1, b"forged")))
    assert case.broken == {"S1"}


def test_s1_a_first_transmission_with_other_bytes_than_were_given() -> None:
    case = OraclePair()
    model = case.models[A]
    case.oracle.on_send(model, [b"given"], Ready(ticket=1))
    case.forge(A, Data(run_of(A, 1, b"forged")))
    assert case.broken == {"S1"}


def test_s1_an_answer_with_numbers_that_were_not_taken() -> None:
    case = heard_two()
    case.forge(A, ready=Ready(events=[Accepted(1, 1, 3)]))
    assert case.broken == {"S1"}


def test_s2_a_message_delivered_twice() -> None:
    case = heard_two()
    case.forge(B, ready=Ready(deliveries=[Delivery(A, 2, 2, run_of(A, 2, b"two"))]))
    assert case.broken == {"S2"}


def test_s3_a_message_left_out() -> None:
    case = OraclePair()
    case.send(A, b"one", b"two")
    case.forge(B, ready=Ready(deliveries=[Delivery(A, 2, 2, run_of(A, 2, b"two"))]))
    assert case.broken == {"S3"}


def test_s3_a_start_that_nobody_told() -> None:
    case = OraclePair()
    case.send(A, b"one", b"two")
    case.forge(B, ready=Ready(events=[Started(A, 1)]))
    assert "S3" in case.broken


def test_s3_a_loss_that_is_not_gone() -> None:
    case = heard_two()
    case.forge(B, ready=Ready(events=[Lost(A, 3, 4)]))
    assert "S3" in case.broken


def test_s4_other_bytes() -> None:
    case = OraclePair()
    case.send(A, b"one")
    case.forge(B, ready=Ready(deliveries=[Delivery(A, 1, 1, run_of(A, 1, b"eno"))]))
    assert case.broken == {"S4"}


def test_s4_the_same_bytes_cut_at_another_place() -> None:
    case = OraclePair()
    case.send(A, b"one", b"two")
    case.forge(B, ready=Ready(deliveries=[Delivery(A, 1, 2, run_of(A, 1, b"on", b"etwo"))]))
    assert case.broken == {"S4"}


# Windows and marks


def test_s6_more_outstanding_than_the_capacity() -> None:
    case = OraclePair(capacity=2)
    case.models[A].member.outbound.window.high = 3
    case.forge(A)
    assert "S6" in case.broken


def test_s6_something_stored_that_never_came() -> None:
    case = heard_two()
    window = case.models[B].member.inbound[A].window
    assert window is not None
    window.stored += 1
    case.send(A, b"three")
    case.receive(B, case.send(A, b"four"))
    assert case.broken == {"S6"}


def test_s7_a_mark_that_goes_back() -> None:
    case = heard_two()
    case.models[A].member.outbound.window.low = 1
    case.forge(A)
    assert "S7" in case.broken


def test_s7_an_ack_that_goes_back() -> None:
    case = heard_two()
    case.models[A].stream.acks[B] = 2
    case.models[A].member.outbound.acks._acks[B] = 1
    case.forge(A, cause="receive", datagram=Datagram(GROUP, B, (Ack(A, 0, 1000),)))
    assert case.broken == {"S7"}


def test_s7_a_trace_that_says_otherwise() -> None:
    case = heard_two()
    case.forge(B, rows=(TraceEntry("STATE", A, low=2, delivered=2, high=3),))
    assert case.broken == {"S7"}


def test_s7_a_trace_that_is_silent() -> None:
    case = heard_two()
    case.oracle.steps = SAMPLE_STEPS - 1
    case.forge(B, Ack(A, 2, 1000), to=A)
    assert case.broken == {"S7"}


def test_s7_a_mark_that_moves_when_nobody_looks() -> None:
    case = heard_two()
    case.oracle.settled = True
    window = case.models[B].member.inbound[A].window
    assert window is not None
    window.low = window.delivered = window.high = 3
    case.oracle.close(0)
    assert case.broken == {"S7"}


# Acks and purging


def test_s8_an_ack_for_what_was_not_delivered() -> None:
    case = heard_two()
    case.forge(B, Ack(A, 3, 1000), to=A)
    assert case.broken == {"S8"}


def test_s8_an_ack_that_comes_in_and_is_not_true() -> None:
    case = OraclePair()
    case.send(A, b"one", b"two")
    case.receive(A, datagram_of(B, Ack(A, 2, 1000)))
    assert "S8" in case.broken


def test_s9_a_purge_without_acks() -> None:
    case = OraclePair()
    case.send(A, b"one")
    window = case.models[A].member.outbound.window
    window.purge(1)
    case.forge(A, rows=(TraceEntry("PURGE", A, 1, 1),))
    assert case.broken == {"S9"}


def test_s9_an_announcement_beyond_the_window() -> None:
    case = heard_two()
    case.forge(A, Tail(A, 2, 3, None))
    case.forge(A, Gone(A, 3), to=B)
    assert [violation.check for violation in case.oracle.violations] == ["S9", "S9"]


def test_s9_a_loss_at_one_who_counts() -> None:
    case = heard_two()
    case.models[B].inbound[A].gone = 3
    case.forge(B, ready=Ready(events=[Lost(A, 3, 3)]))
    assert "S9" in case.broken


# Repairs, naks, acceptance


def waiting_for_one(use_mcast_xmit: str = "auto") -> OraclePair:
    """Return a pair in which ``a`` has sent two messages, and ``b`` has only the second."""
    case = OraclePair(use_mcast_xmit=use_mcast_xmit)
    case.send(A, b"one")
    case.receive(B, case.send(A, b"two"))
    case.now_ns += NS_PER_S
    return case


NAK_ONE = Datagram(GROUP, B, (Nak(A, ((1, 1),)),))


def test_s10_a_repair_that_nobody_asked_for() -> None:
    case = waiting_for_one()
    case.forge(
        A, Data(run_of(A, 1, b"one"), repair=True), to=B, rows=(TraceEntry("REPAIR", A, 1, 1, B),)
    )
    assert "S10" in case.broken


def test_s10_a_nak_without_an_answer() -> None:
    case = waiting_for_one()
    case.forge(A, cause="receive", datagram=NAK_ONE)
    assert case.broken == {"S10"}


def test_s10_a_repair_with_other_bytes() -> None:
    case = waiting_for_one()
    forged = Data(run_of(A, 1, b"eno"), repair=True)
    case.forge(
        A, forged, to=B, cause="receive", datagram=NAK_ONE, rows=(TraceEntry("REPAIR", A, 1, 1, B),)
    )
    assert case.broken == {"S10"}


def test_s10_a_repair_again_within_a_moment() -> None:
    case = waiting_for_one()
    honest = Data(run_of(A, 1, b"one"), repair=True)
    rows = (TraceEntry("REPAIR", A, 1, 1, B),)
    case.forge(A, honest, to=B, cause="receive", datagram=NAK_ONE, rows=rows)
    case.now_ns += case.config.min_retry_ns // 2
    case.forge(A, honest, to=B, cause="receive", datagram=NAK_ONE, rows=rows)
    assert case.broken == set()
    case.now_ns += case.config.min_retry_ns // 2 - 1
    case.forge(A, honest, to=B, cause="receive", datagram=NAK_ONE, rows=rows)
    assert case.broken == {"S10"}


@pytest.mark.parametrize(("rule", "to"), [("always", B), ("never", None)])
def test_s10_a_repair_to_others_than_it_should_go_to(rule: str, to: Address | None) -> None:
    case = waiting_for_one(use_mcast_xmit=rule)
    honest = Data(run_of(A, 1, b"one"), repair=True)
    case.forge(
        A,
        honest,
        to=to,
        cause="receive",
        datagram=NAK_ONE,
        rows=(TraceEntry("REPAIR", A, 1, 1, to),),
    )
    assert case.broken == {"S10"}


@pytest.mark.parametrize("reason", ["repeat", "budget", "mood"])
def test_s10_a_repair_held_back_for_a_false_reason(reason: str) -> None:
    case = waiting_for_one()
    case.forge(
        A,
        cause="receive",
        datagram=NAK_ONE,
        rows=(TraceEntry("SUPPRESSED", A, 1, 1, B, reason=reason),),
    )
    assert case.broken == {"S10"}


def test_s10_an_honest_answer() -> None:
    case = waiting_for_one()
    asked = case.tick(B)
    case.receive(A, asked.transmits[-1].datagram)
    assert case.broken == set()


@pytest.mark.parametrize(
    ("what", "ranges"),
    [("held", ((2, 2),)), ("unknown", ((3, 3),)), ("delivered", ((0, 1),)), ("start", ())],
)
def test_s11_a_nak_for_what_is_not_missing(what: str, ranges: tuple[tuple[int, int], ...]) -> None:
    case = waiting_for_one()
    case.forge(B, Nak(A, ranges), to=A)
    assert case.broken == {"S11"}, what


def test_s11_a_nak_before_the_grace_is_over() -> None:
    case = OraclePair(min_grace="1ms")
    case.send(A, b"one")
    case.receive(B, case.send(A, b"two"))
    case.forge(B, Nak(A, ((1, 1),)), to=A)
    assert case.broken == {"S11"}


def test_s11_a_nak_again_at_once() -> None:
    case = waiting_for_one()
    case.forge(B, Nak(A, ((1, 1),)), to=A)
    assert case.broken == set()
    case.now_ns += case.config.min_retry_ns - 1
    case.forge(B, Nak(A, ((1, 1),)), to=A)
    assert case.broken == {"S11"}


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
    case = OraclePair()
    case.send(A, b"one")
    datagram = Datagram(GROUP, A, (Data(run_of(A, 1, b"one")),))
    case.forge(B, cause="receive", datagram=datagram, rows=rows)
    assert "S12" in case.broken


def test_s12_data_out_of_reach_of_one_who_counts() -> None:
    case = OraclePair(capacity=2)
    datagram = Datagram(GROUP, A, (Data(run_of(A, 3, b"three")),))
    rows = (TraceEntry("DROPPED", A, 3, 3, A, 1, reason="far"),)
    case.forge(B, cause="receive", datagram=datagram, rows=rows)
    assert case.broken == {"S12"}


def test_s12_no_room_although_there_is() -> None:
    case = OraclePair()
    case.send(A, b"one")
    datagram = Datagram(GROUP, A, (Data(run_of(A, 1, b"one")),))
    case.forge(
        B,
        cause="receive",
        datagram=datagram,
        rows=(TraceEntry("DROPPED", A, 1, 1, A, 1, reason="full"),),
    )
    assert "S12" in case.broken


# Hostile bytes, memory, views


def refusal(reason: str) -> tuple[TraceEntry, ...]:
    return (TraceEntry("DROPPED", reason=reason),)


def test_s13_nonsense_that_changes_the_state() -> None:
    case = heard_two()
    case.forge(B, cause="receive", before="another state", rows=refusal("checksum"))
    assert case.broken == {"S13"}


def test_s13_nonsense_that_is_dropped_without_a_reason() -> None:
    case = heard_two()
    before = case.oracle.fingerprint(case.models[B])
    case.forge(B, cause="receive", before=before, rows=refusal("checksum"))
    assert case.broken == set()
    case.forge(B, cause="receive", before=before)
    assert case.broken == {"S13"}


def test_s13_another_group_that_has_an_effect() -> None:
    case = heard_two()
    before = case.oracle.fingerprint(case.models[B])
    datagram = Datagram(GROUP + 1, A, (Tail(A, 2, 2, None),))
    ready = Ready(deliveries=[Delivery(A, 2, 2, run_of(A, 2, b"two"))])
    case.forge(
        B, cause="receive", datagram=datagram, before=before, ready=ready, rows=refusal("group")
    )
    assert "S13" in case.broken


def test_s14_a_table_that_grows() -> None:
    case = OraclePair(capacity=2)
    recent = case.models[A].member.outbound.retransmit_handler._recent
    recent += [_RecentRepair(1, 1, B, 0)] * 17
    check = next(check for check in case.oracle.checkers if check.id == "S14")
    case.oracle.current_member = case.models[A]
    check.measure(case.models[A])  # type: ignore[attr-defined]
    assert case.broken == {"S14"}


def test_s14_books_that_do_not_add_up() -> None:
    case = heard_two()
    case.models[A].member.outbound.window.stored_bytes += 1
    check = next(check for check in case.oracle.checkers if check.id == "S14")
    check.measure(case.models[A])  # type: ignore[attr-defined]
    assert case.broken == {"S14"}


def test_s15_a_stranger_that_changes_the_state() -> None:
    case = heard_two()
    datagram = Datagram(GROUP, Address(9, 1), (Ack(A, 2, 1000),))
    case.forge(
        A, cause="receive", datagram=datagram, before="another state", rows=refusal("stranger")
    )
    assert case.broken == {"S15"}


def test_s15_views_that_go_back_or_have_two_lists() -> None:
    case = heard_two()
    case.oracle.on_install(case.models[A], View.of(1, A, B), None, 0)
    assert case.broken == {"S15"}
    case.oracle.violations.clear()
    case.oracle.on_install(case.models[A], View.of(2, A, B), None, 0)
    assert case.broken == set()
    case.oracle.on_install(case.models[B], View.of(2, B), None, 0)
    assert case.broken == {"S15"}


def test_s18_books_that_do_not_balance() -> None:
    case = heard_two()
    case.oracle.settled = True
    books = case.oracle.link_counters["a", "b"] = LinkCounters()
    books.sent = books.intact = 3
    case.oracle.close(0)
    assert case.broken == set()
    books.sent += 1
    case.oracle.close(0)
    assert case.broken == {"S18"}


# Liveness, quiet, cost


def test_l1_a_message_that_does_not_arrive_in_time() -> None:
    case = OraclePair(calm_ns=0)
    case.send(A, b"one")
    case.now_ns = NS_PER_S
    case.forge(B)
    assert case.broken == set()
    case.now_ns += 2
    case.forge(B)
    assert case.broken == {"L1"}


def test_l1_counts_from_the_calm_for_what_was_sent_before() -> None:
    case = OraclePair(calm_ns=5 * NS_PER_S)
    case.send(A, b"one")
    case.now_ns = 5 * NS_PER_S
    case.forge(B)
    case.now_ns += NS_PER_S
    case.forge(B)
    assert case.broken == set()
    case.now_ns += 2
    case.forge(B)
    assert case.broken == {"L1"}


def test_l2_a_message_that_does_not_become_stable_in_time() -> None:
    case = OraclePair(calm_ns=0, ack_threshold=5)
    case.receive(B, case.send(A, b"one"))
    case.now_ns = 2 * NS_PER_S + 2
    case.forge(B)
    assert case.broken == {"L2"}


def test_l2_a_wait_that_does_not_end() -> None:
    case = heard_two()
    case.oracle.settled = True
    case.forge(A, rows=(TraceEntry("BLOCK", seqno=5),))
    case.oracle.close(0)
    assert case.broken == {"L2"}


def test_l2_a_wait_that_ends_and_never_began() -> None:
    case = heard_two()
    case.forge(A, rows=(TraceEntry("UNBLOCK", seqno=5, reason="ack"),))
    assert case.broken == {"L2"}


def test_l2_a_group_that_does_not_come_to_rest() -> None:
    case = heard_two()
    case.oracle.close(0)
    assert case.broken == {"L2"}


def test_l3_data_at_rest() -> None:
    case = heard_two()
    case.oracle.resting = True
    case.send(A, b"three")
    assert case.broken == {"L3"}


def test_l3_a_nak_at_rest() -> None:
    case = waiting_for_one()
    case.oracle.resting = True
    case.tick(B)
    assert "L3" in case.broken


def test_l4_more_repairs_than_losses() -> None:
    case = waiting_for_one()
    case.oracle.settled = True
    for _ in range(3):
        case.now_ns += NS_PER_S
        case.receive(A, datagram_of(B, *NAK_ONE.frames))
    case.oracle.cost = 2, 1
    case.oracle.close(0)
    assert case.broken == set()
    case.oracle.cost = 1, 1
    case.oracle.close(0)
    assert case.broken == {"L4"}


def test_l4_naks_without_a_loss() -> None:
    case = waiting_for_one()
    case.oracle.settled = True
    case.tick(B)
    case.oracle.cost = 0, 0
    case.oracle.close(0)
    assert case.broken == {"L4"}


def test_s16_chatter_at_rest() -> None:
    case = heard_two()
    case.oracle.resting = True
    case.now_ns += 100 * NS_PER_MS
    case.forge(A, Tail(A, 2, 2, None))
    assert case.broken == {"S16"}
