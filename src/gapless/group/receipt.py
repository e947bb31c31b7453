"""Receipts of sends: the seqnos of the messages, found on demand."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeVar

from gapless.delivery_mode import DeliveryMode

if TYPE_CHECKING:
    from gapless.group.session import GroupSession, Steps
    from gapless.group.timeouts import Duration
    from gapless.protocol.events import Accepted
    from gapless.runtime.bundler import Bundle
    from gapless.runtime.send_requests import SendRequest

_ReceiptT = TypeVar("_ReceiptT", bound="ReceiptBase")


class ReceiptBase:
    """The receipt of a send of ``count`` messages with the seqnos ``first .. last`` (0: none).

    A new receipt is one of a message without a seqno yet, which is found on demand. The defaults
    belong to the class, and there is no ``__init__``: most receipts are never looked at, and every
    message has one.
    """

    count: int = 1
    """Number of messages."""
    _session: GroupSession
    _request: SendRequest | None = None
    _accepted: Accepted | None = None
    _bundled: tuple[Bundle, int] | None = None

    @property
    def first(self) -> int:
        """The seqno of the first message; 0 for a message without a seqno."""
        return self._resolved().first

    @property
    def last(self) -> int:
        """The seqno of the last message; 0 for a message without a seqno."""
        return self._resolved().last

    @property
    def view(self) -> int:
        """The number of the view in which the seqnos count; 0 if seqnos outlive a view.

        Only in the profile ``classic`` seqnos restart with every view.
        """
        return self._resolved().view

    def _resolved(self) -> Accepted:
        if self._accepted is None:
            self._accepted = self._session.resolve_bundled(self)
        return self._accepted

    def _delivered(self, timeout: Duration | None) -> Steps[None]:
        return self._session.delivered(self._request, timeout)

    def __repr__(self) -> str:
        mode = DeliveryMode.ORDERED if self._request is None else self._request.mode
        return f"<sent {self.first}..{self.last}, {mode}>"


def make_receipt(kind: type[_ReceiptT], session: GroupSession, request: SendRequest) -> _ReceiptT:
    """Return the receipt of an accepted send."""
    receipt = kind()
    receipt._session, receipt._request, receipt.count = session, request, len(request.payloads)
    accepted: Any = request.result()
    receipt._accepted = accepted
    return receipt


class UntrackedReceipt:
    """The receipt of a message whose seqno is never needed."""

    __slots__ = ("_accepted", "_bundled")

    _accepted: Accepted | None
    _bundled: tuple[Bundle, int] | None
