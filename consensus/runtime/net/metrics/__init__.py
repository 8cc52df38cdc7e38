"""Metrics: one table of them, how their values are found, the page for Prometheus, and the rules that watch them."""

from .page import CONTENT_TYPE, TARGETS, render, targets
from .table import METRICS, Metric, MetricKind

__all__ = ["CONTENT_TYPE", "METRICS", "TARGETS", "Metric", "MetricKind", "render", "targets"]
