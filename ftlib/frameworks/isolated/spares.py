"""Children of one kind: the next one is forked ahead, so that nobody waits for it."""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Callable
from typing import Generic, TypeVar

from consensus import CarefulLogger
from ftlib.errors import GroupError
from ftlib.frameworks.background import start_task

from .child_process import ChildProcess
from .nursery import Nursery

logger = CarefulLogger("ftlib")

_REST = 0.3
"""Seconds from a child's first order until the next one is forked: first whoever waits for the group has the processors."""

P = TypeVar("P", bound=ChildProcess)


class Spares(Generic[P]):
    """One spare child, and the nursery that it comes from. Any thread."""

    def __init__(self, nursery: Nursery, adopt: Callable[..., P], ready: Callable[[P], None]) -> None:
        """``adopt``: the handle of a fork, from what ``Nursery.fork`` returns and ``lost`` (see ``ChildProcess``).

        ``ready``: called with a child that becomes the spare one.
        """
        self._nursery, self._adopt, self._ready = nursery, adopt, ready
        self._changed = threading.Condition()
        self._spare: P | None = None
        self._forking = False
        """Both are guarded by ``_changed``."""
        self._closed = threading.Event()
        self.replaced = 0
        """Children that ended or hung though nobody had asked for that."""

    @property
    def closed(self) -> bool:
        """Whether it is closed, and gives nothing any more."""
        return self._closed.is_set()

    @property
    def pids(self) -> tuple[int, ...]:
        """Of what forks, and of the spare child."""
        spare = self._spare
        return tuple(filter(None, (self._nursery.pid, 0 if spare is None else spare.pid)))

    def take(self) -> P:
        """One that has done nothing yet: the spare one; another is forked later. GroupError where there is none."""
        with self._changed:
            spare, self._spare = self._spare, None
        if spare is None or not spare.usable:
            spare = self._fork()
        self._begin(self._fork_later)
        return spare

    def await_spare(self, timeout: float) -> P | None:
        """The spare one, which remains that; None if there is none within ``timeout`` seconds."""
        if not self._has_one():
            self._begin(self.fork_ahead)
        with self._changed:
            self._changed.wait_for(self._has_one, timeout)
            return self._spare if self._has_one() else None

    def take_this(self, child: P) -> bool:
        """Take ``child`` if it is the spare one still."""
        with self._changed:
            found = self._spare is child and child.usable
            if found:
                self._spare = None
        if found:
            self._begin(self._fork_later)
        return found

    def fork_ahead(self) -> None:
        """Have a spare one. A second one is not begun while one is being forked."""
        with self._changed:
            if self._closed.is_set() or self._has_one() or self._forking:
                return
            self._forking = True
        child = None
        try:
            child = self._fork()
        except GroupError:  # whoever needs one finds that out
            return
        finally:
            with self._changed:
                self._forking = False
                wanted = not self._closed.is_set() and not self._has_one()
                if wanted and child is not None:
                    self._spare = child
                self._changed.notify_all()
        if wanted:
            self._ready(child)
        else:
            child.kill("another one is there")

    def close(self) -> None:
        """End them. Idempotent."""
        self._closed.set()
        with self._changed:
            spare, self._spare = self._spare, None
            self._changed.notify_all()
        if spare is not None:
            spare.kill("closed")
        self._nursery.close()

    def _has_one(self) -> bool:
        return self._spare is not None and self._spare.usable

    def _fork(self) -> P:
        sock, pid, pidfd = self._nursery.fork()
        try:
            return self._adopt(sock, pid, pidfd, self._lost)
        except (OSError, RuntimeError) as error:  # no descriptor is left, or no thread
            sock.close()  # so it ends
            os.close(pidfd)
            raise GroupError(f"a process for a group cannot be used: {error}") from error

    def _begin(self, task: Callable[[], None]) -> None:
        """In the background."""
        with contextlib.suppress(RuntimeError):  # no thread can be had: whoever needs a child has it forked
            start_task("spare", task)

    def _fork_later(self) -> None:
        self._closed.wait(_REST)
        self.fork_ahead()

    def _lost(self, why: str) -> None:
        """A child has ended by itself, or hung."""
        if self._closed.is_set():
            return
        with self._changed:
            self.replaced += 1
        logger.warning("%s; another one takes its place", why, extra={"ftlib_event": "child_replaced"})
