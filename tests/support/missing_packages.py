"""Commands in an interpreter that lacks some packages."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

_PROGRAM = """
import sys
from importlib.machinery import PathFinder

class Blind(PathFinder):
    @classmethod
    def find_spec(cls, name, path=None, target=None):
        return None if name in {hidden!r} else super().find_spec(name, path, target)

sys.meta_path[sys.meta_path.index(PathFinder)] = Blind
from gapless.cli import main
main()
"""


def without(
    *hidden: str, arguments: list[str], folder: Path | None = None, **environ: str
) -> subprocess.CompletedProcess[str]:
    """Run a command line where the ``hidden`` packages are not installed."""
    return subprocess.run(
        [sys.executable, "-c", _PROGRAM.format(hidden=hidden), *arguments],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), **environ},
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
