"""Gapless and its peers, in turns, in a single run (method: docs/internals/benchmarks.md).

Every message carries a number, and every receiver checks every number. Unavailable peers are
reported as missing, with the reason. No process is left running.
"""

from __future__ import annotations

import argparse
import json
import signal
import sys
import time
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

if __package__ in (None, ""):  # called by its path
    sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from bench.contenders import CONTENDERS
from bench.environment import ROOT, Environment, machine
from bench.goals import lines
from bench.network import Network, UnavailableError
from bench.plans import WORKLOADS, plan
from bench.report import as_json, broken, page_part, print_goals, print_tables, write_page
from bench.workloads import Case, Course, Outcome
from gapless.cli.rendering import console

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from types import FrameType

PAGE = ROOT / "docs" / "internals/benchmarks.md"
OWN_FAULTS = ("gapless", "jgroups")
"""Contenders that can drop packets by themselves, if the network cannot."""


class OneLineParser(argparse.ArgumentParser):
    """A parser that reports an error in a single line."""

    def error(self, message: str) -> NoReturn:
        """Exit with status 2."""
        self.exit(2, f"{self.prog}: {message} (--help says what there is)\n")


def names(known: Sequence[str], what: str) -> Callable[[str], tuple[str, ...]]:
    """Return the reader of a list of names."""

    def read(text: str) -> tuple[str, ...]:
        found = tuple(part.strip() for part in text.split(",") if part.strip())
        for name in found:
            if name not in known:
                raise argparse.ArgumentTypeError(
                    f"{name!r} is no {what}; there are {', '.join(known)}"
                )
        if not found:
            raise argparse.ArgumentTypeError(f"expected names of {what}s with commas between them")
        return found

    return read


def number(lowest: float, highest: float, kind: type[int | float]) -> Callable[[str], float]:
    """Return the reader of a number."""

    def read(text: str) -> float:
        try:
            value = kind(text)
        except ValueError:
            value = kind(-1)
        if not lowest <= value <= highest:
            raise argparse.ArgumentTypeError(f"{text!r} is not a number from {lowest} to {highest}")
        return value

    return read


def parser() -> argparse.ArgumentParser:
    """Return the options."""
    made = OneLineParser(
        prog="bench/run.py",
        description="Measure Gapless and its peers in turns, in one run.",
        allow_abbrev=False,
    )
    made.add_argument(
        "--only",
        type=names(list(WORKLOADS), "workload"),
        default=(),
        metavar="NAME,…",
        help="; ".join(f"{name}: {what}" for name, what in WORKLOADS.items()),
    )
    made.add_argument(
        "--peers",
        type=names(list(CONTENDERS), "contender"),
        metavar="NAME,…",
        help=f"measure only these: {', '.join(CONTENDERS)}",
    )
    made.add_argument(
        "--case",
        default="",
        metavar="TEXT",
        help="only cases with this in their title, such as '1 → 3'",
    )
    made.add_argument(
        "--rounds", type=number(1, 1000, int), metavar="N", help="rounds to take the median of (3)"
    )
    made.add_argument(
        "--seconds", type=number(0.05, 600, float), metavar="S", help="length of a round (0.6)"
    )
    made.add_argument(
        "--quick", action="store_true", help="one short round of fewer cases, to see that it works"
    )
    made.add_argument(
        "--offline", action="store_true", help="fetch and install nothing; use what is there"
    )
    made.add_argument(
        "--json", action="store_true", help="print one JSON document instead of tables"
    )
    made.add_argument(
        "--write", action="store_true", help="put the figures into docs/internals/benchmarks.md too"
    )
    made.add_argument(
        "--list", action="store_true", help="say what would be measured, and measure nothing"
    )
    return made


class Progress:
    """Progress: a changing line on a terminal, a line for each case in a file."""

    def __init__(self, *, quiet: bool) -> None:
        self._quiet = quiet
        self._begun_s = time.monotonic()
        self._where = self._last = ""

    def case(self, where: str) -> None:
        """Show the current case."""
        self._where = where
        if not self._quiet and not sys.stderr.isatty():
            print(f"{self._elapsed()} {where}", file=sys.stderr, flush=True)

    def __call__(self, what: str) -> None:
        """Show the current case."""
        if not self._quiet and sys.stderr.isatty():
            print(
                f"\r\x1b[K{self._elapsed()} {self._where} {what}"[:160],
                end="",
                file=sys.stderr,
                flush=True,
            )

    def note(self, what: str) -> None:
        """Print a lasting line."""
        if not self._quiet:
            print(("\r\x1b[K" if sys.stderr.isatty() else "") + what, file=sys.stderr, flush=True)

    def done(self) -> None:
        """Clear the line."""
        if not self._quiet and sys.stderr.isatty():
            print("\r\x1b[K", end="", file=sys.stderr, flush=True)

    def _elapsed(self) -> str:
        spent_s = int(time.monotonic() - self._begun_s)
        return f"{spent_s // 60}:{spent_s % 60:02}"


def narrowed(
    groups: list[list[Case]], wanted: tuple[str, ...] | None, text: str = ""
) -> list[list[Case]]:
    """Return the requested cases, each with its requested contenders."""
    from dataclasses import replace

    kept = [
        [
            replace(
                case,
                contenders=tuple(
                    name for name in case.contenders if wanted is None or name in wanted
                ),
            )
            for case in cases
            if text in case.title
        ]
        for cases in groups
    ]
    return [cases for cases in kept if cases and cases[0].contenders]


def measure(
    groups: list[list[Case]],
    environment: Environment,
    rounds: int,
    seconds: float,
    warm: float,
    progress: Progress,
) -> tuple[list[Outcome], str]:
    """Run all cases; return the outcomes, and the way of losing packets."""
    outcomes: list[Outcome] = []
    way = ""
    for at, cases in enumerate(groups):
        progress.case(f"[{at + 1}/{len(groups)}] {WORKLOADS[cases[0].workload]}, {cases[0].title}")
        with ExitStack() as stack:
            network = None
            if any(case.loss for case in cases):
                try:
                    network = stack.enter_context(Network(cases[0].shape.members))
                    way = network.way
                except UnavailableError as error:
                    way = f"the library's own fault injection drops packets, since {error}"
                    progress.note(way)
            course = Course(
                environment,
                rounds=rounds,
                seconds=seconds,
                network=network,
                tick=progress,
                warm=warm,
            )
            if network or not any(case.loss for case in cases):
                outcomes += course.run(cases, CONTENDERS)
            else:
                outcomes += without_network(course, cases, way)
    progress.done()
    return outcomes, way


def without_network(course: Course, cases: list[Case], why: str) -> list[Outcome]:
    """Measure loss without a lossy network, with contenders that drop packets themselves."""
    from dataclasses import replace

    outcomes = []
    for case in cases:
        able = tuple(
            name
            for name in case.contenders
            if CONTENDERS[name].peer in OWN_FAULTS and CONTENDERS[name].transport == "udp"
        )
        outcomes += course.run([replace(case, contenders=able)], CONTENDERS)
        outcomes += [
            Outcome(outcomes[-1].case, name, missing=f"it cannot drop packets by itself, and {why}")
            for name in case.contenders
            if name not in able
        ]
    return outcomes


def conditions(
    options: argparse.Namespace, rounds: int, seconds: float, way: str, spent_s: float
) -> dict[str, Any]:
    """Return the conditions of the figures."""
    return {
        "command": " ".join(["bench/run.py", *options.words]),
        **machine(),
        "rounds": rounds,
        "seconds a round": seconds,
        "packets are lost": way or "not measured",
        "took": f"{spent_s / 60:.1f} min",
    }


def interrupted(_: int, __: FrameType | None) -> NoReturn:
    """End like Ctrl-C, so that all processes are cleaned up."""
    raise KeyboardInterrupt


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; return the exit status."""
    options = parser().parse_args(arguments)
    options.words = list(sys.argv[1:] if arguments is None else arguments)
    rounds = int(options.rounds or (1 if options.quick else 3))
    seconds = options.seconds or (0.4 if options.quick else 0.6)
    groups = narrowed(plan(options.only, quick=options.quick), options.peers, options.case)
    if not groups:
        parser().error(
            "no such case, or none of these contenders takes part in it (--list says what there is)"
        )
    if options.write and (options.only or options.peers or options.case or options.quick):
        parser().error(
            "--write replaces all figures of the page: omit --only, --peers, --case and --quick"
        )
    if options.list:
        for case in (case for cases in groups for case in cases):
            print(f"{case.workload:8}{case.title:34}{', '.join(case.contenders)}")
        return 0
    before = signal.signal(signal.SIGTERM, interrupted)
    try:
        return measured(options, groups, rounds, seconds)
    except KeyboardInterrupt:
        print("\nbench/run.py: interrupted; nothing is left running", file=sys.stderr)
        return 130
    finally:
        signal.signal(signal.SIGTERM, before)


def measured(
    options: argparse.Namespace, groups: list[list[Case]], rounds: int, seconds: float
) -> int:
    """Measure, and print the outcome."""
    progress, begun_s = Progress(quiet=options.json and not sys.stderr.isatty()), time.monotonic()
    environment = Environment()
    wanted = list(
        dict.fromkeys(
            CONTENDERS[name].peer for cases in groups for case in cases for name in case.contenders
        )
    )
    environment.get(wanted, progress.note, install=not options.offline)
    peers = [environment.peers[name] for name in wanted]
    for peer in peers:
        if peer.reason:
            progress.note(f"missing: {peer.name}: {peer.reason}")
    warm = 0.4 if options.quick else 1.0
    outcomes, way = measure(groups, environment, rounds, seconds, warm, progress)
    about = conditions(options, rounds, seconds, way, time.monotonic() - begun_s)
    if options.json:
        goals = [line._asdict() for line in lines(outcomes)]
        said = {
            "conditions": about,
            "peers": [vars(peer) for peer in peers],
            "goals": goals,
            "figures": as_json(outcomes),
        }
        print(json.dumps(said, indent=2, ensure_ascii=False))
    else:
        screen = console()
        screen.print(", ".join(f"{key} {value}" for key, value in about.items()), style="dim")
        print_tables(screen, outcomes)
        print_goals(screen, lines(outcomes))
        screen.print(
            "ratio: how many times better the first of ours is in the same rounds; "
            "above 1 it is ahead",
            style="dim",
        )
    if options.write:
        write_page(PAGE, page_part(about, peers, outcomes, lines(outcomes)))
        progress.note(f"written to {PAGE.relative_to(ROOT)}")
    for one in broken(outcomes):
        print(
            f"{one.contender} has promised more than it kept in {one.case.name}: {one.promises}",
            file=sys.stderr,
        )
    return (
        1
        if any(
            CONTENDERS[one.contender].is_ours for one in [*broken(outcomes), *failures(outcomes)]
        )
        else 0
    )


def failures(outcomes: Sequence[Outcome]) -> list[Outcome]:
    """Return the installed contenders that failed."""
    return [one for one in outcomes if one.failed]


if __name__ == "__main__":
    sys.exit(main())
