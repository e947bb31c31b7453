"""Patterns: frames named in words, for tests that read like a story.

``DATA 1 a->b`` is the data frame with message 1 of ``a`` from ``a`` to ``b``. ``REPAIR b3..5 b->a
#2`` is the second repair with any of these messages. ``ACK *->a``, ``TAIL`` and ``* a->b`` omit
irrelevant properties.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, NamedTuple

from gapless.faults.frame_names import KINDS

if TYPE_CHECKING:
    from collections.abc import Callable

    from gapless.faults.faults import Copy, Crossing

_LIFE = r"[a-z]+'*"
_PATTERN = re.compile(
    rf"(?P<kind>[A-Z]+|\*)"
    rf"(?: (?P<origin>{_LIFE}@?)?(?P<first>\d+)(?:\.\.(?P<last>\d+))?)?"
    rf"(?: (?P<source>{_LIFE}|\*)->(?P<target>[a-z]+|\*))?"
    rf"(?: #(?P<nth>\d+))?"
)


class FramePattern(NamedTuple):
    """The properties of a matching frame; None matches any value."""

    kind: str | None
    origin: str | None
    first: int | None
    last: int | None
    source: str | None
    target: str | None
    nth: int | None

    @classmethod
    def parse(cls, text: str) -> FramePattern:
        """Read a pattern such as ``DATA 1 a->b``."""
        match = _PATTERN.fullmatch(text.strip())
        if match is None or (match["kind"] != "*" and match["kind"] not in KINDS):
            raise ValueError(
                f"{text!r} is not a pattern of frames; write a pattern such as "
                "'DATA 1 a->b', 'ACK *->a' or 'TAIL'"
            )
        first, last, nth = (
            None if match[name] is None else int(match[name]) for name in ("first", "last", "nth")
        )
        kind, source, target = (
            None if match[name] == "*" else match[name] for name in ("kind", "source", "target")
        )
        return cls(
            kind, match["origin"], first, first if last is None else last, source, target, nth
        )

    def matches(self, crossing: Crossing) -> bool:
        """Return whether a crossing matches the pattern."""
        kind, origin, first, last = crossing.label
        return (
            self.kind in {None, kind}
            and self.origin in {None, origin}
            and (
                self.first is None
                or self.last is None
                or (first <= self.last and self.first <= last)
            )
            and self.source in {None, crossing.source}
            and self.target in {None, crossing.target}
            and self.nth in {None, crossing.nth}
        )


class FaultRule:
    """A fault in words, for the next ``times`` matching frames, or all if None."""

    def __init__(
        self,
        name: str,
        text: str,
        change: Callable[[list[Copy]], list[Copy]],
        times: int | None = 1,
    ) -> None:
        self.name = name
        self.text = text
        self.pattern = FramePattern.parse(text)
        self.change = change
        self.times = times
        self.struck = 0

    @property
    def unused(self) -> bool:
        """Whether the rule was to strike and never did."""
        return self.times is not None and self.struck < self.times

    def cross(self, crossing: Crossing, copies: list[Copy], now_ns: int) -> list[Copy]:
        """Change the copies if the frame fits and the rule is not used up."""
        if (self.times is not None and self.struck >= self.times) or not self.pattern.matches(
            crossing
        ):
            return copies
        self.struck += 1
        return self.change(copies)
