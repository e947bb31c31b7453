"""A process with a member forks: the child gets an error and joins itself, the parent goes on."""

import json
import os
import threading
import warnings
from collections.abc import Callable
from typing import Any

from gapless.config import Config
from gapless.errors import ClosedError
from gapless.runtime.handle import MemberHandle
from gapless.runtime.send_requests import SendRequest
from gapless.transport import InProcessNetwork
from tests.support.companions import QUICK
from tests.support.handles import Guest

warnings.simplefilter("ignore")  # about threads and fork, which is what this is about


def answer(use: Callable[[], Any]) -> str:
    try:
        use()
    except ClosedError as error:
        return str(error)
    return "no error"


def member() -> Guest:
    guest = Guest(MemberHandle("forked", InProcessNetwork().open(), Config.make(**QUICK)))
    guest.until_view(1)
    return guest


def child(guest: Guest, pipe: int) -> None:
    handle = guest.handle
    answers = {
        "send": answer(lambda: handle.submit(SendRequest.of([b"x"]))),
        "close": answer(handle.close),
    }
    mine = member()
    mine.handle.submit(SendRequest.of([b"from the child"]))
    mine.until_messages(1)
    threads = [thread.name for thread in threading.enumerate()].count("gapless")
    mine.handle.close()
    own = [message.decode() for message in mine.messages]
    os.write(pipe, json.dumps({**answers, "own": own, "threads": threads}).encode())


def main() -> None:
    guest = member()
    guest.handle.submit(SendRequest.of([b"before"]))
    reading, writing = os.pipe()
    if not os.fork():
        child(guest, writing)
        os._exit(0)
    os.close(writing)
    with os.fdopen(reading) as pipe:
        answers = json.load(pipe)
    os.wait()
    guest.handle.submit(SendRequest.of([b"after"]))
    guest.until_messages(2)
    guest.handle.close()
    print(
        json.dumps({"child": answers, "parent": [message.decode() for message in guest.messages]})
    )


main()
