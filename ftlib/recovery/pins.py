"""What a donor keeps of its state on entry to a call, for those who fetch it while it trains on.

A range is *pinned* by being copied before the next optimizer step changes it. A thread of its own begins at once; an optimizer
about to step (``barrier``) helps with what is left, and then goes on. A digest is the same without a copy. What anything else
changes meanwhile is noticed, and fails what was read of it.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable, Collection, Hashable, Iterable, Sequence
from typing import Any

import torch
from torch.optim import Optimizer
from torch.utils.hooks import RemovableHandle

from ..threads import SYSTEM, Thread, Threads
from .flat import Ground
from .reading import Copying, Hashing, Reading, Stage
from .rooms import Rooms
from .stripes import Stripe

__all__ = ["Digest", "Pins"]

PATIENCE = 10.0
"""Seconds that an optimizer waits for the other thread's unit; what is not read by then has failed."""
_RELEASED = "it was released"


class Pins:
    """One a lifetime. Any thread may call anything, but for what says otherwise."""

    def __init__(self, threads: Threads = SYSTEM) -> None:
        """Nothing is pinned, and no optimizer is watched."""
        self._threads = threads
        self._changed = threads.condition()
        """Guards all below. Nobody reads the state while holding it."""
        self._pins: dict[Hashable, Copying] = {}
        """By what is copied, for all who need that."""
        self._of: dict[str, dict[tuple[int, int], Copying]] = {}
        """joiner -> (index, version) of a stripe -> its pin."""
        self.state_bytes = 0
        """Of all of the state, parts of which were pinned last."""
        self._rooms = Rooms(threads)
        """Where copies are made; given back when nothing is pinned for anybody."""
        self._todo: list[Reading] = []
        """Those with units that nobody has taken."""
        self._begun: list[Reading] = []
        """All since the last step."""
        self._worker: Thread | None = None
        self._hooks: list[tuple[weakref.ref[Optimizer], RemovableHandle]] = []
        self._trainer: Thread | None = None
        """Who steps."""

    @property
    def nbytes(self) -> int:
        """Memory that is held, or will be once all is copied."""
        with self._changed:
            return sum(pin.data.numel() for pin in self._pins.values())

    # --- the training thread -------------------------------------------------------------------------------------------

    def watch(self, optimizers: Iterable[Optimizer]) -> None:
        """From now on, each of them calls ``barrier`` before it steps. Idempotent; while none of them steps."""
        with self._changed:
            self._trainer = self._threads.current()
            self._hooks = [entry for entry in self._hooks if entry[0]() is not None]
            known = {id(entry[0]()) for entry in self._hooks}
            for optimizer in optimizers:
                if id(optimizer) not in known:
                    self._hooks.append((weakref.ref(optimizer), optimizer.register_step_pre_hook(_hook(weakref.ref(self)))))

    def barrier(self) -> None:
        """Return once all that has begun is read: the state is about to change. Never raises."""
        with self._changed:
            if not self._begun:
                return
        deadline = self._threads.now() + PATIENCE
        while True:
            with self._changed:
                found = self._take()
                if found is None:
                    left = deadline - self._threads.now()
                    running = [reading for reading in self._begun if reading.running and reading.stage is Stage.READING]
                    if running and left > 0:
                        self._changed.wait(left)
                        continue
                    for reading in running:
                        reading.fail(f"the thread that copies has not read its unit within {PATIENCE:g} s")
                    self._seal()
                    return
            self._read(*found)

    # --- who serves others ---------------------------------------------------------------------------------------------

    def arm(self, joiner: str, stripes: Sequence[Stripe], ground: Ground, inside: int, keep: int | None = None) -> None:
        """Pin ``stripes`` of ``ground`` for ``joiner``, instead of what it has, but for versions from ``keep`` on.

        ``inside``: the call that the training thread is in, and does not leave meanwhile: the state is that on entry to it.
        ValueError where a stripe is of another version, or no part of the ground.
        """
        layout = hash((ground.paths, ground.nbytes))
        if any(stripe.version != inside for stripe in stripes):
            raise ValueError(f"the state is that on entry to call {inside}, and no other version can be pinned")
        with self._changed:
            former = self._of.get(joiner, {})
            mine = {} if keep is None else {key: pin for key, pin in former.items() if key[1] >= keep}
            found = [self._pins.get((layout, stripe.start, stripe.stop, inside)) for stripe in stripes]
            pins = [
                self._copying(ground, stripe) if pin is None or pin.stage is Stage.FAILED else pin
                for stripe, pin in zip(stripes, found, strict=True)
            ]
            self.state_bytes = ground.nbytes
            for stripe, pin in zip(stripes, pins, strict=True):
                key = (layout, stripe.start, stripe.stop, inside)
                if self._pins.get(key) is not pin:
                    self._pins[key] = pin
                    self._begin(pin)
                pin.joiners.add(joiner)
                mine[stripe.index, inside] = pin
            self._of[joiner] = mine
            self._drop(joiner, [pin for pin in former.values() if pin not in mine.values()])
            self._wake()

    def expect(self, joiner: str, keep: int, nbytes: int) -> None:
        """So much will soon be pinned for ``joiner``, which needs what it has of versions from ``keep`` on, and no other."""
        with self._changed:
            former = self._of.get(joiner, {})
            old = [key for key in former if key[1] < keep]
            self._drop(joiner, [former.pop(key) for key in old])
        self._rooms.prepare(nbytes)

    def data(self, joiner: str, index: int, version: int, patience: float = 0.0) -> torch.Tensor | None:
        """The bytes of a stripe (uint8), to be read alone; None while they are not complete, after ``patience`` seconds.

        LookupError says why there will be none.
        """
        deadline = self._threads.now() + patience
        with self._changed:
            while True:
                pin = self._of.get(joiner, {}).get((index, version))
                if pin is None:
                    raise LookupError(f"stripe {index} of version {version} is not pinned for {joiner}")
                if pin.stage is Stage.FAILED:
                    raise LookupError(pin.why)
                if pin.stage is Stage.DONE:
                    return pin.data
                left = deadline - self._threads.now()
                if left <= 0:
                    return None
                self._changed.wait(left)

    def digest(self, ground: Ground, version: int, ranges: Iterable[tuple[int, int]]) -> Digest:
        """Digests of the ``ranges`` (start, stop), without a copy: an optimizer waits for them.

        ``version``: the call that the training thread is in, and does not leave meanwhile. ValueError where there are no such
        bytes.
        """
        hashings = [Hashing(ground, start, stop, version) for start, stop in ranges]
        with self._changed:
            for hashing in hashings:
                self._begin(hashing)
            self._wake()
        return Digest(self._changed, self._threads, hashings)

    def release(self, joiner: str) -> None:
        """Let go of what was pinned for ``joiner``."""
        with self._changed:
            self._drop(joiner, list(self._of.pop(joiner, {}).values()))
            self._tidy()
            self._changed.notify_all()

    def keep_only(self, joiners: Collection[str]) -> None:
        """Let go of what was pinned for anybody else."""
        with self._changed:
            for joiner in [joiner for joiner in self._of if joiner not in joiners]:
                self.release(joiner)
            self._tidy()  # for those who died before they had anything

    def forget(self) -> None:
        """Let go of everything; who waits is told. On the training thread, optimizers are watched no more.

        Elsewhere their hooks stay, and do nothing: one may just be going through them.
        """
        with self._changed:
            for reading in (*self._begun, *self._pins.values()):
                reading.fail("this member has given up its state, or left")
            self._todo, self._begun = [], []
            self._pins, self._of = {}, {}
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

    def _copying(self, ground: Ground, stripe: Stripe) -> Copying:
        room = self._rooms.take(stripe.stop - stripe.start)
        return Copying(ground, stripe.start, stripe.stop, stripe.version, room)

    def _tidy(self) -> None:
        """Keep no memory for nobody."""
        if not self._of:
            self._rooms.close()

    def _wake(self) -> None:
        """See to it that there is a thread where there is work."""
        if self._worker is None and self._todo:
            self._worker = self._threads.thread(self._work, "ftlib-pins")
            self._worker.start()
        self._changed.notify_all()

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
        """Whatever was read: has it been the same all the time? A change shows when it is over, and not before."""
        for reading in self._begun:
            if reading.stage is Stage.DONE and (why := reading.changed()):
                reading.fail(why)
        self._begun = []
        self._changed.notify_all()

    def _drop(self, joiner: str, pins: Iterable[Copying]) -> None:
        for pin in pins:
            pin.joiners.discard(joiner)
            if not pin.joiners:
                pin.fail(_RELEASED)
        self._pins = {key: pin for key, pin in self._pins.items() if pin.stage is not Stage.FAILED}
        self._begun = [reading for reading in self._begun if reading.stage is not Stage.FAILED]

    # --- whoever reads -------------------------------------------------------------------------------------------------

    def _read(self, reading: Reading, unit: tuple[int, int]) -> None:
        why = reading.work(unit)
        with self._changed:
            reading.finish(why)
            self._changed.notify_all()

    def _work(self) -> None:
        """Read until nothing is left.

        At the usual priority: an optimizer waits for the unit in hand, and would wait longer for a thread that comes last.
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
        """16 bytes for each range; None while they are not complete, after ``patience`` seconds. LookupError says why not."""
        deadline = self._threads.now() + patience
        with self._changed:
            while True:
                for hashing in self._hashings:
                    if hashing.stage is Stage.FAILED:
                        raise LookupError(hashing.why)
                if all(hashing.stage is Stage.DONE for hashing in self._hashings):
                    return [hashing.digest for hashing in self._hashings]
                left = deadline - self._threads.now()
                if left <= 0:
                    return None
                self._changed.wait(left)


def _hook(pins: weakref.ref[Pins]) -> Callable[..., Any]:
    """What an optimizer calls before it steps, for as long as there are pins."""

    def barrier(*_: object) -> None:
        found = pins()
        if found is not None:
            found.barrier()

    return barrier
