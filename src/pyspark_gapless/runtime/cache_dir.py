"""The cache directory: ``$XDG_CACHE_HOME/gapless``, or ``~/.cache/gapless``.

If the home directory is not writable (a container, a service), the cache is a directory of the
current user among the temporary files. Spark runs programs from the cache, so a directory owned by
another user is refused.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Mapping
from pathlib import Path

from gapless.errors import GaplessError
from gapless.output.private_files import make_inner_folder, make_private_folder, unsafe_folder


class CacheError(GaplessError):
    """No directory is usable as a cache; the message lists the tried directories."""


def cache_directory(*parts: str, environ: Mapping[str, str] | None = None) -> Path:
    """Return the directory ``parts`` of the cache: existing, writable, owned by this user."""
    environ = os.environ if environ is None else environ
    tried = []
    for root in _roots(environ):
        path = root.joinpath(*parts)
        try:
            make_private_folder(root)
            if root.stat().st_uid != os.getuid() or root.lstat().st_uid != os.getuid():
                tried.append(f"{root} (belongs to another user)")
                continue
            if reason := unsafe_folder(root):
                tried.append(reason)
                continue
            make_inner_folder(path)
            with tempfile.TemporaryFile(dir=path):
                return path
        except OSError as error:
            tried.append(f"{root} ({error.strerror or error})")
    raise CacheError(
        "no usable cache directory for Spark's start files: tried "
        f"{', '.join(tried)}; set XDG_CACHE_HOME to a writable directory"
    )


def _roots(environ: Mapping[str, str]) -> list[Path]:
    asked = Path(environ.get("XDG_CACHE_HOME", ""))
    if asked.is_absolute():
        return [asked / "gapless"]
    home = Path(environ.get("HOME", ""))
    temporary = Path(tempfile.gettempdir()) / f"gapless-cache-{os.getuid()}"
    return [home / ".cache" / "gapless", temporary] if home.is_absolute() else [temporary]


def write_whole(path: Path, content: bytes, mode: int = 0o600) -> Path:
    """Write a file atomically; leave a file with the same content unchanged."""
    try:
        if path.read_bytes() == content and path.stat().st_mode & 0o777 == mode:
            return path
    except OSError:
        pass
    with tempfile.NamedTemporaryFile(
        dir=path.parent, prefix=f".{path.name}.", delete=False
    ) as file:
        file.write(content)
    Path(file.name).chmod(mode)
    Path(file.name).replace(path)
    return path
