"""The registry of invariants: the promises of Gapless, and the checkers of each promise.

This registry is the only list. The simulator, the exhaustive search, the checks of trace rows, the
Spark checks, the report and the tables of docs/internals/invariants.md take ids, names and
sentences from here. A test compares the registry with the implemented checks.

``S`` invariants are safety: they hold at every step. ``L`` invariants are liveness: they hold
within a bound after the last fault. Ids are stable; S19 was never used.
"""

from __future__ import annotations

from typing import Literal, NamedTuple

Checker = Literal["simulator", "search", "rows", "spark"]
"""The checker of an invariant.

``simulator``: after every simulated step. ``search``: in every state of the exhaustive search.
``rows``: ``gapless.trace.checks``, over rows in memory. ``spark``: ``gapless verify``.
"""

_EVERYWHERE: tuple[Checker, ...] = ("simulator", "search", "rows", "spark")
_SIMULATOR_AND_SPARK: tuple[Checker, ...] = ("simulator", "spark")
_SIMULATOR_AND_TRACES: tuple[Checker, ...] = ("simulator", "rows", "spark")


class Invariant(NamedTuple):
    """One promise.

    ``sentence`` tells a user the meaning of a passed check; ``rule`` is the exact condition.
    ``not_in_trace`` is the reason if no trace can show the invariant, otherwise empty.
    """

    id: str
    name: str
    sentence: str
    rule: str
    checked_by: tuple[Checker, ...]
    not_in_trace: str = ""


_SAFETY = (
    Invariant(
        "S1",
        "no creation",
        "Only messages that were sent are delivered.",
        "a delivered message was sent before, by that origin, under that seqno",
        _EVERYWHERE,
    ),
    Invariant(
        "S2",
        "no duplicate",
        "No message is delivered twice.",
        "an incarnation delivers a seqno of a stream at most once",
        _EVERYWHERE,
    ),
    Invariant(
        "S3",
        "gapless prefix",
        "Every stream is delivered in order, without a gap.",
        "a member delivers first, first+1, first+2 … of each stream, in this order, and leaves "
        "nothing out",
        _EVERYWHERE,
    ),
    Invariant(
        "S4",
        "integrity",
        "The bytes delivered are the bytes sent.",
        "the bytes delivered are the bytes sent",
        _EVERYWHERE,
    ),
    Invariant(
        "S5",
        "out of band",
        "Out-of-band messages arrive once, whole, and at every receiver.",
        "an out-of-band message keeps S1, S2 and S4 in any order, and every receiver that stays "
        "gets it; unreliable messages keep only S1",
        _SIMULATOR_AND_SPARK,
    ),
    Invariant(
        "S6",
        "window",
        "No window holds more than its limit.",
        "a sender has at most reach messages outstanding; a receiver stores ahead only seqnos in "
        "delivered+1 .. delivered+reach",
        _EVERYWHERE,
    ),
    Invariant(
        "S7",
        "marks",
        "The marks of every window are in order and never decrease.",
        "low ≤ delivered ≤ high; no mark and no entry of the ack table decreases in a stream; the "
        "trace contains every outgoing frame, and no other",
        _EVERYWHERE,
    ),
    Invariant(
        "S8",
        "acks are true",
        "A member acknowledges only what it has delivered.",
        "an ack for n comes only from a member that has delivered the stream up to n; a send "
        "reported as acknowledged was delivered by every member that counts, and each such send is "
        "reported in the end",
        _EVERYWHERE,
    ),
    Invariant(
        "S9",
        "purge is safe",
        "A message is purged only when no member can need it any more.",
        "every member of the view has acknowledged what its sender purges; where stability "
        "releases, every member has delivered it",
        _EVERYWHERE,
    ),
    Invariant(
        "S10",
        "repairs are exact",
        "A repair repeats the original, and only what was requested.",
        "a repair has the original bytes; it answers a nak with everything that was requested and "
        "is stored, except what is suppressed for a true reason (repaired a moment ago, over "
        "budget). Without a nak, only acknowledged messages are sent again to one member, and "
        "unacknowledged ones on a connection",
        _EVERYWHERE,
    ),
    Invariant(
        "S11",
        "naks are legal",
        "A nak requests only missing messages, and not too often.",
        "a nak names only seqnos that are missing, are known to exist and have outlived their "
        "grace; a seqno is requested at most once per `min_retry`, from the origin or, where that "
        "is allowed, from a holder",
        _EVERYWHERE,
    ),
    Invariant(
        "S12",
        "acceptance",
        "Data in range is accepted; all other data is dropped with the right reason.",
        "data that is in range, new and fits is accepted; all other data is dropped, with the "
        "right reason",
        ("simulator", "search", "spark"),
    ),
    Invariant(
        "S13",
        "hostile bytes",
        "No bytes, however broken, do any harm.",
        "any datagram either decodes or is a counted drop; a drop leaves the state as it was; no "
        "other exception exists",
        _SIMULATOR_AND_SPARK,
    ),
    Invariant(
        "S14",
        "memory",
        "Memory stays within its bounds.",
        "stored messages, retained messages, buffered runs, pending timers and tables stay below a "
        "formula of members and reach; bytes kept before they can be used are at most "
        "`early_bytes` times the members of the view; every machine passes its own "
        "`check_invariants`",
        _SIMULATOR_AND_SPARK,
    ),
    Invariant(
        "S15",
        "views",
        "Members agree on views, and non-members change nothing.",
        "a datagram from outside the view, or from or for another incarnation, changes nothing, "
        "except what must be buffered for a later view; a member installs only views that contain "
        "it, their numbers rise, their coordinator is their first member, and one id is one list "
        "(where views are scripted: one number)",
        _SIMULATOR_AND_TRACES,
    ),
    Invariant(
        "S16",
        "silence",
        "A settled group is silent.",
        "a settled group sends nothing, except answers to what still arrives late; one that makes "
        "its own views sends heartbeats and beacons, as often as the intervals demand and no more",
        _SIMULATOR_AND_SPARK,
    ),
    Invariant(
        "S17",
        "determinism",
        "The same seed gives the same run.",
        "the same seed gives the same digest of all that happened: in another process, with other "
        "hash seeds, in another Python",
        ("simulator", "search"),
        "determinism compares two runs of one seed; one trace is one run",
    ),
    Invariant(
        "S18",
        "honest faults",
        "Every copy that entered a link is accounted for.",
        "per link: copies sent plus duplicates are copies that arrived plus those dropped, damaged "
        "or in flight",
        ("simulator",),
        "the counters of a link belong to the simulated network, which is no member",
    ),
    Invariant(
        "S20",
        "leaving",
        "A member leaves only when every other member has its messages.",
        "a member asks to leave only when every member of its view has everything that it sent, or "
        "`leave_timeout` is over",
        ("simulator",),
        "the frame by which a member asks to leave is not in the trace",
    ),
    Invariant(
        "S21",
        "patience",
        "No live member is suspected or expelled without a fault.",
        "without a fault no live member is suspected; where pauses are the only fault, only "
        "members with a pause of at least `suspect_after` are expelled",
        ("simulator",),
        "only the fault injector knows whether a suspicion has a reason",
    ),
    Invariant(
        "S22",
        "state",
        "State and deliveries together are every message, once.",
        "a new member that waits for the application's state is delivered nothing before it; the "
        "state is one that a member provided; state and deliveries together are every message, "
        "once (S2, S3 and S5 continue where the provider was)",
        ("simulator",),
        "only the application knows the content of a state",
    ),
    Invariant(
        "S23",
        "storing",
        "A durable member acknowledges only what is on its disk.",
        "a durable member that stores acknowledges only what is on its disk, except fragments of "
        "an incomplete message; each delivery follows what is on its disk, through all its "
        "incarnations, or is reported as lost",
        ("simulator",),
        "the content of a disk is not in the trace; the collector's own check reads it",
    ),
    Invariant(
        "S24",
        "valid seal",
        "Members of a sealed group receive only what members have sealed.",
        "in a sealed group a member receives only datagrams that another member has sealed, with "
        "the bytes that were sealed, with a key that its keyring opens at this moment, and each "
        "datagram at most once in a process",
        ("simulator",),
        "a trace begins behind the seal",
    ),
    Invariant(
        "S25",
        "strangers",
        "Datagrams without a valid seal change nothing.",
        "a rejected datagram changes no member, no replay window, no table of senders and no key: "
        "only counters of rejections; at most the one key that the datagram names is tried",
        ("simulator",),
        "a trace has no rejected datagrams",
    ),
    Invariant(
        "S26",
        "nonces",
        "No pair of key and nonce seals twice.",
        "no two datagrams are sealed with the same derived key and the same nonce: through "
        "rotations, restarts, incarnations, clocks that are set back, and keys that return",
        ("simulator",),
        "keys and nonces are not in the trace",
    ),
    Invariant(
        "S27",
        "rotation",
        "A rotation of keys loses no datagram.",
        "a member seals with the sealing key of its keyring; the first arrival of a datagram "
        "within the replay window opens at each receiver whose keyring opens the key",
        ("simulator",),
        "a trace begins behind the seal",
    ),
)

_LIVENESS = (
    Invariant(
        "L1",
        "delivery",
        "Every message reaches every receiver.",
        "every message of a member that is alive at the end is delivered by every member of the "
        "last view, or on a connection by its receiver; with retransmission off nothing is "
        "requested or sent again, and a gap that stays is reported",
        _SIMULATOR_AND_TRACES,
    ),
    Invariant(
        "L2",
        "stability",
        "In the end every sender knows that its messages arrived, and no send waits.",
        "low = high at every sender to the group; every wait for room has ended",
        _SIMULATOR_AND_TRACES,
    ),
    Invariant(
        "L3",
        "quiet",
        "A settled group sends no data, nak or repair.",
        "after L1 and L2 no data, nak or repair is sent",
        _SIMULATOR_AND_SPARK,
    ),
    Invariant(
        "L4",
        "cost",
        "Repairs cost no more than the losses explain.",
        "repairs ≤ 1.5 * lost data frames + 1 per loss episode, when loss is the only fault; "
        "without any fault there are no naks and no repairs",
        _SIMULATOR_AND_SPARK,
    ),
    Invariant(
        "L5",
        "no trap",
        "From every reachable state the goal can still be reached.",
        "from every reachable state, the goal (everything delivered and acknowledged) can be "
        "reached",
        ("search",),
        "that the goal can be reached from every state takes an exhaustive search",
    ),
    Invariant(
        "L6",
        "one group",
        "In the end there is one group, of exactly the live members.",
        "members that make their own views are in one view of exactly the live members, within B3 "
        "after the last fault",
        _SIMULATOR_AND_TRACES,
    ),
)

INVARIANTS: dict[str, Invariant] = {one.id: one for one in (*_SAFETY, *_LIVENESS)}
"""Every invariant by id, safety first."""

NOT_CLAIMED = (
    "A total order between different senders, and the same set of messages per view, are not "
    "promised and not checked."
)
"""What no invariant promises."""


def checked_by(checker: Checker) -> tuple[str, ...]:
    """Return the ids of the invariants that ``checker`` verifies, in the order of the registry."""
    return tuple(one.id for one in INVARIANTS.values() if checker in one.checked_by)


def sentence_of(invariant: str) -> str:
    """Return the sentence of an invariant; empty for an unknown id."""
    return INVARIANTS[invariant].sentence if invariant in INVARIANTS else ""
