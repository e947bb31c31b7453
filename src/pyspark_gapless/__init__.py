"""Gapless on Spark: ``spark.readStream.format("gapless")``, ``df.writeStream.format("gapless")`` and :func:`session`.

Spark finds :data:`DefaultSource` by itself in every package of which the name begins with ``pyspark_``. Names are
imported when somebody asks for them, so ``pyspark_gapless.java`` and others that need no Spark work without it.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pyspark_gapless.session import session as session
    from pyspark_gapless.source import GaplessSource as DefaultSource, register as register

_WHERE = {"session": "session", "DefaultSource": "source", "register": "source"}
"""Where each name stands."""


def __getattr__(name: str) -> Any:
    if name in _WHERE:
        return getattr(import_module(f"{__name__}.{_WHERE[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *_WHERE})
