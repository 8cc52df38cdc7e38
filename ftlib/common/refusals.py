"""Why a member that is asked over HTTP gives nothing: a status that whoever asks acts on, and words for who reads the log."""

from __future__ import annotations

from enum import IntEnum
from http import HTTPStatus

from consensus import RefusalError


class Refusal(IntEnum):
    """The status of the answer. Any other, but for OK, means: there is no such thing here, and there will be none."""

    LATER = HTTPStatus.SERVICE_UNAVAILABLE
    """Not yet: ask again. What serves all sources says it, too, where too much is asked at a time."""
    READING = HTTPStatus.LOCKED
    """The same, and it may take long: the checkpoint is being read."""
    ABSENT = HTTPStatus.MISDIRECTED_REQUEST
    """The program is late, and a deputy is in the call in its place."""
    NOTHING = HTTPStatus.PRECONDITION_FAILED
    """No state is registered."""
    UNFIT = HTTPStatus.UNPROCESSABLE_ENTITY
    """The state holds something by now that cannot be transferred."""
    OVER = HTTPStatus.GONE
    """The request came after the call that it is about."""

    def error(self, why: str) -> RefusalError:
        """For a source to raise."""
        return RefusalError(f"{_WORDS.get(self, '')}{why}", self)


_WORDS = {
    Refusal.LATER: "ask again: ",
    Refusal.READING: "ask again: ",
    Refusal.ABSENT: "absent: ",
    Refusal.NOTHING: "nothing: ",
}
