"""Folders and files for the current user alone, whatever the umask is.

A folder created by Gapless has the mode 0700, a file 0600. An existing folder keeps the mode, and
new entries inside get the permissions of the folder, as far as the umask allows. An operator can
therefore prepare a folder with the mode 0750 to let the group of the folder read. No new entry is
ever writable for all users.

A folder is refused if every user can write to it, or if another user may have planted it.
"""

from __future__ import annotations

import os
import stat
from pathlib import Path

FOLDER_MODE, FILE_MODE = 0o700, 0o600
"""The modes of what is created, without a wider folder around."""


def make_private_folder(path: Path) -> None:
    """Create a folder and all missing parents for this user alone; keep an existing folder.

    Raises:
        OSError: The folder cannot be created.
    """
    _make_folder(path, inherits=False)


def make_inner_folder(path: Path, *, is_new: bool = False) -> None:
    """Create a folder, and missing parents, with the permissions of the folder around it.

    Raises:
        OSError: The folder cannot be created, or exists although ``is_new``.
    """
    _make_folder(path, inherits=True, is_new=is_new)


def _make_folder(path: Path, *, inherits: bool, is_new: bool = False) -> None:
    if path.is_dir() and not is_new:
        return
    if not path.parent.exists():
        _make_folder(path.parent, inherits=inherits)
    mode = FOLDER_MODE | (_inherited(path.parent) & 0o075 if inherits else 0)
    try:
        path.mkdir(mode)
    except FileExistsError:
        if is_new or not path.is_dir():
            raise


def _inherited(folder: Path) -> int:
    """Return the permissions of a folder for its group and for others, never to write for all."""
    mode = folder.stat().st_mode
    # The group of a new file in a folder for everyone is not the group that the operator meant.
    return mode & (0o055 if mode & stat.S_IWOTH else 0o075)


def open_private(path: str | Path, flags: int) -> int:
    """Open or create a file with the permissions of the folder; an ``opener`` for ``open``.

    A file created by root belongs to the owner of the folder. After a repair by root the collector
    can therefore still read the spool.

    Raises:
        OSError: The file cannot be opened.
    """
    folder = Path(path).parent
    mode = FILE_MODE | (_inherited(folder) & 0o066 if flags & os.O_CREAT else 0)
    descriptor = os.open(path, flags | os.O_CLOEXEC, mode)
    # Only a file that is certainly new: another name of a file could give the file away.
    if flags & os.O_EXCL and os.geteuid() == 0 and (owner := folder.stat().st_uid) != 0:
        os.fchown(descriptor, owner, -1)
    return descriptor


def file_stamp(path: Path) -> tuple[int, ...] | None:
    """Return what changes with the file, its mode and its owner; None without a file."""
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_ino, found.st_mtime_ns, found.st_ctime_ns, found.st_size


def unsafe_folder(path: Path) -> str:
    """Return why a folder must not be used, and the remedy; "" for a safe or a missing folder."""
    path = path.absolute()
    try:
        if path.stat().st_mode & stat.S_IWOTH:
            return (
                f"{path}: every user of this machine can write to this folder; use a new folder"
                f" inside, which is created for this user alone, or run: chmod o-w {path}"
            )
        for folder in (path, *path.parents):
            owner = folder.lstat().st_uid
            if owner not in (0, os.geteuid()) and folder.parent.stat().st_mode & stat.S_IWOTH:
                return (
                    f"{path}: {folder} belongs to another user (uid {owner}), and every user can"
                    f" write to {folder.parent}; use a folder of this user"
                )
    except OSError:
        return ""  # opening a file there says why
    return ""
