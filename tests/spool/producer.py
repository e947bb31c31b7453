"""A member that sends numbered messages, as a process of its own; collecting.py starts it and says what it does.

It says ``in ADDRESS``, waits for a line, sends, says ``sent N`` (so many have a number) and ``acked N`` (so many are
delivered by all) as it goes, then ``done``, and leaves at the next line.
"""

from __future__ import annotations

import json
import sys
import time
from typing import Any

from gapless import blocking


def say(*words: object) -> None:
    print(*words, flush=True)


def main(told: dict[str, Any]) -> None:
    padding = b"." * told["padding"]
    number = told["number"]
    with blocking.join(told["group"], listen=False, **told["join"]) as group:
        for name in told["collectors"]:
            group.wait_for(name, timeout=60)
        say("in", group.me)
        sys.stdin.readline()
        at, count, batch = 0, told["count"], told["batch"]
        while at < count:
            messages = [b"%d %d " % (number, index) + padding for index in range(at, min(at + batch, count))]
            sent = group.send_many(messages, mode=told["mode"])
            at += len(messages)
            if told["mode"] == "acknowledged":
                sent.delivered(timeout=120)
                say("acked", at)
            else:
                say("sent", at)
            if told["pause_s"]:
                time.sleep(told["pause_s"])
        if told["mode"] != "acknowledged" and told["confirm"]:
            group.send(b"%d %d " % (number, count), mode="acknowledged").delivered(timeout=120)
            say("acked", count + 1)
        say("done")
        sys.stdin.readline()


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
