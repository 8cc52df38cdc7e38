"""Which call the others are in: a newcomer asks one of them before it takes part in a call.

A newcomer's program is in its first call, the others' programs in whatever comes next in their loops: another average, an
``allreduce`` of the loss, a barrier. If their call is like its own, the newcomer adopts it as its own. Any other call it
follows (``follow``), and then asks about the next one.
"""

from __future__ import annotations

import http.client
import re
from collections.abc import Callable, Iterator, Mapping
from enum import Enum

from consensus import CarefulLogger, KeyRing, Member, SecretError, get

from ...common.refusals import Refusal
from ...common.units import whole_number
from ...errors import ConfigError
from ...state.registry import UNKNOWN, Registered
from ..calls.call import Call, Kind
from ..calls.session import Session
from ..plane.phase import Phase
from ..plane.plane import Plane
from ..tensors.layout_book import LayoutBook

logger = CarefulLogger("ftlib")

PATH = "/call"
POLL = 5.0
"""Seconds that a member keeps a request waiting before it answers "ask again"."""
SILENCE = 15.0
"""Seconds without a byte after which another member is asked."""
RETRY = 0.05
"""Seconds to wait before asking again if no member knew."""
_LONGEST = 64
"""Limit on the size of an answer, in bytes."""
_YES, _NO = b"y", b"n"
_SIGNATURE = re.compile("[0-9a-f]{32}")
_NOTHING = b"nothing".ljust(16)
"""Used as the state's shape if no state was registered."""


class Entered(Enum):
    """Which call the others are in, as far as a newcomer has to know it."""

    OWN = "a call like the program's own; or none in which it could ever have their state, as loading that will say"
    OTHER = "another one, or one that no program has entered yet"
    FOREIGN = "another one, and who is in it has made none like the program's own so far"
    UNKNOWN = "the session has ended"


class Inquiry:
    """One member's inquiry, on both sides: asking and answering."""

    def __init__(
        self, plane: Plane, layouts: LayoutBook, registered: Callable[[], Registered | None], ring: KeyRing | None = None
    ) -> None:
        """``layouts``: of the calls made here. ``registered``: returns the program's registered state, if any. ``ring``: the
        job's keys, None without a secret.
        """
        self._plane = plane
        self._layouts = layouts
        self._registered = registered
        self._ring = ring

    # --- the newcomer, on the training thread --------------------------------------------------------------------------

    def ask(self, own: Call, session: Session, waits: Callable[[Call, Session], None]) -> Entered:
        """Which call the others are in, or are about to enter, as call ``own.number``.

        ``waits`` is called now and then while nobody is in it; what it raises is raised.
        ConfigError if it is a unit and ``own`` is not: nobody can take part in a unit without its function.
        """
        plane = self._plane
        asked = [session.view.member(member_id) for member_id in self._settled(session)]
        if not asked:
            return Entered.OWN
        while plane.acting_in(session):
            absent = 0
            for member in asked:
                waits(own, session)
                answer = self._ask_one(member, own)
                if answer == Refusal.ABSENT:
                    absent += 1
                elif isinstance(answer, bytes):
                    return self._compared(own, answer, session.name(member.id))
                if not plane.acting_in(session):
                    return Entered.UNKNOWN
            if absent == len(asked):
                return Entered.OTHER
            plane.wait_end(session, RETRY)
        return Entered.UNKNOWN

    def _settled(self, session: Session) -> tuple[str, ...]:
        """The members whose calls are the job's: all that are no newcomers; if all are newcomers, those with the state."""
        plan, own = session.plan, self._plane.member_id
        found = tuple(member_id for member_id in session.view.ids if member_id not in plan.newcomers)
        if not found and own not in plan.holders:
            return plan.holders
        return found

    def _ask_one(self, member: Member, own: Call) -> bytes | int | None:
        """The answer of ``source`` at ``member``; or the status of its refusal; None if it did not answer."""
        query = f"{PATH}?number={own.number}&like={own.layout.signature.hex()}"
        try:
            with get(member.address, query, self._ring, timeout=SILENCE) as answer:
                return bytes(answer.read(_LONGEST)) if answer.status == http.client.OK else answer.status
        except (OSError, http.client.HTTPException, ValueError, SecretError) as error:
            logger.debug("%s did not say what it is in: %s", member, error, extra=self._plane.about("no_answer"))
            return None

    def _compared(self, own: Call, answer: bytes, name: str) -> Entered:
        signature, shape, known, kind = answer[:16], answer[16:32], answer[32:33], answer[33:].decode(errors="replace")
        if own.layout.same_call(signature):
            return Entered.OWN
        if self._never_fits(shape):
            return Entered.OWN
        if kind == Kind.UNIT.value:
            raise ConfigError(
                f"{own}: {name} carries out a whole step (execute) just now, and a worker that has just come can take part "
                "only if its own first call is execute, too: make either all steps of the loop with execute, or none"
            )
        return Entered.OTHER if known == _YES else Entered.FOREIGN

    # --- the member that is asked, on a worker thread of the agent -----------------------------------------------------

    def source(self, query: Mapping[str, str]) -> Iterator[bytes]:
        """Serves ``PATH``. The answer: the signature of this member's call, the shape of its state, whether it has made a call
        with the signature ``like``, and its call's kind. LookupError says why there is no answer yet.
        """
        number, like = whole_number(query.get("number", "")), query.get("like", "")
        if number is None or not _SIGNATURE.fullmatch(like):
            raise LookupError("expected ?number=NUMBER&like=SIGNATURE")
        plane = self._plane
        with plane.changed:
            plane.changed.wait_for(lambda: self._decided(number), POLL)
            call = plane.current
            if call is None or call.number != number or call.foreign or call.declines:
                away = call is not None and call.number == number and (call.by_backup or call.declines)
                raise (Refusal.ABSENT if away else Refusal.LATER).error(f"not inside call {number}")
            if plane.newcomer and plane.state_id != plane.current_state_id:
                raise Refusal.LATER.error("this worker is a newcomer itself")
            known = _YES if self._layouts.may_know(bytes.fromhex(like)) else _NO
            return iter([call.layout.signature + self._shape() + known + call.layout.kind.encode()])

    def _never_fits(self, shape: bytes) -> bool:
        """True if a state of that shape cannot be loaded here: then the others may never make a call like this program's."""
        plane, own = self._plane, self._shape()
        return plane.state_id != plane.current_state_id and own != shape and UNKNOWN not in (own, shape)

    def _shape(self) -> bytes:
        registered = self._registered()
        return _NOTHING if registered is None else registered.shape()

    def _decided(self, number: int) -> bool:
        """True if this member is in call ``number``, or never will be."""
        plane = self._plane
        here = plane.current is not None and plane.current.number == number
        return here or plane.finished >= number or plane.phase is Phase.STOPPED
