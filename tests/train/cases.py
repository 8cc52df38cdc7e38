"""Small training programs, each the same with torch's ``DistributedDataParallel`` and with ours: what gradients do they get?

A case is given ``wrap(module, **arguments)`` (arguments that mean the same in both) and its rank; it returns the gradients of
its parameters after one or more steps. Only these programs run at torch's wrapper: the oracle. They are on the device that is
torch's default then, and get the same numbers on each.
"""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from tests.harness.recompute import recompute

Wrap = Callable[..., Any]
Gradients = list[torch.Tensor | None]
Case = Callable[[Wrap, int], Gradients]

CASES: dict[str, Case] = {}


def case(body: Case) -> Case:
    CASES[body.__name__] = body
    return body


def built(module: nn.Module, seed: int = 1) -> nn.Module:
    """``module`` with the same weights everywhere: workers may be threads, so the global generator is of no use."""
    drawn = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.copy_(torch.rand(parameter.shape, generator=drawn, dtype=torch.float64, device="cpu") - 0.5)
    return module


def data(rank: int, *shape: int, seed: int = 0) -> torch.Tensor:
    drawn = torch.randn(shape, generator=torch.Generator().manual_seed(100 * seed + rank), device="cpu")
    return drawn.to(torch.get_default_device())


def gradients(module: nn.Module) -> Gradients:
    return [None if parameter.grad is None else parameter.grad.detach().clone() for parameter in module.parameters()]


def perceptron(*widths: int) -> nn.Sequential:
    layers: list[nn.Module] = []
    for one, other in itertools.pairwise(widths):
        layers += [nn.Linear(one, other), nn.Tanh()]
    return nn.Sequential(*layers)


@case
def one_backward(wrap: Wrap, rank: int) -> Gradients:
    model = wrap(built(perceptron(4, 8, 8, 3)))
    model(data(rank, 5, 4)).square().mean().backward()
    return gradients(model)


@case
def three_steps(wrap: Wrap, rank: int) -> Gradients:
    """The second average takes over the order, the third follows it; buckets smaller than most tensors."""
    model = wrap(built(perceptron(40, 80, 80, 30)), bucket_mb=0.005)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(3):
        optimizer.zero_grad()
        model(data(rank, 5, 40, seed=step)).square().mean().backward()
        optimizer.step()
    return [*gradients(model), *(parameter.detach().clone() for parameter in model.parameters())]


@case
def two_losses(wrap: Wrap, rank: int) -> Gradients:
    """A backward each, as discriminators have."""
    model = wrap(built(perceptron(4, 8, 3)))
    for seed in range(2):
        model(data(rank, 5, 4, seed=seed)).square().mean().backward()
    return gradients(model)


class Branches(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.stem, self.left, self.right = nn.Linear(4, 6), nn.Linear(6, 2), nn.Linear(6, 2)

    def forward(self, inputs: torch.Tensor, way: str) -> torch.Tensor:
        found: torch.Tensor = getattr(self, way)(self.stem(inputs).tanh())
        return found


@case
def accumulated_over_different_parameters(wrap: Wrap, rank: int) -> Gradients:
    """What the last pass does not touch was accumulated before."""
    model = wrap(built(Branches()), find_unused_parameters=True)
    for _ in range(2):
        for parameter in model.parameters():
            parameter.grad = None
        with model.no_sync():
            model(data(rank, 3, 4), "left").sum().backward()
        model(data(rank, 3, 4, seed=1), "right").square().sum().backward()
    return gradients(model)


@case
def unused_by_all(wrap: Wrap, rank: int) -> Gradients:
    """Gradients stay what they are: None, and those that are there already."""
    model = wrap(built(Branches()), find_unused_parameters=True)
    first = data(rank, 3, 4)
    model(first, "left").sum().backward()
    early = gradients(model)
    for parameter in model.parameters():
        parameter.grad = None
    model(first, "right").sum().backward()
    return [*early, *gradients(model)]


@case
def unused_by_some(wrap: Wrap, rank: int) -> Gradients:
    model = wrap(built(Branches()), find_unused_parameters=True)
    model(data(rank, 3, 4), "left" if rank else "right").sum().backward()
    return gradients(model)


class Tied(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(5, 5), nn.Linear(5, 5)
        self.second.weight = self.first.weight

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        found: torch.Tensor = self.second(self.first(inputs).tanh())
        return found


@case
def tied(wrap: Wrap, rank: int) -> Gradients:
    model = wrap(built(Tied()))
    model(data(rank, 3, 5)).square().sum().backward()
    return gradients(model)


@case
def frozen(wrap: Wrap, rank: int) -> Gradients:
    module = built(perceptron(4, 8, 3))
    module[0].bias.requires_grad_(False)
    model = wrap(module)
    model(data(rank, 5, 4)).square().mean().backward()
    return gradients(model)


class Mixed(nn.Module):
    """Dtypes, an empty parameter, a scalar, and one that is not contiguous."""

    def __init__(self) -> None:
        super().__init__()
        self.wide = nn.Linear(4, 4, dtype=torch.float64)
        self.single = nn.Linear(4, 4)
        self.narrow = nn.Linear(4, 4, dtype=torch.bfloat16)
        self.empty = nn.Parameter(torch.zeros(0, 3))
        self.scale = nn.Parameter(torch.ones(()))
        self.turned = nn.Parameter(torch.zeros(3, 4).t())

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        found = self.single(self.wide(inputs.double()).float())
        return self.narrow(found.bfloat16()).float() @ self.turned * self.scale + self.empty.sum()


@case
def mixed(wrap: Wrap, rank: int) -> Gradients:
    model = wrap(built(Mixed()))
    for _ in range(2):
        for parameter in model.parameters():
            parameter.grad = None
        model(data(rank, 3, 4).round()).sum().backward()
    return gradients(model)


class Checkpointed(nn.Module):
    """The middle is computed again in backward; shared, its gradients come twice."""

    def __init__(self, *, reentrant: bool, shared: bool) -> None:
        super().__init__()
        self.first, self.middle, self.last = nn.Linear(4, 6), nn.Linear(6, 6), nn.Linear(6, 2)
        self.reentrant, self.shared = reentrant, shared

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        found = self.first(inputs)
        for _ in range(2 if self.shared else 1):
            found = recompute(lambda x: self.middle(x).tanh(), found, use_reentrant=self.reentrant)
        last: torch.Tensor = self.last(found)
        return last


def checkpointed(wrap: Wrap, rank: int, *, reentrant: bool, shared: bool, **arguments: Any) -> Gradients:
    model = wrap(built(Checkpointed(reentrant=reentrant, shared=shared)), bucket_mb=0.0001, **arguments)
    found: Gradients = []
    for step in range(4):
        for parameter in model.parameters():
            parameter.grad = None
        model(data(rank, 3, 4, seed=step)).square().sum().backward()
        found += gradients(model)
    return found


@case
def plain_checkpoint(wrap: Wrap, rank: int) -> Gradients:
    return checkpointed(wrap, rank, reentrant=False, shared=True)


@case
def reentrant_checkpoint(wrap: Wrap, rank: int) -> Gradients:
    return checkpointed(wrap, rank, reentrant=True, shared=False)


@case
def reentrant_checkpoints_that_share(wrap: Wrap, rank: int) -> Gradients:
    return checkpointed(wrap, rank, reentrant=True, shared=True, static_graph=True)


@case
def autocast(wrap: Wrap, rank: int) -> Gradients:
    model = wrap(built(perceptron(4, 8, 3)))
    with torch.autocast(torch.get_default_device().type, torch.bfloat16):
        loss = model(data(rank, 5, 4)).square().mean()
    loss.backward()
    return gradients(model)


@dataclass
class Found:
    logits: torch.Tensor
    more: dict[str, Any]


class Structured(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(4, 2), nn.Linear(4, 2)

    def forward(self, inputs: torch.Tensor, *, scale: float) -> Found:
        return Found(self.first(inputs) * scale, {"others": [self.second(inputs), "text", None]})


@case
def structured_outputs(wrap: Wrap, rank: int) -> Gradients:
    model = wrap(built(Structured()))
    found = model(data(rank, 5, 4), scale=2.0)
    (found.logits.sum() + found.more["others"][0].square().sum()).backward()
    return gradients(model)


@case
def gradient_penalty(wrap: Wrap, rank: int) -> Gradients:
    """``autograd.grad`` in the middle asks for no gradient of a parameter; the backward after it goes through its graph."""
    model = wrap(built(perceptron(4, 8, 1)))
    inputs = data(rank, 5, 4).requires_grad_()
    outputs = model(inputs)
    (slopes,) = torch.autograd.grad(outputs.sum(), inputs, create_graph=True)
    (outputs.square().mean() + (slopes.norm() - 1).square()).backward()
    return gradients(model)


@case
def normalized_convolution(wrap: Wrap, rank: int) -> Gradients:
    """Other strides than the default, buffers, and a pass without gradients in between."""
    module = built(nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Linear(16, 2)))
    model = wrap(module.to(memory_format=torch.channels_last), broadcast_buffers=True)
    for seed in range(2):
        outputs = model(data(rank, 2, 3, 4, 4, seed=seed))
        with torch.no_grad():
            model.eval()(data(rank, 1, 3, 4, 4))
            model.train()
        outputs.square().sum().backward()
    return gradients(model)


@case
def two_wrappers(wrap: Wrap, rank: int) -> Gradients:
    """As adversarial networks have them: what one learns from goes through the other."""
    generator, critic = wrap(built(perceptron(3, 5, 4))), wrap(built(perceptron(4, 6, 1), 2))
    found: Gradients = []
    for step in range(2):
        made = generator(data(rank, 4, 3, seed=step))
        (critic(made.detach()).mean() - critic(data(rank, 4, 4, seed=step)).mean()).backward()
        found += gradients(critic)
        for parameter in critic.parameters():
            parameter.grad = None
            parameter.requires_grad_(False)
        with critic.no_sync():
            critic(made).mean().backward()
        for parameter in critic.parameters():
            parameter.requires_grad_(True)
        found += gradients(generator)
    return found


@case
def one_model_behind_the_other(wrap: Wrap, rank: int) -> Gradients:
    """Two averages in one backward."""
    encoder, decoder = wrap(built(perceptron(3, 5, 4))), wrap(built(perceptron(4, 6, 1), 2))
    found: Gradients = []
    for step in range(4):
        for parameter in (*encoder.parameters(), *decoder.parameters()):
            parameter.grad = None
        decoder(encoder(data(rank, 4, 3, seed=step))).square().sum().backward()
        found += [*gradients(encoder), *gradients(decoder)]
    return found


def oracle(rank: int) -> dict[str, Gradients]:
    """What torch's wrapper gives; the default process group is that of all workers."""

    def wrap(module: nn.Module, bucket_mb: float = 25, broadcast_buffers: bool = False, **arguments: Any) -> nn.Module:
        return nn.parallel.DistributedDataParallel(
            module, bucket_cap_mb=bucket_mb, broadcast_buffers=broadcast_buffers, **arguments
        )

    return {name: body(wrap, rank) for name, body in CASES.items()}


def near(found: Iterable[torch.Tensor | None], wanted: Iterable[torch.Tensor | None]) -> None:
    """Equal within rounding."""
    for one, other in zip(found, wanted, strict=True):
        assert (one is None) == (other is None), (one, other)
        if one is not None and other is not None:
            torch.testing.assert_close(one, other)


def main() -> None:
    """Be one process of the oracle: its rank, the number of processes, the rendezvous, the file to write, the device."""
    import sys

    rank, size, meeting, path = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3], sys.argv[4]
    torch.set_num_threads(1)
    torch.set_default_device(sys.argv[5])
    torch.distributed.init_process_group("gloo", init_method=f"file://{meeting}", rank=rank, world_size=size)
    with contextlib.ExitStack() as stack:
        stack.callback(torch.distributed.destroy_process_group)
        torch.save(oracle(rank), path)


if __name__ == "__main__":
    main()
