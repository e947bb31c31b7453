"""Sends are put by any thread while the protocol thread looks at them."""

import sys
import threading
from random import Random

import pytest

from gapless.config import Config
from gapless.identity import Address
from gapless.payloads import Payloads
from gapless.protocol.events import Accepted
from gapless.protocol.member import Member
from gapless.protocol.ready import Ready
from gapless.runtime.bundler import Bundle
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
                assert len(sends._mergeable(1, 3000)) <= 2001
    finally:
        done.set()
        filler.join(60)
    assert not filler.is_alive()


def _alone(incarnation: int, capacity: int = 2) -> Member:
    """Return a member in a view of its own; a small window has room for unread messages only."""
    config = Config.make(capacity=capacity, max_seqno_ahead=2, unread_limit=capacity // 2)
    member = Member(Address(1, incarnation), 1, config, Random(1))
    member.join(0)
    while member.view is None:
        assert member.deadline_ns is not None
        member.tick(member.deadline_ns)
    return member


def _resolve(sends: SendRequests, *readies: Ready) -> None:
    for ready in readies:
        for event in ready.events:
            sends.resolve(event)


def test_a_bundle_that_waits_when_its_member_is_expelled_is_sent_by_the_next_incarnation() -> None:
    sends, member, now_ns = SendRequests(1 << 16), _alone(1), 10**12
    bundle = Bundle(Payloads.of([b"%d" % number for number in range(8)]))
    ready = sends.submit_bundle(bundle, member, now_ns)
    assert ready is not None
    _resolve(sends, ready, member.abort(now_ns))
    sent_before = bundle.sent_before
    assert 0 < sent_before < 8
    assert not bundle.done()
    member, readies = _alone(2), []
    sends.on_view()
    assert sends.has_new
    for number, ready in enumerate(sends.resubmit_bundles(member, now_ns)):
        assert number == 0
        readies.append(ready)
    while not bundle.done():
        _resolve(sends, *readies)
        readies = [member.consumed(min(1, member.credit.outstanding), now_ns)]
    assert bundle.result().first == 1
    assert bundle.result().last == 8 - sent_before
    assert bundle.seqno_of(sent_before - 1).first == 0, "a former incarnation has sent it"
    assert bundle.seqno_of(7) == Accepted(bundle.result().ticket, 8 - sent_before, 8 - sent_before)


@pytest.mark.parametrize("counted", [1, 2])
def test_only_counted_requests_are_flushed(counted: int) -> None:
    """A request put after the count may belong to a thread whose former message is in a bundle."""
    sends, member = SendRequests(1 << 16), _alone(1, capacity=16)
    requests = [SendRequest(Payloads.of([b"%d" % number])) for number in range(3)]
    for request in requests[:counted]:
        sends.put(request)
    left = sends.count_new()
    for request in requests[counted:]:
        sends.put(request)
    _resolve(sends, *sends.flush(left, member, 10**12))
    assert [request.done() for request in requests] == [at < counted for at in range(3)]
    assert sends.has_new, "the other requests wait for the next turn"
