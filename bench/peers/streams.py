"""Memory of a thousand streams in a process: ``python -m bench.peers.streams PEER``.

Gapless: 32 members of a process, in memory, each with a connection to each other, 992 in all, with
a message on each. pyzmq: as many pairs of PUSH and PULL over TCP, with a message on each. In both,
both ends of a stream are in the process.
"""

from __future__ import annotations

import gc
import subprocess
import sys
from pathlib import Path

from bench.groups import FailedError
from bench.peers.base import PATIENCE_S, memory_bytes
from gapless_lab.process import SOURCE_ROOT

MEMBERS = 32
STREAMS = MEMBERS * (MEMBERS - 1)


def measure(peer: str, python: Path) -> float:
    """Return kilobytes for each stream."""
    root = Path(__file__).resolve().parent.parent.parent
    done = subprocess.run(
        [str(python), "-m", "bench.peers.streams", peer],
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
        env={"PYTHONPATH": f"{root}:{SOURCE_ROOT}", "PATH": ""},
    )
    if done.returncode:
        raise FailedError(
            done.stderr.strip().splitlines()[-1] if done.stderr.strip() else "it said nothing"
        )
    return float(done.stdout)


def of_gapless() -> float:
    """Open connections between members of a process."""
    from gapless import blocking
    from gapless.transport import InProcessNetwork

    network = InProcessNetwork()
    config = {"found_after": "100ms", "join_interval": "50ms", "loopback": False}
    groups = [
        blocking.join("bench", transport=network.open(), config=config, node=at + 1)
        for at in range(MEMBERS)
    ]
    for group in groups:
        group.open()
    for group in groups:
        group.wait_for_members(MEMBERS, PATIENCE_S)
    gc.collect()
    before_bytes = memory_bytes()
    for group in groups:
        assert group.view is not None
        for member in group.view.members:
            if member != group.me:
                group.send(b"12345678", member)
    for group in groups:
        for _ in range(MEMBERS - 1):
            group.receive(PATIENCE_S)
    gc.collect()
    return (memory_bytes() - before_bytes) / STREAMS / 1000


def of_pyzmq() -> float:
    """Open pairs of sockets."""
    import zmq

    context = zmq.Context()
    context.set(zmq.MAX_SOCKETS, 4 * STREAMS)
    gc.collect()
    before_bytes = memory_bytes()
    pairs = []
    for _ in range(STREAMS):
        sender, receiver = context.socket(zmq.PUSH), context.socket(zmq.PULL)
        receiver.connect(f"tcp://127.0.0.1:{sender.bind_to_random_port('tcp://127.0.0.1')}")
        pairs.append((sender, receiver))
    for sender, _ in pairs:
        sender.send(b"12345678")
    for _, receiver in pairs:
        receiver.recv()
    gc.collect()
    return (memory_bytes() - before_bytes) / STREAMS / 1000


def main() -> None:
    """Measure a peer."""
    import os
    import resource

    limit = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (limit, limit))
    print({"gapless": of_gapless, "pyzmq": of_pyzmq}[sys.argv[1]](), flush=True)
    os._exit(0)


if __name__ == "__main__":
    main()
