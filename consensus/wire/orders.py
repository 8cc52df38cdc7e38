"""How somebody outside tells a member's training process to end: ``POST /order?kind=kill&member=ID&nonce=...``, signed
as every request is (see ``proofs``).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import Enum
from urllib.parse import urlencode

from ..errors import CodecError
from .proofs import fresh_nonce

PATH = "/order"
_MOST = 64
"""The most characters of a value."""


class OrderKind(Enum):
    """What a training process can be told from outside. The kernel carries it out, so it reaches a program that hangs."""

    DRAIN = "drain"
    """SIGTERM: leave after the call under way, and end well."""
    KILL = "kill"
    """SIGKILL."""


@dataclass(frozen=True, slots=True)
class OutsideOrder:
    """What such a request says. ``member``: the lifetime that it is for. ``epoch``: the view that the sender saw; None: any."""

    kind: OrderKind
    member: str
    nonce: str
    epoch: int | None = None

    def target(self) -> str:
        """Path and query of the request."""
        facts = {"kind": self.kind.value, "member": self.member, "nonce": self.nonce}
        return f"{PATH}?{urlencode(facts if self.epoch is None else {**facts, 'epoch': self.epoch})}"


def new_order(kind: OrderKind, member: str, epoch: int | None = None) -> OutsideOrder:
    """With a nonce of its own."""
    return OutsideOrder(kind, member, fresh_nonce().hex(), epoch)


def read_query(query: Mapping[str, str]) -> OutsideOrder:
    """The order in a query; raises CodecError if there is none."""
    try:
        kind, member, nonce = OrderKind(query.get("kind", "")), query["member"], query["nonce"]
        epoch = int(query["epoch"]) if "epoch" in query else None
    except (KeyError, ValueError):
        kinds = " or ".join(each.value for each in OrderKind)
        raise CodecError(f"there is no such order: give kind={kinds}, member, nonce, and maybe epoch") from None
    if not (0 < len(nonce) <= _MOST and len(member) <= _MOST):
        raise CodecError("an order with a value that is too long, or without a nonce")
    return OutsideOrder(kind, member, nonce, epoch)


@dataclass(frozen=True, slots=True)
class OrderReply:
    """The answer to an order."""

    status: int
    """As in HTTP."""
    text: str
    carry_out: Callable[[], None] | None = None
    """Does it; called once the answer is on its way, since a process that is killed may answer nothing."""
