"""What a benchmark prints: how long it will take, one table, and whether the bars held (the exit code)."""

from __future__ import annotations

import argparse
import inspect
import math
import signal
import statistics
import sys
import time
from collections.abc import Sequence
from typing import Any

from rich.console import Console
from rich.table import Table

from tests.harness.cluster import load
from tests.harness.verdict import Verdict

AGENTS = ("process", "thread")


def parser(text: str | None, *, agent: bool = True, **numbers: float) -> argparse.ArgumentParser:
    """``text``: the docstring; ``numbers``: options whose names say everything, by their defaults. SIGTERM acts as Ctrl-C."""
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    description = inspect.cleandoc(text or "")
    options = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name, default in numbers.items():
        options.add_argument(f"--{name.replace('_', '-')}", type=type(default), default=default)
    if agent:
        options.add_argument("--agent", choices=AGENTS, help="where the agent runs (default: the library's own choice)")
    return options


def chosen(agent: str | None, **more: Any) -> dict[str, Any]:
    """Settings of ``FTLib.init``; where the agent runs only if that was chosen."""
    return {**({"agent": agent} if agent else {}), **more}


def spread(seconds: Sequence[float], *, unit: str = "ms") -> str:
    """``median [least - most]``."""
    if not seconds:
        return "none"
    values = sorted(value * (1e3 if unit == "ms" else 1.0) for value in seconds)
    places = 1 if unit == "ms" else 2
    return f"{statistics.median(values):.{places}f} {unit} [{values[0]:.{places}f} - {values[-1]:.{places}f}]"


class Report:
    """One benchmark's table."""

    def __init__(self, title: str, expected: float, columns: Sequence[str] = ("measured",)) -> None:
        """``expected``: seconds that it will take."""
        self.missed: list[str] = []
        self._bars = 0
        self._began = time.monotonic()
        self._before = load()
        self._title = title
        self._columns = tuple(columns)
        self._rows: list[tuple[str, ...]] = []
        many = f"{expected / 60:.1f} minutes" if expected >= 90 else f"{expected:.0f} s"
        print(f"{title}; takes about {many}; {self._before}", flush=True)

    def row(self, what: str, *measured: str, bar: str = "", good: bool | None = None) -> None:
        """``good``: whether the bar was held, None where there is none."""
        verdict = "" if good is None else "met" if good else "MISSED"
        self._bars += good is not None
        if good is False:
            self.missed.append(what)
        self._rows.append((what, *measured, bar, verdict))

    def bar(self, what: str, seconds: Sequence[float], limit: float, *, unit: str = "s", worst: float = math.inf) -> None:
        """A row for times: their median is to be within ``limit``, each within ``worst``; none at all is a miss."""
        good = bool(seconds) and statistics.median(seconds) <= limit and max(seconds) <= worst
        text = f"<= {limit * 1e3:g} ms" if unit == "ms" else f"<= {limit:g} s"
        self.row(what, spread(seconds, unit=unit), bar=text, good=good)

    def verdict(self, verdict: Verdict, whose: str = "") -> None:
        """A row for what may never happen, the first cases of it in full. ``whose``: put before."""
        for violation in verdict.violations[:5]:
            print(f"VIOLATION {violation}", flush=True)
        text = f"{len(verdict.violations)} in {verdict.steps} steps"
        self.row(f"{whose}steps lost, results that differ", text, bar="0", good=not verdict.violations)

    def say(self, text: str) -> None:
        """Progress, on a terminal only."""
        if sys.stderr.isatty():
            print(f"\r\x1b[K{text}", end="", file=sys.stderr, flush=True)

    def finish(self) -> int:
        """Print everything; 1 where a bar was missed."""
        self.say("")
        table = Table(title=f"{self._title}\n{time.monotonic() - self._began:.0f} s; {self._before}, then {load()}")
        table.title_justify = "left"
        for column in ("what", *self._columns, "bar", ""):
            table.add_column(column, overflow="fold")
        for row in self._rows:
            table.add_row(*(text.replace("[", "\\[") for text in row))
        Console(width=132, highlight=False).print(table)
        if self._bars:
            print("all bars held" if not self.missed else f"NOT HELD: {'; '.join(self.missed)}", flush=True)
        return int(bool(self.missed))
