"""The inbox between a handle and the application, where two threads meet."""

import sys
import threading
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from gapless.blocking import Group, join
from gapless.config import Config
from gapless.errors import TimedOutError
from gapless.group.inbox import Inbox
from gapless.group.message import Batch, Message
from gapless.protocol.ready import Delivery
from gapless.runtime.handle import MemberHandle
from gapless.transport import InProcessNetwork
from tests.support.collectors import wait_until
from tests.support.companions import QUICK
from tests.support.deliveries import A, run
from tests.support.handles import PATIENCE_S


class WatchedLock:
    """A reentrant lock that says when a thread wants it."""

    def __init__(self) -> None:
        self.wanted = threading.Event()
        self._lock = threading.RLock()

    def __enter__(self) -> None:
        self.wanted.set()
        self._lock.acquire()

    def __exit__(self, *_: object) -> None:
        self._lock.release()


def test_items_that_arrive_while_the_handle_is_attached_are_read() -> None:
    inbox = Inbox(listens=True, wants_state=False)
    lock = inbox._lock = WatchedLock()  # type: ignore[assignment]
    handle = MemberHandle("g", InProcessNetwork().open(), Config.make(**QUICK))
    try:
        putting = threading.Thread(target=inbox.put, args=([run(A, 1, 1)],))
        with lock:
            lock.wanted.clear()
            putting.start()
            assert lock.wanted.wait(PATIENCE_S)
            inbox.attach(handle)
        putting.join(PATIENCE_S)
        inbox.put([run(A, 2, 2)])
        assert [item.first for item in inbox._items if isinstance(item, Delivery)] == [1, 2]
    finally:
        handle.close(0)


@contextmanager
def quiet_group() -> Iterator[Group]:
    """A lone member that has read its first view."""
    with join("g", transport=InProcessNetwork().open(), config=QUICK) as group:
        group.receive_event(PATIENCE_S)
        yield group


def poll(group: Group) -> None:
    with pytest.raises(TimedOutError):
        group.receive(timeout=0.001)


def test_a_reader_that_polls_an_idle_group_leaves_nothing_behind() -> None:
    with quiet_group() as group:
        for _ in range(20):
            poll(group)
        assert len(group._session.inbox._waiters) <= 1


def test_a_reader_that_polls_while_another_leads_leaves_nothing_behind() -> None:
    with quiet_group() as group:
        other = threading.Thread(target=group.receive)
        other.start()
        for _ in range(20):
            poll(group)
        assert len(group._session.inbox._waiters) <= 2
        group.leave()
        other.join(PATIENCE_S)
        assert not other.is_alive()


def test_a_loop_that_is_left_leaves_the_rest_of_the_batch_to_every_other_way_to_read() -> None:
    with quiet_group() as group:
        group.send_many([b"%d" % at for at in range(6)])
        loop = iter(group)
        assert [next(loop).payload, next(loop).payload] == [b"0", b"1"]
        assert group.unread == 6, "consumed only when more is asked for than the batch"
        message = group.receive(PATIENCE_S)
        assert message is not None
        assert message.payload == b"2"
        batch = group.receive_batch(PATIENCE_S)
        assert isinstance(batch, Batch)
        assert (list(batch), batch.first, batch.last) == ([b"3", b"4", b"5"], 4, 6)
        poll(group)
        assert group.unread == 0


def test_a_message_popped_while_the_rest_of_its_batch_is_taken_is_not_read_twice() -> None:
    class Popped(deque[Message]):
        """Opened messages, of which another loop pops one when two were taken."""

        def popleft(self) -> Message:
            """Return the next message."""
            if len(self) == 3:
                looped.append(super().popleft())
            return super().popleft()

    looped: list[Message] = []
    with quiet_group() as group:
        group.send_many([b"%d" % at for at in range(6)])
        group.receive(PATIENCE_S)
        inbox = group._session.inbox
        inbox.opened = Popped(inbox.opened)
        batches = [group.receive_batch(PATIENCE_S) for _ in range(2)]
        assert [(list(batch), batch.first) for batch in batches if isinstance(batch, Batch)] == [
            ([b"1", b"2"], 2),
            ([b"4", b"5"], 5),
        ]
        assert [message.payload for message in looped] == [b"3"]


def test_threads_that_loop_and_take_batches_share_the_messages() -> None:
    count = 4000
    seen: list[int] = []

    def loop() -> None:
        for message in group:
            seen.append(message.seqno)

    def take() -> None:
        for batch in group.batches():
            seen.extend(range(batch.first, batch.last + 1))

    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        with quiet_group() as group:
            readers = [threading.Thread(target=read) for read in (loop, loop, take)]
            for reader in readers:
                reader.start()
            for at in range(0, count, 40):
                group.send_many([b"%d" % number for number in range(at, at + 40)])
            wait_until(lambda: len(seen) >= count, "all messages to be read", PATIENCE_S)
            group.close(PATIENCE_S)
            for reader in readers:
                reader.join(PATIENCE_S)
    finally:
        sys.setswitchinterval(before)
    assert sorted(seen) == list(range(1, count + 1))
