"""``gapless scenario``: play scenario files and compare with the golden outcome."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from gapless.cli.rendering import console, echo, json_option, make_table, print_json

if TYPE_CHECKING:
    from gapless.sim.scenario.scenario_file import Scenario, ScenarioResult


@click.command()
@click.argument("files", nargs=-1, required=True, type=click.Path(path_type=Path))
@click.option("--rewrite", is_flag=True, help="Write the outcome into the files, below the rule.")
@json_option
def scenario(files: tuple[Path, ...], rewrite: bool, as_json: bool) -> int:
    """Play scenario files; a folder stands for all files inside.

    Prints the difference to the golden outcome as a patch. With --rewrite the outcome becomes the
    golden outcome: review the change before a commit.
    """
    from gapless.sim.scenario.scenario_file import difference, load, play

    results = []
    for path in _paths(files):
        golden = load(path)
        outcome = play(golden)
        patch = difference(golden, outcome)
        if rewrite and patch:
            golden.outcome = outcome.lines
            path.write_text(golden.text(), encoding="utf-8")
        results.append(_result(path, golden, outcome, patch, rewritten=rewrite and bool(patch)))
    differ = [result for result in results if result["patch"] and not result["rewritten"]]
    if as_json:
        print_json({"files": len(results), "differ": len(differ), "results": results})
    else:
        _show(results)
    return 1 if differ else 0


def _paths(files: tuple[Path, ...]) -> list[Path]:
    found: list[Path] = []
    for path in files:
        inside = sorted(path.rglob("*.txt")) if path.is_dir() else [path]
        if not inside:
            raise click.BadParameter(f"there is no scenario (*.txt) in {path}")
        found += inside
    return found


def _result(
    path: Path, golden: Scenario, outcome: ScenarioResult, patch: list[str], *, rewritten: bool
) -> dict[str, Any]:
    return {
        "file": str(path),
        "planted": golden.bug,
        "verdict": f"violates {', '.join(outcome.checks)}" if outcome.checks else "ok",
        "rows": len(outcome.lines),
        "rewritten": rewritten,
        "patch": patch,
    }


def _show(results: list[dict[str, Any]]) -> None:
    for result in results:
        if result["patch"]:
            echo(
                f"{result['file']}: the outcome differs"
                f"{' and was rewritten' if result['rewritten'] else ''}"
            )
            for line in result["patch"]:
                echo(f"  {line}")
    rows = [
        (result["file"], result["planted"], result["verdict"], _state(result)) for result in results
    ]
    console().print(
        make_table("Scenarios", ("file", "planted bug", "verdict", "golden outcome"), rows)
    )


def _state(result: dict[str, Any]) -> str:
    if not result["patch"]:
        return "same"
    return "rewritten" if result["rewritten"] else "differs"
