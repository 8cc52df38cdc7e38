"""When a worker passed the phases of a recovery: (label, CLOCK_MONOTONIC) pairs, without touching the library's source."""

from __future__ import annotations

import functools
import time
from collections.abc import Callable
from typing import Any

from consensus.membership import Membership
from consensus.protocol.agreement.proposer import Proposer
from consensus.protocol.agreement.view_change import ViewChange
from consensus.protocol.agreement.voter import Voter
from consensus.runtime.agent.agent import Agent
from ftlib.core.engine.engine import Engine
from ftlib.core.plane.failures import Failures
from ftlib.core.plane.plane import Plane
from ftlib.core.plane.rebuild import Rebuilder
from ftlib.frameworks import gloo, rendezvous
from ftlib.lifecycle.lifetime import Lifetime

__all__ = ["Tracer"]

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
    ("device", gloo, "_make_device"),
    ("exchanged", rendezvous.Meeting, "exchange"),
    ("activated", Plane, "activate"),
]


class Tracer:
    """Patches this process; ``marks`` grow from any thread."""

    def __init__(self) -> None:
        self.marks: list[tuple[str, float]] = []
        for label, owner, name in _BEFORE:
            setattr(owner, name, self._wrapped(label, getattr(owner, name), before=True))
        for label, owner, name in _AFTER:
            setattr(owner, name, self._wrapped(label, getattr(owner, name), before=False))

    def take(self) -> list[tuple[str, float]]:
        """What was noted since the last time."""
        marks, self.marks = self.marks, []
        return marks

    def _wrapped(self, label: str, function: Callable[..., Any], *, before: bool) -> Callable[..., Any]:
        @functools.wraps(function)
        def wrapper(*args: Any, **kwargs: Any) -> Any:
            if before:
                self._note(label, args)
            result = function(*args, **kwargs)
            if not before:
                self._note(label, args)
            return result

        return wrapper

    def _note(self, label: str, args: tuple[Any, ...]) -> None:
        if label == "proof" and args[2] is not False:
            return
        if len(self.marks) < _LIMIT:
            self.marks.append((label, time.monotonic()))
