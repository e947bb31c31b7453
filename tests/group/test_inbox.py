"""The inbox between a handle and the application, where two threads meet."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from gapless.blocking import Group, join
from gapless.config import Config
from gapless.errors import TimedOutError
from gapless.group.inbox import Inbox
from gapless.protocol.ready import Delivery
from gapless.runtime.handle import MemberHandle
from gapless.transport import InProcessNetwork
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
