"""A member that says how long its first message took: from the beginning of ``join``, in seconds.

The argument is the options of ``join`` as JSON; each line of standard input is a group to join.
"""

from __future__ import annotations

import json
import sys
import time

from gapless import blocking


def main() -> None:
    """Join each group, exchange a message with the one other member, and leave."""
    options = json.loads(sys.argv[1])
    print("ready")
    for line in sys.stdin:
        began_s = time.monotonic()
        with blocking.join(line.strip(), timeout=20, **options) as group:
            group.wait_for_members(2, timeout=20)
            group.send(b"hello", loopback=False)
            group.receive(timeout=20)
            took_s = time.monotonic() - began_s
        print(took_s)


main()
