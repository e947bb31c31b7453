"""The machine, behaviour by behaviour: each test names its behaviour of the NAKACK4 design."""

from random import Random

import pytest

from gapless.identity import Address, Marks, View
from gapless.protocol.events import Accepted
from gapless.wire.frames import Ack, Data, Nak, Tail
from tests.support.virtual_group import MS, SECOND, A, B, C, Group, data, frames


def numbers(first: int, last: int) -> list[bytes]:
    return [b"%d" % seqno for seqno in range(first, last + 1)]


def marks(group: Group, at: str, origin: Address) -> Marks:
    return group[at].digest()[origin]


# Windows


@pytest.mark.behaviour("N4-01", "N4-41")
def test_n4_01_the_window_neither_grows_nor_shrinks() -> None:
    """N4-01, N4-41, S6: at most ``capacity`` messages outstanding, at sender and receivers."""
    group = Group(3, capacity=4)
    group.lose_seqnos(1, 5, 9, 13, to="b")
    for seqno in range(1, 41):
        group.send("a", b"%d" % seqno)
        group.run_for(MS)
        for name in "abc":
            assert marks(group, name, A).high - marks(group, name, A).low <= 4
    group.settle()
    assert group.messages("b", "a") == group.messages("c", "a") == numbers(1, 40)
    assert group["a"].outbound.window.ceiling - group["a"].outbound.window.low == 4


@pytest.mark.behaviour("N4-02")
def test_n4_02_the_marks_of_a_sender() -> None:
    """N4-02: low = acknowledged by all, delivered = delivered locally, high = sent."""
    group = Group(3, unread_limit=4)
    group.send("a", *numbers(1, 6))
    assert marks(group, "a", A) == Marks(0, 4, 6)
    group.receive("a", B, Ack(A, 6, 1 << 20))
    assert marks(group, "a", A) == Marks(0, 4, 6)
    group.receive("a", C, Ack(A, 3, 1 << 20))
    assert marks(group, "a", A) == Marks(3, 4, 6)
    group.consumed("a", 4)
    assert marks(group, "a", A) == Marks(3, 6, 6)


@pytest.mark.behaviour("N4-03", "N4-09")
def test_n4_03_the_marks_of_a_receiver() -> None:
    """N4-03, N4-09: low = delivered, high = highest received."""
    group = Group(2)
    group.receive("b", A, data(A, 1, b"1", b"2"), data(A, 5))
    assert marks(group, "b", A) == Marks(2, 2, 5)
    group.receive("b", A, data(A, 4))
    assert marks(group, "b", A) == Marks(2, 2, 5)


@pytest.mark.behaviour("N4-05", "N4-35")
def test_n4_05_a_stream_begins_behind_its_offset() -> None:
    """N4-05, N4-35: all three marks equal the offset, and the first message is offset + 1."""
    group = Group(2, start=False)
    group.install(View.of(1, A, B), [B], digest={A: Marks(3, 7, 12)})
    assert marks(group, "b", A) == Marks(7, 7, 7)
    group.receive("b", A, data(A, 7), data(A, 8))
    assert group.numbered("b", "a") == [(8, b"8")]
    assert group["b"].counters["dropped.old"] == 1


@pytest.mark.behaviour("N4-06", "N4-07", "I-05", "P-08")
@pytest.mark.parametrize(
    ("seqno", "reason"), [(5, "old"), (6, ""), (9, ""), (10, "far"), (1 << 60, "far")]
)
def test_n4_07_the_receiver_takes_exactly_low_plus_1_to_low_plus_capacity(
    seqno: int, reason: str
) -> None:
    """N4-06, N4-07, I-05, P-08: data outside the window is a counted drop; no call blocks."""
    group = Group(2, capacity=4)
    group.receive("b", A, data(A, 1, *numbers(1, 4)))
    group.receive("b", A, data(A, 5))
    group.receive("b", A, data(A, seqno))
    assert group["b"].counters.get("dropped.old", 0) == (reason == "old")
    assert group["b"].counters.get("dropped.far", 0) == (reason == "far")
    assert marks(group, "b", A).high == (5 if reason else seqno)


@pytest.mark.behaviour("N4-08")
def test_n4_08_a_duplicate_is_not_added_again() -> None:
    """N4-08, S-02: and the first one stays."""
    group = Group(2)
    group.receive("b", A, data(A, 2, b"two"))
    group.receive("b", A, data(A, 2, b"another"))
    group.receive("b", A, data(A, 1, b"one"))
    group.receive("b", A, data(A, 1, b"another"))
    assert group.messages("b", "a") == [b"one", b"two"]
    assert group["b"].counters["dropped.duplicate"] == 1
    assert group["b"].counters["dropped.old"] == 1


@pytest.mark.behaviour("N4-10")
def test_n4_10_what_is_dropped_moves_nothing() -> None:
    """N4-10: a message without a slot must not be reported as missing."""
    group = Group(2, capacity=4)
    before = marks(group, "b", A)
    ready = group.receive("b", A, data(A, 5))
    assert (ready.deliveries, ready.transmits, marks(group, "b", A)) == ([], [], before)
    group.settle()
    assert group.frames(Nak) == []


# Receiving


@pytest.mark.behaviour("N4-18")
def test_n4_18_delivery_goes_on_until_a_gap() -> None:
    """N4-18, S-05, S-06: and low moves with every message that is handed out."""
    group = Group(2)
    group.receive("b", A, data(A, 2))
    assert group.messages("b", "a") == []
    group.receive("b", A, data(A, 1))
    group.receive("b", A, data(A, 4, b"4", b"5"))
    assert (group.messages("b", "a"), marks(group, "b", A)) == (numbers(1, 2), Marks(2, 2, 5))
    group.receive("b", A, data(A, 3))
    assert (group.messages("b", "a"), marks(group, "b", A)) == (numbers(1, 5), Marks(5, 5, 5))


@pytest.mark.behaviour("N4-19")
def test_n4_19_the_ack_goes_to_the_sender_alone() -> None:
    """N4-19, A-01: it carries the highest delivered seqno, not the highest received."""
    group = Group(3, ack_threshold=3)
    group.receive("b", A, data(A, 9))
    ready = group.receive("b", A, data(A, 1, *numbers(1, 3)))
    ((to, ack),) = frames(ready)
    assert (to, ack.origin, ack.seqno) == (A, A, 3)  # type: ignore[union-attr]


@pytest.mark.behaviour("N4-20", "N4-21")
def test_n4_20_an_ack_waits_for_company_but_not_for_ever() -> None:
    """N4-20, N4-21, A-01, U3-04: after ``ack_threshold`` messages, else after ``ack_delay``."""
    group = Group(2, ack_threshold=10, ack_delay="8ms")
    start_ns = group.now_ns
    for seqno in range(1, 6):
        group.receive("b", A, data(A, seqno))
    assert group.frames(Ack) == []
    group.run_until(start_ns + 8 * MS - 1)
    assert group.frames(Ack) == []
    group.run_until(start_ns + 8 * MS)
    assert [ack.seqno for ack in group.frames(Ack)] == [5]
    group.receive("b", A, data(A, 6, *numbers(6, 15)))
    assert [ack.seqno for ack in group.frames(Ack)] == [5, 15]


def test_a_quarter_of_the_capacity_is_the_usual_threshold() -> None:
    """A-01."""
    group = Group(2, capacity=8)
    group.receive("b", A, data(A, 1))
    assert group.frames(Ack) == []
    group.receive("b", A, data(A, 2))
    assert [ack.seqno for ack in group.frames(Ack)] == [2]


@pytest.mark.behaviour("P-12")
def test_the_ack_delay_has_jitter_below_it() -> None:
    """P-12: the acks of a large group are spread, none later than ``ack_delay``."""
    delays = set()
    for seed in range(20):
        group = Group(2, seed=seed, ack_delay="10ms", jitter_percent=25)
        start_ns = group.now_ns
        ready = group.receive("b", A, data(A, 1))
        assert ready.deadline_ns is not None
        delays.add(ready.deadline_ns - start_ns)
    assert len(delays) > 10
    assert all(7.5 * MS <= delay_ns <= 10 * MS for delay_ns in delays)


@pytest.mark.behaviour("N4-22")
def test_n4_22_nothing_new_no_ack() -> None:
    """N4-22: a gap, or a message that is not next, causes no ack."""
    group = Group(2)
    group.receive("b", A, data(A, 3))
    group.run_for(5 * MS)
    assert group.frames(Ack) == []
    assert "ack" not in group["b"].armed_timers()


@pytest.mark.behaviour("N4-22", "P-04")
def test_n4_22_a_duplicate_is_acknowledged_again() -> None:
    """N4-22, P-04, C-08: that it was sent again may mean that the ack was lost."""
    group = Group(2, ack_threshold=1)
    group.receive("b", A, data(A, 1))
    group.receive("b", A, data(A, 1))
    group.run_for(20 * MS)
    assert [ack.seqno for ack in group.frames(Ack)] == [1, 1]


# Acks


@pytest.mark.behaviour("N4-24", "N4-25", "I-06")
def test_n4_25_one_silent_member_keeps_everything() -> None:
    """N4-24, N4-25, I-06: purged is what all have acknowledged, the acknowledged one included."""
    group = Group(3)
    group.send("a", *numbers(1, 9))
    group.receive("a", B, Ack(A, 9, 1 << 20))
    assert marks(group, "a", A).low == 0
    group.receive("a", C, Ack(A, 4, 1 << 20))
    assert (marks(group, "a", A).low, group["a"].outbound.window.stored) == (4, 5)
    group.receive("a", C, Ack(A, 2, 1 << 20))
    assert marks(group, "a", A).low == 4


@pytest.mark.behaviour("N4-26", "I-07")
def test_n4_26_own_delivery_is_an_ack() -> None:
    """N4-26, I-07: alone in the view, nothing else is needed; with others, it is one of them."""
    alone = Group(1, capacity=2)
    alone.send("a", *numbers(1, 9))
    assert (alone.messages("a", "a"), marks(alone, "a", A)) == (numbers(1, 9), Marks(9, 9, 9))
    assert alone["a"].deadline_ns is None
    slow = Group(2, unread_limit=1)
    slow.send("a", b"1", b"2")
    slow.receive("a", B, Ack(A, 2, 1 << 20))
    assert marks(slow, "a", A) == Marks(1, 1, 2)


@pytest.mark.behaviour("N4-27", "P-03")
def test_n4_27_an_ack_of_a_departed_member_counts_for_nothing() -> None:
    """N4-27, P-03: neither does it pin the minimum, nor does it raise it."""
    group = Group(3)
    group.send("a", *numbers(1, 5))
    group.install(View.of(2, A, B), [A])
    group.receive("a", C, Ack(A, 1, 1 << 20))
    group.receive("a", B, Ack(A, 5, 1 << 20))
    assert marks(group, "a", A).low == 5
    assert group["a"].counters["dropped.stranger"] == 1


@pytest.mark.behaviour("N4-28")
def test_n4_28_an_ack_beyond_high_changes_nothing() -> None:
    """N4-28, rule 8: not even the advertised buffer is believed."""
    group = Group(2)
    group.send("a", b"1")
    before = group["a"].snapshot(), group["a"].deadline_ns
    group.receive("a", B, Ack(A, 2, 5))
    assert (group["a"].snapshot(), group["a"].deadline_ns) == before
    assert group["a"].counters["dropped.ack beyond high"] == 1
    assert group["a"].outbound.flow_control._buffers == {}


@pytest.mark.behaviour("N4-29", "P-03")
def test_n4_29_a_departure_lets_waiting_sends_go_on() -> None:
    """N4-29, A-04, P-03: the view purges what the others have; waiting sends go out in it."""
    group = Group(3, capacity=4)
    group.lose(to="c")
    group.send("a", *numbers(1, 4))
    waiting = group.send("a", b"5", b"6").ticket
    group.run_for(SECOND)
    assert [event.ticket for event in group.events_of("a", Accepted)] == [1]
    group.install(View.of(2, A, B), [A, B])
    assert group.events_of("a", Accepted)[1] == Accepted(waiting, 5, 6)
    (run,) = [frame.run for frame in group.frames(Data, "a") if frame.run.first == 5]
    assert run.view == 2
    del group.members[C]
    group.settle()
    assert group.messages("b", "a") == numbers(1, 6)


@pytest.mark.behaviour("N4-30")
def test_n4_30_low_never_goes_back() -> None:
    """N4-30, S7: a joiner starts at the present high, so the minimum stays."""
    group = Group(3, start=False)
    group.install(View.of(1, A, B), [A, B], digest={A: Marks(0, 0, 0), B: Marks(0, 0, 0)})
    group.send("a", *numbers(1, 5))
    group.settle()
    group.install(View.of(2, A, B, C))
    assert marks(group, "a", A) == Marks(5, 5, 5)
    assert group["a"].outbound.acks[C] == 5
    group.settle()
    assert marks(group, "c", A) == Marks(5, 5, 5)


# Retransmission


@pytest.mark.behaviour("N4-31")
def test_n4_31_a_gap_is_asked_for_at_its_sender() -> None:
    """N4-31, R-05, S11: exactly the missing seqnos, after the grace, to the origin alone."""
    group = Group(3)
    group.lose_seqnos(2, 3, 5, to="b")
    for seqno in range(1, 8):
        group.send("a", b"%d" % seqno)
    group.run_for(MS)
    assert group.frames(Nak) == []
    group.settle()
    naks = [sent for sent in group.sent if isinstance(sent.frame, Nak)]
    assert {(sent.by, sent.to) for sent in naks} == {(B, A)}
    assert [asked for nak in group.frames(Nak) for asked in nak.ranges] == [(2, 3), (5, 5)]
    assert group.messages("b", "a") == numbers(1, 7)
    assert group["b"].counters["naks.seqnos"] == 3


@pytest.mark.behaviour("N4-15")
def test_n4_15_reordering_is_not_loss() -> None:
    """N4-15, S-37, L4: data that arrives within the grace is not requested."""
    group = Group(2)
    for seqno in (1, 3, 4, 2, 5):
        group.receive("b", A, data(A, seqno))
    group.settle()
    assert group.frames(Nak) == []
    assert group.messages("b", "a") == numbers(1, 5)


@pytest.mark.behaviour("N4-13", "N7-07")
def test_n4_13_a_nak_that_comes_at_once_can_be_served() -> None:
    """N4-13, N7-07: transmitted messages are stored."""
    group = Group(2)
    group.send("a", b"1")
    ready = group.receive("a", B, Nak(A, ((1, 1),)))
    assert [frame.run.messages() for _, frame in frames(ready) if isinstance(frame, Data)] == [
        [b"1"]
    ]


def test_s52_the_last_messages_are_lost() -> None:
    """S-52, R-09, R-11: the tail is announced, and the group heals without new traffic."""
    group = Group(3)
    group.send("a", *numbers(1, 5))
    group.run_for(5 * MS)
    group.lose_seqnos(*range(6, 11))
    group.send("a", *numbers(6, 10))
    group.settle(SECOND)
    assert group.messages("b", "a") == group.messages("c", "a") == numbers(1, 10)


def test_the_only_message_is_lost() -> None:
    """R-09, S-96: first and last at once."""
    group = Group(2)
    group.lose_seqnos(1)
    group.send("a", b"1")
    group.settle(SECOND)
    assert group.messages("b", "a") == [b"1"]


@pytest.mark.behaviour("P-04", "N4-22")
def test_p04_a_lost_ack_is_repeated_because_of_the_tail() -> None:
    """P-04, R-10, N4-22: an idle sender with a full window gets a lost ack again."""
    group = Group(2, capacity=3)
    group.lose(Ack, times=2)
    group.send("a", *numbers(1, 3))
    group.send("a", b"4")
    group.settle(SECOND)
    assert group.messages("b", "a") == numbers(1, 4)
    assert len(group.frames(Tail, "a")) >= 1
    assert not group.frames(Nak), "nothing was missing"
    assert not group.data("a", repair=True)


def test_the_tail_goes_to_the_one_that_is_behind_or_to_all() -> None:
    group = Group(3)
    group.lose(Ack, by="c")
    group.send("a", b"1")
    group.run_for(100 * MS)
    assert {sent.to for sent in group.sent if isinstance(sent.frame, Tail)} == {C}
    group.lose(Ack)
    group.send("a", b"2")
    group.run_for(100 * MS)
    assert {sent.to for sent in group.sent if isinstance(sent.frame, Tail)} == {C, None}


@pytest.mark.behaviour("P-04")
def test_the_tail_backs_off_up_to_the_interval_and_starts_anew_with_data() -> None:
    """P-04."""
    group = Group(2, tail_delay="20ms", xmit_interval="100ms")
    group.lose(Ack)

    def pauses() -> list[int]:
        start_ns, before = group.now_ns, len(group.sent)
        group.send("a", b"x")
        group.run_for(500 * MS)
        times = [
            (sent.at_ns - start_ns) // MS
            for sent in group.sent[before:]
            if isinstance(sent.frame, Tail)
        ]
        return [after - before for before, after in zip([0, *times], times, strict=False)]

    assert pauses() == [20, 40, 80, 100, 100, 100]
    assert pauses() == [20, 40, 80, 100, 100, 100]


@pytest.mark.parametrize("request_size", [0, 7, 1024])
def test_s51_every_other_message_is_lost(request_size: int) -> None:
    """S-51, S-18, R-04: naks are limited in seqnos and fit a frame; all is delivered in order."""
    group = Group(2, capacity=2000, max_frame_bytes=256, max_xmit_req_size=request_size)
    group.lose_seqnos(*range(2, 601, 2))
    for seqno in range(1, 601):
        group.send("a", b"%d" % seqno)
    group.settle()
    assert group.messages("b", "a") == numbers(1, 600)
    named = [sum(last - first + 1 for first, last in nak.ranges) for nak in group.frames(Nak)]
    assert max(named) <= (request_size or 16)
    assert sum(named) <= 310, "each of them is asked for once, but for a few"


@pytest.mark.behaviour("P-11", "N4-31")
def test_a_lost_nak_and_a_lost_repair_are_repeated() -> None:
    """P-11, N4-31."""
    group = Group(2)
    group.lose_seqnos(2)
    group.lose(Nak, times=2)
    group.lose_seqnos(2, repairs=True)
    for seqno in range(1, 4):
        group.send("a", b"%d" % seqno)
    group.run_for(200 * MS)
    assert len(group.frames(Nak)) >= 3
    group.rules.clear()
    group.settle(SECOND)
    assert group.messages("b", "a") == numbers(1, 3)


def test_a_fresh_gap_does_not_wait_for_one_that_backs_off() -> None:
    """Design rule 6: the older gap has backed off, the fresh one is requested after its grace.

    The repair of the fresh one proves that what was asked for before it is lost: that is asked
    for again then.
    """
    group = Group(2)
    group.lose_seqnos(1, repairs=True)
    for seqno in range(1, 4):
        group.send("a", b"%d" % seqno)
    group.run_for(3 * SECOND + 20 * MS)
    group.lose_seqnos(4)
    start_ns = group.now_ns
    group.send("a", b"4")
    group.send("a", b"5")
    group.run_for(20 * MS)
    asked = [
        sent.frame.ranges
        for sent in group.sent
        if isinstance(sent.frame, Nak) and sent.at_ns >= start_ns
    ]
    assert asked == [((4, 4),), ((1, 1),), ((1, 1),)]


def test_a_duplicate_teaches_nothing_about_the_round_trip() -> None:
    """A duplicate may arrive at any time; only the repair of a loss is an RTT sample."""
    group = Group(2)
    group.receive("b", A, data(A, 1), data(A, 3), data(A, 6))
    group.run_for(8 * MS)
    assert group.frames(Nak, "b") == [Nak(A, ((2, 2), (4, 5)))]
    trip = group["b"].inbound[A].loss_detector.rtt
    first = data(A, 2, repair=True)
    group.receive("b", A, first)
    learnt = (trip.smoothed_ns, trip.deviation_ns, trip.max_lateness_ns)
    assert trip.smoothed_ns < group.config.initial_rtt_ns
    group.run_for(5 * MS)
    group.receive("b", A, first)
    group.receive("b", A, data(A, 2))
    assert (trip.smoothed_ns, trip.deviation_ns, trip.max_lateness_ns) == learnt


# Whole groups


def shuffling(group: Group, rng: Random, loss: float, copies: int) -> None:
    """Lose frames, and send ``copies`` more of each datagram, which arrive within 30 ms."""
    group.rule(lambda _sender, _to, _frame: rng.random() < loss)
    group.copies_ns = lambda delay_ns: (
        delay_ns,
        *(delay_ns + rng.randrange(30 * MS) for _ in range(copies)),
    )


@pytest.mark.behaviour("N4-37")
@pytest.mark.parametrize(
    ("loss", "copies", "capacity"),
    [(0.0, 0, 64), (0.1, 0, 64), (0.0, 5, 16), (0.3, 1, 5), (0.1, 2, 1)],
)
def test_s34_all_members_deliver_all_streams_in_order(
    loss: float, copies: int, capacity: int
) -> None:
    """S-34, S-35, S-37, S-38, S-39, N4-37: loss, duplicates, reordering, with three senders."""
    group = Group(3, capacity=capacity)
    shuffling(group, Random(5), loss, copies)
    for seqno in range(1, 61):
        for name in "abc":
            group.send(name, b"%s %d" % (name.encode(), seqno))
        group.run_for(2 * MS)
    group.settle()
    for origin in "abc":
        expected = [b"%s %d" % (origin.encode(), seqno) for seqno in range(1, 61)]
        for name in "abc":
            assert group.messages(name, origin) == expected


@pytest.mark.behaviour("N4-15")
def test_l4_without_faults_there_are_neither_naks_nor_repairs() -> None:
    """L4, N4-15."""
    group = Group(3, capacity=16)
    for seqno in range(1, 101):
        for name in "abc":
            group.send(name, b"%d" % seqno)
        group.run_for(MS)
    group.settle()
    assert group.frames(Nak) == []
    assert all(not group.data(name, repair=True) for name in "abc")


def test_s16_a_settled_group_is_silent() -> None:
    """S16, L3: no timer is armed, so nothing will ever be sent."""
    group = Group(3)
    group.lose_seqnos(2, to="b")
    for name in "abc":
        group.send(name, *numbers(1, 5), timeout_ns=SECOND)
    group.settle()
    assert [group[name].armed_timers() for name in "abc"] == [()] * 3
    sent = len(group.sent)
    group.run_for(60 * SECOND)
    assert len(group.sent) == sent


def test_s17_the_same_inputs_give_the_same_frames() -> None:
    """S17: jitter comes from the seed alone."""

    def story(seed: int) -> list[object]:
        group = Group(3, seed=seed, jitter_percent=50, capacity=8)
        group.lose_seqnos(3, 4, 9, to="b")
        group.lose_seqnos(4, 7)
        group.lose(Ack, by="c", times=3)
        for seqno in range(1, 20):
            group.send("a", b"%d" % seqno)
            group.send("c", b"%d" % seqno)
        group.settle()
        return list(group.sent)

    assert story(1) == story(1)
    assert story(1) != story(2)
