"""Recognize a fork: sockets and threads created before a fork belong to the parent process.

A handle keeps the token of its process and compares tokens by identity. Asking the system for the
process id instead would cost a system call per message.
"""

from __future__ import annotations

import os


class ProcessToken:
    """Stands for one process; ``ProcessToken.current`` is the token of the running process."""

    current: ProcessToken


def mark_forked() -> None:
    """Give this process a new token, before the cleanup of the parent's resources."""
    ProcessToken.current = ProcessToken()


mark_forked()
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=mark_forked)
