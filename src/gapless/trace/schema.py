"""The schema of a trace row: the single source for the writers, the readers, Spark and the docs.

In Python ``member``, ``origin``, ``to`` and ``peer`` are names of incarnations and ``event`` is a
word. On disk they are numbers (``incarnation_id``, the code in ``EVENTS``); a side file
(``lives.jsonl``) maps the numbers to names.
"""

from __future__ import annotations

from functools import lru_cache
from hashlib import blake2b
from typing import NamedTuple


class TraceRow(NamedTuple):
    """A row of the trace. Numbers are 0 and texts empty where they have no meaning."""

    seed: int
    member: str
    idx: int
    step: int
    t_ns: int
    event: str
    view: int = 0
    origin: str = ""
    epoch: int = 0
    to: str = ""
    seqno: int = 0
    seqno_last: int = 0
    part: int = 0
    k: int = 0
    peer: str = ""
    size_bytes: int = 0
    hash: int = 0
    hash_first: int = 0
    sent_ns: int = 0
    low: int = 0
    delivered: int = 0
    high: int = 0
    reason: str = ""
    frame_id: str = ""


class TraceColumn(NamedTuple):
    """A column: the type on disk, the meaning, and whether values name an incarnation."""

    type: str
    meaning: str
    is_incarnation: bool = False


COLUMNS: dict[str, TraceColumn] = {
    "seed": TraceColumn("int64", "seed of a simulated run; 0 in real processes. Part of every key"),
    "member": TraceColumn("int64", "incarnation that the row is about", is_incarnation=True),
    "idx": TraceColumn(
        "int64", "number of the row in its incarnation, from 0, without a gap: a lost row shows"
    ),
    "step": TraceColumn(
        "int64",
        "input of the machine that the row belongs to; it rises. In simulated traces it counts "
        "over all members of the seed, so it orders all of them",
    ),
    "t_ns": TraceColumn(
        "int64",
        "virtual time; in real processes the time of day, which never goes back within an "
        "incarnation",
    ),
    "event": TraceColumn("int8", "code of the event"),
    "view": TraceColumn("int64", "number of the current view of the incarnation"),
    "origin": TraceColumn("int64", "incarnation that numbered the messages", is_incarnation=True),
    "epoch": TraceColumn(
        "int64",
        "of the stream: 0 for a whole incarnation, the number of a view, or that of a connection",
    ),
    "to": TraceColumn(
        "int64",
        "incarnation that the connection goes to; 0: the stream goes to the group",
        is_incarnation=True,
    ),
    "seqno": TraceColumn("int64", "first message"),
    "seqno_last": TraceColumn("int64", "last message"),
    "part": TraceColumn(
        "int32", "number of the start of this stream at this incarnation; 0 at its origin"
    ),
    "k": TraceColumn(
        "int64",
        "DELIVER, SEND: number of earlier messages of this stream and part, as the recorder counts "
        "them. STORE: number of new messages; DROPPED, PURGE: number of messages",
    ),
    "peer": TraceColumn("int64", "the other incarnation of a frame", is_incarnation=True),
    "size_bytes": TraceColumn("int64", "bytes of the messages, or of the datagrams"),
    "hash": TraceColumn(
        "int64", "SEND, REPAIR, DELIVER: crc32 of the messages hash_first .. seqno_last"
    ),
    "hash_first": TraceColumn("int64", "message at which the hash begins; 0: there is none"),
    "sent_ns": TraceColumn(
        "int64",
        "SEND, REPAIR, DELIVER: time of day at which the origin sent the last message. NAK_OUT: "
        "time of the request by the clock of the machine; t_ns is when the row was written",
    ),
    "low": TraceColumn("int64", "STATE and TAIL: mark"),
    "delivered": TraceColumn("int64", "STATE: mark"),
    "high": TraceColumn("int64", "STATE and TAIL: mark; BEGIN: reach of the windows"),
    "reason": TraceColumn(
        "string", "the reason; of MEMBERS the names of the members, oldest first"
    ),
    "frame_id": TraceColumn("string", "name of a simulated datagram"),
}
"""Every column, in the order of the file. None is ever null."""


class TraceEvent(NamedTuple):
    """A kind of event: the code on disk, which never changes, and the meaning."""

    code: int
    meaning: str


EVENTS: dict[str, TraceEvent] = {
    # Steps of the machine.
    "SEND": TraceEvent(
        1,
        "messages got their numbers and were stored; the reason is `not back` if their origin "
        "does not deliver them",
    ),
    "STORE": TraceEvent(2, "of a run that arrived, `k` messages were new"),
    "DROPPED": TraceEvent(3, "a frame or a run was dropped, with the reason"),
    "ACK_OUT": TraceEvent(4, "an ack was sent"),
    "ACK_IN": TraceEvent(5, "an ack was received"),
    "NAK_OUT": TraceEvent(6, "a range was requested"),
    "NAK_IN": TraceEvent(7, "another member requests a range"),
    "REPAIR": TraceEvent(
        8, "a run was sent again; the reason is `unasked` if no member requested it"
    ),
    "SUPPRESSED": TraceEvent(9, "a range was not repaired: `repeat` or `budget`"),
    "GONE_OUT": TraceEvent(10, 'a request for purged messages was answered with "gone"'),
    "GONE_IN": TraceEvent(11, "messages were given up"),
    "TAIL_OUT": TraceEvent(12, "the stream was announced"),
    "TAIL_IN": TraceEvent(13, "an announcement arrived"),
    "PURGE": TraceEvent(14, "low moved: `k` messages were purged"),
    "BLOCK": TraceEvent(15, "a send starts to wait for room; `seqno` is its ticket"),
    "UNBLOCK": TraceEvent(
        16, "a send stopped waiting for room, with the reason; `seqno` is its ticket"
    ),
    "TIMER": TraceEvent(17, "a timer fired"),
    "VIEW": TraceEvent(18, "a view was installed; `seqno_last` is its number"),
    "STATE": TraceEvent(19, "the marks of a window after an input that changed them"),
    "EARLY": TraceEvent(20, "a run was buffered for a later view"),
    "VOTE_OUT": TraceEvent(21, "a vote was sent"),
    "VOTE_IN": TraceEvent(22, "a vote was counted by the coordinator"),
    "STABLE_OUT": TraceEvent(23, "a stability message was sent"),
    "STABLE_IN": TraceEvent(24, "a stability message arrived"),
    "SEND_ASIDE": TraceEvent(25, "an out-of-band message got its number"),
    "STORE_ASIDE": TraceEvent(26, "a new out-of-band message was delivered"),
    "REPAIR_ASIDE": TraceEvent(27, "an out-of-band message was sent again"),
    "SUSPECT": TraceEvent(28, "`peer` was silent for too long"),
    # What the application gets, and the end of the incarnation.
    "BEGIN": TraceEvent(40, "an incarnation started; `high` is the reach of its windows"),
    "DELIVER": TraceEvent(
        41,
        "messages were delivered to the application; the reason is empty for the group stream",
    ),
    "MEMBERS": TraceEvent(
        42, "the application is notified of a view; `origin` created it, `reason` lists its members"
    ),
    "START": TraceEvent(43, "the stream of `origin` starts here: `seqno` is its first message"),
    "LOST": TraceEvent(44, "messages of `origin` will never arrive"),
    "STATE_IN": TraceEvent(
        45, "the application gets the state of `peer`; deliveries continue from it"
    ),
    "EXPELLED": TraceEvent(46, "the incarnation is over: the group continues without it"),
    "LEFT": TraceEvent(47, "the incarnation is over, because the application left"),
    "REST": TraceEvent(48, "the load has ended, and this incarnation is present at the end"),
    "END": TraceEvent(49, "the recorder was closed: until here no row is missing"),
    # The network.
    "TX": TraceEvent(
        60,
        "datagrams were sent: in real processes `seqno_last` of them in one turn, simulated one "
        "per row",
    ),
    "RX": TraceEvent(61, "simulated: a datagram arrived"),
    "NET_DROP": TraceEvent(62, "a datagram was lost on purpose"),
    "NET_DUP": TraceEvent(63, "simulated: a datagram arrived more than once"),
    "NET_DELAY": TraceEvent(64, "simulated: a datagram was late"),
    "NET_CORRUPT": TraceEvent(65, "simulated: a datagram was damaged"),
    # Actions of a script on a simulated member.
    "CRASH": TraceEvent(80, "simulated: the process died"),
    "PAUSE": TraceEvent(81, "simulated: the process is paused"),
    "RESUME": TraceEvent(82, "simulated: the process continues"),
    "INSTALL": TraceEvent(83, "simulated: a view is installed from outside"),
    "LEAVE": TraceEvent(84, "simulated: the application leaves"),
    "CANCEL": TraceEvent(85, "simulated: the application cancels a send"),
    "CLOSE": TraceEvent(86, "simulated: the application closes a connection"),
    "TUNE": TraceEvent(87, "simulated: a setting is changed"),
    "READ": TraceEvent(88, "simulated: the application reads at another pace"),
}
"""Every event of a trace."""

EVENT_CODES = {name: event.code for name, event in EVENTS.items()}
"""The code of each event."""
EVENT_NAMES = {event.code: name for name, event in EVENTS.items()}
"""The event of each code."""


@lru_cache(maxsize=4096)
def incarnation_id(name: str) -> int:
    """Return the number of an incarnation on disk: 63 bits of a hash of the name, 0 for no name."""
    if not name:
        return 0
    return int.from_bytes(blake2b(name.encode(), digest_size=8).digest(), "little") >> 1 or 1
