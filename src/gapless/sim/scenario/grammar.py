"""The text form of a script: every script has exactly one text, and every text one script.

The lines, in the order of printing (a file may have them in any order)::

    network 2ms                        the delay of every frame without a fate (default 1ms)
    seed 7                             the seed of the members' own randomness
    calm 300ms                         from here on no fault may strike
    in order                           no frame overtakes another on its link
    membership                         members make their own views; lines name nodes
    rare early-ack                     rare branches of the machine that are enabled
    only loss                          the only fault is loss: the cost of repairs counts
    clock b epoch 5ms drift -40ppm     b's own clock
    group a b c                        a, b and c start at 0ms in view 1 of all three
    5ms a sends "hello" a1..3 of 200B  a text; generated ones (script.payload); 0x and hex
    6ms a sends "x" (timeout 20ms)     also: no wait, loopback, no loopback, to b,
                                       acknowledged, out-of-band, unreliable
    7ms a cancels send 2
    7ms a closes b                     the connection to b
    7ms a retransmits every 0ms        zero: never
    7ms c pauses                       also: resumes, crashes, leaves, starts
    7ms c starts durable=store state   joins under a durable name, and asks for the state
    7ms c starts durable=store stores  the same, with a disk: it acknowledges what is stored
    8ms b reads a message per 3ms      or: reads at once
    9ms a notes digest k               for a later view
    9ms c learns digest k              without a view: streams without a start begin there
    9ms a b install view 2: a b from k or: from zero, or neither
    9ms mark partition a               only noted
    lose DATA a2..3 a->b #1            the fate of one frame; #1..3 are three of one name
    delay ACK a1 b->a #1 to 12ms
    duplicate DATA a1 a->b #1 at 9ms   the frame arrives, and again 9 ms after its send
    corrupt DATA a1 a->b #1 to 0x474c
    forge DATA a1 a->b #1 as "noise"   the frame arrives, and something else as well
    fate TAIL a0..1 a->b #2: 2ms, again 8ms, corrupt 4ms "", forged 5ms "x"
    late timer 3 of b by 20ms

A fate whose cause differs from its verb ends with ``by CAUSE``.
"""

from __future__ import annotations

import re
from itertools import groupby
from typing import TYPE_CHECKING, NamedTuple

from gapless.delivery_mode import DeliveryMode
from gapless.faults.faults import CORRUPT, DUPLICATE, FORGED, INTACT, DriftingClock
from gapless.faults.frame_names import FrameName
from gapless.protocol.membership.failure_detector import DeathEvidence
from gapless.sim.scenario.literals import (
    INCARNATION_NAME,
    TIME,
    ScenarioError,
    read_bytes,
    read_payloads,
    read_time,
    show_bytes,
    show_payloads,
    show_time,
)
from gapless.sim.script import (
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
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from gapless.sim.script import Action

# Actions


def _show_action(action: Action, who: str, many: bool) -> str:
    verb = _SHOW[type(action)](action)
    if many:
        # "a starts", but "a b start": only these verbs can have several subjects.
        head, _, rest = verb.partition(" ")
        verb = f"{_PLURALS[head]} {rest}".rstrip()
    return f"{show_time(action.at_ns)} {who} {verb}"


_NO_MODE = "without a mode"
"""The option of a send in the mode of ``switches to``; a send without options is ordered."""


def _show_send(action: SendMessages) -> str:
    options = [] if action.wait else ["no wait"]
    if action.timeout_ns is not None:
        options.append(f"timeout {show_time(action.timeout_ns)}")
    if action.loopback is not None:
        options.append("loopback" if action.loopback else "no loopback")
    options += [f"to {action.to}"] if action.to else []
    if action.mode is None:
        options.append(_NO_MODE)
    elif action.mode != DeliveryMode.ORDERED:
        options.append(action.mode)
    return f"sends {show_payloads(action.payloads)}".rstrip() + (
        f" ({', '.join(options)})" if options else ""
    )


def _show_key(key: str) -> str:
    if _PLAIN_KEY.fullmatch(key):
        return key
    return '"' + "".join(map(_escaped, key)) + '"'


def _escaped(letter: str) -> str:
    if letter in _ESCAPED:
        return f"\\{letter}"
    # A line break would end the line, and a lone surrogate cannot be written to a file.
    return letter if letter.isprintable() else f"\\u{ord(letter):06x}"


def _read_key(quoted: str | None, plain: str | None) -> str:
    """Return the key of the two groups of ``_KEY``; both are None if there is no key."""
    if quoted is not None:
        return _ESCAPE.sub(lambda match: match["letter"] or chr(int(match["code"], 16)), quoted)
    return plain or ""


_ESCAPED = '"\\'
_ESCAPE = re.compile(r"\\(?:(?P<letter>[\"\\])|u(?P<code>0[0-9a-f]{5}|10[0-9a-f]{4}))")
_PLAIN_KEY = re.compile(r"[\w.'/-]+")
_KEY = r"\"((?:[^\"\\]|\\.)*)\"|([\w.'/-]+)"


def _show_install(action: InstallView) -> str:
    source = f" from {_show_key(action.digest)}" if action.digest else ""
    return f"installs view {action.number}: {' '.join(action.members)}{source}"


def _show_start(action: StartProcess) -> str:
    name = f" durable={_show_key(action.durable)}" if action.durable else ""
    return f"starts{name}{' state' if action.state else ''}{' stores' if action.stores else ''}"


def _show_read(action: SetReadDelay) -> str:
    return (
        f"reads a message per {show_time(action.per_message_ns)}"
        if action.per_message_ns
        else "reads at once"
    )


_SHOW: dict[type, Callable[..., str]] = {
    StartProcess: _show_start,
    LeaveGroup: lambda action: "leaves",  # noqa: ARG005
    PauseProcess: lambda action: "pauses",  # noqa: ARG005
    ResumeProcess: lambda action: "resumes",  # noqa: ARG005
    CrashProcess: lambda action: "crashes",  # noqa: ARG005
    InstallView: _show_install,
    SaveDigest: lambda action: f"notes digest {_show_key(action.key)}",
    ApplyDigest: lambda action: f"learns digest {_show_key(action.key)}",
    SendMessages: _show_send,
    SetNextMode: lambda action: f"switches to {action.mode}",
    CancelSend: lambda action: f"cancels send {action.nth}",
    CloseConnection: lambda action: f"closes {action.to}",
    NoteEvidence: lambda action: f"sees {action.to} {action.evidence}",
    SetRetransmitInterval: lambda action: f"retransmits every {show_time(action.xmit_interval_ns)}",
    SetReadDelay: _show_read,
}
_PLURALS = {
    "starts": "start",
    "leaves": "leave",
    "pauses": "pause",
    "resumes": "resume",
    "crashes": "crash",
    "installs": "install",
}


def _show_actions(actions: list[Action]) -> Iterator[str]:
    """Return the lines of all actions, in order; equal actions of several hosts share a line."""
    names = tuple(
        action.who for action in actions if isinstance(action, StartProcess) and not action.at_ns
    )
    begun = initial_actions(names) if names else []
    while names and actions[: len(begun)] != begun:
        names = names[:-1]
        begun = initial_actions(names) if names else []
    if names:
        yield f"group {' '.join(names)}"
    for _, group in groupby(enumerate(actions[len(begun) :]), key=_group_key):
        members = [action for _, action in group]
        if isinstance(members[0], ChangePartition):
            yield f"{show_time(members[0].at_ns)} mark {members[0].what} {members[0].who}".rstrip()
        else:
            yield _show_action(
                members[0], " ".join(action.who for action in members), len(members) > 1
            )


def _group_key(numbered: tuple[int, Action]) -> object:
    at, action = numbered
    if isinstance(
        action, (StartProcess, LeaveGroup, PauseProcess, ResumeProcess, CrashProcess, InstallView)
    ):
        return type(action).__name__, action[:1] + action[2:]
    return at


_SUBJECTS = rf"(?P<at>{TIME}) +(?P<who>{INCARNATION_NAME}(?: +{INCARNATION_NAME})*?) +"
_ACTION_FORMS: list[tuple[re.Pattern[str], Callable[..., Action]]] = [
    (re.compile(_SUBJECTS + form), build)
    for form, build in (
        # A key or a node may have the name of a verb, so lines with names come first.
        (
            rf"notes? +digest +(?:{_KEY})",
            lambda at, who, *key: SaveDigest(at, who, _read_key(*key)),
        ),
        (
            rf"learns? +digest +(?:{_KEY})",
            lambda at, who, *key: ApplyDigest(at, who, _read_key(*key)),
        ),
        (r"closes? +([a-z]+)", CloseConnection),
        (
            rf"sees? +([a-z]+) +({'|'.join(DeathEvidence)})",
            lambda at, who, to, evidence: NoteEvidence(at, who, to, DeathEvidence(evidence)),
        ),
        (
            rf"starts?(?: +durable=(?:{_KEY}))?( +state)?( +stores)?",
            lambda at, who, quoted, plain, *more: StartProcess(
                at, who, _read_key(quoted, plain), *(w is not None for w in more)
            ),
        ),
        ("leaves?", LeaveGroup),
        ("pauses?", PauseProcess),
        ("resumes?", ResumeProcess),
        ("crash(?:es)?", CrashProcess),
        (
            (
                rf"installs? +view +(\d{{1,9}}): *({INCARNATION_NAME}(?: +{INCARNATION_NAME})*?)"
                rf"(?: +from +(?:{_KEY}))?"
            ),
            lambda at, who, number, members, *key: InstallView(
                at, who, int(number), tuple(members.split()), _read_key(*key)
            ),
        ),
        (
            rf"retransmits? +every +({TIME})",
            lambda at, who, every: SetRetransmitInterval(at, who, read_time(every)),
        ),
        (
            rf"switches +to +({'|'.join(DeliveryMode)})",
            lambda at, who, mode: SetNextMode(at, who, DeliveryMode(mode)),
        ),
        (r"cancels? +send +(\d{1,9})", lambda at, who, nth: CancelSend(at, who, int(nth))),
        (
            rf"reads? +a +message +per +({TIME})",
            lambda at, who, each: SetReadDelay(at, who, read_time(each)),
        ),
        ("reads? +at +once", lambda at, who: SetReadDelay(at, who, 0)),
        (
            r"sends?(?: +(.*))?",
            lambda at, who, rest: _read_send(at, who, rest or ""),
        ),
    )
]
_MARK_FORM = re.compile(rf"({TIME}) +mark +(\S+)(?: +(\S+))?")


def _read_send(at_ns: int, who: str, text: str) -> SendMessages:
    payloads, options = read_payloads(text)
    send = SendMessages(at_ns, who, payloads)
    for word in options.split(", ") if options else ():
        if word == "no wait":
            send = send._replace(wait=False)
        elif word in {"loopback", "no loopback"}:
            send = send._replace(loopback=word == "loopback")
        elif word.startswith("timeout "):
            send = send._replace(timeout_ns=read_time(word.removeprefix("timeout ")))
        elif re.fullmatch("to [a-z]+", word):
            send = send._replace(to=word.removeprefix("to "))
        elif word == _NO_MODE:
            send = send._replace(mode=None)
        elif word in set(DeliveryMode):
            send = send._replace(mode=DeliveryMode(word))
        else:
            raise ScenarioError(
                f"unknown option {word!r}; a send has: no wait, timeout 20ms, loopback, no "
                "loopback, to b, "
                f"{_NO_MODE}, {', '.join(DeliveryMode)}"
            )
    return send


def _read_action(line: str) -> list[Action] | None:
    mark = _MARK_FORM.fullmatch(line)
    if mark is not None:
        return [ChangePartition(read_time(mark[1]), mark[3] or "", mark[2])]
    for form, build in _ACTION_FORMS:
        match = form.fullmatch(line)
        if match is not None:
            at, subjects, *details = match.groups()
            return [build(read_time(at), who, *details) for who in subjects.split()]
    return None


# Fates


class _FateForm(NamedTuple):
    """A form of a fate: the verb, the usual cause, and the word before the argument."""

    verb: str
    cause: str
    word: str


_FATE_FORMS = (
    _FateForm("lose", "loss", ""),
    _FateForm("delay", "delay", "to"),
    _FateForm("duplicate", "duplicate", "at"),
    _FateForm("corrupt", "corrupt", "to"),
    _FateForm("forge", "garbage", "as"),
)
_CAUSES = {shape.verb: shape.cause for shape in _FATE_FORMS}


def _show_fate(name: str, fate: Fate, delay_ns: int) -> str:
    verb, rest = _fate_form_of(fate, delay_ns)
    cause = "" if fate.reason == _CAUSES.get(verb) else f" by {fate.reason}"
    return f"{verb} {name}{rest}{cause}"


def _fate_form_of(fate: Fate, delay_ns: int) -> tuple[str, str]:
    """Return the verb for a fate, and the text after the name."""
    usual = (delay_ns, None, INTACT)
    match fate.copies:
        case ():
            return "lose", ""
        case ((at_ns, None, mark),) if mark == INTACT:
            return "delay", f" to {show_time(at_ns)}"
        case (first, (at_ns, None, mark)) if first == usual and mark == DUPLICATE:
            return "duplicate", f" at {show_time(at_ns)}"
        case ((at_ns, bytes() as content, mark),) if at_ns == delay_ns and mark == CORRUPT:
            return "corrupt", f" to {show_bytes(content)}"
        case (first, (at_ns, bytes() as content, mark)) if (
            first == usual and at_ns == delay_ns and mark == FORGED
        ):
            return "forge", f" as {show_bytes(content)}"
    return "fate", ": " + ", ".join(map(_show_copy, fate.copies))


def _show_copy(copy: tuple[int, bytes | None, str]) -> str:
    at_ns, content, mark = copy
    word = {INTACT: "", DUPLICATE: "again "}.get(mark, f"{mark} ")
    return f"{word}{show_time(at_ns)}" + ("" if content is None else f" {show_bytes(content)}")


def _show_fates(fates: dict[FrameName, Fate], delay_ns: int) -> Iterator[str]:
    """Return the lines of all fates; equal fates of consecutive frames share a line."""
    written: set[FrameName] = set()
    for name, fate in fates.items():
        if name in written:
            continue
        first = last = name
        while fates.get(before := first._replace(nth=first.nth - 1)) == fate:
            first = before
        while fates.get(after := last._replace(nth=last.nth + 1)) == fate:
            last = after
        written.update(name._replace(nth=nth) for nth in range(first.nth, last.nth + 1))
        span = f"{first}" if first == last else f"{first}..{last.nth}"
        yield _show_fate(span, fate, delay_ns)


_FATE_FORM = re.compile(
    r"(lose|delay|duplicate|corrupt|forge|fate) +"
    r"([A-Z]+ +\S+ +\S+->\S+ +#\d+)(?:\.\.(\d+))?(:| +to| +at| +as)?"
    r"(?: +(\S.*?))??(?: +by +([a-z][a-z+-]*))?"
)
_MAX_NAMES = 10_000
_COPY_FORM = re.compile(
    rf"(?:(again|corrupt|forged) +)?({TIME})(?: +(\"[^\"]*\"(?: of \d+B)?|\S+(?: of \d+B)?))?"
)


def _read_fates(line: str, delay_ns: int) -> dict[FrameName, Fate] | None:
    match = _FATE_FORM.fullmatch(line)
    if match is None:
        return None
    verb, text, last, word, rest, cause = match.groups()
    try:
        first = FrameName.parse(" ".join(text.split()))
    except ValueError as error:
        raise ScenarioError(str(error)) from error
    if not 0 <= int(last or first.nth) - first.nth < _MAX_NAMES:
        raise ScenarioError(
            f"{text}..{last} is not a range of numbers with at most {_MAX_NAMES} numbers"
        )
    copies = _read_copies(verb, (word or "").strip(), rest or "", delay_ns)
    if cause is None and verb not in _CAUSES:
        raise ScenarioError("a fate in full needs its cause; end the line with: by CAUSE")
    fate = Fate(copies, cause or _CAUSES[verb])
    return {first._replace(nth=nth): fate for nth in range(first.nth, int(last or first.nth) + 1)}


def _read_copies(
    verb: str, word: str, rest: str, delay_ns: int
) -> tuple[tuple[int, bytes | None, str], ...]:
    expected = next((shape.word for shape in _FATE_FORMS if shape.verb == verb), ":")
    if word != expected or bool(expected) != bool(rest):
        raise ScenarioError(f"cannot read this fate; write {_FATE_EXAMPLES[verb]}")
    usual: tuple[int, bytes | None, str] = (delay_ns, None, INTACT)
    if verb == "lose":
        return ()
    if verb == "delay":
        return ((read_time(rest), None, INTACT),)
    if verb == "duplicate":
        return (usual, (read_time(rest), None, DUPLICATE))
    if verb == "corrupt":
        return ((delay_ns, read_bytes(rest), CORRUPT),)
    if verb == "forge":
        return (usual, (delay_ns, read_bytes(rest), FORGED))
    return tuple(_read_copy(part) for part in _split_copies(rest))


_FATE_EXAMPLES = {
    "lose": "lose DATA a1 a->b #1",
    "delay": "delay DATA a1 a->b #1 to 12ms",
    "duplicate": "duplicate DATA a1 a->b #1 at 12ms",
    "corrupt": 'corrupt DATA a1 a->b #1 to "nonsense"',
    "forge": 'forge DATA a1 a->b #1 as "nonsense"',
    "fate": "fate DATA a1 a->b #1: 1ms, again 12ms by duplicate",
}


def _split_copies(text: str) -> list[str]:
    """Split at commas outside of quoted texts."""
    return [part.strip() for part in re.findall(r'(?:"[^"]*"|[^,"])+', text)]


def _read_copy(text: str) -> tuple[int, bytes | None, str]:
    match = _COPY_FORM.fullmatch(text)
    if match is None:
        raise ScenarioError(
            f'cannot read the copy {text!r}; write 2ms, again 8ms, corrupt 4ms "x" or forged '
            '5ms "x"'
        )
    word, time, content = match.groups()
    mark = {None: INTACT, "again": DUPLICATE, "corrupt": CORRUPT, "forged": FORGED}[word]
    if (content is None) == (mark in {CORRUPT, FORGED}):
        raise ScenarioError(
            f"the copy {text!r}: only a corrupt or forged copy has bytes, and must have bytes"
        )
    return read_time(time), None if content is None else read_bytes(content), mark


# The whole script


def show_script(script: Script) -> list[str]:
    """Return the lines of a script, without lines for defaults."""
    default = Script()
    lines: list[str] = []
    if script.delay_ns != default.delay_ns:
        lines.append(f"network {show_time(script.delay_ns)}")
    if script.seed != default.seed:
        lines.append(f"seed {script.seed}")
    if script.calm_ns != default.calm_ns:
        lines.append(f"calm {show_time(script.calm_ns)}")
    lines += (words for words, field in _SWITCHES.items() if getattr(script, field))
    lines += [f"rare {' '.join(script.rare)}"] if script.rare else []
    lines += (
        f"clock {who} epoch {show_time(clock.epoch_ns)} drift {clock.drift_ppm:+d}ppm"
        for who, clock in script.clocks.items()
    )
    lines += _show_actions(script.actions)
    lines += _show_fates(script.fates, script.delay_ns)
    lines += (
        f"late timer {nth} of {who} by {show_time(late_ns)}"
        for (who, nth), late_ns in script.late_ns.items()
    )
    return lines


_SWITCHES = {"membership": "membership", "only loss": "only_loss", "in order": "fifo"}
_SETTINGS = re.compile(
    rf"(network|calm) +({TIME})|(seed) +(-?\d+)|"
    r"(membership|only loss|in order)|rare((?: +[a-z-]+)+)"
)
_CLOCK_FORM = re.compile(rf"clock +({INCARNATION_NAME}) +epoch +({TIME}) +drift +([+-]?\d+)ppm")
_GROUP_FORM = re.compile(rf"group +({INCARNATION_NAME}(?: +{INCARNATION_NAME})*)")
_LATE_FORM = re.compile(rf"late +timer +(\d+) +of +({INCARNATION_NAME}) +by +({TIME})")


def read_script(lines: Iterable[tuple[int, str]]) -> Script:
    """Parse numbered lines as a script; an error names the line."""
    script = Script()
    rest = [
        (number, line)
        for number, line in lines
        if not _at_line(number, _read_setting, script, line)
    ]
    for number, line in rest:
        _at_line(number, _read_line, script, line)
    return script


def _at_line(number: int, read: Callable[[Script, str], bool], script: Script, line: str) -> bool:
    try:
        return read(script, line)
    except ScenarioError as error:
        raise ScenarioError(f"{number}: {error}") from error
    except ValueError as error:
        # Python refuses to read a number of some thousand digits.
        raise ScenarioError(f"{number}: a number is too long: {error}") from error


def _read_setting(script: Script, line: str) -> bool:
    """Read a line if other lines depend on the line; return whether the line was read."""
    match = _SETTINGS.fullmatch(line)
    if match is None:
        return False
    if match[1]:
        setattr(script, "delay_ns" if match[1] == "network" else "calm_ns", read_time(match[2]))
    elif match[3]:
        script.seed = int(match[4])
    elif match[5]:
        setattr(script, _SWITCHES[match[5]], True)
    else:
        script.rare = tuple(match[6].split())
    return True


def _read_line(script: Script, line: str) -> bool:
    if group := _GROUP_FORM.fullmatch(line):
        script.actions += initial_actions(tuple(group[1].split()))
    elif clock := _CLOCK_FORM.fullmatch(line):
        script.clocks[clock[1]] = DriftingClock(read_time(clock[2]), int(clock[3]))
    elif late := _LATE_FORM.fullmatch(line):
        script.late_ns[late[2], int(late[1])] = read_time(late[3])
    elif (actions := _read_action(line)) is not None:
        script.actions += actions
    elif (fates := _read_fates(line, script.delay_ns)) is not None:
        for name, fate in fates.items():
            if name in script.fates:
                raise ScenarioError(f"{name} has a fate already")
            script.fates[name] = fate
    else:
        raise ScenarioError(
            f"cannot read {line!r}; docs/internals/scenarios.md shows every kind of line"
        )
    return True
