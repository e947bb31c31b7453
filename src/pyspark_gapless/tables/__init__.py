"""Tables as values: a dataset is a DataFrame with a schema, checked on construction."""

from __future__ import annotations

from pyspark_gapless.tables.dataset import Dataset, SchemaError
from pyspark_gapless.tables.layers import Bronze, Gold, Silver

__all__ = ["Bronze", "Dataset", "Gold", "SchemaError", "Silver"]
