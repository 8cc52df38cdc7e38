"""The tensors on GPUs of one stream: a carrier each way, built beside the first messages, which go through host memory."""

from __future__ import annotations

import functools
import threading
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

import torch

from ...common.devices import HOST, place_of
from ..works import CALLBACKS
from . import carriers, choice
from .carriers import Carrier
from .choice import Choice, Facts

_OUT, _BACK = "out", "back"
"""What a word over the link is for: the direction in which its sender sends, or the other one."""


class Serial:
    """Tasks one after the other, in the order in which they came, on one thread for callbacks."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._tasks: deque[Callable[[], None]] = deque()
        self._runs = False

    @property
    def busy(self) -> bool:
        """Whether any task has not ended."""
        return self._runs

    def put(self, task: Callable[[], None]) -> None:
        """Do ``task`` after those before; it must not raise."""
        with self._lock:
            self._tasks.append(task)
            begins, self._runs = not self._runs, True
        if begins:
            CALLBACKS.submit(self._run)

    def rest(self, timeout: float) -> None:
        """Wait until what was put before has ended, at most so many seconds."""
        if self._runs:
            ended = threading.Event()
            self.put(ended.set)
            ended.wait(timeout)

    def _run(self) -> None:
        while True:
            with self._lock:
                if not self._tasks:
                    self._runs = False
                    return
                task = self._tasks.popleft()
            task()


class Freight:
    """Of one lane. ``tell``: gives words to the peer's ``on_message``, over the link and in order."""

    def __init__(self, there: Facts, tell: Callable[[list[Any]], None]) -> None:
        self.choice: Choice = choice.choose(choice.facts(), there)
        self._tell = tell
        self._lock = threading.Lock()
        self._out: Carrier | None = None
        self._in: Carrier | None = None
        self._built: set[str] = set()
        """Which ends of the direction out are ready."""
        self._trouble = ""
        self.over: BaseException | None = None
        """Why the stream has ended."""
        self.place = HOST
        """Where this end's tensors are."""

    def describe(self) -> str:
        """By which way tensors on GPUs go, and why."""
        way = self.choice
        if way.way == "staging":
            return f"staging: {way.why}"
        if self._trouble:
            return f"staging: {way.way} failed: {self._trouble}"
        return f"{way.way}: {way.why}" if self._ready else f"staging: {way.way} begins with the first tensor on a GPU"

    def takes(self, tensor: torch.Tensor) -> bool:
        """Whether its carrier works, for tensors of that device. The first call begins to build it."""
        if self.choice.way == "staging" or self._trouble:
            return False
        with self._lock:
            begins = self._out is None
            if self._out is None:
                self._out = self._made(_OUT)
        if begins:
            self._tell([_OUT, "build", []])
            CALLBACKS.submit(self._build_out)
        return self._ready and place_of(tensor) == self.place

    def send(self, tensors: Sequence[torch.Tensor]) -> None:
        """By the carrier that takes them; returns once their memory may be used again."""
        assert self._out is not None
        self._out.send(tensors)

    def receive(self, tensors: Sequence[torch.Tensor]) -> None:
        """What the peer's ``send`` carries."""
        assert self._in is not None  # the peer's word that it builds came before
        self._in.receive(tensors)

    def on_message(self, said: list[Any]) -> None:
        """On the thread that reads: must not wait."""
        whose, what, words = said
        if what == "build":
            with self._lock:
                if self._in is None and self.choice.way != "staging":
                    self._in = self._made(_BACK)
            CALLBACKS.submit(self._build_in)
        elif what == "built":
            self._has_built(_BACK, str(words[0]))
        elif (end := self._in if whose == _OUT else self._out) is not None:
            end.on_message(words)

    def end(self, error: BaseException) -> None:
        """The stream is over: what is carried fails."""
        why = f"the stream has ended: {error}"
        with self._lock:
            self.over = self.over or error
            ends = [end for end in (self._out, self._in) if end is not None]
            self._trouble = self._trouble or why
        for end in ends:
            CALLBACKS.submit(functools.partial(end.abort, why))

    @property
    def _ready(self) -> bool:
        return len(self._built) == 2 and not self._trouble

    def _made(self, whose: str) -> Carrier:
        end = carriers.carrier(self.choice.way, lambda said: self._tell([whose, "", said]), sends=whose == _OUT)
        self.place = end.place
        return end

    def _build_out(self) -> None:
        assert self._out is not None
        why = ""
        try:
            self._out.build()
        except Exception as error:  # noqa: BLE001 - then it goes through host memory
            why = f"{type(error).__name__}: {error}"
        self._has_built(_OUT, why)

    def _build_in(self) -> None:
        why = "the two have chosen differently"
        if self._in is not None:
            try:
                self._in.build()
                why = ""
            except Exception as error:  # noqa: BLE001 - the peer hears of it
                why = f"{type(error).__name__}: {error}"
        self._tell([_BACK, "built", [why[:500]]])

    def _has_built(self, end: str, why: str) -> None:
        with self._lock:
            self._built.add(end)
            self._trouble = self._trouble or why
