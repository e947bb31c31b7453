"""The cache directory: ``$XDG_CACHE_HOME/gapless``, or ``~/.cache/gapless``.

Where the home directory is not writable (a container, a service), a directory of this user among
the temporary files is used. Programs in the directory are run, so a directory of another user is
refused.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Mapping
from pathlib import Path

from gapless.errors import GaplessError


class CacheError(GaplessError):
    """No directory for files that can be rebuilt; the message lists those that were tried."""


def cache_directory(*parts: str, environ: Mapping[str, str] | None = None) -> Path:
    """Return the directory ``parts`` of the cache: existing, writable, owned by this user."""
    environ = os.environ if environ is None else environ
    tried = []
    for root in _roots(environ):
        path = root.joinpath(*parts)
        try:
            root.mkdir(mode=0o700, parents=True, exist_ok=True)
            if root.stat().st_uid != os.getuid():
                tried.append(f"{root} (belongs to another user)")
                continue
            path.mkdir(parents=True, exist_ok=True)
            with tempfile.TemporaryFile(dir=path):
                return path
        except OSError as error:
            tried.append(f"{root} ({error.strerror or error})")
    raise CacheError(
        f"no directory for the files that Spark is started with: tried {', '.join(tried)}; "
        "set XDG_CACHE_HOME to a directory that you can write"
    )


def _roots(environ: Mapping[str, str]) -> list[Path]:
    asked = Path(environ.get("XDG_CACHE_HOME", ""))
    if asked.is_absolute():
        return [asked / "gapless"]
    home = Path(environ.get("HOME", ""))
    temporary = Path(tempfile.gettempdir()) / f"gapless-cache-{os.getuid()}"
    return [home / ".cache" / "gapless", temporary] if home.is_absolute() else [temporary]


def write_whole(path: Path, content: bytes, mode: int = 0o644) -> Path:
    """Write a file atomically; leave it alone if it has this content already."""
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
