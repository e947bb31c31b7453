"""The results of sweeps."""

from __future__ import annotations

from typing import ClassVar

from pyspark_gapless.datasets.dataset import Dataset
from pyspark_gapless.sweep.schema import COLUMNS


class SweepRuns(Dataset):
    """A row for each simulated run of a sweep; ``(key, seed, version, code)`` is its key."""

    name = "runs"
    columns: ClassVar = {name: column.kind for name, column in COLUMNS.items()}
