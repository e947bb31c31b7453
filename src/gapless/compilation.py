"""Which modules of this installation are compiled, and how to run without compiled code.

A compiled wheel has every module twice: as a library, which Python prefers, and as its source.
With ``GAPLESS_COMPILED=0`` in the environment the sources run.
"""

from __future__ import annotations

import sys
from functools import cache
from importlib.machinery import (
    EXTENSION_SUFFIXES,
    SOURCE_SUFFIXES,
    FileFinder,
    ModuleSpec,
    PathFinder,
    SourceFileLoader,
)
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence
    from types import ModuleType

COMPILED_VARIABLE = "GAPLESS_COMPILED"
"""The environment variable that turns compiled code off, with the value 0."""

_PACKAGE = Path(__file__).parent


class _SourceFinder(PathFinder):
    """Finds the source of each module of Gapless, also beside a library of the same name."""

    @classmethod
    def find_spec(
        cls,
        fullname: str,
        path: Sequence[str] | None = None,
        target: ModuleType | None = None,
    ) -> ModuleSpec | None:
        if path is None or not fullname.startswith("gapless."):
            return None
        for folder in path:
            spec = FileFinder(folder, (SourceFileLoader, SOURCE_SUFFIXES)).find_spec(
                fullname, target
            )
            if spec is not None:
                return spec
        return None


def use_sources() -> None:
    """Import every further module of Gapless from its source."""
    sys.meta_path.insert(0, _SourceFinder)


@cache
def compiled_modules() -> tuple[str, ...]:
    """Return the names of the modules that run compiled; empty in pure Python."""
    if _SourceFinder in sys.meta_path:
        return ()
    suffix = next(iter(EXTENSION_SUFFIXES))
    return tuple(
        sorted(
            ".".join(("gapless", *path.relative_to(_PACKAGE).parts)).removesuffix(suffix)
            for path in _PACKAGE.rglob(f"*{suffix}")
        )
    )
