"""Active mode asks for what is known here; passive mode is told. What resets ``initialized()``."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any

import pytest
import torch

from consensus import Mode
from consensus.border import Freeze
from ftlib.core.calls.call import Call, Results
from ftlib.core.calls.session import Session
from ftlib.core.plane.orders import Finish
from ftlib.core.tensors.trailer import Trailer
from ftlib.frameworks.base import Operation, Work
from ftlib.ftlib import FTLib
from tests.ftlib.crews.workers import Job, Worker
from tests.harness.basics import TIMEOUT, around, eventually
from tests.harness.company import at_once, call_until, company


class Asked:
    """Counts what a worker asks of its consensus."""

    def __init__(self, worker: Worker, mode: Mode, monkeypatch: pytest.MonkeyPatch) -> None:
        self.confirms = 0
        self.answer: bool | None = None

        @around(monkeypatch, worker.consensus, "confirm")
        def confirm(real: Any) -> bool:
            self.confirms += 1
            return real() if self.answer is None else self.answer

        monkeypatch.setattr(worker.consensus, "passive_or_active", lambda: mode)


@pytest.mark.parametrize("size", [1, 2])
def test_active_mode_confirms(monkeypatch: pytest.MonkeyPatch, size: int) -> None:
    def body(worker: Worker) -> None:
        asked = Asked(worker, Mode.ACTIVE, monkeypatch)
        worker.ft.barrier()
        assert worker.ft.initialized()
        assert asked.confirms == 1
        assert worker.ft.skip_allreduce() is (size == 1)
        assert asked.confirms == (2 if size == 1 else 1)
        asked.answer = False  # a change is under way, though nobody has told the data plane yet
        assert not worker.ft.initialized()
        assert not worker.ft.skip_allreduce()

    with Job(size) as job:
        job.run({f"w{i}": body for i in range(size)})


@pytest.mark.parametrize("size", [1, 2])
def test_passive_mode_is_told(monkeypatch: pytest.MonkeyPatch, size: int) -> None:
    def body(worker: Worker) -> None:
        asked = Asked(worker, Mode.PASSIVE, monkeypatch)
        asked.answer = False
        worker.ft.barrier()
        assert worker.ft.initialized()
        assert worker.ft.skip_allreduce() is (size == 1)
        if worker.name == "w0":
            worker.consensus.plane.handle(Freeze(2, None))  # type: ignore[union-attr]
            eventually(lambda: not worker.ft.initialized(), "told of a change")
            assert not worker.ft.skip_allreduce()
        assert asked.confirms == 0

    with Job(size) as job:
        job.run({f"w{i}": body for i in range(size)})


def test_a_change_that_waits_for_the_call_is_not_seen_within_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """The consensus has begun it, and says so when asked; the flag stays until the operations have ended."""

    def body(worker: Worker) -> None:
        ft = worker.ft
        asked = Asked(worker, Mode.ACTIVE, monkeypatch)
        ft.barrier()
        if worker.name == "w1":
            assert seen.wait(TIMEOUT)
            assert ft.barrier()
            return
        thread = threading.Thread(target=ft.barrier, daemon=True)
        thread.start()
        eventually(lambda: ft._plane.running is not None, "inside")
        asked.answer = False
        worker.consensus.plane.handle(Freeze(2, 2))  # type: ignore[union-attr]
        eventually(lambda: ft._plane._order is not None, "it was told to freeze after this call")
        assert ft.initialized()
        seen.set()
        thread.join(TIMEOUT)
        assert not thread.is_alive()
        assert not ft.initialized()

    seen = threading.Event()
    with Job(2) as job:
        job.run({"w0": body, "w1": body})


@pytest.mark.parametrize("mode", ["active", "passive"])
def test_asking_sends_nothing(mode: str) -> None:
    """Thousands of questions within a moment: what is sent meanwhile is what is sent anyway."""
    with company(2, mode=mode) as crew:
        ft = crew.members[0]

        def sent() -> int:
            return sum(count for kind in ft._consensus.status()["messages"].values() for count in _numbers(kind))

        before, began = sent(), time.monotonic()
        for _ in range(5000):
            assert ft.initialized()
            assert not ft.skip_allreduce()
        assert sent() - before < 500 + 100 * (time.monotonic() - began), "members ping each other anyway"


def _numbers(tree: object) -> list[int]:
    if isinstance(tree, dict):
        return [number for value in tree.values() for number in _numbers(value)]
    return [tree] if isinstance(tree, int) else []


@pytest.mark.parametrize("mode", ["active", "passive"])
def test_a_joiner_waits_for_the_end_of_a_long_call(mode: str) -> None:
    """The joiner asks to join while two members are inside a call: nothing changes for them before it has ended."""
    with company(2, mode=mode, boundary_wait=0.1) as crew:  # the call takes many times as long
        first, second = crew.members
        entered, finish = threading.Event(), threading.Event()
        hold(first, entered, finish)

        def is_last() -> None:
            """Once the coordinator is outside, it has waited long enough, and for nobody's end."""
            eventually(lambda: second._plane.finished >= 2, "the other one has ended the call")

        def member(ft: FTLib) -> None:
            ends = look_at_ends(ft, is_last if ft is first else lambda: None)
            assert ft.allreduce_average(torch.ones(4))
            assert ends == [2], "this call was finished with those who began it, and nothing changed with its end"
            assert ft.metrics()["redone"] == 0
            call_until(ft, lambda: ft.size == 3)

        def joiner() -> None:
            assert entered.wait(TIMEOUT)
            ft = crew.init()
            call_until(ft, lambda: ft.size == 3)

        def watch() -> None:
            assert entered.wait(TIMEOUT)
            eventually(first._consensus.new_member_join, "the joiner has asked to join")
            for _ in range(60):
                assert first.initialized()
                assert second.initialized()
                assert (first.size, second.size) == (2, 2)
                time.sleep(0.01)  # time in which it must not happen
            finish.set()

        at_once(lambda: member(first), lambda: member(second), joiner, watch)


def hold(ft: FTLib, entered: threading.Event, finish: threading.Event) -> None:
    """Keep the next operation of this member under way until told."""
    session = ft._session
    assert session is not None and session.group is not None
    group = session.group
    real = group.submit

    def submit(operation: Operation) -> Work:
        entered.set()
        assert finish.wait(TIMEOUT)
        group.submit = real  # type: ignore[method-assign]
        return real(operation)

    group.submit = submit  # type: ignore[method-assign]


def look_at_ends(ft: FTLib, before: Callable[[], None]) -> list[int]:
    """The group's size as each call ends, 0 where all freeze with its end: a moment later it may be another.

    ``before``: called as an end begins.
    """
    original, seen = ft._plane.finish, list[int]()

    def finish(session: Session, call: Call, trailer: Trailer, results: Results) -> Finish | None:
        before()
        end = original(session, call, trailer, results)
        seen.append(session.size if end is not None and not trailer.freeze and end.order is None else 0)
        return end

    ft._plane.finish = finish  # type: ignore[method-assign]
    return seen


def look_at_freezes(ft: FTLib, seen: list[bool]) -> None:
    """Note what ``initialized()`` says right after each freeze: polling would miss it."""
    original = ft._plane._freeze

    def freeze() -> None:
        original()
        seen.append(ft.initialized())

    ft._plane._freeze = freeze  # type: ignore[method-assign]


def test_a_joiner_that_is_admitted_resets_initialized() -> None:
    seen: list[bool] = []

    def body(worker: Worker) -> None:
        ft = worker.ft
        ft.barrier()
        if worker.name == "w0":
            look_at_freezes(ft, seen)
            job.start("w2", lambda late: call_until(late.ft, lambda: late.ft.size == 3))
        call_until(ft, lambda: ft.size == 3)
        assert ft.initialized()

    with Job(2) as job:
        job.run({f"w{i}": body for i in range(2)})
        job.workers["w2"].join()
    assert seen
    assert not any(seen)


def test_a_failed_collective_resets_initialized() -> None:
    def body(worker: Worker) -> None:
        ft = worker.ft
        ft.barrier()
        if worker.name == "w0":
            look_at_freezes(ft, seen)  # by its own failure, or by what the other one said of it before
            job.hub.fail_next(0)
        assert ft.barrier()
        assert ft.initialized()
        assert ft.epoch == 2

    seen: list[bool] = []
    with Job(2) as job:
        job.run({f"w{i}": body for i in range(2)})
    assert seen
    assert not any(seen)


def test_a_member_found_dead_resets_initialized() -> None:
    """Outside of any call, so that no collective tells: the detector does, and it takes a call to go on."""
    with company(3, exclude_after=1.0) as crew:
        first, second, third = crew.members
        assert first.initialized()
        seen: list[bool] = []
        look_at_freezes(first, seen)
        crew.hub.kill(third._framework.member, silent=True)  # type: ignore[attr-defined]
        third._consensus.stop()  # its sockets close: as good as dead

        def watch(ft: FTLib) -> None:
            eventually(lambda: ft.initialized() and ft.size == 2, "rebuilt")
            assert ft.barrier()

        at_once(lambda: watch(first), lambda: watch(second))
        assert seen
        assert not any(seen)
