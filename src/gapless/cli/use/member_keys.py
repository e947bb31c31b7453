"""``gapless keys … --group``: ask every member which keys it has, before a step of a rotation.

``wait_for_groups`` joins each group in turn with the keyring, requests a snapshot of every member,
and returns why the step is not safe yet, a sentence for each reason. A step is safe

- for ``seal`` if every member opens the new key;
- for ``retire`` if no member seals with the key, every member opens the key that seals now, and no
  durable member is absent.

A member that does not answer, or whose version does not tell its keys, is a reason, too.
"""

from __future__ import annotations

import time
from threading import Event
from typing import TYPE_CHECKING, Any, NamedTuple

from gapless.cli.group_options import joined_group, note
from gapless.cli.rendering import progress_bar
from gapless.cli.use.top import observe_group
from gapless.identity import member_label
from gapless.keys.keyring import RotationStep
from gapless.units import format_count

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from gapless.blocking import Group
    from gapless.identity import Address
    from gapless.protocol.snapshot import MemberSnapshot

POLL_S = 0.5
"""Time between two questions to the members."""


class KeyStep(NamedTuple):
    """A step of a rotation: the key that is to seal or to be retired, and the key that seals."""

    step: RotationStep
    key: str
    sealing: str


class MembersKeys(NamedTuple):
    """The keys of the other members of groups, and why a step is not safe yet."""

    members: tuple[dict[str, Any], ...]
    reasons: tuple[str, ...]


def wait_for_groups(
    groups: Sequence[str],
    path: Path,
    step: KeyStep,
    options: dict[str, Any],
    timeout_s: float | None,
) -> MembersKeys:
    """Return the keys of all members once ``step`` is safe, or ``timeout_s`` is over.

    Each change of the reasons is written to standard error. None waits without a limit.
    """
    deadline_s = None if timeout_s is None else time.monotonic() + timeout_s
    # A member that is ready stays ready, so one group after another is enough.
    found = [_wait_for_group(group, path, step, options, deadline_s) for group in groups]
    return MembersKeys(
        tuple(row for one in found for row in one.members),
        tuple(reason for one in found for reason in one.reasons),
    )


def _wait_for_group(
    group: str, path: Path, step: KeyStep, options: dict[str, Any], deadline_s: float | None
) -> MembersKeys:
    with (
        joined_group(group, {**options, "keys": path}, quiet=True, listen=False) as member,
        progress_bar("asking the members", None, quiet=False) as show,
    ):
        # The names of members that do not answer any more.
        names: dict[Address, str] = {}
        shown: tuple[str, ...] = ()
        while True:
            found = ask_members(member, step, names)
            left_s = None if deadline_s is None else deadline_s - time.monotonic()
            if not found.reasons or (left_s is not None and left_s <= 0):
                return found
            ready = sum(row["ready"] for row in found.members)
            total = len(found.members)
            are = "is" if total == 1 else "are"
            progress = f"{ready} of {format_count(total, 'member')} {are} ready"
            show(ready, progress)
            if found.reasons != shown:
                shown = found.reasons
                note(f"{time.strftime('%H:%M:%S')}  {group}: waiting: {progress}")
                for reason in found.reasons:
                    note(f"          {reason}")
            Event().wait(POLL_S if left_s is None else min(POLL_S, left_s))


def ask_members(group: Group, step: KeyStep, names: dict[Address, str]) -> MembersKeys:
    """Ask all other members once; ``names`` gets the display names of the members that answer."""
    rows: list[dict[str, Any]] = []
    reasons: list[str] = []
    for address, one in observe_group(group).snapshots.items():
        if address == group.me:
            continue
        if one is not None:
            names[address] = one.display_name
        problem = key_problem(one, step)
        if problem:
            reasons.append(f"{member_label(address, names.get(address, ''))} {problem}")
        keys = None if one is None else one.keys
        rows.append(
            {
                "group": group.group,
                "member": str(address),
                "name": names.get(address, ""),
                "seals": None if keys is None else keys.seals,
                "opens": None if keys is None else list(keys.opens),
                "ready": not problem,
            }
        )
    own = group.snapshot()
    if not rows:
        why = "".join(f"; {problem}" for problem in own.health.problems)
        reasons.append(
            f"no other member of {group.group} was found{why}; check the name, and --discover"
        )
    if step.step is RotationStep.RETIRE:
        reasons += (
            f"the durable member {name} is absent: wait until the member returns, or until"
            " retention_timeout has passed"
            for name in own.absent
        )
    return MembersKeys(tuple(rows), tuple(reasons))


def key_problem(one: MemberSnapshot | None, step: KeyStep) -> str:
    """Return why a member is not ready for a step, as the end of a sentence; "" if it is ready."""
    if one is None:
        return "does not answer"
    if one.keys is None:
        return (
            "does not tell its keys: its version of gapless is older; compare its file with"
            " gapless keys check"
        )
    opens = f"the member opens {', '.join(one.keys.opens)}"
    if step.step is RotationStep.SEAL:
        return "" if step.key in one.keys.opens else f"lacks the key {step.key}; {opens}"
    if one.keys.seals == step.key:
        return f"still seals with the key {step.key}"
    return "" if step.sealing in one.keys.opens else f"lacks the key {step.sealing}; {opens}"
