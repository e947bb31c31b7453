"""A dataset: a DataFrame with a known schema."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, ClassVar

from gapless.errors import GaplessError

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql.types import StructType


class SchemaError(GaplessError):
    """A DataFrame lacks columns of its dataset, or has others; the message names each column."""


class Dataset:
    """A DataFrame with exactly the columns of its kind, in their types.

    Subclasses define the columns. ``Dataset`` puts columns into the order of the schema, so that
    all files of a table are alike.
    """

    name: ClassVar[str]
    """The name of the dataset and the name of its folder."""
    columns: ClassVar[Mapping[str, str]]
    """The columns with their Spark types."""

    def __init__(self, frame: DataFrame) -> None:
        wrong = differences(frame.schema, self.columns)
        if wrong:
            raise SchemaError(f"not a {self.name} table: {'; '.join(wrong)}; expected {self.ddl()}")
        self.frame = frame.select(*self.columns)

    @classmethod
    def ddl(cls) -> str:
        """Return the schema as text for Spark."""
        return ", ".join(f"`{name}` {kind}" for name, kind in cls.columns.items())


def differences(schema: StructType, columns: Mapping[str, str]) -> list[str]:
    """Return the differences of a schema from ``columns``, a phrase for each column."""
    found: dict[str, str] = {}
    wrong = []
    for field in schema.fields:
        if field.name in found:
            wrong.append(f"{field.name!r} is there twice")
        found[field.name] = field.dataType.simpleString()
    for name, kind in columns.items():
        if name not in found:
            wrong.append(f"{name!r} is missing")
        elif found[name] != kind:
            wrong.append(f"{name!r} is {found[name]}, not {kind}")
    wrong += [f"{name!r} is not one of its columns" for name in found if name not in columns]
    return wrong
