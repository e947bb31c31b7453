"""Seeds one after the other, on one cluster: what ``gapless chaos`` does."""

from __future__ import annotations

import shutil
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

from gapless_lab.chaos.back_pressure import BackPressureTestbed
from gapless_lab.chaos.plan import COLLECTOR, VICTIMS, ChaosPlan
from gapless_lab.chaos.spark_side import SparkSide
from gapless_lab.chaos.testbed import ChaosTestbed
from gapless_lab.exactness import FAULTS, ExactnessVerdict
from gapless_lab.process import LabError
from pyspark_gapless.runtime import class_archive, java
from pyspark_gapless.runtime.spark_install import find_installation

SeedProgress = Callable[[int, str], None]
"""Receives a seed and its phase."""


@dataclass(frozen=True)
class ChaosResult:
    """The result of one seed; ``folder`` holds its files, if they were kept."""

    plan: ChaosPlan
    verdict: ExactnessVerdict
    kills: Mapping[str, int]
    incarnations: int
    restarts: int
    seconds: Mapping[str, float]
    folder: Path | None = None
    pressure: Mapping[str, Any] | None = None

    @property
    def seed(self) -> int:
        """The seed."""
        return self.plan.seed

    @property
    def is_sound(self) -> bool:
        """Whether the table is exact."""
        return self.verdict.is_sound

    def as_dict(self) -> dict[str, Any]:
        """Return the result for a program."""
        kept = None if self.folder is None else str(self.folder)
        figures = {**self.verdict.as_dict(), "sound": self.is_sound, "folder": kept}
        about = {
            "seed": self.seed,
            "kills": dict(self.kills),
            "lives": self.incarnations,
            "query_restarts": self.restarts,
        }
        more = {} if self.pressure is None else {"back_pressure": dict(self.pressure)}
        return {**about, **figures, **more, "seconds": dict(self.seconds)}


def prepare_class_archive() -> None:
    """Build a class archive, if Java can: it cuts the start of a JVM by two fifths."""
    with suppress(class_archive.ArchiveError):
        class_archive.build_archive(java.find_java(), find_installation().home)


def chaos(
    plans: Iterable[ChaosPlan],
    *,
    folder: Path | None = None,
    keep: bool = False,
    back_pressure: bool = False,
    on_progress: SeedProgress = lambda _seed, _what: None,
) -> Iterator[ChaosResult]:
    """Run plans one after the other; keep the folders of those that fail, or all if ``keep``."""
    kind = BackPressureTestbed if back_pressure else ChaosTestbed
    base = Path(tempfile.mkdtemp(prefix="gapless-chaos-")) if folder is None else folder
    base.mkdir(parents=True, exist_ok=True)
    prepare_class_archive()
    left = False
    try:
        with SparkSide(base / "spark") as spark:
            for plan in plans:
                seed_folder = fresh_folder(base, f"seed{plan.seed}")
                testbed = kind(plan, seed_folder, spark, partial(on_progress, plan.seed))
                result = run_one(testbed, keep=keep)
                left |= result.folder is not None
                yield result
    finally:
        if not left:
            shutil.rmtree(base / "spark", ignore_errors=True)
            with suppress(OSError):
                base.rmdir()


def fresh_folder(base: Path, name: str) -> Path:
    """Return a new folder in ``base``; a seed may be run again."""
    for again in range(1000):
        path = base / (f"{name}-{again}" if again else name)
        if not path.exists():
            return path
    raise LabError(f"{base} is full of {name}: remove what is not needed any more")


def run_one(testbed: ChaosTestbed, *, keep: bool = False) -> ChaosResult:
    """Run one seed; an error is a finding, and kills the driver, whose state is unknown."""
    began_s = time.monotonic()
    try:
        verdict = testbed.run()
    except LabError as error:
        verdict = ExactnessVerdict(
            findings=[f"the run did not come to its end: {error}", *testbed.findings]
        )
        testbed.spark.stop()
    sound = verdict.is_sound
    if sound and not keep:
        shutil.rmtree(testbed.folder, ignore_errors=True)
    return ChaosResult(
        plan=testbed.plan,
        verdict=verdict,
        kills={victim: testbed.kills[victim] for victim in VICTIMS},
        incarnations=testbed.incarnations.total() - testbed.incarnations[COLLECTOR],
        restarts=len(testbed.failures),
        seconds={**testbed.seconds, "all": round(time.monotonic() - began_s, 1)},
        folder=None if sound and not keep else testbed.folder,
        pressure=asdict(testbed.pressure) if isinstance(testbed, BackPressureTestbed) else None,
    )


def totals(results: Iterable[ChaosResult]) -> dict[str, Any]:
    """Return the sums over all seeds."""
    figures: Counter[str] = Counter()
    kills: Counter[str] = Counter(dict.fromkeys(VICTIMS, 0))
    for result in results:
        kills.update(result.kills)
        for name in ("sent", "acknowledged", "rows", *FAULTS):
            figures[name] += getattr(result.verdict, name)
    return {"kills": dict(kills), **figures}
