"""Send requests: from the application into the machine, and their outcomes back.

On sending: a request waits here for the next turn, and before the first view for the view. Small
requests that have room leave together, like one request, so that they share frames. A request
without room waits in the machine, alone, so that it can be cancelled alone.

On an event of the machine: the event has a ticket, and the request with the same ticket gets the
result.
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
from gapless.runtime.bundler import Bundle

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from gapless.identity import Address
    from gapless.protocol.events import Event
    from gapless.protocol.member import Member
    from gapless.protocol.ready import Ready

MAX_MERGED_BYTES = 1 << 18
"""Maximum number of bytes of small requests sent together."""


class When(Enum):
    """The moment at which a submitted request is handled."""

    NOW = "now"
    """In the calling thread, as soon as no other thread is in a turn."""
    LATER = "later"
    """With the next turn, in any thread; ``MemberHandle.flush`` runs a turn."""
    WAKE = "wake"
    """By the thread that polls the sockets, after a wake-up."""


class SendRequest(Future[Accepted | Refused | GivenUp]):
    """A send on its way; the result is the outcome.

    ``delivered`` exists for acknowledged messages, and completes when every member has delivered
    the messages, or a member never will. A request cancelled before a turn takes it is not sent;
    later use ``MemberHandle.cancel``.
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
        """Validate the arguments of the application, once, and return the request.

        With ``wait=False`` all messages are accepted at once or none. A request that waits longer
        than ``timeout_ns`` for room or for the first view is given up.
        """
        if timeout_ns is not None and timeout_ns < 0:
            raise LocalProtocolError(
                f"a timeout of {timeout_ns} ns is not positive; use wait=False to send without"
                " waiting"
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
        """Whether the request can leave together with others."""
        alike = self.to is None and self.mode is DeliveryMode.ORDERED and self.loopback is None
        return alike and self.may_wait and self.deadline_ns is None

    def resolve(self, outcome: Accepted | Refused | GivenUp) -> None:
        """Set the outcome; a request that was not accepted is never delivered."""
        if not self.done():
            self.set_result(outcome)
        if self.delivered is not None and not isinstance(outcome, Accepted):
            self.delivered.cancel()

    def fail(self, error: BaseException) -> None:
        """Set the error of the request, and of the wait for delivery."""
        for future in (self, self.delivered):
            if future is not None and not future.done():
                future.set_exception(error)


class SendRequests:
    """The requests of one member. Any thread may call ``put``; only a turn calls the rest."""

    def __init__(self, small_bytes: int) -> None:
        self._small_bytes = small_bytes
        self.queue: deque[SendRequest] = deque()
        """Requests not taken by a turn yet."""
        self.has_new = False
        """Whether the next turn has a request to flush."""
        self._submitted: dict[int, list[SendRequest] | list[Bundle]] = {}
        self._undelivered: dict[int, SendRequest] = {}
        self.unsent_bundles: deque[Bundle] = deque()
        """Bundles that waited for room when their incarnation ended."""

    def put(self, request: SendRequest) -> None:
        """Queue a request."""
        self.queue.append(request)
        self.has_new = True

    def on_view(self) -> None:
        """Flush the queue with the next turn: there is a view."""
        self.has_new = bool(self.queue or self.unsent_bundles)

    @property
    def deadline_ns(self) -> int | None:
        """The earliest deadline of a request that waits for a view."""
        if not self.queue:
            return None
        return min(
            (
                request.deadline_ns
                for request in tuple(self.queue)
                if request.deadline_ns is not None
            ),
            default=None,
        )

    def count_new(self) -> int:
        """Return how many requests the next ``flush`` handles; later requests set ``has_new``."""
        self.has_new = False
        return len(self.queue)

    def flush(self, left: int, member: Member, now_ns: int) -> Iterator[Ready]:
        """Give the machine the first ``left`` requests; later requests wait for the next turn."""
        if member.view is None:
            self._expire(now_ns)
            return
        crowded = False
        while left > 0 and self.queue:
            left -= 1
            request = self.queue.popleft()
            if not request.set_running_or_notify_cancel():
                continue
            together = [request]
            if not crowded and left and self._is_small(request):
                taken = self._merge_small(together, left, member)
                crowded = taken is None
                left -= taken or 0
            ready = self._submit(together, member, now_ns)
            if ready is not None:
                yield ready

    def resubmit_bundles(self, member: Member, now_ns: int) -> Iterator[Ready]:
        """Give the machine the bundles that a former incarnation has not sent."""
        while self.unsent_bundles:
            ready = self.submit_bundle(self.unsent_bundles.popleft(), member, now_ns)
            if ready is not None:
                yield ready

    def submit_bundle(self, bundle: Bundle, member: Member, now_ns: int) -> Ready | None:
        """Give the machine a bundle of messages."""
        try:
            ready = member.send(bundle.payloads, now_ns, mode=DeliveryMode.ORDERED)
        except BaseException as error:
            bundle.fail(error)
            if isinstance(error, LocalProtocolError):
                log.warning("%d messages were not sent: %s", len(bundle.payloads), error)
                return None
            raise
        self._submitted[ready.ticket] = [bundle]
        return ready

    def _is_small(self, request: SendRequest) -> bool:
        return request.size_bytes <= self._small_bytes and request.is_mergeable

    def _merge_small(self, together: list[SendRequest], left: int, member: Member) -> int | None:
        """Take some of the ``left`` requests that follow; return how many, or None without room."""
        chosen = self._mergeable(together[0].size_bytes, left)
        payloads = Payloads.of_validated(
            [payload for request in (*together, *chosen) for payload in request.payloads]
        )
        if not member.outbound.has_room(payloads):
            return None
        for _ in chosen:
            request = self.queue.popleft()
            if request.set_running_or_notify_cancel():
                together.append(request)
        return len(chosen)

    def _mergeable(self, size_bytes: int, left: int) -> list[SendRequest]:
        """Return the small ones of the next ``left`` requests that fit beside ``size_bytes``."""
        chosen: list[SendRequest] = []
        for request in tuple(self.queue)[:left]:  # at once: any thread may add to the queue
            size_bytes += request.size_bytes
            if size_bytes > MAX_MERGED_BYTES or not self._is_small(request):
                break
            chosen.append(request)
        return chosen

    def _submit(self, together: list[SendRequest], member: Member, now_ns: int) -> Ready | None:
        """Let the machine send; a refused request gets the error."""
        head = together[0]
        payloads = head.payloads
        if len(together) > 1:
            payloads = Payloads.of_validated(
                [payload for request in together for payload in request.payloads]
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
            for request in together:
                request.fail(error)
            return None
        except Exception:
            # The machine failed: ``fail`` reports it to every request, so these must be found.
            self.queue.extendleft(reversed(together))
            raise
        self._submitted[ready.ticket] = together
        for request in together:
            request.ticket = ready.ticket
        if head.delivered is not None:
            self._undelivered[ready.ticket] = head
        return ready

    def _expire(self, now_ns: int) -> None:
        """Without a view, end requests that may not wait, or have waited too long."""
        for request in tuple(self.queue):
            over = request.deadline_ns is not None and request.deadline_ns <= now_ns
            if over or not request.may_wait:
                self.queue.remove(request)
                if request.set_running_or_notify_cancel():
                    request.resolve(GivenUp(0, 0, "timeout") if over else Refused(0))

    def cancel(self, request: SendRequest, member: Member, now_ns: int) -> Ready | None:
        """Cancel a request that waits in the machine; a merged request was already accepted."""
        return (
            member.cancel(request.ticket, now_ns)
            if self._submitted.get(request.ticket) == [request]
            else None
        )

    # On an event

    def resolve(self, event: Event) -> bool:
        """Set the result of the request with the ticket of an event; return whether one exists."""
        if type(event) is Accepted or type(event) is Refused or type(event) is GivenUp:
            together = self._submitted.pop(event.ticket, ())
            if type(event) is not Accepted:
                self._undelivered.pop(event.ticket, None)
            if type(event) is GivenUp and event.reason == "over":
                self._give_up(together, event)
            elif len(together) == 1:
                together[0].resolve(event)
            else:
                self._resolve_each(together, event)
            return True
        if type(event) is Acknowledged or type(event) is Unacknowledged:
            request = self._undelivered.pop(event.ticket, None)
            if request is not None and request.delivered is not None:
                request.delivered.set_result(event)
            return True
        return False

    def _give_up(self, together: Any, event: GivenUp) -> None:
        """Report the end of an incarnation; keep a bundle, which has no caller to send it again."""
        if len(together) != 1 or not isinstance(bundle := together[0], Bundle):
            self._resolve_each(together, event)
            return
        bundle.sent_before += event.accepted
        if unsent := bundle.payloads[event.accepted :]:
            bundle.payloads = Payloads.of_validated(unsent)
            self.unsent_bundles.append(bundle)
        else:
            bundle.resolve(event)

    def _resolve_each(self, together: Any, event: Accepted | Refused | GivenUp) -> None:
        """Divide the seqnos, or the accepted messages, among merged requests."""
        before = 0
        for request in together:
            count = len(request.payloads)
            if isinstance(event, Accepted):
                first = event.first + before
                request.resolve(event._replace(first=first, last=first + count - 1))
            elif isinstance(event, GivenUp):
                request.resolve(
                    event._replace(accepted=min(max(0, event.accepted - before), count))
                )
            else:
                request.resolve(event)
            before += count

    def fail(self, error: BaseException) -> None:
        """Fail every waiting request."""
        waiting = [request for together in self._submitted.values() for request in together]
        waiting += self._undelivered.values()
        if self.unsent_bundles:
            count = sum(len(bundle.payloads) for bundle in self.unsent_bundles)
            log.warning("%d messages were not sent: %s", count, error)
        while self.unsent_bundles:
            self.unsent_bundles.popleft().fail(error)
        while self.queue:
            waiting.append(self.queue.popleft())
        self._submitted, self._undelivered = {}, {}
        for request in waiting:
            request.fail(error)
