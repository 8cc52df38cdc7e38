"""Members with the real agents, over the memory framework, as threads of one process."""

from __future__ import annotations

import functools
import itertools
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch

from ftlib import FTLib
from ftlib.frameworks.gloo import GlooFramework
from ftlib.frameworks.memory import MemoryHub
from tests.harness.basics import PATIENT, TIMEOUT, free_ports


def call_until(ft: FTLib, done: Callable[[], bool]) -> None:
    """Call until somebody finds that it is ``done``, and stop after the same call everywhere.

    Whoever looks at its own size alone may stop one call before the others, who then wait for it.
    """
    seen = torch.zeros(1)
    while not seen.item():
        seen.fill_(done())
        assert ft.allreduce(seen, "MAX")


class Company:
    """Those who were hired, in that order."""

    def __init__(self, founders: int, backend: str = "memory", **settings: Any) -> None:
        self.hub = MemoryHub()
        self.backend = backend
        self._first = f"127.0.0.1:{free_ports(1)[0]}"
        self.settings = {
            "job": f"company-{id(self)}",
            "introducers": [self._first],
            "initial_size": founders,
            "step_timeout": TIMEOUT,
            "join_timeout": TIMEOUT,
            "agent": "thread",  # quicker to start, and the same but for that
            "boundary_wait": 0.05,  # nobody calls while they close
            "exclude_after": PATIENT["exclude_after"],
            **settings,
        }
        self.members: list[FTLib] = []
        self._names = itertools.count()
        places = [self._first if not index else "127.0.0.1:0" for index in range(founders)]
        try:
            hired = at_once(*[functools.partial(self.init, bind=place) for place in places])
        except BaseException:
            at_once(*[ft.close for ft in self.members])  # some may have met: they would live on among other tests
            raise
        self.members = sorted(hired, key=lambda ft: ft.rank)

    def init(self, **settings: Any) -> FTLib:
        """One more; returns as ``FTLib.init`` does."""
        name = f"m{next(self._names)}"
        framework = self.hub.framework(name) if self.backend == "memory" else GlooFramework()
        ft = FTLib.init(framework=framework, config={}, **{**self.settings, **settings})
        self.members.append(ft)
        return ft


def in_thread(function: Callable[[], Any]) -> threading.Thread:
    """It runs beside the test."""
    thread = threading.Thread(target=function, daemon=True)
    thread.start()
    return thread


def at_once(*bodies: Callable[[], Any]) -> list[Any]:
    """Run them in threads of their own; the first exception is raised."""
    results: list[Any] = [None] * len(bodies)
    errors: list[BaseException] = []

    def run(index: int) -> None:
        try:
            results[index] = bodies[index]()
        except BaseException as error:  # noqa: BLE001 - raised below
            errors.append(error)

    threads = [threading.Thread(target=run, args=(index,), daemon=True) for index in range(len(bodies))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(TIMEOUT)
        assert not thread.is_alive(), "stuck"
    if errors:
        raise errors[0]
    return results


@contextmanager
def company(count: int, backend: str = "memory", **settings: Any) -> Iterator[Company]:
    """Founders that have met, in rank order."""
    made = Company(count, backend, **settings)
    try:
        at_once(*[ft.barrier for ft in made.members])
        yield made
    finally:
        at_once(*[ft.close for ft in made.members])
