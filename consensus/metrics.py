"""A member's status as Prometheus text. Built anew at each scrape from plain values, so that nothing is counted twice.

``render`` takes what ``Agent.status`` returns; a layer above adds its own numbers under ``"ftlib"`` (see ``ftlib.facts``), and
what is not there is left out. ``prometheus_client`` is imported at the first scrape.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from prometheus_client.metrics_core import Metric

__all__ = ["CONTENT_TYPE", "render"]

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"

_Values = Mapping[str, Any]

_GAUGES = (
    ("ftlib_view_epoch", "active_epoch", "Epoch of the newest view that this member acts in"),
    ("ftlib_view_changing", "changing", "1 while a view change is under way"),
    ("ftlib_awareness", "awareness", "Own health as Lifeguard sees it: 0 is well, more stretches own timeouts"),
    ("ftlib_tick_delay_max_seconds", "tick_delay_max", "The longest that a timer of the agent fired too late"),
)
_UPPER_GAUGES = (
    ("ftlib_rank", "rank", "Rank in the newest active view, -1 before the first"),
    ("ftlib_last_recovery_seconds", "last_pause", "The newest pause for a view change, from freeze to activation"),
    ("ftlib_checkpoint_step", "checkpoint_step", "Step of the newest checkpoint that this member completed"),
)
_CATCHUP_GAUGES = (
    ("ftlib_catchup_state_bytes", "total", "Bytes of the training state that this member is getting"),
    ("ftlib_catchup_received_bytes", "got", "Of these, received"),
    ("ftlib_catchup_bytes_per_second", "rate", "How quickly they come"),
    ("ftlib_catchup_pending_averages", "pending", "Averages of the others that wait to be applied here"),
    ("ftlib_catchup_waited_for", "braking", "1 while the others wait for this member's state"),
)
_STEP_GAUGES = (
    ("ftlib_step_seconds", "last", "How long that member was outside of calls in the last step, as this one was told"),
    ("ftlib_straggler", "straggler", "1 while it is a straggler"),
)
_UPPER_COUNTERS = (
    ("ftlib_steps", "step", "Steps granted, of all lifetimes of the job"),
    ("ftlib_calls", "calls", "Calls finished here"),
    ("ftlib_calls_redone", "redone", "Attempts of calls that were given up for a view change and done again"),
    ("ftlib_calls_adopted", "adopted", "Calls finished with another member's result"),
    ("ftlib_results_donated", "donated", "Results given to members that had not finished a call"),
    ("ftlib_averages_vetoed", "vetoed", "Averages applied by nobody because of inf or nan"),
    ("ftlib_averaged_bytes", "bytes_averaged", "Bytes of tensors in finished calls"),
    ("ftlib_rebuild_failures", "rebuild_failures", "Process groups that could not be built"),
    ("ftlib_rejoins", "rejoins", "Times that this process was excluded and joined again as another member"),
    ("ftlib_state_loads", "state_loads", "Training states loaded from other members"),
    ("ftlib_state_bytes", "state_bytes", "Bytes of training state received"),
    ("ftlib_catchups", "recoveries", "Training states that came beside the others' training"),
    ("ftlib_catchup_fallbacks", "recovery_fallbacks", "Those that could not come so, and for which the others waited"),
    ("ftlib_averages_replayed", "averages_replayed", "Averages of the others applied here after the fact, while catching up"),
    ("ftlib_checkpoints", "checkpoints", "Checkpoints that this member completed"),
    ("ftlib_checkpoint_failures", "checkpoint_failures", "Checkpoints that it could not write"),
    ("ftlib_checkpoints_skipped", "checkpoints_skipped", "Checkpoints left out as the one before was still being written"),
)
_UPPER_HISTOGRAMS = (
    ("ftlib_recovery_seconds", "pauses", "Pauses for view changes, from freeze to activation"),
    ("ftlib_call_seconds", "call_seconds", "Calls from entry to result, waiting for others and view changes included"),
)


def render(status: _Values) -> bytes:
    """The text for one scrape, in the format of ``CONTENT_TYPE``."""
    if sys.modules.get("ssl", sys) is None:  # spared so far in an agent's process: the library wants these with it
        for name in ("ssl", "http.client", "urllib.request"):
            sys.modules.pop(name, None)
    from prometheus_client import CollectorRegistry, generate_latest  # noqa: PLC0415 - nothing else needs it

    registry = CollectorRegistry(auto_describe=False)
    registry.register(_Page(status))
    return generate_latest(registry)


class _Page:
    """The collector of one scrape."""

    def __init__(self, status: _Values) -> None:
        self._status = status
        meta = status.get("meta") or {}
        short = str(status.get("member") or "")[:6]
        self._labels = {"job": str(status.get("job") or ""), "member": str(meta.get("name") or short)}

    def collect(self) -> Iterator[Metric]:
        """All families."""
        status, upper = self._status, self._status.get("ftlib") or {}
        yield self._info()
        for name, key, text in _GAUGES:
            yield from self._gauge(name, text, status.get(key))
        members = status.get("members")
        if members is not None:
            yield from self._gauge("ftlib_members", "Members of the newest view known to be chosen", len(members))
            suspected = sum(member.get("status") != "alive" for member in members)
            yield from self._gauge("ftlib_members_suspected", "Of these, not held to be alive", suspected)
        if "stopped" in status:
            yield from self._gauge("ftlib_stopped", "1 once this member's part is over", status["stopped"] is not None)
        yield from self._view_changes(status.get("view_changes") or {})
        yield from self._tick_delay(status.get("tick_delay") or {})
        yield from self._traffic(status.get("messages") or {})
        yield from self._store(status.get("store") or {})
        yield from self._upper(upper)

    def _upper(self, upper: _Values) -> Iterator[Metric]:
        if "phase" in upper:
            yield from self._gauge("ftlib_acting", "1 while calls can be finished", upper["phase"] == "active")
        for name, key, text in _UPPER_GAUGES:
            yield from self._gauge(name, text, upper.get(key))
        if "recovery" in upper:
            recovery = upper["recovery"]
            yield from self._gauge("ftlib_catching_up", "1 while this member gets the training state", recovery is not None)
            for name, key, text in _CATCHUP_GAUGES:
                yield from self._gauge(name, text, (recovery or {}).get(key))
        for name, key, text in _UPPER_COUNTERS:
            if key in upper:
                yield self._counter(name, text, (), [((), upper[key])])
        for name, key, text in _UPPER_HISTOGRAMS:
            if key in upper:
                yield self._histogram(name, text, upper[key])
        yield from self._step_times(upper.get("step_times") or {})

    def _step_times(self, times: _Values) -> Iterator[Metric]:
        from prometheus_client.metrics_core import GaugeMetricFamily  # noqa: PLC0415

        if not times:
            return
        names = {member["id"]: (member.get("meta") or {}).get("name") for member in self._status.get("members") or ()}
        for name, key, text in _STEP_GAUGES:
            family = GaugeMetricFamily(name, text, labels=[*self._labels, "of"])
            for member_id, values in times.items():
                family.add_metric([*self._labels.values(), names.get(member_id) or member_id[:6]], float(values[key]))
            yield family

    def _info(self) -> Metric:
        from prometheus_client.metrics_core import GaugeMetricFamily  # noqa: PLC0415

        keys = {"member_id": "member", "address": "address", "policy": "policy", "protocol_version": "protocol_version"}
        facts = {label: str(self._status.get(key, "")) for label, key in keys.items()}
        family = GaugeMetricFamily("ftlib_info", "Who this is; always 1", labels=[*self._labels, *facts])
        family.add_metric([*self._labels.values(), *facts.values()], 1)
        return family

    def _gauge(self, name: str, text: str, value: Any) -> Iterator[Metric]:
        from prometheus_client.metrics_core import GaugeMetricFamily  # noqa: PLC0415

        if value is not None:
            family = GaugeMetricFamily(name, text, labels=list(self._labels))
            family.add_metric(list(self._labels.values()), float(value))
            yield family

    def _counter(self, name: str, text: str, labels: Sequence[str], rows: Iterable[tuple[Sequence[str], float]]) -> Metric:
        from prometheus_client.metrics_core import CounterMetricFamily  # noqa: PLC0415

        family = CounterMetricFamily(name, text, labels=[*self._labels, *labels])
        for values, count in rows:
            family.add_metric([*self._labels.values(), *values], float(count))
        return family

    def _histogram(self, name: str, text: str, tally: _Values) -> Metric:
        from prometheus_client.metrics_core import HistogramMetricFamily  # noqa: PLC0415

        family = HistogramMetricFamily(name, text, labels=list(self._labels))
        buckets = [(str(float(bound)), float(count)) for bound, count in tally["buckets"]]
        buckets.append(("+Inf", float(tally["count"])))
        family.add_metric(list(self._labels.values()), buckets, float(tally["sum"]))
        return family

    def _view_changes(self, counts: _Values) -> Iterator[Metric]:
        if not counts:
            return
        changes = [((cause,), count) for cause, count in sorted(counts.get("changes", {}).items())]
        yield self._counter(
            "ftlib_view_changes", "Views acted in, by the weightiest reason for the change", ("cause",), changes
        )
        removed = [((cause,), count) for cause, count in sorted(counts.get("removed", {}).items())]
        yield self._counter("ftlib_members_removed", "Members removed in them, by the evidence", ("cause",), removed)
        yield self._counter("ftlib_members_joined", "Members that joined in them", (), [((), counts.get("joined", 0))])

    def _tick_delay(self, delay: _Values) -> Iterator[Metric]:
        from prometheus_client.metrics_core import SummaryMetricFamily  # noqa: PLC0415

        if delay:
            text = "How much too late the agent's timers fired: a busy machine shows here first"
            family = SummaryMetricFamily("ftlib_tick_delay_seconds", text, labels=list(self._labels))
            family.add_metric(list(self._labels.values()), int(delay["count"]), float(delay["sum"]))
            yield family

    def _traffic(self, messages: _Values) -> Iterator[Metric]:
        passed = [
            ((direction, kind), entry)
            for direction in ("sent", "received")
            for kind, entry in sorted((messages.get(direction) or {}).items())
        ]
        labels = ("direction", "type")
        if passed:
            counts = [(key, entry["messages"]) for key, entry in passed]
            yield self._counter("ftlib_control_messages", "Messages of the membership protocol", labels, counts)
            sizes = [(key, entry["bytes"]) for key, entry in passed]
            yield self._counter("ftlib_control_bytes", "Bytes of these messages", labels, sizes)
        dropped = [((reason,), entry["messages"]) for reason, entry in sorted((messages.get("dropped") or {}).items())]
        text = "Messages that were refused or could not be sent"
        yield self._counter("ftlib_control_dropped", text, ("reason",), dropped)

    def _store(self, store: _Values) -> Iterator[Metric]:
        if "operations" in store:
            answers = bool(store["open"]) and store["away_since"] is None
            yield from self._gauge("ftlib_store_up", "1 while the shared store answers", answers)
            yield self._counter(
                "ftlib_store_operations", "Operations of it; a listing of n is n", (), [((), store["operations"])]
            )
            requests = [((kind,), count) for kind, count in sorted(store["requests"].items())]
            yield self._counter("ftlib_store_requests", "Requests to the shared store", ("kind",), requests)
            yield self._counter(
                "ftlib_store_failures", "Of these, failed or not answered in time", (), [((), store["failures"])]
            )
