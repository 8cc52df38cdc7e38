"""What may be averaged, what is refused by name, and what happens to parameters that change."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest
import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode

from ftlib import ConfigError, Status, StepMismatch
from ftlib.core.tensors.targets import Layouts, targets_of
from ftlib.frameworks import Framework, framework_by_name
from ftlib.frameworks.memory import MemoryFramework
from ftlib.ftlib import FTLib
from tests.ftlib.crews.crew import Crew, by_all
from tests.ftlib.crews.workers import Job, Worker


@pytest.fixture(scope="module")
def pair() -> Iterator[Crew]:
    with Crew(2) as crew:
        yield crew


def refused(target: object, op: str = "SUM", *, mean: bool = True, framework: Framework | None = None) -> str:
    with pytest.raises(ConfigError) as caught:
        Layouts(framework or MemoryFramework(), 1 << 20).layout("average", targets_of(target), op, mean=mean)
    text = str(caught.value)
    assert "\n" not in text
    return text


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer1 = nn.Linear(3, 2)
        self.layer2 = nn.Linear(2, 2)


def with_grads(model: nn.Module, value: float) -> nn.Module:
    for parameter in model.parameters():
        if parameter.requires_grad:
            parameter.grad = torch.full_like(parameter, value)
    return model


def test_errors_name_the_parameter() -> None:
    sparse = nn.Sequential(nn.Linear(2, 2), nn.Embedding(5, 2, sparse=True))
    sparse[1](torch.tensor([1])).sum().backward()
    assert refused(sparse).startswith("1.weight of [5, 2] is torch.sparse_coo: ")
    assert "sparse=False" in refused(sparse)
    assert refused(list(sparse.parameters())).startswith("parameter 2 of [5, 2]")
    complicated = Net()
    complicated.layer1.weight = nn.Parameter(torch.zeros(2, dtype=torch.complex64))
    assert "layer1.weight of [2] is torch.complex64" in refused(complicated)
    assert "view_as_real" in refused(complicated)
    elsewhere = Net()
    elsewhere.layer2 = nn.Linear(2, 2, device="meta")
    assert "layer2.weight of [2, 2]: " in refused(elsewhere)
    assert "meta" in refused(elsewhere)
    lazy = nn.Sequential(nn.LazyLinear(2))
    assert refused(lazy) == "0.weight has no shape yet: run a forward pass first, lazy modules take it from there"
    frozen_first = Net()
    frozen_first.layer1.weight.requires_grad_(False)
    frozen_first.layer2.bias = nn.Parameter(torch.zeros(2, dtype=torch.complex64))
    assert "layer2.bias" in refused(frozen_first)


@pytest.mark.parametrize("name", ["gloo", "isolated:gloo", "nccl", "rehearsal", "memory"])
def test_devices_that_this_release_does_not_know(name: str) -> None:
    """What it does know, and what to do."""
    framework = framework_by_name(name)
    with FakeTensorMode():
        told = {device: refused(torch.ones(3, device=device), framework=framework) for device in ("mps", "xpu", "meta")}
    if name == "memory":
        for device, text in told.items():
            assert f"on the CPU alone, this one is on {device}" in text and "framework='gloo'" in text
        return
    for device in ("mps", "xpu"):
        assert f"tensors on the CPU and on CUDA devices, this one is on {device}: average a copy, tensor.cpu()," in told[device]
    assert "a tensor on meta has no data: allocate it with to_empty(device=...)" in told["meta"]


def test_what_has_no_place_for_a_result_is_refused() -> None:
    for tensor in [
        torch.ones(1).expand(4),
        torch.ones(2, 1).expand(2, 3),
        torch.ones(6).as_strided((3, 2), (1, 1)),
    ]:
        assert refused([torch.ones(2), tensor]).startswith(
            f"tensor 1 of {list(tensor.shape)} has several elements at one place"
        )
    assert refused([torch.ones(2), torch.ones(2, dtype=torch.complex64).conj().imag]).startswith(
        "tensor 1 of [2] is a view that negates what is in memory"
    )
    for tensor in [torch.ones(4, 4).t(), torch.ones(4, 4)[::2, 1:3].t(), torch.ones(2, 1, 2).transpose(0, 2), torch.ones(3, 0)]:
        Layouts(MemoryFramework(), 1 << 20).layout("average", targets_of([tensor]), "SUM", mean=True)


@pytest.mark.parametrize(
    ("target", "text"),
    [
        ({"a": torch.ones(2)}, "pass list(it.values())"),
        (np.ones(3, ">f4"), "pass array.astype('float32')"),
        ([np.ones(3), np.ones(3)[::-1]], "array 1 runs backwards (a negative stride): pass array.copy()"),
        (np.ones(3, np.longdouble), "cannot be averaged"),
        (np.broadcast_to(np.ones(1), (3,)), "the array is read-only: pass a writable one"),
        ([np.float32(1.0)], "item 0 is a float32, which cannot be changed in place: pass np.array(value)"),
        ([1.0], "pass np.array(value)"),
        ([("w", torch.ones(1))], "pass model.parameters()"),
        (np.ones(3, np.int64), "only floating-point tensors can be averaged"),
        (np.ones(3, np.complex128), "view_as_real"),
        (nn.ReLU(), "no parameter of this ReLU"),
        (nn.Parameter(torch.ones(2), requires_grad=False), "every parameter is frozen; pass parameter.data"),
        (iter([]), "an iterator serves one call"),
        (None, "not NoneType"),
    ],
)
def test_misfits_are_refused_with_a_remedy(target: object, text: str) -> None:
    assert text in refused(target)


@by_all("pair")
def test_numpy_in_and_out(ft: FTLib, i: int) -> None:
    half, single = np.full((2, 3), i, np.float16), np.full(4, i, np.float32)
    wide = np.zeros((4, 6))
    wide[::2, 1::2] = i
    scalar = np.array(float(i))
    fortran = np.asfortranarray(np.arange(6.0).reshape(2, 3) + i)
    assert ft.wait_gradients_ready(params=[half, single, wide[::2, 1::2], scalar, fortran, np.zeros((0, 3))]) is Status.SUCCESS
    assert (half == 0.5).all()
    assert (single == 0.5).all()
    assert wide.sum() == 0.5 * 6
    assert (wide[::2, 1::2] == 0.5).all()
    assert scalar.item() == 0.5
    assert (fortran == np.arange(6.0).reshape(2, 3) + 0.5).all()


@by_all("pair")
def test_every_shape_and_kind_of_tensor(ft: FTLib, i: int) -> None:
    with torch.inference_mode():
        inferred = torch.full((3,), float(i))
        cut = torch.full((2_200_000,), float(i))  # more than a bucket
    leaf = torch.full((2,), float(i), requires_grad=True)
    branch = torch.full((2,), float(i), requires_grad=True) * 1.0
    twice = torch.full((3,), float(i))
    whole = torch.arange(8.0) + i
    channels = torch.full((2, 3, 4, 4), float(i)).to(memory_format=torch.channels_last)
    empty, scalar = torch.empty(0, 5), torch.tensor(float(i))
    created = nn.Parameter(torch.ones(4))
    everything = [created, inferred, cut, leaf, branch, twice, twice, whole, whole[2:4], channels, empty, scalar]
    assert ft.allreduce_average(everything) is Status.SUCCESS
    for tensor in (inferred, cut, leaf, branch, twice, channels, scalar):
        assert bool((tensor == 0.5).all())
    assert torch.equal(whole, torch.arange(8.0) + 0.5)
    assert leaf.grad is None
    assert leaf.requires_grad
    assert inferred.is_inference()
    assert created.grad is not None
    assert not created.grad.is_inference()
    assert channels.is_contiguous(memory_format=torch.channels_last)
    leaf.sum().backward()  # autograd minds nothing


@by_all("pair")
def test_the_program_may_be_in_any_mode(ft: FTLib, i: int) -> None:
    """Staging made in inference mode, or on another default device, would serve no later call."""
    shape = (5, 7)  # new to these workers
    for mode in (torch.inference_mode(), torch.device("meta"), torch.enable_grad(), torch.autocast("cpu", torch.bfloat16)):
        tensor = torch.full(shape, float(i), device="cpu")
        with mode:
            assert ft.allreduce_average(tensor) is Status.SUCCESS
        assert bool((tensor == 0.5).all())
    later = torch.full(shape, float(i), requires_grad=True)
    assert ft.allreduce_average(later)
    assert bool((later == 0.5).all())


@by_all("pair")
def test_generators_parameters_alone_and_tied_ones(ft: FTLib, i: int) -> None:
    model = with_grads(Net(), float(i))
    assert ft.allreduce_average(model.parameters())
    assert ft.allreduce_average(model.layer1.weight)
    assert {p.grad.unique().item() for p in model.parameters()} == {0.5}  # type: ignore[union-attr]
    tied = Net()
    tied.layer2.weight = tied.layer1.weight = nn.Parameter(torch.zeros(2, 2))
    assert len(targets_of(with_grads(tied, float(i))).sources) == 3
    assert ft.allreduce_average(tied)
    assert tied.layer1.weight.grad is not None
    assert bool((tied.layer1.weight.grad == 0.5).all())
    shared = nn.Parameter(torch.zeros(3))  # without a gradient, and passed twice
    assert ft.allreduce_average([shared, shared])
    assert torch.equal(shared.grad, torch.zeros(3))  # type: ignore[arg-type]


@by_all("pair")
def test_none_gradients_on_one_worker_get_the_average(ft: FTLib, i: int) -> None:
    model = Net()
    if i:
        with_grads(model, 4.0)
    model.layer1.bias.grad = None
    assert ft.allreduce_average(model, weight=i + 1)
    assert torch.equal(model.layer1.bias.grad, torch.zeros(2))  # type: ignore[arg-type]
    assert torch.allclose(model.layer2.weight.grad, torch.full((2, 2), 8.0 / 3))  # type: ignore[arg-type]


@by_all("pair")
def test_frozen_parameters_are_left_out_however_they_are_passed(ft: FTLib, i: int) -> None:
    model = with_grads(Net(), float(i))
    model.layer1.weight.requires_grad_(False)
    assert ft.allreduce_average(list(model.parameters()))
    assert ft.allreduce_average(model)
    assert bool((model.layer1.weight.grad == i).all())  # type: ignore[union-attr]
    assert bool((model.layer2.weight.grad == 0.5).all())  # type: ignore[union-attr]


def test_a_parameter_frozen_at_one_worker_is_named() -> None:
    def body(worker: Worker) -> None:
        model = with_grads(Net(), 1.0)
        assert worker.ft.allreduce_average(model)
        if worker.name == "w1":
            model.layer1.weight.requires_grad_(False)
        assert worker.ft.allreduce_average(model)
        assert worker.ft.size == 2

    with Job(3) as job:
        for i in range(3):
            job.start(f"w{i}", body)
        with pytest.raises(StepMismatch, match=r"^(?=.*frozen parameters here: layer1.weight\))(?=.*it disagrees at w1)"):
            job.workers["w1"].join()
        job.workers["w0"].join()
        job.workers["w2"].join()


@by_all("pair")
def test_parameters_may_change_between_steps_everywhere_alike(ft: FTLib, i: int) -> None:
    model = Net()
    before = ft.metrics()["redone"]
    for change in range(6):
        if change == 1:
            model.layer3 = nn.Linear(300, 100)
        elif change == 2:
            model.layer1.weight = nn.Parameter(torch.zeros(200, 200))
        elif change == 3:
            del model.layer2
        elif change == 4:
            model.to(torch.float64)
        elif change == 5:
            model.layer3.requires_grad_(False)
        for _ in range(2):
            with_grads(model, float(i))
            assert ft.allreduce_average(model) is Status.SUCCESS
            assert {p.grad.unique().item() for p in model.parameters() if p.requires_grad} == {0.5}  # type: ignore[union-attr]
    assert ft.metrics()["redone"] == before


def test_an_empty_list_is_a_barrier(pair: Crew) -> None:
    assert pair.all(lambda ft, _: ft.allreduce_average([])) == [Status.SUCCESS] * 2


@by_all("pair")
def test_broadcast_refuses_what_it_could_not_write(ft: FTLib, i: int) -> None:
    with pytest.raises(ConfigError, match="several elements at one place"):
        ft.broadcast(torch.ones(1).expand(3), 0)


@pytest.mark.gpu
def test_pinned_tensors(pair: Crew) -> None:
    tensors = [torch.full((1000,), float(i)).pin_memory() for i in range(2)]
    pair.all(lambda ft, i: ft.allreduce_average(tensors[i]))
    assert all(tensor.is_pinned() and bool((tensor == 0.5).all()) for tensor in tensors)


@pytest.mark.parametrize("weight", [-1, float("nan"), float("inf"), "x", [], 1e300, 1e13, 1e-320, 1e-13, torch.ones(2), 1j])
@by_all("pair")
def test_weights_that_are_none(ft: FTLib, i: int, weight: object) -> None:
    with pytest.raises(ConfigError, match="weight="):
        ft.allreduce_average(torch.ones(2), weight=weight)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "weight", [3, np.float32(3), np.int64(3), torch.tensor(3), torch.tensor(3.0), np.array(3.0), True, 1e12]
)
def test_weights_of_many_kinds(pair: Crew, weight: object) -> None:
    def body(ft: FTLib, i: int) -> float:
        tensor = torch.tensor([float(i)])
        assert ft.allreduce_average(tensor, weight=weight if i else 0)  # type: ignore[arg-type]
        return tensor.item()

    assert pair.all(body) == [1.0, 1.0]
