"""State on a device that does everything late: it is given, taken, kept and written as it is after what is still under way."""

from __future__ import annotations

import functools
import gc
import logging
import weakref
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from ftlib import FTLib, Status
from ftlib.cli.demo import task
from ftlib.common import host_copies
from ftlib.common.device_waits import Fence, drop_held
from ftlib.common.devices import placed_by
from ftlib.core.backup.backlog import Backlog
from ftlib.core.backup.own_average import OwnAverage
from ftlib.core.calls.call import Call, Kind, Results
from ftlib.core.calls.salvage import SalvagePlan
from ftlib.core.execute.unit import Unit
from ftlib.core.plane.plane import Plane
from ftlib.core.tensors.layout import Layout, lay_out
from ftlib.core.tensors.staging import Slot, land
from ftlib.core.tensors.targets import Layouts, Targets
from ftlib.errors import StepMismatch
from ftlib.frameworks.memory import MemoryHub
from ftlib.recovery.layout import flat_state, shards
from ftlib.recovery.layout.flat_state import FlatState
from ftlib.state.codec import decode, snapshot
from ftlib.state.registry import Registered
from ftlib.state.snapshot import Backup
from tests.ftlib.crews.late_state import LateLatecomer, LatePupil, LateSGD, Net, fingerprint, on_device
from tests.ftlib.crews.latecomers import late
from tests.ftlib.crews.workers import Job, Worker
from tests.ftlib.plane.sessions import session
from tests.ftlib.recovery.pupils import School, assert_equal, steps
from tests.harness.basics import eventually
from tests.harness.company import Company, at_once, company
from tests.harness.late_device import PLACE, LateDevice


@pytest.fixture
def device() -> Iterator[LateDevice]:
    with LateDevice(7, on_device).placed() as device:
        yield device


@pytest.mark.parametrize(
    "settings",
    [{}, {"recovery_transport": "group"}, {"recovery_bandwidth": 100_000}, {"recovery": "wait"}],
    ids=["http", "group", "slow", "whole"],
)
def test_a_joiner_ends_up_with_what_the_others_have(
    device: LateDevice, settings: dict[str, Any], caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    caplog.set_level(logging.INFO)
    monkeypatch.setattr(shards, "SMALLEST", 1 << 12)  # several shards, of different lengths
    with company(2, **settings) as crew:
        made = School(crew, functools.partial(LatePupil, device=device))
        eventually(lambda: made.pupils[0].ft.step > 3, "they train")
        joiner = made.enrol(make=functools.partial(LatePupil, device=device, scribbles=True))
        steps(joiner, 5)
        made.end()
    device.synchronize()
    assert assert_equal(*made.pupils) >= 4
    assert joiner.ft.metrics()["state_loads"] == 1
    assert joiner.ft.metrics()["recoveries"] == (settings.get("recovery") != "wait")
    assert not any(getattr(record, "ftlib_event", "") == "no_following" for record in caplog.records)


@pytest.mark.parametrize("plant", [None, "wait", "fence", "views"])
def test_bytes_are_read_after_what_another_thread_has_enqueued(
    device: LateDevice, plant: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With one wait, whatever the number of tensors; each wait that may be forgotten is."""
    if plant == "wait":
        monkeypatch.setattr(host_copies, "end", lambda _: None)
    elif plant == "fence":
        monkeypatch.setattr(Fence, "follow", lambda *_: None)
    elif plant == "views":
        monkeypatch.setattr(flat_state, "place_of", lambda _: "")
    rows = [torch.zeros(9, 30), torch.zeros(40), torch.zeros(6, 8).t(), torch.zeros(5, dtype=torch.float64)]
    wrong = 0
    for value in range(30):
        for row in rows:
            if on_device(row):
                device.enqueue(functools.partial(row.fill_, value), row)
            else:
                row.fill_(value)
        flat = FlatState(rows, list("abcd"), Fence([PLACE]))
        expected = torch.cat([torch.full((row.numel(),), value, dtype=row.dtype).view(torch.uint8) for row in rows])
        waits = device.waits
        assert (flat.views(0, 40) is None) is (plant != "views"), "nobody works on a device's memory"
        read = torch.empty(flat.nbytes - 20, dtype=torch.uint8)
        at_once(lambda flat=flat, read=read: flat.copy_out(12, flat.nbytes - 8, read))
        wrong += not torch.equal(read, expected[12:-8])
        assert device.waits == waits + (plant != "views")
    assert bool(wrong) is (plant is not None)


@pytest.mark.parametrize("backward", [True, False], ids=["in backward", "loaded"])
def test_a_donor_reads_what_has_changed_since_the_call_was_entered(device: LateDevice, backward: bool) -> None:
    """An open call is entered amid backward, where what is computed again (checkpoints) may change buffers; and who has loaded
    the state within its call gives it to the next joiner, if those who had it die.
    """
    layout = lay_out("average", [(torch.float32, (3,))], "SUM", 1 << 20)
    for value in range(1, 11):
        plane, seen = Plane("c"), torch.zeros(7)
        plane.registers((PLACE,))
        here = session(2, SalvagePlan(7, 7, blank=("c",), current_state_id="a", holders=("a",)), "c")
        assert plane.activate(here)
        plane.enter(call := Call(Kind.AVERAGE, layout, [torch.ones(3)]))
        plane.computes(call, backward)
        device.enqueue(functools.partial(seen.fill_, value), seen)
        if backward:
            plane.computed(call)
        else:
            assert plane.loaded(here, "a")
        read = torch.empty(28, dtype=torch.uint8)
        at_once(lambda fence=call.fence, seen=seen, read=read: FlatState([seen], ["seen"], fence).copy_out(0, 28, read))
        assert plane.in_call(8) and read.view(torch.float32).tolist() == [value] * 7


@pytest.mark.parametrize("plant", [None, "wait", "device"])
def test_bytes_are_written_when_that_is_said(device: LateDevice, plant: str | None, monkeypatch: pytest.MonkeyPatch) -> None:
    """Their memory is reused at once, and other threads go on."""
    if plant == "wait":
        monkeypatch.setattr(host_copies, "end", lambda _: None)
    elif plant == "device":  # what is under way overwrites it
        monkeypatch.setattr(flat_state, "place_of", lambda _: "")
    rows = [torch.zeros(9, 30), torch.zeros(40), torch.zeros(6, 8).t()]
    flat = FlatState(rows, list("abc"))
    data = torch.empty(flat.nbytes - 40, dtype=torch.uint8)
    wrong = 0
    for value in range(30):
        for row in rows:
            device.enqueue(functools.partial(row.fill_, -1), row)
        given = torch.full((data.numel() // 4,), float(value)).view(torch.uint8)
        data.copy_(given)
        flat.copy_in(20, data)
        data.fill_(255)
        if plant == "device":
            device.synchronize()
        read = torch.cat([row.contiguous().view(-1).view(torch.uint8) for row in rows])
        wrong += not torch.equal(read[20:-20], given)
    assert bool(wrong) is (plant is not None)


def test_a_tree_is_read_in_bundles(device: LateDevice, monkeypatch: pytest.MonkeyPatch) -> None:
    """Small tensors need one wait for all of them; memory is bounded."""
    monkeypatch.setattr(host_copies, "_BUNDLE", 4000)
    rows = [torch.zeros(100, dtype=torch.float32 if index % 3 else torch.float64) for index in range(60)]
    for index, row in enumerate(rows):
        if on_device(row):
            device.enqueue(functools.partial(row.fill_, index), row)
        else:
            row.fill_(index)
    fence, waits = Fence([PLACE]), device.waits
    [data] = at_once(lambda: snapshot({"rows": rows}, fence))
    assert device.waits == waits + 4
    found = decode(data)
    assert isinstance(found, dict)
    assert [row[50].item() for row in found["rows"]] == list(range(60))


def test_a_late_worker_takes_over_what_it_missed(device: LateDevice) -> None:
    with late(make=LateLatecomer, made={"device": device}) as made:
        first, _, last = made.pupils
        last.stay_away()
        steps(first, 5)
        last.come()
        assert last.ft.metrics()["stood_in"] > 3
        made.end()
    device.synchronize()
    assert assert_equal(*made.pupils) > 3


def test_a_late_worker_keeps_its_gradients_where_the_others_had_no_result(device: LateDevice) -> None:
    """Its last missed average is void, after others that were not."""
    backlog = Backlog(Plane("m"), lambda: registered, OwnAverage(lambda: registered), 1 << 20, lambda _: None)
    net = Net(3)
    optimizer = LateSGD(net.parameters(), device)
    registered = Registered({"model": net, "optimizer": optimizer})
    targets = Targets([torch.zeros(5), None], [torch.zeros(5), nn.Parameter(torch.zeros(4))])
    layout = Layouts(MemoryHub().framework(), 1 << 20).layout("average", targets, "SUM", mean=True)
    call = Call(Kind.AVERAGE, layout, targets.sources, owners=targets.owners, divide=True)
    for parameter in net.parameters():
        parameter.grad = torch.zeros_like(parameter)
    [gradient, _] = call.sources
    assert gradient is not None
    backlog.begin([layout])
    for number, weight in enumerate((2.0, 2.0, 0.0), start=1):
        slots = [Slot(bucket, 0) for bucket in layout.buckets]
        for slot in slots:
            slot.buffer.fill_(number)
        backlog.keep(Results(number, layout, slots, weight), int(weight > 0))
    device.update(functools.partial(gradient.fill_, 7.0), gradient)
    assert backlog.take_over(call) is Status.FAIL
    device.synchronize()
    assert gradient.tolist() == [7.0] * 5


def test_a_checkpoint_is_written_and_loaded(device: LateDevice, tmp_path: Path) -> None:
    """As of the step after which it was saved, though later ones are under way; what is loaded is on the program's device."""

    def trained(crew: Company, seed: int) -> list[LatePupil]:
        return at_once(
            *[functools.partial(LatePupil, ft, seed + index, device=device) for index, ft in enumerate(crew.members)]
        )

    def train(pupil: LatePupil, *, saves: bool = False) -> None:
        for number in range(6):
            pupil.step()
            if saves and number == 2:
                waits = device.waits
                pupil.ft.save(tmp_path)
                assert pupil.ft.rank or device.waits == waits + 1
        device.synchronize()

    with company(1) as crew:
        [pupil] = trained(crew, 0)
        train(pupil, saves=True)
        crew.members[0].close()
    expected = pupil.hashes
    with company(2) as crew:
        others = trained(crew, 50)
        found = at_once(*[functools.partial(_loaded, other, tmp_path) for other in others])
    assert [(loaded.step, seen) for loaded, seen in found] == [(3, expected[3])] * 2


def _loaded(pupil: LatePupil, path: Path) -> tuple[Any, str]:
    """What was loaded, whatever was still under way before."""
    pupil.scribbles = True
    pupil.gradients()
    loaded = pupil.ft.load(path)
    pupil.device.synchronize()
    return loaded, fingerprint(pupil.model, pupil.optimizer)


@pytest.mark.parametrize("skip", [None, *range(8)])
def test_a_step_that_fails_returns_to_the_last_commit(device: LateDevice, skip: int | None) -> None:
    """Each operation of two steps in turn."""
    pupils: dict[str, LatePupil] = {}

    def learn(worker: Worker) -> None:
        pupil = pupils[worker.name] = LatePupil(worker.ft, 5, device=device, pace=0.0)
        while pupil.ft.step < 6:
            if worker.name == "w1" and pupil.ft.step == 2 and skip is not None and not pupil.statuses:
                pupil.statuses.append(Status.SUCCESS)
                job.hub.fail_next(1, skip)
            pupil.ft.execute(carry_out, pupil)
            pupil.note()
        device.synchronize()

    def carry_out(pupil: LatePupil) -> None:
        """Equal gradients everywhere: what comes of a step does not depend on how often it is carried out."""
        pupil.drawn.manual_seed(pupil.ft.step)
        pupil.gradients()
        late = pupil.ft.allreduce_average(pupil.model, wait=False)
        value = torch.full((3,), 2.0)
        assert pupil.ft.allreduce(value, "SUM")
        assert late.wait()
        pupil.apply()

    with Job(2) as job:
        job.run(dict.fromkeys(("w0", "w1"), learn))
        undone = sum(worker.ft.metrics()["rolled_back"] for worker in job.workers.values())
    assert undone >= (skip is not None)
    assert pupils["w0"].hashes == pupils["w1"].hashes
    _plain.setdefault("hashes", pupils["w0"].hashes)
    assert pupils["w0"].hashes == _plain["hashes"]


_plain: dict[str, dict[int, str]] = {}
"""What the first of these tests came to."""


def test_a_backup_is_of_its_moment(device: LateDevice) -> None:
    """Also for other threads, which read it while the step goes on; and for who returns to it before that is done."""
    net = Net(3)
    registered = Registered({"model": net})
    unit = Unit(lambda: None, Layout(b"", "", "", ()))
    backup = Backup()
    for value in range(20):
        device.update(functools.partial(net.seen.fill_, value), net.seen)
        kept = backup.keep(registered, 0)
        unit.keep(kept)
        device.update(functools.partial(net.seen.fill_, -1.0), net.seen)
        entry = unit.entry(lambda: None)
        assert entry is not None
        if value % 2:
            [data] = at_once(lambda entry=entry: snapshot(entry(), unit.fence))
            tree: Any = decode(data)
            assert tree["model"][0]["seen"].tolist() == [value] * 7
        kept.restore()
        device.synchronize()
        assert net.seen.tolist() == [value] * 7


def test_the_state_goes_to_the_joiners_own_device() -> None:
    """Whatever the number of the donors' device."""
    devices = {"late:0": LateDevice(3, on_device), "late:1": LateDevice(4, on_device)}
    joiners: dict[int, torch.Tensor] = {}

    def place(tensor: torch.Tensor) -> str:
        return f"late:{int(tensor.data_ptr() in joiners)}" if on_device(tensor) else ""

    def joining(ft: FTLib, seed: int) -> LatePupil:
        pupil = LatePupil(ft, seed, device=devices["late:1"], scribbles=True)
        for parameter in pupil.model.parameters():
            momentum = pupil.optimizer.state[parameter]["momentum_buffer"] = torch.zeros_like(parameter, requires_grad=False)
            joiners.update((each.data_ptr(), each) for each in (parameter, parameter.grad, momentum) if each is not None)
        pupil.register()
        return pupil

    with placed_by(place, devices.__getitem__), company(2) as crew:
        made = School(crew, functools.partial(LatePupil, device=devices["late:0"]))
        eventually(lambda: made.pupils[0].ft.step > 3, "they train")
        joiner = made.enrol(make=joining)
        steps(joiner, 5)
        made.end()
        for device in devices.values():
            device.synchronize()
    assert assert_equal(*made.pupils) >= 4
    assert joiner.ft.metrics()["recoveries"] == 1


def test_a_joiner_on_the_cpu_is_told_what_the_others_are_on(device: LateDevice, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    own: set[int] = set()

    def joining(ft: FTLib, seed: int) -> LatePupil:
        pupil = LatePupil(ft, seed, device=LateDevice(1, on_device), pace=0.0)
        own.update(each.data_ptr() for parameter in pupil.model.parameters() for each in (parameter, parameter.grad))
        return pupil

    with device.taking(lambda tensor: on_device(tensor) and tensor.data_ptr() not in own), company(2, step_timeout=8.0) as crew:
        made = School(crew, functools.partial(LatePupil, device=device))
        eventually(lambda: made.pupils[0].ft.step > 3, "they train")
        joiner = made.enrol(make=joining)
        eventually(lambda: joiner.error is not None, "it is refused")
        steps(made.pupils[0], 3)
        made.end()
    assert isinstance(joiner.error, StepMismatch)
    assert "(their last: average(float32[64, 30]@late, float32[64, 20]@late))" in str(joiner.error)


def test_a_broadcast_of_what_is_not_contiguous(device: LateDevice) -> None:
    tensors = [torch.zeros(6, 8).t() for _ in range(2)]

    def body(worker: Worker) -> None:
        tensor = tensors[worker.ft.rank]
        device.enqueue(functools.partial(tensor.fill_, float(worker.ft.rank + 1)), tensor)
        assert worker.ft.broadcast(tensor, root_rank=1)
        device.update(functools.partial(tensor.mul_, 2.0), tensor)
        device.synchronize()

    with device.taking(lambda _: True), Job(2) as job:
        job.run(dict.fromkeys(("w0", "w1"), body))
    assert [tensor.unique().tolist() for tensor in tensors] == [[4.0]] * 2


def test_the_demos_hash_is_of_what_the_device_will_have(device: LateDevice) -> None:
    model = task.network(0)
    expected = task.fingerprint(model)
    for parameter in model.parameters():
        value = parameter.detach().clone()
        device.enqueue(functools.partial(parameter.copy_, value), parameter)
    assert task.fingerprint(model) == expected


def test_memory_outlives_the_copies_that_a_device_makes_from_it(device: LateDevice) -> None:
    """Though nobody refers to it any more, as after the end of a lifetime."""
    bucket = lay_out("average", [(torch.float32, (700,))], "SUM", 1 << 20, [PLACE]).buckets[1]
    slot = Slot(bucket, 0)
    memory = weakref.ref(slot.buffer)
    with device.stream():
        device.enqueue(lambda: None)
        slot.lend(device.record())
    del slot
    gc.collect()
    assert memory() is not None
    drop_held(1.0)
    assert memory() is None


def test_results_on_the_device_land_with_one_wait(device: LateDevice) -> None:
    """Also where several threads need them."""
    layout = lay_out("average", [(torch.float32, (700,))] * 3, "SUM", 4 * 700, [PLACE] * 3)
    for number in range(20):
        slots = [Slot(bucket, 0) for bucket in layout.buckets[1:]]
        for index, slot in enumerate(slots):
            row = device.empty(700, torch.float32)
            slot.stage(row)
            device.enqueue(functools.partial(row.fill_, number + index), row)
            slot.reduced()
        device.synchronize()  # as who has waited for the accelerator
        waits = device.waits
        land(slots[:2])
        assert device.waits == waits + 1
        found = at_once(*[lambda slots=slots: [int(slot.data.sum()) for slot in slots]] * 3)
        assert device.waits == waits + 2
        assert found == [[700 * (number + index) for index in range(3)]] * 3
