"""No wake-up is lost: the reactor's handover between threads, searched over its interleavings.

The real reactor runs in threads that take turns as a schedule says (tests/support/interleaving.py).
Time passes only if all threads wait. So a lost wake-up stops a thread for ever, or until a time
limit, and both are found.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import partial
from random import Random
from typing import Any

import pytest

from tests.support.interleaving import (
    DELAY,
    LONG_DELAY,
    Interleaving,
    ModelEventLoop,
    ModelFuture,
    ModelMember,
    make_run,
)

Patch = tuple[str, str] | None
RANDOM_RUNS = int(os.environ.get("GAPLESS_HANDOVER_RUNS", "150"))
"""Number of random schedules of each story."""
LATE_NS = 20_000_000
"""How long all threads together may wait for time limits: a few handovers of polling and timers."""

PROMPT_NS = 4_000_000
"""The same where the protocol thread never has to watch a loop until it leads instead."""


class Stage:
    """A reactor with one member, and what the threads of a story do."""

    def __init__(self, run: Interleaving, module: Any) -> None:
        self.run = run
        self.module = module
        self.reactor = module.Reactor()
        self.member = ModelMember(run)
        self.completed = ModelFuture(run)

    def play(self, *parts: Callable[[], object]) -> None:
        """Run all parts, each in a thread, after the member was added."""
        self.run.spawn("opener", lambda: self.reactor.add(self.member))
        for number, part in enumerate(parts):
            name = "main" if part == self.main else f"part {number}"
            self.run.spawn(name, partial(self._play, part))
        self.run.run()

    def _play(self, part: Callable[[], object]) -> None:
        self.run.wait(lambda: self.member.registered or self.member.ended)
        part()

    def main(self) -> None:
        """Wait in the thread that gets signals; the handler of a signal needs another leader."""
        self.module.SignalGuard.handler = self._handle
        self.query()
        self.reactor.wait_for(self.completed, None)

    def _handle(self) -> None:
        self.arrive()
        self.run.wait(lambda: self.member.inbox > 0)
        self.completed.set_result(None)

    def signal(self) -> None:
        """Send a signal to ``main`` in select; if it follows, complete what it waits for."""
        run = self.run
        run.wait(lambda: run.is_main_in_select or self.completed.done in self.reactor._waiters)
        if run.is_main_in_select:
            run.signalled = True
        else:
            self.completed.set_result(None)

    def call(self, command: Callable[[], None]) -> None:
        """Post a command, as ``MemberHandle.call`` does."""
        self.member.calls.append(command)
        self.reactor.wake_up(self.member)

    def run_now(self, command: Callable[[], None]) -> None:
        """Run a command in this thread, as a send does."""
        self.member.calls.append(command)
        self.reactor.run_now(self.member)

    def query(self) -> None:
        """Post a command, and wait for its future."""
        future = ModelFuture(self.run)
        self.call(lambda: future.set_result(None))
        self.reactor.wait_for(future, None)

    def arrive(self) -> None:
        """Let a message arrive from the network."""
        self.member.socket.send(b"m")

    def take(self) -> None:
        """Receive a message."""
        self.member.take(self.reactor)

    def loop(
        self, messages: int, first: Callable[[], None] | None = None, leader: Any = None
    ) -> Any:
        """Run an event loop that reads messages, after ``first``; return it with its lead."""
        if leader is None:
            leader = self.module.LoopLeader(self.reactor, ModelEventLoop(self.run))
        loop, begun = leader._loop, ModelFuture(self.run)
        if not self.reactor.is_led_by(leader):
            loop.call_soon(leader.attend)
        if first is not None:
            loop.call_soon(first)
        loop.call_soon(lambda: begun.set_result(None))
        loop.run_until(begun.done)
        for _ in range(messages):
            while not self.member.inbox:
                loop.run_until(lambda: self.member.inbox > 0)
            self.member.inbox -= 1
        return leader

    def close(self) -> None:
        """Leave, and wait for the end in a thread that is not the caller's, as ``close`` does."""
        ended = ModelFuture(self.run)

        def wait() -> None:
            self.call(self.member.leave)
            self.run.wait(self.member.closed.done)
            ended.set_result(None)

        self.run.spawn("gapless call", wait)
        self.reactor.wait_for(ended, None)


def in_turn(*parts: Callable[[], object]) -> Callable[[], None]:
    """Return a function that does all parts."""

    def run() -> None:
        for part in parts:
            part()

    return run


def closing(stage: Stage) -> None:
    stage.play(stage.close)


def closing_while_another_reads(stage: Stage) -> None:
    def read() -> None:
        stage.reactor.wait_until(
            lambda: stage.member.ended or stage.member.inbox > 0,
            None,
            stage.member.new_waiter,
        )

    # A real inbox ends with its member, and completes the waiting futures then.
    stage.member.closed.add_done_callback(lambda _: stage.member.deliver())
    stage.play(read, stage.close)


def a_future_that_another_thread_completes(stage: Stage) -> None:
    future = ModelFuture(stage.run)
    stage.play(
        lambda: stage.reactor.wait_for(future, None),
        lambda: future.set_result(None),
    )


def two_readers(stage: Stage) -> None:
    stage.play(stage.take, stage.take, in_turn(stage.arrive, stage.arrive))


def a_reader_and_a_sender(stage: Stage) -> None:
    def send() -> None:
        stage.run_now(stage.member.put)

    stage.play(in_turn(stage.take, stage.take), send, send)


def a_reader_and_posted_commands(stage: Stage) -> None:
    stage.play(stage.take, lambda: stage.call(stage.member.put), stage.query)


def queries_and_a_reader(stage: Stage) -> None:
    stage.play(stage.query, stage.query, stage.take, stage.arrive)


def a_message_for_one_of_two_waits(stage: Stage) -> None:
    """The reader leads while a query follows, and the other way round."""
    stage.play(
        in_turn(stage.take, stage.query),
        in_turn(stage.query, stage.arrive),
    )


def a_timer_that_another_thread_starts(stage: Stage) -> None:
    stage.play(stage.take, lambda: stage.call(stage.member.arm))


def a_timer_that_a_sender_starts(stage: Stage) -> None:
    stage.play(stage.take, lambda: stage.run_now(stage.member.arm))


def a_signal_during_select(stage: Stage) -> None:
    stage.play(stage.main, stage.signal)


def a_second_member(stage: Stage) -> None:
    """A thread opens another member while the first is read, and closes it."""
    second = ModelMember(stage.run)

    def open_and_close() -> None:
        stage.reactor.add(second)
        stage.run.wait(lambda: second.registered)
        second.calls.append(second.leave)
        stage.reactor.wake_up(second)
        stage.reactor.wait_for(second.closed, None)
        stage.run.wait(lambda: second not in stage.reactor._members)
        stage.arrive()

    stage.play(stage.take, open_and_close)


def senders_one_after_another(stage: Stage) -> None:
    """The last of three senders finds the turn taken; nobody waits for the message but a reader."""

    def send() -> None:
        stage.run_now(stage.member.put)

    stage.play(in_turn(stage.take, stage.take, stage.take), send, send, send)


def commands_that_post_commands(stage: Stage) -> None:
    """Each command posts the next one inside its turn, as a callback that sends again does."""

    def post(more: int) -> None:
        stage.run_now(partial(post, more - 1) if more else stage.member.put)

    stage.play(stage.take, lambda: post(4))


def a_loop_that_reads(stage: Stage) -> None:
    stage.play(lambda: stage.loop(2), in_turn(stage.arrive, stage.arrive))


def a_loop_that_posts_commands(stage: Stage) -> None:
    """A command of the loop's own thread, and one of another thread after some questions."""
    stage.play(
        lambda: stage.loop(2, lambda: stage.call(stage.member.put)),
        in_turn(stage.query, stage.query, lambda: stage.call(stage.member.put)),
    )


def a_loop_that_starts_a_timer(stage: Stage) -> None:
    stage.play(
        lambda: stage.loop(1),
        lambda: stage.loop(1, lambda: stage.run_now(stage.member.arm)),
        in_turn(stage.arrive),
    )


def a_timer_of_a_loop_that_leads(stage: Stage) -> None:
    def read_then_arm() -> None:
        loop = stage.loop(1)
        stage.loop(1, lambda: stage.run_now(stage.member.arm), loop)

    stage.play(read_then_arm, stage.arrive)


def a_loop_that_is_blocked(stage: Stage) -> None:
    """The loop leads, then waits in a task for a message that only another leader can deliver."""

    def read_then_block() -> None:
        loop = stage.loop(1)
        blocked.set_result(None)
        stage.run.wait(lambda: stage.member.inbox > 0)
        stage.member.inbox -= 1
        stage.loop(1, lambda: None, loop)

    def arrive() -> None:
        stage.arrive()
        stage.run.wait(blocked.done)
        stage.arrive()
        stage.run.wait(lambda: not stage.member.inbox and not stage.member.socket.bytes)
        stage.arrive()

    blocked = ModelFuture(stage.run)
    stage.play(read_then_block, arrive)


def a_loop_that_ends_after_a_command(stage: Stage) -> None:
    def read_then_end() -> None:
        leader = stage.loop(1)
        stage.loop(0, lambda: stage.call(stage.member.put), leader)
        leader._loop.close()
        stage.run.wait(lambda: stage.member.inbox > 0)

    stage.play(read_then_end, stage.arrive)


def a_command_after_a_loop_has_ended(stage: Stage) -> None:
    def read_then_end() -> None:
        leader = stage.loop(1)
        leader._loop.close()
        stage.call(stage.member.put)
        stage.take()

    stage.play(read_then_end, stage.arrive)


def a_loop_and_a_reader(stage: Stage) -> None:
    """Each message goes to one of the two; the reader leads before, after or never."""
    stage.play(lambda: stage.loop(1), stage.take, in_turn(stage.query, stage.arrive, stage.arrive))


def two_loops(stage: Stage) -> None:
    stage.play(lambda: stage.loop(1), lambda: stage.loop(1), in_turn(stage.arrive, stage.arrive))


def closing_while_a_loop_leads(stage: Stage) -> None:
    def read() -> None:
        stage.loop(1)
        stage.close()

    stage.play(read, stage.arrive)


STORIES = [
    closing,
    closing_while_another_reads,
    a_future_that_another_thread_completes,
    two_readers,
    a_reader_and_a_sender,
    a_reader_and_posted_commands,
    queries_and_a_reader,
    a_message_for_one_of_two_waits,
    a_timer_that_another_thread_starts,
    a_timer_that_a_sender_starts,
    a_signal_during_select,
    a_second_member,
    senders_one_after_another,
    commands_that_post_commands,
    a_loop_that_reads,
    a_loop_that_posts_commands,
    a_loop_that_starts_a_timer,
    a_timer_of_a_loop_that_leads,
    a_loop_that_is_blocked,
    a_loop_that_ends_after_a_command,
    a_command_after_a_loop_has_ended,
    a_loop_and_a_reader,
    two_loops,
    closing_while_a_loop_leads,
]

SELECT = """\
            if wanted or self._new_members or self._ended or self._is_leader_done
"""
ATTENTIVE = {
    a_loop_that_reads,
    a_loop_that_posts_commands,
    a_command_after_a_loop_has_ended,
}
"""Stories in which no loop is neglected: the watch of the protocol thread is not needed."""
PLANTED: dict[str, tuple[Callable[[Stage], None], tuple[str, str]]] = {
    "the leader selects although its wait is over": (
        a_message_for_one_of_two_waits,
        (SELECT, SELECT.replace(" or self._is_leader_done", "")),
    ),
    "the leader selects although a member was added": (
        a_second_member,
        (SELECT, SELECT.replace("self._new_members or ", "")),
    ),
    "the end of a turn does not wake a leader whose wait is over": (
        a_reader_and_a_sender,
        ("select_until_ns or self._is_leader_done", "select_until_ns"),
    ),
    "a loop sleeps although commands were submitted in its round": (
        a_loop_that_posts_commands,
        ("return 0 if self._pending and not self._turn_waiters else due_ns", "return due_ns"),
    ),
    "a loop that sleeps is not told of an earlier timer": (
        a_timer_of_a_loop_that_leads,
        ("                    leader.run_at(due_ns)\n", ""),
    ),
    "nobody leads instead of a loop that is blocked": (
        a_loop_that_is_blocked,
        ("            self.end_loop(leader, rounds)\n", ""),
    ),
    "nobody watches a loop that begins to lead": (
        a_loop_that_is_blocked,
        ("        self._wake_thread()  # to watch the loop\n", ""),
    ),
    "the watch does not see a command of a loop that has ended": (
        a_loop_that_ends_after_a_command,
        ("        if self._pending:\n            return True\n", ""),
    ),
    "a loop that has ended keeps the lead": (
        a_command_after_a_loop_has_ended,
        ("        self.end_loop(leader)\n        self._wake_thread()\n", ""),
    ),
    "commands of the last round wake nobody": (
        commands_that_post_commands,
        ("        if self._pending:\n            self._wake_poller()\n\n", "\n"),
    ),
}
"""Lost wake-ups by name: the story that shows each, and the change that plants it."""


def play(
    story: Callable[[Stage], None], preemptions: dict[int, int], patch: Patch = None
) -> Interleaving:
    run, module = make_run(preemptions, patch)
    story(Stage(run, module))
    return run


def fault(run: Interleaving, story: Callable[[Stage], None]) -> object:
    """Return what went wrong in a run; None if all threads ended in time."""
    if run.errors or run.stuck:
        return run.errors or run.stuck
    limit_ns = PROMPT_NS if story in ATTENTIVE else LATE_NS
    return f"{run.late_ns} ns late" if run.late_ns > limit_ns else None


def schedules(undisturbed: Interleaving, rng: Random, count: int) -> list[dict[int, int]]:
    """Return schedules with one delay at each step, and with random delays and switches."""
    steps = range(1, undisturbed.steps + 1)
    single = [{step: delay} for delay in (DELAY, LONG_DELAY) for step in steps]
    several = [
        {
            rng.randrange(1, 2 * undisturbed.steps): rng.randrange(LONG_DELAY, 6)
            for _ in range(rng.choice((2, 2, 2, 3, 3, 4, 8, 32)))
        }
        for _ in range(count)
    ]
    return single + several


def search(story: Callable[[Stage], None], count: int, patch: Patch = None) -> object:
    """Return the first fault of a story, with its schedule; None if there is none."""
    undisturbed = play(story, {}, patch)
    if (found := fault(undisturbed, story)) is not None:
        return {}, found
    for schedule in schedules(undisturbed, Random(18), count):
        if (found := fault(play(story, schedule, patch), story)) is not None:
            return schedule, found
    return None


@pytest.mark.parametrize("story", STORIES, ids=lambda story: story.__name__)
def test_no_schedule_loses_a_wake_up(story: Callable[[Stage], None]) -> None:
    assert search(story, RANDOM_RUNS) is None


@pytest.mark.parametrize("bug", PLANTED)
def test_the_search_finds_a_lost_wake_up(bug: str) -> None:
    story, patch = PLANTED[bug]
    found = search(story, 0, patch)  # one delay is enough for each
    assert found is not None
