"""Loss detection: when a receiver sends NAKs for the gaps of a stream.

On a gap: nothing is sent. The highest missing seqno is remembered, and a grace starts in which
reordered frames may still close the gap (two-pass rule, R-02). The grace of a gap known only from
an announcement restarts whenever the stream comes closer.

Every pass (when a grace or a retry delay is over): a NAK is sent for each remembered gap that is
still open after its grace. New gaps are remembered, and their grace starts. A range is requested
again only after a retry delay, which doubles with every try and has jitter (P-11). Both times
follow the measured round trip and never exceed ``xmit_interval``. The jitter is drawn once a pass,
so ranges requested together are requested together again.

On reception of a repair: a repair of a NAK sent once is a round-trip sample (rtt.py). Repairs
arrive in the order of the NAKs, lowest first. A range requested before the answered range, and
still missing, was therefore lost: its retry delay shrinks to ``min_retry``, and its tries count as
lost. The rule does not hold where NAKs go to several members, because their answers have no order.

On reception of the original after a NAK: the grace was too short, and grows to the lateness.

With retransmission off no NAK is sent; a gap older than ``stall_after`` is reported (NR-18).
"""

from __future__ import annotations

from bisect import bisect_left
from typing import TYPE_CHECKING, NamedTuple

from gapless.protocol.stream import ranges
from gapless.protocol.stream.rtt import RttEstimator

if TYPE_CHECKING:
    from random import Random

    from gapless.config import Config
    from gapless.run import Run
    from gapless.wire.frames import Range

_MAX_DOUBLINGS = 16
"""Maximum number of times that a retry delay doubles."""


class _OpenNak(NamedTuple):
    """A NAK without a complete answer."""

    first: int
    last: int
    sent_ns: int
    retry_ns: int
    tries: int
    noticed_ns: int
    lost_tries: int = 0
    """How many of the tries are known to be lost: no repair will answer them."""

    @property
    def unanswered(self) -> int:
        """How many of the tries may still be answered."""
        return self.tries - self.lost_tries


class LossDetector:
    """The gaps of a received stream, and the times to send NAKs."""

    __slots__ = (
        "_answered_nak",
        "_config",
        "_grace_end_ns",
        "_grace_over_upto",
        "_noticed_ns",
        "_rng",
        "_watched_upto",
        "due_ns",
        "open_naks",
        "rtt",
    )

    def __init__(self, config: Config, rng: Random) -> None:
        self._config = config
        self._rng = rng
        self.rtt = RttEstimator(config.initial_rtt_ns)
        self.due_ns: int | None = None
        self._watched_upto = 0
        self._noticed_ns = 0
        self._answered_nak = (0, 0)
        self._grace_over_upto = 0
        self._grace_end_ns = 0
        self.open_naks: list[_OpenNak] = []

    @property
    def grace_ns(self) -> int:
        """How long a new gap may close without a NAK."""
        config = self._config
        # No NAK is sent: the grace only delays the report of a stall (NR-18).
        if not config.retransmits:
            return config.stall_after_ns
        if not config.adaptive_grace:
            return config.xmit_interval_ns
        trip = self.rtt
        grace_ns = max(
            config.min_grace_ns, trip.smoothed_ns // 4 + trip.deviation_ns, trip.max_lateness_ns
        )
        return min(grace_ns, config.xmit_interval_ns)

    def _draw(self) -> float:
        """Draw the jitter of a pass; 0 where the delays are fixed."""
        return (
            self._rng.random()
            if self._config.adaptive_grace and self._config.jitter_percent
            else 0.0
        )

    def _retry_ns(self, tries: int, draw: float) -> int:
        """Return the delay before the next NAK for a range requested ``tries`` times."""
        assert tries >= 0, "tries are counted"
        config = self._config
        if not config.adaptive_grace:
            return config.xmit_interval_ns
        trip = self.rtt
        retry_ns = max(config.min_retry_ns, trip.smoothed_ns + 4 * trip.deviation_ns)
        retry_ns = max(retry_ns << min(tries, _MAX_DOUBLINGS), trip.backoff_ns)
        retry_ns += int(retry_ns * draw * config.jitter_percent / 100)
        return min(retry_ns, config.xmit_interval_ns)

    def on_gap(self, highest: int, now_ns: int) -> None:
        """Start the grace of a gap up to ``highest``, unless a pass comes before the grace ends."""
        assert highest >= 0, "a gap ends at a seqno"
        # A pass that comes sooner remembers this gap as well.
        if self.due_ns is None or self.due_ns > now_ns + self.grace_ns:
            self.due_ns = now_ns + self.grace_ns
            self._grace_end_ns = self.due_ns
            self._watched_upto = highest
            self._noticed_ns = now_ns

    @property
    def watched_upto(self) -> int:
        """The highest missing seqno at the time the watched gap was noticed."""
        return self._watched_upto

    @property
    def noticed_ns(self) -> int:
        """When the watched gap was noticed."""
        return self._noticed_ns

    def rearm_stall(self, now_ns: int) -> None:
        """Schedule the next report of the same stall."""
        self.due_ns = now_ns + self._config.stall_after_ns

    def apply_config(self, config: Config) -> None:
        """Apply another configuration; gaps are watched anew."""
        self._config = config
        self.clear()

    def schedule_start_retry(self, tries: int, now_ns: int) -> None:
        """Schedule the next request for the start of the stream, after ``tries`` requests."""
        assert tries >= 0, "tries are counted"
        self.due_ns = now_ns + self._retry_ns(tries, self._draw())

    def postpone(self, at_ns: int) -> None:
        """Put the next request off, without counting it as a try."""
        self.due_ns = at_ns

    def restart_grace(self) -> None:
        """Restart the grace when the gap is noticed next; open NAKs keep their retry delay."""
        self.due_ns = None

    def clear(self) -> None:
        """Record that no message is missing."""
        self.due_ns = None
        self.open_naks = []
        self._answered_nak = (0, 0)

    @property
    def oldest_ns(self) -> int | None:
        """When the oldest open gap was noticed; None if no message is missing."""
        if self.due_ns is None:
            return None
        return min([self._noticed_ns, *(asked.noticed_ns for asked in self.open_naks)])

    def on_data(self, run: Run, repair: bool, now_ns: int) -> int:
        """Learn from data that fills a gap; return how many NAKs were sent for the gap."""
        at = bisect_left(self.open_naks, (run.first,))
        if at == len(self.open_naks) or self.open_naks[at].first > run.last:
            return 0
        asked = self.open_naks[at]
        # The original arrived after the NAK: the frame was late, not lost.
        if not repair:
            self.rtt.on_late_arrival(now_ns - asked.noticed_ns)
        # One NAK, one repair: the round trip is known.
        elif asked.unanswered == 1:
            self.rtt.sample(now_ns - asked.sent_ns)
            # Answers of several members have no order, so they prove no loss.
            if self._config.adaptive_grace and not self._config.xmit_from_random_member:
                self._on_nak_answered(asked)
        else:
            # Several NAKs may have caused this repair (Karn's algorithm).
            self.rtt.on_ambiguous(asked.retry_ns - asked.sent_ns)
        return asked.tries

    def _on_nak_answered(self, answered: _OpenNak) -> None:
        """Record that a NAK was answered: repairs of earlier NAKs that have not arrived are lost.

        The next pass still waits for ``min_retry``: of two repairs, a multicast and a unicast, the
        later may be read first.
        """
        assert answered.unanswered == 1, "the answer is unambiguous"
        self._answered_nak = max(self._answered_nak, (answered.sent_ns, answered.first))
        if self.due_ns is not None:
            self.due_ns = min(self.due_ns, answered.sent_ns + self._config.min_retry_ns)

    def _expire_lost_naks(self) -> None:
        """Shorten the retry delay of NAKs with a lost repair."""
        proof, least_ns = self._answered_nak, self._config.min_retry_ns
        self.open_naks = [
            asked._replace(retry_ns=asked.sent_ns + least_ns, lost_tries=asked.tries)
            if (asked.sent_ns, asked.first) < proof
            else asked
            for asked in self.open_naks
        ]
        self._answered_nak = (0, 0)
        assert self._answered_nak == (0, 0), "lost NAKs expire once"

    def due_naks(self, missing: list[Range], now_ns: int) -> list[Range]:
        """Return the ranges of ``missing`` to request now, lowest first; schedule the next pass."""
        if not missing:
            self.clear()
            return []
        if now_ns >= self._grace_end_ns:
            self._grace_over_upto = self._watched_upto
        # Repairs come in the order of the NAKs: earlier NAKs without a repair were lost.
        if self._answered_nak > (0, 0):
            self._expire_lost_naks()
        remembered = ranges.clip(missing, 1, self._grace_over_upto)
        still = [
            asked for asked in self.open_naks if ranges.overlaps(missing, asked.first, asked.last)
        ]
        resting = [(asked.first, asked.last) for asked in still if asked.retry_ns > now_ns]
        wanted = ranges.subtract(remembered, resting)
        wanted = ranges.take_lowest(wanted, self._request_limit())
        assert not wanted or wanted[-1][1] <= missing[-1][1], "only missing seqnos are requested"
        self.open_naks = self._build_naks(wanted, still, now_ns)
        self._schedule(missing, now_ns)
        return wanted

    def _request_limit(self) -> int:
        """Return the maximum number of messages requested in a pass."""
        return self._config.max_xmit_req_size or 1 << 31

    def _build_naks(
        self, wanted: list[Range], before: list[_OpenNak], now_ns: int
    ) -> list[_OpenNak]:
        """Return all NAKs that are open once ``wanted`` is requested.

        A due NAK left out by the request limit stays, and its tries count on.
        """
        # Ranges are requested lowest first, so everything above the last one was left out.
        done = wanted[-1][1] if wanted else 0
        rested = [asked for asked in before if asked.retry_ns <= now_ns]
        left_out = [
            asked._replace(first=max(asked.first, done + 1))
            for asked in rested
            if asked.last > done
        ]
        draw = self._draw()
        asked = [self._build_nak(first, last, rested, draw, now_ns) for first, last in wanted]
        return sorted([old for old in before if old.retry_ns > now_ns] + asked + left_out)

    def _build_nak(
        self, first: int, last: int, rested: list[_OpenNak], draw: float, now_ns: int
    ) -> _OpenNak:
        """Return the NAK for a range; the tries of covered former NAKs count on."""
        assert first <= last, "a NAK names a range"
        at = max(0, bisect_left(rested, (first,)) - 1)
        tries, unanswered, noticed_ns = 0, 0, self._noticed_ns
        while at < len(rested) and rested[at].first <= last:
            if rested[at].last >= first:
                tries, noticed_ns = (
                    max(tries, rested[at].tries),
                    min(noticed_ns, rested[at].noticed_ns),
                )
                unanswered = max(unanswered, rested[at].unanswered)
            at += 1
        again_ns = now_ns + self._retry_ns(unanswered, draw)
        return _OpenNak(first, last, now_ns, again_ns, tries + 1, noticed_ns, tries - unanswered)

    def _schedule(self, missing: list[Range], now_ns: int) -> None:
        """Schedule the next pass: at the shortest retry delay, or at the end of the grace."""
        assert missing, "a pass is scheduled for a gap"
        highest = missing[-1][1]
        resting = [entry for entry in self.open_naks if entry.retry_ns > now_ns]
        times_ns = [entry.retry_ns for entry in resting]
        # A gap opened above the watched one: it gets a grace of its own.
        if highest > self._watched_upto == self._grace_over_upto:
            self._watched_upto = highest
            self._noticed_ns = now_ns
            self._grace_end_ns = now_ns + self.grace_ns
        if ranges.subtract(missing, [(entry.first, entry.last) for entry in resting]):
            times_ns.append(
                self._grace_end_ns
                if self._grace_over_upto < self._watched_upto
                else now_ns + self.grace_ns
            )
        self.due_ns = min(times_ns)
        assert self.due_ns >= 0, "a pass is due at a time"

    def check_invariants(self) -> None:
        """Raise AssertionError if the open NAKs contradict the law of this file."""
        self.rtt.check_invariants()
        floor = 0
        for nak in self.open_naks:
            assert floor < nak.first <= nak.last, "open NAKs do not overlap"
            assert nak.retry_ns >= nak.sent_ns + self._config.min_retry_ns, "a NAK is never early"
            assert 0 <= nak.lost_tries <= nak.tries, f"{nak} lost more NAKs than were sent"
            assert nak.noticed_ns <= nak.sent_ns, f"{nak} was sent before the gap was noticed"
            floor = nak.last
        assert self._watched_upto >= 0, "a watched gap has a seqno"
        assert self.due_ns is None or self.due_ns >= 0, "a pass is due at a time"

    def snapshot(self) -> tuple[bool, int]:
        """Return the state without times: a search may end every delay at any moment."""
        return (self.due_ns is not None, self._watched_upto if self.due_ns is not None else 0)

    def restore(self, snapshot: tuple[bool, int]) -> None:
        """Restore the state of ``snapshot``, with every grace and retry delay over."""
        noticed, self._watched_upto = snapshot
        self.due_ns = 0 if noticed else None
        self._grace_over_upto = self._grace_end_ns = 0
        self._answered_nak = (0, 0)
        self.open_naks = []
