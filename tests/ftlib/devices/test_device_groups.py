"""``ft.group`` with tensors on a device: the program's own collectives go through CPU memory, in the order of its streams.

The device is one that does everything late; where there is a GPU, once more the GPU, with real Gloo groups.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch

from ftlib.common.devices import Event
from ftlib.errors import ConfigError, Excluded, GroupError
from ftlib.frameworks import gloo, sockets
from ftlib.frameworks.accelerators.group import HybridGroup
from ftlib.frameworks.accelerators.rehearsal import Faults, RehearsalFramework
from ftlib.frameworks.base import Group, Operation, OperationKind, Work
from ftlib.frameworks.isolated import IsolatedFramework
from ftlib.frameworks.staged.group import StagedGroup
from ftlib.frameworks.staged.rows import HostRows, Row
from ftlib.ftlib import FTLib
from tests.ftlib.crews.crew import Crew
from tests.ftlib.crews.steps import Whim
from tests.ftlib.crews.workers import TIMEOUT, Job, Worker
from tests.ftlib.devices.test_devices import FLOATS, DeviceCrew
from tests.harness.basics import eventually
from tests.harness.gpu import PLACE, on_gpu
from tests.harness.late_device import LateDevice
from tests.harness.real_device import RealDevice

SIZE = 3


@pytest.fixture(params=["late", on_gpu("real")])
def device(request: pytest.FixtureRequest) -> Iterator[LateDevice | RealDevice]:
    if request.param == "real":
        yield RealDevice(PLACE, lambda tensor: tensor.dtype in FLOATS)
        return
    with LateDevice(1, lambda tensor: tensor.dtype in FLOATS).placed() as device:
        yield device


@pytest.fixture
def crew(device: LateDevice | RealDevice) -> Iterator[DeviceCrew]:
    with DeviceCrew(SIZE, device) as crew:
        yield crew


def group_of(ft: FTLib) -> Group:
    assert ft.group is not None
    return ft.group


def numbers(seed: int, *shape: int) -> torch.Tensor:
    return torch.randint(-8, 9, shape, generator=torch.Generator().manual_seed(seed)).float()


# Every operation gives what it gives on the CPU.


@pytest.mark.parametrize("kind", ["contiguous", "transposed", "every other", "a scalar", "empty"])
@pytest.mark.parametrize("dtype", FLOATS)
def test_reductions(crew: DeviceCrew, kind: str, dtype: torch.dtype) -> None:
    shapes: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
        "contiguous": lambda tensor: tensor,
        "transposed": lambda tensor: tensor.t(),
        "every other": lambda tensor: tensor[::2, 1::3],
        "a scalar": lambda tensor: tensor[4, 5],
        "empty": lambda tensor: tensor[:0],
    }
    for op, reduce in (("SUM", torch.sum), ("MIN", torch.amin), ("MAX", torch.amax), ("PRODUCT", torch.prod)):
        inputs = [numbers(seed, 30, 40).to(dtype) for seed in range(SIZE)]
        wholes = [crew.device.put(tensor.clone()) for tensor in inputs]

        def body(ft: FTLib, i: int, wholes: list[torch.Tensor] = wholes, op: str = op) -> None:
            assert group_of(ft).allreduce(shapes[kind](wholes[i]), op).wait(TIMEOUT)

        crew.all(body)
        expected = reduce(torch.stack([shapes[kind](tensor) for tensor in inputs]).float(), 0).to(dtype)
        for whole, before in zip(wholes, inputs, strict=True):
            after = before.clone()
            shapes[kind](after).copy_(expected)
            assert torch.equal(whole.cpu(), after), "the result, and nothing beside it"


@pytest.mark.parametrize("root", range(SIZE))
def test_broadcasts_and_barriers(crew: DeviceCrew, root: int) -> None:
    rows = [crew.device.put(torch.full((5, 7), float(i))) for i in range(SIZE)]

    def body(ft: FTLib, i: int) -> None:
        group = group_of(ft)
        works = [group.broadcast(rows[i].t(), root), group.barrier()]
        assert all(work.wait(TIMEOUT) for work in works)

    crew.all(body)
    assert all(row.unique().tolist() == [root] for row in rows)


def test_messages_between_devices_and_the_cpu(crew: DeviceCrew) -> None:
    """In a ring, both ways, with tensors of the CPU between those on the device."""
    there = [[crew.device.put(numbers(10 * i + n, 300)) for n in range(6)] for i in range(SIZE)]
    here = [[numbers(10 * i + n, 300).double() for n in range(6)] for i in range(SIZE)]
    got = [[crew.device.put(torch.zeros(300)) for _ in range(6)] for _ in range(SIZE)]
    got_here = [[torch.zeros(300, dtype=torch.float64) for _ in range(6)] for _ in range(SIZE)]

    def body(ft: FTLib, i: int) -> None:
        group, works = group_of(ft), []
        for n in range(6):
            to, source = ((i + 1) % SIZE, (i - 1) % SIZE) if n % 2 else ((i - 1) % SIZE, (i + 1) % SIZE)
            works += [group.recv(got[i][n], source, n), group.recv(got_here[i][n], source, 100 + n)]
            works += [group.send(there[i][n], to, n), group.send(here[i][n], to, 100 + n)]
        assert all(work.wait(TIMEOUT) for work in works)

    crew.all(body)
    for i in range(SIZE):
        for n in range(6):
            source = (i - 1) % SIZE if n % 2 else (i + 1) % SIZE
            assert torch.equal(got[i][n].cpu(), there[source][n].cpu())
            assert torch.equal(got_here[i][n], here[source][n])


def test_members_may_have_their_tensors_in_different_places(device: LateDevice | RealDevice) -> None:
    tensors = [torch.full((40,), 1.0 + i) for i in range(SIZE)]
    rows = [torch.zeros(40) for _ in range(SIZE)]
    there = {tensors[1].data_ptr(), rows[2].data_ptr()}
    with device.taking(lambda tensor: tensor.data_ptr() in there), DeviceCrew(SIZE, device) as crew:
        tensors, rows = [device.put(tensor) for tensor in tensors], [device.put(row) for row in rows]

        def body(ft: FTLib, i: int) -> None:
            group = group_of(ft)
            works = [group.recv(rows[i], (i - 1) % SIZE, 0), group.send(tensors[i], (i + 1) % SIZE, 0)]
            assert all(work.wait(TIMEOUT) for work in works)
            assert group.allreduce(tensors[i]).wait(TIMEOUT)

        crew.all(body)
    assert [row.unique().tolist() for row in rows] == [[3.0], [1.0], [2.0]]
    assert [tensor.unique().tolist() for tensor in tensors] == [[6.0]] * SIZE


# The order of streams.


def _history(device: LateDevice | RealDevice, group: Group, i: int, *, turns: int) -> list[torch.Tensor]:
    """Results that each depend on what was enqueued before the operation, and are changed by what is enqueued after it."""
    kept = []
    left, right = (i - 1) % SIZE, (i + 1) % SIZE
    for n in range(turns):
        tensor, got = device.put(torch.full((500,), 1.0 + i)), device.put(torch.zeros(500))
        _do(device, lambda tensor=tensor, n=n: tensor.mul_(n + 2.0), tensor)
        work = group.send(tensor, right, n)
        _do(device, lambda got=got: got.fill_(-1.0), got)  # nobody waits for this one
        other = group.recv(got, left, n)
        with device.stream():
            assert other.wait(TIMEOUT)
            _do(device, lambda got=got: got.add_(1.0), got)
            total = device.put(torch.zeros(500))
            _do(device, lambda total=total, got=got: total.copy_(got), total)
            assert group.allreduce(total).wait(TIMEOUT)
            _do(device, lambda total=total: total.mul_(2.0), total)
        assert work.wait(TIMEOUT)
        kept += [got, total]
    return kept


def _do(device: LateDevice | RealDevice, operation: Callable[[], Any], tensor: torch.Tensor) -> None:
    if isinstance(device, LateDevice):
        device.update(operation, tensor)
    else:
        operation()


def _wrong(crew: DeviceCrew) -> int:
    turns = 12
    told = crew.all(lambda ft, i: _history(crew.device, group_of(ft), i, turns=turns))
    wrong = 0
    for i in range(SIZE):
        for n in range(turns):
            sent = [(n + 2.0) * (1.0 + (each - 1) % SIZE) + 1.0 for each in range(SIZE)]
            wrong += told[i][2 * n].unique().tolist() != [sent[i]]
            wrong += told[i][2 * n + 1].unique().tolist() != [2.0 * sum(sent)]
    return wrong


def test_everything_happens_in_the_order_of_the_streams(crew: DeviceCrew) -> None:
    for _ in range(3):
        assert _wrong(crew) == 0


def _sends_without_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ftlib.frameworks.staged.group.end", lambda _: None)


def _forgets_other_streams(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(LateDevice, "follow", lambda *_: None)


def _uses_rows_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Row, "idle", property(lambda row: not row._wanted))


@pytest.mark.parametrize("plant", [_sends_without_waiting, _forgets_other_streams, _uses_rows_at_once])
def test_planted_bugs_are_found(monkeypatch: pytest.MonkeyPatch, plant: Callable[[pytest.MonkeyPatch], None]) -> None:
    plant(monkeypatch)
    with LateDevice(1, lambda tensor: tensor.dtype in FLOATS).placed() as device, DeviceCrew(SIZE, device) as crew:
        assert _wrong(crew) > 0


def test_only_what_is_sent_is_waited_for(crew: DeviceCrew) -> None:
    tensors = [crew.device.put(torch.ones(100)) for _ in range(SIZE)]
    rows = [crew.device.put(torch.zeros(100)) for _ in range(SIZE)]
    before = crew.device.waits

    def body(ft: FTLib, i: int) -> None:
        group = group_of(ft)
        if i:
            assert group.send(tensors[i], 0, i).wait(TIMEOUT)
        else:
            assert all(group.recv(rows[source], source, source).wait(TIMEOUT) for source in (1, 2))
        assert group.broadcast(tensors[i], 2).wait(TIMEOUT)

    crew.all(body)
    assert crew.device.waits - before == 3, "two sends, and the root of the broadcast"


def test_what_is_sent_may_be_changed_at_once(crew: DeviceCrew) -> None:
    """The others get what it was; here it stays as it was changed."""
    tensors = [crew.device.put(torch.full((60,), 1.0 + i)) for i in range(SIZE)]
    got = [crew.device.put(torch.zeros(60)) for _ in range(SIZE)]

    def body(ft: FTLib, i: int) -> None:
        group = group_of(ft)
        works = [group.send(tensors[i], (i + 1) % SIZE, 0), group.recv(got[i], (i - 1) % SIZE, 0)]
        if i == 0:
            works.append(group.broadcast(tensors[0], 0))
        _do(crew.device, lambda: tensors[i].fill_(9.0), tensors[i])
        if i:
            works.append(group.broadcast(tensors[i], 0))
        assert all(work.wait(TIMEOUT) for work in works)

    crew.all(body)
    assert [row.unique().tolist() for row in got] == [[3.0], [1.0], [2.0]]
    assert [tensor.unique().tolist() for tensor in tensors] == [[9.0], [1.0], [1.0]]


def test_who_waits_second_has_the_result_too(crew: DeviceCrew) -> None:
    """Its stream follows the first one's copy; nothing is copied twice."""
    tensors = [crew.device.put(torch.full((50,), float(i))) for i in range(SIZE)]

    def first(ft: FTLib, i: int) -> Work:
        work = group_of(ft).allreduce(tensors[i])
        thread = threading.Thread(target=lambda: work.wait(TIMEOUT))
        thread.start()
        thread.join()
        return work

    def second(ft: FTLib, i: int) -> torch.Tensor:
        assert works[i].wait(TIMEOUT) and works[i].wait(TIMEOUT)
        copy = crew.device.put(torch.zeros(50))
        _do(crew.device, lambda: copy.copy_(tensors[i]), copy)
        return copy

    works = crew.all(first)
    before = crew.device.operations
    copies = crew.all(second)
    assert [copy.unique().tolist() for copy in copies] == [[3.0]] * SIZE
    assert crew.device.operations - before == (SIZE if isinstance(crew.device, LateDevice) else 0), "the program's own copies"


def test_a_future_completes_once_the_result_is_there(crew: DeviceCrew) -> None:
    tensors = [crew.device.put(torch.full((50,), float(i))) for i in range(SIZE)]

    def body(ft: FTLib, i: int) -> list[bool]:
        work = group_of(ft).allreduce(tensors[i])
        future = work.future()
        eventually(future.done, "the future", TIMEOUT)
        found = [tensors[i].tolist() == [3.0] * 50]  # before anything asks the device
        assert future.value() is None and work.done()
        assert work.wait(TIMEOUT)
        _do(crew.device, lambda: tensors[i].mul_(2.0), tensors[i])
        crew.device.synchronize()
        return [*found, tensors[i].tolist() == [6.0] * 50]

    assert crew.all(body) == [[True, True]] * SIZE


# Operations that fail.


class Manual(Work):
    """Under way until told; then failed, while it may still write, until told once more."""

    def __init__(self, tensor: torch.Tensor) -> None:
        self.tensor = tensor
        self.error: GroupError | None = None
        self.ended = self.physically = False

    def wait(self, timeout: float) -> bool:
        if self.error is not None:
            raise self.error
        return self.ended

    def done(self) -> bool:
        return self.physically


class ManualGroup(Group):
    def __init__(self) -> None:
        self.rank, self.size = 0, 2
        self.works: list[Manual] = []

    def submit(self, operation: Operation) -> Work:
        if operation.op == "WRONG":
            raise ConfigError("unknown operation")
        self.works.append(Manual(operation.tensor))
        return self.works[-1]

    def abort(self) -> None:
        pass

    def close(self) -> None:
        pass


@pytest.fixture
def late() -> Iterator[LateDevice]:
    with LateDevice(3, lambda tensor: tensor.dtype in FLOATS).placed() as device:
        yield device


def staged(raw: Group) -> StagedGroup:
    return StagedGroup(raw, lambda tensor: "late:0" if tensor.dtype in FLOATS else "", _plain_rows())


def _plain_rows() -> HostRows:
    return HostRows(lambda count, dtype: torch.zeros(count, dtype=dtype))


def test_memory_that_may_still_be_written_is_not_used_again(late: LateDevice) -> None:
    raw = ManualGroup()
    group = staged(raw)
    tensor = torch.zeros(10)
    work = group.recv(tensor, 1, 0)
    failed = raw.works[0]
    failed.error = GroupError("the connection broke")
    with pytest.raises(GroupError):
        work.wait(0.0)
    for _ in range(5):  # these succeed, and use each other's memory
        other = group.recv(torch.zeros(10), 1, 0)
        newest = raw.works[-1]
        assert newest.tensor.data_ptr() != failed.tensor.data_ptr()
        newest.ended = newest.physically = True
        assert other.wait(0.0)
        late.synchronize()
    assert len({each.tensor.data_ptr() for each in raw.works}) == 2
    failed.tensor.fill_(5.0)  # late, but not too late
    failed.physically = True
    late.synchronize()
    assert tensor.tolist() == [0.0] * 10, "a failed operation leaves the tensor as it was"
    group.recv(tensor, 1, 0), group.recv(tensor, 1, 0)
    assert failed.tensor.data_ptr() in {each.tensor.data_ptr() for each in raw.works[-2:]}


def test_a_future_of_a_failed_operation_waits_until_nothing_is_written_any_more(late: LateDevice) -> None:
    raw = ManualGroup()
    future = staged(raw).recv(torch.zeros(10), 1, 0).future()
    raw.works[0].error = GroupError("the connection broke")
    assert not eventually_done(future, 0.2)
    raw.works[0].physically = True
    assert eventually_done(future, TIMEOUT)
    with pytest.raises(GroupError):
        future.value()


def eventually_done(future: Any, seconds: float) -> bool:
    deadline = time.monotonic() + seconds
    while not future.done() and time.monotonic() < deadline:
        time.sleep(0.005)
    return bool(future.done())


def test_memory_that_a_device_still_reads_is_not_used_again(late: LateDevice) -> None:
    class Held(Event):
        reached = False

        def query(self) -> bool:
            return self.reached

    rows, held = _plain_rows(), Held()
    row = rows.take(100, late)
    row.used_until(held)
    row.leave()
    other = rows.take(100, late)
    assert other is not row
    held.reached = True
    assert rows.take(100, late) is row
    assert rows.take(100, late) not in (row, other)


def test_large_memory_is_let_go_of(late: LateDevice, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ftlib.frameworks.staged.rows._KEPT", 1 << 20)
    rows = _plain_rows()
    for size in (1 << 19, 1 << 20, 1 << 21, 1 << 22):
        rows.take(size, late).leave()
    assert sum(row.memory.nbytes for row in rows._rows) <= (1 << 20) + (1 << 22)


def test_a_work_that_nobody_waits_for_keeps_its_memory_while_it_is_under_way(late: LateDevice) -> None:
    raw = ManualGroup()
    group = staged(raw)
    group.recv(torch.zeros(10), 1, 0)
    group.recv(torch.zeros(10), 1, 0)
    first, second = raw.works
    assert first.tensor.data_ptr() != second.tensor.data_ptr()
    first.ended = first.physically = True
    group.recv(torch.zeros(10), 1, 0)
    assert raw.works[2].tensor.data_ptr() == first.tensor.data_ptr()


def test_a_refused_operation_keeps_no_memory(late: LateDevice) -> None:
    raw = ManualGroup()
    group = staged(raw)
    for _ in range(3):
        with pytest.raises(ConfigError, match="unknown operation"):
            group.allreduce(torch.zeros(10), "WRONG")
    assert len(group._rows._rows) == 1
    with pytest.raises(ConfigError, match="dense"):
        group.allreduce(torch.eye(3).to_sparse())


def test_devices_of_other_kinds_are_refused() -> None:
    group = StagedGroup(ManualGroup(), lambda tensor: str(tensor.device), _plain_rows())
    with pytest.raises(ConfigError, match="ftlib cannot use meta devices"):
        group.allreduce(torch.zeros(3, device="meta"))


def test_a_device_that_hangs_ends_the_worker_and_keeps_the_memory(late: LateDevice, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ftlib.common.device_waits.PATIENCE", 0.05)
    monkeypatch.setattr(LateDevice, "reached", lambda *_: False)
    group = staged(ManualGroup())
    for number in range(1, 3):
        with pytest.raises(Excluded, match="hangs"):
            group.send(torch.zeros(10), 1, 0)
        assert len(group._rows._rows) == number
    work = group.recv(torch.zeros(10), 1, 0)
    raw = group._group
    assert isinstance(raw, ManualGroup)
    raw.works[-1].ended = raw.works[-1].physically = True
    future = work.future()
    eventually(future.done, "the future of an operation whose result never gets to the device", TIMEOUT)
    with pytest.raises(Excluded, match="hangs"):
        future.value()


def test_an_abort_in_the_middle(device: LateDevice | RealDevice) -> None:
    """Works fail, tensors stay as they are, futures err, and the next view's group carries on."""
    with DeviceCrew(SIZE, device) as crew:
        tensors = [device.put(torch.full((1000,), float(i))) for i in range(SIZE)]
        begun = threading.Barrier(SIZE)

        def body(ft: FTLib, i: int) -> str:
            if i == 2:
                begun.wait(TIMEOUT)
                return ""
            group = group_of(ft)
            works = [group.recv(tensors[i], 2, 0), group.allreduce(tensors[i])]
            futures = [work.future() for work in works]
            assert not works[0].wait(0.05)
            begun.wait(TIMEOUT)
            if not i or isinstance(device, RealDevice):  # by Gloo, worker 1 has no link that 0 cuts, but for the allreduce
                group.abort()
            with pytest.raises(GroupError) as raised:
                works[0].wait(TIMEOUT)
            for future in futures:
                eventually(future.done, "a future of an aborted operation", TIMEOUT)
                with pytest.raises(GroupError):
                    future.value()
            return str(raised.value)

        assert [bool(text) for text in crew.all(body)] == [True, True, False]
        assert [tensor.unique().tolist() for tensor in tensors] == [[0.0], [1.0], [2.0]]
        assert crew.all(lambda ft, _: bool(ft.allreduce_average(torch.ones(3)))) == [True] * SIZE
        crew.all(lambda ft, i: group_of(ft).allreduce(tensors[i]).wait(TIMEOUT))
        assert [tensor.unique().tolist() for tensor in tensors] == [[3.0]] * SIZE


# Within a unit.


def test_a_unit_with_collectives_of_its_own(crew: DeviceCrew) -> None:
    """Those that the function does not wait for have ended when the unit has."""
    tensors = [crew.device.put(torch.full((9,), float(i))) for i in range(SIZE)]

    def body(ft: FTLib, i: int) -> None:
        ft.register_state(state_dict=dict, load_state_dict=lambda _: None)
        ft.execute(lambda: group_of(ft).allreduce(tensors[i]))

    crew.all(body)
    assert [tensor.unique().tolist() for tensor in tensors] == [[3.0]] * SIZE


@pytest.mark.parametrize("skip", range(4))
def test_a_unit_whose_collective_fails_is_run_again(late: LateDevice, skip: int) -> None:
    """Whichever of its operations fails, and whatever the function makes of the error."""

    def body(worker: Worker) -> list[list[float]]:
        ft = worker.ft
        found: list[list[float]] = []
        ft.register_state(state_dict=dict, load_state_dict=lambda _: None)

        def step() -> list[float]:
            tensor = torch.full((4,), 1.0 + ft.rank)
            group = group_of(ft)
            try:
                assert group.allreduce(tensor).wait(TIMEOUT) and group.broadcast(tensor, 1).wait(TIMEOUT)
            except GroupError as error:
                raise Whim from error
            late.synchronize()
            return tensor.tolist()

        for number in range(4):
            if number == 2 and worker.name == "w1":
                job.hub.fail_next(1, skip)
            found.append(ft.execute(step))
        return found

    with Job(2) as job:
        assert job.run(dict.fromkeys(("w0", "w1"), body)) == dict.fromkeys(("w0", "w1"), [[3.0] * 4] * 4)
        assert job.cluster.epoch == 2


# Other frameworks.


@pytest.mark.skipif(not sockets.supported(), reason="needs /proc")
@pytest.mark.parametrize("framework", [lambda _: RehearsalFramework(Faults()), lambda _: IsolatedFramework()])
def test_groups_with_an_accelerator_and_in_a_process_of_their_own(
    late: LateDevice, monkeypatch: pytest.MonkeyPatch, framework: Callable[[str], Any]
) -> None:
    """An accelerator is not for these: all of it goes by Gloo. A child gets memory that it shares."""
    monkeypatch.setattr(gloo, "_FINISH", 0.1)
    by_gloo = []
    submit = HybridGroup.submit
    monkeypatch.setattr(HybridGroup, "submit", lambda group, operation: by_gloo.append(operation) or submit(group, operation))
    with Crew(2, framework) as crew:
        tensors = [torch.full((1000,), float(i)) for i in range(2)]
        rows = [torch.zeros(1000) for _ in range(2)]

        def body(ft: FTLib, i: int) -> None:
            group = group_of(ft)
            works = [group.allreduce(tensors[i]), group.send(tensors[i], 1 - i, 1), group.recv(rows[i], 1 - i, 1)]
            assert all(work.wait(TIMEOUT) for work in works)

        crew.all(body)
        late.synchronize()
        assert [tensor.unique().tolist() for tensor in tensors] == [[1.0]] * 2
        assert [row.unique().tolist() for row in rows] == [[1.0], [0.0]], "as they were before the sum was brought"
        if by_gloo:
            kinds = [operation.kind for operation in by_gloo]
            assert kinds.count(OperationKind.SEND) == kinds.count(OperationKind.RECV) == 2
