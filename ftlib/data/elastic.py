"""What every elastic sampler is: a loop for a loader, its part in the calls, the replicated state; whatever it deals.

``ElasticSampler`` deals the indices of a dataset, ``ElasticStream`` the records of shards. Both deal *positions* of an
epoch, of which only the order says what they stand for.
"""

from __future__ import annotations

import itertools
import operator
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch.utils.data

from consensus import CarefulLogger

from ..errors import ConfigError, RebuildTimeout
from . import unregistered
from .dealing.ledger import Entry
from .dealing.ranges import Ranges, length
from .dealing.replica import Replica
from .drawer import FILLER, Drawer
from .drift import Drift
from .sampling import Share

logger = CarefulLogger("ftlib")


class Order(Protocol):
    """What the positions of one epoch stand for."""

    @property
    def epoch(self) -> int:
        """The epoch."""

    def indices(self, positions: Ranges) -> list[Any]:
        """Return what the loader's dataset is asked for, one for each position that exists."""


class _CallEndlessError(Exception):
    """The call under way did not end while a draw waited for it."""


@dataclass(frozen=True, slots=True)
class LedgerRow:
    """The samples that one member used up in one call."""

    epoch: int
    step: int
    """``ft.step`` after the call."""
    member: str
    """The member's id, as in ``ft.view``; its replica's name where that has several processes."""
    indices: list[int]
    """Indices in the dataset, in the order of the batch."""
    granted: bool = True
    """False: the call granted no step, since its result held inf or nan; its samples count as seen."""


class Elastic(torch.utils.data.Sampler[list[Any]]):
    """Deals each position of an epoch to one member of a job. Thread-safe. One loop over it at a time."""

    def __init__(self, fresh: Replica, made: Mapping[str, Any], filler: list[Any], order: Callable[[int], Order]) -> None:
        """``fresh``: the state before any epoch. ``made``: the arguments, which have to be the same at every member.

        ``filler``: what the loader's dataset is asked for where there is nothing to draw. ``order``: returns an epoch's order.
        """
        self._made, self._filler, self._make_order = dict(made), filler, order
        self._drawer = Drawer(fresh, measure=self._existing, ends=self._ended)
        self._changed = threading.Condition()
        self._cached: Order | None = None
        self._asked: int | None = None
        self._loop: _Loop | None = None
        self._caller = 0
        """The thread whose call is under way."""
        self._patience = 600.0
        self._blocking: Callable[[], str] = str
        self._failure: Exception | None = None
        """The reason why nothing can be drawn any more; None: drawing is possible."""
        self._drift = Drift()

    # --- the program ---------------------------------------------------------------------------------------------------

    def set_epoch(self, epoch: int) -> None:
        """Choose the data epoch of the next loop. An epoch before the job's gives an empty loop; the job's is continued."""
        with self._changed:
            self._asked = integer("epoch", epoch, 0)

    def epochs(self, count: int) -> Iterator[int]:
        """Yield the data epochs below ``count`` that are left, and set each: ``for epoch in sampler.epochs(10):``.

        A joiner gets 0 first, since it does not know yet where the job is: its first loop is over the job's epoch, which the
        property ``epoch`` gives.
        """
        last = -1
        while True:
            with self._changed:
                epoch = max(self._drawer.upcoming(), last + 1)
                if epoch >= count:
                    return
                self._asked = last = epoch
            yield epoch

    @property
    def epoch(self) -> int:
        """The data epoch of the loop under way, or of the last one; -1 before the first one.

        At a joiner it is -1 until its first call has returned, and then the job's epoch, whatever ``epochs`` has yielded. So a
        program that does something in certain epochs compares this property.
        """
        with self._changed:
            return self._drawer.looped

    def counts(self, batch: int = 0) -> int:
        """Count the samples that matter in a batch of the loader. ``batch``: its index since the last call, from 0 on.

        0: a filler, or none was drawn. Calls of several batches need this, so that fillers add nothing to their gradients.
        """
        with self._changed:
            return self._drawer.counts(integer("batch", batch, 0))

    def ledger(self, epoch: int | None = None) -> Iterator[LedgerRow]:
        """Return the samples that calls used up so far, of the current epoch or the one before, in the order of steps.

        A joiner knows the current epoch from its beginning on, and none before. Raises ConfigError if ``epoch`` is not known.
        """
        with self._changed:
            books = self._drawer.ledgers
            chosen = max(books, default=0) if epoch is None else epoch
            if chosen not in books:
                if epoch is None:
                    return iter(())
                raise ConfigError(f"no ledger of epoch {epoch}: kept are those of {sorted(books)}")
            entries = iter(books[chosen])
        return self._rows(chosen, entries)

    def __len__(self) -> int:
        """Count the batches that a loop over this epoch hands out at every member, as far as that is known now."""
        with self._changed:
            return self._drawer.batches(self._asked)

    def __iter__(self) -> Iterator[list[int]]:
        """Return a loop; it begins when its first batch is asked for."""
        return _Loop(self._draw)

    # --- the calls: see ``Sampling`` -----------------------------------------------------------------------------------

    def bind(self, drawer: str, *, patience: float = 600.0, together: bool = False, blocking: Callable[[], str] = str) -> None:
        """See ``Sampling``. ``patience``: seconds that a draw waits for a call's end."""
        with self._changed:
            self._patience, self._blocking, self._failure = patience, blocking, None
            self._drawer.bind(drawer, together=together)
            unregistered.bound(self)
            self._changed.notify_all()

    def found(self, drawers: Sequence[str]) -> None:
        """See ``Sampling``."""
        with self._changed:
            self._drawer.found(drawers)

    def begin(self, batches: int, *, beside: int = 0, kept: bool = False) -> Share:
        """See ``Sampling``."""
        with self._changed:
            self._caller = threading.get_ident()
            return self._drawer.begin(batches, beside=beside, kept=kept)

    def weight(self, batches: int) -> float:
        """See ``Sampling``."""
        with self._changed:
            return self._drawer.weight(batches)

    def follow(self) -> Share:
        """See ``Sampling``."""
        with self._changed:
            return self._drawer.follow()

    def late(self) -> Share:
        """See ``Sampling``."""
        with self._changed:
            return self._drawer.late()

    @property
    def loops(self) -> int:
        """See ``Sampling``."""
        with self._changed:
            return self._drawer.loops

    @property
    def closing(self) -> bool:
        """See ``Sampling``."""
        with self._changed:
            return self._drawer.closing

    @property
    def complete(self) -> bool:
        """See ``Sampling``."""
        with self._changed:
            return self._drawer.complete

    def finished(self, shares: Mapping[str, Share], step: int) -> None:
        """See ``Sampling``."""
        with self._changed:
            drift = self._drift.of(self._drawer.attempts, self._drawer.using)
            self._drawer.finished(shares, step)
            self._changed.notify_all()
        if drift is not None:
            logger.warning(
                "the loader handed out %+d batches compared with those that calls used up: pass batches= to allreduce_average "
                "(how many it is made of), and weight=0 for a batch that shall not count, instead of leaving the call out; and "
                "give the loader this sampler as batch_sampler=, not as sampler=",
                drift,
                extra={"event": "batches_adrift"},
            )

    def left_behind(self, shares: Mapping[str, Share], step: int, batches: int) -> bool:
        """See ``Sampling``."""
        with self._changed:
            return self._drawer.left_behind(shares, step, batches)

    def unfinished(self) -> None:
        """See ``Sampling``."""
        with self._changed:
            self._drawer.unfinished()
            self._changed.notify_all()

    def ahead(self, own: Share | None = None) -> Sequence[bool]:
        """See ``Sampling``."""
        with self._changed:
            return self._drawer.ahead(own)

    def level(self, ahead: Sequence[bool]) -> None:
        """See ``Sampling``."""
        with self._changed:
            self._drawer.level(ahead)

    def report(self) -> bytes:
        """See ``Sampling``."""
        with self._changed:
            return self._drawer.report()

    def activated(self, drawers: Sequence[str], reports: Mapping[str, Sequence[bytes]]) -> None:
        """See ``Sampling``."""
        with self._changed:
            self._drawer.activated(drawers, reports)

    def thawed(self, error: Exception | None = None) -> None:
        """See ``Sampling``."""
        with self._changed:
            self._drawer.thawed()
            self._failure = error
            self._changed.notify_all()

    # --- the state -----------------------------------------------------------------------------------------------------

    def state_dict(self) -> dict[str, Any]:
        """Copy the replicated state: the epoch, its deal, its ledger. Plain values, about 1 KB."""
        with self._changed:
            return {"made": dict(self._made), **self._drawer.state_dict()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take over such a state. Batches drawn meanwhile count nothing. Raises ConfigError if it is of another sampler."""
        made = state.get("made") if isinstance(state, Mapping) else None
        if not isinstance(made, Mapping):
            raise ConfigError(f"this is no state of an {type(self).__name__}")
        for name, value in self._made.items():
            if made.get(name) != value:
                raise ConfigError(self._difference(name, made.get(name), value))
        with self._changed:
            self._drawer.load_state_dict(state)

    # --- inside --------------------------------------------------------------------------------------------------------

    def _draw(self, loop: _Loop) -> list[int] | None:
        try:
            batch, state = self._drawn(loop)
        except _CallEndlessError:  # without the lock: calls take it with one of their own, which the words need
            whom = f"; {text}" if (text := self._blocking()) else ""
            raise RebuildTimeout(f"no batch was drawn for {self._patience:g} s: the call under way did not end{whom}") from None
        if batch is None:
            return None
        if batch is FILLER or state is None:
            return list(self._filler)
        return self._order(state.epoch).indices(batch)

    def _drawn(self, loop: _Loop) -> tuple[Any, Any]:
        """The next batch, and the state that it was drawn from. ``_CallEndlessError`` if a call does not end."""
        with self._changed:
            begins = self._loop is None or loop.number > self._loop.number
            self._outside(begins=begins)
            if begins:
                self._drawer.start(self._asked)
                if not self._drawer.bound:
                    unregistered.read(self)
                self._loop = loop
                self._drift = Drift()
            elif loop is not self._loop:
                raise ConfigError(f"another loop over this {type(self).__name__} has begun since: use one at a time")
            return self._drawer.draw(), self._drawer.state

    def _outside(self, *, begins: bool) -> None:
        """Wait until no call is under way, since a call has reported to the others how many batches are drawn; unless the call
        is one beside which the program goes on with its loop. ``begins``: a loop does.
        """
        until = time.monotonic() + self._patience
        while (self._drawer.calling if begins else self._drawer.holding) and self._failure is None:
            if self._caller == threading.get_ident():
                what = (
                    f"a loop over an {type(self).__name__} was begun"
                    if self._drawer.calling and begins
                    else "a batch was asked for"
                )
                raise ConfigError(f"{what} from within a call of ft: do that before or after")
            if not self._changed.wait(until - time.monotonic()):
                raise _CallEndlessError
        if self._failure is not None:
            raise self._failure

    def _order(self, epoch: int) -> Order:
        """Return the order of an epoch that is drawn from. Called without the lock, so that no call waits; caches one order."""
        order = self._cached
        if order is None or order.epoch != epoch:
            order = self._cached = None
            order = self._cached = self._make_order(epoch)
        return order

    def _rows(self, epoch: int, entries: Iterator[Entry]) -> Iterator[LedgerRow]:
        order = self._cached
        if order is None or order.epoch != epoch:
            order = self._make_order(epoch)
        row: LedgerRow | None = None
        for entry in entries:
            indices = order.indices(((entry.start, entry.stop),))
            if not indices:  # beyond the end of a shard
                continue
            key = (entry.step, entry.member, entry.granted)
            if row is not None and (row.step, row.member, row.granted) == key:
                row.indices.extend(indices)
            else:
                if row is not None:
                    yield row
                row = LedgerRow(epoch, entry.step, entry.member, indices, entry.granted)
        if row is not None:
            yield row

    def _existing(self, epoch: int, batch: Ranges) -> int:
        """Count the positions of a batch that stand for something, as far as is known."""
        del epoch
        return length(batch)

    def _ended(self, epoch: int, batch: Ranges) -> int | None:
        """Return a position from which on a part of the epoch does not exist, as was found by reading ``batch``, or None."""
        del epoch, batch
        return None

    def _difference(self, name: str, theirs: Any, own: Any) -> str:
        """Say what is wrong with a state that was made with another value of an argument."""
        return f"the state was made with {name}={theirs!r}, this {type(self).__name__} has {own!r}: pass the same everywhere"


class _Loop(Iterator[list[int]]):
    """One loop. It may give batches after its end: a loader with workers asks again while batches are outstanding."""

    _numbers = itertools.count(1)
    """Numbers all loops of this process."""

    def __init__(self, draw: Callable[[_Loop], list[int] | None]) -> None:
        self._draw = draw
        self.number = next(self._numbers)

    def __next__(self) -> list[int]:
        batch = self._draw(self)
        if batch is None:
            raise StopIteration
        return batch


def integer(name: str, value: Any, least: int | None = None) -> int:
    """Return ``value`` as an integer of at least ``least``. Raises ConfigError, which names the argument."""
    try:
        number = operator.index(value)
    except TypeError:
        raise ConfigError(f"{name}={value!r} must be an integer") from None
    if least is not None and number < least:
        raise ConfigError(f"{name}={number} must be at least {least}")
    return number
