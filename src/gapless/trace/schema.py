"""One row of a trace, the same for the simulator and for real processes.

``member``, ``origin`` and ``peer`` name lives: one name is one life of one member. In a file a row is one line of JSON,
with the columns that say something.
"""

from __future__ import annotations

from typing import NamedTuple


class Row(NamedTuple):
    """One row of the trace. Numbers are 0 and texts empty where they mean nothing."""

    step: int
    t_ns: int
    member: str
    incarnation: int
    view: int
    event: str
    origin: str = ""
    seqno: int = 0
    seqno_last: int = 0
    peer: str = ""
    frame_id: str = ""
    size_bytes: int = 0
    payload_hash: int = 0
    low: int = 0
    delivered: int = 0
    high: int = 0
    reason: str = ""
    epoch: int = 0
    seed: int = 0


COLUMNS = Row._fields
"""The names of the columns, in order."""

EVENTS = {
    "BEGIN": "a life has begun; high is the reach of its windows",
    "OFFER": "the application is about to send a message, with its hash",
    "ACCEPT": "a message of the application has its numbers, with its hash",
    "DELIVER": "the application was handed messages, with their hash; the reason is empty for the stream to the group",
    "MEMBERS": "the application was told the view; origin made it, reason lists its members",
    "START": "the stream of origin starts here: seqno is its first message",
    "LOST": "messages of origin will never come",
    "STATE_IN": "the application was given the state of peer; deliveries go on from it",
    "EXPELLED": "the life is over: the group has gone on without it",
    "REST": "the load has ended; this life is there at the end",
}
"""What the shell around a machine writes; what the machine itself writes stands in docs/invariants.md."""
