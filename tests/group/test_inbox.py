"""The inbox between a handle and the application, where two threads meet."""

import threading
import time

from gapless.config import Config
from gapless.group.inbox import Inbox
from gapless.protocol.ready import Delivery
from gapless.runtime.handle import MemberHandle
from gapless.transport import InProcessNetwork
from tests.support.companions import QUICK
from tests.support.deliveries import A, run
from tests.support.handles import PATIENCE_S


def test_items_that_arrive_while_the_handle_is_attached_are_read() -> None:
    inbox = Inbox(listens=True, wants_state=False)
    handle = MemberHandle("g", InProcessNetwork().open(), Config.make(**QUICK))
    try:
        putting = threading.Thread(target=inbox.put, args=([run(A, 1, 1)],))
        with inbox._lock:
            putting.start()
            time.sleep(0.05)  # it waits for the lock
            inbox.attach(handle)
        putting.join(PATIENCE_S)
        inbox.put([run(A, 2, 2)])
        assert [item.first for item in inbox._items if isinstance(item, Delivery)] == [1, 2]
    finally:
        handle.close(0)
