"""A member of the model job: a program that loops over a loader, and makes calls. Knows nothing of how samples are dealt."""

from __future__ import annotations

import contextlib
import random
from collections import deque
from collections.abc import Generator, Iterator
from dataclasses import dataclass, field
from typing import Any

from ftlib import ElasticSampler, ElasticStream

from .plot import Plot

WIDTH = 1000
"""A record of a stream is told as its shard's number times this, plus its own."""

FILL = [-1]
"""What the samplers are made to hand out as filler, so that it can be told from samples."""


@dataclass
class Hand:
    """What a program brings to a call."""

    batches: list[list[int]]
    drawn: list[list[int]] = field(default_factory=list)
    """Batches for the next one, that it has got meanwhile."""
    beside: int = 0
    """How many of them it gets beside the call."""


class Loader:
    """What ``DataLoader`` asks of a batch sampler: ``ahead`` batches at the start, then one for each that it delivers."""

    def __init__(self, sampler: ElasticSampler | ElasticStream, ahead: int, *, early: bool) -> None:
        """``early``: it reads a batch as soon as it is drawn, else as late as may be."""
        self._sampler, self._early = sampler, early
        self._ahead = ahead
        self._waiting: deque[list[int]] = deque()
        self._source: Iterator[list[int]] = iter(())

    def start(self) -> Generator[None]:
        self._waiting.clear()
        iter(self._sampler)  # as a loader with workers does
        self._source = iter(self._sampler)
        for _ in range(self._ahead):
            yield
            self._ask()

    def next(self) -> list[int] | None:
        if not self._ahead:
            self._ask()
        batch = self._waiting.popleft() if self._waiting else None
        if self._ahead and batch is not None:
            self._ask()
        return batch if batch is None or self._early else self._read(batch)

    def _ask(self) -> None:
        with contextlib.suppress(StopIteration):
            batch = next(self._source)
            self._waiting.append(self._read(batch) if self._early else batch)

    def _read(self, batch: list[Any]) -> list[int]:
        return self._sampler.records.__getitems__(batch) if isinstance(self._sampler, ElasticStream) else batch


@dataclass
class Person:
    """One member. ``calls``: what it brings to a call it waits in, if it does."""

    name: str
    plot: Plot
    ahead: int
    sampler: ElasticSampler | ElasticStream
    early: bool
    step: int = 0
    """``ft.step``."""
    waiting: Hand | None = None
    over: bool = False
    joined: bool = True
    """Whether it has the state, and has finished a call with it."""
    finished: int = -1
    """The last call that it has finished."""
    view: int = -1
    """The view that is active here."""
    founder: bool = True
    starts: int = 0
    """A founder: calls before it."""
    ends: list[int] = field(default_factory=list)
    """The call after which each of its loops ended that had handed out anything."""
    status: bool | None = None
    """How its last call ended: True granted, False finished without a step, None unfinished."""
    reached: int = -1
    """The last call that the program itself has come out of, finished; below 0: none."""
    missed: bool | None = None
    """How the last call ended that its backup worker was in while the program was late; None: there was none since it came."""
    _life: Generator[Hand | None] | None = None
    _loader: Loader | None = None
    _steps: int = 0
    """Inner steps since the last sync."""

    @classmethod
    def new(cls, name: str, plot: Plot, luck: random.Random) -> Person:
        if plot.shards:
            return cls(name, plot, luck.choice((0, 0, 1, 2, 3, 6)), _stream(plot), early=luck.random() < 0.5)
        sampler = ElasticSampler(
            range(plot.size),
            batch_size=plot.batch_size,
            shuffle=plot.shuffle,
            seed=plot.seed,
            drop_last=plot.drop_last,
            global_batch=plot.global_batch,
        )
        sampler._filler = FILL
        return cls(name, plot, luck.choice((0, 0, 1, 2, 3, 6)), sampler, early=True)

    def go(self) -> None:
        """Run the program up to its next draw or call."""
        if self.waiting is not None or self.over:
            self.draw_beside()
            return
        if self._life is None:
            self._life = self._program()
        try:
            self.waiting = next(self._life)
        except StopIteration:
            self.over = True
        self._take_over()

    def ended(self, status: bool | None, *, late: bool = False) -> None:
        """A call has ended: the program's, or one that it is ``late`` for."""
        if late:
            self.missed = status
            self._take_over()
        else:
            self.waiting, self.status = None, status
            if status is not None:
                self.reached = self.finished

    def draw_beside(self) -> bool:
        """Get a batch beside the call, if there is one to get; whether there was."""
        hand = self.waiting
        if hand is None or len(hand.drawn) >= hand.beside:
            return False
        assert self._loader is not None
        batch = self._loader.next()
        if batch is not None:
            hand.drawn.append(batch)
        return batch is not None

    def _take_over(self) -> None:
        """Where the program waits in a call, and its backup worker has finished some for it: the last of them is that call."""
        if self.waiting is not None and self.missed is not None:
            self.sampler.begin(len(self.waiting.batches))
            self.sampler.unfinished()  # what was computed counts nowhere
            status, self.missed = self.missed, None
            self.ended(status)

    def _epochs(self) -> Iterator[int]:
        if not self.plot.counts:
            yield from self.sampler.epochs(self.plot.epochs)
            return
        for epoch in range(self.plot.epochs):
            self.sampler.set_epoch(epoch)
            yield epoch

    def _program(self) -> Generator[Hand | None]:
        self._loader = loader = Loader(self.sampler, self.ahead, early=self.early)
        for _ in self._epochs():
            yield from self._local_loop(loader) if self.plot.local else self._loop(loader)

    def _local_loop(self, loader: Loader) -> Generator[Hand | None]:
        """Inner steps, each on a batch, and a sync of all of them now and then."""
        yield from loader.start()
        batches: list[list[int]] = []
        began, plot = self.reached, self.plot
        while True:
            yield None
            batch = loader.next()
            if batch is None:
                break
            batches.append(batch)
            self._steps += 1
            if self._steps < plot.accumulate - plot.delay:
                continue
            beside = self.joined and not self.sampler.complete
            hand = Hand(batches, beside=max(0, plot.accumulate - self._steps) if beside else 0)
            if hand.beside:
                self.sampler.begin(len(batches), beside=hand.beside, kept=True)
            else:
                while self._steps + len(hand.drawn) < plot.accumulate and (batch := loader.next()) is not None:
                    hand.drawn.append(batch)
            yield hand
            self._steps = self._steps + len(hand.drawn) if self.status is None else 0
            batches = (batches if self.status is None else []) + hand.drawn
        if self.reached > began:
            self.ends.append(self.reached)

    def _loop(self, loader: Loader) -> Generator[Hand | None]:
        yield from loader.start()
        batches: list[list[int]] = []
        began = self.reached
        while True:
            yield None
            batch = loader.next()
            if batch is not None:
                batches.append(batch)
            if len(batches) == self.plot.accumulate or (batch is None and batches):
                granted = yield from self._call(batches)
                batches = []
                if granted and self.step in self.plot.breaks:
                    return
            if batch is None:
                if self.reached > began:
                    self.ends.append(self.reached)
                return

    def _call(self, batches: list[list[int]]) -> Generator[Hand | None, None, bool]:
        while True:
            yield Hand(batches)
            if self.status is not None or not self.plot.repeats:
                break
        granted = self.status is True
        if self.plot.again and self.status is not None:
            yield Hand([])
        return granted


def _stream(plot: Plot) -> ElasticStream:
    def records(shard: int, start: int) -> Iterator[int]:
        return iter(range(shard * WIDTH + start, shard * WIDTH + plot.shards[shard]))

    stream = ElasticStream(
        range(len(plot.shards)),
        records,
        batch_size=plot.batch_size,
        sizes=plot.shards if plot.told else None,
        lanes=plot.lanes,
        shuffle=plot.shuffle,
        seed=plot.seed,
    )
    stream.records._filler = lambda: FILL  # type: ignore[method-assign]
    return stream
