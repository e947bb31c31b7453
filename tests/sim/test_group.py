"""NAKACK4 in a simulated group; the ids are those of its behaviours."""

import itertools
from collections.abc import Callable

import pytest

from gapless.config import Config
from gapless.errors import ConfigError, LocalProtocolError
from gapless.protocol.events import (
    Accepted,
    Acknowledged,
    Discarded,
    GivenUp,
    Lost,
    Refused,
    SlowReceivers,
)
from gapless.sim import SimulatedGroup, World
from gapless.sim.group import MEMBER_SETTINGS
from gapless.sim.scenario.frame_pattern import FramePattern
from gapless.sim.scenario.grammar import show_script
from gapless.sim.script import (
    ApplyDigest,
    InstallView,
    SaveDigest,
    Script,
    SendMessages,
    StartProcess,
    initial_actions,
)
from gapless.units import NS_PER_MS

Make = Callable[..., SimulatedGroup]


def numbered(count: int) -> list[bytes]:
    return [b"%d" % number for number in range(1, count + 1)]


def test_the_story_of_the_readme(gapless_group: Make) -> None:
    group = gapless_group(3, capacity=4)
    group.drop("DATA 1 a->b")
    group.a.send(b"x")
    group.settle()
    assert group.b.received == {"a": [b"x"]}
    assert group.c.received == group.a.received == {"a": [b"x"]}


# The window


def test_n4_02_the_marks_of_a_sender(gapless_group: Make) -> None:
    group = gapless_group(2, ack_threshold=3)
    group.a.send(b"1", b"2")
    assert group.a.marks["a"] == (0, 2, 2), "sent and delivered at home, acknowledged by nobody"
    group.settle()
    assert group.a.marks["a"] == (2, 2, 2)


def test_n4_03_the_marks_of_a_receiver(gapless_group: Make) -> None:
    group = gapless_group(2)
    group.drop("DATA 2 a->b")
    for message in numbered(4):
        group.a.send(message)
    group.run_for("1ms")
    assert group.b.marks["a"] == (1, 1, 4), "low is delivered; high is what came"


def test_n4_06_a_full_window_makes_the_sender_wait(gapless_group: Make) -> None:
    group = gapless_group(2, capacity=2)
    group.a.send(*numbered(5))
    assert group.a.marks["a"].high == 2
    assert not any(isinstance(event, Accepted) for event in group.a.events)
    group.settle()
    assert group.b.received == {"a": numbered(5)}
    assert Accepted(1, 1, 5) in group.a.events


def test_n4_08_what_is_there_is_not_taken_again(gapless_group: Make) -> None:
    group = gapless_group(2)
    group.duplicate("DATA 1 a->b", after="5ms")
    group.a.send(b"once")
    group.settle()
    group.run_for("20ms")
    assert group.b.received == {"a": [b"once"]}
    assert group.b.member.counters["dropped.old"] == 1


def test_n4_41_a_window_of_one_carries_everything(gapless_group: Make) -> None:
    group = gapless_group(3, capacity=1)
    group.drop("DATA 7 a->c")
    group.a.send(*numbered(20))
    group.settle()
    assert group.c.received == {"a": numbered(20)}


# Sending


def test_n4_14_waiting_sends_go_on_in_the_order_they_came(gapless_group: Make) -> None:
    group = gapless_group(2, capacity=1)
    for message in numbered(6):
        group.a.send(message)
    group.settle()
    assert group.b.received["a"] == numbered(6)
    assert [event.ticket for event in group.a.events if isinstance(event, Accepted)] == [
        1,
        2,
        3,
        4,
        5,
        6,
    ]


def test_a_send_that_must_not_wait_is_taken_whole_or_not_at_all(gapless_group: Make) -> None:
    group = gapless_group(2, capacity=3)
    group.a.send(b"1", b"2", wait=False)
    group.a.send(b"3", b"4", wait=False)
    assert Refused(2) in group.a.events
    group.settle()
    assert group.b.received == {"a": [b"1", b"2"]}


def test_a_cancelled_send_leaves_no_hole(gapless_group: Make) -> None:
    group = gapless_group(2, capacity=1)
    group.a.send(b"1")
    second = group.a.send(b"2")
    group.a.send(b"3")
    group.a.cancel(second)
    group.settle()
    assert group.b.received == {"a": [b"1", b"3"]}
    assert group.a.marks["a"].high == 2


def test_a_send_times_out_while_a_member_stands_still(gapless_group: Make) -> None:
    group = gapless_group(2, capacity=1)
    group.pause("b")
    group.a.send(b"1")
    group.a.send(b"2", timeout="50ms")
    group.run_for("100ms")
    assert GivenUp(2, 0, "timeout") in group.a.events
    group.resume("b")
    group.settle()
    assert group.b.received == {"a": [b"1"]}


def test_a_large_message_travels_in_pieces(gapless_group: Make) -> None:
    group = gapless_group(2, capacity=3, max_frame_bytes="256B")
    large = bytes(range(256)) * 8
    group.drop("DATA 4 a->b")
    group.a.send(b"before", large, b"after")
    group.settle()
    assert group.b.received == {"a": [b"before", large, b"after"]}


# Receiving, acks


def test_n4_18_a_gap_stops_delivery_until_it_is_filled(gapless_group: Make) -> None:
    group = gapless_group(2)
    group.delay("DATA 1 a->b", by="3ms")
    group.a.send(b"1")
    group.a.send(b"2")
    group.run_for("2ms")
    assert group.b.received == {}
    group.run_for("2ms")
    assert group.b.received == {"a": [b"1", b"2"]}


def test_n4_20_acks_go_out_after_so_many_messages_or_so_much_time(gapless_group: Make) -> None:
    group = gapless_group(2, ack_threshold=3, ack_delay="10ms")
    group.a.send(*numbered(3))
    group.run_for("2ms")
    assert group.a.marks["a"].low == 3, "at once after three"
    group.a.send(b"4")
    group.run_for("5ms")
    assert group.a.marks["a"].low == 3
    group.run_for("10ms")
    assert group.a.marks["a"].low == 4, "and for fewer after the delay"


def test_n4_22_a_lost_ack_is_repaired_by_an_announcement(gapless_group: Make) -> None:
    group = gapless_group(2, ack_threshold=1)
    group.drop("ACK 1 b->a")
    group.a.send(b"x")
    group.settle()
    assert group.a.marks["a"].low == 1


def test_n4_25_nothing_is_purged_while_one_member_has_not_acknowledged(gapless_group: Make) -> None:
    group = gapless_group(3, ack_threshold=1)
    group.drop("ACK c->a", times=3)
    group.a.send(b"x")
    group.run_for("10ms")
    assert group.a.marks["a"].low == 0
    group.settle()
    assert group.a.marks["a"].low == 1


def test_n4_23_an_old_ack_that_comes_late_changes_nothing(gapless_group: Make) -> None:
    group = gapless_group(2, ack_threshold=1)
    group.hold("ACK 1 b->a", until="40ms")
    group.a.send(b"1")
    group.a.send(b"2")
    group.settle()
    group.run_for("50ms")
    assert group.a.marks["a"].low == 2


# Retransmission


def test_n4_31_every_gap_is_asked_for_and_repaired(gapless_group: Make) -> None:
    group = gapless_group(2)
    group.drop("DATA 2 a->b")
    group.drop("DATA 5 a->b")
    for message in numbered(6):
        group.a.send(message)
    group.settle()
    assert group.b.received == {"a": numbered(6)}
    assert group.a.member.counters["sent.data"] == 6 + 2


def test_a_lost_repair_is_asked_for_again(gapless_group: Make) -> None:
    group = gapless_group(2)
    group.drop("DATA 1 a->b")
    group.drop("REPAIR 1 a->b", times=2)
    group.a.send(b"x")
    group.settle()
    assert group.b.received == {"a": [b"x"]}


def test_r09_a_lost_tail_is_found_by_the_announcement(gapless_group: Make) -> None:
    group = gapless_group(2)
    group.drop("DATA 3..5 a->b", times=3)
    group.drop("TAIL a->b", times=2)
    for message in numbered(5):
        group.a.send(message)
    group.settle()
    assert group.b.received == {"a": numbered(5)}


def test_reordered_frames_cost_no_nak(gapless_group: Make) -> None:
    group = gapless_group(2, min_grace="5ms")
    group.delay("DATA 1 a->b", by="3ms")
    group.a.send(b"1")
    group.a.send(b"2")
    group.settle()
    assert "received.nak" not in group.a.member.counters


def test_a_fresh_gap_has_its_grace_while_another_is_asked_for(gapless_group: Make) -> None:
    """2 is lost and requested repeatedly; 4 is only late, and arrives within its grace."""
    group = gapless_group(2, min_grace="10ms", min_retry="4ms", initial_rtt="1ms", jitter_percent=0)
    group.drop("DATA 2 a->b")
    group.drop("REPAIR 2 a->b", times=3)
    group.delay("DATA 4 a->b", by="8ms")
    group.a.send(b"1")
    group.a.send(b"2")
    group.a.send(b"3")
    group.run_for("12ms")
    group.a.send(b"4")
    group.a.send(b"5")
    group.settle()
    assert group.b.received == {"a": numbered(5)}
    assert "REPAIR a4" not in group.diagram()


def test_a_round_trip_that_was_guessed_too_short_is_found_out(gapless_group: Make) -> None:
    """The first loss costs several naks, because answers take long; later ones cost one each."""
    group = gapless_group(2, delay="20ms", initial_rtt="1ms", min_retry="1ms", jitter_percent=0)
    naks = []
    for round_number in range(6):
        group.drop(f"DATA {2 * round_number + 1} a->b")
        group.a.send(b"lost")
        group.a.send(b"there")
        group.settle()
        group.run_for("200ms")
        naks.append(group.a.member.counters["received.nak"])
    assert naks[0] > 1
    assert [after - before for before, after in itertools.pairwise(naks)][-3:] == [1, 1, 1]


# Views


def test_n4_29_a_view_without_the_dead_one_releases_the_sender(gapless_group: Make) -> None:
    group = gapless_group(3, capacity=2)
    group.crash("c")
    group.a.send(*numbered(5))
    group.run_for("200ms")
    assert group.b.received == {"a": [b"1", b"2"]}
    group.expel("c")
    group.settle()
    assert group.b.received == {"a": numbered(5)}


def test_p03_the_member_that_pins_the_window_is_named(gapless_group: Make) -> None:
    group = gapless_group(3, capacity=2, slow_receiver_after="100ms")
    group.crash("c")
    group.a.send(*numbered(3))
    group.run_for("150ms")
    pinned = [event for event in group.a.events if isinstance(event, SlowReceivers)]
    assert [(event.members, event.low) for event in pinned] == [
        ((group.world.hosts["c"].address,), 0)
    ]


def test_n4_30_a_joiner_starts_where_each_sender_says(gapless_group: Make) -> None:
    group = gapless_group(2)
    group.a.send(b"before")
    group.settle()
    group.join("c")
    group.a.send(b"after")
    group.c.send(b"hello")
    group.settle()
    assert group.c.received == {"a": [b"after"], "c": [b"hello"]}
    assert group.b.received == {"a": [b"before", b"after"], "c": [b"hello"]}


def test_p01_a_join_under_loss_stalls_nobody(gapless_group: Make) -> None:
    group = gapless_group(2, capacity=2)
    group.drop("TAIL a->c", times=2)
    group.drop("NAK c->a", times=2)
    group.a.send(*numbered(6))
    group.join("c")
    group.a.send(b"later")
    group.settle()
    assert group.c.received["a"][-1] == b"later"
    assert group.b.received == {"a": [*numbered(6), b"later"]}


def test_n4_38_messages_of_a_departed_member_are_dropped(gapless_group: Make) -> None:
    group = gapless_group(3)
    group.delay("DATA 1 c->a", by="50ms")
    group.delay("DATA 1 c->b", by="50ms")
    group.c.send(b"too late")
    group.leave("c")
    group.settle()
    group.run_for("100ms")
    assert group.a.received == {}
    assert group.a.member.counters["dropped.stranger"] == 1


def test_i08_what_a_departed_member_left_behind_a_gap_is_counted(gapless_group: Make) -> None:
    group = gapless_group(3)
    group.drop("DATA 2 c->a", times=1)
    for message in numbered(4):
        group.c.send(message)
    group.run_for("1ms")
    group.leave("c")
    group.settle()
    assert group.a.received == {"c": [b"1"]}
    assert (
        next(event for event in group.a.events if isinstance(event, Discarded)).message_count == 2
    )


def test_p02_a_new_incarnation_begins_a_new_stream(gapless_group: Make) -> None:
    group = gapless_group(2)
    group.hold("DATA 2 a->b", until="80ms")
    group.a.send(b"old 1")
    group.a.send(b"old 2")
    group.run_for("1ms")
    group.restart("a")
    group.a.send(b"new")
    group.settle()
    group.run_for("100ms")
    assert group.b.received == {"a": [b"old 1"], "a'": [b"new"]}
    assert group.b.member.counters["dropped.incarnation"] >= 1


def test_p05_a_life_that_comes_back_gets_nothing_twice(gapless_group: Make) -> None:
    """It was expelled during a pause, and readmitted as the same incarnation."""
    group = gapless_group(3)
    group.c.send(b"1", b"2")
    group.settle()
    group.pause("c")
    group.expel("c")
    group.a.send(b"meanwhile")
    group.run_for("50ms")
    group.resume("c")
    group.readmit("c")
    group.c.send(b"3")
    group.a.send(b"again")
    group.settle()
    assert group.a.received == {"c": [b"1", b"2", b"3"], "a": [b"meanwhile", b"again"]}
    assert group.c.received["a"][-1] == b"again"


def test_n4_36_a_digest_without_a_view_starts_the_streams(
    gapless_world: Callable[..., World],
) -> None:
    names = ("a", "b", "c")
    script = Script(
        actions=[
            *initial_actions(("a", "b")),
            SendMessages(1, "a", (b"before",)),
            SaveDigest(50 * NS_PER_MS, "b", "k"),
            StartProcess(60 * NS_PER_MS, "c"),
            *(InstallView(60 * NS_PER_MS, name, 2, names) for name in names),
            ApplyDigest(60 * NS_PER_MS, "c", "k"),
            SendMessages(61 * NS_PER_MS, "a", (b"after",)),
        ]
    )
    world = gapless_world(Config(), script, keep_payloads=True, trace=True)
    world.run()
    assert world.hosts["c"].received == {"a": [b"after"]}


def test_one_who_is_not_counted_yet_may_miss_something_and_is_told(gapless_group: Make) -> None:
    """P-01: messages purged before the sender counted the joiner are reported as lost."""
    group = gapless_group(2)
    group.a.send(*numbered(3))
    group.settle()
    group.join("c")
    group.settle()
    assert not any(isinstance(event, Lost) for event in group.c.events)
    assert "a" not in group.c.received


# Partition, pause, slow reader


def test_a_partition_heals_with_both_sides_behind(gapless_group: Make) -> None:
    group = gapless_group(4)
    group.partition("a", "b")
    for node in group:
        node.send(node.name.encode())
    group.run_for("100ms")
    assert group.c.received == {"c": [b"c"], "d": [b"d"]}
    group.heal()
    group.settle()
    assert all(node.received == {name: [name.encode()] for name in "abcd"} for node in group)


def test_one_way_only_is_a_partition_too(gapless_group: Make) -> None:
    group = gapless_group(2)
    group.partition("a", symmetric=False)
    group.a.send(b"1")
    group.b.send(b"2")
    group.run_for("50ms")
    assert group.b.received == {"b": [b"2"]}
    assert group.a.received == {"a": [b"1"], "b": [b"2"]}
    group.heal()
    group.settle()
    assert group.b.received == {"b": [b"2"], "a": [b"1"]}


def test_m16_a_slow_reader_slows_the_sender(gapless_group: Make) -> None:
    group = gapless_group(2, capacity=4, unread_limit=2, loopback=False)
    group.b.set_read_delay("10ms")
    group.a.send(*numbered(12))
    group.run_for("5ms")
    assert group.b.received == {"a": numbered(2)}
    assert group.a.marks["a"].high <= 6
    group.settle()
    assert group.b.received == {"a": numbered(12)}
    assert group.now_ns > 80_000_000


def test_a_member_that_stood_still_catches_up(gapless_group: Make) -> None:
    group = gapless_group(3, receive_buffer_bytes="1KiB")
    group.pause("b")
    for message in numbered(40):
        group.a.send(message)
        group.run_for("1ms")
    group.resume("b")
    group.settle()
    assert group.b.received == {"a": numbered(40)}


# The tool itself


def test_a_broken_promise_fails_with_the_diagram() -> None:
    group = SimulatedGroup(2)
    group.a.send(b"x")
    group.world.oracle.report("S1", "planted")
    with pytest.raises(AssertionError, match=r"S1 at(.|\n)*DATA a1"):
        group.settle()


def test_a_story_is_a_script_that_can_be_played_again(
    gapless_group: Make, gapless_world: Callable[..., World]
) -> None:
    group = gapless_group(3, capacity=2)
    group.drop("DATA 2 a->b")
    group.a.send(*numbered(5))
    group.run_for("30ms")
    group.pause("c")
    group.b.send(b"hello")
    group.run_for("30ms")
    group.resume("c")
    group.restart("b")
    group.settle()
    world = gapless_world(group.config, group.script(), keep_payloads=True)
    world.run()
    assert {name: host.received for name, host in world.hosts.items()} == {
        node.name: node.received for node in group
    }


def test_a_rule_that_never_strikes_is_an_error_of_the_test(gapless_group: Make) -> None:
    group = gapless_group(2)
    group.drop("DATA 9 a->b")
    group.a.send(b"x")
    with pytest.raises(AssertionError, match="DATA 9 a->b"):
        group.settle()


def test_a_group_that_cannot_settle_says_so(gapless_group: Make) -> None:
    group = gapless_group(2)
    group.partition("a")
    group.a.send(b"x")
    with pytest.raises(AssertionError, match="did not settle within 2s"):
        group.settle(within="2s")


def test_members_are_found_by_name(gapless_group: Make) -> None:
    group = gapless_group("x y")
    assert group.x is group["x"]
    with pytest.raises(AttributeError, match="the members are x, y"):
        _ = group.z


@pytest.mark.parametrize("text", ["", "DATA a->", "data 1", "FOO 1 a->b", "DATA 1 a->b #x"])
def test_what_is_no_pattern_is_said_so(text: str) -> None:
    with pytest.raises(ValueError, match="not a pattern of frames"):
        FramePattern.parse(text)


def test_the_name_of_0_1_still_works_with_a_warning() -> None:
    import gapless.sim

    with pytest.warns(DeprecationWarning, match="SimulatedGroup"):
        assert gapless.sim.Group is gapless.sim.SimulatedGroup
    with pytest.raises(AttributeError, match="Nobody"):
        _ = gapless.sim.Nobody


# Mistakes of a test, and what the kit offers beside loss


@pytest.mark.parametrize(
    ("members", "error", "words"),
    [
        (0, ValueError, "a group needs a member, not 0: write 3, or 'a b c'"),
        ("", ValueError, "a group needs a member"),
        (2.5, TypeError, "members are a number or names, not float"),
        ("a a", ValueError, "names of members are distinct"),
        ("A b", ValueError, "letters from a to z"),
    ],
)
def test_a_group_that_cannot_be_is_refused(
    members: int | str, error: type[Exception], words: str
) -> None:
    with pytest.raises(error, match=words):
        SimulatedGroup(members)


def test_a_setting_that_does_not_exist_is_refused() -> None:
    with pytest.raises(ConfigError, match="capicity"):
        SimulatedGroup(2, capicity=4)


def test_a_message_to_nobody_is_refused(gapless_group: Make) -> None:
    group = gapless_group(3)
    with pytest.raises(LookupError, match="no member 'z' in this group; the members are a, b, c"):
        group.a.send(b"x", to="z")
    group.expel("c")
    with pytest.raises(LookupError, match="c is not in the view of a, which has a, b"):
        group.a.send(b"x", to="c")
    with pytest.raises(TypeError, match="a message is bytes, not str"):
        group.a.send("x")  # type: ignore[arg-type]
    with pytest.raises(LocalProtocolError, match="'quick' is not a delivery mode"):
        group.a.send(b"x", mode="quick")


def test_a_member_that_does_not_run_cannot_act(gapless_group: Make) -> None:
    group = gapless_group(3)
    group.crash("c")
    for act in (
        lambda: group.c.send(b"x"),
        lambda: group.c.set_xmit_interval("1s"),
        lambda: group.crash("c"),
        lambda: group.c.close_connection("a"),
    ):
        with pytest.raises(LookupError, match=r"c is not running: .* group.restart\('c'\)"):
            act()
    group.expel("c")
    with pytest.raises(LookupError, match="c is not in the view"):
        group.expel("c")
    with pytest.raises(LookupError, match="there is no send 1"):
        group.a.cancel(1)
    for name in ("crash", "expel", "pause", "partition", "leave", "restart"):
        with pytest.raises(LookupError, match="no member 'z' in this group"):
            getattr(group, name)("z")


def test_a_fault_that_never_strikes_fails_a_test_that_does_not_settle() -> None:
    group = SimulatedGroup(2)
    group.drop("DATA 9 a->b", times=2)
    group.a.send(b"x")
    group.run_for("1s")
    with pytest.raises(AssertionError, match=r"drop\('DATA 9 a->b'\) changed 0 of 2 frames"):
        group.verify_faults()
    with pytest.raises(ValueError, match="times=0 changes no frame"):
        group.drop("DATA", times=0)


def test_a_fault_is_undone(gapless_group: Make) -> None:
    group = gapless_group(2)
    never, every = group.drop("DATA 9 a->b"), group.drop("* a->b", times=None)
    group.a.send(b"x")
    group.run_for("1s")
    assert group.b.received == {}
    assert every.struck > 1
    every.undo()
    never.undo()
    never.undo()
    group.settle()
    assert group.b.received == {"a": [b"x"]}


def test_a_member_that_has_left_joins_as_a_new_incarnation(gapless_group: Make) -> None:
    group = gapless_group(3)
    group.c.send(b"before")
    group.settle()
    group.leave("c")
    node = group.join("c")
    assert node is group.c
    assert group.c.incarnation_name == "c'"
    group.c.send(b"after")
    group.settle()
    assert group.a.received == {"c": [b"before"], "c'": [b"after"]}
    assert group.c.received == {"c'": [b"after"]}
    with pytest.raises(LookupError, match=r"c is running; restart\('c'\) replaces its process"):
        group.join("c")
    group.crash("c")
    assert group.restart("c").incarnation_name == "c''"


def test_a_crashed_member_is_expelled_by_the_group_if_asked(gapless_group: Make) -> None:
    group = gapless_group(3, capacity=2)
    group.crash("c", expel_after="2s")
    for number in range(6):
        group.a.send(b"%d" % number)
    group.run_for("1s")
    assert len(group.b.received["a"]) < 6, "the window waits for c"
    group.settle()
    assert group.now_ns >= 2_000_000_000
    assert len(group.b.received["a"]) == 6
    assert [len(node.member.view.members) for node in (group.a, group.b)] == [2, 2]  # type: ignore[union-attr]


def test_messages_have_sender_seqno_mode_and_view(gapless_group: Make) -> None:
    group = gapless_group(2)
    group.a.send(b"1", b"2")
    group.settle()
    group.expel("b")
    group.readmit("b")
    group.a.send(b"3", mode="acknowledged")
    group.a.send(b"4", to="b")
    group.settle()
    assert [(m.sender, m.payload, m.seqno, m.mode) for m in group.b.messages] == [
        ("a", b"1", 1, "ordered"),
        ("a", b"2", 2, "ordered"),
        ("a", b"3", 3, "acknowledged"),
        ("a", b"4", 1, "ordered"),
    ]


def test_one_member_has_settings_of_its_own(gapless_group: Make) -> None:
    group = gapless_group(3, capacity=4, member_settings={"b": {"unread_limit": 1}})
    assert group.b.member.config.unread_limit == 1
    assert group.c.member.config.unread_limit == group.config.unread_limit
    group.a.send(*numbered(20))
    group.settle()
    assert group.b.received == group.c.received
    with pytest.raises(ConfigError, match="capacity of b: members of a simulated group share"):
        SimulatedGroup(3, member_settings={"b": {"capacity": 1}})
    with pytest.raises(LookupError, match="no member 'z' in this group"):
        SimulatedGroup(3, member_settings={"z": {"unread_limit": 1}})


OWN_VALUES: dict[str, object] = {
    "ack_delay": "2s",
    "ack_threshold": 1,
    "conn_close_timeout": "100ms",
    "conn_expiry_timeout": "100ms",
    "initial_rtt": "2s",
    "jitter_percent": 50,
    "max_batch_size": 1,
    "max_out_of_band": 1,
    "max_run_bytes": "1KiB",
    "max_xmit_req_size": 1,
    "min_ack_interval": "1s",
    "slow_receiver_after": "100ms",
    "stability_interval": "10s",
    "sync_min_interval": "5s",
    "unread_limit": 1,
    "whole_runs": True,
}
"""For each setting that may differ a value far from its default."""


@pytest.mark.parametrize("setting", MEMBER_SETTINGS)
def test_the_checks_hold_with_every_setting_that_may_differ(
    setting: str, gapless_group: Make
) -> None:
    own = {setting: OWN_VALUES[setting]}
    group = gapless_group(3, capacity=8, unicast="unicast2", member_settings={"b": own})
    for _ in range(3):
        group.drop("DATA a->b")
        group.a.send(*numbered(12))
        group.b.send(*numbered(12), mode="acknowledged")
        group.c.send(b"x", to="b")
        group.b.send(b"y", b"z", to="a")
        group.b.send(b"o", mode="out-of-band")
        group.run_for("100ms")
    group.settle()
    changed = group.b.member.config
    assert changed == group.config.replace(**own)
    assert changed != group.config == group.a.member.config


def test_retransmission_ends_and_begins_at_run_time(gapless_group: Make) -> None:
    group = gapless_group(2)
    for node in group:
        node.set_xmit_interval("0s")
    group.drop("DATA 1 a->b")
    group.a.send(b"x")
    group.run_for("2s")
    assert group.b.received == {}
    for node in group:
        node.set_xmit_interval("100ms")
    group.settle()
    assert group.b.received == {"a": [b"x"]}


@pytest.mark.behaviour("OL-04")
def test_a_switch_of_the_mode_holds_for_the_next_message_only(gapless_group: Make) -> None:
    group = gapless_group(2, max_seqno_ahead=4, capacity=1)
    group.a.set_next_mode("unreliable")
    group.a.set_next_mode("acknowledged")  # the last switch counts
    group.a.send(b"1", mode="ordered")
    group.a.send(b"2", to="b")
    group.a.send(b"3")
    group.a.send(b"4")
    group.settle()
    assert [(message.payload, str(message.mode)) for message in group.a.messages] == [
        (b"1", "ordered"),
        (b"3", "acknowledged"),
        (b"4", "ordered"),
    ]
    assert [event for event in group.a.events if isinstance(event, Acknowledged)] == [
        Acknowledged(3)
    ]
    assert any("a switches to acknowledged" in line for line in show_script(group.script()))
    group.a.set_next_mode("out-of-band")
    group.restart("a")
    group.a.send(b"5")
    group.settle()
    assert group.b.messages[-1].mode == "ordered", "a switch ends with the incarnation"
    group.crash("a")
    with pytest.raises(LookupError, match="a is not running"):
        group.a.set_next_mode("ordered")
    with pytest.raises(LocalProtocolError, match="'quick' is not a delivery mode"):
        group.b.set_next_mode("quick")


def test_a_switch_waits_while_the_process_is_paused(gapless_group: Make) -> None:
    group = gapless_group(2)
    group.pause("a")
    group.a.set_next_mode("unreliable")
    group.a.send(b"1")
    group.a.send(b"2")
    group.resume("a")
    group.settle()
    assert [str(message.mode) for message in group.b.messages] == ["unreliable", "ordered"]


def test_a_connection_is_closed(gapless_group: Make) -> None:
    group = gapless_group(2, conn_close_timeout="1s")
    group.a.send(b"x", to="b")
    group.settle()
    group.a.close_connection("b")
    group.run_for("3s")
    assert not group.a.member.connections.outgoing
    group.a.send(b"y", to="b")
    group.settle()
    assert [message.payload for message in group.b.messages] == [b"x", b"y"]


def test_a_view_reaches_one_member_first(gapless_group: Make) -> None:
    group = gapless_group(3)
    group.install_view("a", "b", only=("a",))
    assert [len(node.member.view.members) for node in group] == [2, 3, 3]  # type: ignore[union-attr]
    group.install_view("a", "b")
    assert [len(node.member.view.members) for node in group] == [2, 2, 3]  # type: ignore[union-attr]
    group.a.send(b"x")
    group.settle()
    assert group.b.received == {"a": [b"x"]}
