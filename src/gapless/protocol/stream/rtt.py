"""The round trip of a stream, estimated from NAKs and the repairs that answer them.

On a repair of a NAK sent once: the time since the NAK is a sample. The estimate is a smoothed round
trip and a mean deviation, as in TCP (RFC 6298); the first sample replaces the initial guess.

On a repair that follows several NAKs: the repair is ambiguous (Karn's algorithm) and gives no
sample. The last retry delay may have been too short, so the back-off grows to twice the last delay
until the next sample resets the back-off.

On an original that arrives after a NAK: the grace was too short. The greatest lateness is kept,
with a quarter on top, and decays by an eighth with every sample.
"""

from __future__ import annotations


class RttEstimator:
    """A smoothed round trip and a mean deviation, in the manner of TCP."""

    __slots__ = ("backoff_ns", "deviation_ns", "max_lateness_ns", "measured", "smoothed_ns")

    def __init__(self, initial_ns: int) -> None:
        self.smoothed_ns = initial_ns
        self.deviation_ns = initial_ns // 2
        self.measured = False
        self.max_lateness_ns = 0
        self.backoff_ns = 0

    def sample(self, round_trip_ns: int) -> None:
        """Add one measurement; the first replaces the initial guess."""
        assert round_trip_ns >= 0, "a repair arrives after its NAK"
        # The first sample replaces the initial guess, however wrong that was (RFC 6298).
        if not self.measured:
            self.measured = True
            self.smoothed_ns, self.deviation_ns = round_trip_ns, round_trip_ns // 2
        error_ns = round_trip_ns - self.smoothed_ns
        self.smoothed_ns += error_ns // 8
        self.deviation_ns += (abs(error_ns) - self.deviation_ns) // 4
        assert self.smoothed_ns >= 0, "a round trip is not negative"
        # A single late frame must not lengthen the grace for ever.
        self.max_lateness_ns -= self.max_lateness_ns // 8
        # An unambiguous answer: the retry delay follows the estimate again.
        self.backoff_ns = 0

    def on_ambiguous(self, rest_ns: int) -> None:
        """Record a repair that may answer any of several NAKs; the last delay was ``rest_ns``."""
        assert rest_ns >= 0, "a NAK is retried after it was sent"
        self.backoff_ns = max(self.backoff_ns, 2 * rest_ns)

    def on_late_arrival(self, late_ns: int) -> None:
        """Record an original that arrived ``late_ns`` after its gap was noticed."""
        assert late_ns >= 0, "data arrives after its gap was noticed"
        self.max_lateness_ns = max(self.max_lateness_ns, late_ns + late_ns // 4)

    def check_invariants(self) -> None:
        """Raise AssertionError if an estimate is negative."""
        assert self.smoothed_ns >= 0, f"the smoothed round trip is {self.smoothed_ns} ns"
        assert self.deviation_ns >= 0, f"the mean deviation is {self.deviation_ns} ns"
        assert self.max_lateness_ns >= 0, f"the greatest lateness is {self.max_lateness_ns} ns"
        assert self.backoff_ns >= 0, f"the back-off is {self.backoff_ns} ns"
