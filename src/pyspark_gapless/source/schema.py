"""The columns of the source: available columns, selected columns, and the schema for Spark."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from pyspark_gapless.message_columns import COLUMNS
from pyspark_gapless.option_error import OptionError
from pyspark_gapless.source.options import SourceOptions
from pyspark_gapless.source.payload_decoder import ERROR_COLUMN, ROW_COLUMN, DdlField, ddl_fields

if TYPE_CHECKING:
    from pyspark.sql.types import StructType


def decoded_fields(options: SourceOptions) -> list[tuple[str, DdlField]]:
    """Return the decoded columns as (name of the column, field of the payload)."""
    if not options.payload_schema:
        return []
    if options.payload_schema.lstrip().startswith("{"):
        fields = _from_json(options.payload_schema)
    else:
        fields = ddl_fields(options.payload_schema)
    named = [(options.payload_prefix + field.name, field) for field in fields]
    names = [name for name, _ in named]
    for name in names:
        if name.lower() in {*COLUMNS, ERROR_COLUMN, ROW_COLUMN}:
            raise OptionError(
                f'option "payload_schema" has a column {name!r}, which every '
                'message has already; set "payload_prefix" (such as "p_") to tell '
                "the columns apart"
            )
        if [other.lower() for other in names].count(name.lower()) > 1:
            raise OptionError(f'option "payload_schema" names {name!r} twice')
    return named


def _from_json(text: str) -> list[DdlField]:
    from pyspark.sql.types import StructType

    try:
        schema = StructType.fromJson(json.loads(text))
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise OptionError(
            'option "payload_schema" looks like JSON but is not the '
            f"schema.json() of a StructType: {error}"
        ) from None
    return [DdlField(field.name, field.dataType.simpleString()) for field in schema.fields]


def selected_columns(options: SourceOptions) -> list[tuple[str, str]]:
    """Return the columns of a read in their order, each with its type."""
    decoded = {name: field.type for name, field in decoded_fields(options)}
    extra = {ERROR_COLUMN: "string"} if decoded else {}
    if options.payload_format == "arrow":
        extra[ROW_COLUMN] = "int"
    there = COLUMNS | decoded | extra
    if not options.columns:
        return [(name, kind) for name, kind in there.items() if not (decoded and name == "payload")]
    for name in options.columns:
        if name not in there:
            raise OptionError(f'option "columns" names {name!r}; there are {", ".join(there)}')
    return [(name, there[name]) for name in options.columns]


def ddl(options: SourceOptions) -> str:
    """Return the schema of a read as DDL for Spark."""
    return ", ".join(
        f"`{name.replace('`', '``')}` {kind}" for name, kind in selected_columns(options)
    )


def check_schema(schema: StructType, options: SourceOptions) -> None:
    """Refuse a user's schema (``.schema(…)``) with unknown columns or other types."""
    decoded = {name for name, _ in decoded_fields(options)}
    base = COLUMNS | ({ERROR_COLUMN: "string", ROW_COLUMN: "int"} if decoded else {})
    for field in schema.fields:
        if field.name not in base and field.name not in decoded:
            raise OptionError(
                f"the schema has a column {field.name!r}; there are "
                f"{', '.join([*base, *sorted(decoded)])}. Columns of "
                'the payload are named by the option "payload_schema"'
            )
        if field.name in base and field.dataType.simpleString() != base[field.name]:
            raise OptionError(
                f"the schema declares {field.name!r} as "
                f"{field.dataType.simpleString()}; expected {base[field.name]}"
            )


def arrow_schema(schema: StructType) -> Any:
    """Return the exact Arrow schema that Spark expects of the batches."""
    from pyspark.sql.pandas.types import to_arrow_schema

    return to_arrow_schema(schema, timezone="UTC")


def decoded_pairs(options: SourceOptions, names: Sequence[str]) -> tuple[tuple[str, str], ...]:
    """Return (column, field of the payload) for the decoded columns among ``names``."""
    return tuple((name, field.name) for name, field in decoded_fields(options) if name in names)
