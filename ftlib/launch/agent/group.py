"""The default process group of a worker, over a store on a socket that the agent bound: no port is raced for."""

from __future__ import annotations

import importlib
import os
import time
from contextlib import suppress
from datetime import timedelta
from typing import Any


def open_group(backend: str, master: int, seconds: float) -> Group:
    """Make this process a rank of ``torch.distributed``. ``master``: the store's listening socket at rank 0, else -1.

    Returns once all ranks have done so: one whose function is over at once would cut off those that are still connecting.
    TimeoutError names the ranks that have not within ``seconds``. What fails sooner is raised as it is.
    """
    torch: Any = importlib.import_module("torch")
    distributed: Any = importlib.import_module("torch.distributed")
    rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    timeout = timedelta(seconds=seconds)
    place = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
    more = {"master_listen_fd": master} if rank == 0 else {}
    store = distributed.TCPStore(*place, size, rank == 0, timeout=timeout, wait_for_workers=False, **more)
    if backend == "nccl":
        torch.cuda.set_device(int(os.environ["LOCAL_RANK"]) % torch.cuda.device_count())
    connected, began = [f"connected/{each}" for each in range(size)], time.monotonic()
    try:
        store.set(f"came/{rank}", "")
        distributed.init_process_group(
            backend, store=distributed.PrefixStore("default", store), rank=rank, world_size=size, timeout=timeout
        )
        store.set(connected[rank], "")
        store.wait(connected, timeout)
    except RuntimeError as error:
        if time.monotonic() < began + seconds:  # it is no rank's absence
            raise
        try:
            here = store.check([connected[rank]])
            missing = [each for each in range(size) if not store.check([connected[each] if here else f"came/{each}"])]
        except RuntimeError:
            text = f"rank 0, which has the store, does not answer any more at {place[0]}:{place[1]}"
            raise TimeoutError(f"{text}: its log, or its host, may say why") from error
        if not missing:
            raise
        names = ", ".join(map(str, missing))
        what = "connected to all others" if here else "come to the store of rank 0"
        text = f"of {size} ranks, these have not {what} within {seconds:g} s: {names}; their logs, or their hosts, may say why"
        raise TimeoutError(text) from error
    return Group(distributed, store, rank, size, timeout)


class Group:
    """The default group, until the function has returned."""

    def __init__(self, distributed: Any, store: Any, rank: int, size: int, timeout: timedelta) -> None:
        self._distributed = distributed
        self._store = store
        self._rank, self._size = rank, size
        self._timeout = timeout

    def leave(self) -> None:
        """Leave the group. Rank 0, which has the store, waits for the others: they may still need it."""
        with suppress(RuntimeError):  # a peer that has failed ends the launch anyway
            if self._rank:
                self._store.set(f"left/{self._rank}", "")
            else:
                self._store.wait([f"left/{rank}" for rank in range(1, self._size)], self._timeout)
        if self._distributed.is_initialized():
            self._distributed.destroy_process_group()
