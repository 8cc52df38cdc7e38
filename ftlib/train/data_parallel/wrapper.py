"""The wrapper that programs see, with the names and meanings of torch's own."""

from __future__ import annotations

import contextlib
import math
import weakref
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, NoReturn

import torch
from torch import nn

from ...core.tensors.compression.compression import Compression
from ...core.tensors.compression.names import compression_of
from ...core.tensors.norms import Norms
from ...errors import ConfigError
from ...ftlib import FTLib
from ...state.parts import Parts
from ...status import Status
from ..additions import Additions
from ..clipping import clip
from ..wrapped import Outcomes, note
from .backward import Backward, Options
from .outputs import tensors_in
from .refusals import refuse
from .trained import Trained


class DistributedDataParallel(nn.Module):
    """A module whose gradients are averaged over all workers while ``backward`` runs, as torch's wrapper of that name does.

    ::

        model = DistributedDataParallel(ft, model)
        loss_fn(model(batch)).backward()
        if model.status:
            optimizer.step()

    ``backward`` returns with the averages in ``.grad``, or with the gradients as they were and a ``status`` that is false. The
    loss of workers costs a repetition of the communication, not of the pass. What ends this worker's part leaves ``backward``
    as the exception that it is.

    Every backward through an output of a forward outside of ``no_sync`` ends with one average, which all workers take part in:
    two losses with a backward each are two averages. An average is of the whole ``.grad``, accumulated gradients included, of
    all parameters with ``requires_grad``, also those that this backward did not reach (a gradient of None counts as zeros).
    A parameter that was frozen may be trained later, from the same step on at all workers. One that the module got later is a
    ConfigError in forward. A module of which nothing is trained is left alone.

    Gradients on the CPU are sent while backward still computes others; those on other devices at its end.
    """

    def __init__(
        self,
        ft: FTLib,
        module: nn.Module,
        *,
        bucket_mb: float = 25,
        first_bucket_mb: float = 1,
        gradient_as_bucket_view: bool = True,
        find_unused_parameters: bool = False,
        broadcast_buffers: bool = False,
        static_graph: bool = False,
        compression: str | Compression | None = None,
        **others: Any,
    ) -> None:
        """``bucket_mb``, ``first_bucket_mb``: MB of gradients that are sent together; the first bucket is small, so that it is
        on its way early. ``gradient_as_bucket_view``: gradients become views of the averages instead of copies, if state is
        registered; change them with ``clip_grad_norm_`` rather than in place. ``find_unused_parameters``: a parameter of which
        no worker has a gradient gets none, instead of one of zeros. ``broadcast_buffers``: in each forward whose
        backward averages, buffers become those of rank 0. ``static_graph``: every backward accumulates the same gradients as
        the first. ``compression``: see ``FTLib.allreduce_average``. ``others``: what else torch has is refused with the
        remedy.
        """
        super().__init__()
        refuse(others)
        if not isinstance(ft, FTLib):
            raise ConfigError("DistributedDataParallel(ft, module): the first argument is what FTLib.init() returned")
        if not isinstance(module, nn.Module):
            raise ConfigError(f"DistributedDataParallel(ft, module): expected a module, not {type(module).__name__}")
        options = Options(
            bucket_bytes=_bytes("bucket_mb", bucket_mb),
            first_bytes=_bytes("first_bucket_mb", first_bucket_mb),
            views=gradient_as_bucket_view,
            static=static_graph,
            find_unused=find_unused_parameters,
            compression=compression_of(compression),
        )
        self.module = module
        self._ft = ft
        self._outcomes = Outcomes()
        self._trained = Trained(module)
        self._additions = Additions(self, self._trained.ids)
        self._backward = Backward(ft, module, self._trained, options, self._outcomes)
        self._backward.look()
        if find_unused_parameters:
            ft.agreed.hinder(
                "find_unused_parameters leaves out gradients that averages have: the others wait for a joiner instead"
            )
        self._buffers_too = broadcast_buffers
        ft.has_preface(self._sent_buffers)
        self._sync = True
        weakref.finalize(self, self._backward.detach).atexit = False
        note(ft, self)

    @property
    def status(self) -> Status | None:
        """How the latest average ended. None before the first one, and after a backward that failed."""
        return self._outcomes.last

    def forward(self, *inputs: Any, **kwargs: Any) -> Any:
        """Call the module with these arguments; backward through what it returns averages the gradients."""
        if not torch.is_grad_enabled():
            return self.module(*inputs, **kwargs)
        if self._additions.due:
            self._additions.look(self)
        backward = self._backward
        if self._sync:
            hook = backward.reached if backward.prepare() else None
            if self._buffers_too and hook is not None and not backward.computes_again:
                self._broadcast_buffers()
        else:
            hook = backward.accumulates
            backward.disarm()
        output = self.module(*inputs, **kwargs)
        if hook is not None:
            for tensor in tensors_in(output):
                if tensor.requires_grad and tensor.grad_fn is not None:
                    tensor.register_hook(hook)  # type: ignore[no-untyped-call]
        return output

    @contextlib.contextmanager
    def no_sync(self) -> Iterator[None]:
        """Backward through what a forward in this context returned accumulates gradients, and averages nothing."""
        before, self._sync = self._sync, False
        try:
            yield
        finally:
            self._sync = before

    def weigh(self, weight: float, batches: int = 1) -> None:
        """Weight and batches of the next average: see ``FTLib.allreduce_average``. 0: this worker's gradients do not count."""
        self._backward.weigh(weight, batches)

    def clip_grad_norm_(self, max_norm: float, norm_type: float = 2.0) -> torch.Tensor:
        """Clip the norm of all gradients together to ``max_norm``; returns the norm before.

        As ``torch.nn.utils.clip_grad_norm_``, except that gradients which are views of the averages are replaced rather than
        changed: another worker may still need the averages.
        """
        room = self._backward.room()
        parameters = list(self.module.parameters())
        known = self._backward.norms().of(parameters) if norm_type == 2.0 else ()
        return clip(parameters, max_norm, norm_type, copies=room, in_place=room is None, known=known)

    # --- for the library -----------------------------------------------------------------------------------------------

    def registered_parts(self) -> Parts:
        """Registered as the module itself: it does not matter which of the two a program registers."""
        return Parts(self.module)

    def averages(self, parameter: torch.Tensor) -> bool:
        """True if the gradient of ``parameter`` is averaged here."""
        return id(parameter) in self._trained.ids

    def begin_step(self, parameters: Iterable[torch.Tensor]) -> None:
        """See ``Wrapped``."""
        self._outcomes.begin([id(parameter) for parameter in parameters if self.averages(parameter)])

    def outcome(self, parameters: Iterable[torch.Tensor]) -> Status | None:
        """See ``Wrapped``; a backward that failed counts as FAIL."""
        return self._outcomes.together([id(parameter) for parameter in parameters if self.averages(parameter)])

    def former_gradients(self) -> Mapping[int, torch.Tensor] | None:
        """See ``Wrapped``."""
        return self._backward.former_gradients()

    def norms(self) -> Norms:
        """See ``Wrapped``."""
        return self._backward.norms()

    # --- what cannot work here -----------------------------------------------------------------------------------------

    def register_comm_hook(self, *_args: Any, **_kwargs: Any) -> NoReturn:
        """Raise ConfigError."""
        raise ConfigError("register_comm_hook cannot work here, as a hook's operations cannot be repeated: use compression=")

    def join(self, *_args: Any, **_kwargs: Any) -> NoReturn:
        """Raise ConfigError."""
        raise ConfigError(
            "join cannot work here: a worker without data calls weigh(0) before a backward of any loss, or draws from an "
            "ElasticSampler, with which all workers end together"
        )

    def __getstate__(self) -> NoReturn:
        raise ConfigError("DistributedDataParallel belongs to this process: copy or save its .module, or its state_dict()")

    # --- inside --------------------------------------------------------------------------------------------------------

    def _broadcast_buffers(self) -> None:
        if buffers := self._sent_buffers():
            self._ft.preface(buffers)

    def _sent_buffers(self) -> list[torch.Tensor]:
        return list(self.module.buffers()) if self._buffers_too else []


def _bytes(name: str, megabytes: float) -> int:
    if not isinstance(megabytes, (int, float)) or not 0 < megabytes < math.inf:
        raise ConfigError(f"{name}={megabytes!r} must be a positive number of MB")
    return max(1, int(megabytes * 2**20))
