"""All runs of all systems: a table for people and the docs, a picture of the losses, and everything as JSON."""

from __future__ import annotations

import dataclasses
import itertools
import json
import math
import re
import statistics
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from benchmarks.peers.figures import Figures
from benchmarks.peers.plan import FAULTS
from benchmarks.peers.systems import KINDS, Kind

FAULT_NAMES = {
    "kill": "a worker is killed",
    "stop": "... is stopped",
    "wedge": "... hangs in its training thread",
    "leave": "... is told to leave",
    "join": "one more joins",
    "master": "the lighthouse, or the launcher, is killed",
}
OURS = "ftlib"
PAGE = Path(__file__).resolve().parents[2] / "docs" / "comparison.md"
_PLACE = re.compile(r"(?s)(<!-- peers -->\n).*?(?=<!-- end -->)")

Value = tuple[float, bool]
"""A figure, and whether it was measured to its end; if not, it is at least as much."""


@dataclasses.dataclass(frozen=True)
class Row:
    """One thing that is compared: the smaller, the better, unless told."""

    name: str
    values: Callable[[Figures], Sequence[Value]]
    form: str = "{:.2f}"
    more_is_better: bool = False


def _plain(field: str, factor: float = 1.0) -> Callable[[Figures], Sequence[Value]]:
    def values(found: Figures) -> Sequence[Value]:
        value = getattr(found, field)
        return [] if value is None or found.apart else [(value * factor, True)]

    return values


def _per_batch(found: Figures) -> Sequence[Value]:
    whole = found.cpu is not None and found.batches and not found.apart
    return [(found.cpu / found.batches * 1e3, True)] if whole else []


ROWS = (
    *(
        Row(f"{name}: longest pause of a survivor (s)", lambda found, kind=kind: found.pauses.get(kind, []))
        for kind, name in FAULT_NAMES.items()
    ),
    Row("batches computed for nothing", _plain("lost"), "{:.0f}"),
    Row("steps made again", _plain("repeated"), "{:.0f}"),
    Row("steps with unequal parameters", _plain("unequal"), "{:.0f}"),
    Row("started again as a whole", _plain("restarts"), "{:.0f}"),
    Row("goodput", _plain("goodput"), "{:.2f}", more_is_better=True),
    Row("start to three common steps (s)", _plain("start"), "{:.1f}"),
    Row("a step, undisturbed (ms)", _plain("usual", 1e3), "{:.0f}"),
    Row("processor time a thousand batches (s)", _per_batch, "{:.0f}"),
)


class Comparison:
    """Grows with every run."""

    def __init__(self, kinds: Sequence[Kind], missing: Mapping[str, str], folder: Path, load: str) -> None:
        """``missing``: why a system is left out, by its name."""
        self._kinds = kinds
        self._missing = missing
        self._folder = folder
        self._load = load
        self._found: dict[str, list[Figures]] = {kind.name: [] for kind in kinds}
        self._remarks: list[str] = []

    def resume(self) -> None:
        """Go on from the figures that are in the folder."""
        told = json.loads((self._folder / "figures.json").read_text())
        names = dict.fromkeys([*told["found"], *self._found])
        self._kinds = [kind for name in names for kind in KINDS if kind.name == name]
        self._found = {name: [Figures(**each) for each in told["found"].get(name, ())] for name in names}
        for found in itertools.chain.from_iterable(self._found.values()):
            found.pauses = {kind: [(value, over) for value, over in pauses] for kind, pauses in found.pauses.items()}
        self._missing, self._remarks = {**told["missing"], **self._missing}, told["remarks"]
        self._load = f"{told['load']}, then {self._load}"

    @property
    def failed(self) -> list[str]:
        """Runs that did not come to their end."""
        return [
            f"{name}, run {number}: {each.failed}"
            for name, found in self._found.items()
            for number, each in enumerate(found, 1)
            if each.failed
        ]

    @property
    def complete(self) -> bool:
        """Whether all that was to run has run to its end."""
        return not (self.failed or self._missing or self._remarks)

    def add(self, found: Figures) -> None:
        """One run; the figures and the table are written."""
        self._found[found.system].append(found)
        self._write()

    def remark(self, text: str) -> None:
        """What else a reader has to know; the figures and the table are written."""
        print(text, flush=True)
        self._remarks.append(text)
        self._write()

    def line(self, found: Figures) -> str:
        """One run in a line."""
        kinds = [kind for kind in FAULTS if kind in found.pauses]
        pauses = [f"{kind} {' '.join(_text(value, '{:.2f}') for value in found.pauses[kind])}" for kind in kinds]
        counts = f"{found.lost} lost, {found.repeated} again, {found.unequal} unequal, {found.restarts} restarts"
        goodput = "" if found.goodput is None else f", goodput {found.goodput:.2f}"
        return f"{found.system}: {', '.join(pauses)}; {counts}{goodput}{'; ' * bool(found.failed)}{found.failed}"

    def table(self) -> str:
        """As Markdown. The best of each row is bold; below it stands where another one than ftlib is best."""
        names = [kind.name for kind in self._kinds]
        lines = ["| | " + " | ".join(names) + " |", "| --- |" + " --- |" * len(names)]
        lost = []
        for row in ROWS:
            values = {name: [value for found in self._found[name] for value in row.values(found)] for name in names}
            middle = {name: median(each) for name, each in values.items() if each}
            if not middle:
                continue
            best = _best(row, middle)
            times = max(len(each) for each in values.values())
            lines.append(
                "| "
                + " | ".join([f"{row.name}, of {times}", *(self._cell(row, name, values[name], best) for name in names)])
                + " |"
            )
            if best is not None and OURS in middle and _text(middle[OURS], row.form) != best:
                winners = " and ".join(name for name, each in middle.items() if _text(each, row.form) == best)
                lost.append(f"* Best at *{row.name}*: {winners}, {best}; ftlib {_text(middle[OURS], row.form)}.")
        runs = max((sum(not each.apart for each in found) for found in self._found.values()), default=0)
        head = (
            f"Medians [least - most] of up to {runs} rounds; {self._load}. The number behind each row's name says of how many: "
            "faults are played in turns, so each comes in some of the rounds. `> N`: not over after N seconds, where waiting "
            "ended. A dash: it has no such thing, or it was not played.\n"
        )
        remarks = [f"* {kind.name}: {kind.settings}." for kind in self._kinds]
        remarks += [f"* Left out: {name}: {why}" for name, why in self._missing.items()]
        remarks += [f"* Not played to its end: {text}." for text in self.failed]
        remarks += [f"* {text}" for text in self._remarks]
        if not lost and len(names) > 1:
            lost = ["* No other system is better at any of these."]
        return "\n".join([head, *lines, "", *lost, "", *remarks])

    def _cell(self, row: Row, name: str, values: Sequence[Value], best: str | None) -> str:
        if not values:
            return "failed" if self._found[name] and all(found.failed for found in self._found[name]) else "-"
        text = middle = _text(median(values), row.form)
        if len(values) > 1:
            least, most = min(values), max(values)
            text += f" [{_text(least, row.form)} - {_text(most, row.form)}]"
        return f"**{text}**" if middle == best else text

    def _write(self) -> None:
        self._folder.mkdir(parents=True, exist_ok=True)
        found = {name: [dataclasses.asdict(each) for each in runs] for name, runs in self._found.items()}
        told = {"found": found, "missing": dict(self._missing), "remarks": self._remarks, "load": self._load}
        (self._folder / "figures.json").write_text(json.dumps(told))
        (self._folder / "table.md").write_text(self.table() + "\n")

    def draw(self) -> None:
        """The picture: once a round, as it takes a second for which nothing else runs."""
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


def into_docs(table: str, page: Path = PAGE) -> None:
    """Write that table between ``<!-- peers -->`` and ``<!-- end -->``."""
    page.write_text(_PLACE.sub(lambda at: at[1] + table.strip() + "\n", page.read_text(encoding="utf-8")), encoding="utf-8")


def median(values: Sequence[Value]) -> Value:
    """The median, or the least that it can be, where that depends on how long what was not over would have taken."""
    low = statistics.median(value for value, _ in values)
    high = statistics.median_high(value if over else math.inf for value, over in values)
    high = statistics.median(value if over else math.inf for value, over in values) if high != math.inf else high
    return low, low == high


def _best(row: Row, middle: Mapping[str, Value]) -> str | None:
    """The best figure as it is shown, if that is certain, and not all are alike."""
    whole = [value for value, over in middle.values() if over]
    if not whole or len({_text(each, row.form) for each in middle.values()}) == 1:
        return None
    best = (max if row.more_is_better else min)(whole)
    certain = all(over or value >= best for value, over in middle.values())
    return row.form.format(best) if certain else None


def _text(value: Value, form: str) -> str:
    return ("" if value[1] else "> ") + form.format(value[0])
