"""``gapless doctor``: check whether a group can run on this machine, and give advice."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click
from rich.table import Table
from rich.text import Text

from gapless.cli.group_options import parse_ports
from gapless.cli.rendering import console, json_option, print_json
from gapless.output.printable import printable

if TYPE_CHECKING:
    from gapless.doctor import DoctorFinding

_MARKS = {
    "ok": ("ok", "green"),
    "note": ("note", "cyan"),
    "warning": ("warning", "yellow"),
    "bad": ("bad", "red"),
}


@click.command()
@click.option("--host", metavar="ADDRESS", help="The local address that members would use.")
@click.option(
    "--ports",
    metavar="FIRST[-LAST]",
    help="The ports that members would try; 7800-7899 by default.",
)
@click.option(
    "--keys",
    type=click.Path(dir_okay=False, path_type=Path),
    metavar="FILE",
    help="The keyring to check; by default that of GAPLESS_KEYS, else of this user.",
)
@click.option(
    "--identity",
    type=click.Path(dir_okay=False, path_type=Path),
    metavar="FILE",
    help="The identity to check; by default that of GAPLESS_IDENTITY, else of this user.",
)
@click.option(
    "--tls",
    type=click.Path(file_okay=False, path_type=Path),
    metavar="FOLDER",
    help="A folder with ca.pem, cert.pem and key.pem to check.",
)
@json_option
def doctor(
    host: str | None,
    ports: str | None,
    keys: Path | None,
    identity: Path | None,
    tls: Path | None,
    as_json: bool,
) -> int:
    """Check interfaces, multicast, buffers, ports, keys, the clock, Java and Spark; give advice.

    The command changes nothing and needs no privileges. The exit code is 1 if a group would not
    work here.
    """
    from gapless.doctor import SecurityFiles, run_checks

    findings = run_checks(host, parse_ports(ports), SecurityFiles(keys, identity, tls))
    worst = "bad" if any(finding.verdict == "bad" for finding in findings) else "ok"
    if as_json:
        print_json({"verdict": worst, "findings": [finding._asdict() for finding in findings]})
    else:
        console().print(_table(findings))
    return 1 if worst == "bad" else 0


def _table(findings: list[DoctorFinding]) -> Table:
    table = Table(title="Checks of this machine", title_justify="left", header_style="bold")
    for column in ("", "check", "finding and advice"):
        table.add_column(column, overflow="fold")
    for finding in findings:
        mark, colour = _MARKS[finding.verdict]
        found = Text(printable(finding.found, keep_newlines=True))
        if finding.advice:
            found.append(printable(f"\n→ {finding.advice}", keep_newlines=True), "dim")
        table.add_row(Text(mark, colour), finding.check, found)
    return table
