"""Hearing check: does a member without acknowledgements hear this member?

On a slow receiver: this member asks the receiver for the receiver's view, once in a
``heartbeat_interval``. If the question arrives, the receiver answers with a roster, however slowly
the application reads.

After ``suspect_after`` without an answer: the direction from this member to the receiver is broken,
or the receiver is dead. This member asks the coordinator for a view without the receiver. Otherwise
senders would wait for as long as the direction is broken.

If the receiver is the coordinator: the coordinator would not hear the complaint. This member asks
three other members to report this member to the coordinator as suspected. The coordinator probes
this member, hears no answer, and makes a view without this member.

On a view: this member at once asks the nodes that did not hear this member before.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from gapless.protocol.events import Unheard
from gapless.wire.frames import AskView, Suspect

if TYPE_CHECKING:
    from collections.abc import Iterable

    from gapless.identity import Address
    from gapless.protocol.membership.membership import Membership
    from gapless.protocol.ready_builder import ReadyBuilder


_MAX_RELAYS = 3
"""How many members are asked to complain to a coordinator that does not hear this one."""
_MAX_NODES = 4096
"""Maximum number of nodes that are remembered as deaf to this one."""


class HearingCheck:
    """The receivers with a pending question: does the receiver hear this member?"""

    def __init__(self, membership: Membership) -> None:
        self._membership = membership
        self.config = membership.config
        self._asked_since_ns: dict[Address, int] = {}
        self._deaf_nodes: set[int] = set()
        self.due_ns: int | None = None
        """When the next question or verdict is due."""

    def start(self, members: Iterable[Address], out: ReadyBuilder) -> None:
        """Ask ``members`` until each answers: an answerer hears this member."""
        m = self._membership
        new = [member for member in members if member in m.members and member != m.me]
        for member in new:
            self._asked_since_ns.setdefault(member, out.now_ns)
        if new and self.due_ns is None:
            self._ask(out)

    def on_answer(self, member: Address) -> None:
        """Note that ``member`` hears this member."""
        self._asked_since_ns.pop(member, None)
        self._deaf_nodes.discard(member.node)

    def install(self, out: ReadyBuilder) -> None:
        """Forget the questions of the last view; at once ask the nodes known as deaf."""
        self.stop()
        if self._deaf_nodes:
            members = sorted(self._membership.members)
            self.start([member for member in members if member.node in self._deaf_nodes], out)

    def on_timer(self, out: ReadyBuilder) -> None:
        """Report the members without an answer for too long; ask the others again."""
        if self.due_ns is None or self.due_ns > out.now_ns:
            return
        limit_ns = out.now_ns - self.config.suspect_after_ns
        deaf = sorted(
            member for member, since_ns in self._asked_since_ns.items() if since_ns <= limit_ns
        )
        for member in deaf:
            del self._asked_since_ns[member]
            self._report(member, out)
        self._ask(out)

    def _ask(self, out: ReadyBuilder) -> None:
        for member in sorted(self._asked_since_ns):
            out.transmit(member, AskView(self._membership.me))
        self.due_ns = (
            out.now_ns + self.config.heartbeat_interval_ns if self._asked_since_ns else None
        )

    def _report(self, member: Address, out: ReadyBuilder) -> None:
        """Ask for a view without ``member``."""
        m = self._membership
        acting = m.acting_coordinator
        if len(self._deaf_nodes) < _MAX_NODES:
            self._deaf_nodes.add(member.node)
        # If ``member`` is silent then its acks are lost, not the messages of this member.
        silent_ns = out.now_ns - self.config.suspect_after_ns
        is_silent = not m.failure_detector.has_heard(member, silent_ns)
        out.emit(Unheard(member, m.me) if is_silent else Unheard(m.me, member))
        out.trace("SUSPECT", member, peer=member, reason="hearing")
        if m.backing is not None:
            m.backing.note_own((member,), out.now_ns)
        if acting == m.me:
            m.coordinator.expel((member,), out)
        elif acting == member:
            # The coordinator does not hear this member, so others ask it to look.
            others = (entry.address for entry in m.roster.entries) if m.roster is not None else ()
            relays = [other for other in others if other not in {m.me, acting}]
            for other in relays[:_MAX_RELAYS]:
                out.transmit(other, Suspect(m.me, (member,), True))
        elif acting is not None:
            to = acting if m.guard is None else None
            out.transmit(to, Suspect(m.me, (member,), True))

    def on_pause(self, by_ns: int, now_ns: int) -> None:
        """Do not count the pause of this process as silence of other members."""
        for member, since_ns in self._asked_since_ns.items():
            self._asked_since_ns[member] = min(now_ns, since_ns + by_ns)

    def stop(self) -> None:
        """End all questions."""
        self._asked_since_ns = {}
        self.due_ns = None

    def check_invariants(self) -> None:
        """Raise AssertionError if a stranger is asked, or a question has no deadline."""
        m = self._membership
        assert self._asked_since_ns.keys() <= m.members - {m.me}, "only other members are asked"
        assert self.due_ns is not None or not self._asked_since_ns, "a question has an end"
