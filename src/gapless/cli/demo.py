"""``gapless demo``: a lossy group at work, then a swarm of groups with every fault there is."""

from __future__ import annotations

from math import isnan
from time import perf_counter
from typing import Any

import click

from gapless.cli.output import console, json_option, make_table, print_json, progress_bar
from gapless.cli.sim import MOST_SEED, cores


@click.command()
@click.option("--members", type=click.IntRange(2, 26), default=3, show_default=True, help="Members, all sending.")
@click.option("--messages", type=click.IntRange(1, 1_000_000), default=5000, show_default=True, help="Per member.")
@click.option("--loss", type=click.FloatRange(0, 50), default=5.0, show_default=True, help="Per cent of frames lost.")
@click.option("--seed", type=click.IntRange(0, MOST_SEED), default=1, show_default=True, help="Seed of all randomness.")
@click.option(
    "--seeds", type=click.IntRange(0, 100_000), default=200, show_default=True, help="Groups in the swarm; 0: none."
)
@json_option
def demo(members: int, messages: int, loss: float, seed: int, seeds: int, as_json: bool) -> int:
    """Show a group that loses frames and no messages, then try to break a few hundred more."""
    from gapless.sim.run import sweep
    from gapless.sim.show import show

    if isnan(loss):
        raise click.UsageError("--loss is a number from 0 to 50")

    began_s = perf_counter()
    with progress_bar("a lossy group", 100, quiet=as_json) as done:
        shown = show(members, messages, loss / 100, seed, done)
    with progress_bar("a swarm of groups", seeds, quiet=as_json or not seeds) as done:
        swarm = sweep(range(seeds), workers=cores(), progress=done)
    violations = shown.violations + sum(len(outcome.violations) for outcome in swarm.failed)
    report: dict[str, Any] = {
        "members": members,
        "sent": shown.sent,
        "delivered": shown.delivered,
        "lost": shown.lost,
        "duplicated": max(0, shown.delivered - shown.expected),
        "frames_lost": shown.frames_lost,
        "naks": shown.naks,
        "repairs": shown.repairs,
        "latency_p50_ms": round(shown.p50_ns / 1e6, 3),
        "latency_p99_ms": round(shown.p99_ns / 1e6, 3),
        "swarm_groups": swarm.seeds,
        "swarm_events": swarm.events,
        "swarm_faults": sum(swarm.faults.values()),
        "violations": violations,
        "wall_seconds": round(perf_counter() - began_s, 2),
    }
    if as_json:
        print_json(report)
    else:
        _print(report, loss)
    return 1 if violations or shown.lost else 0


_MEANINGS = {
    "sent": "messages, by all members together",
    "delivered": "at all other members together",
    "lost": "messages that somebody did not get",
    "duplicated": "messages that somebody got twice",
    "frames_lost": "frames that the network lost",
    "naks": "questions for what was missing",
    "repairs": "frames sent again",
    "latency_p50_ms": "half of all deliveries took no longer (virtual time, 200 us network)",
    "latency_p99_ms": "99 of 100 deliveries took no longer",
    "swarm_groups": "groups with random knobs and every kind of fault",
    "swarm_events": "events in them",
    "swarm_faults": "faults that struck them",
    "violations": "of the invariants, checked after every step",
}


def _print(report: dict[str, Any], loss: float) -> None:
    title = f"{report['members']} members, all sending, {loss:g} % of all frames lost"
    rows = [
        (key.replace("_", " "), f"{report[key]:,}" if isinstance(report[key], int) else report[key], meaning)
        for key, meaning in _MEANINGS.items()
    ]
    console().print(make_table(title, ("what", "value", "meaning"), rows))
    console().print("next: gapless sim --seeds 300, gapless explore, gapless mutants, gapless sim 7")
