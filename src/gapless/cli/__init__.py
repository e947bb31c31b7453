"""The command line: ``gapless COMMAND``, a table for a person and ``--json`` for a program."""

from __future__ import annotations

import sys


def main() -> None:
    """Run the command line and leave with its exit code."""
    try:
        from gapless.cli.app import run
    except ModuleNotFoundError as error:
        if error.name not in ("click", "rich"):
            raise
        sys.stderr.write(
            f"gapless: {error.name} is not installed; run: pip install 'gapless[cli]'\n"
        )
        sys.exit(2)
    sys.exit(run(sys.argv[1:]))
