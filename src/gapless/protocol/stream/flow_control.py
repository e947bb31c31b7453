"""Flow control: how many bytes of the window fit the buffers of the receivers (design rule 7).

On sending a run: the sender records the total of bytes up to each seqno.

On an ack: the receiver advertises how many bytes its buffer accepts beyond the ack. Each sender has
a share of the buffer. The smallest share, counted from the ack of each receiver, limits the window;
a receiver ahead of others, or slow to store, limits the window no more than its buffer requires.
Bytes needed only by absent members fill no buffer and are not counted.

The number of active senders decides into how many shares a buffer is divided. On reception of data
the sender counts as active for ``ACTIVE_SENDER_NS``. On sending after a pause, other members may
start at the same moment, or may be using whole buffers: until every receiver has sent an ack, all
members count as senders, twice.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import deque
from typing import TYPE_CHECKING

from gapless.run import LENGTH_BYTES

if TYPE_CHECKING:
    from collections.abc import Collection, Container, Iterable, Mapping

    from gapless.identity import Address
    from gapless.protocol.stream.acks import AckTable
    from gapless.run import Run

_MAX_PURGED_RUNS = 256
"""How many purged runs are remembered before all of them are removed at once."""


ACTIVE_SENDER_NS = 500_000_000
"""How long a member counts as sending after its last data."""
UNSETTLED_NS = -(1 << 63)
"""A time that has always passed: the number of shares has to be found anew."""


class FlowControl:
    """The advertised buffers, and the totals of sent bytes."""

    __slots__ = ("_buffers", "_lasts", "_totals", "buffers_differ")

    def __init__(self) -> None:
        self._buffers: dict[Address, int] = {}
        self._lasts = [0]
        self._totals = [0]
        self.buffers_differ = False

    def __len__(self) -> int:
        return len(self._buffers)

    def __contains__(self, member: Address) -> bool:
        return member in self._buffers

    def on_sent(self, run: Run, room_bytes: int) -> None:
        """Record a sent run, cut to ``room_bytes`` per frame, the granularity of acks."""
        if run.size_bytes <= room_bytes:
            self._lasts.append(run.last)
            self._totals.append(self._totals[-1] + run.size_bytes)
            return
        before, first = self._totals[-1], run.first
        cuts = run.split_points(room_bytes)
        self._lasts += [first + tail - 1 for _, tail, _, _ in cuts]
        self._totals += [before + end + LENGTH_BYTES * tail for _, tail, _, end in cuts]

    def reset(self, runs: Iterable[Run], low: int) -> None:
        """Start again with the runs of a window whose low mark is ``low``."""
        self._lasts, self._totals = [low], [0]
        for run in runs:
            self.on_sent(run, run.size_bytes)

    def purge(self, low: int) -> None:
        """Forget runs up to ``low``, a few hundred at a time."""
        # Deleting from the front of a list costs its length: do it rarely.
        if (old := bisect_right(self._lasts, low) - 1) > _MAX_PURGED_RUNS:
            del self._lasts[:old]
            del self._totals[:old]

    def bytes_upto(self, seqno: int) -> int:
        """Return the bytes of all runs that end at or before ``seqno``."""
        return self._totals[max(0, bisect_right(self._lasts, seqno) - 1)]

    def advertise(self, member: Address, buffer_bytes: int) -> bool:
        """Record the buffer advertised by ``member``; return whether the size changed."""
        assert buffer_bytes >= 0, "an advertised buffer is not negative"
        if self._buffers.get(member) == buffer_bytes:
            return False
        self._buffers[member] = buffer_bytes
        self._update_buffers_differ()
        return True

    def retain_members(self, members: Container[Address]) -> None:
        """Forget the buffers of departed members."""
        self._buffers = {
            member: size for member, size in self._buffers.items() if member in members
        }
        self._update_buffers_differ()

    def _update_buffers_differ(self) -> None:
        """Record whether members advertise different sizes: only then each buffer is examined."""
        self.buffers_differ = len(set(self._buffers.values())) > 1

    def limit_bytes(
        self, acks: AckTable, low: int, senders: int, least_bytes: int, default_bytes: int
    ) -> int:
        """Return how many bytes beyond ``low`` fit the buffers, shared by ``senders`` members."""
        base_bytes = self.bytes_upto(low)
        # The ordinary case: with equal buffers the slowest member alone is the limit.
        if not self.buffers_differ:
            buffer_bytes = next(iter(self._buffers.values()), default_bytes)
            return (
                max(buffer_bytes // senders, least_bytes)
                + self.bytes_upto(max(acks.minimum, low))
                - base_bytes
            )
        return min(
            max(buffer_bytes // senders, least_bytes)
            + self.bytes_upto(max(acks[member], low))
            - base_bytes
            for member, buffer_bytes in self._buffers.items()
            if member in acks
        )

    def check_invariants(self) -> None:
        """Raise AssertionError if the byte totals do not rise with the seqnos."""
        assert self._lasts, "the bytes before the first run are always known"
        assert len(self._lasts) == len(self._totals), "every run has one byte total"
        for at in range(1, len(self._lasts)):
            assert self._lasts[at - 1] < self._lasts[at], "runs are recorded in order of seqno"
            assert self._totals[at - 1] < self._totals[at], "byte totals rise with every run"
        sizes = set(self._buffers.values())
        assert self.buffers_differ == (len(sizes) > 1), "buffers_differ follows the buffers"
        assert all(size_bytes >= 0 for size_bytes in sizes), "an advertised buffer is not negative"


LARGE_MESSAGE_BYTES = 4096
"""Average size from which the messages of a delivery count by their bytes, too."""


class DeliveryCredit:
    """How many more messages, and bytes of large messages, the application accepts.

    Small messages are counted only, so unread messages take at most ``unread_bytes``, one window,
    and ``unread_limit`` times ``LARGE_MESSAGE_BYTES``.
    """

    __slots__ = (
        "_large",
        "_max_batch",
        "_max_large_bytes",
        "_max_unconsumed",
        "_spent",
        "blocked",
        "held",
        "large_bytes",
        "outstanding",
        "wants_report",
    )

    def __init__(self, unread_limit: int, max_batch: int, unread_bytes: int = 0) -> None:
        self._max_unconsumed = unread_limit
        self._max_batch = max_batch
        self._max_large_bytes = unread_bytes
        self.outstanding = 0
        self.held = False
        self.blocked = False
        self._spent = 0
        self._large: deque[tuple[int, int]] = deque()
        self.large_bytes = 0
        self.wants_report = False
        """Whether consumption should be reported soon, because large messages are unread."""

    def limit(self) -> int | None:
        """Return the maximum size of the next delivery: None is unlimited, 0 means wait."""
        # Deliveries that wait for the state are over their limit.
        if self.blocked:
            return 0
        if not self._max_unconsumed or self.held:
            return self._max_batch or None
        if self._max_large_bytes and self.large_bytes >= self._max_large_bytes:
            return 0
        room = max(0, self._max_unconsumed - self.outstanding)
        return min(room, self._max_batch) if self._max_batch else room

    def spend(self, messages: int, size_bytes: int = 0) -> None:
        """Record that messages were delivered."""
        if not self.held:
            self.outstanding += messages
            if self._max_unconsumed:
                self._spent += messages
                if size_bytes > messages * LARGE_MESSAGE_BYTES:
                    self._large.append((self._spent, size_bytes))
                    self.large_bytes += size_bytes
                    self.wants_report = 4 * self.large_bytes >= self._max_large_bytes

    def try_spend(self, messages: int, size_bytes: int) -> bool:
        """Record a whole delivery if ``limit`` permits it; return whether that is so."""
        if self.blocked or 0 < self._max_batch < messages:
            return False
        if self._max_unconsumed and not self.held:
            if self.outstanding + messages > self._max_unconsumed:
                return False
            if 0 < self._max_large_bytes <= self.large_bytes:
                return False
        if self.held or size_bytes > messages * LARGE_MESSAGE_BYTES:
            self.spend(messages, size_bytes)
            return True
        # As ``spend``, without the call: every message passes here.
        self.outstanding += messages
        if self._max_unconsumed:
            self._spent += messages
        return True

    def refund(self, messages: int) -> None:
        """Record that the application consumed messages, in the order of their delivery."""
        assert messages >= 0, "messages are consumed, not returned"
        self.outstanding = max(0, self.outstanding - messages)
        consumed = self._spent - self.outstanding
        while self._large and self._large[0][0] <= consumed:
            self.large_bytes -= self._large.popleft()[1]
        self.wants_report = bool(self._large) and 4 * self.large_bytes >= self._max_large_bytes

    def check_invariants(self) -> None:
        """Raise AssertionError if more was consumed than delivered, or bytes do not add up."""
        assert self.outstanding >= 0, f"{self.outstanding} messages are outstanding"
        sizes = sum(size_bytes for _, size_bytes in self._large)
        assert self.large_bytes == sizes, f"{self.large_bytes} bytes are counted, not {sizes}"


class ActiveSenders:
    """The members that have sent data lately, and whether this member has just started."""

    __slots__ = (
        "_last_send_ns",
        "_resumed_ns",
        "last_data_ns",
        "settled_count",
        "settled_shares",
        "settled_until_ns",
    )

    def __init__(self) -> None:
        self.last_data_ns: dict[Address, int] = {}
        self._last_send_ns = -ACTIVE_SENDER_NS
        self._resumed_ns: int | None = None
        # The shares stay the same until this time, as long as as many members are active.
        self.settled_until_ns = UNSETTLED_NS
        self.settled_count = self.settled_shares = 0

    @property
    def count(self) -> int:
        """Number of other members filling the receive buffer of this member; at least 1."""
        return len(self.last_data_ns) or 1

    def on_send(self, now_ns: int, *, wait: bool) -> None:
        """Note a send to the group; a send without ``wait`` is not restrained after a pause."""
        if wait and now_ns - self._last_send_ns >= ACTIVE_SENDER_NS:
            self._resumed_ns = now_ns
            self.unsettle()
        self._last_send_ns = now_ns

    def unsettle(self) -> None:
        """Record that the number of shares may change, whatever others do."""
        self.settled_until_ns = UNSETTLED_NS

    def forget(self, member: Address) -> None:
        """Stop counting a departed member."""
        self.last_data_ns.pop(member, None)
        assert member not in self.last_data_ns

    def shares(
        self, now_ns: int, others: Collection[Address], acked_ns: Mapping[Address, int]
    ) -> int:
        """Return into how many shares the receivers' buffers are divided.

        ``acked_ns`` holds the time of the last ack of each of the ``others``.
        """
        if self.last_data_ns and now_ns - min(self.last_data_ns.values()) >= ACTIVE_SENDER_NS:
            self.last_data_ns = {
                member: at_ns
                for member, at_ns in self.last_data_ns.items()
                if now_ns - at_ns < ACTIVE_SENDER_NS
            }
        # No sender fills its own buffer: with n receivers at most n members share any of them.
        shares = max(1, min(1 + len(self.last_data_ns), len(others)))
        if self._resumed_ns is not None and len(others) > 1:
            if any(acked_ns.get(member, -1) < self._resumed_ns for member in others):
                shares = 2 * len(others)
            else:
                self._resumed_ns = None
        assert shares >= 1
        self._settle(now_ns, shares, len(others))
        return shares

    def _settle(self, now_ns: int, shares: int, others: int) -> None:
        """Record until when the number of shares stays, unless a member starts to send."""
        self.settled_count, self.settled_shares = len(self.last_data_ns), shares
        if self._resumed_ns is not None and others > 1:
            self.unsettle()  # an ack may end the time after a pause
        else:
            oldest_ns = min(self.last_data_ns.values(), default=now_ns)
            self.settled_until_ns = oldest_ns + ACTIVE_SENDER_NS

    def reset(self) -> None:
        """Forget all senders, as after a restore."""
        self.last_data_ns = {}
        self._resumed_ns = None
        self.unsettle()

    def check_invariants(self, others: Collection[Address]) -> None:
        """Raise AssertionError if a member outside the view counts as a sender."""
        assert self.last_data_ns.keys() <= set(others), "only members of the view send"
        assert self._resumed_ns is None or self._resumed_ns <= self._last_send_ns
