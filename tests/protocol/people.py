"""Members and views for tests, with short names."""

from __future__ import annotations

from random import Random

from consensus.config import Config
from consensus.member import Member
from consensus.protocol.machine import Machine
from consensus.protocol.state.core import Core
from consensus.protocol.state.effects import Effect, Send
from consensus.protocol.state.standing import Standing
from consensus.view import NO_VIEW_ID, View

CONFIG = Config()
T_EXCL = CONFIG.exclude_after


def member(name: str, port: int | None = None) -> Member:
    return Member(name, "10.0.0.1", port if port is not None else 1000 + ord(name[0]))


def view_of(names: str, epoch: int = 1, parent_id: str = NO_VIEW_ID, origin: str | None = None) -> View:
    """Of the chain that begins with ``origin``, by default with its parent."""
    return View(epoch, parent_id, tuple(member(name) for name in names), parent_id if origin is None else origin)


def core_of(name: str = "a", config: Config = CONFIG) -> Core:
    return Core(config, member(name), Random(1))


def machine_in(names: str, own: str, now: float = 100.0, config: Config = CONFIG) -> Machine:
    """A machine that just adopted, installed and activated a first view."""
    machine = Machine(config, member(own), Random(1), founder=False, introducers=(("10.0.0.1", 1),))
    machine.start(now)
    machine._change.adopt(view_of(names), names[0], now)
    machine._core.installed = machine._core.active = machine._core.view
    machine._core.standing = Standing.ACTIVE
    machine.drain()
    return machine


def sends(effects: list[Effect], kind: type) -> list[Send]:
    return [effect for effect in effects if isinstance(effect, Send) and isinstance(effect.message, kind)]
