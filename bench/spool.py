"""The speed of writing and reading a spool, beside plain files on the same disk in the same run.

Appending: runs of many messages (60 KB) and runs of one small message (100 B), committed a megabyte
at a time, with and without waiting for the disk. Beside each: the same bytes written to a plain
file with as many calls, each followed by fdatasync where the spool waits. Both are given turns, and
the median of the rounds counts.

Reading: all records of the spool that was written, with every checksum looked at, beside reading
the same files.

With ``--encrypted``: the same runs to a spool with keys and to a spool without keys, by turns, read
as records and in columns, as Spark does. Ratios are those of the medians, plain to encrypted.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import shutil
import sys
import tempfile
import time
from pathlib import Path
from statistics import median
from typing import Any

from gapless.identity import Address
from gapless.keys.keyring import Keyring
from gapless.protocol.ready import Delivery
from gapless.run import Run
from gapless.spool import SpoolKeys, SpoolLimits, SpoolReader, SpoolWriter
from gapless.spool.columnar import scan
from gapless.spool.format import PREAMBLE_BYTES

ORIGIN = Address(0xA1, 1)
COMMIT_BYTES = 1024 * 1024
SHAPES = {
    "60 KB runs of 1 KB": (60, 1000),
    "60 KB runs of 100 B": (600, 100),
    "runs of one 100 B message": (1, 100),
}


def deliveries(messages: int, size_bytes: int, total_bytes: int) -> list[Delivery]:
    payload = os.urandom(size_bytes)
    count = max(1, total_bytes // (messages * size_bytes))
    runs = [Run.of(ORIGIN, 1 + at * messages, [payload] * messages) for at in range(count)]
    return [Delivery(ORIGIN, run.first, run.last, run) for run in runs]


def spooled(
    root: Path, given: list[Delivery], *, sync: bool, keys: SpoolKeys | None = None
) -> tuple[float, float]:
    """Seconds and CPU seconds of all commits."""
    limits = SpoolLimits(max_bytes=0)
    with SpoolWriter.open(root, group="bench", limits=limits, sync=sync, keys=keys) as spool:
        started_s, cpu_s = time.perf_counter(), time.process_time()
        for delivery in given:
            spool.append(delivery)
            if spool.pending_bytes >= COMMIT_BYTES:
                spool.commit()
        spool.commit()
        return time.perf_counter() - started_s, time.process_time() - cpu_s


def plain(path: Path, size_bytes: int, *, sync: bool) -> float:
    block = os.urandom(COMMIT_BYTES)
    with path.open("wb", buffering=0) as file:
        started_s = time.perf_counter()
        for at in range(0, size_bytes, COMMIT_BYTES):
            file.write(memoryview(block)[: size_bytes - at])
            if sync:
                os.fdatasync(file.fileno())
        return time.perf_counter() - started_s


def read(root: Path, keys: SpoolKeys | None = None) -> tuple[float, float, int]:
    """Seconds until the slices are known, seconds to read the slices, and payload bytes."""
    started_s = time.perf_counter()
    view = SpoolReader(root, keys=keys)
    slices = view.slices({}, view.high())
    known_s = time.perf_counter() - started_s
    started_s = time.perf_counter()
    size_bytes = sum(len(record.payload) for record in view.records(slices))
    return known_s, time.perf_counter() - started_s, size_bytes


def read_plain(root: Path) -> float:
    started_s = time.perf_counter()
    for path in sorted((root / "segments").glob("*.run")):
        with path.open("rb", buffering=0) as file:
            while file.read(4 * COMMIT_BYTES):
                pass
    return time.perf_counter() - started_s


def measure(folder: Path, name: str, total_bytes: int, rounds: int) -> dict[str, Any]:
    messages, size_bytes = SHAPES[name]
    given = deliveries(messages, size_bytes, total_bytes if messages > 1 else total_bytes // 8)
    payload_mb = len(given) * messages * size_bytes / 1e6
    root, beside = folder / "spool", folder / "plain"
    figure: dict[str, Any] = {"shape": name, "payload_mb": round(payload_mb, 1), "runs": len(given)}
    for sync in (False, True):
        times: dict[str, list[float]] = {"spool": [], "plain": [], "cpu": []}
        stored_bytes = 0
        for _ in range(rounds):
            shutil.rmtree(root, ignore_errors=True)
            taken_s, cpu_s = spooled(root, given, sync=sync)
            times["spool"].append(taken_s)
            times["cpu"].append(cpu_s)
            stored_bytes = sum(path.stat().st_size for path in (root / "segments").glob("*.run"))
            times["plain"].append(plain(beside, stored_bytes, sync=sync))
        kind = "fdatasync" if sync else "no_sync"
        spool_s, plain_s = median(times["spool"]), median(times["plain"])
        figure[f"append_{kind}_mb_s"] = round(payload_mb / spool_s, 1)
        figure[f"plain_{kind}_mb_s"] = round(stored_bytes / 1e6 / plain_s, 1)
        figure[f"append_{kind}_of_plain"] = round(plain_s / spool_s, 3)
        figure[f"append_{kind}_cpu_us_per_run"] = round(min(times["cpu"]) / len(given) * 1e6, 2)
    # Sealed, so that the index comes from its file, as for all but the newest segment.
    with SpoolWriter.open(
        root, group="bench", limits=SpoolLimits(max_bytes=0, segment_age_ns=1)
    ) as spool:
        spool.trim()
    known_s, read_s, found_bytes = min(read(root) for _ in range(rounds))
    assert found_bytes == round(payload_mb * 1e6)
    figure["index_ms"] = round(known_s * 1e3, 2)
    figure["read_mb_s"] = round(payload_mb / read_s, 1)
    figure["read_rows_s"] = round(len(given) * messages / read_s)
    figure["read_of_plain"] = round(min(read_plain(root) for _ in range(rounds)) / read_s, 3)
    return figure


def read_columns(root: Path, keys: SpoolKeys | None) -> tuple[float, int]:
    """Seconds to read all segments in columns, and payload bytes."""
    view = SpoolReader(root, keys=keys)
    segments = view.segments()
    wanted: dict[tuple[int, int], tuple[int, int, int]] = {ORIGIN: (0, 0, view.high()[str(ORIGIN)])}
    started_s = time.perf_counter()
    size_bytes = 0
    for index in segments:
        place = (root, view.info.spool_id, index.number, PREAMBLE_BYTES, index.end)
        for chunk in scan(*place, wanted, keys, encrypted=index.is_encrypted):
            size_bytes += len(chunk.payload)
    return time.perf_counter() - started_s, size_bytes


def compare_encrypted(folder: Path, name: str, total_bytes: int, rounds: int) -> dict[str, Any]:
    messages, size_bytes = SHAPES[name]
    given = deliveries(messages, size_bytes, total_bytes if messages > 1 else total_bytes // 8)
    payload_bytes = len(given) * messages * size_bytes
    keys = SpoolKeys(Keyring.new(cipher="aes-256-gcm"))
    kinds: dict[str, SpoolKeys | None] = {"plain": None, "encrypted": keys}
    times: dict[str, list[float]] = {}
    for _ in range(rounds):
        for kind, chosen in kinds.items():
            root = folder / kind
            shutil.rmtree(root, ignore_errors=True)
            synced_s, _ = spooled(root, given, sync=True, keys=chosen)
            shutil.rmtree(root)
            _, cpu_s = spooled(root, given, sync=False, keys=chosen)
            _, read_s, found_bytes = read(root, chosen)
            columns_s, column_bytes = read_columns(root, chosen)
            assert found_bytes == column_bytes == payload_bytes
            taken = {"fdatasync": synced_s, "cpu": cpu_s, "read": read_s, "columns": columns_s}
            for what, seconds in taken.items():
                times.setdefault(f"{what} {kind}", []).append(seconds)
    payload_mb = payload_bytes / 1e6
    figure: dict[str, Any] = {"shape": name, "payload_mb": round(payload_mb, 1), "runs": len(given)}
    for what in ("fdatasync", "cpu", "read", "columns"):
        plain_s, encrypted_s = (median(times[f"{what} {kind}"]) for kind in kinds)
        for kind, seconds in (("plain", plain_s), ("encrypted", encrypted_s)):
            if what == "cpu":
                figure[f"append_cpu_us_per_run_{kind}"] = round(seconds / len(given) * 1e6, 2)
            else:
                figure[f"{what}_mb_s_{kind}"] = round(payload_mb / seconds, 1)
        figure[f"{what}_ratio"] = round(plain_s / encrypted_s, 3)
    return figure


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument("--mb", type=int, default=200, help="payload of each cell")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--encrypted", action="store_true", help="encrypted beside plain spools")
    parser.add_argument("--folder", type=Path, help="where to write; a temporary folder by default")
    options = parser.parse_args()
    if options.mb < 1 or options.rounds < 1:
        parser.error("--mb and --rounds are at least 1")
    figures = []
    for name in SHAPES:
        folder = Path(tempfile.mkdtemp(prefix="gapless-bench-spool-", dir=options.folder))
        try:
            cell = compare_encrypted if options.encrypted else measure
            figures.append(cell(folder, name, options.mb * 1_000_000, options.rounds))
        finally:
            shutil.rmtree(folder)
        if not options.json:
            for key, value in figures[-1].items():
                print(f"{key:28} {value}")
            print()
    if options.json:
        machine = {
            "python": platform.python_version(),
            "cpus": os.cpu_count(),
            "system": platform.platform(),
        }
        json.dump(
            {"machine": machine, "commit_bytes": COMMIT_BYTES, "figures": figures}, sys.stdout
        )
        print()


if __name__ == "__main__":
    main()
