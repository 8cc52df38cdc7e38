"""One lifetime after the other in one process: whom the next one asks, and that none leaves anything behind."""

from __future__ import annotations

import functools
import gc
import os
import signal
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from consensus import Config, ExcludedError, Gossip, Home, Member, View
from consensus.runtime.net.fork import _owners as fork_owners
from ftlib.core.tensors.staging import Slot
from ftlib.lifecycle import rejoin
from ftlib.lifecycle.lifetime import Lifetime
from tests.ftlib.crews.trainees import Trainee, exclude, until
from tests.ftlib.lifecycle.test_closing import left_behind
from tests.harness.basics import TIMEOUT, eventually
from tests.harness.company import at_once, company, in_thread


def test_whom_the_next_lifetime_asks() -> None:
    """Those of the view without this member, where it learned of it, else of the last one that it was in."""
    gossip = Gossip(Config(agent=Home.THREAD))
    gossip.start()
    try:
        own = gossip.wait_view(TIMEOUT)
        assert own is not None
        assert gossip.anew()._met == ()
        others = tuple(Member(f"w{i}", "127.0.0.1", 7000 + i) for i in range(20))
        gossip._publish(gossip._snapshot.__class__(known=own, stopped=ExcludedError("out", View(2, own.view_id, others))))
        anew = gossip.anew()
        assert anew._met == tuple(member.address for member in others[:16])
        assert anew.bind().address != gossip.member.address, "port 0 is any port"
        anew.stop()
    finally:
        gossip.stop()


def test_twenty_lifetimes_leave_nothing_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    """Five of each of four workers, all at once."""
    monkeypatch.setattr(rejoin, "_REST", 0.0)
    with company(5, rejoin=True) as crew:
        staying, *leaving = at_once(*[functools.partial(Trainee, ft) for ft in crew.members])
        over = threading.Event()
        thread = in_thread(lambda: until(over, staying))
        begin = threading.Event()
        back = threading.Semaphore(0)  # a rejoin is counted before the call that it happened in has ended

        def again(trainee: Trainee) -> None:
            until(begin, trainee)
            for _ in range(5):
                exclude(trainee.ft)
                assert trainee.step()
            back.release()
            until(over, trainee)

        threads = [in_thread(functools.partial(again, trainee)) for trainee in leaving]
        eventually(lambda: staying.ft.step > 5, "they train")
        before = held()
        begin.set()
        for _ in leaving:
            assert back.acquire(timeout=TIMEOUT)
        eventually(lambda: staying.ft.size == 5, "all are back")
        assert all(trainee.ft.metrics()["rejoins"] == 5 for trainee in leaving)
        assert_no_more(held, before, buffers=8)
        for one in leaving:
            one.ft.leave()
        for each in threads:
            each.join(TIMEOUT)
        over.set()
        thread.join(TIMEOUT)


@pytest.mark.process
def test_agents_as_processes_leave_nothing_behind_either(monkeypatch: pytest.MonkeyPatch) -> None:
    """Killed, as by a kernel without memory: a worker without its agent is excluded, and gets another one."""
    monkeypatch.setattr(rejoin, "_REST", 0.0)
    with company(1, "gloo", agent="process") as crew:  # it answers, however long this process looks for garbage
        staying = Trainee(crew.members[0])
        over = threading.Event()
        ft = crew.init(agent="process", rejoin=True)
        thread = in_thread(lambda: until(over, staying))
        joiner = Trainee(ft)
        assert joiner.step()
        before = {}
        for number in range(3):
            pid = ft._consensus._host.pid  # type: ignore[attr-defined]
            os.kill(pid, signal.SIGKILL)
            eventually(lambda: ft._plane.phase.value == "stopped", "it knows")
            assert joiner.step()
            assert not Path(f"/proc/{pid}").exists(), "it was reaped"
            before = before if number else held()
        assert_no_more(lambda: held() if joiner.step() else {}, before, buffers=4, descriptors=2)  # the other one waits for it
        ft.leave()
        over.set()
        thread.join(TIMEOUT)


def held() -> dict[str, int]:
    """What this process holds; before the garbage collector came, as far as buffers are concerned."""
    buffers = sum(type(item) is Slot for item in gc.get_objects())
    gc.collect()
    lifetimes = sum(type(item) is Lifetime for item in gc.get_objects())
    threads, descriptors = left_behind()
    children = len(Path(f"/proc/self/task/{os.getpid()}/children").read_text().split())
    return {
        "lifetimes": lifetimes,
        "threads": threads,
        "descriptors": descriptors,
        "children": children,
        "owners": len(fork_owners),
        "buffers": buffers,
    }


def assert_no_more(measure: Callable[[], dict[str, int]], before: dict[str, int], **more: int) -> None:
    """But for so many ``more`` of some: buffers of calls under way, descriptors of groups just closed."""
    now: list[dict[str, int]] = []

    def settled() -> bool:
        now.append(measure())
        return all(count <= before[name] + more.get(name, 0) for name, count in now[-1].items())

    try:
        eventually(settled, "nothing is left")
    except AssertionError:
        raise AssertionError(f"before {before}, now {now[-1]}") from None
