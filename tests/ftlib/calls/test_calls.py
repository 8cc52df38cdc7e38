from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

from ftlib import ConfigError, Status
from tests.ftlib.crews.workers import Job, Worker, workers


def names(count: int) -> list[str]:
    return [f"w{i}" for i in range(count)]


@pytest.mark.parametrize("size", [1, 2, 3])
def test_average_is_weighted_and_alike(size: int) -> None:
    def body(worker: Worker) -> list[torch.Tensor]:
        i = int(worker.name[1:])
        out = []
        for step in range(5):
            tensors = [torch.full((3, 4), float(i + step)), torch.full((5,), float(i), dtype=torch.float64)]
            status = worker.ft.allreduce_average(tensors, weight=i + 1)
            assert status is (Status.NO_NEED if size == 1 else Status.SUCCESS)
            out += tensors
        assert worker.ft.step == 5
        return out

    with Job(size) as job:
        results = job.run(dict.fromkeys(names(size), body))
    total = sum(range(1, size + 1))
    expected = sum((i + 1) * i for i in range(size)) / total
    for tensors in results.values():
        assert torch.allclose(tensors[0], torch.full((3, 4), expected))
        assert torch.allclose(tensors[1], torch.full((5,), expected, dtype=torch.float64))
        assert all(torch.equal(a, b) for a, b in zip(tensors, results["w0"], strict=True))


def test_all_kinds_of_calls_and_targets() -> None:
    def body(worker: Worker) -> None:
        ft, i = worker.ft, worker.ft.rank
        assert (ft.size, ft.epoch, len(ft.member_list)) == (3, 1, 3)
        model = nn.Sequential(nn.Linear(2, 3), nn.Linear(3, 1))
        model[1].weight.requires_grad_(False)
        for parameter in model.parameters():
            if parameter.requires_grad and i != 1:
                parameter.grad = torch.full_like(parameter, float(i))
        assert ft.allreduce_average(model)
        for parameter in model.parameters():
            assert (
                parameter.grad is None if not parameter.requires_grad else torch.allclose(parameter.grad, torch.tensor(2 / 3))
            )
        array = np.full((4, 4), i, dtype=np.float32)
        assert ft.wait_gradients_ready(params=[array])
        assert np.allclose(array, 1.0)
        for op, expected in [("MEAN", 1.0), ("SUM", 3.0), ("MIN", 0.0), ("MAX", 2.0), ("PRODUCT", 0.0)]:
            tensor = torch.full((7,), float(i))
            assert ft.allreduce(tensor, op)
            assert torch.equal(tensor, torch.full((7,), expected)), op
        counts = torch.tensor([i, 10])
        assert ft.allreduce(counts, "SUM")
        assert counts.tolist() == [3, 30]
        for dtype in (torch.float32, torch.bool, torch.int64, torch.complex64, torch.bfloat16):
            value = torch.tensor([[0, 1, 1], [1, 0, 1]], dtype=dtype) if i == 2 else torch.zeros(2, 3, dtype=dtype)
            assert ft.broadcast(value, 2)
            assert torch.equal(value, torch.tensor([[0, 1, 1], [1, 0, 1]], dtype=dtype))
        signed = torch.tensor([-0.0]) if i == 0 else torch.ones(1)
        assert ft.broadcast(signed, 0)
        assert torch.signbit(signed).item()
        transposed = torch.arange(6.0).view(2, 3).t() * (i == 1)
        assert ft.broadcast(transposed, 1)
        assert torch.equal(transposed, torch.arange(6.0).view(2, 3).t())
        assert ft.broadcast(transposed, np.int64(1))
        single = (torch.arange(10.0) * (i == 1))[3::5][:1]
        assert ft.broadcast(single, 1)
        assert single.item() == 3.0
        values = torch.tensor([1.0 + 2.0j, 3.0 - 4.0j]) * (i == 1)
        assert ft.broadcast([values.conj(), values.conj().imag], 1)
        assert torch.equal(values, torch.tensor([1.0 + 2.0j, 3.0 - 4.0j])), "written through the views"
        assert ft.barrier()
        assert ft.allreduce_average([]) is Status.SUCCESS
        turned = nn.Parameter(torch.ones(1))
        turned.register_hook(lambda gradient: torch.complex(gradient, gradient * -i).conj().imag)
        turned.sum().backward()
        assert turned.grad is not None
        assert turned.grad.is_neg()
        assert ft.allreduce_average(turned)
        assert turned.grad.item() == 1.0
        zero = torch.tensor(float(i))
        assert ft.allreduce_average(zero)
        assert zero.item() == 1.0
        assert ft.allreduce_average(torch.full((2,), float("nan")), weight=0) is Status.FAIL
        assert ft.allreduce_average(nn.Parameter(torch.ones(2)), weight=1) is Status.SUCCESS
        assert ft.step == 6

    with Job(3) as job:
        job.run(dict.fromkeys(names(3), body))


@pytest.mark.parametrize("views", [True, False])
@workers(2)
def test_gradients_without_elements_are_there_at_all_members_or_at_none(worker: Worker, views: bool) -> None:
    """What an optimizer keeps of a parameter depends on it, and has to be equal everywhere."""
    ft, empty = worker.ft, nn.Parameter(torch.zeros(0, 3))
    model, optimizer = nn.ParameterList([torch.ones(3), empty]), torch.optim.SGD([empty], lr=0.1, momentum=0.5)
    ft.register_state(model=model, optimizer=optimizer)
    for step in range(4):
        model.zero_grad()
        if step % 2 == ft.rank:
            empty.grad = torch.zeros(0, 3)
        assert ft.allreduce_average(model, views=views)
        assert empty.grad is not None
        assert empty.grad.shape == (0, 3)
        optimizer.step()
        assert "momentum_buffer" in optimizer.state[empty]


def test_large_and_strided_tensors_are_cut_and_put_together() -> None:
    def body(worker: Worker) -> None:
        i = worker.ft.rank
        flat = torch.arange(100_000.0) + i
        strided = (torch.arange(60_000.0).view(200, 300) + i).t()
        mixed = torch.arange(50_000, dtype=torch.bfloat16) * 0 + i
        missing = nn.Parameter(torch.zeros(40_000))
        for _ in range(3):
            assert worker.ft.allreduce_average([flat, strided, mixed, missing])
        assert torch.equal(flat, torch.arange(100_000.0) + 0.5)
        assert torch.equal(strided, (torch.arange(60_000.0).view(200, 300) + 0.5).t())
        assert torch.equal(mixed, torch.full((50_000,), 0.5, dtype=torch.bfloat16))
        assert torch.equal(missing.grad, torch.zeros(40_000))

    with Job(2, bucket_mb=0.05) as job:
        job.run(dict.fromkeys(names(2), body))


@pytest.mark.filterwarnings("ignore:Sparse .* tensor support is in beta state", "ignore:.*quantize")
@workers(1)
def test_misuse_is_one_clear_error(worker: Worker) -> None:
    ft = worker.ft
    for call, text in [
        (lambda: ft.allreduce_average("x"), "expected a module"),
        (lambda: ft.allreduce_average([object()]), "found object"),
        (lambda: ft.allreduce_average(torch.ones(2, dtype=torch.int32)), "only floating-point"),
        (lambda: ft.allreduce_average(torch.ones(2).to_sparse()), "dense"),
        (lambda: ft.allreduce(torch.ones(2, dtype=torch.complex64).conj().imag), r"tensor 0 of \[2\] is a view that negates"),
        (lambda: ft.allreduce_average(torch.ones(2), weight=-1), "weight"),
        (lambda: ft.allreduce_average(torch.ones(2), weight=float("nan")), "weight"),
        (lambda: ft.allreduce(torch.ones(2), "AVG"), "choose one of"),
        (lambda: ft.allreduce_average(torch.ones(2), weight=10**400), "weight"),
        (lambda: ft.broadcast(torch.ones(2), 7), "no rank"),
        *(
            (lambda form=form: ft.broadcast(form(torch.ones(2, 2)), 0), "dense")
            for form in (torch.Tensor.to_sparse, torch.Tensor.to_sparse_csr)
        ),
        (lambda: ft.broadcast(torch.quantize_per_tensor(torch.ones(2), 0.1, 0, torch.quint8), 0), "dequantize"),
        (lambda: ft.broadcast(torch.ones(1).expand(3), 0), "several elements at one place"),
        *((lambda root=root: ft.broadcast(torch.ones(2), root), "must be an integer") for root in (None, True, 1.0, "0")),
        (lambda: ft.allreduce_average(torch.ones(2, device="meta")), "meta"),
        *((lambda where=where: ft.manual_join(where), "manual_join") for where in (None, 5, [("127.0.0.1", 1)], b"h:1")),
        (ft.register_state, "given nothing"),
        (lambda: ft.register_state(model=object()), "state_dict"),
    ]:
        with pytest.raises(ConfigError, match=text):
            call()
    assert ft.barrier()
