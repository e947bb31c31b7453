"""A Spark program that does a little of everything, so that its JVM can archive its classes.

:mod:`pyspark_gapless.runtime.class_archive` runs it in a process of its own. The program prints the
class path of the JVM; the JVM writes the archive when it ends.
"""

from __future__ import annotations

import sys

from pyspark_gapless.session import session


def exercise(draft: str, jvm_options: str) -> None:
    """Load the classes that programs need: batch, shuffle, Python, Parquet and streaming.

    Args:
        draft: Where the JVM writes the archive of its classes when it ends.
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
