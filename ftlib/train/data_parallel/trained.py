"""The parameters of a wrapped module, and which of them are trained at present."""

from __future__ import annotations

import hashlib
from typing import Any

import torch
from torch import nn
from torch.nn.parameter import UninitializedParameter

from ...common.local_parts import gradient_of, is_sharded, like, local_part
from ...errors import ConfigError


class Trained:
    """All parameters of a module, each once; those with ``requires_grad`` are averaged. A *number* is an index among all."""

    def __init__(self, module: nn.Module) -> None:
        """ConfigError names a parameter that cannot be averaged."""
        named = list(module.named_parameters())
        for name, parameter in named:
            if isinstance(parameter, UninitializedParameter):
                raise ConfigError(f"parameter {name} has no shape yet: run a forward pass before the module is wrapped")
        for name, part in module.named_modules():
            if isinstance(part, (nn.Embedding, nn.EmbeddingBag)) and part.sparse and part.weight.requires_grad:
                raise ConfigError(f"module {name} has sparse gradients, only dense ones can be averaged: give it sparse=False")
        self.names = [name for name, _ in named]
        self.all = [parameter for _, parameter in named]
        self.ids = frozenset(map(id, self.all))
        self.numbers: list[int] = []
        """The numbers of the trained ones, in registration order."""
        self.pairs: list[tuple[int, nn.Parameter]] = []
        """The same with the parameters."""
        self.owners: list[nn.Parameter] = []
        """What is averaged: those parameters themselves; for a DTensor, a plain parameter on the same memory."""
        self._dtypes: list[torch.dtype | None] = [None] * len(named)
        """By number: the dtype of a trained parameter, else None. It may change: see ``nn.Module.to``."""
        self._sharded: list[tuple[Any, nn.Parameter]] = []
        """The trained DTensors, with the plain parameters that stand for them."""

    def look(self) -> str | None:
        """See which are trained now. None if that is as before; else which others are, in words: none, where dtypes changed."""
        dtypes = [parameter.dtype if parameter.requires_grad else None for parameter in self.all]
        if dtypes == self._dtypes:
            return None
        both = zip(self.names, dtypes, self._dtypes, strict=True)
        changed = [(name, now is not None) for name, now, before in both if (now is None) != (before is None)]
        first, self._dtypes = not self.numbers, dtypes
        self.numbers = [number for number, dtype in enumerate(dtypes) if dtype is not None]
        self.pairs = [(number, self.all[number]) for number in self.numbers]
        self._sharded = []
        self.owners = [self._owner(self.all[number]) for number in self.numbers]
        return "" if first else "; ".join(filter(None, (_said(changed, now=True), _said(changed, now=False))))

    def digest(self) -> bytes:
        """Eight bytes, equal where the same parameters are trained."""
        text = "\n".join(f"{self.names[number]} {tuple(self.all[number].shape)}" for number in self.numbers)
        return hashlib.blake2b(text.encode(), digest_size=8).digest()

    def lend(self) -> None:
        """Before an average: give the local parts of sharded gradients to the plain parameters."""
        for parameter, plain in self._sharded:
            gradient = gradient_of(parameter)
            plain.grad = None if gradient is None else local_part(gradient)

    def take_back(self, *, averaged: bool) -> None:
        """After an average. If ``averaged``, the results are the local parts of the sharded gradients; else those stay."""
        for parameter, plain in self._sharded:
            result, plain.grad = plain.grad, None
            if averaged and result is not None:
                parameter.grad = like(parameter, result)

    @property
    def sharded(self) -> bool:
        """True if some of the trained parameters are DTensors."""
        return bool(self._sharded)

    def _owner(self, parameter: nn.Parameter) -> nn.Parameter:
        if not is_sharded(parameter.data):
            return parameter
        plain = nn.Parameter(local_part(parameter.data).detach())
        self._sharded.append((parameter, plain))
        return plain


def _said(changed: list[tuple[str, bool]], *, now: bool) -> str:
    names = [name for name, trained in changed if trained is now]
    shown = ", ".join(names[:8]) + (f" and {len(names) - 8} more" if len(names) > 8 else "")
    return f"{'trained' if now else 'frozen'} from now on: {shown}" if names else ""
