"""What of Spark is installed here, and whether its parts fit together."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path
from typing import NamedTuple

from gapless.errors import GaplessError

OLDEST = (4, 2)
"""The oldest Spark that has what the source needs of it."""
NEEDED = {"numpy": (1, 26), "pandas": (2, 2), "pyarrow": (18, 0), "msgpack": (1, 0)}
"""The oldest versions of other packages."""
GET_SPARK = "pip install 'gapless[spark]'"
"""How to get PySpark and what belongs to it."""
GET_CONNECT = "pip install 'gapless[connect]'"
"""How to get what a client of Spark Connect needs."""


class SparkMissingError(GaplessError):
    """PySpark or a package that it is used with is not there, or does not fit: the ``problem``, and what to do."""

    def __init__(self, problem: str, advice: str = GET_SPARK) -> None:
        super().__init__(f"{problem}: {advice}")
        self.problem = problem
        self.advice = advice


class Installed(NamedTuple):
    """A PySpark that can be used."""

    version: str
    home: Path
    jars: bool
    """Whether it can start Spark itself; a client alone reaches Spark Connect and nothing else."""
    packages: Mapping[str, str]
    """The versions of the packages that it is used with."""

    @property
    def connect(self) -> bool:
        """Whether Spark Connect can be reached."""
        return "grpcio" in self.packages


def look(environ: Mapping[str, str] | None = None) -> Installed:
    """Return what is installed, or raise with what is wrong and what to do."""
    environ = os.environ if environ is None else environ
    if find_spec("pyspark") is None:
        raise SparkMissingError("PySpark is not installed")
    from pyspark import __file__ as file, __version__ as version

    package = Path(file).parent
    if _number(version) < OLDEST:
        raise SparkMissingError(
            f"PySpark in {package} is {version}, {_shown(OLDEST)} or later is needed"
        )
    home = Path(environ.get("SPARK_HOME") or package)
    jars = version_of_jars(home)
    if environ.get("SPARK_HOME") and _number(jars) != _number(version):
        has = f"Spark {jars}" if jars else "no Spark"
        raise SparkMissingError(
            f"SPARK_HOME={home} has {has} and PySpark is {version}",
            "unset SPARK_HOME to use the Spark that PySpark brings, or install the same version there",
        )
    return Installed(version, home, bool(jars), _packages())


def version_of_jars(home: Path) -> str:
    """Return the version of the Spark in ``home``, empty if there is none."""
    for path in sorted(home.glob("jars/spark-core_*.jar")):
        match = re.fullmatch(r"spark-core_[\d.]+-(.+)\.jar", path.name)
        if match is not None:
            return match[1]
    return ""


def _packages() -> dict[str, str]:
    found, wrong = {}, []
    for name in (*NEEDED, "grpcio"):
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            wrong += [f"{name} is not installed"] if name in NEEDED else []
            continue
        if name in NEEDED and _number(found[name]) < NEEDED[name]:
            wrong.append(f"{name} is {found[name]}, {_shown(NEEDED[name])} or later is needed")
    if _number(found.get("pandas", "")) >= (3, 0):
        wrong.append(
            f"pandas is {found['pandas']}, which this Spark does not know yet; 2.2 or 2.3 is needed"
        )
    if wrong:
        raise SparkMissingError("; ".join(wrong))
    return found


def _number(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in re.findall(r"\d+", version)[:2])


def _shown(number: tuple[int, ...]) -> str:
    return ".".join(map(str, number))
