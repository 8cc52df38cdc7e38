"""Python programs as forks of the fork server, which has imported torch: ``ftlib run``, examples, scripts.

What only a new interpreter shows (its end, its command line, what it imports) is tested with ``subprocess``.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Self

from ftlib.launch.processes.process import descendants
from tests.harness.namespace import settle
from tests.harness.nursery import ROOT, Nursery, Stuck

from .forked import program


def clean(**more: str) -> dict[str, str]:
    """This process's environment without any settings of ftlib's."""
    env = {key: value for key, value in os.environ.items() if not key.startswith("FTLIB_")}
    return env | {"PYTHONPATH": str(ROOT)} | more


class Program:
    """``python ARGUMENTS`` in a session of its own; its output goes to two files of ``directory``.

    A context manager that kills what still runs. The names are those of ``subprocess.Popen``.
    """

    def __init__(
        self,
        nursery: Nursery,
        directory: Path,
        *arguments: object,
        env: Mapping[str, str] | None = None,
        namespace: str = "",
    ) -> None:
        """``directory`` is where it runs; ``env``: by default ``clean()``; ``namespace``: a ``Host``'s name, to run there."""
        self._nursery = nursery
        self._files = directory / "program.out", directory / "program.err"
        task = {"arguments": list(map(str, arguments)), "cwd": str(directory), "env": dict(clean() if env is None else env)}
        task["namespace"] = namespace
        out, err = (path.open("wb") for path in self._files)
        with out, err:
            self.pid = nursery.start(task, (out, err), module=__name__)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()

    @property
    def stdout(self) -> str:
        """What it has said so far."""
        return self._files[0].read_text(errors="replace")

    @property
    def stderr(self) -> str:
        """The same, of errors."""
        return self._files[1].read_text(errors="replace")

    @property
    def returncode(self) -> int | None:
        """Its exit code once it has ended; negative: the signal."""
        end = self._nursery.end(self.pid)
        return None if end is None else end.code

    def wait(self, limit: float) -> int:
        """Until it ends; Stuck, with the stacks of all its processes, if it does not."""
        deadline = time.monotonic() + limit
        while (code := self.returncode) is None:
            if time.monotonic() > deadline:
                self._dump()
                raise Stuck(f"it has not ended within {limit:g} s: {self.stdout}\n{self.stderr}")
            time.sleep(0.005)
        return code

    def _dump(self) -> None:
        """All threads' stacks of all its processes, into ``stderr``."""
        for pid in (self.pid, *sorted(descendants(self.pid))):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGUSR1)
                time.sleep(0.3)  # one after the other; one that hangs in the kernel never says that it is done

    def send_signal(self, number: int) -> None:
        """To the program, unless it has ended."""
        if self.returncode is None:
            with contextlib.suppress(ProcessLookupError):  # it was reaped, and this side has not heard of it yet
                os.kill(self.pid, number)

    def kill(self) -> None:
        """SIGKILL, and wait for its end."""
        self._nursery.kill([self.pid])


def ftlib_run(*arguments: object) -> list[str]:
    """The arguments of ``ftlib run``."""
    return ["-m", "ftlib.cli.main", "run", *map(str, arguments)]


def prepare() -> None:
    """What programs of the tests import besides torch."""
    import sklearn.datasets

    import ftlib.cli.main

    del sklearn, ftlib


def run(task: dict[str, Any]) -> int:
    """In the forked process: be the program."""
    os.setsid()
    os.chdir(task["cwd"])
    if task["namespace"]:
        settle(task["namespace"])
    for fd, wanted in zip(task["socket_fds"], (1, 2), strict=True):
        os.dup2(fd, wanted)
        os.close(fd)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    sys.path[:] = [entry for entry in sys.path if entry]
    program(task["arguments"], task["env"])
