"""Lightning: ``FTCallback`` makes a ``lightning.pytorch.Trainer``'s steps those of the job (extra ``lightning``).

The trainer computes and applies; the callback averages between the two, before gradients are clipped, registers the state, and
makes the trainer's counters those of the job. ``FTStrategy`` lets rank 0 of the job do what one process alone shall do.
"""

from __future__ import annotations

import copy
from collections.abc import Iterable, Iterator
from typing import Any

import torch
from lightning.pytorch import Callback, LightningModule, Trainer
from lightning.pytorch.strategies import SingleDeviceStrategy
from lightning.pytorch.utilities import rank_zero_only
from torch.amp.grad_scaler import OptState

from .data.elastic import Elastic
from .errors import ConfigError
from .ftlib import FTLib
from .settings.config import VETO
from .status import Status
from .train.microbatches import Microbatches


class Batches:
    """A loader without a length, which is how many batches of an ``ElasticSampler`` there will be: members come and go."""

    def __init__(self, loader: Iterable[Any]) -> None:
        """``loader``: a ``DataLoader`` with an ``ElasticSampler`` as its ``batch_sampler``."""
        self._loader = loader

    def __iter__(self) -> Iterator[Any]:
        """The batches of one loop."""
        return iter(self._loader)


class FTStrategy(SingleDeviceStrategy):
    """One device a worker. What one process alone shall do (checkpoints, loggers, the progress bar) is rank 0's of the job."""

    def __init__(self, ft: FTLib, device: str | torch.device = "cpu", **more: Any) -> None:
        """``device``: this worker's. ``more``: as for ``SingleDeviceStrategy``."""
        super().__init__(device, **more)
        self._ft = ft

    @property
    def is_global_zero(self) -> bool:
        """True at rank 0 of the newest view."""
        return self._ft.rank == 0


class FTCallback(Callback):
    """Averages, registers the state, and follows the job's counters.

    Give it the sampler whose batches the trainer loops over, and the trainer ``Batches(loader)``.
    """

    def __init__(self, ft: FTLib, sampler: Elastic | None = None, *, extra: Any = None) -> None:
        """``extra``: what else belongs to the registered state; steps do not change it."""
        self._ft = ft
        self._sampler = sampler
        self._extra = [] if extra is None else list(extra) if isinstance(extra, (list, tuple)) else [extra]
        self._batches: Microbatches | None = None
        self._before: _Before | None = None
        """What the trainer changes in a step that was not granted, as it was before."""
        self._status: Status | None = None
        self._raised: BaseException | None = None
        """What a callback of the program's has raised at the end of the average."""

    # --- hooks ---------------------------------------------------------------------------------------------------------

    def on_fit_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Register model, optimizer, schedulers, scaler and sampler. ConfigError names what cannot be trained so."""
        optimizer, scaler = self._checked(trainer, pl_module), _scaler(trainer)
        self._batches = Microbatches(self._ft, list(pl_module.parameters()), self._sampler)
        schedulers = [config.scheduler for config in trainer.lr_scheduler_configs]
        extra = [*schedulers, *([] if scaler is None else [scaler]), *self._extra]

        def apply() -> None:
            self._apply(trainer, pl_module, optimizer)

        self._ft.register_state(model=pl_module, optimizer=optimizer, sampler=self._sampler, extra=extra or None, apply=apply)
        self._take_rank()

    def on_before_backward(self, trainer: Trainer, pl_module: LightningModule, loss: torch.Tensor) -> None:  # noqa: ARG002
        """A batch's gradients come next."""
        self._current.before()

    def on_after_backward(self, trainer: Trainer, pl_module: LightningModule) -> None:  # noqa: ARG002
        """A batch's gradients are there."""
        self._current.after()

    def on_before_optimizer_step(
        self,
        trainer: Trainer,
        pl_module: LightningModule,  # noqa: ARG002
        optimizer: torch.optim.Optimizer,
    ) -> None:
        """Average. If the status is falsy, gradients become None: nothing is clipped, and no optimizer steps."""
        try:
            self._current.average(trainer.accumulate_grad_batches)
        except BaseException as error:
            if self._current.status is None:
                raise
            self._raised = error  # the trainer would end before the step, which the others make
        self._status = status = self._current.status
        if (scaler := _scaler(trainer)) is not None:
            _looked_at(scaler, optimizer)
        self._before = None if status else _Before(trainer, optimizer)
        if status is Status.ABORT:
            trainer.should_stop = True
        self._take_rank()

    def on_train_batch_end(self, trainer: Trainer, pl_module: LightningModule, *rest: Any) -> None:  # noqa: ARG002
        """Make ``trainer.global_step`` the job's, and take back what was changed by a step that was not granted."""
        if self._status is None:
            return
        if self._before is not None:
            self._before.restore()
        self._before, self._status = None, None
        loop = trainer.fit_loop.epoch_loop
        total = loop.automatic_optimization.optim_progress.optimizer.step.total
        step = self._ft.step
        total.ready = total.completed = step
        loop._batches_that_stepped = max(0, step - 1)  # noqa: SLF001 - what loggers take for the step; it rises next
        raised, self._raised = self._raised, None
        if raised is not None:
            raise raised

    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:  # noqa: ARG002
        """Make ``trainer.current_epoch`` the job's: a worker that joined has begun in the middle."""
        if self._sampler is not None:
            trainer.fit_loop.epoch_progress.current.processed = self._sampler.epoch + 1

    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:  # noqa: ARG002
        """Rank 0 may be another worker's by now."""
        self._take_rank()

    # --- inside --------------------------------------------------------------------------------------------------------

    @property
    def _current(self) -> Microbatches:
        assert self._batches is not None, "on_fit_start was called"
        return self._batches

    def _take_rank(self) -> None:
        """Functions under ``rank_zero_only`` (messages, most loggers) run at rank 0 of the newest view."""
        rank_zero_only.rank = max(0, self._ft.rank)

    def _apply(self, trainer: Trainer, module: LightningModule, optimizer: torch.optim.Optimizer) -> None:
        """What the trainer does with an average, at a worker that applies it again."""
        scaler = _scaler(trainer)
        if scaler is not None:
            scaler.scale(torch.zeros((), device=module.device))  # it may not have seen a loss yet
            _looked_at(scaler, optimizer)
        module.configure_gradient_clipping(
            optimizer, gradient_clip_val=trainer.gradient_clip_val, gradient_clip_algorithm=trainer.gradient_clip_algorithm
        )
        if scaler is None:
            optimizer.step()
        else:
            scaler.step(optimizer)
            scaler.update()
        for scheduler in _with_steps(trainer):
            scheduler.step()

    def _checked(self, trainer: Trainer, module: LightningModule) -> torch.optim.Optimizer:
        """The only optimizer."""
        if not module.automatic_optimization:
            raise ConfigError("FTCallback: the module optimizes by hand: call ft.allreduce_average in its training_step")
        if len(trainer.optimizers) != 1:
            raise ConfigError(f"FTCallback: automatic optimization takes one optimizer, here are {len(trainer.optimizers)}")
        if trainer.world_size != 1:
            raise ConfigError(
                f"FTCallback: the trainer has {trainer.world_size} processes of its own: give it devices=1, and start the "
                "workers with ftlib run"
            )
        for config in trainer.lr_scheduler_configs:
            if config.interval == "step" and (config.frequency != 1 or config.reduce_on_plateau):
                raise ConfigError(
                    "FTCallback: a scheduler with interval=step steps with every step of the job: leave out its frequency, and "
                    "its monitor"
                )
        optimizer: torch.optim.Optimizer = trainer.optimizers[0]
        if _scaler(trainer) is None:
            return optimizer
        if self._ft.settings.nonfinite == VETO:
            raise ConfigError(
                "FTCallback: 16-mixed has a GradScaler, which has to see inf and nan: it needs nonfinite=pass at every worker "
                '(FTLib.init(nonfinite="pass") or FTLIB_NONFINITE)'
            )
        if getattr(optimizer, "_step_supports_amp_scaling", False):
            raise ConfigError("FTCallback: a fused optimizer unscales gradients by itself: give it fused=False")
        return optimizer


class _Before:
    """What schedulers and the scaler change in a step, besides parameters and the state of the optimizer, which have none."""

    def __init__(self, trainer: Trainer, optimizer: torch.optim.Optimizer) -> None:
        """Keep it as it is now."""
        changing = [*_with_steps(trainer), _scaler(trainer)]
        self._states = [(each, each.state_dict()) for each in changing if each is not None]
        self._groups = optimizer.param_groups
        others = [{name: value for name, value in group.items() if name != "params"} for group in self._groups]
        self._values = copy.deepcopy(others)  # a rate that is a tensor is written over

    def restore(self) -> None:
        """Make it what it was."""
        for each, state in self._states:
            each.load_state_dict(state)
        for group, values in zip(self._groups, self._values, strict=True):
            for name, value in values.items():
                if isinstance(value, torch.Tensor) and isinstance(group[name], torch.Tensor):
                    group[name].copy_(value)  # a captured step reads this one
                else:
                    group[name] = value


def _scaler(trainer: Trainer) -> torch.amp.GradScaler | None:
    """That of the trainer's precision, if it has one in use."""
    scaler = getattr(trainer.precision_plugin, "scaler", None)
    return scaler if isinstance(scaler, torch.amp.GradScaler) and scaler.is_enabled() else None


def _with_steps(trainer: Trainer) -> list[Any]:
    """The schedulers that step with every step of the optimizer."""
    return [config.scheduler for config in trainer.lr_scheduler_configs if config.interval == "step"]


def _looked_at(scaler: torch.amp.GradScaler, optimizer: torch.optim.Optimizer) -> None:
    """The trainer unscales before anybody averages. So the scaler has looked for inf and nan in what is here alone: look again.

    The averages are the same everywhere, and so are what all scalers find, and their next scales.
    """
    state = scaler._per_optimizer_states[id(optimizer)]  # noqa: SLF001 - there is no other way to have it look again
    if any(parameter.grad is not None for group in optimizer.param_groups for parameter in group["params"]):
        scaler._check_inf_per_device(optimizer)  # noqa: SLF001
    else:  # nothing was averaged: nothing was found
        found = torch.zeros((), device=optimizer.param_groups[0]["params"][0].device)
        state["found_inf_per_device"] = {found.device: found}
    state["stage"] = OptState.UNSCALED
