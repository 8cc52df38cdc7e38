"""What workers of tests do (see ``workers``): functions that are called in them, by reference."""

from __future__ import annotations

import time
from typing import Any

import torch

from ftlib import Channel, CollectiveError
from tests.harness.basics import eventually

from . import workers
from .workers import Here

LIMIT = 100.0


def prepare() -> None:
    """What every worker needs, before any fork; this module is here already."""
    workers.prepare()


def send(here: Here, names: list[str], *values: Any) -> None:
    for value in values:
        here.group(names).send(value, timeout=LIMIT)


def recv(here: Here, names: list[str], count: int = 1) -> list[Any]:
    group = here.group(names)
    return [group.recv(timeout=LIMIT) for _ in range(count)]


def broadcast(here: Here, names: list[str], value: Any, src: str) -> Any:
    return here.group(names).broadcast(value, src, timeout=LIMIT)


def pending(here: Here, names: list[str], count: int, megabytes: int) -> list[tuple[str, str, float]]:
    """Operations of all kinds that cannot end, as the peer does not answer: what each raises, and when."""
    group = here.group(names)
    works = [group.recv(async_op=True), group.recv_tensor(torch.empty(1 << 20), async_op=True)]
    works += [group.recv(async_op=True) for _ in range(count)]
    works += [group.send_tensor(torch.zeros(megabytes << 18), async_op=True) for _ in range(3)]
    works.append(works[0].then(lambda value: value))
    here.kept["pending"] = True
    found = []
    for work in works:
        try:
            work.wait(LIMIT)
            found.append(("none", "", time.monotonic()))
        except CollectiveError as error:
            found.append((type(error).__name__, str(error), time.monotonic()))
    return found


def enough(here: Here) -> None:
    here.kept["enough"] = True


def streamed(here: Here) -> int:
    """How many words have been exchanged."""
    return int(here.kept.get("count", 0))


def is_pending(here: Here) -> bool:
    return bool(here.kept.get("pending"))


def stream(here: Here, names: list[str], first: bool) -> tuple[int, float]:
    """Exchange words until the ``first`` one has said ``enough``; how many, and the longest gap."""
    group, gap, count, last = here.group(names), 0.0, 0, time.monotonic()
    while True:
        if first:
            group.send(not here.kept.get("enough"), timeout=LIMIT)
            more = group.recv(timeout=LIMIT)
        else:
            more = group.recv(timeout=LIMIT)
            group.send(more, timeout=LIMIT)
        now = time.monotonic()
        gap, last, count = max(gap, now - last), now, count + 1
        here.kept["count"] = count
        if not more:
            return count, gap


def tensors(here: Here, names: list[str], count: int, elements: int, sends: bool, gone: str = "") -> list[float]:
    """Send or receive in place; the sum of each. In the middle wait until the member ``gone`` is none any more."""
    group = here.group(names)
    sums = []
    for number in range(count):
        if gone and number == count // 2:
            here.kept["pending"] = True
            eventually(lambda: not knows(here, gone), "it is no member any more")
        if sends:
            group.send_tensor(torch.full((elements,), float(number)), timeout=LIMIT)
        else:
            sums.append(float(group.recv_tensor(torch.empty(elements), timeout=LIMIT).double().mean()))
    return sums


def send_and_exit(here: Here, names: list[str], count: int, elements: int) -> None:
    """Leave sends pending, and say so."""
    group = here.group(names)
    for number in range(count):
        group.send([number, torch.full((elements,), float(number))], async_op=True)


def received(here: Here, names: list[str], count: int, after: float) -> list[tuple[int, float]]:
    group = here.group(names)
    here.kept["made"] = True
    time.sleep(after)
    got = [group.recv(timeout=LIMIT) for _ in range(count)]
    return [(number, float(tensor.mean())) for number, tensor in got]


def attempt(here: Here, names: list[str], value: Any) -> str:
    """What a send says."""
    try:
        here.group(names).send(value, timeout=LIMIT)
    except CollectiveError as error:
        return f"{type(error).__name__}: {error}"
    return "sent"


def send_strange(here: Here, names: list[str]) -> str:
    return attempt(here, names, {"set": {1, 2}})


def channel(here: Here, name: str, at: str, maxsize: int = 0) -> None:
    here.channels[name] = Channel(here.collective, name, at=at, maxsize=maxsize)


def put(here: Here, name: str, *items: Any) -> None:
    for item in items:
        here.channels[name].put(item, timeout=LIMIT)


def get(here: Here, name: str, count: int) -> list[Any]:
    return [here.channels[name].get(timeout=LIMIT) for _ in range(count)]


def get_until(here: Here, name: str, last: Any) -> list[Any]:
    """Items until ``last``, which is not among them."""
    items: list[Any] = []
    while (item := here.channels[name].get(timeout=LIMIT)) != last:
        items.append(item)
    return items


def left(here: Here, name: str) -> int:
    return here.channels[name].qsize()


def on_the_way(here: Here, name: str) -> int:
    """At the server: items that were given, and not acknowledged yet."""
    server: Any = here.collective.services._served[name].handler
    return len(server.__self__._queues._given)


def await_items(here: Here, name: str, count: int) -> str:
    """Wait for items that never come; what that raises."""
    works = [here.channels[name].get(async_op=True) for _ in range(count)]
    here.kept["pending"] = True
    errors = set()
    for work in works:
        try:
            work.wait(LIMIT)
        except CollectiveError as error:
            errors.add(type(error).__name__)
    return " ".join(sorted(errors))


def facts(here: Here) -> dict[str, Any]:
    return here.collective.facts()


def knows(here: Here, member_id: str) -> bool:
    return member_id in {member.id for member in here.consensus.get_member_list()}


def has_made(here: Here) -> bool:
    return bool(here.kept.get("made"))
