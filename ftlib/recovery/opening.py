"""From what the donors have pinned to a round that is under way."""

from __future__ import annotations

import logging

from ..call import Call
from ..logs import about
from ..plane import Plane
from ..registry import Registered
from ..session import Session
from ..units import size
from .allowed import Allowed
from .fetch import Offer, Source, offered
from .round import Round
from .stripes import Stripe, Wave, cut

__all__ = ["open_round", "stripes_of"]

logger = logging.getLogger("ftlib")


def stripes_of(offer: Offer, session: Session, turn: int, version: int, wave: Wave) -> tuple[Stripe, ...]:
    """Those of the portion that was asked for, with who pinned them. FetchError where nobody has pinned one."""
    start, stop = offer.portions[wave.number]
    holders = session.plan.holders
    return offered(offer, cut(stop - start, holders, turn + wave.number, version, start=start, first_index=wave.first))


def open_round(
    plane: Plane,
    registered: Registered,
    own: Call,
    source: Source,
    allowed: Allowed,
    session: Session,
    origin: str,
    turn: int,
    version: int,
    wave: Wave,
    offer: Offer,
) -> Round:
    """Begin with the first portion, pinned on entry to call ``version``, while that may be under way. Any thread.

    FetchError as for ``stripes_of``.
    """
    stripes = stripes_of(offer, session, turn, version, wave)
    text = "getting %s of state from %s beside the training, as of call %d"
    extra = about(plane, "recovery_begins", state_bytes=offer.nbytes, version=version)
    logger.info(text, size(offer.nbytes), session.names(session.plan.holders), version, extra=extra)
    moment, limits = (session, session.view.members, origin, version), (allowed.pending, allowed.patience)
    round_ = Round(plane, registered, own, source, *moment, stripes, offer, *limits)
    round_.begin()
    return round_
