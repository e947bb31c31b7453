"""Gapless on Spark: ``format("gapless")`` for reading and writing, streams and batches.

Spark discovers ``DefaultSource`` in every package with a name that begins with ``pyspark_``. Names
are imported on first use, so modules without need of Spark, such as
``pyspark_gapless.runtime.java``, work without PySpark. ``pyspark_gapless.session.session`` returns
a session.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pyspark_gapless.datasource import DefaultSource as DefaultSource, register as register

_WHERE = {"DefaultSource": "datasource", "register": "datasource"}
"""The module of each name. A name must differ from all modules, or the module hides the name."""


def __getattr__(name: str) -> Any:
    if name in _WHERE:
        return getattr(import_module(f"{__name__}.{_WHERE[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *_WHERE})
