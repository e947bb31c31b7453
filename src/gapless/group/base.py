"""What both APIs have in common because it never waits: properties, receipts, requests."""

from __future__ import annotations

import sys
import warnings
from typing import TYPE_CHECKING

from gapless.errors import LocalProtocolError
from gapless.group.deprecated import DeprecatedMethods
from gapless.group.session import GroupSession

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from gapless.config import Config
    from gapless.group.join_options import MemberOptions
    from gapless.group.rpc import RequestFrame
    from gapless.group.session import Payload, Steps
    from gapless.identity import Address, View


class GroupBase(DeprecatedMethods):
    """One member of one group."""

    @staticmethod
    def _flush_scheduler() -> Callable[[Callable[[], None]], None] | None:
        """Return a function that defers the flush of a send; None to flush at once."""
        return None

    def __init__(self, options: MemberOptions) -> None:
        """Prepare to join; ``join`` makes the options."""
        self._session = GroupSession(options, self._flush_scheduler())

    @property
    def group(self) -> str:
        """The name of the group."""
        return self._session.options.group

    @property
    def view(self) -> View | None:
        """The present view, a collection of addresses, oldest first; None before the first view."""
        return self._session.inbox.view

    @property
    def me(self) -> Address | None:
        """The address of this member; None before the first view.

        It changes when the member is expelled and joins again.
        """
        return self._session.inbox.me

    @property
    def names(self) -> dict[Address, str]:
        """The durable names of the members that have one."""
        return dict(self._session.inbox.names)

    @property
    def display_name(self) -> str:
        """The name of this member in its own logs, events, traces and snapshots."""
        return self._session.options.display_name

    def label(self, member: Address) -> str:
        """Return a member for people: its name, as far as it is known here, and its short id.

        Known are the own display name, those of members of the same process, and those of members
        whose ``snapshot`` was requested. Otherwise the durable name or the locator is shown.
        """
        return self._session.label(member)

    @property
    def config(self) -> Config:
        """The settings in force."""
        return self._session.handle.config

    @property
    def unread(self) -> int:
        """Number of messages that have arrived and are not consumed."""
        return self._session.inbox.unread

    @property
    def is_closed(self) -> bool:
        """Whether this member has ended, or was never opened."""
        return not self._session.is_open

    def confirm_stored(self, marks: Mapping[Address, int]) -> None:
        """Acknowledge messages that are stored: up to a seqno of each sender (docs/durable.md).

        For a member that joined with a ``durable_name`` and ``stores=True``.
        """
        self._session.confirm_stored(marks)

    def leave(self) -> None:
        """Begin to leave, without waiting.

        Accepted messages are still retransmitted, and messages that have arrived can be read.
        """
        self._session.leave()

    def __repr__(self) -> str:
        view = self.view
        where = (
            "closed" if self.is_closed else "joining" if view is None else f"view {view.id.number}"
        )
        count = 0 if view is None else len(view)
        return f"<{self.group}: {self.me}, {where}, {count} members>"

    def __del__(self) -> None:
        # Without a session ``__init__`` has failed, and there is nothing to close.
        session: GroupSession | None = self.__dict__.get("_session")
        if session is not None and session.stays_in_group and not sys.is_finalizing():
            text = f"{self!r} was never closed: use it as a context manager"
            warnings.warn(text, ResourceWarning, stacklevel=2, source=self)
            session.abandon()


class IncomingRequest:
    """A request of another member."""

    def __init__(self, session: GroupSession, frame: RequestFrame) -> None:
        self._session = session
        self._frame = frame
        self._answered = False

    @property
    def payload(self) -> bytes:
        """The bytes that the other member passed to ``request``."""
        return self._frame.payload

    @property
    def sender(self) -> Address:
        """The member that sent the request."""
        return self._frame.sender

    def _answer(self, payload: Payload | None, error: BaseException | None = None) -> Steps[None]:
        if self._answered:
            raise LocalProtocolError("this request was answered before; answer each once")
        self._answered = True
        return self._session.answer(self._frame, payload, error)

    def __repr__(self) -> str:
        return f"<request of {self.sender}: {len(self.payload)} bytes>"
