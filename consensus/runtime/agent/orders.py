"""Judges orders from outside to this member's training process (see ``wire.orders``).

Who asks has signed the request with the job's secret; without a secret no order is taken. An order is for one lifetime, and may
be for one epoch: what was meant for another is refused. So a page that shows an old state ends nobody. An order that comes
twice (the same nonce) is carried out once.
"""

from __future__ import annotations

import logging
import signal
from collections import Counter, OrderedDict
from collections.abc import Callable, Mapping

from ...errors import CodecError
from ...wire.orders import OrderKind, OrderReply, OutsideOrder, read_query

_REMEMBERED = 64
"""The most orders that are remembered."""
_SIGNALS = {OrderKind.DRAIN: signal.SIGTERM, OrderKind.KILL: signal.SIGKILL}


class Orders:
    """Everything here runs on the loop's thread."""

    def __init__(
        self, member_id: str, epoch: Callable[[], int], send: Callable[[int], None], note: Callable[[int, str, str], None]
    ) -> None:
        """``epoch``: of the view that is shown. ``send``: sends a signal to the training process. ``note``: see ``Driver``."""
        self._member_id = member_id
        self._epoch = epoch
        self._send = send
        self._note = note
        self._done: OrderedDict[OutsideOrder, None] = OrderedDict()
        self._counts = Counter[str]()
        self.latest = ""
        """What was ordered last, and from where; empty until then."""

    def counts(self) -> dict[str, int]:
        """How many orders were carried out, by kind; how many were ``refused``, and how many came ``again``."""
        return dict(self._counts)

    def take(self, query: Mapping[str, str], source: str, *, signed: bool) -> OrderReply:
        """Judge an order. ``source``: the address that it came from, for the log. ``signed``: with the job's secret."""
        verdict = self._judge(query, source, signed=signed)
        if verdict.status != 200:
            self._counts["refused"] += 1
            self._note(logging.WARNING, "order", f"refused one from {source}: {verdict.text}")
        return verdict

    def _judge(self, query: Mapping[str, str], source: str, *, signed: bool) -> OrderReply:
        if not signed:
            return OrderReply(403, "orders are taken from who knows the job's secret, and this job has none")
        try:
            order = read_query(query)
        except CodecError as error:
            return OrderReply(400, str(error))
        if order.member != self._member_id:
            return OrderReply(410, "another lifetime is here: the one that was meant is over")
        if order in self._done:
            self._counts["again"] += 1
            return OrderReply(200, "done before")
        if order.epoch is not None and order.epoch != (epoch := self._epoch()):
            return OrderReply(409, f"it is for epoch {order.epoch}, and this is epoch {epoch}: look again")
        self._done[order] = None
        while len(self._done) > _REMEMBERED:
            self._done.popitem(last=False)
        return OrderReply(200, f"{order.kind.value}: the signal is sent", lambda: self._carry_out(order, source))

    def _carry_out(self, order: OutsideOrder, source: str) -> None:
        self._counts[order.kind.value] += 1
        self.latest = f"{order.kind.value}, ordered from {source}"
        self._note(logging.WARNING, "order", self.latest)
        self._send(_SIGNALS[order.kind])
