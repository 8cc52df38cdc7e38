"""Parameters that a module got after it was wrapped. Nobody would average them, and the workers would silently differ.

torch tells of each parameter and module that is registered anywhere. So a healthy step costs the look at one flag.
"""

from __future__ import annotations

import functools
import weakref
from collections.abc import Collection
from typing import Any

from torch import nn
from torch.nn.modules.module import (
    register_module_module_registration_hook,
    register_module_parameter_registration_hook,
)

from ..errors import ConfigError

_SHOWN = 8


class Additions:
    """What one wrapper got since it was made."""

    def __init__(self, wrapper: nn.Module, known: Collection[int]) -> None:
        """``known``: the ``id`` of each parameter that it averages once it is trained; they live as long as this object."""
        _listen()
        self._known = known
        self.due = False
        """True if there may be others."""
        self.look(wrapper)

    def look(self, wrapper: nn.Module) -> None:
        """ConfigError names those that are trained."""
        for module in wrapper.modules():
            _WATCHED.setdefault(module, weakref.WeakSet()).add(self)
        added = [(name, parameter) for name, parameter in wrapper.named_parameters() if id(parameter) not in self._known]
        self.due = bool(added)  # those that are frozen may be trained later
        names = [name for name, parameter in added if parameter.requires_grad]
        if names:
            more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
            raise ConfigError(
                f"the model got parameters after it was wrapped, and nobody averages these: {', '.join(names[:_SHOWN])}{more}; "
                f"change the model before it is wrapped, or wrap it anew: {type(wrapper).__name__}(ft, model.module)"
            )


_WATCHED: weakref.WeakKeyDictionary[nn.Module, weakref.WeakSet[Additions]] = weakref.WeakKeyDictionary()
"""The wrappers that each module is a part of."""


@functools.cache
def _listen() -> None:
    """From now on hear of what is registered, in all modules of this process."""
    register_module_parameter_registration_hook(_registers)
    register_module_module_registration_hook(_registers)


def _registers(module: nn.Module, *_registered: Any) -> None:
    for additions in _WATCHED.get(module, ()):
        additions.due = True
