"""Out-of-band messages: own seqnos that never restart, once across views, never blocked."""

from random import Random

import pytest

from gapless.config import GROUP_PROFILE_NAMES
from gapless.delivery_mode import DeliveryMode
from gapless.identity import Address, View
from gapless.protocol.events import Accepted, Acknowledged, GivenUp, Unacknowledged
from gapless.protocol.ready import GROUP, OUT_OF_BAND
from gapless.wire.frames import Ack, Data, OutOfBand, OutOfBandAck, Unreliable, Vote
from tests.support.virtual_group import MS, SECOND, A, B, C, D, Group, aside, frames, got

ASIDE = DeliveryMode.OUT_OF_BAND
REPAIRING = [name for name in GROUP_PROFILE_NAMES if name != "ordered"]
"""The profiles with retransmission."""


def sent_again(group: Group, to: Address) -> list[int]:
    """The numbers that were sent to one member alone."""
    return [
        entry.frame.run.first
        for entry in group.sent
        if isinstance(entry.frame, OutOfBand) and entry.to == to
    ]


# Delivery


@pytest.mark.behaviour("OL-11", "OL-13", "OL-16", "I-18")
@pytest.mark.parametrize("profile", GROUP_PROFILE_NAMES)
def test_ol13_it_is_delivered_by_all_acknowledged_by_each_and_reported(profile: str) -> None:
    group = Group(3, profile=profile)
    ready = group.send("a", b"1", b"2", mode=ASIDE)
    assert ready.events == [Accepted(ready.ticket, 1, 2)]
    group.settle()
    for name in "abc":
        assert got(group, name) == [b"1", b"2"]
    for name in "bc":
        assert [frame.ranges for frame in group.frames(OutOfBandAck, name)] == [
            ((1, 1),),
            ((2, 2),),
        ]
    assert group.events_of("a", Acknowledged) == [Acknowledged(ready.ticket)]
    assert group["a"].is_quiet


@pytest.mark.behaviour("OL-11")
@pytest.mark.parametrize("profile", GROUP_PROFILE_NAMES)
def test_ol11_its_numbers_are_its_own_and_leave_no_hole_in_the_stream(profile: str) -> None:
    group = Group(2, profile=profile)
    for mode in (DeliveryMode.ORDERED, ASIDE, DeliveryMode.ORDERED, ASIDE):
        group.send("a", b"x", mode=mode)
    group.settle()
    numbers = {
        kind: [found.first for found in group.deliveries[B] if found.kind == kind]
        for kind in (GROUP, OUT_OF_BAND)
    }
    assert numbers == {GROUP: [1, 2], OUT_OF_BAND: [1, 2]}


@pytest.mark.behaviour("OL-11", "OL-12", "I-19")
@pytest.mark.parametrize("profile", GROUP_PROFILE_NAMES)
def test_ol11_its_numbers_never_restart(profile: str) -> None:
    group = Group(2, profile=profile)
    for number in (2, 3, 4):
        group.send("a", b"x", mode=ASIDE)
        group.settle()
        group.install(View.of(number, A, B))
    assert [frame.run.first for frame in group.frames(OutOfBand)] == [1, 2, 3]
    assert got(group, "b") == [b"x"] * 3


@pytest.mark.behaviour("OL-14")
@pytest.mark.parametrize("profile", GROUP_PROFILE_NAMES)
def test_ol14_it_keeps_no_order_and_waits_for_no_other(profile: str) -> None:
    group = Group(2, profile=profile)
    group.receive("b", A, aside(A, 3))
    group.receive("b", A, aside(A, 1))
    assert got(group, "b") == [b"3", b"1"]


@pytest.mark.behaviour("OL-20")
@pytest.mark.parametrize("profile", REPAIRING)
def test_s46_many_in_one_send_of_which_two_are_lost(profile: str) -> None:
    """S-46, S-43."""
    group = Group(2, profile=profile)
    held = group.rule(
        lambda _by, _to, frame: isinstance(frame, OutOfBand) and frame.run.first in {2, 4}
    )
    ticket = group.send("a", *(b"%d" % at for at in range(1, 6)), mode=ASIDE).ticket
    group.send("a", b"ordered")
    group.run_for(2 * MS)
    group.rules.remove(held)
    group.settle()
    assert got(group, "b") == [b"1", b"3", b"5", b"2", b"4"]
    assert got(group, "b", GROUP) == [b"ordered"]
    assert group.events_of("a", Acknowledged) == [Acknowledged(ticket)]


# Once, across views


@pytest.mark.behaviour("OL-12")
@pytest.mark.parametrize("profile", GROUP_PROFILE_NAMES)
def test_v11_a_duplicate_is_not_delivered_again_but_acknowledged_again(profile: str) -> None:
    """V-11."""
    group = Group(2, profile=profile)
    for _ in range(2):
        ready = group.receive("b", A, aside(A, 1))
        assert frames(ready) == [(A, OutOfBandAck(A, ((1, 1),)))]
    assert got(group, "b") == [b"1"]
    assert group["b"].counters["dropped.duplicate aside"] == 1


@pytest.mark.behaviour("OL-12", "I-19")
@pytest.mark.parametrize("profile", GROUP_PROFILE_NAMES)
def test_v08_a_duplicate_that_arrives_after_a_view_change_is_not_delivered_again(
    profile: str,
) -> None:
    """V-08."""
    group = Group(2, profile=profile)
    group.receive("b", A, aside(A, 1))
    for number in (2, 3):
        group.install(View.of(number, A, B))
        group.receive("b", A, aside(A, 1))
    assert got(group, "b") == [b"1"]


@pytest.mark.behaviour("OL-12", "OL-20", "I-19")
@pytest.mark.parametrize("profile", REPAIRING)
def test_v08_what_is_not_acknowledged_is_sent_again_after_a_view_change(profile: str) -> None:
    """V-08."""
    group = Group(2, profile=profile)
    lost = group.lose(OutOfBand)
    ticket = group.send("a", b"1", mode=ASIDE).ticket
    group.run_for(5 * MS)
    group.install(View.of(2, A, B))
    group.rules.remove(lost)
    group.settle()
    assert got(group, "b") == [b"1"]
    assert group.events_of("a", Acknowledged) == [Acknowledged(ticket)]


@pytest.mark.behaviour("OL-12", "I-19")
@pytest.mark.parametrize("profile", REPAIRING)
def test_v08_a_resend_after_a_view_change_is_delivered_once_though_the_ack_was_lost(
    profile: str,
) -> None:
    """V-08."""
    group = Group(2, profile=profile)
    lost = group.lose(OutOfBandAck)
    ticket = group.send("a", b"1", mode=ASIDE).ticket
    group.run_for(5 * MS)
    group.install(View.of(2, A, B))
    group.run_for(SECOND)
    group.rules.remove(lost)
    group.settle()
    assert got(group, "b") == [b"1"]
    assert len(sent_again(group, B)) > 1
    assert group.events_of("a", Acknowledged) == [Acknowledged(ticket)]


@pytest.mark.behaviour("OL-12", "OL-18")
@pytest.mark.parametrize("receiver_first", [True, False])
@pytest.mark.parametrize("profile", GROUP_PROFILE_NAMES)
def test_ol12_it_is_neither_queued_nor_discarded_because_of_a_view(
    profile: str, receiver_first: bool
) -> None:
    """The sender has a later view than the receiver, or an earlier one."""
    group = Group(2, profile=profile)
    group.install(View.of(2, A, B), [B if receiver_first else A])
    ticket = group.send("a", b"flush", mode=ASIDE).ticket
    group.run_for(3 * MS)
    assert got(group, "b") == [b"flush"]
    assert group.events_of("a", Acknowledged) == [Acknowledged(ticket)]


@pytest.mark.behaviour("OL-12", "P-05")
@pytest.mark.parametrize("profile", GROUP_PROFILE_NAMES)
def test_a_member_that_leaves_and_comes_back_in_the_same_life_gets_nothing_twice(
    profile: str,
) -> None:
    group = Group(3, profile=profile)
    group.send("a", b"1", mode=ASIDE)
    group.settle()
    group.install(View.of(2, A, B), [A, B])
    group.install(View.of(3, A, B, C))
    group.receive("c", A, aside(A, 1))
    group.receive("b", C, aside(C, 1))
    group.install(View.of(4, A, B), [A, B])
    group.install(View.of(5, A, B, C))
    group.receive("b", C, aside(C, 1))
    group.send("a", b"2", mode=ASIDE)
    group.run_for(SECOND)
    assert got(group, "c") == [b"1", b"2"]
    assert [found.first for found in group.deliveries[B] if found.origin == C] == [1]


@pytest.mark.behaviour("OL-11", "OL-12")
def test_ol11_another_life_of_the_sender_has_its_own_numbers() -> None:
    group = Group(2)
    again = A._replace(incarnation=2)
    group.receive("b", A, aside(A, 1, b"old"))
    group.step(B, lambda m: m.install(View.of(2, B, again), group.now_ns))
    group.receive("b", again, aside(again, 1, b"new"))
    assert got(group, "b") == [b"old", b"new"]


# Stopped by nothing


@pytest.mark.behaviour("OL-18", "P-15")
@pytest.mark.parametrize("profile", GROUP_PROFILE_NAMES)
def test_s42_it_overtakes_a_gap_a_full_window_and_a_busy_application(profile: str) -> None:
    """S-42, S-44."""
    group = Group(2, profile=profile, capacity=2, max_seqno_ahead=2, unread_limit=1)
    group.lose_seqnos(1, to="b", repairs=True)
    group.lose(Ack, Vote)
    group.send("a", b"1")
    group.send("a", b"2")
    waiting = group.send("a", b"3").ticket
    group.send("a", b"now", mode=ASIDE, wait=False)
    group.run_for(3 * MS)
    assert got(group, "b") == [b"now"]
    assert got(group, "b", GROUP) == []
    assert waiting not in {accepted.ticket for accepted in group.events_of("a", Accepted)}
    group.receive("b", A, *(aside(A, seqno) for seqno in range(2, 11)))
    assert len(got(group, "b")) == 10  # the application has room for one: nothing here waits for it


@pytest.mark.behaviour("OL-14")
@pytest.mark.parametrize("profile", GROUP_PROFILE_NAMES)
def test_s43_one_that_is_lost_does_not_hold_up_the_stream(profile: str) -> None:
    """S-43."""
    group = Group(2, profile=profile)
    group.lose(OutOfBand)
    group.send("a", b"1")
    group.send("a", b"lost", mode=ASIDE)
    group.send("a", b"2")
    group.run_for(3 * MS)
    assert got(group, "b", GROUP) == [b"1", b"2"]


# Sent again until acknowledged


@pytest.mark.behaviour("OL-20")
@pytest.mark.parametrize("profile", REPAIRING)
def test_s57_it_is_sent_again_to_exactly_those_that_have_not_acknowledged(profile: str) -> None:
    """S-57, V-10: Two messages, three receivers, acks that trickle in."""
    group = Group(4, profile=profile)
    lost = group.lose(OutOfBandAck)
    first, second = (group.send("a", payload, mode=ASIDE).ticket for payload in (b"1", b"2"))
    group.run_for(5 * MS)
    group.receive("a", B, OutOfBandAck(A, ((1, 2),)))
    group.receive("a", C, OutOfBandAck(A, ((1, 1),)))
    group.run_for(20 * MS)
    assert [sent_again(group, to) for to in (B, C, D)] == [[], [2], [1, 2]]
    group.receive("a", D, OutOfBandAck(A, ((1, 1),)))
    assert group.events_of("a", Acknowledged) == [Acknowledged(first)]
    group.rules.remove(lost)
    group.settle()
    assert group.events_of("a", Acknowledged) == [Acknowledged(first), Acknowledged(second)]
    count = len(group.sent)
    group.run_for(10 * SECOND)
    assert len(group.sent) == count  # the entry is gone
    for name in "bcd":
        assert got(group, name) == [b"1", b"2"]


@pytest.mark.behaviour("OL-20")
@pytest.mark.parametrize("profile", GROUP_PROFILE_NAMES)
def test_s58_one_that_leaves_completes_it(profile: str) -> None:
    """S-58."""
    group = Group(4, profile=profile)
    group.lose(OutOfBand, to="d")
    group.lose(OutOfBand, to="c")
    ticket = group.send("a", b"1", mode=ASIDE).ticket
    group.run_for(4 * SECOND)
    assert group.events_of("a", Acknowledged) == []
    group.install(View.of(2, A, B, D))
    assert group.events_of("a", Acknowledged) == []
    group.install(View.of(3, A, B))
    assert group.events_of("a", Acknowledged) == [Acknowledged(ticket)]
    count = len(group.frames(OutOfBand))
    group.run_for(2 * SECOND)
    assert len(group.frames(OutOfBand)) == count


@pytest.mark.behaviour("OL-20")
def test_v10_it_is_sent_again_with_pauses_that_grow_up_to_the_interval() -> None:
    """V-10."""
    group = Group(2, tail_delay="20ms", xmit_interval="100ms")
    group.lose(OutOfBand)
    start_ns = group.now_ns
    group.send("a", b"1", mode=ASIDE)
    group.run_for(500 * MS)
    times_ms = [
        (entry.at_ns - start_ns) // MS for entry in group.sent if isinstance(entry.frame, OutOfBand)
    ]
    assert times_ms == [0, 20, 60, 140, 240, 340, 440]


@pytest.mark.behaviour("OL-20")
def test_with_retransmission_off_nothing_is_sent_again_until_it_is_switched_on() -> None:
    group = Group(2, profile="ordered")
    lost = group.lose(OutOfBand)
    group.send("a", b"1", mode=ASIDE)
    group.run_for(5 * SECOND)
    assert sent_again(group, B) == []
    group.rules.remove(lost)
    group.step(A, lambda m: m.set_xmit_interval(500 * MS, group.now_ns))
    group.settle()
    assert got(group, "b") == [b"1"]


@pytest.mark.behaviour("OL-20")
@pytest.mark.parametrize("profile", GROUP_PROFILE_NAMES)
def test_one_who_joins_gets_what_is_sent_from_then_on(profile: str) -> None:
    group = Group(3, profile=profile, start=False)
    group.install(View.of(1, A, B), [A, B])
    group.lose(OutOfBandAck, by="b")
    first = group.send("a", b"1", mode=ASIDE).ticket
    group.run_for(5 * MS)
    group.install(View.of(2, A, B, C))
    group.rules.clear()
    second = group.send("a", b"2", mode=ASIDE).ticket
    group.run_for(5 * MS)
    group.receive("a", B, OutOfBandAck(A, ((1, 1),)))
    group.settle()
    assert got(group, "c")[-1:] == [b"2"]
    assert {event.ticket for event in group.events_of("a", Acknowledged)} == {first, second}
    assert sent_again(group, C) == []


# Acks


@pytest.mark.behaviour("OL-13")
def test_acks_that_cannot_be_true_change_nothing() -> None:
    group = Group(3)
    lost = group.lose(OutOfBandAck)
    group.send("a", b"1", mode=ASIDE)
    group.receive("a", B, OutOfBandAck(A, ((1, 5),)))  # beyond what was sent
    assert group["a"].counters["dropped.ack beyond high"] == 1
    group.receive("a", D, OutOfBandAck(A, ((1, 1),)))  # a stranger
    group.receive("a", B, OutOfBandAck(A._replace(incarnation=9), ((1, 1),)))  # another life
    group.receive("a", B, OutOfBandAck(C, ((1, 1),)))  # not mine
    assert group["a"].counters["dropped.not mine"] == 1
    group.receive("a", B, OutOfBandAck(A, ((1, 1),)))
    group.receive("a", B, OutOfBandAck(A, ((1, 1),)))  # twice from one is not once from both
    assert group.events_of("a", Acknowledged) == []
    group.rules.remove(lost)
    group.settle()
    assert len(group.events_of("a", Acknowledged)) == 1


@pytest.mark.behaviour("OL-11")
def test_what_a_member_says_in_anothers_name_is_dropped() -> None:
    group = Group(3)
    group.receive("b", C, aside(A, 1))
    assert got(group, "b") == []
    assert group["b"].counters["dropped.origin"] == 1


# To one member, to oneself, alone


@pytest.mark.behaviour("OL-13", "OL-21")
@pytest.mark.parametrize("profile", GROUP_PROFILE_NAMES)
def test_to_one_member_only_that_one_gets_it_and_acknowledges(profile: str) -> None:
    group = Group(3, profile=profile)
    ticket = group.send("a", b"1", to=B, mode=ASIDE).ticket
    group.settle()
    assert [got(group, name) for name in "abc"] == [[], [b"1"], []]
    assert group.events_of("a", Acknowledged) == [Acknowledged(ticket)]


@pytest.mark.behaviour("OL-20", "P-15")
def test_to_one_member_that_leaves_it_ends_unacknowledged() -> None:
    group = Group(3)
    group.lose(OutOfBand, to="b")
    tickets = [
        group.send("a", *payloads, to=B, mode=ASIDE).ticket for payloads in ([b"1"], [b"2", b"3"])
    ]
    group.run_for(50 * MS)
    group.install(View.of(2, A, C))
    assert group.events_of("a", Unacknowledged) == [
        Unacknowledged(ticket, (B,)) for ticket in tickets
    ]
    assert group.events_of("a", Acknowledged) == []
    count = len(group.sent)
    group.run_for(SECOND)
    assert len([entry for entry in group.sent[count:] if entry.to == B]) == 0


@pytest.mark.behaviour("P-15")
def test_what_waits_its_turn_for_one_that_leaves_is_given_up() -> None:
    group = Group(3, max_out_of_band=1)
    group.lose(OutOfBand, to="b")
    group.send("a", b"1", mode=ASIDE)
    to_b = group.send("a", b"2", to=B, mode=ASIDE).ticket
    to_c = group.send("a", b"3", to=C, mode=ASIDE).ticket
    group.run_for(50 * MS)
    group.install(View.of(2, A, C))
    group.settle()
    assert group.events_of("a", GivenUp) == [GivenUp(to_b, 0, "departed")]
    assert got(group, "c") == [b"1", b"3"]
    assert Acknowledged(to_c) in group.events_of("a", Acknowledged)


@pytest.mark.behaviour("OL-20")
def test_what_waits_its_turn_is_for_those_that_are_members_when_it_goes_out() -> None:
    group = Group(3, max_out_of_band=1)
    group.lose(OutOfBand, to="c")
    group.send("a", b"1", mode=ASIDE)
    ticket = group.send("a", b"2", mode=ASIDE).ticket
    group.run_for(50 * MS)
    group.install(View.of(2, A, B))
    group.settle()
    assert got(group, "b") == [b"1", b"2"]
    assert Acknowledged(ticket) in group.events_of("a", Acknowledged)


@pytest.mark.parametrize("loopback", [True, False])
def test_to_oneself_it_is_delivered_whatever_loopback_says(loopback: bool) -> None:
    """S-101: the setting ``loopback`` concerns messages to all; to oneself only the call does."""
    group = Group(2, loopback=loopback)
    ready = group.send("a", b"1", to=A, mode=ASIDE)
    assert ready.events == [Accepted(ready.ticket, 1, 1), Acknowledged(ready.ticket)]
    group.send("a", b"unwanted", to=A, mode=ASIDE, loopback=False)
    assert got(group, "a") == [b"1"]
    assert ready.transmits == []


@pytest.mark.behaviour("OL-12")
@pytest.mark.parametrize("profile", GROUP_PROFILE_NAMES)
@pytest.mark.parametrize("loopback", [True, False])
def test_m09_the_own_message_is_delivered_once_or_not_at_all(profile: str, loopback: bool) -> None:
    """M-09, M-11, S-40."""
    group = Group(2, profile=profile, loopback=loopback)
    ticket = group.send("a", b"1", mode=ASIDE).ticket
    group.settle()
    assert got(group, "a") == ([b"1"] if loopback else [])
    assert got(group, "b") == [b"1"]
    assert group.events_of("a", Acknowledged) == [Acknowledged(ticket)]


@pytest.mark.parametrize("profile", GROUP_PROFILE_NAMES)
@pytest.mark.parametrize("loopback", [True, False])
def test_a_member_alone_has_its_acknowledgement_at_once(profile: str, loopback: bool) -> None:
    """M-11."""
    group = Group(1, profile=profile, max_out_of_band=1)
    ready = group.send("a", b"1", b"2", b"3", mode=ASIDE, loopback=loopback)
    assert ready.events == [Accepted(ready.ticket, 1, 3), Acknowledged(ready.ticket)]
    assert got(group, "a") == ([b"1", b"2", b"3"] if loopback else [])
    assert ready.transmits == []


# Under loss


@pytest.mark.behaviour("OL-16")
@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("profile", REPAIRING)
def test_every_message_arrives_once_over_a_network_that_loses_a_third(
    profile: str, seed: int
) -> None:
    """M-15."""
    group = Group(3, profile=profile, max_out_of_band=5, seed=seed)
    draw = Random(seed)
    group.rule(
        lambda _by, _to, frame: not isinstance(frame, (Data, Unreliable)) and draw.random() < 0.33
    )
    for at in range(30):
        group.send(draw.choice("abc"), b"%d" % at, mode=ASIDE)
        group.run_for(draw.randrange(20) * MS)
        if at % 10 == 9:
            group.install(View.of(at, A, B, C))
    group.settle()
    for name in "abc":
        assert sorted(got(group, name), key=int) == [b"%d" % at for at in range(30)]
