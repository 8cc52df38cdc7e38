"""What programs see: ``LocalSGD`` and ``DiLoCo``, context managers around a loop of inner steps."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from types import TracebackType
from typing import Any, Self

import torch
from torch import nn
from torch.utils.hooks import RemovableHandle

from ...core.tensors.compression.compression import Compression
from ...core.tensors.compression.names import compression_of
from ...errors import ConfigError
from ...ftlib import FTLib
from ...state.parts import Parts, Stateful
from ...status import Status
from ..data_parallel import DistributedDataParallel
from ..optimizer import Optimizer
from .fragments import fragments_of
from .global_model import GlobalModel, Remainder
from .outer import Assign, Contribution, Outer, outer_optimizers, pseudo_gradients, weights_themselves
from .place import Place
from .rounds import Rounds
from .schedule import Schedule


class LocalTraining:
    """What both have in common: the loop's hooks, and what is registered. Used by one thread."""

    def __init__(
        self,
        ft: FTLib,
        model: nn.Module,
        *,
        inner: torch.optim.Optimizer | None,
        outer: Outer,
        contribution: Contribution,
        sync_every: int,
        fragments: int | Sequence[nn.Module],
        delay: int,
        alpha: float,
        weight: str,
        compression: str | Compression | None,
        backup_device: torch.device | str,
    ) -> None:
        """See ``DiLoCo``. ``contribution``: what a worker gives to an average."""
        self._name = type(self).__name__
        self._check(ft, model, inner, alpha)
        named = fragments_of(model, fragments)
        schedule = Schedule(sync_every, len(named), delay)
        self._ft = ft
        self._local = model
        self._inner = inner
        with torch.no_grad():
            self._global = GlobalModel(named, backup_device, contribution)
        trained = {id(parameter) for part in named for _, parameter in part}
        every = model.named_parameters(remove_duplicate=False)  # a tied one has several names
        self._remainder = Remainder(model, [name for name, parameter in every if id(parameter) in trained])
        parts = [part.parameters for part in self._global.parts]
        self._outer = outer_optimizers(outer, parts, self._global.replaced)
        self._place = Place(len(named), weight)
        self._rounds = Rounds(
            ft, self._global, self._outer, schedule, self._place, alpha=float(alpha), compression=compression_of(compression)
        )
        self._handles: list[RemovableHandle] = []
        self._inside = False

    @property
    def status(self) -> Status | None:
        """How the last sync ended; None before the first one."""
        return self._rounds.status

    @property
    def inner_steps(self) -> int:
        """How many inner steps this worker has done."""
        return self._place.total

    @property
    def syncs(self) -> int:
        """How many syncs the job has made; ``ft.step`` counts those whose average was good, also where the outer step on it
        was undone (``status`` is FAIL then).
        """
        return self._rounds.syncs

    @property
    def global_model(self) -> nn.Module:
        """The weights that all workers share, under the names that they have in the model. Read them, and change nothing."""
        return self._global.weights

    def step(self) -> Status | None:
        """An inner step was done: for loops without ``inner=``. The status of the sync that ended with it, None if none did."""
        if not self._inside:
            raise ConfigError(f"{self._name}.step was called outside of its context: use `with` around the loop of inner steps")
        status = self._rounds.stepped()
        self._ft.at_border()  # no hook of an optimizer tells
        return status

    def load_global(self) -> None:
        """Replace this worker's weights by the global ones, at the end of training, say, or to evaluate these.

        What was learned since the last sync is dropped. ConfigError while a sync is under way.
        """
        self._check_no_sync("load_global")
        self._rounds.load_global()

    def __enter__(self) -> Self:
        if self._inside:
            raise ConfigError(f"{self._name}: this context is entered already")
        self._compare_registered()
        self._check_all_shared()
        self._ft.catch_up()
        self._rounds.enter()
        if self._inner is not None:
            self._handles = [
                self._inner.register_step_pre_hook(lambda *_: self._rounds.poll()),
                self._inner.register_step_post_hook(lambda *_: self._stepped()),
                self._local.register_forward_hook(lambda *_: self._rounds.poll()),
            ]
        self._inside = True
        self._ft.begin_counting(self._name)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        """At the loop's end a sync that has begun is ended; where an exception ends the loop, it is given up."""
        self._inside = False
        for handle in self._handles:
            handle.remove()
        self._handles = []
        try:
            if kind is None:
                self._rounds.end()
            else:
                self._rounds.abandon()
        finally:
            self._ft.end_counting(self._name)

    def registered_parts(self) -> Parts:
        """See ``Composite``: shared are the global weights, and what steps them."""
        private: dict[str, Stateful] = {"place": self._place, "remainder": self._remainder}
        if self._inner is not None:
            private["inner"] = self._inner
        return Parts(self._global.weights, {"optimizer": self._optimizers}, private=private)

    def state_dict(self) -> dict[str, Any]:
        """The global weights, and the state of what steps them. Tensors are not copied."""
        return {"model": self._global.weights.state_dict(), "optimizer": [each.state_dict() for each in self._optimizers]}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take over such a state; this worker's weights become the global ones. ConfigError while a sync is under way."""
        self._check_no_sync("load_state_dict")
        self._global.weights.load_state_dict(state["model"])
        for optimizer, each in zip(self._optimizers, state["optimizer"], strict=True):
            optimizer.load_state_dict(each)
        self.load_global()

    def __repr__(self) -> str:
        return f"<ftlib.{self._name} {self._rounds.syncs} syncs, {self._place.total} inner steps>"

    # --- inside --------------------------------------------------------------------------------------------------------

    @property
    def _optimizers(self) -> list[torch.optim.Optimizer]:
        """The outer ones, each once."""
        return list({id(each): each for each in self._outer}.values())

    def _stepped(self) -> None:
        self._rounds.stepped()

    def _check_no_sync(self, method: str) -> None:
        if self._rounds.under_way:
            raise ConfigError(f"{self._name}.{method}: a sync is under way: call it after the loop, or after that sync")

    def _check(self, ft: Any, model: Any, inner: Any, alpha: Any) -> None:
        if not isinstance(ft, FTLib):
            raise ConfigError(f"{self._name}(ft, model): the first argument is a {type(ft).__name__}, not an FTLib")
        if isinstance(model, DistributedDataParallel):
            raise ConfigError(f"{self._name}: a DistributedDataParallel averages in every step: pass the module that it wraps")
        if not isinstance(model, nn.Module):
            raise ConfigError(f"{self._name}(ft, model): expected a module, not {type(model).__name__}")
        if isinstance(inner, Optimizer):
            raise ConfigError(
                f"{self._name}: inner= is an ftlib.Optimizer, which averages in every step: pass the one that it wraps"
            )
        if inner is not None and not isinstance(inner, torch.optim.Optimizer):
            raise ConfigError(f"{self._name}: inner= takes an optimizer of torch.optim, not a {type(inner).__name__}")
        if isinstance(alpha, bool) or not isinstance(alpha, (int, float)) or not 0.0 <= alpha <= 1.0 or math.isnan(alpha):
            raise ConfigError(f"alpha={alpha!r} must be a number from 0 to 1: the share of the local weights that stays")

    def _compare_registered(self) -> None:
        """ConfigError if a worker that joins would not get the global weights, or would get another worker's own."""
        registered, remedy = self._ft.registered, "ft.register_state(model=...) with this object in place of the model"
        if registered is None or not any(each is self._global.weights for each in registered.of(nn.Module).values()):
            raise ConfigError(f"{self._name}: the weights that all workers share are not registered: call {remedy}")
        own = {id(parameter) for parameter in self._local.parameters() if parameter.requires_grad}
        if any(id(parameter) in own for module in registered.of(nn.Module).values() for parameter in module.parameters()):
            raise ConfigError(
                f"{self._name}: the model itself is registered, but between syncs its weights are each worker's: call {remedy}"
            )

    def _check_all_shared(self) -> None:
        """ConfigError names a trained parameter that no sync averages: the model got it later, or it was frozen."""
        for name, parameter in self._local.named_parameters():
            if parameter.requires_grad and id(parameter) not in self._global.replaced:
                raise ConfigError(
                    f"{self._name}: {name} is trained, but was not when this object was made, so that no sync averages it: "
                    f"change the model before, and make the {self._name} anew"
                )


class LocalSGD(LocalTraining):
    """Workers train on their own; every ``sync_every`` inner steps their weights are averaged.

    ::

        local = LocalSGD(ft, model, sync_every=10, inner=optimizer)
        ft.register_state(model=local)
        with local:
            for inputs, targets in loader:
                optimizer.zero_grad()
                loss_fn(model(inputs), targets).backward()
                optimizer.step()

    Weights count by the inner steps behind them, so ``sync_every`` may differ between workers. Without ``inner`` the loop calls
    ``step()`` after each inner step. ``ft.step`` counts syncs whose average was good. See docs/local_sgd.md.
    """

    def __init__(self, ft: FTLib, model: nn.Module, *, sync_every: int, inner: torch.optim.Optimizer | None = None) -> None:
        """ConfigError if an argument cannot be used."""
        super().__init__(
            ft,
            model,
            inner=inner,
            outer=Assign,
            contribution=weights_themselves,
            sync_every=sync_every,
            fragments=1,
            delay=0,
            alpha=0.0,
            weight="steps",
            compression=None,
            backup_device="cpu",
        )


class DiLoCo(LocalTraining):
    """Workers train on their own, and seldom an outer optimizer steps what all share, by what each of them has learned.

    ::

        diloco = DiLoCo(ft, model, inner=inner, outer=lambda weights: SGD(weights, lr=0.7, momentum=0.9, nesterov=True),
                        sync_every=100)
        ft.register_state(model=diloco)
        with diloco:
            for inputs, targets in loader:
                inner.zero_grad()
                loss_fn(model(inputs), targets).backward()
                inner.step()

    Algorithms: DiLoCo (https://arxiv.org/abs/2311.08105), Streaming DiLoCo (https://arxiv.org/abs/2501.18512). ``ft.step``
    counts syncs whose average was good. See docs/local_sgd.md.
    """

    def __init__(
        self,
        ft: FTLib,
        model: nn.Module,
        *,
        inner: torch.optim.Optimizer | None,
        outer: Callable[[list[nn.Parameter]], torch.optim.Optimizer] | torch.optim.Optimizer | Sequence[torch.optim.Optimizer],
        sync_every: int,
        fragments: int | Sequence[nn.Module] = 1,
        delay: int = 0,
        alpha: float = 0.0,
        weight: str = "steps",
        compression: str | Compression | None = None,
        backup_device: torch.device | str = "cpu",
    ) -> None:
        """``inner``: steps the model's parameters; None: the loop calls ``step()`` after each inner step. ``outer``: a function
        that makes an optimizer of a list of parameters, an optimizer of the model's parameters, or one for each fragment.

        ``sync_every``: inner steps in which every fragment is averaged once; it may differ between workers. ``fragments``: how
        many, or the modules that they are; they take turns. ``delay``: so many inner steps before its sync ends a fragment's
        pseudo-gradient (global minus local weights) is taken, and is averaged while these steps are done. ``alpha``: the share
        of the local weights that stays: afterwards they are ``(1 - alpha) * global + alpha * local``.

        ``weight``: a worker's share in an average: by its inner "steps", by the "samples" of an ``ElasticSampler``, or "equal".
        ``compression``: see ``FTLib.allreduce_average``. ``backup_device``: where the global weights are. ConfigError if an
        argument cannot be used.
        """
        super().__init__(
            ft,
            model,
            inner=inner,
            outer=outer,
            contribution=pseudo_gradients,
            sync_every=sync_every,
            fragments=fragments,
            delay=delay,
            alpha=alpha,
            weight=weight,
            compression=compression,
            backup_device=backup_device,
        )
