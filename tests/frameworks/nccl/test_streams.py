"""NCCL's operations in the order of streams, on a device that does everything late; and on a GPU, with one rank."""

from __future__ import annotations

import ctypes
import functools
import threading
from contextlib import nullcontext
from typing import Any
from unittest import mock

import pytest
import torch

from ftlib.common.devices import HOST, Cuda, device_at, placed_by
from ftlib.errors import ConfigError
from ftlib.frameworks.accelerators.nccl.communicator import NcclCommunicator
from ftlib.frameworks.accelerators.nccl.gpus import Gpu, Gpus
from ftlib.frameworks.accelerators.nccl.library import load
from ftlib.frameworks.base import GroupSpec, Operation, OperationKind
from tests.frameworks.nccl.scripted import Scripted
from tests.harness.basics import TIMEOUT, eventually
from tests.harness.gpu import PLACE
from tests.harness.late_device import LateDevice, LateStream


class _Doubling(Scripted):
    """Its allreduce is that of two ranks with equal tensors."""

    def __init__(self, device: LateDevice) -> None:
        super().__init__()
        self._device = device

    def ncclAllReduce(self, *arguments: int) -> int:  # noqa: N802
        address, _, count, *_ = arguments
        row = torch.frombuffer((ctypes.c_float * count).from_address(address), dtype=torch.float32)
        stream = self._device.sides[-1]  # type: ignore[attr-defined]
        with self._device.on(stream._stream):
            self._device.launch(lambda: row.mul_(2.0), [])
        return super().ncclAllReduce(*arguments)


class _Device(LateDevice):
    def __init__(self, seed: int) -> None:
        super().__init__(seed, lambda _: True)
        self.sides: list[LateStream] = []

    def side_stream(self) -> LateStream:
        self.sides.append(super().side_stream())
        return self.sides[-1]


@pytest.mark.parametrize("bug", ["", "follow", "current"])
def test_operations_come_after_the_fill_and_before_the_look(bug: str) -> None:
    """Planted: the stream of NCCL does not wait for the program's, and the look is on the program's."""
    device = _Device(5)
    wrong = 0
    with placed_by(lambda _: HOST, lambda _: device):
        spec, decided = GroupSpec("view", 1, 0, 2, {}, 20.0), threading.Event()
        library = _Doubling(device).library()
        made = NcclCommunicator(spec, bytes(128), library, Gpu(PLACE, "GPU-1"), warming=(4096,))
        made.begin(decided.set)
        assert decided.wait(TIMEOUT) and made.ready, made.trouble
        plants: dict[str, Any] = {"follow": lambda *_: None, "current": lambda _: mock.MagicMock()}
        with mock.patch.object(LateStream, bug, plants[bug]) if bug else mock.MagicMock():
            for value in range(1, 60):
                row, seen = torch.zeros(64), torch.zeros(64)
                device.enqueue(functools.partial(row.fill_, float(value)), row)
                look = functools.partial(device.enqueue, functools.partial(seen.copy_, row), seen)
                ticket = made.launch([Operation(OperationKind.ALLREDUCE, row, "SUM")], look)
                eventually(ticket.query, "the end")
                wrong += not bool((row == 2.0 * value).all() and (seen == 2.0 * value).all())
                device.synchronize()
    assert bool(wrong) is bool(bug)


def test_the_gpus_part_is_torchs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Which objects of torch's are asked for what, where there is no GPU to ask."""
    made = mock.MagicMock(cuda_stream=0x560000001230)
    event = mock.MagicMock()
    event.query.return_value = True
    monkeypatch.setattr(torch.cuda, "Stream", mock.MagicMock(return_value=made))
    monkeypatch.setattr(torch.cuda, "Event", mock.MagicMock(return_value=event))
    monkeypatch.setattr(torch.cuda, "current_stream", mock.MagicMock(return_value="the program's"))
    monkeypatch.setattr(torch.cuda, "stream", mock.MagicMock())
    monkeypatch.setattr(torch.cuda, "set_device", mock.MagicMock())
    device = Cuda(3)
    stream = device.side_stream()
    assert stream.handle == 0x560000001230
    filled = device.record()
    stream.follow(filled)
    made.wait_event.assert_called_once_with(event)
    assert stream.record().query()
    assert [each.args for each in event.record.call_args_list] == [("the program's",), (made,)]
    with stream.current():
        torch.cuda.stream.assert_called_once_with(made)
    device.use()
    torch.cuda.set_device.assert_called_once_with(torch.device("cuda", 3))


@pytest.mark.parametrize("capturing", [False, True])
def test_a_captured_graph_is_refused_with_the_remedy(monkeypatch: pytest.MonkeyPatch, capturing: bool) -> None:
    monkeypatch.setattr(torch.cuda, "device", mock.MagicMock())
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: capturing)
    with pytest.raises(ConfigError, match="capture forward and backward alone") if capturing else nullcontext():
        Cuda(0).check_capture()


# --- on a GPU ----------------------------------------------------------------------------------------------------------


@pytest.mark.gpu
def test_a_communicator_of_one_rank_on_a_gpu() -> None:
    library, gpu = load(), Gpus().current()
    spec, decided = GroupSpec("view", 1, 0, 1, {}, 60.0), threading.Event()
    made = NcclCommunicator(spec, library.unique_id(), library, gpu)
    made.begin(decided.set)
    assert decided.wait(120)
    assert made.ready, made.trouble
    row = torch.full((1 << 20,), 3.0, device=gpu.place)
    ticket = made.launch([Operation(OperationKind.ALLREDUCE, row, "SUM")])
    eventually(ticket.query, "the end of the operation")
    assert not ticket.error()
    assert bool((row == 3.0).all())
    made.stop()
    assert made.idle and not made.ready
    made.free()


@pytest.mark.gpu
def test_a_captured_graph_is_noticed_on_a_gpu() -> None:
    device, tensor = device_at(PLACE), torch.ones(4, device=PLACE)
    device.check_capture()
    with torch.cuda.graph(torch.cuda.CUDAGraph()):
        tensor.add_(1.0)
        with pytest.raises(ConfigError, match="CUDA graph"):
            device.check_capture()
    device.check_capture()
