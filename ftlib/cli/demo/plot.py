"""The picture: loss over time with the events marked; below, the lifetimes of the workers."""

from __future__ import annotations

import statistics
from pathlib import Path
from typing import Any

from .reference import Reference
from .report import Report
from .timeline import Fault, ProcessLife, State, Timeline

_COLOURS = ("#4477aa", "#aa3377", "#ccbb44", "#228833", "#66ccee")
_RED = "#cc3311"
_SPAN = 25
"""Steps over which the curves are smoothed (median)."""
_PAUSE = 0.5
"""Seconds without an average that show as a gap."""


def draw(timeline: Timeline, reference: Reference, report: Report, path: Path) -> None:
    """Write a PNG to ``path``."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg  # noqa: PLC0415 - an extra, and slow to import
    from matplotlib.figure import Figure  # noqa: PLC0415

    figure = Figure(figsize=(12, 7), dpi=130, layout="constrained")
    FigureCanvasAgg(figure)
    axes: Any = figure.subplots(2, 1, sharex=True, height_ratios=(3, 1.9))
    loss, members = axes
    zero = timeline.first or timeline.start
    _loss(loss, timeline, reference, zero)
    _faults(loss, members, timeline, report, zero)
    _members(members, timeline, zero)
    done = "every promise was kept" if report.kept else "BROKEN: " + ", ".join(p.name for p in report.promises if not p.kept)
    figure.suptitle(f"Training goes on: {report.steps} steps, {report.steps_lost} lost, {done}", fontsize=13, fontweight="bold")
    figure.savefig(path)


def _smooth(values: list[float]) -> list[float]:
    half = _SPAN // 2
    return [statistics.median(values[max(0, i - half) : i + half + 1]) for i in range(len(values))]


def _broken(times: list[float], values: list[float]) -> tuple[list[float], list[float]]:
    """Return the curve, interrupted where no worker finished an average."""
    xs, ys = [], []
    for before, t, value in zip([times[0], *times] if times else [], times, values, strict=False):
        if t - before > _PAUSE:
            xs.append(t)
            ys.append(float("nan"))
        xs.append(t)
        ys.append(value)
    return xs, ys


def _loss(axis: Any, timeline: Timeline, reference: Reference, zero: float) -> None:
    steps = timeline.losses()
    times = [step.t - zero for step in steps]
    values = [step.loss for step in steps]
    axis.plot(*_broken(times, values), color=_COLOURS[0], alpha=0.22, linewidth=0.7)
    axis.plot(*_broken(times, _smooth(values)), color=_COLOURS[0], linewidth=2.0, label="these workers")
    known = len(reference.losses)
    same = [(step.t - zero, reference.losses[step.step - 1]) for step in steps if step.step <= known]
    if same:
        label = "undisturbed, one process, at the same step"
        curve = _broken([t for t, _ in same], _smooth([value for _, value in same]))
        axis.plot(*curve, color="black", linewidth=1.1, linestyle=(0, (4, 2)), label=label)
    axis.set_yscale("log")
    if values:
        axis.set_ylim(top=max(values) * 8)  # room for what is written at the events
    axis.set_ylabel("loss of the global batch")
    axis.legend(loc="lower left", frameon=True, framealpha=0.9, edgecolor="none")
    axis.grid(axis="y", alpha=0.25)
    axis.spines[["top", "right"]].set_visible(False)


def _faults(loss: Any, members: Any, timeline: Timeline, report: Report, zero: float) -> None:
    for deed, found in zip(timeline.deeds, report.consequences, strict=True):
        at = deed.t - zero
        added = deed.fault is Fault.ADD
        colour = "#117733" if added else _RED
        for axis in (loss, members):
            axis.axvline(at, color=colour, linewidth=1.1, linestyle=":")
        name = {Fault.SENIOR: "SIGKILL\nmost senior"}.get(deed.fault, deed.fault.value)
        told = f"{name}\nworker {deed.worker}" if not added else f"worker {deed.worker}\nadded"
        if not added:
            told += "\nno average!" if found.recovery is None else f"\nnext average\n{_time(found.recovery)}"
        elif found.back is not None:
            told += f"\nin after {_time(found.back)}"
        loss.annotate(
            told,
            (at, 1.0),
            (5, -2),
            xycoords=("data", "axes fraction"),
            textcoords="offset points",
            ha="left",
            va="top",
            fontsize=9,
            color=colour,
        )


def _time(seconds: float) -> str:
    return f"{seconds * 1e3:.0f} ms" if seconds < 1 else f"{seconds:.1f} s"


def _members(axis: Any, timeline: Timeline, zero: float) -> None:
    from matplotlib.patches import Patch  # noqa: PLC0415 - as above

    end = max((life.steps[-1].t for life in timeline.lives.values() if life.steps), default=zero)
    stops = {deed.pid: deed.t for deed in timeline.deeds if deed.fault is Fault.STOP}
    kills = {deed.pid: deed.t for deed in timeline.deeds if deed.fault in (Fault.KILL, Fault.SENIOR)}
    workers = sorted({life.worker for life in timeline.lives.values()})
    for life in timeline.lives.values():
        _life(axis, life, zero, end, stops.get(life.pid), kills.get(life.pid))
    axis.set_yticks(workers, [f"worker {worker}" for worker in workers])
    axis.set_ylim(max(workers, default=0) + 0.6, -0.6)
    axis.set_xlabel("seconds since the first average")
    axis.spines[["top", "right", "left"]].set_visible(False)
    axis.tick_params(axis="y", length=0)
    handles = [
        Patch(color="#888888", label="trains"),
        Patch(color="#dddddd", label="starts, joins"),
        Patch(facecolor="white", edgecolor=_RED, hatch="////", label="stopped, until the launcher kills it"),
        axis.plot([], [], "X", color=_RED, markersize=8, label="killed")[0],
    ]
    axis.legend(handles=handles, loc="upper center", bbox_to_anchor=(0.5, -0.22), ncols=4, frameon=False)


def _life(axis: Any, life: ProcessLife, zero: float, end: float, stopped: float | None, killed: float | None) -> None:
    over = min(life.ended, end) if life.ended is not None else end
    begin = life.steps[0].t if life.steps else over
    ends = stopped or killed or over

    def bar(left: float, right: float, **style: Any) -> None:
        if right > left:
            axis.barh(life.worker, right - left, left=left - zero, height=0.62, **style)

    bar(life.born, begin, color="#dddddd")
    bar(begin, ends, color=_COLOURS[life.worker % len(_COLOURS)])
    if stopped is not None:
        bar(stopped, over, color="white", edgecolor=_RED, hatch="////", linewidth=0.8)
    if life.state in (State.KILLED, State.FENCED, State.FAILED):
        axis.plot(over - zero, life.worker, "X", color=_RED, markersize=9, markeredgecolor="white", zorder=3)
