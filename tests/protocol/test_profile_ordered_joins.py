"""Profile ``ordered``: data before the first view, and switching retransmission."""

from random import Random

import pytest

from gapless.config import Config
from gapless.errors import ConfigError
from gapless.identity import Marks, View
from gapless.protocol.events import Lost, Stalled, Started
from gapless.protocol.ready_builder import ReadyBuilder
from gapless.protocol.stream.inbound import InboundStream
from gapless.run import Run
from gapless.wire.frames import Data, Nak, Tail
from tests.support.ordered_profile import (
    drops,
    joining,
    numbers,
    ordered,
    retransmissions,
    singles,
    switch,
)
from tests.support.virtual_group import GROUP, MS, SECOND, A, B, C, Group

# Before being a member


@pytest.mark.behaviour("NR-11", "NR-10", "NR-08", "I-16", "I-17")
@pytest.mark.parametrize("with_digest", [True, False])
def test_the_worked_case_of_a_join_at_100_with_70_messages_on_their_way(with_digest: bool) -> None:
    """c delivers 101 to 170, then 171 and so on; nothing is sent twice and nothing asked for."""
    group = joining()
    digest = group["a"].digest()
    assert digest[B] == Marks(100, 100, 100)
    group.install(View.of(2, A, B, C), [A, B])
    singles(group, "b", 101, 170)
    group.run_for(10 * MS)
    assert group.messages("c", "b") == []
    assert len(group["c"].future_view_buffer) >= 70
    group.install(View.of(2, A, B, C), [C], digest=digest if with_digest else None)
    assert group.messages("c", "b") == numbers(101, 170)
    singles(group, "b", 171, 175)
    group.settle()
    assert group.messages("c", "b") == numbers(101, 175)
    assert group.messages("a", "b") == numbers(1, 175)
    assert group.frames(Nak) == []
    assert [frame for frame in group.frames(Data) if frame.repair] == []
    assert group.events_of("c", Stalled) == []
    assert group.events_of("c", Lost) == []
    assert drops(group, "c") == {}


@pytest.mark.behaviour("NR-08", "NR-10")
@pytest.mark.parametrize("named", [True, False])
def test_the_messages_of_a_joiner_reach_those_that_were_not_given_its_start(named: bool) -> None:
    """There are no start requests, so the sender announces a start that no digest has."""
    group = joining()
    digest = group["a"].digest() | ({C: Marks(0, 0, 0)} if named else {})
    group.install(View.of(2, A, B, C), [A, B], digest=digest)
    if not named:
        assert C not in group["a"].digest()
    group.install(View.of(2, A, B, C), [C], digest=digest)
    group.send("c", b"1")
    group.settle()
    assert group.messages("a", "c") == group.messages("b", "c") == [b"1"]


@pytest.mark.behaviour("NR-09", "NR-11", "I-17")
def test_with_retransmission_the_queue_is_bounded_and_the_rest_is_repaired() -> None:
    """Fifty are buffered, the start of b among them; which ones are dropped does not matter."""
    group = joining("nakack")
    digest = group["a"].digest()
    group.install(View.of(2, A, B, C), [A, B])
    singles(group, "b", 101, 170)
    group.run_for(10 * MS)
    assert len(group["c"].future_view_buffer) == 50
    group.install(View.of(2, A, B, C), [C], digest=digest)
    group.settle()
    assert group.messages("c", "b") == numbers(101, 170)
    assert group.frames(Nak, "c")


@pytest.mark.behaviour("NR-08")
def test_what_was_sent_before_the_view_of_the_joiner_is_not_for_it() -> None:
    """P-17: it received them, but b did not count it yet."""
    group = joining()
    singles(group, "b", 101, 110)
    group.run_for(10 * MS)
    group.install(View.of(2, A, B, C))
    singles(group, "b", 111, 120)
    group.settle()
    assert group.messages("c", "b") == numbers(111, 120)
    assert Started(B, 110) in group.events_of("c", Started)


@pytest.mark.behaviour("NR-10")
def test_what_comes_before_the_start_of_a_stream_is_kept_whole() -> None:
    """c has its view; b's start is late."""
    group = joining()
    rule = group.lose(Tail, by="b")
    group.install(View.of(2, A, B, C))
    singles(group, "b", 101, 300)
    group.run_for(10 * MS)
    assert group.messages("c", "b") == []
    group.rules.remove(rule)
    group.settle()
    assert group.messages("c", "b") == numbers(101, 300)
    assert drops(group, "c") == {}


@pytest.mark.behaviour("NR-10")
def test_what_comes_of_a_member_to_be_is_kept_by_members_too() -> None:
    """a installs the view later than c, who sends at once: more than a bounded queue holds."""
    group = joining()
    group.install(View.of(2, A, B, C), [B, C])
    singles(group, "c", 1, 200)
    group.run_for(10 * MS)
    group.install(View.of(2, A, B, C), [A])
    group.settle()
    assert group.messages("a", "c") == numbers(1, 200)
    assert drops(group, "a") == {}


@pytest.mark.behaviour("NR-10")
def test_what_comes_of_a_member_that_returns_is_kept_too() -> None:
    """An incarnation is removed and readmitted; a receives its data before that view."""
    group = ordered(3)
    group.send("b", b"1")
    group.settle()
    digest = group["c"].digest()
    group.install(View.of(2, A, C), [A])
    group.install(View.of(3, A, B, C), [B, C])
    group.send("b", b"2")
    group.run_for(10 * MS)
    group.install(View.of(3, A, B, C), [A], digest=digest)
    group.settle()
    assert group.messages("a", "b") == numbers(1, 2)
    assert drops(group, "a") == {}


@pytest.mark.behaviour("NR-09", "NR-20")
@pytest.mark.parametrize("size", [0, 1, 7, 50])
def test_the_size_of_the_queue_is_what_was_set(size: int) -> None:
    """Zero buffers nothing; everything is repaired."""
    group = joining("nakack", become_server_queue_size=size)
    group.install(View.of(2, A, B, C), [A, B])
    singles(group, "b", 101, 170)
    group.run_for(10 * MS)
    assert len(group["c"].future_view_buffer) == size
    group.install(View.of(2, A, B, C), [C])
    group.settle()
    assert group.messages("c", "b") == numbers(101, 170)


@pytest.mark.behaviour("NR-20", "NR-10")
def test_without_retransmission_everything_is_kept_whatever_the_size_says() -> None:
    group = joining(become_server_queue_size=0)
    group.install(View.of(2, A, B, C), [A, B])
    singles(group, "b", 101, 170)
    group.run_for(10 * MS)
    group.install(View.of(2, A, B, C), [C])
    group.settle()
    assert group.messages("c", "b") == numbers(101, 170)


@pytest.mark.behaviour("NR-20")
def test_the_queue_holds_fifty_runs_by_default_and_a_negative_size_is_an_error() -> None:
    """The chosen reading: a negative size is an error, not a warning with a default."""
    assert Config().become_server_queue_size == 50
    with pytest.raises(ConfigError, match=r"become_server_queue_size = -1: .* at least 0"):
        Config.make(become_server_queue_size=-1)
    with pytest.raises(ConfigError, match=r"become_server_queue_size = '-1': .* at least 0"):
        Config.from_properties("become_server_queue_size=-1")


@pytest.mark.behaviour("NR-04")
def test_an_interval_of_zero_or_less_switches_retransmission_off() -> None:
    assert not Config.make(profile="ordered").retransmits
    assert not Config.make(xmit_interval="0s").retransmits
    assert not Config.from_properties("xmit_interval=-1").retransmits
    assert Config.make(profile="ordered", xmit_interval="500ms").retransmits, "what is named holds"
    with pytest.raises(ConfigError, match="xmit_interval"):
        Config.make(xmit_interval="-1s")


# Switching at run time


@pytest.mark.behaviour("NR-12")
@pytest.mark.parametrize("off_ns", [0, -5])
def test_retransmission_can_be_switched_off_and_on(off_ns: int) -> None:
    group = Group(2, profile="nakack", stability_interval="1h")
    for name in "ab":
        switch(group, name, off_ns)
    group.lose_seqnos(2, 5)
    singles(group, "a", 1, 3)
    group.run_for(10 * SECOND)
    assert retransmissions(group) == []
    for name in "ab":
        switch(group, name, 200 * MS)
    singles(group, "a", 4, 6)
    group.run_for(10 * SECOND)
    assert group.messages("b", "a") == numbers(1, 6)
    assert group.frames(Tail, "a"), "the end is announced again"


@pytest.mark.behaviour("NR-12")
def test_switching_off_stops_what_is_under_way() -> None:
    """Neither the due nak nor the planned announcement is sent any more."""
    group = Group(2, profile="nakack", stability_interval="1h")
    group.lose_seqnos(2)
    singles(group, "a", 1, 3)
    group.run_for(2 * MS)
    assert group["b"].inbound[A].loss_detector.due_ns is not None
    assert "tail" in group["a"].armed_timers()
    for name in "ab":
        switch(group, name, 0)
    group.run_for(60 * SECOND)
    assert retransmissions(group) == []


@pytest.mark.behaviour("NR-14")
def test_switching_on_repairs_the_gap_that_is_there() -> None:
    """The origin has switched retransmission off: it still answers."""
    group = ordered()
    group.lose_seqnos(2)
    singles(group, "a", 1, 4)
    group.run_for(SECOND)
    switch(group, "b", 500 * MS)
    group.settle()
    assert group.messages("b", "a") == numbers(1, 4)
    assert group.frames(Nak) == [Nak(A, ((2, 2),))]


@pytest.mark.behaviour("NR-14")
def test_switching_on_everywhere_repairs_a_lost_end() -> None:
    group = ordered()
    group.lose_seqnos(3, 4)
    singles(group, "a", 1, 4)
    group.run_for(SECOND)
    switch(group, "a", 500 * MS)
    switch(group, "b", 500 * MS)
    group.settle()
    assert group.messages("b", "a") == numbers(1, 4)


@pytest.mark.behaviour("NR-12", "NR-10")
def test_switching_off_makes_the_queue_unbounded() -> None:
    group = joining("nakack")
    switch(group, "b", 0)
    group.install(View.of(2, A, B, C), [A, B])
    singles(group, "b", 101, 120)
    group.run_for(10 * MS)
    switch(group, "c", 0)
    singles(group, "b", 121, 300)
    group.run_for(10 * MS)
    assert drops(group, "c") == {}
    group.install(View.of(2, A, B, C), [C])
    assert group.messages("c", "b") == numbers(101, 300)


@pytest.mark.behaviour("NR-13", "NR-12")
def test_switching_back_to_a_bounded_queue_loses_nothing_that_is_in_it() -> None:
    group = joining()
    group.install(View.of(2, A, B, C), [A, B])
    singles(group, "b", 101, 170)
    group.run_for(10 * MS)
    switch(group, "c", 500 * MS)
    queued = len(group["c"].future_view_buffer)
    assert queued >= 70
    singles(group, "b", 171, 200)
    group.run_for(10 * MS)
    assert len(group["c"].future_view_buffer) == queued, "it is bounded again"
    group.install(View.of(2, A, B, C), [C])
    assert group.messages("c", "b") == numbers(101, 170)
    group.settle()
    assert group.messages("c", "b") == numbers(101, 200), "the rest is repaired"


@pytest.mark.behaviour("NR-13", "NR-12")
def test_switching_back_loses_nothing_that_waits_for_the_start_of_its_stream() -> None:
    group = joining()
    rule = group.lose(Tail, by="b")
    group.install(View.of(2, A, B, C))
    singles(group, "b", 101, 170)
    group.run_for(10 * MS)
    switch(group, "c", 500 * MS)
    singles(group, "b", 171, 180)
    group.run_for(10 * MS)
    assert group["c"].counters["dropped.early"] == 10
    group.rules.remove(rule)
    group.settle()
    assert group.messages("c", "b") == numbers(101, 180)


@pytest.mark.behaviour("NR-12")
def test_an_interval_that_the_other_knobs_do_not_allow_is_refused_and_changes_nothing() -> None:
    group = ordered()
    before = group["a"].config
    with pytest.raises(ConfigError, match="min_grace"):
        group["a"].set_xmit_interval(1000, group.now_ns)
    assert group["a"].config == before


@pytest.mark.behaviour("NR-10")
def test_messages_before_a_start_are_bounded_and_none_behind_the_start_is_dropped() -> None:
    """After the start the sender waits: data a whole window older is not for this member."""
    group = ordered(3, capacity=16, max_seqno_ahead=16)
    config = group.config
    context = ReadyBuilder(C, GROUP, config, lambda _: False, tracing=0)
    stream = InboundStream(B, config, config.group_profile, Random(1), None)
    sent = [Run.of(B, first, [b"%d" % first]) for first in range(1, 101)]
    for run in (
        *sent[:90],
        *sent[80:85],
        *reversed(sent[90:]),
    ):  # some come twice, some in another order
        stream.on_data(run, False, context)
    assert len(stream._before_start) == config.reach == 16
    assert context.counters["dropped.early"] == 100 + 5 - 16
    stream.open_at(84, context)
    assert stream.window is not None
    assert (stream.window.low, stream.window.high, stream.window.missing(100)) == (84, 100, [])
