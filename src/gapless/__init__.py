"""Gapless: brokerless, reliable, ordered group messaging for Python.

``async with gapless.join("orders") as group:`` joins a group; ``gapless.blocking.join`` is the same
for threads. Names are imported on first use, so the protocol and the simulator work without sockets
and threads.
"""

import importlib as _importlib
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


def __getattr__(name: str) -> _typing.Any:
    if name in _MODULES:
        return _importlib.import_module(f"gapless.{name}")
    if name in _MODULE_OF:
        return getattr(_importlib.import_module(f"gapless.{_MODULE_OF[name]}"), name)
    raise AttributeError(f"module 'gapless' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted([*_MODULES, *_MODULE_OF, "__doc__", "__version__"])
