"""A network with a small MTU and no route: what a transport is refused, by reason."""

import json
import logging

from gapless.identity import Address
from gapless.locator import Locator
from gapless.protocol.events import Located
from gapless.protocol.ready import Transmit
from gapless.transport import UdpMesh

logging.disable()
near, far = Address(1, 1), Address(2, 1)
mesh = UdpMesh("198.51.100.1", 0, receive_buffer_bytes=10_000)
mesh.book.on_events([Located(near, Locator.of("198.51.100.2", 7800).encode())])
mesh.book.on_events([Located(far, Locator.of("203.0.113.1", 7800).encode())])
mesh.send([Transmit(near, bytes(1000))] * 200)
mesh.send([Transmit(far, b"hello?")])
print(json.dumps(mesh.problems.counters))
