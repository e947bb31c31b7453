"""The list of checks: for each invariant visible in a trace, a function to violations.

``gapless.invariants`` names the visible invariants; ``NOT_CHECKABLE`` are the others.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple

from gapless.invariants import INVARIANTS
from pyspark_gapless.verify import (
    acks,
    delivery_order,
    final_state,
    integrity,
    oob_and_memory,
    retransmission,
    views as groups,
    window_marks,
)
from pyspark_gapless.verify.violations import union

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from pyspark_gapless.trace import Trace


class TraceCheck(NamedTuple):
    """An invariant: the name, the checking function, and the events read by the check.

    ``whole``: the check needs every row of an incarnation, and leaves sampled incarnations out.
    ``simulated``: why the check reads only simulated traces, if so.
    """

    id: str
    find_violations: Callable[[Trace], DataFrame]
    events: tuple[str, ...]
    needs_all_rows: bool = True
    simulated_only_reason: str = ""

    @property
    def name(self) -> str:
        """The name of the invariant."""
        return INVARIANTS[self.id].name

    def __call__(self, trace: Trace) -> DataFrame:
        """Return the violations of this invariant."""
        return self.find_violations(trace.unsampled if self.needs_all_rows else trace)


def acks_are_true(trace: Trace) -> DataFrame:
    """S8: an incarnation acknowledges only delivered messages; each arriving ack was sent."""
    return union(window_marks.mark_violations(trace, "S8"), acks.acks_were_sent(trace))


def repairs_are_exact(trace: Trace) -> DataFrame:
    """S10: a repair was requested, is of a stored message, and has the bytes of the original."""
    return union(
        retransmission.repairs_were_requested(trace),
        window_marks.mark_violations(trace, "S10"),
        integrity.repairs_match_originals(trace),
    )


def naks_are_legal(trace: Trace) -> DataFrame:
    """S11: a nak names existing, missing messages, goes to a holder, and is not too early."""
    return union(
        window_marks.mark_violations(trace, "S11"),
        window_marks.naks_exist(trace),
        retransmission.naks_are_paced(trace),
    )


def views(trace: Trace) -> DataFrame:
    """S15: views agree and rise; strangers change nothing (in simulated traces)."""
    return (
        union(groups.views(trace), oob_and_memory.strangers(trace))
        if trace.simulated
        else groups.views(trace)
    )


_ALL = (
    TraceCheck("S1", delivery_order.no_creation, ("SEND", "DELIVER"), needs_all_rows=False),
    TraceCheck("S2", delivery_order.no_duplicate, ("DELIVER",), needs_all_rows=False),
    TraceCheck(
        "S3",
        delivery_order.gapless_prefix,
        ("DELIVER", "START", "LOST"),
        needs_all_rows=False,
    ),
    TraceCheck("S4", integrity.integrity, ("SEND", "DELIVER"), needs_all_rows=False),
    TraceCheck("S5", oob_and_memory.out_of_band, ("SEND_ASIDE", "STORE_ASIDE")),
    TraceCheck("S6", window_marks.window, ("STATE",)),
    TraceCheck("S7", window_marks.marks, ("STATE",)),
    TraceCheck("S8", acks_are_true, ("ACK_OUT", "ACK_IN")),
    TraceCheck("S9", acks.purge_is_safe, ("PURGE",)),
    TraceCheck("S10", repairs_are_exact, ("REPAIR",)),
    TraceCheck("S11", naks_are_legal, ("NAK_OUT",)),
    TraceCheck("S12", window_marks.acceptance, ("STORE", "DROPPED")),
    TraceCheck(
        "S13",
        oob_and_memory.hostile_bytes,
        ("DROPPED",),
        simulated_only_reason="a real process takes several datagrams in a step",
    ),
    TraceCheck("S14", oob_and_memory.memory, ("STATE",)),
    TraceCheck("S15", views, ("VIEW", "MEMBERS"), needs_all_rows=False),
    TraceCheck("S16", final_state.silence, ("REST",)),
    TraceCheck("L1", final_state.delivery, ("REST",), needs_all_rows=False),
    TraceCheck("L2", final_state.stability, ("REST",), needs_all_rows=False),
    TraceCheck("L3", final_state.no_data_at_rest, ("REST",)),
    TraceCheck(
        "L4",
        retransmission.repair_cost,
        ("TX",),
        simulated_only_reason="only the simulator knows what its network lost",
    ),
    TraceCheck("L6", groups.single_view, ("REST",), needs_all_rows=False),
)
CHECKS = {check.id: check for check in _ALL}
"""Every check of a trace, by the id of the invariant."""

NOT_CHECKABLE = {one.id: one.not_in_trace for one in INVARIANTS.values() if one.not_in_trace}
"""The invariants that no trace can show, and why."""
