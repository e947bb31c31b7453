"""Delivery modes: ordered, acknowledged and unreliable, in every profile, to all and to one."""

from typing import Any

import pytest

from gapless.config import GROUP_PROFILE_NAMES, UNICAST_PROFILE_NAMES, Config
from gapless.delivery_mode import DeliveryMode
from gapless.errors import ConfigError, LocalProtocolError
from gapless.identity import Address, View
from gapless.protocol.events import Accepted, Acknowledged, GivenUp, Unacknowledged
from gapless.protocol.ready import GROUP, OUT_OF_BAND, UNICAST, UNRELIABLE
from gapless.run import ACKED
from gapless.wire.frames import Ack, Data, OutOfBand, Unreliable, Vote
from tests.support.virtual_group import MS, SECOND, A, B, C, Group, frames, got

ACKNOWLEDGED = DeliveryMode.ACKNOWLEDGED
REPAIRING = [name for name in GROUP_PROFILE_NAMES if name != "ordered"]
"""The profiles with retransmission."""


def resent(group: Group, to: Address) -> list[int]:
    """The seqnos that were sent to one member again without being asked."""
    sent = (entry.frame for entry in group.sent if entry.to == to)
    return [frame.run.first for frame in sent if isinstance(frame, Data) and frame.repair]


def settled(members: int, profile: str) -> Group:
    """A group in which all starts are known."""
    group = Group(members, profile=profile)
    group.settle()
    group.sent.clear()
    return group


# The switch


@pytest.mark.behaviour("OL-04")
def test_ol04_a_switch_holds_for_exactly_one_message() -> None:
    """V-09."""
    group = Group(2, profile="classic")
    group["a"].set_next_mode(ACKNOWLEDGED)
    tickets = [group.send("a", payload).ticket for payload in (b"1", b"2")]
    group.settle()
    assert group.events_of("a", Acknowledged) == [Acknowledged(tickets[0])]
    flags = [frame.run.flags & ACKED for frame in group.frames(Data, "a")]
    assert flags == [ACKED, 0]


@pytest.mark.behaviour("OL-04")
def test_ol04_a_switch_is_used_up_by_one_who_is_alone_too() -> None:
    group = Group(1)
    group["a"].set_next_mode(ACKNOWLEDGED)
    ticket = group.send("a", b"1").ticket
    group.send("a", b"2")
    assert group.events_of("a", Acknowledged) == [Acknowledged(ticket)]


@pytest.mark.behaviour("OL-04", "OL-11")
@pytest.mark.parametrize("profile", GROUP_PROFILE_NAMES)
@pytest.mark.parametrize("mode", DeliveryMode)
def test_ol04_a_switch_can_be_to_any_mode_in_any_profile(profile: str, mode: DeliveryMode) -> None:
    group = Group(2, profile=profile)
    group["a"].set_next_mode(mode)
    group.send("a", b"1")
    group.send("a", b"2")
    group.settle()
    kinds = {DeliveryMode.OUT_OF_BAND: OUT_OF_BAND, DeliveryMode.UNRELIABLE: UNRELIABLE}
    assert [found.kind for found in group.deliveries[A]] == [kinds.get(mode, GROUP), GROUP]
    assert len(group.events_of("a", Acknowledged)) == (
        mode in {ACKNOWLEDGED, DeliveryMode.OUT_OF_BAND}
    )


def test_a_mode_goes_by_its_name_too_and_an_unknown_one_is_an_error() -> None:
    group = Group(2)
    group.send("a", b"1", mode="acknowledged")
    group.settle()
    assert len(group.events_of("a", Acknowledged)) == 1
    with pytest.raises(
        LocalProtocolError, match="not a delivery mode: use one of ordered, acknowledged"
    ):
        group.send("a", b"1", mode="urgent")
    with pytest.raises(LocalProtocolError, match="not a delivery mode"):
        group["a"].set_next_mode("urgent")  # type: ignore[arg-type]


@pytest.mark.behaviour("OL-21", "OL-04")
def test_ol21_a_message_to_one_member_does_not_use_the_switch_up() -> None:
    group = Group(2, profile="classic")
    group["a"].set_next_mode(ACKNOWLEDGED)
    one = group.send("a", b"one", to=B).ticket
    all_ = group.send("a", b"all").ticket
    group.settle()
    assert group.events_of("a", Acknowledged) == [Acknowledged(all_)]
    assert one != all_


@pytest.mark.behaviour("OL-04")
def test_ol04_a_message_that_names_its_mode_does_not_use_the_switch_up() -> None:
    group = Group(2, profile="classic")
    group["a"].set_next_mode(ACKNOWLEDGED)
    group.send("a", b"1", mode=DeliveryMode.ORDERED)
    ticket = group.send("a", b"2").ticket
    group.settle()
    assert group.events_of("a", Acknowledged) == [Acknowledged(ticket)]


@pytest.mark.behaviour("OL-04")
def test_v09_the_last_switch_counts_and_switching_back_cancels() -> None:
    """V-09."""
    group = Group(2, profile="classic")
    group["a"].set_next_mode(ACKNOWLEDGED)
    group["a"].set_next_mode(DeliveryMode.ORDERED)
    group.send("a", b"1")
    group.settle()
    assert group.events_of("a", Acknowledged) == []


@pytest.mark.behaviour("OL-04")
def test_ol04_a_send_that_fails_or_is_refused_does_not_use_the_switch_up() -> None:
    group = Group(2, profile="classic", capacity=1, max_seqno_ahead=1, max_message_bytes=10)
    group["a"].set_next_mode(ACKNOWLEDGED)
    with pytest.raises(LocalProtocolError, match="max_message_bytes"):
        group.send("a", b"x" * 11)
    with pytest.raises(LocalProtocolError, match="one message"):
        group.send("a", b"1", b"2")
    with pytest.raises(LocalProtocolError, match="no messages to send"):
        group.send("a")
    group.send("a", b"fills", mode=DeliveryMode.ORDERED)
    group.send("a", b"refused", wait=False)
    group.settle()
    ticket = group.send("a", b"taken", wait=False).ticket
    group.settle()
    assert group.events_of("a", Acknowledged) == [Acknowledged(ticket)]


# Acknowledged


@pytest.mark.behaviour("OL-02", "I-18")
@pytest.mark.parametrize("profile", GROUP_PROFILE_NAMES)
def test_i18_an_acknowledged_send_returns_at_once_and_is_reported_when_all_have_delivered(
    profile: str,
) -> None:
    group = Group(3, profile=profile)
    ready = group.send("a", b"1", b"2", mode=ACKNOWLEDGED)
    view = 1 if profile == "classic" else 0  # where seqnos restart with each view
    assert ready.events == [Accepted(ready.ticket, 1, 2, view)]
    group.run_for(MS // 2)
    assert group.events_of("a", Acknowledged) == []
    group.run_for(2 * MS)
    assert group.events_of("a", Acknowledged) == [Acknowledged(ready.ticket)]
    for name in "abc":
        assert got(group, name, GROUP) == [b"1", b"2"]


@pytest.mark.behaviour("OL-02")
@pytest.mark.parametrize("profile", GROUP_PROFILE_NAMES)
def test_ol02_it_is_not_reported_before_the_last_has_delivered(profile: str) -> None:
    group = Group(3, profile=profile, unread_limit=1)
    group.send("a", b"1", mode=ACKNOWLEDGED)
    ticket = group.send("a", b"2", mode=ACKNOWLEDGED).ticket
    group.consumed("a", 1)
    group.run_for(5 * MS)
    group.consumed("b", 1)
    group.run_for(5 * MS)
    assert Acknowledged(ticket) not in group.events_of("a", Acknowledged)
    group.consumed("c", 1)
    group.run_for(5 * MS)
    assert Acknowledged(ticket) in group.events_of("a", Acknowledged)


@pytest.mark.behaviour("OL-20")
@pytest.mark.parametrize("profile", REPAIRING)
def test_ol20_it_is_sent_again_only_to_those_that_have_not_acknowledged(profile: str) -> None:
    """S-57."""
    group = Group(3, profile=profile)
    group.lose(Data, to="c")
    ticket = group.send("a", b"1", mode=ACKNOWLEDGED).ticket
    group.run_for(2 * SECOND)
    assert set(resent(group, C)) == {1}
    assert resent(group, B) == []
    assert {
        entry.to for entry in group.sent if isinstance(entry.frame, Data) and entry.frame.repair
    } == {C}
    group.rules.clear()
    group.settle()
    assert group.events_of("a", Acknowledged) == [Acknowledged(ticket)]
    assert got(group, "c", GROUP) == [b"1"]


@pytest.mark.behaviour("OL-20")
@pytest.mark.parametrize("profile", REPAIRING)
def test_ol20_what_is_not_to_be_acknowledged_is_not_sent_again_with_it(profile: str) -> None:
    group = Group(2, profile=profile, ack_threshold=1000)
    group.send("a", b"plain")
    group.lose(Ack, by="b")
    group.send("a", b"acknowledged", mode=ACKNOWLEDGED)
    group.run_for(100 * MS)
    assert set(resent(group, B)) == {2}


@pytest.mark.behaviour("OL-20")
@pytest.mark.parametrize("profile", REPAIRING)
def test_ol20_a_lost_ack_comes_again_and_the_message_is_delivered_once(profile: str) -> None:
    group = Group(2, profile=profile)
    group.lose(Vote)  # or stability would say so as well
    group.lose(Ack, by="b", times=2)
    ticket = group.send("a", b"1", mode=ACKNOWLEDGED).ticket
    group.run_for(SECOND)
    assert group.events_of("a", Acknowledged) == [Acknowledged(ticket)]
    assert got(group, "b", GROUP) == [b"1"]


@pytest.mark.behaviour("OL-02", "OL-20")
@pytest.mark.parametrize("profile", ["nakack", "ordered", "classic"])
def test_what_is_stable_is_acknowledged_whatever_became_of_the_acks(profile: str) -> None:
    """All have delivered it, by their votes; a purged message cannot be resent for an ack."""
    group = settled(2, profile)
    group.lose(Ack)
    ticket = group.send("a", b"1", mode=ACKNOWLEDGED).ticket
    group.settle(5 * SECOND)
    assert group.events_of("a", Acknowledged) == [Acknowledged(ticket)]


@pytest.mark.behaviour("OL-20")
@pytest.mark.parametrize("profile", GROUP_PROFILE_NAMES)
def test_s58_it_is_complete_when_the_last_laggard_leaves(profile: str) -> None:
    """S-58, V-10."""
    group = Group(3, profile=profile)
    group.lose(Data, to="c")
    ticket = group.send("a", b"1", mode=ACKNOWLEDGED).ticket
    group.run_for(50 * MS)
    assert group.events_of("a", Acknowledged) == []
    group.install(View.of(2, A, B))
    assert group.events_of("a", Acknowledged) == [Acknowledged(ticket)]
    count = len(resent(group, C))
    group.run_for(2 * SECOND)
    assert len(resent(group, C)) == count


@pytest.mark.behaviour("OL-02")
@pytest.mark.parametrize("profile", GROUP_PROFILE_NAMES)
@pytest.mark.parametrize("loopback", [True, False])
def test_a_member_alone_has_its_acknowledgement_at_once(profile: str, loopback: bool) -> None:
    """M-11."""
    group = Group(1, profile=profile)
    ready = group.send("a", b"1", mode=ACKNOWLEDGED, loopback=loopback)
    assert Acknowledged(ready.ticket) in ready.events
    assert got(group, "a", GROUP) == ([b"1"] if loopback else [])


@pytest.mark.behaviour("OL-02")
@pytest.mark.parametrize("profile", GROUP_PROFILE_NAMES)
def test_m11_what_the_sender_does_not_want_back_is_acknowledged_by_the_others(profile: str) -> None:
    """M-11, S-40."""
    group = Group(2, profile=profile, loopback=False)
    ticket = group.send("a", b"1", mode=ACKNOWLEDGED).ticket
    group.settle()
    assert group.events_of("a", Acknowledged) == [Acknowledged(ticket)]
    assert got(group, "a", GROUP) == []
    assert got(group, "b", GROUP) == [b"1"]


@pytest.mark.behaviour("OL-02")
@pytest.mark.parametrize("profile", GROUP_PROFILE_NAMES)
def test_a_message_in_pieces_can_be_acknowledged(profile: str) -> None:
    group = Group(2, profile=profile, max_frame_bytes=256)
    ticket = group.send("a", b"x" * 2000, mode=ACKNOWLEDGED).ticket
    group.settle()
    assert group.events_of("a", Acknowledged) == [Acknowledged(ticket)]
    assert got(group, "b", GROUP) == [b"x" * 2000]


@pytest.mark.behaviour("OL-02")
@pytest.mark.parametrize("profile", GROUP_PROFILE_NAMES)
def test_an_acknowledged_send_that_is_given_up_is_not_reported_again(profile: str) -> None:
    group = Group(2, profile=profile, capacity=1, max_seqno_ahead=1)
    group.lose(Ack, Vote)
    group.send("a", b"1")
    ticket = group.send("a", b"2", mode=ACKNOWLEDGED, timeout_ns=10 * MS).ticket
    group.run_for(20 * MS)
    assert group.events_of("a", GivenUp) == [GivenUp(ticket, 0, "timeout")]
    group.rules.clear()
    group.settle()
    assert group.events_of("a", Acknowledged) == []


@pytest.mark.behaviour("OL-02", "OL-21")
@pytest.mark.parametrize("unicast", UNICAST_PROFILE_NAMES)
def test_acknowledged_to_one_member(unicast: str) -> None:
    group = Group(2, unicast=unicast)
    group.lose(Data, by="a", times=1)
    ticket = group.send("a", b"1", to=B, mode=ACKNOWLEDGED).ticket
    group.settle()
    assert group.events_of("a", Acknowledged) == [Acknowledged(ticket)]
    assert got(group, "b", UNICAST) == [b"1"]


@pytest.mark.behaviour("OL-20")
@pytest.mark.parametrize("profile", GROUP_PROFILE_NAMES)
def test_acknowledged_to_one_member_that_leaves_ends_unacknowledged(profile: str) -> None:
    group = Group(3, profile=profile)
    group.lose(Data, to="b")
    ticket = group.send("a", b"1", to=B, mode=ACKNOWLEDGED).ticket
    group.run_for(5 * MS)
    group.install(View.of(2, A, C))
    assert group.events_of("a", Unacknowledged) == [Unacknowledged(ticket, (B,))]


@pytest.mark.behaviour("OL-02")
@pytest.mark.parametrize("loopback", [True, False])
def test_acknowledged_to_oneself(loopback: bool) -> None:
    group = Group(2, loopback=loopback)
    ready = group.send("a", b"1", to=A, mode=ACKNOWLEDGED)
    assert Acknowledged(ready.ticket) in ready.events
    assert got(group, "a", UNICAST) == [b"1"]


# Unreliable


@pytest.mark.parametrize("profile", GROUP_PROFILE_NAMES)
def test_unreliable_is_delivered_once_to_all_if_it_arrives(profile: str) -> None:
    """M-03, M-15."""
    group = settled(3, profile)
    ready = group.send("a", b"1", b"2", mode=DeliveryMode.UNRELIABLE)
    assert ready.events == [Accepted(ready.ticket, 0, 0)]
    group.settle()
    for name in "abc":
        assert got(group, name, UNRELIABLE) == [b"1", b"2"]
    assert {type(entry.frame) for entry in group.sent} == {Unreliable}


@pytest.mark.parametrize("profile", GROUP_PROFILE_NAMES)
def test_unreliable_is_never_repaired_and_nobody_asks_for_it(profile: str) -> None:
    """M-15."""
    group = settled(2, profile)
    group.lose(Unreliable)
    group.send("a", b"1", mode=DeliveryMode.UNRELIABLE)
    group.settle()
    assert got(group, "b", UNRELIABLE) == []
    assert len(group.sent) == 1
    assert group["a"].is_quiet


def test_unreliable_comes_as_often_as_it_arrives() -> None:
    """M-15."""
    group = Group(2)
    datagram = group.send("a", b"1", mode=DeliveryMode.UNRELIABLE).transmits[0].datagram
    group.step(B, lambda m: m.receive(datagram, group.now_ns))
    group.settle()
    assert got(group, "b", UNRELIABLE) == [b"1", b"1"]


@pytest.mark.parametrize("profile", GROUP_PROFILE_NAMES)
def test_unreliable_never_waits(profile: str) -> None:
    """M-15: Neither for a full window, nor behind a gap, nor for the application."""
    group = Group(2, profile=profile, capacity=1, unread_limit=1, max_seqno_ahead=1)
    group.lose(Data)
    group.send("a", b"1")
    group.send("a", b"waits")
    ready = group.send("a", b"now", mode=DeliveryMode.UNRELIABLE, wait=False)
    assert ready.events == [Accepted(ready.ticket, 0, 0)]
    group.run_for(2 * MS)
    assert got(group, "b", UNRELIABLE) == [b"now"]
    assert got(group, "b", GROUP) == []


def test_unreliable_to_one_member_and_to_oneself() -> None:
    """M-15."""
    group = Group(3, loopback=False)
    group.send("a", b"to b", to=B, mode=DeliveryMode.UNRELIABLE)
    group.send("a", b"to a", to=A, mode=DeliveryMode.UNRELIABLE)
    group.send("a", b"to all", mode=DeliveryMode.UNRELIABLE)
    group.settle()
    assert got(group, "a", UNRELIABLE) == [b"to a"]
    assert got(group, "b", UNRELIABLE) == [b"to b", b"to all"]
    assert got(group, "c", UNRELIABLE) == [b"to all"]


def test_unreliable_in_another_name_is_dropped() -> None:
    """M-03."""
    group = Group(3)
    (_, frame) = frames(group.send("a", b"1", mode=DeliveryMode.UNRELIABLE))[0]
    group.receive("b", C, frame)
    assert got(group, "b", UNRELIABLE) == []
    assert group["b"].counters["dropped.origin"] == 1


# All together


@pytest.mark.behaviour("OL-16")
@pytest.mark.parametrize("profile", GROUP_PROFILE_NAMES)
@pytest.mark.parametrize("backwards", [False, True])
def test_s47_modes_mixed_in_one_datagram_are_each_delivered_once(
    profile: str, backwards: bool
) -> None:
    """S-47, M-15."""
    group = Group(2, profile=profile)
    parts: list[Any] = []
    for mode in DeliveryMode:
        parts += (
            frame
            for _, frame in frames(group.members[A].send([mode.encode()], group.now_ns, mode=mode))
        )
    assert {type(part) for part in parts} == {Data, OutOfBand, Unreliable}
    if backwards:
        parts.reverse()
    group.receive("b", A, *parts)
    assert got(group, "b", GROUP) == [b"ordered", b"acknowledged"]
    assert got(group, "b", OUT_OF_BAND) == [b"out-of-band"]
    assert got(group, "b", UNRELIABLE) == [b"unreliable"]
    reliable = [part for part in parts if not isinstance(part, Unreliable)]
    group.receive("b", A, *reliable)
    assert len(group.deliveries[B]) == 4


@pytest.mark.behaviour("OL-12")
@pytest.mark.parametrize("profile", GROUP_PROFILE_NAMES)
@pytest.mark.parametrize("to", [None, A, B])
def test_s39_what_the_network_makes_five_of_is_delivered_once(
    profile: str, to: Address | None
) -> None:
    """S-39."""
    group = Group(2, profile=profile)
    for at, mode in enumerate([DeliveryMode.ORDERED, DeliveryMode.OUT_OF_BAND, ACKNOWLEDGED] * 3):
        for transmit in group.send("a", b"%d" % at, to=to, mode=mode).transmits:
            for _ in range(4):
                group.step(B, lambda m, d=transmit.datagram: m.receive(d, group.now_ns))  # type: ignore[misc]
    group.settle()
    in_order = [b"0", b"2", b"3", b"5", b"6", b"8"]
    for name in "ab" if to is None else "a" if to == A else "b":
        assert got(group, name, GROUP if to is None else UNICAST) == in_order
        assert sorted(got(group, name, OUT_OF_BAND)) == [b"1", b"4", b"7"]


@pytest.mark.parametrize("profile", GROUP_PROFILE_NAMES)
def test_s40_the_sender_gets_exactly_what_it_wants_back(profile: str) -> None:
    """S-40, M-11."""
    group = Group(2, profile=profile)
    for at in range(12):
        mode = DeliveryMode.OUT_OF_BAND if at % 3 == 0 else DeliveryMode.ORDERED
        group.send("a", b"%02d" % at, mode=mode, loopback=at % 2 == 0)
    group.settle()
    everything = [b"%02d" % at for at in range(12)]
    assert sorted(got(group, "a", GROUP) + got(group, "a", OUT_OF_BAND)) == everything[::2]
    assert sorted(got(group, "b", GROUP) + got(group, "b", OUT_OF_BAND)) == everything


@pytest.mark.behaviour("OL-11")
@pytest.mark.parametrize("mode", [DeliveryMode.OUT_OF_BAND, DeliveryMode.UNRELIABLE])
def test_what_does_not_fit_one_frame_is_an_error_that_says_so(mode: DeliveryMode) -> None:
    """M-15."""
    group = Group(2, max_frame_bytes=256)
    with pytest.raises(
        LocalProtocolError, match=rf"300 bytes exceeds the limit of an {mode} message"
    ) as told:
        group.send("a", b"x" * 300, mode=mode)
    limit = int(str(told.value).rpartition("(")[2].removesuffix(" bytes)"))
    group.send("a", b"x" * limit, mode=mode)  # the driver checks that it fits the path
    group.settle()
    assert len(group.deliveries[B]) == 1


# Properties


@pytest.mark.behaviour("OL-19")
def test_ol19_properties_are_names_and_values_between_semicolons() -> None:
    config = Config.from_properties(
        "profile=classic;xmit_interval=300;loopback=false;max_out_of_band=7"
    )
    assert config.profile == "classic"
    assert config.xmit_interval_ns == 300 * MS
    assert config.loopback is False
    assert config.max_out_of_band == 7
    assert config.window == "growing"  # what the profile sets


@pytest.mark.behaviour("OL-19")
@pytest.mark.parametrize(
    "line",
    ["profile=classic;retransmit_timeouts=5", "profile=klassic", "profile", "=1", "loopback="],
)
def test_ol19_an_unknown_name_or_value_is_an_error(line: str) -> None:
    with pytest.raises(ConfigError):
        Config.from_properties(line)
