"""Received messages, and batches of consecutive messages of one sender."""

from __future__ import annotations

from types import MappingProxyType
from typing import TYPE_CHECKING

from gapless.group.headers import detach_headers, may_contain_wrapped
from gapless.protocol.ready import UNICAST
from gapless.run import PRIVATE, Run
from gapless.units import format_count

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from gapless.delivery_mode import DeliveryMode
    from gapless.group.headers import Headers
    from gapless.identity import Address
    from gapless.protocol.ready import Delivery

NO_HEADERS: Headers = MappingProxyType({})
"""The headers of a message without headers."""


class Batch:
    """Consecutive messages of one sender: ``for payload in batch`` iterates over the payloads.

    ``view`` is the number of the view in which the messages were sent.
    """

    __slots__ = ("_delivery", "_names", "_wrapped", "view")

    def __init__(self, delivery: Delivery, names: Mapping[Address, str]) -> None:
        self._delivery = delivery
        self._names = names
        content = delivery.content
        self.view = (content.view if isinstance(content, Run) else 0) or delivery.view
        self._wrapped: bool | None = None

    @property
    def _send_info(self) -> Run | Delivery:
        """The flags and the time of sending: of the run, or of a message sent in fragments."""
        content = self._delivery.content
        return content if isinstance(content, Run) else self._delivery

    @property
    def sender(self) -> Address:
        """The member that sent the messages."""
        return self._delivery.origin

    @property
    def name(self) -> str:
        """The durable name of the sender; empty if the sender is not durable."""
        return self._names.get(self._delivery.origin, "")

    @property
    def first(self) -> int:
        """The seqno of the first message; 0 for messages without seqnos."""
        return self._delivery.first

    @property
    def last(self) -> int:
        """The seqno of the last message."""
        return self._delivery.last

    @property
    def mode(self) -> DeliveryMode:
        """The delivery mode in which the messages were sent."""
        return self._delivery.mode

    @property
    def private(self) -> bool:
        """Whether the messages were sent to this member alone."""
        content = self._delivery.content
        return self._delivery.kind == UNICAST or (
            isinstance(content, Run) and content.flags & PRIVATE != 0
        )

    @property
    def sent_ns(self) -> int | None:
        """When the messages were sent, in ns since 1970 by the sender's clock; None if unknown."""
        return self._send_info.sent_ns or None

    def __len__(self) -> int:
        return self._delivery.message_count

    def __iter__(self) -> Iterator[bytes]:
        messages = self._delivery.messages()
        return (
            (detach_headers(message)[1] for message in messages)
            if self._may_be_wrapped()
            else iter(messages)
        )

    def _may_be_wrapped(self) -> bool:
        """Return whether a message may be wrapped; the payload is searched once."""
        if self._wrapped is None:
            content = self._delivery.content
            self._wrapped = (
                may_contain_wrapped(content.buffer, content.lengths)
                if isinstance(content, Run)
                else may_contain_wrapped(content)
            )
        return self._wrapped

    @property
    def payload(self) -> bytes:
        """All messages end to end as received; messages with headers include their wrapping."""
        content = self._delivery.content
        return content.payload if isinstance(content, Run) else content

    @property
    def buffer(self) -> memoryview:
        """The same bytes as ``payload``, without a copy."""
        content = self._delivery.content
        return content.buffer if isinstance(content, Run) else memoryview(content)

    def messages(self) -> Iterator[Message]:
        """Iterate over the messages with their headers and seqnos."""
        if self._may_be_wrapped():
            for at, message in enumerate(self._delivery.messages()):
                headers, payload = detach_headers(message)
                yield Message(payload, at, self, headers or NO_HEADERS)
            return
        yield from map(Message, self._delivery.messages(), range(len(self)), [self] * len(self))

    def __repr__(self) -> str:
        count = format_count(len(self), "message")
        return f"<{count} {self.first}..{self.last} from {self.name or self.sender}>"


class Message:
    """One message; ``payload`` and ``headers`` are the values passed to ``send``."""

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
        """The member that sent the message; ``group.send(…, to=message.sender)`` answers."""
        return self._batch._delivery.origin

    @property
    def name(self) -> str:
        """The durable name of the sender; empty if the sender is not durable."""
        return self._batch.name

    @property
    def seqno(self) -> int:
        """The number of the message in the stream of its sender; 0 for a message without a seqno.

        A message sent in fragments has the seqno of the first fragment.
        """
        first = self._batch._delivery.first
        return first + self._at if first else 0

    @property
    def view(self) -> int:
        """The number of the view in which the message was sent."""
        return self._batch.view

    @property
    def mode(self) -> DeliveryMode:
        """The delivery mode in which the message was sent."""
        return self._batch.mode

    @property
    def private(self) -> bool:
        """Whether the message was sent to this member alone."""
        return self._batch.private

    @property
    def sent_ns(self) -> int | None:
        """When the message was sent, in ns since 1970 by the sender's clock; None if unknown."""
        return self._batch.sent_ns

    def __bytes__(self) -> bytes:
        return self.payload

    def __repr__(self) -> str:
        shown = self.payload if len(self.payload) <= 40 else self.payload[:37] + b"..."
        return f"<message {self.seqno} from {self.name or self.sender}: {shown!r}>"
