"""Count the Python calls, and the files of the package, on the way of one isolated message.

Two processes on loopback form a group over UDP: the first sends a message at intervals, the second
reads. ``sys.setprofile`` counts the entered functions of the package, in all threads of each
process:

- to send: from the call of ``Group.send`` to its return;
- to receive: from the call of ``Group.receive`` in a quiet group to the return of the message.

Acknowledgements and heartbeats between the messages are not counted. The figure is the median over
the messages. ``python tools/message_path.py`` prints a table, ``--json`` the figures, ``--calls
send`` the functions in the order of their first call.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

import gapless
import gapless.blocking

if TYPE_CHECKING:
    from types import CodeType, FrameType

APIS = ("threads", "asyncio")
SIDES = ("send", "receive")
MESSAGES = 30
"""How many messages are sent; the first third is not counted."""
PAUSE_S = 0.03
"""How long the group is quiet between two messages: longer than an ack is delayed."""
READ_AFTER_S = 0.015
"""How long the reader waits before the next read, so that the ack is sent by then."""
JOIN_TIMEOUT_S = 30.0

_PACKAGE = str(Path(gapless.__file__).parent)
_PAYLOAD = bytes(100)


class CallCounter:
    """The functions of the package entered by this process while counting is on."""

    def __init__(self) -> None:
        self._calls: list[CodeType] = []
        self._is_counting = False
        self.messages: list[list[CodeType]] = []

    def hook(self, frame: FrameType, event: str, _: object) -> None:
        """Count a call, as the hook of ``sys.setprofile``."""
        if event == "call" and self._is_counting:
            self._calls.append(frame.f_code)

    def start(self) -> None:
        """Begin to count for a message."""
        self._calls = []
        self._is_counting = True

    def stop(self) -> None:
        """Store the calls of a message within the package."""
        self._is_counting = False
        self.messages.append(
            [code for code in self._calls if code.co_filename.startswith(_PACKAGE)]
        )

    def figures(self) -> dict[str, Any]:
        """Return the figures of the median message."""
        counted = sorted(self.messages[len(self.messages) // 3 :], key=len)
        median = counted[len(counted) // 2]
        names = [
            f"{Path(code.co_filename).relative_to(_PACKAGE)} {code.co_name}" for code in median
        ]
        return {
            "calls": len(median),
            "files": len({code.co_filename for code in median}),
            "functions": Counter(names),
        }


def measure(api: str = "threads") -> dict[str, dict[str, Any]]:
    """Return ``calls``, ``files`` and ``functions`` for each of ``send`` and ``receive``."""
    with tempfile.TemporaryDirectory() as directory:
        command = [sys.executable, str(Path(__file__).resolve()), "--run", api, directory]
        sides = {
            side: subprocess.Popen([*command, side], stdout=subprocess.PIPE, text=True)  # noqa: S603
            for side in SIDES
        }
        outputs = {side: process.communicate()[0] for side, process in sides.items()}
    for side, process in sides.items():
        if process.returncode:
            raise RuntimeError(f"the process of {side} ended with status {process.returncode}")
    return {side: json.loads(output) for side, output in outputs.items()}


def _options(directory: str) -> dict[str, Any]:
    return {
        "discover": f"dir://{directory}",
        "transport": "mesh",
        "host": "127.0.0.1",
        "insecure": True,  # as the figures of version 0.1, which had no keys
        "timeout": JOIN_TIMEOUT_S,
    }


def _run_threads(directory: str, side: str, counter: CallCounter) -> None:
    with gapless.blocking.join("message-path", **_options(directory)) as group:
        group.wait_for_members(2, JOIN_TIMEOUT_S)
        sys.setprofile(counter.hook)
        for _ in range(MESSAGES):
            time.sleep(PAUSE_S if side == "send" else READ_AFTER_S)
            counter.start()
            if side == "send":
                group.send(_PAYLOAD)
            else:
                group.receive()
            counter.stop()
        sys.setprofile(None)


async def _run_asyncio(directory: str, side: str, counter: CallCounter) -> None:
    async with gapless.join("message-path", **_options(directory)) as group:
        await group.wait_for_members(2, JOIN_TIMEOUT_S)
        sys.setprofile(counter.hook)
        for _ in range(MESSAGES):
            await asyncio.sleep(PAUSE_S if side == "send" else READ_AFTER_S)
            counter.start()
            if side == "send":
                await group.send(_PAYLOAD)
            else:
                await group.receive()
            counter.stop()
        sys.setprofile(None)


def _run_side(api: str, directory: str, side: str) -> None:
    counter = CallCounter()
    threading.setprofile(counter.hook)  # before the protocol thread starts
    if api == "threads":
        _run_threads(directory, side, counter)
    else:
        asyncio.run(_run_asyncio(directory, side, counter))
    json.dump(counter.figures(), sys.stdout)


def main() -> None:
    """Print the figures of both APIs."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--json", action="store_true", help="print the figures as JSON")
    parser.add_argument(
        "--calls", choices=SIDES, help="list the functions of one side, with threads"
    )
    parser.add_argument(
        "--run", nargs=3, metavar=("API", "DIRECTORY", "SIDE"), help=argparse.SUPPRESS
    )
    chosen = parser.parse_args()
    if chosen.run:
        _run_side(*chosen.run)
    elif chosen.calls:
        for name, times in measure()[chosen.calls]["functions"].items():
            print(f"{times:4} {name}")
    else:
        found = {api: measure(api) for api in APIS}
        figures = {
            api: {
                side: {name: cost[name] for name in ("calls", "files")}
                for side, cost in sides.items()
            }
            for api, sides in found.items()
        }
        if chosen.json:
            print(json.dumps(figures))
            return
        print(f"{'API':10}{'side':10}{'calls':>8}{'files':>8}")
        for api, sides in figures.items():
            for side, cost in sides.items():
                print(f"{api:10}{side:10}{cost['calls']:8}{cost['files']:8}")


if __name__ == "__main__":
    main()
