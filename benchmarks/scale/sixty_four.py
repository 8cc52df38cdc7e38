"""Many real members in few processes, as memberlist is measured: how soon all lists are whole, how soon a crashed one is gone.

    python -m benchmarks sixty_four                    # 4, 16 and 64 members: three minutes
    python -m benchmarks sixty_four --sizes 64 --rounds 3

Every member has sockets and an agent of its own, and authenticates the others; no tensors. They are started one after another,
as fast as they start, and join through the first. The members share three processes, but one has a process of its own, which
is killed. CPU time is that of all processes, user and system, while nothing happens.
"""

from __future__ import annotations

import itertools
import json
import os
import queue
import secrets
import signal
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any, Self

from benchmarks.job import cpu_seconds
from benchmarks.report import Report, parser, spread
from ftlib.common.processes import die_with_parent
from tests.harness.nursery import ROOT, Stuck

LIMIT = 40.0
BARS = {64: (5.0, 0.3, 0.004)}
"""By members: seconds until every list is whole, seconds until a crashed one is gone from all, share of a core a member."""


class House:
    """One process of ``python -m benchmarks lodging``."""

    def __init__(self, news: queue.SimpleQueue[tuple[House, dict[str, Any]]]) -> None:
        parent = os.getpid()
        self.process = subprocess.Popen(
            [sys.executable, "-m", "benchmarks", "lodging"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env={**os.environ, "PYTHONPATH": str(ROOT)},
            preexec_fn=lambda: die_with_parent(parent),  # noqa: PLW1509
        )
        self._news = news
        threading.Thread(target=self._read, daemon=True).start()

    def order(self, order: Any) -> None:
        """Give an order."""
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps(order).encode() + b"\n")
        self.process.stdin.flush()

    def kill(self) -> float:
        """SIGKILL; CLOCK_MONOTONIC just before."""
        now = time.monotonic()
        self.process.send_signal(signal.SIGKILL)
        return now

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self._news.put((self, json.loads(line)))


class Town:
    """All members of one job, as a context manager that leaves nothing behind."""

    def __init__(self, size: int, houses: int = 3, **settings: Any) -> None:
        """Starts the processes; no member yet. ``settings``: of all members."""
        self.size = size
        self._settings = {"job": f"town-{secrets.token_hex(6)}", "secret": secrets.token_hex(16), **settings}
        self._news: queue.SimpleQueue[tuple[House, dict[str, Any]]] = queue.SimpleQueue()
        self.houses = [House(self._news) for _ in range(houses)]
        self.alone = House(self._news)
        """Where one member lives by itself."""
        self.views: dict[int, dict[str, Any]] = {}
        """The newest of each member."""
        self.lists: list[list[str]] = []
        self.sent: list[dict[str, int]] = []
        self.stored: list[int] = []
        self.address = ""
        self._begun = 0
        self._ready = 0
        self._told = 0
        self._lonely = -1

    @property
    def all_houses(self) -> list[House]:
        """The one where a member lives alone too."""
        return [*self.houses, self.alone]

    def __enter__(self) -> Self:
        self.until("the processes are up", lambda: self._ready == len(self.houses) + 1)
        return self

    def __exit__(self, *_: object) -> None:
        for house in self.all_houses:
            house.process.kill()
            house.process.wait()

    def until(self, what: str, condition: Callable[[], bool]) -> None:
        """Take in news until ``condition()``."""
        deadline = time.monotonic() + LIMIT
        while not condition():
            try:
                _, news = self._news.get(timeout=max(0.0, deadline - time.monotonic()))
            except queue.Empty:
                raise Stuck(f"not within {LIMIT:g} s: {what}; newest views {self.views}") from None
            if "member" in news:
                self.views[news["member"]] = news
            elif "lists" in news:
                self._told += 1
                self.lists += news["lists"]
                self.sent += news["sent"]
                self.stored += news["stored"]
            elif "address" in news:
                self.address = news["address"]
                self._begun += 1
            else:
                self._ready += "ready" in news

    def fill(self) -> float:
        """Start all, one after another; seconds from the first one's start until every list is whole."""
        began = time.monotonic()
        settings = dict(self._settings)
        places = itertools.cycle(self.houses)
        self._lonely = self.size // 2
        for number in range(self.size):
            self.address = ""
            house = self.alone if number == self._lonely else next(places)
            house.order({"number": number, "start": settings})
            self.until("a member starts", lambda: bool(self.address))
            settings.setdefault("introducers", (self.address,))
        self.started = time.monotonic() - began
        self.until("every list is whole", lambda: self._agreed(self.size))
        return max(view["t"] for view in self.views.values()) - began

    def fill_at_once(self) -> float:
        """Start all without waiting for any; they find each other by themselves. Seconds until every list is whole."""
        began = time.monotonic()
        self._lonely = self.size - 1
        places = itertools.cycle(self.houses)
        for number in range(self.size):
            house = self.alone if number == self._lonely else next(places)
            house.order({"number": number, "start": self._settings})
        self.until("all members start", lambda: self._begun == self.size)
        self.started = time.monotonic() - began
        self.until("every list is whole", lambda: self._agreed(self.size))
        return max(view["t"] for view in self.views.values()) - began

    def crash(self) -> float:
        """Kill the one that lives alone; seconds until it is in nobody's list."""
        began = self.alone.kill()
        del self.views[self._lonely]
        self.until("it is gone from every list", lambda: self._agreed(self.size - 1))
        return max(view["t"] for view in self.views.values()) - began

    def look(self, houses: Sequence[House]) -> None:
        """Have ``lists``, ``sent`` and ``stored`` told anew."""
        self._told, self.lists, self.sent, self.stored = 0, [], [], []
        for house in houses:
            house.order("look")
        self.until("all tell what they know", lambda: self._told == len(houses))

    def idle(self, seconds: float) -> tuple[float, float]:
        """Share of a core, and bytes sent a second, of a member while nothing happens."""
        self.look(self.all_houses)
        before, cpu, began = self._bytes(), self._cpu(), time.monotonic()
        time.sleep(seconds)  # the time that is measured
        lasted, used = time.monotonic() - began, self._cpu() - cpu
        self.look(self.all_houses)
        return used / lasted / self.size, (self._bytes() - before) / lasted / self.size

    def check(self, size: int) -> None:
        """All lists are alike and have ``size`` members."""
        self.look(self.houses if size < self.size else self.all_houses)
        assert len(self.lists) == size, f"{len(self.lists)} members of {size}"
        odd = [len(each) for each in self.lists if each != self.lists[0] or len(each) != size]
        assert not odd, f"{len(odd)} lists are not like the first, which has {len(self.lists[0])} members; they have {odd[:10]}"

    def _agreed(self, size: int) -> bool:
        return len(self.views) == size and all(view["size"] == size for view in self.views.values())

    def _bytes(self) -> int:
        return sum(sum(kinds.values()) for kinds in self.sent)

    def _cpu(self) -> float:
        return sum(sum(cpu_seconds(house.process.pid)) for house in self.all_houses)


def measure(size: int, rounds: int, seconds: float, report: Report) -> None:
    """Rows for clusters of ``size``."""
    whole, started, gone, shares, rates = [], [], [], [], []
    for index in range(rounds):
        report.say(f"{size} members, round {index + 1} of {rounds}")
        with Town(size) as town:
            whole.append(town.fill())
            started.append(town.started)
            town.check(size)
            time.sleep(2.0)  # rumours of the last joins are told a few more rounds; idle begins after them
            share, rate = town.idle(seconds)
            shares.append(share)
            rates.append(rate)
            gone.append(town.crash())
            town.check(size - 1)
    soon, quick, light = BARS.get(size, (None, None, None))
    _row(report, f"{size} joined: every list is whole", spread(whole, unit="s"), whole, soon, "s")
    report.row(f"{size}: the last one is started", spread(started, unit="s"))
    _row(report, f"{size}: one crashed is gone from every list", spread(gone), gone, quick, "s")
    text = f"{statistics.median(shares):.3%} [{min(shares):.3%} - {max(shares):.3%}]"
    _row(report, f"{size}: idle CPU of a member", text, shares, light, "")
    report.row(f"{size}: sent by an idle member", f"{statistics.median(rates) / 1e3:.2f} KB/s")


def _row(report: Report, what: str, text: str, values: Sequence[float], bar: float | None, unit: str) -> None:
    if bar is None:
        report.row(what, text)
    else:
        limit = f"<= {bar:g} {unit}" if unit else f"<= {bar:.1%} of a core"
        report.row(what, text, bar=limit, good=statistics.median(values) <= bar)


def main() -> int:
    options = parser(__doc__, agent=False, rounds=5)
    options.add_argument("--sizes", type=int, nargs="+", default=[4, 16, 64])
    options.add_argument("--seconds", type=float, default=10.0, help="of rest, a round, for CPU and traffic")
    args = options.parse_args()
    expected = len(args.sizes) * args.rounds * (args.seconds + 7.0)
    report = Report(f"members in 4 processes, {args.rounds} rounds each", expected)
    for size in args.sizes:
        measure(size, args.rounds, args.seconds, report)
    return report.finish()
