"""Bringing registered state to members that lack it: served by a holder over HTTP, fetched by the needy member.

This is for founders, and for joiners that cannot get it beside the others' training (see ``recovery``): the others wait.

*Which* state: the one on entry to a call. The donor's training thread is inside that call, which cannot finish without the
needy member, so nothing changes while it is read; should the needy one be given up and the call finish, the transfer breaks
off before it has sent a byte that was changed. Founders load the most senior one's initial state from a snapshot made in
``register_state``, so that their first step counts.
"""

from __future__ import annotations

import functools
import http.client
import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from enum import Enum
from urllib.parse import urlencode

from consensus import KeyRing, Member, SecretError, get

from .call import Call
from .errors import ConfigError, FTLibError, RebuildTimeout
from .logs import about
from .phase import Phase
from .plane import Plane
from .recovery.bulletin import Arrival
from .registry import Registered
from .session import Session
from .state import StateReader, encode, flatten, snapshot
from .units import size, span

__all__ = ["CHUNK", "LATER", "NOTHING", "PATH", "POLL", "RETRY", "STATE_LIMIT", "Answer", "Transfer"]

logger = logging.getLogger("ftlib")

PATH = "/state"
STATE_LIMIT = 1 << 40
"""Bytes a state may have."""
POLL = 5.0
"""Seconds that a donor keeps a request waiting before it says "ask again"."""
SILENCE = 15.0
"""Seconds without a byte after which another donor is tried."""
RETRY = 0.5
"""Seconds to wait for a view change where no donor answered."""
_COMPARED = 30.0
"""Seconds for which a member that registered nothing asks whether the others did, at most."""
CHUNK = 1 << 20
LATER, NOTHING, UNFIT = "ask again", "nothing", "unfit"
"""What a donor's refusal says."""
REGISTERED = "registered"


class Answer(Enum):
    """What became of asking one donor."""

    LOADED = "loaded"
    LATER = "later"
    """The donor is not there yet."""
    NOTHING = "nothing"
    """The donor registered nothing."""
    UNFIT = "unfit"
    """What the donor registered holds something by now that cannot be transferred."""
    FAILED = "failed"


class Transfer:
    """Both sides of it at one member."""

    def __init__(
        self,
        plane: Plane,
        join_timeout: float,
        step_timeout: float,
        ring: KeyRing | None = None,
        *,
        former: Transfer | None = None,
    ) -> None:
        """``former``: that of the lifetime before. What was registered stays; the state in it must be loaded anew."""
        self._plane = plane
        self._ring = ring
        self._join_timeout = join_timeout
        self._step_timeout = step_timeout
        self._registered: Registered | None = None if former is None else former._registered  # noqa: SLF001 - its like
        self._outdated = former is not None
        self._compared = False
        """Whether a member that registered nothing has asked whether the others did."""
        plane.has_state = self._registered is not None
        self._snapshot: bytes | None = None
        """The state before the first step, for the other founders. Guarded by the plane's lock, as is the one above."""

    # --- the needy side, on the training thread ------------------------------------------------------------------------

    def register(self, registered: Registered) -> None:
        """Note what the state is. A founder gets the most senior member's before this returns.

        ConfigError where it cannot be transferred: also at a lone worker, since it is not known who will join.
        """
        plane = self._plane
        flatten(registered.tree(plane.step))
        with plane.changed:
            self._registered = registered
            plane.has_state = True
            founding = plane.founder and plane.step == 0
        if founding:
            self._found(registered)

    @property
    def registered(self) -> Registered | None:
        """What the state is; None before ``register``."""
        return self._registered

    def forget(self) -> None:
        """Let go of the initial state."""
        self._snapshot = None

    def load(self, call: Call, session: Session) -> bool:
        """Load the state on entry to ``call`` where this member lacks it. Returns early if ``session`` ends.

        Whether the program's gradients are of no use: the state was loaded, or this worker has to go before it gets it.
        """
        plane, plan = self._plane, session.plan
        if self._snapshot is not None and plane.step > 0:
            self._snapshot = None
        authority = plane.authority
        if authority and plane.origin == authority:
            return False
        if self._registered is None:
            self._compare(call, session)
            return False
        if not authority:
            if self._outdated:  # nobody has what would replace it, and it must not be acted on
                raise ConfigError(f"nobody in {session.view} registered state, but this worker did: {_EVERYWHERE}")
            return False
        deadline = call.began + self._step_timeout
        holders = [session.view.member(m) for m in plan.holders]
        start = session.view.index(plane.member_id) % len(holders)
        holders = holders[start:] + holders[:start]
        query = {"call": str(call.number), "origin": authority}
        while plane.acting_in(session):
            answers = self._ask(holders, query, self._registered, session)
            if answers[-1] is Answer.LOADED:
                plane.loaded(session, authority)  # if the session has ended meanwhile, the next one loads again
                return True
            if plane.leaving():
                return True
            if all(answer is Answer.NOTHING for answer in answers):
                raise ConfigError(f"{session.names(plan.holders)} registered no state, but this worker did: {_EVERYWHERE}")
            if plane.threads.now() > deadline:
                raise RebuildTimeout(f"{call}: no state from {session.names(plan.holders)} within {self._step_timeout:g} s")
            if Answer.LATER not in answers:
                plane.wait_end(session, RETRY)
        return False

    def _compare(self, call: Call, session: Session) -> None:
        """ConfigError where this member has registered nothing, and the others have: its weights would never be theirs.

        Where it does not learn that for long, it goes on, and waits for the others in ``call`` as always.
        """
        plane, plan = self._plane, session.plan
        if self._compared or not plan.holders or plan.holders[0] == plane.member_id:
            return
        donor = session.view.member(plan.holders[0])
        deadline = call.began + min(self._step_timeout, _COMPARED)
        while plane.acting_in(session) and not plane.leaving() and plane.threads.now() < deadline:
            try:
                with get(donor.address, f"{PATH}?registered=1", self._ring, timeout=SILENCE) as answer:
                    text = answer.read(1000).decode(errors="replace")
            except (OSError, http.client.HTTPException, ValueError, SecretError) as error:
                logger.debug("%s was not asked for its state: %s", donor, error, extra=about(plane, "no_state", donor=donor.id))
                return  # it has ended, as the next session will tell
            if text == REGISTERED:
                raise ConfigError(f"this worker registered no state, but {session.name(donor.id)} did: {_EVERYWHERE}")
            if LATER not in text:
                self._compared = True
                return
            plane.wait_end(session, RETRY)

    def _ask(
        self, holders: Sequence[Member], query: Mapping[str, str], registered: Registered, session: Session
    ) -> list[Answer]:
        """What became of asking them, one after the other until the state was loaded; broken off where it is of no use."""

        def go_on() -> bool:
            return self._plane.acting_in(session) and not self._plane.leaving()

        answers: list[Answer] = []
        for holder in holders:
            answers.append(self._fetch(holder, query, registered, go_on))
            if answers[-1] is Answer.LOADED or not go_on():
                break
        return answers

    def _found(self, registered: Registered) -> None:
        plane = self._plane
        deadline = plane.threads.now() + self._join_timeout
        while True:
            session = self.active(deadline)
            plan = session.plan
            if plane.step > 0:
                return  # the others have loaded a checkpoint by now: that, or the first call, provides
            if plan.authority in (plane.member_id, plane.origin) or not plan.holders:
                if session.size > 1:
                    data = snapshot(registered.tree(plane.step))
                    with plane.changed:
                        self._snapshot = data
                        plane.changed.notify_all()
                return
            donor = session.view.member(plan.holders[0])
            query = {"founding": "1", "origin": plan.authority}
            answer = self._fetch(donor, query, registered, functools.partial(plane.newest_is, session))
            if answer is Answer.LOADED and plane.loaded(session, plan.authority):
                return
            if answer is Answer.NOTHING:
                return  # too late for this: the first call provides
            if plane.threads.now() > deadline:
                raise ConfigError(
                    f"{session.name(donor.id)} has not registered state within {self._join_timeout:g} s, but this worker has: "
                    "call register_state at every worker"
                )
            if answer is Answer.FAILED:
                plane.wait_end(session, RETRY)

    def active(self, deadline: float) -> Session:
        """The active session, once there is one. RebuildTimeout at ``deadline``; what ended this lifetime is raised."""
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

    def _fetch(self, donor: Member, query: Mapping[str, str], registered: Registered, go_on: Callable[[], bool]) -> Answer:
        inside_a_call = "call" in query
        answer, tree = self.receive(donor, PATH, query, go_on, waited_for=inside_a_call)
        if answer is Answer.LOADED:
            registered.load(tree)
        if answer is Answer.UNFIT:
            raise ConfigError(f"the job's state cannot be given to this worker: {str(tree).partition(': ')[2].strip()}")
        return answer

    def receive(
        self, donor: Member, path: str, query: Mapping[str, str], go_on: Callable[[], bool], *, waited_for: bool = False
    ) -> tuple[Answer, object]:
        """What ``donor`` serves at ``path``: LOADED and the tree, which nobody has taken over yet; or else its words.

        ``waited_for``: whether the others wait meanwhile, for the person who watches.
        """
        began = self._plane.threads.now()
        if self._ring is not None and (line := self._ring.renew()) is not None:
            logger.info("%s", line)
        try:
            with get(donor.address, f"{path}?{urlencode(query)}", self._ring, timeout=SILENCE) as answer:
                if answer.status != http.client.OK:
                    text = answer.read(1000).decode(errors="replace")
                    logger.debug("%s has no state for %s: %s", donor, dict(query), text, extra=about(self._plane, "no_state"))
                    return self._refused(text), text

                def read(count: int) -> bytes:
                    if not go_on():
                        raise EOFError("the view changed")
                    data = answer.read(count)
                    if len(data) != count:
                        raise EOFError("the donor broke off")
                    arrival.got(count, reader.total)
                    return data

                reader = StateReader(read)
                with Arrival(self._plane, waited_for=waited_for) as arrival:
                    tree = reader.read(STATE_LIMIT)
                answer.finish()
        except (OSError, EOFError, http.client.HTTPException, ValueError, SecretError) as error:
            logger.info("no state from %s: %s", donor, error, extra=about(self._plane, "no_state", donor=donor.id))
            return Answer.FAILED, str(error)
        self._plane.counters.state_bytes += reader.nbytes
        took = self._plane.threads.now() - began
        extra = about(self._plane, "state", donor=donor.id, state_bytes=reader.nbytes, seconds=took)
        session = self._plane.session
        name = str(donor) if session is None else session.name(donor.id)
        logger.info("state of %s from %s in %s", size(reader.nbytes), name, span(took), extra=extra)
        return Answer.LOADED, tree

    @staticmethod
    def _refused(text: str) -> Answer:
        """What a donor means by the text with which it gives nothing."""
        said = text.partition(":")[0]
        return {NOTHING: Answer.NOTHING, LATER: Answer.LATER, UNFIT: Answer.UNFIT}.get(said, Answer.FAILED)

    # --- the donor's side, on a worker thread of the agent -------------------------------------------------------------

    def source(self, query: Mapping[str, str]) -> Iterator[bytes]:
        """Serves ``PATH``. LookupError says why there is nothing, or nothing yet."""
        if "founding" in query:
            return self._initial()
        if "registered" in query:
            return self._whether()
        call, origin = query.get("call", ""), query.get("origin", "")
        if not call.isdigit() or not origin:
            raise LookupError("expected ?call=NUMBER&origin=ID, or founding=1")
        return self._on_entry(int(call), origin)

    def _initial(self) -> Iterator[bytes]:
        plane = self._plane
        with plane.changed:
            plane.changed.wait_for(lambda: self._snapshot is not None or plane.step > 0 or plane.current is not None, POLL)
            data = self._snapshot
            if data is None and (plane.step > 0 or plane.current is not None):
                raise LookupError(f"{NOTHING}: no state was registered before the first call")
        if data is None:
            raise LookupError(f"{LATER}: no state is registered yet")
        return iter([data[start : start + CHUNK] for start in range(0, len(data), CHUNK)])

    def _whether(self) -> Iterator[bytes]:
        """Whether state is registered; asked before the first call it takes until then."""
        plane = self._plane
        with plane.changed:
            plane.changed.wait_for(lambda: plane.has_state or plane.step > 0 or plane.current is not None, POLL)
            if plane.has_state:
                return iter([REGISTERED.encode()])
            called = plane.step > 0 or plane.current is not None
        raise LookupError(f"{NOTHING if called else LATER}: no state is registered")

    def _on_entry(self, call: int, origin: str) -> Iterator[bytes]:
        plane = self._plane
        with plane.changed:
            plane.changed.wait_for(lambda: self._entry(call) or plane.finished >= call or plane.phase is Phase.STOPPED, POLL)
            entry, registered, own = self._entry(call), self._registered, plane.origin
        if entry is None:
            raise LookupError(f"{LATER}: not inside call {call}")
        if registered is None:
            raise LookupError(f"{NOTHING}: no state is registered here")
        if own != origin:
            raise LookupError(f"{LATER}: this member does not hold that state")
        return self._guarded(call, entry)

    def _entry(self, call: int) -> Callable[[], object] | None:
        """What gives the state on entry to ``call``; None unless the program is inside of it."""
        with self._plane.changed:
            current = self._plane.current
            return current.entry(self._now) if current is not None and self._plane.in_call(call) else None

    def _now(self) -> object:
        """What is registered, as it is."""
        return None if self._registered is None else self._registered.tree(self._plane.step)

    def _guarded(self, call: int, entry: Callable[[], object]) -> Iterator[bytes]:
        try:
            for chunk in encode(entry()):
                if self._entry(call) != entry:  # after the copy: what was copied before the call ended is intact
                    raise ConnectionAbortedError(f"call {call} ended while its state was being sent")
                yield chunk
        except ConfigError as error:  # before the first chunk
            raise LookupError(f"{UNFIT}: {error}") from None


_EVERYWHERE = "call register_state everywhere"
