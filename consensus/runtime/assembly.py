"""Puts an agent together, and carries out what the training process asks of it; the same on a thread and in a process."""

from __future__ import annotations

import random
from collections.abc import Iterable
from typing import Any

from ..errors import ConsensusError
from ..protocol.machine import Machine
from .agent import Agent, Outside
from .host import Setup
from .sockets import SocketPair

__all__ = ["make_agent", "perform", "question"]

_ACTIONS = frozenset({"seek_admission", "hint", "flushed", "ready", "boundary", "leave", "end"})


def make_agent(setup: Setup, sockets: SocketPair, outside: Outside) -> Agent:
    """Put an agent together, on its loop's thread."""
    own, size, introducers = setup.member.address, setup.config.initial_size, setup.introducers
    machine = Machine(
        setup.config,
        setup.member,
        random.Random(random.SystemRandom().getrandbits(128)),
        founder=introducers.founder(own, size),
        introducers=tuple(address for address in introducers.addresses if address != own),
        voted=introducers.named,
        barred=introducers.barred(size),
    )
    return Agent(setup.config, setup.member, sockets, machine, outside, introducers)


def perform(agent: Agent, action: str, arguments: Iterable[Any]) -> None:
    """Carry out ``Host.perform`` on the agent's loop."""
    assert action in _ACTIONS
    driver = agent.driver
    driver.perform(lambda now: getattr(driver.core, action)(*arguments, now))


async def question(agent: Agent, name: str, arguments: Iterable[Any]) -> Any:
    """Answer ``Host.ask`` on the agent's loop."""
    if name == "status":
        return agent.status()
    if name == "find":
        return await agent.scout.find(*arguments)
    raise ConsensusError(f"the agent knows no question {name!r}")
