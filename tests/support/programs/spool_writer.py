"""A process that writes to a spool until it is killed, or until something fails; run by the tests.

It prints one line for each commit that has returned: ``committed N``. What fails is printed as
``error KIND message``.
"""

from __future__ import annotations

import os
import resource
import sys

from gapless.identity import Address
from gapless.protocol.ready import Delivery
from gapless.run import Run
from gapless.spool import SpoolError, SpoolLimits, SpoolWriter

A, B = Address(0xA1, 5), Address(0xB2, 7)


def run(origin: Address, first: int, last: int, size_bytes: int) -> Delivery:
    messages = [
        f"{origin}:{seqno}".encode().ljust(size_bytes, b".") for seqno in range(first, last + 1)
    ]
    return Delivery(origin, first, last, Run.of(origin, first, messages))


def say(line: str) -> None:
    os.write(1, line.encode() + b"\n")


def write(path: str, commits: int, size_bytes: int, segment_bytes: int) -> None:
    """Commit runs of ten messages of each of two streams."""
    limits = SpoolLimits(segment_bytes=segment_bytes, max_bytes=0)
    with SpoolWriter.open(path, group="orders", limits=limits) as spool:
        done = spool.marks.get(A, 0)
        while done < commits * 10:
            spool.append(run(A, done + 1, done + 10, size_bytes))
            spool.append(run(B, done + 1, done + 10, size_bytes))
            done += 10
            while True:
                try:
                    spool.commit()
                    break
                except SpoolError as error:
                    say(f"error {type(error).__name__} {error}")
                    if not sys.stdin.readline().strip():
                        return
                    resource.setrlimit(
                        resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY)
                    )
            say(f"committed {spool.marks[A]}")


if __name__ == "__main__":
    path, commits, size_bytes, segment_bytes, file_bytes = sys.argv[1], *map(int, sys.argv[2:])
    if file_bytes:
        resource.setrlimit(resource.RLIMIT_FSIZE, (file_bytes, resource.RLIM_INFINITY))
    write(path, commits, size_bytes, segment_bytes)
