"""Joins under load: none gets stuck, nothing is lost; with the known bug planted, all get stuck."""

from contextlib import ExitStack

import pytest

from experiments.join_under_load import (
    DELAY_NS,
    SMALL_CAPACITY,
    JoinParameters,
    JoinResult,
    join_under_load,
    parameter_grid,
    run_trial,
)
from gapless.sim.mutants.planting import Mutant, planted
from gapless.units import NS_PER_MS, NS_PER_S

LATE_NS = 600 * NS_PER_MS
FEW = JoinParameters(LATE_NS, joins=2, members=3)


def with_bugs(setting: JoinParameters, *bugs: tuple[str, str, str]) -> JoinResult:
    with ExitStack() as stack:
        for target, old, new in bugs:
            stack.enter_context(planted(Mutant("planted here", "", target, old, new)))
        return run_trial(setting)


@pytest.mark.behaviour("P-01", "I-22")
@pytest.mark.parametrize("late_ns", [NS_PER_S // 10, LATE_NS, 2 * NS_PER_S])
def test_a_sender_at_full_speed_never_waits_for_a_joiner(late_ns: int) -> None:
    row = run_trial(JoinParameters(late_ns, joins=3))
    assert row.ok, row
    assert (row.joins, row.stuck, row.lost, row.before_view) == (3, 0, 0, 0)
    assert row.pause_ns <= row.baseline_ns + 2 * DELAY_NS, "a join costs no more than a round trip"
    assert len(row.join_ns) == 3
    # Two views have to come: to the joiner, then to the sender.
    assert 2 * late_ns <= row.join_ns[0] <= 2 * late_ns + NS_PER_S
    assert row.sent > 3 * SMALL_CAPACITY * row.simulated_ns // NS_PER_S, (
        "the window was full all the time"
    )


def test_with_loss() -> None:
    row = run_trial(JoinParameters(LATE_NS, joins=3, loss_percent=5.0))
    assert row.ok, row
    assert row.joins == 3


def test_at_a_pace_with_a_large_window() -> None:
    row = run_trial(JoinParameters(LATE_NS, joins=2, capacity=16384, pace_ns=10 * NS_PER_MS))
    assert row.ok, row
    assert row.pause_ns == row.baseline_ns == 10 * NS_PER_MS, (
        "a sender that has room keeps its pace"
    )


START = (
    "gapless.protocol.stream.outbound:OutboundStream.install",
    "returned.get(member, high)) for",
    "returned.get(member, max(0, high - 200))) for",
)
SILENCE = (
    "gapless.protocol.stream.inbound:InboundStream.on_gone",
    "self.window is not None",
    "False",
)


@pytest.mark.behaviour("P-01")
def test_a_joiner_that_waits_for_what_is_gone_stops_everybody() -> None:
    """The known bug: the start lies in the past, and nobody says that what was there is gone."""
    row = with_bugs(FEW, START, SILENCE)
    assert row.stuck == row.joins == 2
    assert row.lost > 0
    assert row.pause_ns > 10 * NS_PER_S
    assert not row.ok


def test_a_wrong_start_alone_is_mended() -> None:
    """The notice of what is gone repairs a start in the past; it costs a round trip, no more."""
    row = with_bugs(FEW, START)
    assert (row.stuck, row.lost) == (0, 0)
    assert row.pause_ns > row.baseline_ns


def test_a_joiner_whose_acks_are_not_waited_for_loses_messages() -> None:
    bug = (
        "gapless.protocol.stream.outbound:OutboundStream.install",
        "self.release(out, ",
        (
            "self.acks.set_members([member for member in members if member.node <= 3], high)\n"
            "        self.release(out, "
        ),
    )
    row = with_bugs(FEW._replace(loss_percent=5.0), bug)
    assert row.lost > 0
    assert not row.ok


def test_a_joiner_that_begins_with_whatever_comes_is_seen() -> None:
    bug = (
        "gapless.protocol.stream.inbound:InboundStream.on_data",
        "            self._buffer_before_start(run, repair, out)\n            return\n",
        "            self.open_at(run.first - 1, out)\n            window = self.window\n",
    )
    row = with_bugs(FEW, bug)
    assert row.before_view > 0
    assert not row.ok


def test_the_rows_of_the_experiment() -> None:
    rows = parameter_grid(joins=20)
    assert [row.view_delay_ns / NS_PER_S for row in rows if not row.loss_percent] == [
        0.1,
        0.6,
        2.0,
    ] * 2
    assert {row.capacity for row in rows} == {SMALL_CAPACITY, 16384}
    assert {row.joins for row in rows} == {20}
    assert sum(1 for row in rows if row.loss_percent == 5.0) == 1


def test_workers_do_not_change_the_numbers() -> None:
    done: list[int] = []
    small = [FEW._replace(joins=1), FEW._replace(joins=1, loss_percent=10.0)]
    alone = join_under_load(small, progress=done.append)
    assert done == [1, 2]
    assert join_under_load(small, workers=2) == alone
    assert run_trial(small[1]._replace(seed=2)) != alone[1]
