"""The thread that makes spans of a worker's records, now and then; it is there only with the setting ``trace``."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from typing import Any

from consensus import CarefulLogger

from ...common.threads import SYSTEM, stand_back
from ...common.traces import CallRecord, CheckpointRecord, FetchRecord, Record, RecoveryRecord, SendRecord, Traces, ViewRecord
from ...errors import ConfigError
from .spans import Calls, Span, checkpoint, recovery, sent, view_change

logger = CarefulLogger("ftlib")

EVERY = 1.0
"""Seconds between two looks at the records."""
SETTLED = 0.3
"""Seconds after its activation in which a view change is still being written down by the agent."""
CLOSE_TIMEOUT = 2.0
"""Seconds that a closing worker waits for its last spans to be sent."""
_FETCHES = 4096
"""Parts of a state that wait for its end."""


class Tracer:
    """The traces of one process, in all its lifetimes."""

    def __init__(self, traces: Traces, job: str, every: int, status: Callable[[], Mapping[str, Any]], name: str) -> None:
        """``every``: as ``Calls``. ``status``: the consensus's status of the current lifetime. ``name``: the worker's.

        ConfigError if OpenTelemetry is not installed.
        """
        try:
            from . import exporter  # noqa: PLC0415 - OpenTelemetry is optional, and takes long to import
        except ImportError as error:
            raise ConfigError(f"trace is set, but {error.name} is not installed: pip install ftlib[otel]") from None
        self._new_exporter = exporter.Exporter
        self._exporter: exporter.Exporter | None = None
        self._traces, self._job, self._status, self._name = traces, job, status, name
        self._member = ""
        self._calls = Calls(job, every)
        self._views: list[ViewRecord] = []
        self._fetched: list[FetchRecord] = []
        self._over = threading.Event()
        self._turn = threading.Lock()
        self._thread = threading.Thread(target=self._run, name="ftlib-trace", daemon=True)

    def start(self) -> None:
        """Begin."""
        self._thread.start()

    def close(self) -> None:
        """Make spans of what is there, while the agent still answers, and send them: takes ``CLOSE_TIMEOUT`` at most twice.
        Idempotent; does nothing if it has not begun.
        """
        if self._over.is_set():
            return
        self._over.set()
        if self._thread.is_alive():
            self._thread.join(CLOSE_TIMEOUT)
        if self._exporter is not None:
            self._exporter.close(CLOSE_TIMEOUT)

    # --- its thread ----------------------------------------------------------------------------------------------------

    def _run(self) -> None:
        stand_back()
        while not self._over.wait(EVERY):
            self._look(SYSTEM.now() - SETTLED)
        self._look(SYSTEM.now())

    def _look(self, until: float) -> None:
        """Take the records; view changes only those that were over at ``until``."""
        try:
            ahead = time.time() - SYSTEM.now()
            for record in self._traces.each(self._calls.dull):
                for span in self._of(record, ahead):
                    self._give(span)
            self._settle(until, ahead)
        except Exception:  # traces are for people to look at: training goes on without them
            logger.exception("spans could not be made; tracing goes on", extra={"ftlib_event": "trace_failed"})

    def _of(self, record: Record, ahead: float) -> list[Span]:
        """The spans of one record. A view change has to wait for its agent's account, a part for its whole."""
        match record:
            case CallRecord():
                span = self._calls.span(record, self._who(), ahead)
                return [] if span is None else [span]
            case ViewRecord():
                self._views.append(record)
            case FetchRecord():
                self._fetched = [*self._fetched[-_FETCHES:], record]
            case RecoveryRecord():
                parts, self._fetched = self._fetched, []
                return [recovery(self._job, record, parts, ahead)]
            case SendRecord():
                return [sent(self._job, self._who(), record, ahead)]
            case CheckpointRecord():
                return [checkpoint(self._job, self._who(), record, ahead)]
        return []

    def _settle(self, until: float, ahead: float) -> None:
        due = {view.view_id: view for view in self._views if view.active <= until}
        if not due:
            return
        status = self._status()
        self._views = [view for view in self._views if view.view_id not in due]
        self._member = str(status.get("member") or self._member)
        for change in status.get("history") or ():
            view = due.get(str(change.get("view_id")))
            if view is not None and "time" in change:
                for span in view_change(self._job, self._member, view, change, ahead):
                    self._give(span)

    def _who(self) -> str:
        if not self._member:
            self._member = str(self._status().get("member") or "")
        return self._member

    def _give(self, span: Span) -> None:
        if self._exporter is None:
            about = {"ftlib.job": self._job, "service.instance.id": self._name or self._who()}
            self._exporter = self._new_exporter(about)
        self._exporter.give(span)
