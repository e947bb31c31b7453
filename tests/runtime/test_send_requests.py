"""Sends are put by any thread while the protocol thread looks at them."""

import sys
import threading

import pytest

from gapless.payloads import Payloads
from gapless.runtime.send_requests import SendRequest, SendRequests


@pytest.fixture
def _restless() -> object:
    """Let threads take turns as often as they can."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield None
    sys.setswitchinterval(before)


@pytest.mark.usefixtures("_restless")
@pytest.mark.parametrize("look", ["deadline", "gather"])
def test_looking_at_thequeue_while_another_thread_fills_it(look: str) -> None:
    sends = SendRequests(1 << 16)
    for _ in range(2000):
        sends.put(SendRequest(Payloads.of([b"x"])))
    done = threading.Event()

    def fill() -> None:
        while not done.is_set():
            sends.put(SendRequest(Payloads.of([b"x"])))
            if len(sends.queue) > 2000:
                sends.queue.popleft()

    filler = threading.Thread(target=fill, daemon=True)
    filler.start()
    try:
        for _ in range(300):
            if look == "deadline":
                assert sends.deadline_ns is None
            else:
                assert len(sends._mergeable(1)) <= 2001
    finally:
        done.set()
        filler.join(60)
    assert not filler.is_alive()
