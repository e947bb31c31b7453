"""Exporters of member snapshots: an HTTP endpoint for Prometheus, and OpenTelemetry."""

from __future__ import annotations

import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib import import_module
from typing import TYPE_CHECKING, Any

from gapless.errors import GaplessError, TransportError
from gapless.metrics.prometheus import CONTENT_TYPE, help_of, prometheus, samples

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
    from typing import Self

    from gapless.protocol.snapshot import MemberSnapshot

CACHE_S = 0.2
"""How long instruments of one collection share a snapshot."""


class MetricsEndpoint:
    """A small HTTP server of ``/metrics``, for a trusted network.

    ``with MetricsEndpoint(lambda: [group.snapshot()], port=9464): …`` with a group of
    ``gapless.blocking``.

    Args:
        snapshots: Returns the snapshots to serve; called for every request.
        host: The local address to listen on.
        port: The port to listen on; 0 takes any free port.

    Raises:
        TransportError: The endpoint cannot listen on ``host`` and ``port``.
    """

    def __init__(
        self,
        snapshots: Callable[[], Iterable[MemberSnapshot]],
        host: str = "127.0.0.1",
        port: int = 9464,
    ) -> None:
        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                if self.path.partition("?")[0] not in {"/", "/metrics"}:
                    self.send_error(404, "the only page is /metrics")
                    return
                try:
                    body = prometheus(snapshots()).encode()
                except GaplessError as error:
                    self.send_error(503, str(error).splitlines()[0])
                    return
                self.send_response(200)
                self.send_header("Content-Type", CONTENT_TYPE)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - named by its base
                """Log nothing."""

        try:
            self._server = ThreadingHTTPServer((host, port), Handler)
        except OSError as error:
            words = f"cannot serve metrics on {host} port {port}: {error}; try another port, or 0"
            raise TransportError(words) from error
        self._server.daemon_threads = True
        self.port: int = self._server.server_address[1]
        self._thread = threading.Thread(
            target=self._server.serve_forever, name="gapless metrics", daemon=True
        )
        self._thread.start()

    def close(self) -> None:
        """Stop serving."""
        self._server.shutdown()
        self._server.server_close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


# OpenTelemetry


def observe(snapshots: Callable[[], Iterable[MemberSnapshot]], meter: Any = None) -> None:
    """Export the same metrics to OpenTelemetry, under their Prometheus names.

    Each metric of the present snapshots gets an instrument.

    Args:
        snapshots: Returns the snapshots to export; called for every collection.
        meter: The meter for the instruments; by default the meter ``gapless`` of the global
            provider.

    Raises:
        GaplessError: The package ``opentelemetry-api`` is not installed.
    """
    try:
        api: Any = import_module("opentelemetry.metrics")
    except ModuleNotFoundError:
        raise GaplessError(
            "opentelemetry is not installed; run: pip install 'gapless[otel]'"
        ) from None
    meter = meter or api.get_meter("gapless")
    taken = _SnapshotCache(snapshots)

    def reader(wanted: str) -> Callable[[Any], Iterator[Any]]:
        def read(_: Any) -> Iterator[Any]:
            found = (sample for one in taken.snapshots() for sample in samples(one))
            yield from (
                api.Observation(value, labels) for name, _, labels, value in found if name == wanted
            )

        return read

    for name, kind in {
        name: kind for one in taken.snapshots() for name, kind, _, _ in samples(one)
    }.items():
        make = (
            meter.create_observable_counter if kind == "counter" else meter.create_observable_gauge
        )
        make(name.replace("_", ".", 1), callbacks=[reader(name)], description=help_of(name))


class _SnapshotCache:
    """Snapshots shared by all instruments of one collection."""

    def __init__(self, snapshots: Callable[[], Iterable[MemberSnapshot]]) -> None:
        self._take = snapshots
        self._snapshots: list[MemberSnapshot] = []
        self._taken_s: float | None = None
        self._lock = threading.Lock()

    def snapshots(self) -> list[MemberSnapshot]:
        with self._lock:
            now_s = time.monotonic()
            if self._taken_s is None or now_s - self._taken_s > CACHE_S:
                self._snapshots, self._taken_s = list(self._take()), now_s
            return self._snapshots
