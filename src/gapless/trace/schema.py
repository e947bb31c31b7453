"""One row of a trace: the single source of the writers, the readers, Spark and the docs.

In Python ``member``, ``origin``, ``to`` and ``peer`` are names of lives and ``event`` is a word; on
disk they are numbers (:func:`incarnation_id`, the code in :data:`EVENTS`); a side file
(``lives.jsonl``) says
which number is which name.
"""

from __future__ import annotations

from functools import lru_cache
from hashlib import blake2b
from typing import NamedTuple


class TraceRow(NamedTuple):
    """One row of the trace. Numbers are 0 and texts empty where they mean nothing."""

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
    """One column: its type on disk, whether it names a life, and what it means."""

    type: str
    meaning: str
    is_incarnation: bool = False


COLUMNS: dict[str, TraceColumn] = {
    "seed": TraceColumn("int64", "seed of a simulated run; 0 in real processes. Part of every key"),
    "member": TraceColumn("int64", "life that the row is about", is_incarnation=True),
    "idx": TraceColumn(
        "int64", "number of the row in its life, from 0, without a hole: a lost row shows"
    ),
    "step": TraceColumn(
        "int64",
        "input of the machine that the row belongs to; it rises. In simulated traces it counts "
        "over all members of the "
        "seed, so it is their one order",
    ),
    "t_ns": TraceColumn(
        "int64",
        "virtual time; in real processes the time of day, which never goes back within a life",
    ),
    "event": TraceColumn("int8", "code of the event"),
    "view": TraceColumn("int64", "number of the view that the life is in"),
    "origin": TraceColumn("int64", "life that numbered the messages", is_incarnation=True),
    "epoch": TraceColumn(
        "int64", "of the stream: 0 for a whole life, the number of a view, or that of a connection"
    ),
    "to": TraceColumn(
        "int64",
        "life that the connection goes to; 0: the stream goes to the group",
        is_incarnation=True,
    ),
    "seqno": TraceColumn("int64", "first message"),
    "seqno_last": TraceColumn("int64", "last message"),
    "part": TraceColumn("int32", "how-manyth start of this stream at this life; 0 at its origin"),
    "k": TraceColumn(
        "int64",
        "DELIVER, SEND: messages of this stream and part that came before, as the recorder counts "
        "them. STORE: how "
        "many were new; DROPPED, PURGE: how many",
    ),
    "peer": TraceColumn("int64", "the other life of a frame", is_incarnation=True),
    "size_bytes": TraceColumn("int64", "bytes of the messages, or of the datagrams"),
    "hash": TraceColumn(
        "int64", "SEND, REPAIR, DELIVER: crc32 of the messages hash_first .. seqno_last"
    ),
    "hash_first": TraceColumn("int64", "message at which the hash begins; 0: there is none"),
    "sent_ns": TraceColumn(
        "int64",
        "SEND, REPAIR, DELIVER: time of day at which the origin sent the last message. NAK_OUT: "
        "at which it was asked, "
        "by the clock that the machine was told; t_ns is when that was written down",
    ),
    "low": TraceColumn("int64", "STATE and TAIL: mark"),
    "delivered": TraceColumn("int64", "STATE: mark"),
    "high": TraceColumn("int64", "STATE and TAIL: mark; BEGIN: reach of the windows"),
    "reason": TraceColumn("string", "why; of MEMBERS the names of the members, oldest first"),
    "frame_id": TraceColumn("string", "name of a simulated datagram"),
}
"""Every column, in the order of the file. None is ever null."""


class TraceEvent(NamedTuple):
    """What can happen: its code on disk, which never changes, and what it means."""

    code: int
    meaning: str


EVENTS: dict[str, TraceEvent] = {
    # What the machine says.
    "SEND": TraceEvent(
        1,
        "messages got their numbers and were stored; the reason is `not back` if their origin "
        "does not get them",
    ),
    "STORE": TraceEvent(2, "of a run that arrived, `k` messages were new"),
    "DROPPED": TraceEvent(3, "something that arrived was dropped, with its reason"),
    "ACK_OUT": TraceEvent(4, "an ack was sent"),
    "ACK_IN": TraceEvent(5, "an ack was received"),
    "NAK_OUT": TraceEvent(6, "a range was asked for"),
    "NAK_IN": TraceEvent(7, "somebody asks for a range"),
    "REPAIR": TraceEvent(8, "a run was sent again; the reason is `unasked` if nobody asked"),
    "SUPPRESSED": TraceEvent(9, "a range was not repaired: `repeat` or `budget`"),
    "GONE_OUT": TraceEvent(10, 'what is purged was answered with "gone"'),
    "GONE_IN": TraceEvent(11, "messages were given up"),
    "TAIL_OUT": TraceEvent(12, "the stream was announced"),
    "TAIL_IN": TraceEvent(13, "an announcement was heard"),
    "PURGE": TraceEvent(14, "low moved: `k` messages were let go"),
    "BLOCK": TraceEvent(15, "a send begins to wait for room; `seqno` is its ticket"),
    "UNBLOCK": TraceEvent(
        16, "a send has ended to wait for room, with the reason; `seqno` is its ticket"
    ),
    "TIMER": TraceEvent(17, "a timer fired"),
    "VIEW": TraceEvent(18, "a view was installed; `seqno_last` is its number"),
    "STATE": TraceEvent(19, "the marks of a window after an input that changed them"),
    "EARLY": TraceEvent(20, "something was kept for a view to come"),
    "VOTE_OUT": TraceEvent(21, "a vote was sent"),
    "VOTE_IN": TraceEvent(22, "a vote was counted by the coordinator"),
    "STABLE_OUT": TraceEvent(23, "what is stable was told"),
    "STABLE_IN": TraceEvent(24, "what is stable was heard"),
    "SEND_ASIDE": TraceEvent(25, "an out-of-band message got its number"),
    "STORE_ASIDE": TraceEvent(26, "an out-of-band message that was new was delivered"),
    "REPAIR_ASIDE": TraceEvent(27, "an out-of-band message was sent again"),
    "SUSPECT": TraceEvent(28, "nothing was heard of `peer` for too long"),
    # What the application gets, and what becomes of the life.
    "BEGIN": TraceEvent(40, "a life has begun; `high` is the reach of its windows"),
    "DELIVER": TraceEvent(
        41, "the application is handed messages; the reason is empty for the stream to the group"
    ),
    "MEMBERS": TraceEvent(
        42, "the application is told a view; `origin` made it, `reason` lists its members"
    ),
    "START": TraceEvent(43, "the stream of `origin` starts here: `seqno` is its first message"),
    "LOST": TraceEvent(44, "messages of `origin` will never come"),
    "STATE_IN": TraceEvent(
        45, "the application is given the state of `peer`; deliveries go on from it"
    ),
    "EXPELLED": TraceEvent(46, "the life is over: the group has gone on without it"),
    "LEFT": TraceEvent(47, "the life is over, as the application wished"),
    "REST": TraceEvent(48, "the load has ended; this life is there at the end"),
    "END": TraceEvent(49, "the recorder was closed in good order: until here nothing is missing"),
    # The network.
    "TX": TraceEvent(
        60,
        "datagrams went out: in real processes `seqno_last` of them in one answer, simulated one "
        "a row",
    ),
    "RX": TraceEvent(61, "simulated: a datagram came in"),
    "NET_DROP": TraceEvent(62, "a datagram was lost on purpose"),
    "NET_DUP": TraceEvent(63, "simulated: a datagram came more than once"),
    "NET_DELAY": TraceEvent(64, "simulated: a datagram was late"),
    "NET_CORRUPT": TraceEvent(65, "simulated: a datagram was damaged"),
    # What a script does to a simulated member.
    "CRASH": TraceEvent(80, "simulated: the process died"),
    "PAUSE": TraceEvent(81, "simulated: the process stands still"),
    "RESUME": TraceEvent(82, "simulated: the process goes on"),
    "INSTALL": TraceEvent(83, "simulated: the member is told a view from outside"),
    "LEAVE": TraceEvent(84, "simulated: the application wishes to leave"),
    "CANCEL": TraceEvent(85, "simulated: the application gives a send up"),
    "CLOSE": TraceEvent(86, "simulated: the application closes a connection"),
    "TUNE": TraceEvent(87, "simulated: a knob is changed"),
    "READ": TraceEvent(88, "simulated: the application reads at another pace"),
}
"""Every event that a trace can hold."""

EVENT_CODES = {name: event.code for name, event in EVENTS.items()}
"""The code of each event."""
EVENT_NAMES = {event.code: name for name, event in EVENTS.items()}
"""The event of each code."""


@lru_cache(maxsize=4096)
def incarnation_id(name: str) -> int:
    """Return the number of an incarnation on disk: 63 bits of a hash of its name, 0 for no name."""
    if not name:
        return 0
    return int.from_bytes(blake2b(name.encode(), digest_size=8).digest(), "little") >> 1 or 1
