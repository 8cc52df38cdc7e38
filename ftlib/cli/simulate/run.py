"""Playing one order: faults first, then a healed network on which the living must agree again."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from consensus.simulation import Observer, World
from consensus.simulation.invariants.judgement import Outcome, judge
from consensus.simulation.script.play import prepare, safety
from consensus.simulation.script.scenario import Scenario
from consensus.simulation.transcript.recorder import Recorder
from consensus.simulation.world.host import Host

from .order import Order

VIOLATED, INTERRUPTED = "violated", "interrupted"
"""Results of a run besides those of ``Outcome``."""

EVERY = 256
"""Events between two calls of ``look``."""


class Interrupted(BaseException):
    """Raised by ``look`` to end a run; no error of the protocol."""


@dataclass(frozen=True)
class Run:
    """A run that is over. ``outcome``: of ``Outcome``, or VIOLATED, or INTERRUPTED; ``detail``: one line."""

    order: Order
    scenario: Scenario
    world: World
    recorder: Recorder
    outcome: str
    detail: str
    healed: float | None
    """When the faults were over, in the recorder's seconds; None if the run ended before."""

    @property
    def good(self) -> bool:
        """Whether no promise of the protocol was broken."""
        return self.outcome not in (VIOLATED, Outcome.STUCK.value)


class Pulse(Observer):
    """Calls ``look(world)`` every few events."""

    world: World

    def __init__(self, look: Callable[[World], None]) -> None:
        self._look = look
        self._left = EVERY

    def settled(self, host: Host) -> None:  # noqa: ARG002
        """See ``Observer``."""
        self._left -= 1
        if self._left <= 0:
            self._left = EVERY
            self._look(self.world)


def play(order: Order, look: Callable[[World], None] = lambda _world: None, observers: Iterable[Observer] = ()) -> Run:
    """Play both phases. ``look``: called every few events; may raise Interrupted. ConfigError if ``order`` makes no sense."""
    scenario, recorder = order.scenario(), Recorder()
    world = prepare(scenario, config=order.config(), observers=[recorder, Pulse(look), *observers])
    healed = None
    try:
        safety(world, scenario, lambda _world: recorder.sample())
        healed = recorder.time
        world.heal()
        recorder.sample()
        verdict = judge(world)
        outcome, detail = verdict.outcome.value, verdict.detail
    except AssertionError as error:
        outcome, detail = VIOLATED, " ".join(str(error).split()) or "an assertion failed"
    except Interrupted:
        outcome, detail = INTERRUPTED, f"stopped after {recorder.time:.2f} simulated seconds"
    recorder.close()
    return Run(order, scenario, world, recorder, outcome, detail, healed)
