"""The runner of ``gapless chaos``: seeds in turn, on a single Spark cluster."""

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

from gapless.output.private_files import make_private_folder
from gapless_lab.chaos.back_pressure import BackPressureTestbed
from gapless_lab.chaos.plan import COLLECTOR, VICTIMS, ChaosPlan
from gapless_lab.chaos.spark_side import SparkSide
from gapless_lab.chaos.testbed import ChaosTestbed
from gapless_lab.exactness import FAULTS, ExactnessVerdict
from gapless_lab.process import LabError
from pyspark_gapless.runtime import class_archive, java
from pyspark_gapless.runtime.spark_install import find_installation


@dataclass(frozen=True)
class ChaosResult:
    """The result of a seed; ``folder`` has the kept files, None after a removal."""

    plan: ChaosPlan
    verdict: ExactnessVerdict
    kills: Mapping[str, int]
    incarnations: int
    restarts: int
    seconds: Mapping[str, float]
    folder: Path | None = None
    pressure: Mapping[str, Any] | None = None

    @property
    def is_sound(self) -> bool:
        """Whether the table is exact."""
        return self.verdict.is_sound

    def as_dict(self) -> dict[str, Any]:
        """Return the result for a program."""
        return {
            "seed": self.plan.seed,
            "kills": dict(self.kills),
            "lives": self.incarnations,
            "query_restarts": self.restarts,
            **asdict(self.verdict),
            "sound": self.is_sound,
            "folder": None if self.folder is None else str(self.folder),
            **({} if self.pressure is None else {"back_pressure": dict(self.pressure)}),
            "seconds": dict(self.seconds),
        }


def prepare_class_archive() -> None:
    """Build a class archive, if Java can, to cut the start of a JVM by two fifths."""
    with suppress(class_archive.ArchiveError):
        class_archive.build_archive(java.find_java(), find_installation().home)


def chaos(
    plans: Iterable[ChaosPlan],
    *,
    folder: Path | None = None,
    keep: bool = False,
    on_progress: Callable[[int, str], None] = lambda _seed, _what: None,
) -> Iterator[ChaosResult]:
    """Run plans in turn; keep the folders of failed plans, or all folders with ``keep``.

    ``on_progress`` receives each seed and its phase.
    """
    base = Path(tempfile.mkdtemp(prefix="gapless-chaos-")) if folder is None else folder
    make_private_folder(base)
    prepare_class_archive()
    left = False
    try:
        with SparkSide(base / "spark") as spark:
            for plan in plans:
                seed_folder = Path(tempfile.mkdtemp(prefix=f"seed{plan.seed}-", dir=base))
                kind = BackPressureTestbed if plan.back_pressure else ChaosTestbed
                testbed = kind(plan, seed_folder, spark, partial(on_progress, plan.seed))
                result = run_one(testbed, keep=keep)
                left |= result.folder is not None
                yield result
    finally:
        if not left:
            shutil.rmtree(base / "spark", ignore_errors=True)
            with suppress(OSError):
                base.rmdir()


def run_one(testbed: ChaosTestbed, *, keep: bool = False) -> ChaosResult:
    """Run a seed; an error is a finding, and kills the driver, left in an unknown state."""
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
