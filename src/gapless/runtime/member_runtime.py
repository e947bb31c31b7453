"""The runtime of one member: the machine, the transport, and the queues to the application.

Every input of the machine is given here, and every ``Ready`` is carried out here (``process_ready``
in reactor.py). After the group has expelled an incarnation the next incarnation joins, unless the
application has switched rejoining off. The next incarnation takes over no state of the former;
delivered messages stay with the application.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from random import Random, SystemRandom
from typing import TYPE_CHECKING, Any, NamedTuple

from gapless.errors import ClosedError, GaplessError, NameInUseError, RemoteProtocolError
from gapless.identity import Address, RosterEntry, group_id, member_label
from gapless.keys.ciphers import view_seal_key, view_suites
from gapless.locator import Locator
from gapless.logger import RAISED, log
from gapless.protocol.events import (
    EVENT_NAMES,
    Accepted,
    Expelled,
    Located,
    NameInUse,
    StateReceived,
    Suspected,
    Unheard,
    ViewInstalled,
)
from gapless.protocol.member import Member
from gapless.protocol.membership.membership import OVER
from gapless.runtime.bundler import Bundler
from gapless.runtime.discovery_monitor import DiscoveryMonitor
from gapless.runtime.key_mismatch import KeyMismatchWatch
from gapless.runtime.keyring_watch import KeyringWatch
from gapless.runtime.send_requests import SendRequests
from gapless.transport.base import TURN_BYTES
from gapless.transport.error_log import ErrorLog
from gapless.units import NS_PER_S, format_count
from gapless.wire.seal_keys import sealed_incarnation

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from concurrent.futures import Future
    from pathlib import Path

    from gapless.config import Config
    from gapless.delivery_mode import DeliveryMode
    from gapless.keys.keyring import Keyring
    from gapless.protocol.events import Event
    from gapless.protocol.ready import Delivery, Ready, Transmit
    from gapless.runtime.delivery_queue import DeliveryItem, DeliverySink
    from gapless.trace.recorder import Recorder
    from gapless.transport.base import Transport
    from gapless.wire.identities import Credentials, Role

DATAGRAMS_PER_TURN = 256
"""About how many datagrams a turn reads before the answers are sent."""

EVENT_LOG_INTERVAL_NS = NS_PER_S
"""Minimum time between two log lines about the same kind of event."""

TICKS_PER_TURN = 16
"""Maximum number of ticks before the sockets are read again."""

BACKLOG_GRACE_NS = 20_000_000
"""How long timers wait for datagrams that have arrived and are unread."""

NEVER_NS = 1 << 63
"""A deadline that is never reached."""

_CLOCK_SAMPLES = 5


class PendingCall(NamedTuple):
    """A command for the machine, and the future of the caller, or None."""

    command: Callable[[int], Ready | None]
    future: Future[Any] | None = None


class MemberRuntime:
    """One member, through all incarnations."""

    def __init__(
        self,
        group: str,
        node: int,
        name: str,
        transport: Transport,
        config: Config,
        sink: DeliverySink,
        *,
        join: Mapping[str, Any],
        rejoin: bool,
        trace: Recorder | None,
        display_name: str = "",
        keyring: Path | None = None,
        credentials: Credentials | None = None,
    ) -> None:
        self.group = group
        self.transport = transport
        self.config = config
        self.rejoin = rejoin
        self.send_requests = SendRequests(config.max_frame_bytes // 2)
        self.bundler = Bundler.of(config, self.send_requests)
        self.calls: deque[PendingCall] = deque()
        self.error: GaplessError | None = None
        self.event_counts: dict[str, int] = {}
        self._event_log = ErrorLog(logging.INFO, EVENT_LOG_INTERVAL_NS)
        self.stopped = self.ended = False
        self.registered = False
        self.due_ns = NEVER_NS
        """When the next turn is due without input, as of the last turn."""
        self._sink = sink
        self._items: list[DeliveryItem] = []
        self._machine_due_ns: int | None = None
        # How many messages the application has consumed, for how many of them a turn was requested,
        # and how many were reported to the machine.
        self._consumed_lock = threading.Lock()
        self._consumed = self._requested = self._reported = 0
        self._report_at = max(1, config.unread_limit // 4)
        # Unconsumed messages of former incarnations: the present machine does not count them.
        self._former_outstanding = 0
        self.closed = threading.Event()
        """Set when this member has ended, and its sink has every item."""
        self._node, self._name = node, name
        self._credentials = credentials
        self._misses_identity = False
        self._early: list[bytes] = []
        if credentials is not None and transport.seal is not None:
            transport.seal.expect_view_keys(config.early_bytes)
        self._display_name = display_name or name
        self._join_options = dict(join)
        self.trace = trace
        watch: Callable[[Callable[[Address], None]], None] | None = getattr(
            transport, "watch", None
        )
        if trace is not None:
            trace.claim()
            if watch is not None:
                watch(trace.record_dropped)
        self.discovery_monitor = DiscoveryMonitor(group, transport)
        self._key_mismatches = KeyMismatchWatch(transport, config.merge_interval_ns)
        self.keyring_watch = (
            None
            if keyring is None or transport.seal is None
            else KeyringWatch(group, keyring, transport.seal)
        )
        self.expelled = self._has_backlog = False
        self.member = self._new_incarnation(self._incarnation_number())
        self.calls.append(PendingCall(self._join_group))

    # Incarnations

    def _incarnation_number(self) -> int:
        """Return the number of an incarnation that begins now."""
        if self.transport.seal is None:
            return time.time_ns()
        return sealed_incarnation(time.time_ns(), SystemRandom())

    def _new_incarnation(self, incarnation: int) -> Member:
        entry = RosterEntry(
            Address(self._node, incarnation), self._name, self.transport.locator.encode()
        )
        seal = self.transport.seal
        group = group_id(self.group) if seal is None else seal.ring.group_id(self.group)
        now_ns = wall_clock_offset_ns()
        if self.trace is not None:
            label, stores = (
                self._display_name or str(self.transport.locator),
                bool(self._join_options.get("stores")),
            )
            self.trace.begin_incarnation(
                entry.address, self.config, now_ns, member=label, stores=stores
            )
        self.transport.book.announce(entry, group, retransmits=self.config.retransmits)
        return Member(
            entry.address,
            group,
            self.config,
            Random(),
            name=entry.name,
            locator=entry.locator,
            tracing=0 if self.trace is None else self.trace.every,
            wall_offset_ns=now_ns,
            sealed=seal is not None,
            credentials=self._credentials,
        )

    def _join_group(self, now_ns: int) -> Ready:
        return self.member.join(now_ns, **self._join_options)

    def leave(self, now_ns: int) -> Ready:
        """Begin to leave, and do not rejoin."""
        self.rejoin = False
        return self.member.leave(now_ns)

    def stop(self, now_ns: int) -> Ready:
        """End at once, without leaving; unacknowledged messages are reported."""
        self.stopped = True
        self.rejoin = False
        self.send_requests.fail(self.closed_error())
        return self.member.abort(now_ns)

    def rejoin_if_expelled(self) -> None:
        """Begin the next incarnation if the group has expelled the present one."""
        if self.expelled and self.rejoin:
            self.expelled = False
            if self._name:
                self._join_options["resume"] = {
                    **(self._join_options.get("resume") or {}),
                    **self.member.resume_marks(),
                }
            self._former_outstanding += self.member.credit.outstanding
            self._machine_due_ns = None
            self._join_options.pop("found_early_ns", None)  # there is a group
            number = max(self._incarnation_number(), self.member.me.incarnation + 1)
            self.member = self._new_incarnation(number)
            self.calls.append(PendingCall(self._join_group))

    @property
    def is_over(self) -> bool:
        """Whether this member has no work left."""
        return self.stopped or (self.member.membership.phase == OVER and not self.calls)

    # Inputs

    @property
    def has_commands(self) -> bool:
        """Whether a command of the application waits."""
        return (
            bool(self.calls)
            or self.send_requests.has_new
            or (bool(self.bundler.items) and self.member.endpoint.view is not None)
        )

    def end_turn(self) -> bool:
        """Compute the next deadline and the bundler's room; return ``has_commands``."""
        due_ns = self._machine_due_ns
        transport_due_ns = self.transport.deadline_ns
        if transport_due_ns is not None and (due_ns is None or transport_due_ns < due_ns):
            due_ns = transport_due_ns
        if self.send_requests.queue:
            request_due_ns = self.send_requests.deadline_ns
            if request_due_ns is not None and (due_ns is None or request_due_ns < due_ns):
                due_ns = request_due_ns
        self.due_ns = NEVER_NS if due_ns is None else due_ns
        if self.transport.book.evidence or self._early:
            self.due_ns = 0  # sending has found a member that may be gone, or datagrams wait
        bundler = self.bundler
        if bundler.room or bundler.expects_more:
            bundler.set_room(self.member.endpoint)
        return self.has_commands

    def run_commands(self, now_ns: int) -> Iterator[Ready]:
        """Give the machine the commands of the application: sends first, then calls."""
        # A request or call that arrives from here on waits for the next round: the message that its
        # thread has sent before may have missed this bundle.
        requests, calls = self.send_requests.count_new(), len(self.calls)
        yield from self.flush_bundle(now_ns)
        yield from self.send_requests.flush(requests, self.member, now_ns)
        if calls and (owed := self._take_unreported()):
            yield self.report_consumed(owed, now_ns)
        for _ in range(calls):
            if (ready := self.calls.popleft().command(now_ns)) is not None:
                yield ready

    def flush_bundle(self, now_ns: int) -> Iterator[Ready]:
        """Give the machine the bundle, once there is a view, after those of former incarnations."""
        if self.member.view is None:
            return
        if self.send_requests.unsent_bundles:
            yield from self.send_requests.resubmit_bundles(self.member, now_ns)
        if (bundle := self.bundler.take()) is None:
            return
        if (ready := self.send_requests.submit_bundle(bundle, self.member, now_ns)) is not None:
            yield ready

    def send(
        self,
        now_ns: int,
        payloads: Sequence[bytes],
        to: Address | None,
        mode: DeliveryMode,
        loopback: bool | None,
    ) -> tuple[Ready, Accepted | None]:
        """Send without waiting for room; return the answer, and Accepted if not refused."""
        ready = self.member.send(payloads, now_ns, to=to, mode=mode, wait=False, loopback=loopback)
        accepted = None
        for at, event in enumerate(ready.events):
            if type(event) is Accepted and event.ticket == ready.ticket:
                accepted = event
                del ready.events[at]  # the caller gets it directly
                break
        return ready, accepted

    def receive_datagrams(self, now_ns: int) -> Sequence[Ready]:
        """Give the machine the datagrams that have arrived."""
        datagrams = self.transport.receive(DATAGRAMS_PER_TURN)
        if self._early:
            datagrams, self._early = [*self._early, *datagrams], []
        self._has_backlog = (
            len(datagrams) >= DATAGRAMS_PER_TURN or sum(map(len, datagrams)) >= TURN_BYTES
        )
        answers = self.member.receive_all(datagrams, now_ns) if datagrams else []
        if self.transport.book.evidence:
            answers += self._note_evidence(now_ns)
        return answers

    def _note_evidence(self, now_ns: int) -> list[Ready]:
        """Give the machine what the transport has seen of members that may be gone."""
        return [
            self.member.note_evidence(member, evidence, now_ns)
            for member, evidence in self.transport.book.take_evidence()
        ]

    def is_due(self, now_ns: int) -> bool:
        """Return whether a timer of the machine is due."""
        due_ns = self._machine_due_ns
        return due_ns is not None and due_ns <= now_ns

    def run_timers(self, now_ns: int) -> Iterator[Ready]:
        """Tick the machine for as long as a timer is due.

        While more datagrams wait than one turn reads, timers wait a little too: many messages that
        the machine would request have arrived already and are only unread.
        """
        if now_ns >= self.discovery_monitor.due_ns:
            self._check_discovery(now_ns)
        if self.keyring_watch is not None and now_ns >= self.keyring_watch.due_ns:
            self.keyring_watch.check(now_ns)
            self._follow_allow_list(self.keyring_watch.keyring)
        if self._has_backlog:
            now_ns -= BACKLOG_GRACE_NS
        for _ in range(TICKS_PER_TURN):
            due_ns = self.member.deadline_ns
            if due_ns is None or due_ns > now_ns:
                return
            yield self.member.tick(time.monotonic_ns())

    @property
    def role(self) -> Role | None:
        """The role of this member; None in a group without identities."""
        credentials = self._credentials
        found = None if credentials is None else credentials.allowed.find(credentials.node)
        return None if found is None else found.role

    def _follow_allow_list(self, keyring: Keyring | None) -> None:
        """Use the identities of the keyring file that the group takes now."""
        allowed = None if keyring is None else keyring.allow_list(self.group)
        if allowed is None or (self._credentials and allowed == self._credentials.allowed):
            return
        if self._credentials is None:
            if not self._misses_identity:
                self._misses_identity = True
                log.error(
                    "%s: the keyring names identities now: restart this member with an identity",
                    self.group,
                )
            return
        if allowed.find(self._node) is None:
            self.error = GaplessError(
                f"the identity of this member may not join {self.group} any more: the keyring does"
                " not allow it"
            )
            log.error("%s", self.error, extra=RAISED)
            self.calls.append(PendingCall(self.stop))
            return
        self._credentials = self._credentials._replace(allowed=allowed)
        assert self.member.guard is not None, "a member with credentials has a guard"
        self.member.guard.replace_allowed(allowed)
        names = ", ".join(sorted(each.name for each in allowed.certificates))
        log.info("%s: the group takes the identities %s", self.group, names)

    def _check_discovery(self, now_ns: int) -> None:
        view = self.member.view
        members = 0 if view is None else len(view)
        mismatches = self._key_mismatches.check(now_ns, self.member.counters, is_alone=members <= 1)
        for event in self.discovery_monitor.check(now_ns, members, mismatches):
            self.event_counts[event.kind] = self.event_counts.get(event.kind, 0) + 1
            self._items.append(event)

    def add_consumed(self, messages: int) -> bool:
        """Count consumed messages, in any thread; return whether a turn should report them now."""
        with self._consumed_lock:
            self._consumed += messages
            if (
                self._consumed - self._requested < self._report_at
                and not self.member.credit.wants_report
            ):
                return False
            self._requested = self._consumed
            return True

    def _take_unreported(self) -> int:
        """Return how many consumed messages were not reported yet, and count them as reported."""
        with self._consumed_lock:
            unreported, self._reported = self._consumed - self._reported, self._consumed
            self._requested = self._consumed
            return unreported

    def report_consumed(self, messages: int, now_ns: int) -> Ready:
        """Report consumed messages to the machine; messages of former incarnations come first."""
        former = min(messages, self._former_outstanding)
        self._former_outstanding -= former
        return self.member.consumed(messages - former, now_ns)

    # Outputs

    def collect(self, ready: Ready) -> None:
        """Collect the items of a ready for the application, in order."""
        self._machine_due_ns = ready.deadline_ns
        if ready.view_keys is not None:
            self._use_view_keys(ready.view_keys)
        if ready.events:
            events = [
                event
                for event in ready.events
                if not self.send_requests.resolve(event) and type(event) is not Located
            ]
            self._items += in_delivery_order(ready.deliveries, events, ready.before_view)
            self._on_events(events)
        else:
            self._items += ready.deliveries
        if self.trace is not None:
            self.trace.record_ready(ready)

    def _use_view_keys(self, keys: Sequence[bytes]) -> None:
        """Seal messages with the key of the view; the next turn reads what has waited for it."""
        seal = self.transport.seal
        if seal is not None:
            seal.replace_view_keys([view_seal_key(key) for key in keys], view_suites())
            self._early += seal.take_early()

    def record(self, transmits: Sequence[Transmit]) -> None:
        """Write the trace of this turn, before the datagrams leave."""
        assert self.trace is not None
        self.trace.flush(transmits)
        if self.trace.stopped and "trace_stopped" not in self.event_counts:
            self.event_counts["trace_stopped"] = 1
            log.error(
                "%s: recording stopped in %s: %s",
                self.group,
                self.trace.folder,
                self.trace.stopped,
            )

    def _on_events(self, events: Sequence[Event]) -> None:
        for event in events:
            name = EVENT_NAMES[type(event)]
            self.event_counts[name] = self.event_counts.get(name, 0) + 1
            if isinstance(event, ViewInstalled):
                self.send_requests.on_view()
                members = format_count(len(event.view.members), "member")
                self._event_log.add(
                    "view", f"{self.group}: view {event.view.id.number} with {members}"
                )
            elif isinstance(event, Expelled):
                self.expelled = True
                if self.member.is_replaced:
                    self._end_replaced()
                else:
                    label = self._label(self.member.me)
                    self._event_log.add(
                        "expelled",
                        f"{self.group}: {label} was expelled; the group continues without this"
                        " incarnation",
                    )
            elif isinstance(event, NameInUse):
                self._refuse_name(event)
            elif isinstance(event, Unheard):
                sender, receiver = self._label(event.sender), self._label(event.receiver)
                self._event_log.add(
                    "link", f"{self.group}: {receiver} does not hear {sender}; one is expelled"
                )
            elif isinstance(event, Suspected):
                label = self._label(event.member)
                self._event_log.add(
                    "suspected", f"{self.group}: {label} is silent and suspected; a probe was sent"
                )

    def _end_replaced(self) -> None:
        """End, because another process has joined with the same identity."""
        self.rejoin = False
        self.error = GaplessError(
            f"another member has joined {self.group} with the identity of this member: make an"
            " identity for each member (gapless keys identity)"
        )
        log.error("%s", self.error, extra=RAISED)

    def _refuse_name(self, event: NameInUse) -> None:
        """End, because another member is alive under the durable name."""
        try:
            where = str(Locator.decode(event.locator))
        except RemoteProtocolError:
            where = "an unknown address"
        self.rejoin = False
        self.error = NameInUseError(
            f"the durable name {self._name!r} is in use in {self.group} by the member at {where} "
            f"({event.holder.short}): choose another durable name, or stop that member",
            event.holder,
        )
        log.error("%s: cannot join: %s", self.group, self.error, extra=RAISED)

    def _label(self, member: Address) -> str:
        """Return a member for people: the own display name, or a durable name, and the short id."""
        roster = self.member.roster
        entries = () if roster is None else roster.entries
        names = {entry.address: entry.name for entry in entries}
        return member_label(member, {**names, self.member.me: self._display_name}.get(member, ""))

    def deliver(self) -> None:
        """Pass the collected items to the sink."""
        if self._items:
            items, self._items = self._items, []
            self._sink.put(items)

    # The end

    def fail(self, error: BaseException) -> None:
        """End because of a bug, in the runtime or in the machine."""
        log.error("%s: this member failed and was closed", self.group, exc_info=error)
        self.error = GaplessError(
            f"this member of {self.group} has failed: {type(error).__name__}: {error}"
        )
        self.error.__cause__ = error
        self.stopped = True

    def end(self) -> None:
        """Close the transport, and fail every pending call."""
        self.ended = True
        self.bundler.close()
        if self.trace is not None:
            self.trace.finish(whole=self.error is None or isinstance(self.error, NameInUseError))
        self.transport.book.discovery.withdraw()
        self.transport.close()
        self.closed.set()
        self._sink.end()
        self.reject_pending()

    def reject_pending(self) -> None:
        """Fail every pending send and call, also those submitted after the last turn."""
        self.send_requests.fail(self.closed_error())
        if (bundle := self.bundler.take()) is not None:
            bundle.fail(self.closed_error())
            log.warning(
                "%s: %d messages were not sent: the member closed first",
                self.group,
                len(bundle.payloads),
            )
        while self.calls:
            future = self.calls.popleft().future
            if future is not None and not future.done():
                future.set_exception(self.closed_error())

    def closed_error(self) -> GaplessError:
        """Return the error for a call to a member that has ended."""
        return self.error or ClosedError(f"this member of {self.group} is closed: join again")


def wall_clock_offset_ns() -> int:
    """Return how far the wall clock is ahead of the monotonic clock, from the quickest reading."""
    found = []
    for _ in range(_CLOCK_SAMPLES):
        before_ns, day_ns, after_ns = time.monotonic_ns(), time.time_ns(), time.monotonic_ns()
        found.append((after_ns - before_ns, day_ns - (before_ns + after_ns) // 2))
    return min(found)[1]


def in_delivery_order(
    deliveries: list[Delivery], events: list[Event], before_view: int
) -> list[DeliveryItem]:
    """Return the items of one answer in the order for the application.

    A state comes before the deliveries, a view between the deliveries of two views, and every other
    event after the deliveries.
    """
    states = [event for event in events if type(event) is StateReceived]
    views = [event for event in events if type(event) is ViewInstalled]
    rest = [
        event
        for event in events
        if type(event) is not StateReceived and type(event) is not ViewInstalled
    ]
    if not views:
        return [*states, *deliveries, *rest]
    return [*states, *deliveries[:before_view], *views, *deliveries[before_view:], *rest]
