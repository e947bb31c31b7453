"""The options of the source, from text to values.

Names are not case-sensitive, like Spark's. An unknown name is rejected with the closest known name,
and every rejection names the given value, the expected values and a correct example.
"""

from __future__ import annotations

import difflib
import os
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any, Final, TypeVar

from gapless.errors import ConfigError
from gapless.units import parse_size
from pyspark_gapless.option_error import OptionError
from pyspark_gapless.source.offsets import Digest, OffsetError, parse_digest

T = TypeVar("T")

EARLIEST: Final = "earliest"
LATEST: Final = "latest"
AT_DIGEST: Final = "digest"
AT_TIME: Final = "time"

PAYLOAD_FORMATS: Final = ("json", "msgpack", "arrow")
RELEASE_MODES: Final = ("sync", "start")

KNOWN_OPTIONS: Final = {
    name.lower(): name
    for name in (
        "spool",
        "path",
        "group",
        "reader",
        "startingOffsets",
        "startingTimestamp",
        "maxRowsPerTrigger",
        "maxBytesPerTrigger",
        "minPartitions",
        "maxPartitions",
        "failOnDataLoss",
        "columns",
        "origins",
        "from",
        "to",
        "pushdown",
        "release",
        "payload_schema",
        "payload_format",
        "payload_prefix",
        "spoolKeys",
    )
}
"""The documented spelling of each option, by the lower-case form that Spark passes."""

STREAM_ONLY: Final = (
    "reader",
    "startingoffsets",
    "startingtimestamp",
    "maxrowspertrigger",
    "maxbytespertrigger",
)
BATCH_ONLY: Final = ("from", "to", "pushdown")
COLLECTOR_PREFIX: Final = "collector."

_READER_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")
_NS_PER_MS = 1_000_000
_NS_PER_US = 1_000


@dataclass(frozen=True)
class ReadPosition:
    """The begin or the end of a read: ``kind`` is earliest, latest, digest or time."""

    kind: str
    digest: Digest = field(default_factory=dict)
    time_ns: int = 0


@dataclass(frozen=True)
class SourceOptions:
    """The checked options of a read."""

    spools: tuple[str, ...]
    group: str = ""
    reader: str = ""
    starting_position: ReadPosition = ReadPosition(EARLIEST)
    begin: ReadPosition = ReadPosition(EARLIEST)
    end: ReadPosition = ReadPosition(LATEST)
    max_rows: int | None = None
    max_bytes: int | None = None
    min_partitions: int = 1
    max_partitions: int = 0
    fail_on_data_loss: bool = True
    columns: tuple[str, ...] = ()
    origins: tuple[str, ...] = ()
    pushdown: bool = False
    release: str = "sync"
    payload_schema: str = ""
    payload_format: str = ""
    payload_prefix: str = ""
    spool_keys: str = ""
    collector: Mapping[str, str] = field(default_factory=dict)


def parse(given: Mapping[str, str], *, streaming: bool | None = None) -> SourceOptions:
    """Check the options of a read.

    Args:
        given: The options as Spark passes them; names are case-insensitive.
        streaming: Whether the query is a stream; None if not known yet.

    Raises:
        OptionError: An option is unknown, misplaced, missing or invalid.
    """
    options = {key.lower(): str(value) for key, value in given.items()}
    collector = {
        key.removeprefix(COLLECTOR_PREFIX): value
        for key, value in options.items()
        if key.startswith(COLLECTOR_PREFIX)
    }
    rest = {key: value for key, value in options.items() if not key.startswith(COLLECTOR_PREFIX)}
    _refuse_unknown(rest)
    _refuse_misplaced(rest, streaming)
    group = rest.get("group", "").strip()
    if collector and not group:
        raise OptionError(
            f'option "{COLLECTOR_PREFIX}{next(iter(collector))}" is for a collector that the '
            f"source starts by itself; "
            'name the group that it is to join with the option "group", or leave it out'
        )
    low, high = _partitions(rest)
    return SourceOptions(
        spools=_spools(rest, group),
        group=group,
        reader=_read(rest, "reader", _reader, ""),
        starting_position=_starting(rest),
        begin=_read(rest, "from", _position, ReadPosition(EARLIEST)),
        end=_read(rest, "to", _position, ReadPosition(LATEST)),
        max_rows=_read(rest, "maxrowspertrigger", _positive, None),
        max_bytes=_read(rest, "maxbytespertrigger", _size, None),
        min_partitions=low,
        max_partitions=high,
        fail_on_data_loss=_read(rest, "failondataloss", _flag, True),
        columns=_read(rest, "columns", _names, ()),
        origins=_read(rest, "origins", _names, ()),
        pushdown=_read(rest, "pushdown", _flag, False),
        spool_keys=_read(rest, "spoolkeys", _local, ""),
        release=_read(rest, "release", _one_of(RELEASE_MODES), "sync"),
        collector=collector,
        **_payload(rest),
    )


def default_spool(group: str) -> str:
    """Return the default spool of an embedded collector, in the data folder of the user."""
    base = os.environ.get("XDG_DATA_HOME") or str(Path.home() / ".local" / "share")
    return str(Path(base) / "gapless" / "spool" / re.sub(r"[^A-Za-z0-9._-]", "_", group))


def _refuse_unknown(options: Mapping[str, str]) -> None:
    for key in options:
        if key not in KNOWN_OPTIONS:
            close = difflib.get_close_matches(key, KNOWN_OPTIONS, n=1)
            hint = (
                f'did you mean "{KNOWN_OPTIONS[close[0]]}"?'
                if close
                else f"the options are {', '.join(KNOWN_OPTIONS.values())}"
            )
            raise OptionError(f'unknown option "{key}"; {hint}')


def _refuse_misplaced(options: Mapping[str, str], streaming: bool | None) -> None:
    if streaming is None:
        return
    for key in BATCH_ONLY if streaming else STREAM_ONLY:
        if key in options:
            here, there = ("readStream", "read") if streaming else ("read", "readStream")
            instead = "startingOffsets or startingTimestamp" if streaming else "from and to"
            raise OptionError(
                f'option "{KNOWN_OPTIONS[key]}" belongs to spark.{there}; use '
                f"{instead} with spark.{here}"
            )


def _read(
    options: Mapping[str, str], key: str, parser: Callable[[str], T], default: T | Any
) -> T | Any:
    text = options.get(key)
    if text is None:
        return default
    try:
        return parser(text.strip())
    except (ConfigError, OffsetError) as error:
        raise OptionError(f'option "{KNOWN_OPTIONS[key]}" is {text!r}: {error}') from None


def _spools(options: Mapping[str, str], group: str) -> tuple[str, ...]:
    if "spool" in options and "path" in options:
        raise OptionError(
            'both "spool" and load(path) name a spool; use only one (several '
            'replicas: commas in "spool")'
        )
    text = options.get("spool", options.get("path", ""))
    paths = tuple(_local(part.strip()) for part in text.split(",") if part.strip())
    if not paths and not group:
        raise OptionError(
            'no spool and no group given; set the option "spool" to the folder '
            'of a collector (several with commas between them), or "group" to '
            "start a collector here"
        )
    if len(set(paths)) < len(paths):
        raise OptionError(
            f'option "spool" names the same folder twice: {text!r}; name each replica once'
        )
    if group and len(paths) > 1:
        raise OptionError(
            'with the option "group" there is a single spool, filled by the '
            "embedded collector; name at most one spool"
        )
    return paths or (default_spool(group),)


def _local(path: str) -> str:
    if path.startswith("file:"):
        path = "/" + path.removeprefix("file:").lstrip("/")
    elif "://" in path:
        raise OptionError(
            f"{path!r} is not a file system path; mount the storage and name the folder"
        )
    if "\0" in path:
        raise OptionError(f"{path!r} is not a path: a path has no zero byte")
    try:
        return str(Path(path).expanduser().absolute())
    except RuntimeError:
        raise OptionError(
            f"{path!r}: the user does not exist here or has no home; write the whole path"
        ) from None


def _starting(options: Mapping[str, str]) -> ReadPosition:
    if "startingoffsets" in options and "startingtimestamp" in options:
        raise OptionError(
            'both "startingOffsets" and "startingTimestamp" set the start; use only one'
        )
    if "startingtimestamp" in options:
        return ReadPosition(AT_TIME, time_ns=_read(options, "startingtimestamp", _time, 0))
    return _read(options, "startingoffsets", _offsets, ReadPosition(EARLIEST))


def _offsets(text: str) -> ReadPosition:
    if text.lower() in {EARLIEST, LATEST}:
        return ReadPosition(text.lower())
    if not text.startswith("{"):
        raise OptionError('expected earliest, latest, or a digest such as {"1f.6": 42}')
    return ReadPosition(AT_DIGEST, parse_digest(text))


def _position(text: str) -> ReadPosition:
    if text.startswith("{") or text.lower() in {EARLIEST, LATEST}:
        return _offsets(text)
    try:
        return ReadPosition(AT_TIME, time_ns=_time(text))
    except OptionError as error:
        raise OptionError(
            f"expected earliest, latest, a digest or a time; as a time: {error}"
        ) from None


def _time(text: str) -> int:
    if re.fullmatch(r"\d{1,15}", text):
        return int(text) * _NS_PER_MS
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        raise OptionError("expected 2026-01-31T12:00:00Z or the milliseconds since 1970") from None
    if moment.tzinfo is None:
        raise OptionError(f"the time has no zone; write {text}Z for UTC, or {text}+02:00")
    since = moment - datetime.fromtimestamp(0, tz=moment.tzinfo)
    return ((since.days * 86_400 + since.seconds) * 1_000_000 + since.microseconds) * _NS_PER_US


def _reader(text: str) -> str:
    if not _READER_NAME.fullmatch(text):
        raise OptionError(
            "expected a name of at most 100 letters, digits, dots, dashes and underscores, such "
            "as bronze-table"
        )
    return text


def _positive(text: str) -> int:
    if not re.fullmatch(r"\d{1,18}", text) or not int(text):
        raise OptionError("expected a whole number above zero")
    return int(text)


def _size(text: str) -> int:
    size_bytes = parse_size(text)
    if not size_bytes:
        raise OptionError('expected a size above zero, such as "64MiB" or a number of bytes')
    return size_bytes


def _flag(text: str) -> bool:
    if text.lower() not in {"true", "false"}:
        raise OptionError("expected true or false")
    return text.lower() == "true"


def _names(text: str) -> tuple[str, ...]:
    names = tuple(part.strip() for part in text.split(",") if part.strip())
    if not names:
        raise OptionError("expected at least one name; remove the option to get all columns")
    for name in names:
        if names.count(name) > 1:
            raise OptionError(f"{name!r} is named twice")
    return names


def _one_of(choices: tuple[str, ...]) -> Callable[[str], str]:
    def parser(text: str) -> str:
        if text.lower() not in choices:
            raise OptionError(f"expected one of {', '.join(choices)}")
        return text.lower()

    return parser


def _partitions(options: Mapping[str, str]) -> tuple[int, int]:
    low = _read(options, "minpartitions", _positive, 1)
    high = _read(options, "maxpartitions", _positive, 0) or max(low, 2 * (os.cpu_count() or 1))
    if low > high:
        raise OptionError(
            f"minPartitions is {low} and maxPartitions is {high}; minPartitions "
            "must not exceed maxPartitions"
        )
    return low, high


def _payload(options: Mapping[str, str]) -> dict[str, str]:
    schema = options.get("payload_schema", "").strip()
    form = _read(options, "payload_format", _one_of(PAYLOAD_FORMATS), "")
    prefix = options.get("payload_prefix", "").strip()
    if not schema and (form or prefix):
        name = "payload_format" if form else "payload_prefix"
        raise OptionError(
            f'option "{name}" configures decoding; set "payload_schema" too, '
            'such as "id long, text string"'
        )
    if "payload_schema" in options and not schema:
        raise OptionError(
            'option "payload_schema" is empty; expected columns with types, such as "id long, '
            'text string"'
        )
    return {
        "payload_schema": schema,
        "payload_format": form or ("json" if schema else ""),
        "payload_prefix": prefix,
    }
