"""A member's status as Prometheus text. Built at each scrape from plain values, so that nothing is counted twice.

``render`` takes the result of ``Agent.report``; missing values are left out. ``prometheus_client`` is imported at the first
scrape.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from .table import METRICS, MetricKind
from .values import Status

if TYPE_CHECKING:
    from prometheus_client.metrics_core import Metric as Family

TARGETS = "/targets"
"""Where Prometheus' HTTP discovery asks."""
CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"


def targets(status: Status) -> list[dict[str, Any]]:
    """Whom Prometheus should scrape, as its HTTP discovery wants it: all members of the view, by any one of them."""
    return [
        {
            "targets": [str(member["address"])],
            "labels": {
                "__meta_ftlib_job": str(status.get("job", "")),
                "__meta_ftlib_member": str(member["id"]),
                "__meta_ftlib_name": str((member.get("meta") or {}).get("name") or member["id"][:6]),
            },
        }
        for member in status.get("members") or ()
    ]


def render(status: Status) -> bytes:
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

    def __init__(self, status: Status) -> None:
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
