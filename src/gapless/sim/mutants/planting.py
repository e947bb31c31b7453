"""Planting a bug: a small change to the source of a function of the real protocol.

A mutant is the mistake of a tired engineer. ``planted`` replaces the function by its mutated copy
while a ``with`` block runs, then restores the original. Compiled functions cannot be replaced.
"""

from __future__ import annotations
import __future__ as future

import importlib
import inspect
import textwrap
from contextlib import contextmanager
from importlib.machinery import SOURCE_SUFFIXES
from typing import TYPE_CHECKING, Any, NamedTuple

from gapless.errors import LocalProtocolError

if TYPE_CHECKING:
    from collections.abc import Iterator


class Mutant(NamedTuple):
    """A planted bug: in function ``target``, the text ``old`` becomes ``new``.

    The hunt uses ``profile``, or the profiles drawn by the seeds if ``profile`` is empty. With
    ``membership`` the hunt uses groups that make their own views, and ``character`` chooses a kind
    of run. With ``sealed`` the groups have keys and an adversary.
    """

    name: str
    bug: str
    target: str
    old: str
    new: str
    profile: str = ""
    membership: bool = False
    character: str = ""
    sealed: bool = False


class CompiledMutantError(LocalProtocolError):
    """The mutant changes a function of a compiled module."""


@contextmanager
def planted(mutant: Mutant) -> Iterator[None]:
    """Replace the function by its mutant while the block runs."""
    owner, name = _resolve(mutant.target)
    original = inspect.getattr_static(owner, name)
    setattr(owner, name, _mutate(mutant, original, owner))
    try:
        yield
    finally:
        setattr(owner, name, original)


def _resolve(target: str) -> tuple[Any, str]:
    module, _, path = target.partition(":")
    owner: Any = importlib.import_module(module)
    if not owner.__file__.endswith(tuple(SOURCE_SUFFIXES)):
        raise CompiledMutantError(
            f"a mutant changes a Python function, and {module} is compiled: run the command with"
            " GAPLESS_COMPILED=0 in its environment"
        )
    *parents, name = path.split(".")
    for parent in parents:
        owner = getattr(owner, parent)
    return owner, name


def _mutate(mutant: Mutant, original: Any, owner: Any) -> Any:
    """Return the function, or the property, with the bug applied."""
    function: Any = original.fget if isinstance(original, property) else original
    source = inspect.getsource(function)
    if source.count(mutant.old) != 1:
        raise LocalProtocolError(
            f"mutant {mutant.name!r}: expected its text once in the source, "
            f"found {source.count(mutant.old)} times"
        )
    changed = textwrap.dedent(source.replace(mutant.old, mutant.new))
    # Inside a function that has a __class__, super() finds its class as it does in the original.
    body = textwrap.indent(changed, "    ")
    whole = f"def plant(__class__):\n{body}\n    return {function.__name__}\n"
    code = compile(
        whole,
        f"<mutant {mutant.name}>",
        "exec",
        future.annotations.compiler_flag,
        dont_inherit=True,
    )
    namespace: dict[str, Any] = {}
    exec(code, function.__globals__, namespace)  # noqa: S102 - the text comes from the tables of bugs
    return namespace["plant"](owner)
