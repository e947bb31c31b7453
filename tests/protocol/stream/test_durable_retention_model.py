"""Durable members against a model: over all incarnations the reader has each message once.

The reader keeps what it gets (as a spool does), dies, is cut off, comes back; senders restart,
miss views, lose frames.
"""

from typing import Any

from hypothesis import HealthCheck, given, settings, strategies as st

from gapless.identity import Address, View
from gapless.protocol.events import Lost
from tests.support.virtual_group import MS, A, B, Group

READER = 3
NAME = "reader"
SENDERS = (A.node, B.node)


class Town:
    """Two senders and a durable reader, with the views that membership would install."""

    def __init__(self, seed: int, **knobs: Any) -> None:
        self.group = Group(0, start=False, seed=seed, **knobs)
        self.number = 0
        self.senders = {A.node: A, B.node: B}
        self.reader = Address(READER, 1)
        self.here = True
        self.cut = False
        self.sent: dict[Address, list[bytes]] = {A: [], B: []}
        self.stored: dict[Address, list[tuple[int, bytes]]] = {A: [], B: []}
        self.read = 0
        self.known: dict[Address, Address] = {}
        for sender in (A, B):
            self.group.begin(sender)
        self.group.begin(self.reader, resume={})
        self.view()
        self.group.settle()

    # What can happen

    def view(self, missed_by: int | None = None) -> None:
        """Install a view at all, at a new reader first; ``missed_by`` does not get it."""
        self.number += 1
        senders = tuple(self.senders.values())
        members = (*senders, self.reader) if self.here else senders
        view = View.of(self.number, *members)
        for member in reversed(members):
            if member.node == missed_by:
                continue
            before = self.known.get(member)
            places: dict[str, Any] = {}
            if not self.here:
                places["absent"] = {NAME: self.reader}
            elif before not in {None, self.reader} or (
                member == self.reader and self.reader.incarnation > 1
            ):
                places["returning"] = {self.reader: before or self.reader}
            self.group.install(view, [member], **places)
            self.known[member] = self.reader

    def send(self, at: int, count: int, size_bytes: int) -> None:
        sender = self.senders[SENDERS[at]]
        first = len(self.sent[sender])
        messages = [
            b"%d:%d " % (sender.incarnation, first + number) + bytes(size_bytes)
            for number in range(count)
        ]
        self.sent[sender] += messages
        self.group.step(sender, lambda m: m.send(messages, self.group.now_ns))

    def run(self, span_ms: int) -> None:
        self.group.run_for(span_ms * MS)

    def lose(self, every: int) -> None:
        """Lose every so many frames from now on; 0: none."""
        count = 0

        def rule(*_: object) -> bool:
            nonlocal count
            count += 1
            return count % every == 0

        self.group.rules = [rule] if every else []

    def go(self, missed_by: int | None) -> None:
        """The reader dies, and the others have a view without it."""
        if self.here:
            self.spool()
            self.group.crash(self.reader)
            self.here = False
        self.view(missed_by)

    def come(self, missed_by: int | None) -> None:
        """Restart the reader; if it was a member, its crash went unnoticed."""
        self.spool()
        if self.reader in self.group.members:
            self.group.crash(self.reader)
        self.reader = Address(READER, self.reader.incarnation + 1)
        self.read = 0
        marks = {origin: stored[-1][0] for origin, stored in self.stored.items() if stored}
        self.group.begin(self.reader, resume=marks)
        self.here = True
        self.view(missed_by)

    def split(self) -> None:
        """The reader is expelled and readmitted as the same incarnation."""
        if not self.here:
            return
        rules, reader = self.group.rules, self.reader
        self.group.rules = [lambda sender, to, _frame: (sender == reader) != (to == reader)]
        self.here = False
        self.view()
        self.group.install(View.of(self.number, reader), [reader])
        self.send(0, 2, 0)
        self.run(30)
        self.group.rules, self.here = rules, True
        self.view()

    def restart(self, at: int) -> None:
        """Restart a sender after all have its messages."""
        node = SENDERS[at]
        if not self.here:
            return  # what it kept for the reader would die with it
        self.lose(0)
        self.view()
        self.group.settle()
        self.group.crash(self.senders[node])
        self.senders[node] = Address(node, self.senders[node].incarnation + 1)
        self.group.begin(self.senders[node])
        for table in (self.sent, self.stored):
            table[self.senders[node]] = []
        self.view()

    # Checks

    def spool(self) -> None:
        """Store the deliveries of the reader, after a check of their order."""
        deliveries = self.group.deliveries[self.reader]
        for delivery in deliveries[self.read :]:
            if delivery.origin == self.reader:
                continue
            stored = self.stored[delivery.origin]
            messages = delivery.messages()
            stored += [
                (delivery.last - len(messages) + at, message)
                for at, message in enumerate(messages, 1)
            ]
        self.read = len(deliveries)
        for origin, stored in self.stored.items():
            assert [message for _, message in stored] == self.sent[origin][: len(stored)], (
                f"of {origin}: once, in order"
            )
        assert not [event for event in self.group.events[self.reader] if isinstance(event, Lost)]

    def end(self) -> None:
        """Everything has arrived when the reader is back and the network works."""
        self.lose(0)
        if self.here:
            self.view()
        else:
            self.come(None)
        self.group.settle()
        self.spool()
        for origin, stored in self.stored.items():
            assert len(stored) == len(self.sent[origin]), f"all of {origin}"
        for sender in self.senders.values():
            window = self.group.members[sender].outbound.window
            assert window.low == window.high, "nothing is kept for nobody"


MISSED = st.sampled_from([None, None, None, *SENDERS])
ACTS = st.one_of(
    st.tuples(
        st.just("send"), st.integers(0, 1), st.integers(1, 6), st.sampled_from([0, 0, 10, 900])
    ),
    st.tuples(st.just("run"), st.sampled_from([0, 1, 2, 5, 15, 40, 200])),
    st.tuples(st.just("lose"), st.sampled_from([0, 2, 3, 5])),
    st.tuples(st.just("go"), MISSED),
    st.tuples(st.just("come"), MISSED),
    st.tuples(st.just("split")),
    st.tuples(st.just("restart"), st.integers(0, 1)),
)


@settings(
    max_examples=3 * settings.default.max_examples,  # type: ignore[union-attr]
    suppress_health_check=[HealthCheck.too_slow],
)
@given(
    acts=st.lists(ACTS, max_size=25),
    capacity=st.sampled_from([8, 12, 64]),
    threshold=st.sampled_from([0, 1]),
    seed=st.integers(0, 3),
)
def test_the_reader_gets_everything_once_and_in_order(
    acts: list[tuple[Any, ...]], capacity: int, threshold: int, seed: int
) -> None:
    town = Town(
        seed,
        capacity=capacity,
        ack_threshold=threshold,
        max_frame_bytes="512B",
        receive_buffer_bytes="16KiB",
    )
    for name, *arguments in acts:
        getattr(town, name)(*arguments)
    town.end()
