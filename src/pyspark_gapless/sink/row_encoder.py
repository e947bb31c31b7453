"""From the columns of a DataFrame to messages.

A column ``payload`` (or the only column) of type binary or string holds the messages; ``headers``,
a map<string,binary>, holds the headers of each message. With the option ``format``, rows of
other columns are encoded whole, as JSON or msgpack: an object with the names of the columns, for
``payload_schema`` of the source to read back.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from gapless.errors import ConfigError
from gapless.group.sink_dedup import SINK
from pyspark_gapless.sink.staging import HEADERS, PAYLOAD, SinkError

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType

FORMATS: Final = ("json", "msgpack")
OVERHEAD_BYTES: Final = 512
"""Bytes of the largest message reserved for the header with the row id."""


@dataclass(frozen=True)
class RowEncoding:
    """The role of each column: ``payload`` is a column, or ``columns`` together in ``form``."""

    payload: str = ""
    headers: str = ""
    payload_format: str = ""
    columns: tuple[str, ...] = ()


def choose_encoding(schema: StructType, form: str = "") -> RowEncoding:
    """Return the encoding of rows of a schema; an error names the necessary change."""
    types = {field.name: field.dataType.simpleString() for field in schema.fields}
    if len(types) < len(schema.fields):
        raise ConfigError(
            f"two columns have the same name: {', '.join(schema.names)}; rename one of them"
        )
    headers = HEADERS if types.get(HEADERS) == "map<string,binary>" else ""
    rest = {name: kind for name, kind in types.items() if name != headers}
    if form:
        if form not in FORMATS:
            raise ConfigError(f"option format is {form!r}; expected one of {', '.join(FORMATS)}")
        if not rest:
            raise ConfigError("there is no column beside headers to encode; add a column")
        return RowEncoding(headers=headers, payload_format=form, columns=tuple(rest))
    if len(rest) == 1:
        ((name, kind),) = rest.items()
        if kind == "binary" or kind.split()[0] == "string":
            return RowEncoding(payload=name, headers=headers)
    shown = ", ".join(f"{name} {kind}" for name, kind in types.items())
    raise ConfigError(
        f"the message column is not clear: the columns are {shown}. "
        "Expected payload (binary or string) and optionally headers "
        "(map<string,binary>). Select these columns, or set "
        '.option("format", "json") (or msgpack) to send every row as a '
        "whole"
    )


def make_encoder(
    encoding: RowEncoding, max_message_bytes: int
) -> Callable[[pa.RecordBatch], pa.RecordBatch]:
    """Return the encoder of a batch of rows into messages (``payload`` and ``headers``)."""
    import pyarrow as pa
    import pyarrow.compute as pc

    encode = _whole_rows(encoding) if encoding.payload_format else None
    most_bytes = max_message_bytes - OVERHEAD_BYTES

    def convert(batch: pa.RecordBatch) -> pa.RecordBatch:
        payload = (
            batch.column(encoding.payload).cast(pa.binary()) if encode is None else encode(batch)
        )
        if payload.null_count:
            raise SinkError(
                f"{payload.null_count} rows have a null payload; filter these rows "
                "out, or replace the null"
            )
        columns = {PAYLOAD: payload}
        sizes = pc.binary_length(payload).cast(pa.int64())
        if encoding.headers:
            columns[HEADERS] = batch.column(encoding.headers)
            _check_headers(columns[HEADERS])
        longest = pc.max(sizes).as_py() or 0
        if longest > most_bytes:
            raise SinkError(
                f"a row makes a message of {longest} bytes; max_message_bytes "
                f"allows {most_bytes} (and {OVERHEAD_BYTES} for the sink). Send "
                "smaller rows, or raise max_message_bytes in the whole group and "
                "by the option config.max_message_bytes"
            )
        return pa.RecordBatch.from_pydict(columns)

    return convert


def _check_headers(headers: pa.Array) -> None:
    import pyarrow.compute as pc

    if headers.items.null_count:
        raise SinkError("a header has a null value; remove the header, or give an empty value")
    sizes = pc.binary_length(headers.keys)
    if len(headers.keys) and not 0 < pc.min(sizes).as_py() <= pc.max(sizes).as_py() <= 255:
        raise SinkError(
            "the name of a header is empty or longer than 255 bytes; use a shorter name"
        )


def _whole_rows(encoding: RowEncoding) -> Callable[[pa.RecordBatch], pa.Array]:
    import pyarrow as pa

    pack = _json if encoding.payload_format == "json" else _msgpack()

    def encode(batch: pa.RecordBatch) -> pa.Array:
        chosen = batch.select(list(encoding.columns))
        convert = _conversion(
            pa.struct(list(chosen.schema)), text=encoding.payload_format == "json"
        ) or (lambda row: row)
        try:
            return pa.array([pack(convert(row)) for row in chosen.to_pylist()], pa.binary())
        except (ValueError, TypeError, OverflowError) as error:
            raise SinkError(
                f"a row cannot be encoded as {encoding.payload_format}: {error}. "
                "Cast the column, or encode the rows yourself into a column payload"
            ) from error

    return encode


def _json(value: Any) -> bytes:
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False, allow_nan=False).encode()


def _msgpack() -> Callable[[Any], bytes]:
    try:
        import msgpack
    except ImportError:
        raise SinkError(
            "format msgpack needs the package msgpack on all executors: pip install "
            "'gapless[spark]'"
        ) from None
    return lambda value: bytes(msgpack.packb(value, datetime=True))


# One return for each type.
def _conversion(  # noqa: PLR0911
    kind: pa.DataType, *, text: bool
) -> Callable[[Any], Any] | None:
    """Return the conversion of a value of ``kind`` for the format; None if none is needed."""
    import pyarrow.types as kinds

    if kinds.is_struct(kind):
        members = [
            (kind.field(at).name, _conversion(kind.field(at).type, text=text))
            for at in range(kind.num_fields)
        ]
        changed = [(name, convert) for name, convert in members if convert is not None]
        return (
            _unless_null(lambda row: row | {name: convert(row[name]) for name, convert in changed})
            if changed
            else None
        )
    if kinds.is_list(kind):
        inner = _conversion(kind.value_type, text=text)
        return (
            _unless_null(lambda values: [inner(value) for value in values])
            if inner is not None
            else None
        )
    if kinds.is_map(kind):
        key = _conversion(kind.key_type, text=text) or (lambda value: value)
        item = _conversion(kind.item_type, text=text) or (lambda value: value)
        return _unless_null(lambda pairs: {key(name): item(value) for name, value in pairs})
    if kinds.is_binary(kind) and text:
        return _unless_null(lambda value: base64.b64encode(value).decode())
    if kinds.is_timestamp(kind) and (text or kind.tz is None):
        return _unless_null(lambda value: value.isoformat())
    if kinds.is_date(kind):
        return _unless_null(lambda value: value.isoformat())
    if kinds.is_decimal(kind):
        return _unless_null(str)
    if kinds.is_duration(kind):
        return _unless_null(lambda value: value.total_seconds())
    return None


def _unless_null(convert: Callable[[Any], Any]) -> Callable[[Any], Any]:
    return lambda value: None if value is None else convert(value)


def add_row_header(row: bytes, given: Any) -> dict[str, bytes]:
    """Return the headers of a message: first the row id, then the headers of the row."""
    return {SINK: row} | dict(given) | {SINK: row} if given else {SINK: row}
