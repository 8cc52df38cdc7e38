"""Workers that stay between the examples of a property: each does what it is told, all of them at once."""

from __future__ import annotations

import inspect
import queue
from collections.abc import Callable, Sequence
from typing import Any, Self

from ftlib.frameworks.base import Framework
from ftlib.ftlib import FTLib
from tests.ftlib.crews.workers import TIMEOUT, Job, Worker, asking_for

Told = Callable[[FTLib], Any]


class Crew:
    """So many workers of one job, over the memory framework unless told otherwise."""

    def __init__(self, size: int, framework: Callable[[str], Framework] | None = None, **settings: Any) -> None:
        self.job = Job(size, framework, **settings)
        self.names = [f"w{i}" for i in range(size)]
        self._orders: dict[str, queue.SimpleQueue[Told | None]] = {name: queue.SimpleQueue() for name in self.names}
        self._answers: dict[str, queue.SimpleQueue[tuple[Any, BaseException | None]]] = {
            name: queue.SimpleQueue() for name in self.names
        }

    def each(self, told: Sequence[Told]) -> list[Any]:
        """Worker i does ``told[i]``; what they return. The first exception is raised: for that one others may wait in vain."""
        for name, order in zip(self.names, told, strict=True):
            self._orders[name].put(order)
        answers, late = [], []
        for name in self.names:
            try:
                answers.append(self._answers[name].get(timeout=TIMEOUT))
            except queue.Empty:
                late.append(name)
        for _, error in answers:
            if error is not None:
                raise error
        assert not late, f"{late} have not come back within {TIMEOUT:g} s"
        return [value for value, _ in answers]

    def all(self, told: Callable[[FTLib, int], Any]) -> list[Any]:
        """Every worker does the same; it is given its index."""
        return self.each([lambda ft, i=i: told(ft, i) for i in range(len(self.names))])

    def __enter__(self) -> Self:
        for name in self.names:
            self.job.start(name, self._serve)
        self.all(lambda ft, _: ft.barrier())
        return self

    def __exit__(self, *args: object) -> None:
        for orders in self._orders.values():
            orders.put(None)
        for worker in self.job.workers.values():  # who still lives is excluded, and each close then waits for a rebuild
            worker.thread.join(10.0)
        self.job.__exit__(*args)

    def _serve(self, worker: Worker) -> None:
        orders, answers = self._orders[worker.name], self._answers[worker.name]
        while (order := orders.get()) is not None:
            try:
                answers.put((order(worker.ft), None))
            except BaseException as error:  # noqa: BLE001 - the test raises it
                answers.put((None, error))


def by_all(crew: str) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """The test is what every worker of that fixture does; it is given its ``FTLib`` and its index."""

    def decorate(body: Callable[..., None]) -> Callable[..., None]:
        def test(**given: Any) -> None:
            found: Crew = given.pop(crew)
            found.all(lambda ft, i: body(ft, i, **given))

        return asking_for(test, body, crew, *list(inspect.signature(body).parameters)[2:])

    return decorate
