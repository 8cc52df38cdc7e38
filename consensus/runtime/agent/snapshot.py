"""What threads other than the agent's may read about a cluster."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from ...errors import StoppedError
from ...logs import CarefulLogger
from ...member import Member
from ...view import Reason, View

_LOG = CarefulLogger()


@dataclass(frozen=True, slots=True)
class Snapshot:
    """What other threads may read: published by the loop's thread, never changed."""

    known: View | None = None
    """The newest chosen view; for a joiner the cluster's view as it received it."""

    installed: View | None = None
    active: View | None = None
    changing: bool = False
    applicants_waiting: bool = False
    stopped: StoppedError | None = None
    reasons: Mapping[str, Reason] = field(default_factory=dict)
    driver: str = ""
    """Id of the member that installs the newest chosen view, as far as known."""

    @property
    def confirmed(self) -> bool:
        """Whether the active view is the newest known and no change is under way."""
        return (
            self.stopped is None
            and not self.changing
            and self.active is not None
            and (self.known is None or self.known.epoch <= self.active.epoch)
        )


class Watchers:
    """Tells who is over, from one snapshot to the next: each lifetime once (see ``Consensus.watch``)."""

    def __init__(self) -> None:
        """Nobody watches yet."""
        self._lock = threading.Lock()
        self._callbacks: dict[int, Callable[[Member, str], None]] = {}
        self._numbers = itertools.count()
        self._latest: View | None = None
        self._ended = False

    def add(self, callback: Callable[[Member, str], None]) -> Callable[[], None]:
        """Tell ``callback`` from now on; returns what ends that."""
        with self._lock:
            number = next(self._numbers)
            self._callbacks[number] = callback
        return lambda: self._remove(number)

    def _remove(self, number: int) -> None:
        with self._lock:
            self._callbacks.pop(number, None)

    def hear(self, here: Member, snapshot: Snapshot) -> None:
        """A new snapshot; called on one thread."""
        over: list[tuple[Member, str]] = []
        view, before = snapshot.installed, self._latest
        if view is not None and view is not before:
            self._latest = view
            if before is not None:
                gone = view.since(before).departed
                over += [(member, _why(snapshot.reasons.get(member.id))) for member in gone if member.id != here.id]
        if snapshot.stopped is not None and not self._ended:
            self._ended = True
            over.append((here, f"this member's own lifetime is over: {snapshot.stopped}"))
        with self._lock:
            callbacks = list(self._callbacks.values()) if over else []
        for callback in callbacks:
            for member, why in over:
                try:
                    callback(member, why)
                except Exception:  # noqa: BLE001 - one watcher must not end this member's lifetime, nor silence the others
                    _LOG.exception("a callback of watch failed for %s", member)


def _why(reason: Reason | None) -> str:
    if reason is None:
        return "it is not in the view any more"
    return f"{reason.cause.value}: {reason.detail}" if reason.detail else reason.cause.value
