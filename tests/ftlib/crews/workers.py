"""Workers in threads over the memory framework and a scripted cluster."""

from __future__ import annotations

import functools
import inspect
import threading
from collections.abc import Callable
from typing import Any, Self

from ftlib.core.plane.ranks import RankAssignScheme
from ftlib.frameworks.base import Framework
from ftlib.frameworks.memory import MemoryHub
from ftlib.ftlib import FTLib
from ftlib.settings.config import resolve
from tests.ftlib.crews.fake_cluster import FakeCluster

TIMEOUT = 120.0
"""Seconds that anything may take."""


class Worker:
    """One member: ``body(worker)`` runs in a thread; what it returns or raises is kept."""

    def __init__(self, job: Job, name: str, body: Callable[[Worker], Any]) -> None:
        self.job = job
        self.name = name
        self.body = body
        self.result: Any = None
        self.error: BaseException | None = None
        self.consensus = job.cluster.consensus(name)
        self.framework = job.framework(name)
        settings = {"step_timeout": TIMEOUT, "join_timeout": TIMEOUT, **job.settings}
        self.ft = FTLib(resolve(settings, {}, {}), self.consensus, self.framework, RankAssignScheme())
        self.thread = threading.Thread(target=self._run, name=name, daemon=True)

    def _run(self) -> None:
        try:
            self.ft._start()
            self.result = self.body(self)
        except BaseException as error:  # noqa: BLE001 - join raises it
            self.error = error

    def join(self) -> Any:
        self.thread.join(TIMEOUT)
        assert not self.thread.is_alive(), f"{self.name} is stuck: {self.ft!r}"
        if self.error is not None:
            raise self.error
        return self.result


class Job:
    """A cluster with its workers; closes everything at the end."""

    def __init__(self, initial_size: int, framework: Callable[[str], Framework] | None = None, **settings: Any) -> None:
        """``framework``: makes a member's; by default those of one ``hub``."""
        self.cluster = FakeCluster(initial_size)
        self.hub = MemoryHub()
        self.framework = framework or self.hub.framework
        self.settings = settings
        self.workers: dict[str, Worker] = {}

    def start(self, name: str, body: Callable[[Worker], Any]) -> Worker:
        worker = self.workers[name] = Worker(self, name, body)
        worker.thread.start()
        return worker

    def kill(self, name: str, *, silent: bool = False) -> None:
        """As SIGKILL: its operations end for the others, and it acts no more."""
        self.cluster.dead.add(name)
        self.hub.kill(name, silent=silent)
        self.cluster.kill(name)
        self.cluster.exclude(name)

    def run(self, bodies: dict[str, Callable[[Worker], Any]]) -> dict[str, Any]:
        for name, body in bodies.items():
            self.start(name, body)
        return {name: self.workers[name].join() for name in bodies}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *args: object) -> None:
        for name, worker in self.workers.items():
            if not worker.thread.is_alive() or name not in self.cluster.members:
                continue
            self.cluster.exclude(name)
        for worker in self.workers.values():
            worker.ft._plane.stop(RuntimeError("the test is over"))
            worker.ft.close()
        self.cluster.close()
        assert not self.cluster.errors


def workers(count: int, **settings: Any) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """The test is what every one of so many workers does."""

    def decorate(body: Callable[..., None]) -> Callable[..., None]:
        def test(**given: Any) -> None:
            with Job(count, **settings) as job:
                job.run({f"w{i}": lambda worker: body(worker, **given) for i in range(count)})

        return asking_for(test, body, *list(inspect.signature(body).parameters)[1:])

    return decorate


def asking_for(test: Callable[..., None], body: Callable[..., None], *fixtures: str) -> Callable[..., None]:
    """``test`` under the name of ``body``, for which pytest finds these fixtures and parameters."""
    functools.update_wrapper(test, body)
    parameters = [inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY) for name in fixtures]
    test.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    return test
