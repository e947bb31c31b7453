"""The publisher process: publishes batches on request, and leaves after the exit of its parent.

Spark kills its Python workers without notice, and waits for the next batch outside of our code. A
member that just vanishes blocks its group until the group suspects the member. So the member runs
in a separate process, started by a Spark worker with the first batch. When either side closes the
pipe between worker and process, the member leaves, even in the middle of a batch.
"""

from __future__ import annotations

import contextlib
import os
import pickle
import queue
import subprocess
import sys
import threading
import traceback
from struct import Struct
from typing import IO, TYPE_CHECKING, Any

from gapless.errors import GaplessError
from pyspark_gapless.sink.publisher import publish, shut_down
from pyspark_gapless.sink.staging import Manifest, SinkError, Staging

if TYPE_CHECKING:
    from pyspark_gapless.sink.options import SinkOptions

LEAVE_TIMEOUT_S = 10.0
"""How long leaving may take: accepted messages are retransmitted until acknowledged."""
_LENGTH = Struct("<Q")


class PublisherProcess:
    """The publisher process from the view of its parent; for a single thread at a time."""

    def __init__(self) -> None:
        environ = {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
        self._process = subprocess.Popen(  # noqa: S603 - this Python, and a module of this package
            [sys.executable, "-m", __name__],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=environ,
            # A signal to Spark's process group must not end this process before it has left.
            start_new_session=True,
        )

    @property
    def has_exited(self) -> bool:
        """Whether the process has ended."""
        return self._process.poll() is not None

    def publish(self, staging: Staging, manifest: Manifest, options: SinkOptions) -> None:
        """Publish a batch; on return every member has delivered the batch."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        try:
            _write(self._process.stdin, (staging, manifest, options))
            said: str | None = _read(self._process.stdout)
        except (EOFError, BrokenPipeError) as error:
            code = self._process.wait()
            raise SinkError(
                f"the publisher process has ended (exit code {code}); its messages "
                "are in the output of the driver. No row is lost: start the query "
                "again"
            ) from error
        if said is not None:
            raise SinkError(said)

    def close(self) -> None:
        """Make the member leave, and wait for the end of the process."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.close()
        self._process.wait()
        self._process.stdout.close()


_publishers: dict[int, PublisherProcess] = {}
_lock = threading.Lock()


def publish_out_of_process(staging: Staging, manifest: Manifest, options: SinkOptions) -> None:
    """Publish a batch with the publisher process of this process, started if needed."""
    if not manifest.rows:
        return
    with _lock:
        publisher = _publishers.get(os.getpid())
        if publisher is None or publisher.has_exited:
            publisher = _publishers[os.getpid()] = PublisherProcess()
        publisher.publish(staging, manifest, options)


def _write(pipe: IO[bytes], value: object) -> None:
    data = pickle.dumps(value)
    pipe.write(_LENGTH.pack(len(data)) + data)
    pipe.flush()


def _read(pipe: IO[bytes]) -> Any:
    head = pipe.read(_LENGTH.size)
    if len(head) < _LENGTH.size:
        raise EOFError
    (size_bytes,) = _LENGTH.unpack(head)
    data = pipe.read(size_bytes)
    if len(data) < size_bytes:
        raise EOFError
    return pickle.loads(data)  # noqa: S301 - both ends of the pipe are this code


def main() -> None:
    """Publish the batches from standard input, and leave at the end of the input."""
    told: queue.SimpleQueue[Any] = queue.SimpleQueue()
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # whatever is printed is not taken for an answer

    def listen() -> None:
        code = 0
        try:
            while True:
                told.put(_read(sys.stdin.buffer))
        except EOFError:
            pass
        # The end of this process reports the error to the waiting parent.
        except Exception:  # noqa: BLE001
            traceback.print_exc()
            code = 1
        shut_down(LEAVE_TIMEOUT_S)
        os._exit(code)

    threading.Thread(target=listen, name="gapless publisher", daemon=True).start()
    while True:
        task = told.get()
        said: str | None = None
        try:
            publish(*task)
        except GaplessError as error:
            said = str(error)
        except Exception:  # noqa: BLE001 - it is told to the query, which fails with it
            said = traceback.format_exc()
        with contextlib.suppress(BrokenPipeError):
            _write(answers, said)


if __name__ == "__main__":
    main()
