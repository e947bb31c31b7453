"""Who drives the reactor: the thread that waits, the one that sends, or the protocol thread."""

import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import ExitStack, contextmanager
from functools import partial
from types import FrameType
from typing import Any

import pytest

from gapless.config import Config
from gapless.errors import ClosedError, GaplessError
from gapless.identity import Address
from gapless.protocol.events import Accepted, Left
from gapless.protocol.ready import Delivery, Ready
from gapless.runtime.bundler import Bundle
from gapless.runtime.handle import MemberHandle
from gapless.runtime.member_runtime import PendingCall
from gapless.runtime.send_requests import SendRequest, When
from gapless.transport import InProcessNetwork, InProcessTransport
from gapless.units import NS_PER_S
from tests.support.companions import QUICK
from tests.support.handles import PATIENCE_S, Guest, HookedQueue, gathering

SELDOM = {**QUICK, "heartbeat_interval": "60s", "suspect_after": "200s", "merge_interval": "200s"}
"""Settings with which a lone member has no timer for a minute, so that none hides a defect."""


class Watched:
    """A lone member that records the thread of every turn with deliveries."""

    def __init__(self, **knobs: Any) -> None:
        self.threads: list[int] = []
        self.inside: Callable[[], None] = lambda: None
        self.transport: InProcessTransport = InProcessNetwork().open()
        self.handle = MemberHandle(
            "g", self.transport, Config.make(**{**SELDOM, **knobs}), sink=HookedQueue(self._woken)
        )

    def _woken(self) -> None:
        self.threads.append(threading.get_ident())
        self.inside()

    def get(self, timeout_s: float = PATIENCE_S) -> list[bytes]:
        """Wait, and return the messages that have come."""
        self.handle.wait(timeout_s)
        found = [item for item in self.handle.take() if isinstance(item, Delivery)]
        self.handle.consumed(sum(delivery.message_count for delivery in found))
        return [message for delivery in found for message in delivery.messages()]

    def echo(self, message: bytes = b"x") -> None:
        """Let another thread send a message, and wait for it here."""
        sender = threading.Thread(
            target=lambda: self.handle.submit(SendRequest.of([message])).result(PATIENCE_S)
        )
        sender.start()
        while message not in self.get():
            pass
        sender.join(PATIENCE_S)

    def until(self, holds: Callable[[], bool]) -> None:
        """Wait for messages until something holds."""
        until_s = time.monotonic() + PATIENCE_S
        while not holds():
            assert time.monotonic() < until_s
            self.echo()

    def until_this_thread_leads(self) -> None:
        """Wait for messages until this thread works on one itself."""
        self.threads.clear()
        self.until(lambda: threading.get_ident() in self.threads)


@contextmanager
def watched(**knobs: Any) -> Iterator[Watched]:
    made = Watched(**knobs)
    try:
        made.echo(b"first")
        yield made
    finally:
        made.handle.close(1)


@contextmanager
def in_thread(function: Callable[[], Any]) -> Iterator[list[Any]]:
    """Run something in another thread; its result, or what it raised, is there at the end."""
    result: list[Any] = []

    def run() -> None:
        try:
            result.append(function())
        except BaseException as error:  # noqa: BLE001 - the test looks at it
            result.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    yield result
    thread.join(PATIENCE_S)
    assert not thread.is_alive()


@contextmanager
def handling(number: int, handler: Callable[[int, FrameType | None], Any]) -> Iterator[None]:
    before = signal.signal(number, handler)
    try:
        yield
        assert signal.getsignal(number) is handler, "a handler is left as it was"
    finally:
        signal.signal(number, before)


# Who drives


def test_a_thread_that_waits_works_on_what_comes_by_itself() -> None:
    with watched() as member:
        member.until_this_thread_leads()


def test_a_thread_that_sends_and_waits_sees_to_it_itself() -> None:
    with watched() as member:
        member.until_this_thread_leads()
        member.threads.clear()
        sent = member.handle.submit(SendRequest.of([b"now"]), When.NOW)
        assert sent.done(), "nobody had to be woken"
        assert isinstance(sent.result(), Accepted)
        assert member.threads == [threading.get_ident()]
        assert member.get() == [b"now"]


def test_a_thread_that_leads_is_woken_for_what_the_turn_of_another_brings() -> None:
    with watched() as member:
        member.until_this_thread_leads()
        reactor = member.handle.reactor
        epoch = reactor._poll_epoch

        def send() -> None:
            until_s = time.monotonic() + 1  # if it follows, it need not be woken
            while time.monotonic() < until_s and (
                reactor._poll_epoch == epoch or reactor._select_until_ns < 0
            ):
                pass
            member.handle.submit(SendRequest.of([b"now"]), When.NOW)

        with in_thread(send):
            start_s = time.monotonic()
            assert member.get() == [b"now"]
            assert time.monotonic() - start_s < PATIENCE_S / 2


def test_what_happens_just_before_a_thread_selects_is_seen() -> None:
    looks: list[bool] = []

    def done() -> bool:
        """Become true between two looks, when there is nobody to wake yet."""
        looks.append(bool(looks))
        return looks[-1]

    with watched() as member:
        start_s = time.monotonic()
        until_ns = time.monotonic_ns() + PATIENCE_S * NS_PER_S
        while not member.handle.reactor.poll_until(done, until_ns):
            member.until_this_thread_leads()
        assert time.monotonic() - start_s < PATIENCE_S / 2


@contextmanager
def noted(member: Watched) -> Iterator[tuple[threading.Event, list[str]]]:
    """Note which thread reads what comes next, and when it has."""
    read, readers, receive = threading.Event(), [], member.transport.receive

    def receive_noted(limit: int) -> list[bytes]:
        found = receive(limit)
        if found:
            readers.append(threading.current_thread().name)
            read.set()
        return found

    member.until_this_thread_leads()
    member.transport.receive = receive_noted  # type: ignore[method-assign]
    yield read, readers


def test_the_protocol_thread_takes_over_from_one_that_does_not_come_back() -> None:
    with watched() as member, noted(member) as (read, readers):
        member.transport.enqueue(member.transport.locator, b"nonsense")
        assert read.wait(PATIENCE_S)
        assert readers == ["gapless"]


def test_the_protocol_thread_takes_over_from_one_that_has_waited_for_long() -> None:
    with watched() as member, noted(member) as (read, readers):
        assert member.get(timeout_s=0.1) == []
        member.transport.enqueue(member.transport.locator, b"nonsense")
        assert read.wait(PATIENCE_S)
        assert readers == ["gapless"]


def test_sends_that_nobody_waits_for_do_not_keep_the_protocol_thread_from_reading() -> None:
    with watched() as member, noted(member) as (read, _):
        member.transport.enqueue(member.transport.locator, b"nonsense")
        until_s = time.monotonic() + PATIENCE_S
        while not read.is_set():
            assert time.monotonic() < until_s
            member.handle.submit(SendRequest.of([b"and nobody waits"]))


def test_who_only_looks_reads_by_itself() -> None:
    with watched() as member, noted(member) as (read, readers):
        until_s = time.monotonic() + PATIENCE_S
        while (
            threading.current_thread().name not in readers
        ):  # the protocol thread may be faster now and then
            assert time.monotonic() < until_s
            member.until_this_thread_leads()
            read.clear()
            member.transport.enqueue(member.transport.locator, b"nonsense")
            while not read.is_set():
                assert time.monotonic() < until_s
                assert member.get(timeout_s=0) == []


def test_what_is_wanted_at_the_end_of_a_turn_is_seen_to() -> None:
    with watched() as member:
        member.until_this_thread_leads()
        driver, seat, seen = member.handle.reactor, member.handle._runtime, threading.Event()
        baton = driver._turn_lock

        class Late:
            """A turn lock: another thread finds it taken just before its release."""

            acquire, locked, owner = baton.acquire, baton.locked, None

            def release(self) -> None:
                driver._turn_lock = baton
                seat.calls.append(PendingCall(lambda _: seen.set()))
                driver._pending.append(seat)
                baton.release()

        driver._turn_lock = Late()  # type: ignore[assignment]
        member.handle.submit(SendRequest.of([b"x"]), When.NOW)
        assert seen.wait(PATIENCE_S)


def test_one_group_that_fails_may_tell_another() -> None:
    """A callback at the end of a member may send by another member without waiting for a turn."""
    with watched() as failing, watched() as other:
        told: Future[None] = Future()
        in_a_turn: list[bool] = []
        told.add_done_callback(lambda _: in_a_turn.append(other.handle.reactor.in_turn))
        told.add_done_callback(lambda _: other.handle.submit(SendRequest.of([b"told"]), When.NOW))

        def fail(_: int) -> None:
            raise RuntimeError("a bug of the machine")

        seat = failing.handle._runtime
        seat.calls += [PendingCall(fail), PendingCall(lambda _: None, told)]
        failing.handle.reactor.wake_up(seat)
        found: list[bytes] = []
        until_s = time.monotonic() + PATIENCE_S
        while b"told" not in found:
            assert time.monotonic() < until_s
            found += other.get(timeout_s=0.1)
        assert in_a_turn == [True], "so it was left to whoever had the turn"


def test_who_waits_for_a_turn_that_does_not_end_leaves_it_to_others() -> None:
    with watched() as member:
        driver = member.handle.reactor
        driver._turn_lock._lock.acquire()  # somebody is in a turn, and does not say so
        try:
            sent = member.handle.submit(SendRequest.of([b"x"]), When.NOW)
            assert not sent.done()
        finally:
            driver._turn_lock._lock.release()
        assert isinstance(sent.result(PATIENCE_S), Accepted)


def test_who_only_looks_sees_everything() -> None:
    with watched() as member:
        member.until_this_thread_leads()
        for number in range(20):
            sent = member.handle.submit(SendRequest.of([b"%d" % number]))
            found: list[bytes] = []
            until_s = time.monotonic() + PATIENCE_S
            while not found:
                assert time.monotonic() < until_s
                found = member.get(timeout_s=0)
            assert found == [b"%d" % number]
            assert isinstance(sent.result(PATIENCE_S), Accepted)


def test_of_two_that_wait_both_are_served() -> None:
    with watched() as member:
        member.until_this_thread_leads()
        asked = threading.Event()

        def ask() -> int:
            asked.set()
            return member.handle.query(lambda machine: machine.me.node).result(PATIENCE_S)

        with in_thread(member.get) as got, in_thread(ask) as answered:
            assert asked.wait(PATIENCE_S)
            member.handle.submit(SendRequest.of([b"for the first"]))
        assert got == [[b"for the first"]]
        assert answered == [member.handle.me.node]


def test_a_deadline_is_kept_that_came_while_another_thread_slept() -> None:
    with watched(capacity=4, unread_limit=4, slow_receiver_after="100s") as member:
        member.handle.submit(SendRequest.of([b"more than there is room for"] * 20))
        outcomes: list[Any] = []
        with in_thread(lambda: member.handle.reactor.poll_until(lambda: bool(outcomes), None)):
            while (
                member.handle.reactor._select_until_ns < time.monotonic_ns() + PATIENCE_S * NS_PER_S
            ):
                pass  # until somebody sleeps at the sockets, for long
            sent = member.handle.submit(SendRequest.of([b"late"], timeout_ns=20_000_000), When.NOW)
            outcomes.append(sent.result(PATIENCE_S))
            member.handle.query(lambda machine: None).result(PATIENCE_S)  # a turn more
        assert outcomes[0][1:] == (0, "timeout")


class Receipt:
    """The receipt of one message."""

    _accepted: Accepted | None = None
    _bundled: tuple[Bundle, int] | None = None


@pytest.mark.parametrize("over", ["memory", "udp"])
def test_many_threads_at_once_lose_nothing_and_keep_their_order(over: str) -> None:
    each, ways = 150, ("wake", "now", "lone")

    def send(guest: Guest, way: str) -> None:
        for number in range(each):
            message = b"%s %d" % (way.encode(), number)
            # A receipt for each message; not bundled, so that a failed try is sent.
            if way == "lone" and guest.handle.send_lone(message, Receipt(), loopback=True):
                continue
            when = When.WAKE if way == "wake" else When.NOW
            request = SendRequest.of([message], loopback=True if way == "lone" else None)
            guest.handle.submit(request, when).result(PATIENCE_S)

    def read(guest: Guest) -> None:
        guest.until_messages(2 * each * len(ways))

    with gathering(2, over) as guests, ExitStack() as stack:
        results = [stack.enter_context(in_thread(partial(read, guest))) for guest in guests]
        results += [
            stack.enter_context(in_thread(partial(send, guest, way)))
            for guest in guests
            for way in ways
        ]
        stack.close()
        assert results == [[None]] * len(results)
        for guest in guests:
            by_origin: dict[Address, list[bytes]] = {}
            for delivery in guest.of(Delivery):
                by_origin.setdefault(delivery.origin, []).extend(delivery.messages())
            assert len(by_origin) == 2
            for messages in by_origin.values():
                for way in ways:
                    mine = [
                        message for message in messages if message.startswith(way.encode() + b" ")
                    ]
                    assert mine == [b"%s %d" % (way.encode(), number) for number in range(each)]


# What may happen to it


def test_a_member_is_closed_while_another_thread_drives() -> None:
    with watched() as member:
        with in_thread(lambda: member.handle.wait(PATIENCE_S)) as waited:
            member.handle.close(PATIENCE_S)
            assert member.handle.is_closed
        assert waited == [True], "the last thing to take"
        assert isinstance(member.handle.take()[-1], Left)


def test_a_machine_that_fails_in_a_thread_of_the_application_is_an_error_of_its_handle() -> None:
    def broken(*_: Any, **__: Any) -> Ready:
        raise AssertionError("two and two are five")

    with watched() as member:
        member.until_this_thread_leads()
        member.handle.query(lambda machine: setattr(machine, "send", broken)).result(PATIENCE_S)
        sent = member.handle.submit(SendRequest.of([b"x"]), When.NOW)
        assert member.handle.is_closed
        assert isinstance(member.handle.error, GaplessError)
        with pytest.raises(GaplessError, match="two and two are five"):
            sent.result(PATIENCE_S)
        assert not member.handle.wait(PATIENCE_S)
        with pytest.raises(GaplessError, match="two and two are five"):
            member.handle.submit(SendRequest.of([b"x"]), When.NOW)


def test_control_c_inside_a_turn_waits_for_its_end() -> None:
    with watched() as member, handling(signal.SIGINT, signal.default_int_handler):
        member.until_this_thread_leads()
        after: list[str] = []

        def inside() -> None:
            if threading.current_thread() is threading.main_thread():
                member.inside = lambda: None
                os.kill(os.getpid(), signal.SIGINT)
                after.append("the turn goes on")

        member.inside = inside
        with pytest.raises(KeyboardInterrupt):
            member.until(lambda: False)
        assert after == ["the turn goes on"]
        member.handle.take()
        member.inside = inside
        with pytest.raises(KeyboardInterrupt):
            member.handle.submit(SendRequest.of([b"interrupted"]), When.NOW)
        assert len(after) == 2
        member.get()
        member.echo(b"as if nothing had happened")


def test_control_c_in_a_send_that_has_no_room_gives_it_up() -> None:
    with (
        watched(capacity=4, unread_limit=4) as member,
        handling(signal.SIGINT, signal.default_int_handler),
    ):
        member.handle.submit(SendRequest.of([b"more than there is room for"] * 20))

        stopped: list[bool] = []

        def stop_once(machine: Any) -> None:
            send = machine.send

            def send_and_stop(*messages: Any, **how: Any) -> Ready:
                ready: Ready = send(*messages, **how)
                if threading.current_thread() is threading.main_thread() and not stopped:
                    stopped.append(True)
                    os.kill(os.getpid(), signal.SIGINT)
                return ready

            machine.send = send_and_stop

        member.handle.query(stop_once).result(PATIENCE_S)
        while member.handle.reactor._turn_lock.locked():
            pass  # the turn of the question comes to its end
        with pytest.raises(KeyboardInterrupt):
            member.handle.submit(SendRequest.of([b"interrupted"]), When.NOW)
        found: list[bytes] = []
        member.handle.submit(SendRequest.of([b"last"]))
        while b"last" not in found:
            found += member.get()
        assert b"interrupted" not in found


def test_control_c_while_a_thread_waits_interrupts_it() -> None:
    with watched() as member, handling(signal.SIGINT, signal.default_int_handler):
        member.until_this_thread_leads()
        timer = threading.Timer(0.05, lambda: os.kill(os.getpid(), signal.SIGINT))
        timer.start()
        with pytest.raises(KeyboardInterrupt):
            member.get()
        timer.join()
        member.echo(b"as if nothing had happened")


def test_a_handler_of_a_signal_may_use_the_member_that_waits() -> None:
    results: list[Any] = []

    def handler(*_: object) -> None:
        results.append(member.handle.query(lambda machine: machine.me.node).result(PATIENCE_S))
        results.append(
            member.handle.submit(SendRequest.of([b"from the handler"]), When.NOW).result(PATIENCE_S)
        )

    with watched() as member, handling(signal.SIGUSR1, handler):
        member.until_this_thread_leads()
        timer = threading.Timer(0.05, lambda: os.kill(os.getpid(), signal.SIGUSR1))
        timer.start()
        assert member.get() == [b"from the handler"]
        timer.join()
        assert results[0] == member.handle.me.node
        assert isinstance(results[1], Accepted)


def test_what_cannot_wait_for_the_end_of_a_turn_ends_the_group(
    caplog: pytest.LogCaptureFixture,
) -> None:
    class StrangeError(Exception):
        pass

    def handler(*_: object) -> None:
        raise StrangeError

    with watched() as member, handling(signal.SIGRTMIN, handler):
        member.until_this_thread_leads()

        def inside() -> None:
            if threading.current_thread() is threading.main_thread():
                member.inside = lambda: None
                os.kill(os.getpid(), signal.SIGRTMIN)

        member.inside = inside
        member.handle.submit(SendRequest.of([b"x"]), When.NOW)
        assert member.handle.is_closed
        with pytest.raises(GaplessError, match="StrangeError"):
            member.handle.submit(SendRequest.of([b"x"]))
        member.handle.close()


def test_after_a_fork_while_a_thread_drives_the_child_is_told() -> None:
    with watched() as member:
        member.until_this_thread_leads()
        with in_thread(member.get) as got:
            reading, writing = os.pipe()
            if not os.fork():
                try:
                    member.handle.wait(1)
                except ClosedError as error:
                    os.write(writing, str(error).encode())
                os._exit(0)
            os.close(writing)
            with os.fdopen(reading, "rb") as pipe:
                said = pipe.read()
            os.wait()
            member.handle.submit(SendRequest.of([b"in the parent"]))
        assert b"belongs to the parent process" in said
        assert got == [[b"in the parent"]]
