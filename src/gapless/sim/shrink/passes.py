"""The passes of the shrinker: simplifications of a failing case, coarse passes first.

Each pass tries candidates, and leaves the smallest failing case. A pass assumes nothing about the
others; the shrinker repeats all passes until no pass finds a smaller case.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from gapless.config import SETTINGS, Config
from gapless.delivery_mode import DeliveryMode
from gapless.errors import ConfigError
from gapless.faults.faults import DUPLICATE, INTACT
from gapless.faults.frame_names import node_name
from gapless.sim.script import (
    HEAL,
    ZERO,
    ApplyDigest,
    CancelSend,
    ChangePartition,
    CloseConnection,
    CrashProcess,
    Fate,
    InstallView,
    LeaveGroup,
    NoteEvidence,
    PauseProcess,
    ResumeProcess,
    SaveDigest,
    Script,
    SendMessages,
    SetNextMode,
    SetReadDelay,
    SetRetransmitInterval,
    StartProcess,
    initial_actions,
    payload,
)
from gapless.units import NS_PER_MS

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from gapless.faults.frame_names import FrameName
    from gapless.sim.script import Action
    from gapless.sim.shrink.minimizer import Minimizer, ShrinkCase

ROUND_MS = (
    0,
    1,
    2,
    5,
    10,
    20,
    30,
    40,
    50,
    100,
    150,
    200,
    300,
    400,
    500,
    1000,
    2000,
    5000,
    10_000,
    20_000,
    60_000,
)
"""Times that are easy to read."""
ROUND_BYTES = (8, 100, 200, 300, 500, 1000, 2000, 5000, 10_000, 30_000)
"""Sizes that are easy to read."""
SMALL_CAPACITIES = (1, 2, 3, 4, 8)


# What happens


def drop_fates(search: Minimizer) -> None:
    """Take out fates: first all, then as many as possible."""
    items = list(search.script.fates.items())
    search.minimise(items, lambda left: _with(search, fates=dict(left)))


def drop_network_and_clock_faults(search: Minimizer) -> None:
    """Remove all faults of network and clocks at once, where members make their own views."""
    if search.script.membership:
        search.change(fates={}, late_ns={}, clocks={}, rare=())
        search.change(fates={})


def drop_late_timers_and_clocks(search: Minimizer) -> None:
    """Remove changes of time: late timers and clocks."""
    search.change(late_ns={}, clocks={})
    late = list(search.script.late_ns.items())
    search.minimise(late, lambda left: _with(search, late_ns=dict(left)))
    clocks = list(search.script.clocks.items())
    search.minimise(clocks, lambda left: _with(search, clocks=dict(left)))


def drop_actions(search: Minimizer) -> None:
    """Remove sends, then all other actions, alone and in matching pairs."""
    for kinds in (
        (SendMessages, CancelSend),
        (
            ChangePartition,
            SetReadDelay,
            SaveDigest,
            ApplyDigest,
            CancelSend,
            CloseConnection,
            NoteEvidence,
            SetRetransmitInterval,
            SetNextMode,
        ),
        (PauseProcess, ResumeProcess),
        (CrashProcess, LeaveGroup, StartProcess, InstallView, SaveDigest),
    ):
        droppable = [
            at for at, action in enumerate(search.script.actions) if isinstance(action, kinds)
        ]
        actions = list(search.script.actions)
        search.minimise(
            droppable,
            lambda left, d=droppable, a=actions: _keeping(search, a, d, left),  # type: ignore[misc]
        )
    for pause in [action for action in search.script.actions if isinstance(action, PauseProcess)]:
        _drop_pair(search, pause, ResumeProcess)
    for cut in [
        action
        for action in search.script.actions
        if isinstance(action, ChangePartition) and action.what != HEAL
    ]:
        _drop_pair(search, cut, ChangePartition)
    search.change(actions=[_plain_start(action) for action in search.script.actions])
    for at, action in enumerate(search.script.actions):
        if isinstance(action, StartProcess) and (action.durable or action.state):
            plain = (
                action._replace(durable="", stores=False),
                action._replace(state=False),
                action._replace(stores=False),
            )
            _attempt_first(
                search,
                (_with(search, actions=_replaced(search.script.actions, at, one)) for one in plain),
            )


def _plain_start(action: Action) -> Action:
    return (
        action._replace(durable="", state=False, stores=False)
        if isinstance(action, StartProcess)
        else action
    )


def _keeping(
    search: Minimizer, actions: list[Action], droppable: list[int], left: list[int]
) -> ShrinkCase:
    gone = set(droppable) - set(left)
    return _with(search, actions=[action for at, action in enumerate(actions) if at not in gone])


def _drop_pair(search: Minimizer, begin: PauseProcess | ChangePartition, end_kind: type) -> None:
    """Remove a pause or a partition, together with its end."""
    actions = list(search.script.actions)
    if begin not in actions:
        return
    at = actions.index(begin)
    after = range(at + 1, len(actions))
    end = next(
        (n for n in after if actions[n][1] == begin.who and type(actions[n]) is end_kind), at
    )
    search.change(actions=[action for n, action in enumerate(actions) if n not in {at, end}])


def drop_nodes(search: Minimizer) -> None:
    """Remove whole nodes, with all their actions and all actions on the nodes."""
    for node in reversed(search.script.nodes()):
        search.attempt(search.case._replace(script=_without(search.script, node)))


def _without(script: Script, node: str) -> Script:
    def stays(name: str) -> bool:
        return name.rstrip("'") != node

    actions = [
        _leave_out(action, stays)
        for action in script.actions
        if stays(action.who) and stays(_peer(action))
    ]
    return replace(
        script,
        actions=actions,
        fates={
            name: fate
            for name, fate in script.fates.items()
            if stays(name.source) and stays(name.target)
        },
        clocks={name: clock for name, clock in script.clocks.items() if stays(name)},
        late_ns={key: late_ns for key, late_ns in script.late_ns.items() if stays(key[0])},
    )


def _peer(action: Action) -> str:
    """Return the member in an action besides its subject, if any."""
    peer = action.to if isinstance(action, (SendMessages, CloseConnection, NoteEvidence)) else None
    return peer or ""


def _leave_out(action: Action, stays: Callable[[str], bool]) -> Action:
    if isinstance(action, InstallView):
        return action._replace(members=tuple(filter(stays, action.members)))
    if isinstance(action, ChangePartition):
        return action._replace(who=",".join(filter(stays, action.who.split(","))))
    return action


def simplify_views(search: Minimizer) -> None:
    """Remove views, install views everywhere at once, and drop digests."""
    script = search.script
    if script.membership:
        return
    search.change(actions=_plain_opening(script))
    for number in sorted(
        {action.number for action in script.actions if isinstance(action, InstallView)},
        reverse=True,
    ):
        search.change(actions=_without_view(search.script.actions, number))
        search.change(actions=_installed_at_once(search.script.actions, number))
        search.change(
            actions=[_with_digest(action, "", number) for action in search.script.actions]
        )
    for digest in ("", ZERO):
        search.change(actions=[_with_digest(action, digest) for action in search.script.actions])
    for at, action in enumerate(search.script.actions):
        if isinstance(action, InstallView) and action.digest:
            search.change(actions=_replaced(search.script.actions, at, action._replace(digest="")))


def _plain_opening(script: Script) -> list[Action]:
    """Return the actions with a single view of all members from the beginning."""
    names = tuple(script.nodes())
    others = [
        action
        for action in script.actions
        if not isinstance(action, (StartProcess, InstallView, SaveDigest, CrashProcess))
    ]
    return [
        *initial_actions(names),
        *(
            action
            for action in others
            if action.who in names or isinstance(action, ChangePartition)
        ),
    ]


def _without_view(actions: list[Action], number: int) -> list[Action]:
    """Return the actions without a view, and without incarnations of no other view."""
    left = [
        action
        for action in actions
        if not (isinstance(action, InstallView) and action.number == number)
    ]
    members = {
        name for action in left if isinstance(action, InstallView) for name in action.members
    }
    return [
        action for action in left if action.who in members or isinstance(action, ChangePartition)
    ]


def _installed_at_once(actions: list[Action], number: int) -> list[Action]:
    times_ns = [
        action.at_ns
        for action in actions
        if isinstance(action, InstallView) and action.number == number
    ]
    if not times_ns:
        return actions
    return _sorted(
        action._replace(at_ns=max(times_ns))
        if isinstance(action, InstallView) and action.number == number
        else action
        for action in actions
    )


def _with_digest(action: Action, digest: str, number: int | None = None) -> Action:
    """Return the action with another digest, if the action installs a view (view ``number``)."""
    if isinstance(action, InstallView) and number in {None, action.number}:
        return action._replace(digest=digest)
    return action


# Messages


def merge_sends(search: Minimizer) -> None:
    """Join two consecutive sends of a member into a single send."""
    at = 0
    while at < len(search.script.actions):
        merged = _merged(search.script.actions, at)
        if merged is None or not search.change(actions=merged):
            at += 1


def _merged(actions: list[Action], at: int) -> list[Action] | None:
    first = actions[at]
    if not isinstance(first, SendMessages):
        return None
    for later in range(at + 1, len(actions)):
        second = actions[later]
        if isinstance(second, SendMessages) and second.who == first.who:
            if second[3:] != first[3:]:
                return None
            both = first._replace(payloads=first.payloads + second.payloads)
            return [both if n == at else action for n, action in enumerate(actions) if n != later]
    return None


def cut_sends(search: Minimizer) -> None:
    """Take out single messages, and the odd options of sends."""
    at = 0
    while at < len(search.script.actions):
        before = len(search.script.actions)
        action = search.script.actions[at]
        if isinstance(action, SendMessages):
            _cut_send(search, at, action)
        elif isinstance(action, CancelSend):
            _attempt_first(
                search, (_replaced_cancel(search, at, nth) for nth in range(1, action.nth))
            )
        # A send without messages is removed, so the next action is at its index now.
        at += len(search.script.actions) == before


def _cut_send(search: Minimizer, at: int, send: SendMessages) -> None:
    before = len(search.script.actions)
    if len(send.payloads) > 1:
        search.minimise(send.payloads, lambda left: _with_payloads(search, at, left))
    if len(search.script.actions) == before:
        _attempt_first(
            search,
            (_with_send(search, at, plain) for plain in _plainer_sends(_send_at(search, at))),
        )


def _replaced_cancel(search: Minimizer, at: int, nth: int) -> ShrinkCase:
    cancel = search.script.actions[at]
    assert isinstance(cancel, CancelSend)
    return _with(search, actions=_replaced(search.script.actions, at, cancel._replace(nth=nth)))


def _plainer_sends(send: SendMessages) -> Iterator[SendMessages]:
    """Return the send with fewer options, the plainest first, then with a round timeout."""
    yield send._replace(wait=True, timeout_ns=None, loopback=None, to="", mode=DeliveryMode.ORDERED)
    yield send._replace(wait=True, timeout_ns=None, loopback=None)
    yield send._replace(mode=DeliveryMode.ORDERED)
    yield send._replace(to="")
    yield send._replace(loopback=None)
    if send.timeout_ns is not None:
        yield from (send._replace(timeout_ns=ms * NS_PER_MS) for ms in ROUND_MS[1:])


def _with_send(search: Minimizer, at: int, send: SendMessages) -> ShrinkCase:
    return _with(search, actions=_replaced(search.script.actions, at, send))


def _send_at(search: Minimizer, at: int) -> SendMessages:
    send = search.script.actions[at]
    assert isinstance(send, SendMessages)
    return send


def _with_payloads(search: Minimizer, at: int, payloads: Iterable[bytes]) -> ShrinkCase:
    send = _send_at(search, at)._replace(payloads=tuple(payloads))
    if not send.payloads:
        # The machine refuses an empty send: the candidate is a script without it.
        return _with(search, actions=search.script.actions[:at] + search.script.actions[at + 1 :])
    return _with(search, actions=_replaced(search.script.actions, at, send))


def plain_payloads(search: Minimizer) -> None:
    """Give all messages consecutive numbers and round sizes, as small as possible."""
    for size_bytes in ROUND_BYTES:
        if search.change(actions=list(_numbered(search.script.actions, size_bytes))):
            return
    search.change(actions=list(_numbered(search.script.actions, None)))
    for at, action in enumerate(search.script.actions):
        if isinstance(action, SendMessages):
            for place, content in enumerate(action.payloads):
                _plain_payload(search, at, place, content)


def _plain_payload(search: Minimizer, at: int, place: int, content: bytes) -> None:
    for size_bytes in ROUND_BYTES:
        if size_bytes >= len(content):
            break
        send = _send_at(search, at)
        smaller = payload(send.who, _number_of(search.script.actions, at, place), size_bytes)
        payloads = (*send.payloads[:place], smaller, *send.payloads[place + 1 :])
        if search.change(
            actions=_replaced(search.script.actions, at, send._replace(payloads=payloads))
        ):
            return


def _numbered(actions: list[Action], size_bytes: int | None) -> Iterator[Action]:
    """Return the actions with messages numbered from 1; without a size each keeps its own."""
    counts: dict[str, int] = {}
    for action in actions:
        if isinstance(action, SendMessages):
            first = counts.get(action.who, 0) + 1
            counts[action.who] = first + len(action.payloads) - 1
            payloads = (
                payload(action.who, first + at, len(content) if size_bytes is None else size_bytes)
                for at, content in enumerate(action.payloads)
            )
            yield action._replace(payloads=tuple(payloads))
        else:
            yield action


def _number_of(actions: list[Action], at: int, place: int) -> int:
    who = actions[at].who
    earlier = (
        action for action in actions[:at] if isinstance(action, SendMessages) and action.who == who
    )
    return place + 1 + sum(len(action.payloads) for action in earlier)


# Settings


def reset_settings(search: Minimizer) -> None:
    """Reset settings to their defaults; then reduce the capacity."""
    default = Config()
    for name in [knob.name for knob in SETTINGS.values()]:
        value = getattr(default, name)
        if getattr(search.case.config, name) != value:
            _try_setting(search, name, value)
    capacity = search.case.config.capacity
    if capacity != default.capacity:
        any(
            _try_setting(search, "capacity", small)
            for small in SMALL_CAPACITIES
            if small < capacity
        )


def _try_setting(search: Minimizer, name: str, value: object) -> bool:
    try:
        config = replace(search.case.config, **{name: value})  # type: ignore[arg-type]
    except ConfigError:
        return False
    return search.attempt(search.case._replace(config=config))


def reset_seed_and_delay(search: Minimizer) -> None:
    """Reset the seed of the members and the delay of the network to their defaults."""
    default = Script()
    plain = {
        "seed": default.seed,
        "delay_ns": default.delay_ns,
        "only_loss": False,
        "rare": (),
        "fifo": False,
    }
    for fields in ({name: value} for name, value in plain.items()):
        if any(getattr(search.script, name) != value for name, value in fields.items()):
            search.change(**fields)
    search.minimise(search.script.rare, lambda left: _with(search, rare=tuple(left)))
    _attempt_first(
        search,
        (
            _with(search, calm_ns=ms * NS_PER_MS)
            for ms in ROUND_MS
            if ms * NS_PER_MS < search.script.calm_ns
        ),
    )


def plain_names(search: Minimizer) -> None:
    """Rename the nodes a, b, c … again, the digests to a letter, and number the views from 1."""
    nodes = search.script.nodes()
    names = {node: node_name(at) for at, node in enumerate(nodes, 1)}
    if any(old != new for old, new in names.items()):
        search.attempt(search.case._replace(script=_renamed(search.script, names)))
    keys = list(
        dict.fromkeys(
            action.key for action in search.script.actions if isinstance(action, SaveDigest)
        )
    )
    letters = {key: "klmnop"[at] for at, key in enumerate(keys[:6])}
    if any(old != new for old, new in letters.items()):
        search.change(actions=[_with_key(action, letters) for action in search.script.actions])
    numbers = sorted(
        {action.number for action in search.script.actions if isinstance(action, InstallView)}
    )
    if numbers != list(range(1, len(numbers) + 1)):
        search.change(
            actions=[
                action._replace(number=1 + numbers.index(action.number))
                if isinstance(action, InstallView)
                else action
                for action in search.script.actions
            ]
        )


def _renamed(script: Script, names: dict[str, str]) -> Script:
    def new(name: str) -> str:
        node = name.rstrip("'")
        return names.get(node, node) + name[len(node) :]

    def renamed(action: Action) -> Action:
        if isinstance(action, ChangePartition):
            return action._replace(who=",".join(new(name) for name in action.who.split(",")))
        if isinstance(action, InstallView):
            return action._replace(who=new(action.who), members=tuple(map(new, action.members)))
        if isinstance(action, (SendMessages, CloseConnection, NoteEvidence)) and action.to:
            return action._replace(who=new(action.who), to=new(action.to))
        return action._replace(who=new(action.who))

    def named(name: FrameName) -> FrameName:
        return name._replace(
            origin=new(name.origin), source=new(name.source), target=new(name.target)
        )

    return replace(
        script,
        actions=list(map(renamed, script.actions)),
        fates={named(name): fate for name, fate in script.fates.items()},
        clocks={new(name): clock for name, clock in script.clocks.items()},
        late_ns={(new(who), nth): late_ns for (who, nth), late_ns in script.late_ns.items()},
    )


def _with_key(action: Action, letters: dict[str, str]) -> Action:
    if isinstance(action, (SaveDigest, ApplyDigest)):
        return action._replace(key=letters.get(action.key, action.key))
    if isinstance(action, InstallView):
        return action._replace(digest=letters.get(action.digest, action.digest))
    return action


# Fates and times


def plain_fates(search: Minimizer) -> None:
    """Replace each fate by a plain loss, delay or duplicate with a round time, if still failing."""
    for name in list(search.script.fates):
        fate = search.script.fates[name]
        delay_ns = search.script.delay_ns
        for plain in _plainer(fate, delay_ns):
            if plain == fate or search.change(fates={**search.script.fates, name: plain}):
                break


def _plainer(fate: Fate, delay_ns: int) -> Iterator[Fate]:
    """Return simpler fates, simplest first; the last only rounds times and drops the cause."""
    yield Fate((), "loss")
    usual = (delay_ns, None, INTACT)
    for ms in ROUND_MS:
        if ms * NS_PER_MS != delay_ns:
            yield Fate(((ms * NS_PER_MS, None, INTACT),), "delay")
    for ms in ROUND_MS:
        yield Fate((usual, (ms * NS_PER_MS, None, DUPLICATE)), "duplicate")
    for at in range(len(fate.copies)):
        yield Fate(fate.copies[:at] + fate.copies[at + 1 :], fate.reason)
    at_once = tuple((delay_ns, content, mark) for _, content, mark in fate.copies)
    marks = [mark for _, _, mark in fate.copies]
    cause = (
        "corrupt" if marks == ["corrupt"] else "garbage" if marks == ["", "forged"] else fate.reason
    )
    yield Fate(at_once, cause)
    yield Fate(
        tuple((_rounded(at_ns), content, mark) for at_ns, content, mark in fate.copies), cause
    )
    yield fate._replace(reason=cause)


def _rounded(time_ns: int) -> int:
    return -(-time_ns // NS_PER_MS) * NS_PER_MS


def round_times(search: Minimizer) -> None:
    """Move actions to round times, as close to each other as possible."""
    if any(action.at_ns % NS_PER_MS for action in search.script.actions):
        search.change(
            actions=[
                action._replace(at_ns=_rounded(action.at_ns)) for action in search.script.actions
            ]
        )
    times_ns = sorted({action.at_ns for action in search.script.actions})
    for before_ns, at_ns in zip([0, *times_ns], times_ns, strict=False):
        _close_up(search, at_ns, before_ns)
    for key, late_ns in list(search.script.late_ns.items()):
        _attempt_first(
            search,
            (
                _with(search, late_ns={**search.script.late_ns, key: ms * NS_PER_MS})
                for ms in ROUND_MS[1:]
                if ms * NS_PER_MS < late_ns or late_ns % NS_PER_MS
            ),
        )


def _close_up(search: Minimizer, at_ns: int, before_ns: int) -> None:
    """Move all actions from ``at_ns`` on as close to ``before_ns`` as still fails."""
    gap_ns = at_ns - before_ns
    # Earlier rounds may have moved the actions of this time.
    if not any(action.at_ns == at_ns for action in search.script.actions):
        return
    shifts_ns = [gap_ns - ms * NS_PER_MS for ms in ROUND_MS if ms * NS_PER_MS < gap_ns]
    _attempt_first(search, (_sooner(search, at_ns, shift_ns) for shift_ns in shifts_ns))


def _sooner(search: Minimizer, at_ns: int, shift_ns: int) -> ShrinkCase:
    actions = [
        action._replace(at_ns=action.at_ns - shift_ns) if action.at_ns >= at_ns else action
        for action in search.script.actions
    ]
    return _with(search, actions=actions, calm_ns=max(0, search.script.calm_ns - shift_ns))


# Tools


def _with(search: Minimizer, **fields: object) -> ShrinkCase:
    return search.case._replace(script=replace(search.script, **fields))  # type: ignore[arg-type]


def _replaced(actions: list[Action], at: int, action: Action) -> list[Action]:
    return [*actions[:at], action, *actions[at + 1 :]]


def _sorted(actions: Iterable[Action]) -> list[Action]:
    return sorted(actions, key=lambda action: action.at_ns)


def _attempt_first(search: Minimizer, candidates: Iterable[ShrinkCase]) -> bool:
    """Attempt candidates in order until a candidate still fails."""
    return any(search.attempt(candidate) for candidate in candidates)


PASSES: tuple[Callable[[Minimizer], None], ...] = (
    drop_network_and_clock_faults,
    drop_late_timers_and_clocks,
    drop_nodes,
    simplify_views,
    drop_actions,
    drop_fates,
    merge_sends,
    cut_sends,
    reset_settings,
    reset_seed_and_delay,
    plain_payloads,
    plain_fates,
    round_times,
    plain_names,
)
"""Every pass, in the order of a round."""
