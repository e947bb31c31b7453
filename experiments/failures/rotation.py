"""Members of a sealed group send at full speed, while their keys are rotated many times.

Every member has a copy of the keyring file. Each step of a rotation (add a key, seal with the key,
retire the former key) replaces the copies in a random order, at different moments; the next step
begins when every member tells that it has loaded the file. At the end every member must have
delivered every message of every member once and in order, and no datagram may have met a member
without its key.
"""

from __future__ import annotations

import time
from dataclasses import asdict, dataclass, field
from random import Random
from typing import TYPE_CHECKING, Any

from experiments.failures.processes import PATIENCE_S, MemberGroup, load_average, mesh_options
from gapless.keys.keyring import Keyring
from gapless_lab.process import LabError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from experiments.failures.processes import MemberHandle

TRANSPORTS = ("udp", "tcp")
FULL_SPEED = 1e12
"""Messages a second that no member reaches: the send window decides."""
MAX_DELAY_S = 0.3
"""Longest time between the first and the last copy of a step."""
CALM_S = 3.0
"""How long the members send before the first rotation, for comparison."""
_POLL_S = 0.02


@dataclass
class Rotation:
    """The result of a run over one transport."""

    transport: str
    members: int
    rotations: int = 0
    seconds: float = 0.0
    sent: int = 0
    delivered: int = 0
    lost: int = 0
    repeated: int = 0
    rejected: dict[str, int] = field(default_factory=dict)
    """Rejected datagrams of all members, by reason."""
    calm_pause_s: float = 0.0
    """The longest time without a delivery from another member, before the first rotation."""
    calm_sender_pause_s: float = 0.0
    """The longest time without a delivery from one certain member, before the first rotation."""
    pause_s: float = 0.0
    """The longest time without a delivery from another member, during the rotations."""
    sender_pause_s: float = 0.0
    """The longest time without a delivery from one certain member, during the rotations."""
    views: int = 0
    """Views during the rotations: a member that was expelled would make one."""
    load: float = 0.0
    problems: list[str] = field(default_factory=list)

    @property
    def ok(self) -> bool:
        """Whether nothing was lost, repeated, or rejected for its key."""
        return not (
            self.lost or self.repeated or self.rejected.get("key") or self.views or self.problems
        )

    def as_dict(self) -> dict[str, Any]:
        """Return the result for a program."""
        return {**asdict(self), "ok": self.ok}


def rotation(
    transport: str,
    rotations: int = 20,
    members: int = 4,
    seed: int = 1,
    calm_s: float = CALM_S,
    progress: Callable[[], None] = lambda: None,
) -> Rotation:
    """Rotate the keys of ``members`` processes over ``transport`` while all of them send."""
    found = Rotation(transport, members)
    options = mesh_options(members, "mesh" if transport == "udp" else transport)
    with MemberGroup("rotation", options) as group:
        operator = Operator(group, members, Random(seed))
        group.wait_for_size(members)
        for member in operator.members:
            member.notify("go", rate=FULL_SPEED)
        time.sleep(calm_s)
        found.calm_pause_s, found.calm_sender_pause_s = operator.longest_pauses()
        views = sum(len(member.views) for member in operator.members)
        began_s = time.monotonic()
        for _ in range(rotations):
            operator.rotate()
            found.rotations += 1
            progress()
        found.seconds = round(time.monotonic() - began_s, 1)
        found.pause_s, found.sender_pause_s = operator.longest_pauses()
        found.views = sum(len(member.views) for member in operator.members) - views
        _check_messages(operator.members, found)
        for row in operator.ask("look"):
            for name, times in row["counters"].items():
                if name.startswith("rejected."):
                    reason = name.removeprefix("rejected.")
                    found.rejected[reason] = found.rejected.get(reason, 0) + times
    found.load = load_average()
    return found


class Operator:
    """The operator of the group: the keyring, and the copies of the members."""

    def __init__(self, group: MemberGroup, members: int, rng: Random) -> None:
        self._ring = Keyring.new()
        self._rng = rng
        self._copies = [group.folder / f"keys-{number}.toml" for number in range(members)]
        self.members: list[MemberHandle] = []
        for copy in self._copies:
            self._ring.create(copy)
            self.members += group.add(options={"keys": str(copy)})

    def ask(self, command: str) -> list[dict[str, Any]]:
        """Return the answers of all members."""
        return [member.ask(command) for member in self.members]

    def longest_pauses(self) -> tuple[float, float]:
        """Return the longest pauses since the last call: in all, and of one sender."""
        pauses = self.ask("take_pauses")
        return (
            max(row["pause_s"] for row in pauses),
            max(row["sender_pause_s"] for row in pauses),
        )

    def rotate(self) -> None:
        """Add a key, seal with the key, and retire the former key."""
        former = self._ring.sealing_key
        self._replace(self._ring.add())
        self._replace(self._ring.promote())
        self._replace(self._ring.retire(former.key.key_id))

    def _replace(self, ring: Keyring) -> None:
        """Replace every copy at a moment of its own, and wait until every member has loaded it."""
        self._ring = ring
        moments_s = sorted(self._rng.uniform(0, MAX_DELAY_S) for _ in self._copies)
        began_s = time.monotonic()
        for copy, at_s in zip(
            self._rng.sample(self._copies, len(self._copies)), moments_s, strict=True
        ):
            time.sleep(max(0.0, began_s + at_s - time.monotonic()))
            ring.write(copy)
        keys = ring.ring
        expected = {
            "ring": keys.label,
            "seals": keys.sealing_key.label,
            "opens": [f"{key_id:08x}" for key_id in sorted(keys.opening_keys)],
        }
        for member in self.members:
            _wait_for(
                lambda member=member: member.ask("look")["keys"] == expected,  # type: ignore[misc]
                f"{member.name} does not load its keyring",
            )


def _wait_for(holds: Callable[[], bool], problem: str) -> None:
    until_s = time.monotonic() + PATIENCE_S
    while not holds():
        if time.monotonic() > until_s:
            raise LabError(problem)
        time.sleep(_POLL_S)


def _check_messages(members: Sequence[MemberHandle], found: Rotation) -> None:
    """End the load, wait for the last deliveries, and count what is lost or repeated."""
    sent = {}
    for member in members:
        end = member.ask("halt")
        sent[member.task.index] = end["sent"]
        if end["stuck"]:
            found.problems.append(f"{member.name}: a send does not return")
    found.sent = sum(sent.values())
    for member in members:
        try:
            _wait_for(
                lambda member=member: member.ask("look")["received"] >= found.sent,  # type: ignore[misc]
                f"{member.name} does not deliver all messages",
            )
        except LabError as error:
            found.problems.append(str(error))
        for index, number in sent.items():
            runs = member.ask("numbers", index=index)["runs"]
            delivered = {seqno for first, last in runs for seqno in range(first, last + 1)}
            times = sum(last - first + 1 for first, last in runs)
            found.delivered += times
            found.lost += number - len(delivered)
            found.repeated += times - len(delivered)
            if len(runs) > 1:
                found.problems.append(
                    f"{member.name}: messages of member {index} are not in order: {runs[:5]}"
                )
