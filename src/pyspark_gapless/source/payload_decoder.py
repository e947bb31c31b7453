"""Payloads into typed columns: JSON, msgpack or Arrow, by the option ``payload_schema``.

The law: no row is dropped. A payload that cannot be decoded gives a row with null in every decoded
column and the reason in ``ERROR_COLUMN``; other rows are not affected. Whole batches are decoded at
once where the format allows. A batch with bad payloads is halved until each bad payload is alone,
so the search costs time only in batches with bad payloads.

JSON: an object with the names of the columns; other names are ignored, missing names are null.
msgpack: a map likewise, or an array in the order of the columns. Arrow: an IPC stream; each row of
the stream becomes a row, and ``ROW_COLUMN`` counts the rows.
"""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Callable
from datetime import date, datetime
from decimal import Decimal
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from gapless.errors import ConfigError

if TYPE_CHECKING:
    import pyarrow as pa

ERROR_COLUMN: Final = "payload_error"
"""The column with the reason why a payload could not be decoded; null if decoded."""
ROW_COLUMN: Final = "payload_row"
"""With Arrow payloads, the position of the row within the message, from 0."""
_MAX_REASON_CHARS = 300

_NAME = re.compile(r"\s*(?:`((?:[^`]|``)+)`|(\w+))\s*:?\s*(.*)", re.DOTALL)
_NOT_NULL = re.compile(r"\bNOT\s+NULL\b", re.IGNORECASE)


class DdlField(NamedTuple):
    """A column of a DDL text: the name, and the type with everything that follows."""

    name: str
    type: str


def ddl_fields(text: str) -> list[DdlField]:
    """Return the columns of a DDL such as ``id long, tags array<string>``; Spark checks types."""
    inner = re.fullmatch(r"\s*struct\s*<(.*)>\s*", text, re.DOTALL | re.IGNORECASE)
    fields = []
    for part in _split(inner.group(1) if inner else text):
        match = _NAME.fullmatch(part)
        if match is None or not match.group(3).strip():
            raise ConfigError(
                f"payload_schema: {part.strip()!r} is not a column; expected a name and a type, "
                f'such as "id long"'
            )
        kind = match.group(3).strip()
        if _NOT_NULL.search(kind):
            raise ConfigError(
                f"payload_schema: {part.strip()!r} says NOT NULL, but a payload "
                "that cannot be decoded has null there; remove NOT NULL, and "
                f"filter by {ERROR_COLUMN}"
            )
        fields.append(DdlField((match.group(1) or match.group(2)).replace("``", "`"), kind))
    if not fields:
        raise ConfigError(
            'payload_schema names no column; expected names with types, such as "id long, text '
            'string"'
        )
    return fields


def _split(text: str) -> list[str]:
    parts, depth, quote, last = [], 0, "", 0
    for at, char in enumerate(text):
        if quote:
            quote = "" if char == quote else quote
        elif char in "`'\"":
            quote = char
        elif char in "<(":
            depth += 1
        elif char in ">)":
            depth -= 1
        elif char == "," and depth == 0:
            parts.append(text[last:at])
            last = at + 1
    if depth or quote:
        raise ConfigError(f"payload_schema: {text!r} has an open {quote or 'bracket'}; close it")
    parts.append(text[last:])
    return [part for part in parts if part.strip()]


class DecodedPayloads(NamedTuple):
    """Decoded rows: a struct array, the errors (null if none), and the payload of each row.

    ``parents`` is None if every payload has given exactly one row.
    """

    values: pa.StructArray
    errors: pa.Array
    parents: list[int] | None = None


def make_decoder(form: str, fields: pa.Schema) -> Callable[[pa.Array], DecodedPayloads]:
    """Return the decoder of an array of binary payloads in the format ``form`` into ``fields``."""
    import pyarrow as pa

    target = pa.struct(list(fields))
    if form == "arrow":
        return lambda payloads: _arrow(payloads, target)
    if form == "msgpack":
        unpack = _msgpack()
        return lambda payloads: _decode_bisecting(
            payloads, target, lambda part: _python(part, target, unpack, text=False)
        )
    if all(_is_json_native(field.type) for field in fields):
        return lambda payloads: _decode_bisecting(
            payloads, target, lambda part: _json(part, target)
        )
    return lambda payloads: _decode_bisecting(
        payloads, target, lambda part: _python(part, target, json.loads, text=True)
    )


def _decode_bisecting(
    payloads: pa.Array, target: pa.StructType, decode: Callable[[pa.Array], pa.StructArray]
) -> DecodedPayloads:
    import pyarrow as pa

    arrays: list[pa.StructArray] = []
    reasons: list[pa.Array] = []
    todo = [(0, len(payloads))] if len(payloads) else []
    while todo:
        start, end = todo.pop()
        try:
            arrays.append(decode(payloads.slice(start, end - start)))
            reasons.append(pa.nulls(end - start, pa.string()))
        except (ValueError, TypeError, ArithmeticError, LookupError, RecursionError) as error:
            if end - start > 1:
                middle = (start + end) // 2
                todo += [(middle, end), (start, middle)]
            else:
                arrays.append(pa.nulls(1, target))
                reasons.append(pa.array([_reason(error)], pa.string()))
    if not arrays:
        return DecodedPayloads(pa.nulls(0, target), pa.nulls(0, pa.string()))
    return DecodedPayloads(pa.concat_arrays(arrays), pa.concat_arrays(reasons))


def _reason(error: Exception) -> str:
    text = " ".join(str(error).split()) or type(error).__name__
    # The names and row numbers of the wrapping below mean nothing to a reader.
    text = (
        text.replace("JSON parse error: ", "")
        .replace("Column(/v/", "Column(/")
        .replace(" in row 0", "")
    )
    return text if len(text) <= _MAX_REASON_CHARS else text[: _MAX_REASON_CHARS - 3] + "..."


# JSON at once


def _is_json_native(kind: pa.DataType) -> bool:
    """Return whether Arrow's own JSON reader has the type."""
    import pyarrow.types as kinds

    if kinds.is_struct(kind):
        return all(_is_json_native(kind.field(at).type) for at in range(kind.num_fields))
    if kinds.is_list(kind):
        return _is_json_native(kind.value_type)
    return bool(
        kinds.is_boolean(kind)
        or kinds.is_integer(kind)
        or kinds.is_floating(kind)
        or kinds.is_string(kind)
        or kinds.is_decimal(kind)
        or kinds.is_timestamp(kind)
        or kinds.is_date(kind)
    )


def _parse_type(kind: pa.DataType) -> pa.DataType:
    """Return the type to read before a cast to the wanted type: dates are written as text."""
    import pyarrow as pa

    if pa.types.is_date(kind):
        return pa.string()
    if pa.types.is_struct(kind):
        return pa.struct(
            [
                kind.field(at).with_type(_parse_type(kind.field(at).type))
                for at in range(kind.num_fields)
            ]
        )
    if pa.types.is_list(kind):
        return pa.list_(kind.value_field.with_type(_parse_type(kind.value_type)))
    return kind


def _json(payloads: pa.Array, target: pa.StructType) -> pa.StructArray:
    import pyarrow as pa
    import pyarrow.compute as pc
    import pyarrow.json as pj

    # Each payload becomes the value of a line of its own: half an object, or two in one payload, is
    # then an error or a line too many, never a shift of the rows behind it.
    wrapped = pc.binary_join_element_wise(b'{"v":', payloads, b"}\n", b"")
    offsets = wrapped.buffers()[1]
    table = memoryview(offsets).cast("i")
    begin, end = table[wrapped.offset], table[wrapped.offset + len(wrapped)]
    lines = memoryview(wrapped.buffers()[2])[begin:end]
    str(lines, "utf-8")
    read = _parse_type(target)
    found = pj.read_json(
        pa.BufferReader(pa.py_buffer(lines)),
        read_options=pj.ReadOptions(use_threads=False, block_size=len(lines) + 1),
        parse_options=pj.ParseOptions(
            explicit_schema=pa.schema([("v", read)]),
            unexpected_field_behavior="ignore",
            newlines_in_values=True,
        ),
    )
    if found.num_rows != len(payloads):
        raise ValueError(f"expected one JSON object, found {found.num_rows}")
    values = found.column("v").combine_chunks()
    if isinstance(values, pa.ChunkedArray):
        values = pa.concat_arrays(values.chunks)
    if values.null_count:
        raise ValueError("expected a JSON object, found null")
    return values if read == target else values.cast(target)


# One by one


def _msgpack() -> Callable[[bytes], Any]:
    try:
        import msgpack
    except ImportError:
        raise ConfigError(
            "payload_format msgpack needs the package msgpack on driver and executors: pip "
            "install 'gapless[spark]'"
        ) from None
    return lambda payload: msgpack.unpackb(payload, timestamp=3, strict_map_key=False)


def _python(
    payloads: pa.Array, target: pa.StructType, load: Callable[[bytes], Any], *, text: bool
) -> pa.StructArray:
    import pyarrow as pa

    convert = _conversion(target, text=text)
    rows = []
    for payload in payloads.to_pylist():
        value = load(payload)
        if isinstance(value, list) and not text:
            if len(value) != target.num_fields:
                raise ValueError(
                    f"expected an array of {target.num_fields} values, found {len(value)}"
                )
            value = {target.field(at).name: part for at, part in enumerate(value)}
        if not isinstance(value, dict):
            raise TypeError(
                f"expected {'an object' if text else 'a map or an array'}, found "
                f"{type(value).__name__}"
            )
        rows.append(convert(value))
    return pa.array(rows, target)


def _conversion(kind: pa.DataType, *, text: bool) -> Callable[[Any], Any]:
    """Return the conversion of a decoded value for Arrow's ``kind``; ``text``: a text format."""
    import pyarrow.types as kinds

    if kinds.is_struct(kind):
        members = [
            (kind.field(at).name, _conversion(kind.field(at).type, text=text))
            for at in range(kind.num_fields)
        ]
        return _unless_null(
            dict, lambda value: {name: convert(value.get(name)) for name, convert in members}
        )
    if kinds.is_list(kind):
        inner = _conversion(kind.value_type, text=text)
        return _unless_null(list, lambda value: [inner(part) for part in value])
    if kinds.is_map(kind):
        key, item = _conversion(kind.key_type, text=text), _conversion(kind.item_type, text=text)
        return _unless_null(
            dict, lambda value: [(key(name), item(part)) for name, part in value.items()]
        )
    if kinds.is_binary(kind) and text:
        return _unless_null(str, lambda value: base64.b64decode(value, validate=True))
    if kinds.is_timestamp(kind) or kinds.is_date(kind):
        read = datetime.fromisoformat if kinds.is_timestamp(kind) else date.fromisoformat
        return lambda value: read(value) if isinstance(value, str) else value
    if kinds.is_decimal(kind):
        return lambda value: Decimal(value) if isinstance(value, str) else value
    if kinds.is_string(kind):
        return _unless_null(str, lambda value: value)
    return lambda value: value


def _unless_null(wanted: type, convert: Callable[[Any], Any]) -> Callable[[Any], Any]:
    def checked(value: Any) -> Any:
        if value is None:
            return None
        if not isinstance(value, wanted):
            raise TypeError(f"expected {wanted.__name__}, found {type(value).__name__}")
        return convert(value)

    return checked


# Arrow


def _arrow(payloads: pa.Array, target: pa.StructType) -> DecodedPayloads:
    import pyarrow as pa

    arrays: list[pa.StructArray] = []
    reasons: list[pa.Array] = []
    parents: list[int] = []
    for at in range(len(payloads)):
        try:
            with pa.ipc.open_stream(payloads[at].as_buffer()) as stream:
                values = _cast_table(stream.read_all(), target)
            reasons.append(pa.nulls(len(values), pa.string()))
        except (pa.ArrowException, ValueError, TypeError, OSError) as error:
            values = pa.nulls(1, target)
            reasons.append(pa.array([_reason(error)], pa.string()))
        arrays.append(values)
        parents += [at] * len(values)
    if not arrays:
        return DecodedPayloads(pa.nulls(0, target), pa.nulls(0, pa.string()), parents)
    return DecodedPayloads(pa.concat_arrays(arrays), pa.concat_arrays(reasons), parents)


def _cast_table(table: pa.Table, target: pa.StructType) -> pa.StructArray:
    import pyarrow as pa

    columns = []
    for at in range(target.num_fields):
        field = target.field(at)
        if field.name in table.column_names:
            column = table.column(field.name).cast(field.type)
            columns.append(
                pa.concat_arrays(column.chunks) if column.num_chunks else pa.nulls(0, field.type)
            )
        else:
            columns.append(pa.nulls(table.num_rows, field.type))
    return pa.StructArray.from_arrays(columns, fields=list(target))
