"""Process groups: every operation of every kind, aborts, other members, torch's own uses, a rank that is killed."""

from __future__ import annotations

import functools
import json
import threading
import time
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed import ReduceOp, TCPStore, _functional_collectives
from torch.distributed.distributed_c10d import (
    AllgatherOptions,
    AllreduceOptions,
    ReduceScatterOptions,
    _resolve_process_group,
)

from ftlib import ConfigError
from ftlib.frameworks import Framework, Group, GroupSpec
from ftlib.frameworks.gloo import GlooFramework
from ftlib.frameworks.isolated import IsolatedFramework
from ftlib.torchft import process_group as groups
from ftlib.torchft.manager import WorldSizeMode
from ftlib.torchft.process_group.meeting import address_near, rendezvous, split
from ftlib.torchft.work import _DummyWork
from tests.harness.basics import TIMEOUT, eventually
from tests.harness.company import at_once
from tests.harness.nursery import Nursery
from tests.harness.program import Program, clean

from .replicas import manager, settle


class Rehearsed(groups.ProcessGroupNCCL):
    """With what stands for an accelerator where there is none."""

    framework = "rehearsal"


SIZE = 3
LONG = timedelta(seconds=120)
KINDS = [
    groups.ProcessGroupGloo,
    groups.ProcessGroupXCCL,
    groups.ProcessGroupBabyGloo,
    groups.ProcessGroupBabyXCCL,
    groups.ProcessGroupNCCL,
    groups.ProcessGroupBabyNCCL,
    Rehearsed,
]
"""On a machine without a GPU; where NCCL's is not to be had its group goes by Gloo, and says so."""


@pytest.fixture
def store() -> TCPStore:
    return TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)


def connected(store: TCPStore, kind: Any, size: int = SIZE, name: str = "first") -> list[Any]:
    made = [kind(timeout=LONG) for _ in range(size)]
    join(store, made, name)
    return made


def join(store: TCPStore, made: list[Any], name: str) -> None:
    address = f"127.0.0.1:{store.port}/{name}"
    at_once(
        *[functools.partial(groups.reconfigure_with_store, each, address, rank, len(made)) for rank, each in enumerate(made)]
    )


def operate(rank: int, pg: Any) -> None:
    """Every operation, and what comes of it at three ranks."""
    assert pg.rank() == rank and pg.size() == SIZE
    for op, expected in (
        (ReduceOp.SUM, 6.0),
        (ReduceOp.AVG, 2.0),
        (ReduceOp.MIN, 1.0),
        (ReduceOp.MAX, 3.0),
        (ReduceOp.PRODUCT, 6.0),
    ):
        tensors = [torch.full((2, 2), rank + 1.0), torch.full((4, 2), rank + 1.0)[::2]]  # the second is not contiguous
        options = AllreduceOptions()
        options.reduceOp = op
        assert pg.allreduce(tensors[:1], op).wait() and pg.allreduce_coalesced(tensors[1:], options).wait()
        assert all(bool((each == expected).all()) for each in tensors)
    whole = torch.tensor([rank + 1])
    work = pg.allreduce([whole], ReduceOp.SUM)
    assert work.get_future().wait()[0] is whole and whole.item() == 6
    assert work.is_completed() and work.is_success() and work.exception() is None and work.result()[0] is whole
    with pytest.raises(ValueError, match="AVG is for floating point"):
        pg.allreduce([whole], ReduceOp.AVG)

    flags = [[torch.zeros(2, dtype=torch.bool) for _ in range(SIZE)]]
    pg.allgather(flags, [torch.tensor([True, rank == 1])], AllgatherOptions()).wait()
    assert [each.tolist() for each in flags[0]] == [[True, False], [True, True], [True, False]]
    gathered = [torch.zeros(SIZE), torch.zeros(SIZE, 2)]
    pg.allgather_into_tensor_coalesced(gathered, [torch.tensor([rank + 1.0]), torch.full((1, 2), rank + 10.0)]).wait()
    assert gathered[0].tolist() == [1, 2, 3] and gathered[1].tolist() == [[10, 10], [11, 11], [12, 12]]

    for root in range(SIZE):
        said = torch.tensor([rank])
        pg.broadcast_one(said, root).wait()
        assert said.item() == root
    got = torch.zeros(SIZE)
    pg.alltoall_base(got, torch.arange(3.0) + 10 * rank, [], []).wait()
    assert got.tolist() == [rank, 10 + rank, 20 + rank]
    parts = torch.zeros(SIZE * rank)  # rank r gets r elements of each, rank 0 nothing
    pg.alltoall_base(parts, torch.arange(3.0) + 10 * rank, [rank] * SIZE, [0, 1, 2]).wait()
    assert parts.tolist() == [[], [0, 10, 20], [1, 2, 11, 12, 21, 22]][rank]

    options = ReduceScatterOptions()
    options.reduceOp = ReduceOp.AVG
    mine = torch.zeros(2)
    pg.reduce_scatter([mine], [[torch.full((2,), float(part + rank)) for part in range(SIZE)]], options).wait()
    assert mine.tolist() == [rank + 1.0] * 2
    pg.reduce_scatter_tensor_coalesced([mine], [torch.arange(6.0)]).wait()
    assert mine.tolist() == [6.0 * rank, 6.0 * rank + 3]

    if rank == 0:
        pg.send([torch.tensor([7.0])], 2, 5).wait()
    elif rank == 2:
        said = torch.zeros(1)
        pg.recv([said], 0, 5).wait()
        assert said.item() == 7.0
    pg.barrier().wait()


@pytest.mark.parametrize("kind", KINDS)
def test_every_operation_of_every_kind(kind: Any, store: TCPStore) -> None:
    made = connected(store, kind)
    try:
        at_once(*[functools.partial(operate, rank, pg) for rank, pg in enumerate(made)])
        assert all(pg.errored() is None for pg in made)
        assert all(pg.num_active_work() == 0 for pg in made if isinstance(pg, groups.ProcessGroupBaby))
        assert len({pg.getBackendName() for pg in made}) == 1
        assert all(pg.parent._bulk is (kind is Rehearsed) for pg in made)
    finally:
        for pg in made:
            pg.shutdown()
    with pytest.raises(RuntimeError, match="not initialized: call reconfigure_with_store"):
        made[0].barrier()


def test_views_that_conjugate_or_negate_their_memory(store: TCPStore) -> None:
    """Every operation sends and fills what such a view shows, which is not what lies in its memory."""
    made = connected(store, groups.ProcessGroupGloo, 2)

    def lazy(value: complex) -> tuple[torch.Tensor, torch.Tensor]:
        memory = torch.full((2,), value, dtype=torch.complex64)
        return memory.conj(), memory.conj().imag

    def run(rank: int) -> None:
        pg, peer = made[rank], 1 - rank
        for which, sent in ((0, [1 - 2j, 5 - 6j]), (1, [-2.0, -6.0])):
            given, others = lazy([1 + 2j, 5 + 6j][rank])[which], [sent[peer]] * 2
            for plain in (False, True):
                got = lazy(0)[which].clone() if plain else lazy(0)[which]
                if rank == 0:
                    pg.send([given], 1, 0).wait()
                    pg.recv([got], 1, 0).wait()
                else:
                    pg.recv([got], 0, 0).wait()
                    pg.send([given], 0, 0).wait()
                assert got.tolist() == others
            shown = lazy([1 + 2j, 5 + 6j][rank])[which]
            pg.broadcast_one(shown, 1).wait()
            assert shown.tolist() == [sent[1]] * 2
            for sizes in ([], [1, 1]):
                got = lazy(0)[which]
                pg.alltoall_base(got, given, sizes, sizes).wait()
                assert got.tolist() == sent
            rows = [[lazy(0)[which] for _ in range(2)]]
            pg.allgather(rows, [given]).wait()
            assert [row.tolist() for row in rows[0]] == [[value] * 2 for value in sent]
        for op, expected in ((ReduceOp.SUM, -8.0), (ReduceOp.MIN, -6.0), (ReduceOp.PRODUCT, 12.0)):
            given = lazy([1 + 2j, 5 + 6j][rank])[1]
            assert given.is_neg() and pg.allreduce([given], op).wait() and given.tolist() == [expected] * 2
        options = ReduceScatterOptions()
        options.reduceOp = ReduceOp.MAX
        mine = torch.zeros(1)
        pg.reduce_scatter_tensor_coalesced([mine], [lazy([1 + 2j, 5 + 6j][rank])[1]], options).wait()
        assert mine.item() == -2.0

    try:
        at_once(functools.partial(run, 0), functools.partial(run, 1))
    finally:
        for pg in made:
            pg.shutdown()


@pytest.mark.parametrize("kind", [groups.ProcessGroupGloo, groups.ProcessGroupBabyGloo])
def test_an_abort_ends_what_is_under_way_at_all_ranks_and_fewer_go_on(kind: Any, store: TCPStore) -> None:
    made = connected(store, kind)
    ended: list[int] = []

    def wait(rank: int) -> None:
        with pytest.raises(RuntimeError):
            made[rank].allreduce([torch.ones(2)], ReduceOp.SUM).wait()
        ended.append(rank)
        with pytest.raises(RuntimeError, match="aborted"):
            raise made[rank].errored()

    def leave() -> None:
        time.sleep(0.2)  # the others are in their operation by then
        made[2].abort()

    try:
        at_once(functools.partial(wait, 0), functools.partial(wait, 1), leave)
        assert len(ended) == 2
        join(store, made[:2], "second")
        tensors = [torch.tensor([1.0 + rank]) for rank in range(2)]
        works = [pg.allreduce([tensor], ReduceOp.SUM) for pg, tensor in zip(made, tensors, strict=False)]
        assert all(work.wait() for work in works) and tensors[0] == tensors[1] == 3.0
        assert all(pg.errored() is None for pg in made[:2])
    finally:
        for pg in made:
            pg.shutdown()


def test_a_wait_that_takes_too_long_ends_the_group_for_all(store: TCPStore) -> None:
    made = connected(store, groups.ProcessGroupGloo, 2)
    try:
        failed = made[1].allreduce([torch.ones(1)], ReduceOp.SUM).get_future()
        made[1].set_timeout(timedelta(seconds=0.1))
        work = made[1].recv([torch.ones(1)], 0, 3)
        with pytest.raises(RuntimeError, match=r"timed out after 0\.1 s"):
            work.wait()
        with pytest.raises(RuntimeError):
            failed.wait()
        with pytest.raises(RuntimeError):
            made[0].barrier().wait()
        assert "timed out" in str(made[1].errored())
    finally:
        for pg in made:
            pg.shutdown()


def test_results_that_have_no_place_are_refused_before_anything_is_sent(store: TCPStore) -> None:
    pg = connected(store, groups.ProcessGroupGloo, 1)[0]
    two, three, same = torch.zeros(2), torch.zeros(3), torch.zeros(1).expand(2)
    try:
        for call, text in (
            (lambda: pg.allgather([[three]], [two]), r"allgather: an output of \[3\] is for 2 elements"),
            (lambda: pg.allgather([[two]], [two, two]), "1 outputs for 2 inputs"),
            (lambda: pg.allgather_into_tensor_coalesced([three], [two]), "an output of"),
            (lambda: pg.reduce_scatter([three], [[two]]), "an output of"),
            (lambda: pg.reduce_scatter_tensor_coalesced([three], [two]), "an output of"),
            (lambda: pg.alltoall_base(three, two, [], []), "an output of"),
            (lambda: pg.alltoall_base(same, two, [2], [2]), "several elements at one place"),
            (lambda: pg.allreduce([two, same]), "several elements at one place"),
            (lambda: pg.broadcast([same]), "several elements at one place"),
            (lambda: pg.recv([same], 0, 0), "several elements at one place"),
        ):
            with pytest.raises(ValueError, match=text):
                call()
        empty = torch.zeros(0)
        assert pg.reduce_scatter_tensor_coalesced([empty], [empty]).wait()
        parameter = nn.Parameter(torch.zeros(2))
        pg.allgather([[parameter]], [torch.ones(2)]).get_future().wait()
        assert parameter.tolist() == [1, 1]
        assert pg.errored() is None
    finally:
        pg.shutdown()


def test_results_that_cannot_be_copied_back_end_the_work_once(store: TCPStore) -> None:
    pg = connected(store, groups.ProcessGroupGloo, 1)[0]
    try:
        output = torch.zeros(2)
        work = pg.allgather([[output]], [torch.ones(2)])
        output.resize_(3)  # by the program, meanwhile
        future = work.get_future()
        eventually(future.done, "the future ends")
        output.resize_(2).zero_()
        for _ in range(2):
            with pytest.raises(dist.DistBackendError, match="the results could not be copied: RuntimeError"):
                work.wait()
            assert not output.any(), "nothing is copied again"
        with pytest.raises(RuntimeError, match="could not be copied"):
            future.wait()
        assert work.is_completed() and not work.is_success() and pg.errored() is not None
    finally:
        pg.shutdown()


@pytest.mark.parametrize("kind", [groups.ProcessGroupGloo, groups.ProcessGroupBabyGloo])
def test_timeouts_longer_than_the_system_waits(kind: Any, store: TCPStore) -> None:
    made = [kind(timeout=timedelta.max) for _ in range(2)]

    def run(rank: int) -> float:
        pg, address = made[rank], f"127.0.0.1:{store.port}/long"
        groups.reconfigure_with_store(pg, address, rank, 2, timedelta.max)
        pg.set_timeout(timedelta(days=200_000))
        large, one = torch.ones(100_000), torch.ones(1)
        assert pg.allreduce([large]).wait(timedelta.max) and pg.allreduce([one]).wait()
        if rank:
            threading.Timer(0.1, lambda: pg.send([one], 0, 0).wait()).start()
        else:
            assert pg.recv([one], 1, 0).wait(timedelta.max)
        pg.barrier().wait()
        return float(large[0] + one)

    try:
        assert at_once(functools.partial(run, 0), functools.partial(run, 1)) == [4.0, 4.0]
    finally:
        for pg in made:
            pg.shutdown()


def test_ranks_that_do_not_come_are_named(store: TCPStore) -> None:
    address = f"127.0.0.1:{store.port}/alone"
    pg = groups.ProcessGroupGloo(timeout=timedelta(seconds=4))
    with pytest.raises(dist.DistStoreError, match=r"no sign of rank 1, 2 within 3 s"):
        groups.reconfigure_with_store(pg, address, 0, 3, timedelta(seconds=3))
    options = groups.ReconfigureOptions()
    options.handles = [pg.get_reconfigure_handle(), json.dumps({"id": "missing", "store": "unused"})]
    with pytest.raises(RuntimeError, match=r"no sign of ranks \[1\]"):
        pg.reconfigure(options)
    options.handles = options.handles[1:]
    with pytest.raises(ValueError, match="not among the handles"):
        pg.reconfigure(options)
    options.handles = set(options.handles)
    with pytest.raises(ValueError, match="in the order of the ranks"):
        pg.reconfigure(options)


@pytest.mark.parametrize("kind", [GlooFramework, IsolatedFramework])
def test_ranks_that_are_threads_get_each_its_own_group(kind: type[Framework], store: TCPStore) -> None:
    """Though they share a framework, which knows only the newest group."""

    class Overtaken(kind):
        @property
        def group(self) -> Any:  # as if another thread had set it back
            return None

        @group.setter
        def group(self, _: Any) -> None:
            pass

    framework = Overtaken()
    told = framework.start("127.0.0.1")
    try:
        built = framework.rebuild(GroupSpec("one", 0, 0, 1, told, 120.0))
        assert isinstance(built, Group)
        built.close()
    finally:
        framework.close()


def test_handles_and_addresses(monkeypatch: pytest.MonkeyPatch, store: TCPStore) -> None:
    made = [groups.ProcessGroupGloo(), groups.ProcessGroupGloo()]
    for number, pg in enumerate(made):
        pg.set_rank_info(str(number), 0, 1, 3 + number)
    options = groups.ReconfigureOptions()
    options.uuid, options.handles = 7, [pg.get_reconfigure_handle() for pg in made]
    met = rendezvous(options, json.loads(options.handles[1])["id"])
    assert (met.rank, met.world_size, met.uuid, met.global_ranks) == (1, 2, 7, [3, 4])
    assert met.store_addr.startswith("127.0.0.1:")  # nobody but this machine reaches a store that was told of no other
    assert split("a.b:1234/my/prefix") == ("a.b", 1234, "my/prefix")
    assert split("fdaa:0:1::6:29521/torchft/0") == ("fdaa:0:1::6", 29521, "torchft/0")
    assert split("[::1]:29521/x") == ("::1", 29521, "x")
    with pytest.raises(ConfigError, match="host:port/prefix"):
        split("nowhere/x")
    assert address_near("localhost", store.port, TIMEOUT) in ("127.0.0.1", "::1")
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "lo")
    assert address_near("nowhere", 1, 5.0) == "127.0.0.1"
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "lo7")
    with pytest.raises(ConfigError, match="lo7"):
        address_near("nowhere", 1, 5.0)
    client = groups.create_store_client(f"127.0.0.1:{store.port}/mine", timedelta(seconds=60))
    client.set("a", "1")
    assert store.get("mine/a") == b"1"


def test_torch_uses_them_as_its_own(store: TCPStore) -> None:
    dist.init_process_group("gloo", rank=0, world_size=1, store=dist.HashStore())
    try:
        pg = groups.ProcessGroupGloo(timeout=LONG)
        with pytest.raises(ValueError, match="register"):
            _ = pg.group_name
        pg.register("test")
        pg.configure(f"127.0.0.1:{store.port}/one", "a", 0, 1)
        assert _resolve_process_group(pg.group_name) is pg
        tensor = torch.ones(3)
        _functional_collectives.all_reduce(tensor, "sum", pg).wait()
        dist.all_reduce(tensor, group=pg)
        model = nn.parallel.DistributedDataParallel(nn.Linear(3, 4), process_group=pg)
        model(torch.rand(2, 3)).sum().backward()
        assert model.module.weight.grad is not None
        pg.unregister()
        nn.parallel.DistributedDataParallel(nn.Linear(3, 4), process_group=groups.ProcessGroupDummy(0, 1))(torch.rand(2, 3))
    finally:
        dist.destroy_process_group()


def test_wrappers(store: TCPStore) -> None:
    dummy = groups.ProcessGroupDummy(0, 1)
    with pytest.raises(ValueError, match="one rank only"):
        groups.ProcessGroupDummy(1, 2)
    wrapper = groups.ProcessGroupWrapper(pg=dummy)
    options = groups.ReconfigureOptions()
    options.handles = [wrapper.get_reconfigure_handle()]
    wrapper.reconfigure(options).wait()
    dummy.configure("nowhere", "a", 0, 1)
    assert dummy.reconfigure_count == dummy.configure_count == 1 and wrapper.parent is dummy
    assert repr(wrapper) == "ProcessGroupWrapper(pg=ProcessGroupDummy())" and wrapper.supports_reconfigure
    with pytest.raises(NotImplementedError, match="ProcessGroup does not support barrier"):
        groups.ProcessGroup().barrier()

    made = connected(store, groups.ProcessGroupGloo, 1)[0]
    fake = groups.FakeProcessGroupWrapper(made)
    swallowing = groups.ErrorSwallowingProcessGroupWrapper(fake)
    assert swallowing.allreduce([torch.ones(1)], ReduceOp.SUM).wait() and swallowing.error() is None
    broken = ValueError("broken")
    for ended in (lambda work: work.wait(), lambda work: work.get_future().wait()):
        fake.report_future_error(broken)
        work = fake.allreduce([torch.ones(1)], ReduceOp.SUM)
        with pytest.raises(ValueError, match="broken"):
            ended(work)
    fake.report_future_error(broken)
    tensor = torch.ones(1)
    assert swallowing.allreduce([tensor], ReduceOp.SUM).get_future().wait()[0] is tensor
    assert swallowing.error() is broken
    assert isinstance(swallowing.allreduce([tensor], ReduceOp.SUM), _DummyWork)
    join(store, [swallowing], "again")
    assert swallowing.error() is None
    assert swallowing.allreduce([tensor], ReduceOp.SUM).wait() and swallowing.error() is None
    made.shutdown()


def test_a_managed_group_has_the_managers_replicas_as_ranks(monkeypatch: pytest.MonkeyPatch, store: TCPStore) -> None:
    settle(monkeypatch, FTLIB_INITIAL_SIZE="3")
    spares = {"world_size_mode": WorldSizeMode.FIXED_WITH_SPARES}
    inside = [None, groups.ProcessGroupGloo(timeout=LONG), groups.ErrorSwallowingProcessGroupWrapper(groups.ProcessGroupGloo())]
    managers = [manager(2, pg=pg, **spares) for pg in inside]

    def run(number: int) -> tuple[int, int, list[float]]:
        own, found = managers[number], []
        pg = groups.ManagedProcessGroup(own)
        assert (pg.rank(), pg.size()) == (-1, 0)
        own.start_quorum()
        largest = AllreduceOptions()
        largest.reduceOp = ReduceOp.MAX
        mine = float(1 + (pg.rank() if pg.rank() >= 0 else 90))  # nothing is changed by what a spare has
        for options in ((), (ReduceOp.AVG,), (largest,)):
            tensor = torch.tensor([mine])
            assert pg.allreduce([tensor], *options).wait()
            found.append(tensor.item())
        assert own.should_commit()
        return pg.rank(), pg.size(), found

    try:
        found = at_once(*[functools.partial(run, number) for number in range(3)])
        assert sorted(found) == [(rank, 2, [3.0, 1.5, 2.0]) for rank in (-1, 0, 1)]
        managed = [groups.ManagedProcessGroup(own) for own in managers]
        assert [pg.getBackendName() for pg in managed] == ["torchft-managed", "torchft-gloo", "torchft-gloo"]
        one = [torch.ones(1)]
        refused: dict[str, tuple[Any, ...]] = {
            "allgather": ([one], one),
            "allreduce_coalesced": (one,),
            "barrier": (),
            "broadcast": (one,),
            "send": (one, 1, 0),
            "recv": (one, 1, 0),
            "reduce_scatter": (one, [one]),
        }
        for pg in managed:
            assert pg.errored() is None
            for name, given in refused.items():
                with pytest.raises(RuntimeError, match=r"only has allreduce.* reconfigure_with_store\(pg"):
                    getattr(pg, name)(*given)
            with pytest.raises(ValueError, match="one tensor at a time, not 2"):
                pg.allreduce(one * 2)
        join(store, inside[1:2], "connected by the program")
        assert managed[1].broadcast_one(one[0], 0).wait() and managed[1].barrier().wait()
        managed[1].shutdown()
    finally:
        at_once(*[each.shutdown for each in managers])


def test_torch_reduces_through_a_managed_group(monkeypatch: pytest.MonkeyPatch) -> None:
    """As hooks of FSDP do with it."""
    settle(monkeypatch)
    own = manager(1)
    dist.init_process_group("gloo", rank=0, world_size=1, store=dist.HashStore())
    try:
        pg = groups.ManagedProcessGroup(own)
        pg.register("replicas")
        own.start_quorum()
        tensor = torch.tensor([4.0])
        dist.all_reduce(tensor, ReduceOp.AVG, group=pg)
        assert tensor.item() == 4.0 and own.should_commit() and own.current_step() == 1
        pg.unregister()
    finally:
        dist.destroy_process_group()
        own.shutdown()


@pytest.mark.process
@pytest.mark.parametrize("kind", ["ProcessGroupGloo", "ProcessGroupBabyGloo"])
def test_a_rank_is_killed_and_the_others_go_on_without_it(kind: str, store: TCPStore, nursery: Nursery, tmp_path: Path) -> None:
    address = f"127.0.0.1:{store.port}"
    places = [tmp_path / str(rank) for rank in range(SIZE)]
    for place in places:
        place.mkdir()
    programs = [
        Program(nursery, place, "-m", "tests.torchft.rank", kind, address, str(rank), env=clean())
        for rank, place in enumerate(places)
    ]
    with programs[0], programs[1], programs[2]:
        assert programs[2].wait(TIMEOUT) == -9
        for program in programs[:2]:
            assert program.wait(TIMEOUT) == 0, program.stderr
            told = json.loads(program.stdout)
            assert told["before"] == 6.0 and told["after"] == 3.0
            assert told["heard"] < 1.0, told
