"""Out-of-band messages: limits in flight, waiting sends, memory; the state as a value."""

import pytest

from gapless.config import GROUP_PROFILE_NAMES
from gapless.delivery_mode import DeliveryMode
from gapless.identity import View
from gapless.protocol.events import Accepted, Acknowledged, GivenUp, Refused, Unacknowledged
from gapless.wire.frames import OutOfBand, OutOfBandAck
from tests.support.virtual_group import MS, SECOND, A, B, C, Group, aside, got

ASIDE = DeliveryMode.OUT_OF_BAND


# Bounds


@pytest.mark.behaviour("OL-11", "OL-18")
@pytest.mark.parametrize("profile", GROUP_PROFILE_NAMES)
def test_at_most_so_many_wait_for_acks_and_the_rest_waits_its_turn(profile: str) -> None:
    group = Group(2, profile=profile, max_out_of_band=2)
    lost = group.lose(OutOfBandAck)
    ready = group.send("a", *(b"%d" % at for at in range(1, 6)), mode=ASIDE)
    assert ready.events == []
    later = group.send("a", b"6", mode=ASIDE)
    group.run_for(5 * MS)
    assert got(group, "b") == [b"1", b"2"]
    group.rules.remove(lost)
    group.receive("a", B, OutOfBandAck(A, ((2, 2),)))
    group.run_for(5 * MS)
    assert got(group, "b")[:3] == [b"1", b"2", b"3"]
    group.receive("a", B, OutOfBandAck(A, ((1, 1),)))
    group.settle()
    assert got(group, "b") == [b"%d" % at for at in range(1, 7)]
    assert group.events_of("a", Accepted) == [
        Accepted(ready.ticket, 1, 5),
        Accepted(later.ticket, 6, 6),
    ]
    assert group.events_of("a", Acknowledged) == [
        Acknowledged(ready.ticket),
        Acknowledged(later.ticket),
    ]


@pytest.mark.behaviour("OL-13", "OL-18")
def test_a_send_that_goes_out_in_parts_is_reported_after_the_last() -> None:
    group = Group(2, max_out_of_band=1)
    ready = group.send("a", b"1", b"2", b"3", mode=ASIDE)
    group.settle()
    assert group.events[A][1:] == [Accepted(ready.ticket, 1, 3), Acknowledged(ready.ticket)]


@pytest.mark.behaviour("OL-18")
def test_a_send_that_is_not_to_wait_is_taken_whole_or_refused() -> None:
    group = Group(2, max_out_of_band=2)
    group.lose(OutOfBandAck)
    assert group.send("a", b"1", b"2", b"3", mode=ASIDE, wait=False).events == [Refused(1)]
    group.send("a", b"4", mode=ASIDE, wait=False)
    assert group.send("a", b"5", b"6", mode=ASIDE, wait=False).events == [Refused(3)]
    group.run_for(5 * MS)
    assert got(group, "b") == [b"4"]


@pytest.mark.behaviour("OL-18")
@pytest.mark.parametrize("how", ["cancel", "timeout"])
def test_a_send_that_waits_its_turn_can_end(how: str) -> None:
    group = Group(2, max_out_of_band=1)
    lost = group.lose(OutOfBandAck)
    group.send("a", b"1", mode=ASIDE)
    given_up = group.send(
        "a", b"2", mode=ASIDE, timeout_ns=10 * MS if how == "timeout" else None
    ).ticket
    after = group.send("a", b"3", mode=ASIDE).ticket
    if how == "cancel":
        group.cancel("a", given_up)
    group.run_for(15 * MS)
    assert group.events_of("a", GivenUp) == [GivenUp(given_up, 0, how)]
    group.rules.remove(lost)
    group.settle()
    assert got(group, "b") == [b"1", b"3"]
    assert Accepted(after, 2, 2) in group.events_of("a", Accepted)  # no hole
    assert given_up not in {event.ticket for event in group.events_of("a", Acknowledged)}


@pytest.mark.behaviour("OL-18")
def test_a_send_that_has_gone_out_in_part_says_how_much() -> None:
    group = Group(2, max_out_of_band=2)
    lost = group.lose(OutOfBandAck)
    ticket = group.send("a", b"1", b"2", b"3", mode=ASIDE).ticket
    group.cancel("a", ticket)
    assert group.events_of("a", GivenUp) == [GivenUp(ticket, 2, "cancel")]
    group.rules.remove(lost)
    group.settle()
    assert got(group, "b") == [b"1", b"2"]
    assert group.events_of("a", Acknowledged) == []
    assert group["a"].is_quiet


@pytest.mark.behaviour("OL-12")
def test_v11_the_floor_lets_receivers_forget_what_nobody_sends_again() -> None:
    """V-11."""
    group = Group(2)
    for _ in range(50):
        group.send("a", b"x", mode=ASIDE)
        group.settle()
    assert group["b"].out_of_band._delivered_ranges[A] == [(1, 50)]
    assert group.frames(OutOfBand)[-1].floor == 49


@pytest.mark.behaviour("OL-12")
def test_v11_the_floor_passes_over_what_went_to_others() -> None:
    """V-11: only one seqno in ten is for b; the floor says that the others are done."""
    group = Group(3)
    for at in range(1, 101):
        group.send("a", b"x", mode=ASIDE, to=B if at % 10 == 0 else C)
        group.settle()
    assert group["b"].out_of_band._delivered_ranges[A] == [(1, 100)]
    assert len(got(group, "b")) == 10


@pytest.mark.behaviour("OL-12")
def test_v11_one_old_message_without_ack_bounds_what_receivers_remember() -> None:
    """V-11."""
    group = Group(3, max_out_of_band=4)
    group.lose(OutOfBand, to="c")
    group.send("a", b"stuck", mode=ASIDE, to=C)
    for _ in range(40):
        group.send("a", b"x", mode=ASIDE, to=B)
    group.run_for(SECOND)
    assert (
        group["a"].out_of_band._high == 16
    )  # four times as many as may wait, and then the old one has to go first
    group.rules.clear()
    group.settle()
    assert len(got(group, "b")) == 40
    assert len(got(group, "c")) == 1


@pytest.mark.behaviour("OL-12")
def test_the_floor_discards_nothing_that_is_still_wanted() -> None:
    """V-11: the floor is below every unacknowledged seqno, so a late first copy is delivered."""
    group = Group(3)
    group.lose(OutOfBand, to="c", times=1)
    for at in range(1, 10):
        group.send("a", b"%d" % at, mode=ASIDE)
        group.run_for(MS)
    group.settle()
    assert sorted(got(group, "c")) == [b"%d" % at for at in range(1, 10)]


# The state as a value


def busy() -> Group:
    """Messages that wait for acks, and messages that wait their turn, to all and to one."""
    group = Group(3, max_out_of_band=4)
    group.lose(OutOfBandAck, by="c")
    group.receive("a", B, aside(B, 2))
    group.send("a", b"1", b"2", mode=ASIDE)
    group.send("a", b"3", mode=ASIDE, to=C)
    group.send("a", b"4", b"6", mode=ASIDE, to=C)
    group.send("a", b"5", mode=ASIDE, to=B)
    group.run_for(5 * MS)
    return group


def test_a_snapshot_holds_everything_that_decides_what_comes() -> None:
    group = busy()
    member = group["a"]
    state = member.snapshot()
    member.restore(state)
    assert member.snapshot() == state
    hash(state)
    group.rules.clear()
    group.settle()
    assert got(group, "b") == [b"1", b"2", b"5"]
    assert got(group, "c") == [b"1", b"2", b"3", b"4", b"6"]
    assert (
        len(group.events_of("a", Acknowledged)) == 4
    )  # one for each send, however many messages it has, even in parts
    group.receive("a", B, aside(B, 2))
    assert got(group, "a") == [b"2", b"1", b"2"]


def test_a_snapshot_knows_what_is_for_one_member_alone() -> None:
    group = busy()
    group["a"].restore(group["a"].snapshot())
    group.install(View.of(2, A, B))
    assert [event.members for event in group.events_of("a", Unacknowledged)] == [(C,)]
    assert [event.accepted for event in group.events_of("a", GivenUp)] == [1]
