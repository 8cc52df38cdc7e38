"""What a group's operation raises: who it was with, in which group, and which operation it was.

``PeerLost``, ``LinkBroken``, ``GroupClosed`` end the group at this member: they reach every pending and later operation of it.
``Mismatch``, ``Refused`` and ``CollectiveTimeout`` concern one operation alone.
"""

from __future__ import annotations

from typing import Self

from consensus import Member

from ..errors import FTLibError


def called(member: Member) -> str:
    """The member as texts have it: by its name, if it has one, and where it is."""
    name = member.fact("name")
    return f"{name} ({member})" if name else str(member)


class CollectiveError(FTLibError):
    """An operation of a collective failed.

    ``peer``: the member it was with, None if there is no single one; ``group``: the group's name; ``operation``: its name.
    """

    def __init__(self, text: str, *, peer: Member | None = None, group: str = "", operation: str = "") -> None:
        super().__init__(text)
        self.peer = peer
        self.group = group
        self.operation = operation

    def about(self, group: str = "", operation: str = "") -> Self:
        """A copy without frames, so that each waiter raises one of its own; of ``operation``, unless it is of one already."""
        if self.operation or not operation:
            return type(self)(str(self), peer=self.peer, group=self.group, operation=self.operation)
        return type(self)(f"{operation} in group {group!r}: {self}", peer=self.peer, group=group, operation=operation)


class PeerLost(CollectiveError):
    """The peer is no member any more: it died, left or was excluded. Started anew it is a new peer, and needs a new group."""


class LinkBroken(CollectiveError):
    """The connection to a peer that lives is gone; what was under way may have arrived or not. Make the group again."""


class Mismatch(CollectiveError):
    """What arrived is not what was asked for (shape, dtype, kind): raised at the receiver. That message is used up."""


class Refused(CollectiveError, ValueError):
    """The operation is not possible, and nothing was sent: the text says what to change."""


class GroupClosed(CollectiveError):
    """The group was closed, here or at the peer, before the operation had ended."""


class CollectiveTimeout(CollectiveError, TimeoutError):
    """The operation has not ended in time; it goes on, and can be waited for again."""
