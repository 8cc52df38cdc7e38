"""A parameter server that adds up what it gets, and its clients: ``python -m tests.torchft.visitor ADDRESS DEED``."""

from __future__ import annotations

import os
import signal
import sys
import threading

import torch

from consensus import get, parse_address
from ftlib.launch.processes.credentials import ring_of_user
from ftlib.torchft.parameter_server import ParameterServer
from ftlib.torchft.process_group import ProcessGroup, ProcessGroupGloo

ADD, FAIL, END, CLOSE, COMPUTE = 0.0, 1.0, 2.0, 3.0, 4.0
SIZE = 1000


class Adding(ParameterServer):
    """A request is one number. ADD: a tensor follows, and the sum of all so far comes back. COMPUTE: go on after ``go_on``."""

    def __init__(self) -> None:
        self.total = torch.zeros(SIZE)
        self.guard = threading.Lock()
        self.ended: list[str] = []
        """How sessions ended, by the name of what was raised; empty texts: they returned."""
        self.computing = 0
        self.go_on = threading.Event()
        self.fails = False
        """Whether it fails after that."""
        super().__init__(0)

    @classmethod
    def new_process_group(cls) -> ProcessGroup:
        return ProcessGroupGloo(timeout=30.0)

    def forward(self, session_id: str, pg: ProcessGroup) -> None:
        del session_id
        how = ""
        try:
            self._answer(pg)
        except BaseException as error:
            how = type(error).__name__
            raise
        finally:
            self.ended.append(how)

    def _answer(self, pg: ProcessGroup) -> None:
        asked, given = torch.zeros(1), torch.zeros(SIZE)
        while True:
            pg.recv([asked], 1, 0).wait()
            if asked.item() == FAIL:
                raise ZeroDivisionError("asked for")
            if asked.item() == END:
                return
            if asked.item() == CLOSE:
                self.shutdown()
                return
            if asked.item() == COMPUTE:
                self._compute()
            pg.recv([given], 1, 1).wait()
            with self.guard:
                self.total += given
                total = self.total.clone()
            pg.send([total], 1, 2).wait()

    def _compute(self) -> None:
        with self.guard:
            self.computing += 1
        self.go_on.wait()
        if self.fails:
            raise ZeroDivisionError("asked for")


def ask(pg: ProcessGroup, kind: float) -> None:
    pg.send([torch.tensor([kind])], 0, 0).wait()


def add(pg: ProcessGroup, value: float) -> float:
    """The sum of all."""
    total = torch.zeros(SIZE)
    ask(pg, ADD)
    pg.send([torch.full((SIZE,), value)], 0, 1).wait()
    pg.recv([total], 0, 2).wait()
    assert bool((total == total[0]).all())
    return total[0].item()


def main(address: str, deed: str) -> None:
    torch.set_num_threads(1)
    if deed == "vanish":  # in the middle of its entry: it never connects
        where = parse_address(address.removeprefix("http://").partition("/")[0])
        get(where, "/new_session", ring_of_user()).read()
        print("in", flush=True)
        os.kill(os.getpid(), signal.SIGKILL)
    pg = Adding.new_session(address)
    if deed == "stay":
        print(add(pg, 1.0), flush=True)
        threading.Event().wait()
    for _ in range(20):
        add(pg, 1.0)
    ask(pg, END)
    print("done", flush=True)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2])
