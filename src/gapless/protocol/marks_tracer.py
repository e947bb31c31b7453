"""Trace rows for the marks of windows: a row whenever a mark of a group stream moves.

At the end of every input: a window gets a row ``STATE`` if low, delivered or high has passed a
multiple of the sampling interval since the last row of the window.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

    from gapless.identity import Address
    from gapless.protocol.ready_builder import ReadyBuilder
    from gapless.protocol.stream.inbound import InboundStream
    from gapless.protocol.stream.outbound import OutboundStream


class MarksTracer:
    """The marks already recorded in the trace, by stream."""

    __slots__ = ("_me", "_traced")

    def __init__(self, me: Address) -> None:
        self._me = me
        self._traced: dict[Address, tuple[int, int, int]] = {}

    def trace(
        self, outbound: OutboundStream, inbound: Mapping[Address, InboundStream], out: ReadyBuilder
    ) -> None:
        """Write a row for each stream whose marks have moved far enough."""
        traced, every = self._traced, out.tracing
        assert every > 0, "a member that does not trace has no rows"
        windows = [(origin, stream.window, stream.epoch) for origin, stream in inbound.items()]
        for origin, window, epoch in (self._me, outbound.window, outbound.epoch), *windows:
            if window is None:
                continue
            low, delivered, high = window.low, window.delivered, window.high
            marks = low // every, delivered // every, high // every
            if traced.get(origin) != marks:
                traced[origin] = marks
                out.trace("STATE", origin, low=low, delivered=delivered, high=high, epoch=epoch)

    def forget(self, origin: Address) -> None:
        """Forget the marks of a stream that has ended."""
        self._traced.pop(origin, None)

    def clear(self) -> None:
        """Forget all marks: the numbers of all streams restart."""
        self._traced.clear()

    def check_invariants(self, inbound: Mapping[Address, InboundStream]) -> None:
        """Raise AssertionError if marks of a closed stream are kept."""
        assert self._traced.keys() <= {self._me, *inbound}, "only open streams are traced"
