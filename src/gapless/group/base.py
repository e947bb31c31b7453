"""What both faces show in the same way, because nothing of it waits."""

from __future__ import annotations

import sys
import warnings
from typing import TYPE_CHECKING, Any, TypeVar

from gapless.delivery_mode import DeliveryMode
from gapless.errors import LocalProtocolError
from gapless.group.deprecated import DeprecatedMethods
from gapless.group.session import GroupSession

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from gapless.config import Config
    from gapless.group.join_options import MemberOptions
    from gapless.group.rpc import RequestFrame
    from gapless.group.session import Payload, Steps
    from gapless.group.timeouts import Duration
    from gapless.identity import Address, View
    from gapless.protocol.events import Accepted
    from gapless.runtime.bundler import Bundle
    from gapless.runtime.send_requests import SendRequest as Sending


_R = TypeVar("_R", bound="ReceiptBase")


class GroupBase(DeprecatedMethods):
    """One member of one group."""

    @staticmethod
    def _flush_scheduler() -> Callable[[Callable[[], None]], None] | None:
        """Return what decides when what is sent is seen to; None: at once."""
        return None

    def __init__(self, options: MemberOptions, timeout: Duration | None = None) -> None:
        """Prepare to join; :func:`join` makes the options."""
        self._session_or_none: GroupSession | None = None
        self._timeout = timeout
        self._session_or_none = GroupSession(options, self._flush_scheduler())

    @property
    def _session(self) -> GroupSession:
        assert self._session_or_none is not None
        return self._session_or_none

    @property
    def group(self) -> str:
        """The name of the group."""
        return self._session.options.group

    @property
    def view(self) -> View | None:
        """The present view; its ``members`` are addresses, oldest first. None before the first one."""
        return self._session.inbox.view

    @property
    def me(self) -> Address | None:
        """The address of this member; another one after it was expelled. None before the first view."""
        return self._session.inbox.me

    @property
    def names(self) -> dict[Address, str]:
        """The durable names of those that have one."""
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
        """Every knob, as it is in force."""
        return self._session.handle.config

    @property
    def unread(self) -> int:
        """How many messages have come and wait to be read."""
        return self._session.inbox.unread

    @property
    def is_closed(self) -> bool:
        """Whether this member has come to its end, or was never opened."""
        return not self._session.is_open

    def confirm_stored(self, marks: Mapping[Address, int]) -> None:
        """Acknowledge messages that are stored: up to a seqno of each sender (docs/durable.md).

        For a member that joined with a ``durable_name`` and ``stores=True``.
        """
        self._session.confirm_stored(marks)

    def leave(self) -> None:
        """Begin to leave, without waiting: what was sent is brought to its end, and reading ends after what came."""
        self._session.leave()

    def __repr__(self) -> str:
        view = self.view
        where = (
            "closed" if self.is_closed else "joining" if view is None else f"view {view.id.number}"
        )
        return f"<{self.group}: {self.me}, {where}, {0 if view is None else len(view.members)} members>"

    def __del__(self) -> None:
        core = self._session_or_none
        if core is not None and core.is_open and not core.closing and not sys.is_finalizing():
            words = f"{self!r} was never closed: use it as a context manager"
            warnings.warn(words, ResourceWarning, stacklevel=2, source=self)
            core.abandon()


class ReceiptBase:
    """What was sent: ``first .. last`` are the seqnos of the messages (0 if they have none), ``count`` how many."""

    __slots__ = ("_accepted", "_bundled", "_request", "_session", "count")

    def __init__(
        self, core: GroupSession, accepted: Accepted | None, count: int, sent: Sending | None = None
    ) -> None:
        """What was ``accepted``; None: one message, of which it is found out when somebody asks."""
        self._session = core
        self._request = sent
        self._accepted = accepted
        self.count = count
        self._bundled: tuple[Bundle, int] | None = None

    @property
    def first(self) -> int:
        """The seqno of the first message."""
        return self._resolved().first

    @property
    def last(self) -> int:
        """The seqno of the last message."""
        return self._resolved().last

    def _resolved(self) -> Accepted:
        if self._accepted is None:
            self._accepted = self._session.resolve_bundled(self)
        return self._accepted

    def _delivered(self, timeout: Duration | None) -> Steps[None]:
        return self._session.delivered(self._request, timeout)

    def __repr__(self) -> str:
        return f"<sent {self.first}..{self.last}, {DeliveryMode.ORDERED if self._request is None else self._request.mode}>"


def make_receipt(kind: type[_R], core: GroupSession, sent: Sending) -> _R:
    """Return the receipt of a send that was accepted."""
    accepted: Any = sent.result()
    return kind(core, accepted, len(sent.payloads), sent)


class IncomingRequest:
    """What another member asks."""

    def __init__(self, core: GroupSession, asked: RequestFrame) -> None:
        self._session = core
        self._frame = asked
        self.answered = False

    @property
    def payload(self) -> bytes:
        """What was asked."""
        return self._frame.payload

    @property
    def sender(self) -> Address:
        """Who asked."""
        return self._frame.sender

    def _answer(self, payload: Payload | None, error: BaseException | None = None) -> Steps[None]:
        if self.answered:
            raise LocalProtocolError("this request was answered before; answer each once")
        self.answered = True
        return self._session.answer(self._frame, payload, error)

    def __repr__(self) -> str:
        return f"<request of {self.sender}: {len(self.payload)} bytes>"
