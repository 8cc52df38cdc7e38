"""accelerate: ``FTAccelerator`` is an ``accelerate.Accelerator`` whose backward averages (extra ``hf``).

What is prepared is registered: the model, its optimizer, schedulers, a gradient scaler, and an ``ElasticSampler`` found in a
loader. Each worker is a job of its own to accelerate; ftlib makes one of them.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from accelerate import Accelerator
from accelerate.optimizer import AcceleratedOptimizer
from accelerate.scheduler import AcceleratedScheduler
from accelerate.utils import DistributedType, is_lomo_available, send_to_device
from torch.utils.data import DataLoader

from .data.elastic import Elastic
from .errors import ConfigError
from .ftlib import FTLib
from .settings.config import VETO
from .state.replay import replaying
from .status import Status
from .train.microbatches import Microbatches

_TORCHRUN = ("LOCAL_RANK", "RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
"""Variables by which accelerate would take the workers for a job of torchrun's."""


@contextmanager
def alone() -> Iterator[None]:
    """Within it accelerate finds no launcher: ``ftlib run`` sets torchrun's variables, too, for programs that read them."""
    hidden = {name: os.environ.pop(name) for name in _TORCHRUN if name in os.environ}
    try:
        yield
    finally:
        os.environ.update(hidden)


class _Loader:
    """A loader with an ``ElasticSampler``, which deals to the workers by itself: accelerate has nothing to share out."""

    def __init__(
        self, loader: DataLoader[Any], device: torch.device, *, move: bool, begin: Callable[[], None] = lambda: None
    ) -> None:
        """``begin``: called before each loop."""
        self._loader = loader
        self._begin = begin
        self._device = device
        self._move = move

    def __iter__(self) -> Iterator[Any]:
        self._begin()
        for batch in self._loader:
            yield send_to_device(batch, self._device) if self._move else batch

    def __len__(self) -> int:
        return len(self._loader)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        return getattr(self._loader, name)


class _Steps(AcceleratedOptimizer):
    """It says of a step that was not granted that it was skipped, as for an overflow: schedulers skip theirs."""

    def __init__(self, accelerator: FTAccelerator, optimizer: torch.optim.Optimizer, **more: Any) -> None:
        super().__init__(optimizer, **more)
        self._accelerator = accelerator
        alone = self.accelerator_state.distributed_type == DistributedType.NO
        known = isinstance(optimizer, torch.optim.Optimizer) and type(optimizer).zero_grad is torch.optim.Optimizer.zero_grad
        self._plain = alone and known and self.scaler is None and not is_lomo_available()
        """Whether ``step`` and ``zero_grad`` are the optimizer's and nothing else. accelerate finds that out anew in each step:
        it looks twice for a package that is not there, in all of ``sys.path``, and reads a signature.
        """

    def step(self, closure: Any = None) -> None:
        """Step, if the average may be applied."""
        synced = self.gradient_state.sync_gradients
        if self._plain:
            if synced and (replaying() or self._accelerator.granted):
                self.optimizer.step(closure)
        elif replaying() or self._accelerator.granted or not synced:
            super().step(closure)

    def look_again(self) -> None:
        """New gradients come: the scaler forgets that it has unscaled others, as it does before a step that is not granted."""
        if (scaler := self._in_use()) is not None:
            scaler._per_optimizer_states.pop(id(self.optimizer), None)  # noqa: SLF001 - update() would change its scale

    def begin_scale(self, device: torch.device) -> None:
        """The scaler may be needed before the first loss."""
        if (scaler := self._in_use()) is not None:
            scaler.scale(torch.zeros((), device=device))

    def _in_use(self) -> torch.amp.GradScaler | None:
        return self.scaler if isinstance(self.scaler, torch.amp.GradScaler) and self.scaler.is_enabled() else None

    def zero_grad(self, set_to_none: bool | None = None) -> None:
        """Drop the gradients, if they were of the last batch of a step."""
        if not self._plain:
            super().zero_grad(set_to_none)
        elif self.gradient_state.sync_gradients:
            self.optimizer.zero_grad(True if set_to_none is None else set_to_none)

    @property
    def step_was_skipped(self) -> bool:
        """True if the last step changed nothing."""
        return bool(super().step_was_skipped) or not (replaying() or self._accelerator.granted)


class FTAccelerator(Accelerator):
    """An ``Accelerator`` for one worker of a job: ``backward`` averages while ``sync_gradients``."""

    def __init__(
        self, ft: FTLib, *, clip_norm: float | None = None, clip_value: float | None = None, extra: Any = None, **more: Any
    ) -> None:
        """``clip_norm``: what the loop gives to ``clip_grad_norm_``; a worker that joins clips by it what it missed.

        ``clip_value``: likewise for ``clip_grad_value_``; give one of them. ``extra``: what else belongs to the registered
        state; steps do not change it. ``more``: as for ``Accelerator``.
        """
        if clip_norm is not None and clip_value is not None:
            raise ConfigError("FTAccelerator: clip_norm and clip_value are given: clip by one of them, as their order counts")
        self._ft = ft
        with alone():
            super().__init__(**more)
        if self.num_processes != 1:
            raise ConfigError(
                f"FTAccelerator: accelerate has made a job of {self.num_processes} processes: make it first, and start "
                "workers with ftlib run"
            )
        if self.scaler is not None and ft.settings.nonfinite == VETO:
            raise ConfigError(
                "FTAccelerator: mixed_precision=fp16 has a GradScaler, which needs nonfinite=pass at every worker "
                '(FTLib.init(nonfinite="pass") or FTLIB_NONFINITE): it has to see inf and nan'
            )
        self._clip_norm = clip_norm
        self._clip_value = clip_value
        self._extra = [] if extra is None else list(extra) if isinstance(extra, (list, tuple)) else [extra]
        self._sampler: Elastic | None = None
        self._model: torch.nn.Module | None = None
        self._steps: _Steps | None = None
        self._batches: Microbatches | None = None
        self._hook: Any = None
        """Registers, before the model is first used."""
        self._status: Status | None = None

    @property
    def granted(self) -> bool:
        """Whether the last average may be applied: ``optimizer.step()`` does nothing otherwise."""
        return bool(self._status)

    @property
    def status(self) -> Status | None:
        """What became of the last average; None before the first, and where it has ended with an error."""
        return self._status

    @property
    def is_main_process(self) -> bool:
        """True at rank 0 of the newest view."""
        return self._ft.rank == 0

    @property
    def is_local_main_process(self) -> bool:
        """As ``is_main_process``: which workers share a host may change."""
        return self.is_main_process

    # --- what is prepared ----------------------------------------------------------------------------------------------

    def prepare_model(self, model: torch.nn.Module, *args: Any, **more: Any) -> Any:
        """See ``Accelerator``. ConfigError if there are several: one backward pass is one average."""
        prepared = super().prepare_model(model, *args, **more)
        if more.get("evaluation_mode"):
            return prepared
        if self._model is not None and self._model is not prepared:
            raise ConfigError("FTAccelerator: two models were prepared: wrap them in one module, or call ft.allreduce_average")
        if self._model is None:
            self._model = prepared
            self._hook = prepared.register_forward_pre_hook(lambda *_: self.register_once())
        return prepared

    def prepare_optimizer(self, optimizer: torch.optim.Optimizer, device_placement: bool | None = None) -> Any:
        """See ``Accelerator``. ConfigError if there are several."""
        if isinstance(optimizer, _Steps):
            return optimizer
        if self._steps is not None:
            raise ConfigError("FTAccelerator: two optimizers were prepared: give one of them the parameters of both, in groups")
        place = self.device_placement if device_placement is None else device_placement
        self._steps = _Steps(self, optimizer, device_placement=place, scaler=self.scaler)
        self._optimizers.append(self._steps)
        return self._steps

    def prepare_data_loader(self, data_loader: DataLoader[Any], *args: Any, **more: Any) -> Any:
        """See ``Accelerator``. A loader with an ``ElasticSampler`` stays as it is, but for the device of its batches.

        ConfigError if there are several such samplers: a step's samples are of one.
        """
        sampler = getattr(data_loader, "batch_sampler", None)
        if not isinstance(sampler, Elastic):
            return super().prepare_data_loader(data_loader, *args, **more)
        if self._sampler is not None and self._sampler is not sampler:
            raise ConfigError(
                "FTAccelerator: loaders with two elastic samplers were prepared: train on one of a ConcatDataset of both data "
                "sets, and evaluate with a loader that has none"
            )
        self._sampler = sampler
        if isinstance(data_loader, _Loader):
            return data_loader
        return _Loader(data_loader, self.device, move=self.device_placement, begin=self._begin_loop)

    def register_once(self) -> None:
        """Register all that was prepared: before the first batch of an ``ElasticSampler``, or the first forward pass.

        ConfigError if no model with its optimizer was prepared.
        """
        if self._batches is not None:
            return
        if self._model is None or self._steps is None:
            raise ConfigError("FTAccelerator: a loop began before model and optimizer were prepared: call prepare first")
        self._hook.remove()
        self._batches = Microbatches(self._ft, list(self._model.parameters()), self._sampler)
        schedulers = [each.scheduler if isinstance(each, AcceleratedScheduler) else each for each in self.schedules]
        extra = [*schedulers, *([] if self.scaler is None else [self.scaler]), *self._extra]
        self._ft.register_state(
            model=self._model, optimizer=self._steps.optimizer, sampler=self._sampler, extra=extra or None, apply=self._apply
        )

    @property
    def schedules(self) -> list[Any]:
        """The schedulers that step with every step of the optimizer."""
        return list(self._schedulers)

    # --- the loop ------------------------------------------------------------------------------------------------------

    def backward(self, loss: torch.Tensor, **more: Any) -> None:
        """Compute gradients; while ``sync_gradients``, average those of all batches since the last step.

        If the status is falsy gradients become None, and ``optimizer.step()`` and ``scheduler.step()`` do nothing. Where a
        callback of the program's raises, the average is there, and its ``status``: the others make the step.
        """
        batches = self._batches
        if batches is None:
            raise ConfigError("FTAccelerator: this loss is not of the prepared model: compute it by what prepare returned")
        batches.before()
        super().backward(loss, **more)
        batches.after()
        if self.sync_gradients:
            self._average(batches)

    @property
    def batches_of_a_step(self) -> int:
        """How many batches a step has."""
        return int(self.gradient_accumulation_steps)

    def clip_grad_norm_(self, parameters: Any, max_norm: float, norm_type: float = 2) -> Any:
        """See ``Accelerator``. ConfigError if it is not the norm that was announced: a worker that joins would not know it."""
        if not math.isinf(max_norm) and (max_norm != self._clip_norm or norm_type != 2):  # inf: only the norm is wanted
            raise ConfigError(
                f"FTAccelerator: the loop clips by {max_norm:g}: give FTAccelerator clip_norm={max_norm:g} (order 2), and a "
                "worker that joins clips what it missed"
            )
        return super().clip_grad_norm_(parameters, max_norm, norm_type=norm_type)

    def clip_grad_value_(self, parameters: Any, clip_value: float) -> None:
        """See ``Accelerator``. ConfigError if it is not the value that was announced, as for ``clip_grad_norm_``."""
        if not math.isinf(clip_value) and clip_value != self._clip_value:
            raise ConfigError(
                f"FTAccelerator: the loop clips values by {clip_value:g}: give FTAccelerator clip_value={clip_value:g}, and a "
                "worker that joins clips what it missed"
            )
        super().clip_grad_value_(parameters, clip_value)

    # --- inside --------------------------------------------------------------------------------------------------------

    def _begin_loop(self) -> None:
        """A loop over an ``ElasticSampler`` begins: what the one before has left over is no part of a step."""
        self.register_once()
        assert self._batches is not None, "it was just made"
        self._batches.drop()
        self.step = 0  # as accelerate sets it at the end of a loader that it has made itself

    def _average(self, batches: Microbatches) -> None:
        """Average the gradients of ``batches``, which are all of a step."""
        assert self._steps is not None, "it was registered"
        self._steps.look_again()
        try:
            batches.average(self.batches_of_a_step)
        finally:
            self._status = batches.status

    def _apply(self) -> None:
        """What the loop does with an average, at a worker that applies it again."""
        assert self._model is not None and self._steps is not None, "they are registered"
        self._steps.look_again()
        self._steps.begin_scale(self.device)
        if self._clip_norm is not None:
            super().clip_grad_norm_(self._model.parameters(), self._clip_norm)
        if self._clip_value is not None:
            super().clip_grad_value_(self._model.parameters(), self._clip_value)
        self._steps.step()
        for scheduler in self.schedules:
            scheduler.step()
