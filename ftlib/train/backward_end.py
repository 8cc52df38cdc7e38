"""The end of a backward pass, for what hooks have begun in it: called when all gradients are there, or when there will be none.

Where backward fails, the engine drops its callbacks uncalled, before the program's ``except`` clause runs.
"""

from __future__ import annotations

import sys
import weakref
from collections.abc import Callable
from types import FrameType

import torch


def at_end_of_backward(end: Callable[[], None], failed: Callable[[], None], *, last: bool = False) -> None:
    """Call ``end`` when the backward pass that runs on this thread has ended, or ``failed`` when it has raised. Both are bound
    methods, and keep nothing alive.

    ``last``: after the callbacks that are queued by then. In FSDP's the parameters become shards again: a joiner must not get
    its state before that.
    """
    _queue(_End(weakref.WeakMethod(end), weakref.WeakMethod(failed), last=last))


def within_backward() -> bool:
    """True if a backward pass runs on this thread."""
    return torch._C._current_graph_task_id() != -1  # noqa: SLF001 - the only way to ask


def within_checkpoint() -> bool:
    """True if this is called by the backward of a re-entrant checkpoint, which is a pass within the pass: it ends sooner."""
    module = sys.modules.get("torch.utils.checkpoint")
    if module is None:
        return False
    code = module.CheckpointFunction.backward.__code__
    frame: FrameType | None = sys._getframe()  # noqa: SLF001 - the engine's frames are on the same stack
    while frame is not None and frame.f_code is not code:
        frame = frame.f_back
    return frame is not None


class _End:
    """The callback at the end of backward. Uncalled, it tells by its end that backward has failed."""

    def __init__(
        self, end: weakref.WeakMethod[Callable[[], None]], failed: weakref.WeakMethod[Callable[[], None]], *, last: bool
    ) -> None:
        self._end = end
        self._failed: weakref.WeakMethod[Callable[[], None]] | None = failed
        self._last = last

    def __call__(self) -> None:
        if self._last:
            self._last = False
            _queue(self)
            return
        self._failed = None
        if (end := self._end()) is not None:
            end()

    def __del__(self) -> None:
        if self._failed is not None and (failed := self._failed()) is not None:
            failed()


def _queue(end: _End) -> None:
    torch.autograd.Variable._execution_engine.queue_callback(end)  # noqa: SLF001 - no public name
