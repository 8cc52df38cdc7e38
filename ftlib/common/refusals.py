"""Why a member refuses an HTTP request: a status for the requesting program, and words for the reader of the log."""

from __future__ import annotations

from enum import IntEnum
from http import HTTPStatus

from consensus import RefusalError


class Refusal(IntEnum):
    """The status of the answer. Any status other than these and OK means: there is no such thing here, and never will be."""

    LATER = HTTPStatus.SERVICE_UNAVAILABLE
    """Not yet: ask again. The server of all sources also sends it when there are too many requests at a time."""
    READING = HTTPStatus.LOCKED
    """Ask again, as for ``LATER``, but it may take long: the checkpoint is being read."""
    ABSENT = HTTPStatus.MISDIRECTED_REQUEST
    """The program is late, and a backup worker is in the call; or it declines the call, and does not know what it is."""
    NOTHING = HTTPStatus.PRECONDITION_FAILED
    """No state is registered."""
    UNFIT = HTTPStatus.UNPROCESSABLE_ENTITY
    """The state now holds a value that cannot be transferred."""
    MIDWAY = HTTPStatus.TOO_EARLY
    """The program is in a call, but not in the first of its loop: take part in that one, then ask again."""
    OVER = HTTPStatus.GONE
    """The request came after the call that it is about."""

    def error(self, why: str) -> RefusalError:
        """The exception for a source to raise."""
        return RefusalError(f"{_WORDS.get(self, '')}{why}", self)


_WORDS = {
    Refusal.LATER: "ask again: ",
    Refusal.READING: "ask again: ",
    Refusal.ABSENT: "absent: ",
    Refusal.NOTHING: "nothing: ",
    Refusal.MIDWAY: "midway: ",
}
