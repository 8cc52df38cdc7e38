"""The whole state from one donor, for a member that waits for it at a *border*: between two calls (``ft.catch_up``).

The member takes part in no call meanwhile, so the others cannot finish their next one, call n, and its result cannot change
their state. Where a donor is inside call n, its state is as on entry to it, and the others wait for this member: until the
state is here, and until its program has come to call n as well. A donor whose program computes on private state gives the
shared state outside of calls, too, from the border before call n on; and a copy of its private state (``private_copies``). Then
nobody waits, unless the others come to call n before the state is here.

Not every call will do: the program goes on at the beginning of its loop, hence the others have to be there. Their programs say
so by ``catch_up``, or by a step on private state. Where they never do, an average or a unit counts as the first call of a loop.
In any other call the waiting member takes part with nothing of its own, and asks again.
"""

from __future__ import annotations

from collections.abc import Mapping

from consensus import Member

from ..common.refusals import Refusal
from ..common.threads import stand_back
from ..common.units import whole_number
from ..core.calls.call import Kind
from ..core.calls.session import Session
from ..core.engine.catching_up import CatchUp, Obtained
from ..core.plane.phase import Phase
from ..core.plane.plane import Plane
from ..core.replicas.whole import part_in
from ..errors import ConfigError, FTLibError, RebuildTimeout, StateLost
from ..state.live import nbytes_of_parameters
from ..state.registry import Registered
from .donor.private_copies import PrivateCopy
from .joiner.http_transport import RETRY, FetchError, Later, Midway, Nothing, pause_between_requests
from .layout.requests import POLL, Body
from .layout.shards import LARGE
from .whole_state import Transfer, in_turn, registered_nothing

PATH = "/border"
_PATIENT = 24
"""How often a donor may answer "ask again" before another one is asked: the private state comes from one, and a copy costs."""


class Border:
    """Both sides at one member, in one lifetime."""

    PATH = PATH

    def __init__(self, plane: Plane, transfer: Transfer, step_timeout: float, *, beside: bool = True) -> None:
        """``step_timeout``: seconds within which the state has to come. ``beside``: False if private state is given only inside
        a call: the processes of a replica, which are asked one by one, are then all at one moment.
        """
        self._plane = plane
        self._transfer = transfer
        self._step_timeout = step_timeout
        self._beside_training = beside

    # --- the member that waits, on the training thread -----------------------------------------------------------------

    def obtain(self, call: CatchUp, session: Session, deadline: float) -> Obtained:
        """Load the state as of the border before ``call.number``. RebuildTimeout if it does not come until ``deadline``, or
        where the donors say "later", not within ``step_timeout`` of the last step that one of the others did by itself.

        All processes of a replica ask in the same order: a view has its replicas in one order, whichever shard is looked at.
        """
        plane, registered = self._plane, self._transfer.registered
        if registered is None:
            raise ConfigError("catch_up: no state is registered: call register_state before it")
        if not plane.current_state_id:
            if set(session.plan.blank) == set(session.view.ids):
                raise StateLost(f"all founders ended before anybody in {session.view} had their state: start anew")
            raise registered_nothing(session)
        donors, refused, laters = in_turn(session, call.turn(session.view.epoch)), dict[str, FTLibError](), 0
        while plane.acting_in(session) and not plane.leaving():
            asked = plane.threads.now()
            found = self._ask(donors[0], call, session, registered)
            if isinstance(found, Obtained):
                return found
            if isinstance(found, Later):
                laters += 1
                pause_between_requests(plane, session, asked)
            else:
                refused[donors[0].id] = found
            if not isinstance(found, Later) or laters >= _PATIENT:
                donors, laters = [*donors[1:], donors[0]], 0
            if len(refused) == len(donors):
                if all(isinstance(error, Nothing) for error in refused.values()):
                    raise registered_nothing(session)
                refused.clear()
                plane.wait_end(session, RETRY)
            if plane.threads.now() > (self._later(deadline) if isinstance(found, Later) else deadline):
                names = session.names(session.plan.holders)
                raise RebuildTimeout(f"catch_up: no state from {names} within {self._step_timeout:g} s")
        return Obtained.OVER

    def _later(self, deadline: float) -> float:
        """Until when to wait for donors that say "later": they may be in a round of inner steps, which may take hours."""
        with self._plane.changed:
            return max(deadline, self._plane.peers.stepped + self._step_timeout)

    def _ask(self, donor: Member, call: CatchUp, session: Session, registered: Registered) -> Obtained | FTLibError:
        """Ask one donor; returns its refusal, if it is one after which another donor may be asked, or the same again."""
        plane, current_state_id, number = self._plane, self._plane.current_state_id, call.number
        query = {"number": str(number), "origin": current_state_id, "member": plane.member_id}

        def go_on() -> bool:
            if any(current >= number for _, current in list(plane.peers.places.values())):
                plane.present()  # the others are in that call, and wait for this member: they may know why
            return plane.acting_in(session) and not plane.leaving()

        try:
            self._transfer.fetch(donor, query, registered, go_on, PATH)
        except Midway:
            return Obtained.MIDWAY
        except (Later, FetchError) as error:
            return error
        private, part = registered.private, part_in(donor)
        call.given(donor.id if part is None else part.replica, private=private is not None and private.travels)
        return Obtained.HERE if plane.loaded(session, current_state_id) else Obtained.OVER

    # --- the donor, on a worker thread of the agent --------------------------------------------------------------------

    def source(self, query: Mapping[str, str]) -> Body:
        """Serves ``PATH``. LookupError says why there is no state, or none yet."""
        number, state_id, member = whole_number(query.get("number", "")), query.get("origin", ""), query.get("member", "")
        if number is None or not state_id or not member:
            raise LookupError("expected ?number=NUMBER&origin=ID&member=ID")
        plane, transfer = self._plane, self._transfer
        registered = transfer.registered
        if registered is None:
            with plane.changed:
                plane.changed.wait_for(lambda: plane.has_state or plane.current is not None, POLL)
                calls = plane.current is not None and not plane.has_state
            raise (Refusal.NOTHING if calls else Refusal.LATER).error("no state is registered here")
        copy: PrivateCopy | None = None
        if registered.private is not None and self._beside_training:
            copy = transfer.copies.of(member, number, POLL, lambda: self._inside(number))
        else:
            with plane.changed:
                plane.changed.wait_for(lambda: self._inside(number), POLL)
        refusal = None if copy is None else copy.refusal
        if refusal is not None:
            transfer.copies.drop(member, copy)
            raise refusal
        with plane.changed:
            if plane.state_id != state_id:
                raise Refusal.LATER.error("this member does not hold that state")
            entry, call = transfer.entry(number), plane.current
            if entry is None:
                if copy is None or not plane.settled(number):
                    raise Refusal.LATER.error(f"not at a border before call {number}")
                return self._beside(registered, number, copy, member)
            assert call is not None
            told = plane.borders.told and registered.private is None  # private state says where in its loop a program is
            if plane.borders.before != number and (told or call.kind not in (Kind.AVERAGE, Kind.UNIT)):
                raise Refusal.MIDWAY.error(f"call {number} ({call.layout.text}) is not the first of the loop here")
        transfer.copies.drop(member, None)
        return transfer.guarded(number, entry, call.fence)

    def _inside(self, number: int) -> bool:
        """True if there is nothing to wait for: the program is in that call, or past it. Under the plane's lock."""
        plane = self._plane
        return self._transfer.entry(number) is not None or plane.finished >= number or plane.phase is Phase.STOPPED

    def _beside(self, registered: Registered, number: int, copy: PrivateCopy, member: str) -> Body:
        """The shared state as it is, with the copy of the private one, while the program computes."""
        plane, transfer = self._plane, self._transfer
        if nbytes_of_parameters(registered) + copy.nbytes >= LARGE:
            stand_back()  # training goes first; this thread serves only this request
        over = f"call {number} ended while the state before it was being sent"
        try:
            yield from transfer.sent(
                lambda: registered.tree(plane.step, private=copy.part), copy.fence, lambda: plane.settled(number), over
            )
        finally:
            transfer.copies.drop(member, copy)
