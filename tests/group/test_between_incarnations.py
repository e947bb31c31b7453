"""While an expelled member comes back, calls of its program wait, and none is answered wrongly.

The groups run over real sockets. The returning member is muted: none of its JOINs leaves, so the
time between two incarnations lasts as long as a test needs it.
"""

import asyncio
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

import pytest

import gapless
from gapless import blocking
from gapless.errors import TimedOutError
from gapless.protocol.ready import Transmit
from gapless.wire.codec import decode
from gapless.wire.frames import Join
from tests.support.collectors import wait_until
from tests.support.networks import free_ports
from tests.support.real_groups import WITHIN_S, options, run

FASTER = {"found_after": "20ms", "join_interval": "10ms", "view_bundle_delay": "1ms"}
"""The first member founds at once, and the others find it."""


def mute(group: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let no JOIN of ``group`` leave, until ``monkeypatch.undo``."""
    transport = group._session.handle.transport
    send = transport.send

    def send_no_join(transmits: Sequence[Transmit]) -> None:
        send([each for each in transmits if not _has_join(each.datagram)])

    monkeypatch.setattr(transport, "send", send_no_join)


def _has_join(datagram: bytes) -> bool:
    return any(isinstance(frame, Join) for frame in decode(datagram, opened=True).frames)


def waiting_sends(group: Any) -> int:
    """Return how many sends of ``group`` wait for a view."""
    return len(group._session.handle._runtime.send_requests.queue)


class Trio:
    """Three members; ``last`` is expelled, and cannot come back before ``unmute``."""

    def __init__(self, stack: ExitStack, monkeypatch: pytest.MonkeyPatch, **knobs: object) -> None:
        self._monkeypatch = monkeypatch
        self._ports = free_ports(3)

        def join(**more: object) -> blocking.Group:
            chosen = options(self._ports, **{**FASTER, **knobs, **more})
            return stack.enter_context(blocking.join("g", **chosen))

        self.one, self.two = join(), join()
        # It never founds a group of its own, so it has no view until it is let in again.
        self.last = join(found_after="60s")
        for group in (self.one, self.two, self.last):
            group.wait_for_members(3, WITHIN_S)
        assert self.last.me is not None
        self.former = self.last.me

    def expel(self) -> None:
        """Expel the last member; return when it knows, and has no view."""
        mute(self.last, self._monkeypatch)
        self.one.expel(self.former)
        until(lambda: self.last._session.handle.roster is None)

    def unmute(self) -> None:
        """Let the next incarnation join."""
        self._monkeypatch.undo()


@contextmanager
def trio(monkeypatch: pytest.MonkeyPatch, **knobs: object) -> Iterator[Trio]:
    """Open three members, and close them."""
    with ExitStack() as stack:
        yield Trio(stack, monkeypatch, **knobs)


def until(holds: Callable[[], bool]) -> None:
    """Wait until something holds."""
    wait_until(holds, "the members to get there", WITHIN_S)


SENDS: dict[str, Callable[[Any, bytes, Any], Any]] = {
    "send": lambda group, name, _: group.send(name),
    "without loopback": lambda group, name, _: group.send(name, loopback=False),
    "to one": lambda group, name, to: group.send(name, to),
    "to one, several": lambda group, name, to: group.send_many([name], to),
    "several": lambda group, name, _: group.send_many([name]),
    "with a header": lambda group, name, _: group.send(name, headers={"kind": b"y"}),
    "with a timeout": lambda group, name, _: group.send(name, timeout=WITHIN_S),
    "acknowledged": lambda group, name, _: group.send(name, mode="acknowledged"),
    "out-of-band": lambda group, name, _: group.send(name, mode="out-of-band"),
}
"""Every way to send a message; each sends its name."""


def test_sends_between_two_incarnations_wait_for_the_next(monkeypatch: pytest.MonkeyPatch) -> None:
    with trio(monkeypatch) as group:
        group.expel()
        raised: dict[str, BaseException] = {}

        def send(how: str) -> None:
            try:
                SENDS[how](group.last, how.encode(), group.one.me)
            except BaseException as error:  # noqa: BLE001 - the test reports it
                raised[how] = error

        sending = [threading.Thread(target=send, args=[how], daemon=True) for how in SENDS]
        for thread in sending:
            thread.start()
        until(lambda: waiting_sends(group.last) == len(SENDS) or bool(raised))
        assert not raised
        group.unmute()
        for thread in sending:
            thread.join(WITHIN_S)
            assert not thread.is_alive()
        assert not raised
        got = [group.one.receive(WITHIN_S) for _ in SENDS]
        assert {message.payload.decode() for message in got if message} == set(SENDS)
        assert {message.sender for message in got if message} == {group.last.me}
        assert group.last.me != group.former


def test_sends_of_a_coroutine_wait_for_the_next_incarnation_too(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def story() -> None:
        chosen = options(free_ports(3), **FASTER)
        late = {**chosen, "config": {**chosen["config"], "found_after": "60s"}}
        async with (
            gapless.join("g", **chosen) as one,
            gapless.join("g", **chosen) as two,
            gapless.join("g", **late) as last,
        ):
            for group in (one, two, last):
                await group.wait_for_members(3, WITHIN_S)
            former = last.me
            assert former is not None
            mute(last, monkeypatch)
            await one.expel(former)
            await asyncio.to_thread(until, lambda: last._session.handle.roster is None)
            with pytest.raises(TimedOutError, match="0 of 2 members"):
                await last.wait_for_members(2, 0.01)
            sends = {
                how: asyncio.ensure_future(send(last, how.encode(), one.me))
                for how, send in SENDS.items()
            }
            await asyncio.to_thread(
                until,
                lambda: (
                    waiting_sends(last) == len(SENDS) or any(sent.done() for sent in sends.values())
                ),
            )
            assert not any(sent.done() for sent in sends.values())
            monkeypatch.undo()
            await asyncio.gather(*sends.values())
            got = [await one.receive(WITHIN_S) for _ in SENDS]
            assert {message.payload.decode() for message in got if message} == set(SENDS)
            assert {message.sender for message in got if message} == {last.me}
            assert last.me != former

    run(story())


def test_a_closely_following_message_waits_too(monkeypatch: pytest.MonkeyPatch) -> None:
    """A message right after another takes the short way of a bundle."""
    with trio(monkeypatch) as group:
        group.last.send(b"before")
        group.expel()
        sending = threading.Thread(
            target=lambda: [group.last.send(b"%d" % number) for number in range(3)], daemon=True
        )
        sending.start()
        until(lambda: waiting_sends(group.last) > 0)
        group.unmute()
        sending.join(WITHIN_S)
        assert not sending.is_alive()
        got: list[bytes] = []
        while len(got) < 3:
            message = group.one.receive(WITHIN_S)
            assert message is not None
            if message.sender != group.former:
                got.append(message.payload)
        assert got == [b"0", b"1", b"2"]


def test_nothing_is_answered_from_the_former_incarnation(monkeypatch: pytest.MonkeyPatch) -> None:
    """A send that may not wait finds no room, and members of the former view are not counted."""
    with trio(monkeypatch) as group:
        group.expel()
        assert group.last.try_send(b"x") is None
        with pytest.raises(TimedOutError, match="0 of 2 members"):
            group.last.wait_for_members(2, timeout=0.01)
        group.unmute()
        group.last.wait_for_members(3, timeout=WITHIN_S)
        assert group.last.me != group.former


def test_a_member_expelled_again_and_again_comes_back_each_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # The group keeps a member that is expelled twice in a row out for four times suspect_after.
    with trio(monkeypatch, suspect_after="100ms", heartbeat_interval="20ms") as group:
        for number in range(3):
            former = group.last.me
            assert former is not None
            until(lambda former=former: former in (group.one.view or ()))  # type: ignore[misc]
            group.one.expel(former)
            group.last.send(b"%d" % number)
            until(lambda former=former: group.last.me != former)  # type: ignore[misc]
        assert group.last.snapshot().health.incarnations >= 4
