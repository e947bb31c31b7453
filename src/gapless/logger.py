"""The logger of the package. Every layer outside the pure protocol may use it."""

from __future__ import annotations

import logging

log = logging.getLogger("gapless")
