"""What all parts of a simulated world share: time, chance, faults, processes, and who looks on."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from hashlib import blake2b
from random import Random
from struct import Struct
from typing import Any

from ...config import Config
from ...member import Address
from ...messages import Message
from .faults import Failpoint, Faults
from .host import Host
from .observer import Observer, Observers
from .timeline import Timeline

_EVENT = Struct("<dIII")


class State(Timeline, ABC):
    """A world as its parts see it; ``World`` puts the parts together."""

    def __init__(self, seed: int, config: Config) -> None:
        super().__init__()
        self.rng = Random(seed)
        self.config = config
        self.faults = Faults()
        self.hosts: dict[str, Host] = {}
        self.at_address: dict[Address, Host] = {}
        self.observers = Observers()
        self.failpoints: list[Failpoint] = []
        """Crashes at exact messages."""
        self.watch: Callable[[Host, Message], bool] | None = None
        """Sees every message before it is sent; False: it is not sent."""
        self.trace: list[tuple[float, str, str]] = []
        """What every process installed, activated and ended with; ``digest`` has everything."""
        self.messages = 0
        """So many were sent."""
        self.events = 0
        """Messages delivered and timers fired."""
        self.hashed = blake2b(digest_size=16)
        """Of every message sent and delivered, and of every timer, in order."""

    @property
    def digest(self) -> str:
        """A hash over every event so far: when, at which process, and each message's bytes."""
        return self.hashed.hexdigest()

    def record(self, kind: int, host: Host, size: int = 0, data: bytes = b"") -> None:
        """One event of a host, for the digest."""
        self.hashed.update(_EVENT.pack(self.now, host.index, kind, size))
        self.hashed.update(data)

    def happened(self, kind: int, host: Host, size: int = 0) -> None:
        """A message was delivered, or a timer fired."""
        self.events += 1
        self.record(kind, host, size)

    def sent(self) -> None:
        """One more message."""
        self.messages += 1

    def observe(self, observer: Observer) -> Observer:
        """Show everything from now on to ``observer`` and its parts, too."""
        observer.attach(self)
        self.observers.add(observer)
        for part in observer.parts():
            self.observe(part)
        return observer

    def show(self, hook: str, *what: Any) -> None:
        """Call a hook of every observer that has it."""
        self.observers.show(hook, *what)

    @abstractmethod
    def inside(self, host: Host, action: Callable[[], None]) -> None:
        """Something happens inside a process, or waits until it is resumed."""

    @abstractmethod
    def kill(self, host: Host) -> None:
        """SIGKILL: its connections close, and whoever holds one finds out."""
