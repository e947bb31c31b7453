"""The time and the memory of ``gapless verify``.

The benchmark generates a trace of N events: eight members send and receive, as in a recorded real
run. The trace is right by construction; with ``--plant``, the trace violates an invariant of each
kind. Then a separate process verifies the trace, with its memory (JVM and Python together) sampled.

    PYTHONPATH=src:. python bench/verify.py FOLDER --events 5000000
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from gapless.config import Config
from gapless.trace.incarnations import INCARNATIONS_FILE, TIME_OF_DAY, own_incarnation
from gapless.trace.parquet import arrow_schema, write_table
from gapless.trace.schema import EVENT_CODES, incarnation_id

MEMBERS = tuple(f"{node}.1" for node in range(1, 9))
RUN = 10
"""Messages in a run."""
ROUNDS = 4
"""Rounds, each with a run, between two acks."""
REACH = 1024
FILE_ROWS = 1_000_000
BEGIN_NS = 1_800_000_000_000_000_000
ROUND_NS = 1_000_000


class Shape:
    """The rows of a member in a block of rounds, as arrays: event, stream, round."""

    def __init__(self, me: int) -> None:
        self.rows: list[tuple[str, int, int, int, int, str]] = []
        self.step = 0
        others = [other for other in range(len(MEMBERS)) if other != me]
        behind = (me + 1) % len(MEMBERS)
        for turn in range(ROUNDS):
            self.add("SEND", me, turn=turn, new=True)
            self.add("TX", -1, turn=turn)
            self.add("STATE", me, turn=turn)
            self.add("DELIVER", me, turn=turn)
            if turn == 0:
                self.add("SEND_ASIDE", me, new=True)
                self.add("NAK_OUT", behind, peer=behind, new=True)
                self.add("NAK_IN", me, peer=(me - 1) % len(MEMBERS), new=True)
                self.add("REPAIR", me, peer=(me - 1) % len(MEMBERS))
            for other in others:
                self.add("STORE", other, peer=other, turn=turn, new=True)
                if turn == ROUNDS - 1:
                    self.add("ACK_OUT", other, peer=other, turn=turn)
                self.add("STATE", other, turn=turn)
                self.add("DELIVER", other, turn=turn)
                if turn == 0:
                    self.add("DELIVER", other, turn=turn, reason="out of band")
        for other in others:
            self.add("ACK_IN", me, peer=other, turn=ROUNDS - 1, new=True)
        self.add("PURGE", me, turn=ROUNDS - 1)
        self.add("STATE", me, turn=ROUNDS - 1, reason="purged")

    def add(
        self,
        event: str,
        origin: int,
        *,
        peer: int = -1,
        turn: int = 0,
        new: bool = False,
        reason: str = "",
    ) -> None:
        """Write a row; ``new`` for the first row of a step."""
        self.step += new
        self.rows.append((event, origin, peer, turn, self.step, reason))


def block_columns(me: int, shape: Shape, first_block: int, blocks: int) -> dict[str, Any]:
    """Return the columns of some blocks of a member."""
    ids = np.array([incarnation_id(name) for name in MEMBERS] + [0])
    event = np.array([row[0] for row in shape.rows])
    origin, peer, turn, step = (np.array([row[at] for row in shape.rows]) for at in (1, 2, 3, 4))
    reason = np.array([row[5] for row in shape.rows])
    block = np.arange(first_block, first_block + blocks)[:, None]
    is_a = {name: event == name for name in set(event)}
    aside = (reason == "out of band") | is_a["SEND_ASIDE"]
    number = block * ROUNDS + turn
    last = (number + 1) * RUN
    first = last - RUN + 1
    ranged = (
        is_a["SEND"]
        | is_a["DELIVER"]
        | is_a["STORE"]
        | is_a["NAK_OUT"]
        | is_a["NAK_IN"]
        | is_a["REPAIR"]
    )
    hashed = is_a["SEND"] | is_a["DELIVER"] | is_a["REPAIR"] | is_a["SEND_ASIDE"]
    acks = is_a["ACK_OUT"] | is_a["ACK_IN"] | is_a["PURGE"]
    state, purge, own = is_a["STATE"], is_a["PURGE"], origin == me
    low = np.where(own & (reason != "purged"), block * ROUNDS * RUN, last)
    seqno = np.where(
        aside, block + 1, np.where(ranged, first, np.where(purge, block * ROUNDS * RUN + 1, 0))
    )
    seqno_last = np.where(
        aside, block + 1, np.where(ranged | acks, last, np.where(is_a["TX"], 1, 0))
    )
    counted = (is_a["SEND"] | is_a["DELIVER"]) & ~aside
    k = np.where(counted, first - 1, np.where(is_a["STORE"], RUN, np.where(purge, ROUNDS * RUN, 0)))
    crc = (number * 2_654_435_761 + origin * 40_503 + aside * 77) % (1 << 32)
    rows = len(shape.rows)
    columns: dict[str, Any] = {
        "idx": block * rows + np.arange(rows),
        "step": block * (shape.step + 1) + step,
        "t_ns": BEGIN_NS + number * ROUND_NS + np.arange(rows) * 100,
        "event": np.broadcast_to(
            np.array([EVENT_CODES[name] for name in event], dtype=np.int8), number.shape
        ),
        "origin": np.broadcast_to(ids[origin], number.shape),
        "peer": np.broadcast_to(ids[peer], number.shape),
        "seqno": seqno,
        "seqno_last": seqno_last,
        "part": np.broadcast_to((is_a["DELIVER"] & ~own & ~aside).astype(np.int32), number.shape),
        "k": k,
        "size_bytes": np.where(ranged | is_a["TX"], RUN * 100, 0) + 0 * number,
        "hash": np.where(hashed, crc, 0),
        "hash_first": np.where(hashed, seqno, 0),
        "sent_ns": np.where(hashed, BEGIN_NS + number * ROUND_NS, 0),
        "low": np.where(state, low, 0),
        "delivered": np.where(state, last, 0),
        "high": np.where(state, last, 0),
        "reason": np.broadcast_to(np.where(reason == "purged", "", reason), number.shape),
    }
    return {name: np.ascontiguousarray(values).reshape(-1) for name, values in columns.items()}


def table(me: int, columns: dict[str, Any], view: int = 1) -> pa.Table:
    """Return a table of the trace; missing columns are 0 or empty."""
    count = len(columns["event"])
    filled = {"seed": 0, "member": incarnation_id(MEMBERS[me]), "view": view}
    arrays = []
    for field in arrow_schema():
        value = columns.get(
            field.name, filled.get(field.name, "" if field.type == pa.string() else 0)
        )
        if not isinstance(value, np.ndarray):
            value = np.full(count, value)
        arrays.append(pa.array(value, type=field.type))
    return pa.Table.from_arrays(arrays, schema=arrow_schema())


def rare(me: int, events: list[dict[str, Any]], idx: int, step: int, t_ns: int) -> pa.Table:
    """Return a table of a few rows; incarnations are given by their index."""
    ids = {name: incarnation_id(name) for name in MEMBERS}
    defaults = {"seed": 0, "member": ids[MEMBERS[me]], "view": 1, "step": step, "t_ns": t_ns}
    rows = []
    for at, event in enumerate(events):
        row = (
            {field.name: "" if field.type == pa.string() else 0 for field in arrow_schema()}
            | defaults
            | event
        )
        row |= {name: ids[row[name]] for name in ("origin", "peer") if row[name]}
        rows.append({**row, "idx": idx + at, "event": EVENT_CODES[event["event"]]})
    return pa.Table.from_pylist(rows, schema=arrow_schema())


def generate(folder: Path, events: int, *, plant: bool) -> int:
    """Write the trace; return the number of rows."""
    total = 0
    for me, name in enumerate(MEMBERS):
        place = folder / name
        place.mkdir(parents=True)
        shape = Shape(me)
        blocks = max(3, events // len(MEMBERS) // len(shape.rows))
        lines = [
            own_incarnation(
                0,
                one,
                Config(),
                {"reach": REACH},
                member=one,
                mode="full",
                every=1,
                clock=TIME_OF_DAY,
                stores=False,
            )
            for one in (name,)
        ]
        others = [
            json.dumps({"seed": 0, "life": incarnation_id(one), "name": one}) + "\n"
            for one in MEMBERS
            if one != name
        ]
        (place / INCARNATIONS_FILE).write_text(
            "".join([line.to_json_line() for line in lines] + others)
        )
        maker = MEMBERS[0]
        begin: list[dict[str, Any]] = [
            {"event": "BEGIN", "high": REACH, "view": 0},
            {"event": "VIEW", "seqno_last": 1},
        ]
        listed = " ".join(MEMBERS[:-1] if plant and me == 1 else MEMBERS)
        begin.append({"event": "MEMBERS", "origin": maker, "reason": listed})
        begin += [
            {"event": "START", "origin": one, "seqno": 1, "part": 1}
            for one in MEMBERS
            if one != name
        ]
        write_table(rare(me, begin, 0, 0, BEGIN_NS - 1), place / "00000.parquet")
        at_once = FILE_ROWS // len(shape.rows)
        written = len(begin)
        for number, first in enumerate(range(0, blocks, at_once), 1):
            columns = block_columns(me, shape, first, min(at_once, blocks - first))
            columns["idx"] += len(begin)
            columns["step"] += 1
            if plant and me == 2 and number == 1:
                break_promises(columns, me)
            if plant and me == 4 and first + at_once >= blocks:
                last = np.flatnonzero(
                    (columns["event"] == EVENT_CODES["DELIVER"]) & (columns["reason"] == "")
                )[-1]
                columns["event"][last] = EVENT_CODES["TIMER"]  # L1
            write_table(table(me, columns), place / f"{number:05d}.parquet")
            written += len(columns["event"])
        end_ns = BEGIN_NS + (blocks * ROUNDS + 1) * ROUND_NS
        rest: list[dict[str, Any]] = [{"event": "REST"}]
        if plant and me == 3:
            rest += [{"event": "REPAIR_ASIDE", "origin": name, "seqno": 1, "seqno_last": 1}]
            rest += [{"event": "TAIL_OUT", "origin": name, "t_ns": end_ns + 10**12}]
        rest.append({"event": "END", "t_ns": end_ns + 10**12})
        write_table(rare(me, rest, written, 10**12, end_ns), place / "99999.parquet")
        total += written + len(rest)
    return total


def break_promises(columns: dict[str, Any], me: int) -> None:
    """Violate an invariant of each kind, each in another block."""
    event, origin, reason = columns["event"], columns["origin"], columns["reason"]
    mine, other = incarnation_id(MEMBERS[me]), incarnation_id(MEMBERS[me + 2])
    rows = len(Shape(me).rows)
    found = np.arange(len(event))

    def place(block: int, name: str, of: int, why: str = "") -> int:
        """Return the first row of an event about an incarnation's stream in a block."""
        near = (
            (found >= block * rows)
            & (event == EVENT_CODES[name])
            & (origin == of)
            & (reason == why)
        )
        return int(np.flatnonzero(near)[0])

    columns["seqno"][place(2, "SEND", mine)] += 1  # S1
    again = place(4, "DELIVER", other)
    columns["seqno"][again] -= RUN  # S2, and S3 behind it
    columns["seqno_last"][again] -= RUN
    columns["hash"][place(6, "DELIVER", other)] += 1  # S4
    columns["seqno"][place(8, "DELIVER", other, "out of band")] -= 1  # S5
    columns["high"][place(10, "STATE", other)] += 10 * REACH  # S6, S7 and S14
    columns["seqno_last"][place(12, "ACK_OUT", other)] += 5  # S8
    columns["seqno_last"][place(14, "PURGE", mine)] += 5  # S9
    columns["hash"][place(16, "REPAIR", mine)] += 1  # S10
    columns["seqno_last"][place(18, "NAK_OUT", incarnation_id(MEMBERS[me + 1]))] += 10**9  # S11
    columns["k"][place(20, "STORE", other)] = 3  # S12
    waits = place(26, "TX", 0)
    event[waits], columns["seqno"][waits] = EVENT_CODES["BLOCK"], 77  # L2


EXPECTED = {*(f"S{number}" for number in range(1, 17) if number != 13), "L1", "L2", "L3", "L6"}
"""The invariants violated by ``--plant``. S13 and L4 are checked in simulated traces only."""


def measure(folder: Path) -> tuple[dict[str, Any], float, float, float]:
    """Verify in another process; return its output, seconds, CPU seconds and peak memory in GiB."""
    begin_s = time.perf_counter()
    command = [
        sys.executable,
        "-c",
        "import sys; from gapless.cli.app import run; sys.exit(run(sys.argv[1:]))",
    ]
    # A file: what it says is more than a pipe holds.
    answer = folder / "verdict.json"
    with (
        answer.open("wb") as out,
        subprocess.Popen([*command, "verify", str(folder), "--json"], stdout=out) as process,
    ):
        peak, cpu_s = 0, 0.0
        while process.poll() is None:
            size_bytes, spent_s = used(process.pid)
            peak, cpu_s = max(peak, size_bytes), max(cpu_s, spent_s)
            time.sleep(0.2)
    said = json.loads(answer.read_text())
    return said, time.perf_counter() - begin_s, cpu_s, peak / 2**30


def used(root: int) -> tuple[int, float]:
    """Return the resident memory and the CPU time of a process and its descendants."""
    parents, sizes, spent = {}, {}, {}
    page_bytes, ticks = os.sysconf("SC_PAGE_SIZE"), os.sysconf("SC_CLK_TCK")
    for entry in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = entry.read_text().rpartition(")")[2].split()
        except OSError:
            continue  # it has just ended
        one = int(entry.parent.name)
        parents[one], sizes[one] = int(fields[1]), int(fields[21]) * page_bytes
        spent[one] = (int(fields[11]) + int(fields[12])) / ticks
    tree = {root}
    while more := {one for one, parent in parents.items() if parent in tree} - tree:
        tree |= more
    return sum(sizes.get(one, 0) for one in tree), sum(spent.get(one, 0.0) for one in tree)


def main() -> None:
    """Generate, verify, print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--events", type=int, default=5_000_000)
    parser.add_argument("--plant", action="store_true")
    arguments = parser.parse_args()
    shutil.rmtree(arguments.folder, ignore_errors=True)
    begin_s = time.perf_counter()
    rows = generate(arguments.folder, arguments.events, plant=arguments.plant)
    made_s = time.perf_counter() - begin_s
    size = sum(file.stat().st_size for file in arguments.folder.rglob("*.parquet"))
    print(f"{rows:,} rows in {made_s:.0f} s, {size / rows:.1f} bytes a row", flush=True)
    said, took_s, cpu_s, peak = measure(arguments.folder)
    states = {one["id"]: one for one in said["verdict"]["checks"]}
    violated = {check for check, one in states.items() if one["violations"]}
    print(
        f"verified in {took_s:.0f} s ({cpu_s:.0f} CPU s), {rows / took_s:,.0f} rows/s, "
        f"peak {peak:.2f} GiB"
    )
    print(f"violated: {sorted(violated)}", flush=True)
    expected = EXPECTED if arguments.plant else set()
    if violated != expected:
        print(f"expected {sorted(expected ^ violated)} otherwise")
        for one in said["violations"]:
            print(one["check"], one["member"], one["origin"], one["seqno"], one["message"])
        sys.exit(1)


if __name__ == "__main__":
    main()
