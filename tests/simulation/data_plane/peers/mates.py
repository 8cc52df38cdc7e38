"""What the processes of one simulated replica tell each other: ``Connections``, whose bytes travel in the simulated world.

A word comes late or never, but in order, and what a process has said comes before word of its end. A cut link holds all back.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from functools import partial
from random import Random

from ftlib.core.replicas.whole import Replica
from ftlib.core.replicas.words import ReceivedWords, ReplicaVerdict, Word, WordFlag
from ftlib.errors import GroupError, ReplicaLost

from ..machine.links import connected
from ..machine.threads import Fibre
from .job import Colleague

TRAVELS = 0.0005
"""Seconds that a word takes at most."""
SLOW, SLOW_TRAVELS = 0.05, 0.05
"""How often it takes longer, and how long then."""
AGAIN = 0.05
"""Seconds after which bytes that did not get through are sent again."""
LOOK = 0.005
"""Seconds between two looks whether the mates have come."""


class Interrupted(Exception):
    """Of the program's own, while it waits for its mates."""


class SimulatedMates:
    """The other members of a process's replica. ``Mates`` of the engine."""

    def __init__(self, process: Colleague, rng: Random, lost: Callable[[ReplicaLost], None]) -> None:
        """``lost``: called once if one of them has ended and did not say goodbye."""
        self._process = process
        self._rng = rng
        self._lost = lost
        self._replica: Replica | None = None
        self._received: ReceivedWords | None = None
        self._inbox: list[tuple[str, Word]] = []
        self._gone = self._parted = False
        self._failure: ReplicaLost | None = None
        self._lines: dict[str, _Line] = {}
        """To each mate, by its id."""
        self._waiting: Fibre | None = None
        self._interrupts = Random(f"{process.jobs.seed} interrupts {process.host.id}")

    def connect(self, replica: Replica, timeout: float, wanted: Callable[[], bool]) -> None:
        """See ``Connections``."""
        threads, jobs = self._process.threads, self._process.jobs
        if self._replica is not None:
            assert self._replica.ids == replica.ids, "a replica is a cohort, and a cohort never changes"
            return
        self._replica, self._received = replica, ReceivedWords(replica.ids)
        others = [key for key in replica.ids if key != self._process.host.id]
        try:
            deadline = threads.now() + timeout
            while missing := [key for key in others if not self._meets(jobs.living(key))]:
                if not wanted() or threads.now() > deadline:
                    raise GroupError(f"{missing} did not connect")
                threads.sleep(self._rng.uniform(0.0, LOOK))
        except GroupError:
            self._replica = self._received = None
            raise
        self._lines = {key: _Line(self, self._rng, jobs.processes[key]) for key in others}

    def _meets(self, other: Colleague | None) -> bool:
        """Whether that process is here, or was: then it waits for this one, or goes on already."""
        if other is None or other.mates is None or not connected(self._process.host, other.host):
            return False
        return other.mates.met

    @property
    def met(self) -> bool:
        """Whether this process is here for its mates, or was."""
        return self._replica is not None

    def enter(self, word: Word, *, earlier: bool = False) -> None:
        """See ``Mates``."""
        assert self._received is not None
        self._received.enter(word, earlier=earlier)
        self._say(word)

    def vouch(self, word: Word) -> None:
        """See ``Mates``."""
        self._say(word)

    def verdict(self, seconds: float) -> ReplicaVerdict | None:
        """See ``Mates``."""
        assert self._received is not None
        if self._interrupts.random() < self._process.jobs.interrupts:
            raise Interrupted
        if (found := self._received.verdict()) is not None:
            return found
        if not self._inbox and self._failure is None and not self._gone:
            threads = self._process.threads
            self._waiting = threads.current()
            threads.park(seconds)
            self._waiting = None
        inbox, self._inbox = self._inbox, []
        for sender, word in inbox:
            self._received.receive(sender, word)
        found = self._received.verdict()
        if found is None and self._failure is not None:
            raise self._failure.with_traceback(None)
        if found is None and self._gone:
            raise ReplicaLost("a process of this replica has left: it ends with that")
        return found

    def missing(self) -> str:
        """See ``Mates``."""
        return "" if self._received is None else ", ".join(self._received.missing())

    def part(self) -> None:
        """Say goodbye."""
        if not self._parted:
            self._parted = True
            for line in self._lines.values():
                line.send(Word(0, 0, WordFlag.BYE))

    def end(self) -> None:
        """The process is gone: what it has said may still be under way, and then its connections end."""
        for line in self._lines.values():
            line.send(None)

    def arrive(self, sender: str, word: Word | None) -> None:
        """A word of a mate, or None: its connection has ended."""
        if word is None and not self._gone:
            self._failure = ReplicaLost(f"{sender} is lost, so its replica is not whole any more")
            self._lost(self._failure)
        elif word is not None and word.flags & WordFlag.BYE:
            self._gone = True
        elif word is not None:
            self._inbox.append((sender, word))
        if self._waiting is not None:
            self._process.threads.wake(self._waiting)

    def _say(self, word: Word) -> None:
        if self._received is not None:
            self._received.receive(self._process.host.id, word)
            for line in self._lines.values():
                line.send(word)

    @property
    def process(self) -> Colleague:
        """Whose these are."""
        return self._process


class _Line:
    """One way of a connection."""

    def __init__(self, mates: SimulatedMates, rng: Random, receiver: Colleague) -> None:
        self._mates = mates
        self._rng = rng
        self._receiver = receiver
        self._words: deque[Word | None] = deque()
        self._moving = False

    def send(self, word: Word | None) -> None:
        """``word``, or None for the end of the connection."""
        self._words.append(word)
        if not self._moving:
            self._moving = True
            self._later()

    def _later(self, least: float = 0.0) -> None:
        most = SLOW_TRAVELS if self._rng.random() < SLOW else TRAVELS
        self._mates.process.host.world.after(max(least, self._rng.uniform(0.0, most)), self._move)

    def _move(self) -> None:
        sender, receiver = self._mates.process.host, self._receiver
        if not connected(sender, receiver.host):
            self._later(AGAIN)
            return
        word = self._words.popleft()
        if receiver.mates is not None:
            receiver.threads.happens(partial(receiver.mates.arrive, sender.id, word))
        self._moving = bool(self._words)
        if self._moving:
            self._later()
