"""``gapless doctor``: what this machine gives to a group, and what to do where that is not enough."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click
from rich.markup import escape
from rich.table import Table

from gapless.cli.group_options import parse_ports
from gapless.cli.rendering import console, json_option, print_json

if TYPE_CHECKING:
    from gapless.doctor import DoctorFinding

_MARKS = {
    "ok": ("ok", "green"),
    "note": ("note", "cyan"),
    "warning": ("warning", "yellow"),
    "bad": ("bad", "red"),
}


@click.command()
@click.option(
    "--host", metavar="ADDRESS", help="The address of this machine that members would use."
)
@click.option(
    "--ports",
    metavar="FIRST[-LAST]",
    help="The ports that members would try; 7800-7899 by default.",
)
@json_option
def doctor(host: str | None, ports: str | None, as_json: bool) -> int:
    """Look at interfaces, multicast, buffers, ports, the clock, Java and Spark, and say what to do.

    Nothing is changed, and no root is needed. The exit code is 1 if something is bad: a group would
    not work.
    """
    from gapless.doctor import run_checks

    findings = run_checks(host, parse_ports(ports))
    worst = "bad" if any(finding.verdict == "bad" for finding in findings) else "ok"
    if as_json:
        print_json({"verdict": worst, "findings": [finding._asdict() for finding in findings]})
    else:
        console().print(_table(findings))
    return 1 if worst == "bad" else 0


def _table(findings: list[DoctorFinding]) -> Table:
    table = Table(
        title="What this machine gives to a group", title_justify="left", header_style="bold"
    )
    for column in ("", "what", "found and what to do"):
        table.add_column(column, overflow="fold")
    for finding in findings:
        mark, colour = _MARKS[finding.verdict]
        advice = f"\n[dim]→ {escape(finding.advice)}[/dim]" if finding.advice else ""
        table.add_row(
            f"[{colour}]{mark}[/{colour}]", finding.check, f"{escape(finding.found)}{advice}"
        )
    return table
