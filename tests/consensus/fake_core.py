"""A protocol core that records what it is told and asks for what the test wants."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, TypeVar

from consensus.border import Order, SeekAdmission
from consensus.config import Config
from consensus.member import Member
from consensus.progress import Progress
from consensus.protocol.state.effects import Effect
from consensus.protocol.state.inputs import Input
from consensus.runtime.agent.agent import Agent, TrainingProcess
from consensus.runtime.agent.snapshot import Snapshot
from consensus.runtime.net.names import Introducers, resolve_all
from consensus.runtime.net.sockets import open_pair
from consensus.runtime.net.sources import Sources
from consensus.runtime.net.web import load
from consensus.view import Reason, View

T = TypeVar("T")

PROGRESS = Progress(3, 4, 100.0)
"""What the data plane of a rig says."""


class FakeCore:
    """Every call becomes an entry in ``calls``, every input one in ``inputs``; ``ask`` queues an effect."""

    def __init__(self) -> None:
        self.calls: list[tuple[Any, ...]] = []
        self.effects: list[Effect] = []
        self.deadline: float | None = None
        self.view: View | None = None
        self.known_view: View | None = None
        self.installed_view: View | None = None
        self.reasons: dict[str, Reason] = {}
        self.driver = ""
        self.active_view: View | None = None
        self.changing = False
        self.applicants_waiting = False
        self.inputs: list[Input] = []
        self.on_input: Callable[[Input], None] = lambda what: None

    def _heard(self, *call: Any) -> None:
        self.calls.append(call)

    def start(self, now: float) -> None:
        self._heard("start")

    def receive(self, sender: str, address: Any, message: Any, now: float) -> None:
        self._heard("receive", sender, address, message)

    def tick(self, now: float) -> None:
        self.deadline = None
        self._heard("tick", now)

    def next_deadline(self) -> float | None:
        return self.deadline

    def drain(self) -> list[Effect]:
        effects, self.effects = self.effects, []
        return effects

    def status(self) -> dict[str, Any]:
        return {"core": "fake"}

    def set_progress(self, progress: Progress) -> None:
        self.progress = progress

    def handle(self, what: Input, now: float) -> None:
        self.inputs.append(what)
        self.on_input(what)

    def told(self, kind: type[T]) -> list[T]:
        return [what for what in self.inputs if isinstance(what, kind)]

    def named(self, name: str) -> list[tuple[Any, ...]]:
        return [call for call in self.calls if call[0] == name]


class RecordingPlane:
    """A data plane that records its orders."""

    def __init__(self) -> None:
        self.orders: list[Order] = []

    def handle(self, order: Order) -> None:
        self.orders.append(order)


@dataclass
class Rig:
    """An agent around a fake core, on the running loop."""

    agent: Agent
    core: FakeCore
    plane: RecordingPlane
    member: Member
    sources: Sources
    snapshots: list[Snapshot] = field(default_factory=list)
    signals: list[int] = field(default_factory=list)
    """Sent to the training process, if it were one."""
    held: bool = False

    def ask(self, *effects: Effect) -> None:
        """Let the core ask for these effects now."""
        self.core.effects.extend(effects)
        self.agent.driver.handle(SeekAdmission())

    @property
    def notes(self) -> list[str]:
        return [note["text"] for note in self.agent.driver.status()["notes"]]


@asynccontextmanager
async def rig(
    member_id: str = "a" * 16,
    plane: Any = None,
    load_http: Callable[[], None] = load,
    known: View | None = None,
    **settings: Any,
) -> AsyncIterator[Rig]:
    config = Config(**settings)
    pair = open_pair(config)
    member = Member(member_id, *pair.advertised)
    core, snapshots, signals, sources = FakeCore(), list[Snapshot](), list[int](), Sources()
    core.known_view = known
    plane = plane or RecordingPlane()
    introducers = Introducers(config.introducers, resolve_all(config.introducers))
    rigs: list[Rig] = []

    def tell(orders: list[Snapshot | Order]) -> None:
        for order in orders:
            if isinstance(order, Snapshot):
                snapshots.append(order)
            else:
                plane.handle(order)

    async def facts() -> dict[str, Any]:
        return {"here": "facts"}

    training = TrainingProcess(
        tell=tell,
        progress=lambda: PROGRESS,
        facts=facts,
        served=lambda: sources.paths,
        hand_over=sources.answer,
        signal=signals.append,
        held=lambda: bool(rigs) and rigs[0].held,
        load_http=load_http,
    )
    agent = Agent(config, member, pair, core, training, introducers)  # type: ignore[arg-type]
    await agent.start()
    rigs.append(Rig(agent, core, plane, member, sources, snapshots, signals))
    try:
        yield rigs[0]
    finally:
        await agent.close()


async def until(condition: Callable[[], Any], seconds: float = 120.0) -> None:
    """Wait for ``condition`` on the running loop; the test fails when it does not come true."""
    async with asyncio.timeout(seconds):
        while not condition():
            await asyncio.sleep(0.002)
