"""What Prometheus watches, and what it computes ahead: the tables of alerts and recording rules, and their file."""

from __future__ import annotations

import json
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Recording:
    """A series that Prometheus computes from others."""

    name: str
    expression: str
    meaning: str


@dataclass(frozen=True, slots=True)
class Alert:
    """One rule that wakes somebody, or leaves a note."""

    name: str
    expression: str
    hold: str
    """For how long it has to be true, as Prometheus writes durations."""
    severity: str
    """``critical``: the job stands still, or is about to; ``warning``: it goes on."""
    summary: str
    runbook: str
    """The section of docs/operations.md that says what to do."""

    @property
    def page(self) -> str:
        """Where the runbook is."""
        return f"docs/operations.md#{self.runbook}"


RECORDINGS = (
    Recording(
        "job:ftlib_goodput:ratio_rate5m",
        'sum by (job) (rate(ftlib_seconds_total{state=~"computing|averaging"}[5m]))'
        " / sum by (job) (rate(ftlib_seconds_total[5m]))",
        "Part of the workers' time that was computing or averaging",
    ),
    Recording("job:ftlib_steps:rate5m", "max by (job) (rate(ftlib_steps_total[5m]))", "Steps a second"),
    Recording("job:ftlib_members:max", "max by (job) (ftlib_members)", "Members of the newest view"),
    Recording(
        "job:ftlib_recovery_seconds:p90_1h",
        "histogram_quantile(0.9, sum by (job, le) (increase(ftlib_recovery_seconds_bucket[1h])))",
        "Pauses for view changes that one in ten exceeds",
    ),
)

ALERTS = (
    Alert(
        "FtlibNoProgress",
        "sum by (job) (increase(ftlib_calls_total[5m])) == 0",
        "2m",
        "critical",
        "Job {{ $labels.job }} has finished no call for five minutes: it hangs, has no quorum, or computes for very long",
        "my-job-hangs-what-now",
    ),
    Alert(
        "FtlibStoreAway",
        "min by (job) (ftlib_store_up) == 0",
        "1m",
        "critical",
        "The store of job {{ $labels.job }} does not answer: training goes on, membership cannot change",
        "the-store-is-away",
    ),
    Alert(
        "FtlibMembersLost",
        'max by (job) (sum by (job, member) (increase(ftlib_members_removed_total{cause!="left"}[10m]))) > 3',
        "0m",
        "warning",
        "Job {{ $labels.job }} has lost more than three workers in ten minutes",
        "a-worker-ended-with-an-error",
    ),
    Alert(
        "FtlibTargetDown",
        'up{job="ftlib"} == 0',
        "2m",
        "warning",
        "The member at {{ $labels.instance }} does not answer Prometheus",
        "a-member-does-not-answer",
    ),
    Alert(
        "FtlibSlowRecovery",
        "job:ftlib_recovery_seconds:p90_1h > 1",
        "0m",
        "warning",
        "View changes of job {{ $labels.job }} pause its training for more than a second",
        "it-is-slow",
    ),
    Alert(
        "FtlibLowGoodput",
        "job:ftlib_goodput:ratio_rate5m < 0.8",
        "15m",
        "warning",
        "Job {{ $labels.job }} spends more than a fifth of its time neither computing nor averaging",
        "it-is-slow",
    ),
    Alert(
        "FtlibStraggler",
        "max by (job, member) (ftlib_straggler) == 1",
        "5m",
        "warning",
        "Worker {{ $labels.member }} of job {{ $labels.job }} makes the others wait in every step",
        "one-worker-is-late",
    ),
    Alert(
        "FtlibStuckJoiner",
        "ftlib_catching_up == 1 and ftlib_catchup_bytes_per_second < 1e6",
        "5m",
        "warning",
        "Worker {{ $labels.member }} of job {{ $labels.job }} gets the training state very slowly",
        "they-wait-for-a-joiners-state",
    ),
    Alert(
        "FtlibCheckpointFailed",
        "sum by (job) (increase(ftlib_checkpoint_failures_total[1h])) > 0",
        "0m",
        "warning",
        "Job {{ $labels.job }} could not write a checkpoint",
        "a-worker-does-not-start-or-join",
    ),
    Alert(
        "FtlibBusyHost",
        "rate(ftlib_tick_delay_seconds_sum[5m]) / rate(ftlib_tick_delay_seconds_count[5m]) > 0.1",
        "5m",
        "warning",
        "The agent of worker {{ $labels.member }} is not scheduled in time: next come false suspicions",
        "it-is-slow",
    ),
)


def rules() -> str:
    """The file of rules, as YAML. Strings are quoted as in JSON, of which YAML is a superset."""
    lines = ["# Made by: ftlib observability. Runbooks: docs/operations.md of ftlib.", "groups:"]
    lines += ["  - name: ftlib-recordings", "    rules:"]
    for each in RECORDINGS:
        lines += [f"      - record: {each.name}", f"        expr: {json.dumps(each.expression)}"]
    lines += ["  - name: ftlib-alerts", "    rules:"]
    for alert in ALERTS:
        lines += [
            f"      - alert: {alert.name}",
            f"        expr: {json.dumps(alert.expression)}",
            f"        for: {alert.hold}",
            f"        labels: {{severity: {alert.severity}}}",
            "        annotations:",
            f"          summary: {json.dumps(alert.summary)}",
            f"          runbook: {json.dumps(alert.page)}",
        ]
    return "\n".join(lines) + "\n"
