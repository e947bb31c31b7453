"""``gapless explore``: every interleaving of a small group, on the real core."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from gapless.cli.rendering import console, json_option, make_table, print_json, progress_bar
from gapless.config import GROUP_PROFILE_NAMES, UNICAST_PROFILE_NAMES

if TYPE_CHECKING:
    from gapless.sim.model_check.bounds import Side


@click.command()
@click.option(
    "--profile",
    type=click.Choice((*GROUP_PROFILE_NAMES, *UNICAST_PROFILE_NAMES)),
    default=GROUP_PROFILE_NAMES[0],
    show_default=True,
    help="Protocol; with a unicast profile the sender sends to the first receiver.",
)
@click.option(
    "--receivers",
    type=click.IntRange(1, 4),
    default=2,
    show_default=True,
    help="Number of receivers.",
)
@click.option(
    "--capacity",
    type=click.IntRange(1, 64),
    default=2,
    show_default=True,
    help="Capacity of the send window, in messages.",
)
@click.option(
    "--messages",
    type=click.IntRange(1, 64),
    default=3,
    show_default=True,
    help="Number of messages to send.",
)
@click.option(
    "--in-flight",
    type=click.IntRange(1, 16),
    default=3,
    show_default=True,
    help="Maximum number of frames in flight.",
)
@click.option(
    "--ack-threshold",
    type=click.IntRange(1, 64),
    default=1,
    show_default=True,
    help="Messages per ack.",
)
@click.option(
    "--coordinator",
    type=click.Choice(("sender", "receiver")),
    default="sender",
    show_default=True,
    help="Member that counts stability votes, in profiles with votes.",
)
@click.option(
    "--any-holder",
    is_flag=True,
    help="Request missing messages from any member, not only the origin (nakack).",
)
@click.option(
    "--forgets", is_flag=True, help="Let the receiver remove the connection at any moment."
)
@click.option("--acknowledged", is_flag=True, help="Report complete delivery to the sender.")
@click.option(
    "--max-states", type=click.IntRange(1), default=None, help="Maximum number of states."
)
@json_option
def explore(
    *,
    profile: str,
    receivers: int,
    capacity: int,
    messages: int,
    in_flight: int,
    ack_threshold: int,
    coordinator: Side,
    any_holder: bool,
    forgets: bool,
    acknowledged: bool,
    max_states: int | None,
    as_json: bool,
) -> int:
    """Search every interleaving of deliver, drop, duplicate, reorder and timers for a sender.

    Checks the safety invariants in every state, and whether the goal (all delivered, all
    acknowledged) can still be reached from every state. Prints the shortest path to a violation.
    """
    from gapless.sim.model_check.search import SearchBounds, explore as search

    bounds = SearchBounds(
        profile=profile,
        receivers=receivers,
        capacity=capacity,
        messages=messages,
        in_flight=in_flight,
        ack_threshold=ack_threshold,
        coordinator=coordinator,
        any_holder=any_holder,
        forgets=forgets,
        acknowledged=acknowledged,
    )
    with progress_bar("states", None, quiet=as_json) as done:
        found = search(bounds, max_states=max_states, progress=done)
    if as_json:
        print_json(found.as_dict())
    else:
        rows = [
            (key.replace("_", " "), value)
            for key, value in found.as_dict().items()
            if key != "counterexample"
        ]
        console().print(make_table("Exhaustive search", ("what", "value"), rows))
        console().print(
            "" if found.counterexample is None else str(found.counterexample), highlight=False
        )
    return 0 if found.ok else 1
