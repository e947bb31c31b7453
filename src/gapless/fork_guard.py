"""Recognize a fork: sockets and threads that were made before it belong to the parent process.

A handle keeps the token of the process that opened it and compares it by identity. Asking the
system for the process id instead would cost a system call per message.
"""

from __future__ import annotations

import os


class ProcessToken:
    """Stands for one process; ``ProcessToken.current`` is the token of the running process."""

    current: ProcessToken


def mark_forked() -> None:
    """Give this process a token of its own. Cleanup of the parent's resources calls it first."""
    ProcessToken.current = ProcessToken()


mark_forked()
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=mark_forked)
