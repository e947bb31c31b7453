"""Programs that record a trace until they are killed, or their disk is full."""

import json
import logging
import resource
import sys
from typing import Any

from gapless import blocking
from gapless.config import Config
from gapless.runtime.handle import MemberHandle
from gapless.runtime.send_requests import SendRequest
from gapless.trace import Recorder
from gapless.transport import InProcessNetwork
from tests.support.companions import QUICK
from tests.support.handles import Guest
from tests.support.real_groups import options as ways


def sender(options: dict[str, Any]) -> None:
    """Send until the process is killed."""
    with blocking.join(
        "tests", **ways(options["ports"]), trace=options["folder"], listen=False
    ) as group:
        group.wait_for_members(2, 60)
        number = 0
        while True:
            count = number % 7 + 1
            group.send_many([b"%d" % at * (1 + at % 300) for at in range(number, number + count)])
            number += count


def full_disk(options: dict[str, Any]) -> None:
    """Go on after the disk is full; print deliveries, events and log lines."""
    output: list[str] = []
    handler = logging.Handler()
    handler.emit = lambda record: output.append(record.getMessage())  # type: ignore[method-assign]
    logging.getLogger("gapless").addHandler(handler)
    network = InProcessNetwork()
    recorders = [Recorder(options["folder"]), None]
    guests = [
        Guest(MemberHandle("g", network.open(), Config.make(**QUICK), trace=recorder))
        for recorder in recorders
    ]
    for guest in guests:
        guest.until_view(2)
    resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, 20_000))
    for number in range(200):
        guests[0].handle.submit(SendRequest.of([b"%d" % number])).result(60)
    for guest in guests:
        guest.until_messages(200)
    print(
        json.dumps({"told": guests[0].handle.event_counts.get("trace_stopped"), "logged": output}),
        flush=True,
    )
    for guest in guests:
        guest.handle.close(1.0)


if __name__ == "__main__":
    {"sender": sender, "full_disk": full_disk}[sys.argv[1]](json.loads(sys.argv[2]))
