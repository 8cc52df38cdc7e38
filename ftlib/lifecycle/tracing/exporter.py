"""Gives spans to OpenTelemetry: to the program's own provider, or to one that sends them by OTLP over HTTP.

``OTEL_...`` variables are those of OpenTelemetry's SDK: OTEL_EXPORTER_OTLP_ENDPOINT, OTEL_EXPORTER_OTLP_HEADERS,
OTEL_SERVICE_NAME, OTEL_RESOURCE_ATTRIBUTES, OTEL_TRACES_SAMPLER, OTEL_TRACES_EXPORTER=none, OTEL_SDK_DISABLED, OTEL_BSP_....
"""

from __future__ import annotations

import os
import threading
from collections.abc import Mapping, Sequence
from typing import Any

from opentelemetry import trace
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter, SpanExportResult
from opentelemetry.sdk.trace.id_generator import RandomIdGenerator
from opentelemetry.trace import Link, NonRecordingSpan, SpanContext, Status, StatusCode, TraceFlags, Tracer
from opentelemetry.trace import Span as Begun

from consensus import CarefulLogger

from .spans import Span, root_of

logger = CarefulLogger("ftlib")

_NAME = "ftlib"
_SAMPLED = TraceFlags(TraceFlags.SAMPLED)


class _Ids(RandomIdGenerator):
    """Random ids, except for a root that has its own."""

    def __init__(self) -> None:
        self.root: int | None = None

    def generate_trace_id(self) -> int:
        """See ``IdGenerator``."""
        return super().generate_trace_id() if self.root is None else self.root

    def generate_span_id(self) -> int:
        """See ``IdGenerator``."""
        return super().generate_span_id() if self.root is None else root_of(self.root)


class Exporter:
    """Made when the first span is there, since a program may set its provider late. Used by one thread."""

    def __init__(self, about: Mapping[str, str]) -> None:
        """``about``: attributes of the worker, for the resource of a provider of our own."""
        self._ids = _Ids()
        self._own: TracerProvider | None = None
        provider = trace.get_tracer_provider()
        if isinstance(provider, trace.ProxyTracerProvider):  # the program has set none
            provider = self._own = _provider(self._ids, about)
        self._tracer: Tracer = provider.get_tracer(_NAME)

    def give(self, span: Span) -> None:
        """Hand ``span`` on, with all within it."""
        if span.root:
            if self._own is None:
                return  # ids cannot be chosen in the program's provider: the members' spans keep a parent that nobody sends
            self._ids.root = span.trace_id
            try:
                self._put(span, trace.set_span_in_context(trace.INVALID_SPAN))
            finally:
                self._ids.root = None
        else:
            parent = SpanContext(span.trace_id, root_of(span.trace_id), is_remote=True, trace_flags=_SAMPLED)
            self._put(span, trace.set_span_in_context(NonRecordingSpan(parent)))

    def close(self, timeout: float) -> None:
        """Send what is left, for at most ``timeout`` seconds. The program's own provider stays as it is."""
        own = self._own
        if own is not None:
            ending = threading.Thread(target=own.shutdown, name="ftlib-trace-end", daemon=True)
            ending.start()
            ending.join(timeout)

    def _put(self, span: Span, context: Any) -> None:
        links = [Link(SpanContext(other, root_of(other), is_remote=True, trace_flags=_SAMPLED)) for other in span.links]
        begun: Begun = self._tracer.start_span(
            span.name, context, attributes=dict(span.attributes), links=links, start_time=_nanoseconds(span.began)
        )
        for event in span.events:
            begun.add_event(event.name, dict(event.attributes), _nanoseconds(event.time))
        if span.error:
            begun.set_status(Status(StatusCode.ERROR, span.error))
        inside = trace.set_span_in_context(begun)
        for child in span.children:
            self._put(child, inside)
        begun.end(_nanoseconds(span.ended))


class _Telling(SpanExporter):
    """Hands spans on, and says once, with the remedy, that nobody takes them: OpenTelemetry's own lines have none."""

    def __init__(self, exporter: SpanExporter) -> None:
        self._exporter = exporter
        self._told = False

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        """See ``SpanExporter``."""
        found = self._exporter.export(spans)
        if found is not SpanExportResult.SUCCESS and not self._told:
            self._told = True
            logger.warning(
                "spans are not taken, and are lost; training goes on: start a collector at %s, or name another by "
                "OTEL_EXPORTER_OTLP_ENDPOINT, or set trace = off",
                os.environ.get("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT")
                or os.environ.get("OTEL_EXPORTER_OTLP_ENDPOINT", "http://localhost:4318"),
                extra={"ftlib_event": "trace_lost"},
            )
        return found

    def shutdown(self) -> None:
        """See ``SpanExporter``."""
        self._exporter.shutdown()

    def force_flush(self, timeout_millis: int = 30000) -> bool:
        """See ``SpanExporter``."""
        return self._exporter.force_flush(timeout_millis)


def _provider(ids: _Ids, about: Mapping[str, str]) -> TracerProvider:
    named = "OTEL_SERVICE_NAME" in os.environ or "service.name=" in os.environ.get("OTEL_RESOURCE_ATTRIBUTES", "")
    resource = Resource.create({**({} if named else {"service.name": _NAME}), **about})
    provider = TracerProvider(resource=resource, id_generator=ids, shutdown_on_exit=False)
    if os.environ.get("OTEL_TRACES_EXPORTER", "otlp").strip().lower() != "none":
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter  # noqa: PLC0415 - may not be wanted

        provider.add_span_processor(BatchSpanProcessor(_Telling(OTLPSpanExporter())))
    return provider


def _nanoseconds(seconds: float) -> int:
    return round(seconds * 1e9)
