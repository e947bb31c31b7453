"""A light world of participants, for experiments with many members or many messages.

The light world has no oracle: the worlds of the swarm check every step, and are too slow for
hundreds of members. The checks here cost next to nothing, and observe members from outside:

* views (S15): numbers rise, an id has a single list, a member is in its own view, messages come
  from members of the view;
* every message carries a number, so a hole, a repetition or a wrong order at any receiver is found;
  a hole is permitted only if the receiver gets a notice of the loss, and the sender's own view no
  longer has the receiver, as before a leave;
* a receiver has to deliver every message sent since the receiver entered the sender's own view, and
  no earlier message.

Every datagram is decoded once, for all receivers. A datagram to all is put on every link, as on a
network with multicast. A process may need time for each datagram: the process then handles
datagrams in sequence, and arriving datagrams wait.
"""

from __future__ import annotations

from collections import Counter, deque
from heapq import heappop, heappush
from typing import TYPE_CHECKING, Any, NamedTuple

from gapless.faults.frame_names import kind_of
from gapless.identity import Address, View, ViewId, group_id
from gapless.protocol.events import Expelled, Left, Lost, Started, ViewInstalled
from gapless.protocol.member import Member
from gapless.protocol.ready import ANYONE, GROUP, Delivery, Ready
from gapless.rng import split
from gapless.units import NS_PER_MS
from gapless.wire import decode
from gapless.wire.codec import size_bytes
from gapless.wire.frames import Data

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from gapless.config import Config
    from gapless.wire.frames import Datagram, Frame

_GROUP = group_id("crowd")
_NUMBER_BYTES = 8
_MAX_PROBLEMS = 20


class ReceivedRange:
    """The range of numbers of a sender at a receiver, and the number of missing messages."""

    __slots__ = ("first", "holes", "last")

    def __init__(self, first: int) -> None:
        self.first, self.last, self.holes = first, first - 1, 0


class DeliveryMismatch(NamedTuple):
    """The numbers of missing and of unexpected messages at a receiver."""

    lost: int
    before_view: int


class LightNode:
    """A member of the light world, with its current incarnation."""

    def __init__(self, number: int, address: Address) -> None:
        self.number = number
        self.address = address
        self.member: Member | None = None
        self.view: View | None = None
        self.members: frozenset[Address] = frozenset()
        self.received: dict[Address, ReceivedRange] = {}
        self.started: set[Address] = set()
        self.reported_losses: list[Lost] = []
        self.sent = 0
        self.numbered = 0
        self.last_sent_ns = 0
        self.longest_ns = 0
        self.counted_from: dict[Address, int] = {}
        self.ended: Expelled | Left | None = None
        self.due_ns: int | None = None
        self.refill: Callable[[], None] | None = None
        self.idle_at_ns = 0
        self.inbox: deque[Datagram] = deque()

    def pause_ns(self, now_ns: int) -> int:
        """Return the longest time without a new message since the last call, and restart."""
        longest_ns = max(self.longest_ns, now_ns - self.last_sent_ns)
        self.longest_ns = 0
        return longest_ns


class LightWorld:
    """Participants, the network between participants, and the time.

    ``hold`` returns the extra delay of a frame beyond ``delay_ns``; ``handling_ns`` is the time
    that a process needs for each read or written datagram.
    """

    def __init__(
        self,
        config: Config,
        *,
        seed: int = 1,
        delay_ns: int = NS_PER_MS,
        loss: float = 0.0,
        extra_delay_ns: Callable[[Frame], int] | None = None,
        handling_ns: int = 0,
    ) -> None:
        self.config = config
        self.handling_ns = handling_ns
        self.delay_ns = delay_ns
        self.loss = loss
        self.extra_delay_ns = extra_delay_ns
        self.now_ns = 0
        self.nodes: dict[int, LightNode] = {}
        self.live_nodes: dict[int, LightNode] = {}
        self.frames: Counter[str] = Counter()
        self.sizes_bytes: Counter[str] = Counter()
        self.delivered = 0
        self.events = 0
        self.problems: list[str] = []
        self.installed: dict[ViewId, tuple[int, int, int]] = {}
        self._views: dict[ViewId, tuple[View, frozenset[Address]]] = {}
        self._seed = seed
        self._rng = split(seed, "crowd")
        self._heap: list[tuple[int, int, Callable[..., None], tuple[Any, ...]]] = []
        self._serial = 0
        self._in_view: Counter[ViewId] = Counter()
        self.latest_view: View | None = None

    # Incarnations

    def join(self, number: int) -> LightNode:
        """Start an incarnation of member ``number``; the incarnation looks for the group."""
        before = self.nodes.get(number)
        address = Address(number, 1 if before is None else before.address.incarnation + 1)
        node = self.nodes[number] = LightNode(number, address)
        locator = bytes(
            (10, 0, number >> 8 & 255, number & 255, 0x1F, 0x90)
        )  # as long as a place in a real network
        rng = split(self._seed, f"life {address}")
        node.member = Member(address, _GROUP, self.config, rng, locator=locator)
        self.live_nodes[number] = node
        self._process_ready(node, node.member.join(self.now_ns))
        return node

    def leave(self, node: LightNode) -> None:
        """Let a member leave."""
        assert node.member is not None
        self._process_ready(node, node.member.leave(self.now_ns))

    def crash(self, node: LightNode) -> None:
        """Crash an incarnation."""
        self._end(node)

    def _end(self, node: LightNode) -> None:
        node.member = None
        del self.live_nodes[node.number]
        if node.view is not None:
            self._in_view[node.view.id] -= 1

    def has_converged(self) -> bool:
        """Return whether the view of all running members has exactly the running members."""
        view, living = self.latest_view, len(self.live_nodes)
        return view is not None and len(view.members) == living == self._in_view[view.id]

    # Messages

    def send(self, node: LightNode, count: int, size_bytes: int) -> None:
        """Send ``count`` numbered messages; messages without room wait."""
        assert node.member is not None
        first = node.numbered + 1
        node.numbered += count
        fill = bytes(max(0, size_bytes - _NUMBER_BYTES))
        messages = [
            number.to_bytes(_NUMBER_BYTES, "big") + fill for number in range(first, first + count)
        ]
        self._process_ready(node, node.member.send(messages, self.now_ns))

    def compare_deliveries(
        self, sender: LightNode, receiver: LightNode, upto: int
    ) -> DeliveryMismatch:
        """Compare the deliveries of ``receiver`` with the messages of ``sender`` up to ``upto``."""
        span = receiver.received.get(sender.address)
        since = sender.counted_from.get(receiver.address)
        if since is None:
            return DeliveryMismatch(0, 0 if span is None else span.last - span.first + 1)
        if span is None:
            return DeliveryMismatch(max(0, upto - since), 0)
        missing = (
            max(0, min(span.first - 1, upto) - since)
            + span.holes
            + max(0, upto - max(span.last, since))
        )
        return DeliveryMismatch(missing, max(0, min(since, span.last) - span.first + 1))

    # Time

    def schedule(self, at_ns: int, handler: Callable[..., None], *args: Any) -> None:
        """Call a function at a time."""
        self._serial += 1
        heappush(self._heap, (at_ns, self._serial, handler, args))

    def run(self, duration_ns: int, until: Callable[[], bool] | None = None) -> bool:
        """Let time pass until a condition holds or the time is over; return whether it holds."""
        end_ns = self.now_ns + duration_ns
        heap = self._heap
        if until is not None and until():
            return True
        while heap and heap[0][0] <= end_ns:
            self.now_ns, _, handler, args = heappop(heap)
            self.events += 1
            handler(*args)
            if until is not None and until():
                return True
        self.now_ns = end_ns
        return until is None

    # The pump

    def _process_ready(self, node: LightNode, ready: Ready) -> None:
        if ready.transmits:
            sent = node.sent
            for to, datagram in ready.transmits:
                self._transmit(node, to, datagram)
            if node.sent > sent:
                node.longest_ns = max(node.longest_ns, self.now_ns - node.last_sent_ns)
                node.last_sent_ns = self.now_ns
        else:
            sent = node.sent
        if ready.deliveries or ready.events:
            self._handle_outputs(node, ready, sent)
        if node.member is None:
            return
        due_ns = ready.deadline_ns
        if due_ns is not None and (node.due_ns is None or due_ns < node.due_ns):
            node.due_ns = due_ns
            self.schedule(max(due_ns, self.now_ns), self._tick, node, due_ns)
        if node.refill is not None:
            node.refill()

    def _tick(self, node: LightNode, due_ns: int) -> None:
        """Tick, unless the deadline has moved since the wake-up was scheduled."""
        member = node.member
        if member is None or node.due_ns != due_ns:
            return
        node.due_ns = None
        next_ns = member.deadline_ns
        if next_ns is None:
            return
        if next_ns > self.now_ns:
            node.due_ns = next_ns
            self.schedule(next_ns, self._tick, node, next_ns)
        else:
            self._process_ready(node, member.tick(self.now_ns))

    def _transmit(self, node: LightNode, to: Address | None, datagram: bytes) -> None:
        said = decode(datagram)
        targets: Sequence[LightNode]
        if to is None or to == ANYONE:
            targets = [other for other in self.live_nodes.values() if other is not node]
        else:
            target = self.live_nodes.get(to.node)
            targets = () if target is None or target is node else (target,)
        self._count(said, len(datagram), len(targets), node)
        if self.loss:
            targets = [other for other in targets if self._rng.random() >= self.loss]
        if targets:
            held_ns = (
                0 if self.extra_delay_ns is None else max(map(self.extra_delay_ns, said.frames))
            )
            node.idle_at_ns = max(node.idle_at_ns, self.now_ns) + self.handling_ns
            self.schedule(node.idle_at_ns + self.delay_ns + held_ns, self._arrive, targets, said)

    def _count(self, said: Datagram, datagram_bytes: int, links: int, node: LightNode) -> None:
        """Count the frames on each link; the header of a datagram counts for the first frame."""
        rest_bytes = datagram_bytes
        for frame in reversed(said.frames):
            kind = kind_of(frame)
            self.frames[kind] += links
            frame_bytes = rest_bytes if frame is said.frames[0] else size_bytes(frame)
            rest_bytes -= frame_bytes
            self.sizes_bytes[kind] += links * frame_bytes
            if isinstance(frame, Data) and not frame.repair:
                node.sent = max(node.sent, frame.run.last)

    def _arrive(self, targets: Iterable[LightNode], said: Datagram) -> None:
        for node in targets:
            if node.inbox:
                node.inbox.append(said)
            elif node.idle_at_ns > self.now_ns:
                node.inbox.append(said)
                self.schedule(node.idle_at_ns, self._read, node)
            else:
                self._receive(node, said)

    def _read(self, node: LightNode) -> None:
        """Read the next waiting datagram, unless the process is busy."""
        if node.idle_at_ns <= self.now_ns:
            self._receive(node, node.inbox.popleft())
        if node.inbox:
            self.schedule(node.idle_at_ns, self._read, node)

    def _receive(self, node: LightNode, said: Datagram) -> None:
        if node.member is not None:
            node.idle_at_ns = self.now_ns + self.handling_ns
            self._process_ready(node, node.member.receive_decoded(said, self.now_ns))

    # What the application sees

    def _handle_outputs(self, node: LightNode, ready: Ready, sent: int) -> None:
        for delivery in ready.deliveries[: ready.before_view]:
            self._deliver(node, delivery)
        for event in ready.events:
            if isinstance(event, ViewInstalled):
                self._install(node, event.view, sent)
            elif isinstance(event, Started):
                node.started.add(event.origin)
            elif isinstance(event, Lost) and not self._is_receiver(event.origin, node.address):
                node.reported_losses.append(event)
            elif isinstance(event, (Expelled, Left)):
                node.ended = event
                self._end(node)
        for delivery in ready.deliveries[ready.before_view :]:
            self._deliver(node, delivery)

    def _install(self, node: LightNode, view: View, sent: int) -> None:
        before = node.view
        if before is not None:
            self._in_view[before.id] -= 1
            if view.id.number <= before.id.number:
                self._report_problem(
                    f"{node.address}: view {view.id.number} came after view {before.id.number}"
                )
        known = self._views.get(view.id)
        if known is None:
            known = self._views[view.id] = view, frozenset(view.members)
        if known[0] != view:
            self._report_problem(
                f"{node.address}: view {view.id} has another list of members than at others"
            )
        node.view, node.members = known
        if node.address not in view.members:
            self._report_problem(f"{node.address}: installed view {view.id} without being in it")
        self._in_view[view.id] += 1
        if self.latest_view is None or view.id.number >= self.latest_view.id.number:
            self.latest_view = view
        first_ns, _, count = self.installed.get(view.id, (self.now_ns, 0, 0))
        self.installed[view.id] = first_ns, self.now_ns, count + 1
        # A view is a step of its own: whatever this member sent before it was not meant for those
        # who are new in it.
        node.counted_from = {member: node.counted_from.get(member, sent) for member in view.members}

    def _deliver(self, node: LightNode, delivery: Delivery) -> None:
        origin = delivery.origin
        if delivery.kind != GROUP or origin == node.address:
            return
        messages = delivery.messages()
        self.delivered += len(messages)
        if origin not in node.members:
            self._report_problem(
                f"{node.address}: message {delivery.first} of {origin}, which is not in its view"
            )
        span = node.received.get(origin)
        if span is None:
            span = node.received[origin] = ReceivedRange(
                int.from_bytes(messages[0][:_NUMBER_BYTES], "big")
            )
        for message in messages:
            number = int.from_bytes(message[:_NUMBER_BYTES], "big")
            if number <= span.last:
                self._report_problem(
                    f"{node.address}: message {number} of {origin} after message {span.last}"
                )
                continue
            if number > span.last + 1 and not _is_reported_lost(
                node.reported_losses, origin, span.last + 1, number - 1
            ):
                self._report_problem(
                    f"{node.address}: message {number} of {origin} right after message {span.last}"
                )
                span.holes += number - span.last - 1
            span.last = number

    def _is_receiver(self, sender: Address, receiver: Address) -> bool:
        """Return whether ``sender`` runs and has ``receiver`` in its own view."""
        node = self.live_nodes.get(sender.node)
        return node is not None and node.address == sender and receiver in node.members

    def _report_problem(self, text: str) -> None:
        if len(self.problems) < _MAX_PROBLEMS:
            self.problems.append(f"at {self.now_ns / NS_PER_MS:.1f} ms: {text}")


def _is_reported_lost(losses: Iterable[Lost], origin: Address, first: int, last: int) -> bool:
    """Return whether losses reported to a receiver cover ``first .. last``."""
    for lost in losses:
        if lost.origin == origin and lost.first <= first <= lost.last:
            first = lost.last + 1
    return first > last
