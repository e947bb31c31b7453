"""In which process this is: what was opened before a fork belongs to the parent, and to nobody else.

To ask the system each time costs a call of it for each message.
"""

from __future__ import annotations

import os


class ProcessToken:
    """Stands for one process; ``ProcessToken.now`` is the one that runs this."""

    current: ProcessToken


def mark_forked() -> None:
    """Note that this is another process now; what lets go of the parent's things calls it first."""
    ProcessToken.current = ProcessToken()


mark_forked()
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=mark_forked)
