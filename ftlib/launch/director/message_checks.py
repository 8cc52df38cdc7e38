"""What of an agent's message cannot be true. Hosts may be wrong, or ill-disposed: whoever says such a thing harms itself alone.

That fields are of their kinds is seen to where messages are decoded.
"""

from __future__ import annotations

from collections.abc import Sequence

from ..stream.messages import Again, Announced, Bind, Bound, Drained, Ended, Here, Lines, Logged, Message, Piece, Started
from .decisions.roster import Place

_MOST = 1 << 16
"""CPUs, or GPUs, of a host."""


def fault_of(message: Message, host: str, places: Sequence[Place], asked: Bind | None) -> str:
    """In words, to stand behind "it sent"; empty: nothing. ``asked``: which sockets the agent was told to bind last."""
    match message:
        case Here(cpus=cpus, gpus=gpus):
            return "" if 0 <= cpus <= _MOST and 0 <= gpus <= _MOST else f"that it has {cpus} CPUs and {gpus} GPUs"
        case Bound():
            return _wrongly_bound(message, asked)
        case Lines(worker=-1) | Logged(worker=-1):
            return ""  # the agent's own
        case Lines() | Logged() | Started() | Announced() | Again() | Ended() | Piece() | Drained():
            if not (0 <= message.worker < len(places) and places[message.worker].host == host):
                return f"a message of worker {message.worker}, which is none of its own"
    return ""


def _wrongly_bound(bound: Bound, asked: Bind | None) -> str:
    if asked is None or bound.founding > asked.founding:
        return "addresses that nobody has asked for"
    if bound.founding == asked.founding and len(bound.addresses) != asked.founders:
        return f"{len(bound.addresses)} addresses for {asked.founders} founders"
    ports = [*(address.rpartition(":")[2] for address in bound.addresses), str(bound.master)]
    if not all(port.isdecimal() and int(port) < 1 << 16 for port in ports):
        return f"addresses that are none: {', '.join(bound.addresses)}, {bound.master}"
    return ""
