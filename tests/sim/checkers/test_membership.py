"""Every check of membership passes for honest steps, and fails on a step that violates it."""

from random import Random

import pytest

from gapless.config import Config
from gapless.identity import Address, Roster, RosterEntry, View, ViewId
from gapless.protocol.events import Expelled, RetentionReleased, StateReceived, Suspected
from gapless.protocol.member import Member
from gapless.protocol.ready import ANYONE, Delivery, Ready, TraceEntry
from gapless.run import Run
from gapless.sim.checkers.membership import group_bound_ns
from gapless.sim.checkers.stream_safety import CHECKERS
from gapless.sim.coverage.membership_coverage import MembershipCoverage
from gapless.sim.oracle.model import MemberModel
from gapless.sim.oracle.oracle import Oracle
from gapless.units import NS_PER_MS, NS_PER_S
from gapless.wire import Data, Datagram, Frame, Tail
from gapless.wire.frames import Alive, Beacon, Join, Leave, NewView

GROUP = 7
A, B, C = Address(1, 1), Address(2, 1), Address(3, 1)
A2 = Address(1, 2)


def roster_of(number: int, *members: Address, away: tuple[RosterEntry, ...] = ()) -> Roster:
    places = tuple(
        RosterEntry(member, f"name-{member.node}" if member.node == 3 else "") for member in members
    )
    return Roster(ViewId(number, members[0]), places, away)


class OracleGroup:
    """Members ``a``, ``b`` and the durable ``c`` before an oracle of self-made views."""

    def __init__(self, **knobs: object) -> None:
        self.config = Config().replace(**knobs)
        self.oracle = Oracle(
            self.config,
            (*CHECKERS, MembershipCoverage),
            bounds_ns=(NS_PER_S, NS_PER_S),
            membership=True,
        )
        self.now_ns = 0
        self.models: dict[Address, MemberModel] = {}
        for address, name in ((A, "a"), (B, "b"), (C, "c"), (A2, "a'")):
            member = Member(address, GROUP, self.config, Random(1), tracing=True)
            self.models[address] = self.oracle.on_incarnation_start(address, name, member)

    def install(self, who: Address, roster: Roster) -> None:
        """Report a view to the oracle, and let the member install it, unless a check failed."""
        model = self.models[who]
        self.oracle.on_install(model, roster.view, None, self.now_ns, roster=roster)
        self.oracle._updater.departing.clear()
        if not self.oracle.violations:
            member = model.member
            assert isinstance(member, Member)
            member.membership.phase, member.membership.pending = "joining", roster
            member.tick(self.now_ns)

    def forge(
        self,
        who: Address,
        *frames: Frame,
        to: Address | None = None,
        events: tuple[object, ...] = (),
        deliveries: tuple[Delivery, ...] = (),
        rows: tuple[TraceEntry, ...] = (),
    ) -> None:
        """Show the oracle a step that the member did not take."""
        ready = Ready(events=list(events), deliveries=list(deliveries), trace=list(rows))  # type: ignore[arg-type]
        outgoing = [(to, Datagram(GROUP, who, frames))] if frames else []
        self.oracle.on_step(
            self.models[who], "tick", None, ready, outgoing, self.now_ns, self.now_ns
        )

    def send(self, who: Address, *payloads: bytes) -> Run:
        """Show the oracle a send and its first transmission."""
        model = self.models[who]
        self.oracle.on_send(model, payloads, Ready(ticket=1))
        run = Run.of(who, model.stream.high + 1, payloads, view=1)
        self.forge(who, Data(run))
        return run

    @property
    def broken(self) -> set[str]:
        """The names of the checks that have found something."""
        return {violation.check for violation in self.oracle.violations}


def together(*members: Address, **knobs: object) -> OracleGroup:
    """Return a case in which ``members`` are in view 1."""
    case = OracleGroup(**knobs)
    for member in members:
        case.install(member, roster_of(1, *members))
    return case


# S15: views


def test_s15_views_that_follow_each_other_are_fine() -> None:
    case = together(A, B, C)
    case.install(A, roster_of(2, A, C))
    case.install(C, roster_of(2, A, C))
    assert case.broken == set()


def test_s15_parts_of_a_group_may_use_one_number_for_two_views() -> None:
    case = together(A, B)
    case.install(A, roster_of(2, A))
    case.install(B, roster_of(2, B))
    assert case.broken == set()


def test_s15_one_id_with_two_lists() -> None:
    case = together(A, B, C)
    case.install(A, roster_of(2, A, B))
    case.install(B, roster_of(2, A, B, C))
    assert case.broken == {"S15"}


@pytest.mark.parametrize(
    "roster",
    [
        roster_of(1, A, B),
        roster_of(2, B, C),
        Roster(ViewId(2, B), (RosterEntry(A), RosterEntry(B))),
        roster_of(2, A, A2),
        roster_of(2, A, Address(9, 1)),
    ],
    ids=["number again", "not in it", "made by another", "one node twice", "never lived"],
)
def test_s15_a_view_that_nobody_may_install(roster: Roster) -> None:
    case = together(A, B)
    case.install(A, roster)
    assert case.broken == {"S15"}


def test_s15_a_datagram_of_a_stranger_that_moves_a_stream() -> None:
    case = together(A, B)
    model = case.models[A]
    datagram = Datagram(GROUP, C, (Data(Run.of(C, 1, [b"x"], view=1)),))
    before = case.oracle.fingerprint_if_refused(model, datagram)
    assert before is not None
    case.oracle.on_step(model, "receive", datagram, Ready(), [], 0, 0, before)
    assert case.broken == set()
    model.member.outbound.stable = 5
    case.oracle.on_step(model, "receive", datagram, Ready(), [], 0, 0, before)
    assert case.broken == {"S15"}


def test_s15_a_sign_of_life_of_a_stranger_may_change_much() -> None:
    case = together(A, B)
    datagram = Datagram(GROUP, C, (Join(RosterEntry(C)),))
    assert case.oracle.fingerprint_if_refused(case.models[A], datagram) is None
    assert (
        case.oracle.fingerprint_if_refused(case.models[A], datagram._replace(group=8)) is not None
    )


# S16: silence


def resting(case: OracleGroup) -> OracleGroup:
    case.oracle.rested_ns = 3 * case.config.heartbeat_interval_ns
    case.oracle.settled = case.oracle.resting = True
    case.oracle.on_converged(0)
    for model in case.models.values():
        model.alive = model.view is not None
    return case


def test_s16_signs_of_life_and_a_beacon_are_no_noise() -> None:
    case = resting(together(A, B))
    for _ in range(3):
        case.forge(A, Alive(A, ViewId(1, A), True), to=B)
    case.forge(A, Beacon(A, ViewId(1, A), ()), to=ANYONE)
    case.oracle.close(NS_PER_S)
    assert case.broken == set()


@pytest.mark.parametrize(
    "frame", [Join(RosterEntry(A)), Leave(A), NewView(A, ViewId(1, A), None, 0, 1, b"")]
)
def test_s16_a_group_at_rest_does_not_talk_about_views(frame: Frame) -> None:
    case = resting(together(A, B))
    case.forge(A, frame, to=B)
    assert "S16" in case.broken


def test_s16_a_member_whose_heartbeats_are_in_time_is_not_asked() -> None:
    case = resting(together(A, B))
    for _ in range(2 * case.config.monitors + 1):
        case.forge(A, Alive(A, ViewId(1, A), True, reply_wanted=True), to=B)
    case.oracle.close(NS_PER_S)
    assert case.broken == {"S16"}


@pytest.mark.parametrize("frame", [Alive(A, ViewId(1, A), True), Beacon(A, ViewId(1, A), ())])
def test_s16_too_many_signs_of_life(frame: Frame) -> None:
    case = resting(together(A, B))
    for _ in range(100):
        case.forge(A, frame, to=B)
    case.oracle.close(NS_PER_S)
    assert case.broken == {"S16"}


# S20: leaving


def test_s19_leaving_with_everything_delivered_is_fine() -> None:
    case = together(A, B)
    case.models[A].leaving_ns = 0
    case.forge(A, Leave(A), to=B)
    assert case.broken == set()


def test_s19_leaving_before_others_have_everything() -> None:
    case = together(A, B)
    case.send(A, b"last words")
    case.oracle.violations.clear()
    case.models[A].leaving_ns = 0
    case.forge(A, Leave(A), to=B)
    assert case.broken == {"S20"}


def test_s19_patience_ends() -> None:
    case = together(A, B, leave_timeout="1s")
    case.send(A, b"last words")
    case.oracle.violations.clear()
    case.models[A].leaving_ns = 0
    case.now_ns = NS_PER_S
    case.forge(A, Leave(A), to=B)
    assert case.broken == set()


def test_s19_leaving_without_a_wish() -> None:
    case = together(A, B)
    case.forge(A, Leave(A), to=B)
    assert case.broken == {"S20"}


# S21: patience


def test_s20_a_suspicion_where_nothing_is_wrong() -> None:
    case = together(A, B)
    case.forge(A, events=(Suspected(B),))
    assert case.broken == set()
    case.oracle.fault_free = True
    case.forge(A, events=(Suspected(B),))
    assert case.broken == {"S21"}


def test_s20_the_dead_may_be_suspected() -> None:
    case = together(A, B)
    case.oracle.fault_free = True
    case.oracle.on_incarnation_end(case.models[B])
    case.forge(A, events=(Suspected(B),))
    assert case.broken == set()


def test_s20_who_leaves_may_suspect_those_that_have_gone_on() -> None:
    case = together(A, B)
    case.oracle.fault_free = True
    case.models[A].leaving_ns = 0
    case.forge(A, events=(Suspected(B),))
    assert case.broken == set()


def test_s20_an_expulsion_for_a_short_pause() -> None:
    case = together(A, B)
    case.forge(A, events=(Expelled(ViewId(2, B)),))
    assert case.broken == set()
    case.oracle.long_paused = set()
    case.forge(A, events=(Expelled(ViewId(2, B)),))
    assert case.broken == {"S21"}


# S22: state


def waiting_for_state() -> OracleGroup:
    """Return a group in which ``b`` waits for the state, after two deliveries of ``a`` at ``a``."""
    case = together(A, B, C)
    case.models[B].transferring = True
    case.send(A, b"one", b"two")
    case.models[A].own_next = 3
    case.models[B].inbound[A].open_at(0)
    case.oracle.violations.clear()
    return case


def delivery(first: int, *messages: bytes) -> Delivery:
    run = Run.of(A, first, messages, view=1)
    return Delivery(A, first, run.last, run)


def test_s21_the_state_and_what_follows() -> None:
    case = waiting_for_state()
    case.oracle.on_state_provided(case.models[A], b"state", {})
    case.forge(B, events=(StateReceived(A, b"state"),))
    case.send(A, b"three")
    case.oracle.violations.clear()
    case.forge(B, deliveries=(delivery(3, b"three"),))
    assert case.broken == set()
    assert not case.models[B].transferring


def test_s21_a_delivery_before_the_state() -> None:
    case = waiting_for_state()
    case.forge(B, deliveries=(delivery(1, b"one"),))
    assert case.broken == {"S22"}


def test_s21_what_is_in_the_state_is_not_delivered_again() -> None:
    case = waiting_for_state()
    case.oracle.on_state_provided(case.models[A], b"state", {})
    case.forge(B, events=(StateReceived(A, b"state"),), deliveries=(delivery(2, b"two"),))
    assert case.broken == {"S2"}


def test_s21_nothing_is_left_out_behind_the_state() -> None:
    case = waiting_for_state()
    case.oracle.on_state_provided(case.models[A], b"state", {})
    case.send(A, b"three", b"four")
    case.oracle.violations.clear()
    case.forge(B, events=(StateReceived(A, b"state"),), deliveries=(delivery(4, b"four"),))
    assert case.broken == {"S3"}


@pytest.mark.parametrize(("provider", "state"), [(A, b"invented"), (None, b"from nowhere")])
def test_s21_a_state_that_nobody_gave(provider: Address | None, state: bytes) -> None:
    case = waiting_for_state()
    case.forge(B, events=(StateReceived(provider, state),))
    assert case.broken == {"S22"}


def test_s21_no_state_though_others_have_one() -> None:
    case = waiting_for_state()
    case.oracle.fault_free = True
    case.forge(B, events=(StateReceived(None, b""),))
    assert case.broken == {"S22"}


# L6: one group


def test_l6_one_group_in_time() -> None:
    case = together(A, B)
    case.oracle.settled = True
    case.oracle.group_bound_ns = NS_PER_S
    case.oracle.on_converged(NS_PER_S)
    case.oracle.close(2 * NS_PER_S)
    assert case.broken == set()


@pytest.mark.parametrize("gathered_ns", [None, NS_PER_S + 1])
def test_l6_one_group_too_late_or_never(gathered_ns: int | None) -> None:
    case = together(A, B)
    case.oracle.settled = True
    case.oracle.group_bound_ns = NS_PER_S
    if gathered_ns is not None:
        case.oracle.on_converged(gathered_ns)
    case.oracle.close(2 * NS_PER_S)
    assert case.broken == {"L6"}


def test_l6_another_view_lets_everything_count_anew() -> None:
    case = together(A, B)
    case.oracle.on_converged(NS_PER_S)
    case.oracle.on_view_pending()
    assert case.oracle.converged_ns is None
    case.oracle.on_converged(2 * NS_PER_S)
    assert case.oracle.converged_ns == case.oracle.next_check_ns == 2 * NS_PER_S


def test_the_bound_grows_with_every_knob_it_names() -> None:
    config = Config()
    bound_ns = group_bound_ns(config, NS_PER_MS, durable=False)
    for knob in (
        "heartbeat_interval",
        "suspect_after",
        "verify_timeout",
        "found_after",
        "join_interval",
    ):
        assert group_bound_ns(config.replace(**{knob: "1min"}), NS_PER_MS, durable=False) > bound_ns
    for knob in ("join_confirm_timeout", "view_bundle_delay", "merge_interval", "leave_timeout"):
        assert group_bound_ns(config.replace(**{knob: "1min"}), NS_PER_MS, durable=False) > bound_ns
    assert group_bound_ns(config, NS_PER_S, durable=False) > bound_ns
    assert group_bound_ns(config, NS_PER_MS, durable=True) > bound_ns


# S9: retention


def one_away(acked: int) -> OracleGroup:
    """Return a group without the durable ``c``, which acknowledged ``acked`` of 3 messages."""
    case = together(A, B, C)
    case.send(A, b"one", b"two", b"three")
    stream = case.models[A].stream
    stream.acks.update({A: 3, B: 3, C: acked})
    case.install(A, roster_of(2, A, B, away=(RosterEntry(C, "name-3"),)))
    case.oracle.violations.clear()
    return case


def test_s9_a_kept_place_counts_like_a_member() -> None:
    assert one_away(1).models[A].stream.acks == {A: 3, B: 3, C: 1}


def test_s9_the_next_life_starts_behind_the_last_ack() -> None:
    case = one_away(1)
    case.install(
        A,
        Roster(
            ViewId(3, A), (RosterEntry(A), RosterEntry(B), RosterEntry(Address(3, 2), "name-3"))
        ),
    )
    assert case.models[A].stream.starts[Address(3, 2)] == 1


@pytest.mark.parametrize(("start", "broken"), [(1, set()), (2, {"S9"}), (0, {"S9"})])
def test_s9_a_start_that_leaves_out_or_repeats(start: int, broken: set[str]) -> None:
    case = one_away(1)
    back = Address(3, 2)
    case.oracle.on_incarnation_start(
        back, "c'", Member(back, GROUP, case.config, Random(1), tracing=True)
    )
    case.install(
        A, Roster(ViewId(3, A), (RosterEntry(A), RosterEntry(B), RosterEntry(back, "name-3")))
    )
    window = case.models[A].member.outbound.window
    for number, message in enumerate((b"one", b"two", b"three"), 1):
        window.add(Run.of(A, number, [message], view=1))
    case.oracle.violations.clear()
    case.forge(A, Tail(A, 0, 3, start, back.incarnation), to=back)
    assert case.broken & {"S9"} == broken


def test_s9_a_place_that_was_given_up_counts_no_more() -> None:
    case = one_away(1)
    case.forge(A, events=(RetentionReleased("name-3", C, "capacity"),))
    assert C not in case.models[A].stream.acks
    case.install(A, roster_of(3, A, B, away=(RosterEntry(C, "name-3"),)))
    assert C not in case.models[A].stream.acks


def test_s9_one_who_was_never_counted_is_kept_from_here_on() -> None:
    case = together(A, B)
    case.send(A, b"one")
    case.install(A, roster_of(2, A, B, away=(RosterEntry(C, "name-3"),)))
    assert case.models[A].stream.acks[C] == 1


# Liveness


def test_a_merge_of_three_is_seen_by_its_maker() -> None:
    case = OracleGroup()
    sightings = case.oracle.checkers[-1]
    assert isinstance(sightings, MembershipCoverage)
    for member in (A, B, C):
        case.install(member, roster_of(1, member))
    case.install(A, roster_of(2, A, B, C))
    assert {"merge of two", "merge of three"} <= sightings.seen


def test_members_that_lag_behind_are_no_parts_of_their_own() -> None:
    case = together(A, B, C)
    sightings = case.oracle.checkers[-1]
    assert isinstance(sightings, MembershipCoverage)
    case.install(B, roster_of(2, A, B, C))
    case.install(A, roster_of(3, A, B, C))
    assert "merge of two" not in sightings.seen


def test_view_of_a_roster() -> None:
    assert roster_of(2, A, B).view == View(ViewId(2, A), (A, B))
