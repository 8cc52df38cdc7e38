"""The whole state from one donor over HTTP, while the others wait: for founders, and for joiners that cannot follow.

It is the state on entry to a call. The donor's training thread is inside that call, which cannot finish without this member, so
the state does not change while it is read. If this member is excluded and the call finishes, the transfer breaks off before it
sends a changed byte. Founders load the most senior founder's initial state from a snapshot made in ``register_state``, so that
their first step counts.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence

from consensus import Answer, CarefulLogger, KeyRing, Member

from ..common.device_waits import Fence
from ..common.devices import HOST, place_of
from ..common.refusals import Refusal
from ..common.traces import FetchRecord, RecoveryRecord
from ..common.units import size, span, whole_number
from ..core.calls.call import Call
from ..core.calls.observer import Observer, Observers
from ..core.calls.session import Session
from ..core.plane.phase import Phase
from ..core.plane.plane import Plane
from ..errors import ConfigError, FTLibError, RebuildTimeout, StateLost
from ..state.codec import StateReader, encode, flatten, header_of, snapshot
from ..state.digests import difference, digests, pack, unpack
from ..state.registry import Registered
from .donor.private_copies import PrivateCopies
from .joiner.http_transport import RETRY, FetchError, Later, Nothing, Refused, Unfit, pause_between_requests, request
from .joiner.progress_log import ArrivingState
from .layout.requests import POLL, Body, Failures, noted, pieces

logger = CarefulLogger("ftlib")

PATH = "/state"
STATE_LIMIT = 1 << 40
"""Maximum bytes of a state."""
_COMPARED = 30.0
"""Maximum seconds for which a member that registered nothing asks whether the others did."""
REGISTERED = "registered"
PROMISED = "promised"
"""A founder asks only for digests, as all founders promise to begin equal."""
_MOST_DIGESTS = 1 << 28
"""Maximum bytes of these."""


class Transfer(Observer):
    """The transfer at one member in one lifetime: both the donor's and the receiver's side."""

    PATH = PATH

    def __init__(
        self,
        plane: Plane,
        join_timeout: float,
        step_timeout: float,
        ring: KeyRing | None = None,
        *,
        observers: Observers | None = None,
        former: Transfer | None = None,
    ) -> None:
        """``observers``: of this member's calls. ``former``: that of the previous lifetime. The registered objects stay, but
        their state must be loaded again.
        """
        self._plane = plane
        self._ring = ring
        self._join_timeout = join_timeout
        self._step_timeout = step_timeout
        self._registered: Registered | None = None if former is None else former._registered  # noqa: SLF001 - its like
        self._outdated = former is not None
        self._compared = False
        """True once this member, which registered nothing, has learnt that the others did not either."""
        self.failures = Failures(plane.threads)
        """To make the state's bytes for others."""
        self.copies = PrivateCopies(plane, self.failures)
        """Copies of this member's private state, for joiners."""
        if former is not None and self._registered is not None:
            plane.registers(former._plane.state_places)  # noqa: SLF001 - its like
            self.copies.watch(self._registered)
        self._observers = Observers() if observers is None else observers
        self._snapshot: bytes | None = None
        """The state before the first step, for the other founders; its digests if it is not sent. Guarded by the plane's lock,
        like ``_registered``."""
        self._sends = True
        """False if founders only compare digests."""
        self._given = 0
        """How often the initial state was given."""

    # --- the member that lacks the state, on the training thread -------------------------------------------------------

    def register(self, registered: Registered, *, sync: bool = True) -> None:
        """Note the registered objects. A founder has the most senior member's state when this returns.

        ``sync``: False if all founders promise to have equal shared states: then nothing is sent but digests.
        ConfigError if the state cannot be transferred: also at a lone worker, as others may join later.
        """
        plane = self._plane
        packed, tensors = flatten(registered.tree(plane.step, own=True))
        if registered.private is None or registered.private.travels:
            header_of(packed)
        places = {*registered.places(), *map(place_of, tensors.values())} - {HOST}
        self.copies.watch(registered)
        with plane.changed:
            self._registered = registered
            plane.registers(tuple(sorted(places)))
            founding = plane.founder and plane.step == 0
        if founding:
            self._found(registered, sync=sync)

    @property
    def registered(self) -> Registered | None:
        """The registered objects; None before ``register``."""
        return self._registered

    def what(self) -> Registered | None:
        """As ``registered``."""
        return self._registered

    def entering(self, number: int) -> None:  # noqa: ARG002 - the same for every call
        """See ``Observer``. After the first step no member asks for the initial state any more."""
        if self._plane.step > 0:
            self.forget()
            self._observers.detach(self)

    def forget(self) -> None:
        """Drop the initial state."""
        self._snapshot = None

    def activated(self, session: Session) -> None:
        """Drop what was kept for members that are gone. Any thread."""
        self.copies.keep_only([member_id for member_id in session.view.ids if member_id not in session.plan.holders])

    def close(self) -> None:
        """Drop everything: this lifetime is over."""
        self.forget()
        self.copies.close()

    def load(self, call: Call, session: Session) -> bool:
        """Load the state on entry to ``call`` if this member lacks it. Returns early if ``session`` ends.

        True if the program's gradients are useless: the state was loaded, or this worker has to leave without it.
        """
        plane, plan = self._plane, session.plan
        current_state_id = plane.current_state_id
        if current_state_id and plane.state_id == current_state_id:
            return False
        if self._registered is None:
            self._compare(call, session)
            return False
        if not current_state_id:
            if self._outdated:  # no member can replace this state, and it must not be used
                raise ConfigError(f"nobody in {session.view} registered state, but this worker did: {_EVERYWHERE}")
            if set(plan.blank) == set(session.view.ids):  # these would train, each with an initial state of its own
                raise StateLost(f"all founders ended before anybody in {session.view} had their state: start anew")
            return False
        deadline = plane.since(call.began) + self._step_timeout
        holders = in_turn(session)
        query = {"call": str(call.number), "origin": current_state_id}
        while plane.acting_in(session):
            asked = plane.threads.now()
            errors = self._load_from(holders, query, self._registered, session)
            if errors is None:
                plane.loaded(session, current_state_id)  # if the session has ended meanwhile, the next one loads again
                return True
            if plane.leaving():
                return True
            if len(errors) == len(holders) and all(isinstance(error, Nothing) for error in errors):
                raise registered_nothing(session)
            if plane.threads.now() > deadline:
                raise RebuildTimeout(f"{call}: no state from {session.names(plan.holders)} within {self._step_timeout:g} s")
            if any(isinstance(error, Later) for error in errors):
                pause_between_requests(plane, session, asked)
            else:
                plane.wait_end(session, RETRY)
        return False

    def _compare(self, call: Call, session: Session) -> None:
        """ConfigError if this member has registered nothing but the others have: it would never get their parameters.

        If no answer comes for long, this member goes on, and waits for the others in ``call`` as always.
        """
        plane, plan = self._plane, session.plan
        if self._compared or not plan.holders or plan.holders[0] == plane.member_id:
            return
        donor = session.view.member(plan.holders[0])
        deadline = plane.since(call.began) + min(self._step_timeout, _COMPARED)

        def go_on() -> bool:
            return plane.acting_in(session) and not plane.leaving() and plane.threads.now() < deadline

        while go_on():
            try:
                with request(self._ring, donor, PATH, {"registered": 1}, go_on) as answer:
                    answer.read(1000)
            except Later:
                plane.wait_end(session, RETRY)
            except Refused:
                self._compared = True
                return
            except FetchError as error:
                logger.debug("%s was not asked for its state: %s", donor, error, extra=plane.about("no_state", donor=donor.id))
                return  # the donor has ended, as the next session will show
            else:
                raise ConfigError(f"this worker registered no state, but {session.name(donor.id)} did: {_EVERYWHERE}")

    def _load_from(
        self, holders: Sequence[Member], query: Mapping[str, str], registered: Registered, session: Session
    ) -> list[FTLibError] | None:
        """Ask the holders in turn until one's state is loaded (None). Else their errors, fewer if ``session`` ended."""

        def go_on() -> bool:
            return self._plane.acting_in(session) and not self._plane.leaving()

        errors: list[FTLibError] = []
        for holder in holders:
            try:
                self.fetch(holder, query, registered, go_on)
            except (FetchError, Later) as error:
                errors.append(error)
            else:
                return None
            if not go_on():
                break
        return errors

    def _found(self, registered: Registered, *, sync: bool) -> None:
        plane = self._plane
        own = None if sync else digests(registered.shared(plane.step))
        deadline = plane.threads.now() + self._join_timeout
        while True:
            session = self.active(deadline)
            plan = session.plan
            if plane.step > 0:
                return  # the others have loaded a checkpoint: that, or the first call, brings the state
            if plan.current_state_id in (plane.member_id, plane.state_id) or not plan.holders:
                if session.size > 1:
                    data = snapshot(registered.tree(plane.step)) if own is None else pack(own)
                    with plane.changed:
                        self._snapshot, self._sends = data, sync
                        self._observers.attach(self)
                        plane.changed.notify_all()
                return
            donor = session.view.member(plan.holders[0])
            query = {"founding": "1" if sync else PROMISED, "origin": plan.current_state_id}
            go_on, asked = functools.partial(plane.newest_is, session), plane.threads.now()
            try:
                if own is None:
                    self.fetch(donor, query, registered, go_on)
                else:
                    self._check_equal(donor, query, own, session, go_on)
                if plane.loaded(session, plan.current_state_id):
                    return
            except Nothing:
                return  # too late for this way: the first call brings the state
            except Later:
                pause_between_requests(plane, session, asked)
            except FetchError:
                plane.wait_end(session, RETRY)
            if plane.threads.now() > deadline:
                raise ConfigError(
                    f"{session.name(donor.id)} has not registered state within {self._join_timeout:g} s, but this worker has: "
                    "call register_state at every worker"
                )

    def active(self, deadline: float) -> Session:
        """The active session, once there is one. RebuildTimeout at ``deadline``; raises the error that ended this lifetime."""
        plane = self._plane
        with plane.changed:
            plane.changed.wait_for(
                lambda: plane.phase in (Phase.ACTIVE, Phase.STOPPED), max(0.0, deadline - plane.threads.now())
            )
            if plane.phase is Phase.STOPPED:
                if isinstance(plane.error, FTLibError):
                    raise plane.error
                raise FTLibError("this worker has left the job, or was closed: register its state before that")
            if plane.phase is not Phase.ACTIVE or plane.session is None:
                raise RebuildTimeout(
                    f"no view became active within {self._join_timeout:g} s while waiting for the initial state"
                )
            return plane.session

    def fetch(
        self, donor: Member, query: Mapping[str, str], registered: Registered, go_on: Callable[[], bool], path: str = PATH
    ) -> None:
        """Load the state of ``donor``. FetchError, Later: it gave none. ConfigError if it never can, or if it does not fit."""
        began, before = self._plane.threads.now(), self._plane.counters.state_bytes
        try:
            tree = self.receive(donor, path, query, go_on, waited_for="call" in query)
        except Unfit as error:
            why = str(error).removeprefix(f"{donor}: ")
            raise ConfigError(f"the job's state cannot be given to this worker: {why}") from None
        registered.load(tree)
        if (traces := self._plane.traces) is not None:
            now, session = self._plane.threads.now(), self._plane.session
            view_id = "" if session is None else session.whole.view_id
            nbytes, waited_for = self._plane.counters.state_bytes - before, "call" in query
            traces.add(RecoveryRecord(self._plane.member_id, began, now, nbytes, 0, 0, view_id, waited_for=waited_for))

    def _check_equal(
        self, donor: Member, query: Mapping[str, str], own: Mapping[str, bytes], session: Session, go_on: Callable[[], bool]
    ) -> None:
        """ConfigError if the state of ``donor`` is not equal to this member's, of which ``own`` are the digests."""
        name = session.name(donor.id)
        try:
            with request(self._ring, donor, PATH, query, go_on) as answer:
                theirs = unpack(answer.read(_MOST_DIGESTS))
        except Unfit as error:
            raise ConfigError(f"sync=False: {str(error).removeprefix(f'{donor}: ')}") from None
        where = difference(own, theirs)
        if where:
            raise ConfigError(
                f"sync=False: the initial state of {session.name(session.member_id)} differs from that of {name} ({where}): "
                "build the same at every founder, from one seed, or leave sync=False out, so that all get the same"
            )

    def receive(
        self, donor: Member, path: str, query: Mapping[str, str], go_on: Callable[[], bool], *, waited_for: bool = False
    ) -> object:
        """The tree that ``donor`` serves at ``path``; it is not loaded. FetchError, Later: the donor gave nothing.

        ``waited_for``: True if the others wait meanwhile; shown to the person who watches.
        """
        began = self._plane.threads.now()
        try:
            with request(self._ring, donor, path, {**query, "joiner": self._plane.member_id}, go_on) as answer:
                tree, nbytes = self._read(answer, go_on, waited_for=waited_for)
        except (Later, Refused) as error:
            logger.debug("no state for %s: %s", dict(query), error, extra=self._plane.about("no_state"))
            raise
        except FetchError as error:
            logger.info("no state from %s: %s", donor, error, extra=self._plane.about("no_state", donor=donor.id))
            raise
        self._plane.counters.state_bytes += nbytes
        took = self._plane.threads.now() - began
        if (traces := self._plane.traces) is not None:
            traces.add(FetchRecord(donor.fact("name") or donor.id, -1, began, began + took, nbytes, ""))
        extra = self._plane.about("state", donor=donor.id, state_bytes=nbytes, seconds=took)
        session = self._plane.session
        name = str(donor) if session is None else session.name(donor.id)
        logger.info("state of %s from %s in %s", size(nbytes), name, span(took), extra=extra)
        return tree

    def _read(self, answer: Answer, go_on: Callable[[], bool], *, waited_for: bool) -> tuple[object, int]:
        """The tree, and its size in bytes. ValueError or EOFError if the answer is no state."""

        def read(count: int) -> bytes:
            if not go_on():
                raise EOFError("the view changed")
            data = answer.read(count)
            if len(data) != count:
                raise EOFError("the donor broke off")
            arrival.got(count, reader.total)
            return data

        reader = StateReader(read)
        with ArrivingState(self._plane, waited_for=waited_for) as arrival:
            tree = reader.read(STATE_LIMIT)
        answer.finish()
        return tree, reader.nbytes

    # --- the donor's side, on a worker thread of the agent -------------------------------------------------------------

    def source(self, query: Mapping[str, str]) -> Body:
        """Serves ``PATH``. LookupError says why there is no state, or none yet."""
        return noted(self._asked(query), self._plane.traces, self._plane.threads.now, query.get("joiner", ""))

    def _asked(self, query: Mapping[str, str]) -> Body:
        if "founding" in query:
            return self._initial(sync=query["founding"] != PROMISED)
        if "registered" in query:
            return self._whether()
        call, state_id = whole_number(query.get("call", "")), query.get("origin", "")
        if call is None or not state_id:
            raise LookupError("expected ?call=NUMBER&origin=ID, or founding=1")
        return self._on_entry(call, state_id)

    def _initial(self, *, sync: bool) -> Body:
        plane = self._plane
        with plane.changed:
            plane.changed.wait_for(lambda: self._snapshot is not None or plane.step > 0 or plane.current is not None, POLL)
            data, sends = self._snapshot, self._sends
            if data is None and (plane.step > 0 or plane.current is not None):
                raise Refusal.NOTHING.error("no state was registered before the first call")
        if data is None:
            raise Refusal.LATER.error("no state is registered yet")
        if sends is not sync:
            raise Refusal.UNFIT.error(f"it was registered with sync={sends} there, and with sync={sync} here: {_ALIKE}")
        return self._counted(pieces(data))

    def _counted(self, data: Body) -> Body:
        """The initial state, which is as large as the model, is dropped once as many have got it as there are others. Who has
        to ask again, and comes too late, gets the state in the first call.
        """
        yield from data
        plane = self._plane
        with plane.changed:
            self._given += 1
            if plane.session is not None and self._given >= plane.session.size - 1:
                self.forget()

    def _whether(self) -> Body:
        """The answer whether state is registered; before the first call it waits for the registration or that call."""
        plane = self._plane
        with plane.changed:
            plane.changed.wait_for(lambda: plane.has_state or plane.step > 0 or plane.current is not None, POLL)
            if plane.has_state:
                return pieces(REGISTERED.encode())
            called = plane.step > 0 or plane.current is not None
        raise (Refusal.NOTHING if called else Refusal.LATER).error("no state is registered")

    def _on_entry(self, call: int, state_id: str) -> Body:
        plane = self._plane
        with plane.changed:
            plane.changed.wait_for(lambda: self.entry(call) or plane.finished >= call or plane.phase is Phase.STOPPED, POLL)
            entry, registered, own = self.entry(call), self._registered, plane.state_id
            fence = None if plane.current is None else plane.current.fence
        if entry is None:
            raise Refusal.LATER.error(f"not inside call {call}")
        if registered is None:
            raise Refusal.NOTHING.error("no state is registered here")
        if own != state_id:
            raise Refusal.LATER.error("this member does not hold that state")
        return self.guarded(call, entry, fence)

    def entry(self, call: int) -> Callable[[], object] | None:
        """A function that returns the state on entry to ``call``; None unless the program is inside that call."""
        with self._plane.changed:
            current = self._plane.current
            return current.entry(self._now) if current is not None and self._plane.in_call(call) else None

    def _now(self) -> object:
        """The registered state, as it is now."""
        return None if self._registered is None else self._registered.tree(self._plane.step)

    def guarded(self, call: int, entry: Callable[[], object], fence: Fence | None) -> Body:
        """The state on entry to ``call``, that ``entry`` returns, for as long as the program is in that call."""
        return self.sent(entry, fence, lambda: self.entry(call) == entry, f"call {call} ended while its state was being sent")

    def sent(self, state: Callable[[], object], fence: Fence | None, still: Callable[[], bool], over: str) -> Body:
        """What ``state`` returns, encoded, while ``still()``; after that a ConnectionAbortedError with the text ``over``."""
        begun = False
        try:
            if fence is not None:
                fence.share_device()
            for chunk in encode(state(), fence):
                if not still():  # checked after the copy: what was read before is intact
                    raise ConnectionAbortedError(over)
                begun = True
                yield chunk
        except Exception as error:
            refused = None if begun or not still() else self.failures.refusal(error)
            if refused is None:
                raise
            raise refused from error


def in_turn(session: Session, after: int = 0) -> list[Member]:
    """The members that hold the state, in the order in which this member asks them: joiners begin with different ones.

    ``after``: how often it has asked before; it begins with another one each time.
    """
    holders = [session.view.member(member_id) for member_id in session.plan.holders]
    start = (session.view.index(session.member_id) + after) % len(holders)
    return holders[start:] + holders[:start]


def registered_nothing(session: Session) -> ConfigError:
    """The error of a worker that registered state where no other did."""
    return ConfigError(f"{session.names(session.plan.holders)} registered no state, but this worker did: {_EVERYWHERE}")


_EVERYWHERE = "call register_state everywhere"
_ALIKE = "pass the same sync= at every worker"
