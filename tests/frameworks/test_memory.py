"""Groups among threads: operations, aborts, and the faults that other tests build on."""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING, Any

import pytest
import torch

from ftlib.errors import ConfigError, GroupError
from ftlib.frameworks import FRAMEWORKS, GroupSpec, framework_by_name
from ftlib.frameworks.memory import DEFAULT_HUB, MemoryFramework, MemoryHub

if TYPE_CHECKING:
    from collections.abc import Callable

    from ftlib.frameworks import Group

WAIT = 10.0


def together(hub: MemoryHub, size: int, function: Callable[[Group, MemoryFramework], Any]) -> list[Any]:
    """Run a function at all ranks of one group; their results or errors."""
    results: list[Any] = [None] * size

    def run(rank: int) -> None:
        framework = hub.framework(f"m{rank}")
        framework.start("127.0.0.1")
        try:
            results[rank] = function(framework.rebuild(GroupSpec("v", 1, rank, size, {}, WAIT)), framework)
        except GroupError as error:
            results[rank] = error

    threads = [threading.Thread(target=run, args=(rank,)) for rank in range(size)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(2 * WAIT)
    return results


def loop(group: Group, framework: MemoryFramework) -> tuple[int, GroupError]:
    """Allreduce until it breaks."""
    count = 0
    while True:
        try:
            assert group.allreduce(torch.ones(3)).wait(WAIT)
        except GroupError as error:
            return count, error
        count += 1


def test_operations_on_parts() -> None:
    def work(group: Group, framework: MemoryFramework) -> tuple[list[float], list[float]]:
        row = torch.tensor([10.0 * group.rank + to for to in range(3)])
        assert group.all_to_all(row).wait(WAIT)
        own = torch.full((3, 2), 9.0)
        own[group.rank] = group.rank
        assert group.all_gather(own).wait(WAIT)
        for operation in (group.all_to_all, group.all_gather):
            with pytest.raises(ConfigError, match="no equal parts"):
                operation(torch.zeros(4))
        return row.tolist(), own.view(-1).tolist()

    gathered = [0.0, 0.0, 1.0, 1.0, 2.0, 2.0]
    assert together(MemoryHub(), 3, work) == [([float(rank), 10.0 + rank, 20.0 + rank], gathered) for rank in range(3)]


def test_operations() -> None:
    def work(group: Group, framework: MemoryFramework) -> list[float]:
        results = []
        for op in ("SUM", "MIN", "MAX", "PRODUCT"):
            tensor = torch.full((2, 2), float(group.rank + 1))
            assert group.allreduce(tensor, op).wait(WAIT)
            results.append(tensor[1, 1].item())
        scalar = torch.tensor(float(group.rank))
        assert group.broadcast(scalar, 2).wait(WAIT)
        assert group.barrier().wait(WAIT)
        right, left = (group.rank + 1) % group.size, (group.rank - 1) % group.size
        received = torch.zeros(1)
        works = [group.send(torch.full((1,), float(group.rank)), right, 4), group.recv(received, left, 4)]
        assert all(work.wait(WAIT) for work in works)
        return [*results, scalar.item(), received.item() - left]

    assert together(MemoryHub(), 3, work) == [[6.0, 1.0, 3.0, 6.0, 2.0, 0.0]] * 3


def test_sums_are_in_rank_order_whoever_comes_last() -> None:
    values = [1e8, 1.0, -1e8]

    def work(group: Group, framework: MemoryFramework) -> float:
        time.sleep(0.02 * (2 - group.rank))
        tensor = torch.tensor([values[group.rank]], dtype=torch.float32)
        group.allreduce(tensor).wait(WAIT)
        return tensor.item()

    expected = ((torch.tensor(1e8) + torch.tensor(1.0)) + torch.tensor(-1e8)).item()
    assert together(MemoryHub(), 3, work) == [expected] * 3


def test_abort_fails_everything_everywhere() -> None:
    def work(group: Group, framework: MemoryFramework) -> str:
        group.barrier().wait(WAIT)
        if group.rank == 0:
            time.sleep(0.05)
            framework.abort_communicator()
            framework.abort_communicator()
        under_way = group.allreduce(torch.ones(1)) if group.rank else group.recv(torch.ones(1), 1, 0)
        with pytest.raises(GroupError, match="aborted by rank 0"):
            under_way.wait(WAIT)
        assert under_way.done()
        return "failed"

    assert together(MemoryHub(), 3, work) == ["failed"] * 3


def test_waiting_is_bounded() -> None:
    def work(group: Group, framework: MemoryFramework) -> bool:
        group.barrier().wait(WAIT)
        if group.rank == 1:
            time.sleep(0.1)
            return False
        under_way = group.allreduce(torch.ones(1))
        return under_way.wait(0.01) or under_way.done()

    assert together(MemoryHub(), 2, work) == [False, False]


def test_disagreement_is_an_error() -> None:
    def work(group: Group, framework: MemoryFramework) -> None:
        group.allreduce(torch.ones(1 + group.rank)).wait(WAIT)

    assert all("disagree" in str(error) for error in together(MemoryHub(), 2, work))


def test_kill_blames_the_dead() -> None:
    hub = MemoryHub()

    def work(group: Group, framework: MemoryFramework) -> GroupError:
        if group.rank == 1:
            time.sleep(0.02)
            hub.kill("m1")
        return loop(group, framework)[1]

    errors = together(hub, 3, work)
    assert errors[0].peers == errors[2].peers == (1,)
    with pytest.raises(GroupError, match="dead"):
        hub.framework("m1").rebuild(GroupSpec("w", 2, 0, 1, {}, WAIT))


def test_silent_kill_hangs_until_abort() -> None:
    hub = MemoryHub()

    def work(group: Group, framework: MemoryFramework) -> str:
        group.barrier().wait(WAIT)
        if group.rank == 1:
            hub.kill("m1", silent=True)
            with pytest.raises(GroupError, match="dead"):
                group.barrier().wait(WAIT)
            return "dead"
        under_way = group.barrier()
        assert under_way.wait(0.1) is False
        group.abort()
        with pytest.raises(GroupError, match="aborted"):
            under_way.wait(WAIT)
        return "aborted"

    assert together(hub, 2, work) == ["aborted", "dead"]


@pytest.mark.parametrize("finish_elsewhere", [False, True])
def test_injected_fault(finish_elsewhere: bool) -> None:
    hub = MemoryHub()
    hub.fail_next(1, 5, finish_elsewhere=finish_elsewhere)
    counts = [count for count, _ in together(hub, 3, loop)]
    assert counts == ([6, 5, 6] if finish_elsewhere else [5, 5, 5])


def test_rebuild_waits_times_out_and_is_cancelled() -> None:
    hub = MemoryHub()
    framework = hub.framework()
    with pytest.raises(GroupError, match=r"no sign of ranks \[1\]") as caught:
        framework.rebuild(GroupSpec("a", 1, 0, 2, {}, 0.05))
    assert caught.value.peers == (1,)

    def cancel() -> None:
        deadline = time.monotonic() + WAIT
        while framework._room is None and time.monotonic() < deadline:
            time.sleep(0.001)
        framework.cancel()

    thread = threading.Thread(target=cancel)
    thread.start()
    with pytest.raises(GroupError, match="cancelled"):
        framework.rebuild(GroupSpec("b", 2, 0, 2, {}, WAIT))
    thread.join(WAIT)
    assert framework.rebuild(GroupSpec("c", 3, 0, 1, {}, WAIT)).size == 1


def test_close_and_check() -> None:
    framework = MemoryFramework(MemoryHub())
    group = framework.rebuild(GroupSpec("a", 1, 0, 1, {}, WAIT))
    framework.check(torch.ones(1, dtype=torch.int16))
    with pytest.raises(ConfigError):
        framework.check(torch.ones(1).to_sparse())
    with pytest.raises(ConfigError, match="MEDIAN"):
        group.allreduce(torch.ones(1), "MEDIAN")
    framework.close()
    framework.close()
    with pytest.raises(GroupError, match="closed"):
        group.barrier().wait(WAIT)


def test_frameworks_by_name() -> None:
    framework = framework_by_name("memory")
    assert isinstance(framework, MemoryFramework)
    assert framework.hub is DEFAULT_HUB
    with pytest.raises(ConfigError) as unknown:
        framework_by_name("mpi")
    assert all(name in str(unknown.value) for name in FRAMEWORKS)
