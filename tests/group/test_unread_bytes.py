"""Large messages that the application does not read: their sender waits, and goes on later."""

from __future__ import annotations

import threading

from gapless import blocking
from gapless.transport import InProcessNetwork

LARGE = 200_000
COUNT = 40
SETTINGS = {"unread_bytes": "1MiB", "window_bytes": "256KiB", "found_after": "100ms"}


def test_a_reader_that_was_full_of_large_messages_gets_the_rest_when_it_reads() -> None:
    """Consumption is reported although few messages were consumed: the bytes count."""
    network = InProcessNetwork()
    with (
        blocking.join("x", transport=network.open(), config=SETTINGS) as a,
        blocking.join("x", transport=network.open(), config=SETTINGS) as b,
    ):
        a.wait_for_members(2, timeout=20)

        def send_all() -> None:
            for number in range(COUNT):
                a.send(bytes([number]) * LARGE, loopback=False)

        sender = threading.Thread(target=send_all, daemon=True)
        sender.start()
        found = [message.payload for _ in range(COUNT) if (message := b.receive(timeout=20))]
        sender.join(20)
        assert found == [bytes([number]) * LARGE for number in range(COUNT)]
