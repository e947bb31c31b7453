"""Gapless on Spark: ``format("gapless")`` for reading and writing, streams and batches.

Spark finds ``DefaultSource`` by itself in every package of which the name begins with ``pyspark_``.
Names are imported when somebody asks for them, so ``pyspark_gapless.runtime.java`` and others that
need no Spark work without it. A session comes from :func:`pyspark_gapless.session.session`.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pyspark_gapless.datasource import DefaultSource as DefaultSource, register as register

_WHERE = {"DefaultSource": "datasource", "register": "datasource"}
"""The module of each name. A name must not equal a module's: the module would replace it."""


def __getattr__(name: str) -> Any:
    if name in _WHERE:
        return getattr(import_module(f"{__name__}.{_WHERE[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *_WHERE})
