"""Fewer replicas than ``min_size``: when more have come, all processes of a replica are at the same call again."""

from __future__ import annotations

import contextlib
import functools
import threading

import torch
from torch import nn

from ftlib import Status
from tests.harness.basics import TIMEOUT
from tests.harness.company import Company, at_once, in_thread

PATIENCE = 2.0
"""Seconds until a call ends with FAIL."""
ALONE_AFTER, END = 4, 9
"""Calls that two replicas have finished when one leaves, and after which all is over."""


def test_a_call_that_one_process_gives_up_has_no_result_at_its_mate() -> None:
    """Its mate still waits in it when another replica comes. Else they would be in different calls from then on: two kinds of
    calls make a step here.
    """
    made = Company(0, initial_size=2, shards=2, recovery="wait", min_size=2)
    [first] = made.settings["introducers"]
    gave_up, over = threading.Event(), threading.Event()

    def live(name: str, shard: int, calls: int, patience: float = TIMEOUT) -> tuple[dict[int, tuple[str, bool]], int]:
        bind = ("127.0.0.1:0", first)[f"{name}{shard}" == "a0"]
        with made.init(replica=name, shard=shard, bind=bind, step_timeout=patience) as ft:
            ft.register_state(model=nn.Linear(2, 1))
            made_here: dict[int, tuple[str, bool]] = {}
            average = True
            while ft._plane.finished < calls and not over.is_set():
                tensor = torch.ones(2 if average else 3)
                before = ft._plane.finished
                status = ft.allreduce_average(tensor) if average else ft.allreduce(tensor)
                if ft._plane.finished > before:
                    made_here[ft._plane.finished] = ("average" if average else "sum", bool(status))
                elif status is Status.FAIL:
                    gave_up.set()
                average = not average
            return made_here, ft.step

    def joins(shard: int) -> None:
        assert gave_up.wait(TIMEOUT)
        with contextlib.suppress(SystemExit):  # the others may have ended the job before its last call
            live("c", shard, END + 1, PATIENCE)

    joining = [in_thread(functools.partial(joins, shard)) for shard in range(2)]
    lives = [("a", 0, END, PATIENCE), ("a", 1, END), ("b", 0, ALONE_AFTER), ("b", 1, ALONE_AFTER)]
    one, mate, *_ = at_once(*[functools.partial(live, *each) for each in lives])
    over.set()
    for thread in joining:
        thread.join(TIMEOUT)
    assert mate[0][ALONE_AFTER + 1] == ("average", False)
    assert one[1] == mate[1]
    assert one[0] == {number: kind for number, kind in mate[0].items() if number > ALONE_AFTER + 1 or number <= ALONE_AFTER}
