"""A call that everybody freezes after, since somebody waits to be let in, or leaves: what the consensus is told then.

The report for the next view is told along with it, unasked: nothing changes in it any more, and to be asked would take two ways
between busy processes, which all members wait for.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from .orders import Order

if TYPE_CHECKING:
    from consensus import Consensus

    from ..calls.call import Call
    from ..calls.session import Session
    from ..tensors.trailer import Trailer
    from .plane import Plane

__all__ = ["halted"]


def halted(plane: Plane, consensus: Consensus, call: Call, session: Session, trailer: Trailer) -> None:
    """The plane has frozen itself after ``call``, as ``trailer`` asked for. Call it under the plane's lock.

    The report comes second: until then no view is installed, so what is said of this stop cannot be taken for a later one.
    Who follows gives none before it is asked: it may have the state in a moment, and the report has to say so.
    """
    consensus.boundary(call.number, session.members_of(trailer.leaving))
    if not call.foreign:
        order = Order(session.view.epoch + 1, call.number)
        answer = plane.freeze(order)
        if answer is not None:
            consensus.flushed(order.epoch, answer[0])
