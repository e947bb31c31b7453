"""Scripted views instead of membership: the runs of each process, and the times of each view.

All members see the views in the same order, but at different times: each member installs each view
a little earlier or later than the others. A member may crash, leave, be expelled while running, or
return as a new incarnation, and new members may join, all under load. The digest of a view with a
new member may be fresh, stale or lost, and differ from member to member.

When the calm begins, every running member has installed the last view and belongs to the view.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from gapless.faults.frame_names import node_name
from gapless.sim.script import (
    ZERO,
    ApplyDigest,
    CrashProcess,
    InstallView,
    PauseProcess,
    ResumeProcess,
    SaveDigest,
    StartProcess,
)

if TYPE_CHECKING:
    from random import Random

    from gapless.config import Config
    from gapless.sim.script import Action


class _ViewSchedule:
    """The membership of a run in the making."""

    def __init__(
        self, rng: Random, names: tuple[str, ...], span_ns: int, config: Config, *, living: bool
    ) -> None:
        self.rng = rng
        self.living = living
        self.span_ns = span_ns
        self.skew_ns = rng.choice(
            (0, config.xmit_interval_ns // 10, config.xmit_interval_ns, span_ns // 10)
        )
        self.members = list(names)
        self.now_ns = 0
        self.number = 0
        self.nodes = len(names)
        self.last_install_ns: dict[str, int] = {}
        self.actions: list[Action] = []
        self.expelled_live: list[str] = []

    def begin(self) -> None:
        """Start all; without a digest in the first view every sender must announce its start."""
        for name in self.members:
            self.actions.append(StartProcess(0, name))
        self._install_everywhere(0, ZERO if self.rng.random() < 0.5 else "")

    def change(self, at_ns: int) -> None:
        """Draw a change of membership, after all earlier changes."""
        at_ns = self.now_ns = max(at_ns, self.now_ns)
        changes = [self._join, self._readmit] if self.expelled_live else [self._join]
        if len(self.members) > 2:
            changes += (
                [self._crash, self._leave, self._expel]
                if self.living
                else [self._crash, self._leave]
            )
        changes.append(self._restart)
        self.rng.choice(changes)(at_ns)

    def finish(self) -> None:
        """End the processes of former members."""
        self.actions += (CrashProcess(self.span_ns, name) for name in self.expelled_live)

    def _install_everywhere(self, at_ns: int, digest: str) -> None:
        self.number += 1
        members = tuple(self.members)
        for name in members:
            mine = digest if self.rng.random() < 0.8 else ""
            self._install(at_ns, name, members, mine)

    def _install(self, at_ns: int, name: str, members: tuple[str, ...], digest: str) -> None:
        """Install a view at a member, after its earlier views, and before the calm."""
        late_ns = self.rng.randrange(self.skew_ns + 1)
        told_ns = min(max(at_ns + late_ns, self.last_install_ns.get(name, 0)), self.span_ns)
        self.last_install_ns[name] = told_ns
        self.actions.append(InstallView(told_ns, name, self.number, members, digest))

    def _save_digest(self, at_ns: int) -> str:
        """Save the digest of a member: current or old; or lose the digest."""
        how = self.rng.choice(("fresh", "stale", "lost"))
        if how == "lost":
            return ""
        key = f"digest {self.number + 1}"
        early_ns = 0 if how == "fresh" else self.rng.randrange(self.span_ns // 10 + 1)
        self.actions.append(
            SaveDigest(max(0, at_ns - early_ns), self.rng.choice(self.members), key)
        )
        return key

    def _join(self, at_ns: int) -> None:
        self.nodes += 1
        name = node_name(self.nodes)
        digest = self._save_digest(at_ns)
        self.actions.append(StartProcess(at_ns, name))
        self.members.append(name)
        self._install_everywhere(at_ns, digest)
        if digest and self.rng.random() < 0.5:
            late_ns = self.rng.randrange(self.span_ns // 10 + 1)
            self.actions.append(ApplyDigest(min(self.span_ns, at_ns + late_ns), name, digest))

    def _crash(self, at_ns: int) -> None:
        gone = self._remove()
        self.actions.append(CrashProcess(at_ns, gone))
        self._install_everywhere(at_ns + self.rng.randrange(self.skew_ns + 1), "")

    def _leave(self, at_ns: int) -> None:
        gone = self._remove()
        self._install_everywhere(at_ns, "")
        self.actions.append(
            CrashProcess(min(self.span_ns, at_ns + self.rng.randrange(self.skew_ns + 1)), gone)
        )

    def _expel(self, at_ns: int) -> None:
        """Expel a paused member; the member resumes later without knowing."""
        gone = self._remove()
        self.actions += (
            PauseProcess(at_ns, gone),
            ResumeProcess(min(self.span_ns, at_ns + self.span_ns // 10), gone),
        )
        self.expelled_live.append(gone)
        self._install_everywhere(at_ns, "")

    def _readmit(self, at_ns: int) -> None:
        """Readmit an expelled member that still runs, as the same incarnation."""
        back = self.expelled_live.pop(self.rng.randrange(len(self.expelled_live)))
        digest = self._save_digest(at_ns)
        self.members.append(back)
        self._install_everywhere(at_ns, digest)

    def _restart(self, at_ns: int) -> None:
        """A member crashes and restarts at once as a new incarnation, perhaps unnoticed."""
        old = self._remove()
        new = old + "'"
        at_ns = self.now_ns = max(at_ns, self.last_install_ns.get(old, 0))
        self.actions += (CrashProcess(at_ns, old), StartProcess(at_ns, new))
        if self.members and self.rng.random() < 0.5:
            self._install_everywhere(at_ns, "")
        digest = self._save_digest(at_ns) if self.members else ""
        self.members.append(new)
        self._install_everywhere(at_ns, digest)

    def _remove(self) -> str:
        gone = self.rng.choice(self.members)
        self.members.remove(gone)
        return gone


def draw_views(
    rng: Random, names: tuple[str, ...], span_ns: int, config: Config, *, living: bool = True
) -> list[Action]:
    """Draw the membership of a run: the incarnations, and the times of each view at each member.

    With ``living`` a member may be expelled while running.
    """
    oracle = _ViewSchedule(rng, names, span_ns, config, living=living)
    oracle.begin()
    times_ns = sorted(rng.randrange(span_ns) for _ in range(rng.choice((1, 1, 2, 3, 5))))
    for at_ns in times_ns:
        oracle.change(at_ns)
    oracle.finish()
    return _in_order(oracle.actions)


def _in_order(actions: list[Action]) -> list[Action]:
    """Sort by time; the sort is stable, so that a process starts before its other actions."""
    return sorted(actions, key=lambda action: action.at_ns)
