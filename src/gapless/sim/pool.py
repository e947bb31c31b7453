"""Independent pieces of work in several processes, in the order in which they were given."""

from __future__ import annotations

from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

Result = TypeVar("Result")


def results(tasks: Sequence[Callable[[], Result]], workers: int) -> Iterator[Result]:
    """Yield what each task returns; with one worker, or one task, in this process."""
    if workers <= 1 or len(tasks) <= 1:
        yield from map(_call, tasks)
        return
    # A fresh interpreter each: a copy of one that has threads may hang.
    with ProcessPoolExecutor(min(workers, len(tasks)), mp_context=get_context("spawn")) as pool:
        yield from pool.map(_call, tasks)


def _call(task: Callable[[], Result]) -> Result:
    return task()
