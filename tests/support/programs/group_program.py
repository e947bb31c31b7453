"""Programs that tests run as processes: ``python group_program.py NAME '{"ports": …}'``.

Each says a line when it has come to a point that the test waits for.
"""

import asyncio
import gc
import json
import os
import sys
import warnings
from typing import Any

import gapless
from gapless import blocking
from gapless.errors import ClosedError
from tests.support.real_groups import options


def say(*words: object) -> None:
    print(*words, flush=True)


async def reads(ports: list[int], **_: Any) -> None:
    """Read until the end of the world, or Ctrl-C."""
    async with gapless.join("tests", **options(ports)) as group:
        say("in", len(group.view.members if group.view else ()))
        async for message in group:
            say("got", message.payload.decode())


def reads_in_a_thread(ports: list[int], **_: Any) -> None:
    """The same for threads."""
    with blocking.join("tests", **options(ports)) as group:
        say("in", len(group.view.members if group.view else ()))
        for message in group:
            say("got", message.payload.decode())


def waits_to_send(ports: list[int], **_: Any) -> None:
    """Be stopped in the middle of a send."""
    knobs = {"capacity": 4, "unread_limit": 4}
    with blocking.join("tests", **options(ports, **knobs)) as group:
        say("in", len(group.view.members if group.view else ()))
        group.send_many([b"x"] * 1000)


async def answers(ports: list[int], **_: Any) -> None:
    """Answer requests: in reverse, or never, or with an error."""
    async with gapless.join("tests", **options(ports)) as group:
        say("in", len(group.view.members if group.view else ()))

        @group.serve
        async def answer(request: gapless.Request) -> bytes:
            say("asked", request.payload.decode())
            if request.payload == b"never":
                await asyncio.Event().wait()
            if request.payload == b"wrong":
                raise ValueError("no such order")
            return request.payload[::-1]

        async for message in group:
            say("got", message.payload.decode())


def forks(ports: list[int], **_: Any) -> None:
    """Use a group in a child that has no part in it, and then in the parent."""
    with blocking.join("tests", **options(ports)) as group:
        group.receive_event(30)  # the view: the child finds nothing to read, and must not wait
        child = os.fork()
        if child == 0:
            for use in (
                lambda: group.send(b"x"),
                lambda: group.receive(5),
                lambda: group.receive_event(5),
                lambda: group.receive_batch(5),
                group.snapshot,
                group.leave,
            ):
                try:
                    use()
                except ClosedError as error:
                    if "belongs to the parent process; join again after a fork" not in str(error):
                        os._exit(4)
                else:
                    os._exit(3)
            group.close()
            own = blocking.join("tests", **options(ports))
            with own:
                own.wait_for_members(2, 30)
                own.send(b"from the child", mode="acknowledged").delivered(30)
            os._exit(0)
        message = group.receive(30)
        assert message is not None
        assert message.payload == b"from the child"
        say("child ended with", os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
        group.send(b"x", mode="acknowledged").delivered(10)


def forgets(ports: list[int], **_: Any) -> None:
    """Drop the last reference to a group without closing it."""
    group = blocking.join("tests", **options(ports)).open()
    group.wait_for_members(2, 30)
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        del group
        gc.collect()
    say("warned", [warning.category.__name__ for warning in found])
    sys.stdin.readline()


def blocks(ports: list[int], **_: Any) -> None:
    """Join, and leave by the end of the program."""
    group = blocking.join("tests", **options(ports)).open()
    group.wait_for_members(2, 30)
    say("in")


def main(name: str, given: str) -> None:
    program = globals()[name](**json.loads(given))
    if asyncio.iscoroutine(program):
        asyncio.run(program)


if __name__ == "__main__":
    main(*sys.argv[1:])
