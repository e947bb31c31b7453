"""Gapless: brokerless, reliable, ordered group messaging for Python.

``async with gapless.join("orders") as group:`` is the way in, ``gapless.blocking.join`` the one for
threads. The core and the simulator can be imported without any of it.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from gapless import blocking as blocking, errors as errors, events as events
    from gapless.aio import Group as Group, Receipt as Receipt, Request as Request, join as join
    from gapless.config import Config as Config
    from gapless.delivery_mode import DeliveryMode as DeliveryMode
    from gapless.errors import GaplessError as GaplessError
    from gapless.group.message import Batch as Batch, Message as Message, ViewChange as ViewChange
    from gapless.identity import Address as Address, View as View

__version__ = "0.2.0.dev0"

_WHERE = {
    "Group": "aio",
    "Request": "aio",
    "Receipt": "aio",
    "join": "aio",
    "Config": "config",
    "GaplessError": "errors",
    "Batch": "group.message",
    "Message": "group.message",
    "ViewChange": "group.message",
    "Address": "identity",
    "View": "identity",
    "DeliveryMode": "delivery_mode",
}
"""Where each name stands; it is imported when somebody asks for it."""
_MODULES = {"blocking", "errors", "events"}


def __getattr__(name: str) -> Any:
    if name in _MODULES:
        return import_module(f"gapless.{name}")
    if name in _WHERE:
        return getattr(import_module(f"gapless.{_WHERE[name]}"), name)
    raise AttributeError(f"module 'gapless' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *_WHERE, *_MODULES})
