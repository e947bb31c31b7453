"""Views: joins, starts of streams, leaves, and the messages of leaving members."""

from itertools import pairwise
from typing import Any

import pytest

from gapless.identity import Address, Marks, View
from gapless.protocol.events import Accepted, Discarded, Lost, Started, ViewInstalled
from gapless.run import FIRST_FRAGMENT, FRAGMENT, LAST_FRAGMENT, Run
from gapless.wire.frames import Ack, Data, Frame, Gone, Nak, Tail
from tests.support.virtual_group import MS, SECOND, A, B, C, D, Group, data, frames


def numbers(first: int, last: int) -> list[bytes]:
    return [b"%d" % seqno for seqno in range(first, last + 1)]


def waiting_for_start(**knobs: Any) -> Group:
    """A group in which b has installed the view and a, the other member, has not."""
    group = Group(2, start=False, **knobs)
    group.install(View.of(1, A, B), [B])
    return group


def with_joiner(**knobs: Any) -> Group:
    """Members a and b; five messages of a are delivered; c runs, but is not in the view."""
    group = Group(3, start=False, **knobs)
    group.install(View.of(1, A, B), [A, B], digest={A: Marks(0, 0, 0), B: Marks(0, 0, 0)})
    group.send("a", *numbers(1, 5))
    group.settle()
    return group


# Where a stream starts


@pytest.mark.behaviour("I-22", "I-21", "N4-35", "P-17")
def test_i22_each_sender_tells_a_joiner_where_to_start() -> None:
    """I-22, I-21, N4-35, P-17: right after the last seqno when the sender installed the view."""
    group = with_joiner()
    group.install(View.of(2, A, B, C))
    group.send("a", b"6")
    group.settle()
    assert group.numbered("c", "a") == [(6, b"6")]
    assert group.events_of("c", Started) == [Started(A, 5), Started(B, 0)]
    assert group["a"].outbound.starts == {A: 0, B: 0, C: 5}
    assert group.events_of("c", Lost) == []


@pytest.mark.behaviour("I-21", "P-01")
def test_i21_a_joiner_pins_nothing() -> None:
    """I-21, P-01: its ack entry begins at its start; a full window is not blocked by a join."""
    group = with_joiner(capacity=2)
    group.install(View.of(2, A, B, C))
    assert group["a"].outbound.acks[C] == 5
    group.send("a", *numbers(6, 20))
    group.settle(SECOND)
    assert group.messages("c", "a") == numbers(6, 20)


@pytest.mark.behaviour("I-22", "P-01", "P-19")
def test_i22_a_joiner_that_was_not_told_asks_until_it_is() -> None:
    """I-22, P-01, P-19: start and start request are lost, twice; it asks again, with back-off."""
    group = with_joiner()
    group.lose(Tail, to="c", times=4)
    group.lose(Nak, by="c", times=4)
    group.install(View.of(2, A, B, C))
    group.send("a", b"6")
    group.settle(5 * SECOND)
    assert group.messages("c", "a") == [b"6"]
    asked_ns = [
        sent.at_ns
        for sent in group.sent
        if sent.by == C and sent.to == A and sent.frame == Nak(A, ())
    ]
    assert len(asked_ns) >= 2


@pytest.mark.behaviour("I-22")
def test_a_sender_that_never_rests_tells_a_joiner_its_start_again() -> None:
    """I-22: further data delays the announcement of the tail, but not that of a start."""
    group = with_joiner()
    group.lose(Tail, by="a", to="c", times=1)
    group.lose(Nak, by="c")
    group.install(View.of(2, A, B, C))
    for number in range(6, 106):
        group.send("a", b"%d" % number)
        group.run_for(2 * MS)
    assert Started(A, 5) in group.events_of("c", Started)
    group.settle()
    assert group.messages("c", "a") == numbers(6, 105)


@pytest.mark.behaviour("P-19")
def test_p19_the_question_for_the_start_backs_off() -> None:
    """P-19: a member that does not answer is not flooded."""
    group = waiting_for_start()
    start_ns = group.now_ns
    group.run_for(10 * SECOND)
    asked_ns = [sent.at_ns - start_ns for sent in group.sent if sent.frame == Nak(A, ())]
    assert asked_ns[0] == group["b"].inbound[A].loss_detector.grace_ns
    pauses_ns = [after - before for before, after in pairwise(asked_ns)]
    assert pauses_ns[:5] == [30 * MS, 60 * MS, 120 * MS, 240 * MS, 480 * MS]
    assert set(pauses_ns[5:]) == {500 * MS}


def test_data_that_comes_before_the_start_does_not_speed_the_question_up() -> None:
    group = waiting_for_start()
    for seqno in range(1, 200):
        group.receive("b", A, data(A, seqno))
        group.run_for(MS)
    assert len(group.frames(Nak)) <= 4


@pytest.mark.behaviour("NR-08")
def test_what_comes_before_the_start_is_kept_and_delivered() -> None:
    """J-01, NR-08, S-75: in the order of the seqnos, from the start on."""
    group = waiting_for_start()
    group.receive("b", A, data(A, 8, b"8", b"9"))
    group.receive("b", A, data(A, 6))
    assert group.messages("b", "a") == []
    group.receive("b", A, Tail(A, 6, 9, 6, 1))
    group.receive("b", A, data(A, 7))
    assert group.messages("b", "a") == numbers(7, 9)
    assert group["b"].counters["dropped.old"] == 1
    assert group.events_of("b", Started) == [Started(A, 6)]


@pytest.mark.behaviour("P-09")
@pytest.mark.parametrize("size", [0, 3])
def test_what_comes_before_the_start_is_bounded(size: int) -> None:
    """P-09, S14, J-01: the rest is dropped, counted, and repaired once the start is known."""
    group = waiting_for_start(become_server_queue_size=size)
    for seqno in range(1, 11):
        group.receive("b", A, data(A, seqno))
    assert group["b"].counters["dropped.early"] == 10 - size
    assert len(group["b"].inbound[A]._before_start) == size
    group.receive("b", A, Tail(A, 0, 10, 0, 1))
    assert group.messages("b", "a") == numbers(1, size)
    group.run_for(20 * MS)
    assert group.frames(Nak)[-1] == Nak(A, ((size + 1, 10),))


def test_a_start_that_is_told_again_changes_nothing() -> None:
    """U3-28 for streams: an open stream is not opened again."""
    group = Group(2)
    group.receive("b", A, data(A, 1, *numbers(1, 5)))
    before = group["b"].digest()
    group.receive("b", A, Tail(A, 2, 5, 2, 1))
    assert group["b"].digest() == before
    assert group.events_of("b", Started) == []


@pytest.mark.behaviour("I-21")
def test_the_start_is_acknowledged_at_once() -> None:
    """I-21: the sender learns that the joiner has opened its stream."""
    group = waiting_for_start()
    ready = group.receive("b", A, Tail(A, 3, 9, 5, 1))
    assert frames(ready) == [(A, Ack(A, 5, group.config.receive_buffer_bytes))]


def test_a_start_that_was_told_to_a_former_life_is_not_believed() -> None:
    """Rule 2: a late TAIL for b's first incarnation must not open the stream of its second."""
    group = waiting_for_start()
    group.receive("b", A, Tail(A, 0, 9, 0, 7))
    assert group["b"].inbound[A].window is None
    group.receive("b", A, Tail(A, 0, 9, 5, 1))
    assert group.events_of("b", Started) == [Started(A, 5)]


@pytest.mark.behaviour("P-05")
def test_a_life_that_comes_back_goes_on_where_it_ended() -> None:
    """P-05, S2: b removes and readmits a; delivered messages are not delivered again."""
    group = Group(2)
    group.receive("b", A, data(A, 1, *numbers(1, 3)))
    group.install(View.of(2, B), [B])
    group.install(View.of(3, B, A), [B])
    group.receive("b", A, Tail(A, 0, 5, 0, 1), data(A, 1, *numbers(1, 5)))
    assert group.messages("b", "a") == numbers(1, 5)
    assert group.events_of("b", Started) == [Started(A, 3)]


@pytest.mark.behaviour("P-05")
def test_a_life_that_comes_back_in_the_middle_of_a_message_gets_it_whole() -> None:
    """P-05: the stored fragments ended with the stream, so the message starts again."""
    group = Group(2)
    piece = Run.of(A, 2, [b"be"], FRAGMENT | FIRST_FRAGMENT)
    group.receive("b", A, data(A, 1), Data(piece))
    group.install(View.of(2, B), [B])
    group.install(View.of(3, B, A), [B])
    group.receive(
        "b",
        A,
        Tail(A, 0, 3, 0, 1),
        Data(piece),
        Data(Run.of(A, 3, [b"gin"], FRAGMENT | LAST_FRAGMENT)),
    )
    assert group.messages("b", "a") == [*numbers(1, 1), b"begin"]


def test_the_ends_of_departed_streams_are_bounded() -> None:
    """S14."""
    group = Group(1)
    for number in range(2, 2 * 1100, 2):
        group.install(View.of(number, A, Address(9, number)), [A])
        group.install(View.of(number + 1, A), [A])
    assert len(group["a"].resume_positions.delivered) <= 1024


@pytest.mark.behaviour("N4-36", "N4-37")
def test_a_digest_without_a_view_opens_what_waits() -> None:
    """N4-36, N4-37: and leaves every other stream alone."""
    group = waiting_for_start()
    group.receive("b", A, data(A, 5, *numbers(5, 6)))
    group["b"].set_digest({A: Marks(0, 4, 9), Address(9, 9): Marks(0, 1, 1)}, 0)
    assert group["b"].digest()[A].delivered == 6
    group["b"].set_digest({A: Marks(0, 99, 99)}, 0)
    assert group["b"].digest()[A].delivered == 6


def test_a_tail_without_a_start_does_not_open_a_stream() -> None:
    group = waiting_for_start()
    ready = group.receive("b", A, Tail(A, 3, 9, None))
    assert ready.transmits == []
    assert A not in group["b"].digest()
    group.receive("b", A, Gone(A, 3))
    assert A not in group["b"].digest()
    assert group["b"].inbound[A].loss_detector.due_ns is not None, "it goes on asking"


@pytest.mark.behaviour("N4-35")
def test_n4_35_a_digest_opens_the_streams_that_it_names() -> None:
    """N4-35, G-06: without a question; the others ask."""
    group = Group(3, start=False)
    group.install(View.of(1, A, B, C), [C], digest={A: Marks(4, 6, 9)})
    assert group["c"].digest()[A] == Marks(6, 6, 6)
    assert B not in group["c"].digest()
    group.run_for(10 * MS)
    assert [sent.to for sent in group.sent if sent.frame in {Nak(A, ()), Nak(B, ())}] == [B]


@pytest.mark.behaviour("I-22")
def test_a_first_view_without_a_digest_tells_everybody_the_start() -> None:
    """I-22: the first to install is not received yet; all is well once all have installed."""
    group = Group(3, start=False)
    for at, member in enumerate((A, B, C)):
        group.install(View.of(1, A, B, C), [member])
        group.send("abc"[at], b"early bird")
        group.run_for(50 * MS)
    group.settle()
    for origin in "abc":
        assert group.messages("a", origin) == group.messages("b", origin) == [b"early bird"]
    assert group.messages("c", "c") == [b"early bird"]


@pytest.mark.behaviour("N4-37")
def test_n4_37_a_view_does_not_disturb_existing_streams() -> None:
    """N4-37, G-05: neither the gap in b's stream nor what a digest claims about it."""
    group = with_joiner()
    group.receive("b", A, data(A, 7))
    group.install(View.of(2, A, B, C), [B], digest={A: Marks(90, 90, 90)})
    assert group["b"].digest()[A] == Marks(5, 5, 7)
    group.receive("b", A, data(A, 6))
    assert group.messages("b", "a") == numbers(1, 7)


@pytest.mark.behaviour("P-01")
def test_a_view_that_comes_while_sends_wait() -> None:
    """P-01: waiting sends go out in the new view, to the joiner as well, after its start."""
    group = with_joiner(capacity=2)
    rule = group.lose(Ack)
    group.send("a", *numbers(6, 9))
    group.run_for(10 * MS)
    group.install(View.of(2, A, B, C))
    group.rules.remove(rule)
    group.settle()
    assert group.messages("c", "a") == numbers(8, 9), "6 and 7 were sent before a knew of c"
    assert group.messages("b", "a") == numbers(1, 9)
    assert [run.view for frame in group.frames(Data, "a") for run in [frame.run]][-1] == 2


def test_a_joiner_may_start_in_the_middle_of_a_message() -> None:
    """The rest of that message is counted and left out; the next one is whole."""
    group = with_joiner(capacity=2, max_frame_bytes=256)
    rule = group.lose(Ack)
    group.send("a", b"x" * 1000, b"next")
    group.install(View.of(2, A, B, C))
    group.rules.remove(rule)
    group.settle()
    assert group.messages("c", "a") == [b"next"]
    assert group["c"].counters["dropped.headless"] > 0
    assert group.messages("b", "a")[5:] == [b"x" * 1000, b"next"]


# P-01, as JGroups fails it


@pytest.mark.behaviour("P-01")
def test_p01_a_joiner_with_an_old_digest_does_not_stop_the_group() -> None:
    """P-01: the digest says 2, all up to 5 is purged; the joiner learns that and starts at 5."""
    group = with_joiner(capacity=4)
    group.install(View.of(2, A, B, C), [A, B])
    group.install(View.of(2, A, B, C), [C], digest={A: Marks(2, 2, 2), B: Marks(0, 0, 0)})
    group.send("a", *numbers(6, 20))
    group.settle(2 * SECOND)
    assert group.messages("c", "a")[-15:] == numbers(6, 20)
    assert group.events_of("c", Lost) == []
    assert group.events_of("c", Started) == [Started(A, 5)]


@pytest.mark.behaviour("P-01")
def test_a_view_that_arrives_late_at_one_member() -> None:
    """P-01 E3: a purges without c, which receives the data; later c starts where a says."""
    group = with_joiner(capacity=4)
    group.install(View.of(2, A, B, C), [B, C])
    for seqno in range(6, 30):
        group.send("a", b"%d" % seqno)
        group.run_for(2 * MS)
    assert group.messages("c", "a") == []
    group.install(View.of(2, A, B, C), [A])
    group.send("a", b"30")
    group.settle(2 * SECOND)
    assert group.messages("c", "a") == [b"30"]
    assert group.messages("b", "a") == numbers(1, 30)


# Gone


@pytest.mark.behaviour("P-01")
def test_p01_a_stream_that_has_delivered_is_told_of_its_loss() -> None:
    """P-01: exactly the missing seqnos, in an event; later messages are delivered."""
    group = Group(2)
    group.receive("b", A, data(A, 1), data(A, 7))
    ready = group.receive("b", A, Gone(A, 4))
    assert ready.events == [Lost(A, 2, 4)]
    assert group["b"].digest()[A] == Marks(4, 4, 7)
    group.receive("b", A, data(A, 5), data(A, 6))
    assert group.numbered("b", "a") == [(seqno, b"%d" % seqno) for seqno in (1, 5, 6, 7)]


def test_p01_a_stream_of_which_nothing_was_delivered_starts_behind() -> None:
    group = Group(2)
    ready = group.receive("b", A, Gone(A, 4))
    assert ready.events == [Started(A, 4)]
    group.receive("b", A, data(A, 5))
    assert group.numbered("b", "a") == [(5, b"5")]
    assert group.receive("b", A, Gone(A, 9)).events == [Lost(A, 6, 9)]


def test_what_is_here_is_not_given_up() -> None:
    """Between two gaps, and next in line but waiting for the application's room."""
    group = Group(2, unread_limit=2)
    group.receive("b", A, data(A, 1, *numbers(1, 3)), data(A, 5), data(A, 9))
    group.receive("b", A, Gone(A, 8))
    assert (group.messages("b", "a"), group.events_of("b", Lost)) == (numbers(1, 2), [])
    group.consumed("b", 2)
    assert group.messages("b", "a") == [b"1", b"2", b"3", b"5"]
    group.consumed("b", 2)
    assert group.messages("b", "a") == [b"1", b"2", b"3", b"5", b"9"]
    assert group.events_of("b", Lost) == [Lost(A, 4, 4), Lost(A, 6, 8)]


def test_gone_that_is_old_changes_nothing() -> None:
    """S7: whatever was delivered is not lost."""
    group = Group(2)
    group.receive("b", A, data(A, 1, *numbers(1, 5)))
    ready = group.receive("b", A, Gone(A, 5), Gone(A, 2))
    assert (ready.events, group["b"].digest()[A]) == ([], Marks(5, 5, 5))


def test_gone_beyond_everything_is_one_step() -> None:
    """S13: a distant mark costs no time and no memory."""
    group = Group(2, capacity=4)
    group.receive("b", A, data(A, 1), data(A, 3))
    ready = group.receive("b", A, Gone(A, 1 << 62))
    assert ready.events == [Lost(A, 2, 2), Lost(A, 4, 1 << 62)]
    group.run_for(SECOND)
    assert not group.frames(Nak)


def test_a_message_in_pieces_with_a_lost_piece_is_left_out() -> None:
    group = Group(2)
    group.receive(
        "b",
        A,
        data(A, 1, b"begin", flags=FRAGMENT | FIRST_FRAGMENT),
        data(A, 3, b"end", flags=FRAGMENT | LAST_FRAGMENT),
    )
    group.receive("b", A, Gone(A, 2), data(A, 4))
    assert group.messages("b", "a") == [b"4"]
    assert group.events_of("b", Lost) == [Lost(A, 2, 2)]
    assert group["b"].counters["dropped.headless"] == 1


@pytest.mark.behaviour("P-01")
def test_low_in_a_tail_counts_as_gone() -> None:
    """P-01: every announcement contains low."""
    group = Group(2)
    group.receive("b", A, data(A, 1))
    assert group.receive("b", A, Tail(A, 4, 6, None)).events == [Lost(A, 2, 4)]
    group.run_for(20 * MS)
    assert group.frames(Nak) == [Nak(A, ((5, 6),))]


# Leaving


@pytest.mark.behaviour("N4-34", "N4-38", "I-08")
def test_n4_34_the_stream_of_a_departed_member_ends() -> None:
    """N4-34, N4-38, I-08: data behind a gap is reported; later arrivals are dropped."""
    group = Group(3)
    group.receive("b", A, data(A, 1), data(A, 3, b"3", b"4"))
    group.install(View.of(2, B, C), [B])
    assert group.events_of("b", Discarded) == [Discarded(A, 2)]
    assert A not in group["b"].inbound
    ready = group.receive("b", A, data(A, 2))
    assert (ready.deliveries, ready.transmits) == ([], [])
    assert group["b"].counters["dropped.stranger"] == 1


@pytest.mark.behaviour("I-08")
def test_i08_what_is_consecutive_is_delivered_whatever_the_room() -> None:
    """I-08: it is delivered with the view, because nobody will ask for it later."""
    group = Group(3, unread_limit=1)
    group.receive("b", A, data(A, 1, *numbers(1, 3)), data(A, 5))
    assert group.messages("b", "a") == [b"1"]
    ready = group.step(B, lambda m: m.install(View.of(2, B, C), group.now_ns))
    assert group.messages("b", "a") == numbers(1, 3)
    assert ready.events == [Discarded(A, 1), ViewInstalled(View.of(2, B, C))]
    group.receive("b", C, data(C, 1))
    assert group.messages("b", "c") == [], "three are in hand, room for one"
    group.consumed("b", 3)
    assert group.messages("b", "c") == [b"1"]


def test_i08_what_never_got_a_start_is_discarded_too() -> None:
    group = waiting_for_start()
    group.receive("b", A, data(A, 4, b"4", b"5"))
    group.install(View.of(2, B), [B])
    assert group.events_of("b", Discarded) == [Discarded(A, 2)]
    group.settle()


def test_nothing_discarded_nothing_reported() -> None:
    group = Group(2)
    group.receive("b", A, data(A, 1))
    group.install(View.of(2, B), [B])
    assert group.events_of("b", Discarded) == []


@pytest.mark.behaviour("P-15")
def test_p15_a_departed_member_is_not_spoken_to() -> None:
    """P-15: no acks, naks and tails are sent to it, and no timer runs for it."""
    group = Group(3)
    group.lose_seqnos(2, to="b")
    for seqno in range(1, 4):
        group.send("a", b"%d" % seqno)
    group.run_for(2 * MS)
    group.send("b", b"for all")
    group.install(View.of(2, B, C), [B, C])
    del group.members[A]
    before = len(group.sent)
    group.settle()
    assert all(sent.to != A for sent in group.sent[before:])
    assert group.messages("c", "b") == [b"for all"]


@pytest.mark.behaviour("N4-29")
def test_everybody_leaves() -> None:
    """N4-29: the last member does not wait for acks of former ones."""
    group = Group(4, capacity=2)
    group.lose()
    group.send("a", *numbers(1, 7))
    assert group.events_of("a", Accepted) == []
    group.install(View.of(2, A, C), [A])
    assert group.events_of("a", Accepted) == []
    group.install(View.of(3, A), [A])
    assert group.events_of("a", Accepted) == [Accepted(1, 1, 7)]
    assert group.messages("a", "a") == numbers(1, 7)
    assert group["a"].armed_timers() == ()


# Incarnations


@pytest.mark.behaviour("P-02", "P-07")
def test_a_new_life_of_a_member_is_a_new_stream() -> None:
    """P-02, P-07, rule 2: seqnos, acks and gaps of the former incarnation do not count."""
    group = with_joiner()
    reborn = Address(B.node, 2)
    group.receive("a", B, data(B, 1), data(B, 3))
    group.install(View.of(2, A, reborn), [A])
    assert group.events_of("a", Discarded) == [Discarded(B, 1)]
    assert group["a"].outbound.acks[reborn] == 5
    before = group["a"].snapshot()
    frames_of_the_dead: tuple[Frame, ...] = (
        data(B, 2),
        Ack(A, 3, 9),
        Nak(A, ((1, 2),)),
        Tail(B, 0, 9, 0),
        Gone(B, 9),
    )
    for frame in frames_of_the_dead:
        assert group.receive("a", B, frame).transmits == []
    assert group["a"].snapshot() == before
    assert group["a"].counters["dropped.incarnation"] == len(frames_of_the_dead)
    group.receive("a", reborn, Tail(reborn, 0, 0, 0, 1), data(reborn, 1, b"again"))
    assert [d.content for d in group.deliveries[A] if d.origin == reborn] == [
        data(reborn, 1, b"again").run
    ]


@pytest.mark.behaviour("P-02", "P-18")
def test_acks_and_naks_for_a_former_life_of_mine_do_not_count() -> None:
    """P-02, P-18: they name the incarnation that they are for."""
    group = Group(2)
    group.send("a", *numbers(1, 5))
    before = group["a"].snapshot()
    former = Address(A.node, 0)
    for frame in (Ack(former, 5, 9), Nak(former, ((1, 2),)), Nak(former, ())):
        assert group.receive("a", B, frame).transmits == []
    assert group["a"].snapshot() == before
    assert group["a"].counters["dropped.incarnation"] == 3


@pytest.mark.behaviour("OL-05")
def test_the_view_number_travels_with_the_messages() -> None:
    """OL-05: and a repair keeps the view of its first transmission."""
    group = Group(2)
    group.send("a", b"1")
    group.install(View.of(9, A, B))
    group.send("a", b"2")
    group.receive("a", B, Nak(A, ((1, 2),)))
    assert [(frame.run.first, frame.run.view, frame.repair) for frame in group.frames(Data)] == [
        (1, 1, False),
        (2, 9, False),
        (1, 1, True),
        (2, 9, True),
    ]


def test_a_view_is_told_before_what_belongs_to_it() -> None:
    group = Group(2)
    ready = group.step(A, lambda m: m.install(View.of(2, A, B, C, D), group.now_ns))
    assert ready.events == [ViewInstalled(View.of(2, A, B, C, D))]
    assert {(to, type(frame)) for to, frame in frames(ready)} == {(C, Tail), (D, Tail)}
