"""Carries out a plan of faults, one after another, and observes what becomes of each.

The job is whole before each fault, and has a second replica: so it never loses more than one replica at a time, nor its last
one, unless it is told to (``beyond``). A worker of a replica of several processes takes all of them with it.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from ...errors import FTLibError
from .job import Seen, Sight, UnansweredError
from .plan import LASTING, Planned, in_order

_EVERY = 0.2
"""Seconds between two looks."""


class Target(Protocol):
    """The job."""

    def look(self) -> Sight:
        """Who is in it, and how far. FTLibError if nobody answers."""
        ...

    def inject(self, seen: Seen, kind: str, seconds: float) -> None:
        """Tell that worker. FTLibError if it was not told: UnansweredError if it did not answer."""
        ...


@dataclass(frozen=True, slots=True)
class Row:
    """What became of a fault."""

    planned: Planned
    at: float
    """Seconds since the campaign began."""
    pause: float
    """Seconds that the others stood still for view changes, until the job was whole again; the most of any of them."""
    steps_lost: int
    """By how much ``ft.step`` went back at any of the others."""
    epochs: tuple[int, int]
    """The view before, and the view in the end."""
    back: str
    """What became of the worker."""
    others: tuple[str, ...] = ()
    """Workers that were replaced, or lost, although the fault was not their replica's: a machine too busy to answer, say."""
    replica: str = ""
    """The replica that was hit, as it was called before, if it has several processes."""
    mates: tuple[str, ...] = ()
    """The other workers of that replica: whatever became of the worker became of them."""

    def as_dict(self) -> dict[str, Any]:
        """For a log, which can be replayed."""
        return {
            **self.planned.as_dict(),
            "at": round(self.at, 3),
            "pause": round(self.pause, 4),
            "steps_lost": self.steps_lost,
            "epochs": list(self.epochs),
            "back": self.back,
            "others": list(self.others),
            "replica": self.replica,
            "mates": list(self.mates),
        }


class Campaign:
    """One plan on its way."""

    def __init__(self, job: Target, plan: Sequence[Planned], *, patience: float, beyond: bool) -> None:
        """``patience``: seconds that a worker has to come back. ``beyond``: do not wait for that before the next fault."""
        self._job = job
        self._plan = plan
        self._patience = patience
        self._beyond = beyond

    def run(self) -> Iterator[Row]:
        """The rows, each once its fault is over. FTLibError if the job does not become whole in time."""
        began = time.monotonic()
        expected = set(self._job.look().members)
        due = began
        for planned in self._plan:
            due += planned.after
            time.sleep(max(0.0, due - time.monotonic()))
            before, at = self._injected(planned, {planned.worker} if self._beyond else expected | {planned.worker})
            replica = before.replica_of(planned.worker)
            if planned.kind == "leave" and not all(before.members[name].supervised for name in replica):
                expected -= replica
            yield self._observe(planned, before, expected, at, at - began)

    def _injected(self, planned: Planned, expected: set[str]) -> tuple[Sight, float]:
        """Inject a fault: what was seen before, and when. A worker that was given up between the look at the job and the order,
        on a busy machine say, is waited for once more.
        """
        until = time.monotonic() + self._patience
        while True:
            before, at = self._whole(expected, planned), time.monotonic()
            try:
                self._job.inject(before.members[planned.worker], planned.kind, planned.seconds)
            except UnansweredError:
                if at > until:
                    raise
                time.sleep(_EVERY)
            else:
                return before, at

    def _whole(self, expected: set[str], planned: Planned) -> Sight:
        """Wait until all of them are in the view, with the state, and a second replica could go on without the one to hit."""
        until = time.monotonic() + self._patience
        while True:
            sight = self._look()
            missing = expected if sight is None else expected - (set(sight.members) if self._beyond else sight.level())
            if sight is not None and not missing and not sight.changing:
                able = [replica for replica in sight.whole() if replica <= sight.level()]
                if len(able) > 1 or self._beyond:
                    return sight
            if time.monotonic() > until:
                who = ", ".join(in_order(missing)) or "a second replica"
                raise FTLibError(
                    f"fault {planned.number} ({planned.kind} {planned.worker}) was not injected: {who} is not back within "
                    f"{self._patience:g} s, and the job may lose no more; see ftlib status, or give --patience, or --beyond"
                )
            time.sleep(_EVERY)

    def _observe(self, planned: Planned, before: Sight, expected: set[str], at: float, since: float) -> Row:
        """Look on until the job is whole again, and steps are granted; at most for as long as it may take."""
        name, former, replica = planned.worker, before.members[planned.worker], before.replica_of(planned.worker)
        over = at + (planned.seconds if planned.kind in LASTING else 0.0)
        until = over + self._patience
        steps = {each: seen.step for each, seen in before.members.items() if each not in replica}
        lost, gone, back, sight = 0, 0.0, "", before
        while not back and time.monotonic() < until:
            time.sleep(_EVERY)
            newest, now = self._look(), time.monotonic()
            if newest is None:
                continue
            sight = newest
            for each, last in list(steps.items()):
                step = sight.members[each].step if each in sight.members else None
                if step is not None:
                    lost = max(lost, (last or 0) - step)
                    steps[each] = step
            seen = sight.members.get(name)
            if (seen is None or seen.member != former.member) and not gone:
                gone = now - at
            goes_on = expected <= set(sight.members) and not sight.changing and now >= over and _advanced(before, sight)
            if not goes_on:
                continue
            if planned.kind == "leave" and name not in expected:
                back = "left" if replica.isdisjoint(sight.members) else ""
            elif seen is not None and seen.member != former.member:
                back = f"back after {now - at:.1f} s"
            elif planned.kind in LASTING and seen is not None:
                back = "stayed"
        pause = max(
            (sight.members[each].paused - before.members[each].paused for each in steps if each in sight.members), default=0.0
        )
        back = back or (f"not back within {self._patience:g} s" if gone else "stayed, and no step since")
        others = [
            each for each in steps if each not in sight.members or sight.members[each].member != before.members[each].member
        ]
        epochs, mates = (before.epoch, sight.epoch), tuple(in_order(replica - {name}))
        return Row(planned, since, max(0.0, pause), lost, epochs, back, tuple(in_order(others)), former.replica, mates)

    def _look(self) -> Sight | None:
        """What is seen now; None if nobody who could tell has an answer, as in a change of the view."""
        try:
            return self._job.look()
        except FTLibError:
            return None


def _advanced(before: Sight, after: Sight) -> bool:
    """True if a worker has made a step since."""
    pairs = [(before.members[name].step, after.members[name].step) for name in after.members if name in before.members]
    return any(new is not None and new > (old or 0) for old, new in pairs)
