"""A call after which all members freeze, because a joiner waits or a member leaves: the messages to the consensus.

The flush report for the next view is sent along, unasked: it cannot change any more, and a request would cost a round trip
between busy processes, for which all members wait.
"""

from __future__ import annotations

from consensus import Consensus

from ..calls.call import Call
from ..calls.session import Session
from ..tensors.trailer import Trailer
from .orders import Order
from .plane import Plane


def halted(plane: Plane, consensus: Consensus, call: Call, session: Session, trailer: Trailer) -> None:
    """Notify the consensus that the plane froze after ``call``, as ``trailer`` asked. The caller holds the plane's lock.

    The report is sent second: no view is installed before it, so the boundary cannot be mistaken for a later one. A learner
    sends no report until it is asked: it may have the state in a moment, and the report has to say so.
    """
    consensus.boundary(call.number, session.members_of(trailer.leaving))
    if not call.foreign:
        order = Order(session.view.epoch + 1, call.number)
        answer = plane.freeze(order)
        if answer is not None:
            consensus.flushed(order.epoch, answer[0])
