"""An average of gradients that are all there: the handle that an optimizer holds, which applies it."""

from __future__ import annotations

from collections.abc import Callable

from ...status import Status
from ..calls.call import Call
from ..tensors.norms import Norms


class WholeAverage:
    """Nothing is begun before ``finish``. Used by one thread."""

    def __init__(self, call: Call, carry_out: Callable[[Call], Status]) -> None:
        """``carry_out``: makes ``call``."""
        self._call = call
        self._carry_out = carry_out

    def finish(self) -> Status:
        """Make the call. Statuses and errors: see ``FTLib.allreduce_average``."""
        return self._carry_out(self._call)

    @property
    def status(self) -> Status | None:
        """What ``finish`` returns, also where a callback of the program's has raised instead, once the call had ended: the
        averages are there. None: the call itself has raised, or has not ended.
        """
        return self._call.status

    @property
    def norms(self) -> Norms:
        """The norms of the averages, where they were wanted, in as far as they come with the look for inf and nan."""
        return self._call.gradient_norms
