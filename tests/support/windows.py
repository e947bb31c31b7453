"""Every kind of window, and messages that hold their own seqno, for tests of windows."""

from collections.abc import Callable

from gapless.identity import Address
from gapless.protocol.stream.window import (
    AddResult,
    FixedWindow,
    GrowingWindow,
    Window,
    WindowPolicy,
)
from gapless.run import LENGTH_BYTES, Run

ORIGIN = Address(1, 1)


class Maker:
    """Makes windows of one policy, which retain deliveries or not."""

    def __init__(self, policy: Callable[[int], WindowPolicy], keep: bool) -> None:
        self.policy, self.keep = policy, keep

    def __call__(
        self, capacity: int = 100, *, offset: int = 0, max_bytes: int | None = None
    ) -> Window:
        return Window(
            self.policy(capacity), offset=offset, keep_delivered=self.keep, max_bytes=max_bytes
        )

    def low(self, delivered: int) -> int:
        """The low mark of a fresh window after ``delivered`` messages, without a purge."""
        return 0 if self.keep else delivered


KINDS = {
    "fixed-erase": Maker(FixedWindow, keep=False),
    "fixed-keep": Maker(FixedWindow, keep=True),
    "growing-erase": Maker(GrowingWindow, keep=False),
    "growing-keep": Maker(GrowingWindow, keep=True),
}


def message(seqno: int) -> bytes:
    return b"message %d" % seqno


def run(first: int, last: int | None = None) -> Run:
    return Run.of(ORIGIN, first, [message(seqno) for seqno in range(first, (last or first) + 1)])


def sized(first: int, *sizes: int) -> Run:
    """A run whose messages cost exactly ``sizes`` bytes in a window."""
    return Run.of(ORIGIN, first, [b"x" * (size - LENGTH_BYTES) for size in sizes])


def add(window: Window, *seqnos: int) -> None:
    for seqno in seqnos:
        assert window.add(run(seqno)) == AddResult(1)
        window.check_invariants()


def seqnos(runs: list[Run] | tuple[Run, ...]) -> list[int]:
    """The seqnos of ``runs``, having checked that each message is the one of its seqno."""
    pairs = [pair for entry in runs for pair in entry]
    assert [content for _, content in pairs] == [message(seqno) for seqno, _ in pairs]
    return [seqno for seqno, _ in pairs]


def stored(window: Window) -> list[int]:
    window.check_invariants()
    return seqnos(window.runs)


def span(first: int, last: int) -> list[int]:
    return list(range(first, last + 1))
