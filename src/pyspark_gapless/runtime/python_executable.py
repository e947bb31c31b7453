"""The Python that Spark starts on this machine.

Spark puts zip files with the sources of PySpark and Py4J first on the path of its Python processes.
The sources are not compiled, so each process compiles the sources again, for most of a second: once
for each streaming query, and four times before the first row of a session. If the same PySpark and
Py4J are installed as files, a small script starts Python without the zip files, and Python imports
both as any other package.
"""

from __future__ import annotations

import hashlib
import os
import shlex
import sys
import sysconfig
from importlib import metadata
from pathlib import Path

from pyspark_gapless.runtime.cache_dir import CacheError, cache_directory, write_whole

_SCRIPT = """\
#!/bin/sh
# Starts Python without these zip files: the same packages are installed, and compiled.
path=":$PYTHONPATH:"
for zip in {zips}; do
  while :; do
    case $path in *":$zip:"*) path="${{path%%":$zip:"*}}:${{path#*":$zip:"}}" ;; *) break ;; esac
  done
done
path="${{path#:}}"
PYTHONPATH="${{path%:}}" exec {python} "$@"
"""


def interpreter(home: Path) -> str:
    """Return the command to start this Python for the Spark in ``home``."""
    zips = _redundant_zips(home)
    if not zips or os.name != "posix":
        return sys.executable
    script = _SCRIPT.format(
        zips=" ".join(map(shlex.quote, zips)), python=shlex.quote(sys.executable)
    ).encode()
    try:
        path = write_whole(_place() / hashlib.sha256(script).hexdigest()[:16], script, 0o755)
    except (CacheError, OSError):
        return sys.executable
    # A folder from which nothing may be run is no reason not to start.
    return str(path) if os.access(path, os.X_OK) else sys.executable


def is_ours(program: str) -> bool:
    """Whether ``interpreter`` chose the program, or no program is set."""
    try:
        return program in {"", sys.executable} or Path(program).parent == _place()
    except CacheError:
        return False


def _place() -> Path:
    return cache_directory("python")


def _redundant_zips(home: Path) -> list[str]:
    """Return the zip files with packages that are also installed as files in the same versions."""
    installed = Path(sysconfig.get_path("purelib"))
    if home.resolve() != (installed / "pyspark").resolve():
        return []
    found = [home / "python" / "lib" / "pyspark.zip"]
    try:
        if (installed / "py4j").is_dir():
            found.append(home / "python" / "lib" / f"py4j-{metadata.version('py4j')}-src.zip")
    except metadata.PackageNotFoundError:
        pass
    return [str(path) for path in found if path.is_file()]
