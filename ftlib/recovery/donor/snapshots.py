"""Copy-on-write snapshots of a donor's state on entry to a call, for members that fetch the state while the donor trains on.

A thread starts to copy a range at once. An optimizer about to step (``barrier``) first copies the rest, as its step overwrites
the state. A digest is computed in the same way, without a copy. A change by any other code is detected, and fails the reading.

A range that is kept in this way is *pinned*, in log lines and errors too.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable, Collection, Hashable, Iterable, Sequence
from typing import Any

import torch
from torch.optim import Optimizer
from torch.utils.hooks import RemovableHandle

from ...common.memory import room
from ...common.threads import SYSTEM, Thread, Threads
from ...core.tensors.staging import Allocate
from ..layout.flat_state import FlatState
from ..layout.shards import Shard
from .buffer_pool import BufferPool
from .reading import Copying, Hashing, Reading, ReadingStage

PATIENCE = 10.0
"""Seconds that an optimizer waits for the other thread's unit; a reading that is not complete by then has failed."""
_RELEASED = "it was released"


class Snapshots:
    """The snapshots of one member in one lifetime. Thread-safe, except where a method says otherwise."""

    def __init__(self, threads: Threads = SYSTEM, allocate: Allocate = room) -> None:
        """Nothing is pinned, and no optimizer is watched. ``allocate``: returns memory for copies."""
        self._threads = threads
        self._changed = threads.condition()
        """Guards everything below. No thread reads the state while holding the lock."""
        self._copies: dict[Hashable, Copying] = {}
        """Copies by layout, range and version: joiners that need the same range share a copy."""
        self._of: dict[str, dict[tuple[int, int], Copying]] = {}
        """joiner -> (index, version) of a shard -> its copy."""
        self.state_bytes = 0
        """Size of the whole state of which parts were last pinned."""
        self._pool = BufferPool(threads, allocate)
        """Buffers for the copies; freed when nothing is pinned for any joiner."""
        self._todo: list[Reading] = []
        """Readings with units that no thread has taken."""
        self._begun: list[Reading] = []
        """All readings since the last step."""
        self._worker: Thread | None = None
        self._hooks: list[tuple[weakref.ref[Optimizer], RemovableHandle]] = []
        self._trainer: Thread | None = None
        """The thread that steps."""

    @property
    def nbytes(self) -> int:
        """Bytes of all copies, complete or not."""
        with self._changed:
            return sum(copy.data.numel() for copy in self._copies.values())

    # --- the training thread -------------------------------------------------------------------------------------------

    def watch(self, optimizers: Iterable[Optimizer]) -> None:
        """Make each of the ``optimizers`` call ``barrier`` before its steps. Idempotent. Only while none of them steps."""
        with self._changed:
            self._trainer = self._threads.current()
            self._hooks = [entry for entry in self._hooks if entry[0]() is not None]
            known = {id(entry[0]()) for entry in self._hooks}
            for optimizer in optimizers:
                if id(optimizer) not in known:
                    self._hooks.append((weakref.ref(optimizer), optimizer.register_step_pre_hook(_hook(weakref.ref(self)))))

    def barrier(self) -> None:
        """Wait until all begun readings are complete or failed: the state is about to change. Never raises."""
        with self._changed:
            if not self._begun:
                return
        deadline = self._threads.now() + PATIENCE
        while True:
            with self._changed:
                found = self._take()
                if found is None:
                    left = deadline - self._threads.now()
                    running = [reading for reading in self._begun if reading.running and reading.stage is ReadingStage.READING]
                    if running and left > 0:
                        self._changed.wait(left)
                        continue
                    for reading in running:
                        reading.fail(f"the thread that copies has not read its unit within {PATIENCE:g} s")
                    self._seal()
                    return
            self._read(*found)

    # --- threads that serve others -------------------------------------------------------------------------------------

    def arm(self, joiner: str, shards: Sequence[Shard], flat: FlatState, inside: int, keep: int | None = None) -> None:
        """Pin ``shards`` of ``flat`` for ``joiner``, in place of its shards of versions before ``keep`` (None: of all).

        ``inside``: the call that the training thread is in, and does not leave meanwhile: the state is as on entry to it.
        ValueError if a shard is of another version, or no part of the flat state.
        """
        layout = hash((flat.paths, flat.nbytes))
        if any(shard.version != inside for shard in shards):
            raise ValueError(f"the state is that on entry to call {inside}, and no other version can be pinned")
        with self._changed:
            former = self._of.get(joiner, {})
            mine = {} if keep is None else {key: copy for key, copy in former.items() if key[1] >= keep}
            found = [self._copies.get((layout, shard.start, shard.stop, inside)) for shard in shards]
            copies = [
                self._copying(flat, shard) if copy is None or copy.stage is ReadingStage.FAILED else copy
                for shard, copy in zip(shards, found, strict=True)
            ]
            self.state_bytes = flat.nbytes
            for shard, copy in zip(shards, copies, strict=True):
                key = (layout, shard.start, shard.stop, inside)
                if self._copies.get(key) is not copy:
                    self._copies[key] = copy
                    self._begin(copy)
                copy.joiners.add(joiner)
                mine[shard.index, inside] = copy
            self._of[joiner] = mine
            self._drop(joiner, [copy for copy in former.values() if copy not in mine.values()])
            self._wake()

    def expect(self, joiner: str, keep: int, nbytes: int) -> None:
        """Expect to pin ``nbytes`` soon for ``joiner``, which needs only its shards of versions from ``keep`` on."""
        with self._changed:
            former = self._of.get(joiner, {})
            old = [key for key in former if key[1] < keep]
            self._drop(joiner, [former.pop(key) for key in old])
        self._pool.prepare(nbytes)

    def data(self, joiner: str, index: int, version: int, patience: float = 0.0) -> torch.Tensor | None:
        """The bytes of a shard (uint8), read-only; None if they are not complete after ``patience`` seconds.

        LookupError says why they never will be.
        """
        deadline = self._threads.now() + patience
        with self._changed:
            while True:
                copy = self._of.get(joiner, {}).get((index, version))
                if copy is None:
                    raise LookupError(f"stripe {index} of version {version} is not pinned for {joiner}")
                if copy.stage is ReadingStage.FAILED:
                    raise LookupError(copy.why)
                if copy.stage is ReadingStage.DONE:
                    return copy.data
                left = deadline - self._threads.now()
                if left <= 0:
                    return None
                self._changed.wait(left)

    def digest(self, flat: FlatState, version: int, ranges: Iterable[tuple[int, int]]) -> Digest:
        """Digests of the ``ranges`` (start, stop), without a copy: an optimizer waits for the digests.

        ``version``: the call that the training thread is in, and does not leave meanwhile. ValueError if there are no such
        bytes.
        """
        hashings = [Hashing(flat, start, stop, version) for start, stop in ranges]
        with self._changed:
            for hashing in hashings:
                self._begin(hashing)
            self._wake()
        return Digest(self._changed, self._threads, hashings)

    def release(self, joiner: str) -> None:
        """Drop everything pinned for ``joiner``."""
        with self._changed:
            self._drop(joiner, list(self._of.pop(joiner, {}).values()))
            self._tidy()

    def keep_only(self, joiners: Collection[str]) -> None:
        """Drop everything pinned for other members than ``joiners``."""
        with self._changed:
            for joiner in [joiner for joiner in self._of if joiner not in joiners]:
                self.release(joiner)
            self._tidy()  # also if a joiner died before anything was pinned for it

    def forget(self) -> None:
        """Drop everything; waiting threads get a LookupError. On the training thread, remove the optimizers' hooks, too.

        On another thread the hooks stay, without effect: an optimizer may be calling them just now.
        """
        with self._changed:
            for reading in (*self._begun, *self._copies.values()):
                reading.fail("this member has given up its state, or left")
            self._todo, self._begun = [], []
            self._copies, self._of = {}, {}
            self._tidy()
            self._changed.notify_all()
            if self._trainer in (None, self._threads.current()):
                for _, handle in self._hooks:
                    handle.remove()
                self._hooks = []

    # --- with the lock held --------------------------------------------------------------------------------------------

    def _begin(self, reading: Reading) -> None:
        self._begun.append(reading)
        self._todo.append(reading)

    def _copying(self, flat: FlatState, shard: Shard) -> Copying:
        data = self._pool.take(shard.stop - shard.start)
        return Copying(flat, shard.start, shard.stop, shard.version, data)

    def _tidy(self) -> None:
        """Free the memory if no joiner is left."""
        if not self._of:
            self._pool.close()

    def _wake(self) -> None:
        """Start the thread if there is work for it."""
        if self._worker is None and self._todo:
            worker = self._threads.thread(self._work, "ftlib-snapshots")
            worker.start()  # RuntimeError if the process may have no more threads now: the next request tries again
            self._worker = worker

    def _take(self) -> tuple[Reading, tuple[int, int]] | None:
        """A unit to read."""
        while self._todo:
            for reading in self._todo:
                if (unit := reading.take()) is not None:
                    return reading, unit
            left = [reading for reading in self._todo if reading.left]
            if left == self._todo:
                return None
            self._todo = left
        return None

    def _seal(self) -> None:
        """Fail readings whose tensors changed meanwhile. Done last, as a change in progress shows only after its end."""
        for reading in self._begun:
            if reading.stage is ReadingStage.DONE and (why := reading.changed()):
                reading.fail(why)
        self._begun = []
        self._changed.notify_all()

    def _drop(self, joiner: str, copies: Iterable[Copying]) -> None:
        """The joiner needs these no more. Threads that wait for one look again."""
        for copy in copies:
            copy.joiners.discard(joiner)
            if not copy.joiners:
                copy.fail(_RELEASED)
        self._copies = {key: copy for key, copy in self._copies.items() if copy.stage is not ReadingStage.FAILED}
        self._begun = [reading for reading in self._begun if reading.stage is not ReadingStage.FAILED]
        self._changed.notify_all()

    # --- threads that read ---------------------------------------------------------------------------------------------

    def _read(self, reading: Reading, unit: tuple[int, int]) -> None:
        why = reading.work(unit)
        with self._changed:
            reading.finish(why)
            self._changed.notify_all()

    def _work(self) -> None:
        """Read until nothing is left.

        Runs at normal priority: an optimizer waits for the unit in hand, and would wait longer for a thread of low priority.
        """
        while True:
            with self._changed:
                found = self._take()
                if found is None:
                    self._worker = None
                    return
            self._read(*found)


class Digest:
    """Digests that are being computed."""

    def __init__(self, changed: threading.Condition, threads: Threads, hashings: Sequence[Hashing]) -> None:
        self._changed, self._threads, self._hashings = changed, threads, hashings

    def result(self, patience: float = 0.0) -> list[bytes] | None:
        """16 bytes for each range; None if incomplete after ``patience`` seconds. LookupError says why they failed."""
        deadline = self._threads.now() + patience
        with self._changed:
            while True:
                for hashing in self._hashings:
                    if hashing.stage is ReadingStage.FAILED:
                        raise LookupError(hashing.why)
                if all(hashing.stage is ReadingStage.DONE for hashing in self._hashings):
                    return [hashing.digest for hashing in self._hashings]
                left = deadline - self._threads.now()
                if left <= 0:
                    return None
                self._changed.wait(left)


def _hook(copies: weakref.ref[Snapshots]) -> Callable[..., Any]:
    """The hook that an optimizer calls before it steps; without effect once ``Snapshots`` is gone."""

    def barrier(*_: object) -> None:
        found = copies()
        if found is not None:
            found.barrier()

    return barrier
