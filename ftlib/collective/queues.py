"""What a channel's server keeps: a queue for each key, who waits at it, and what was given to whom. Pure.

Every method returns the answers that are due now. An item that was given counts as taken once its getter has acknowledged it;
if the getter is lost before, the item goes back to where it was.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Hashable, Iterable
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Any

Ask = tuple[Hashable, int]
"""Who asked, and the number of the request there."""


class Code(IntEnum):
    """What an answer says."""

    DONE = 0
    ITEMS = 1
    EMPTY = 2
    FULL = 3
    REFUSED = 4
    """The items cannot be sent to who asked."""


@dataclass(frozen=True, slots=True)
class Item:
    """``number``: its place among all items of this channel."""

    number: int
    weight: float
    value: Any


@dataclass(frozen=True, slots=True)
class QueueAnswer:
    """To whom, and what."""

    ask: Ask
    code: Code
    items: tuple[Item, ...] = ()


@dataclass(eq=False, slots=True)
class _Getter:
    """``target``: the weight of items that it waits for, None for one item. ``taken``: those that it has so far."""

    ask: Ask
    target: float | None
    taken: list[Item] = field(default_factory=list)

    def content(self) -> bool:
        """Whether it has all that it waits for."""
        return bool(self.taken) and (self.target is None or sum(item.weight for item in self.taken) >= self.target)


@dataclass(eq=False, slots=True)
class _Queue:
    items: deque[Item] = field(default_factory=deque)
    getters: deque[_Getter] = field(default_factory=deque)
    putters: deque[tuple[Ask, Item]] = field(default_factory=deque)


class Queues:
    """The queues of one channel, each of at most ``maxsize`` items (0: any number)."""

    def __init__(self, maxsize: int) -> None:
        self._maxsize = maxsize
        self._queues: dict[str, _Queue] = {}
        self._given: dict[Ask, tuple[str, tuple[Item, ...]]] = {}
        """Items that were given and not acknowledged yet."""
        self._count = 0

    def put(self, ask: Ask, key: str, weight: float, value: Any, *, wait: bool) -> list[QueueAnswer]:
        """Add an item, now or when there is room."""
        queue = self._queue(key)
        self._count += 1
        queue.putters.append((ask, Item(self._count, weight, value)))
        return self._settle(key) if wait else [*self._settle(key), *self.cancel(ask)]

    def get(self, ask: Ask, key: str, target: float | None, *, wait: bool) -> list[QueueAnswer]:
        """Take one item, or several whose weights reach ``target``, now or when they are there."""
        self._queue(key).getters.append(_Getter(ask, target))
        return self._settle(key) if wait else [*self._settle(key), *self.cancel(ask)]

    def cancel(self, ask: Ask) -> list[QueueAnswer]:
        """Who asked does not wait any longer. No answer if there was one."""
        for key, queue in list(self._queues.items()):
            for getter in queue.getters:
                if getter.ask == ask:
                    queue.getters.remove(getter)
                    self._restore(key, getter.taken)
                    return [QueueAnswer(ask, Code.EMPTY), *self._settle(key)]
            for entry in queue.putters:
                if entry[0] == ask:
                    queue.putters.remove(entry)
                    return [QueueAnswer(ask, Code.FULL), *self._settle(key)]
        return []

    def acknowledge(self, ask: Ask) -> None:
        """The items are with the getter for good."""
        self._given.pop(ask, None)

    def give_back(self, ask: Ask) -> list[QueueAnswer]:
        """The getter has no use for what it was given."""
        if ask not in self._given:
            return []
        key, items = self._given.pop(ask)
        self._restore(key, items)
        return self._settle(key)

    def lost(self, who: Hashable) -> list[QueueAnswer]:
        """A client is gone: what it waited for is forgotten, and what it had not acknowledged goes back."""
        for key, queue in self._queues.items():
            for getter in [getter for getter in queue.getters if getter.ask[0] == who]:
                queue.getters.remove(getter)
                self._restore(key, getter.taken)
            queue.putters = deque(entry for entry in queue.putters if entry[0][0] != who)
        for ask in [ask for ask in self._given if ask[0] == who]:
            self._restore(*self._given.pop(ask))
        return [answer for key in list(self._queues) for answer in self._settle(key)]

    def size(self, key: str) -> int:
        """Items that can be had."""
        return len(self._queues[key].items) if key in self._queues else 0

    def items(self, key: str) -> tuple[Item, ...]:
        """The items that can be had, in order."""
        return tuple(self._queues[key].items) if key in self._queues else ()

    def _queue(self, key: str) -> _Queue:
        return self._queues.setdefault(key, _Queue())

    def _restore(self, key: str, items: Iterable[Item]) -> None:
        queue = self._queue(key)
        queue.items = deque(sorted([*items, *queue.items], key=lambda item: item.number))

    def _settle(self, key: str) -> list[QueueAnswer]:
        """Give what is there to those who wait, in order, and take in what there is room for."""
        queue, answers = self._queue(key), list[QueueAnswer]()
        while True:
            if queue.putters and (self._maxsize <= 0 or len(queue.items) < self._maxsize):
                ask, item = queue.putters.popleft()
                queue.items.append(item)
                answers.append(QueueAnswer(ask, Code.DONE))
            elif queue.getters and queue.items:
                getter = queue.getters[0]
                getter.taken.append(queue.items.popleft())
                if getter.content():
                    queue.getters.popleft()
                    self._given[getter.ask] = key, tuple(getter.taken)
                    answers.append(QueueAnswer(getter.ask, Code.ITEMS, tuple(getter.taken)))
            else:
                if not (queue.items or queue.getters or queue.putters):
                    del self._queues[key]
                return answers
