"""One host as the ledger knows it: how far it is, how long it rests after a loss, how many workers it has room for."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum

REST_FIRST, REST_MOST = 1.0, 300.0
"""Seconds that a host rests after its first loss, and at most."""
REST_AWAY = 4.0
"""The most for a host at which nobody answers: to ask again costs nobody anything."""
HEALTHY = 600.0
"""Seconds after which a host's losses are forgotten."""
HOPELESS = 2
"""Refusals in a row after which nobody waits for a host that never answered as an agent."""


class HostPhase(Enum):
    """CALLED -> UP | RESTING | GONE; UP -> RESTING | DRAINING | GONE; RESTING -> CALLED | GONE; DRAINING -> GONE, or, where the
    host is wanted again meanwhile, CALLED | RESTING; GONE -> CALLED.
    """

    CALLED = "called"
    UP = "up"
    RESTING = "resting"
    DRAINING = "draining"
    GONE = "gone"


class Loss(Enum):
    """How a host was lost."""

    ENDED = "its agent ended, or is silent"
    AWAY = "nobody answered at all"
    REFUSED = "somebody answered, but no agent of ours can run there"
    OVER = "it will never be there again: the allocation has ended"


@dataclass(slots=True)
class Host:
    """One host."""

    name: str
    asked: int | None
    """Workers that the user wants there; None: as the settings and its facts say."""
    phase: HostPhase = HostPhase.CALLED
    offered: int = 0
    """Workers that the settings and its facts give it."""
    workers: list[int] = field(default_factory=list)
    """Indices of those that are, or were last, in one of its slots."""
    strikes: int = 0
    since: float = 0.0
    """When its phase began."""
    why: str = ""
    """Why it was lost last."""
    loss: Loss = Loss.ENDED
    reached: bool = False
    """Whether an agent ever ran there."""
    address: str = ""
    """Where its workers listen."""
    returns: bool = False
    """Whether a host that drains is wanted again, and so is called again once it has drained."""
    bound: bool = False
    """Whether the sockets of its present agent are bound, while it is up."""

    @property
    def slots(self) -> int:
        """Workers that it shall have."""
        return self.asked if self.asked is not None else self.offered

    @property
    def staying(self) -> bool:
        """Whether it was not removed, or is wanted again."""
        return self.returns or self.phase not in (HostPhase.DRAINING, HostPhase.GONE)

    @property
    def rested_at(self) -> float:
        """When it may be called again: later each time."""
        most = REST_AWAY if self.loss is Loss.AWAY else REST_MOST
        return float(self.since + min(most, REST_FIRST * 2.0 ** min(self.strikes - 1, 20)))

    @property
    def hopeless(self) -> bool:
        """Whether it was refused from the beginning, so that waiting for it would only hide a mistake."""
        return not self.reached and self.loss is Loss.REFUSED and self.strikes >= HOPELESS

    def called(self, now: float) -> None:
        """Its agent is started."""
        self.phase, self.since, self.returns = HostPhase.CALLED, now, False

    def up(self, offered: int, address: str, now: float) -> None:
        """Its agent has said what it has."""
        self.phase, self.since, self.reached = HostPhase.UP, now, True
        self.address, self.bound, self.offered = address, False, offered

    def lost(self, why: str, loss: Loss, now: float, *, for_good: bool) -> None:
        """Its agent is gone. ``for_good``: it is not called again."""
        if self.phase is HostPhase.UP and now - self.since > HEALTHY:
            self.strikes = 0
        self.strikes += 1
        self.returns = False
        self.phase = HostPhase.GONE if for_good else HostPhase.RESTING
        self.since, self.why, self.loss = now, why, loss

    def wanted(self, asked: int | None, now: float) -> None:
        """It was removed, and is wanted again."""
        self.called(now)
        self.asked, self.strikes = asked, 0
