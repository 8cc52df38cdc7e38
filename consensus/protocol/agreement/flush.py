"""Flush reports: what this member's data plane had finished. One stored report an epoch answers every ballot."""

from __future__ import annotations

from collections.abc import Callable

from ...border import Freeze
from ...member import Address
from ...messages import Message
from ..state.effects import Outbox

MakeReply = Callable[[bytes], Message]
"""Makes the answer to a request from the report."""


class FlushReports:
    """Asks the data plane to freeze, once an epoch, and answers the requests when it has."""

    def __init__(self, outbox: Outbox) -> None:
        self._outbox = outbox
        self._reports: dict[int, bytes] = {}
        self._asked: dict[int, int | None] = {}
        self._waiting: dict[int, dict[str, tuple[Address, MakeReply]]] = {}

    def get(self, epoch: int) -> bytes | None:
        """The report for ``epoch``, None while there is none."""
        return self._reports.get(epoch)

    def request(self, epoch: int, after_call: int | None, sender: str, address: Address, answer: MakeReply) -> Message | None:
        """The answer; None while the data plane still has to freeze (``store`` returns it later)."""
        if epoch in self._reports:
            return answer(self._reports[epoch])
        self._waiting.setdefault(epoch, {})[sender] = (address, answer)
        # Ask again only if the first order waits for a call and this request does not.
        if epoch not in self._asked or (self._asked[epoch] is not None and after_call is None):
            self._asked[epoch] = after_call
            self._outbox.emit(Freeze(epoch, after_call))
        return None

    def store(self, epoch: int, report: bytes) -> list[tuple[str, Address, Message]]:
        """The data plane froze: keep its report (the first one counts). Returns the answers to the waiting requests."""
        kept = self._reports.setdefault(epoch, report)
        waiting = self._waiting.pop(epoch, {})
        return [(sender, address, answer(kept)) for sender, (address, answer) in waiting.items()]

    def forget(self, epoch: int) -> None:
        """Drop what is older than ``epoch`` (the report of ``epoch`` itself may be requested until its view is installed)."""
        for table in (self._reports, self._asked, self._waiting):
            for key in [key for key in table if key < epoch]:
                del table[key]
