"""A Spark program that uses a little of every feature, so that the JVM can archive the classes.

``pyspark_gapless.runtime.class_archive`` runs the program in a separate process. The program prints
the class path of the JVM; the JVM writes the archive on exit.
"""

from __future__ import annotations

import sys

from pyspark_gapless.session import session


def exercise(draft: str, jvm_options: str) -> None:
    """Load the classes of typical programs: batch, shuffle, Python, Parquet and streaming.

    Args:
        draft: The file into which the JVM writes its class archive on exit.
        jvm_options: Further options of the JVM.
    """
    settings = {"spark.driver.extraJavaOptions": f"-XX:ArchiveClassesAtExit={draft} {jvm_options}"}
    spark = session("archive of classes", master="local[2]", settings=settings)
    numbers = spark.range(1000)
    numbers.mapInArrow(lambda batches: batches, "id long").write.parquet("numbers")
    numbers.groupBy((numbers.id % 7).alias("key")).count().orderBy("key").toArrow()
    stream = spark.readStream.schema("id long").parquet("numbers")
    query = (
        stream.writeStream.format("parquet")
        .option("checkpointLocation", "checkpoint")
        .option("path", "copy")
    )
    query.trigger(availableNow=True).start().awaitTermination()
    gateway = spark.sparkContext._gateway
    assert gateway is not None
    print(gateway.jvm.java.lang.System.getProperty("java.class.path"))  # noqa: T201
    spark.stop()
    gateway.shutdown()
    gateway.proc.stdin.close()
    gateway.proc.wait()


if __name__ == "__main__":
    exercise(*sys.argv[1:])
