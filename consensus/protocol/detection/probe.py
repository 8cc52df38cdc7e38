"""SWIM's failure detector: ping, then ping through others, then suspect (SWIM, sections 3.1 and 4.2; Lifeguard, IV-A).

Up to ``mesh_limit`` members all ping all each round: that serves both detection and the *contact* that discounting needs (see
``evidence``). Beyond it, each member pings one neighbour a round (see ``watch``).
"""

from __future__ import annotations

from collections.abc import Container, Sequence
from dataclasses import dataclass, field
from enum import Enum
from math import inf
from typing import TYPE_CHECKING

from ...config import Config
from ...member import Address, Member
from ...transitions import Table
from ..state.lifeguard import Awareness

if TYPE_CHECKING:
    from random import Random


RELAYS = 1024
"""The most pings for other members at a time; a new one replaces the oldest."""


class ProbeStage(Enum):
    """The stage of a ping. VOUCHED: the target lives; its own ack is still useful as contact. The last four stages end it."""

    DIRECT = "direct"
    INDIRECT = "indirect"
    VOUCHED = "vouched"
    ANSWERED = "answered"
    FAILED = "failed"
    LAPSED = "lapsed"
    DROPPED = "dropped"


class ProbeEvent(Enum):
    """The events that move a ping on."""

    NONE = "no ack in time: ask others"
    ACK = "ack"
    SIGN = "answers over TCP"
    ROUND_OVER = "the round is over"
    GONE = "not in the view any more"


PROBE: Table[ProbeStage, ProbeEvent] = Table(
    "probe",
    ProbeStage.DIRECT,
    {
        ProbeStage.DIRECT: {
            ProbeEvent.NONE: ProbeStage.INDIRECT,
            ProbeEvent.ACK: ProbeStage.ANSWERED,
            ProbeEvent.SIGN: ProbeStage.VOUCHED,
            ProbeEvent.ROUND_OVER: ProbeStage.FAILED,
            ProbeEvent.GONE: ProbeStage.DROPPED,
        },
        ProbeStage.INDIRECT: {
            ProbeEvent.ACK: ProbeStage.ANSWERED,
            ProbeEvent.SIGN: ProbeStage.VOUCHED,
            ProbeEvent.ROUND_OVER: ProbeStage.FAILED,
            ProbeEvent.GONE: ProbeStage.DROPPED,
        },
        ProbeStage.VOUCHED: {
            ProbeEvent.ACK: ProbeStage.ANSWERED,
            ProbeEvent.SIGN: ProbeStage.VOUCHED,
            ProbeEvent.ROUND_OVER: ProbeStage.LAPSED,
            ProbeEvent.GONE: ProbeStage.DROPPED,
        },
    },
)


@dataclass(slots=True)
class Probe:
    """One ping of our own under way."""

    seq: int
    target: Member
    sent: float
    ask_others_at: float
    fail_at: float
    stage: ProbeStage = PROBE.start
    helpers: int = 0
    nacks: int = 0

    def advance(self, answer: ProbeEvent) -> None:
        """Enter the next stage, or end."""
        self.stage = PROBE.after(self.stage, answer)


@dataclass(frozen=True, slots=True)
class Relay:
    """A ping for another member: where to send the ack, and when to send a Nack."""

    asker: Address
    asker_seq: int
    nack_at: float
    expires: float


@dataclass(slots=True)
class Prober:
    """The pings under way. Decides what an unanswered ping means; sends nothing itself."""

    config: Config
    rng: Random
    awareness: Awareness
    next_round: float = 0.0
    probes: dict[int, Probe] = field(default_factory=dict)
    relays: dict[int, Relay] = field(default_factory=dict)
    _seq: int = -1

    def next_seq(self) -> int:
        """A number for the next ping.

        Numbers begin at random: an ack on its way to an earlier lifetime at this address must not pass for an ack to us. It
        would be taken for contact, though its sender granted us no lease and may vote us out.
        """
        self._seq = self.rng.getrandbits(32) if self._seq < 0 else self._seq + 1
        return self._seq

    def begin_round(self, targets: Sequence[Member], interval: float, now: float) -> list[Probe]:
        """Start this round's probes, one of each of ``targets``; the next round begins ``interval`` seconds later."""
        self.next_round = now + interval
        return [self.start(member, interval, now) for member in targets]

    def probing(self, member_id: str) -> bool:
        """Whether a ping of ours to that member is under way."""
        return any(probe.target.id == member_id for probe in self.probes.values())

    def start(self, target: Member, interval: float, now: float) -> Probe:
        """One probe, which fails after ``interval``, or later if this member's awareness stretches its timeouts."""
        timeout = self.awareness.stretch(self.config.ping_timeout)
        probe = Probe(self.next_seq(), target, now, now + timeout, now + max(interval, 2.5 * timeout))
        self.probes[probe.seq] = probe
        return probe

    def answered(self, seq: int, by: str) -> Probe | None:
        """An ack arrived; returns its probe if that is still under way."""
        probe = self.probes.get(seq)
        if probe is None or probe.target.id != by:
            return None
        del self.probes[seq]
        probe.advance(ProbeEvent.ACK)
        self.awareness.better()
        return probe

    def answered_otherwise(self, member_id: str) -> None:
        """A member showed life by other means: a missing ack then means nothing."""
        for probe in self.probes.values():
            if probe.target.id == member_id:
                probe.advance(ProbeEvent.SIGN)

    def nacked(self, seq: int) -> None:
        """A helper lives but could not reach the target (yet)."""
        probe = self.probes.get(seq)
        if probe is not None:
            probe.nacks += 1

    def overdue(self, now: float) -> tuple[list[Probe], list[Probe]]:
        """Probes to be tried through others now, and probes that failed."""
        indirect, failed = [], []
        for probe in list(self.probes.values()):
            if now >= probe.fail_at:
                del self.probes[probe.seq]
                probe.advance(ProbeEvent.ROUND_OVER)
                if probe.stage is ProbeStage.LAPSED:
                    continue
                failed.append(probe)
                if probe.ask_others_at != inf:
                    # Lifeguard: helpers that did not even send a nack suggest that we are slow ourselves.
                    self.awareness.worse(max(0, probe.helpers - probe.nacks) if probe.helpers else 1)
            elif probe.stage is ProbeStage.DIRECT and now >= probe.ask_others_at:
                probe.advance(ProbeEvent.NONE)
                indirect.append(probe)
        return indirect, failed

    def postpone(self, late: float) -> None:
        """This member could receive nothing for ``late`` seconds: answers get that much more time."""
        for probe in self.probes.values():
            probe.ask_others_at += late
            probe.fail_at += late

    def relay(self, asker: Address, asker_seq: int, now: float) -> int:
        """Remember a ping for another member; returns its number."""
        if len(self.relays) >= RELAYS:
            del self.relays[next(iter(self.relays))]
        seq = self.next_seq()
        wait = self.config.ping_timeout
        self.relays[seq] = Relay(asker, asker_seq, now + wait * self.config.nack_share, now + 10 * wait)
        return seq

    def due_nacks(self, now: float) -> list[Relay]:
        """Relays whose target has not answered in time; each is returned once, and forgotten when it is old."""
        due = []
        for seq, relay in list(self.relays.items()):
            if now >= relay.expires:
                del self.relays[seq]
            elif now >= relay.nack_at != inf:
                self.relays[seq] = Relay(relay.asker, relay.asker_seq, inf, relay.expires)
                due.append(relay)
        return due

    def forget(self, keep: Container[str]) -> None:
        """Drop probes of members that are not in ``keep``."""
        for seq in [seq for seq, probe in self.probes.items() if probe.target.id not in keep]:
            self.probes.pop(seq).advance(ProbeEvent.GONE)

    def deadline(self) -> float:
        """When something is due next."""
        first = self.next_round
        for probe in self.probes.values():
            first = min(first, probe.fail_at)
            if probe.ask_others_at < first and probe.stage is ProbeStage.DIRECT:
                first = probe.ask_others_at
        for relay in self.relays.values():
            first = min(first, relay.nack_at, relay.expires)
        return first
