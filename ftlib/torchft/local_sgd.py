"""``LocalSGD`` and ``DiLoCo`` with torchft's arguments; they use the manager's methods alone."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from types import TracebackType
from typing import Any, Self

import torch
from torch import nn
from torch.distributed.tensor import DTensor
from torch.optim import Optimizer
from torch.utils.hooks import RemovableHandle

from ..errors import ConfigError
from .manager import Manager
from .replica.managed_work import Waits

__all__ = ["DiLoCo", "LocalSGD", "extract_local_tensor"]

_BUCKET_MB = 1024
"""The default of ``bucket_cap_mb``."""


def extract_local_tensor(t: torch.Tensor) -> torch.Tensor:
    """A copy of ``t``, without a gradient; of a DTensor, of its local part."""
    copy: torch.Tensor = (t.to_local() if isinstance(t, DTensor) else t).clone()
    return copy


def _local(tensor: torch.Tensor) -> torch.Tensor:
    """The tensor's memory in this process, without autograd."""
    detached = tensor.detach()
    return detached.to_local() if isinstance(detached, DTensor) else detached


class _Hooked:
    """A context in which each step of the inner optimizer is followed by ``_stepped``. The state is not read in the step."""

    def __init__(self, manager: Manager, inner: Optimizer, sync_every: int) -> None:
        if type(sync_every) is not int or sync_every < 1:
            raise ConfigError(f"sync_every={sync_every!r} must be a whole number of at least 1")
        self._manager = manager
        self._local_optimizer = inner
        self._sync_every = sync_every
        self._local_step = 0
        """Inner steps since the last sync."""
        self._hooks: list[RemovableHandle] = []

    def __enter__(self) -> Self:
        def before(*_: Any) -> None:
            self._manager.disallow_state_dict_read()

        def after(*_: Any) -> None:
            self._manager.allow_state_dict_read()
            self._local_step += 1
            self._stepped()

        inner = self._local_optimizer
        self._hooks = [inner.register_step_pre_hook(before), inner.register_step_post_hook(after)]
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        while self._hooks:
            self._hooks.pop().remove()

    def _stepped(self) -> None:
        """Sync, if it is time."""
        raise NotImplementedError


class LocalSGD(_Hooked):
    """Weights are averaged after every ``sync_every`` inner steps."""

    def __init__(self, manager: Manager, model: nn.Module, optimizer: Optimizer, sync_every: int) -> None:
        """``optimizer``: the inner one, whose steps are counted. ConfigError if ``sync_every`` is below 1."""
        super().__init__(manager, optimizer, sync_every)
        self._model = model

    def sync(self) -> None:
        """Average the weights now; they stay as they are if the step is not committed."""
        self._manager.start_quorum()
        parameters = list(self._model.parameters())
        averages = [extract_local_tensor(parameter.detach()) for parameter in parameters]
        for work in [self._manager.allreduce(average) for average in averages]:
            work.wait()
        if self._manager.should_commit():
            with torch.no_grad():
                for parameter, average in zip(parameters, averages, strict=True):
                    _local(parameter).copy_(average)
        self._local_step = 0

    def _stepped(self) -> None:
        if self._local_step >= self._sync_every:
            self.sync()


class _Fragment:
    """Parameters that are synced together: their global weights, and the outer optimizer that moves these."""

    def __init__(
        self,
        manager: Manager,
        number: int,
        module: nn.Module,
        outer: Optimizer,
        *,
        backup: torch.device,
        pinned: bool,
        bucket_bytes: int | None,
        quantized: bool,
        alpha: float,
    ) -> None:
        """``bucket_bytes``: of the tensors that are averaged at once; None: each parameter by itself."""
        self._manager = manager
        self._number = number
        self._module = module
        self._outer_optimizer = outer
        self._bucket_bytes = bucket_bytes
        self._quantized = quantized
        self._alpha = alpha
        self._works: list[Waits] = []
        self._grads: dict[str, torch.Tensor] = {}
        """Pseudo-gradients by parameter, between the begin of a sync and its end."""
        self.original_parameters: dict[str, torch.Tensor] = {}
        """The global weights, on the backup device."""
        pins = pinned and backup.type == "cpu" and torch.cuda.is_available()
        for name, parameter in self._named():
            kept = torch.empty_like(_local(parameter), device=backup)
            self.original_parameters[name] = kept.pin_memory() if pins else kept

    def register_state_dict_fn(self) -> None:
        """Let joiners have the global weights and the outer optimizer's state."""
        self._manager.register_state_dict_fn(f"StreamingDiLoCoFragment_{self._number}", self._load, self._state)

    def save_parameters(self) -> None:
        """The global weights become the model's."""
        with torch.no_grad():
            for name, parameter in self._named():
                self.original_parameters[name].copy_(_local(parameter))

    def restore_parameters(self) -> None:
        """The model's weights become the global ones."""
        with torch.no_grad():
            for name, parameter in self._named():
                _local(parameter).copy_(self.original_parameters[name])

    def prepare_sync(self) -> None:
        """Add the pseudo-gradients, global - local, to the manager's calls."""
        self._save_grads()
        self._average_grads()

    def perform_sync(self) -> bool:
        """End the sync that was prepared. If it is committed, the global weights move by the outer optimizer, and the model's
        are mixed of these and the local ones; otherwise the model returns to the global weights.
        """
        works, self._works = self._works, []
        for work in works:
            work.wait()
        local = {name: extract_local_tensor(parameter.detach()) for name, parameter in self._named()}
        self.restore_parameters()
        committed = bool(self._manager.should_commit())
        self._outer_optimizer.zero_grad()  # inner gradients of other fragments that it moves as well
        if committed:
            self._set_grads()
            self._outer_optimizer.step()
            self.save_parameters()
            with torch.no_grad():
                for name, parameter in self._named():
                    _local(parameter).lerp_(local[name], self._alpha)
        self._grads.clear()
        self._outer_optimizer.zero_grad()
        return committed

    # --- inside --------------------------------------------------------------------------------------------------------

    def _named(self) -> Iterator[tuple[str, nn.Parameter]]:
        return self._module.named_parameters()

    def _save_grads(self) -> None:
        with torch.no_grad():
            for name, parameter in self._named():
                weights = _local(parameter)
                self._grads[name] = self.original_parameters[name].to(weights.device) - weights

    def _average_grads(self) -> None:
        tensors = [self._grads[name] for name, _ in self._named()]
        if self._bucket_bytes is None:
            self._works += [self._manager.allreduce(tensor, should_quantize=self._quantized) for tensor in tensors]
            return
        for bucket in _buckets(tensors, self._bucket_bytes):
            flat = torch.cat([tensor.reshape(-1) for tensor in bucket])
            self._works.append(_Spread(self._manager.allreduce(flat, should_quantize=self._quantized), flat, bucket))

    def _set_grads(self) -> None:
        """The pseudo-gradients become the gradients that the outer optimizer steps with."""
        with torch.no_grad():
            for work in self._works:
                work.wait()
            for name, parameter in self._named():
                gradient = self._grads.pop(name)
                if isinstance(parameter, DTensor):
                    gradient = DTensor.from_local(
                        gradient,
                        parameter.device_mesh,
                        parameter.placements,
                        shape=parameter.shape,
                        stride=parameter.stride(),
                    )
                parameter.grad = gradient

    def _state(self) -> dict[str, Any]:
        return {
            "original_parameters": {name: weights.clone() for name, weights in self.original_parameters.items()},
            "outer_optimizer": self._outer_optimizer.state_dict(),
        }

    def _load(self, state: dict[str, Any]) -> None:
        for name, weights in self.original_parameters.items():
            weights.copy_(state["original_parameters"][name])
        self._outer_optimizer.load_state_dict(state["outer_optimizer"])


class _Spread:
    """The average of one bucket; after ``wait`` it is in the tensors that the bucket was made of."""

    def __init__(self, work: Waits, flat: torch.Tensor, tensors: Sequence[torch.Tensor]) -> None:
        self._work = work
        self._flat = flat
        self._tensors = tensors

    def wait(self) -> None:
        """See ``Waits``."""
        self._work.wait()
        pieces = torch.split(self._flat, [tensor.numel() for tensor in self._tensors])
        for tensor, piece in zip(self._tensors, pieces, strict=True):
            tensor.copy_(piece.view_as(tensor))


def _buckets(tensors: Sequence[torch.Tensor], nbytes: int) -> list[list[torch.Tensor]]:
    """Tensors of one kind in a row, in buckets of at most ``nbytes``; a larger tensor is a bucket of its own."""
    buckets: list[list[torch.Tensor]] = []
    kind, room = None, 0
    for tensor in tensors:
        size = tensor.numel() * tensor.element_size()
        if (tensor.dtype, tensor.device) != kind or size > room:
            buckets.append([])
            kind, room = (tensor.dtype, tensor.device), nbytes
        buckets[-1].append(tensor)
        room -= size
    return buckets


class DiLoCo(_Hooked):
    """Fragments in turns: after ``sync_every / len(model_fragments)`` inner steps one of them is synced by an outer optimizer.

    Every replica makes as many inner steps between two syncs as the others.
    """

    def __init__(
        self,
        manager: Manager,
        model_fragments: list[nn.Module],
        inner_optimizer: Optimizer,
        outer_optimizer: Optimizer | list[Optimizer],
        sync_every: int,
        backup_device: torch.device | None = None,
        pin_memory: bool = True,
        use_bucketization: bool = False,
        bucket_cap_mb: int | None = None,
        should_quantize: bool = False,
        fragment_sync_delay: int = 0,
        fragment_update_alpha: float = 0.0,
    ) -> None:
        """``outer_optimizer``: one, or one for each fragment. ``sync_every``: inner steps in which every fragment is synced
        once. ``backup_device``: where the global weights are kept (None: the CPU). ``use_bucketization``: average buckets of at
        most ``bucket_cap_mb`` MiB instead of single parameters. ``fragment_sync_delay``: inner steps between the begin of a
        sync and its end. ``fragment_update_alpha``: the share of the local weights that stays, 0 to 1.

        ConfigError (a ValueError) for what cannot work, and for a manager with ``use_async_quorum=True``.
        """
        count = len(model_fragments)
        if count < 1 or sync_every < count or sync_every % count:
            raise ConfigError(
                f"sync_every={sync_every} must be a multiple of the number of fragments, {count}: each is synced once in it"
            )
        super().__init__(manager, inner_optimizer, sync_every // count)
        if manager._use_async_quorum:  # noqa: SLF001 - torchft's name, which programs and mocks set
            raise ConfigError("DiLoCo needs Manager(use_async_quorum=False): its state is loaded between inner steps")
        if not 0 <= fragment_sync_delay < self._sync_every:
            raise ConfigError(
                f"fragment_sync_delay={fragment_sync_delay} must be 0 to {self._sync_every - 1}: a sync ends before the next "
                "one begins"
            )
        if not 0 <= fragment_update_alpha <= 1:
            raise ConfigError(f"fragment_update_alpha={fragment_update_alpha} must be 0 to 1")
        outers = outer_optimizer if isinstance(outer_optimizer, list) else [outer_optimizer] * count
        if len(outers) != count:
            raise ConfigError(f"outer_optimizer: {len(outers)} optimizers for {count} fragments: give one for each, or one")
        buckets = use_bucketization or os.environ.get("TORCHFT_USE_BUCKETIZATION") == "True"
        self._fragment_sync_delay = fragment_sync_delay
        self._begun: int | None = None
        """The fragment whose sync has begun."""
        self._fragments = [
            _Fragment(
                manager,
                number,
                module,
                outer,
                backup=backup_device or torch.device("cpu"),
                pinned=pin_memory,
                bucket_bytes=(bucket_cap_mb or _BUCKET_MB) * 2**20 if buckets else None,
                quantized=should_quantize,
                alpha=fragment_update_alpha,
            )
            for number, (module, outer) in enumerate(zip(model_fragments, outers, strict=True))
        ]
        for fragment in self._fragments:
            fragment.save_parameters()
            fragment.register_state_dict_fn()

    def _stepped(self) -> None:
        if self._local_step == self._sync_every - self._fragment_sync_delay:
            self._manager.start_quorum()
            self._begun = self._manager.current_step() % len(self._fragments)
            self._fragments[self._begun].prepare_sync()
        if self._local_step >= self._sync_every:
            begun, self._begun, self._local_step = self._begun, None, 0
            if begun is not None:
                self._fragments[begun].perform_sync()
