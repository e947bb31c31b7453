"""The part of both APIs that never waits: properties, receipts, requests."""

from __future__ import annotations

import sys
import warnings
from typing import TYPE_CHECKING

from gapless.errors import DepartedError, LocalProtocolError
from gapless.group.deprecated import DeprecatedMethods
from gapless.group.option_checks import wrong_argument
from gapless.group.session import GroupSession, as_payload
from gapless.identity import Address
from gapless.logger import log
from gapless.units import format_count

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from gapless.config import Config
    from gapless.group.join_options import MemberOptions
    from gapless.group.rpc import RequestFrame
    from gapless.group.session import Payload, Steps
    from gapless.identity import View


class GroupBase(DeprecatedMethods):
    """One member of one group: the properties and methods that never wait."""

    @staticmethod
    def _flush_scheduler() -> Callable[[Callable[[], None]], bool] | None:
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

        The address changes when the member is expelled and joins again.
        """
        return self._session.inbox.me

    @property
    def names(self) -> dict[Address, str]:
        """The durable names of members, by address."""
        return dict(self._session.inbox.names)

    @property
    def display_name(self) -> str:
        """The name of this member in its own logs, events, traces and snapshots."""
        return self._session.options.display_name

    def label(self, member: Address) -> str:
        """Return a member for people: a name, as far as known here, and the short id.

        The known names are the own display name, display names of members in the same process, and
        display names of members whose ``snapshot`` was requested. For other members the durable
        name or the locator is shown.

        Args:
            member: The address of the member.
        """
        if not isinstance(member, Address):
            raise wrong_argument("member", member, "an address, such as message.sender")
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
        """Acknowledge the stored messages of each sender, up to and including a seqno.

        For a member that joined with a ``durable_name`` and ``stores=True``
        (docs/guides/durable-members.md).

        Args:
            marks: The highest stored seqno of each sender, by address.
        """
        self._session.confirm_stored(marks)

    def leave(self) -> None:
        """Begin to leave, without waiting.

        Accepted messages are still resent, and messages that have arrived can be read.
        """
        self._session.leave()

    def __repr__(self) -> str:
        view = self.view
        where = (
            "closed" if self.is_closed else "joining" if view is None else f"view {view.id.number}"
        )
        count = 0 if view is None else len(view)
        me = self.display_name if self.me is None else self.label(self.me)
        return f"<{self.group}: {me}, {where}, {format_count(count, 'member')}>"

    def __del__(self) -> None:
        # Without a session ``__init__`` has failed, and there is nothing to close.
        session: GroupSession | None = self.__dict__.get("_session")
        if session is not None and session.stays_in_group and not sys.is_finalizing():
            text = f"{self!r} was never closed: use join() as a context manager, or call close()"
            warnings.warn(text, ResourceWarning, stacklevel=2, source=self)
            session.abandon()


class IncomingRequest:
    """A request from another member."""

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
            raise LocalProtocolError(
                "this request was already answered; call reply() or fail() once for each request"
            )
        if payload is not None:
            payload = as_payload(payload)  # first: a wrong type is no answer
        self._answered = True
        return self._session.answer(self._frame, payload, error)

    def _log_failure(self, handler: object, error: BaseException) -> bool:
        """Log the failure of a handler; return whether the requesting member waits for a reply."""
        group, sender = self._session.options.group, self._session.label(self.sender)
        view = self._session.inbox.view
        if isinstance(error, DepartedError) and (view is None or self.sender not in view):
            log.debug("%s: %s left before its request was answered", group, sender)
            return False
        log.warning(
            "%s: the request handler %s failed on a request from %s",
            group,
            getattr(handler, "__qualname__", handler),
            sender,
            exc_info=error,
        )
        return not self._answered

    def __repr__(self) -> str:
        return f"<request of {self._session.label(self.sender)}: {len(self.payload)} bytes>"
