"""The only place that makes a ``SparkSession``.

``session()`` runs on this machine; ``session(master="spark://…")``, ``sc://…``, ``yarn`` and
``k8s://…``, the environment variable ``GAPLESS_MASTER`` or ``spark-submit --master`` run the same
program elsewhere.
"""

from __future__ import annotations

import os
import socket
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from gapless.errors import ConfigError, GaplessError
from pyspark_gapless.runtime import class_archive, java
from pyspark_gapless.runtime.cache_dir import cache_directory, write_whole
from pyspark_gapless.runtime.package_zip import package_root, package_zip
from pyspark_gapless.runtime.python_executable import interpreter, is_ours
from pyspark_gapless.runtime.spark_config import (
    DRIVER_OPTIONS,
    EXECUTOR_OPTIONS,
    SparkMaster,
    choose_master,
    default_settings,
    external_settings,
    parse_master,
)
from pyspark_gapless.runtime.spark_install import (
    INSTALL_CONNECT_HINT,
    SparkInstallation,
    SparkMissingError,
    find_installation,
)

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

LEVELS = ("ALL", "TRACE", "DEBUG", "INFO", "WARN", "ERROR", "FATAL", "OFF")
"""Levels of Spark's log on standard error, from all messages to none."""

_CONNECT_TIMEOUT_S = 10.0
_PROXIES = ("grpc_proxy", "https_proxy", "http_proxy")
LOG4J_PROPERTIES = """\
rootLogger.level = {level}
rootLogger.appenderRef.stderr.ref = stderr
appender.console.type = Console
appender.console.name = stderr
appender.console.target = SYSTEM_ERR
appender.console.layout.type = PatternLayout
appender.console.layout.pattern = %d{{HH:mm:ss}} %p %c{{1}}: %m%n%ex
logger.gateway.name = org.apache.spark.api.python.PythonGatewayServer
logger.gateway.level = {level}
"""
"""Log of a JVM on standard error, from ``level`` on.

The last two lines keep the gateway from choosing and printing a level of its own.
"""


class SessionError(GaplessError):
    """A session cannot be made as requested; the message says why."""


def session(
    name: str = "gapless",
    *,
    master: str | None = None,
    settings: Mapping[str, object] | None = None,
    ship: bool | None = None,
    log_level: str = "ERROR",
) -> SparkSession:
    """Return a session with ``format("gapless")``: the running session, or a new session.

    Args:
        name: The application name in Spark's user interface.
        master: Where Spark runs. The default is ``GAPLESS_MASTER``, ``SPARK_REMOTE`` or
            ``SPARK_MASTER``, then Spark's own configuration, then ``local[*]``.
        settings: Settings of Spark, which override all others. Booleans and numbers are allowed.
        ship: Whether to send the code of this package to executors. By default the code is sent
            wherever executors are other processes.
        log_level: Minimum level of Spark's log on standard error: a level of ``LEVELS``.

    Returns:
        The session. A running session gets the settings that can change at run time.

    Raises:
        ConfigError: The master or a setting is not valid.
        SparkMissingError: PySpark or a required package is not installed.
        JavaMissingError: No suitable Java was found.
        SessionError: Spark does not start, or already runs with another master.
    """
    here = find_installation()
    if log_level.upper() not in LEVELS:
        raise ConfigError(f"log_level is {log_level!r}; expected one of {', '.join(LEVELS)}")
    own = {key: _text(key, value) for key, value in (settings or {}).items()}
    master = (
        own.pop("spark.remote", None) or own.pop("spark.master", None) if master is None else master
    )
    present = active_session()
    if present is not None:
        return _configure_running(present, master, own)
    told = _external_settings(here.home)
    chosen = choose_master(master, told, os.environ)
    wanted = default_settings(chosen)
    _prepare_environment(chosen, here)
    _check_reachable(chosen)
    if chosen.kind != "connect" and not _is_spark_submit():
        wanted |= _jvm_options(chosen, here.home, log_level.upper(), java.activate())
    wanted = {key: value for key, value in wanted.items() if key not in told} | own
    spark = _start(name, chosen, wanted)
    if chosen.kind != "connect":
        spark.sparkContext.setLogLevel(log_level.upper())
    if chosen.kind != "local" if ship is None else ship:
        _ship_packages(spark)
    return spark


def _text(key: str, value: object) -> str:
    if not key.startswith("spark."):
        raise ConfigError(f"{key!r} is not a Spark setting; names of settings begin with 'spark.'")
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str | int | float | Path):
        return str(value)
    raise ConfigError(f"{key} is {value!r}; expected text, a number, or True or False")


def _is_spark_submit() -> bool:
    """Whether ``spark-submit`` started this process, so that a JVM already runs."""
    return "PYSPARK_GATEWAY_PORT" in os.environ


def _external_settings(home: Path) -> dict[str, str]:
    if _is_spark_submit():
        from pyspark import SparkConf, SparkContext

        SparkContext._ensure_initialized()
        return dict(SparkConf().getAll())
    return external_settings(home, os.environ)


def active_session() -> SparkSession | None:
    """Return the session of this process, from any thread, or None."""
    from pyspark.sql import SparkSession

    active = SparkSession.getActiveSession()
    if active is not None:
        return active
    from pyspark import SparkContext

    return (
        SparkSession.builder.getOrCreate()
        if SparkContext._active_spark_context is not None
        else None
    )


def _configure_running(
    running: SparkSession, master: str | None, own: Mapping[str, str]
) -> SparkSession:
    """Apply settings to a running session; refuse settings that cannot change at run time."""
    fixed = []
    if master is not None:
        context = getattr(running, "_sc", None)
        where = "Spark Connect" if context is None else context.master
        asked = parse_master(master)
        if asked.url != where and (asked.kind, context) != ("connect", None):
            fixed.append(f"the session runs on {where}, not on {asked.url}")
    for key, value in own.items():
        if running.conf.get(key, None) == value:
            continue
        if running.conf.isModifiable(key):
            running.conf.set(key, value)
        else:
            fixed.append(f"{key} is {running.conf.get(key, 'not set')}, not {value}")
    if fixed:
        raise SessionError(
            f"a session is already running, and {'; '.join(fixed)}; stop the "
            "session first with spark.stop()"
        )
    return running


def _check_reachable(master: SparkMaster) -> None:
    """Check that the master listens: Spark would retry for minutes, then name another cause."""
    if master.kind == "connect" and any(os.environ.get(name) for name in _PROXIES):
        return
    refused = []
    for place in master.endpoints:
        try:
            with socket.create_connection(place, timeout=_CONNECT_TIMEOUT_S):
                return
        except OSError as error:
            refused.append(f"{place[0]}:{place[1]} ({error.strerror or error})")
    if refused:
        raise SessionError(
            f"no Spark listens at {', '.join(refused)}; start Spark there, or "
            f"choose another master than {master.url}"
        )


def _prepare_environment(master: SparkMaster, here: SparkInstallation) -> None:
    """Set the environment variables that Spark reads at the start."""
    if master.kind == "connect":
        if not here.has_connect:
            raise SparkMissingError(
                f"{master.url} needs gRPC, which is not installed", INSTALL_CONNECT_HINT
            )
        return
    if not here.has_jars:
        raise SparkMissingError(
            f"the PySpark in {here.home} is a client for sc:// only and cannot run {master.url}"
        )
    os.environ.pop("SPARK_REMOTE", None)
    if master.kind in {"local", "local-cluster", "standalone"} and is_ours(
        os.environ.get("PYSPARK_PYTHON", "")
    ):
        os.environ["PYSPARK_PYTHON"] = (
            interpreter(here.home) if master.kind == "local" else sys.executable
        )
    # The Python processes of the driver's side (and of a local Spark all of them) import what this
    # process imports.
    paths = [path for path in os.environ.get("PYTHONPATH", "").split(os.pathsep) if path]
    root = str(package_root())
    if root not in paths:
        os.environ["PYTHONPATH"] = os.pathsep.join([root, *paths])


def _jvm_options(master: SparkMaster, home: Path, level: str, runtime: java.Java) -> dict[str, str]:
    """Return the options of the JVMs: log output, and the class archive if available."""
    folder = Path(os.environ.get("SPARK_CONF_DIR") or home / "conf")
    logging = ""
    if not (folder / "log4j2.properties").is_file():
        content = LOG4J_PROPERTIES.format(level=level.lower()).encode()
        file = write_whole(cache_directory("logging") / f"{level.lower()}.properties", content)
        logging = f"-Dlog4j2.configurationFile={file.as_uri()}"
    shared = class_archive.jvm_options(runtime, home)
    driver = " ".join(filter(None, [logging, shared]))
    executor = shared if master.kind != "local" and master.on_this_machine else ""
    return {
        key: value
        for key, value in ((DRIVER_OPTIONS, driver), (EXECUTOR_OPTIONS, executor))
        if value
    }


def _ship_packages(spark: SparkSession) -> None:
    """Ship the packages to executors and register the shipped source again."""
    from pyspark_gapless.datasource import register

    spark.addArtifacts(str(package_zip()), pyfile=True)
    register(spark)


def _start(name: str, master: SparkMaster, settings: Mapping[str, str]) -> SparkSession:
    from py4j.protocol import Py4JError
    from pyspark.errors import PySparkException
    from pyspark.sql import SparkSession

    builder = SparkSession.builder.appName(name)
    builder = builder.remote(master.url) if master.kind == "connect" else builder.master(master.url)
    for key, value in settings.items():
        builder = builder.config(key, value)
    try:
        return builder.getOrCreate()
    except (PySparkException, Py4JError) as error:
        first = next(
            (line for line in str(error).splitlines() if line.strip()), type(error).__name__
        )
        raise SessionError(f"Spark does not start on {master.url}: {first}") from error
