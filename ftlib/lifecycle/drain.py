"""Leaving well: a notice that this worker has to go, and its effects. SIGTERM is a notice, ``FTLib.drain`` another.

A notice raises a flag. The trailer of the next call carries it to the others, so they go on without a failed operation; the
worker leaves when that call has ended, and exits with 0. It stays for a while if the state would be gone with it (``Stay``). A
worker that waits without limit (a spare, one that looks for the job, one without a quorum) leaves at once. A program that reads
``FTLib.should_leave`` decides itself after which call it ends.

A second SIGTERM ends the process. Two within ``TWIN`` seconds are one: ``timeout`` and some init systems signal a process, and
then its process group, to which it belongs.
"""

from __future__ import annotations

import atexit
import contextlib
import gc
import math
import multiprocessing
import multiprocessing.util
import os
import signal
import threading
import time
from collections.abc import Callable
from types import FrameType
from typing import Any, Protocol

from consensus import CarefulLogger

from ..common.processes import TWIN
from ..core.engine.call_lock import CallLock

logger = CarefulLogger("ftlib")

_LOOK = 0.1
"""Seconds between two looks whether a worker that stays may leave."""
_ASK = 0.5
"""Seconds between two questions to the launcher."""


class Yields(Protocol):
    """What is used of ``Handover``, which needs torch; launchers, which import this module, do not have it."""

    @property
    def alone(self) -> bool:
        """See ``Handover``."""

    @property
    def stays(self) -> bool:
        """See ``Handover``."""

    @property
    def left(self) -> float:
        """See ``Handover``."""

    def begin(self, within: float | None = None) -> None:
        """See ``Handover``."""

    def answered(self, coming: bool | None) -> None:
        """See ``Handover``."""


class Stay:
    """A worker that has to leave, and stays while the state would be gone with it: finds out who is coming, and logs why."""

    def __init__(
        self,
        handover: Yields,
        ask: Callable[[], bool | None] | None,
        about: Callable[..., dict[str, Any]],
        over: Callable[[], bool],
        wake: Callable[[], None],
    ) -> None:
        """``ask``: returns the launcher's word whether another worker is coming; None without a launcher. ``about``: fields for
        a log record. ``over``, ``wake``: see ``Drain``.
        """
        self._handover = handover
        self._ask = ask
        self._about = about
        self._over = over
        self._wake = wake

    def begin(self, within: float | None) -> None:
        """There is a notice; this worker has ``within`` seconds, if whoever gave it says so. In a signal handler, too."""
        self._handover.begin(within)

    def attend(self, why: str) -> None:
        """Return once this worker leaves, or the time is up."""
        handover, stayed, asked = self._handover, False, -math.inf
        while not self._over() and handover.left > 0:
            if handover.alone and self._ask is not None and time.monotonic() - asked > _ASK:
                handover.answered(self._ask())
                asked = time.monotonic()
            stays = handover.stays
            if stays and not stayed:
                text = "%s: only this worker has the state, and another is coming: it stays until that has it, %.0f s at most"
                logger.warning(text, why, handover.left, extra=self._about("notice_yields", why=why, seconds=handover.left))
            elif stayed and not stays and not self._over():
                because = "nobody is expected any more" if handover.alone else "another worker has the state"
                logger.info("%s: it leaves now", because, extra=self._about("notice_resumes", why=because))
            if stayed and not stays:
                self._wake()
            stayed = stays
            time.sleep(_LOOK)
        if stayed and not self._over():
            text = "%s: nobody got the state in time: this worker leaves, and what it trained since the last checkpoint is lost"
            logger.error(text, why, extra=self._about("state_left_behind", why=why))
            self._wake()


class Drain:
    """Whether this worker has to go, and the handler of SIGTERM if the program has none of its own."""

    def __init__(
        self, call_lock: CallLock, over: Callable[[], bool], wake: Callable[[], None], stay: Stay | None = None
    ) -> None:
        """``over``: whether this worker is no member any more. ``wake``: makes waiting threads check ``call_lock`` again.
        ``stay``: None if this worker leaves whatever goes with it.
        """
        self._call_lock = call_lock
        self._stay = stay
        self._over = over
        self._wake = wake
        self._installed = False
        self._pid = os.getpid()
        self._signalled = float("-inf")
        """Time of the first SIGTERM."""
        self.parting = False
        """True while this worker leaves by itself: then a first SIGTERM changes nothing."""

    def install(self, *, shield: bool) -> None:
        """Take over SIGTERM if this is the main thread and SIGTERM has no other handler.

        ``shield``: keep a SIGTERM sent to the whole process group from the processes of data loaders.
        """
        if threading.current_thread() is not threading.main_thread():
            return
        if signal.getsignal(signal.SIGTERM) is not signal.SIG_DFL:
            logger.debug("SIGTERM is the program's own: its handler has to call drain() for this worker to leave well")
            return
        signal.signal(signal.SIGTERM, self._handle)
        self._installed = True
        if shield:
            multiprocessing.util.register_after_fork(self, _step_aside)

    def remove(self) -> None:
        """Restore the default handler of SIGTERM. Only the main thread can."""
        if self._installed and threading.current_thread() is threading.main_thread():
            if signal.getsignal(signal.SIGTERM) == self._handle:
                signal.signal(signal.SIGTERM, signal.SIG_DFL)
            self._installed = False

    def notice(self, why: str, within: float | None = None) -> None:
        """Note that this worker has to go. Any thread may call this, signal handlers too; the first notice counts.

        ``within``: seconds that this worker has, if whoever gives notice says so.
        """
        if self._call_lock.noticed or os.getpid() != self._pid:
            return
        if self._stay is not None:
            self._stay.begin(within)
        self._call_lock.leave()
        with contextlib.suppress(RuntimeError):  # no threads any more: the interpreter is about to end
            # The thread of a signal handler may already hold any lock, so a handler can neither log nor take a lock.
            threading.Thread(target=self._spread, args=(why,), name="ftlib-notice", daemon=True).start()

    def part(self, *, parting: bool = True) -> None:
        """Note that this worker is leaving by itself (``parting``), or no longer is."""
        self.parting = parting

    def looked(self) -> bool:
        """Whether there was a notice. From now on the program itself ends its loop."""
        self._call_lock.ends_itself()
        return self._call_lock.leaving

    def _spread(self, why: str) -> None:
        # The interpreter's last collections visit every object, half a second for those of torch. ``gc.freeze`` at its end
        # saves that time, done only here, since after a notice time is short.
        atexit.register(gc.freeze)
        point = "where its program stops" if self._call_lock.own_point else "after the call in progress, or else the next"
        if not self.parting:
            logger.info("%s: this worker leaves %s", why, point, extra={"ftlib_event": "notice", "why": why})
        self._wake()
        if self._stay is not None:
            self._stay.attend(why)

    def _handle(self, number: int, frame: FrameType | None) -> None:  # noqa: ARG002 - the signature is given
        now, forked = time.monotonic(), os.getpid() != self._pid
        if forked or (self._over() and not self.parting):
            # A forked child inherits the handler, but has nothing to drain; a worker that is no member finishes no more calls.
            signal.signal(number, signal.SIG_DFL)
            os.kill(os.getpid(), number)
        elif self._signalled == float("-inf"):
            self._signalled = now
            self.notice("SIGTERM")
        elif now - self._signalled > TWIN:
            os._exit(128 + number)


def _step_aside(_drain: Drain) -> None:
    """Move a data loader's process to a process group of its own; runs in every child of ``multiprocessing``.

    Else a SIGTERM to the whole group would kill that process, and the loader would raise in the training loop, which is about
    to finish its step. The loader ends its processes by itself, and they end when this process has ended.
    """
    target = getattr(multiprocessing.current_process(), "_target", None)
    if getattr(target, "__name__", "") == "_worker_loop":  # of torch's DataLoader, and of torchdata's
        os.setpgid(0, 0)
