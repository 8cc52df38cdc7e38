"""Points of the library that a worker passes, without touching its source: chosen to die at, or noted (``Tracer``).

It sends itself SIGKILL when it passes a point for the n-th time. ``"finish:before@120"``: on entry to the 120th
``Plane.finish``. ``"send:Install@2"``: instead of sending the second Install. ``silently``: its host goes with it, so that
nobody gets as much as a closed connection.
"""

from __future__ import annotations

import functools
import os
import signal
import subprocess
import time
from collections.abc import Callable
from typing import Any

from consensus.membership import Membership
from consensus.protocol.agreement.installer import Installer
from consensus.protocol.agreement.proposer import Proposer
from consensus.protocol.agreement.view_change import ViewChange
from consensus.protocol.agreement.voter import Voter
from consensus.runtime.agent.agent import Agent
from ftlib.core.calls import adoption as donation
from ftlib.core.calls.call import Call
from ftlib.core.engine.engine import Engine
from ftlib.core.plane import rebuild
from ftlib.core.plane.failures import Failures
from ftlib.core.plane.plane import Plane
from ftlib.core.plane.rebuild import Rebuilder
from ftlib.frameworks import gloo_build, rendezvous
from ftlib.frameworks.gloo import GlooFramework
from ftlib.frameworks.gloo_group import GlooGroup
from ftlib.frameworks.isolated import IsolatedFramework
from ftlib.frameworks.isolated.group import IsolatedGroup
from ftlib.lifecycle.lifetime import Lifetime
from ftlib.recovery.whole_state import Transfer

POINTS: dict[str, tuple[Any, str] | tuple[Any, str, Any]] = {
    "enter": (Plane, "enter"),
    "operation": (GlooGroup, "submit", IsolatedGroup),
    "finish": (Plane, "finish"),
    "deliver": (Call, "deliver"),
    "fail": (Plane, "failed"),
    "freeze": (Plane, "freeze"),
    "report": (Membership, "flushed"),
    "install": (Rebuilder, "_install"),
    "build": (GlooFramework, "rebuild", IsolatedFramework),
    "ready": (Membership, "ready"),
    "activate": (Plane, "activate"),
    "donate": (rebuild, "donate"),
    "adopt": (donation.Adoption, "receive"),
    "load": (Transfer, "load"),
    "propose": (Proposer, "_begin"),
    "drive": (Installer, "begin"),
}


_SILENCE = "".join(
    f"table inet silence {{\nchain {way} {{\ntype filter hook {way} priority 0;\ndrop\n}}\n}}\n" for way in ("input", "output")
)
"""Of the namespace that this process is in."""


def of_the_agent(text: str) -> bool:
    """Whether the point is passed by the agent, which then has to be a thread of this process."""
    return text.partition("@")[0].partition(":")[0] in ("send", "propose", "drive")


def arm(text: str, *, silently: bool = False) -> None:
    """Patch the library of this process so that it dies at ``text``; the points are methods that are looked up at each call."""
    point, _, count = text.partition("@")
    name, _, side = point.partition(":")
    strike = _Counter(int(count or 1), silently)
    if name == "send":
        send = Agent.send

        def sending(self: Agent, address: Any, message: Any) -> None:
            if type(message).__name__ == side:
                strike()
            send(self, address, message)

        Agent.send = sending  # type: ignore[method-assign]
        return
    owner, attribute, *others = POINTS[name]
    for each in (owner, *others):
        setattr(each, attribute, wrapped(getattr(each, attribute), strike, before=side != "after"))


class _Counter:
    def __init__(self, left: int, silently: bool) -> None:
        self._left, self._silently = left, silently

    def __call__(self, *_: Any, **__: Any) -> None:
        self._left -= 1
        if self._left == 0:
            if self._silently:
                subprocess.run(["nft", "-f", "-"], input=_SILENCE, text=True, check=True, timeout=5)
            os.kill(os.getpid(), signal.SIGKILL)


def wrapped(function: Callable[..., Any], told: Callable[..., None], *, before: bool) -> Callable[..., Any]:
    """``told`` is called with the same arguments, before or after."""

    @functools.wraps(function)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        if before:
            told(*args, **kwargs)
        result = function(*args, **kwargs)
        if not before:
            told(*args, **kwargs)
        return result

    return wrapper


_LIMIT = 2_000
_BEFORE: list[tuple[str, Any, str]] = [
    ("error", Failures, "report"),
    ("proof", Agent, "_checked"),
    ("propose", Proposer, "_begin"),
    ("accept", Voter, "on_accept"),
    ("freeze asked", Rebuilder, "_freeze"),
    ("report", Membership, "flushed"),
    ("chosen", ViewChange, "_chosen"),
    ("install", ViewChange, "on_install"),
    ("build", Lifetime, "_rebuild"),
    ("ready", Membership, "ready"),
    ("activate", Rebuilder, "_activate"),
    ("attempt", Engine, "attempt"),
    ("finish", Plane, "finish"),
]
_AFTER: list[tuple[str, Any, str]] = [
    ("frozen", Plane, "freeze"),
    ("met store", rendezvous.Meeting, "__init__"),
    ("device", gloo_build, "_make_device"),
    ("exchanged", rendezvous.Meeting, "exchange"),
    ("activated", Plane, "activate"),
]


class Tracer:
    """Patches this process; ``marks`` grow from any thread."""

    def __init__(self) -> None:
        self.marks: list[tuple[str, float]] = []
        for label, owner, name in _BEFORE:
            setattr(owner, name, wrapped(getattr(owner, name), functools.partial(self._note, label), before=True))
        for label, owner, name in _AFTER:
            setattr(owner, name, wrapped(getattr(owner, name), functools.partial(self._note, label), before=False))

    def take(self) -> list[tuple[str, float]]:
        """What was noted since the last time."""
        marks, self.marks = self.marks, []
        return marks

    def _note(self, label: str, *args: Any, **_: Any) -> None:
        if label == "proof" and args[2] is not False:
            return
        if len(self.marks) < _LIMIT:
            self.marks.append((label, time.monotonic()))
