"""The tables of the pipeline as values: a dataset is a DataFrame together with its schema, checked when it is made."""

from __future__ import annotations

from pyspark_gapless.tables.dataset import Dataset, SchemaError
from pyspark_gapless.tables.layers import Bronze, Gold, Silver

__all__ = ["Bronze", "Dataset", "Gold", "SchemaError", "Silver"]
