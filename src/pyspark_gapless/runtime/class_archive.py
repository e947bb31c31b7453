"""An archive of the classes that Spark loads at the start, to save two fifths of the start time.

``python -m pyspark_gapless.runtime.class_archive`` builds the archive: a cache of the JVM (class
data sharing, 190 MB) for a specific Java and Spark. ``session`` uses a fitting archive, and starts
without an archive otherwise. The name of an archive has a hash of its sources and the size, because
a JVM detects every unsuitable archive except a truncated archive.
"""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

from gapless.errors import GaplessError
from pyspark_gapless.runtime import java
from pyspark_gapless.runtime.cache_dir import cache_directory
from pyspark_gapless.runtime.package_zip import package_root
from pyspark_gapless.runtime.spark_install import find_installation

_BUILD_TIMEOUT_S = 600.0
_QUIET = "-Xlog:cds=off -Xlog:cds+dynamic=off"
_UNWANTED = ("PYSPARK_SUBMIT_ARGS", "PYSPARK_GATEWAY_PORT", "SPARK_REMOTE", "SPARK_CONF_DIR")


class ArchiveError(GaplessError):
    """An archive could not be made; Spark works without an archive."""


def jvm_options(found: java.Java, spark_home: Path) -> str:
    """Return the JVM options for the fitting archive; none without a fitting archive."""
    path = _find(found, spark_home)
    return "" if path is None else f"-XX:SharedArchiveFile={path} {_QUIET}"


def build_archive(found: java.Java, spark_home: Path) -> Path:
    """Run a Spark that exercises most features, check the written archive, return its path."""
    present = _find(found, spark_home)
    if present is not None:
        return present
    where, content = _cache_names(found, spark_home)
    folder = cache_directory("classes")
    with tempfile.TemporaryDirectory(dir=folder, prefix=".making-") as making:
        draft = Path(making) / "classes.jsa"
        class_path = _dump(draft, Path(making))
        if not draft.is_file():
            raise ArchiveError(
                f"{found.program} cannot build a class archive: this Java has no "
                "default archive to extend; use another Java"
            )
        _verify_archive(found, draft, class_path)
        path = folder / f"{where}-{content}-{draft.stat().st_size}.jsa"
        draft.replace(path)
    for other in folder.glob(f"{where}-*.jsa"):
        if other != path:
            other.unlink(missing_ok=True)
    return path


def _find(found: java.Java, spark_home: Path) -> Path | None:
    where, content = _cache_names(found, spark_home)
    for path in cache_directory("classes").glob(f"{where}-{content}-*.jsa"):
        if path.stem.rpartition("-")[2] == str(path.stat().st_size):
            return path
    return None


def _cache_names(found: java.Java, spark_home: Path) -> tuple[str, str]:
    """Return a hash of the paths of Java and Spark, and a hash of their versions."""
    release = found.program.resolve().parent.parent / "release"
    jars = [
        (path.name, path.stat().st_size, path.stat().st_mtime_ns)
        for path in sorted(spark_home.glob("jars/*.jar"))
    ]
    release_text = release.read_text(encoding="utf-8") if release.is_file() else str(found.version)
    places = [str(found.program.resolve()), str(spark_home.resolve())]
    return _hash(places), _hash([release_text, jars])


def _hash(value: object) -> str:
    return hashlib.sha256(json.dumps(value).encode()).hexdigest()[:16]


def _dump(draft: Path, folder: Path) -> str:
    """Run a Spark that writes the archive on exit; return the class path."""
    environ = {key: value for key, value in os.environ.items() if key not in _UNWANTED}
    command = [
        sys.executable,
        "-m",
        "pyspark_gapless.class_archive_program",
        f"{draft}",
        _QUIET,
    ]
    paths = [str(package_root()), environ.get("PYTHONPATH", "")]
    environ["PYTHONPATH"] = os.pathsep.join(filter(None, paths))
    try:
        done = subprocess.run(  # noqa: S603
            command,
            cwd=folder,
            env=environ,
            capture_output=True,
            text=True,
            timeout=_BUILD_TIMEOUT_S,
            check=False,
        )
    except subprocess.TimeoutExpired as error:
        raise ArchiveError(
            f"the class archive was not built within {_BUILD_TIMEOUT_S:.0f} s; "
            "try again on an idle machine"
        ) from error
    if done.returncode != 0:
        last = (done.stderr.strip().splitlines() or [f"exit code {done.returncode}"])[-1]
        raise ArchiveError(f"the class archive could not be built: {last}")
    return done.stdout.strip().splitlines()[-1]


def _verify_archive(found: java.Java, archive: Path, class_path: str) -> None:
    command = [
        str(found.program),
        "-Xshare:on",
        f"-XX:SharedArchiveFile={archive}",
        "-cp",
        class_path,
        "-version",
    ]
    done = subprocess.run(  # noqa: S603
        command, capture_output=True, text=True, timeout=_BUILD_TIMEOUT_S, check=False
    )
    if done.returncode != 0:
        output = (done.stdout + done.stderr).strip().splitlines() or [
            f"exit code {done.returncode}"
        ]
        raise ArchiveError(f"the class archive was built but cannot be used: {output[0]}")


def main() -> int:
    """Build the archive for the installed Java and Spark."""
    try:
        found = java.find_java()
        sys.stderr.write(
            "making an archive of the classes that Spark loads; this takes about half a minute\n"
        )
        path = build_archive(found, find_installation().home)
    except GaplessError as error:
        sys.stderr.write(f"{error}\n")
        return 2
    sys.stdout.write(f"{path} ({path.stat().st_size / 1e6:.0f} MB)\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
