"""Members with a Collective in processes of their own, forked from the nursery; the test calls functions in them by reference.

    with company(nursery, "trainer", "rollout") as workers:
        workers["trainer"].call(parts.send, ["rollout"], 3)

``call`` returns at once with a future: calls of one worker run side by side, each on a thread of its own.
"""

from __future__ import annotations

import atexit
import contextlib
import faulthandler
import os
import secrets
import signal
import socket
import threading
import time
import traceback
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future
from contextlib import contextmanager
from multiprocessing.connection import Connection
from typing import Any

from consensus import Config, Gossip, Member, format_address
from tests.harness.basics import PATIENT, TIMEOUT, eventually
from tests.harness.nursery import Nursery


class Here:
    """What a function that is called in a worker gets first."""

    def __init__(self, consensus: Gossip, options: Mapping[str, Any]) -> None:
        from ftlib import Channel, Collective, CollectiveGroup

        self.consensus = consensus
        self.collective = Collective(consensus, **options)
        self.kept: dict[str, Any] = {}
        """Whatever functions leave there for later ones."""
        self.channels: dict[str, Channel] = {}
        self.groups: type[CollectiveGroup] = CollectiveGroup

    def group(self, names: list[str], name: str | None = None) -> Any:
        return self.collective.create_collective_group(names, name)


class Worker:
    """The parent's handle of one lifetime."""

    def __init__(self, nursery: Nursery, name: str, job: str, introducers: list[str], size: int, **settings: Any) -> None:
        self._nursery = nursery
        self.name = name
        ours, theirs = socket.socketpair()
        options = settings.pop("options", {})
        setting = {"job": job, "introducers": introducers, "initial_size": size, **settings}
        with theirs:
            task = {"name": name, "config": setting, "options": options}
            self.pid = nursery.start(task, (theirs,), module=__name__)
        self._connection = Connection(ours.detach())
        self._lock = threading.Lock()
        self._futures: dict[int, Future[Any]] = {}
        self._count = 0
        self.member: Member = self._connection.recv()
        threading.Thread(target=self._listen, daemon=True).start()

    def call(self, function: Callable[..., Any], *args: Any) -> Future[Any]:
        """Call ``function(here, *args)`` there."""
        future: Future[Any] = Future()
        with self._lock:
            self._count += 1
            self._futures[self._count] = future
            self._connection.send((self._count, function, args))
        return future

    def do(self, function: Callable[..., Any], *args: Any) -> Any:
        """The result of it."""
        return self.call(function, *args).result(TIMEOUT)

    def signal(self, number: int) -> float:
        """When it was sent (CLOCK_MONOTONIC)."""
        os.kill(self.pid, number)
        return time.monotonic()

    def kill(self) -> float:
        """SIGKILL; when."""
        return self.signal(signal.SIGKILL)

    def code(self) -> int:
        """Of its end, which is waited for."""
        eventually(lambda: self._nursery.end(self.pid) is not None, f"{self.name} ends", TIMEOUT)
        end = self._nursery.end(self.pid)
        assert end is not None
        return end.code

    def close(self) -> None:
        """Kill it if it still runs."""
        self._nursery.kill([self.pid])
        self._connection.close()

    def _listen(self) -> None:
        with contextlib.suppress(EOFError, OSError, TypeError):
            while True:
                number, error, value = self._connection.recv()
                future = self._futures.pop(number)
                if error is None:
                    future.set_result(value)
                else:
                    future.set_exception(error)
        for future in list(self._futures.values()):
            if not future.done():
                future.set_exception(EOFError(f"{self.name} has ended"))


@contextmanager
def company(
    nursery: Nursery, *names: str, options: Mapping[str, Any] | None = None, **settings: Any
) -> Iterator[dict[str, Worker]]:
    """Founding members with these names, that have met; ``options``: of each one's Collective, by its name, or of all."""
    job = "collective-" + secrets.token_hex(4)
    settings = {"exclude_after": PATIENT["exclude_after"], **settings}
    workers: dict[str, Worker] = {}
    try:
        for name in names:
            introducers = [format_address(workers[names[0]].member.address)] if workers else []
            own = (options or {}).get(name, options or {})
            workers[name] = Worker(nursery, name, job, introducers, len(names), options=own, **settings)
        for worker in workers.values():
            assert worker.do(met, len(names))
        yield workers
    finally:
        for worker in workers.values():
            worker.close()


def replaced(workers: dict[str, Worker], name: str, other: str, nursery: Nursery, **settings: Any) -> Worker:
    """A new lifetime under the name of one that has ended, as ``ftlib run`` starts it; ``other`` introduces it."""
    config = workers[other].do(config_of)
    introducers = [format_address(workers[other].member.address)]
    workers[name].close()
    settings = {"exclude_after": config["exclude_after"], **settings}
    workers[name] = Worker(nursery, name, config["job"], introducers, config["initial_size"], **settings)
    return workers[name]


def met(here: Here, size: int) -> bool:
    """Wait for a view of that size."""
    eventually(lambda: len(here.consensus.get_member_list()) == size and here.consensus.confirm(), f"{size} members")
    return True


def config_of(here: Here) -> dict[str, Any]:
    return {name: getattr(here.consensus.config, name) for name in ("job", "initial_size", "exclude_after")}


def prepare() -> None:
    """Import what every worker needs, before any fork."""
    import ftlib.collective.channel
    import ftlib.collective.collective

    del ftlib


def run(task: dict[str, Any]) -> int:
    """The worker."""
    faulthandler.register(signal.SIGUSR1, all_threads=True)
    connection = Connection(task["socket_fds"][0])
    consensus = Gossip(Config(**{**task["config"], "introducers": tuple(task["config"]["introducers"])}))
    consensus.start(meta={"name": task["name"]})
    connection.send(consensus.member)
    here = Here(consensus, task["options"])
    lock = threading.Lock()

    def carry_out(number: int, function: Callable[..., Any], args: tuple[Any, ...]) -> None:
        answer: tuple[int, BaseException | None, Any]
        try:
            answer = number, None, function(here, *args)
        except BaseException as error:  # noqa: BLE001 - the test raises it
            traceback.print_exc()
            answer = number, _plain(error), None
        with lock, contextlib.suppress(OSError):
            connection.send(answer)

    with contextlib.suppress(EOFError, OSError):
        while (order := connection.recv()) is not None:
            if order[1] == "exit":
                break
            threading.Thread(target=carry_out, args=order, daemon=True).start()
    atexit._run_exitfuncs()
    os._exit(0)


def _plain(error: BaseException) -> BaseException:
    """One that can be pickled."""
    error.__traceback__ = None
    error.__cause__ = error.__context__ = None
    return error
