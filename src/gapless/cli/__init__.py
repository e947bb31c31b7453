"""The command line: ``gapless COMMAND``, a table for a person and ``--json`` for a program."""

from __future__ import annotations

import sys


def main() -> None:
    """Run the command line and exit with its code."""
    from gapless.cli.interrupts import (
        EXIT_INTERRUPTED,
        end_on_interrupt,
        forget_interrupt,
        ignore_interrupts,
        was_interrupted,
    )

    end_on_interrupt()
    try:
        code = _run()
    except BaseException as error:
        # Ctrl-C before or after the command itself, or the error of an operation that it broke off.
        if not (was_interrupted() or isinstance(error, KeyboardInterrupt)):
            raise
        code = EXIT_INTERRUPTED
    if was_interrupted() or code == EXIT_INTERRUPTED:
        code = EXIT_INTERRUPTED
        forget_interrupt()
    else:
        ignore_interrupts()
    sys.exit(code)


def _run() -> int:
    try:
        from gapless.cli.app import run
    except ModuleNotFoundError as error:
        if error.name not in ("click", "rich"):
            raise
        sys.stderr.write(
            f"gapless: {error.name} is not installed; run: pip install 'gapless[cli]'\n"
        )
        return 2
    return run(sys.argv[1:])
