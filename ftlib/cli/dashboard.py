"""The dashboard's ways to members: of ``ftlib dashboard``, with the user's secret, and of each agent, with its own."""

from __future__ import annotations

import asyncio
import contextlib
import json
import signal
import socket
import webbrowser
from collections.abc import Callable, Sequence
from functools import partial
from threading import Thread
from typing import Any

from consensus import KeyRing, Mount, OrderKind, format_address, parse_address

from ..dashboard.desk import BrowserAuthenticator, Desk, Means, is_numeric
from ..dashboard.server import Server
from ..dashboard.watch import Sources, Watch
from ..errors import FTLibError
from ..launch.processes.credentials import first_accepted, rings_for
from .explain import fetch_story
from .orders import consequence, order_seen, stack_of
from .runs import running
from .status import fetch_status

_TIMEOUT = 20.0
"""Seconds to wait for a member that is told something, or asked by somebody who waits for the answer."""
_ASKED_BY_AGENT = 2
"""How many members an agent asks at a time, since it has other things to do."""


def serve(address: str, port: int, *, show: bool, say: Callable[[str], None]) -> int:
    """Serve until Ctrl-C or SIGTERM; returns 0. Raises FTLibError if no member answers at ``address`` at first."""
    job = str(fetch_status(address, _TIMEOUT).get("job", ""))
    return asyncio.run(_serve(address, job, port, show=show, say=say))


def serve_run(job: str, port: int, *, say: Callable[[str], None]) -> int:
    """The same for the job of a launcher on this host, whose workers may still be on their way."""
    return asyncio.run(_serve("", job, port, show=False, say=say))


async def _serve(address: str, job: str, port: int, *, show: bool, say: Callable[[str], None]) -> int:
    sources = Sources(fetch_status, _restarts_left, partial(_workers_of, job))
    server = Server(Watch(address, sources), _means(None), job)
    over = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, over.set)
    where = await server.open(port)
    try:
        say(f"open {where}")
        if show:
            Thread(target=_show, args=(where,), name="ftlib-browser", daemon=True).start()
        await over.wait()
    finally:
        await server.close()
    return 0


def _show(where: str) -> None:
    """Open it in the user's browser; one in a terminal keeps this thread until it is left, and needs the server meanwhile."""
    with contextlib.suppress(webbrowser.Error):
        webbrowser.open(where)


def mount(agent: Mount, base: str) -> Desk:
    """What an agent serves to browsers at ``base`` (``Config.pages``). Call on its loop."""
    rings = [agent.ring]
    host, port = agent.address
    sources = Sources(
        lambda address, timeout: fetch_status(address, timeout, rings),
        _restarts_left,
        own=agent.status,
        place=agent.place,
        asked=_ASKED_BY_AGENT,
    )
    authenticator = BrowserAuthenticator(
        agent.lets_in,
        agent.job,
        port,
        hint=f"ftlib dashboard --link {format_address(agent.address)} prints the address to open",
        hosts=("localhost", host, socket.gethostname()),
        addresses=True,
        remote_orders=agent.remote_orders,
    )
    return Desk(Watch("", sources), _means(rings), authenticator, base)


def link(address: str) -> str:
    """The address that lets a browser in at the agent at ``address``: the token in it is derived from the job's secret.

    A name becomes the member's own address. The agent knows few names for itself, and refuses a browser that comes by others.
    """

    def of(ring: KeyRing) -> str:
        status = fetch_status(address, _TIMEOUT, [ring])
        host, _ = parse_address(address)
        where = address if is_numeric(host) or host == "localhost" else status["address"]
        return f"http://{where}/dashboard?token={ring.first.bearer(Mount.PURPOSE)}"

    return first_accepted(of, rings_for("links"))


def _means(rings: Sequence[KeyRing] | None) -> Means:
    """Signed with the first of ``rings`` that fits; None: with the user's."""

    def give(address: str, kind: str, member: str, epoch: int) -> str:
        return order_seen(OrderKind(kind), address, member, epoch, _TIMEOUT, rings)

    def tell(address: str, kind: str) -> str:
        return consequence(OrderKind(kind), fetch_status(address, _TIMEOUT, rings))

    def explain(address: str, epoch: int) -> list[dict[str, Any]]:
        fetch = partial(fetch_status, rings=rings)
        accounts = fetch_story(address, _TIMEOUT, epoch=epoch, fetch=fetch).as_list()
        return list(json.loads(json.dumps(accounts, default=str)))

    return Means(give, tell, lambda address: stack_of(address, _TIMEOUT, rings), explain)


def _restarts_left(job: str) -> int | None:
    """As the launcher of this job says, if it runs here."""
    with contextlib.suppress(FTLibError):
        for run in running(1.0):
            if run.record.job == job:
                return run.restarts_left
    return None


def _workers_of(job: str) -> list[str]:
    """Where the workers of this job are now, as its launcher says, if it runs here."""
    with contextlib.suppress(FTLibError):
        return [address for run in running(1.0) if run.record.job == job for _, address in run.reachable()]
    return []
