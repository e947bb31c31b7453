"""The installed parts of Spark, and the check that all parts fit together."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path
from typing import NamedTuple

from gapless.errors import GaplessError

MIN_SPARK_VERSION = (4, 2)
"""Minimum version of Spark with the features required by the source."""
MIN_PACKAGE_VERSIONS = {"numpy": (1, 26), "pandas": (2, 2), "pyarrow": (18, 0), "msgpack": (1, 0)}
"""The oldest versions of other packages."""
INSTALL_SPARK_HINT = "pip install 'gapless[spark]'"
"""How to install PySpark and its packages."""
INSTALL_CONNECT_HINT = "pip install 'gapless[connect]'"
"""How to install the packages of a Spark Connect client."""


class SparkMissingError(GaplessError):
    """PySpark or a required package is missing or does not fit: the ``problem``, a remedy."""

    def __init__(self, problem: str, advice: str = INSTALL_SPARK_HINT) -> None:
        super().__init__(f"{problem}: {advice}")
        self.problem = problem
        self.advice = advice


class SparkInstallation(NamedTuple):
    """A usable PySpark."""

    version: str
    home: Path
    has_jars: bool
    """Whether Spark itself can be started; a client alone only reaches Spark Connect."""
    packages: Mapping[str, str]
    """The versions of the packages used by PySpark."""

    @property
    def has_connect(self) -> bool:
        """Whether Spark Connect can be reached."""
        return "grpcio" in self.packages


def find_installation(environ: Mapping[str, str] | None = None) -> SparkInstallation:
    """Return the installation, or raise an error with the problem and the remedy."""
    environ = os.environ if environ is None else environ
    if find_spec("pyspark") is None:
        raise SparkMissingError("PySpark is not installed")
    from pyspark import __file__ as file, __version__ as version

    package = Path(file).parent
    if _parse_version(version) < MIN_SPARK_VERSION:
        raise SparkMissingError(
            f"PySpark in {package} is {version}; version "
            f"{_format_version(MIN_SPARK_VERSION)} or later is needed"
        )
    home = Path(environ.get("SPARK_HOME") or package)
    jars = version_of_jars(home)
    if environ.get("SPARK_HOME") and _parse_version(jars) != _parse_version(version):
        has = f"Spark {jars}" if jars else "no Spark"
        raise SparkMissingError(
            f"SPARK_HOME={home} has {has} and PySpark is {version}",
            ("unset SPARK_HOME to use the Spark of PySpark, or install the same version there"),
        )
    return SparkInstallation(version, home, bool(jars), _packages())


def version_of_jars(home: Path) -> str:
    """Return the version of the Spark in ``home``, empty if there is none."""
    for path in sorted(home.glob("jars/spark-core_*.jar")):
        match = re.fullmatch(r"spark-core_[\d.]+-(.+)\.jar", path.name)
        if match is not None:
            return match[1]
    return ""


def _packages() -> dict[str, str]:
    found, wrong = {}, []
    for name in (*MIN_PACKAGE_VERSIONS, "grpcio"):
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            wrong += [f"{name} is not installed"] if name in MIN_PACKAGE_VERSIONS else []
            continue
        if (
            name in MIN_PACKAGE_VERSIONS
            and _parse_version(found[name]) < MIN_PACKAGE_VERSIONS[name]
        ):
            wrong.append(
                f"{name} is {found[name]}, {_format_version(MIN_PACKAGE_VERSIONS[name])} or later "
                f"is needed"
            )
    if _parse_version(found.get("pandas", "")) >= (3, 0):
        wrong.append(
            f"pandas is {found['pandas']}, which this Spark does not know yet; 2.2 or 2.3 is needed"
        )
    if wrong:
        raise SparkMissingError("; ".join(wrong))
    return found


def _parse_version(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in re.findall(r"\d+", version)[:2])


def _format_version(number: tuple[int, ...]) -> str:
    return ".".join(map(str, number))
