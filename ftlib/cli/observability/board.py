"""The Grafana board: a row a section of the table of metrics, a panel a metric."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

from consensus.tools.metrics import METRICS, Metric, MetricKind

_SELECTED = 'job=~"$job",member=~"$member"'
_WIDE, _HIGH, _ROW = 8, 7, 24
_UNITS = {"_seconds": "s", "_bytes": "bytes", "ftlib_goodput": "percentunit"}
_OVER_ALL = {"ftlib_members", "ftlib_view_epoch", "ftlib_goodput", "ftlib_steps", "ftlib_checkpoint_step"}
"""Shown as one line for the job, since all its members say the same, or nearly."""


def expressions(metric: Metric) -> Iterator[tuple[str, str]]:
    """PromQL expressions that show ``metric``, each with the legend of its lines."""
    name, legend = metric.shown, " ".join(["{{member}}", *(f"{{{{{label}}}}}" for label in metric.labels)])
    by = ", ".join(["job", "member", *metric.labels])
    match metric.kind:
        case MetricKind.HISTOGRAM:
            for share in (0.5, 0.95):
                inner = f"sum by (job, le) (rate({name}_bucket{{{_SELECTED}}}[$__rate_interval]))"
                yield f"histogram_quantile({share}, {inner})", f"{share:.0%} are below"
        case MetricKind.SUMMARY:
            total, count = (f"rate({name}_{part}{{{_SELECTED}}}[$__rate_interval])" for part in ("sum", "count"))
            yield f"{total} / {count}", "mean, {{member}}"
        case MetricKind.COUNTER if metric.name in _OVER_ALL:
            yield f"max by (job) (rate({name}{{{_SELECTED}}}[$__rate_interval]))", "{{job}}"
        case MetricKind.COUNTER:
            yield f"sum by ({by}) (rate({name}{{{_SELECTED}}}[$__rate_interval]))", legend
        case MetricKind.GAUGE if metric.name in _OVER_ALL:
            function = "avg" if metric.name == "ftlib_goodput" else "max"
            yield f"{function} by (job) ({name}{{{_SELECTED}}})", "{{job}}"
        case _:
            yield f"{name}{{{_SELECTED}}}", legend


def board() -> str:
    """The board as JSON, to be imported into Grafana 10 or newer, which asks for the source of data."""
    panels: list[dict[str, Any]] = []
    sections = dict.fromkeys(metric.board for metric in METRICS if metric.board)
    top = 0
    for section in sections:
        panels.append({"type": "row", "title": section, "collapsed": False, "gridPos": _place(0, top, _ROW, 1), "panels": []})
        top += 1
        shown = [metric for metric in METRICS if metric.board == section]
        for index, metric in enumerate(shown):
            left, down = index * _WIDE % _ROW, index * _WIDE // _ROW
            panels.append(_panel(metric, _place(left, top + down * _HIGH, _WIDE, _HIGH)))
        top += -(-len(shown) * _WIDE // _ROW) * _HIGH
    whole = {
        "title": "ftlib",
        "uid": "ftlib",
        "tags": ["ftlib"],
        "schemaVersion": 39,
        "timezone": "browser",
        "refresh": "15s",
        "time": {"from": "now-1h", "to": "now"},
        "templating": {"list": [_source(), _choice("job", "ftlib_info"), _choice("member", 'ftlib_info{job=~"$job"}')]},
        "annotations": {"list": [_changes()]},
        "panels": [{**panel, "id": number} for number, panel in enumerate(panels, start=1)],
    }
    return json.dumps(whole, indent=1) + "\n"


def _panel(metric: Metric, place: Mapping[str, int]) -> dict[str, Any]:
    per_second = metric.kind is MetricKind.COUNTER
    unit = next((unit for ending, unit in _UNITS.items() if metric.name.endswith(ending)), "short")
    if per_second:
        unit = {"bytes": "Bps", "s": "percentunit"}.get(unit, "ops")
    return {
        "type": "timeseries",
        "title": metric.name.removeprefix("ftlib_").replace("_", " ") + (" a second" if per_second else ""),
        "description": metric.help,
        "datasource": {"type": "prometheus", "uid": "${source}"},
        "gridPos": dict(place),
        "fieldConfig": {"defaults": {"unit": unit, "min": 0}, "overrides": []},
        "options": {"legend": {"displayMode": "list", "placement": "bottom"}, "tooltip": {"mode": "multi", "sort": "desc"}},
        "targets": [
            {"refId": chr(ord("A") + index), "expr": expression, "legendFormat": legend}
            for index, (expression, legend) in enumerate(expressions(metric))
        ],
    }


def _place(left: int, top: int, wide: int, high: int) -> dict[str, int]:
    return {"x": left, "y": top, "w": wide, "h": high}


def _source() -> dict[str, Any]:
    return {"name": "source", "label": "Prometheus", "type": "datasource", "query": "prometheus"}


def _choice(label: str, series: str) -> dict[str, Any]:
    query = f"label_values({series}, {label})"
    return {
        "name": label,
        "type": "query",
        "datasource": {"type": "prometheus", "uid": "${source}"},
        "query": {"query": query, "refId": label},
        "definition": query,
        "refresh": 2,
        "includeAll": True,
        "multi": True,
        "allValue": ".+",
        "current": {"text": "All", "value": "$__all"},
    }


def _changes() -> dict[str, Any]:
    """A mark where the view has changed."""
    return {
        "name": "View changes",
        "enable": True,
        "iconColor": "orange",
        "datasource": {"type": "prometheus", "uid": "${source}"},
        "expr": 'max by (job) (changes(ftlib_view_epoch{job=~"$job"}[$__rate_interval])) > 0',
        "titleFormat": "{{job}}: the view changed",
    }
