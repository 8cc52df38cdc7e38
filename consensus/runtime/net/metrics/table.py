"""The only table of metrics. ``/metrics``, the table in ``docs/observability.md``, the Grafana board and the rules of
``ftlib observability`` are made from it; a layer above adds its own numbers under ``"ftlib"`` (see ``ftlib.core.plane.facts``).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from functools import partial
from typing import Any

from .values import (
    BUILD,
    INFO,
    Status,
    all_bytes,
    answers,
    at,
    build,
    by_label,
    cpu_seconds,
    dropped,
    group_paths,
    groups,
    if_there,
    info,
    members,
    own_step,
    path_to,
    process,
    store_answers,
    traffic,
)


class MetricKind(Enum):
    """The type of a metric, as Prometheus names it."""

    GAUGE = "gauge"
    COUNTER = "counter"
    HISTOGRAM = "histogram"
    SUMMARY = "summary"


@dataclass(frozen=True, slots=True)
class Metric:
    """One row of the table."""

    kind: MetricKind
    name: str
    """Without the ``_total`` that the text adds to counters."""
    help: str
    key: str = ""
    """Path of the value in the status, and without ``ftlib.`` in the result of ``FTLib.metrics``; may be empty with ``get``."""
    get: Callable[[Status], Any] | None = None
    """Takes the value from the status if the path alone does not; returns None if there is no value.

    With labels the value is rows: (values of the labels, number).
    """
    labels: tuple[str, ...] = ()
    board: str = ""
    """The row of the Grafana board that shows it; empty if none does."""

    @property
    def shown(self) -> str:
        """The name in the text."""
        return f"{self.name}_total" if self.kind is MetricKind.COUNTER else self.name

    def value(self, status: Status) -> Any:
        """The value in ``status``, None if there is none."""
        return at(status, self.key) if self.get is None else self.get(status)


_gauge, _counter, _histogram, _summary = (partial(Metric, kind) for kind in MetricKind)

METRICS: tuple[Metric, ...] = (
    _gauge("ftlib_info", "Who this is; always 1", get=info, labels=tuple(INFO)),
    _gauge("ftlib_build_info", "What runs here; always 1", "ftlib.build", build, BUILD),
    # The agent's.
    _gauge(
        "ftlib_view_epoch",
        "Epoch of the newest view that this member acts in",
        get=lambda status: status.get("active_epoch"),
        board="Job",
    ),
    _gauge("ftlib_view_changing", "1 while a view change is under way", "changing", board="View changes"),
    _gauge(
        "ftlib_awareness",
        "Own health as Lifeguard sees it: 0 is well, more stretches own timeouts",
        "awareness",
        board="Control",
    ),
    _gauge("ftlib_members", "Members of the newest view known to be chosen", get=members(lambda _: True), board="Job"),
    _gauge(
        "ftlib_members_suspected",
        "Of these, not held to be alive",
        get=members(lambda member: member.get("status") != "alive"),
        board="View changes",
    ),
    _gauge("ftlib_stopped", "1 once this member's part is over", get=if_there("stopped", lambda why: why is not None)),
    _counter(
        "ftlib_view_changes",
        "Views acted in, by the weightiest reason for the change",
        get=by_label("view_changes.changes"),
        labels=("cause",),
        board="View changes",
    ),
    _counter(
        "ftlib_members_removed",
        "Members removed in them, by the evidence",
        get=by_label("view_changes.removed"),
        labels=("cause",),
        board="View changes",
    ),
    _counter(
        "ftlib_orders",
        "Orders from outside to drain or kill this worker, by what became of them",
        get=by_label("orders"),
        labels=("order",),
    ),
    _counter("ftlib_members_joined", "Members that joined in them", get=path_to("view_changes.joined"), board="View changes"),
    _summary(
        "ftlib_tick_delay_seconds",
        "How much too late the agent's timers fired: a busy machine shows here first",
        "tick_delay",
        board="Control",
    ),
    _gauge("ftlib_tick_delay_max_seconds", "The longest that a timer of the agent fired too late", "tick_delay_max"),
    _counter(
        "ftlib_control_messages",
        "Messages of the membership protocol",
        "messages",
        traffic,
        ("direction", "type"),
        board="Control",
    ),
    _counter("ftlib_control_bytes", "Bytes of these messages", "messages", all_bytes, ("direction",), board="Control"),
    _counter(
        "ftlib_control_dropped", "Messages that were refused or could not be sent", "messages.dropped", dropped, ("reason",)
    ),
    _gauge("ftlib_store_up", "1 while the shared store answers", get=store_answers, board="Control"),
    _counter("ftlib_store_operations", "Operations of it; a listing of n is n", "store.operations"),
    _counter(
        "ftlib_store_requests",
        "Requests to the shared store",
        "store.requests",
        by_label("store.requests"),
        ("kind",),
        board="Control",
    ),
    _counter("ftlib_store_failures", "Of these, failed or not answered in time", "store.failures"),
    _counter(
        "ftlib_process_cpu_seconds",
        "Processor time of the two processes of a worker",
        get=process(cpu_seconds),
        labels=("process",),
        board="Processes",
    ),
    _gauge(
        "ftlib_process_resident_memory_bytes",
        "Memory that they hold",
        get=process(lambda each: each.memory_info().rss),
        labels=("process",),
        board="Processes",
    ),
    _gauge(
        "ftlib_process_open_fds",
        "Files and sockets that they have open",
        get=process(lambda each: each.num_fds()),
        labels=("process",),
        board="Processes",
    ),
    _gauge(
        "ftlib_process_threads",
        "Their threads",
        get=process(lambda each: each.num_threads()),
        labels=("process",),
        board="Processes",
    ),
    _gauge(
        "ftlib_process_start_time_seconds",
        "When they began, in seconds since 1970",
        get=process(lambda each: each.create_time()),
        labels=("process",),
    ),
    # The layer above's.
    _gauge(
        "ftlib_answering",
        "1 while the training process answers its agent; 0: it is stopped, or very busy, and what follows is old or missing",
        get=answers,
        board="Job",
    ),
    _counter(
        "ftlib_seconds",
        "Time since the start by what the worker was doing; the states add up to the wall clock",
        "ftlib.seconds",
        by_label("ftlib.seconds"),
        ("state",),
        board="Job",
    ),
    _gauge("ftlib_goodput", "Part of this time, 0 to 1, that was computing or averaging", "ftlib.goodput", board="Job"),
    _gauge(
        "ftlib_acting",
        "1 while calls can be finished",
        "ftlib.phase",
        if_there("ftlib.phase", lambda phase: phase == "active"),
        board="Job",
    ),
    _gauge("ftlib_rank", "Rank in the newest active view, -1 before the first", "ftlib.rank"),
    _gauge(
        "ftlib_last_recovery_seconds",
        "The newest pause for a view change, from freeze to activation",
        "ftlib.last_pause",
        board="View changes",
    ),
    _gauge(
        "ftlib_collective_queued",
        "Messages that wait: out, to be written; in, to be asked for",
        "ftlib.collective",
        groups(out="queued_out", **{"in": "queued_in"}),
        ("group", "direction"),
    ),
    _gauge(
        "ftlib_collective_path",
        "Always 1; how a group's messages travel: through memory that both share, or by TCP",
        "ftlib.collective",
        group_paths,
        ("group", "path"),
    ),
    _counter(
        "ftlib_collective_operations",
        "Sends and receives of groups and channels",
        "ftlib.collective",
        groups(all="operations"),
        ("group",),
    ),
    _counter(
        "ftlib_collective_bytes",
        "Bytes that their streams carried",
        "ftlib.collective",
        groups(out="sent_bytes", **{"in": "received_bytes"}),
        ("group", "direction"),
    ),
    _gauge(
        "ftlib_checkpoint_step",
        "Step of the newest checkpoint that this member completed",
        "ftlib.checkpoint_step",
        board="State and checkpoints",
    ),
    _gauge(
        "ftlib_catching_up",
        "1 while this member gets the training state",
        "ftlib.recovery",
        if_there("ftlib.recovery", lambda recovery: recovery is not None),
        board="State and checkpoints",
    ),
    _gauge("ftlib_catchup_state_bytes", "Bytes of the training state that this member is getting", "ftlib.recovery.total"),
    _gauge("ftlib_catchup_received_bytes", "Of these, received", "ftlib.recovery.got"),
    _gauge("ftlib_catchup_bytes_per_second", "How quickly they come", "ftlib.recovery.rate"),
    _gauge("ftlib_catchup_pending_averages", "Averages of the others that wait to be applied here", "ftlib.recovery.pending"),
    _gauge("ftlib_catchup_waited_for", "1 while the others wait for this member's state", "ftlib.recovery.braking"),
    _counter("ftlib_steps", "Steps granted, of all lifetimes of the job", "ftlib.step", board="Job"),
    _counter("ftlib_calls", "Calls finished here", "ftlib.calls", board="Calls"),
    _counter(
        "ftlib_transport_calls",
        "Of these, made with others, by what carried their tensors: an accelerator, or the group",
        "ftlib.calls_by_transport",
        by_label("ftlib.calls_by_transport"),
        ("transport",),
    ),
    _counter(
        "ftlib_calls_redone",
        "Attempts of calls that were given up for a view change and done again",
        "ftlib.redone",
        board="Calls",
    ),
    _counter("ftlib_calls_adopted", "Calls finished with another member's result", "ftlib.adopted", board="Calls"),
    _counter("ftlib_results_donated", "Results given to members that had not finished a call", "ftlib.donated"),
    _counter("ftlib_averages_vetoed", "Averages applied by nobody because of inf or nan", "ftlib.vetoed", board="Calls"),
    _counter("ftlib_averaged_bytes", "Bytes of tensors in finished calls", "ftlib.bytes_averaged", board="Calls"),
    _counter("ftlib_rebuild_failures", "Process groups that could not be built", "ftlib.rebuild_failures"),
    _counter(
        "ftlib_children_replaced",
        "Processes with a group that ended or hung by themselves, and were replaced",
        "ftlib.children_replaced",
    ),
    _gauge("ftlib_accelerator_ready", "1 while this member's accelerator works", "ftlib.accelerator_ready"),
    _counter("ftlib_accelerator_starts", "Communicators of the accelerator, one a view", "ftlib.accelerator_starts"),
    _counter("ftlib_accelerator_troubles", "Of these, that did not begin to work", "ftlib.accelerator_troubles"),
    _counter("ftlib_accelerator_stops", "Of these, stopped for a view change, or in the end", "ftlib.accelerator_stops"),
    _counter("ftlib_accelerator_frees", "Of these, freed in the next view", "ftlib.accelerator_frees"),
    _counter(
        "ftlib_accelerator_leaks",
        "Of these, never freed, as stopping or freeing them hung: device memory is lost",
        "ftlib.accelerator_leaks",
    ),
    _histogram(
        "ftlib_accelerator_start_seconds",
        "From a new group to an accelerator that works; calls go by the group meanwhile",
        "ftlib.accelerator_start_seconds",
    ),
    _counter("ftlib_rejoins", "Times that this process was excluded and joined again as another member", "ftlib.rejoins"),
    _counter("ftlib_state_loads", "Training states loaded from other members", "ftlib.state_loads"),
    _counter("ftlib_state_bytes", "Bytes of training state received", "ftlib.state_bytes", board="State and checkpoints"),
    _counter("ftlib_catchups", "Training states that came beside the others' training", "ftlib.recoveries"),
    _counter(
        "ftlib_catchup_fallbacks", "Those that could not come so, and for which the others waited", "ftlib.recovery_fallbacks"
    ),
    _counter(
        "ftlib_averages_replayed",
        "Averages of the others applied here after the fact, while catching up",
        "ftlib.averages_replayed",
        board="State and checkpoints",
    ),
    _counter("ftlib_checkpoints", "Checkpoints that this member completed", "ftlib.checkpoints", board="State and checkpoints"),
    _counter(
        "ftlib_checkpoint_failures",
        "Checkpoints that it could not write",
        "ftlib.checkpoint_failures",
        board="State and checkpoints",
    ),
    _counter(
        "ftlib_checkpoints_skipped",
        "Checkpoints left out as the one before was still being written",
        "ftlib.checkpoints_skipped",
    ),
    _histogram(
        "ftlib_recovery_seconds", "Pauses for view changes, from freeze to activation", "ftlib.pauses", board="View changes"
    ),
    _histogram(
        "ftlib_call_seconds",
        "Calls from entry to result, waiting for others and view changes included",
        "ftlib.call_seconds",
        board="Calls",
    ),
    _gauge(
        "ftlib_step_seconds",
        "How long this member was outside of calls in its last step",
        "ftlib.step_times",
        own_step("last"),
        board="Calls",
    ),
    _gauge(
        "ftlib_straggler", "1 while the others see a straggler in it", "ftlib.step_times", own_step("straggler"), board="Calls"
    ),
)
