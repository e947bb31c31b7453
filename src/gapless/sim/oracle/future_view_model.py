"""The model of the future-view buffer: what a member must keep for a later view.

Before its first view a member keeps datagrams of anybody, up to so many runs; without
retransmission it keeps everything of those that may become members. Where messages belong to views,
those of later views are kept as well.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from gapless.wire import Data
from gapless.wire.frames import FIRST_CONNECTION_EPOCH

if TYPE_CHECKING:
    from collections.abc import Collection

    from gapless.config import Config
    from gapless.identity import Address, View
    from gapless.wire import Datagram

_MAX_VIEWS = 2


class BufferOwner(Protocol):
    """What the buffer reads of the incarnation that owns it."""

    @property
    def address(self) -> Address:
        """The incarnation's address."""

    @property
    def view(self) -> View | None:
        """Its current view; None before the first one."""

    @property
    def epoch(self) -> int:
        """The epoch of its current view where messages belong to views, else 0."""

    @property
    def inbound(self) -> Collection[Address]:
        """The origins that it receives from."""


class FutureViewModel:
    """What one life keeps."""

    __slots__ = ("_datagrams", "_future_data")

    def __init__(self) -> None:
        self._datagrams: list[tuple[Datagram, int]] = []
        self._future_data: list[Data] = []

    @staticmethod
    def _cost(said: Datagram) -> int:
        return max(1, sum(isinstance(frame, Data) for frame in said.frames))

    def must_buffer(self, member: BufferOwner, said: Datagram, config: Config) -> bool:
        """Return whether ``member`` must keep a datagram of one who is not in its view."""
        if said.sender == member.address:
            return False
        if config.retransmits:
            taken = sum(self._cost(kept) for kept, _ in self._datagrams)
            if member.view is None:
                return taken + self._cost(said) <= config.become_server_queue_size
            return any(
                self._has_room(frame, config) for frame in self._future_data_frames(member, said)
            )
        return True

    def _future_data_frames(self, member: BufferOwner, said: Datagram) -> list[Data]:
        """Return what one who is to join says in a view to come, where messages belong to views."""
        if not member.epoch:
            return []
        frames = [frame for frame in said.frames if isinstance(frame, Data)]
        return [
            f
            for f in frames
            if member.epoch < f.epoch < FIRST_CONNECTION_EPOCH and f.run.origin == said.sender
        ]

    def buffer(self, member: BufferOwner, said: Datagram, config: Config) -> None:
        """Keep a datagram, or the messages in it that are for a view to come."""
        if member.view is None or not config.retransmits:
            self._datagrams.append((said, 0))
            return
        for frame in self._future_data_frames(member, said):
            self.buffer_data(frame, config)

    def release(
        self, member: BufferOwner, config: Config, *, first_view: bool
    ) -> tuple[list[Datagram], int]:
        """Return the datagrams that the present view admits, and how many messages are too late."""
        assert member.view is not None
        number, kept, self._datagrams = member.view.id.number, self._datagrams, []
        called: list[Datagram] = []
        before = 0
        for said, age in kept:
            if said.sender in member.inbound:
                frames = said.frames
                if first_view:
                    old = [
                        frame
                        for frame in frames
                        if isinstance(frame, Data) and frame.run.view < number
                    ]
                    before += sum(frame.run.count for frame in old)
                    frames = tuple(frame for frame in frames if frame not in old)
                called.append(said._replace(frames=frames))
            elif not config.retransmits and age < _MAX_VIEWS:
                self._datagrams.append((said, age + 1))
        return called, before

    def buffer_data(self, frame: Data, config: Config) -> bool:
        """Keep a message of a later view; return whether there is room."""
        if not self._has_room(frame, config):
            return False
        if not self._is_buffered(frame):
            self._future_data.append(frame)
        return True

    def _has_room(self, frame: Data, config: Config) -> bool:
        room = len(self._future_data) < config.become_server_queue_size or not config.retransmits
        return room or self._is_buffered(frame)

    def _is_buffered(self, frame: Data) -> bool:
        name = frame.run.origin, frame.run.first, frame.epoch
        return any(
            (kept.run.origin, kept.run.first, kept.epoch) == name for kept in self._future_data
        )

    def release_data(self, member: BufferOwner) -> tuple[list[Data], int]:
        """Return the data buffered for the present view, and how many missed their view."""
        kept, self._future_data = (
            self._future_data,
            [frame for frame in self._future_data if frame.epoch > member.epoch],
        )
        here = [
            frame
            for frame in kept
            if frame.epoch == member.epoch and frame.run.origin in member.inbound
        ]
        past = [frame for frame in kept if frame.epoch <= member.epoch and frame not in here]
        return here, sum(frame.run.count for frame in past)
