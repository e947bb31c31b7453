"""Gapless: brokerless, reliable, ordered group messaging for Python.

``async with gapless.join("orders") as group:`` joins a group; ``gapless.blocking.join`` is the same
for threads. Names are imported on first use, so the protocol and the simulator work without sockets
and threads. ``gapless.compiled`` has the names of the modules that run compiled; it is empty in
pure Python.
"""

import importlib as _importlib
import os as _os
import typing as _typing

if _typing.TYPE_CHECKING:
    from gapless import blocking as blocking, errors as errors, events as events
    from gapless.aio import Group as Group, Receipt as Receipt, Request as Request, join as join
    from gapless.config import Config as Config
    from gapless.delivery_mode import DeliveryMode as DeliveryMode, Mode as Mode
    from gapless.errors import GaplessError as GaplessError
    from gapless.events import ViewChange as ViewChange
    from gapless.group.message import Batch as Batch, Message as Message
    from gapless.identity import Address as Address, View as View
    from gapless.protocol.snapshot import MemberSnapshot as MemberSnapshot

    compiled: tuple[str, ...]
    """The names of the modules that run compiled; empty in pure Python."""

__version__ = "0.2.0.dev0"

_MODULE_OF = {
    "Address": "identity",
    "Batch": "group.message",
    "Config": "config",
    "DeliveryMode": "delivery_mode",
    "GaplessError": "errors",
    "Group": "aio",
    "MemberSnapshot": "protocol.snapshot",
    "Message": "group.message",
    "Mode": "delivery_mode",
    "Receipt": "aio",
    "Request": "aio",
    "View": "identity",
    "ViewChange": "events",
    "join": "aio",
}
"""The module of each public name."""
_MODULES = ("blocking", "errors", "events")

if _os.environ.get("GAPLESS_COMPILED") == "0":
    _importlib.import_module("gapless.compilation").use_sources()


def __getattr__(name: str) -> _typing.Any:
    if name in _MODULES:
        return _importlib.import_module(f"gapless.{name}")
    if name == "compiled":
        return _importlib.import_module("gapless.compilation").compiled_modules()
    if name in _MODULE_OF:
        return getattr(_importlib.import_module(f"gapless.{_MODULE_OF[name]}"), name)
    raise AttributeError(f"module 'gapless' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted([*_MODULES, *_MODULE_OF, "__doc__", "__version__", "compiled"])
