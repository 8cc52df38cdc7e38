"""Which records become spans, with which ids and times; and what OpenTelemetry gets of them."""

from __future__ import annotations

import random
import threading
from collections.abc import Generator, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Self, cast

import pytest

from ftlib.common.traces import CallRecord, CheckpointRecord, FetchRecord, RecoveryRecord, SendRecord, Traces, ViewRecord
from ftlib.core.calls.call import Kind
from ftlib.errors import ConfigError
from ftlib.lifecycle.tracing.spans import Calls, checkpoint, recovery, root_of, sent, trace_of, view_change
from ftlib.recovery.layout.requests import noted, pieces
from ftlib.settings.config import resolve

CHANGE: dict[str, Any] = {
    "epoch": 2,
    "time": 1000.0,
    "view_id": "v2",
    "cause": "proof",
    "size_before": 4,
    "size": 3,
    "driver": "a",
    "removed": [{"id": "dddddddd", "cause": "proof"}],
    "joined": [],
    "names": {"dddddddd": {"name": "worker 3", "address": "h:1"}, "a": {"name": None, "address": "h:2"}},
    "findings": [{"kind": "proof", "accused": "dddddddd", "detail": "refused", "source": "a", "after": 0.001}],
    "phases": {"settle": 0.005, "freeze": 0.01, "build": 0.02, "activate": 0.001, "total": 0.036},
    "moments": {"activated": 0.036},
    "reports": {"b": 0.014},
    "readies": {"b": 0.034},
}
VIEW = ViewRecord("v2", 2, 1, 3, 10.0, 10.03)


def call(number: int, took: float, **more: int) -> CallRecord:
    facts = {"redone": 0, "adopted": 0, **more}
    return CallRecord(number, "average", 400, 50.0, 50.0 + took, "v2", 2, 3, facts["redone"], facts["adopted"])


def test_all_members_spans_meet_in_one_trace() -> None:
    driver, other = view_change("job", "a", VIEW, CHANGE, 990.0), view_change("job", "b", VIEW, CHANGE, 990.0)
    assert {span.trace_id for span in (*driver, *other)} == {trace_of("job", "view", "v2")}
    assert [span.root for span in driver] == [True, False]
    assert [span.root for span in other] == [False]
    assert trace_of("job", "view", "v2") != trace_of("another", "view", "v2")
    assert 0 < root_of(driver[0].trace_id) < 2**64
    assert 0 < driver[0].trace_id < 2**128


def test_times_are_those_of_the_record() -> None:
    [span] = view_change("job", "b", VIEW, CHANGE, 990.0)
    assert (span.began, span.ended) == (1000.0, 1000.036)
    names = [child.name for child in span.children]
    assert names == ["settle", "freeze", "build", "activate", "paused"]
    assert span.children[2].began == pytest.approx(1000.015)
    assert span.children[2].ended == pytest.approx(1000.035)
    assert (span.children[4].began, span.children[4].ended) == pytest.approx((1000.0, 1000.03))
    assert span.events[0].time == pytest.approx(1000.001)
    assert span.attributes["ftlib.removed"] == ["worker 3 (dddddd)"]


def test_calls_that_are_worth_a_span() -> None:
    calls = Calls("job", 0)
    for number in range(1, 40):
        assert calls.span(call(number, 0.001), "a", 0.0) is None
    assert calls.span(call(40, 0.03), "a", 0.0) is None, "slower, but too quick to matter"
    slow = calls.span(call(41, 0.2), "a", 100.0)
    assert slow is not None
    assert (slow.attributes["ftlib.why"], slow.began, slow.links) == (["slow"], 150.0, [])
    redone = calls.span(call(42, 0.001, redone=2), "a", 0.0)
    assert redone is not None
    assert (redone.attributes["ftlib.why"], redone.attributes["ftlib.redone"]) == (["redone"], 2)
    assert redone.links == [trace_of("job", "view", "v2")]
    adopted = calls.span(call(43, 0.001, redone=2, adopted=1), "a", 0.0)
    assert adopted is not None
    assert adopted.attributes["ftlib.why"] == ["adopted"]
    assert calls.span(call(44, 0.001, redone=2, adopted=1), "a", 0.0) is None


@pytest.mark.parametrize("every", [0, 7])
def test_nothing_is_made_of_a_call_that_is_worth_no_span(every: int) -> None:
    """And it makes no difference to the others: with and without that the same calls get the same spans."""
    chance = random.Random(1)
    plain, quick, traces, redone, adopted, dull = Calls("job", every), Calls("job", every), Traces(), 0, 0, 0
    for number in range(600):
        redone, adopted = redone + (chance.random() < 0.02), adopted + (chance.random() < 0.02)
        took = chance.choice([0.02] * 20 + [0.05, 0.06, 0.3])
        traces.called((number, Kind.AVERAGE, 400, 50.0, 50.0 + took, "v2", 2, 3, redone, adopted))
        record = CallRecord(number, "average", 400, 50.0, 50.0 + took, "v2", 2, 3, redone, adopted)
        left = list(traces.each(quick.dull))
        assert left in ([], [record])
        dull += not left
        expected = plain.span(record, "a", 990.0)
        assert [quick.span(each, "a", 990.0) for each in left] == ([expected] if left else [])
        assert left or expected is None
    assert 400 < dull < 600
    assert plain._recent == quick._recent


def test_members_sample_the_same_calls() -> None:
    found = [[Calls("job", 10).span(call(number, 0.001), member, 0.0) for number in range(1, 31)] for member in "ab"]
    traces = [[span.trace_id for span in spans if span is not None] for spans in found]
    assert traces[0] == traces[1] == [trace_of("job", "call", number) for number in (10, 20, 30)]


def test_a_recovery_has_its_donors() -> None:
    parts = [FetchRecord("worker 1", 0, 1.0, 2.0, 100, ""), FetchRecord("worker 2", 1, 1.0, 1.5, 0, "refused")]
    span = recovery("job", RecoveryRecord("a", 0.5, 3.0, 200, 7, 12, "v2", waited_for=False), parts, 10.0)
    assert (span.began, span.ended) == (10.5, 13.0)
    assert [(each.name, each.attributes["ftlib.donor"], each.error) for each in span.children] == [
        ("shard 0", "worker 1", ""),
        ("shard 1", "worker 2", "refused"),
    ]
    assert span.links == [trace_of("job", "view", "v2")]


def test_what_a_donor_gives_is_in_the_trace_of_the_joiners_recovery() -> None:
    given = sent("job", "b", SendRecord("a", 3, 1.0, 2.0, 100, ""), 10.0)
    whole = sent("job", "c", SendRecord("a", -1, 1.0, 2.0, 50, "call 7 ended while its state was being sent"), 0.0)
    came = recovery("job", RecoveryRecord("a", 0.5, 3.0, 200, 7, 12, "v2", waited_for=False), (), 10.0)
    assert given.trace_id == whole.trace_id == came.trace_id == trace_of("job", "recovery", "a")
    assert (given.name, given.began, given.ended, given.error) == ("send shard 3", 11.0, 12.0, "")
    assert (given.attributes["ftlib.member"], given.attributes["ftlib.joiner"]) == ("b", "a")
    assert (whole.name, whole.error) == ("send whole state", "call 7 ended while its state was being sent")


def test_a_donor_notes_what_it_gives_until_it_is_given() -> None:
    traces, clock = Traces(), iter(range(100))
    body = pieces(bytes(3 << 20))

    def now() -> float:
        return float(next(clock))

    assert noted(body, None, now, "a") is noted(body, traces, now, "") is body, "nothing to note, or for nobody"
    assert sum(map(len, noted(body, traces, now, "a", 3))) == 3 << 20

    def torn() -> Iterator[bytes]:
        yield bytes(10)
        raise ConnectionAbortedError("the call ended")

    with pytest.raises(ConnectionAbortedError, match="the call ended"):
        list(noted(torn(), traces, now, "b"))
    closed = noted(pieces(bytes(3 << 20)), traces, now, "c")
    next(closed)
    cast("Generator[bytes]", closed).close()
    assert traces.take() == [
        SendRecord("a", 3, 0.0, 1.0, 3 << 20, ""),
        SendRecord("b", -1, 2.0, 3.0, 10, "the call ended"),
        SendRecord("c", -1, 4.0, 5.0, 0, "the joiner closed the connection"),
    ]


def test_a_checkpoint_is_written_then_completed() -> None:
    good = checkpoint("job", "a", CheckpointRecord(20, 1, 1.0, 2.0, 2.5, 300, ""), 0.0)
    assert [(each.name, each.began, each.ended) for each in good.children] == [("write", 1.0, 2.0), ("complete", 2.0, 2.5)]
    bad = checkpoint("job", "a", CheckpointRecord(20, 1, 1.0, 2.0, 2.0, 0, "no space"), 0.0)
    assert (bad.error, bad.children) == ("no space", [])


def test_the_queue_is_bounded() -> None:
    traces = Traces(most=3)
    for number in range(5):
        traces.add(call(number, 0.1))
    assert [record.number for record in traces.take() if isinstance(record, CallRecord)] == [2, 3, 4]
    assert traces.take() == []


def test_a_call_is_a_plain_tuple_until_it_is_taken() -> None:
    traces = Traces()
    traces.called((7, Kind.AVERAGE, 400, 50.0, 50.5, "v2", 2, 3, 1, 0))
    traces.add(VIEW)
    assert traces.take() == [call(7, 0.5, redone=1), VIEW]


@pytest.mark.parametrize(
    ("given", "read"),
    [
        ("", None),
        ("off", None),
        (False, None),
        (0, None),
        ("0", None),
        (None, None),
        ("on", 0),
        (True, 0),
        ("100", 100),
        (7, 7),
    ],
)
def test_the_setting(given: object, read: int | None) -> None:
    assert resolve({"trace": given}, {}, {}).trace == read


@pytest.mark.parametrize("given", ["sometimes", "-1", 0.5])
def test_what_it_is_not(given: object) -> None:
    with pytest.raises(ConfigError, match="expected on, off, or N"):
        resolve({"trace": given}, {}, {})


def test_the_programs_own_provider_is_used(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its ids are its own, but for the trace and the parent."""
    pytest.importorskip("opentelemetry.sdk", reason="OpenTelemetry is not installed: pip install opentelemetry-sdk")
    from opentelemetry import trace
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import SimpleSpanProcessor
    from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

    from ftlib.lifecycle.tracing.exporter import Exporter

    kept, provider = InMemorySpanExporter(), TracerProvider(shutdown_on_exit=False)
    provider.add_span_processor(SimpleSpanProcessor(kept))
    monkeypatch.setattr(trace, "get_tracer_provider", lambda: provider)
    exporter = Exporter({})
    for span in view_change("job", "a", VIEW, CHANGE, 990.0):
        exporter.give(span)
    exporter.close(1.0)
    found = {span.name: span for span in kept.get_finished_spans()}
    own = found["view change"]
    assert own.context is not None
    assert own.parent is not None
    assert (own.context.trace_id, own.parent.span_id) == (trace_of("job", "view", "v2"), root_of(trace_of("job", "view", "v2")))
    assert (own.start_time, own.end_time) == (1_000_000_000_000, 1_000_036_000_000)
    assert found.keys() == {"view change", "settle", "freeze", "build", "activate", "paused"}, (
        "no root: its id cannot be chosen"
    )
    provider.shutdown()


def test_that_nobody_takes_spans_is_said_once_with_the_remedy(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Whoever answers there is no collector: it refuses each lot."""
    pytest.importorskip("opentelemetry.exporter.otlp.proto.http", reason="not installed: pip install 'ftlib[otel]'")
    from opentelemetry import trace

    from ftlib.lifecycle.tracing.exporter import Exporter

    with Refusing() as refusing:
        monkeypatch.setattr(trace, "get_tracer_provider", trace.ProxyTracerProvider)
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", refusing.url)
        monkeypatch.setenv("OTEL_BSP_MAX_EXPORT_BATCH_SIZE", "1")
        with caplog.at_level("WARNING", "ftlib"):
            exporter = Exporter({})
            for _ in range(3):
                exporter.give(view_change("job", "b", VIEW, CHANGE, 990.0)[0])
            exporter.close(60.0)
        assert refusing.count > 1
    said = [record.getMessage() for record in caplog.records if record.name == "ftlib"]
    assert len(said) == 1
    assert refusing.url in said[0]
    assert "OTEL_EXPORTER_OTLP_ENDPOINT" in said[0]


class Refusing:
    """An HTTP server that takes nothing."""

    def __init__(self) -> None:
        self.count = 0
        counted = self._counted

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                counted()
                self.send_error(400)

            def log_message(self, *_: object) -> None:
                """Nothing."""

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_port}"
        self._thread = threading.Thread(target=self._server.serve_forever, daemon=True)

    def _counted(self) -> None:
        self.count += 1

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()
