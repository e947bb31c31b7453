"""The writer lock: a lock on ``<spool>/lock``, released by the system when the process ends."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import json
import os
import socket
import time
from pathlib import Path

from gapless.output.private_files import open_private
from gapless.spool.errors import SpoolLocked, from_os_error


class SpoolLock:
    """The writer's lock, held from construction until ``release``."""

    def __init__(self, root: Path) -> None:
        self.path = root / "lock"
        try:
            self._descriptor = open_private(self.path, os.O_RDWR | os.O_CREAT)
        except OSError as error:
            raise from_os_error(error, self.path, "opening the lock") from error
        try:
            fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            holder = describe_holder(root)
            os.close(self._descriptor)
            if error.errno not in (errno.EWOULDBLOCK, errno.EACCES):
                raise from_os_error(error, self.path, "locking it") from error
            raise SpoolLocked(
                f"{root}: another process writes to this spool: {holder}; stop the other process, "
                f"or use another folder",
                self.path,
            ) from None
        content = {"pid": os.getpid(), "host": socket.gethostname(), "since_ns": time.time_ns()}
        # Only for the message of the next one: a full disk must not keep the lock from being taken.
        with contextlib.suppress(OSError):
            os.ftruncate(self._descriptor, 0)
            os.pwrite(self._descriptor, json.dumps(content).encode() + b"\n", 0)

    def ensure_held(self) -> SpoolLock:
        """Return this lock, or a new lock if the lock file was deleted.

        Raises:
            SpoolLocked: Another writer was faster.
        """
        if self._descriptor < 0:
            return self
        held = os.fstat(self._descriptor)
        try:
            found = self.path.stat()
        except OSError as error:
            if error.errno != errno.ENOENT or not self.path.parent.is_dir():
                raise from_os_error(error, self.path, "looking at the lock") from error
            found = None
        if found is not None and (found.st_dev, found.st_ino) == (held.st_dev, held.st_ino):
            return self
        lock = SpoolLock(self.path.parent)
        self.release()
        return lock

    def release(self) -> None:
        """Let another writer in."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1


def describe_holder(root: Path) -> str:
    """Return a description of the last holder of the lock."""
    try:
        content = json.loads((root / "lock").read_bytes())
        return f"pid {int(content['pid'])} on {content['host']}"
    except (OSError, ValueError, KeyError, TypeError):
        return "the lock file does not name it"


def is_locked(root: Path) -> bool:
    """Whether a writer holds the spool now.

    False without a lock file, or where the file system has no locks.
    """
    try:
        descriptor = os.open(root / "lock", os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except OSError:
        return True
    finally:
        os.close(descriptor)
    return False
