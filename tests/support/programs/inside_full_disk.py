"""A member whose shared directory or file is on a full disk, then on one with room."""

import json
import sys
from pathlib import Path

from gapless.discovery import Discovery
from tests.support.announcements import at, texts


def main(scheme: str, share: Path) -> None:
    path = share if scheme == "dir" else share / "orders.json"
    found = Discovery.parse(
        f"{scheme}://{path}?refresh=1h&stale=3h, seeds://127.0.0.1:1", group="orders"
    )
    # An empty file needs no room, so the lock of a shared file can be there; what has content
    # cannot.
    filler = share / "filler"
    with filler.open("wb", buffering=0) as file:
        try:
            while True:
                file.write(bytes(4096))
        except OSError:
            pass
    found.announce(at("127.0.0.1:7001", 1))
    found.sources[0].wait(10)
    answer = {"found_while_full": texts(found.locate(0)), "problems_while_full": _once(found)}
    answer["left_over"] = sorted(
        entry.name for entry in share.iterdir() if entry.name.endswith(".tmp")
    )
    filler.unlink()
    found.sources[0].wait(10)
    other = Discovery.parse(f"{scheme}://{path}", group="orders")
    other.wait(10)
    print(
        json.dumps({**answer, "seen_later": texts(other.locate(0)), "problems_later": _once(found)})
    )


def _once(found: Discovery) -> list[tuple[str, str, int, str]]:
    """Return the problems without their counts and file names."""
    return [
        (source, reason, 0, last.rpartition(": '")[0] or last)
        for source, reason, _, last in found.problems()
    ]


main(sys.argv[1], Path(sys.argv[2]))
