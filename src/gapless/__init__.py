"""Gapless: brokerless, reliable, ordered group messaging for Python.

``async with gapless.join("orders") as group:`` is the way in, ``gapless.blocking.join`` the one for threads. The core
and the simulator can be imported without any of it.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from gapless import blocking as blocking, errors as errors, events as events
    from gapless.channel import Group as Group, Request as Request, Sent as Sent, join as join
    from gapless.config import Config as Config
    from gapless.errors import GaplessError as GaplessError
    from gapless.face.message import Batch as Batch, Message as Message, ViewChange as ViewChange
    from gapless.identity import Address as Address, View as View
    from gapless.modes import Mode as Mode

__version__ = "0.1.0"

_WHERE = {
    "Group": "channel",
    "Request": "channel",
    "Sent": "channel",
    "join": "channel",
    "Config": "config",
    "GaplessError": "errors",
    "Batch": "face.message",
    "Message": "face.message",
    "ViewChange": "face.message",
    "Address": "identity",
    "View": "identity",
    "Mode": "modes",
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
