"""The turns of open calls: a thread takes its turn when it enters one in the middle of backward, and keeps it until the end."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext

import torch

from ..core.calls.open_call import OpenCall
from ..core.engine.call_lock import CallLock
from ..status import Status
from .faults import Faults
from .rejoin import Rejoin


class OpenTurns:
    """Carries out the open calls of one program: see ``CarriesOut``."""

    def __init__(
        self,
        lives: Rejoin,
        call_lock: CallLock,
        finish: Callable[[OpenCall, bool], Status],
        faults: Faults | None = None,
    ) -> None:
        """``finish``: carries out what is left of a call; the second argument is whether this thread has its turn already.
        ``faults``: a call with one is not entered in the middle of backward.
        """
        self._lives = lives
        self._call_lock = call_lock
        self._finish = finish
        self._faults = faults

    def begin_open(self, call: OpenCall) -> bool:
        """See ``CarriesOut``."""
        if self._faults is not None and self._faults.due(self._lives.life.plane):
            return False
        if not self._call_lock.try_open(call.layout.text, call):
            return False
        try:
            with _plain():
                opened = self._lives.life.open(call)
        except BaseException:
            self.abandon_open(call)
            raise
        if not opened:
            self._call_lock.end_open()
        return opened

    def advance_open(self, complete: int) -> None:
        """See ``CarriesOut``."""
        with _plain():
            self._lives.life.engine.advance(complete)

    def stage_open(self, number: int, index: int) -> None:
        """See ``CarriesOut``."""
        with _plain():
            self._lives.life.engine.stage(number, index)

    def restart_open(self) -> None:
        """See ``CarriesOut``."""
        self._lives.life.engine.restart()

    def abandon_open(self, call: OpenCall) -> None:
        """See ``CarriesOut``."""
        if not self._call_lock.keeps_open(call):
            return
        try:
            self._lives.life.abandon()
        finally:
            self._call_lock.end_open()

    def has_finished(self, call: OpenCall) -> bool:
        """See ``CarriesOut``."""
        return 0 < call.number <= self._lives.life.plane.finished

    def finish_open(self, call: OpenCall, *, opened: bool) -> Status:
        """See ``CarriesOut``."""
        call.provide_all()
        return self._finish(call, opened)


def _plain() -> AbstractContextManager[None]:
    """Without autograd, and without inference tensors: staging outlives the call. As a rule backward is so already."""
    return _changed() if torch.is_grad_enabled() or torch.is_inference_mode_enabled() else _AS_IT_IS


_AS_IT_IS = nullcontext()


@contextmanager
def _changed() -> Iterator[None]:
    with torch.inference_mode(mode=False), torch.no_grad():
        yield
