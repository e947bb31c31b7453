"""The text of a script reads back as the same script; an error names the line."""

from string import ascii_letters, digits

import pytest
from hypothesis import given, strategies as st

from gapless.delivery_mode import DeliveryMode
from gapless.faults.faults import CORRUPT, DUPLICATE, FORGED, INTACT, DriftingClock
from gapless.faults.frame_names import KINDS, FrameName
from gapless.protocol.buggify import RARE_BRANCHES
from gapless.protocol.membership.failure_detector import DeathEvidence
from gapless.sim.scenario.grammar import read_script, show_script
from gapless.sim.scenario.literals import ScenarioError, show_bytes, show_time
from gapless.sim.script import (
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

nodes = st.sampled_from(["a", "b", "c", "z", "ab"])
incarnations = st.builds(lambda node, primes: node + "'" * primes, nodes, st.integers(0, 2))
times_ns = st.one_of(st.integers(0, 20).map(lambda ms: ms * 1_000_000), st.integers(0, 10**12))
keys = st.one_of(
    st.text(ascii_letters + digits + "'-/. ", min_size=1, max_size=6),
    st.text(min_size=1, max_size=6),
    st.text('"\\u0a\n', min_size=1, max_size=9),
)
sides = st.lists(nodes, max_size=3).map(",".join)
texts = st.text([chr(code) for code in range(32, 127)], max_size=30).map(str.encode)
generated = st.builds(payload, incarnations, st.integers(0, 30), st.integers(0, 60))
repeated = st.builds(
    lambda unit, times: unit * times, st.binary(min_size=1, max_size=9), st.integers(0, 20)
)
contents = st.one_of(st.binary(max_size=20), texts, generated, repeated)
stretches = st.builds(
    lambda who, first, count, size_bytes: tuple(
        payload(who, first + at, size_bytes) for at in range(count)
    ),
    incarnations,
    st.integers(0, 20),
    st.integers(1, 5),
    st.integers(0, 40),
)
payloads = st.lists(st.one_of(contents.map(lambda one: (one,)), stretches), max_size=4).map(
    lambda parts: tuple(content for part in parts for content in part)
)
actions = st.one_of(
    st.builds(StartProcess, times_ns, incarnations),
    st.builds(
        StartProcess,
        times_ns,
        incarnations,
        st.one_of(st.just(""), keys),
        st.booleans(),
        st.booleans(),
    ),
    st.builds(LeaveGroup, times_ns, incarnations),
    st.builds(PauseProcess, times_ns, incarnations),
    st.builds(ResumeProcess, times_ns, incarnations),
    st.builds(CrashProcess, times_ns, incarnations),
    st.builds(SaveDigest, times_ns, incarnations, keys),
    st.builds(ApplyDigest, times_ns, incarnations, keys),
    st.builds(CancelSend, times_ns, incarnations, st.integers(1, 99)),
    st.builds(SetReadDelay, times_ns, incarnations, times_ns),
    st.builds(ChangePartition, times_ns, sides, st.sampled_from(["partition", "heal"])),
    st.builds(
        InstallView,
        times_ns,
        incarnations,
        st.integers(1, 99),
        st.lists(incarnations, min_size=1, max_size=4).map(tuple),
        st.one_of(st.sampled_from(["", ZERO]), keys),
    ),
    st.builds(
        SendMessages,
        times_ns,
        incarnations,
        payloads,
        st.booleans(),
        st.none() | times_ns,
        st.sampled_from([None, True, False]),
        st.sampled_from(["", "b"]),
        st.sampled_from([None, *DeliveryMode]),
    ),
    st.builds(SetNextMode, times_ns, incarnations, st.sampled_from(list(DeliveryMode))),
    st.builds(CloseConnection, times_ns, incarnations, st.just("b")),
    st.builds(
        NoteEvidence, times_ns, incarnations, st.just("b"), st.sampled_from(list(DeathEvidence))
    ),
    st.builds(SetRetransmitInterval, times_ns, incarnations, times_ns),
)
names = st.builds(
    FrameName,
    st.sampled_from(KINDS),
    incarnations,
    first := st.integers(0, 99),
    first,
    incarnations,
    nodes,
    st.integers(1, 4),
).map(lambda name: name._replace(last=max(name.first, name.last)))
copies = st.one_of(
    st.tuples(times_ns, st.none(), st.sampled_from([INTACT, DUPLICATE])),
    st.tuples(times_ns, contents, st.sampled_from([CORRUPT, FORGED])),
)
causes = st.sampled_from(
    ["loss", "delay", "duplicate", "corrupt", "garbage", "loss+delay", "target-first", "late-x"]
)
fates = st.builds(Fate, st.lists(copies, max_size=3).map(tuple), causes)


@st.composite
def scripts(draw: st.DrawFn) -> Script:
    script = Script(
        seed=draw(st.integers(0, 2**64)),
        delay_ns=draw(times_ns),
        calm_ns=draw(times_ns),
        clocks=draw(
            st.dictionaries(
                incarnations,
                st.builds(DriftingClock, times_ns, st.integers(-50_000, 50_000)),
                max_size=3,
            )
        ),
        actions=draw(st.lists(actions, max_size=8)),
        fates=draw(st.dictionaries(names, fates, max_size=6)),
        late_ns=draw(
            st.dictionaries(st.tuples(incarnations, st.integers(0, 99)), times_ns, max_size=3)
        ),
        only_loss=draw(st.booleans()),
        fifo=draw(st.booleans()),
        membership=draw(st.booleans()),
        rare=draw(st.lists(st.sampled_from(RARE_BRANCHES), unique=True).map(tuple)),
    )
    # Defaults must be as likely as other values, or the short forms are never tried.
    for name in list(script.fates):
        if draw(st.booleans()):
            usual = (script.delay_ns, None, INTACT)
            odd = draw(copies)
            script.fates[name] = Fate(
                (usual, odd) if odd[2] in {DUPLICATE, FORGED} else (odd,), draw(causes)
            )
    if draw(st.booleans()):
        script.actions[:0] = initial_actions(
            tuple(draw(st.lists(incarnations, min_size=1, max_size=4)))
        )
    return script


def read(lines: list[str]) -> Script:
    return read_script(enumerate(lines, 1))


@given(scripts())
def test_what_is_printed_reads_back(script: Script) -> None:
    lines = show_script(script)
    again = read(lines)
    assert again == script
    assert show_script(again) == lines
    assert all(
        line == line.strip() and line and not line.startswith(("#", "----")) for line in lines
    )


@given(scripts())
def test_same_name_with_following_numbers_is_one_line(script: Script) -> None:
    name = FrameName("TAIL", "q", 1, 2, "a", "b", 7)
    script.fates |= {name._replace(nth=nth): Fate((), "loss") for nth in (9, 7, 8)}
    assert "lose TAIL q1..2 a->b #7..9" in show_script(script)
    assert read(show_script(script)) == script


@pytest.mark.parametrize(
    ("time_ns", "text"),
    [
        (0, "0ms"),
        (1, "0.000001ms"),
        (1_500_000, "1.5ms"),
        (10_000_000, "10ms"),
        (60 * 10**9, "60000ms"),
    ],
)
def test_times(time_ns: int, text: str) -> None:
    assert show_time(time_ns) == text


@pytest.mark.parametrize(
    ("content", "text"),
    [
        (b"", '""'),
        (b"a1|", '"a1|"'),
        (payload("a", 1, 200), "a1 of 200B"),
        (payload("b''", 12, 20), "b''12 of 20B"),
        (b"xy" * 50, '"xy" of 100B'),
        (b'say "hi"', "0x736179202268692220"[:-2]),
        (b"\x00\xff", "0x00ff"),
        (b"a01|a01|a01|a01|", '"a01|a01|a01|a01|"'),
    ],
)
def test_bytes(content: bytes, text: str) -> None:
    assert show_bytes(content) == text


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("store", "store"),
        ("two words", '"two words"'),
        ('"', r'"\""'),
        ('say "hi"', r'"say \"hi\""'),
        ("back\\slash", r'"back\\slash"'),
        ("C:\\u00000a", r'"C:\\u00000a"'),
        ("two\nlines", r'"two\u00000alines"'),
        ("\ud800", r'"\u00d800"'),
    ],
)
def test_a_durable_name_is_quoted_and_escaped(name: str, text: str) -> None:
    script = Script(actions=[StartProcess(5_000_000, "a", name, state=True, stores=True)])
    lines = [f"5ms a starts durable={text} state stores"]
    assert show_script(script) == lines
    assert read(lines) == script


@pytest.mark.parametrize("key", ['"', 'a "b"', "\\"])
def test_a_digest_key_is_quoted_and_escaped(key: str) -> None:
    script = Script(
        actions=[
            SaveDigest(1, "a", key),
            ApplyDigest(2, "b", key),
            InstallView(3, "b", 2, ("a", "b"), key),
        ]
    )
    assert read(show_script(script)) == script


def test_a_backslash_before_any_other_letter_is_a_backslash() -> None:
    (start,) = read([r'5ms a starts durable="C:\data"']).actions
    assert start == StartProcess(5_000_000, "a", r"C:\data")


def test_an_opening_and_a_view_are_one_line_each() -> None:
    members = ("a", "b", "c")
    script = Script(
        actions=[
            *initial_actions(members),
            *(InstallView(5_000_000, who, 2, members, "k") for who in members),
        ]
    )
    assert show_script(script) == ["group a b c", "5ms a b c install view 2: a b c from k"]


def test_a_group_that_makes_its_own_views() -> None:
    lines = [
        "calm 9ms",
        "membership",
        "0ms a b start",
        "5ms c d start durable=store state",
        '6ms e starts durable="two words"',
        "7ms f starts state",
        "8ms a b leave",
        "9ms mark one-way a,b",
    ]
    script = read(lines)
    assert script.membership
    assert script.actions[2:6] == [
        StartProcess(5_000_000, "c", "store", True),
        StartProcess(5_000_000, "d", "store", True),
        StartProcess(6_000_000, "e", "two words"),
        StartProcess(7_000_000, "f", "", True),
    ]
    assert show_script(script) == lines


def test_lines_may_stand_in_any_order_and_in_either_number() -> None:
    script = read(
        [
            "duplicate DATA a1 a->b #1 at 9ms",
            "1ms a b  start",
            '2s a send  "it\'s (so)" (no wait)',
            "network 3ms",
        ]
    )
    assert script.delay_ns == 3_000_000
    assert script.actions == [
        StartProcess(10**6, "a"),
        StartProcess(10**6, "b"),
        SendMessages(2 * 10**9, "a", (b"it's (so)",), wait=False),
    ]
    assert [fate.copies for fate in script.fates.values()] == [
        ((3_000_000, None, ""), (9_000_000, None, "duplicate"))
    ]


@pytest.mark.parametrize(
    ("line", "complaint"),
    [
        ("nonsense", "cannot read 'nonsense'"),
        ("group", "cannot read 'group'"),
        ("1ms a flies", "cannot read"),
        ("a sends", "cannot read"),
        ("1 a sends", "cannot read"),
        ("1ms a sends hello", "cannot read the message 'hello'"),
        ('1ms a sends "x"y', "cannot read the message"),
        ('1ms a sends "é"', "not plain text"),
        ("1ms a sends a3..1 of 8B", "ends before it begins"),
        ("1ms a sends a1..9999999 of 9999B", "too many"),
        ('1ms a sends "" of 8B', "an empty text cannot be repeated"),
        ('1ms a sends "x" (soon)', "unknown option 'soon'"),
        ("1.0000001ms a pauses", "not a whole number of nanoseconds"),
        ("lose DATA a1 a->b", "cannot read"),
        ("lose DATA 1 a->b #1", "is not a frame name"),
        ("lose DATA a1 a->b #1 to 3ms", "cannot read this fate; write lose DATA"),
        ("lose DATA a1 a->b #3..2", "is not a range of numbers"),
        ("lose DATA a1 a->b #1..99999999999", "is not a range of numbers"),
        ("delay DATA a1 a->b #1", "cannot read this fate; write delay DATA"),
        ("delay DATA a1 a->b #1 to soon", "'soon'"),
        ("fate DATA a1 a->b #1: 2ms", "needs its cause"),
        ("fate DATA a1 a->b #1: 2ms 0x00 by x", "only a corrupt or forged copy has bytes"),
        ("fate DATA a1 a->b #1: corrupt 2ms by x", "only a corrupt or forged copy has bytes"),
        ("fate DATA a1 a->b #1: maybe by x", "cannot read the copy 'maybe'"),
        ('corrupt DATA a1 a->b #1 to "x" "y"', "expected the bytes of one datagram"),
        ("late timer x of a by 3ms", "cannot read"),
    ],
)
def test_nonsense_is_refused_with_its_line(line: str, complaint: str) -> None:
    with pytest.raises(ScenarioError, match=r"^2: ") as caught:
        read(["group a b", line])
    assert complaint in str(caught.value)


def test_a_frame_has_one_fate() -> None:
    with pytest.raises(ScenarioError, match="2: DATA a1 a->b #2 has a fate already"):
        read(["lose DATA a1 a->b #1..3", "delay DATA a1 a->b #2 to 5ms"])
