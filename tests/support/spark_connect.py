"""A server of Spark Connect from the pip package, on loopback, at a port that the system chose.

It ends with the block that started it, and with this process. The cluster of the tests is that of
``gapless chaos``.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from gapless_lab.process import LabProcess
from gapless_lab.spark_cluster import server_environ
from pyspark_gapless.runtime.spark_install import find_installation


@contextmanager
def connect_server(
    folder: Path, environ: Mapping[str, str], master: str = "local[2]"
) -> Iterator[str]:
    """Run a server of Spark Connect, with more in its environment; yields its URL."""
    environ = server_environ(folder) | dict(environ)
    settings = {
        "spark.connect.grpc.binding.port": "0",
        "spark.connect.grpc.binding.address": "127.0.0.1",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.ui.enabled": "false",
        "spark.sql.shuffle.partitions": "2",
        "spark.driver.extraJavaOptions": environ["SPARK_DAEMON_JAVA_OPTS"],
    }
    command = [str(find_installation({}).home / "bin" / "spark-submit"), "--master", master]
    for key, value in settings.items():
        command += ["--conf", f"{key}={value}"]
    command += [
        "--class",
        "org.apache.spark.sql.connect.service.SparkConnectServer",
        "spark-internal",
    ]
    server = LabProcess("connect", command, folder, environ, merged=True)
    try:
        started = r"Spark Connect server started at: \S+:(\d+)"
        port = server.wait_for_output(started)[1]
        yield f"sc://127.0.0.1:{port}"
    finally:
        server.kill()
