"""Each member's views over time: a row for each member, time along x, coloured by the view in which the member acts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from math import log2
from pathlib import Path
from typing import Any

from consensus.simulation.transcript.recorder import Activity, Cover, Mark, ViewRecord

from ...errors import ConfigError
from .rows import Row

KINDS = (".svg", ".png")

# Neighbours in time differ in hue and in lightness: Paul Tol's "muted", in an order of its own.
_COLOURS = ("#88ccee", "#ddcc77", "#44aa99", "#cc99bb", "#999933", "#7799cc", "#ee9977", "#66aa77", "#bb88cc", "#c2c2a0")
_SEARCHING, _STOPPED, _INK, _RED, _AMBER = "#d9dde1", "#f4f4f4", "#1f2933", "#cc3311", "#e07b00"
_MARKS: dict[Mark, tuple[str, str]] = {
    Mark.JOINED: (">", "#117733"),
    Mark.KILLED: ("X", _RED),
    Mark.EXCLUDED: ("v", _RED),
    Mark.LEFT: ("<", "#2f6690"),
    Mark.QUORUM_LOST: ("s", _AMBER),
    Mark.TURNED_AWAY: ("d", "#777777"),
    Mark.DIED: ("P", _RED),
}


def refuse_nowhere(option: str, path: Path) -> None:
    """Raise ConfigError unless the file can be written, which is made if there is none: before a long run, not after it."""
    if not path.absolute().parent.is_dir():
        raise ConfigError(f"{option} {path}: there is no directory {path.absolute().parent}; make it first")
    try:
        path.open("ab").close()
    except OSError as error:
        raise ConfigError(f"{option} {path}: it cannot be written ({error.strerror}); give another file") from None


def refuse_path(path: Path) -> None:
    """Raise ConfigError unless the picture can be drawn there: before a long run, not after it."""
    if path.suffix.lower() not in KINDS:
        raise ConfigError(f"--picture {path}: the name must end with {' or '.join(KINDS)}")
    if find_spec("matplotlib") is None:
        raise ConfigError("--picture needs the package matplotlib: pip install 'ftlib[demo]'")
    refuse_nowhere("--picture", path)


def draw(
    rows: Sequence[Row],
    views: Mapping[str, ViewRecord],
    path: Path,
    *,
    end: float,
    headline: str,
    healed: float | None = None,
) -> None:
    """Write an SVG or PNG. ``end``: seconds of the run; ``healed``: when the faults were over."""
    import matplotlib as mpl  # noqa: PLC0415 - an extra, and slow to import
    from matplotlib.backends.backend_agg import FigureCanvasAgg  # noqa: PLC0415
    from matplotlib.figure import Figure  # noqa: PLC0415

    heights = [_height(row) for row in rows]
    inches = 0.26 if len(rows) <= 24 else max(0.10, 0.26 * 24 / len(rows))
    settings: Any = {"svg.fonttype": "none", "svg.hashsalt": "ftlib", "hatch.linewidth": 0.6}  # text stays text; no random ids
    with mpl.rc_context(settings):
        figure = Figure(figsize=(12, 1.9 + inches * sum(heights)), dpi=120, layout="constrained")
        FigureCanvasAgg(figure)
        axis: Any = figure.subplots()
        top = 0.0
        centres = []
        for row, height in zip(rows, heights, strict=True):
            centre = top + height / 2
            centres.append(centre)
            _row(axis, row, centre, height, views, end)
            top += height
        _frame(axis, rows, centres, top, end, healed)
        figure.suptitle(headline, fontsize=12, fontweight="bold")
        _legend(axis)
        figure.savefig(path, metadata={"Date": None} if path.suffix.lower() == ".svg" else None)


def _height(row: Row) -> float:
    """Return the height of a row: more for more processes, but not in proportion."""
    return 1.0 + 0.35 * log2(row.count)


def _row(axis: Any, row: Row, centre: float, height: float, views: Mapping[str, ViewRecord], end: float) -> None:
    thick = 0.72 * height
    for number, (phase, start, stop, view) in enumerate(row.phases):
        last = number == len(row.phases) - 1
        _phase(axis, phase, start, end if phase is Activity.STOPPED and last else stop, centre, thick, views.get(view))
    for cover, start, stop in row.covers:
        _cover(axis, cover, start, stop, centre, thick)
    for mark, at in row.marks:
        shape, colour = _MARKS[mark]
        style = {"markersize": 7, "markeredgecolor": "white", "markeredgewidth": 0.7, "zorder": 6, "clip_on": False}
        (drawn,) = axis.plot(at, centre, shape, color=colour, **style)
        drawn.set_gid(f"{mark.name.lower()}-{row.label.replace(' ', '_')}")


def _phase(axis: Any, phase: Activity, start: float, stop: float, centre: float, thick: float, view: ViewRecord | None) -> None:
    width = stop - start
    if phase is Activity.SEARCHING:
        axis.barh(centre, width, left=start, height=0.3 * thick, color=_SEARCHING)
    elif phase is Activity.STOPPED:
        axis.barh(centre, width, left=start, height=0.12 * thick, color=_STOPPED, edgecolor="#bbbbbb", linewidth=0.5)
    elif view is not None:
        colour = _COLOURS[view.number % len(_COLOURS)]
        if phase is Activity.FROZEN:
            style = {"color": "white", "edgecolor": colour, "hatch": "||||", "linewidth": 0.8}
            axis.barh(centre, width, left=start, height=0.8 * thick, **style)
        else:
            axis.barh(centre, width, left=start, height=thick, color=colour)


def _cover(axis: Any, cover: Cover, start: float, stop: float, centre: float, thick: float) -> None:
    width = stop - start
    if cover is Cover.PAUSED:
        axis.barh(centre, width, left=start, height=thick, color="none", edgecolor=_INK, hatch="////", linewidth=0.6, zorder=3)
    elif cover is Cover.CUT_OFF:
        axis.plot([start, stop], [centre - thick / 2] * 2, color=_INK, linewidth=2.2, solid_capstyle="butt", zorder=4)
    else:
        line = 3.0 if cover is Cover.DISTRUSTED else 1.0
        axis.plot([start, stop], [centre + thick / 2] * 2, color=_AMBER, linewidth=line, solid_capstyle="butt", zorder=4)


def _frame(axis: Any, rows: Sequence[Row], centres: Sequence[float], bottom: float, end: float, healed: float | None) -> None:
    size = 9 if len(rows) <= 32 else 7
    axis.set_yticks(centres, [row.label for row in rows], fontsize=size)
    axis.set_ylim(bottom + 0.3, -0.3)
    axis.set_xlim(0, end)
    axis.set_xlabel("simulated seconds")
    axis.spines[["top", "right", "left"]].set_visible(False)
    axis.tick_params(axis="y", length=0)
    axis.grid(axis="x", alpha=0.25)
    if healed is not None and healed < end:
        axis.axvline(healed, color="#117733", linewidth=1.1, linestyle=":")
        axis.annotate(
            "healed", (healed, 1.0), (4, 2), xycoords=("data", "axes fraction"), textcoords="offset points",
            fontsize=9, color="#117733", annotation_clip=False,
        )  # fmt: skip


def _legend(axis: Any) -> None:
    from matplotlib.lines import Line2D  # noqa: PLC0415 - as above
    from matplotlib.patches import Patch  # noqa: PLC0415

    handles = [
        Patch(color=_COLOURS[0], label="acts in a view (a colour each)"),
        Patch(facecolor="white", edgecolor=_COLOURS[0], hatch="||||", label="frozen for a change"),
        Patch(color=_SEARCHING, label="searches"),
        Patch(facecolor="white", edgecolor=_INK, hatch="////", label="paused"),
        Line2D([], [], color=_INK, linewidth=2.2, label="cut off"),
        Line2D([], [], color=_AMBER, linewidth=1.0, label="suspected by somebody"),
        Line2D([], [], color=_AMBER, linewidth=3.0, label="suspected by most"),
    ]
    handles += [
        Line2D([], [], linestyle="", marker=shape, color=colour, markersize=7, markeredgecolor="white", label=mark.value)
        for mark, (shape, colour) in _MARKS.items()
    ]
    axis.legend(handles=handles, loc="upper center", bbox_to_anchor=(0.5, -0.75 / axis.figure.get_figheight() - 0.02), ncols=7,
                frameon=False, fontsize=8.5)  # fmt: skip
