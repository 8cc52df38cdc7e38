"""Programs may have a default device and dtype of their own: what ftlib makes for itself is where, and what, it says.

Here the device is ``meta``, whose tensors have no memory: whatever is made there by mistake cannot be used.
"""

from __future__ import annotations

import ast
import functools
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.utils._device import _device_constructors

from ftlib import DiLoCo, DistributedDataParallel, ElasticSampler, FTLib, Optimizer, PowerSGD
from tests.ftlib.crews.crew import Crew
from tests.harness.cluster import Cluster
from tests.harness.nursery import Nursery

ROOT = Path(__file__).resolve().parents[1]
MAKERS = {f"torch.{maker.__name__}" for maker in _device_constructors()}
"""Functions of torch's that make tensors on the default device, of the default dtype."""


def made(path: Path) -> Iterator[ast.Call]:
    """Calls that make a tensor."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Call) and ast.unparse(node.func) in MAKERS:
            yield node


def test_every_tensor_that_is_made_has_its_device_named() -> None:
    found, unnamed = 0, []
    for path in sorted((ROOT / "ftlib").rglob("*.py")):
        for node in made(path):
            found += 1
            if "device" not in {keyword.arg for keyword in node.keywords}:
                unnamed.append(f"{path.relative_to(ROOT)}:{node.lineno}: {ast.unparse(node)}")
    assert found > 30
    assert not unnamed, unnamed


@pytest.fixture
def crew() -> Iterator[Crew]:
    with Crew(2) as crew:
        yield crew


def model_of(seed: int) -> nn.Sequential:
    torch.manual_seed(seed)
    with torch.device("cpu"):
        return nn.Sequential(nn.Linear(7, 43), nn.Tanh(), nn.Linear(43, 3)).float()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
@pytest.mark.parametrize("compression", [None, "bf16", "int8", "fp8", PowerSGD(rank=2)], ids=str)
def test_wrappers(crew: Crew, compression: str | PowerSGD | None, dtype: torch.dtype, request: pytest.FixtureRequest) -> None:
    """What they make of the same gradients is what they make of them without a default device, and with another dtype."""
    models = [[model_of(0) for _ in range(2)] for _ in range(2)]
    data = torch.randn(5, 2, 8, 7)

    def train(ft: FTLib, i: int, elsewhere: bool) -> None:
        with torch.device("meta" if elsewhere else "cpu"):
            model = models[elsewhere][i]
            inner = torch.optim.Adam(model.parameters(), lr=0.01)
            wrapped = DistributedDataParallel(ft, model, find_unused_parameters=True, compression=compression)
            optimizer = Optimizer(ft, inner, clip_norm=0.1)
            for inputs in data:
                optimizer.zero_grad()
                wrapped(inputs[i]).square().mean().backward()
                assert optimizer.step()

    request.addfinalizer(lambda: torch.set_default_dtype(torch.float32))
    for elsewhere in (False, True):
        crew.all(functools.partial(train, elsewhere=elsewhere))
        torch.set_default_dtype(dtype)
    for usual, here in zip(models[0][0].parameters(), models[1][0].parameters(), strict=True):
        assert torch.equal(usual, here)


def test_samples_units_and_other_calls(crew: Crew) -> None:
    def body(ft: FTLib, i: int) -> list[int]:
        with torch.device("meta"):
            sampler = ElasticSampler(range(24), batch_size=3, seed=1)
            ft.register_state(state_dict=dict, load_state_dict=lambda _: None, sampler=sampler)
            taken = []
            for _ in sampler.epochs(2):
                for batch in sampler:
                    taken += batch
                    tensor = torch.full((3,), float(i), device="cpu")

                    def step(tensor: torch.Tensor = tensor) -> bool:
                        return bool(ft.allreduce_average(tensor, wait=False).wait())

                    assert ft.execute(step)
                    assert tensor.tolist() == [0.5] * 3
            assert ft.barrier()
            total = torch.full((2,), 1.0, device="cpu")
            assert ft.allreduce(total, "SUM") and ft.broadcast(total, 0)
            assert ft.group is not None and ft.group.barrier().wait(10.0)
            return [*taken, int(total[0])]

    found = crew.all(body)
    assert [taken[-1] for taken in found] == [2, 2]
    assert sorted(index for taken in found for index in taken[:-1]) == sorted([*range(24)] * 2)


def test_local_steps(crew: Crew) -> None:
    def body(ft: FTLib, i: int) -> list[float]:
        model = model_of(0)
        with torch.device("meta"):
            inner = torch.optim.SGD(model.parameters(), lr=0.1)
            outer = functools.partial(torch.optim.SGD, lr=0.7, momentum=0.9)
            local = DiLoCo(ft, model, inner=inner, outer=outer, sync_every=2)
            ft.register_state(model=local)
            with local:
                for step in range(6):
                    inner.zero_grad()
                    model(torch.full((2, 7), float(i + step), device="cpu")).sum().backward()
                    inner.step()
        return [float(parameter.detach().sum()) for parameter in model.parameters()]

    first, second = crew.all(body)
    assert first == second


@pytest.mark.process
def test_who_joins_and_who_resumes(nursery: Nursery, tmp_path: Path) -> None:
    """State is copied from worker to worker, and written, in processes whose default device is another one all the time."""
    place = tmp_path / "checkpoints"
    task = {"sizes": [20_000, 300], "pause": 0.01, "given": {"checkpoints": str(place), "default_device": "meta"}}
    with Cluster(tmp_path, nursery, program="tests.gpu.training:save", **task) as cluster:
        cluster.found(2)
        cluster.training(2)
        joiner = cluster.join()
        cluster.until("it counts", lambda: joiner.last.get("who", 0) >> joiner.task.slot & 1)
        cluster.training(3)
        workers = list(cluster.workers)
        for worker in workers:
            worker.kill()
        cluster.until("all are dead", lambda: all(worker.code is not None for worker in workers))
        again = cluster.found(2, settings={"resume": str(place)})
        cluster.until("two go on", lambda: all(len(worker.calls) > 10 for worker in again))
        digests = {call["step"]: call["hash"] for worker in workers for call in worker.calls}
        begun = [next(event for event in worker.events if event.get("event") == "begins") for worker in again]
        assert all(event["at"] and event["digest"] == digests[event["at"]] for event in begun)
        assert not list(cluster.faults())
