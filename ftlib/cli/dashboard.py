"""``ftlib dashboard``: serves the page of ``ftlib.dashboard`` on loopback, and asks members for it with the user's secret."""

from __future__ import annotations

import asyncio
import contextlib
import json
import signal
import webbrowser
from collections.abc import Callable
from typing import Any

from consensus import OrderKind

from ..dashboard.server import Means, Server
from ..dashboard.watch import Watch
from ..errors import FTLibError
from .explain import fetch_story
from .orders import consequence, order_seen, stack_of
from .runs import running
from .status import fetch_status

__all__ = ["serve"]

_TIMEOUT = 5.0


def serve(address: str, port: int, *, show: bool, say: Callable[[str], None]) -> int:
    """Serve until Ctrl-C or SIGTERM; returns 0. Raises FTLibError if no member answers at ``address`` at first."""
    fetch_status(address, _TIMEOUT)
    return asyncio.run(_serve(address, port, show=show, say=say))


async def _serve(address: str, port: int, *, show: bool, say: Callable[[str], None]) -> int:
    watch = Watch(address, fetch_status, _restarts_left)
    server = Server(watch, Means(_order, _consequence, lambda where: stack_of(where, _TIMEOUT), _explain))
    over = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, over.set)
    where = await server.open(port)
    try:
        say(f"open {where}")
        if show:
            with contextlib.suppress(webbrowser.Error):
                webbrowser.open(where)
        await over.wait()
    finally:
        await server.close()
    return 0


def _order(address: str, kind: str, member: str, epoch: int) -> str:
    return order_seen(OrderKind(kind), address, member, epoch, _TIMEOUT)


def _consequence(address: str, kind: str) -> str:
    return consequence(OrderKind(kind), fetch_status(address, _TIMEOUT))


def _explain(address: str, epoch: int) -> list[dict[str, Any]]:
    accounts = fetch_story(address, _TIMEOUT, epoch=epoch).as_list()
    return list(json.loads(json.dumps(accounts, default=str)))


def _restarts_left(job: str) -> int | None:
    """As the launcher of this job says, if it runs here."""
    with contextlib.suppress(FTLibError):
        for run in running(1.0):
            if run.record.job == job:
                return run.restarts_left
    return None
