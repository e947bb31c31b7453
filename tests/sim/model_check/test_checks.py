"""The checks of the exhaustive search alone: each passes a good turn, and fails a bad one."""

import pytest

from gapless.protocol.ready import Delivery, TraceEntry
from gapless.run import Run
from gapless.sim.model_check.checks import (
    STEP_CHECKS,
    Evidence,
    StepRecord,
    StreamObservation,
    failed_checks,
    payload,
)
from gapless.sim.model_check.search import SearchBounds
from gapless.wire.frames import Ack, Data, Nak

A, B, C = SearchBounds(receivers=2).members()


def _sight(low: int, delivered: int, high: int, held: str = "", **acks: int) -> StreamObservation:
    stored = {int(seqno): payload(int(seqno)) for seqno in held}
    return StreamObservation(
        low,
        delivered,
        high,
        stored,
        {{"a": A, "b": B, "c": C}[name]: ack for name, ack in acks.items()},
    )


def _run(*seqnos: int, content: bytes | None = None) -> Run:
    return Run.of(A, seqnos[0], [content or payload(seqno) for seqno in seqnos])


def _deliveries(*runs: Run) -> list[Delivery]:
    return [Delivery(A, run.first, run.last, run) for run in runs]


RECEIVES = StepRecord(
    capacity=2,
    sends=False,
    peer=A,
    received_frames=(Data(_run(1)),),
    before=_sight(0, 0, 2, "2"),
    after=_sight(2, 2, 2),
    evidence=Evidence(received=0b110),
    sent_frames=[(A, Ack(A, 2, 1 << 16))],
    deliveries=_deliveries(_run(1), _run(2)),
    trace=[],
)
SENDS = StepRecord(
    capacity=2,
    sends=True,
    peer=B,
    received_frames=(Ack(A, 1, 1 << 16), Nak(A, ((1, 2),))),
    before=_sight(0, 2, 2, "12", a=2, b=0, c=1),
    after=_sight(1, 3, 3, "23", a=3, b=1, c=1),
    evidence=Evidence(delivered=2, submitted=3, acked=((B, 1), (C, 1))),
    sent_frames=[(None, Data(_run(3))), (B, Data(_run(2), repair=True))],
    deliveries=_deliveries(_run(3)),
    trace=[],
)
ASKS = StepRecord(
    capacity=2,
    sends=False,
    peer=None,
    received_frames=(),
    before=_sight(0, 0, 2, "2"),
    after=_sight(0, 0, 2, "2"),
    evidence=Evidence(received=0b100, announced=3),
    sent_frames=[(A, Nak(A, ((1, 1), (3, 3))))],
    deliveries=[],
    trace=[],
)


@pytest.mark.parametrize("turn", [RECEIVES, SENDS, ASKS])
def test_a_good_turn_passes(turn: StepRecord) -> None:
    assert failed_checks(turn) == ()


@pytest.mark.parametrize(
    ("check", "turn"),
    [
        ("S1", RECEIVES._replace(evidence=Evidence(received=0b010))),
        ("S1", SENDS._replace(evidence=SENDS.evidence._replace(submitted=2))),
        ("S2", RECEIVES._replace(deliveries=_deliveries(_run(1), _run(1), _run(2)))),
        ("S2", RECEIVES._replace(evidence=Evidence(received=0b110, delivered=1))),
        ("S3", RECEIVES._replace(deliveries=_deliveries(_run(2)))),
        ("S3", RECEIVES._replace(deliveries=_deliveries(_run(1)))),
        ("S4", RECEIVES._replace(deliveries=_deliveries(_run(1), _run(2, content=b"?")))),
        (
            "S4",
            SENDS._replace(sent_frames=[(None, Data(_run(3, content=b"?"))), SENDS.sent_frames[1]]),
        ),
        ("S6", SENDS._replace(after=_sight(0, 3, 3, "123", a=3, b=1, c=1))),
        ("S6", ASKS._replace(after=_sight(0, 0, 3, "3"))),
        ("S7", RECEIVES._replace(after=_sight(2, 2, 1))),
        ("S7", RECEIVES._replace(before=_sight(0, 0, 3, "2"))),
        ("S7", SENDS._replace(after=_sight(1, 3, 3, "23", a=3, b=1, c=0))),
        ("S7", SENDS._replace(after=_sight(1, 3, 3, "23", a=3, b=1))),
        ("S9", SENDS._replace(evidence=SENDS.evidence._replace(acked=((B, 1), (C, 0))))),
        ("S10", SENDS._replace(sent_frames=SENDS.sent_frames[:1])),
        ("S10", SENDS._replace(sent_frames=[*SENDS.sent_frames, SENDS.sent_frames[1]])),
        (
            "S10",
            SENDS._replace(sent_frames=[SENDS.sent_frames[0], (C, Data(_run(2), repair=True))]),
        ),
        (
            "S10",
            SENDS._replace(
                sent_frames=[SENDS.sent_frames[0], (B, Data(_run(2, content=b"?"), repair=True))]
            ),
        ),
        ("S10", SENDS._replace(sent_frames=[*SENDS.sent_frames, (None, Data(_run(2)))])),
        ("S11", ASKS._replace(sent_frames=[(A, Nak(A, ((1, 2),)))])),
        ("S11", ASKS._replace(sent_frames=[(A, Nak(A, ((3, 4),)))])),
        ("S11", ASKS._replace(evidence=Evidence(received=0b100, announced=3, delivered=1))),
        ("S12", RECEIVES._replace(after=_sight(1, 1, 1))),
        ("S12", RECEIVES._replace(received_frames=(Data(_run(1, 2)),))),
        (
            "S12",
            RECEIVES._replace(trace=[TraceEntry("DROPPED", A, 1, 1, k=1, reason="full")]),
        ),
        (
            "S12",
            RECEIVES._replace(
                received_frames=(Data(_run(1)), Data(_run(3))), after=_sight(3, 3, 3)
            ),
        ),
    ],
)
def test_a_bad_turn_fails(check: str, turn: StepRecord) -> None:
    assert check in {failure.check for failure in failed_checks(turn)}


def test_every_check_of_a_turn_has_a_bad_turn() -> None:
    marks = test_a_bad_turn_fails.pytestmark  # type: ignore[attr-defined]
    assert {check for check, _ in marks[0].args[1]} == set(STEP_CHECKS)
