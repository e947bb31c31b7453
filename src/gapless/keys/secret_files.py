"""Files with secrets, for their owner only: how a keyring and an identity are read and written.

A file is refused if another user can read it, or can replace it through its folder. A new content
is written beside the file and gets the name at the end, so a reader never sees a part of it. No
error shows what is in a file: an error names the place, never the value.
"""

from __future__ import annotations

import os
import re
import secrets
import stat
import tomllib
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gapless.errors import ConfigError
from gapless.units import KIB
from gapless.wire.seal_keys import SECRET_BYTES

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

MAX_FILE_BYTES = 512 * KIB
"""Maximum size of a file: a keyring with a few thousand identities."""
FILE_MODE = 0o600
FOLDER_MODE = 0o700
_SECRET = re.compile(rf"[0-9a-f]{{{2 * SECRET_BYTES}}}")
_POSITION = re.compile(r"at line \d{1,9}, column \d{1,9}|at end of document")
_NOT_WRITTEN = "cannot be written"
_OTHER_FOLDER = "name a file in a folder of this user"


class KeyringError(ConfigError):
    """A file with secrets cannot be used: ``problem`` is the reason, ``advice`` the remedy."""

    def __init__(self, problem: str, advice: str) -> None:
        super().__init__(f"{problem}; {advice}")
        self.problem = problem
        self.advice = advice


class DamagedFileError(KeyringError):
    """The content of a file with secrets is damaged."""


# Reading text


def decode_text(data: bytes) -> str:
    """Return the text of a file; raise ConfigError if the text is not UTF-8."""
    try:
        return data.decode()
    except UnicodeDecodeError:
        # The decoder's error contains the data.
        raise damaged("not UTF-8") from None


def damaged(problem: str) -> DamagedFileError:
    """Return the error of a damaged file; ``problem`` names the place."""
    return DamagedFileError(problem, "correct the file, or copy the file of another member")


def parse_toml(text: str) -> dict[str, Any]:
    """Return the values of a TOML text.

    Raises:
        ConfigError: The text is no TOML.
    """
    try:
        return tomllib.loads(text)
    except (ValueError, RecursionError) as error:
        # The text of the error is not shown, because the text may quote the file.
        where = _POSITION.search(str(error))
        raise damaged(f"not TOML{f' ({where[0]})' if where else ''}") from None


def read_tables(value: object, name: str) -> list[dict[str, Any]]:
    """Return the tables of a field; raise ConfigError if the field has another form."""
    if not isinstance(value, list) or not all(isinstance(each, dict) for each in value):
        raise damaged(f"{name}: expected [[{name}]] tables")
    return value


def check_fields(table: dict[str, Any], fields: tuple[str, ...], where: str) -> None:
    """Raise ConfigError unless a table has exactly these fields."""
    for name in fields:
        if name not in table:
            raise damaged(f"{where} has no {name}")
    unknown = len(table.keys() - set(fields))
    if unknown:
        # A name is not shown either: a misplaced quote makes a secret a name.
        raise damaged(f"{where} has {unknown} unknown fields; expected {', '.join(fields)}")


def read_secret(value: object, where: str) -> bytes:
    """Return 32 bytes from hexadecimal digits; raise ConfigError for other values."""
    if not isinstance(value, str) or not _SECRET.fullmatch(value):
        raise damaged(f"{where}: expected {2 * SECRET_BYTES} hexadecimal digits, 0-9 and a-f")
    return bytes.fromhex(value)


# Files


@contextmanager
def errors_name(path: Path, problem: str, advice: str) -> Iterator[None]:
    """Make every error about a keyring name the file; system errors get ``problem``."""
    try:
        yield
    except KeyringError as error:
        raise type(error)(f"{path}: {error.problem}", error.advice) from None
    except ConfigError as error:
        raise KeyringError(f"{path}: {error}", "copy the file of another member") from None
    except OSError as error:
        raise KeyringError(f"{path}: {problem}: {error.strerror}", advice) from error


def _trusted(owner: int) -> bool:
    return owner in (os.geteuid(), 0)


def exists(path: Path) -> bool:
    """Return whether a file exists.

    Raises:
        ConfigError: This user may not enter the folder of the file; the text says what to do.
    """
    try:
        path.lstat()
    except PermissionError:
        raise _denied(path, f"{path}: ") from None
    except (OSError, ValueError):
        return False
    return True


def may_enter(folder: Path) -> bool:
    """Return whether this user can reach the files of a folder; a missing folder is none."""
    try:
        os.stat(f"{folder}/.")  # noqa: PTH116 - a Path drops the dot
    except PermissionError:
        return False
    except OSError:
        return True
    return True


def _denied(path: Path, where: str = "") -> KeyringError:
    """Return the error of a file that this user may not reach or read."""
    path = Path(os.path.realpath(path))
    closed = [folder for folder in path.parents if not may_enter(folder)]
    # Behind a closed folder nothing is known, so the outermost one is named.
    target, mode = (closed[-1], "u+rwx") if closed else (path, "600")
    what = f"may not enter the folder {target}" if closed else "may not read the file"
    user, option = os.geteuid(), " -R" if closed else ""
    if target.lstat().st_uid == user:
        advice = f"run: chmod {mode} {target}"
    else:
        advice = (
            f"if it was made with sudo, run: sudo chown{option} {user} {target}; otherwise name a"
            " file of this user"
        )
    return KeyringError(f"{where}permission denied: this user {what}", advice)


def read_private(path: Path, if_exposed: str = "rotate the keys") -> bytes:
    """Return the content of a regular file that only this user or root can read and replace.

    ``if_exposed`` is what to do if other users could read the file.
    """
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except PermissionError:
        raise _denied(path) from None
    try:
        _check_file(path, os.fstat(descriptor), if_exposed)
        for folder in dict.fromkeys((path.parent, Path(os.path.realpath(path)).parent)):
            check_folder(folder)
        with open(descriptor, "rb", closefd=False) as file:
            data = file.read(MAX_FILE_BYTES + 1)
    finally:
        os.close(descriptor)
    if len(data) > MAX_FILE_BYTES:
        raise KeyringError(f"more than {MAX_FILE_BYTES} bytes", "name another file")
    return data


def create_private(path: str | Path, text: str) -> None:
    """Write a new file, and its missing folders, for this user only.

    Raises:
        FileExistsError: The file exists, and is left unchanged.
        ConfigError: The file cannot be written, or other users can write to its folder.
    """
    path, existed = Path(path), False

    def link(temporary: Path) -> None:
        nonlocal existed
        try:
            # In contrast to a rename, a link never replaces a file.
            os.link(temporary, path)
        except FileExistsError:
            existed = True

    with errors_name(path, _NOT_WRITTEN, _OTHER_FOLDER):
        make_folders(path.parent)
    _publish(path, text, link)
    if existed:
        raise FileExistsError(path)


def replace_private(path: str | Path, text: str) -> None:
    """Replace a file atomically: readers see the old content or the new content.

    Raises:
        ConfigError: The file cannot be written, or other users can write to its folder.
    """
    # A symbolic link stays, and leads to the new content.
    real = Path(os.path.realpath(path))
    _publish(real, text, lambda temporary: temporary.replace(real))


def _publish(path: Path, text: str, give_name: Callable[[Path], object]) -> None:
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(8)}.tmp")
    with errors_name(path, _NOT_WRITTEN, _OTHER_FOLDER):
        check_folder(path.parent)
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
        descriptor = os.open(temporary, flags, FILE_MODE)
        try:
            with open(descriptor, "wb") as file:  # noqa: PTH123 - by its descriptor
                file.write(text.encode())
                file.flush()
                os.fsync(descriptor)
            give_name(temporary)
        finally:
            temporary.unlink(missing_ok=True)
        _fsync_folder(path.parent)


def _check_file(path: Path, status: os.stat_result, if_exposed: str) -> None:
    if not stat.S_ISREG(status.st_mode):
        raise KeyringError("not a regular file", "name another file")
    if not _trusted(status.st_uid):
        raise KeyringError(
            f"the file belongs to another user (uid {status.st_uid})",
            f"make a copy of your own, or run: chown {os.geteuid()} {path}",
        )
    mode = stat.S_IMODE(status.st_mode)
    if mode & 0o077:
        raise KeyringError(
            f"other users can access the file (mode {mode:04o})",
            f"run: chmod 600 {path}; if others had access, {if_exposed}",
        )


def check_folder(folder: Path) -> None:
    """Raise KeyringError if another user can replace the files of a folder."""
    status = folder.stat()
    if not _trusted(status.st_uid):
        raise KeyringError(
            f"its folder belongs to another user (uid {status.st_uid}), who can replace the file",
            "move the file to a folder of this user",
        )
    if status.st_mode & 0o022:
        raise KeyringError(
            f"other users can write to its folder (mode {stat.S_IMODE(status.st_mode):04o})",
            f"run: chmod go-w {folder}, or move the file to another folder",
        )


def make_folders(folder: Path) -> None:
    """Make a folder and its missing parents for this user only."""
    if folder.is_dir():
        return
    make_folders(folder.parent)
    # Another process may be faster.
    with suppress(FileExistsError):
        folder.mkdir(mode=FOLDER_MODE)


def _fsync_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
