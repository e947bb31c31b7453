"""The master of Spark, and the default settings there.

A later source wins: the defaults here, ``spark-defaults.conf``, options of ``spark-submit``, the
caller.
"""

from __future__ import annotations

import argparse
import os
import re
import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from gapless.errors import ConfigError

DEFAULT_MASTER = "local[*]"
"""The default master: a JVM of this process, on all cores."""
FAST_START_JVM_OPTIONS = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
"""Options of a JVM that runs for a minute: a fast start matters more than later speed."""
MASTER_VARIABLES = ("GAPLESS_MASTER", "SPARK_REMOTE", "SPARK_MASTER")
"""The environment variables with a master; the first set variable counts."""
CONNECT_PORT = 15002
"""The port of Spark Connect where a URL names none."""
DRIVER_OPTIONS = "spark.driver.defaultJavaOptions"
"""The setting for options of the driver's JVM; the user's own options follow."""
EXECUTOR_OPTIONS = "spark.executor.defaultJavaOptions"
"""The same for executors."""
LOCAL_DISK_SETTINGS = {
    "spark.sql.streaming.checkpointFileManagerClass": "org.apache.spark.sql.execution.streaming"
    ".checkpointing.FileSystemBasedCheckpointFileManager",
    "spark.hadoop.fs.file.impl": "org.apache.hadoop.fs.RawLocalFileSystem",
}
"""Settings for one driver on a local disk; on a cluster the checkpoint may be shared.

Without them every file of a checkpoint is written by way of child processes, which takes half of
the time of a small micro-batch.
"""

_URL_PATTERNS = {
    "local": re.compile(r"local(\[\s*(?P<cores>\d+|\*)\s*(,\s*\d+\s*)?\])?"),
    "local-cluster": re.compile(r"local-cluster\[\s*\d+\s*,\s*\d+\s*,\s*\d+\s*\]"),
    "standalone": re.compile(r"spark://(?P<host>\[[^\]]+\]|[^:/,]+):\d+(,[^,]+)*"),
    "connect": re.compile(r"sc://[^/]+(/.*)?"),
    "yarn": re.compile(r"yarn"),
    "k8s": re.compile(r"k8s://.+"),
}
_URL_EXAMPLES = (
    "local[*], local[4], local[4,3], spark://HOST:7077, sc://HOST:15002, yarn or k8s://HOST:PORT"
)
_LOOPBACK = re.compile(r"localhost|127(\.\d+){3}|\[::1\]")


class SparkMaster(NamedTuple):
    """A master of Spark: the URL, and the kind (a key of the known forms)."""

    url: str
    kind: str
    host: str = ""
    cores: int = 0

    @property
    def endpoints(self) -> list[tuple[str, int]]:
        """The endpoints of the master; at least one endpoint must listen."""
        if self.kind not in {"standalone", "connect"}:
            return []
        authority = self.url.partition("://")[2].partition("/")[0]
        found = []
        for place in authority.split(","):
            host, _, port = (
                place.rpartition(":")
                if re.search(r":\d+$", place)
                else (place, "", str(CONNECT_PORT))
            )
            found.append((host.strip("[]"), int(port)))
        return found

    @property
    def on_this_machine(self) -> bool:
        """Whether all processes run on this machine and are reached over loopback."""
        return self.kind in {"local", "local-cluster"} or (
            self.kind == "standalone" and _LOOPBACK.fullmatch(self.host) is not None
        )


def parse_master(url: str) -> SparkMaster:
    """Return the master of ``url``, or raise an error with the expected forms."""
    url = url.strip()
    for kind, form in _URL_PATTERNS.items():
        match = form.fullmatch(url)
        if match is None:
            continue
        named = match.groupdict()
        cores = named.get("cores") or ("1" if kind == "local" else "0")
        number = len(os.sched_getaffinity(0)) if cores == "*" else int(cores)
        if kind == "local" and number == 0:
            break
        return SparkMaster(url, kind, named.get("host") or "", number)
    raise ConfigError(f"{url!r} is not a Spark master; expected {_URL_EXAMPLES}")


def choose_master(
    master: str | None, configured: Mapping[str, str], environ: Mapping[str, str]
) -> SparkMaster:
    """Return the master of the caller, of the environment, of Spark's own files, or the default."""
    if master is not None:
        return parse_master(master)
    for variable in MASTER_VARIABLES:
        if environ.get(variable):
            try:
                return parse_master(environ[variable])
            except ConfigError as error:
                raise ConfigError(f"{variable}: {error}") from None
    return parse_master(
        configured.get("spark.remote") or configured.get("spark.master") or DEFAULT_MASTER
    )


def default_settings(master: SparkMaster) -> dict[str, str]:
    """Return the default settings at ``master``."""
    anywhere = {
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.execution.arrow.maxRecordsPerBatch": "100000",
    }
    if master.kind == "connect":
        return anywhere
    own = {
        **anywhere,
        "spark.ui.showConsoleProgress": "false",
        # Python tasks and micro-batches take half the time.
        "spark.python.unix.domain.socket.enabled": "true",
    }
    if master.on_this_machine:
        # Names of machines in containers and on the road often resolve to something that cannot be
        # reached.
        own |= {"spark.driver.host": "127.0.0.1", "spark.driver.bindAddress": "127.0.0.1"}
    if master.kind == "local":
        own |= {
            "spark.ui.enabled": "false",
            "spark.sql.shuffle.partitions": str(max(2, master.cores)),
            **LOCAL_DISK_SETTINGS,
        }
    return own


def external_settings(spark_home: Path, environ: Mapping[str, str]) -> dict[str, str]:
    """Return the settings in ``spark-defaults.conf`` and ``PYSPARK_SUBMIT_ARGS``."""
    arguments = _read_arguments(environ.get("PYSPARK_SUBMIT_ARGS", ""))
    folder = Path(environ.get("SPARK_CONF_DIR") or spark_home / "conf")
    file = Path(arguments.properties_file or folder / "spark-defaults.conf")
    configured = read_properties(file.read_text(encoding="utf-8")) if file.is_file() else {}
    configured |= dict(pair.split("=", 1) for pair in arguments.conf if "=" in pair)
    configured |= {"spark.master": arguments.master} if arguments.master else {}
    configured |= {"spark.remote": arguments.remote} if arguments.remote else {}
    return configured


def _read_arguments(text: str) -> argparse.Namespace:
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False, exit_on_error=False)
    parser.add_argument("--master")
    parser.add_argument("--remote")
    parser.add_argument("--properties-file")
    parser.add_argument("--conf", "-c", action="append", default=[])
    try:
        return parser.parse_known_args(shlex.split(text))[0]
    except (argparse.ArgumentError, ValueError) as error:
        raise ConfigError(
            f"PYSPARK_SUBMIT_ARGS is {text!r} and cannot be parsed: {error}; "
            "correct or unset the variable"
        ) from error


def read_properties(text: str) -> dict[str, str]:
    """Read a file of properties: ``name value``, ``name=value`` or ``name: value``."""
    found = {}
    for line in text.splitlines():
        match = re.fullmatch(r"\s*([^\s=:#!][^\s=:]*)(?:\s*[=:]\s*|\s+)(.*?)\s*", line)
        if match is not None:
            found[match[1]] = match[2]
    return found
