"""A process that announces itself, waits until it sees so many others, and says what it saw.

    python announcer.py TEXT NODE OTHERS

It prints one line of JSON, and leaves when its standard input ends.
"""

import json
import sys
import time

from gapless.discovery import Discovery
from gapless.identity import Address, RosterEntry
from gapless.locator import Locator


def main(text: str, node: int, others: int) -> None:
    with Discovery.parse(text, group="orders") as found:
        found.announce(
            RosterEntry(Address(node, 1), "", Locator.of("127.0.0.1", 7000 + node).encode())
        )
        deadline_s = time.monotonic() + 30
        while len(found.locate(0)) < others and time.monotonic() < deadline_s:
            found.wait(5)
        seen = sorted(locator.port - 7000 for locator in found.locate(0))
        print(json.dumps({"seen": seen, "problems": found.problems()}), flush=True)
        sys.stdin.read()


main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))
