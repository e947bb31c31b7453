"""Flow control: slow applications, bytes and buffers, slow receivers, no loopback."""

from random import Random

import pytest

from gapless.identity import Marks, View
from gapless.protocol.events import Accepted, SlowReceivers
from gapless.run import Run
from gapless.wire.frames import Ack, Data, Nak, Tail
from tests.support.virtual_group import MS, SECOND, A, B, C, D, Group, data, lines_of


def numbers(first: int, last: int) -> list[bytes]:
    return [b"%d" % seqno for seqno in range(first, last + 1)]


def consume_all(group: Group, *names: str, at_a_time: int = 1) -> dict[str, int]:
    """Let applications consume their deliveries, bit by bit, until no more arrive."""
    used = dict.fromkeys(names, 0)
    for _ in range(10_000):
        group.run_for(MS)
        for name in names:
            handed = sum(delivery.message_count for delivery in group.deliveries[group[name].me])
            if take := min(at_a_time, handed - used[name]):
                used[name] += take
                group.consumed(name, take)
                break
        else:
            group.settle()
            return used
    raise AssertionError("it never ends")


# The application


@pytest.mark.behaviour("N4-39")
def test_m16_a_slow_application_slows_the_sender() -> None:
    """M-16, S-61, N4-39: its window fills, acks stop, the sender waits, and nothing is lost."""
    group = Group(2, capacity=4, unread_limit=3)
    group.step(A, lambda m: m.send(numbers(1, 30), group.now_ns, loopback=False))
    group.run_for(2 * SECOND)
    assert group.messages("b", "a") == numbers(1, 3)
    assert group["b"].digest()[A] == Marks(3, 3, 7)
    assert group["a"].digest()[A].high == 7
    assert group.events_of("a", Accepted) == []
    consume_all(group, "b")
    assert group.messages("b", "a") == numbers(1, 30)
    assert group.events_of("a", Accepted) == [Accepted(1, 1, 30)]
    assert (
        group["b"].counters.get("dropped.far", 0) == group["b"].counters.get("dropped.full", 0) == 0
    ), "S12"


def test_m16_room_for_less_than_a_run() -> None:
    """One message at a time out of one run; each is there once, in order."""
    group = Group(2, unread_limit=1)
    group.receive("b", A, data(A, 1, *numbers(1, 20)))
    for seqno in range(1, 21):
        assert group.numbered("b", "a")[-1] == (seqno, b"%d" % seqno)
        assert len(group.messages("b", "a")) == seqno
        group.consumed("b", 1)
    assert group.messages("b", "a") == numbers(1, 20)


def test_m16_a_gap_does_not_use_up_room() -> None:
    group = Group(2, unread_limit=2)
    group.receive("b", A, data(A, 2), data(A, 3))
    group.receive("b", A, data(A, 1))
    assert group.messages("b", "a") == numbers(1, 2)
    group.consumed("b", 1)
    assert group.messages("b", "a") == numbers(1, 3)


def test_m16_a_message_in_pieces_is_one_message_to_the_application() -> None:
    group = Group(2, capacity=4, unread_limit=1, max_frame_bytes=256)
    group.step(A, lambda m: m.send([b"x" * 3000, b"y" * 3000], group.now_ns, loopback=False))
    group.run_for(2 * SECOND)
    assert group.messages("b", "a") == [b"x" * 3000]
    consume_all(group, "b")
    assert group.messages("b", "a") == [b"x" * 3000, b"y" * 3000]


@pytest.mark.parametrize(("members", "at_a_time"), [(2, 1), (3, 1), (4, 1), (4, 2), (4, 3)])
def test_streams_that_wait_take_turns(members: int, at_a_time: int) -> None:
    """No stream starves, the own one included, however little the application takes at a time."""
    group = Group(members, unread_limit=at_a_time)
    names = "abcd"[:members]
    for name in names:
        group.send(name, *numbers(1, 60))
    group.run_for(100 * MS)
    for _ in range(30):
        group.consumed(names[-1], at_a_time)
        group.run_for(MS)
    got = [len(group.messages(names[-1], origin)) for origin in names]
    assert max(got) - min(got) <= 2 * at_a_time


@pytest.mark.behaviour("N4-26")
def test_the_own_slow_application_pins_the_own_window() -> None:
    """N4-26, M-16: and consuming releases it."""
    group = Group(2, capacity=2, unread_limit=1)
    group.send("a", *numbers(1, 6))
    group.run_for(SECOND)
    assert group["a"].digest()[A] == Marks(1, 1, 3)
    consume_all(group, "a", "b")
    assert group.messages("a", "a") == group.messages("b", "a") == numbers(1, 6)


def test_alone_with_a_slow_application() -> None:
    group = Group(1, capacity=2, unread_limit=1)
    group.send("a", *numbers(1, 6))
    consume_all(group, "a")
    assert group.messages("a", "a") == numbers(1, 6)
    assert group["a"].digest()[A] == Marks(6, 6, 6)


@pytest.mark.behaviour("N4-10")
def test_an_announcement_beyond_a_full_window_is_no_gap_yet() -> None:
    """N4-10: data without a slot is not missing; it is requested once there is room."""
    group = Group(2, capacity=4, unread_limit=1)
    group.receive("b", A, data(A, 1, *numbers(1, 4)))
    group.receive("b", A, data(A, 5))
    group.receive("b", A, Tail(A, 0, 10, None))
    group.run_for(SECOND)
    assert group.frames(Nak) == []
    group.consumed("b", 1)
    group.run_for(20 * MS)
    assert group.frames(Nak) == [Nak(A, ((6, 6),))]


def test_m13_a_delivery_holds_at_most_max_batch_size() -> None:
    """M-13: all is handed out at once, in runs of that size."""
    group = Group(2, max_batch_size=3)
    ready = group.receive("b", A, data(A, 1, *numbers(1, 8)))
    assert [(delivery.first, delivery.last) for delivery in ready.deliveries] == [
        (1, 3),
        (4, 6),
        (7, 8),
    ]
    ready = group.send("a", *numbers(1, 4))
    assert [delivery.message_count for delivery in ready.deliveries] == [3, 1]
    assert [message for delivery in ready.deliveries for message in delivery.messages()] == numbers(
        1, 4
    )


# Not wanted back


@pytest.mark.behaviour("I-07")
def test_m11_what_is_not_wanted_back_is_not_delivered_to_its_sender() -> None:
    """M-11, S-40, I-07: others deliver it; the sender counts it as delivered."""
    group = Group(2)
    for seqno in range(1, 13):
        group.send("a", b"%d" % seqno, loopback=seqno % 2 == 0)
    group.settle()
    assert group.messages("a", "a") == numbers(1, 12)[1::2]
    assert group.messages("b", "a") == numbers(1, 12)
    assert group["a"].digest()[A] == Marks(12, 12, 12)


def test_m11_a_window_full_of_such_messages_does_not_block() -> None:
    """M-11, S-27: they need no credit of the application; behind a waiting one they wait."""
    group = Group(2, capacity=4, unread_limit=1, loopback=False)
    group.receive("a", B, data(B, 1), data(B, 2))
    group.send("a", *numbers(1, 20))
    consume_all(group, "b")
    assert group.messages("b", "a") == numbers(1, 20)
    assert group.messages("a", "a") == []
    mixed = Group(2, unread_limit=1)
    mixed.send("a", b"1", b"2")
    mixed.send("a", b"3", loopback=False)
    assert mixed["a"].digest()[A].delivered == 1
    mixed.consumed("a", 1)
    assert mixed["a"].digest()[A].delivered == 3


def test_m11_pieces_that_are_not_wanted_back() -> None:
    group = Group(2, capacity=3, max_frame_bytes=256, loopback=False)
    group.send("a", b"x" * 2000)
    group.send("a", b"y" * 2000, loopback=True)
    group.settle()
    assert group.messages("a", "a") == [b"y" * 2000]
    assert group.messages("b", "a") == [b"x" * 2000, b"y" * 2000]


# Bytes


def outstanding_bytes(group: Group) -> int:
    return group["a"].outbound.window.stored_bytes


def test_rule_7_acks_advertise_the_receive_buffer() -> None:
    group = Group(2, receive_buffer_bytes="64KiB")
    group.send("a", b"x")
    group.settle()
    assert {ack.buffer_bytes for ack in group.frames(Ack)} == {65536}


def test_rule_7_the_smallest_buffer_limits_what_is_outstanding() -> None:
    """A group on small kernel buffers does not lose frames to itself."""
    group = Group(3)
    group.receive("a", B, Ack(A, 0, 10_000))
    group.receive("a", C, Ack(A, 0, 4_000))
    group.send("a", *[b"x" * 98] * 200)
    assert 3_900 < outstanding_bytes(group) <= 4_000
    group.receive("a", B, Ack(A, 10, 10_000))
    group.receive("a", C, Ack(A, 10, 4_000))
    assert 3_900 < outstanding_bytes(group) <= 4_000


def test_rule_7_senders_share_the_buffer() -> None:
    """Two others of four have sent lately: a third of the buffer is left; later all of it."""
    group = Group(4, receive_buffer_bytes=9_000, max_frame_bytes=256)
    group.lose(Ack)
    group.receive("a", B, data(B, 1))
    group.receive("a", C, data(C, 1))
    group.send("a", *[b"x" * 98] * 200)
    for seqno in (1, 2):
        for peer in (B, C, D):
            group.receive("a", peer, Ack(A, seqno, 9_000))
    assert 2_900 < outstanding_bytes(group) <= 3_000
    group.now_ns += SECOND
    for seqno in (3, 4):
        for peer in (B, C, D):
            group.receive("a", peer, Ack(A, seqno, 9_000))
    assert 8_900 < outstanding_bytes(group) <= 9_000, "sends that wait feel it too"


def test_rule_7_nobody_fills_its_own_buffer() -> None:
    """All three send: each receiver has two senders."""
    group = Group(3, receive_buffer_bytes=9_000, max_frame_bytes=256)
    group.lose(Ack)
    group.receive("a", B, data(B, 1))
    group.receive("a", C, data(C, 1))
    group.send("a", *[b"x" * 98] * 200)
    for seqno in (1, 2):
        for peer in (B, C):
            group.receive("a", peer, Ack(A, seqno, 9_000))
    assert 4_400 < outstanding_bytes(group) <= 4_500


def test_rule_7_who_begins_to_send_leaves_room_for_those_that_begin_too() -> None:
    """At the start one sender may have the whole buffer; the first acks show the others."""
    group = Group(4, receive_buffer_bytes=9_000, max_frame_bytes=256)
    group.lose(Ack)
    group.send("a", *[b"x" * 98] * 400)
    assert 1_400 < outstanding_bytes(group) <= 1_500
    for seqno in (1, 2):
        for peer in (B, C, D):
            group.receive("a", peer, Ack(A, seqno, 9_000))
    assert 8_900 < outstanding_bytes(group) <= 9_000
    for seqno in (80, 160, 240, 320, 400):
        for peer in (B, C, D):
            group.receive("a", peer, Ack(A, seqno, 9_000))
    group.now_ns += SECOND
    group.send("a", *[b"x" * 98] * 400)
    assert 1_400 < outstanding_bytes(group) <= 1_500, "after a pause it is the same"


def test_rule_7_what_must_not_wait_is_taken_though_others_may_begin_too() -> None:
    """It would be refused repeatedly: nothing is sent, so there is no answer."""
    group = Group(4, receive_buffer_bytes=9_000, max_frame_bytes=256)
    ready = group.send("a", b"x" * 8_000, wait=False)
    assert [type(event) for event in ready.events] == [Accepted]


def test_rule_7_many_senders_of_large_frames_send_smaller_ones() -> None:
    """A full frame of each would be more than the buffer takes."""
    group = Group(4, receive_buffer_bytes=150_000, max_frame_bytes=65_000)
    group.send("a", *[b"x" * 998] * 400)
    assert 24_000 < outstanding_bytes(group) <= 25_000


def test_rule_7_a_smaller_buffer_counts_for_sends_that_wait() -> None:
    """It was advertised while they waited."""
    group = Group(2)
    group.receive("a", B, Ack(A, 0, 20_000))
    group.send("a", *[b"x" * 98] * 1000)
    assert outstanding_bytes(group) > 19_000
    group.receive("a", B, Ack(A, 180, 5_000))
    assert outstanding_bytes(group) <= 5_000


def test_rule_7_the_departure_of_the_smallest_lifts_the_limit() -> None:
    group = Group(3)
    group.receive("a", B, Ack(A, 0, 20_000))
    group.receive("a", C, Ack(A, 0, 2_000))
    group.send("a", *[b"x" * 98] * 1000)
    assert outstanding_bytes(group) <= 2_000
    group.install(View.of(2, A, B), [A])
    assert outstanding_bytes(group) > 19_000


def test_rule_7_one_frame_always_fits() -> None:
    """A member that advertises no credit slows the group to one frame at a time."""
    group = Group(2, max_frame_bytes=1400)
    group.receive("a", B, Ack(A, 0, 0))
    group.send("a", *[b"x" * 98] * 50, b"y" * 5000)
    assert 1_300 < outstanding_bytes(group) <= 1_400
    group.settle()
    assert len(group.messages("b", "a")) == 51


@pytest.mark.behaviour("P-13")
def test_window_bytes_limit_what_is_outstanding() -> None:
    """P-13: fixed windows count bytes too."""
    group = Group(2, window_bytes=2_000)
    group.lose(Ack)
    group.send("a", *[b"x" * 98] * 100)
    assert outstanding_bytes(group) == 2_000
    group.rules.clear()
    group.settle()
    assert len(group.messages("b", "a")) == 100
    assert group["b"].counters.get("dropped.full", 0) == 0, (
        "S12: a receiver takes what the sender's window allowed"
    )


def test_an_ack_is_due_after_a_quarter_of_the_senders_share() -> None:
    """Rule 7: or a sender that fills its share would wait for the ack timer again and again."""
    group = Group(2, receive_buffer_bytes=8_000, ack_threshold=1000, capacity=4000)
    for seqno in range(1, 20):
        group.receive("b", A, data(A, seqno, b"x" * 198))
    assert [ack.seqno for ack in group.frames(Ack)] == [10], "one sends: 8000 / 4 bytes"


def test_who_has_stopped_sending_has_no_share() -> None:
    """A receiver must not count every former sender."""
    group = Group(4, receive_buffer_bytes=8_000, ack_threshold=1000, capacity=4000)
    for sender in (A, C, D):
        group.receive("b", sender, data(sender, 1))
    group.run_for(SECOND)
    group.receive("b", A, data(A, 2))
    group.run_for(20 * MS)
    for seqno in range(3, 20):
        group.receive("b", A, data(A, seqno, b"x" * 198))
    assert [ack.seqno for ack in group.frames(Ack, "b") if ack.origin == A] == [1, 2, 12]


def test_a_gap_does_not_stop_the_sender() -> None:
    """Rule 7: data behind a gap is off the buffer, so a lost frame costs only its repair."""
    group = Group(2, receive_buffer_bytes=8_000, max_frame_bytes=256, min_grace="100ms")
    group.lose_seqnos(1)
    group.send("a", *[b"x" * 98] * 1000)
    group.run_for(50 * MS)
    assert not group.messages("b", "a"), "the first message is not there yet"
    assert group["b"].inbound[A].window.stored > 500, "and most of the others are"  # type: ignore[union-attr]
    assert len([ack for ack in group.frames(Ack, "b") if ack.buffer_bytes > 8_000]) > 4
    group.settle()
    assert len(group.messages("b", "a")) == 1000
    assert not [name for name in group["b"].counters if name.startswith("dropped")]
    assert group.frames(Ack, "b")[-1].buffer_bytes == 8_000


def test_room_behind_a_gap_ends_with_the_window() -> None:
    """A receiver advertises no more than it can store."""
    group = Group(
        2, receive_buffer_bytes=2_000, window_bytes=4_000, max_frame_bytes=256, min_grace="100ms"
    )
    group.lose_seqnos(1)
    group.send("a", *[b"x" * 98] * 1000)
    group.run_for(50 * MS)
    assert group["a"].outbound.window.stored_bytes <= 4_000
    assert max(ack.buffer_bytes for ack in group.frames(Ack, "b")) <= 2 * 4_000
    group.settle()
    assert len(group.messages("b", "a")) == 1000
    assert not group["b"].counters.get("dropped.full")


def test_what_only_waits_for_the_application_grants_no_room() -> None:
    """A slow application slows the senders; its unread messages are no gap."""
    group = Group(2, receive_buffer_bytes=8_000, max_frame_bytes=256, unread_limit=4)
    group.send("a", *[b"x" * 98] * 1000)
    group.run_for(SECOND)
    assert {ack.buffer_bytes for ack in group.frames(Ack, "b")} == {8_000}


# Slow receivers


@pytest.mark.behaviour("P-03", "P-13")
def test_p03_an_event_names_the_member_that_pins_the_window() -> None:
    """P-03, P-13, rule 10: again and again while it lasts, and not once it is over."""
    group = Group(3, slow_receiver_after="2s", capacity=4)
    group.send("a", *numbers(1, 3))
    group.settle()
    group.lose(by="c")
    group.lose(by="b")
    start_ns = group.now_ns
    group.send("a", *numbers(4, 20))
    group.receive("a", B, Ack(A, 5, 1 << 20))
    group.run_for(2 * SECOND - 1)
    assert group.events_of("a", SlowReceivers) == []
    group.run_for(1)
    assert group.events_of("a", SlowReceivers) == [SlowReceivers((C,), 3, 7, start_ns)]
    group.run_for(4 * SECOND)
    assert group.events_of("a", SlowReceivers) == [SlowReceivers((C,), 3, 7, start_ns)] * 3
    group.rules.clear()
    group.settle()
    group.run_for(10 * SECOND)
    assert len(group.events_of("a", SlowReceivers)) == 3
    assert group["a"].armed_timers() == ()


def test_a_window_that_moves_is_not_pinned() -> None:
    """It is low that counts, not how long something has been outstanding."""
    group = Group(2, slow_receiver_after="1s")
    for at in range(10):
        group.send("a", b"x")
        group.run_for(900 * MS)
        assert group["a"].digest()[A].low == at + 1
    group.lose(Ack)
    for _ in range(3):
        group.send("a", b"x")
        group.run_for(400 * MS)
    assert [event.members for event in group.events_of("a", SlowReceivers)] == [(B,)]


def test_the_own_application_may_be_the_one_that_pins() -> None:
    group = Group(2, slow_receiver_after="1s", unread_limit=1)
    group.send("a", b"1", b"2")
    group.receive("a", B, Ack(A, 2, 1 << 20))
    group.run_for(SECOND)
    assert group.events_of("a", SlowReceivers)[0].members == (A,)


# Cost


def test_a_frame_costs_the_same_however_many_gaps_there_are() -> None:
    """S-51: with every other message lost, each frame opens one gap more."""
    group = Group(2, capacity=10_000)
    stream, context = group["b"].inbound[A], group["b"].out

    def cost(seqno: int) -> int:
        def take() -> None:
            stream.on_data(Run.of(A, seqno, [b"x"]), False, context)
            stream.detect_gaps(group.now_ns)

        return lines_of(take)

    costs = [cost(seqno) for seqno in range(2, 2000, 2)]
    assert max(costs[500:]) <= 2 * max(costs[:10])
    stream.send_naks(context)
    group.run_for(SECOND)
    assert cost(2001) <= 2 * max(costs[:10]), "and however many questions are open"


def test_s14_what_a_member_remembers_is_bounded() -> None:
    """S14: after a long run with loss, tables are bounded by members, and windows are empty."""
    group = Group(3, capacity=16, jitter_percent=25)
    rng = Random(3)
    group.rule(lambda _sender, _to, _frame: rng.random() < 0.2)
    for seqno in range(1, 300):
        for name in "abc":
            group.send(name, b"%d" % seqno)
        group.run_for(3 * MS)
    group.rules.clear()
    group.settle()
    for name in "abc":
        member = group[name]
        assert len(member.counters) < 40
        assert (
            max(
                len(table)
                for table in (
                    member.active_senders.last_data_ns,
                    member.deliveries.pending_acks,
                    member.deliveries.awaiting_credit,
                )
            )
            <= 3
        )
        assert len(member.outbound.flow_control) <= 2
        assert member.outbound.window.stored == len(member.outbound.queue) == 0
        for stream in member.inbound.values():
            assert (stream.loss_detector.open_naks, stream._before_start) == ([], [])
            assert stream.window is not None
            assert stream.window.stored == 0


def test_a_repair_that_was_not_needed_is_no_harm() -> None:
    """With use_mcast_xmit=always all receive it; it is counted and acknowledged."""
    group = Group(3, use_mcast_xmit="always")
    group.lose_seqnos(1, to="b")
    group.send("a", b"1")
    group.send("a", b"2")
    group.settle()
    assert group.messages("c", "a") == numbers(1, 2)
    assert group["c"].counters["dropped.old"] == 1
    assert len(group.frames(Nak)) == 1
    assert [frame.repair for frame in group.frames(Data)] == [False, False, True]
