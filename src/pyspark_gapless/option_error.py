"""The error of the options of source and sink."""

from __future__ import annotations

from gapless.errors import ConfigError


class OptionError(ConfigError):
    """An option is unknown, missing or invalid; the message names a valid value."""
