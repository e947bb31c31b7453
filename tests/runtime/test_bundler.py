"""Messages sent one after another share frames, keep their order and seqnos, and leave soon."""

from __future__ import annotations

import asyncio
import signal
import sys
import threading
import time
from collections import deque
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any

import pytest

import gapless
from gapless import blocking
from gapless.errors import ClosedError, LocalProtocolError
from gapless.identity import Address
from gapless.payloads import Payloads
from gapless.protocol.events import Accepted
from gapless.runtime import bundler as module
from gapless.runtime.bundler import Bundle, Bundler, Joined
from gapless.runtime.send_requests import SendRequests
from gapless.transport import InProcessNetwork
from tests.support.companions import QUICK
from tests.support.handles import gathering, with_room
from tests.support.real_groups import (
    WITHIN_S,
    company,
    other_than,
    read as read_async,
    run,
    threads,
)

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from gapless.protocol.ready import Transmit


@pytest.fixture
def _breathless(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let every message follow the one before at once, however slow the machine is."""
    monkeypatch.setattr(module, "BUNDLE_GAP_NS", 10**18)


@pytest.fixture
def _restless() -> Iterator[None]:
    """Let threads take turns as often as they can."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield None
    sys.setswitchinterval(before)


class Whose:
    """One who may ask for a number."""

    _accepted: Accepted | None = None
    _bundled: tuple[Bundle, int] | None = None


def some(count: int) -> list[bytes]:
    return [b"%d" % at for at in range(count)]


def frames(group: blocking.Group) -> int:
    return group.snapshot().counters.get("sent.data", 0)


def read(group: blocking.Group, count: int) -> list[bytes]:
    found = []
    for _ in range(count):
        message = group.receive(WITHIN_S)
        assert message is not None
        found.append(message.payload)
    return found


@pytest.mark.usefixtures("_breathless")
def test_they_share_frames_and_have_their_numbers() -> None:
    with threads(2, bundle_delay="100ms") as (one, two):
        before = frames(one)
        sent = [one.send(payload) for payload in some(500)]
        assert (
            [receipt.first for receipt in sent]
            == [receipt.last for receipt in sent]
            == list(range(1, 501))
        )
        assert read(two, 500) == read(one, 500) == some(500)
        assert frames(one) - before < 50


@pytest.mark.usefixtures("_breathless")
def test_without_a_gap_each_leaves_by_itself() -> None:
    with threads(2, bundle_delay="0ms") as (one, two):
        before = frames(one)
        for payload in some(50):
            one.send(payload)
        assert read(two, 50) == some(50)
        assert frames(one) - before == 50


def test_one_that_follows_nobody_leaves_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "BUNDLE_GAP_NS", 0)
    with threads(2) as (one, two):
        before = frames(one)
        for payload in some(20):
            assert one.send(payload)._accepted is not None
        assert read(two, 20) == some(20)
        assert frames(one) - before == 20


@pytest.mark.usefixtures("_breathless")
def test_whoever_sends_and_does_nothing_more_has_sent() -> None:
    """Nobody calls anything at the sender any more: its protocol thread sees to what lies there."""
    with threads(2, bundle_delay="100ms") as (one, two):
        for round_ in range(20):
            one.send(b"first")
            one.send(b"last %d" % round_)
            assert read(two, 2) == [b"first", b"last %d" % round_]
            assert read(one, 2) == [b"first", b"last %d" % round_]


@pytest.mark.usefixtures("_breathless")
def test_nothing_overtakes_what_lies_there() -> None:
    with threads(2, bundle_delay="100ms", loopback=False) as (one, two):
        expected = []
        for at in range(100):
            one.send(b"laid %d" % at)
            expected.append(b"laid %d" % at)
            if at % 7 == 0:
                one.send_many([b"many %d" % at, b"more"])
                expected += [b"many %d" % at, b"more"]
            if at % 11 == 0:
                one.send(b"acknowledged", mode="acknowledged").delivered(WITHIN_S)
                expected.append(b"acknowledged")
            if at % 13 == 0:
                assert one.try_send(b"tried") is not None
                expected.append(b"tried")
            if at % 17 == 0:
                one.send(b"back", loopback=True)
                expected.append(b"back")
        assert read(two, len(expected)) == expected
        one.send(b"to one", other_than(one))
        assert read(two, 1) == [b"to one"]


@pytest.mark.usefixtures("_breathless")
def test_a_full_window_makes_the_sender_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    with threads(2, bundle_delay="100ms", capacity=64, unread_limit=64, loopback=False) as (
        one,
        two,
    ):
        room: list[int] = []
        allow = Bundler.set_room

        def note(self: Bundler, member: Any) -> None:
            allow(self, member)
            room.append(self.room)

        monkeypatch.setattr(Bundler, "set_room", note)
        sender = threading.Thread(
            target=lambda: [one.send(payload) for payload in some(1000)], daemon=True
        )
        sender.start()
        assert read(two, 1000) == some(1000)
        sender.join(WITHIN_S)
        assert not sender.is_alive()
        assert max(room) <= 64
        assert 0 in room


@pytest.mark.usefixtures("_breathless")
def test_what_lies_there_leaves_before_its_sender_does() -> None:
    with threads(2, bundle_delay="100ms", loopback=False) as (one, two):
        for payload in some(300):
            one.send(payload)
        one.close()
        assert read(two, 300) == some(300)
        with pytest.raises(ClosedError):
            one.send(b"too late")


@pytest.mark.usefixtures("_breathless", "_restless")
def test_threads_that_send_at_the_same_time_lose_nothing() -> None:
    with threads(2, bundle_delay="1ms", loopback=False) as (one, two):
        numbers: list[int] = []

        def send(name: bytes) -> None:
            receipts = [one.send(b"%s %d" % (name, at)) for at in range(300)]
            numbers.extend(receipt.first for receipt in receipts)

        senders = [
            threading.Thread(target=send, args=(name,), daemon=True) for name in (b"x", b"y", b"z")
        ]
        for sender in senders:
            sender.start()
        found = read(two, 900)
        for sender in senders:
            sender.join(WITHIN_S)
        for name in (b"x", b"y", b"z"):
            assert [one for one in found if one.startswith(name)] == [
                b"%s %d" % (name, at) for at in range(300)
            ]
        assert sorted(numbers) == list(range(1, 901))


@pytest.mark.usefixtures("_breathless")
def test_the_handler_of_a_signal_may_send() -> None:
    with threads(2, bundle_delay="1ms", loopback=False) as (one, two):
        handled = 0

        def handle(*_: object) -> None:
            nonlocal handled
            handled += 1
            one.send(b"handled")

        former = signal.signal(signal.SIGALRM, handle)
        signal.setitimer(signal.ITIMER_REAL, 0.001, 0.001)
        try:
            for payload in some(3000):
                one.send(payload)
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
            signal.signal(signal.SIGALRM, former)
        found = read(two, 3000 + handled)
        assert handled
        assert [one for one in found if one != b"handled"] == some(3000)


@pytest.mark.usefixtures("_breathless")
def test_tasks_that_send_one_after_another_share_frames_and_let_others_run() -> None:
    async def story() -> None:
        async with company(2, bundle_delay="1ms", loopback=False) as (one, two):
            rounds = 0

            async def count() -> None:
                nonlocal rounds
                while True:
                    rounds += 1
                    await asyncio.sleep(0)

            counter = asyncio.create_task(count())
            before = (await one.snapshot()).counters.get("sent.data", 0)
            sent = [await one.send(payload) for payload in some(5000)]
            assert rounds > 2
            counter.cancel()
            assert [receipt.first for receipt in sent] == list(range(1, 5001))
            assert await read_async(two, 5000) == some(5000)
            assert (await one.snapshot()).counters["sent.data"] - before < 500

    run(story())


def test_of_the_messages_of_a_round_the_first_leaves_at_once_and_the_others_together(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def story() -> None:
        async with company(2, loopback=False) as (one, two):
            to, transport = other_than(one), one._session.handle.transport
            sent: list[int] = []
            send = transport.send

            def count(transmits: Sequence[Transmit]) -> None:
                sent.append(len(transmits))
                send(transmits)

            monkeypatch.setattr(transport, "send", count)
            await asyncio.gather(*[one.send(payload, to) for payload in some(100)])
            assert sent[0] == 1
            assert max(sent) > 50
            assert await read_async(two, 100) == some(100)

    run(story())


@pytest.mark.usefixtures("_breathless")
def test_what_waits_for_its_turn_is_not_overtaken_by_another_task() -> None:
    async def story() -> None:
        async with company(2, bundle_delay="100ms", loopback=False) as (one, two):
            for at in range(50):
                laid = (
                    one.send(b"laid"),
                    one.send(b"timed", timeout=WITHIN_S),
                    one.send(b"next %d" % at),
                )
                await asyncio.gather(*laid)
                assert await read_async(two, 3) == [b"laid", b"timed", b"next %d" % at]

    run(story())


@pytest.mark.usefixtures("_breathless")
def test_whatever_is_laid_while_others_are_taken_is_told_of() -> None:
    """Or it would lie there until somebody comes by for another reason."""

    class Late(deque[Any]):
        """A tray on which another thread lays a message just when the last one is taken."""

        def popleft(self) -> Any:
            """Return the next message."""
            found = super().popleft()
            if found[0] == b"last":
                told.append(tray.join(b"late", Whose()))
            return found

    told: list[Joined] = []
    tray = with_room(Bundler(1 << 16, 10**12, 1 << 16, SendRequests(1 << 16)))
    tray.items = Late()
    assert [tray.join(payload, Whose()) for payload in (b"first", b"last")] == [
        Joined.FIRST,
        Joined.QUIETLY,
    ]
    laid = tray.take()
    assert laid is not None
    assert laid.payloads == (b"first", b"last")
    assert (told, len(tray.items)) == ([Joined.FIRST], 1)


def test_a_bundle_takes_what_is_small_has_room_and_follows_closely(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "BUNDLE_GAP_NS", 10**11)
    requests = SendRequests(1 << 16)
    tray = with_room(Bundler(1000, 10**12, 250, requests))
    assert tray.join(bytes(250), Whose()) is Joined.FIRST
    assert tray.join(bytes(251), Whose()) is Joined.REFUSED
    assert [tray.join(bytes(250), Whose()) for _ in range(3)] == [
        Joined.QUIETLY,
        Joined.QUIETLY,
        Joined.DUE,
    ]
    requests.has_new = True
    assert tray.join(b"after a request", Whose()) is Joined.REFUSED
    requests.has_new = False
    tray.room = 4
    assert tray.join(b"the fifth", Whose()) is Joined.REFUSED
    tray.room, tray._room_bytes = 5, 49
    assert tray.join(bytes(10), Whose()) is Joined.REFUSED
    tray._room_bytes = 50
    tray.last_ns -= 10**11
    assert tray.join(bytes(10), Whose()) is Joined.REFUSED
    tray.note_lone_send()
    assert tray.join(bytes(10), Whose()) is Joined.QUIETLY
    tray.room = 1000
    tray.close()
    assert tray.join(b"too late", Whose()) is Joined.REFUSED


def test_a_closed_bundle_stays_closed_after_a_turn() -> None:
    with gathering(1) as (one,):
        bundler = one.handle.bundler

        def room_of_a_turn(machine: Any) -> int:
            bundler.expects_more = True
            bundler.set_room(machine.endpoint)
            return bundler.room

        one.until_messages(0)
        assert one.handle.query(room_of_a_turn).result(WITHIN_S) > 0
        bundler.close()
        assert one.handle.query(room_of_a_turn).result(WITHIN_S) == 0


def test_numbers_of_what_was_never_sent() -> None:
    laid = Bundle(Payloads.of_validated([b"x"]))
    laid.fail(ClosedError("closed"))
    laid.fail(ClosedError("again"))
    with pytest.raises(ClosedError, match="closed"):
        laid.result(0)


def test_a_bundle_leaves_though_the_message_behind_it_is_refused() -> None:
    with gathering(2) as (one, two):
        for payload in some(50):  # now and then another thread is quicker, and takes the bundle
            with_room(one.handle.bundler).join(payload, Whose())
            with suppress(LocalProtocolError):
                one.handle.send_lone(b"refused", Whose(), Address(9, 9))
        one.handle.query(lambda _: None).result(WITHIN_S)
        for guest in (one, two):
            guest.until_messages(50)
            assert guest.messages == some(50)


@contextmanager
def slow_sends() -> Iterator[dict[str, Any]]:
    """Options of a member whose every turn that sends lasts much longer than a gap."""
    transport = InProcessNetwork().open()
    send = transport.send

    def send_slowly(transmits: Sequence[Transmit]) -> None:
        until_ns = time.monotonic_ns() + 10 * module.BUNDLE_GAP_NS
        while time.monotonic_ns() < until_ns:
            pass
        send(transmits)

    transport.send = send_slowly  # type: ignore[method-assign]
    yield {"transport": transport, "config": {**QUICK, "bundle_delay": "100ms"}}


def test_slow_turns_do_not_keep_messages_of_a_thread_from_sharing_frames() -> None:
    with slow_sends() as options, blocking.join("g", **options) as group:
        for payload in some(200):
            group.send(payload)
        assert read(group, 200) == some(200)
        assert frames(group) < 100


def test_slow_turns_do_not_keep_messages_of_a_task_from_sharing_frames() -> None:
    async def story() -> None:
        with slow_sends() as options:
            async with gapless.join("g", **options) as group:
                for payload in some(200):
                    await group.send(payload)
                assert (await group.snapshot()).counters["sent.data"] < 100

    run(story())
