"""A cell: a combination of parameters. A cell and a seed are a simulated run."""

from __future__ import annotations

import json
from functools import cache
from hashlib import blake2b
from importlib.resources import files
from typing import TYPE_CHECKING, NamedTuple

from gapless.sim.profile_cost import ProfileWorkload, compare_command, config_of, shrink_command
from gapless.units import format_duration
from pyspark_gapless.runtime.package_zip import walk_sources
from pyspark_gapless.sweep.schema import GRID, MEMBERSHIP

if TYPE_CHECKING:
    from gapless.config import Config

SIMULATED_PACKAGES = ("protocol", "wire", "faults", "sim", "trace")
"""The packages of ``gapless`` that affect a simulated run, beside the top-level files."""


class SweepCell(NamedTuple):
    """A combination of parameters.

    A grid gives every parameter. In a hunt, profile and members are None if the seed draws both,
    and there is no loss, size or pace. ``knobs`` are the given settings, by name, each as text.
    """

    kind: str
    profile: str | None
    members: int | None
    messages: int
    loss_percent: float | None = None
    size_bytes: int | None = None
    pace_ns: int | None = None
    knobs: tuple[tuple[str, str], ...] = ()
    mutant: str = ""

    @property
    def key(self) -> str:
        """A hash of all parameters: the same on every machine and at any time."""
        return _key(self)

    @property
    def membership(self) -> bool:
        """Whether the group makes its own views."""
        return self.kind == MEMBERSHIP

    def config(self) -> Config | None:
        """Return the configuration; None if drawn by the seed."""
        if self.kind != GRID:
            return None
        assert self.profile is not None
        return config_of(self.profile, ";".join(f"{name}={value}" for name, value in self.knobs))

    def workload(self, seed: int) -> ProfileWorkload:
        """Return the work of a cell of a grid."""
        assert self.members is not None
        assert self.size_bytes is not None
        assert self.pace_ns is not None
        return ProfileWorkload(self.members, self.messages, self.size_bytes, self.pace_ns, seed)

    def replay(self, seed: int) -> str:
        """Return the command to run a seed again."""
        return self._command(seed, shrink=False)

    def shrink(self, seed: int) -> str:
        """Return the command to shrink a failing seed to a scenario."""
        return self._command(seed, shrink=True)

    def _command(self, seed: int, *, shrink: bool) -> str:
        config = self.config()
        if config is not None:
            assert self.profile is not None
            assert self.loss_percent is not None
            make = shrink_command if shrink else compare_command
            return make(self.profile, self.loss_percent, self.workload(seed), config, self.mutant)
        from gapless.sim.shrink.shrinker import SeedOrigin

        origin = SeedOrigin(seed, self.messages, self.members, None, self.profile, self.membership)
        command = origin.command.replace(
            "gapless sim", "gapless shrink" if shrink else "gapless sim"
        )
        return command + (f' --mutant "{self.mutant}"' if self.mutant else "")

    def describe(self) -> dict[str, str]:
        """Return the parameters as texts for a table; missing parameters are empty."""
        told: dict[str, object] = {
            "kind": self.kind,
            "profile": self.profile,
            "members": self.members,
            "loss": None if self.loss_percent is None else f"{self.loss_percent:g} %",
            **dict(self.knobs),
            "messages": self.messages,
            "size": self.size_bytes,
            "pace": None if self.pace_ns is None else format_duration(self.pace_ns),
            "mutant": self.mutant,
        }
        return {name: "" if value is None else str(value) for name, value in told.items()}


@cache
def _key(cell: SweepCell) -> str:
    return blake2b(json.dumps(cell._asdict(), sort_keys=True).encode(), digest_size=8).hexdigest()


@cache
def code_digest() -> str:
    """Return a hash of the simulated code and the simulator: results hold only for this code."""
    digest = blake2b(digest_size=8)
    for name, entry in walk_sources(files("gapless"), "gapless"):
        folder, _, rest = name.removeprefix("gapless/").partition("/")
        if not rest or folder in SIMULATED_PACKAGES:
            content = entry.read_bytes()
            digest.update(f"{name} {len(content)}\n".encode() + content)
    return digest.hexdigest()
