"""A member that sends numbered messages, in a process that collectors.py starts.

It says ``in ADDRESS``, waits for a line, sends, says ``sent N`` (so many have a number) and ``acked
N`` (so many are delivered by all) as it goes, then ``done``, and leaves at the next line.
"""

from __future__ import annotations

import json
import queue
import sys
import threading
from typing import Any

from gapless import blocking

MOST_WAITING = 30
"""So many acknowledged sends are on their way at the same time."""


def say(*words: object) -> None:
    sys.stdout.write(" ".join(map(str, words)) + "\n")  # in one piece, for two threads speak
    sys.stdout.flush()


def confirm(line: queue.Queue[tuple[int, blocking.Receipt] | None]) -> None:
    """Print the last seqno up to which everything is delivered, in order."""
    while (entry := line.get()) is not None:
        upto, sent = entry
        sent.delivered(timeout=120)
        say("acked", upto)


def main(told: dict[str, Any]) -> None:
    padding = b"." * told["padding"]
    number, count, batch = told["number"], told["count"], told["batch"]
    waiting: queue.Queue[tuple[int, blocking.Receipt] | None] = queue.Queue(MOST_WAITING)
    confirming = threading.Thread(target=confirm, args=(waiting,))
    with blocking.join(told["group"], listen=False, **told["join"]) as group:
        for name in told["collectors"]:
            group.wait_for_member(name, timeout=60)
        say("in", group.me)
        sys.stdin.readline()
        confirming.start()
        for at in range(0, count, batch):
            upto = min(at + batch, count)
            messages = [b"%d %d " % (number, index) + padding for index in range(at, upto)]
            last = upto == count  # so that the end is known to have arrived
            sent = group.send_many(messages, mode="acknowledged" if last else told["mode"])
            if last or told["mode"] == "acknowledged":
                waiting.put((upto, sent))
            say("sent", upto)
        waiting.put(None)
        confirming.join()
        say("done")
        sys.stdin.readline()


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
