"""What the dashboard costs, how soon it shows something, and whom it lets in.

    python -m benchmarks dashboard                          # all rows: about twelve minutes
    python -m benchmarks dashboard --rows kill --kills 3    # some, each within four minutes; and shorter

*step*: four workers under ``ftlib run`` average 4 KB in a tight loop; four viewers (a process of their own) look at the agent
of worker 0, in turns with nobody. *kill*: workers of such a job are killed while four look. *order*: by orders from the page.
What a kill costs with viewers and traces is told by ``python -m benchmarks tracing --only kill``.
*cost*: 64 members, as 64 statuses like those of real members that change with each sample, served by the agent's own code in a
process of its own, whose CPU time it is; what is not in it are the signed requests to two other members at a time.
*stuck*: the same, and viewers that read nothing; whoever is hung up on comes again.
*page*: the same 64 members in Chromium, if it is there.
*hostile*: requests without or with wrong tokens, under foreign hosts and origins, malformed and stale orders, to a job of two.
The attacker runs on the job's own cores: so the same is sent to a bare server beside the job, and what that costs is the floor.
What the agent alone costs is told by its processor time, and by a job with one core to itself while the attacker has others.
``--elements 1000000``: the steps of ``python -m benchmarks hostile``; else steps of 4 KB, which show more.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import http.client
import json
import os
import random
import select
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple, Self

import psutil
from aiohttp import web

from benchmarks.report import Report, parser, spread
from benchmarks.steps.costs import PROBES
from consensus import KeyRing, Mount
from ftlib.cli.status import fetch_status
from ftlib.common.processes import die_with_parent
from ftlib.dashboard.desk import BrowserAuthenticator, Desk, Means
from ftlib.dashboard.watch import Sources, Watch
from tests.dashboard.statuses import member_id, status
from tests.harness.basics import eventually
from tests.harness.nursery import ROOT
from tests.launch.helpers import SECRET, Run, running

RING = KeyRing([SECRET])
TOKEN = RING.first.bearer(Mount.PURPOSE)
WORKER = """
import json, os, statistics, threading, time
import torch
from ftlib import FTLib

model = torch.nn.Linear(int(os.environ.get("ELEMENTS", "1024")) - 1, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
index = os.environ["FTLIB_WORKER_INDEX"]

def spent():  # processor time of this thread, and of ftlib's own threads in this process
    own = [each.native_id for each in threading.enumerate() if each.name.startswith("ftlib")]
    return time.thread_time(), sum(time.clock_gettime((~each << 3) | 6) for each in own)

with FTLib.init() as ft, open(f"steps-{index}-{os.getpid()}.jsonl", "w", buffering=1) as file:
    ft.register_state(model=model, optimizer=optimizer)
    times, began, then_spent = [], time.monotonic(), spent()
    while not ft.should_leave:
        for parameter in model.parameters():
            parameter.grad = torch.ones_like(parameter)
        then = time.perf_counter()
        averaged = ft.allreduce_average(model)
        times.append(time.perf_counter() - then)
        if averaged:
            optimizer.step()
        if time.monotonic() - began > 0.5:
            line = {"t": began, "until": time.monotonic(), "median": statistics.median(times), "steps": len(times)}
            thread, beside = (now - then for now, then in zip(spent(), then_spent))
            file.write(json.dumps({**line, "thread": thread, "beside": beside}) + "\\n")
            times, began, then_spent = [], time.monotonic(), spent()
"""
PATIENT = {"FTLIB_EXCLUDE_AFTER": "60"}
"""On a busy machine a worker may be away for seconds: it is not to be taken for silent. Those that are killed have ended."""
VIEWERS = 4
ROWS = ("step", "kill", "order", "cost", "stuck", "page", "hostile")


def main() -> int:
    options = parser(__doc__, agent=False, kills=20, rounds=6, requests=10_000, seconds=6.0)
    options.add_argument("--rows", nargs="+", default=list(ROWS), choices=ROWS)
    options.add_argument("--elements", type=int, default=1024, help="of the model whose steps are attacked")
    options.add_argument("--serve", type=int, default=0, help="(inside) serve so many members, without a job")
    options.add_argument("--idle", action="store_true", help="(inside) whose statuses do not change")
    options.add_argument("--gaps", action="store_true", help="(inside) and note how long the loop is busy at a time")
    args = options.parse_args()
    if args.serve:
        asyncio.run(_serve(args.serve, idle=args.idle, gaps=args.gaps))
        return 0
    expected = {"step": 30 + 2 * args.rounds * (args.seconds + 3), "kill": 20 + 8 * args.kills, "order": 20 + 7 * args.kills}
    expected |= {"cost": 30 + 6 * args.seconds, "stuck": 160, "page": 60, "hostile": 70 + args.requests / 25}
    report = Report("The dashboard", sum(expected[row] for row in args.rows))
    if "step" in args.rows:
        _step(report, args.rounds, args.seconds)
    if "kill" in args.rows:
        _kill(report, args.kills)
    if "order" in args.rows:
        _orders(report, args.kills)
    if "cost" in args.rows:
        _cost(report, args.seconds)
    if "stuck" in args.rows:
        _stuck(report, 4)
    if "page" in args.rows:
        _page(report)
    if "hostile" in args.rows:
        _hostile(report, args.requests, args.seconds, args.elements)
    return report.finish()


# Viewers


class Viewer:
    """One open page, without a browser: a thread that reads the stream."""

    def __init__(self, address: str, took: Callable[[str, Any], None] = lambda _kind, _value: None, token: str = TOKEN) -> None:
        self._took = took
        self.cookie = enter(address, token)
        self.bytes = 0
        self._connection = http.client.HTTPConnection(address, timeout=60)
        self._connection.request("GET", "/dashboard/events", headers={"Cookie": self.cookie})
        self._answer = self._connection.getresponse()
        assert self._answer.status == 200, self._answer.status
        self._thread = threading.Thread(target=self._read, daemon=True)
        self._thread.start()

    def close(self) -> None:
        """The page is closed."""
        if self._connection.sock is not None:
            self._connection.sock.close()
        self._answer.close()

    def _read(self) -> None:
        kind = ""
        with contextlib.suppress(OSError, ValueError, AttributeError, http.client.HTTPException):
            while line := self._answer.readline():
                self.bytes += len(line)
                if line.startswith(b"event: "):
                    kind = line[7:].decode().strip()
                elif line.startswith(b"data: "):
                    self._took(kind, json.loads(line[6:]))


def enter(address: str, token: str = TOKEN) -> str:
    """The cookie that the token is swapped for."""
    connection = http.client.HTTPConnection(address, timeout=60)
    connection.request("GET", f"/dashboard?token={token}")
    cookie = connection.getresponse().getheader("Set-Cookie") or ""
    connection.close()
    return cookie.partition(";")[0]


LOOKER = """
import sys, time
from benchmarks.steps.dashboard import Viewer
viewers = [Viewer(sys.argv[1], token=sys.argv[3]) for _ in range(int(sys.argv[2]))]
print("look", flush=True)
time.sleep(3600)  # until it is killed
"""


@contextlib.contextmanager
def viewers(address: str, count: int = VIEWERS, token: str = TOKEN) -> Iterator[int]:
    """So many, in a process of their own, whose pid this is."""
    parent = os.getpid()
    process = subprocess.Popen(
        [sys.executable, "-c", LOOKER, address, str(count), token],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        preexec_fn=lambda: die_with_parent(parent),  # noqa: PLW1509
    )
    try:
        assert process.stdout is not None
        assert process.stdout.readline().strip() == b"look"
        yield process.pid
    finally:
        process.kill()
        process.communicate()


# A real job


def _started(launched: Run, worker: int = 0) -> dict[str, Any]:
    return dict([event for event in launched.events("started") if event["worker"] == worker][-1])


def _address(launched: Run, worker: int = 0) -> str:
    return str(_started(launched, worker)["address"])


def _together(address: str, count: int) -> dict[str, Any]:
    """The status once all are in one view and average."""
    found: dict[str, Any] = {}

    def whole() -> bool:
        found.update(fetch_status(address, 30.0, [RING]))
        facts = found.get("ftlib") or {}
        return len(found["members"]) == count == facts.get("size") and not found["changing"] and facts.get("step", 0) > 0

    eventually(whole, f"{count} members train together", 120)
    time.sleep(2.0)  # until joiners have the state, and nothing is under way
    return found


def _steps(directory: Path, since: float, until: float) -> list[float]:
    """The medians of all half seconds that lie wholly between."""
    return [line["median"] for line in _lines(directory, since, until)]


def _lines(directory: Path, since: float, until: float) -> list[dict[str, float]]:
    """What the workers wrote of these half seconds."""
    lines = [json.loads(line) for file in directory.glob("steps-*") for line in file.read_text().splitlines() if line]
    return [line for line in lines if line["t"] >= since and line["until"] <= until]


@contextlib.contextmanager
def _working() -> Iterator[tuple[Run, Path, str]]:
    """A job of four under ``ftlib run``, its directory, and the address of worker 0."""
    with tempfile.TemporaryDirectory() as place:
        directory = Path(place)
        with running(directory, "-n", 4, "--max-restarts", 1000, script=WORKER, **PATIENT) as launched:
            launched.wait_events("announced", 4)
            address = _address(launched)
            _together(address, 4)
            yield launched, directory, address
            os.kill(launched.process.pid, signal.SIGTERM)
            launched.finish()


def _step(report: Report, rounds: int, seconds: float) -> None:
    with _working() as (launched, directory, address):
        workers = [int(event["pid"]) for event in launched.events("started")]
        agents = [child.pid for pid in workers for child in psutil.Process(pid).children(recursive=True)]
        medians: dict[bool, list[float]] = {False: [], True: []}
        late: dict[bool, list[float]] = {False: [], True: []}
        used: dict[bool, list[_Used]] = {False: [], True: []}
        messages: Counter[bool] = Counter()
        steps: Counter[bool] = Counter()
        for _ in range(rounds):
            for looked in (False, True):
                report.say(f"4 KB averages, {'4 viewers' if looked else 'nobody'}")
                with viewers(address) if looked else contextlib.nullcontext() as there:
                    beside = [] if there is None else [there]
                    time.sleep(1.0)  # viewers have had their snapshots
                    before, spent = _counted(address), [sum(map(_spent, each)) for each in (agents, beside)]
                    began = time.monotonic()
                    time.sleep(seconds)  # the time that is measured
                    more = [sum(map(_spent, each)) for each in (agents, beside)]
                    until = time.monotonic()
                    rates = [(now - then) / (until - began) for now, then in zip(more, spent, strict=True)]
                    lines = _lines(directory, began, until)
                    medians[looked] += [line["median"] for line in lines]
                    used[looked].append(_Used(*_of_workers(lines, len(workers)), *rates))
                    after = _counted(address)
                messages[looked] += after.messages - before.messages
                steps[looked] += after.step - before.step
                late[looked].append((after.late - before.late) / max(1, after.ticks - before.ticks))
        added = statistics.median(medians[True]) - statistics.median(medians[False])
        what = f"{added * 1e6:+.0f} us: {spread(medians[True])}, nobody {spread(medians[False])}"
        report.row("4 KB average, 4 viewers", what, bar="+20 us", good=added <= 20e-6)
        _tell_used(report, used, statistics.median(medians[False]))
        for looked, who in ((False, "nobody looks"), (True, "4 viewers")):
            text = f"{messages[looked]} in {steps[looked]} steps"
            report.row(f"messages but those by the clock, {who}", text, bar="0", good=not messages[looked])
        what = f"{spread(late[True])}, nobody {spread(late[False])}"
        report.row("how late the asked agent's timers fire", what)
        report.row("... the latest since it began", f"{_counted(address).latest * 1e3:.1f} ms")


class _Used(NamedTuple):
    """Seconds of processor time."""

    training: float
    """Of one thread that trains, a step."""
    beside: float
    """Of ftlib's threads in all workers, a second: without Gloo's, which do the same whoever looks."""
    agents: float
    """Of all agents, a second."""
    viewers: float
    """Of the process that looks, a second."""


def _tell_used(report: Report, used: dict[bool, list[_Used]], step: float) -> None:
    """What the viewers make others use, and by how much a ``step`` (seconds) is longer where the job uses all cores without it.

    It is processor time, so what else this machine does matters less than for the time of a step.
    """
    medians = {looked: _Used(*map(statistics.median, zip(*found, strict=True))) for looked, found in used.items()}
    more = _Used(*(now - then for now, then in zip(medians[True], medians[False], strict=True)))
    nobody = f"{medians[False].training * 1e6:.0f} us"
    report.row("processor time of a training thread, a step", f"{more.training * 1e6:+.1f} us to {nobody}")
    others = f"ftlib's threads in workers {more.beside * 1e3:+.1f} ms, agents {more.agents * 1e3:+.1f} ms"
    what = f"{others}, the viewers' process {more.viewers * 1e3:+.1f} ms"
    report.row("processor time a second, of all", what)
    cores = len(os.sched_getaffinity(0))
    delay = (more.beside + more.agents) / cores * step
    what = f"{delay * 1e6:+.1f} us, with the viewers' own process {sum(more[1:]) / cores * step * 1e6:+.1f} us"
    report.row(f"... which is of a step, on {cores} cores that are busy", what, bar="+20 us", good=delay <= 20e-6)


def _of_workers(lines: Sequence[dict[str, float]], workers: int) -> tuple[float, float]:
    """See ``_Used``: what they wrote themselves. The lines are of all workers, each for a time of its own."""
    seconds = sum(line["until"] - line["t"] for line in lines) / workers
    beside = sum(line["beside"] for line in lines) / seconds
    return sum(line["thread"] for line in lines) / sum(line["steps"] for line in lines), beside


def _spent(pid: int) -> float:
    """Processor time of a process so far, by its own clock."""
    return time.clock_gettime((~pid << 3) | _EXACT)


_EXACT = 2
"""Of the clocks of another process (see ``clock_getcpuclockid(3)``) the exact one."""


class _Count(NamedTuple):
    """What a member has counted so far."""

    messages: int
    """Sent, but those that go by the clock."""
    step: int
    ticks: int
    late: float
    latest: float


def _counted(address: str) -> _Count:
    found = fetch_status(address, 30.0, [RING])
    messages = sum(each["messages"] for kind, each in found["messages"]["sent"].items() if kind not in PROBES)
    ticks = found["tick_delay"]
    return _Count(messages, int(found["ftlib"]["step"]), ticks["count"], ticks["sum"], found["tick_delay_max"])


def _kill(report: Report, kills: int) -> None:
    shown: list[float] = []
    with _working() as (_, _, address):
        for number in range(kills):
            report.say(f"kill {number + 1} of {kills}")
            there = _together(address, 4)
            victim = random.choice([member for member in there["members"] if member["id"] != there["member"]])
            seen = Seen(victim["id"])
            with viewers(address, VIEWERS - 1):
                viewer = Viewer(address, seen)
                time.sleep(1.0)  # as above
                seen.began = time.monotonic()
                os.kill(int(victim["meta"]["pid"]), signal.SIGKILL)
                shown.append(seen.took())
                viewer.close()
            eventually(functools.partial(_changed, address, int(there["active_epoch"])), "the others go on", 60)
    report.row(f"kill -> the page shows it, {kills} times", spread(shown))
    report.bar("... 95 %", [_most(shown)], 0.5)


class Seen:
    """What a page is told about one member: when it is not well any more."""

    def __init__(self, member: str) -> None:
        self._member = member
        self.began: float | None = None
        """When it was killed; what is told before counts for nothing."""
        self._took = 0.0
        self._there = threading.Event()

    def __call__(self, kind: str, value: Any) -> None:
        """An event has come."""
        row = (value.get("rows") or {}).get(self._member) if kind == "patch" else None
        turned = kind == "patch" and (self._member in value.get("gone", ()) or (row or {}).get("status", "alive") != "alive")
        if turned and self.began is not None and not self._there.is_set():
            self._took = time.monotonic() - self.began
            self._there.set()

    def took(self) -> float:
        """Seconds until it was shown."""
        assert self._there.wait(60), "the page does not show it"
        return self._took


def _orders(report: Report, kills: int) -> None:
    gone: list[float] = []
    with _working() as (_, _, address):
        for number in range(kills):
            report.say(f"order {number + 1} of {kills}")
            there = _together(address, 4)
            victim = random.choice([member for member in there["members"] if member["id"] != there["member"]])
            viewer = Viewer(address)
            time.sleep(1.0)  # as above
            gone.append(_ordered(address, viewer.cookie, victim, there["active_epoch"]))
            viewer.close()
            eventually(functools.partial(_changed, address, int(there["active_epoch"])), "the others go on", 60)
    report.row(f"order -> the worker is gone, {kills} times", spread(gone))
    report.bar("... 95 %", [_most(gone)], 0.3)


def _changed(address: str, epoch: int) -> bool:
    found = fetch_status(address, 30.0, [RING])
    return int(found["active_epoch"]) > epoch and not found["changing"]


def _most(values: Sequence[float]) -> float:
    """What 95 % of them are within."""
    return sorted(values)[min(len(values) - 1, int(0.95 * len(values)))]


def _ordered(address: str, cookie: str, victim: dict[str, Any], epoch: int) -> float:
    body = json.dumps({"kind": "kill", "member": victim["id"], "epoch": epoch, "key": f"key-{random.random()}"})
    process = os.pidfd_open(int(victim["meta"]["pid"]))
    headers = {"Cookie": cookie, "Origin": f"http://{address}"}
    connection = http.client.HTTPConnection(address, timeout=60)
    began = time.monotonic()
    connection.request("POST", "/dashboard/order", body, headers)
    answer = connection.getresponse()
    text = answer.read()
    assert answer.status == 200, text
    ended, _, _ = select.select([process], [], [], 60)  # as it has ended, whether or not its launcher has looked yet
    took = time.monotonic() - began
    assert ended, "the worker goes on"
    os.close(process)
    connection.close()
    return took


# 64 members, without a job


async def _serve(size: int, *, idle: bool, gaps: bool) -> None:
    """As an agent would; prints its port."""
    count = 0

    def now(number: int) -> dict[str, Any]:
        nonlocal count
        count += not idle
        found = status(number, size=size, step=1000 + count)
        for place, (each, times) in enumerate(found["ftlib"]["step_times"].items()):
            times["last"] = 0.02 + 0.0001 * ((count * 7 + place) % 50)
            if each in found["ftlib"]["peers"]:
                found["ftlib"]["peers"][each]["seconds"] = 0.02
        return found

    async def own() -> dict[str, Any]:
        return now(0)

    def fetch(address: str, _timeout: float) -> dict[str, Any]:
        return dict(json.loads(json.dumps(now(int(address.rpartition(":")[2]) - 7000))))

    longest = 0.0

    async def listen() -> None:
        """Note how late the loop comes back to what is due."""
        nonlocal longest
        while True:
            due = time.monotonic() + 0.005
            await asyncio.sleep(0.005)
            longest = max(longest, time.monotonic() - due)

    async def answer(request: web.BaseRequest) -> web.StreamResponse:
        nonlocal longest
        if request.path == "/gap":
            found, longest = longest, 0.0
            return web.Response(text=str(found))
        return await desk.answer(request)

    runner = web.ServerRunner(web.Server(answer, handler_cancellation=True))
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    port = runner.addresses[0][1]
    watch = Watch("", Sources(fetch, own=own, place=lambda: 0, asked=2))
    means = Means(lambda *_: "", lambda *_: "", lambda _: "", lambda *_: [])
    desk = Desk(watch, means, BrowserAuthenticator(lambda token: token == TOKEN, "lab", port, "", ("127.0.0.1",)), "/dashboard")
    print(port, flush=True)
    await listen() if gaps else await asyncio.Event().wait()


@contextlib.contextmanager
def served(*more: str, size: int = 64) -> Iterator[tuple[str, psutil.Process]]:
    parent = os.getpid()
    process = subprocess.Popen(
        [sys.executable, "-m", "benchmarks", "dashboard", "--serve", str(size), *more],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        preexec_fn=lambda: die_with_parent(parent),  # noqa: PLW1509
    )
    try:
        assert process.stdout is not None
        address = f"127.0.0.1:{int(process.stdout.readline())}"
        yield address, psutil.Process(process.pid)
    finally:
        process.kill()
        process.communicate()


def _used(process: psutil.Process, seconds: float) -> float:
    """Share of a core."""
    before, began = process.cpu_times(), time.monotonic()
    time.sleep(seconds)  # the time that is measured
    after = process.cpu_times()
    return (after.user + after.system - before.user - before.system) / (time.monotonic() - began)


def _cost(report: Report, seconds: float) -> None:
    report.say("64 members")
    with served() as (address, process), viewers(address):
        time.sleep(2.0)  # as above
        share = _used(process, 2 * seconds)
    report.row(
        "CPU with 4 viewers, 64 members that all change", f"{100 * share:.2f} % of a core", bar="+1 %", good=share <= 0.01
    )
    with served("--gaps") as (address, _), viewers(address):
        time.sleep(2.0)  # as above
        _gap(address)
        time.sleep(2 * seconds)  # the time that is measured
        report.row("the longest gap of that agent's loop", f"{_gap(address) * 1e3:.1f} ms")
    with served("--idle") as (address, _):
        viewer = Viewer(address)
        time.sleep(5.0)  # the start is over: what is measured is an idle viewer
        before = viewer.bytes
        time.sleep(2 * seconds)  # the time that is measured
        rate = (viewer.bytes - before) / (2 * seconds)
        viewer.close()
    report.row("a viewer's bytes while nothing changes", f"{rate:.0f} B/s", bar="5 kB/s", good=rate <= 5000)


def _stuck(report: Report, rounds: int) -> None:
    """Memory with viewers that read nothing, each time that all have been hung up on: each comes again at once."""
    report.say("16 stuck viewers")
    with served() as (address, process), Stuck(address, 16) as stuck:
        used = [process.memory_info().rss]
        for number in range(1, rounds + 1):
            eventually(functools.partial(_ended, stuck, 16 * number), "all are hung up on", 120)
            used.append(process.memory_info().rss)
    report.row("16 stuck viewers, until all were hung up on once", f"{(used[1] - used[0]) / 1e6:+.1f} MB")
    grown = [(each - used[1]) / 1e6 for each in used[2:]]
    what = ", ".join(f"{each:+.1f}" for each in grown)
    report.row("... memory after each further time, MB", what, bar="flat", good=max(grown) < 1.0)


def _ended(stuck: Stuck, count: int) -> bool:
    return stuck.ended >= count


def _gap(address: str) -> float:
    """The longest time for which the loop was not back, since the last question; seconds."""
    connection = http.client.HTTPConnection(address, timeout=60)
    connection.request("GET", "/gap")
    found = float(connection.getresponse().read())
    connection.close()
    return found


class Stuck:
    """Viewers that do not read; whoever is hung up on comes again. A thread of its own."""

    def __init__(self, address: str, count: int) -> None:
        host, _, port = address.rpartition(":")
        self._at = host, int(port)
        self._head = f"GET /dashboard/events HTTP/1.1\r\nHost: {address}\r\nCookie: {enter(address)}\r\n\r\n".encode()
        self._count = count
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self.ended = 0
        """Connections that were hung up on."""

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._closed.set()
        self._thread.join()

    def _run(self) -> None:
        poll = select.poll()
        there: dict[int, socket.socket] = {}
        while not self._closed.is_set():
            for _ in range(self._count - len(there)):
                viewer = socket.socket()
                viewer.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 14)
                viewer.connect(self._at)
                viewer.sendall(self._head)
                there[viewer.fileno()] = viewer
                poll.register(viewer, select.POLLRDHUP)
            for number, _ in poll.poll(100):
                poll.unregister(number)
                there.pop(number).close()
                self.ended += 1
        for viewer in there.values():
            viewer.close()


# In a browser


def _page(report: Report) -> None:
    size = len((ROOT / "ftlib" / "dashboard" / "page.html").read_bytes())
    report.row("the page's bytes", f"{size}", bar="100 kB", good=size < 100_000)
    from tests.dashboard.chromium import browser, missing

    if why := missing():
        report.row("first paint, a patch of 64 members", why)
        return
    paints, patches = [], []
    with served() as (address, _), tempfile.TemporaryDirectory() as place:
        for number in range(5):
            report.say("Chromium")
            with browser(Path(place) / str(number)) as driver:
                driver.get(f"http://{address}/dashboard?token={TOKEN}")
                eventually(
                    lambda: driver.execute_script("return document.querySelectorAll('#rows tr').length") == 64, "rows", 60
                )
                found = driver.execute_script(
                    "return performance.getEntriesByName('first-contentful-paint').map(e => e.startTime)"
                )
                paints += [each / 1e3 for each in found]
                for _ in range(8):
                    time.sleep(0.7)
                    patches.append(driver.execute_script("return page.took") / 1e3)
    report.bar("first paint on loopback", paints, 0.3)
    report.bar("a patch of 64 members, worked in", patches, 0.016, unit="ms")


# Hostile requests


def _hostile(report: Report, count: int, seconds: float, elements: int) -> None:
    """Steps while a stranger sends requests as fast as it can: to a bare server beside the job, then to an agent of it."""
    steps: dict[str, list[float]] = {}
    with tempfile.TemporaryDirectory() as place, bare() as other:
        directory = Path(place)
        with running(directory, "-n", 2, script=WORKER, **PATIENT, ELEMENTS=str(elements)) as launched:
            launched.wait_events("announced", 2)
            address = _address(launched)
            there = _together(address, 2)
            attacker = Attacker(address, there)
            [agent] = psutil.Process(int(_started(launched)["pid"])).children()

            def attacked(what: str, target: str, every: float = 0.0) -> float:
                """How many were sent a second."""
                report.say(f"{count} hostile requests {what}")
                began = time.monotonic()
                attacker.send(target, count, every)
                steps[what] = _steps(directory, began, time.monotonic())
                return count / (time.monotonic() - began)

            def calm(what: str) -> float:
                """The agent's processor time a second."""
                report.say("nobody sends anything")
                began, spent = time.monotonic(), _spent(agent.pid)
                time.sleep(seconds)  # the time that is measured
                steps[what] = _steps(directory, began, time.monotonic())
                return (_spent(agent.pid) - spent) / (time.monotonic() - began)

            rest = calm("before")
            floor = attacked("to a bare server", other)
            rest = min(rest, calm("between"))
            spent = _spent(agent.pid)
            pace = attacked("to an agent", address)
            cost = (_spent(agent.pid) - spent) / count - rest / pace
            attacked("at a pace", address, 1 / PACE)
            calm("after")
            apart = _apart(report, launched, directory, attacker, count)
            refused = fetch_status(address, 30.0, [RING])["dashboard"].get("refused", 0)
            assert not launched.events("ended"), "somebody was killed"
            os.kill(launched.process.pid, signal.SIGTERM)
            launched.finish()
    quiet = [each for what in ("before", "between", "after") for each in steps[what]]
    ratios = {what: statistics.median(found) / statistics.median(quiet) for what, found in steps.items()}

    def shown(aim: str) -> str:
        return f"{ratios[aim]:.2f} ({spread(steps[aim])})"

    what = f"{attacker.accepted} accepted, {refused} counted as refused"
    report.row(f"{attacker.sent} hostile requests", what, bar="0 accepted", good=not attacker.accepted)
    report.row(f"step of {elements} parameters while nobody sends anything", spread(quiet))
    raw = ratios["to an agent"]
    report.row(f"... {pace:.0f} requests a second to an agent", shown("to an agent"), bar="1.02", good=raw <= 1.02)
    report.row(f"... {floor:.0f} a second to a bare server beside the job", shown("to a bare server"))
    report.row("... the first by the second", f"{raw / ratios['to a bare server']:.2f}")
    report.row(f"... {PACE:g} a second to an agent", shown("at a pace"))
    cores = len(os.sched_getaffinity(0))
    longer = 1 + cost * PACE / cores
    report.row("the agent's processor time, a hostile request", f"{cost * 1e6:.0f} us")
    what = f"{longer:.3f}"
    report.row(f"... {PACE:g} a second of that, on {cores} busy cores: step", what, bar="1.02", good=longer <= 1.02)
    if apart is None:
        report.row("the job on one core, the attacker on another", "not measured: there is one core")
        return
    calmly, fired = apart
    ratio = statistics.median(fired) / statistics.median(calmly)
    what = f"{ratio:.3f}: {spread(fired)}, nobody {spread(calmly)}"
    report.row(f"job on one core, attacker on another, {PACE:g} a second", what, bar="1.02", good=ratio <= 1.02)


def _apart(
    report: Report, launched: Run, directory: Path, attacker: Attacker, count: int
) -> tuple[list[float], list[float]] | None:
    """Steps in turns in peace and under a steady attack, while the job has one core and the attacker the others.

    So what a step loses is what the agent takes of its core. None where there is one core.
    """
    first, *others = sorted(os.sched_getaffinity(0))
    if not others:
        return None
    launcher = psutil.Process(launched.process.pid)
    for each in (launcher, *launcher.children(recursive=True)):
        for thread in each.threads():
            os.sched_setaffinity(thread.id, {first})
    os.sched_setaffinity(0, set(others))
    calmly: list[float] = []
    fired: list[float] = []
    try:
        time.sleep(2.0)  # until the job has found its pace there
        each, turn = round(_TURN * PACE), 0
        while turn * each < count:
            report.say(f"apart: {turn * each} of {count} requests, {PACE:g} a second")
            for found, number in ((calmly, 0), (fired, each)) if turn % 2 else ((fired, each), (calmly, 0)):
                began = time.monotonic()
                attacker.send(attacker.address, number, 1 / PACE)
                time.sleep(max(0.0, began + _TURN - time.monotonic()))  # the time that is measured
                found.extend(_steps(directory, began, time.monotonic()))
            turn += 1
    finally:
        os.sched_setaffinity(0, {first, *others})
    return calmly, fired


_TURN = 4.0
"""Seconds of each turn."""
PACE = 100.0
"""Requests a second, as ``python -m benchmarks hostile`` sends them: an attacker that leaves both cores to the job."""


class Attacker:
    """Sends what nobody should take, with the cookie of a page that was let in."""

    def __init__(self, address: str, there: dict[str, Any]) -> None:
        """``there``: the status of the member at ``address``."""
        self.address = address
        self._there = there
        self._cookie = enter(address)
        self.sent = 0
        self.accepted = 0

    def send(self, target: str, count: int, every: float) -> None:
        """So many, one ``every`` so many seconds; what a target other than ``address`` accepts is not counted."""
        began = time.monotonic()
        for number in range(count):
            time.sleep(max(0.0, began + number * every - time.monotonic()))  # the pace
            taken = _attack(target, self._cookie, self._there, random.Random(self.sent + number))
            self.accepted += taken and target == self.address
        self.sent += count if target == self.address else 0


@contextlib.contextmanager
def bare() -> Iterator[str]:
    """The address of a server, in a process of its own, that refuses everything: what no job has to do with."""
    parent = os.getpid()
    process = subprocess.Popen(
        [sys.executable, "-c", REFUSES],
        stdout=subprocess.PIPE,
        preexec_fn=lambda: die_with_parent(parent),  # noqa: PLW1509
    )
    try:
        assert process.stdout is not None
        yield f"127.0.0.1:{int(process.stdout.readline())}"
    finally:
        process.kill()
        process.communicate()


REFUSES = """
import asyncio
from aiohttp import web

async def main():
    async def answer(request):
        return web.Response(status=401)
    runner = web.ServerRunner(web.Server(answer, access_log=None))
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    print(runner.addresses[0][1], flush=True)
    await asyncio.Event().wait()

asyncio.run(main())
"""


def _attack(address: str, cookie: str, there: dict[str, Any], dice: random.Random) -> bool:
    """One request that nobody should take; whether it was taken."""
    port = address.rpartition(":")[2]
    own = {"Cookie": cookie, "Origin": f"http://{address}"}
    order = {"kind": "kill", "member": there["member"], "epoch": there["active_epoch"], "key": f"key {dice.random()}"}
    method, path, headers, body = dice.choice(
        [
            ("GET", "", {}, None),
            ("GET", f"?token={dice.randbytes(32).hex()}", {}, None),
            ("GET", "/events", {"Cookie": f"{cookie[:-1]}{dice.choice('abc')}_"}, None),
            ("GET", "", {**own, "Host": f"evil.example:{port}"}, None),
            ("GET", "/events", {**own, "Origin": "http://evil.example"}, None),
            ("POST", "/order", {"Origin": f"http://{address}"}, json.dumps(order)),
            ("POST", "/order", {**own, "Origin": f"http://evil.example:{port}"}, json.dumps(order)),
            ("POST", "/order", {"Cookie": cookie}, json.dumps(order)),
            ("POST", "/order", own, json.dumps({**order, "epoch": there["active_epoch"] + dice.randint(1, 9)})),
            ("POST", "/order", own, json.dumps({**order, "member": member_id(dice.randint(0, 9))})),
            ("POST", "/order", own, dice.randbytes(200)),
            ("PUT", "/order", own, json.dumps(order)),
            ("GET", f"/{dice.randbytes(8).hex()}/../order", own, None),
        ]
    )
    connection = http.client.HTTPConnection(address, timeout=60)
    try:
        connection.request(method, f"/dashboard{path}", body, headers)
        answer = connection.getresponse()
        answer.read()
    except (OSError, http.client.HTTPException):
        return False  # the connection was closed
    finally:
        connection.close()
    return answer.status < 400
