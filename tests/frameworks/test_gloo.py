"""Gloo groups among real processes: operations, aborts after real kills, disagreements, forks, cancelled rebuilds."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from typing import TYPE_CHECKING, Any
from unittest import mock

import pytest
import torch
from torch.distributed import ProcessGroupGloo

from ftlib.errors import ConfigError, GroupError
from ftlib.frameworks import GroupSpec, framework_by_name, gloo, sockets
from ftlib.frameworks.gloo import GlooFramework
from tests.frameworks.crew import Crew, Hand, Worker, rebuild

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = [pytest.mark.process, pytest.mark.skipif(not sockets.supported(), reason="needs /proc")]

TIMEOUT = 20.0


@pytest.fixture(scope="module")
def crew() -> Iterator[Crew]:
    crew = Crew()
    yield crew
    crew.close()


# What workers are told to do.


def operate(worker: Worker) -> dict[str, Any]:
    group = worker.group
    rank, size = group.rank, group.size
    results: dict[str, Any] = {}
    for op in ("SUM", "MIN", "MAX", "PRODUCT"):
        tensor = torch.full((5,), float(rank + 1))
        assert group.allreduce(tensor, op).wait(TIMEOUT)
        results[op] = tensor.tolist()
    for dtype in (torch.float16, torch.bfloat16, torch.float64, torch.int8, torch.uint8, torch.int32, torch.int64):
        worker.framework.check(tensor := torch.full((3,), rank + 1).to(dtype))
        assert group.allreduce(tensor).wait(TIMEOUT)
        results[str(dtype)] = tensor.tolist()
    for dtype in (torch.float32, torch.int16, torch.bool, torch.complex64):
        tensor = torch.full((3, 2), rank).to(dtype)
        assert group.broadcast(tensor, size - 1).wait(TIMEOUT)
        results[f"broadcast {dtype}"] = tensor.tolist()
    assert group.barrier().wait(TIMEOUT)
    scalar = torch.tensor(float(rank))
    assert group.allreduce(scalar).wait(TIMEOUT)
    results["scalar"] = scalar.item()
    return results


def exchange(worker: Worker, elements: int) -> float:
    """Send to the right, receive from the left, during an allreduce."""
    group = worker.group
    big = torch.ones(2_000_000)
    reduction = group.allreduce(big)
    mine, theirs = torch.full((elements,), float(group.rank)), torch.zeros(elements)
    sent = group.send(mine, (group.rank + 1) % group.size, 7)
    received = group.recv(theirs, (group.rank - 1) % group.size, 7)
    for work in (sent, received, reduction):
        assert work.wait(TIMEOUT)
        assert work.done()
    assert big[-1].item() == group.size
    return theirs[-1].item()


def loop(worker: Worker, elements: int) -> tuple[float, int, str, tuple[int, ...]]:
    """Allreduce until it breaks, abort; when that was, how many, the error."""
    group, count = worker.group, 0
    tensor = torch.ones(elements)
    while True:
        tensor.fill_(1.0)
        work = group.allreduce(tensor)
        try:
            assert work.wait(TIMEOUT)
        except GroupError as error:
            at = time.monotonic()
            group.abort()
            assert work.done()
            return at, count, str(error), error.peers
        assert tensor[0].item() == group.size
        count += 1


def reduce_one(worker: Worker, elements: int) -> float:
    tensor = torch.ones(elements)
    assert worker.group.allreduce(tensor).wait(TIMEOUT)
    return tensor.sum().item() / elements


def patterns(worker: Worker) -> list[float]:
    """Many sizes, some repeated, two under way at a time."""
    group = worker.group
    results = []
    for step in range(12):
        sizes = [1000, 1000, 1000, 17] + ([5] if step % 5 == 4 else [])
        tensors = [torch.full((size,), float(index)) for index, size in enumerate(sizes)]
        works = [group.allreduce(tensor) for tensor in tensors]
        assert all(work.wait(TIMEOUT) for work in works)
        results.append(sum(float(tensor[-1]) for tensor in tensors))
    return results


def abort_from_another_thread(worker: Worker, waiting: bool) -> float:
    """Seconds from the abort to the error of an operation that the others never enter."""
    group = worker.group
    if not waiting:
        with contextlib.suppress(GroupError):
            group.barrier().wait(TIMEOUT)
            group.allreduce(torch.ones(10)).wait(TIMEOUT)
            time.sleep(0.5)
        return 0.0
    group.barrier().wait(TIMEOUT)
    group.allreduce(torch.ones(10)).wait(TIMEOUT)
    work = group.allreduce(torch.ones(10))
    assert work.wait(0.05) is False
    assert not work.done()
    begin = time.monotonic()
    group.abort()
    group.abort()
    with pytest.raises(GroupError):
        work.wait(TIMEOUT)
    took = time.monotonic() - begin
    with pytest.raises(GroupError):
        group.allreduce(torch.ones(1)).wait(TIMEOUT)
    return took


def close_under_way(worker: Worker) -> tuple[float, int]:
    """Close with operations under way at once; seconds it took, sockets of the group left after a while."""
    group = worker.group
    before = len(sockets.snapshot())
    with contextlib.suppress(GroupError):
        group.barrier().wait(TIMEOUT)
    works = [group.allreduce(torch.ones(1_000_000)) for _ in range(2)] if group.rank == 0 else []
    begin = time.monotonic()
    group.close()
    group.close()
    took = time.monotonic() - begin
    for work in works:
        with pytest.raises(GroupError):
            work.wait(TIMEOUT)
    deadline = time.monotonic() + 10
    while len(sockets.snapshot()) > before - 4 and time.monotonic() < deadline:
        time.sleep(0.01)
    return took, before - len(sockets.snapshot())


def try_rebuild(worker: Worker, spec: GroupSpec, cancel_after: float | None) -> tuple[float, str]:
    if cancel_after is not None:
        threading.Timer(cancel_after, worker.framework.cancel).start()
    begin = time.monotonic()
    try:
        worker.framework.rebuild(spec)
    except GroupError as error:
        return time.monotonic() - begin, f"{error} {error.peers}"
    return time.monotonic() - begin, "built"


def abort_old_while_rebuilding(worker: Worker, spec: GroupSpec) -> str:
    """The training thread's operation fails while another thread rebuilds."""
    old = worker.group
    thread = threading.Thread(target=rebuild, args=(worker, spec))
    thread.start()
    for _ in range(50):
        old.abort()
    thread.join(TIMEOUT)
    assert worker.group is not old
    return str(worker.group)


def keep_child(worker: Worker, seconds: float) -> int:
    """Fork a child that outlives this process, as a data loader worker may; its pid."""
    child = os.fork()
    if child == 0:
        time.sleep(seconds)
        os._exit(0)
    return child


def child_sockets(worker: Worker) -> tuple[int, str]:
    """TCP sockets open in this process and in a forked child."""
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        left = [handle for _, handle in sockets._sockets(frozenset())]
        os.write(writer, repr(left).encode())
        os._exit(0)
    os.waitpid(child, 0)
    inherited = os.read(reader, 10000).decode()
    os.close(reader)
    os.close(writer)
    return len(sockets._sockets(frozenset())), inherited


def rebuild_blindly(worker: Worker, spec: GroupSpec) -> str:
    """Build as where sockets cannot be listed."""
    with mock.patch.object(sockets, "supported", return_value=False):
        rebuild(worker, spec)
    return str(worker.group)


def fail_in_the_middle(worker: Worker, spec: GroupSpec) -> str:
    """Meet the others, then do not connect to them."""

    whole: Any = ProcessGroupGloo

    class Broken:
        create_device = whole.create_device
        _Options = whole._Options

        def __init__(self, *arguments: object) -> None:
            raise RuntimeError("broken on purpose")

    with mock.patch.object(gloo, "ProcessGroupGloo", Broken):
        return try_rebuild(worker, spec, None)[1]


def building_threads(worker: Worker) -> int:
    """Threads still in a build, after some time to end."""
    deadline = time.monotonic() + 5.0
    while time.monotonic() < deadline and any("build" in thread.name for thread in threading.enumerate()):
        time.sleep(0.02)
    return sum("build" in thread.name for thread in threading.enumerate())


def abandon(worker: Worker) -> tuple[float, bool, float]:
    """Abort while waiting in vain: seconds until the wait fails, whether done then, seconds until done."""
    for _ in range(3):
        assert worker.group.allreduce(torch.ones(10)).wait(TIMEOUT)
    if worker.group.rank > 0:
        time.sleep(1.5)
        return 0.0, True, 0.0
    work = worker.group.allreduce(torch.ones(10))
    assert work.wait(0.25) is False
    threading.Timer(0.1, worker.group.abort).start()
    begin = time.monotonic()
    with pytest.raises(GroupError, match="abandoned"):
        work.wait(TIMEOUT)
    failed, done = time.monotonic() - begin, work.done()
    while not work.done() and time.monotonic() < begin + TIMEOUT:
        time.sleep(0.01)
    return failed, done, time.monotonic() - begin


def store_keys(worker: Worker) -> list[str]:
    assert isinstance(worker.framework, GlooFramework)
    assert worker.framework._server is not None
    time.sleep(0.1)
    return worker.framework._server.keys()


# Tests.


@pytest.mark.parametrize("size", [1, 2, 3])
def test_operations(crew: Crew, size: int) -> None:
    hands = crew.hire(3)[:size]
    crew.build(hands)
    answers = crew.run(hands, operate)
    assert all(answer == answers[0] for answer in answers)
    total, product = size * (size + 1) / 2, float(torch.arange(1, size + 1).prod())
    assert answers[0]["SUM"] == [total] * 5
    assert answers[0]["MIN"] == [1.0] * 5
    assert answers[0]["MAX"] == [float(size)] * 5
    assert answers[0]["PRODUCT"] == [product] * 5
    assert answers[0]["torch.bfloat16"] == [total] * 3
    assert answers[0]["broadcast torch.int16"] == [[size - 1] * 2] * 3
    assert answers[0]["scalar"] == size * (size - 1) / 2


def test_transfers_beside_collectives(crew: Crew) -> None:
    hands = crew.hire(3)
    crew.build(hands)
    assert crew.run(hands, exchange, 100_000) == [2.0, 0.0, 1.0]


def test_repeated_patterns(crew: Crew) -> None:
    hands = crew.hire(3)
    crew.build(hands)
    expected = [3.0 * 6 + (12.0 if step % 5 == 4 else 0.0) for step in range(12)]
    assert crew.run(hands, patterns) == [expected] * 3


@pytest.mark.parametrize("victim", [0, 1, 2, 3])
def test_kill_is_felt_at_once_and_survivors_go_on(crew: Crew, victim: int) -> None:
    hands = crew.hire(4)
    crew.build(hands, host=(victim + 1) % 4)
    for hand in hands:
        hand.tell(loop, 1_000_000)
    time.sleep(0.2)
    killed = hands[victim].kill()
    survivors = [hand for hand in hands if hand is not hands[victim]]
    answers = [hand.answer() for hand in survivors]
    print("\nerrors after", [f"{1e3 * (answer[0] - killed):.1f} ms" for answer in answers], [a[3] for a in answers])
    assert max(answer[0] for answer in answers) - killed < 2.0  # milliseconds in fact; the machine may be busy
    assert max(answer[1] for answer in answers) - min(answer[1] for answer in answers) <= 1
    assert any(victim in answer[3] for answer in answers)
    took = crew.build(survivors)
    print("rebuilt in", [f"{1e3 * seconds:.1f} ms" for seconds in took])
    assert crew.run(survivors, reduce_one, 1_000_000) == [3.0] * 3


def test_stopped_worker_is_left_behind(crew: Crew) -> None:
    """SIGSTOP: nobody's connection breaks until one of the others aborts."""
    hands = crew.hire(3)
    crew.build(hands)
    for hand in hands:
        hand.tell(loop, 100_000)
    time.sleep(0.1)
    os.kill(hands[2].process.pid, signal.SIGSTOP)
    try:
        time.sleep(0.1)
        assert not any(hand._pipe.poll(0.3) for hand in hands[:2])
    finally:
        os.kill(hands[2].process.pid, signal.SIGCONT)
    hands[2].kill()
    for hand in hands[:2]:
        hand.answer()


def test_abort_wakes_a_waiting_operation(crew: Crew) -> None:
    hands = crew.hire(3)
    crew.build(hands)
    for hand, waiting in zip(hands, (True, False, False), strict=True):
        hand.tell(abort_from_another_thread, waiting)
    took = [hand.answer() for hand in hands]
    print(f"\nabort to error {1e3 * took[0]:.2f} ms")
    assert took[0] < 1.0


def test_close_gives_everything_back(crew: Crew) -> None:
    hands = crew.hire(3)
    crew.build(hands)
    answers = crew.run(hands, close_under_way)
    print(f"\nclose took {1e3 * max(took for took, _ in answers):.2f} ms")
    assert all(took < 1.0 for took, _ in answers)
    assert all(freed >= 4 for _, freed in answers), answers  # listener, two connections, store


def test_rebuild_names_who_is_missing(crew: Crew) -> None:
    hands = crew.hire(3)
    specs = crew.specs(hands, timeout=0.5)
    for hand, spec in zip(hands[:2], specs, strict=False):
        hand.tell(try_rebuild, spec, None)
    for took, text in [hand.answer() for hand in hands[:2]]:
        assert "no sign of ranks [2]" in text
        assert "(2,)" in text
        assert 0.4 < took < 3.0


def test_cancel_ends_a_rebuild(crew: Crew) -> None:
    hands = crew.hire(2)
    hands[0].tell(try_rebuild, crew.specs(hands)[0], 0.2)
    took, text = hands[0].answer()
    assert "cancelled" in text
    assert took < 2.0
    crew.build(hands)
    assert crew.run(hands, reduce_one, 10) == [2.0] * 2


def test_cancel_while_gloo_connects(crew: Crew) -> None:
    hands = crew.hire(3)
    specs = crew.specs(hands)
    hands[1].tell(fail_in_the_middle, specs[1])
    for rank in (0, 2):
        hands[rank].tell(try_rebuild, specs[rank], 0.5)
    assert "broken on purpose" in hands[1].answer()
    for rank in (0, 2):
        took, text = hands[rank].answer()
        assert "cancelled" in text
        assert took < 3.0
    assert crew.run(hands, building_threads) == [0, 0, 0]
    crew.build(hands)
    assert crew.run(hands, reduce_one, 10) == [3.0] * 3


def test_rebuild_with_a_dead_store_fails_at_once(crew: Crew) -> None:
    hands = crew.hire(3)
    specs = crew.specs(hands, host=2)
    hands[2].kill()
    hands[0].tell(try_rebuild, specs[0], None)
    took, text = hands[0].answer()
    assert "does not answer" in text
    assert took < 2.0


def test_abort_during_rebuild(crew: Crew) -> None:
    hands = crew.hire(3)
    crew.build(hands)
    for _ in range(3):
        for hand, spec in zip(hands, crew.specs(hands), strict=True):
            hand.tell(abort_old_while_rebuilding, spec)
        assert all("open" in hand.answer() for hand in hands)
    assert crew.run(hands, reduce_one, 10) == [3.0] * 3


def test_forked_children_hold_no_sockets(crew: Crew) -> None:
    hands = crew.hire(2)
    crew.build(hands)
    for here, inherited in crew.run(hands, child_sockets):
        assert here > 3
        assert inherited == "[]"
    assert crew.run(hands, reduce_one, 10) == [2.0] * 2


def test_kill_is_felt_although_a_child_lives_on(crew: Crew) -> None:
    hands = crew.hire(3)
    crew.build(hands)
    hands[1].tell(keep_child, 5.0)
    child = hands[1].answer()
    for hand in hands:
        hand.tell(loop, 1000)
    time.sleep(0.1)
    killed = hands[1].kill()
    for hand in (hands[0], hands[2]):
        assert hand.answer()[0] - killed < 2.0
    os.kill(child, signal.SIGKILL)


def test_operations_are_abandoned_where_sockets_cannot_be_cut(crew: Crew) -> None:
    hands = crew.hire(2)
    for hand, spec in zip(hands, crew.specs(hands, timeout=1.0), strict=True):
        hand.tell(rebuild_blindly, spec)
    assert all("inexact" in hand.answer() for hand in hands)
    failed, done, until_done = crew.run(hands, abandon)[0]
    assert failed < 0.9
    assert not done
    assert until_done < 5.0
    crew.build(hands)
    assert crew.run(hands, reduce_one, 10) == [2.0] * 2


def test_store_forgets_earlier_epochs(crew: Crew) -> None:
    hands = crew.hire(2)
    for _ in range(4):
        crew.build(hands)
        crew.run(hands, reduce_one, 10)
    hands[0].tell(store_keys)
    epochs = {key.strip("/").partition("/")[0] for key in hands[0].answer() if "view-" in key}
    assert len(epochs) == 1


def test_check_names_the_remedy() -> None:
    framework = GlooFramework()
    framework.check(torch.ones(3))
    with pytest.raises(ConfigError, match="convert to one of"):
        framework.check(torch.ones(3, dtype=torch.int16))
    with pytest.raises(ConfigError, match="to_dense"):
        framework.check(torch.ones(3).to_sparse())
    with pytest.raises(ConfigError, match="meta"):
        framework.check(torch.ones(3, device="meta"))


def test_start_needs_an_address_of_this_machine() -> None:
    with pytest.raises(ConfigError, match=r"203\.0\.113\.7"):
        GlooFramework().start("203.0.113.7")
    with pytest.raises(ConfigError, match="start the framework"):
        GlooFramework().rebuild(GroupSpec("v", 1, 0, 1, {"store": "127.0.0.1:1"}, 1.0))


def test_alone_in_this_process() -> None:
    framework = framework_by_name("gloo")
    facts = framework.start("127.0.0.1")
    assert framework.start("127.0.0.1") == facts
    assert framework.start("127.0.0.2")["store"].startswith("127.0.0.2:"), "a later lifetime may have another address"
    facts = framework.start("127.0.0.1")
    group = framework.rebuild(GroupSpec("v", 1, 0, 1, facts, TIMEOUT))
    with pytest.raises(ConfigError, match="MEDIAN"):
        group.allreduce(torch.ones(1), "MEDIAN")
    tensor = torch.ones(3)
    assert group.allreduce(tensor).wait(TIMEOUT)
    assert tensor.tolist() == [1.0] * 3
    framework.abort_communicator()
    with pytest.raises(GroupError):
        group.barrier().wait(TIMEOUT)
    framework.close()
    framework.close()
    with pytest.raises(OSError, match="refused"):
        socket.create_connection(("127.0.0.1", int(facts["store"].rpartition(":")[2])))


@pytest.mark.parametrize("ending", ["group.close()", "framework.close()", "None"])
def test_process_ends_well_with_operations_under_way(ending: str) -> None:
    """Threads inside C++ while the interpreter finalizes would end it with SIGABRT."""
    script = f"""if True:
        import sys, threading, torch
        from ftlib.frameworks import GroupSpec, framework_by_name
        frameworks = [framework_by_name("gloo") for _ in range(2)]
        facts = [framework.start("127.0.0.1") for framework in frameworks]
        def build(rank):
            group = frameworks[rank].rebuild(GroupSpec("v", 1, rank, 2, facts[0], 20.0))
            for _ in range(3):
                group.allreduce(torch.ones(5)).wait(20.0)
        other = threading.Thread(target=build, args=(1,))
        other.start()
        build(0)
        other.join()
        framework, group = frameworks[0], frameworks[0].group
        work = group.allreduce(torch.ones(5))
        received = group.recv(torch.ones(5), 1, 3)
        {ending}
        sys.exit(7)
    """
    ended = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=False)
    assert ended.returncode == 7, ended.stderr


@pytest.mark.soak
def test_thirty_kills_in_a_row(crew: Crew) -> None:
    errors, rebuilds = [], []
    for repetition in range(30):
        hands: list[Hand] = crew.hire(4)
        crew.build(hands, host=repetition % 4)
        crew.run(hands, reduce_one, 1000)  # new ones import this module first
        for hand in hands:
            hand.tell(loop, 1_000_000)
        time.sleep(0.05)
        victim = hands[repetition % 3]
        killed = victim.kill()
        survivors = [hand for hand in hands if hand is not victim]
        errors.append(1e3 * (max(hand.answer()[0] for hand in survivors) - killed))
        rebuilds.append(1e3 * max(crew.build(survivors)))
        assert crew.run(survivors, reduce_one, 1000) == [3.0] * 3
    for name, values in (("kill to all errors", sorted(errors)), ("rebuild", sorted(rebuilds))):
        print(f"\n{name}: median {values[15]:.1f} ms, worst {values[-1]:.1f} ms")
    assert errors[15] < 500.0
