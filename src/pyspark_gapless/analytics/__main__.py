"""``python -m pyspark_gapless.analytics PATH``: print the figures of a trace as JSON."""

from __future__ import annotations

import argparse
import json
import sys
import time

from gapless.errors import GaplessError
from pyspark_gapless.analytics import figures
from pyspark_gapless.session import session
from pyspark_gapless.trace import Trace


def main() -> int:
    """Read the named trace and print the figures."""
    parser = argparse.ArgumentParser(
        prog="python -m pyspark_gapless.analytics", description=main.__doc__
    )
    parser.add_argument("path", help="the folder of a trace")
    parser.add_argument("--master", help="where Spark runs")
    arguments = parser.parse_args()
    began_s = time.monotonic()

    def tell(part: str, done: int, parts: int) -> None:
        line = f"{time.monotonic() - began_s:6.1f} s  {done}/{parts}  {part}"
        print(line, file=sys.stderr)  # noqa: T201

    try:
        spark = session("gapless figures", master=arguments.master)
        found = figures(Trace.read(spark, arguments.path), progress=tell)
    except GaplessError as error:
        print(f"error: {error}", file=sys.stderr)  # noqa: T201 - a command
        return 2
    print(json.dumps(found))  # noqa: T201 - a command
    tell("done", found["summary"]["delivered"], found["summary"]["expected"])
    spark.stop()
    return 0


if __name__ == "__main__":
    sys.exit(main())
