"""A home directory whose folder for configurations this user may not enter."""

from __future__ import annotations

import os
import tempfile
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

_OTHER_USER = 54321


@contextmanager
def entered_by_nobody(folder: Path) -> Iterator[None]:
    """Run the block as a user who may not enter ``folder``, but the folders above it."""
    mode = folder.stat().st_mode & 0o777
    is_root = os.geteuid() == 0
    folder.chmod(0o700 if is_root else 0)
    if is_root:
        os.seteuid(_OTHER_USER)
    try:
        yield
    finally:
        if is_root:
            os.seteuid(0)
        folder.chmod(mode)


@contextmanager
def open_home() -> Iterator[Path]:
    """Return a home directory that every user can enter, with an empty folder .config/gapless."""
    with tempfile.TemporaryDirectory() as name:
        home = Path(name)
        home.chmod(0o755)
        (home / ".config" / "gapless").mkdir(parents=True)
        yield home
