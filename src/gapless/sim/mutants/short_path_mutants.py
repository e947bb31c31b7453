"""Planted bugs in the short path of expected inputs (header prediction)."""

from __future__ import annotations

from gapless.sim.mutants.planting import Mutant

_ON = "gapless.protocol.header_prediction:HeaderPrediction."

SHORT_PATH_MUTANTS = (
    Mutant(
        "short path over a gap",
        "an early run takes the short path, and delivery skips a gap",
        _ON + "_on_next_run",
        "first != window.high + 1",
        "first <= window.high",
    ),
    Mutant(
        "short path owes nothing",
        "a delivery owes no ack",
        _ON + "_deliver",
        "        self._deliveries.schedule_ack(stream, out, due=due)\n",
        "",
    ),
    Mutant(
        "short path late ack",
        "the deadline of an owed ack is not reported",
        _ON + "_deliver",
        "armed.earliest_ns = ack_ns",
        "pass",
    ),
    Mutant(
        "short path strands sends",
        "an ack frees room, and waiting sends stay",
        _ON + "_on_next_ack",
        "or stream.queue.sends\n",
        "or False\n",
    ),
    Mutant(
        "short path strands tickets",
        "acknowledged sends are not reported",
        _ON + "_on_next_ack",
        "or stream._tracked\n",
        "or False\n",
    ),
    Mutant(
        "short path purges the slow",
        "the window is purged up to any ack",
        _ON + "_release",
        "window.purge(stream.acks.minimum)",
        "window.purge(max(stream.acks._acks.values()))",
    ),
    Mutant(
        "short path is not acked by itself",
        "the own delivery is no ack",
        _ON + "_send_run",
        "            stream.acks._acks[me] = last\n",
        "",
    ),
    Mutant(
        "short path no probe",
        "no tail probe follows a send",
        _ON + "_send_run",
        "        stream.tail_due_ns = now_ns + stream._tail_interval_ns\n",
        "        pass\n",
    ),
    Mutant(
        "short path counts no bytes",
        "sent bytes are not counted for flow control",
        _ON + "_send_run",
        "flow._totals.append(flow._totals[-1] + cost_bytes)",
        "flow._totals.append(flow._totals[-1])",
    ),
    Mutant(
        "short path absent",
        "messages for absent durable members are purged",
        _ON + "_on_next_ack",
        "            or stream.retention.retained\n",
        "",
        membership=True,
    ),
)
"""Bugs that would make the two paths differ; the general path has every other bug."""
