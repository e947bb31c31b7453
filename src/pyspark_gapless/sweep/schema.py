"""The table of results, with a row for each simulated run: for the writer, Spark and the docs."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, ClassVar, Final, NamedTuple

from gapless.sim.profile_cost import KINDS
from pyspark_gapless.tables.dataset import Dataset

if TYPE_CHECKING:
    import pyarrow as pa

BY_KIND: Final = f"struct<{','.join(f'{kind}:bigint' for kind in KINDS)}>"
"""A count for each kind of frame."""


class ResultColumn(NamedTuple):
    """A column: the Spark type and the meaning; ``of`` limits the column to some runs."""

    spark_type: str
    meaning: str
    applies_to: str = ""


GRID: Final = "grid"
"""Said of a run of a grid: the work of ``gapless compare``."""
TOLD_VIEWS: Final = "told"
"""Kind of a swarm run with scripted views: ``gapless sim``."""
MEMBERSHIP: Final = "membership"
"""Kind of a swarm run in which groups make their own views: ``gapless sim --membership``."""
HUNTS: Final = (TOLD_VIEWS, MEMBERSHIP)
"""The kinds of runs with parameters drawn from the seed."""

COLUMNS: Final[dict[str, ResultColumn]] = {
    "key": ResultColumn("string", "The cell: a hash of every parameter but the seed."),
    "seed": ResultColumn("bigint", "The seed."),
    "version": ResultColumn("string", "The version of the package that ran it."),
    "code": ResultColumn("string", "A hash of the code that was simulated and simulates."),
    "python": ResultColumn("string", "The version of Python that ran it; it has no influence."),
    "kind": ResultColumn(
        "string",
        f"`{GRID}`, or where everything is drawn from the seed `{TOLD_VIEWS}` or `{MEMBERSHIP}`.",
    ),
    "profile": ResultColumn("string", "The profile, given or drawn."),
    "members": ResultColumn("bigint", "Members in the group; null if they were drawn."),
    "loss": ResultColumn("double", "Per cent of the frames lost on each link.", GRID),
    "capacity": ResultColumn(
        "bigint", "The capacity of a window, set or not; null if it was drawn."
    ),
    "knobs": ResultColumn(
        "map<string,string>", "The knobs that were set, as a person writes them."
    ),
    "messages": ResultColumn(
        "bigint", "Messages that each member sends, or in a hunt sends at most."
    ),
    "size_bytes": ResultColumn("bigint", "The size of each message.", GRID),
    "pace_ns": ResultColumn("bigint", "Time between two messages of a member.", GRID),
    "mutant": ResultColumn("string", "The bug that was planted; null if none was."),
    "character": ResultColumn(
        "string", "What sort of run was drawn: calm, loss, swarm, stall, gentle.", "hunts"
    ),
    "digest": ResultColumn(
        "string", "A hash of everything that happened: equal for equal runs; null if it broke off."
    ),
    "sent": ResultColumn("bigint", "Messages sent."),
    "expected": ResultColumn("bigint", "Deliveries that are due at others than the sender.", GRID),
    "delivered": ResultColumn("bigint", "Deliveries at others than the sender.", GRID),
    "span_ns": ResultColumn(
        "bigint", "Virtual time until the last delivery, or the last send if that was later.", GRID
    ),
    "p50_ns": ResultColumn(
        "bigint", "Half of the deliveries came within this time of their send.", GRID
    ),
    "p99_ns": ResultColumn("bigint", "99 of 100 deliveries did.", GRID),
    "max_ns": ResultColumn("bigint", "All of them did.", GRID),
    "latency": ResultColumn(
        "map<bigint,bigint>",
        "How many deliveries took how many nanoseconds, rounded up to 7 binary digits: histograms "
        "of several runs add"
        " up.",
        GRID,
    ),
    "frames": ResultColumn(BY_KIND, "Frames put on links, lost or not, by kind.", GRID),
    "bytes": ResultColumn(BY_KIND, "Their sizes, headers included.", GRID),
    "frames_lost": ResultColumn("bigint", "Datagrams that the network has lost.", GRID),
    "peak_window": ResultColumn(
        "bigint", "The most messages that one sender had outstanding.", GRID
    ),
    "stalls": ResultColumn("bigint", "Gaps that were given up.", GRID),
    "repairs": ResultColumn(
        "bigint", "Runs sent again; in a hunt by members that were alive at the end."
    ),
    "events": ResultColumn("bigint", "Events of the simulated world."),
    "steps": ResultColumn("bigint", "Steps of members, after each of which every check was made."),
    "simulated_ns": ResultColumn("bigint", "Virtual time that passed."),
    "faults": ResultColumn("map<string,bigint>", "How often each kind of fault struck."),
    "seen": ResultColumn(
        "array<string>", "Situations that must happen in a hunt, and did in this run.", "hunts"
    ),
    "violations": ResultColumn(
        "array<struct<check:string,t_ns:bigint,member:string,message:string>>",
        "What the checks have found.",
    ),
    "error": ResultColumn("string", "Why the run broke off; null if it came to its end."),
    "cpu_s": ResultColumn(
        "double", "CPU seconds that it took: the one column that is not a function of the others."
    ),
}
"""Every column, in the order of the files."""

KEY: Final = ("key", "seed", "version", "code")
"""The columns that identify a run: rows with equal keys differ only in ``python`` and ``cpu_s``."""

_NESTED = re.compile(r"(map|array|struct)<(.*)>")


def arrow_schema() -> pa.Schema:
    """Return the schema for pyarrow."""
    import pyarrow as pa

    return pa.schema([(name, arrow_type(column.spark_type)) for name, column in COLUMNS.items()])


def arrow_type(kind: str) -> pa.DataType:
    """Return the pyarrow type for the Spark type ``kind``."""
    import pyarrow as pa

    plain = {"string": pa.string(), "bigint": pa.int64(), "double": pa.float64()}
    match = _NESTED.fullmatch(kind)
    if match is None:
        return plain[kind]
    outer, inner = match.groups()
    if outer == "array":
        return pa.list_(arrow_type(inner))
    parts = inner.split(",")
    if outer == "map":
        return pa.map_(*map(arrow_type, parts))
    return pa.struct(
        [(name, arrow_type(part)) for name, _, part in (part.partition(":") for part in parts)]
    )


def column_table() -> str:
    """Return the columns as a table for the docs."""
    lines = ["| column | type | of | meaning |", "|---|---|---|---|"]
    lines += [
        f"| `{name}` | `{column.spark_type}` | {column.applies_to} | {column.meaning} |"
        for name, column in COLUMNS.items()
    ]
    return "\n".join(lines) + "\n"


class SweepRuns(Dataset):
    """A row for each simulated run of a sweep; the key is ``(key, seed, version, code)``."""

    name = "runs"
    columns: ClassVar = {name: column.spark_type for name, column in COLUMNS.items()}
