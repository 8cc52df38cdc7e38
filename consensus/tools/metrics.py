"""The table of metrics, for programs that make something of it."""

from ..runtime.net.metrics import METRICS, TARGETS, Metric, MetricKind

__all__ = ["METRICS", "TARGETS", "Metric", "MetricKind"]
