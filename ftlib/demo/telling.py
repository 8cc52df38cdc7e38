"""How the report is told to people. Fits into 80 columns."""

from __future__ import annotations

from rich.box import SIMPLE_HEAD
from rich.console import Console, Group, RenderableType
from rich.table import Table
from rich.text import Text

from .report import Report
from .timeline import Fault

__all__ = ["print_report", "render"]

NOISE = (
    "Why not the very same accuracy: four workers add up in another order than one process does, and the step in which a "
    "worker dies is averaged over the survivors' share of its batch. One image is 0.3 points."
)
LEGEND = (
    "next average: from the signal until the last survivor has finished an average without the victim. longest pause: between "
    "two averages of any other worker meanwhile. back after: until the worker trains again, imports included."
)


def _ms(seconds: float | None) -> str:
    if seconds is None:
        return "never"
    return f"{seconds * 1e3:.0f} ms" if seconds < 1 else f"{seconds:.2f} s"


def _loss(value: float | None) -> str:
    return "-" if value is None else f"{value:.4f}"


def render(report: Report) -> RenderableType:
    """The figures and the promises."""
    faults = Table(box=SIMPLE_HEAD, header_style="bold", pad_edge=False)
    for name in ("what was done", "to worker", "at"):
        faults.add_column(name, no_wrap=True)
    for name in ("next\naverage", "longest\npause", "back\nafter"):
        faults.add_column(name, justify="right", no_wrap=True)
    for found in report.consequences:
        added = found.fault == Fault.ADD.value
        faults.add_row(
            found.fault,
            f"{found.worker}" if added else f"{found.worker}, rank {found.rank}",
            f"{found.at:.1f} s",
            Text("-", style="dim") if added else Text(_ms(found.recovery), style="bold"),
            _ms(found.pause),
            _ms(found.back),
        )
    promises = Table.grid(padding=(0, 2))
    for promise in report.promises:
        mark = Text("✔", style="bold green") if promise.kept else Text("✘", style="bold red")
        style = "" if promise.kept else "red"
        promises.add_row(mark, Text(promise.name, style="bold", no_wrap=True), Text(promise.text, style=style))
    summary = Text.assemble(
        (f"{report.steps} steps", "bold"),
        f" in {report.seconds:.1f} s, usually {_ms(report.step_seconds)} each; {report.epochs} epochs, ",
        f"{report.processes} processes. ",
        f"Loss of the last 100 steps: {_loss(report.last_loss)}, undisturbed {_loss(report.reference_last_loss)}.",
    )
    return Group(faults, Text(LEGEND, style="dim"), Text(), summary, Text(), promises, Text(), Text(NOISE, style="dim"))


def print_report(report: Report, console: Console) -> None:
    """The report and the verdict."""
    console.print(render(report), highlight=False)
    broken = [promise.name for promise in report.promises if not promise.kept]
    verdict = (
        Text(f"BROKEN: {', '.join(broken)}", style="bold red")
        if broken
        else Text("All promises were kept.", style="bold green")
    )
    console.print(Text(), verdict, Text(), sep="\n")
