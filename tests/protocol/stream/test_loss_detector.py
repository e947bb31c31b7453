"""When a receiver sends naks: grace, two passes, back-off, request limits, round trip."""

from itertools import pairwise
from random import Random

import pytest
from hypothesis import settings, strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from gapless.config import Config
from gapless.protocol.stream.loss_detector import LossDetector
from gapless.protocol.stream.rtt import RttEstimator
from gapless.run import Run
from gapless.wire.frames import Range
from tests.support.virtual_group import MS, A, lines_of

T0 = 1000 * MS


def gaps(seed: int = 0, **knobs: object) -> LossDetector:
    knobs.setdefault("jitter_percent", 0)
    return LossDetector(Config.make(**knobs), Random(seed))


def due(gap: LossDetector) -> int:
    assert gap.due_ns is not None
    return gap.due_ns


def one(seqno: int, last: int = 0) -> Run:
    return Run.of(A, seqno, [b"x"] * (max(last, seqno) - seqno + 1))


# The two-pass rule


def test_r02_a_fresh_gap_is_only_remembered() -> None:
    """R-02: the first nak goes out after the grace, not before."""
    gap = gaps()
    gap.on_gap(5, T0)
    assert due(gap) == T0 + gap.grace_ns
    assert gap.due_naks([(3, 5)], due(gap)) == [(3, 5)]


def test_r02_what_appears_later_waits_for_the_next_pass() -> None:
    """R-02: a nak names only seqnos that were missing one pass before."""
    gap = gaps()
    gap.on_gap(5, T0)
    now_ns = due(gap)
    assert gap.due_naks([(5, 5), (8, 9)], now_ns) == [(5, 5)]
    assert due(gap) == now_ns + gap.grace_ns
    assert gap.due_naks([(5, 5), (8, 9)], due(gap)) == [(8, 9)]


@pytest.mark.behaviour("N4-31")
def test_n4_31_a_gap_is_asked_for_until_it_closes() -> None:
    """N4-31, R-02: again and again, and never after it has closed."""
    gap = gaps()
    gap.on_gap(1, T0)
    asked = 0
    for _ in range(10):
        asked += bool(gap.due_naks([(1, 1)], due(gap)))
    assert asked == 10
    assert gap.due_naks([], due(gap)) == []
    assert gap.due_ns is None


@pytest.mark.behaviour("N4-15")
def test_a_gap_that_closes_by_itself_is_never_asked_for() -> None:
    """N4-15: reordering costs nothing."""
    gap = gaps()
    gap.on_gap(1, T0)
    gap.clear()
    assert gap.due_ns is None
    gap.on_gap(9, T0 + MS)
    assert due(gap) == T0 + MS + gap.grace_ns, "the next gap has a grace of its own"


def test_notice_does_not_put_a_running_grace_off() -> None:
    gap = gaps()
    gap.on_gap(1, T0)
    first_ns = due(gap)
    gap.on_gap(3, T0 + MS)
    assert due(gap) == first_ns
    assert gap.due_naks([(1, 1), (3, 3)], first_ns) == [(1, 1)], "3 has not had its grace"


def test_a_fresh_gap_does_not_wait_for_the_rest_of_an_old_one() -> None:
    """Design rule 6: its grace is milliseconds, even while another gap rests for half a second."""
    gap = gaps()
    gap.on_gap(1, T0)
    now_ns = T0
    for _ in range(10):
        now_ns = due(gap)
        gap.due_naks([(1, 1)], now_ns)
    assert due(gap) == now_ns + 500 * MS
    gap.on_gap(7, now_ns + MS)
    assert due(gap) == now_ns + MS + gap.grace_ns
    assert gap.due_naks([(1, 1), (7, 7)], due(gap)) == [(7, 7)]


# Rest, back-off and jitter


@pytest.mark.behaviour("P-11")
def test_s11_a_range_that_was_asked_for_rests() -> None:
    """S11, P-11: its answer is on its way; asking again at once would only add to the load."""
    gap = gaps()
    gap.on_gap(9, T0)
    now_ns = due(gap)
    assert gap.due_naks([(1, 3), (9, 9)], now_ns) == [(1, 3), (9, 9)]
    assert gap.due_naks([(1, 3), (9, 9)], now_ns + 1) == []
    again_ns = due(gap)
    assert gap.due_naks([(2, 3), (9, 9)], again_ns - 1) == []
    assert gap.due_naks([(2, 3), (9, 9)], again_ns) == [(2, 3), (9, 9)]


@pytest.mark.behaviour("P-11")
def test_p11_every_try_doubles_the_rest_up_to_the_interval() -> None:
    """P-11."""
    gap = gaps(min_retry="5ms", initial_rtt="10ms", xmit_interval="500ms")
    gap.on_gap(1, T0)
    rests = []
    for _ in range(7):
        now_ns = due(gap)
        gap.due_naks([(1, 1)], now_ns)
        rests.append((due(gap) - now_ns) // MS)
    assert rests == [30, 60, 120, 240, 480, 500, 500]


@pytest.mark.behaviour("P-11")
def test_p11_jitter_spreads_the_retries_and_is_bounded() -> None:
    """P-11: two members with the same loss do not send naks in step, within the interval."""
    rests = set()
    for seed in range(50):
        gap = gaps(seed, jitter_percent=25)
        gap.on_gap(1, T0)
        now_ns = due(gap)
        gap.due_naks([(1, 1)], now_ns)
        rests.add(due(gap) - now_ns)
    assert len(rests) > 40
    assert all(30 * MS <= rest_ns <= 37.5 * MS for rest_ns in rests)
    capped = gaps(jitter_percent=100, xmit_interval="31ms")
    capped.on_gap(1, T0)
    now_ns = due(capped)
    capped.due_naks([(1, 1)], now_ns)
    assert due(capped) - now_ns <= 31 * MS


def test_the_same_seed_gives_the_same_times() -> None:
    """S17."""

    def times(seed: int) -> list[int]:
        gap = gaps(seed, jitter_percent=25)
        gap.on_gap(3, T0)
        result = []
        for _ in range(5):
            gap.due_naks([(1, 1), (3, 3)], due(gap))
            result.append(due(gap))
        return result

    assert times(1) == times(1) != times(2)


def test_what_is_asked_together_is_asked_together_again() -> None:
    """A nak holds many ranges; a draw per range would turn the second try into one nak for each."""
    gap = gaps(jitter_percent=25)
    missing = [(seqno, seqno) for seqno in range(1, 100, 2)]
    gap.on_gap(99, T0)
    assert gap.due_naks(missing, due(gap)) == missing
    assert gap.due_naks(missing, due(gap)) == missing


def test_a_part_of_a_question_keeps_its_tries() -> None:
    """The unanswered rest of a range keeps its back-off."""
    gap = gaps()
    gap.on_gap(10, T0)
    now_ns = T0
    for _ in range(3):
        now_ns = due(gap)
        gap.due_naks([(1, 10)], now_ns)
    assert due(gap) - now_ns == 120 * MS
    now_ns = due(gap)
    assert gap.due_naks([(4, 5), (9, 9)], now_ns) == [(4, 5), (9, 9)]
    assert due(gap) - now_ns == 240 * MS


# The fixed timer of the seeds


def test_without_adaptive_grace_the_interval_rules() -> None:
    """R-01: adaptive_grace off gives the timer of the seeds, without jitter or back-off."""
    gap = gaps(adaptive_grace=False, xmit_interval="200ms", jitter_percent=25)
    gap.rtt.sample(MS)
    gap.on_gap(1, T0)
    assert due(gap) == T0 + 200 * MS
    for _ in range(4):
        now_ns = due(gap)
        assert gap.due_naks([(1, 1)], now_ns) == [(1, 1)]
        assert due(gap) == now_ns + 200 * MS


# The grace follows the round trip


@pytest.mark.parametrize("trip_ms", [0, 1, 20, 5000])
def test_the_grace_stays_between_its_bounds(trip_ms: int) -> None:
    gap = gaps(min_grace="2ms", xmit_interval="100ms")
    for _ in range(100):
        gap.rtt.sample(trip_ms * MS)
        assert 2 * MS <= gap.grace_ns <= 100 * MS
    expected_ms = min(max(2, trip_ms / 4), 100)
    assert gap.grace_ns == pytest.approx(expected_ms * MS, rel=0.1)


def test_a_repair_is_a_sample_of_the_round_trip() -> None:
    gap = gaps(initial_rtt="80ms")
    gap.on_gap(3, T0)
    now_ns = due(gap)
    gap.due_naks([(3, 3)], now_ns)
    gap.on_data(one(3), True, now_ns + 16 * MS)
    assert gap.rtt.smoothed_ns == 16 * MS, "the first sample takes the place of the guess"
    gap.rtt.sample(24 * MS)
    assert gap.rtt.smoothed_ns == (16 + 1) * MS, "later ones weigh an eighth"


def test_an_answer_to_a_repeated_question_is_no_sample() -> None:
    """It may belong to the first question or to the second."""
    gap = gaps(initial_rtt="80ms")
    gap.on_gap(3, T0)
    gap.due_naks([(3, 3)], due(gap))
    gap.due_naks([(3, 3)], due(gap))
    gap.on_data(one(3), True, due(gap))
    assert gap.rtt.smoothed_ns == 80 * MS


def test_data_that_nobody_asked_for_teaches_nothing() -> None:
    gap = gaps(initial_rtt="80ms")
    gap.on_gap(3, T0)
    now_ns = due(gap)
    gap.due_naks([(3, 3)], now_ns)
    for run in (one(2), one(4), one(4, 9)):
        gap.on_data(run, True, now_ns + MS)
        gap.on_data(run, False, now_ns + MS)
    assert (gap.rtt.smoothed_ns, gap.rtt.max_lateness_ns) == (80 * MS, 0)


def test_an_original_that_comes_after_all_lengthens_the_grace() -> None:
    """The gap was mere reordering; the next one gets as long as this one would have needed."""
    gap = gaps()
    gap.on_gap(3, T0)
    short_ns = gap.grace_ns
    gap.due_naks([(3, 3)], due(gap))
    gap.on_data(one(2, 4), False, T0 + 40 * MS)
    assert gap.grace_ns == 50 * MS > short_ns
    for _ in range(100):
        gap.rtt.sample(10 * MS)
    assert gap.grace_ns < short_ns, "and forgets it as repairs come in good time"


def test_lateness_counts_from_the_moment_that_gap_was_noticed() -> None:
    """Not from when a later one was."""
    gap = gaps()
    gap.on_gap(3, T0)
    gap.due_naks([(3, 3), (7, 7)], due(gap))
    gap.due_naks([(3, 3), (7, 7)], due(gap))
    gap.on_data(one(3), False, T0 + 100 * MS)
    assert gap.rtt.max_lateness_ns == 125 * MS


def test_a_steady_round_trip_has_no_deviation() -> None:
    trip = RttEstimator(10 * MS)
    for _ in range(200):
        trip.sample(2 * MS)
    assert trip.smoothed_ns == pytest.approx(2 * MS, abs=10)
    assert 0 <= trip.deviation_ns <= 10


# Request limits


def test_r04_a_request_names_a_limited_number_of_seqnos_lowest_first() -> None:
    """R-04, S-51: the rest follows, pass by pass, a grace apart."""
    gap = gaps(max_xmit_req_size=10)
    gap.on_gap(25, T0)
    now_ns = due(gap)
    assert gap.due_naks([(1, 25)], now_ns) == [(1, 10)]
    assert due(gap) == now_ns + gap.grace_ns
    assert gap.due_naks([(1, 25)], due(gap)) == [(11, 20)]
    assert gap.due_naks([(1, 25)], due(gap)) == [(21, 25)]


def test_r04_zero_means_no_limit() -> None:
    gap = gaps(max_xmit_req_size=0)
    gap.on_gap(10**6, T0)
    assert gap.due_naks([(1, 10**6)], due(gap)) == [(1, 10**6)]


def test_what_the_limit_left_out_keeps_its_tries() -> None:
    """Otherwise a long outage with many gaps is a storm: only the first gap would back off."""
    gap = gaps(max_xmit_req_size=1, min_retry="30ms", xmit_interval="10s")
    missing = [(seqno, seqno) for seqno in range(1, 9)]
    gap.on_gap(8, T0)
    asked: dict[int, list[int]] = {seqno: [] for seqno, _ in missing}
    while due(gap) < T0 + 2000 * MS:
        now_ns = due(gap)
        for first, _ in gap.due_naks(missing, now_ns):
            asked[first].append(now_ns)
    for times_ns in asked.values():
        for tries, (before_ns, after_ns) in enumerate(pairwise(times_ns)):
            assert after_ns - before_ns >= (30 << tries) * MS


@pytest.mark.interpreted("counts lines of Python")
def test_a_pass_costs_a_few_steps_per_gap() -> None:
    """S-51: with every other message lost, a pass must not compare each gap with each nak."""

    def cost(count: int) -> int:
        gap = gaps(max_xmit_req_size=0, jitter_percent=25)
        missing = [(2 * at + 1, 2 * at + 1) for at in range(count)]
        gap.on_gap(2 * count, T0)
        gap.due_naks(missing, due(gap))
        return lines_of(lambda: gap.due_naks(missing, due(gap)))

    assert cost(1000) < 10.5 * cost(100)


# A model


# Conclusions from a repair


def asked_for(gap: LossDetector, missing: list[Range], now_ns: int) -> int:
    """Detect and request all of ``missing``; return when."""
    gap.on_gap(missing[-1][1], now_ns)
    now_ns = due(gap)
    assert gap.due_naks(missing, now_ns) == missing
    return now_ns


def test_what_was_asked_for_before_a_repair_that_came_rests_no_longer_than_it_must() -> None:
    """Repairs arrive in the order of the naks: the others were lost on their way."""
    gap = gaps(min_retry="5ms", initial_rtt="40ms")
    asked_ns = asked_for(gap, [(1, 1), (3, 3), (5, 5)], T0)
    assert due(gap) > asked_ns + 50 * MS, "so long a repair may take, as far as is known"
    assert gap.on_data(one(3), True, asked_ns + MS) == 1
    assert due(gap) == asked_ns + 5 * MS
    assert gap.due_naks([(1, 1), (5, 5)], due(gap)) == [(1, 1)], (
        "what is asked for behind it may still come"
    )


def test_a_question_that_was_lost_does_not_lengthen_the_next_rest() -> None:
    """It has no answer, so the repair after the next nak is an RTT sample, too."""
    gap = gaps(min_retry="5ms")
    asked_ns = asked_for(gap, [(1, 1), (3, 3)], T0)
    gap.on_data(one(3), True, asked_ns + MS)
    again_ns = due(gap)
    assert gap.due_naks([(1, 1)], again_ns) == [(1, 1)]
    assert due(gap) == again_ns + 5 * MS, "not doubled"
    before_ns = gap.rtt.smoothed_ns
    assert gap.on_data(one(1), True, again_ns + 4 * MS) == 2, "it was put twice all the same"
    assert gap.rtt.smoothed_ns > before_ns


def test_an_original_that_comes_late_proves_nothing() -> None:
    gap = gaps(min_retry="5ms", initial_rtt="40ms")
    asked_for(gap, [(1, 1), (3, 3)], T0)
    due_ns = due(gap)
    gap.on_data(one(3), False, T0 + 30 * MS)
    assert due(gap) == due_ns


def test_a_repair_that_answers_nobody_knows_which_question_proves_nothing() -> None:
    gap = gaps(min_retry="5ms", initial_rtt="40ms")
    asked_for(gap, [(1, 1), (3, 3)], T0)
    again_ns = due(gap)
    assert gap.due_naks([(1, 1), (3, 3)], again_ns) == [(1, 1), (3, 3)]
    due_ns = due(gap)
    gap.on_data(one(3), True, again_ns + MS)
    assert due(gap) == due_ns


def test_without_adaptive_timers_every_question_rests_an_interval() -> None:
    gap = gaps(adaptive_grace=False, xmit_interval="100ms")
    asked_ns = asked_for(gap, [(1, 1), (3, 3)], T0)
    gap.on_data(one(3), True, asked_ns + MS)
    assert due(gap) == asked_ns + 100 * MS


class Watched:
    """The model of one missing seqno."""

    def __init__(self, since_ns: int) -> None:
        self.since_ns = since_ns
        self.asked_ns: list[int] = []
        self.lost = 0


class GapsAgainstModel(RuleBasedStateMachine):
    """A growing stream, with data on time, late or as repairs, and passes when they are due."""

    MIN_GRACE_NS = 3 * MS
    MIN_RETRY_NS = 5 * MS
    INTERVAL_NS = 80 * MS
    LIMIT = 4

    def __init__(self) -> None:
        super().__init__()
        self.gap = gaps(
            min_grace="3ms",
            min_retry="5ms",
            xmit_interval="80ms",
            initial_rtt="4ms",
            max_xmit_req_size=self.LIMIT,
            jitter_percent=25,
        )
        self.now_ns = T0
        self.known = 0
        self.missing: dict[int, Watched] = {}

    def ranges(self) -> list[Range]:
        """Touching ranges stay apart, as the window may give them."""
        return [(seqno, seqno) for seqno in sorted(self.missing)]

    def look(self, fresh: bool) -> None:
        """The work of a receiver after every frame."""
        if not self.missing:
            self.gap.clear()
        elif fresh or self.gap.due_ns is None:
            self.gap.on_gap(max(self.missing), self.now_ns)

    @rule(lost=st.integers(1, 6), there=st.integers(1, 3))
    def grow(self, lost: int, there: int) -> None:
        for seqno in range(self.known + 1, self.known + lost + 1):
            self.missing[seqno] = Watched(self.now_ns)
        self.known += lost + there
        self.look(fresh=True)

    @precondition(lambda self: self.missing)
    @rule(pick=st.integers(0, 1000), repair=st.booleans())
    def arrive(self, pick: int, repair: bool) -> None:
        seqno = sorted(self.missing)[pick % len(self.missing)]
        came = self.missing.pop(seqno)
        if repair and came.asked_ns:
            for (
                other,
                watched,
            ) in self.missing.items():  # what was asked for before is known to be lost
                if watched.asked_ns and (watched.asked_ns[-1], other) < (came.asked_ns[-1], seqno):
                    watched.lost = len(watched.asked_ns)
        self.gap.on_data(one(seqno), repair, self.now_ns)
        self.look(fresh=False)

    @rule(span_ns=st.sampled_from([0, MS, 7 * MS, 90 * MS]))
    def wait(self, span_ns: int) -> None:
        end_ns = self.now_ns + span_ns
        passes = 0
        while self.gap.due_ns is not None and self.gap.due_ns <= end_ns:
            self.now_ns = max(self.now_ns, self.gap.due_ns)
            self.ask()
            passes += 1
            assert passes < 1000, "time stands still"
        self.now_ns = end_ns

    def ask(self) -> list[int]:
        found = self.gap.due_naks(self.ranges(), self.now_ns)
        named = [seqno for first, last in found for seqno in range(first, last + 1)]
        assert named == sorted(set(named)), "lowest first, each once"
        assert len(named) <= self.LIMIT
        for seqno in named:
            assert seqno in self.missing, f"{seqno} is not missing"
            watched = self.missing[seqno]
            assert self.now_ns - watched.since_ns >= self.MIN_GRACE_NS, f"{seqno} had no grace"
            if watched.asked_ns:
                doublings = max(0, len(watched.asked_ns) - watched.lost - 1)
                rest_ns = min(self.MIN_RETRY_NS << doublings, self.INTERVAL_NS)
                assert self.now_ns - watched.asked_ns[-1] >= rest_ns, f"{seqno} had no rest"
            watched.asked_ns.append(self.now_ns)
        return named

    @invariant()
    def something_missing_is_watched(self) -> None:
        self.gap.check_invariants()
        if self.missing:
            assert due(self.gap) <= self.now_ns + self.INTERVAL_NS, "the next pass is too far away"
        else:
            assert self.gap.due_ns is None, "nothing is missing, nothing is due"

    @invariant()
    def the_grace_is_within_its_bounds(self) -> None:
        assert self.MIN_GRACE_NS <= self.gap.grace_ns <= self.INTERVAL_NS

    def teardown(self) -> None:
        """Once questions are answered, nothing stays missing."""
        passes = 0
        while self.missing:
            self.now_ns = due(self.gap)
            named = self.ask()
            for seqno in named:
                del self.missing[seqno]
            self.look(fresh=False)
            passes += not named
            assert passes < 20, "something is never asked for"
        assert self.gap.due_ns is None


TestGapsAgainstModel = GapsAgainstModel.TestCase
TestGapsAgainstModel.settings = settings(stateful_step_count=60)
