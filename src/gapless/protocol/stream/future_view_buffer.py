"""Buffer for frames that arrive early: before the first view, or for a later view.

On reception before the first view: datagrams are buffered, at most ``become_server_queue_size``
runs, and handled when the view is installed (NR-08, NR-09). Messages of earlier views are dropped,
unless this member is durable (P-17). With retransmission off all datagrams are buffered, then and
later, because a dropped message would never arrive again (NR-10); a datagram whose sender is still
no member after two more views is dropped. Switching to a bounded queue keeps all buffered datagrams
(NR-13).

On reception of a message of a later view, where streams belong to views: the message is buffered,
with the same limit for each sender, until that view or a later view is installed, by any
coordinator (I-20).

All of it counts against the budget of early bytes (early_budget.py), also with retransmission off.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from gapless.protocol.early_budget import ITEM_BYTES, EarlyBudget
from gapless.wire.frames import Data, OutOfBand, Unreliable

if TYPE_CHECKING:
    from collections.abc import Container

    from gapless.config import Config
    from gapless.identity import Address, View
    from gapless.protocol.ready_builder import ReadyBuilder
    from gapless.wire.frames import Datagram

_WITH_RUN = (Data, OutOfBand, Unreliable)
_MAX_VIEWS = 2
"""How many views a stranger's datagram is buffered for when nothing may be dropped."""


def _frame_key(frame: Data) -> tuple[Address, int, int]:
    return frame.run.origin, frame.epoch, frame.run.first


def _datagram_bytes(datagram: Datagram) -> int:
    """Return what a datagram costs: its messages, and the other frames at a flat rate."""
    return sum(
        frame.run.size_bytes if isinstance(frame, _WITH_RUN) else ITEM_BYTES
        for frame in datagram.frames
    )


class FutureViewBuffer:
    """The datagrams and messages waiting for a view."""

    def __init__(self, config: Config, budget: EarlyBudget | None = None) -> None:
        self.config = config
        self._budget = budget or EarlyBudget(config.early_bytes)
        self._datagrams: list[tuple[Datagram, int]] = []
        self._runs = 0
        self._frames: dict[tuple[Address, int, int], Data] = {}
        self._frames_by_origin: Counter[Address] = Counter()
        self._has_view = False

    def __len__(self) -> int:
        return self._runs + len(self._frames)

    def buffer_datagram(self, datagram: Datagram, *, departed: bool) -> bool:
        """Buffer a datagram of a possible future member; return whether there was room.

        ``departed``: the sender was a member. The same incarnation may return, so the datagrams of
        a departed member are buffered where no message may be dropped.
        """
        bounded = self.config.retransmits
        # With retransmission on the sender repeats what a later view needs.
        if bounded and (self._has_view or departed):
            return False
        runs = sum(isinstance(frame, Data) for frame in datagram.frames)
        if bounded and self._runs + max(runs, 1) > self.config.become_server_queue_size:
            return False
        if not self._budget.reserve(datagram.sender, _datagram_bytes(datagram)):
            return False
        self._runs += max(runs, 1)
        self._datagrams.append((datagram, 0))
        return True

    def buffer_frame(self, frame: Data) -> bool:
        """Buffer a message of a later view; return False if there was no room."""
        name = _frame_key(frame)
        # A repeated message takes no second place.
        if name in self._frames:
            return True
        origin = frame.run.origin
        # Each sender has a queue of its own: one of them must not fill it for all.
        if (
            self._frames_by_origin[origin] >= self.config.become_server_queue_size
            and self.config.retransmits
        ) or not self._budget.reserve(origin, frame.run.size_bytes):
            return False
        self._frames[name] = frame
        self._frames_by_origin[origin] += 1
        return True

    def take_datagrams(
        self, view: View, out: ReadyBuilder, *, any_view: bool = False
    ) -> list[Datagram]:
        """Return the buffered datagrams of members; drop the others, or keep them longer.

        Messages sent before the view that admits this member are not addressed to this member
        (P-17), unless the member is durable and resumes where each sender says (``any_view``).
        """
        first_view = not self._has_view and not any_view
        self._has_view = True
        buffered, self._datagrams, self._runs = self._datagrams, [], 0

        found: list[Datagram] = []
        for datagram, age in buffered:
            self._budget.release(datagram.sender, _datagram_bytes(datagram))
            if datagram.sender in view.members:
                datagram = (  # noqa: PLW2901
                    self._without_earlier_views(datagram, view.id.number, out)
                    if first_view
                    else datagram
                )
                found += [datagram] if datagram.frames else []
            # Still no member: with retransmission on, the sender repeats everything once it is one.
            elif (
                self.config.retransmits
                or age >= _MAX_VIEWS
                or not self._budget.reserve(datagram.sender, _datagram_bytes(datagram))
            ):
                out.drop("stranger", peer=datagram.sender)
            else:
                self._datagrams.append((datagram, age + 1))
                self._runs += max(1, sum(isinstance(frame, Data) for frame in datagram.frames))
        assert self._runs >= len(self._datagrams), "a datagram counts as one run at least"
        return found

    @staticmethod
    def _without_earlier_views(datagram: Datagram, view: int, out: ReadyBuilder) -> Datagram:
        """Return ``datagram`` without the messages sent before ``view``."""
        old = [
            frame.run
            for frame in datagram.frames
            if isinstance(frame, Data) and frame.run.view < view
        ]
        for run in old:
            out.drop(
                "view",
                run.origin,
                run.first,
                run.last,
                peer=datagram.sender,
                message_count=run.count,
            )
        fresh = (
            frame
            for frame in datagram.frames
            if not isinstance(frame, Data) or frame.run.view >= view
        )
        return datagram._replace(frames=tuple(fresh)) if old else datagram

    def take_frames(self, view: int, members: Container[Address], out: ReadyBuilder) -> list[Data]:
        """Return the messages buffered for ``view``; drop messages of earlier views."""
        buffered, self._frames = list(self._frames.values()), {}
        self._frames_by_origin.clear()
        found: list[Data] = []
        for frame in buffered:
            run = frame.run
            self._budget.release(run.origin, run.size_bytes)
            if frame.epoch == view and run.origin in members:
                found.append(frame)
            # A departed member left it behind, and strangers share one budget.
            elif frame.epoch <= view or not self.buffer_frame(frame):
                out.drop(
                    "view" if frame.epoch <= view else "early",
                    run.origin,
                    run.first,
                    run.last,
                    peer=run.origin,
                    message_count=run.count,
                )
        assert all(frame.epoch == view for frame in found), "a message belongs to one view"
        return found

    def check_invariants(self) -> None:
        """Raise AssertionError if the buffered runs are miscounted or misfiled."""
        runs = sum(
            max(1, sum(isinstance(frame, Data) for frame in datagram.frames))
            for datagram, _ in self._datagrams
        )
        assert self._runs == runs, f"{runs} runs are buffered, {self._runs} are counted"
        assert all(0 <= age <= _MAX_VIEWS for _, age in self._datagrams), (
            "old datagrams are dropped"
        )
        for key, frame in self._frames.items():
            assert key == _frame_key(frame), f"{key} is the key of {_frame_key(frame)}"
        origins = Counter(frame.run.origin for frame in self._frames.values())
        assert +self._frames_by_origin == origins, "the frames of each sender are counted"

    def snapshot(self) -> tuple[object, ...]:
        """Return the whole state as a hashable value."""
        return (tuple(self._datagrams), tuple(self._frames.values()), self._has_view)

    def restore(self, snapshot: tuple[object, ...]) -> None:
        """Restore the state of ``snapshot``."""
        datagrams, later, self._has_view = snapshot  # type: ignore[assignment]
        self._datagrams = list(datagrams)  # type: ignore[call-overload]
        self._frames = {_frame_key(frame): frame for frame in later}  # type: ignore[attr-defined]
        self._frames_by_origin = Counter(frame.run.origin for frame in self._frames.values())
        for datagram, _ in self._datagrams:
            self._budget.charge(datagram.sender, _datagram_bytes(datagram))
        for frame in self._frames.values():
            self._budget.charge(frame.run.origin, frame.run.size_bytes)
        self._runs = sum(
            max(1, sum(isinstance(frame, Data) for frame in datagram.frames))
            for datagram, _ in self._datagrams
        )
