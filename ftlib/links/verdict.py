"""What the end of a connection means, where the agreement has not said so: the peer is gone, or it lives."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable

from consensus import Member

from .errors import CollectiveError, LinkBroken, PeerLost, called
from .parts import Loop

ASK = 0.1
"""Seconds for a control port to answer, and between two such questions."""
_PATIENCE = 2.0
"""Seconds in which the agent of a process that is gone ends, even on a busy machine."""


def judge(peer: Member, error: Exception, ended: threading.Event, loop: Loop, tell: Callable[[CollectiveError], None]) -> None:
    """Tell the ``verdict``, on a thread of its own; where none is to be had, tell at once that the connection broke."""

    def ask() -> None:
        tell(verdict(peer, error, ended, loop))

    try:
        threading.Thread(target=ask, name="ftlib-link-ask", daemon=True).start()
    except RuntimeError as why:
        tell(LinkBroken(f"the connection to {called(peer)} broke: {error}; whether it lives is not known: {why}", peer=peer))


def verdict(peer: Member, error: Exception, ended: threading.Event, loop: Loop) -> CollectiveError:
    """Ask at the control port of ``peer``: refused, it is gone, if ``loop`` takes that for proof. Agents take a moment to end:
    one that answers is asked again.

    Returns as soon as ``ended`` is set; the link has its error by then.
    """
    deadline = time.monotonic() + min(_PATIENCE, loop.link_timeout / 2)
    while True:
        try:
            _connect(peer)
            found = "but it lives"
        except ConnectionRefusedError:
            if loop.trust_refused:
                return PeerLost(f"{called(peer)} is gone: its connection has ended, and its port is refused", peer=peer)
            found = "and its port is refused, which is no proof with trust_refused=False"
        except OSError as why:
            found = f"and its control port does not answer ({why})"
        if ended.wait(ASK) or time.monotonic() > deadline:
            return LinkBroken(f"the connection to {called(peer)} broke, {found}: {error}", peer=peer)


def _connect(peer: Member) -> None:
    with socket.create_connection(peer.address, ASK) as handle:
        if handle.getsockname() == handle.getpeername():
            # The kernel drew the wanted port as this end's, and connected the socket to itself: nobody listens there.
            raise ConnectionRefusedError("connected to itself")
