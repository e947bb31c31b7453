"""A pool of worker processes that ends with its parent: on Ctrl-C, on an error, or when killed."""

from __future__ import annotations

import os
import signal
import threading
from concurrent.futures import Future, ProcessPoolExecutor
from contextlib import contextmanager
from multiprocessing import get_context, parent_process
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


class _WorkerPool(ProcessPoolExecutor):
    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        """Submit a call; a worker started here never gets Ctrl-C, not even while it imports."""
        if not hasattr(signal, "pthread_sigmask"):
            return super().submit(fn, *args, **kwargs)
        before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
        try:
            return super().submit(fn, *args, **kwargs)
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)

    def kill_workers(self) -> None:
        """Kill every worker at once, whatever it does."""
        for worker in list((getattr(self, "_processes", None) or {}).values()):
            worker.kill()


@contextmanager
def worker_pool(workers: int) -> Iterator[ProcessPoolExecutor]:
    """Give a pool of ``workers`` processes; an exception in the block kills the workers."""
    # A fresh interpreter each: a copy of one that has threads may hang.
    pool = _WorkerPool(workers, mp_context=get_context("spawn"), initializer=_init_worker)
    try:
        yield pool
    except BaseException:
        pool.kill_workers()
        raise
    finally:
        pool.shutdown(cancel_futures=True)


def _init_worker() -> None:
    """Leave Ctrl-C to the parent process, and end when the parent is killed."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=_exit_with_parent, daemon=True).start()


def _exit_with_parent() -> None:
    parent = parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)
