"""A member's status as Prometheus text. Built at each scrape from plain values, so that nothing is counted twice.

``METRICS`` is the only table of metrics: ``/metrics`` and the table in ``docs/observability.md`` are made from it. ``render``
takes the result of ``Agent.status``. A layer above adds its own numbers under ``"ftlib"`` (see ``ftlib.core.plane.facts``);
missing values are left out. ``prometheus_client`` is imported at the first scrape.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from enum import Enum
from functools import partial
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from prometheus_client.metrics_core import Metric as Family

TARGETS = "/targets"
"""Where Prometheus' HTTP discovery asks."""
CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"

_Status = Mapping[str, Any]
_Rows = Iterable[tuple[tuple[str, ...], float]]


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
    get: Callable[[_Status], Any] | None = None
    """Takes the value from the status if the path alone does not; returns None if there is no value.

    With labels the value is rows: (values of the labels, number).
    """
    labels: tuple[str, ...] = ()

    @property
    def shown(self) -> str:
        """The name in the text."""
        return f"{self.name}_total" if self.kind is MetricKind.COUNTER else self.name

    def value(self, status: _Status) -> Any:
        """The value in ``status``, None if there is none."""
        return _at(status, self.key) if self.get is None else self.get(status)


def targets(status: _Status) -> list[dict[str, Any]]:
    """Whom Prometheus should scrape, as its HTTP discovery wants it: all members of the view, by any one of them."""
    return [
        {
            "targets": [str(member["address"])],
            "labels": {"__meta_ftlib_job": str(status.get("job", "")), "__meta_ftlib_member": str(member["id"])},
        }
        for member in status.get("members") or ()
    ]


def _at(status: Any, path: str) -> Any:
    """The value at the path ``a.b.c``; None if there is none."""
    for key in path.split("."):
        if status is None:
            return None
        status = status.get(key)
    return status


def _path(path: str) -> Callable[[_Status], Any]:
    """Gets the value at ``path``, for values that only the status has."""
    return lambda status: _at(status, path)


def _sorted(path: str) -> Callable[[_Status], _Rows | None]:
    """Rows from a mapping of one label's values to numbers."""

    def rows(status: _Status) -> _Rows | None:
        counts = _at(status, path)
        return None if counts is None else [((label,), count) for label, count in sorted(counts.items())]

    return rows


def _traffic(unit: str) -> Callable[[_Status], _Rows | None]:
    """Rows of the traffic sent and received, in messages or bytes."""

    def rows(status: _Status) -> _Rows | None:
        both = [(way, _at(status, f"messages.{way}") or {}) for way in ("sent", "received")]
        return [((way, kind), entry[unit]) for way, kinds in both for kind, entry in sorted(kinds.items())] or None

    return rows


def _dropped(status: _Status) -> _Rows:
    return [((why,), entry["messages"]) for why, entry in sorted((_at(status, "messages.dropped") or {}).items())]


def _own_step(key: str) -> Callable[[_Status], Any]:
    """This member's own: each member exports its own alone, or a job of n would have n * n series."""

    def value(status: _Status) -> Any:
        times = (_at(status, "ftlib.step_times") or {}).get(status.get("member"))
        return None if times is None else times[key]

    return value


def _groups(**keys: str) -> Callable[[_Status], _Rows | None]:
    """Rows of the groups of a collective, by name; with more than one key, by what each stands for."""

    def rows(status: _Status) -> _Rows | None:
        groups = _at(status, "ftlib.collective")
        if not groups:
            return None
        ways = [(name, group, way, key) for name, group in sorted(groups.items()) for way, key in keys.items()]
        return [((name, *([way] if len(keys) > 1 else [])), group.get(key, 0)) for name, group, way, key in ways]

    return rows


def _group_paths(status: _Status) -> _Rows | None:
    groups = _at(status, "ftlib.collective") or {}
    return [((name, path), 1) for name, group in sorted(groups.items()) for path in group["paths"]] or None


def _if_there(path: str, then: Callable[[Any], Any]) -> Callable[[_Status], Any]:
    """``then`` of the value at ``path``, which may be None; None if the mapping that should hold it has no such key."""
    *above, last = path.split(".")

    def get(status: _Status) -> Any:
        holder = _at(status, above[0]) if above else status
        return then(holder[last]) if holder and last in holder else None

    return get


def _members(counted: Callable[[Any], bool]) -> Callable[[_Status], int | None]:
    """The number of members of the newest view for which ``counted`` returns True."""

    def get(status: _Status) -> int | None:
        members = status.get("members")
        return None if members is None else sum(map(counted, members))

    return get


def _store_answers(status: _Status) -> bool | None:
    store = status.get("store") or {}
    return bool(store["open"]) and store["away_since"] is None if "operations" in store else None


_INFO = {"member_id": "member", "address": "address", "policy": "policy", "protocol_version": "protocol_version"}
"""Labels of ``ftlib_info`` and their keys in the status."""


def _info(status: _Status) -> _Rows:
    return [(tuple(str(status.get(key, "")) for key in _INFO.values()), 1)]


_gauge, _counter, _histogram, _summary = (partial(Metric, kind) for kind in MetricKind)

METRICS: tuple[Metric, ...] = (
    _gauge("ftlib_info", "Who this is; always 1", get=_info, labels=tuple(_INFO)),
    # The agent's.
    _gauge(
        "ftlib_view_epoch", "Epoch of the newest view that this member acts in", get=lambda status: status.get("active_epoch")
    ),
    _gauge("ftlib_view_changing", "1 while a view change is under way", "changing"),
    _gauge("ftlib_awareness", "Own health as Lifeguard sees it: 0 is well, more stretches own timeouts", "awareness"),
    _gauge("ftlib_members", "Members of the newest view known to be chosen", get=_members(lambda _: True)),
    _gauge(
        "ftlib_members_suspected",
        "Of these, not held to be alive",
        get=_members(lambda member: member.get("status") != "alive"),
    ),
    _gauge("ftlib_stopped", "1 once this member's part is over", get=_if_there("stopped", lambda why: why is not None)),
    _counter(
        "ftlib_view_changes",
        "Views acted in, by the weightiest reason for the change",
        get=_sorted("view_changes.changes"),
        labels=("cause",),
    ),
    _counter(
        "ftlib_members_removed",
        "Members removed in them, by the evidence",
        get=_sorted("view_changes.removed"),
        labels=("cause",),
    ),
    _counter(
        "ftlib_orders",
        "Orders from outside to drain or kill this worker, by what became of them",
        get=_sorted("orders"),
        labels=("order",),
    ),
    _counter("ftlib_members_joined", "Members that joined in them", get=_path("view_changes.joined")),
    _summary(
        "ftlib_tick_delay_seconds", "How much too late the agent's timers fired: a busy machine shows here first", "tick_delay"
    ),
    _gauge("ftlib_tick_delay_max_seconds", "The longest that a timer of the agent fired too late", "tick_delay_max"),
    _counter(
        "ftlib_control_messages", "Messages of the membership protocol", "messages", _traffic("messages"), ("direction", "type")
    ),
    _counter("ftlib_control_bytes", "Bytes of these messages", "messages", _traffic("bytes"), ("direction", "type")),
    _counter(
        "ftlib_control_dropped", "Messages that were refused or could not be sent", "messages.dropped", _dropped, ("reason",)
    ),
    _gauge("ftlib_store_up", "1 while the shared store answers", get=_store_answers),
    _counter("ftlib_store_operations", "Operations of it; a listing of n is n", "store.operations"),
    _counter("ftlib_store_requests", "Requests to the shared store", "store.requests", _sorted("store.requests"), ("kind",)),
    _counter("ftlib_store_failures", "Of these, failed or not answered in time", "store.failures"),
    # The layer above's.
    _gauge(
        "ftlib_acting",
        "1 while calls can be finished",
        "ftlib.phase",
        _if_there("ftlib.phase", lambda phase: phase == "active"),
    ),
    _gauge("ftlib_rank", "Rank in the newest active view, -1 before the first", "ftlib.rank"),
    _gauge("ftlib_last_recovery_seconds", "The newest pause for a view change, from freeze to activation", "ftlib.last_pause"),
    _gauge(
        "ftlib_collective_queued",
        "Messages that wait: out, to be written; in, to be asked for",
        "ftlib.collective",
        _groups(out="queued_out", **{"in": "queued_in"}),
        ("group", "direction"),
    ),
    _gauge(
        "ftlib_collective_path",
        "Always 1; how a group's messages travel: through memory that both share, or by TCP",
        "ftlib.collective",
        _group_paths,
        ("group", "path"),
    ),
    _counter(
        "ftlib_collective_operations",
        "Sends and receives of groups and channels",
        "ftlib.collective",
        _groups(all="operations"),
        ("group",),
    ),
    _counter(
        "ftlib_collective_bytes",
        "Bytes that their streams carried",
        "ftlib.collective",
        _groups(out="sent_bytes", **{"in": "received_bytes"}),
        ("group", "direction"),
    ),
    _gauge("ftlib_checkpoint_step", "Step of the newest checkpoint that this member completed", "ftlib.checkpoint_step"),
    _gauge(
        "ftlib_catching_up",
        "1 while this member gets the training state",
        "ftlib.recovery",
        _if_there("ftlib.recovery", lambda recovery: recovery is not None),
    ),
    _gauge("ftlib_catchup_state_bytes", "Bytes of the training state that this member is getting", "ftlib.recovery.total"),
    _gauge("ftlib_catchup_received_bytes", "Of these, received", "ftlib.recovery.got"),
    _gauge("ftlib_catchup_bytes_per_second", "How quickly they come", "ftlib.recovery.rate"),
    _gauge("ftlib_catchup_pending_averages", "Averages of the others that wait to be applied here", "ftlib.recovery.pending"),
    _gauge("ftlib_catchup_waited_for", "1 while the others wait for this member's state", "ftlib.recovery.braking"),
    _counter("ftlib_steps", "Steps granted, of all lifetimes of the job", "ftlib.step"),
    _counter("ftlib_calls", "Calls finished here", "ftlib.calls"),
    _counter(
        "ftlib_transport_calls",
        "Of these, made with others, by what carried their tensors: an accelerator, or the group",
        "ftlib.calls_by_transport",
        _sorted("ftlib.calls_by_transport"),
        ("transport",),
    ),
    _counter("ftlib_calls_redone", "Attempts of calls that were given up for a view change and done again", "ftlib.redone"),
    _counter("ftlib_calls_adopted", "Calls finished with another member's result", "ftlib.adopted"),
    _counter("ftlib_results_donated", "Results given to members that had not finished a call", "ftlib.donated"),
    _counter("ftlib_averages_vetoed", "Averages applied by nobody because of inf or nan", "ftlib.vetoed"),
    _counter("ftlib_averaged_bytes", "Bytes of tensors in finished calls", "ftlib.bytes_averaged"),
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
    _counter("ftlib_state_bytes", "Bytes of training state received", "ftlib.state_bytes"),
    _counter("ftlib_catchups", "Training states that came beside the others' training", "ftlib.recoveries"),
    _counter(
        "ftlib_catchup_fallbacks", "Those that could not come so, and for which the others waited", "ftlib.recovery_fallbacks"
    ),
    _counter(
        "ftlib_averages_replayed",
        "Averages of the others applied here after the fact, while catching up",
        "ftlib.averages_replayed",
    ),
    _counter("ftlib_checkpoints", "Checkpoints that this member completed", "ftlib.checkpoints"),
    _counter("ftlib_checkpoint_failures", "Checkpoints that it could not write", "ftlib.checkpoint_failures"),
    _counter(
        "ftlib_checkpoints_skipped",
        "Checkpoints left out as the one before was still being written",
        "ftlib.checkpoints_skipped",
    ),
    _histogram("ftlib_recovery_seconds", "Pauses for view changes, from freeze to activation", "ftlib.pauses"),
    _histogram(
        "ftlib_call_seconds", "Calls from entry to result, waiting for others and view changes included", "ftlib.call_seconds"
    ),
    _gauge(
        "ftlib_step_seconds",
        "How long this member was outside of calls in its last step",
        "ftlib.step_times",
        _own_step("last"),
    ),
    _gauge("ftlib_straggler", "1 while the others see a straggler in it", "ftlib.step_times", _own_step("straggler")),
)


def render(status: _Status) -> bytes:
    """The text for one scrape, in the format of ``CONTENT_TYPE``."""
    if sys.modules.get("ssl", sys) is None:  # not imported so far in an agent's process: the library needs these with it
        for name in ("ssl", "http.client", "urllib.request"):
            sys.modules.pop(name, None)
    from prometheus_client import CollectorRegistry, generate_latest  # noqa: PLC0415 - nothing else needs it

    registry = CollectorRegistry(auto_describe=False)
    registry.register(_Page(status))
    return generate_latest(registry)


class _Page:
    """The collector of one scrape."""

    def __init__(self, status: _Status) -> None:
        self._status = status

    def collect(self) -> Iterator[Family]:
        """All families that have a value."""
        from prometheus_client import metrics_core  # noqa: PLC0415 - as above

        meta = self._status.get("meta") or {}
        name = str(meta.get("name") or str(self._status.get("member") or "")[:6])
        common = {"job": str(self._status.get("job") or ""), "member": name}
        whose = list(common.values())
        for metric in METRICS:
            value = metric.value(self._status)
            if value is None:
                continue
            labels = [*common, *metric.labels]
            match metric.kind:
                case MetricKind.HISTOGRAM:
                    histogram = metrics_core.HistogramMetricFamily(metric.name, metric.help, labels=labels)
                    buckets = [(str(float(bound)), float(count)) for bound, count in value["buckets"]]
                    histogram.add_metric(whose, [*buckets, ("+Inf", float(value["count"]))], float(value["sum"]))
                    yield histogram
                case MetricKind.SUMMARY:
                    summary = metrics_core.SummaryMetricFamily(metric.name, metric.help, labels=labels)
                    summary.add_metric(whose, int(value["count"]), float(value["sum"]))
                    yield summary
                case kind:
                    counts = kind is MetricKind.COUNTER
                    family_of = metrics_core.CounterMetricFamily if counts else metrics_core.GaugeMetricFamily
                    family = family_of(metric.name, metric.help, labels=labels)
                    for found, number in value if metric.labels else [((), value)]:
                        family.add_metric([*whose, *found], float(number))
                    yield family
