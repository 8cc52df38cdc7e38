"""A collector of traces for tests: takes OTLP over HTTP, and keeps what comes."""

from __future__ import annotations

import gzip
import threading
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from typing import Any, Self

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest, ExportTraceServiceResponse


@dataclass(frozen=True)
class Collected:
    """One span."""

    name: str
    trace_id: int
    span_id: int
    parent: int
    began: float
    """Wall clock, in seconds."""
    ended: float
    attributes: dict[str, Any]
    resource: dict[str, Any]
    events: tuple[str, ...]
    links: tuple[int, ...]
    error: str


class Collector:
    """A context manager: listens on loopback, at ``url``."""

    def __init__(self) -> None:
        self.spans: list[Collected] = []
        self._lock = threading.Lock()
        taken = self._take

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                taken(gzip.decompress(body) if self.headers.get("Content-Encoding") == "gzip" else body)
                answer = ExportTraceServiceResponse().SerializeToString()
                self.send_response(200)
                self.send_header("Content-Type", "application/x-protobuf")
                self.send_header("Content-Length", str(len(answer)))
                self.end_headers()
                self.wfile.write(answer)

            def log_message(self, *_: object) -> None:
                """Nothing."""

        class Server(ThreadingHTTPServer):
            daemon_threads = True

            def handle_error(self, *_: object) -> None:
                """Whoever sent it was killed meanwhile."""

        self._server = Server(("127.0.0.1", 0), Handler)
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.05,), daemon=True)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._server.server_address[1]}"

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def all(self) -> list[Collected]:
        """What has come so far."""
        with self._lock:
            return list(self.spans)

    def _take(self, body: bytes) -> None:
        request = ExportTraceServiceRequest.FromString(body)
        found = [
            Collected(
                span.name,
                int.from_bytes(span.trace_id, "big"),
                int.from_bytes(span.span_id, "big"),
                int.from_bytes(span.parent_span_id, "big"),
                span.start_time_unix_nano / 1e9,
                span.end_time_unix_nano / 1e9,
                _plain(span.attributes),
                _plain(group.resource.attributes),
                tuple(event.name for event in span.events),
                tuple(int.from_bytes(link.trace_id, "big") for link in span.links),
                span.status.message if span.status.code == 2 else "",
            )
            for group in request.resource_spans
            for scope in group.scope_spans
            for span in scope.spans
        ]
        with self._lock:
            self.spans += found


def _plain(attributes: Any) -> dict[str, Any]:
    return {each.key: _value(each.value) for each in attributes}


def _value(value: Any) -> Any:
    kind = value.WhichOneof("value")
    if kind == "array_value":
        return [_value(each) for each in value.array_value.values]
    return None if kind is None else getattr(value, kind)
