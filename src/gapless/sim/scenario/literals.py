"""Times, bytes and messages in the text of a script (``gapless.sim.scenario.grammar``).

A time has a unit: ``5ms``, ``1.5s``. Bytes are a quoted text, a text repeated up to a size (``"x"
of 200B``), a generated message by its sender and number (``a1..3 of 200B``, see
``gapless.sim.script.payload``), or 0x and hex.
"""

from __future__ import annotations

import re
from itertools import groupby
from typing import TYPE_CHECKING

from gapless.errors import ConfigError, GaplessError
from gapless.sim.script import payload
from gapless.units import NS_PER_MS, parse_duration

if TYPE_CHECKING:
    from collections.abc import Iterator

MAX_MESSAGES = 10_000
"""Maximum number of messages sent by a line."""
MAX_SENT_BYTES = 1 << 28
"""Maximum number of bytes sent by a line: a typing error must not exhaust the memory."""

SHORT_BYTES = 4
"""Maximum size of a generated message shown as text; longer messages show number and size."""


class ScenarioError(GaplessError):
    """A scenario file that cannot be played; the message begins with the file and the line."""


def show_time(time_ns: int) -> str:
    """Return a time in milliseconds, exact to the nanosecond."""
    whole, rest = divmod(time_ns, NS_PER_MS)
    return f"{whole}.{rest:06d}".rstrip("0").rstrip(".") + "ms" if rest else f"{whole}ms"


def show_bytes(content: bytes) -> str:
    """Return bytes in the most readable exact form."""
    generated = _generated(content)
    if generated is not None and len(content) > SHORT_BYTES:
        return f"{generated[0]}{generated[1]} of {len(content)}B"
    if not _is_text(content):
        return f"0x{content.hex()}"
    if len(content) > _LONG_TEXT_BYTES and (unit := _unit_of(content)) is not None:
        return f'"{unit.decode()}" of {len(content)}B'
    return f'"{content.decode()}"'


def _is_text(content: bytes) -> bool:
    return all(32 <= letter <= 126 and letter != 34 for letter in content)


_LONG_TEXT_BYTES = 40
_MAX_UNIT_BYTES = 8
_GENERATED = re.compile(rb"([a-z]+'*)(0|[1-9][0-9]*)\|")


def _generated(content: bytes) -> tuple[str, int] | None:
    """Return the sender and the number of ``content``, if script.payload made the content."""
    match = _GENERATED.match(content)
    if match is None:
        return None
    who, number = match[1].decode(), int(match[2])
    return (who, number) if payload(who, number, len(content)) == content else None


def _unit_of(content: bytes) -> bytes | None:
    for length in range(1, _MAX_UNIT_BYTES + 1):
        unit = content[:length]
        if _repeated(unit, len(content)) == content:
            return unit
    return None


def _repeated(unit: bytes, size_bytes: int) -> bytes:
    return (unit * (size_bytes // len(unit) + 1))[:size_bytes]


def show_payloads(payloads: tuple[bytes, ...]) -> str:
    """Return the messages of a send; consecutive generated messages of equal size are joined."""
    words: list[str] = []
    numbered = [(at, content, _generated(content)) for at, content in enumerate(payloads)]
    for _, group in groupby(numbered, key=_stretch):
        members = list(group)
        generated = members[0][2]
        if len(members) > 1 and generated is not None:
            who, first = generated
            words.append(f"{who}{first}..{first + len(members) - 1} of {len(members[0][1])}B")
        else:
            words += [show_bytes(content) for _, content, _ in members]
    return " ".join(words)


def _stretch(numbered: tuple[int, bytes, tuple[str, int] | None]) -> tuple[str, int, int]:
    at, content, generated = numbered
    return ("", at, 0) if generated is None else (generated[0], generated[1] - at, len(content))


INCARNATION_NAME = r"[a-z]+'*"
"""The pattern of an incarnation's name."""
TIME = r"\d+(?:\.\d+)?(?:ns|us|ms|s|min)"
"""How a time is written."""
_BYTES = re.compile(
    rf'"(?P<text>[^"]*)"(?: of (?P<cut>\d+)B)?'
    rf"|(?P<who>{INCARNATION_NAME})(?P<first>\d+)(?:\.\.(?P<last>\d+))? of (?P<size>\d+)B"
    r"|0x(?P<hex>(?:[0-9a-f]{2})*)"
)


_OPTIONS = re.compile(r"\(([a-z0-9., -]*)\)")


def read_payloads(text: str) -> tuple[tuple[bytes, ...], str]:
    """Return the messages in a line, and the words in parentheses after the messages."""
    found: list[bytes] = []
    at = 0
    while at < len(text):
        options = _OPTIONS.fullmatch(text, at)
        if options is not None:
            return tuple(found), options[1]
        match = _BYTES.match(text, at)
        if match is None or text[match.end() : match.end() + 1] not in {"", " "}:
            raise ScenarioError(
                f'cannot read the message {text[at : at + 40]!r}; write "text", "text" of '
                "200B, a1..3 of 8B or 0x0a1b"
            )
        found += _contents(match)
        at = match.end() + 1
    return tuple(found), ""


def _contents(match: re.Match[str]) -> Iterator[bytes]:
    """Return the messages of a match."""
    if match["hex"] is not None:
        yield bytes.fromhex(match["hex"])
    elif match["who"] is not None:
        first, last, size_bytes = (
            int(match["first"]),
            int(match["last"] or match["first"]),
            int(match["size"]),
        )
        if last < first:
            raise ScenarioError(f"{match[0]!r} ends before it begins")
        if last - first >= MAX_MESSAGES:
            raise ScenarioError(
                f"{match[0]!r} are too many messages in a line; the maximum is {MAX_MESSAGES}"
            )
        _check_size((last - first + 1) * max(1, size_bytes))
        yield from (payload(match["who"], number, size_bytes) for number in range(first, last + 1))
    else:
        text = match["text"].encode()
        if not _is_text(text):
            raise ScenarioError(f"{match[0]} is not plain text; write it as 0x and hex")
        if match["cut"] is None:
            yield text
            return
        if not text:
            raise ScenarioError(f"{match[0]}: an empty text cannot be repeated")
        _check_size(int(match["cut"]))
        yield _repeated(text, int(match["cut"]))


def _check_size(sent_bytes: int) -> None:
    if sent_bytes > MAX_SENT_BYTES:
        raise ScenarioError(
            f"{sent_bytes} bytes are too many in a line; the maximum is {MAX_SENT_BYTES}"
        )


def read_bytes(text: str) -> bytes:
    """Return the bytes of a datagram."""
    contents, options = read_payloads(text)
    if len(contents) != 1 or options:
        raise ScenarioError(f"expected the bytes of one datagram, not {len(contents)}: {text!r}")
    return contents[0]


def read_time(text: str) -> int:
    """Return a time in nanoseconds."""
    try:
        return parse_duration(text)
    except ConfigError as error:
        raise ScenarioError(f"{text!r}: {error}") from error
