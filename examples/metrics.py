"""The figures of a group: for a person, for Prometheus, over HTTP."""

import os
from urllib.request import urlopen

from gapless import blocking
from gapless.metrics.exporters import MetricsEndpoint
from gapless.metrics.prometheus import prometheus

GROUP = f"metrics-{os.getpid()}"

with blocking.join(GROUP) as one, blocking.join(GROUP) as other:
    one.wait_for_members(2, timeout=10)
    for number in range(100):
        one.send(b"message %d" % number)
    for _ in range(100):
        next(iter(other))
    look = other.snapshot()
    peer = look.peers[0]
    print(
        f"{look.me} is in view {look.view}; "
        f"it has delivered {peer.delivered} messages of {peer.member}"
    )
    one_of_them = next(
        line
        for line in prometheus(look).splitlines()
        if line.startswith("gapless_messages_received_total")
    )
    print(one_of_them)
    with MetricsEndpoint(lambda: [one.snapshot(), other.snapshot()], port=0) as endpoint:
        address = f"http://127.0.0.1:{endpoint.port}/metrics"
        with urlopen(address) as page:
            lines = page.read().decode().splitlines()
        print(f"{address} has {sum(not line.startswith('#') for line in lines)} figures of both")
