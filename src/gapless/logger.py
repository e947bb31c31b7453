"""The loggers of the package. Every layer outside the pure protocol may use them.

A log line names members and repeats errors of other members, so a filter makes every control
character visible before a handler gets the record.
"""

from __future__ import annotations

import logging

from gapless.output.printable import printable

RAISED = {"is_raised": True}
"""The ``extra`` of a line about an error that ends a member, and that its next call raises.

A command shows such an error once, as its own.
"""
_FORMATTER = logging.Formatter()


def _make_printable(record: logging.LogRecord) -> bool:
    """Escape the text and the traceback of a record; return True, so that the record is logged."""
    text = record.getMessage()
    shown = printable(text, keep_newlines="\n" in str(record.msg))
    if shown != text:
        record.msg, record.args = shown, None
    if record.exc_info and not record.exc_text:
        trace = _FORMATTER.formatException(record.exc_info)
        if (shown := printable(trace, keep_newlines=True)) != trace:
            # A formatter prefers this text to a traceback of its own.
            record.exc_text = shown
    return True


def logger_of(part: str = "") -> logging.Logger:
    """Return the logger ``gapless``, or ``gapless.<part>``, whose lines have no controls."""
    found = logging.getLogger(f"gapless.{part}" if part else "gapless")
    found.addFilter(_make_printable)
    return found


log = logger_of()
