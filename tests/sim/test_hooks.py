"""The oracle calls every hook that a checker overrides, and no other."""

from types import FunctionType

from gapless.config import Config
from gapless.sim.checkers.stream_safety import CHECKERS
from gapless.sim.coverage.membership_coverage import MembershipCoverage
from gapless.sim.coverage.stream_coverage import StreamCoverage
from gapless.sim.oracle.checker import ROW_HOOKS, InvariantChecker
from gapless.sim.oracle.oracle import Oracle
from gapless.sim.runner import plan_of
from gapless.sim.world.world import World
from gapless.trace.schema import EVENTS

NOT_A_HOOK = {"fail", "__init__"}
HOOKS = {
    name
    for name, value in vars(InvariantChecker).items()
    if isinstance(value, FunctionType) and name not in NOT_A_HOOK
}


def recorder(called: set[str], names: set[str]) -> type[InvariantChecker]:
    """Return a checker that overrides ``names`` and notes which of them are called."""

    def override(name: str) -> object:
        def hook(self: InvariantChecker, *arguments: object) -> None:
            called.add(name)

        return hook

    return type("Recorder", (InvariantChecker,), {name: override(name) for name in names})


def test_every_hook_that_is_overridden_is_called_in_some_run() -> None:
    called: set[str] = set()
    expected = HOOKS - {"view_pending"}
    for membership in (False, True):
        for seed in range(60):
            plan = plan_of(seed, membership=membership, sealed=seed == 0)
            world = World(
                plan.config,
                plan.script,
                faults=plan.faults,
                late_timers=plan.late_timers,
                checkers=[recorder(called, HOOKS)],
                sealing=plan.sealing,
            )
            world.run()
            if called >= expected:
                break
    assert called == expected


def test_a_view_after_the_group_had_converged_is_pending() -> None:
    called: set[str] = set()
    oracle = Oracle(Config(), [recorder(called, HOOKS)], membership=True)
    oracle.on_view_pending()
    assert called == set()
    oracle.on_converged(5)
    oracle.on_view_pending()
    assert called == {"view_pending"}


def test_a_hook_that_is_not_overridden_has_no_subscriber() -> None:
    oracle = Oracle(Config(), [recorder(set(), {"data_in"})])
    assert len(oracle._subscribers(lambda checker: checker.data_in)) == 1
    assert oracle._subscribers(lambda checker: checker.data_out) == ()
    assert all(oracle._subscribers(hook) == () for hook in ROW_HOOKS.values())


def test_a_checker_of_silence_is_subscribed_only_while_the_group_must_be_silent() -> None:
    silent = recorder(set(), {"data_out"})
    silent.only_when_idle = True
    oracle = Oracle(Config(), [silent])
    assert oracle._subscribers(lambda checker: checker.data_out) == ()
    oracle.resting = True
    assert len(oracle._subscribers(lambda checker: checker.data_out)) == 1


def test_every_row_hook_belongs_to_an_event_of_the_trace_and_is_used() -> None:
    assert set(ROW_HOOKS) <= set(EVENTS)
    rows = {name for name in HOOKS if name.startswith("row_")}
    assert {f"row_{event.lower()}" for event in ROW_HOOKS} == rows
    users = (*CHECKERS, MembershipCoverage, StreamCoverage)
    used = {name for user in users for kind in user.__mro__[:-2] for name in vars(kind)}
    assert rows <= used
