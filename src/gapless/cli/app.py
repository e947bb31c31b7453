"""The list of commands, and the one place that turns errors into a line and an exit code.

Exit codes: 0 all is well; 1 the command did its work and found violations; 2 the input was wrong
(one line says what, what was expected and what to do); 130 interrupted.
"""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING

import click

from gapless import __version__
from gapless.cli.data.collect import collect
from gapless.cli.data.pipeline import pipeline
from gapless.cli.data.report import report
from gapless.cli.data.spool import spool
from gapless.cli.data.verify import verify
from gapless.cli.lab.behaviours import behaviours
from gapless.cli.lab.bench import bench
from gapless.cli.lab.chaos import chaos
from gapless.cli.lab.compare import compare
from gapless.cli.lab.demo import demo
from gapless.cli.lab.explore import explore
from gapless.cli.lab.mutants import mutants
from gapless.cli.lab.scenario import scenario
from gapless.cli.lab.shrink import shrink
from gapless.cli.lab.sim import sim
from gapless.cli.lab.soak import soak
from gapless.cli.lab.sweep import sweep
from gapless.cli.use.chat import chat
from gapless.cli.use.config import config
from gapless.cli.use.doctor import doctor
from gapless.cli.use.listen import listen
from gapless.cli.use.send import send
from gapless.cli.use.top import top
from gapless.errors import GaplessError

if TYPE_CHECKING:
    from collections.abc import Sequence

EXIT_USAGE = 2
EXIT_INTERRUPTED = 130


@click.group(context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@click.version_option(__version__, prog_name="gapless")
def cli() -> None:
    """Reliable, ordered group messaging without a broker: talk in a group, watch it, simulate it, try to break it."""


for command in (
    *(chat, send, listen, collect, spool, pipeline, top, doctor, bench, soak, chaos),
    *(
        sim,
        shrink,
        scenario,
        explore,
        mutants,
        compare,
        sweep,
        verify,
        report,
        config,
        behaviours,
        demo,
    ),
):
    cli.add_command(command)


def run(arguments: Sequence[str]) -> int:
    """Run one command line and return its exit code."""
    try:
        result = cli.main(args=list(arguments), prog_name="gapless", standalone_mode=False)
    except click.ClickException as error:
        return _print_error(error.format_message(), _where(error))
    except (GaplessError, OSError) as error:
        if isinstance(error, BrokenPipeError):
            # The reader has gone away; python would complain once more when it closes standard
            # output.
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            return 0
        return _print_error(str(error), None)
    except (KeyboardInterrupt, click.Abort):
        return _print_error("interrupted", None, EXIT_INTERRUPTED)
    return result if isinstance(result, int) else 0


def _where(error: click.ClickException) -> str | None:
    context = getattr(error, "ctx", None)
    return None if context is None else str(context.command_path)


def _print_error(message: str, path: str | None, code: int = EXIT_USAGE) -> int:
    line = " ".join(message.split())
    hint = f" (see: {path} --help)" if path else ""
    sys.stderr.write(f"{path or 'gapless'}: {line}{hint}\n")
    return code
