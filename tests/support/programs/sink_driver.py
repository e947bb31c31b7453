"""A driver: ``python sink_driver.py '{"input": …, "checkpoint": …, "options": {…}}'``."""

import json
import sys

from pyspark_gapless.runtime.spark_config import FAST_START_JVM_OPTIONS
from pyspark_gapless.session import session


def main(given: str) -> None:
    options = json.loads(given)
    spark = session(
        "sink",
        master="local[2,3]",
        settings={"spark.driver.extraJavaOptions": FAST_START_JVM_OPTIONS},
    )
    rows = (
        spark.readStream.schema("value string")
        .option("maxFilesPerTrigger", 1)
        .text(options["input"])
    )
    writer = rows.writeStream.format("gapless").options(**options["options"])
    writer.option("checkpointLocation", options["checkpoint"]).trigger(
        availableNow=True
    ).start().awaitTermination()


if __name__ == "__main__":
    main(sys.argv[1])
