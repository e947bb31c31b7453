"""``gapless keys``: make, show, rotate, retire and check the keyring of sealed groups.

No command prints a secret: a table shows ids and fingerprints.
"""

from __future__ import annotations

import shlex
from datetime import UTC, datetime
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import click
from rich.markup import escape

from gapless.cli.group_options import note, reach_options
from gapless.cli.parameters import SECONDS
from gapless.cli.rendering import console, echo, json_option, make_table, print_json
from gapless.cli.use.identities import allow, disallow, identity, identity_rows
from gapless.cli.use.member_keys import KeyStep, MembersKeys, wait_for_groups
from gapless.errors import ConfigError
from gapless.keys.ciphers import SUITE_NAMES, encryption_steps, plain_problem
from gapless.keys.keyring import Keyring, RotationStep, default_path, format_time, parse_key_id
from gapless.wire.seal_keys import KeyState

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from gapless.keys.keyring import StoredKey

MAX_SEALING_DAYS = 365
"""After how many days ``check`` recommends another sealing key."""
MISSING = "missing"
_S_PER_DAY = 86_400

file_argument = click.argument("file", type=click.Path(path_type=Path), required=False)

_ROLLOUT_OPTIONS = (
    click.option(
        "--group",
        "groups",
        metavar="NAME",
        multiple=True,
        help="Join this group and ask every member for its keys. If the step is not safe yet, name"
        " the members that are not ready, and change nothing. Repeat the option for several"
        " groups.",
    ),
    click.option(
        "--wait",
        is_flag=True,
        help="With --group: wait until every member is ready, then take the step.",
    ),
    click.option(
        "--timeout",
        "timeout_s",
        type=SECONDS,
        help="How long --wait waits; by default without a limit.",
    ),
)


def rollout_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Give a command the options of asking the members of a group before a step."""
    command = reach_options(command)
    for option in reversed(_ROLLOUT_OPTIONS):
        command = option(command)
    return command


@click.group()
def keys() -> None:
    """Make, show, rotate, retire and check the keys of sealed groups.

    A keyring is a file with the keys of a ring; every member of a group has a copy. Without FILE a
    command uses $GAPLESS_KEYS, else the file gapless/keys.toml in the folder for configurations of
    this user. No command prints a secret. Every command here takes --json.
    """


for command in (identity, allow, disallow):
    keys.add_command(command)


@keys.command("new")
@file_argument
@click.option(
    "--cipher",
    type=click.Choice(SUITE_NAMES),
    help="aes-256-gcm by default; blake2b, which authenticates and does not hide what is sent,"
    " without the package cryptography.",
)
@json_option
def new(file: Path | None, cipher: str | None, as_json: bool) -> None:
    """Make a keyring with a new ring and one key.

    The file is for this user only (mode 0600). An existing file is left unchanged.
    """
    path = file or default_path()
    made = Keyring.new(cipher=cipher or "")
    made.create(path)
    if cipher is None and (problem := plain_problem(made.ring)):
        note(
            f"gapless keys new: {problem}: this Python has no package cryptography; run pip"
            f" install 'gapless[secure]', remove {path}, and run this command again"
        )
    _print_step(path, made, "new", made.sealing_key, as_json=as_json)


@keys.command("show")
@file_argument
@json_option
def show(file: Path | None, as_json: bool) -> None:
    """Show the ring, and the id, state, age and fingerprint of every key.

    Two files have the same keys if their fingerprints are the same.
    """
    path = file or default_path()
    found = Keyring.read(path)
    if as_json:
        described = {**_describe(found), "identities": identity_rows(found)}
        notes = _cipher_notes(path, found)
        print_json(
            {"path": str(path), **described, "notes": notes, "next": next_action(path, found)}
        )
        return
    rows = [
        (*map(row.get, ("key", "state", "cipher", "created")), _age(stored), row["fingerprint"])
        for row, stored in zip(_rows(found), found.keys, strict=True)
    ]
    out = console()
    out.print(
        make_table(
            f"Ring {found.ring.label}",
            ("key", "state", "cipher", "created", "age", "fingerprint"),
            rows,
        )
    )
    if found.identities:
        columns = ("group", "name", "role", "public_key")
        identities = [tuple(map(escape, row.values())) for row in identity_rows(found)]
        out.print(make_table("Identities", columns, identities))
    click.echo(path)
    for each in _cipher_notes(path, found):
        click.echo(f"Note: {each}")
    click.echo(f"Next: {next_action(path, found)}")


@keys.command("rotate")
@file_argument
@click.option(
    "--step",
    type=click.Choice([RotationStep.ADD.value, RotationStep.SEAL.value]),
    help="add: a new key that opens; seal: the new key seals. By default the next step.",
)
@click.option(
    "--cipher",
    type=click.Choice(SUITE_NAMES),
    help="The cipher of the added key; by default that of the key that seals.",
)
@rollout_options
@json_option
def rotate(
    file: Path | None, step: str | None, cipher: str | None, as_json: bool, **rollout: Any
) -> int:
    """Take the next step of a rotation: add a key, then seal with the new key.

    Copy the file to every member after each step. With --group the command asks every member
    before the new key seals; to add a key no member needs to be ready. The exit code is 1 if a
    member is not ready. The last step of a rotation is gapless keys retire.
    """
    path = file or default_path()
    before = Keyring.read(path)
    after = before.rotate(step, cipher=cipher or "")
    added = len(after.keys) > len(before.keys)
    if added:
        _check_rollout(rollout)
        after.write(path)
        stored = after.keys[-1]
        groups = rollout["groups"]
        _print_step(path, after, RotationStep.ADD.value, stored, groups=groups, as_json=as_json)
        return 0
    label = after.sealing_key.label
    return _take_step(
        path, before, after, KeyStep(RotationStep.SEAL, label, label), rollout, as_json
    )


@keys.command("retire")
@click.argument("file", required=False, metavar="[FILE]")
@click.argument("key_id", required=False, metavar="KEY_ID")
@rollout_options
@json_option
def retire(file: str | None, key_id: str | None, as_json: bool, **rollout: Any) -> int:
    """Retire the key KEY_ID: the key opens and seals no more.

    First let every member load a keyring that seals with another key. With --group the command
    asks every member. The exit code is 1 if a member is not ready, or a durable member is absent.
    The key that seals cannot be retired.
    """
    # Of one argument alone the parser makes the first.
    path, wanted = (None, file) if key_id is None else (file, key_id)
    if wanted is None:
        raise click.UsageError("KEY_ID is missing; gapless keys show lists the keys")
    chosen = parse_key_id(wanted)
    target = default_path() if path is None else Path(path)
    before = Keyring.read(target)
    after = before.retire(chosen)
    step = KeyStep(RotationStep.RETIRE, f"{chosen:08x}", after.sealing_key.label)
    return _take_step(target, before, after, step, rollout, as_json)


def _check_rollout(rollout: Mapping[str, Any]) -> None:
    """Refuse options that have no effect together."""
    if rollout["wait"] and not rollout["groups"]:
        raise click.UsageError("--wait needs --group NAME, the group whose members are asked")
    if rollout["timeout_s"] is not None and not rollout["wait"]:
        raise click.UsageError("--timeout needs --wait")


def _take_step(
    path: Path,
    before: Keyring,
    after: Keyring,
    step: KeyStep,
    rollout: dict[str, Any],
    as_json: bool,
) -> int:
    """Write ``after`` if every member of the group is ready; return the exit code."""
    _check_rollout(rollout)
    found = None
    if rollout["groups"]:
        timeout_s = rollout["timeout_s"] if rollout["wait"] else 0.0
        found = wait_for_groups(rollout["groups"], path, step, rollout, timeout_s)
        if found.reasons:
            _print_refusal(path, step, found, as_json=as_json)
            return 1
        if Keyring.read(path) != before:
            raise ConfigError(
                f"{path}: the file has changed while this command asked the members; nothing was"
                " written; run the command again"
            )
    after.write(path)
    stored = next(each for each in after.keys if each.label == step.key)
    groups = rollout["groups"]
    _print_step(path, after, step.step.value, stored, found, groups=groups, as_json=as_json)
    return 0


def _print_refusal(path: Path, step: KeyStep, found: MembersKeys, *, as_json: bool) -> None:
    if as_json:
        print_json(
            {
                "path": str(path),
                "step": None,
                "refused": step.step.value,
                "key": step.key,
                "members": list(found.members),
                "problems": list(found.reasons),
            }
        )
        return
    for reason in found.reasons:
        echo(f"Problem: {reason}")
    echo(
        f"{path} is unchanged: the step {step.step} is not safe yet. Copy the file to every member;"
        " --wait waits for the members."
    )


_DONE = {
    "new": "the key {key} seals",
    "add": "the key {key} is added, and open",
    "seal": "the key {key} seals",
    "retire": "the key {key} is retired",
}


def _print_step(
    path: Path,
    ring: Keyring,
    step: str,
    stored: StoredKey,
    found: MembersKeys | None = None,
    *,
    groups: Sequence[str] = (),
    as_json: bool,
) -> None:
    advice = next_action(path, ring, copy=True, groups=groups)
    if as_json:
        asked = {} if found is None else {"members": list(found.members)}
        print_json(
            {
                "path": str(path),
                "step": step,
                "key": stored.label,
                **_describe(ring),
                **asked,
                "next": advice,
            }
        )
        return
    click.echo(f"{path}: ring {ring.ring.label}: {_DONE[step].format(key=stored.label)}")
    click.echo(f"Next: {advice}")


def next_action(
    path: Path, ring: Keyring, *, copy: bool = False, groups: Sequence[str] = ()
) -> str:
    """Return what the operator does next; ``copy`` after a change of the file.

    ``groups`` are those whose members the operator asks before a step.
    """
    first = "copy the file to every member, and let every member load the file" if copy else ""
    if ring.next_step is RotationStep.ADD:
        return first or f"nothing; to begin a rotation: gapless keys rotate {path}"
    if ring.next_step is RotationStep.SEAL:
        when = "when every member has loaded the file"
        command = f"gapless keys rotate {path} --step seal"
    else:
        when = "when every member has loaded the file, and retention_timeout has passed"
        command = f"gapless keys retire {path} {ring.former_keys[0].label}"
    command += "".join(f" --group {shlex.quote(group)}" for group in groups)
    if groups:
        when, command = "then", f"{command} --wait"
    return f"{first or 'a rotation is not complete'}; {when}: {command}"


def _describe(ring: Keyring) -> dict[str, Any]:
    return {"ring": ring.ring.label, "keys": _rows(ring), "next_step": ring.next_step.value}


def _rows(ring: Keyring) -> list[dict[str, Any]]:
    return [
        {
            "key": stored.label,
            "state": stored.state.value,
            "cipher": stored.key.cipher,
            "created": format_time(stored.created),
            "age_s": _age_s(stored),
            "fingerprint": stored.fingerprint,
        }
        for stored in ring.keys
    ]


def _age_s(stored: StoredKey) -> int:
    return int((datetime.now(UTC) - stored.created).total_seconds())


def _age(stored: StoredKey) -> str:
    age_s = _age_s(stored)
    if age_s < 0:
        return "in the future"
    for unit_s, unit in ((_S_PER_DAY, "days"), (3600, "h"), (60, "min")):
        if age_s >= 2 * unit_s:
            return f"{age_s // unit_s} {unit}"
    return f"{age_s} s"


# Check


class CheckedFile(NamedTuple):
    """A file of ``check``: its keyring, or the problem of reading it."""

    path: Path
    ring: Keyring | None
    problem: str


@keys.command("check")
@click.argument("files", nargs=-1, type=click.Path(path_type=Path), metavar="[FILE]...")
@json_option
def check(files: tuple[Path, ...], as_json: bool) -> int:
    """Check whether the next step of a rotation is safe.

    A file must be private and undamaged. Two or more files must have the same ring, keys and
    states; the command names each key that is missing, and where. The exit code is 1 if a check
    fails.
    """
    checked = [_read_file(path) for path in files or (default_path(),)]
    rings = {str(each.path): each.ring for each in checked if each.ring is not None}
    problems = [each.problem for each in checked if each.problem] + differences(rings)
    notes = [
        each
        for path, ring in rings.items()
        for each in (*_age_notes(path, ring), *_cipher_notes(path, ring))
    ]
    advice = "correct the problems, then run this command again"
    if not problems:
        path, ring = next(iter(rings.items()))
        advice = next_action(Path(path), ring)
    if as_json:
        print_json(
            {
                "safe": not problems,
                "files": [_file_row(each) for each in checked],
                "problems": problems,
                "notes": notes,
                "next": advice,
            }
        )
        return 1 if problems else 0
    if rings:
        console().print(
            make_table("Keys", ("file", "ring", "key", "state", "age"), _check_rows(rings))
        )
    for problem in problems:
        click.echo(f"Problem: {problem}")
    for each in notes:
        click.echo(f"Note: {each}")
    if problems:
        click.echo("The next step is not safe.")
    else:
        click.echo("The files agree." if len(files) > 1 else "The file is in order.")
    click.echo(f"Next: {advice}")
    return 1 if problems else 0


def _read_file(path: Path) -> CheckedFile:
    try:
        return CheckedFile(path, Keyring.read(path), "")
    except ConfigError as error:
        return CheckedFile(path, None, str(error))


def _file_row(file: CheckedFile) -> dict[str, Any]:
    described = {} if file.ring is None else _describe(file.ring)
    return {"path": str(file.path), "problem": file.problem, **described}


def _check_rows(rings: Mapping[str, Keyring]) -> list[tuple[object, ...]]:
    """Return a row for every key of every file; a key that another file has is ``missing``."""
    every = {stored.label: None for ring in rings.values() for stored in ring.keys}
    rows: list[tuple[object, ...]] = []
    for path, ring in rings.items():
        have = {stored.label: stored for stored in ring.keys}
        rows += (
            (
                escape(path),
                ring.ring.label,
                label,
                have[label].state.value if label in have else MISSING,
                _age(have[label]) if label in have else "",
            )
            for label in every
        )
    return rows


def differences(rings: Mapping[str, Keyring]) -> list[str]:
    """Return the differences that make the next step unsafe, a sentence for each.

    A retired key may be missing, because an operator may delete retired keys.
    """
    by_secret: dict[bytes, list[str]] = {}
    for path, ring in rings.items():
        by_secret.setdefault(ring.secret, []).append(path)
    if len(by_secret) > 1:
        parts = [
            f"{rings[paths[0]].ring.label} in {', '.join(paths)}" for paths in by_secret.values()
        ]
        return [f"the files have different rings, whose members never meet: {'; '.join(parts)}"]
    every = {stored.key.key_id: None for ring in rings.values() for stored in ring.keys}
    found = [_difference(key_id, rings) for key_id in every]
    for first, path in pairwise(rings):
        if set(rings[first].identities) != set(rings[path].identities):
            found.append(f"{first} and {path} allow different identities; copy the newest file")
    return [difference for difference in found if difference]


def _difference(key_id: int, rings: Mapping[str, Keyring]) -> str:
    key = f"the key {key_id:08x}"
    have = {path: stored for path, ring in rings.items() if (stored := _find(ring, key_id))}
    if len({stored.key.secret for stored in have.values()}) > 1:
        return f"{key} has different secrets in {', '.join(have)}"
    where = {state: [path for path in have if have[path].state is state] for state in KeyState}
    sealing, retired = where[KeyState.SEAL], where[KeyState.RETIRED]
    missing = [path for path in rings if path not in have]
    if sealing and (retired or missing):
        reason = _sentence((("missing in", missing), ("retired in", retired)))
        return f"{key} seals in {', '.join(sealing)}, and cannot be opened: {reason}"
    if missing and len(retired) < len(have):
        return f"{key} is {_sentence((('missing in', missing),))}"
    if len({stored.state for stored in have.values()}) > 1:
        states = _sentence([(f"{state} in", paths) for state, paths in where.items()])
        return f"{key} has different states: {states}"
    return ""


def _find(ring: Keyring, key_id: int) -> StoredKey | None:
    return next((stored for stored in ring.keys if stored.key.key_id == key_id), None)


def _sentence(parts: Sequence[tuple[str, list[str]]]) -> str:
    return "; ".join(f"{words} {', '.join(paths)}" for words, paths in parts if paths)


def _cipher_notes(path: str | Path, ring: Keyring) -> list[str]:
    problem = plain_problem(ring.ring)
    return [f"{path}: {problem}; {encryption_steps(path)}"] if problem else []


def _age_notes(path: str, ring: Keyring) -> list[str]:
    notes = [
        f"{path}: the key {stored.label} was created in the future; check the clock"
        for stored in ring.keys
        if _age_s(stored) < 0
    ]
    days = _age_s(ring.sealing_key) // _S_PER_DAY
    if days > MAX_SEALING_DAYS:
        notes.append(
            f"{path}: the sealing key {ring.sealing_key.label} is {days} days old;"
            f" begin a rotation: gapless keys rotate {path}"
        )
    return notes
