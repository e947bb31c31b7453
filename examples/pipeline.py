"""From a lossy group to tables, each message once: bronze raw, silver typed, gold by minute.

`gapless pipeline` is the long form: live, restartable and checked (docs/guides/pipeline.md). The
example needs gapless[spark].
"""

from contextlib import ExitStack
from pathlib import Path
from tempfile import TemporaryDirectory

from pyspark.sql import DataFrame
from pyspark.sql.functions import avg, col, count, from_json, lit, when, window

from gapless import blocking
from gapless.spool.collector import Collector
from gapless_lab.sensor_pipeline.readings import reading
from gapless_lab.workload import lossy_transport
from pyspark_gapless.session import session


def send(folder: Path) -> None:
    """Let three producers send 2000 readings each at 5 % loss to a collector with a spool."""
    with ExitStack() as stack:
        stack.enter_context(
            Collector(
                folder / "spool",
                "plant",
                transport=lossy_transport("plant", folder, 0.05, 1, "collector"),
            )
        )
        for site in (1, 2, 3):
            transport = lossy_transport("plant", folder, 0.05, 1, f"site {site}")
            group = stack.enter_context(blocking.join("plant", transport=transport, listen=False))
            group.wait_for_member("collector")
            payloads = [reading(1, site, number).payload() for number in range(1, 2001)]
            group.send_many(
                payloads, mode="acknowledged"
            ).delivered()  # on disk, and at every member


def fill(table: str, frame: DataFrame) -> DataFrame:
    """Append new rows to a table, exactly once; return the table as a stream."""
    query = frame.writeStream.option("checkpointLocation", f"{output}/checkpoints/{table}").trigger(
        availableNow=True
    )
    query.start(f"{output}/{table}", format="parquet").awaitTermination()
    return spark.readStream.schema(frame.schema).parquet(f"{output}/{table}")


with TemporaryDirectory() as output:
    send(Path(output))
    spark = session("example")
    bronze = fill("bronze", spark.readStream.format("gapless").load(f"{output}/spool"))
    json = from_json(
        col("payload").cast("string"), "site string, at timestamp, celsius double"
    ).alias("json")
    problem = when(col("at").isNull() | col("celsius").isNull(), "unreadable").when(
        col("celsius") > lit(60), "too hot"
    )
    typed = bronze.select("origin", "seqno", json).select("origin", "seqno", "json.*")
    silver = fill("silver", typed.withColumn("problem", problem))
    minutes = (
        silver.where("problem is null")
        .withWatermark("at", "2 minutes")
        .groupBy(window("at", "1 minute"), "site")
    )
    fill("gold", minutes.agg(count("*").alias("readings"), avg("celsius").alias("celsius")))
    for name in ("bronze", "silver", "gold"):
        print(f"{name}: {spark.read.parquet(f'{output}/{name}').count()} rows")
    assert (
        spark.read.parquet(f"{output}/bronze").select("origin", "seqno").distinct().count() == 6000
    )
    spark.read.parquet(f"{output}/gold").orderBy(col("window").desc(), "site").show(
        6, truncate=False
    )
    spark.stop()
