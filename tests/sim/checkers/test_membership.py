"""Every check of groups that make their own views holds for honest steps, and fails on one that breaks its promise."""

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


class GatheringCourt:
    """Lives ``a``, ``b`` and ``c`` (which has a durable name) before a judge of groups that make their own views."""

    def __init__(self, **knobs: object) -> None:
        self.config = Config().replace(**knobs)
        self.judge = Oracle(
            self.config,
            (*CHECKERS, MembershipCoverage),
            bounds_ns=(NS_PER_S, NS_PER_S),
            membership=True,
        )
        self.now_ns = 0
        self.lives: dict[Address, MemberModel] = {}
        for address, name in ((A, "a"), (B, "b"), (C, "c"), (A2, "a'")):
            member = Member(address, GROUP, self.config, Random(1), tracing=True)
            self.lives[address] = self.judge.on_incarnation_start(address, name, member)

    def install(self, who: Address, roster: Roster) -> None:
        """Tell the judge of a view, and let the member install it, if it may."""
        life = self.lives[who]
        self.judge.on_install(life, roster.view, None, self.now_ns, roster=roster)
        self.judge._updater.departing.clear()
        if not self.judge.violations:
            member = life.member
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
        """Show the judge a step that the member did not take."""
        ready = Ready(events=list(events), deliveries=list(deliveries), trace=list(rows))  # type: ignore[arg-type]
        outgoing = [(to, Datagram(GROUP, who, frames))] if frames else []
        self.judge.on_step(self.lives[who], "tick", None, ready, outgoing, self.now_ns, self.now_ns)

    def send(self, who: Address, *payloads: bytes) -> Run:
        """Let the judge see messages go out that the application gave."""
        life = self.lives[who]
        self.judge.on_send(life, payloads, Ready(ticket=1))
        run = Run.of(who, life.stream.high + 1, payloads, view=1)
        self.forge(who, Data(run))
        return run

    @property
    def broken(self) -> set[str]:
        """The names of the checks that have found something."""
        return {violation.check for violation in self.judge.violations}


def together(*members: Address, **knobs: object) -> GatheringCourt:
    """Return a court in which ``members`` are in view 1."""
    court = GatheringCourt(**knobs)
    for member in members:
        court.install(member, roster_of(1, *members))
    return court


# S15: views


def test_s15_views_that_follow_each_other_are_fine() -> None:
    court = together(A, B, C)
    court.install(A, roster_of(2, A, C))
    court.install(C, roster_of(2, A, C))
    assert court.broken == set()


def test_s15_parts_of_a_group_may_use_one_number_for_two_views() -> None:
    court = together(A, B)
    court.install(A, roster_of(2, A))
    court.install(B, roster_of(2, B))
    assert court.broken == set()


def test_s15_one_id_with_two_lists() -> None:
    court = together(A, B, C)
    court.install(A, roster_of(2, A, B))
    court.install(B, roster_of(2, A, B, C))
    assert court.broken == {"S15"}


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
    court = together(A, B)
    court.install(A, roster)
    assert court.broken == {"S15"}


def test_s15_a_datagram_of_a_stranger_that_moves_a_stream() -> None:
    court = together(A, B)
    life = court.lives[A]
    said = Datagram(GROUP, C, (Data(Run.of(C, 1, [b"x"], view=1)),))
    before = court.judge.fingerprint_if_refused(life, said)
    assert before is not None
    court.judge.on_step(life, "receive", said, Ready(), [], 0, 0, before)
    assert court.broken == set()
    life.member.outbound.stable = 5
    court.judge.on_step(life, "receive", said, Ready(), [], 0, 0, before)
    assert court.broken == {"S15"}


def test_s15_a_sign_of_life_of_a_stranger_may_change_much() -> None:
    court = together(A, B)
    said = Datagram(GROUP, C, (Join(RosterEntry(C)),))
    assert court.judge.fingerprint_if_refused(court.lives[A], said) is None
    assert court.judge.fingerprint_if_refused(court.lives[A], said._replace(group=8)) is not None


# S16: silence


def resting(court: GatheringCourt) -> GatheringCourt:
    court.judge.rested_ns = 3 * court.config.heartbeat_interval_ns
    court.judge.settled = court.judge.resting = True
    court.judge.on_converged(0)
    for life in court.lives.values():
        life.alive = life.view is not None
    return court


def test_s16_signs_of_life_and_a_beacon_are_no_noise() -> None:
    court = resting(together(A, B))
    for _ in range(3):
        court.forge(A, Alive(A, ViewId(1, A), True), to=B)
    court.forge(A, Beacon(A, ViewId(1, A), ()), to=ANYONE)
    court.judge.close(NS_PER_S)
    assert court.broken == set()


@pytest.mark.parametrize(
    "frame", [Join(RosterEntry(A)), Leave(A), NewView(A, ViewId(1, A), None, 0, 1, b"")]
)
def test_s16_a_group_at_rest_does_not_talk_about_views(frame: Frame) -> None:
    court = resting(together(A, B))
    court.forge(A, frame, to=B)
    assert "S16" in court.broken


@pytest.mark.parametrize("frame", [Alive(A, ViewId(1, A), True), Beacon(A, ViewId(1, A), ())])
def test_s16_too_many_signs_of_life(frame: Frame) -> None:
    court = resting(together(A, B))
    for _ in range(100):
        court.forge(A, frame, to=B)
    court.judge.close(NS_PER_S)
    assert court.broken == {"S16"}


# S20: leaving


def test_s19_leaving_with_everything_delivered_is_fine() -> None:
    court = together(A, B)
    court.lives[A].leaving_ns = 0
    court.forge(A, Leave(A), to=B)
    assert court.broken == set()


def test_s19_leaving_before_others_have_everything() -> None:
    court = together(A, B)
    court.send(A, b"last words")
    court.judge.violations.clear()
    court.lives[A].leaving_ns = 0
    court.forge(A, Leave(A), to=B)
    assert court.broken == {"S20"}


def test_s19_patience_ends() -> None:
    court = together(A, B, leave_timeout="1s")
    court.send(A, b"last words")
    court.judge.violations.clear()
    court.lives[A].leaving_ns = 0
    court.now_ns = NS_PER_S
    court.forge(A, Leave(A), to=B)
    assert court.broken == set()


def test_s19_leaving_without_a_wish() -> None:
    court = together(A, B)
    court.forge(A, Leave(A), to=B)
    assert court.broken == {"S20"}


# S21: patience


def test_s20_a_suspicion_where_nothing_is_wrong() -> None:
    court = together(A, B)
    court.forge(A, events=(Suspected(B),))
    assert court.broken == set()
    court.judge.fault_free = True
    court.forge(A, events=(Suspected(B),))
    assert court.broken == {"S21"}


def test_s20_the_dead_may_be_suspected() -> None:
    court = together(A, B)
    court.judge.fault_free = True
    court.judge.on_incarnation_end(court.lives[B])
    court.forge(A, events=(Suspected(B),))
    assert court.broken == set()


def test_s20_who_leaves_may_suspect_those_that_have_gone_on() -> None:
    court = together(A, B)
    court.judge.fault_free = True
    court.lives[A].leaving_ns = 0
    court.forge(A, events=(Suspected(B),))
    assert court.broken == set()


def test_s20_an_expulsion_for_a_short_pause() -> None:
    court = together(A, B)
    court.forge(A, events=(Expelled(ViewId(2, B)),))
    assert court.broken == set()
    court.judge.only_short_pauses = True
    court.forge(A, events=(Expelled(ViewId(2, B)),))
    assert court.broken == {"S21"}


# S22: state


def waiting_for_state() -> GatheringCourt:
    """Return a court in which ``b`` waits for the state, and ``a`` has sent two messages and been handed them."""
    court = together(A, B, C)
    court.lives[B].transferring = True
    court.send(A, b"one", b"two")
    court.lives[A].own_next = 3
    court.lives[B].inbound[A].open_at(0)
    court.judge.violations.clear()
    return court


def delivery(first: int, *messages: bytes) -> Delivery:
    run = Run.of(A, first, messages, view=1)
    return Delivery(A, first, run.last, run)


def test_s21_the_state_and_what_follows() -> None:
    court = waiting_for_state()
    court.judge.on_state_provided(court.lives[A], b"state", {})
    court.forge(B, events=(StateReceived(A, b"state"),))
    court.send(A, b"three")
    court.judge.violations.clear()
    court.forge(B, deliveries=(delivery(3, b"three"),))
    assert court.broken == set()
    assert not court.lives[B].transferring


def test_s21_a_delivery_before_the_state() -> None:
    court = waiting_for_state()
    court.forge(B, deliveries=(delivery(1, b"one"),))
    assert court.broken == {"S22"}


def test_s21_what_is_in_the_state_is_not_delivered_again() -> None:
    court = waiting_for_state()
    court.judge.on_state_provided(court.lives[A], b"state", {})
    court.forge(B, events=(StateReceived(A, b"state"),), deliveries=(delivery(2, b"two"),))
    assert court.broken == {"S2"}


def test_s21_nothing_is_left_out_behind_the_state() -> None:
    court = waiting_for_state()
    court.judge.on_state_provided(court.lives[A], b"state", {})
    court.send(A, b"three", b"four")
    court.judge.violations.clear()
    court.forge(B, events=(StateReceived(A, b"state"),), deliveries=(delivery(4, b"four"),))
    assert court.broken == {"S3"}


@pytest.mark.parametrize(("provider", "state"), [(A, b"invented"), (None, b"from nowhere")])
def test_s21_a_state_that_nobody_gave(provider: Address | None, state: bytes) -> None:
    court = waiting_for_state()
    court.forge(B, events=(StateReceived(provider, state),))
    assert court.broken == {"S22"}


def test_s21_no_state_though_others_have_one() -> None:
    court = waiting_for_state()
    court.judge.fault_free = True
    court.forge(B, events=(StateReceived(None, b""),))
    assert court.broken == {"S22"}


# L6: one group


def test_l6_one_group_in_time() -> None:
    court = together(A, B)
    court.judge.settled = True
    court.judge.group_bound_ns = NS_PER_S
    court.judge.on_converged(NS_PER_S)
    court.judge.close(2 * NS_PER_S)
    assert court.broken == set()


@pytest.mark.parametrize("gathered_ns", [None, NS_PER_S + 1])
def test_l6_one_group_too_late_or_never(gathered_ns: int | None) -> None:
    court = together(A, B)
    court.judge.settled = True
    court.judge.group_bound_ns = NS_PER_S
    if gathered_ns is not None:
        court.judge.on_converged(gathered_ns)
    court.judge.close(2 * NS_PER_S)
    assert court.broken == {"L6"}


def test_l6_another_view_lets_everything_count_anew() -> None:
    court = together(A, B)
    court.judge.on_converged(NS_PER_S)
    court.judge.on_view_pending()
    assert court.judge.converged_ns is None
    court.judge.on_converged(2 * NS_PER_S)
    assert court.judge.converged_ns == court.judge.next_check_ns == 2 * NS_PER_S


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


# S9: kept places


def one_away(acked: int) -> GatheringCourt:
    """Return a court in which the durable ``c`` is away; it has acknowledged ``acked`` of three messages of ``a``."""
    court = together(A, B, C)
    court.send(A, b"one", b"two", b"three")
    stream = court.lives[A].stream
    stream.acks.update({A: 3, B: 3, C: acked})
    court.install(A, roster_of(2, A, B, away=(RosterEntry(C, "name-3"),)))
    court.judge.violations.clear()
    return court


def test_s9_a_kept_place_counts_like_a_member() -> None:
    assert one_away(1).lives[A].stream.acks == {A: 3, B: 3, C: 1}


def test_s9_the_next_life_starts_behind_the_last_ack() -> None:
    court = one_away(1)
    court.install(
        A,
        Roster(
            ViewId(3, A), (RosterEntry(A), RosterEntry(B), RosterEntry(Address(3, 2), "name-3"))
        ),
    )
    assert court.lives[A].stream.starts[Address(3, 2)] == 1


@pytest.mark.parametrize(("start", "broken"), [(1, set()), (2, {"S9"}), (0, {"S9"})])
def test_s9_a_start_that_leaves_out_or_repeats(start: int, broken: set[str]) -> None:
    court = one_away(1)
    back = Address(3, 2)
    court.judge.on_incarnation_start(
        back, "c'", Member(back, GROUP, court.config, Random(1), tracing=True)
    )
    court.install(
        A, Roster(ViewId(3, A), (RosterEntry(A), RosterEntry(B), RosterEntry(back, "name-3")))
    )
    window = court.lives[A].member.outbound.window
    for number, message in enumerate((b"one", b"two", b"three"), 1):
        window.add(Run.of(A, number, [message], view=1))
    court.judge.violations.clear()
    court.forge(A, Tail(A, 0, 3, start, back.incarnation), to=back)
    assert court.broken & {"S9"} == broken


def test_s9_a_place_that_was_given_up_counts_no_more() -> None:
    court = one_away(1)
    court.forge(A, events=(RetentionReleased("name-3", C, "capacity"),))
    assert C not in court.lives[A].stream.acks
    court.install(A, roster_of(3, A, B, away=(RosterEntry(C, "name-3"),)))
    assert C not in court.lives[A].stream.acks


def test_s9_one_who_was_never_counted_is_kept_from_here_on() -> None:
    court = together(A, B)
    court.send(A, b"one")
    court.install(A, roster_of(2, A, B, away=(RosterEntry(C, "name-3"),)))
    assert court.lives[A].stream.acks[C] == 1


# What must happen


def test_a_merge_of_three_is_seen_by_its_maker() -> None:
    court = GatheringCourt()
    sightings = court.judge.checkers[-1]
    assert isinstance(sightings, MembershipCoverage)
    for member in (A, B, C):
        court.install(member, roster_of(1, member))
    court.install(A, roster_of(2, A, B, C))
    assert {"merge of two", "merge of three"} <= sightings.seen


def test_members_that_lag_behind_are_no_parts_of_their_own() -> None:
    court = together(A, B, C)
    sightings = court.judge.checkers[-1]
    assert isinstance(sightings, MembershipCoverage)
    court.install(B, roster_of(2, A, B, C))
    court.install(A, roster_of(3, A, B, C))
    assert "merge of two" not in sightings.seen


def test_view_of_a_roster() -> None:
    assert roster_of(2, A, B).view == View(ViewId(2, A), (A, B))
