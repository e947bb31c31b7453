"""Members in pairs: every input goes to a member and to its twins, and all must answer alike.

The first member takes the short path whenever it can, and drives the world. One twin always takes
the general path; the other takes the short path without a trace. After every input the readies, the
snapshots, the counters and the timers are compared; once in a while so is every attribute of every
object that the members consist of.
"""

from __future__ import annotations

from collections import Counter
from random import Random
from typing import Any

import pytest

from gapless.config import Config
from gapless.identity import Address
from gapless.protocol.endpoint import Endpoint
from gapless.protocol.header_prediction import HeaderPrediction
from gapless.protocol.member import Member
from gapless.protocol.ready import Ready
from gapless.wire import decode

INPUTS = (
    "abort",
    "cancel",
    "close_connection",
    "confirm_stored",
    "consumed",
    "expel",
    "install",
    "join",
    "leave",
    "note_evidence",
    "provide",
    "receive",
    "receive_all",
    "receive_decoded",
    "receive_expected",
    "send",
    "set_digest",
    "set_next_mode",
    "set_xmit_interval",
    "tick",
)
"""The methods that change a member."""
WHOLE_STATE_EVERY = 40
"""How often the whole states are compared: once in so many inputs."""
UNREAD = frozenset(
    {
        "_heap",  # a heap of deadlines has stale entries
        "_snapshots",
        "prediction",  # the short path itself
        "_prediction",
        "rarely",
        "tracing",
        "_marks_tracer",
        "_sampled_marks",
        "unvoted",  # counted for votes, which the profiles of the short path do not have
        "unvoted_bytes",
        "settled_until_ns",  # a bound that is found anew when it has passed
        "settled_count",
        "settled_shares",
    }
)
"""Attributes that may differ, because nothing observable follows from them."""


def whole_state(value: Any, seen: dict[int, int] | None = None) -> Any:
    """Return the attributes of an object of the machine, and of all objects inside, as values."""
    seen = {} if seen is None else seen
    if isinstance(value, Random):
        return value.getstate()
    if isinstance(value, dict) and type(value).__module__ == "builtins":
        return {key: whole_state(one, seen) for key, one in value.items()}
    if isinstance(value, (list, set, frozenset)) or type(value).__name__ == "deque":
        return [whole_state(one, seen) for one in value]
    if isinstance(value, (tuple, int, str, bytes, type(None), Config)) or callable(value):
        return None if callable(value) else value
    if not type(value).__module__.startswith("gapless."):
        return repr(value) if type(value).__name__ == "count" else None
    if id(value) in seen:
        return ("seen", seen[id(value)])
    seen[id(value)] = len(seen)
    names = [
        name
        for base in type(value).__mro__
        for name in (*getattr(base, "__slots__", ()), *getattr(value, "__dict__", ()))
    ]
    found = {
        name: whole_state(getattr(value, name), seen)
        for name in dict.fromkeys(names)
        if name not in UNREAD and hasattr(value, name)
    }
    return (dict(value), found) if isinstance(value, dict) else found


def difference(one: Any, other: Any, path: str = "") -> str:
    """Return where two states differ, for the message of a failure."""
    if isinstance(one, dict) and isinstance(other, dict):
        for key in {**one, **other}:
            if one.get(key) != other.get(key):
                return difference(one.get(key), other.get(key), f"{path}.{key}")
    if isinstance(one, (list, tuple)) and isinstance(other, (list, tuple)):
        for at, (left, right) in enumerate(zip(one, other, strict=False)):
            if left != right:
                return difference(left, right, f"{path}[{at}]")
    return f"{path}: {one!r} and {other!r}"


class Pairing:
    """What the pairs of a world have in common: how often each path was taken."""

    def __init__(self) -> None:
        self.inputs = 0
        self.expected: Counter[str] = Counter()
        """The inputs of the short path: by kind."""
        self.whole_states = 0


class _ReplayedBranches:
    """The rare branches that the first member took, taken again by a twin."""

    def __init__(self) -> None:
        self.taken: list[tuple[str, bool]] = []

    def __call__(self, branch: str) -> bool:
        expected, answer = self.taken.pop(0)
        assert branch == expected, f"one member asks for {expected}, its twin for {branch}"
        return answer


def _copy_of(rng: Random) -> Random:
    copied = Random()
    copied.setstate(rng.getstate())
    return copied


def paired(base: type[Any], pairing: Pairing) -> type[Any]:
    """Return a subclass of an endpoint or of a member whose every instance has twins."""

    def init(
        self: Any, me: Address, group: int, config: Config, rng: Random, **options: Any
    ) -> None:
        hook = options.pop("rarely", None)
        replays = [_ReplayedBranches() for _ in range(2)]
        drawn = _copy_of(rng), _copy_of(rng)

        def rarely(branch: str) -> bool:
            answer = bool(hook(branch))
            for replay in replays:
                replay.taken.append((branch, answer))
            return answer

        base.__init__(self, me, group, config, rng, **options, rarely=hook and rarely)
        general, silent = (
            base(
                me,
                group,
                config,
                drawn[at],
                **{**options, "tracing": tracing},
                rarely=hook and replays[at],
            )
            for at, tracing in enumerate((options.get("tracing", 0), 0))
        )
        _prediction_of(general).takes_general = lambda _branch: True
        self._pair = (general, silent)
        self._is_inside = False
        self._replays = replays

    def input_of(name: str) -> Any:
        def call(self: Any, *args: Any, **options: Any) -> Any:
            method = getattr(base, name)
            if self._is_inside:
                return method(self, *args, **options)
            self._is_inside = True
            try:
                answer = _outcome(method, self, args, options)
            finally:
                self._is_inside = False
            if name == "receive_expected":
                if answer is None:
                    return None  # without an effect: another input follows
                general, silent = self._pair
                decoded = decode(args[0], opened=getattr(self, "_sealed", False))
                general = _outcome(base.receive_decoded, general, (decoded, args[1]), {})
                silent = _outcome(method, silent, args, options)
            else:
                general, silent = (_outcome(method, twin, args, options) for twin in self._pair)
            _compare(self, name, answer, general, silent, pairing)
            if isinstance(answer, Exception):
                raise answer
            return answer

        return call

    body = {name: input_of(name) for name in INPUTS if hasattr(base, name)}
    return type(
        f"Paired{base.__name__}",
        (base,),
        {"__init__": init, "__module__": base.__module__, **body},
    )


def _prediction_of(member: Any) -> HeaderPrediction:
    endpoint = member if isinstance(member, Endpoint) else member.endpoint
    return endpoint.prediction


def _outcome(method: Any, member: Any, args: Any, options: Any) -> Any:
    try:
        return method(member, *args, **options)
    except Exception as error:  # noqa: BLE001 - twins must fail alike as well
        return error


def _without_trace(answer: Any) -> Any:
    if isinstance(answer, Ready):
        return (
            answer.transmits,
            answer.deliveries,
            answer.events,
            answer.deadline_ns,
            answer.ticket,
            answer.before_view,
        )
    if isinstance(answer, list):
        return [_without_trace(one) for one in answer]
    return repr(answer)


def _compare(
    member: Any, name: str, answer: Any, general: Any, silent: Any, pairing: Pairing
) -> None:
    """Fail unless a member and its twins have answered alike, and are in the same state."""
    pairing.inputs += 1
    twins = member._pair
    assert _without_trace(answer) == _without_trace(general), f"{name}: {answer}\n{general}"
    if isinstance(answer, Ready):
        assert answer.trace == general.trace, f"{name}: {answer.trace}\n{general.trace}"
    assert _without_trace(answer) == _without_trace(silent), f"{name}, without a trace"
    for replay in member._replays:
        assert not replay.taken, f"{name}: a twin did not ask for {replay.taken}"
    endpoints = [_endpoint_of(one) for one in (member, *twins)]
    first = endpoints[0]
    for other in endpoints[1:]:
        assert dict(first.timers) == dict(other.timers), name
        assert first.timers.earliest_ns == other.timers.earliest_ns, name
        assert first.counters == other.counters, name
        assert first.snapshot() == other.snapshot(), name
    if pairing.inputs % WHOLE_STATE_EVERY == 0:
        pairing.whole_states += 1
        for endpoint in endpoints:
            endpoint.check_invariants()  # this brings deadlines up to date
        states = [whole_state(one) for one in (member, *twins)]
        for attribute in ("_pair", "_is_inside", "_replays"):
            states[0].pop(attribute)
        assert states[0] == states[1], f"{name}: {difference(states[0], states[1])}"
        assert states[0] == states[2], f"{name}: {difference(states[0], states[2])}"


def _endpoint_of(member: Any) -> Endpoint:
    return member if isinstance(member, Endpoint) else member.endpoint


def pair_members(patch: pytest.MonkeyPatch) -> Pairing:
    """Let every member of a simulated world have twins; return what the pairs have in common."""
    pairing = Pairing()
    for base in (Endpoint, Member):
        patch.setattr(f"gapless.sim.world.host.{base.__name__}", paired(base, pairing))
    for kind in ("_on_next_run", "_on_next_ack", "send"):
        patch.setattr(HeaderPrediction, kind, _counted(kind, pairing))
    return pairing


def _counted(name: str, pairing: Pairing) -> Any:
    original = getattr(HeaderPrediction, name)

    def call(self: Any, *args: Any, **options: Any) -> Any:
        ready = original(self, *args, **options)
        if ready is not None:
            pairing.expected[name.rpartition("_")[2]] += 1
        return ready

    return call
