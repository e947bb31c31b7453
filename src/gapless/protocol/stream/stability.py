"""Stability by votes: how a group learns what every member has delivered, without acks.

Every interval, and whenever many bytes were received: a member with unstable messages votes. A vote
goes to the coordinator (the first member of the view). For each stream the vote has the delivered
mark of the member, and the highest seqno known to the member.

On reception of a vote of this view: the coordinator keeps the newest vote of every member. The
minimum of *delivered* over all members, never of merely received seqnos (N7-25), is stable; when
the minimum rises the coordinator broadcasts STABLE. If a vote changes nothing, the coordinator
sends STABLE to the voter again, because a voter with the last STABLE would not have voted. The cost
of a vote follows the number of streams in the vote, not the number of members: the minimum is
recomputed only when the last member at the minimum has moved on.

On reception of STABLE of this view: every stream is purged up to the stable seqno, never beyond the
delivered mark of this member. A message that exists and is missing here is a gap like any other.

On a view: all votes are void. Within a view votes only rise and are kept, so a lost vote or a lost
STABLE delays a round by an interval and cannot block the next round.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from gapless.wire.codec import ADDRESSED_HEADER_BYTES, PROGRESS_BYTES, PROGRESS_OVERHEAD_BYTES
from gapless.wire.frames import Stable, StreamProgress, Vote

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from random import Random

    from gapless.config import Config
    from gapless.identity import Address, Digest, Marks, View
    from gapless.protocol.ready_builder import ReadyBuilder

_NO_VOTE = (-1, 0)
"""The entry of a member that has not voted."""


def _progress(digest: Iterable[tuple[Address, Marks]]) -> list[StreamProgress]:
    """Return the delivered and high marks of each stream in wire format."""
    return [StreamProgress(origin, marks.delivered, marks.high) for origin, marks in digest]


class Stability:
    """The votes of a member, and the table of all votes at the coordinator."""

    def __init__(self, me: Address, config: Config, rng: Random) -> None:
        self.me = me
        self.config = config
        self._rng = rng
        self._view: View | None = None
        self._votes: dict[Address, dict[Address, tuple[int, int]]] = {}
        self._stable: dict[Address, tuple[int, int]] = {}
        self._highs: dict[Address, int] = {}
        # How many members are at the stable seqno of each stream: the minimum rises only when the
        # last of them moves on.
        self._lagging: dict[Address, int] = {}
        self._received_bytes = 0
        self._received = 0
        self.due_ns: int | None = None

    @property
    def _view_number(self) -> int:
        return 0 if self._view is None else self._view.id.number

    @property
    def is_coordinator(self) -> bool:
        """Whether this member collects the votes."""
        return self._view is not None and self._view.members[0] == self.me

    @property
    def coordinator(self) -> tuple[Address, ...]:
        """The member that collects the votes, as a tuple of one; empty without a view."""
        return () if self._view is None else self._view.members[:1]

    def install(self, view: View) -> None:
        """Start the view with an empty table: votes of another view are void."""
        assert self.me in view, "a member installs its own view"
        self._view = view
        self._votes = {}
        self._stable = {}
        self._highs = {}
        self._lagging = dict.fromkeys(view.members, len(view.members))
        self.due_ns = None
        self._received_bytes = self._received = 0

    def on_delivered(self, messages: int, size_bytes: int) -> bool:
        """Record a delivery; return whether a vote is due at once."""
        self._received += messages
        self._received_bytes += size_bytes
        # A quarter of a window triggers a vote: a sender that waits for room must not wait for the
        # interval as well.
        most_bytes = min(self.config.stability_bytes, self.config.window_bytes // 4)
        return self._received_bytes >= most_bytes or 4 * self._received >= self.config.reach

    def schedule_vote(self, now_ns: int, *, unstable: bool) -> None:
        """Schedule the next vote while a message is unstable; otherwise cancel the vote."""
        # Nothing to purge: a group at rest is silent (S16).
        if not unstable:
            self.due_ns = None
        elif self.due_ns is None:
            interval_ns, jitter = self.config.stability_interval_ns, self.config.jitter_percent
            draw_ns = int(interval_ns * self._rng.random() * jitter / 100) if jitter else 0
            # Jitter keeps the votes of many members from arriving at once.
            self.due_ns = now_ns + interval_ns - draw_ns
            assert self.due_ns >= now_ns, "a vote is scheduled ahead"

    def vote(self, digest: Digest, out: ReadyBuilder) -> list[StreamProgress]:
        """Send the coordinator a vote.

        As the coordinator, count the vote and return the streams with new stable messages.
        """
        self.due_ns = None
        self._received_bytes = self._received = 0
        assert self._view is not None
        progress = _progress(sorted(digest.items()))
        coordinator = self._view.members[0]
        if coordinator == self.me:
            return self.on_vote(
                self.me, Vote(self.me, self._view_number, tuple(progress)), digest.get, out
            )
        for part in self._parts(progress):
            out.trace("VOTE_OUT", self.me, peer=coordinator)
            out.transmit(coordinator, Vote(self.me, self._view_number, part))
        return []

    def _parts(self, progress: list[StreamProgress]) -> Iterable[tuple[StreamProgress, ...]]:
        """Split ``progress`` into parts that fit a frame."""
        room_bytes = self.config.max_frame_bytes - ADDRESSED_HEADER_BYTES - PROGRESS_OVERHEAD_BYTES
        most = max(1, room_bytes // PROGRESS_BYTES)
        return (tuple(progress[at : at + most]) for at in range(0, len(progress), most))

    def on_vote(
        self, peer: Address, vote: Vote, marks: Callable[[Address], Marks | None], out: ReadyBuilder
    ) -> list[StreamProgress]:
        """Count a vote of ``peer``; return the streams with new stable messages.

        ``marks`` returns the own marks of a stream, which are counted along with the vote.
        """
        # Votes of another view are void: a lost view message must not purge anything.
        if vote.view != self._view_number or not self.is_coordinator:
            out.drop("other view" if vote.view != self._view_number else "not mine", peer=peer)
            return []
        out.trace("VOTE_IN", self.me, peer=peer)
        moved = self._record_vote(peer, vote.progress)
        if peer != self.me:
            own = ((origin, marks(origin)) for origin, *_ in vote.progress)
            moved |= self._record_vote(
                self.me, _progress((origin, found) for origin, found in own if found is not None)
            )
        fresh = self._advance_stable(moved)
        if fresh:
            self._send_stable(None, fresh, out)
        elif peer != self.me:
            # The voter missed the last STABLE: it would not have voted otherwise.
            announced = (
                (origin, self._stable.get(origin, _NO_VOTE)) for origin, *_ in vote.progress
            )
            self._send_stable(
                peer,
                [StreamProgress(origin, *marks) for origin, marks in announced if marks[1]],
                out,
            )
        return fresh

    def _record_vote(
        self, voter: Address, progress: Iterable[StreamProgress]
    ) -> dict[Address, None]:
        """Raise the entries of ``voter``; return the streams of members whose entry rose."""
        table = self._votes.setdefault(voter, {})
        moved: dict[Address, None] = {}
        for origin, delivered, high in progress:
            before = table.get(origin, _NO_VOTE)
            # Streams of departed members are not counted, and votes only rise.
            if origin not in self._lagging or (delivered <= before[0] and high <= before[1]):
                continue
            table[origin] = after = max(before[0], delivered), max(before[1], high)
            self._highs[origin] = max(self._highs.get(origin, 0), high)
            moved[origin] = None
            # One member less is at the stable seqno.
            if before[0] <= self._stable.get(origin, _NO_VOTE)[0] < after[0]:
                self._lagging[origin] -= 1
                assert self._lagging[origin] >= 0, f"{origin}: a member moved on twice"
        return moved

    def _advance_stable(self, moved: Iterable[Address]) -> list[StreamProgress]:
        """Return the streams of ``moved`` whose stable or highest seqno rose, and record both."""
        fresh = []
        # Never lower than before: votes only rise within a view (N7-19).
        for origin in moved:
            before = self._stable.get(origin, _NO_VOTE)
            # Every member has voted beyond the stable seqno: only now the minimum can have risen.
            if not self._lagging[origin]:
                self._stable[origin] = (
                    min(table[origin][0] for table in self._votes.values()),
                    self._highs[origin],
                )
                self._lagging[origin] = self._count_lagging(origin)
            elif origin in self._stable:
                self._stable[origin] = before[0], self._highs[origin]
            after = self._stable.get(origin, _NO_VOTE)
            assert after >= before, f"{origin}: the stable seqno fell from {before} to {after}"
            if after != before and after[1]:
                fresh.append(StreamProgress(origin, *after))
        return fresh

    def _count_lagging(self, origin: Address) -> int:
        """Return how many members have voted for no more than the stable seqno of ``origin``."""
        assert self._view is not None
        stable = self._stable.get(origin, _NO_VOTE)[0]
        votes = (
            self._votes.get(member, {}).get(origin, _NO_VOTE)[0] for member in self._view.members
        )
        return sum(delivered <= stable for delivered in votes)

    def _send_stable(
        self, to: Address | None, progress: list[StreamProgress], out: ReadyBuilder
    ) -> None:
        """Send STABLE with ``progress`` to one member, or to all."""
        for part in self._parts(sorted(progress)):
            out.trace("STABLE_OUT", self.me, peer=to)
            out.transmit(to, Stable(self.me, self._view_number, part))

    def accepts(self, peer: Address, stable: Stable, out: ReadyBuilder) -> bool:
        """Return whether STABLE counts: from this view and from its coordinator."""
        if stable.view != self._view_number or self._view is None or peer != self._view.members[0]:
            out.drop(
                "other view" if stable.view != self._view_number else "not coordinator", peer=peer
            )
            return False
        out.trace("STABLE_IN", self.me, peer=peer)
        return True

    def lagging(self, origin: Address, seqno: int) -> tuple[Address, ...]:
        """Return the members that have not voted for ``seqno`` of ``origin``.

        Only a coordinator knows.
        """
        if not self.is_coordinator or self._view is None:
            return ()
        votes = (
            (member, self._votes.get(member, {}).get(origin, (0, 0))[0])
            for member in self._view.members
        )
        return tuple(member for member, delivered in votes if delivered < seqno)

    def check_invariants(self) -> None:
        """Raise AssertionError if a message counts as stable before every member delivered it."""
        assert self._received >= 0, f"{self._received} messages were delivered since the last vote"
        assert self._received_bytes >= 0, f"{self._received_bytes} bytes since the last vote"
        assert self.due_ns is None or self._view is not None, "nobody votes without a view"
        assert not self._votes or self.is_coordinator, "only the coordinator collects votes"
        for origin, (_, high) in self._stable.items():
            assert high <= self._highs[origin], f"{origin}: the announced high was voted"
        for voter, table in self._votes.items():
            for origin, (delivered, high) in table.items():
                stable = self._stable.get(origin, _NO_VOTE)[0]
                assert high <= self._highs[origin], f"{voter} votes beyond the high of {origin}"
                assert stable <= delivered, f"{origin}: {stable} is stable, not delivered"
        for origin, count in self._lagging.items():
            assert count == self._count_lagging(origin), f"{origin}: {count} members hold it back"

    def snapshot(self) -> tuple[object, ...]:
        """Return the whole state as a hashable value, without times."""
        votes = tuple(
            (member, *sorted(table.items())) for member, table in sorted(self._votes.items())
        )
        received = self._received, self._received_bytes
        return (self.due_ns is not None, votes, tuple(sorted(self._stable.items())), received)

    def restore(self, snapshot: tuple[object, ...]) -> None:
        """Restore the state of ``snapshot``, with the next vote due."""
        due, votes, stable, received = snapshot
        self.due_ns = 0 if due else None
        self._votes = {member: dict(table) for member, *table in votes}  # type: ignore[attr-defined]
        self._stable = dict(stable)  # type: ignore[call-overload]
        self._received, self._received_bytes = received  # type: ignore[misc]
        self._highs = {origin: high for origin, (_, high) in self._stable.items()}
        for table in self._votes.values():
            for origin, (_, high) in table.items():
                self._highs[origin] = max(self._highs.get(origin, 0), high)
        self._lagging = {origin: self._count_lagging(origin) for origin in self._lagging}
