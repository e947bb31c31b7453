"""The only interface of a network goes down for a moment while a member sends."""

import json
import logging
import subprocess
from functools import partial

from gapless.runtime.send_requests import SendRequest
from tests.support.handles import PATIENCE_S, gathering

logging.disable()
run = partial(subprocess.run, shell=True, check=True, capture_output=True)
with gathering(2, "udp", knobs={"suspect_after": "10s"}) as (a, b):
    a.handle.submit(SendRequest.of([b"%d" % number for number in range(100)])).result(PATIENCE_S)
    b.until_messages(100)
    run("ip addr del 127.0.0.1/8 dev lo; ip link set lo down; ip route flush table local")
    a.handle.submit(SendRequest.of([b"%d" % number for number in range(100, 200)])).result(
        PATIENCE_S
    )
    a.until(lambda: a.handle.transport.problems.counters["send.ENETUNREACH"] > 1)
    run("ip addr add 127.0.0.1/8 dev lo; ip link set lo up")
    a.handle.submit(SendRequest.of([b"%d" % number for number in range(200, 300)])).result(
        PATIENCE_S
    )
    b.until_messages(300)
    print(
        json.dumps(
            {
                "problems": sorted(a.handle.transport.problems.counters),
                "messages": len(b.messages),
                "in_order": b.messages == [b"%d" % number for number in range(300)],
                "views": len({view.id for view in b.views if len(view.members) == 2}),
            }
        )
    )
