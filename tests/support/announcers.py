"""Members in processes of their own that announce themselves: ``programs/announcer.py``."""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

from tests.support.processes import PROGRAMS, ChildProcess


@contextmanager
def announcers(text: str, count: int, others: int) -> Iterator[list[ChildProcess]]:
    """Start members 1 .. ``count`` at once, each of which waits for ``others`` others.

    Each prints one line of JSON about what it saw. At the end all have left.
    """
    program = str(PROGRAMS / "announcer.py")
    with ExitStack() as stack:
        started = [
            stack.enter_context(ChildProcess(program, text, str(node), str(others)))
            for node in range(1, count + 1)
        ]
        yield started
        for process in started:
            process.close_input()
        for process in started:
            process.wait()
