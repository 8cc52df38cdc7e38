"""Rule 1 of a replica of several processes: a call is finished once all members of the replica hold their shards' results.

Between the end of a call's operations and its finish a member says that it holds the result, and waits for the words of its
replica (``docs/replicas.md``). If a view change comes first, the flush report says what is held, and the next view's plan says
whether it is kept or done again.
"""

from __future__ import annotations

import dataclasses
import logging
import zlib

from ..calls.attempt import WAIT_SLICE
from ..calls.call import Call, Results
from ..calls.session import Session
from ..plane.phase import Phase
from ..plane.plane import Plane
from ..replicas.words import Mates, Word, WordFlag
from ..tensors.trailer import Trailer
from .waiting import Waiting, ended

__all__ = ["ShardAgreement", "word_about"]

logger = logging.getLogger("ftlib")

_SLICE = 0.005
"""Seconds between two looks whether the session has ended."""


class ShardAgreement:
    """Agrees with the other members of this replica. Used by the thread that carries out the calls."""

    def __init__(self, plane: Plane, waiting: Waiting, mates: Mates) -> None:
        self._plane = plane
        self._waiting = waiting
        self._mates = mates

    def hold(self, call: Call, session: Session, results: Results, trailer: Trailer | None = None) -> Trailer | bool:
        """Hold ``results`` until all members of the replica do. False if the session ended before: then decide again.

        Returns the trailer as all shards together have it; True if there is none, as after an adoption. Where one shard has no
        result, ``results`` have none from here on.
        """
        if not self._plane.hold(session, results, trailer):
            return False
        self._mates.enter(word_about(session, call, results, trailer))
        began = self._waiting.now()
        while (verdict := self._mates.verdict(_SLICE)) is None:
            if not self._plane.acting_in(session):
                if self._plane.phase is Phase.STOPPED:
                    raise ended(self._plane)
                self._plane.failed(session, begun=False)
                return False
            seconds = self._waiting.now() - began
            if seconds > WAIT_SLICE:
                self._waiting.waited(call, session, seconds)
        if verdict.void or not verdict.alike:
            if not verdict.alike:
                logger.error(
                    "%s is applied by nobody: its shards are over different replicas",
                    call,
                    extra=self._plane.about("not_alike"),
                )
            results.refuse()
        if trailer is None:
            return True
        return dataclasses.replace(trailer, freeze=True) if verdict.freeze and not trailer.freeze else trailer


def word_about(session: Session, call: Call, results: Results, trailer: Trailer | None) -> Word:
    """What this member says of the results that it holds."""
    flags = WordFlag.VOID if call.void(results) else WordFlag(0)
    ranks = 0
    if trailer is not None:
        flags |= WordFlag.FREEZE if trailer.freeze else WordFlag(0)
        if call.counts_as_step:
            ranks = zlib.crc32(bytes(slot.weight > 0.0 for slot in trailer.slots)) or 1
    return Word(session.view.epoch, call.number, flags, ranks)
