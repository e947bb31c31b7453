"""Starts the programs of ``programs/group_program.py``."""

import json
from typing import Any

from tests.support.processes import PROGRAMS, ChildProcess

FORK = "ignore:This process:DeprecationWarning"
"""Newer interpreters warn of a fork in a process with threads; here that is what is tested."""


def program(name: str, ports: list[int], **more: Any) -> ChildProcess:
    """Start a program, in which every other warning is an error."""
    options = json.dumps({"ports": ports, **more})
    return ChildProcess(
        "-W", "error", "-W", FORK, str(PROGRAMS / "group_program.py"), name, options
    )
