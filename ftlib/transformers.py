"""transformers: ``FTTrainer`` is a ``transformers.Trainer`` for one worker of a job (extra ``hf``).

It stands on ``FTAccelerator``, deals its data by an ``ElasticSampler`` (or an ``ElasticStream``), and makes the trainer's step
the job's.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import torch
from torch.utils.data import DataLoader
from transformers import Trainer, TrainerCallback, TrainerControl, TrainerState, TrainingArguments

from .accelerate import FTAccelerator, alone
from .data.elastic_sampler import ElasticSampler
from .data.streams.stream import ElasticStream
from .errors import ConfigError
from .ftlib import FTLib
from .status import Status
from .train.microbatches import Microbatches


class FTTrainingArguments(TrainingArguments):
    """``TrainingArguments`` of one worker of a job, which is no process of torchrun's."""

    def __post_init__(self) -> None:
        """See ``TrainingArguments``."""
        with alone():
            super().__post_init__()


class _Accelerator(FTAccelerator):
    """The trainer counts the batches of a step by itself, and steps a scheduler that accelerate does not know."""

    def __init__(self, ft: FTLib, batches: int, scheduler: Callable[[], Any], **more: Any) -> None:
        self._of_a_step = batches
        self._scheduler = scheduler
        self._raised: BaseException | None = None
        super().__init__(ft, **more)

    @property
    def batches_of_a_step(self) -> int:
        """See ``FTAccelerator``."""
        return self._of_a_step

    def _average(self, batches: Microbatches) -> None:
        """See ``FTAccelerator``. What a callback of the program's raises at its end waits for ``stepped``."""
        try:
            super()._average(batches)
        except BaseException as error:
            if self.status is None:
                raise
            self._raised = error  # the trainer's loop would end before the step, which the others make

    def stepped(self) -> None:
        """The trainer has made the step, if it was granted: raise what a callback of the program's has raised."""
        raised, self._raised = self._raised, None
        if raised is not None:
            raise raised

    @property
    def schedules(self) -> list[Any]:
        """See ``FTAccelerator``."""
        scheduler = self._scheduler()
        follows = isinstance(scheduler, torch.optim.lr_scheduler.ReduceLROnPlateau) or not hasattr(scheduler, "step")
        return [] if follows else [scheduler]


class _Unsized:
    """A loader without a length, which depends on who is in the job. The trainer then counts its steps alone."""

    def __init__(self, loader: Iterable[Any]) -> None:
        self._loader = loader

    def __iter__(self) -> Iterator[Any]:
        return iter(self._loader)


class _Follow(TrainerCallback):
    """Makes the trainer's step the job's, and its first process rank 0."""

    def __init__(self, ft: FTLib, stepped: Callable[[], None]) -> None:
        """``stepped``: called at the end of each step."""
        self._ft = ft
        self._stepped = stepped

    def on_step_begin(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any) -> None:  # noqa: ARG002
        """What one process alone shall do is rank 0's of the newest view."""
        state.is_world_process_zero = state.is_local_process_zero = self._ft.rank == 0

    def on_optimizer_step(
        self,
        args: TrainingArguments,  # noqa: ARG002
        state: TrainerState,
        control: TrainerControl,  # noqa: ARG002
        **_: Any,
    ) -> None:
        """A step that was not granted does not count, and a worker that joined is where the job is. The trainer counts next."""
        state.global_step = self._ft.step - 1

    def on_step_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any) -> None:  # noqa: ARG002
        """The trainer has counted."""
        self._stepped()


class FTTrainer(Trainer):
    """A ``Trainer`` whose backward pass averages. ``max_steps`` says how long the job is: at all workers the same."""

    def __init__(self, ft: FTLib, *args: Any, extra: Any = None, **more: Any) -> None:
        """``extra``: what else belongs to the registered state. The rest: as for ``Trainer``; ``train_dataset`` may be an
        ``ElasticStream``, too.

        ConfigError if ``args.max_steps`` is missing: how many steps an epoch has depends on how many workers there are.
        """
        self._ft = ft
        self._extra = extra
        self._built: dict[str, Any] = {}
        super().__init__(*args, **more)
        if self.args.max_steps <= 0:
            raise ConfigError(
                "FTTrainer: give the arguments max_steps: an epoch has as many steps as the workers that are there make it"
            )
        self.add_callback(_Follow(ft, self._stepped))

    def create_accelerator_and_postprocess(self) -> None:
        """See ``Trainer``: the accelerator averages."""
        super().create_accelerator_and_postprocess()
        args = self.args
        clip = args.max_grad_norm if args.max_grad_norm and args.max_grad_norm > 0 else None
        steps = args.gradient_accumulation_steps
        self.accelerator = _Accelerator(
            self._ft, steps, lambda: self.lr_scheduler, clip_norm=clip, extra=self._extra, **self._built
        )
        self.gather_function = self.accelerator.gather_for_metrics
        if "use_gather_object" in inspect.signature(self.gather_function).parameters:
            self.gather_function = functools.partial(self.gather_function, use_gather_object=args.eval_use_gather_object)

    def _stepped(self) -> None:
        self.accelerator.stepped()  # the trainer may have made another one since

    def _build_accelerator_args(self, **more: Any) -> dict[str, Any]:
        built: dict[str, Any] = super()._build_accelerator_args(**more)
        self._built = dict(built)
        return built

    def get_train_dataloader(self) -> Any:
        """A loader over ``train_dataset``, of which every sample is used once an epoch, whoever comes and goes.

        An ``ElasticStream`` has its own ``batch_size``, ``seed`` and ``shuffle``: those of the arguments do not count.
        """
        dataset, args = self.train_dataset, self.args
        sampler: Any
        if isinstance(dataset, ElasticStream):
            dataset, sampler = dataset.records, dataset
        elif dataset is None or not hasattr(dataset, "__len__"):
            return _Unsized(super().get_train_dataloader())
        else:
            seed = args.seed if args.data_seed is None else args.data_seed
            sampler = ElasticSampler(dataset, batch_size=self._train_batch_size, seed=seed, drop_last=args.dataloader_drop_last)
        workers = args.dataloader_num_workers
        loader: DataLoader[Any] = DataLoader(
            dataset,
            batch_sampler=sampler,
            collate_fn=self.data_collator,
            num_workers=workers,
            pin_memory=args.dataloader_pin_memory and args.device.type == "cuda",
            persistent_workers=bool(workers and args.dataloader_persistent_workers),
            prefetch_factor=args.dataloader_prefetch_factor if workers else None,
        )
        return _Unsized(self.accelerator.prepare_data_loader(loader))

    def training_step(self, *args: Any, **more: Any) -> Any:
        """See ``Trainer``. The loop ends where this worker has left the job."""
        loss = super().training_step(*args, **more)
        if self.accelerator.status is Status.ABORT:
            self.control.should_training_stop = True
        return loss

    def is_world_process_zero(self) -> bool:
        """True at rank 0 of the newest view."""
        return self._ft.rank == 0

    def is_local_process_zero(self) -> bool:
        """As ``is_world_process_zero``."""
        return self.is_world_process_zero()

    def _save_checkpoint(self, *args: Any, **more: Any) -> None:
        if self.is_world_process_zero():
            super()._save_checkpoint(*args, **more)

    def save_model(self, *args: Any, **more: Any) -> None:
        """See ``Trainer``; rank 0 saves."""
        if self.is_world_process_zero():
            super().save_model(*args, **more)
