"""Parameters that a module got after it was wrapped. Nobody would average them, and the workers would silently differ.

torch calls a hook for each parameter and module that is registered anywhere in the process. Here it counts them, so a healthy
step costs the comparison of two numbers.
"""

from __future__ import annotations

import functools
import itertools
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
    """What one wrapper got since it was made; but not what goes past torch's hooks, as by ``ModuleList.insert``."""

    def __init__(self, wrapper: nn.Module, known: Collection[int]) -> None:
        """``known``: the ``id`` of each parameter that it averages once it is trained; they live as long as this object."""
        self._known = known
        self._frozen = False
        """True if there are others that are not trained yet."""
        self._seen = -1
        """The number of registrations when the wrapper's parameters were last compared."""
        self.look(wrapper)

    @property
    def due(self) -> bool:
        """True if there may be others that are trained."""
        return self._frozen or self._seen != _registrations().count

    def look(self, wrapper: nn.Module) -> None:
        """ConfigError names those that are trained."""
        seen = _registrations().count
        added = [(name, parameter) for name, parameter in wrapper.named_parameters() if id(parameter) not in self._known]
        names = [name for name, parameter in added if parameter.requires_grad]
        if names:
            more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
            raise ConfigError(
                f"the model got parameters after it was wrapped, and nobody averages these: {', '.join(names[:_SHOWN])}{more}; "
                f"change the model before it is wrapped, or wrap it anew: {type(wrapper).__name__}(ft, model.module)"
            )
        self._frozen, self._seen = bool(added), seen


class _Registrations:
    """How often a parameter or a module was registered since this object was made, in all modules of the process."""

    def __init__(self) -> None:
        self.count = 0
        self._numbers = itertools.count(1)
        register_module_parameter_registration_hook(self._add)
        register_module_module_registration_hook(self._add)

    def _add(self, *_registered: Any) -> None:
        self.count = next(self._numbers)  # other threads may register, too: any other number than before will do


_registrations = functools.cache(_Registrations)
"""Those of this process, from the first wrapper on."""
