"""One row of a trace, the same for the simulator and for real processes: the single source of writer, reader and docs.

In Python ``member``, ``origin``, ``to`` and ``peer`` are names of lives and ``event`` is a word; on
disk they are numbers (:func:`life_id`, the code in :data:`EVENTS`), and a side file (lives.py) says
which number is which name.
"""

from __future__ import annotations

from functools import lru_cache
from hashlib import blake2b
from typing import NamedTuple


class Row(NamedTuple):
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


class Column(NamedTuple):
    """One column: its type on disk, whether it names a life, and what it means."""

    type: str
    meaning: str
    is_life: bool = False


COLUMNS: dict[str, Column] = {
    "seed": Column("int64", "seed of a simulated run; 0 in real processes. Part of every key"),
    "member": Column("int64", "life that the row is about", is_life=True),
    "idx": Column(
        "int64", "number of the row in its life, from 0, without a hole: a lost row shows"
    ),
    "step": Column(
        "int64",
        "input of the machine that the row belongs to; it rises. In simulated traces it counts over all members of the "
        "seed, so it is their one order",
    ),
    "t_ns": Column(
        "int64",
        "virtual time; in real processes the time of day, which never goes back within a life",
    ),
    "event": Column("int8", "code of the event"),
    "view": Column("int64", "number of the view that the life is in"),
    "origin": Column("int64", "life that numbered the messages", is_life=True),
    "epoch": Column(
        "int64", "of the stream: 0 for a whole life, the number of a view, or that of a connection"
    ),
    "to": Column(
        "int64", "life that the connection goes to; 0: the stream goes to the group", is_life=True
    ),
    "seqno": Column("int64", "first message"),
    "seqno_last": Column("int64", "last message"),
    "part": Column("int32", "how-manyth start of this stream at this life; 0 at its origin"),
    "k": Column(
        "int64",
        "DELIVER, SEND: messages of this stream and part that came before, as the recorder counts them. STORE: how "
        "many were new; DROPPED, PURGE: how many",
    ),
    "peer": Column("int64", "the other life of a frame", is_life=True),
    "size_bytes": Column("int64", "bytes of the messages, or of the datagrams"),
    "hash": Column(
        "int64", "SEND, REPAIR, DELIVER: crc32 of the messages hash_first .. seqno_last"
    ),
    "hash_first": Column("int64", "message at which the hash begins; 0: there is none"),
    "sent_ns": Column(
        "int64",
        "SEND, REPAIR, DELIVER: time of day at which the origin sent the last message. NAK_OUT: at which it was asked, "
        "by the clock that the machine was told; t_ns is when that was written down",
    ),
    "low": Column("int64", "STATE and TAIL: mark"),
    "delivered": Column("int64", "STATE: mark"),
    "high": Column("int64", "STATE and TAIL: mark; BEGIN: reach of the windows"),
    "reason": Column("string", "why; of MEMBERS the names of the members, oldest first"),
    "frame_id": Column("string", "name of a simulated datagram"),
}
"""Every column, in the order of the file. None is ever null."""


class Event(NamedTuple):
    """What can happen: its code on disk, which never changes, and what it means."""

    code: int
    meaning: str


EVENTS: dict[str, Event] = {
    # What the machine says.
    "SEND": Event(
        1,
        "messages got their numbers and were stored; the reason is `not back` if their origin does not get them",
    ),
    "STORE": Event(2, "of a run that arrived, `k` messages were new"),
    "DROPPED": Event(3, "something that arrived was dropped, with its reason"),
    "ACK_OUT": Event(4, "an ack was sent"),
    "ACK_IN": Event(5, "an ack was received"),
    "NAK_OUT": Event(6, "a range was asked for"),
    "NAK_IN": Event(7, "somebody asks for a range"),
    "REPAIR": Event(8, "a run was sent again; the reason is `unasked` if nobody asked"),
    "SUPPRESSED": Event(9, "a range was not repaired: `repeat` or `budget`"),
    "GONE_OUT": Event(10, 'what is purged was answered with "gone"'),
    "GONE_IN": Event(11, "messages were given up"),
    "TAIL_OUT": Event(12, "the stream was announced"),
    "TAIL_IN": Event(13, "an announcement was heard"),
    "PURGE": Event(14, "low moved: `k` messages were let go"),
    "BLOCK": Event(15, "a send begins to wait for room; `seqno` is its ticket"),
    "UNBLOCK": Event(
        16, "a send has ended to wait for room, with the reason; `seqno` is its ticket"
    ),
    "TIMER": Event(17, "a timer fired"),
    "VIEW": Event(18, "a view was installed; `seqno_last` is its number"),
    "STATE": Event(19, "the marks of a window after an input that changed them"),
    "EARLY": Event(20, "something was kept for a view to come"),
    "VOTE_OUT": Event(21, "a vote was sent"),
    "VOTE_IN": Event(22, "a vote was counted by the coordinator"),
    "STABLE_OUT": Event(23, "what is stable was told"),
    "STABLE_IN": Event(24, "what is stable was heard"),
    "SEND_ASIDE": Event(25, "an out-of-band message got its number"),
    "STORE_ASIDE": Event(26, "an out-of-band message that was new was delivered"),
    "REPAIR_ASIDE": Event(27, "an out-of-band message was sent again"),
    "SUSPECT": Event(28, "nothing was heard of `peer` for too long"),
    # What the application gets, and what becomes of the life.
    "BEGIN": Event(40, "a life has begun; `high` is the reach of its windows"),
    "DELIVER": Event(
        41, "the application is handed messages; the reason is empty for the stream to the group"
    ),
    "MEMBERS": Event(
        42, "the application is told a view; `origin` made it, `reason` lists its members"
    ),
    "START": Event(43, "the stream of `origin` starts here: `seqno` is its first message"),
    "LOST": Event(44, "messages of `origin` will never come"),
    "STATE_IN": Event(45, "the application is given the state of `peer`; deliveries go on from it"),
    "EXPELLED": Event(46, "the life is over: the group has gone on without it"),
    "LEFT": Event(47, "the life is over, as the application wished"),
    "REST": Event(48, "the load has ended; this life is there at the end"),
    "END": Event(49, "the recorder was closed in good order: until here nothing is missing"),
    # The network.
    "TX": Event(
        60,
        "datagrams went out: in real processes `seqno_last` of them in one answer, simulated one a row",
    ),
    "RX": Event(61, "simulated: a datagram came in"),
    "NET_DROP": Event(62, "a datagram was lost on purpose"),
    "NET_DUP": Event(63, "simulated: a datagram came more than once"),
    "NET_DELAY": Event(64, "simulated: a datagram was late"),
    "NET_CORRUPT": Event(65, "simulated: a datagram was damaged"),
    # What a script does to a simulated member.
    "CRASH": Event(80, "simulated: the process died"),
    "PAUSE": Event(81, "simulated: the process stands still"),
    "RESUME": Event(82, "simulated: the process goes on"),
    "INSTALL": Event(83, "simulated: the member is told a view from outside"),
    "LEAVE": Event(84, "simulated: the application wishes to leave"),
    "CANCEL": Event(85, "simulated: the application gives a send up"),
    "CLOSE": Event(86, "simulated: the application closes a connection"),
    "TUNE": Event(87, "simulated: a knob is changed"),
    "READ": Event(88, "simulated: the application reads at another pace"),
}
"""Every event that a trace can hold."""

CODES = {name: event.code for name, event in EVENTS.items()}
"""The code of each event."""
NAMES = {event.code: name for name, event in EVENTS.items()}
"""The event of each code."""


@lru_cache(maxsize=4096)
def life_id(name: str) -> int:
    """Return the number of a life on disk: 63 bits of a hash of its name, never 0; 0 for no name."""
    if not name:
        return 0
    return int.from_bytes(blake2b(name.encode(), digest_size=8).digest(), "little") >> 1 or 1
