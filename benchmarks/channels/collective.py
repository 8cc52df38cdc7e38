"""Groups and channels beside raw Gloo sends and receives of torch.distributed, in the same run, on this host.

    python -m benchmarks collective                            # all, about four minutes
    python -m benchmarks collective --only large small         # some: see below
    python -m benchmarks collective --only sigkill             # 50 peers killed in mid-message: three minutes
    python -m benchmarks collective --only sigstop             # 50 stopped: four minutes
    python -m benchmarks collective --only killed --killed 250 # members that are killed and replaced: four minutes
    python -m benchmarks collective --rounds 5 --deaths 10     # fewer of each

Parts: large, small, async, broadcast, channel, sigkill, sigstop, gap, groups; and killed, which is left out unless it is named.
Workers are processes with one thread of torch each. Gloo's turn and ours follow each other in every round, over the same
workers; a figure is the median of all rounds, with the least and the most. A large transfer is timed from the call of send to
the word that comes back.
"""

from __future__ import annotations

import functools
import multiprocessing
import signal
import socket
import statistics
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

import ftlib.collective.collective as door
from benchmarks.report import Report, parser, spread
from ftlib import Channel, CollectiveError
from ftlib.links.loop import LinkLoop
from tests.collective.workers import Here, Worker, company, replaced
from tests.harness.nursery import Nursery

MB = 10**6
LARGE = 25 * MB // 4
"""Elements of 25 MB float32."""
PARTS = ("large", "small", "async", "broadcast", "channel", "sigkill", "sigstop", "gap", "groups")
LONG = ("killed",)
"""Parts that only run where they are named."""
LIMIT = 120.0
EXCLUDE_AFTER = 2.0
"""Of the members of which some are killed or stopped."""


# In the workers


def begin(here: Here, rank: int, size: int, port: int, ring: bool) -> None:
    """Gloo's group; ours by TCP instead of memory if not ``ring``."""
    torch.set_num_threads(1)
    if size:
        dist.init_process_group("gloo", init_method=f"tcp://127.0.0.1:{port}", rank=rank, world_size=size)
    door.LinkLoop = functools.partial(LinkLoop, ring=ring)  # type: ignore[misc]
    here.collective.close()
    here.collective = door.Collective(here.consensus)
    door.LinkLoop = LinkLoop  # type: ignore[misc]


def gloo_large(here: Here, first: bool, rounds: int) -> list[float]:
    del here
    large, word, seconds = torch.zeros(LARGE), torch.zeros(1), []
    for _ in range(rounds):
        began = time.perf_counter()
        if first:
            dist.send(large, 1)
            dist.recv(word, 1)
        else:
            dist.recv(large, 0)
            dist.send(word, 0)
        seconds.append(time.perf_counter() - began)
    return seconds


def our_large(here: Here, names: list[str], first: bool, rounds: int) -> list[float]:
    group, large, word, seconds = here.group(names), torch.zeros(LARGE), torch.zeros(1), []
    for _ in range(rounds):
        began = time.perf_counter()
        if first:
            group.send_tensor(large)
            group.recv_tensor(word)
        else:
            group.recv_tensor(large)
            group.send_tensor(word)
        seconds.append(time.perf_counter() - began)
    return seconds


def our_dict(here: Here, names: list[str], first: bool, rounds: int) -> list[float]:
    group, seconds = here.group(names), []
    tree = {f"layer.{number}.weight": torch.zeros(LARGE // 20) for number in range(20)}
    for _ in range(rounds):
        began = time.perf_counter()
        if first:
            group.send(tree)
            group.recv()
        else:
            group.recv()
            group.send(0)
        seconds.append(time.perf_counter() - began)
    return seconds


def gloo_small(here: Here, first: bool, rounds: int) -> list[float]:
    del here
    small, word = torch.zeros(1024), torch.zeros(1)
    began = time.perf_counter()
    for _ in range(rounds):
        if first:
            dist.send(small, 1)
            dist.recv(word, 1)
        else:
            dist.recv(small, 0)
            dist.send(word, 0)
    return [(time.perf_counter() - began) / rounds]


def our_small(here: Here, names: list[str], first: bool, rounds: int, tree: bool) -> list[float]:
    group, small, word = here.group(names), torch.zeros(1024), torch.zeros(1)
    began = time.perf_counter()
    for _ in range(rounds):
        if tree and first:
            group.send({"a": small})
            group.recv()
        elif tree:
            group.recv()
            group.send(0)
        elif first:
            group.send_tensor(small)
            group.recv_tensor(word)
        else:
            group.recv_tensor(small)
            group.send_tensor(word)
    return [(time.perf_counter() - began) / rounds]


def our_async(here: Here, names: list[str], first: bool, count: int) -> list[float]:
    """Sends of 4 KB, each with its number; a second of them."""
    group = here.group(names)
    small = [torch.full((1024,), float(number)) for number in range(count)] if first else []
    if first:
        group.recv()
    else:
        group.send("ready")
    began = time.perf_counter()
    if first:
        for work in [group.send(tensor, async_op=True) for tensor in small]:
            work.wait()
        group.recv()
    else:
        for number in range(count):
            assert float(group.recv()[0]) == number, "out of order"
        group.send("done")
    return [count / (time.perf_counter() - began)]


def gloo_broadcast(here: Here, rounds: int) -> list[float]:
    del here
    large, seconds = torch.zeros(LARGE), []
    for _ in range(rounds):
        dist.barrier()
        began = time.perf_counter()
        dist.broadcast(large, 0)
        seconds.append(time.perf_counter() - began)
    return seconds


def our_broadcast(here: Here, names: list[str], src: str, rounds: int) -> list[float]:
    group, large, seconds = here.group(names, "all"), torch.zeros(LARGE), []
    for _ in range(rounds):
        dist.barrier()
        began = time.perf_counter()
        group.broadcast(large, src)
        seconds.append(time.perf_counter() - began)
    return seconds


def open_channel(here: Here, name: str, at: str) -> None:
    here.channels[name] = Channel(here.collective, name, at=at)


def fill(here: Here, name: str, count: int, elements: int) -> float:
    channel, item, began = here.channels[name], torch.zeros(elements), time.perf_counter()
    for _ in range(count):
        channel.put(item)
    return time.perf_counter() - began


def drain(here: Here, name: str, count: int) -> float:
    channel, began = here.channels[name], time.perf_counter()
    for _ in range(count):
        channel.get()
    return time.perf_counter() - began


def wait_for_end(here: Here, names: list[str]) -> tuple[list[str], float, float]:
    """Works of every kind that the peer's end leaves pending: their errors, and when the first and the last came."""
    group = here.group(names)
    works = [group.recv(async_op=True) for _ in range(5)] + [
        group.send_tensor(torch.zeros(64 * MB), async_op=True) for _ in range(2)
    ]
    here.kept["pending"] = True
    kinds, times = [], []
    for work in works:
        try:
            work.wait(LIMIT)
        except CollectiveError as error:
            kinds.append(type(error).__name__)
            times.append(time.monotonic())
    here.kept["pending"] = False
    return kinds, min(times), max(times)


def is_pending(here: Here) -> bool:
    return bool(here.kept.get("pending")) and any(facts.get("sent") for facts in here.collective.facts().values())


def exchange(here: Here, names: list[str], seconds: float, first: bool) -> float:
    """The longest gap in a stream of words."""
    group, gap, last = here.group(names), 0.0, time.monotonic()
    end = last + seconds
    while True:
        if first:
            group.send(time.monotonic() < end)
        more = group.recv()
        if not first:
            group.send(more)
        now = time.monotonic()
        gap, last = max(gap, now - last), now
        if not more:
            return gap


def make_and_close(here: Here, names: list[str], count: int, first: bool) -> tuple[dict[str, int], dict[str, int]]:
    """Facts of this process after a tenth of the groups, and after all."""
    early: dict[str, int] = {}
    for number in range(count):
        group = here.group(names, f"g{number}")
        if first:
            group.send(number)
            assert group.recv() == number
        else:
            group.send(group.recv())
        group.close()
        if number == count // 10:
            early = footprint()
    time.sleep(6.0)  # idle threads end after five
    return early, footprint()


def outlive(here: Here, names: list[str]) -> str:
    """Exchange a word with the peer, and wait for another one; the error that comes instead."""
    group = here.group(names)
    group.send("word")
    assert group.recv() == "word"
    here.kept["pending"] = True
    try:
        group.recv(timeout=LIMIT)
    except CollectiveError as error:
        return type(error).__name__
    finally:
        here.kept["pending"] = False
    return "nothing"


def echo(here: Here, names: list[str]) -> None:
    group = here.group(names)
    group.send(group.recv())


def at_rest(here: Here) -> dict[str, int]:
    del here
    time.sleep(6.0)  # idle threads end after five
    return footprint()


def footprint() -> dict[str, int]:
    """Threads, descriptors and resident kilobytes of this process."""
    lines = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
    return {
        "threads": threading.active_count(),
        "fds": len(list(Path("/proc/self/fd").iterdir())),
        "kB": int(lines["VmRSS"].split()[0]),
    }


# In the parent


def both(workers: Sequence[Worker], function: Callable[..., Any], *before: Any, after: Sequence[Any] = ()) -> Any:
    """Call it in both, ``first`` true for one; what the first one measured."""
    ends: list[Future[Any]] = [worker.call(function, *before, number == 0, *after) for number, worker in enumerate(workers)]
    found = [end.result(LIMIT) for end in ends]
    return found[0]


def against(report: Report, what: str, ours: list[float], gloo: list[float], bar: float, *, faster: bool) -> None:
    """``bar``: of ``faster``, the least ratio of throughputs; else the most ratio of times."""
    mine, theirs = statistics.median(ours), statistics.median(gloo)
    ratio = theirs / mine if faster else mine / theirs
    good = ratio >= bar if faster else ratio <= bar
    text = f"{'>=' if faster else '<='} {bar:g}x"
    report.row(what, shown(ours), shown(gloo), f"{ratio:.2f}x", bar=text, good=good)


def shown(seconds: list[float]) -> str:
    """As ``spread``; short times in microseconds."""
    if statistics.median(seconds) > 1e-3:
        return spread(seconds)
    micro = sorted(value * 1e6 for value in seconds)
    return f"{statistics.median(micro):.0f} us [{micro[0]:.0f} - {micro[-1]:.0f}]"


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        return int(server.getsockname()[1])


def two(nursery: Nursery, report: Report, parts: Sequence[str], rounds: int) -> None:
    for ring in (False, True):
        with company(nursery, "a", "b") as found:
            workers, names = list(found.values()), ["a", "b"]
            port = free_port()
            for end in [worker.call(begin, rank, 2, port, ring) for rank, worker in enumerate(workers)]:
                end.result(LIMIT)
            path = "same host" if ring else "TCP"
            times: dict[str, list[float]] = {}
            for _ in range(rounds):
                if "large" in parts:
                    times.setdefault("gloo large", []).extend(both(workers, gloo_large, after=[4]))
                    times.setdefault("large", []).extend(both(workers, our_large, names, after=[4]))
                    times.setdefault("dict", []).extend(both(workers, our_dict, names, after=[4]))
                if "small" in parts:
                    times.setdefault("gloo small", []).extend(both(workers, gloo_small, after=[300]))
                    times.setdefault("small", []).extend(both(workers, our_small, names, after=[300, False]))
                    times.setdefault("tree", []).extend(both(workers, our_small, names, after=[300, True]))
                if "async" in parts:
                    times.setdefault("async", []).extend(both(workers, our_async, names, after=[1000]))
            if "large" in parts:
                bar = 2.5 if ring else 1.0
                against(report, f"25 MB in place, {path}", times["large"], times["gloo large"], bar, faster=True)
                against(
                    report,
                    f"dict of 20, 25 MB, {path}",
                    times["dict"],
                    times["gloo large"],
                    2.0 if ring else 1.0,
                    faster=True,
                )
            if "small" in parts:
                against(
                    report,
                    f"4 KB and a word back, {path}",
                    times["small"],
                    times["gloo small"],
                    1.25,
                    faster=False,
                )
                against(
                    report,
                    f"the same with a tree, {path}",
                    times["tree"],
                    times["gloo small"],
                    2.5,
                    faster=False,
                )
            if "async" in parts:
                more = both(workers, our_async, names, after=[10_000])
                rates = times["async"]
                text = f"{statistics.median(rates):,.0f} [{min(rates):,.0f} - {max(rates):,.0f}] a second"
                report.row(f"1,000 async sends of 4 KB, {path}", text, bar=">= 10,000", good=statistics.median(rates) >= 10_000)
                report.row(f"10,000, {path}", f"{more[0]:,.0f} a second", bar=">= 10,000", good=more[0] >= 10_000)


def broadcast(nursery: Nursery, report: Report, rounds: int) -> None:
    with company(nursery, "a", "b", "c", "d") as found:
        workers, names, port = list(found.values()), list(found), free_port()
        for end in [worker.call(begin, rank, 4, port, True) for rank, worker in enumerate(workers)]:
            end.result(LIMIT)
        ours: list[float] = []
        gloo: list[float] = []
        for _ in range(rounds):
            for into, function, before in ((gloo, gloo_broadcast, ()), (ours, our_broadcast, (names, "a"))):
                ends = [worker.call(function, *before, 4) for worker in workers]
                into.extend(map(max, *(end.result(LIMIT) for end in ends)))
        against(report, "broadcast of 25 MB to 3, the last one to have it", ours, gloo, 1.0, faster=False)


def channel(nursery: Nursery, report: Report, rounds: int) -> None:
    with company(nursery, "server", "putter", "getter") as workers:
        for worker in workers.values():
            worker.do(open_channel, "q", "server")
        rates, large = [], []
        for _ in range(rounds):
            ends = [workers["putter"].call(fill, "q", 1000, 1024), workers["getter"].call(drain, "q", 1000)]
            rates.append(1000 / max(end.result(LIMIT) for end in ends))
            ends = [workers["putter"].call(fill, "q", 10, LARGE), workers["getter"].call(drain, "q", 10)]
            large.append(max(end.result(LIMIT) for end in ends) / 10)
        text = f"{statistics.median(rates):,.0f} [{min(rates):,.0f} - {max(rates):,.0f}] a second"
        report.row("channel: put and get of 4 KB by two", text, bar=">= 3,000", good=statistics.median(rates) >= 3000)
        ready = [piped(10) for _ in range(rounds)]
        against(report, "channel: 25 MB items; beside multiprocessing.Queue", large, ready, 1.5, faster=True)


def piped(count: int) -> float:
    """Seconds for each of so many items of 25 MB from a process to another by ``multiprocessing.Queue``, as pickled bytes."""
    context = multiprocessing.get_context("spawn")
    items, words = context.Queue(), context.Queue()
    process = context.Process(target=_pipe, args=(items, words, count))
    process.start()
    try:
        words.get(timeout=LIMIT)
        began = time.perf_counter()
        words.put("go")
        time.sleep(0.01)  # until the process waits for its first item
        for _ in range(count):
            items.get(timeout=LIMIT)
        return (time.perf_counter() - began) / count
    finally:
        process.join()


def _pipe(items: Any, words: Any, count: int) -> None:
    item = torch.zeros(LARGE).numpy()
    words.put("ready")
    time.sleep(0.005)  # the other side reads this word first
    while words.empty():
        time.sleep(0.001)  # between two looks
    for _ in range(count):
        items.put(item)


def deaths(number: signal.Signals, limit: float, nursery: Nursery, report: Report, count: int) -> None:
    """The peer gets the signal in mid-message: every pending work has its error within ``limit`` seconds."""
    with company(nursery, "a", "b", "c", exclude_after=EXCLUDE_AFTER) as workers:
        waits, good = [], 0
        for _ in range(count):
            found = workers["a"].call(wait_for_end, ["a", "b"])
            until(lambda: workers["a"].do(is_pending))
            time.sleep(0.05)  # the death falls in the middle of a wait
            at = workers["b"].signal(number)
            kinds, _, last = found.result(LIMIT)
            waits.append(last - at)
            good += kinds == ["PeerLost"] * 7 and waits[-1] <= limit
            replaced(workers, "b", "a", nursery, exclude_after=EXCLUDE_AFTER).do(seek_admission)
            until(lambda: workers["a"].do(knows, workers["b"].member.id))
            report.say(f"{number.name}: {len(waits)} of {count}")
        text = f"{good} of {count} within {limit:g} s"
        report.row(
            f"{number.name} of the peer -> all 7 works have PeerLost", spread(waits), text, bar="all", good=good == count
        )


def seek_admission(here: Here) -> None:
    here.consensus.seek_admission()


def knows(here: Here, member_id: str) -> bool:
    members = {member.id for member in here.consensus.get_member_list()}
    return member_id in members


def until(condition: Callable[[], Any]) -> None:
    limit = time.monotonic() + LIMIT
    while not condition():
        if time.monotonic() > limit:
            raise TimeoutError("it does not happen")
        time.sleep(0.01)  # between two looks


def gap(nursery: Nursery, report: Report, rounds: int) -> None:
    gaps, quiet = [], []
    for number in range(rounds):
        with company(nursery, "a", "b", "c") as workers:
            for into, kill in ((quiet, False), (gaps, True)):
                ends = [workers[name].call(exchange, ["a", "b"], 1.5, name == "a") for name in "ab"]
                time.sleep(0.5)  # the death falls in the middle of the exchange
                if kill:
                    workers["c"].kill()
                into.append(ends[0].result(LIMIT))
                ends[1].result(LIMIT)
        report.say(f"gap: {number + 1} of {rounds}")
    good = statistics.median(gaps) <= 0.05
    report.row(
        "longest gap in a stream of two as a third is killed; undisturbed",
        spread(gaps),
        spread(quiet),
        bar="<= 50 ms",
        good=good,
    )


def groups(nursery: Nursery, report: Report, count: int) -> None:
    with company(nursery, "a", "b") as workers:
        ends = [workers[name].call(make_and_close, ["a", "b"], count, name == "a") for name in "ab"]
        for name, end in zip("ab", ends, strict=True):
            early, late = end.result(10 * LIMIT)
            grown = {key: late[key] - early[key] for key in late}
            good = grown["threads"] <= 2 and grown["fds"] <= 4 and grown["kB"] < 20_000
            report.row(f"{count} groups made and closed: growth at {name}", str(grown), bar="none", good=good)


def killed(nursery: Nursery, report: Report, count: int) -> None:
    """``b`` is killed in mid-conversation and replaced under its name, again and again."""
    with company(nursery, "a", "b", "c", exclude_after=2.0) as workers:
        early: dict[str, int] = {}
        errors: list[str] = []
        for number in range(count):
            found = workers["a"].call(outlive, ["a", "b"])
            workers["b"].do(echo, ["a", "b"])
            until(lambda: workers["a"].do(is_waiting))
            workers["b"].kill()
            errors.append(found.result(LIMIT))
            replaced(workers, "b", "a", nursery).do(seek_admission)
            until(lambda: workers["a"].do(knows, workers["b"].member.id))
            if number == count // 10:
                early = workers["a"].do(at_rest)
            if number % 10 == 9:
                report.say(f"killed: {number + 1} of {count}")
        late = workers["a"].do(at_rest)
        grown = {key: late[key] - early[key] for key in late}
        good = grown["threads"] <= 2 and grown["fds"] <= 4 and grown["kB"] < 20_000 and set(errors) == {"PeerLost"}
        said = f"{errors.count('PeerLost')} of {count} PeerLost"
        report.row(f"{count} members killed and replaced: growth at the other", str(grown), said, bar="none", good=good)


def is_waiting(here: Here) -> bool:
    return bool(here.kept.get("pending"))


def main(arguments: Sequence[str] | None = None) -> int:
    options = parser(__doc__, agent=False, rounds=10, deaths=50, groups=1000, killed=500)
    options.add_argument("--only", nargs="+", choices=PARTS + LONG, default=PARTS)
    chosen = options.parse_args(arguments)
    report = Report("Groups and channels beside Gloo", 240, ("ours", "Gloo, or what else is said", "ratio"))
    with (
        tempfile.TemporaryDirectory() as directory,
        Nursery(Path(directory) / "nursery", "tests.collective.workers") as nursery,
    ):
        if {"large", "small", "async"} & set(chosen.only):
            two(nursery, report, chosen.only, chosen.rounds)
        for name, part, number in (
            ("broadcast", broadcast, chosen.rounds),
            ("channel", channel, chosen.rounds),
            ("sigkill", functools.partial(deaths, signal.SIGKILL, 0.5), chosen.deaths),
            ("sigstop", functools.partial(deaths, signal.SIGSTOP, EXCLUDE_AFTER + 0.5), chosen.deaths),
            ("gap", gap, chosen.rounds),
            ("groups", groups, chosen.groups),
            ("killed", killed, chosen.killed),
        ):
            if name in chosen.only:
                part(nursery, report, number)
    return report.finish()


if __name__ == "__main__":
    raise SystemExit(main())
