"""The lifetimes of one worker, one after the other: whether a lifetime that ended has a successor, and when.

With the setting ``rejoin``, an excluded member may join again in the same process, as a new member. It does so within the call
that would raise ``Excluded``, which then is the new lifetime's first call. The program computed its part of that call on
outdated weights, so the part counts with weight 0, as for every joiner, and the state comes from the others.

A member that is excluded again and again costs the others seconds each time, so it rests longer and longer between two
lifetimes, and after ``_MOST`` in a row gives up.
"""

from __future__ import annotations

import threading
import time

from consensus import LeftError

from ..core.calls.call import Call
from ..core.engine.call_lock import CallLock
from ..core.plane.phase import Phase
from ..errors import Excluded, FTLibError
from ..status import Status
from .lifetime import CLOSE_TIMEOUT, Lifetime

_STEADY = 60.0
"""Seconds from the beginning of a lifetime after which its end begins a new row."""
_MOST = 8
"""Rejoins in a row."""
_REST, _LONGEST_REST = 0.5, 8.0
"""Seconds before the second rejoin in a row, doubled for each further one; and the most seconds."""


class Rejoin:
    """Owns ``life``, the lifetime that calls are carried out in."""

    def __init__(self, first: Lifetime, call_lock: CallLock, *, rejoin: bool) -> None:
        """``rejoin``: whether there is another one after the first."""
        self.life = first
        self._call_lock = call_lock
        self._rejoin = rejoin
        self._coming: Lifetime | None = None
        """The next lifetime, while it has begun but not met the job yet."""
        self._changing = threading.RLock()  # a signal handler may close in the middle of a change
        self._row = 0
        self._began = time.monotonic()

    @property
    def over(self) -> bool:
        """Whether this worker is no member: it left, or the others went on without it and its call has ended."""
        return self._call_lock.departed or (self.life.plane.phase is Phase.STOPPED and not self._call_lock.carrying)

    def wake(self) -> None:
        """Make every thread that waits in a lifetime check again whether this worker has to go."""
        with self._changing:
            lives = [life for life in (self.life, self._coming) if life is not None]
        for life in lives:
            with life.plane.changed:
                life.plane.changed.notify_all()

    def carry_on(self, call: Call, error: Excluded) -> Status:
        """Finish ``call``, this lifetime's last, in the next one; this thread has the call lock. Excluded if there is none."""
        while True:
            if not self._rejoin or self.life.plane.error is not error:
                raise error
            excluded = str(error)
            error.__traceback__ = None  # its frames would keep the old lifetime alive, and that keeps the error
            if not self._succeeded(excluded):
                return Status.ABORT
            call.anew()
            try:
                return self.life.run(call)
            except Excluded as another:
                error = another

    def goodbye(self, timeout: float, *, ended: bool) -> None:
        """Leave. ``CallLock.departed`` is set before, so that no further lifetime begins. ``ended``: the program has ended."""
        with self._changing:
            life, coming = self.life, self._coming
        if coming is not None:
            coming.end()
        life.goodbye(timeout, ended=ended)

    # --- in a call -----------------------------------------------------------------------------------------------------

    def _succeeded(self, excluded: str) -> bool:
        """Begin the next lifetime. True if it has met the job, False if the program leaves; Excluded if there is none."""
        life = self.life
        if not life.plane.has_state:
            raise Excluded(
                f"{excluded}; to rejoin, this worker needs register_state(model=..., optimizer=...): what it has is outdated"
            )
        self._rest(excluded)
        if self._coming is not None:
            self._coming.end()  # an interrupt had prevented its end
        life.goodbye(CLOSE_TIMEOUT, ended=False)
        life.end()
        coming = life.anew(excluded)
        if coming is None:
            raise Excluded(f"{excluded}; {type(life.consensus).__name__} cannot rejoin: start this worker anew")
        try:
            self._coming = coming  # before ``departed`` is read: ``goodbye`` ends the coming lifetime
            if not self._call_lock.departed:
                coming.begin()
                self._take_over(coming)
        except LeftError:
            pass
        except FTLibError as error:
            raise Excluded(f"{excluded}; rejoining failed: {error}") from error
        finally:
            if self.life is not coming:
                coming.end()
            self._coming = None
        return self.life is coming

    def _take_over(self, coming: Lifetime) -> None:
        with self._changing:
            if not self._call_lock.departed:
                self.life = coming
                coming.plane.counters.rejoins += 1

    def _rest(self, excluded: str) -> None:
        """Count this lifetime's end, and wait before the next begins."""
        now = time.monotonic()
        if now - self._began > _STEADY:
            self._row = 0
        if self._row == _MOST:
            raise Excluded(
                f"{excluded}; it has rejoined {_MOST} times in a row, at most {_STEADY:g} s each: see to its host and network, "
                "or raise exclude_after"
            )
        if self._row:
            self._call_lock.rest(min(_LONGEST_REST, _REST * 2 ** (self._row - 1)))
        self._row += 1
        self._began = time.monotonic()
