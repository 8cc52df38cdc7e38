"""All runs of all systems: a table for people, one for the docs, a picture of the losses, and everything as JSON."""

from __future__ import annotations

import dataclasses
import json
import statistics
from collections.abc import Callable, Sequence
from pathlib import Path

from benchmarks.peers.figures import Figures
from benchmarks.peers.play import FAULTS
from benchmarks.peers.systems import Kind

FAULT_NAMES = {
    "kill": "a worker is killed",
    "stop": "... is stopped",
    "wedge": "... hangs in its training thread",
    "leave": "... is told to leave",
    "join": "one more joins",
    "master": "lighthouse, torchrun killed",
}
OURS = "ftlib"


@dataclasses.dataclass(frozen=True)
class Row:
    """One thing that is compared: the smaller, the better, unless told."""

    name: str
    values: Callable[[Figures], Sequence[float]]
    form: str = "{:.2f}"
    more_is_better: bool = False


ROWS = (
    *(
        Row(f"{name}: longest pause of a survivor (s)", lambda found, kind=kind: found.pauses.get(kind, []))
        for kind, name in FAULT_NAMES.items()
    ),
    Row("batches computed for nothing", lambda found: [found.lost], "{:.0f}"),
    Row("steps made again", lambda found: [found.repeated], "{:.0f}"),
    Row("steps with unequal parameters", lambda found: [found.unequal], "{:.0f}"),
    Row("goodput", lambda found: [found.goodput], "{:.2f}", more_is_better=True),
    Row("start to ten common steps (s)", lambda found: [found.start], "{:.1f}"),
    Row("a step, undisturbed (ms)", lambda found: [found.usual * 1e3], "{:.1f}"),
    Row("processor time a thousand batches (s)", lambda found: [found.cpu / max(found.batches, 1) * 1e3], "{:.1f}"),
)


class Comparison:
    """Grows with every run."""

    def __init__(self, kinds: Sequence[Kind], folder: Path, load: str) -> None:
        self._kinds = kinds
        self._folder = folder
        self._load = load
        self._found: dict[str, list[Figures]] = {kind.name: [] for kind in kinds}

    @property
    def failed(self) -> list[str]:
        """Runs that did not come to their end."""
        return [f"{name}: {each.failed}" for name, found in self._found.items() for each in found if each.failed]

    def add(self, found: Figures) -> None:
        """One run."""
        self._found[found.system].append(found)

    def line(self, found: Figures) -> str:
        """One run in a line."""
        if found.failed:
            return f"{found.system}: {found.failed}"
        kinds = [kind for kind in FAULTS if kind in found.pauses]
        pauses = [f"{kind} {' '.join(f'{pause:.2f}' for pause in found.pauses[kind])}" for kind in kinds]
        counts = f"{found.lost} lost, {found.repeated} again, {found.unequal} unequal, goodput {found.goodput:.2f}"
        return f"{found.system}: {', '.join(pauses)}; {counts}"

    def table(self) -> str:
        """As Markdown. The best of each row is bold; below it stands where another one than ftlib is best."""
        names = [kind.name for kind in self._kinds if any(not found.failed for found in self._found[kind.name])]
        lines = ["| | " + " | ".join(names) + " |", "| --- |" + " --- |" * len(names)]
        lost = []
        for row in ROWS:
            values = {
                name: [value for found in self._found[name] if not found.failed for value in row.values(found)]
                for name in names
            }
            medians = {name: statistics.median(each) for name, each in values.items() if each}
            if not medians:
                continue
            best = (max if row.more_is_better else min)(medians.values())
            lines.append("| " + " | ".join([row.name, *(_cell(row, values[name], best) for name in names)]) + " |")
            if OURS in medians and medians[OURS] != best:
                winner = next(name for name, median in medians.items() if median == best)
                lost.append(
                    f"* {winner} is best at: {row.name}, {row.form.format(best)} against {row.form.format(medians[OURS])}."
                )
        settings = [f"* {kind.name}: {kind.settings}." for kind in self._kinds if kind.name in names]
        runs = max(len(found) for found in self._found.values())
        head = f"Medians [least - most] of {runs} rounds; {self._load}. A dash: it has no such thing.\n"
        return "\n".join(
            [
                head,
                *lines,
                "",
                *(lost or ["* ftlib is best at everything here."] * (len(names) > 1)),
                "",
                *settings,
                *self.failed,
            ]
        )

    def write(self) -> None:
        """All files, so far."""
        self._folder.mkdir(parents=True, exist_ok=True)
        found = {name: [dataclasses.asdict(each) for each in runs] for name, runs in self._found.items()}
        (self._folder / "figures.json").write_text(json.dumps(found))
        (self._folder / "table.md").write_text(self.table() + "\n")
        self._draw()

    def _draw(self) -> None:
        import matplotlib as mpl

        mpl.use("agg")
        from matplotlib import pyplot as plt

        figure, axes = plt.subplots(figsize=(8, 4.5))
        for kind in self._kinds:
            runs = [found for found in self._found[kind.name] if found.losses]
            if runs:
                axes.plot(*zip(*runs[-1].losses, strict=True), label=kind.name, linewidth=1)
        axes.set(xlabel="seconds", ylabel="loss on the test set", yscale="log", title="the last round")
        if axes.lines:
            axes.legend()
        figure.tight_layout()
        for kind_of_file in ("png", "svg"):
            figure.savefig(self._folder / f"loss.{kind_of_file}")
        plt.close(figure)


def _cell(row: Row, values: Sequence[float], best: float) -> str:
    if not values:
        return "-"
    median = statistics.median(values)
    text = row.form.format(median)
    if len(values) > 1:
        text += f" [{row.form.format(min(values))} - {row.form.format(max(values))}]"
    return f"**{text}**" if median == best else text
