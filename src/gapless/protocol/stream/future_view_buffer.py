"""What comes too early: before this member has a view, or for a view that it does not have yet.

On reception before the first view: datagrams are kept, up to ``become_server_queue_size`` runs of
messages, and taken in with the view (NR-08, NR-09), but for messages of earlier views, which only a
durable member is to have (P-17). With retransmission off everything is kept, then and later, for
what is dropped would never come again (NR-10): what is still nobody's after two more views is let
go. Switching to a bounded queue drops nothing that is in it (NR-13).

On reception of a message of a later view, where messages belong to views: it is kept as well, up to
the same number, until that view or a later one is there, whoever made it (I-20).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from gapless.wire.frames import Data

if TYPE_CHECKING:
    from collections.abc import Container

    from gapless.config import Config
    from gapless.identity import Address, View
    from gapless.protocol.ready_builder import ReadyBuilder
    from gapless.wire.frames import Datagram

_MAX_VIEWS = 2
"""How many views a datagram of a stranger outlasts, where nothing may be dropped."""


def _frame_key(frame: Data) -> tuple[Address, int, int]:
    return frame.run.origin, frame.epoch, frame.run.first


class FutureViewBuffer:
    """The datagrams and messages that wait for a view."""

    def __init__(self, config: Config) -> None:
        self.config = config
        self._datagrams: list[tuple[Datagram, int]] = []
        self._runs = 0
        self._frames: dict[tuple[Address, int, int], Data] = {}
        self._has_view = False

    def __len__(self) -> int:
        return self._runs + len(self._frames)

    def buffer_datagram(self, said: Datagram, *, departed: bool) -> bool:
        """Keep a datagram of one who is not a member, if it may become one; return whether it was kept.

        One who was a member may come back as the same life: where nothing may be dropped, that is
        kept too.
        """
        bounded = self.config.retransmits
        if bounded and (self._has_view or departed):
            return False
        runs = sum(isinstance(frame, Data) for frame in said.frames)
        if bounded and self._runs + max(runs, 1) > self.config.become_server_queue_size:
            return False
        self._runs += max(runs, 1)
        self._datagrams.append((said, 0))
        return True

    def buffer_frame(self, frame: Data) -> bool:
        """Keep a message of a later view; return whether there was room for it, or it is here already."""
        name = _frame_key(frame)
        if name in self._frames:
            return True
        if len(self._frames) >= self.config.become_server_queue_size and self.config.retransmits:
            return False
        self._frames[name] = frame
        return True

    def take_datagrams(
        self, view: View, out: ReadyBuilder, *, any_view: bool = False
    ) -> list[Datagram]:
        """Return what was kept of those that are members now; the rest is dropped, or waits on.

        What was sent before the view that brings this member in is not for it (P-17), unless it is
        a durable one: that goes on where each sender says (``any_view``).
        """
        first_view = not self._has_view and not any_view
        self._has_view = True
        kept, self._datagrams, self._runs = self._datagrams, [], 0
        found: list[Datagram] = []
        for said, age in kept:
            if said.sender in view.members:
                said = (  # noqa: PLW2901
                    self._without_earlier_views(said, view.id.number, out) if first_view else said
                )
                found += [said] if said.frames else []
            elif self.config.retransmits or age >= _MAX_VIEWS:
                out.drop("stranger", peer=said.sender)
            else:
                self._datagrams.append((said, age + 1))
                self._runs += max(1, sum(isinstance(frame, Data) for frame in said.frames))
        return found

    @staticmethod
    def _without_earlier_views(said: Datagram, view: int, out: ReadyBuilder) -> Datagram:
        old = [
            frame.run for frame in said.frames if isinstance(frame, Data) and frame.run.view < view
        ]
        for run in old:
            out.drop(
                "view", run.origin, run.first, run.last, peer=said.sender, message_count=run.count
            )
        fresh = (
            frame for frame in said.frames if not isinstance(frame, Data) or frame.run.view >= view
        )
        return said._replace(frames=tuple(fresh)) if old else said

    def take_frames(self, view: int, members: Container[Address], out: ReadyBuilder) -> list[Data]:
        """Return what was kept for ``view``; what is for later ones stays, and what is for earlier ones is dropped."""
        kept = list(self._frames.values())
        self._frames = {name: frame for name, frame in self._frames.items() if frame.epoch > view}
        found: list[Data] = []
        for frame in kept:
            run = frame.run
            if frame.epoch == view and run.origin in members:
                found.append(frame)
            elif frame.epoch <= view:
                out.drop(
                    "view",
                    run.origin,
                    run.first,
                    run.last,
                    peer=run.origin,
                    message_count=run.count,
                )
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

    def snapshot(self) -> tuple[object, ...]:
        """Return the whole state as a hashable value."""
        return (tuple(self._datagrams), tuple(self._frames.values()), self._has_view)

    def restore(self, snapshot: tuple[object, ...]) -> None:
        """Become what ``snapshot`` says."""
        kept, later, self._has_view = snapshot  # type: ignore[assignment]
        self._datagrams, self._frames = list(kept), {_frame_key(frame): frame for frame in later}  # type: ignore[call-overload, attr-defined]
        self._runs = sum(
            max(1, sum(isinstance(f, Data) for f in said.frames)) for said, _ in self._datagrams
        )
