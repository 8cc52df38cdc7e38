"""A simulated joiner follows the others' calls until it has their state: ``Recovery`` without shards and replays.

A donor copies its state on entry to the call that the joiner names, and sends it while that call is under way. If it is here
when the call has ended, the joiner has the state on entry to it, and the call can be its own. Else it names another call.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from ftlib.common.refusals import Refusal
from ftlib.core.calls.call import Call, Kind, Results
from ftlib.core.calls.observer import Observer
from ftlib.core.calls.session import Session
from ftlib.core.tensors.layout import Layout
from ftlib.core.tensors.staging import Slot
from ftlib.errors import GroupError
from ftlib.state.codec import decode, snapshot

from .job import Colleague
from .requests import Refused, Request

GRACE = 0.02
"""Seconds that the others may wait for the state's last bytes."""
PATIENCE = 3.0
"""Seconds for which a donor waits until its program is in the call that was named."""
TRIES = 8
"""How often the state may fail to come before this member loads it while the others wait."""


class _Copy(Observer):
    """A donor's state on entry to one call. While it waits for that no call is entered early (see ``OpenCalls.may_enter``)."""

    def __init__(self, process: Colleague, version: int, state_id: str) -> None:
        self._process = process
        self._version, self._state_id = version, state_id
        self._changed = process.threads.condition()
        self._data: bytes | None = None
        self._over = False

    def entering(self, number: int) -> None:
        """See ``Observer``."""
        plane, registered = self._process.plane, self._process.transfer.what()
        with self._changed:
            if (
                number == self._version
                and registered is not None
                and plane.state_id == self._state_id == plane.current_state_id
            ):
                self._data = snapshot(registered.tree(plane.step))
            self._over = number >= self._version
            self._changed.notify_all()

    def take(self) -> bytes:
        """Wait for it. RefusalError if it comes too late."""
        process = self._process
        process.observers.attach(self)
        try:
            with self._changed:
                self._changed.wait_for(lambda: self._over or process.plane.finished >= self._version, PATIENCE)
                if self._data is None:
                    raise Refusal.OVER.error(f"not on entry to call {self._version}")
                return self._data
        finally:
            process.observers.detach(self)


class SimulatedRecovery:
    """``Recovery`` at one process."""

    def __init__(self, process: Colleague, *, follows: bool) -> None:
        """``follows``: False: the others wait while this member loads the state."""
        self._process = process
        self._follows = follows
        self._own: Call | None = None
        self._asked: tuple[Session, int, Request[bytes]] | None = None
        """In which session for the state on entry to which call."""
        self._failures = 0

    def wanted(self, own: Call, session: Session) -> bool:
        """See ``Recovery``."""
        plane = self._process.plane
        if (
            not self._follows
            or own.kind is not Kind.AVERAGE
            or plane.founder
            or self._failures >= TRIES
            or not session.plan.holders
        ):
            return False
        if not plane.current_state_id or plane.state_id == plane.current_state_id:
            return False
        self._own = own
        plane.counters.time_use.unknown()
        return True

    def look_ahead(self, own: Call, note: Callable[[Layout], None]) -> None:
        """See ``Recovery``; here no answer takes long."""

    def enter(self, session: Session, number: int) -> bool:
        """See ``Recovery``."""
        process = self._process
        if self._asked is None or self._asked[0] is not session or self._asked[1] < number:
            version = number + process.jobs.rng.choice([0, 1, 1, 2])
            donor = process.jobs.living(process.jobs.rng.choice(session.plan.holders))
            state_id = process.plane.current_state_id
            self._asked = session, version, Request(process, donor, lambda other: _Copy(other, version, state_id).take())
        return process.plane.acting_in(session)

    def finished(self, results: Results) -> bool:
        """See ``Recovery``."""
        plane, own, asked, transfer = self._process.plane, self._own, self._asked, self._process.transfer
        assert own is not None
        if asked is None or asked[1] > results.number:
            return False
        self._asked = None
        session, version, request = asked
        if version < results.number or not own.layout.same_call(results.layout.signature):
            return False
        try:
            data = request.result(lambda: plane.acting_in(session), GRACE)
        except Refused:
            data = None
        if data is None:
            self._failures += 1
            return False
        registered = transfer.what()
        assert registered is not None
        registered.load(decode(data))
        return not plane.data.left_behind(own.batches) and plane.caught_up(session.plan.current_state_id, results.number)

    def kept(self, results: Results) -> Sequence[Slot] | None:
        """See ``Recovery``: nothing is replayed."""
        return None

    def layout(self, session: Session, start: bytes) -> Layout:
        """See ``Recovery``."""
        process = self._process
        for holder in session.plan.holders:
            request = Request(process, process.jobs.living(holder), lambda other: other.layout(start))
            try:
                found = request.result(lambda: process.plane.acting_in(session))
            except Refused:
                found = None
            if found is not None:
                return found
        raise GroupError("nobody said what the others are doing")

    def end(self) -> None:
        """See ``Recovery``."""
        self._asked = self._own = None
