"""Two members on two hosts: two network namespaces with one cable and without a default route.

It runs as root of a network of its own. Its argument are the options of ``join`` on both hosts as
JSON, it prints what each member found as JSON.
"""

import json
import logging
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import gapless.blocking
from gapless.keys.keyring import Keyring

HOSTS = "ab"


def member(number: int, options: dict[str, object]) -> None:
    logging.basicConfig(level="WARNING", stream=sys.stderr)
    start_s = time.monotonic()
    with gapless.blocking.join("hosts", timeout=20, **options) as group:  # type: ignore[arg-type]
        group.wait_for_members(2, timeout=20)
        met_s = time.monotonic() - start_s
        group.send(b"%d" % number)
        senders = {message.payload for _ in range(2) if (message := group.receive(timeout=20))}
        first_message_s = time.monotonic() - start_s
        print(
            json.dumps(
                {
                    "met_s": met_s,
                    "first_message_s": first_message_s,
                    "senders": len(senders),
                    "locator": str(group._session.handle.transport.locator),
                }
            ),
            flush=True,
        )
        sys.stdin.readline()  # leave when both have met


def main(options: str) -> None:
    processes = []
    keyring = Keyring.new()
    for number, (host, own) in enumerate(zip(HOSTS, json.loads(options), strict=True)):
        folder = tempfile.mkdtemp()  # two hosts share no folder
        keyring.create(Path(folder, "gapless", "keys.toml"))
        processes.append(
            subprocess.Popen(
                [
                    "ip",
                    "netns",
                    "exec",
                    host,
                    sys.executable,
                    __file__,
                    str(number),
                    json.dumps(own),
                ],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
                env={**os.environ, "TMPDIR": folder, "XDG_CONFIG_HOME": folder},
            )
        )
    lines = [process.stdout.readline() for process in processes if process.stdout is not None]
    logs = [process.communicate("\n", timeout=60)[1] for process in processes]
    assert all(lines), logs
    print(
        json.dumps(
            [{**json.loads(line), "log": log} for line, log in zip(lines, logs, strict=True)]
        )
    )


if __name__ == "__main__":
    if len(sys.argv) == 2:
        main(sys.argv[1])
    else:
        member(int(sys.argv[1]), json.loads(sys.argv[2]))
