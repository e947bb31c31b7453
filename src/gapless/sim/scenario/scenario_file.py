"""Scenario files: a script in words, and the required outcome.

A file has comment lines (``#``) about the purpose, the script (``gapless.sim.scenario.grammar``), a
line ``----``, and the golden outcome (``gapless.sim.scenario.diagram``). Two more lines belong to
the file: ``knobs capacity=4 ack_threshold=1`` sets settings, and ``planted: NAME`` names the
planted bug (``gapless.sim.mutants``). The outcome then shows the check that catches the bug.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from difflib import unified_diff
from typing import TYPE_CHECKING

from gapless.config import Config
from gapless.errors import ConfigError, LocalProtocolError
from gapless.sim.mutants.catalogue import mutant_by_name, plant
from gapless.sim.scenario.diagram import DiagramRun, format_marks, format_verdict
from gapless.sim.scenario.grammar import read_script, show_script
from gapless.sim.scenario.literals import ScenarioError, show_time
from gapless.sim.script import ChangePartition, InstallView, Script, StartProcess

if TYPE_CHECKING:
    from pathlib import Path

    from gapless.sim.oracle.oracle import InvariantViolation

RULE = "----"
"""The line between the script and the outcome."""


@dataclass(slots=True)
class Scenario:
    """A file: ``notes`` are the comments, ``head`` is everything above the rule, as written."""

    script: Script
    config: Config = field(default_factory=Config)
    bug: str = ""
    notes: tuple[str, ...] = ()
    head: str = ""
    outcome: tuple[str, ...] = ()

    def text(self) -> str:
        """Return the whole file; the head of a parsed file stays unchanged."""
        head = self.head or format_head(self)
        return "\n".join([head.rstrip("\n"), RULE, *self.outcome]) + "\n"


@dataclass(slots=True)
class ScenarioResult:
    """The outcome of a scenario: its lines, and the violations among the lines."""

    lines: tuple[str, ...]
    violations: tuple[InvariantViolation, ...]

    @property
    def ok(self) -> bool:
        """Whether no check was violated."""
        return not self.violations

    @property
    def checks(self) -> tuple[str, ...]:
        """The names of the violated checks, without repeats, in the order of time."""
        return tuple(dict.fromkeys(violation.check for violation in self.violations))


# Reading and writing


def format_settings(config: Config) -> str:
    """Return the settings that differ from the profile's defaults, as ``name=value`` words."""
    default = {**Config.make(profile=config.profile).as_dict(), "profile": Config().profile}
    return " ".join(
        f"{key}={str(value).lower() if isinstance(value, bool) else value}"
        for key, value in config.as_dict().items()
        if value != default[key]
    )


def format_head(scenario: Scenario) -> str:
    """Return everything above the rule in the printed form."""
    lines = [f"# {note}".rstrip() for note in scenario.notes]
    if lines:
        lines.append("")
    if knobs := format_settings(scenario.config):
        lines.append(f"knobs {knobs}")
    if scenario.bug:
        lines.append(f"planted: {scenario.bug}")
    return "\n".join([*lines, *show_script(scenario.script)]) + "\n"


def parse(text: str, name: str = "scenario") -> Scenario:
    """Return the scenario in ``text``; errors call the file ``name``."""
    head, rule, golden = text.partition(f"\n{RULE}\n")
    try:
        scenario = _parse_head(head)
    except ScenarioError as error:
        raise ScenarioError(f"{name}:{error}") from error
    scenario.head = f"{head}\n"
    scenario.outcome = tuple(golden.splitlines()) if rule else ()
    return scenario


def _parse_head(head: str) -> Scenario:
    scenario = Scenario(Script())
    notes: list[str] = []
    script: list[tuple[int, str]] = []
    for number, line in enumerate(head.splitlines(), 1):
        words = line.strip()
        if words.startswith("#"):
            notes.append(words.removeprefix("#").removeprefix(" "))
        elif words.startswith("planted:"):
            scenario.bug = _known_mutant(words.removeprefix("planted:").strip(), number)
        elif words.startswith("knobs "):
            scenario.config = _parse_settings(words.removeprefix("knobs "), number)
        elif words == RULE:
            raise ScenarioError(f"{number}: there is no script above the rule")
        elif words:
            script.append((number, words))
    if not script:
        raise ScenarioError(
            "1: there is no script; docs/internals/scenarios.md shows how to write one"
        )
    scenario.notes = tuple(notes)
    scenario.script = read_script(script)
    return scenario


def _parse_settings(text: str, number: int) -> Config:
    try:
        return Config.from_properties(";".join(text.split()))
    except ConfigError as error:
        raise ScenarioError(f"{number}: {error}") from error


def _known_mutant(name: str, number: int) -> str:
    try:
        return mutant_by_name(name).name
    except LocalProtocolError as error:
        raise ScenarioError(f"{number}: {error}") from error


def load(path: Path) -> Scenario:
    """Return the scenario of a file."""
    try:
        text = path.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise ScenarioError(f"{path}: not a text file: {error}") from error
    return parse(text, str(path))


# Playing


def play(scenario: Scenario, *, bug: str | None = None) -> ScenarioResult:
    """Play the script and return the outcome; ``bug`` replaces the file's own ("" for none)."""
    _check_incarnations(scenario.script)
    with plant(scenario.bug if bug is None else bug):
        run = DiagramRun(scenario.config, scenario.script)
        try:
            run.run()
        except LocalProtocolError as error:
            raise ScenarioError(f"the script cannot be played: {error}") from error
    violations = run.world.oracle.violations
    lines = [
        *run.diagram.lines(),
        *format_marks(run.world),
        *_unused_fates(run),
        *format_verdict(violations),
    ]
    return ScenarioResult(tuple(lines), tuple(violations))


def _check_incarnations(script: Script) -> None:
    """Raise unless every subject and every member of a view has started by then."""
    started: set[str] = set()
    for action in sorted(script.actions, key=lambda action: action.at_ns):
        if isinstance(action, StartProcess):
            started.add(action.who)
        named_lives = {action.who, *(action.members if isinstance(action, InstallView) else ())}
        if not isinstance(action, ChangePartition) and (unknown := sorted(named_lives - started)):
            raise ScenarioError(
                f"the script cannot be played: at {show_time(action.at_ns)} a line "
                f"names {' '.join(unknown)}, which has not started; write a line "
                "such as: 5ms c starts"
            )


def _unused_fates(run: DiagramRun) -> list[str]:
    """Return a line for each fate that struck no frame: most often a mistake in the file."""
    script, diagram = run.world.script, run.diagram
    lines = [f"never sent: {name}" for name in script.fates if name not in diagram.applied_fates]
    if diagram.last_fault_ns > script.calm_ns:
        lines.append(
            f"a fault struck at {show_time(diagram.last_fault_ns)}, when the network was to be calm"
        )
    return lines


def difference(scenario: Scenario, outcome: ScenarioResult) -> list[str]:
    """Return the difference to the golden outcome as lines of a patch; empty if there is none."""
    lines = unified_diff(scenario.outcome, outcome.lines, "golden", "now", lineterm="", n=2)
    return list(lines)
