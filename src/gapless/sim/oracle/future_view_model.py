"""The model of the future-view buffer: the data that a member must buffer for a later view.

Before its first view a member buffers datagrams of any sender, up to a number of runs. Without
retransmission a member buffers all data of possible members. Where messages belong to views, a
member also buffers the messages of later views.
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
    """The part of an incarnation's model that the buffer reads."""

    @property
    def address(self) -> Address:
        """The incarnation's address."""

    @property
    def view(self) -> View | None:
        """The current view; None before the first view."""

    @property
    def epoch(self) -> int:
        """The epoch of the current view where messages belong to views, else 0."""

    @property
    def inbound(self) -> Collection[Address]:
        """The origins of the inbound streams."""


class FutureViewModel:
    """The future-view buffer of an incarnation."""

    __slots__ = ("_datagrams", "_future_data")

    def __init__(self) -> None:
        self._datagrams: list[tuple[Datagram, int]] = []
        self._future_data: list[Data] = []

    @staticmethod
    def _cost(datagram: Datagram) -> int:
        return max(1, sum(isinstance(frame, Data) for frame in datagram.frames))

    def must_buffer(self, member: BufferOwner, datagram: Datagram, config: Config) -> bool:
        """Return whether ``member`` must buffer a datagram from outside of its view."""
        if datagram.sender == member.address:
            return False
        if config.retransmits:
            taken = sum(self._cost(buffered) for buffered, _ in self._datagrams)
            if member.view is None:
                return taken + self._cost(datagram) <= config.become_server_queue_size
            return any(
                self._has_room(frame, config)
                for frame in self._future_data_frames(member, datagram)
            )
        return True

    def _future_data_frames(self, member: BufferOwner, datagram: Datagram) -> list[Data]:
        """Return the data of a future member for a later view, where messages belong to views."""
        if not member.epoch:
            return []
        frames = [frame for frame in datagram.frames if isinstance(frame, Data)]
        return [
            f
            for f in frames
            if member.epoch < f.epoch < FIRST_CONNECTION_EPOCH and f.run.origin == datagram.sender
        ]

    def buffer(self, member: BufferOwner, datagram: Datagram, config: Config) -> None:
        """Buffer a datagram, or its messages for a later view."""
        if member.view is None or not config.retransmits:
            self._datagrams.append((datagram, 0))
            return
        for frame in self._future_data_frames(member, datagram):
            self.buffer_data(frame, config)

    def release(
        self, member: BufferOwner, config: Config, *, first_view: bool
    ) -> tuple[list[Datagram], int]:
        """Return the datagrams admitted by the present view, and the number of late messages."""
        assert member.view is not None
        number, buffered, self._datagrams = member.view.id.number, self._datagrams, []
        called: list[Datagram] = []
        before = 0
        for datagram, age in buffered:
            if datagram.sender in member.inbound:
                frames = datagram.frames
                if first_view:
                    old = [
                        frame
                        for frame in frames
                        if isinstance(frame, Data) and frame.run.view < number
                    ]
                    before += sum(frame.run.count for frame in old)
                    frames = tuple(frame for frame in frames if frame not in old)
                called.append(datagram._replace(frames=frames))
            elif not config.retransmits and age < _MAX_VIEWS:
                self._datagrams.append((datagram, age + 1))
        return called, before

    def buffer_data(self, frame: Data, config: Config) -> bool:
        """Buffer a message of a later view; return whether there is room."""
        if not self._has_room(frame, config):
            return False
        if not self._is_buffered(frame):
            self._future_data.append(frame)
        return True

    def _has_room(self, frame: Data, config: Config) -> bool:
        taken = sum(buffered.run.origin == frame.run.origin for buffered in self._future_data)
        room = taken < config.become_server_queue_size or not config.retransmits
        return room or self._is_buffered(frame)

    def _is_buffered(self, frame: Data) -> bool:
        name = frame.run.origin, frame.run.first, frame.epoch
        return any(
            (buffered.run.origin, buffered.run.first, buffered.epoch) == name
            for buffered in self._future_data
        )

    def release_data(self, member: BufferOwner) -> tuple[list[Data], int]:
        """Return the data buffered for the present view, and the number of late messages."""
        buffered, self._future_data = (
            self._future_data,
            [frame for frame in self._future_data if frame.epoch > member.epoch],
        )
        here = [
            frame
            for frame in buffered
            if frame.epoch == member.epoch and frame.run.origin in member.inbound
        ]
        past = [frame for frame in buffered if frame.epoch <= member.epoch and frame not in here]
        return here, sum(frame.run.count for frame in past)
