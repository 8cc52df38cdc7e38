"""A worker that is late: its deputy takes part in the others' calls, and it ends up with what they have."""

from __future__ import annotations

import threading
import time

from ftlib import Status
from tests.ftlib.real import company, eventually, in_thread
from tests.ftlib.recovery.pupils import Pupil, assert_equal

DEADLINE = 0.2


def test_the_others_go_on_and_a_late_worker_ends_up_with_what_they_have() -> None:
    with company(3, straggler_deadline=DEADLINE) as crew:
        from tests.ftlib.real import at_once
        pupils = at_once(*[lambda ft=ft, i=i: Pupil(ft, i) for i, ft in enumerate(crew.members)])
        over = threading.Event()
        def train(p, n):
            for _ in range(n): assert p.step()
        at_once(*[lambda p=p: train(p, 30) for p in pupils])
        threads = [in_thread(lambda p=p: p.train(over)) for p in pupils[:2]]
        last = pupils[2]
        before = pupils[0].ft.step
        eventually(lambda: pupils[0].ft.step > before + 20, "go on")
        assert last.ft.step == before
        print(last.ft.metrics()["missed"], last.ft.metrics()["stood_in"])
        t = time.monotonic()
        assert last.step() is Status.SUCCESS
        print("took", time.monotonic() - t, last.ft.step, pupils[0].ft.step)
        assert last.ft.step >= before + 20
        for _ in range(10): assert last.step()
        over.set()
        at_once(*[ft.close for ft in crew.members])
        for t in threads: t.join(10)
        assert assert_equal(*pupils) > 30
