"""What a reader gets: messages, and batches of them."""

from __future__ import annotations

from types import MappingProxyType
from typing import TYPE_CHECKING

from gapless.delivery_mode import DeliveryMode
from gapless.group.headers import detach_headers, may_contain_wrapped
from gapless.protocol.ready import OUT_OF_BAND, UNICAST, UNRELIABLE
from gapless.run import ACKED, PRIVATE, Run

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from gapless.group.headers import Headers
    from gapless.identity import Address
    from gapless.protocol.ready import Delivery

NO_HEADERS: Headers = MappingProxyType({})
"""The headers of a message that has none."""


class Batch:
    """Consecutive messages of one sender: ``for payload in batch``. ``run`` is their inner form.

    ``view`` is the number of the view that they were sent in, ``names`` the durable names that are
    known.
    """

    __slots__ = ("_may_be_wrapped", "delivery", "names", "view")

    def __init__(self, delivery: Delivery, view: int, names: Mapping[Address, str]) -> None:
        self.delivery = delivery
        self.names = names
        content = delivery.content
        self.view = (content if isinstance(content, Run) else delivery).view or view
        self._may_be_wrapped: bool | None = None

    @property
    def send_info(self) -> Run | Delivery:
        """What knows how they were sent: the run, or the delivery of a message that travelled in pieces."""
        return self.delivery.content if isinstance(self.delivery.content, Run) else self.delivery

    @property
    def sender(self) -> Address:
        """Who sent them."""
        return self.delivery.origin

    @property
    def name(self) -> str:
        """The durable name of the sender, empty if it has none."""
        return self.names.get(self.delivery.origin, "")

    @property
    def first(self) -> int:
        """The seqno of the first message; 0 if they have none."""
        return self.delivery.first

    @property
    def last(self) -> int:
        """The seqno of the last message."""
        return self.delivery.last

    @property
    def run(self) -> Run | None:
        """The run, unless this is one message that travelled in pieces."""
        return self.delivery.content if isinstance(self.delivery.content, Run) else None

    @property
    def mode(self) -> DeliveryMode:
        """What was promised of them."""
        kind = self.delivery.kind
        if kind == OUT_OF_BAND:
            return DeliveryMode.OUT_OF_BAND
        if kind == UNRELIABLE:
            return DeliveryMode.UNRELIABLE
        return DeliveryMode.ACKNOWLEDGED if self.send_info.flags & ACKED else DeliveryMode.ORDERED

    @property
    def private(self) -> bool:
        """Whether they were sent to this member alone."""
        run = self.run
        return self.delivery.kind == UNICAST or (run is not None and run.flags & PRIVATE != 0)

    @property
    def sent_ns(self) -> int | None:
        """When they were sent, in nanoseconds since 1970 by the clock of the sender; None if it has not said."""
        return self.send_info.sent_ns or None

    def __len__(self) -> int:
        return self.delivery.message_count

    def __iter__(self) -> Iterator[bytes]:
        messages = self.delivery.messages()
        return (
            (detach_headers(message)[1] for message in messages)
            if self.may_be_wrapped
            else iter(messages)
        )

    @property
    def may_be_wrapped(self) -> bool:
        """Whether a message may be wrapped; they are searched once."""
        if self._may_be_wrapped is None:
            content = self.delivery.content
            self._may_be_wrapped = (
                may_contain_wrapped(content.buffer, content.lengths)
                if isinstance(content, Run)
                else may_contain_wrapped(content)
            )
        return self._may_be_wrapped

    @property
    def payload(self) -> bytes:
        """All messages end to end, as they came, with whatever they are wrapped in."""
        content = self.delivery.content
        return content.payload if isinstance(content, Run) else content

    @property
    def buffer(self) -> memoryview:
        """The same as ``payload``, not copied."""
        content = self.delivery.content
        return content.buffer if isinstance(content, Run) else memoryview(content)

    def messages(self) -> Iterator[Message]:
        """Return each message with what is known of it."""
        if self.may_be_wrapped:
            for at, message in enumerate(self.delivery.messages()):
                headers, payload = detach_headers(message)
                yield Message(payload, at, self, headers or NO_HEADERS)
            return
        yield from map(Message, self.delivery.messages(), range(len(self)), [self] * len(self))

    def __repr__(self) -> str:
        return f"<{len(self)} messages {self.first}..{self.last} from {self.name or self.sender}>"


class Message:
    """One message; ``payload`` and ``headers`` are what its sender gave to ``send``."""

    __slots__ = ("_at", "_batch", "headers", "payload")

    def __init__(
        self, payload: bytes, at: int, batch: Batch, headers: Headers = NO_HEADERS
    ) -> None:
        self.payload = payload
        self.headers = headers
        self._at = at
        self._batch = batch

    @property
    def sender(self) -> Address:
        """Who sent it; ``group.send(…, to=message.sender)`` answers."""
        return self._batch.delivery.origin

    @property
    def name(self) -> str:
        """The durable name of the sender, empty if it has none."""
        return self._batch.name

    @property
    def seqno(self) -> int:
        """Its number in the stream of its sender (of a message in pieces, that of the first); 0 if it has none."""
        first = self._batch.delivery.first
        return first + self._at if first else 0

    @property
    def view(self) -> int:
        """The number of the view that it was sent in."""
        return self._batch.view

    @property
    def mode(self) -> DeliveryMode:
        """What was promised of it."""
        return self._batch.mode

    @property
    def private(self) -> bool:
        """Whether it was sent to this member alone."""
        return self._batch.private

    @property
    def sent_ns(self) -> int | None:
        """When it was sent, in nanoseconds since 1970 by the clock of the sender; None if it has not said."""
        return self._batch.sent_ns

    def __bytes__(self) -> bytes:
        return self.payload

    def __repr__(self) -> str:
        shown = self.payload if len(self.payload) <= 40 else self.payload[:37] + b"..."
        return f"<message {self.seqno} from {self.name or self.sender}: {shown!r}>"
