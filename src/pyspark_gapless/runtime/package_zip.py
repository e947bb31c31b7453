"""The packages of this project as a zip file, for executors without this version."""

from __future__ import annotations

import hashlib
import io
import zipfile
from importlib.resources import files
from importlib.resources.abc import Traversable
from pathlib import Path

from pyspark_gapless.runtime.cache_dir import cache_directory, write_whole

PACKAGES = ("gapless", "pyspark_gapless")
"""The shipped packages."""

_ZIP_EPOCH = (1980, 1, 1, 0, 0, 0)


def package_zip() -> Path:
    """Return a zip file of the installed packages; the name has a hash of the content."""
    content = io.BytesIO()
    with zipfile.ZipFile(content, "w", zipfile.ZIP_DEFLATED) as bundle:
        for package in PACKAGES:
            for name, entry in walk_sources(files(package), package):
                bundle.writestr(
                    zipfile.ZipInfo(name, _ZIP_EPOCH), entry.read_bytes(), zipfile.ZIP_DEFLATED
                )
    whole = content.getvalue()
    return write_whole(
        cache_directory("ship") / f"gapless-{hashlib.sha256(whole).hexdigest()[:16]}.zip", whole
    )


def package_root() -> Path:
    """Return the directory (or zip file) of the packages imported by this process."""
    return Path(str(files(PACKAGES[-1]))).parent


def walk_sources(folder: Traversable, path: str) -> list[tuple[str, Traversable]]:
    """Return the source files below a folder, in a fixed order, each with the path in the zip."""
    found = []
    for entry in sorted(folder.iterdir(), key=lambda one: one.name):
        name = f"{path}/{entry.name}"
        if entry.is_dir():
            found += [] if entry.name == "__pycache__" else walk_sources(entry, name)
        elif entry.name.endswith((".py", ".typed")):
            found.append((name, entry))
    return found
