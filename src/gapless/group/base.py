"""What both faces show in the same way, because nothing of it waits."""

from __future__ import annotations

import sys
import warnings
from typing import TYPE_CHECKING, Any, TypeVar, Unpack

from gapless.delivery_mode import Mode
from gapless.errors import ConfigError, LocalProtocolError
from gapless.group.join_options import JoinOptions, Options, State
from gapless.group.session import Core

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from gapless.config import Config
    from gapless.group.rpc import Asked
    from gapless.group.session import Payload, Steps
    from gapless.group.timeouts import Time
    from gapless.identity import Address, View
    from gapless.protocol.ready import Accepted
    from gapless.runtime.bundler import Laid
    from gapless.runtime.send_requests import Sent as Sending


_R = TypeVar("_R", bound="Receipt")


class Face:
    """One member of one group."""

    @staticmethod
    def _later() -> Callable[[Callable[[], None]], None] | None:
        """Return what decides when what is sent is seen to; None: at once."""
        return None

    def __init__(self, group: str, **options: Unpack[JoinOptions]) -> None:
        self._core: Core | None = None
        known = JoinOptions.__annotations__
        if unknown := sorted(set(options) - set(known)):
            raise ConfigError(
                f"join has no option {', '.join(unknown)}; expected {', '.join(sorted(known))}"
            )
        chosen: dict[str, Any] = {"group": group, **options}
        self._timeout: Time | None = chosen.pop("timeout", None)
        if (hooks := chosen.pop("state", None)) is not None:
            chosen["state"] = State(hooks)
        self._core = Core(Options(**chosen), self._later())

    @property
    def _own(self) -> Core:
        assert self._core is not None
        return self._core

    @property
    def group(self) -> str:
        """The name of the group."""
        return self._own.options.group

    @property
    def view(self) -> View | None:
        """The present view; its ``members`` are addresses, oldest first. None before the first one."""
        return self._own.inbox.view

    @property
    def me(self) -> Address | None:
        """The address of this member; another one after it was expelled. None before the first view."""
        return self._own.inbox.me

    @property
    def names(self) -> dict[Address, str]:
        """The durable names of those that have one."""
        return dict(self._own.inbox.names)

    @property
    def config(self) -> Config:
        """Every knob, as it is in force."""
        return self._own.handle.config

    @property
    def unread(self) -> int:
        """How many messages have come and wait to be read."""
        return self._own.inbox.unread

    @property
    def is_closed(self) -> bool:
        """Whether this member has come to its end, or was never opened."""
        return not self._own.is_open

    def stored(self, marks: Mapping[Address, int]) -> None:
        """Say up to where the messages of each sender are stored: now they are acknowledged (docs/durable.md).

        For a member that has joined with a ``name`` and ``stores=True``.
        """
        self._own.stored(marks)

    def leave(self) -> None:
        """Begin to leave, without waiting: what was sent is brought to its end, and reading ends after what came."""
        self._own.leave()

    def __repr__(self) -> str:
        view = self.view
        where = (
            "closed" if self.is_closed else "joining" if view is None else f"view {view.id.number}"
        )
        return f"<{self.group}: {self.me}, {where}, {0 if view is None else len(view.members)} members>"

    def __del__(self) -> None:
        core = self._core
        if core is not None and core.is_open and not core.closing and not sys.is_finalizing():
            words = f"{self!r} was never closed: use it as a context manager"
            warnings.warn(words, ResourceWarning, stacklevel=2, source=self)
            core.abandon()


class Receipt:
    """What was sent: ``first .. last`` are the seqnos of the messages (0 if they have none), ``count`` how many."""

    __slots__ = ("_accepted", "_core", "_sent", "count", "laid")

    def __init__(
        self, core: Core, accepted: Accepted | None, count: int, sent: Sending | None = None
    ) -> None:
        """What was ``accepted``; None: one message, of which it is found out when somebody asks."""
        self._core = core
        self._sent = sent
        self._accepted = accepted
        self.count = count
        self.laid: tuple[Laid, int] | None = None

    @property
    def first(self) -> int:
        """The seqno of the first message."""
        return self._known().first

    @property
    def last(self) -> int:
        """The seqno of the last message."""
        return self._known().last

    def _known(self) -> Accepted:
        if self._accepted is None:
            self._accepted = self._core.number(self)
        return self._accepted

    def _delivered(self, timeout: Time | None) -> Steps[None]:
        return self._core.delivered(self._sent, timeout)

    def __repr__(self) -> str:
        return f"<sent {self.first}..{self.last}, {Mode.ORDERED if self._sent is None else self._sent.mode}>"


def receipt(kind: type[_R], core: Core, sent: Sending) -> _R:
    """Return the receipt of a send that was accepted."""
    accepted: Any = sent.result()
    return kind(core, accepted, len(sent.payloads), sent)


class Question:
    """What another member asks."""

    def __init__(self, core: Core, asked: Asked) -> None:
        self._core = core
        self._asked = asked
        self.answered = False

    @property
    def payload(self) -> bytes:
        """What was asked."""
        return self._asked.payload

    @property
    def sender(self) -> Address:
        """Who asked."""
        return self._asked.sender

    def _answer(self, payload: Payload | None, error: BaseException | None = None) -> Steps[None]:
        if self.answered:
            raise LocalProtocolError("this request was answered before; answer each once")
        self.answered = True
        return self._core.answer(self._asked, payload, error)

    def __repr__(self) -> str:
        return f"<request of {self.sender}: {len(self.payload)} bytes>"
