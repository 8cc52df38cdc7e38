"""``Optimizer``: a torch optimizer whose step is the job's: it averages, and applies the average everywhere or nowhere."""

from __future__ import annotations

import inspect
import math
import weakref
from collections.abc import Callable, Sequence
from typing import Any

import torch

from ..core.tensors.norms import Norms, together
from ..errors import ConfigError
from ..ftlib import FTLib
from ..settings.config import VETO
from ..state.parts import Parts
from ..state.registry import Registered
from ..state.replay import replaying
from ..status import Status
from .clipping import clip
from .data_parallel.room import FormerGradients
from .share import NextShare
from .wrapped import Wrapped, worst, wrapped_in

_ITS_OWN = ("param_groups", "state", "defaults")
"""Attributes of the wrapped optimizer alone."""

_SCALED: weakref.WeakKeyDictionary[torch.amp.GradScaler, weakref.ref[Optimizer]] = weakref.WeakKeyDictionary()
"""Which ``Optimizer`` has a scaler. An ``update`` belongs to each step, so a scaler can serve one only."""


class Optimizer(torch.optim.Optimizer):
    """A wrapped optimizer. ``zero_grad`` opens a step; ``step`` averages, applies or skips it, and returns the status.

    All that is not defined here is the wrapped optimizer's: parameter groups, state, hooks, which run around the steps that are
    applied. Schedulers take this object or the wrapped one. Used by one thread.
    """

    def __init__(
        self,
        ft: FTLib,
        optimizer: torch.optim.Optimizer,
        *,
        clip_norm: float | None = None,
        scaler: torch.amp.GradScaler | None = None,
        schedule: Callable[[int], float] | None = None,
    ) -> None:
        """``clip_norm``: largest total norm of the averaged gradients. ``scaler``: unscales them before that; it needs
        ``nonfinite="pass"``. ``schedule``: the learning rate of a step, by the number of steps before it (0 for the job's
        first); it is written into all parameter groups before the step. It depends on that number alone.

        Register this object, not the wrapped one: a worker that joins then does the same with the averages that it missed.
        ConfigError if the optimizer cannot be wrapped.
        """
        # Not the base class's constructor: it would make groups and state of this object's own.
        _check(ft, optimizer, clip_norm, scaler, schedule)
        self._ft = ft
        self._inner = optimizer
        self._clip_norm = clip_norm
        self._scaler = scaler
        self._schedule = schedule
        self._copies = FormerGradients()
        self._status: Status | None = None
        self._share = NextShare(ft, lambda: ft.check_of(self._parameters()))
        self._compared: Registered | None = None
        """What was registered when it was last compared with this optimizer."""
        if scaler is not None and _owner(scaler) is None:
            _SCALED[scaler] = weakref.ref(self)

    def wraps(self, optimizer: torch.optim.Optimizer) -> bool:
        """True if it is this optimizer that is wrapped."""
        return self._inner is optimizer

    @property
    def status(self) -> Status | None:
        """What became of the last step; None before the first, and from ``zero_grad`` on."""
        return self._status

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Open a step: reset the gradients, as the wrapped optimizer does."""
        self._status = None
        parameters = self._parameters()
        for model in self._models(parameters):
            model.begin_step(parameters)
        self._inner.zero_grad(set_to_none)

    def weigh(self, weight: float, batches: int = 1) -> None:
        """How much this worker counts in the next step's average: see ``FTLib.allreduce_average``.

        ConfigError if a wrapped model averages: then ``weigh`` that.
        """
        if self._models(self._parameters()):
            raise ConfigError(
                "Optimizer.weigh: the gradients are averaged in backward already; call weigh() of the DistributedDataParallel"
            )
        self._share.say(weight, batches)

    def step(self, closure: None = None) -> Status:  # type: ignore[override]
        """Average the gradients over all members, and apply the average if the status is truthy; returns the status.

        Otherwise nothing is applied, by nobody. Statuses and errors: see ``FTLib.allreduce_average``. Within ``apply=`` of
        ``register_state`` it applies what is there, as that is averaged already, and returns SUCCESS.
        """
        if closure is not None:
            raise ConfigError(
                "Optimizer.step takes no closure, as an average is of one backward pass: call zero_grad(), compute the loss "
                "and call its backward() before step()"
            )
        if replaying():
            self.apply()
            return Status.SUCCESS
        self._compare_registered()
        parameters = self._parameters()
        models = self._models(parameters)
        if models:
            norms = [model.norms() for model in models] if self._norms_help else ()
            return self._take(self._outcome(models, parameters), parameters, models, norms)
        weight, batches = self._share.get()
        average = self._ft.average_of(parameters, weight=weight, batches=batches, norms=self._norms_help)
        try:
            return average.finish()
        finally:  # also where a callback of the program's raises: the others apply what has been averaged
            if average.status is not None:
                self._share.used()
                self._take(average.status, parameters, (), (average.norms,) if self._norms_help else ())

    def apply(self) -> None:
        """Apply the averages that are in the gradients: unscale and clip them, schedule, step, and update the scaler.

        For ``apply=`` of ``register_state``, where a step is more than that. It makes no call.
        """
        self._apply(in_place=replaying())  # then these are copies for this purpose

    # --- as the wrapped optimizer --------------------------------------------------------------------------------------

    def __getattr__(self, name: str) -> Any:
        """Whatever this object lacks is the wrapped optimizer's: groups, state, defaults, hooks, what a subclass adds."""
        if "_inner" not in self.__dict__:
            raise AttributeError(name)
        return getattr(self._inner, name)

    def __setattr__(self, name: str, value: Any) -> None:
        if name in _ITS_OWN:
            setattr(self._inner, name, value)
        else:
            super().__setattr__(name, value)

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """See the wrapped optimizer."""
        self._inner.add_param_group(param_group)

    def state_dict(self) -> dict[str, Any]:
        """The wrapped optimizer's: the scaler's is its own, as without this object."""
        return self._inner.state_dict()

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """See the wrapped optimizer."""
        self._inner.load_state_dict(state_dict)

    def __repr__(self) -> str:
        return f"<ftlib.Optimizer clip_norm={self._clip_norm} scaler={self._scaler is not None} of {self._inner!r}>"

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[Any, ...]]:
        """A copy, also by pickle, is one of the wrapped optimizer: a job's member is no part of it."""
        return _itself, (self._inner,)

    @property
    def _step_supports_amp_scaling(self) -> bool:
        """``GradScaler.step`` asks for this before anything else: it would skip the average at one worker alone."""
        raise ConfigError(
            "GradScaler.step was given an ftlib.Optimizer: give that one the scaler (scaler=), and call its step() alone; once "
            "the gradients are averaged it unscales them, steps, and updates the scaler"
        )

    # --- what is registered --------------------------------------------------------------------------------------------

    def registered_parts(self) -> Parts:
        """See ``Composite``."""
        others = {} if self._scaler is None else {"scaler": self._scaler}
        return Parts(self._inner, others, None if self._plain else self.apply)

    @property
    def _plain(self) -> bool:
        """True if what is applied is the wrapped optimizer's step and nothing else."""
        return self._clip_norm is None and self._scaler is None and self._schedule is None

    @property
    def _norms_help(self) -> bool:
        """True if what is clipped are the averages as they are."""
        return self._clip_norm is not None and (self._scaler is None or not self._scaler.is_enabled())

    def _compare_registered(self) -> None:
        """ConfigError if a worker that joins would apply averages in another way than this object does."""
        registered = self._ft.registered
        if registered is None or registered is self._compared:
            return
        registers = any(each is self._inner for each in registered.of(torch.optim.Optimizer).values())
        known = registered.applying(self._inner) == self.apply
        if registers and not known and registered.apply is None and not self._plain:
            what = "scales gradients" if self._scaler is not None else "clips gradients"
            if self._clip_norm is None and self._scaler is None:
                what = "sets the learning rate"
            raise ConfigError(
                f"register_state was given the wrapped {type(self._inner).__name__}, but ftlib.Optimizer {what} before its "
                "step, and a worker that joins would not: make the ftlib.Optimizer first, and register that one"
            )
        self._compared = registered

    # --- inside --------------------------------------------------------------------------------------------------------

    def _take(
        self, status: Status, parameters: list[torch.Tensor], models: Sequence[Wrapped], norms: Sequence[Norms]
    ) -> Status:
        """Apply the averages that have come, by ``models`` or by a call, unless ``status`` says that nobody does. ``norms``: of
        the averages, as far as they are known. Returns ``status``.
        """
        self._status = status
        if status and self._plain:
            self._inner.step()
        elif status:
            former = [found for model in models if (found := model.former_gradients()) is not None]
            places = ((at, each.get(id(parameter))) for at, parameter in enumerate(parameters) for each in former)
            self._copies.of({at: gradient for at, gradient in places if gradient is not None})
            self._apply(in_place=not former, norms=norms)  # else another member may need the average
            self._copies.of({})
        return status

    def _parameters(self) -> list[torch.Tensor]:
        return [parameter for group in self._inner.param_groups for parameter in group["params"]]

    def _apply(self, *, in_place: bool, norms: Sequence[Norms] = ()) -> None:
        """``in_place``: the gradients are no views of a result, so scaled ones may be written over them. ``norms``: of the
        gradients, as far as they are known.
        """
        scaler, parameters = self._scaler, self._parameters()
        if self._schedule is not None:
            rate = self._schedule(self._ft.step - 1)
            for group in self._inner.param_groups:
                group["lr"] = rate
        if scaler is None or not scaler.is_enabled() or all(parameter.grad is None for parameter in parameters):
            self._clip(parameters, in_place=in_place, norms=norms)
            self._inner.step()
            return
        scaler.scale(torch.zeros((), device=parameters[0].device))  # it may not have seen a loss yet, where there was no data
        if not in_place:
            self._copies.move(parameters)
        scaler.unscale_(self._inner)
        self._clip(parameters, in_place=True)
        scaler.step(self._inner)
        scaler.update()

    def _clip(self, parameters: list[torch.Tensor], *, in_place: bool, norms: Sequence[Norms] = ()) -> None:
        if self._clip_norm is not None:
            known = together(norms, parameters)
            clip(parameters, self._clip_norm, copies=self._copies, in_place=in_place, known=known)

    def _models(self, parameters: list[torch.Tensor]) -> list[Wrapped]:
        """The wrapped models that average some of the parameters by themselves."""
        return [model for model in wrapped_in(self._ft) if any(map(model.averages, parameters))]

    def _outcome(self, models: list[Wrapped], parameters: list[torch.Tensor]) -> Status:
        """How the averages of the models' backward passes ended, taken together."""
        if not any(all(map(model.averages, parameters)) for model in models):
            self._check_none_is_loose(models, parameters)
        status = worst(found for model in models if (found := model.outcome(parameters)) is not None)
        if status is None:
            raise ConfigError(
                "Optimizer.step: no backward pass of the wrapped model has been averaged since zero_grad(); the last one of a "
                "step belongs outside of no_sync()"
            )
        return status

    def _check_none_is_loose(self, models: list[Wrapped], parameters: list[torch.Tensor]) -> None:
        """ConfigError names a trained parameter that none of the models averages."""
        for number, parameter in enumerate(parameters):
            if parameter.requires_grad and not any(model.averages(parameter) for model in models):
                raise ConfigError(
                    f"parameter {number} of the optimizer, of {list(parameter.shape)}, is in no wrapped model, as others are: "
                    "nobody averages its gradient; make it a parameter of the module, or give it an Optimizer of its own"
                )


def _check(ft: Any, optimizer: Any, clip_norm: float | None, scaler: Any, schedule: Any) -> None:
    if not isinstance(ft, FTLib):
        raise ConfigError(f"Optimizer(ft, optimizer): the first argument is a {type(ft).__name__}, not an FTLib")
    if isinstance(optimizer, Optimizer) or not isinstance(optimizer, torch.optim.Optimizer):
        raise ConfigError(f"Optimizer wraps an optimizer of torch.optim, not a {type(optimizer).__name__}")
    closure = inspect.signature(type(optimizer).step).parameters.get("closure")
    if closure is not None and closure.default is inspect.Parameter.empty:
        raise ConfigError(
            f"{type(optimizer).__name__} calls a closure several times a step, each time with other weights, but an average is "
            "of one backward pass: choose an optimizer whose step() needs no closure"
        )
    if clip_norm is not None and not (isinstance(clip_norm, (int, float)) and 0.0 < clip_norm < math.inf):
        raise ConfigError(f"clip_norm={clip_norm!r} must be a finite number above 0, or None")
    if schedule is not None and not callable(schedule):
        raise ConfigError(
            f"schedule={schedule!r} must be a function of the number of steps done, which returns a learning rate"
        )
    if scaler is None:
        return
    if not isinstance(scaler, torch.amp.GradScaler):
        raise ConfigError(f"scaler={type(scaler).__name__} must be a torch.amp.GradScaler")
    owner = _owner(scaler)
    if owner is not None and not owner.wraps(optimizer):
        raise ConfigError(
            "this GradScaler belongs to another ftlib.Optimizer, which updates it in each step: give each Optimizer a scaler "
            "of its own"
        )
    if scaler.is_enabled() and ft.settings.nonfinite == VETO:
        raise ConfigError(
            'a GradScaler needs nonfinite=pass at every worker (FTLib.init(nonfinite="pass") or FTLIB_NONFINITE): as it is, an '
            "average with inf or nan is applied by nobody, so the scaler does not learn of it and never lowers its scale"
        )


def _owner(scaler: torch.amp.GradScaler) -> Optimizer | None:
    """The first one that was given the scaler, if it is still in use."""
    return _SCALED.get(scaler, lambda: None)()


def _itself(optimizer: torch.optim.Optimizer) -> torch.optim.Optimizer:
    return optimizer
