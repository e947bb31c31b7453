"""The list of commands, and the one place that turns errors into a line and an exit code.

Exit codes: 0 for success; 1 if the command found violations; 2 for wrong input (one line names the
mistake, the expected input and the remedy); 130 if interrupted.
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
from gapless.cli.interrupts import EXIT_INTERRUPTED
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
from gapless.cli.rendering import DOCS_URL, docs_page
from gapless.cli.use.chat import chat
from gapless.cli.use.config import config
from gapless.cli.use.doctor import doctor
from gapless.cli.use.keys import keys
from gapless.cli.use.listen import listen
from gapless.cli.use.send import send
from gapless.cli.use.top import top
from gapless.errors import GaplessError
from gapless.output.printable import printable

if TYPE_CHECKING:
    from collections.abc import Sequence

EXIT_USAGE = 2


GROUPS: dict[str, dict[click.Command, tuple[str, str]]] = {
    "Use a group": {
        chat: ("Talk in a group from the terminal.", "reference/cli"),
        send: ("Send lines or a file to a group.", "reference/cli"),
        listen: ("Print the messages of a group.", "reference/cli"),
        top: ("Watch members, windows, rates and repairs.", "guides/operating/monitoring"),
        doctor: ("Check this machine: network, buffers, clock, Java.", "guides/operating/index"),
        config: ("Check a configuration and explain its settings.", "reference/settings"),
        keys: ("Make, rotate and check the keys of sealed groups.", "guides/operating/keys"),
    },
    "Keep and examine data": {
        collect: ("Store the messages of a group in a spool.", "guides/collecting"),
        spool: ("Inspect, check, repair and export a spool.", "reference/spool"),
        pipeline: ("Run a group into Spark tables, each message once.", "guides/pipeline"),
        verify: ("Check the invariants of a recorded trace.", "guides/verifying"),
        report: ("Write a page about a run or a sweep.", "guides/report"),
    },
    "Simulate, measure and break": {
        sim: ("Simulate groups from seeds.", "internals/simulator"),
        compare: ("Compare the protocols on a lossy network.", "internals/profiles"),
        explore: ("Search every interleaving of a small group.", "internals/testing"),
        scenario: ("Play scenario files and compare the outcome.", "internals/scenarios"),
        shrink: ("Reduce a failing seed to a small scenario.", "internals/scenarios"),
        mutants: ("Plant bugs and count the seeds until one fails.", "internals/testing"),
        bench: ("Measure groups of real processes.", "reference/cli"),
        soak: ("Run real processes under faults, check their traces.", "internals/soak"),
        chaos: ("Kill parts of a Spark pipeline, check its table.", "internals/chaos"),
        sweep: ("Run a grid of simulations on Spark.", "internals/sweeps"),
        demo: ("Show everything end to end on this machine.", "start/demo"),
    },
}
"""Every command with its summary and its page of the docs, in the order of the help."""


class GroupedCommands(click.Group):
    """A list of commands under a heading for each group, with full summaries at 80 columns."""

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the list."""
        del ctx
        for heading, commands in GROUPS.items():
            with formatter.section(heading):
                formatter.write_dl(
                    [(str(command.name), summary) for command, (summary, _) in commands.items()]
                )


@click.group(
    cls=GroupedCommands,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
    epilog=f"Documentation: {DOCS_URL}/",
)
@click.version_option(__version__, prog_name="gapless")
def cli() -> None:
    """Reliable, ordered group messaging without a broker."""


for commands in GROUPS.values():
    for command, (summary, page) in commands.items():
        command.short_help = summary
        command.epilog = f"More: {docs_page(page)}"
        cli.add_command(command)


def run(arguments: Sequence[str]) -> int:
    """Run one command line and return the exit code."""
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
        # If the handler of Ctrl-C has said so already, nobody sees this line.
        return _print_error("interrupted", None, EXIT_INTERRUPTED)
    return result if isinstance(result, int) else 0


def _where(error: click.ClickException) -> str | None:
    context = getattr(error, "ctx", None)
    return None if context is None else str(context.command_path)


def _print_error(message: str, path: str | None, code: int = EXIT_USAGE) -> int:
    line = printable(" ".join(message.split()))
    hint = f" (see: {path} --help)" if path else ""
    sys.stderr.write(f"{path or 'gapless'}: {line}{hint}\n")
    return code
