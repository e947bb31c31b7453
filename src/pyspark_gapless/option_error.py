"""The error that the options of the source and of the sink share."""

from __future__ import annotations

from gapless.errors import ConfigError


class OptionError(ConfigError):
    """An option is unknown, missing or impossible; the message says what to write instead."""
