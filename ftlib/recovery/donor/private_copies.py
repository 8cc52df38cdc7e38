"""Copies of a donor's private state, made by its training thread where that state is at rest.

Private state changes while the program computes, so another thread cannot read it. The training thread copies it at a *border*:
before a step of the first private optimizer, where nothing of the step before is under way any more, and in ``ft.catch_up``.
Between two borders another thread makes the buffers and touches them: the program waits for nothing but the copy.
"""

from __future__ import annotations

import functools
import weakref
from collections.abc import Callable, Collection
from typing import Any

from consensus import CarefulLogger

from ...common.device_waits import Fence
from ...common.devices import place_of
from ...common.threads import stand_back
from ...core.plane.phase import Phase
from ...core.plane.plane import Plane
from ...errors import FTLibError
from ...state.codec import fill, flatten
from ...state.registry import Registered
from ...state.replay import replaying
from ...state.snapshot import Backup, Blank
from ..layout.requests import Failures, in_words

logger = CarefulLogger("ftlib")

_SMALL = 4 << 20
"""Bytes that are copied at once: to make such buffers takes no longer than to ask for them."""
_KEPT = 10.0
"""Seconds for which a copy is kept for a joiner that has been answered "ask again"."""
_TRIES = 3
"""Borders at which the state may turn out to have grown, before it is copied at any cost."""


class PrivateCopy:
    """One joiner's copy. Its fields are guarded by the plane's lock; what they hold is owned by one thread at a time."""

    def __init__(self) -> None:
        """Nothing is copied yet."""
        self.version = 0
        """The call before which it was copied; 0: not yet."""
        self.until = 0.0
        """When nobody is expected to ask for it any more."""
        self.part: Any = None
        """Of ``Private.part``."""
        self.refusal: Exception | None = None
        """Why there is none, instead: a RefusalError if the state holds what cannot travel."""
        self.nbytes = 0
        self.fence: Fence | None = None
        """Other threads may read the registered state on devices after that."""
        self._backup = Backup()
        self.lacks: dict[str, Blank] | None = None
        """The buffers that another thread is making. The training thread leaves the copy alone meanwhile."""
        self._tries = 0

    def prepare(self, plane: Plane) -> None:
        """Make the buffers that it lacks. On a thread of its own."""
        stand_back()
        assert self.lacks is not None
        try:
            self._backup.prepare(self.lacks)
        except Exception as error:  # noqa: BLE001 - a later border copies without them, and says why it cannot
            logger.debug("no buffers for a copy of the private state: %s", in_words(error), extra=plane.about("no_buffers"))
        finally:
            self.leave(plane)

    def leave(self, plane: Plane) -> None:
        """No thread makes its buffers any more: the next border goes on."""
        with plane.changed:
            self.lacks = None

    def make(self, registered: Registered, version: int, failures: Failures) -> None:
        """Copy the private state, or note what buffers that takes, or why it cannot be had. On the training thread."""
        self.refusal = None
        try:
            self._make(registered, version)
        except Exception as error:  # noqa: BLE001 - the joiner is told; the training goes on without it
            self.refusal = failures.refusal(error) or FTLibError(in_words(error))  # not the error, which holds frames
            self.version = version

    # --- inside --------------------------------------------------------------------------------------------------------

    def _make(self, registered: Registered, version: int) -> None:
        private = registered.private
        assert private is not None
        packed, tensors = flatten(private.part() if private.travels else {})
        self.nbytes = sum(tensor.numel() * tensor.element_size() for tensor in tensors.values())
        if self.nbytes > _SMALL and self._tries < _TRIES and not self._backup.prepared(tensors):
            self._tries += 1
            self.lacks = {path: Blank.of(tensor) for path, tensor in tensors.items()}
            return
        self.part = fill(packed, self._backup.copy(tensors).values())
        places = {*registered.places(), *map(place_of, tensors.values())}
        self.fence = Fence(sorted(filter(None, places))) if any(places) else None
        self.version = version


class PrivateCopies:
    """The copies of one member. The hook, ``at_border`` and what it calls run on the training thread."""

    def __init__(self, plane: Plane, failures: Failures) -> None:
        """Nobody asks for any. ``failures``: of this donor."""
        self._plane = plane
        self._failures = failures
        self._registered: Registered | None = None
        self._remove: Callable[[], None] | None = None
        """Removes the hook from the private optimizer."""
        self._wanted: dict[str, PrivateCopy] = {}
        """By joiner. Guarded by the plane's lock."""

    def watch(self, registered: Registered) -> None:
        """The program has registered this: from now on each step of its first private optimizer is a border."""
        self.close()
        self._registered = registered
        optimizer = None if registered.private is None else registered.private.first_optimizer
        if optimizer is not None:
            here = weakref.ref(self)  # the program's optimizer must not keep a lifetime that is over

            def border(*_step: Any) -> None:
                copies = here()
                if copies is not None and not replaying():
                    copies.at_border()

            self._remove = optimizer.register_step_pre_hook(border).remove

    def close(self) -> None:
        """Watch nothing any more, and drop all copies. Idempotent."""
        remove, self._remove = self._remove, None
        if remove is not None:
            remove()
        if self._wanted:
            with self._plane.changed:
                self._wanted.clear()

    def keep_only(self, joiners: Collection[str]) -> None:
        """Drop the copies for members that are gone."""
        if not self._wanted:
            return
        with self._plane.changed:
            self._wanted = {joiner: copy for joiner, copy in self._wanted.items() if joiner in joiners}

    # --- the training thread -------------------------------------------------------------------------------------------

    def at_border(self) -> None:
        """The program has come to a border: make the copies that are asked for."""
        plane, registered = self._plane, self._registered
        plane.at_border()
        if not self._wanted or registered is None or registered.private is None:
            return
        version = plane.finished + 1
        if not plane.settled(version):
            return  # within a unit: its function may have changed everything
        with plane.changed:
            now = plane.threads.now()
            self._wanted = {joiner: copy for joiner, copy in self._wanted.items() if copy.until > now}
            copies = [copy for copy in self._wanted.values() if copy.lacks is None and copy.version != version]
        for copy in copies:
            copy.make(registered, version, self._failures)
            if copy.lacks is not None:
                try:
                    plane.threads.thread(functools.partial(copy.prepare, plane), "ftlib-private").start()
                except RuntimeError:  # no thread for it now: the next border tries again, and at last does without buffers
                    copy.leave(plane)
        if copies:
            with plane.changed:
                plane.changed.notify_all()

    # --- a thread that serves a joiner ---------------------------------------------------------------------------------

    def of(self, joiner: str, version: int, timeout: float, instead: Callable[[], bool]) -> PrivateCopy | None:
        """A copy as of a border before call ``version``; None if it is not there in time, or once ``instead`` is true.

        Ask again for it. ``instead`` is called with the plane's lock held.
        """
        plane = self._plane
        with plane.changed:
            copy = self._wanted.setdefault(joiner, PrivateCopy())
            copy.until = plane.threads.now() + timeout + _KEPT
            plane.changed.wait_for(
                lambda: copy.version == version or instead() or plane.phase is Phase.STOPPED or joiner not in self._wanted,
                timeout,
            )
            gone = instead() or plane.phase is Phase.STOPPED or self._wanted.get(joiner) is not copy
            return copy if copy.version == version and not gone else None

    def drop(self, joiner: str, copy: PrivateCopy | None) -> None:
        """The joiner has this copy, or needs none any more."""
        with self._plane.changed:
            if copy is None or self._wanted.get(joiner) is copy:
                self._wanted.pop(joiner, None)
