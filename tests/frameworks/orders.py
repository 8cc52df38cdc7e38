"""What a test tells the workers of ``crew`` to do with their Gloo groups: each order takes the worker first."""

from __future__ import annotations

import contextlib
import math
import os
import signal
import threading
import time
import warnings
from typing import Any
from unittest import mock

import pytest
import torch
from torch.distributed import ProcessGroupGloo

from ftlib.errors import ConfigError, GroupError
from ftlib.frameworks import Group, GroupSpec, Work, gloo_build, sockets
from ftlib.frameworks.accelerators.group import HybridGroup
from ftlib.frameworks.background import finish_tasks
from ftlib.frameworks.gloo import GlooFramework
from ftlib.frameworks.gloo_group import GlooGroup
from ftlib.frameworks.rendezvous import Meeting, split_address
from tests.frameworks.crew import TIMEOUT, Worker, rebuild
from tests.frameworks.threadless import no_thread_left
from tests.harness.basics import eventually


def operate(worker: Worker) -> dict[str, Any]:
    group = worker.group
    rank, size = group.rank, group.size
    results: dict[str, Any] = {}
    for op in ("SUM", "MIN", "MAX", "PRODUCT"):
        tensor = worker.put(torch.full((5,), float(rank + 1)))
        worker.reduce(tensor, op)
        results[op] = tensor.tolist()
    for dtype in (torch.float16, torch.bfloat16, torch.float64, torch.int8, torch.uint8, torch.int32, torch.int64):
        worker.framework.check(tensor := worker.put(torch.full((3,), rank + 1).to(dtype)))
        worker.reduce(tensor)
        results[str(dtype)] = tensor.tolist()
    for dtype in (torch.float32, torch.int16, torch.bool, torch.complex64):
        tensor = torch.full((3, 2), rank).to(dtype)
        assert group.broadcast(tensor, size - 1).wait(TIMEOUT)
        results[f"broadcast {dtype}"] = tensor.tolist()
    assert group.barrier().wait(TIMEOUT)
    scalar = worker.put(torch.tensor(float(rank)))
    worker.reduce(scalar)
    results["scalar"] = scalar.item()
    return results


def reduce_few_bytes(worker: Worker) -> dict[str, Any]:
    """Reductions below the size at which a ring begins, and around it, each in tensors of several kinds."""
    group, rank = worker.group, worker.group.rank
    found: dict[str, Any] = {}
    share = (1e8, 1.0, -1e8)[rank]  # (1e8 + 1) - 1e8 is 0 in float32, and 1e8 - 1e8 + 1 is 1
    ordered = torch.full((7,), share)
    work = group.allreduce(ordered)
    threads = [threading.Thread(target=work.wait, args=(TIMEOUT,)) for _ in range(3)]
    for thread in threads:
        thread.start()
    assert work.wait(TIMEOUT)
    for thread in threads:
        thread.join()
    assert work.done()
    assert work.wait(TIMEOUT)
    found["in order"] = ordered.tolist()
    with torch.inference_mode():
        inferred = torch.full((2, 2), rank + 1)
    leaf = torch.full((), float(rank + 1), requires_grad=True)
    for name, tensor in (("inferred", inferred), ("leaf", leaf)):
        assert group.allreduce(tensor, "PRODUCT").wait(TIMEOUT)
        found[name] = tensor.tolist()
    for turn in range(3):  # several under way at once, of sizes that come again: they share memory one after the other
        with torch.inference_mode(mode=turn == 0):
            tensors = [torch.full((5 + index // 3,), (rank + 1.0) * 10**index + turn) for index in range(4)]
            for work in [group.allreduce(tensor) for tensor in tensors][:: -1 if turn == 1 else 1]:
                assert work.wait(TIMEOUT)
        assert [tensor.unique().tolist() for tensor in tensors] == [[6.0 * 10**index + 3 * turn] for index in range(4)]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for dtype in (torch.uint8, torch.int32, torch.int64, torch.float32, torch.float64, torch.int8, torch.bfloat16):
            for count in (1, 1000, 1 << 11, (1 << 14) // dtype.itemsize, (1 << 14) // dtype.itemsize + 1):
                for op, expected in (("SUM", 6), ("MIN", 1), ("MAX", 3), ("PRODUCT", 6)):
                    tensor = torch.full((count,), rank + 1).to(dtype)
                    assert group.allreduce(tensor, op).wait(TIMEOUT)
                    assert bool((tensor == expected).all()), (dtype, count, op)
        apart = torch.tensor([math.inf if rank else -math.inf, 3e38, math.nan if rank == 1 else 1.0])
        assert group.allreduce(apart).wait(TIMEOUT)
    assert apart.isnan().tolist() == [True, False, True]
    assert apart[1] == math.inf
    empty = torch.empty(0)
    assert group.allreduce(empty).wait(TIMEOUT)
    with pytest.raises(ConfigError):
        group.allreduce(torch.zeros(1), "AVG")
    return found


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


def reduce_beside_an_open_receive(worker: Worker, count: int) -> int:
    """Of so many reductions, how many the group remembers. The receive is answered after all of them."""
    group = worker.group
    assert isinstance(group, GlooGroup)
    received = group.recv(torch.zeros(4), 1, 99) if group.rank == 0 else None
    for _ in range(count):
        assert group.allreduce(torch.zeros(1000)).wait(TIMEOUT)
    remembered = len(group._works)
    if group.rank == 1:
        assert group.send(torch.ones(4), 0, 99).wait(TIMEOUT)
    assert received is None or received.wait(TIMEOUT)
    return remembered


def receive_before_the_sends(worker: Worker, count: int) -> tuple[int, set[float]]:
    """So many receives: threads that beginning them took, and what came."""
    group = worker.group
    assert finish_tasks(TIMEOUT)
    before = threading.active_count()
    rows = [torch.zeros(1) for _ in range(count)] if group.rank == 0 else []
    received = [group.recv(row, 1, tag) for tag, row in enumerate(rows)]
    started = threading.active_count() - before
    assert group.barrier().wait(TIMEOUT)
    sent = [group.send(torch.ones(1), 0, tag) for tag in range(count)] if group.rank else []
    assert all(work.wait(TIMEOUT) for work in received + sent)
    return started, {float(row) for row in rows}


def send_and_never_wait(worker: Worker, count: int) -> int:
    """Of so many transfers, how many the group remembers."""
    group = worker.group
    assert isinstance(group, GlooGroup)
    for tag in range(count):
        work = group.send(torch.ones(1), 0, tag) if group.rank else group.recv(torch.zeros(1), 1, tag)
        assert group.rank or work.wait(TIMEOUT)
        assert group.barrier().wait(TIMEOUT)
    return len(group._transfers)


def wait_without_a_thread(worker: Worker) -> tuple[str, bool, bool, float]:
    """What a wait says that needs a thread where none can be had, whether the transfer has ended by then, and later."""
    group = worker.group
    if group.rank:
        assert group.barrier().wait(TIMEOUT)
        return "", True, group.send(torch.ones(1), 0, 7).wait(TIMEOUT), 1.0
    row = torch.zeros(1)
    received = group.recv(row, 1, 7)
    with no_thread_left():
        with pytest.raises(GroupError) as caught:
            received.wait(0.01)
        early = received.done()
    assert group.barrier().wait(TIMEOUT)
    return str(caught.value), early, received.wait(TIMEOUT / 2), row.item()


def close_without_a_thread(worker: Worker) -> None:
    """A group's close where nothing can be destroyed in the background, and another one later."""
    group, given_back = worker.group, threading.Event()
    assert isinstance(group, GlooGroup)
    give_back = group._give_back

    def note() -> None:
        give_back()
        given_back.set()

    with mock.patch.object(group, "_give_back", note):
        with no_thread_left():
            group.close()
        assert not given_back.is_set()
        group.close()
        assert given_back.wait(TIMEOUT)


def operate_in_parts(worker: Worker) -> dict[str, Any]:
    """What this rank has after each operation; the parts name who sent them, and to whom."""
    group, results = worker.group, {}
    rank, size = group.rank, group.size
    for dtype in (torch.uint8, torch.int16, torch.float32):
        tensor = torch.tensor([10 * rank + to for to in range(size) for _ in range(3)]).to(dtype)
        assert group.all_to_all(tensor).wait(TIMEOUT)
        results[f"all_to_all {dtype}"] = tensor.tolist()
        tensor = torch.full((size, 2), 99).to(dtype)
        tensor[rank] = rank
        assert group.all_gather(tensor).wait(TIMEOUT)
        results[f"all_gather {dtype}"] = tensor.tolist()
    for work in [group.all_to_all(torch.zeros(0)), group.all_gather(torch.zeros(0)), group.allreduce(torch.zeros(0))]:
        assert work.wait(TIMEOUT)
    if size > 1:
        for operation in (group.all_to_all, group.all_gather):
            with pytest.raises(ConfigError, match="no equal parts"):
                operation(torch.zeros(size + 1))
    return results


FORGOTTEN = "this operation does not end by itself"
"""The error of one that Gloo has forgotten: see docs/frameworks.md."""
_PATIENCE = 10.0
"""Seconds after which an operation is given up: a view change would do so much earlier, but there is no view here."""


def end(group: Group, work: Work) -> None:
    """Wait for an operation as a call does it, which gives it up when the view changes. GroupError if it failed."""
    if work.wait(_PATIENCE):
        return
    group.abort()
    with contextlib.suppress(GroupError):
        assert not work.wait(1.0), "an operation ends well only once its group is aborted"
    raise GroupError(FORGOTTEN)


def loop_in_parts(worker: Worker, elements: int) -> tuple[float, int, str, tuple[int, ...]]:
    """As ``loop``, with the operations on parts of a tensor."""
    group, count = worker.group, 0
    row = torch.zeros(group.size, elements)
    while True:
        row.fill_(float(group.rank))
        try:
            end(group, group.all_to_all(row))
            assert row[:, 0].tolist() == list(range(group.size))
            row[group.rank] = 7.0
            end(group, group.all_gather(row))
        except GroupError as error:
            at = time.monotonic()
            group.abort()
            return at, count, str(error), error.peers
        assert bool((row == 7.0).all())
        count += 1


def know_peers(worker: Worker) -> None:
    """Until errors can name any rank of the group: those that connected to this one say so beside its first operations."""
    group = worker.group
    if isinstance(group, HybridGroup):
        group = group.gloo
    if not isinstance(group, GlooGroup):
        time.sleep(1.0)  # who knows is in another process, and tells in a twentieth of it
        return
    deadline = time.monotonic() + TIMEOUT
    while not {link.remote for link in group._links} <= set(group._peers):
        assert time.monotonic() < deadline, group._peers
        time.sleep(0.005)


def loop(worker: Worker, elements: int) -> tuple[float, int, str, tuple[int, ...]]:
    """Allreduce until it breaks, abort; when that was, how many, the error."""
    group, count = worker.group, 0
    tensor = worker.put(torch.ones(elements))
    row = worker.memory(tensor)
    while True:
        tensor.fill_(1.0)
        worker.move(tensor, row)
        work = group.allreduce(row)
        try:
            end(group, work)
        except GroupError as error:
            at, text, peers = time.monotonic(), str(error), error.peers
        else:
            worker.move(row, tensor)
            assert tensor[0].item() == group.size
            count += 1
            continue
        group.abort()
        assert work.done() or text == FORGOTTEN
        return at, count, text, peers


def receive_from_the_dead(worker: Worker, peer: int, elements: int) -> tuple[bool, float]:
    """Kill process ``peer``, rank 1, as soon as it sends, and abort; whether a part was missing, and seconds until it ended."""
    tensor = torch.zeros(elements)
    work = worker.group.recv(tensor, 1, 7)
    deadline = time.monotonic() + TIMEOUT
    while not tensor[0]:
        assert time.monotonic() < deadline, "nothing comes"
    os.kill(peer, signal.SIGKILL)
    with contextlib.suppress(GroupError):
        work.wait(0.5)
    worker.group.abort()
    begin = time.monotonic()
    while not work.done():
        assert time.monotonic() < deadline, "the transfer does not end"
        time.sleep(0.005)
    took, came = time.monotonic() - begin, int(tensor.sum())
    if came < elements:
        with pytest.raises(GroupError):
            work.wait(TIMEOUT)
    time.sleep(0.2)
    assert int(tensor.sum()) == came, "it ended, and writes"
    return came < elements, took


def send_ones(worker: Worker, elements: int) -> None:
    worker.group.send(torch.ones(elements), 0, 7).wait(TIMEOUT)


def reduce_one(worker: Worker, elements: int) -> float:
    tensor = worker.put(torch.ones(elements))
    worker.reduce(tensor)
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
    deadline = time.monotonic() + TIMEOUT
    while len(sockets.snapshot()) > before - 4 and time.monotonic() < deadline:
        time.sleep(0.01)
    return took, before - len(sockets.snapshot())


def try_rebuild(worker: Worker, spec: GroupSpec, cancel_after: float | None) -> tuple[float, str]:
    """Seconds it took, and what came of it. Cancelled again and again: a first time may come before it has begun."""
    over = threading.Event()

    def cancel() -> None:
        while cancel_after is not None and not over.wait(cancel_after):
            worker.framework.cancel()

    canceller = threading.Thread(target=cancel)
    canceller.start()
    begin = time.monotonic()
    try:
        worker.framework.rebuild(spec)
        text = "built"
    except GroupError as error:
        text = f"{error} {error.peers}"
    took = time.monotonic() - begin
    over.set()
    canceller.join(TIMEOUT)
    return took, text


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

    with mock.patch.object(gloo_build, "ProcessGroupGloo", Broken):
        return try_rebuild(worker, spec, None)[1]


def meet_and_never_connect(worker: Worker, spec: GroupSpec) -> None:
    """As rank 0 of two: let Gloo at rank 1 wait for a connection from here that never comes.

    Of two devices the one with the higher address connects, and at one and the same address the pair with the higher number. So
    rank 1 is the one that waits if rank 0 describes itself by what rank 1 has said of itself.
    """
    meeting = Meeting(split_address(spec.store["store"]), spec.epoch, spec.view_id, spec.rank, spec.size, TIMEOUT)
    meeting.exchange("listener", ["127.0.0.1:1", {}])
    store = meeting.store()
    eventually(lambda: bool(store.check(["0/1"])), "rank 1 has described itself")
    store.set("0/0", store.get("0/1"))
    meeting.close()


def building_threads(worker: Worker) -> int:
    """Threads still in a build, after some time to end."""
    deadline = time.monotonic() + TIMEOUT
    while time.monotonic() < deadline and any("build" in thread.name for thread in threading.enumerate()):
        time.sleep(0.02)
    return sum("build" in thread.name for thread in threading.enumerate())


def abandon(worker: Worker) -> tuple[float, bool, float]:
    """Abort while waiting in vain: seconds until the wait fails, whether done then, seconds until done."""
    for _ in range(3):
        assert worker.group.allreduce(torch.ones(10)).wait(TIMEOUT)
    if worker.group.rank > 0:
        time.sleep(4.0)  # until the deadline of the group has passed
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


def epochs_kept(worker: Worker) -> set[str]:
    """Those of which its store has keys, once it has had time to forget: it does so after a group is built."""
    assert isinstance(worker.framework, GlooFramework)
    server = worker.framework._server
    assert server is not None
    deadline = time.monotonic() + TIMEOUT
    while True:
        keys = server.keys()
        epochs = {key.strip("/").partition("/")[0] for key in keys if "view-" in key}
        if len(epochs) <= 1 or time.monotonic() > deadline:
            return epochs
        time.sleep(0.01)


def futures(worker: Worker) -> tuple[str, object, str, bool]:
    """Of an operation that the other rank enters late, and of one that is aborted: pending at first; what came of each."""
    group = worker.group
    group.barrier().wait(TIMEOUT)
    if group.rank:
        time.sleep(0.3)
    tensor = torch.ones(1000)
    work = group.allreduce(tensor)
    future = work.future()
    pending = "" if group.rank or future.done() else "pending"
    value = future.wait()
    assert tensor.sum().item() == 2000.0
    group.barrier().wait(TIMEOUT)
    received = torch.zeros(10)
    waiting = group.recv(received, 1 - group.rank, 5)
    future = waiting.future()
    group.abort()
    try:
        future.wait()
        error = ""
    except Exception as failure:  # noqa: BLE001 - whatever it is
        error = type(failure).__name__
    return pending, value, error, waiting.done()
