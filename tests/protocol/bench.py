"""A machine with leases on a bench: its deadlines are kept, and what it asks is answered as the script has it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from consensus.config import Config, Liveness, Policy
from consensus.messages import Ack, Lease, Ping, PingRequest, ViewRecord
from consensus.progress import NOWHERE, Progress
from consensus.protocol.machine import Machine
from consensus.protocol.state.effects import Ask, Check, Effect, Send
from consensus.protocol.state.inputs import Answered
from consensus.store_requests import Away, Beat, Done, LeaseList, ReadLeases, ReadViews, Recorded, StoreOp, StoreReply, Withdraw

from .people import member

LEASED = Config(policy=Policy.STORAGE, storage="file:///dir", liveness=Liveness.LEASES, lease=2.0)
BEAT = LEASED.lease / 3
START = 100.0


@dataclass
class Other:
    """Another member. It renews its lease a beat after the last time, from ``phase`` on until ``renews_until``."""

    name: str
    phase: float = 0.0
    renews_until: float = float("inf")
    answers_until: float = float("inf")
    """It acks pings until then (those of helpers: see ``Bench.relays``)."""
    progress: Progress = NOWHERE

    def lease(self, now: float) -> Lease:
        written = int((min(now, self.renews_until) - START - self.phase) / BEAT + 1e-9)
        at = START + self.phase + written * BEAT
        return Lease(member(self.name), written, 1, self.progress.pack(at))


class Bench:
    """Time, the store and the network around one machine."""

    def __init__(
        self, machine: Machine, others: list[Other], *, latency: float = 0.002, record: ViewRecord | None = None
    ) -> None:
        self.machine = machine
        self.others = {other.name: other for other in others}
        self.now = START
        self.latency = latency
        self.record = record
        self.away: Callable[[float], bool] = lambda now: False
        self.asked: list[tuple[float, StoreOp]] = []
        self.pings: list[tuple[float, str]] = []
        self.checks: list[tuple[float, str]] = []
        self.effects: list[tuple[float, Effect]] = []
        self.withdrawn: set[str] = set()
        self.relays = False
        """Whether everybody reaches everybody else."""
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self._count = 0
        if machine.view is not None:
            self.take()

    def run(self, seconds: float) -> None:
        end = self.now + seconds
        while True:
            deadline = self.machine.next_deadline()
            due = min([end if deadline is None else deadline, *(time for time, _, _ in self._events)])
            if due > end or (due == end and deadline is None and not self._events):
                break
            self.now = max(due, self.now)
            ready = sorted(event for event in self._events if event[0] <= self.now)
            for event in ready:
                self._events.remove(event)
                event[2]()
            if deadline is not None and deadline <= self.now:
                self.machine.tick(self.now)
            self.take()
            if self.now >= end:
                break
        self.now = end

    def later(self, delay: float, action: Callable[[], None]) -> None:
        self._count += 1
        self._events.append((self.now + delay, self._count, action))

    def take(self) -> None:
        for effect in self.machine.drain():
            self.effects.append((self.now, effect))
            if isinstance(effect, Ask):
                self.asked.append((self.now, effect.request))
                self._answer(effect.request)
            elif isinstance(effect, Check):
                self.checks.append((self.now, effect.member.id))
            elif isinstance(effect, Send) and isinstance(effect.message, Ping):
                self.pings.append((self.now, effect.message.target))
                self._ack(effect.message)
            elif isinstance(effect, Send) and isinstance(effect.message, PingRequest) and self.relays:
                self._relay(effect.message)

    def _answer(self, request: StoreOp) -> None:
        if self.away(self.now):
            delay, answer = LEASED.storage_timeout, self._no_answer
        else:
            delay, answer = self.latency, self._found
        self.later(delay, lambda: self.machine.handle(Answered(request, answer(request)), self.now))

    def _no_answer(self, request: StoreOp) -> StoreReply:
        return Away(f"no answer to {type(request).__name__}")

    def _found(self, request: StoreOp) -> StoreReply:
        if isinstance(request, ReadViews):
            return Recorded(self.record)
        if isinstance(request, ReadLeases):
            wanted = tuple(self.others) if request.member_ids is None else request.member_ids
            there = [self.others[key] for key in wanted if key in self.others and key not in self.withdrawn]
            return LeaseList(tuple(other.lease(self.now - self.latency / 2) for other in there))
        if isinstance(request, Withdraw):
            self.withdrawn.update(request.member_ids)
        return Done()

    def _ack(self, ping: Ping) -> None:
        other = self.others.get(ping.target)
        if other is not None and self.now < other.answers_until:
            ack = Ack(ping.seq, ping.target, self.machine._core.epoch, self.machine._core.view_id)
            self.later(0.001, lambda: self.machine.receive(ping.target, member(ping.target).address, ack, self.now))

    def _relay(self, request: PingRequest) -> None:
        helper = next(name for name in self.others if name != request.target.id)
        ack = Ack(request.seq, request.target.id, self.machine._core.epoch, self.machine._core.view_id)
        self.later(0.002, lambda: self.machine.receive(helper, member(helper).address, ack, self.now))

    # To look at

    def beats(self) -> list[tuple[float, Lease]]:
        return [(time, request.lease) for time, request in self.asked if isinstance(request, Beat)]

    def reads(self, since: float = 0.0) -> list[tuple[float, tuple[str, ...] | None]]:
        return [(time, each.member_ids) for time, each in self.asked if isinstance(each, ReadLeases) and time >= since]

    def operations(self, since: float) -> int:
        """A listing of n counts n."""
        count = 0
        for time, request in self.asked:
            if time >= since:
                if isinstance(request, ReadLeases):
                    count += len(self.others) + 1 if request.member_ids is None else len(request.member_ids)
                elif isinstance(request, ReadViews):
                    count += 3  # two records, and the compacted revision
                else:
                    count += 1
        return count


def leased(**settings: float) -> Config:
    return replace(LEASED, **settings)  # type: ignore[arg-type]
