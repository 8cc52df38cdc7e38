"""Workers that train locally between averages: shared parameters with an outer optimizer, private ones with an inner one."""

from __future__ import annotations

import threading
import time
from typing import Any

import torch
import xxhash
from torch import nn

from ftlib import FTLib, FTLibError
from tests.harness.company import in_thread


def digest_of(*objects: Any) -> str:
    """Of all bits of their states."""
    found = xxhash.xxh3_128()
    for item in objects:
        for tensor in _tensors(item.state_dict()):
            found.update(tensor.detach().contiguous().numpy().tobytes())
    return found.hexdigest()


def _tensors(tree: Any) -> list[torch.Tensor]:
    if isinstance(tree, dict):
        return [tensor for value in tree.values() for tensor in _tensors(value)]
    if isinstance(tree, list):
        return [tensor for value in tree for tensor in _tensors(value)]
    return [tree] if isinstance(tree, torch.Tensor) else [torch.tensor(tree)] if isinstance(tree, (int, float)) else []


class Local:
    """Averages after every ``every`` inner steps. Its count of them is private, too."""

    def __init__(self, ft: FTLib, seed: int, *, every: int = 10, width: int = 16, pace: float = 0.005, **more: Any) -> None:
        self.ft = ft
        torch.manual_seed(seed)
        self.model = nn.Linear(width, width)
        self.inner = torch.optim.AdamW(self.model.parameters(), lr=1e-3)
        self.common = nn.ParameterList([nn.Parameter(p.detach().clone()) for p in self.model.parameters()])
        self.outer = torch.optim.SGD(self.common.parameters(), lr=0.7, momentum=0.9)
        self.every, self.pace = every, pace
        self.done = 0
        self.inner_steps = 0
        """In all."""
        self.over = threading.Event()
        self.error: BaseException | None = None
        self.privates: list[str] = []
        """Digests of the private state at each border, oldest first."""
        self.hashes: dict[int, str] = {}
        """Of the shared state after each average, by step."""
        self._random = torch.Generator().manual_seed(seed)
        private = more.pop("private", {"model": self.model, "inner": self.inner, "place": self})
        ft.register_state(extra=[self.common, self.outer], private=private, **more)
        self.began = self.private_digest()
        self.came = ft.catch_up()

    def state_dict(self) -> dict[str, int]:
        return {"done": self.done}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.done = state["done"]

    def private_digest(self) -> str:
        return digest_of(self.model, self.inner, self)

    def shared_digest(self) -> str:
        return digest_of(self.common, self.outer)

    def inner_step(self) -> None:
        self.inner.zero_grad()
        data = torch.randn(4, self.model.in_features, generator=self._random)
        self.model(data).square().mean().backward()
        self.privates.append(self.private_digest())
        self.inner.step()
        self.done += 1
        self.inner_steps += 1
        time.sleep(self.pace)

    def average(self) -> None:
        self.privates.append(self.private_digest())
        difference = [own.detach() - local.detach() for own, local in zip(self.common, self.model.parameters(), strict=True)]
        if self.ft.allreduce_average(difference):
            for own, gradient in zip(self.common, difference, strict=True):
                own.grad = gradient
            self.outer.step()
            with torch.no_grad():
                for local, own in zip(self.model.parameters(), self.common, strict=True):
                    local.copy_(own)
            self.hashes[self.ft.step] = self.shared_digest()
        self.done = 0

    def train(self) -> None:
        try:
            while not self.over.is_set():
                while self.done < self.every and not self.over.is_set():
                    self.inner_step()
                if not self.over.is_set():
                    self.average()
        except (FTLibError, SystemExit) as error:
            self.error = error

    def start(self) -> threading.Thread:
        return in_thread(self.train)


class Plain:
    """A loop of forward, backward, average and step, that begins with ``catch_up``. It notes its weights in each forward."""

    def __init__(self, ft: FTLib, seed: int, *, marks: bool = True, loss: bool = False, **registered: Any) -> None:
        """``marks``: call ``catch_up`` in each step, not only once before the loop. ``loss``: a call before each average."""
        self.ft = ft
        torch.manual_seed(seed)
        self.model = nn.Linear(8, 8)
        self.optimizer = torch.optim.Adam(self.model.parameters(), lr=1e-2)
        self.marks, self.loss = marks, loss
        self.forwards: list[tuple[int, str]] = []
        """Steps granted, and the digest, at each forward."""
        self.states: dict[int, str] = {}
        """Digests after each step, by step."""
        self.over = threading.Event()
        self.error: BaseException | None = None
        self._random = torch.Generator().manual_seed(seed)
        ft.register_state(model=self.model, optimizer=self.optimizer, **registered)
        self.came = ft.catch_up()

    def step(self) -> None:
        if self.marks:
            self.ft.catch_up()
        self.optimizer.zero_grad()
        self.forwards.append((self.ft.step, digest_of(self.model, self.optimizer)))
        data = torch.randn(4, 8, generator=self._random)
        loss = self.model(data).square().mean()
        loss.backward()
        if self.loss:
            self.ft.allreduce(loss.detach().clone())
        if self.ft.allreduce_average(self.model):
            self.optimizer.step()
            self.states[self.ft.step] = digest_of(self.model, self.optimizer)
        time.sleep(0.003)

    def train(self) -> None:
        try:
            while not self.over.is_set():
                self.step()
        except (FTLibError, SystemExit) as error:
            self.error = error

    def start(self) -> threading.Thread:
        return in_thread(self.train)
