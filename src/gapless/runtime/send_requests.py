"""Sends: from the application into the machine, and what became of them back.

On sending: a send waits here until the next turn takes it up, and before the first view until there
is one. Small sends that have room leave together, as if they were one, so that many of them share a
frame. One that has no room waits in the machine, alone, so that it can be given up alone.

On an event: the machine names a ticket; whoever waits for that ticket is told.
"""

from __future__ import annotations

import time
from collections import deque
from concurrent.futures import Future
from enum import Enum
from typing import TYPE_CHECKING, Any

from gapless.delivery_mode import DeliveryMode
from gapless.errors import LocalProtocolError
from gapless.logger import log
from gapless.payloads import Payloads
from gapless.protocol.events import Accepted, Acknowledged, GivenUp, Refused, Unacknowledged

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from gapless.identity import Address
    from gapless.protocol.events import Event
    from gapless.protocol.member import Member
    from gapless.protocol.ready import Ready
    from gapless.runtime.bundler import Bundle

MAX_MERGED_BYTES = 1 << 18
"""So many bytes of small sends leave together at most."""


class When(Enum):
    """When a submitted request is handled."""

    NOW = "now"
    """In the calling thread, as soon as no other thread is in a turn."""
    LATER = "later"
    """With the next turn, whoever takes it; ``MemberHandle.flush`` takes one."""
    WAKE = "wake"
    """By the thread that polls the sockets; it is woken."""


class SendRequest(Future[Accepted | Refused | GivenUp]):
    """A send on its way; the result says what became of it.

    ``delivered`` is there for messages that are acknowledged, and tells when all have them, or who
    has not. Cancelled before a turn has taken it up, nothing of it is sent; afterwards
    ``Handle.cancel`` is the way.
    """

    def __init__(
        self,
        payloads: Payloads,
        to: Address | None = None,
        mode: DeliveryMode = DeliveryMode.ORDERED,
        *,
        wait: bool = True,
        deadline_ns: int | None = None,
        loopback: bool | None = None,
    ) -> None:
        super().__init__()
        self.payloads = payloads
        self.to = to
        self.mode = mode
        self.may_wait = wait
        self.deadline_ns = deadline_ns
        self.loopback = loopback
        self.size_bytes = payloads.size_bytes
        self.ticket = 0
        acknowledged = mode in {DeliveryMode.ACKNOWLEDGED, DeliveryMode.OUT_OF_BAND}
        self.delivered: Future[Acknowledged | Unacknowledged] | None = (
            Future() if acknowledged else None
        )

    @classmethod
    def of(
        cls,
        payloads: Iterable[bytes],
        to: Address | None = None,
        mode: DeliveryMode | str = DeliveryMode.ORDERED,
        *,
        wait: bool = True,
        timeout_ns: int | None = None,
        loopback: bool | None = None,
    ) -> SendRequest:
        """Validate what the application gives, once, and return the request.

        With ``wait=False`` all messages are accepted at once or none. A request that waits longer
        than ``timeout_ns`` for room or for the first view is given up.
        """
        if timeout_ns is not None and timeout_ns < 0:
            raise LocalProtocolError(
                f"a timeout of {timeout_ns} ns is over before it begins: use wait=False"
            )
        return cls(
            Payloads.of(payloads),
            to,
            DeliveryMode.of(mode),
            wait=wait,
            deadline_ns=None if timeout_ns is None else time.monotonic_ns() + timeout_ns,
            loopback=loopback,
        )

    @property
    def is_mergeable(self) -> bool:
        """Whether it can leave together with others."""
        alike = self.to is None and self.mode is DeliveryMode.ORDERED and self.loopback is None
        return alike and self.may_wait and self.deadline_ns is None

    def resolve(self, outcome: Accepted | Refused | GivenUp) -> None:
        """Tell what became of it; without acceptance there is nothing to deliver."""
        if not self.done():
            self.set_result(outcome)
        if self.delivered is not None and not isinstance(outcome, Accepted):
            self.delivered.cancel()

    def fail(self, error: BaseException) -> None:
        """End it, and the wait for its delivery."""
        for future in (self, self.delivered):
            if future is not None and not future.done():
                future.set_exception(error)


class SendRequests:
    """The sends of one member. ``put`` may be called by any thread, all else inside a turn."""

    def __init__(self, small_bytes: int) -> None:
        self._small_bytes = small_bytes
        self.queue: deque[SendRequest] = deque()
        """Requests that no turn has taken up yet."""
        self.has_new = False
        """Whether the next turn has something to flush."""
        self._submitted: dict[int, list[SendRequest] | list[Bundle]] = {}
        self._undelivered: dict[int, SendRequest] = {}

    def put(self, sent: SendRequest) -> None:
        """Take a send over from the application."""
        self.queue.append(sent)
        self.has_new = True

    def on_view(self) -> None:
        """Look at the queue again: there is a view."""
        self.has_new = bool(self.queue)

    @property
    def deadline_ns(self) -> int | None:
        """When the time of a send is over that waits for a view."""
        if not self.queue:
            return None
        return min(
            (sent.deadline_ns for sent in tuple(self.queue) if sent.deadline_ns is not None),
            default=None,
        )

    def flush(self, member: Member, now_ns: int) -> Iterator[Ready]:
        """Give the machine everything that has gathered by now; one who goes on sending holds up nothing else."""
        self.has_new = False
        if member.view is None:
            self._expire(now_ns)
            return
        crowded, left = False, len(self.queue)
        while left > 0 and self.queue:
            left -= 1
            sent = self.queue.popleft()
            if not sent.set_running_or_notify_cancel():
                continue
            together = [sent]
            if not crowded and left and self._is_small(sent):
                taken = self._merge_small(together, member)
                crowded = taken is None
                left -= taken or 0
            ready = self._submit(together, member, now_ns)
            if ready is not None:
                yield ready

    def submit_bundle(self, laid: Bundle, member: Member, now_ns: int) -> Ready | None:
        """Give the machine messages of one who does not wait for their numbers."""
        try:
            ready = member.send(laid.payloads, now_ns, mode=DeliveryMode.ORDERED)
        except BaseException as error:
            laid.fail(error)
            if isinstance(error, LocalProtocolError):
                log.warning("%d messages came too late to be sent: %s", len(laid.payloads), error)
                return None
            raise
        self._submitted[ready.ticket] = [laid]
        return ready

    def _is_small(self, sent: SendRequest) -> bool:
        return sent.size_bytes <= self._small_bytes and sent.is_mergeable

    def _merge_small(self, together: list[SendRequest], member: Member) -> int | None:
        """Take the small sends that follow, and return how many; None, and take none, if all of them have no room."""
        chosen = self._mergeable(together[0].size_bytes)
        payloads = Payloads.of_validated(
            [payload for sent in (*together, *chosen) for payload in sent.payloads]
        )
        if not member.outbound.has_room(payloads):
            return None
        for _ in chosen:
            sent = self.queue.popleft()
            if sent.set_running_or_notify_cancel():
                together.append(sent)
        return len(chosen)

    def _mergeable(self, size_bytes: int) -> list[SendRequest]:
        """Return the small sends at the head of the queue that leave together with ``size_bytes``."""
        chosen: list[SendRequest] = []
        for sent in tuple(self.queue):  # at once: any thread may add to the queue
            size_bytes += sent.size_bytes
            if size_bytes > MAX_MERGED_BYTES or not self._is_small(sent):
                break
            chosen.append(sent)
        return chosen

    def _submit(self, together: list[SendRequest], member: Member, now_ns: int) -> Ready | None:
        """Let the machine send; a mistake of the caller is told to it."""
        head = together[0]
        payloads = head.payloads
        if len(together) > 1:
            payloads = Payloads.of_validated(
                [payload for sent in together for payload in sent.payloads]
            )
        timeout_ns = None if head.deadline_ns is None else max(0, head.deadline_ns - now_ns)
        try:
            ready = member.send(
                payloads,
                now_ns,
                to=head.to,
                mode=head.mode,
                wait=head.may_wait,
                timeout_ns=timeout_ns,
                loopback=head.loopback,
            )
        except LocalProtocolError as error:
            for sent in together:
                sent.fail(error)
            return None
        except Exception:
            self.queue.extendleft(
                reversed(together)
            )  # a failure of the machine is told to all that wait
            raise
        self._submitted[ready.ticket] = together
        for sent in together:
            sent.ticket = ready.ticket
        if head.delivered is not None:
            self._undelivered[ready.ticket] = head
        return ready

    def _expire(self, now_ns: int) -> None:
        """Without a view, end what is not to wait, or has waited for too long."""
        for sent in tuple(self.queue):
            over = sent.deadline_ns is not None and sent.deadline_ns <= now_ns
            if over or not sent.may_wait:
                self.queue.remove(sent)
                if sent.set_running_or_notify_cancel():
                    sent.resolve(GivenUp(0, 0, "timeout") if over else Refused(0))

    def cancel(self, sent: SendRequest, member: Member, now_ns: int) -> Ready | None:
        """Give up a send that waits in the machine; one that left with others is as good as accepted."""
        return (
            member.cancel(sent.ticket, now_ns)
            if self._submitted.get(sent.ticket) == [sent]
            else None
        )

    # On an event

    def resolve(self, event: Event) -> bool:
        """Tell whoever waits for this; return whether it is such an event."""
        if type(event) is Accepted or type(event) is Refused or type(event) is GivenUp:
            together = self._submitted.pop(event.ticket, ())
            if type(event) is not Accepted:
                self._undelivered.pop(event.ticket, None)
            if len(together) == 1:
                together[0].resolve(event)
            else:
                self._resolve_each(together, event)
            return True
        if type(event) is Acknowledged or type(event) is Unacknowledged:
            sent = self._undelivered.pop(event.ticket, None)
            if sent is not None and sent.delivered is not None:
                sent.delivered.set_result(event)
            return True
        return False

    def _resolve_each(self, together: Any, event: Accepted | Refused | GivenUp) -> None:
        """Share the seqnos, or the messages that were taken, among sends that left together."""
        before = 0
        for sent in together:
            count = len(sent.payloads)
            if isinstance(event, Accepted):
                sent.resolve(
                    Accepted(event.ticket, event.first + before, event.first + before + count - 1)
                )
            elif isinstance(event, GivenUp):
                sent.resolve(event._replace(accepted=min(max(0, event.accepted - before), count)))
            else:
                sent.resolve(event)
            before += count

    def fail(self, error: BaseException) -> None:
        """End everything that waits."""
        waiting = [sent for together in self._submitted.values() for sent in together]
        waiting += self._undelivered.values()
        while self.queue:
            waiting.append(self.queue.popleft())
        self._submitted, self._undelivered = {}, {}
        for sent in waiting:
            sent.fail(error)
