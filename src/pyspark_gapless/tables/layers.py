"""The three tables: bronze as received, silver with types, gold aggregated."""

from __future__ import annotations

from typing import ClassVar

from pyspark_gapless.message_columns import COLUMNS
from pyspark_gapless.tables.dataset import Dataset


class Bronze(Dataset):
    """Every message of the group once, as the source returns it; the key is ``(origin, seqno)``."""

    name = "bronze"
    columns: ClassVar = COLUMNS


class Silver(Dataset):
    """Every row of bronze with a typed payload; ``problem`` names the fault of a bad row."""

    name = "silver"
    columns: ClassVar = {
        "origin": "string",
        "seqno": "bigint",
        "sent": "timestamp",
        "collected": "timestamp",
        "site": "string",
        "sensor": "string",
        "number": "bigint",
        "at": "timestamp",
        "celsius": "double",
        "humidity": "double",
        "problem": "string",
    }


class Gold(Dataset):
    """A row for each site and complete minute, with the aggregates of the valid readings."""

    name = "gold"
    columns: ClassVar = {
        "window_start": "timestamp",
        "window_end": "timestamp",
        "site": "string",
        "readings": "bigint",
        "celsius_mean": "double",
        "celsius_min": "double",
        "celsius_max": "double",
        "humidity_mean": "double",
    }
