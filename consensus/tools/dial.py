"""Asks a member for a stream, in blocking code: see ``wire.streams``."""

from __future__ import annotations

import http.client
import io
import socket
from typing import Any

from ..config import MAX_SECONDS
from ..errors import DialError, SealError, SecretError
from ..interface import Stream
from ..member import Member
from ..wire.keys import KeyRing
from ..wire.proofs import IDENTITY, Exchange, Frames
from ..wire.streams import ENDED, PROTOCOL, Dialled, dialled
from .client import Connection, ask_plainly, ask_signed

_GONE = 410
_MOST = 4096
"""The most bytes of a refusal's text."""


def dial(member: Member, path: str, here: Member, job: str, ring: KeyRing | None, timeout: float) -> Stream:
    """A stream to ``member``, whose program accepts ``path``; waits at most ``timeout`` seconds for that.

    Raises DialError if there is none, SecretError if the two sides do not have the same secret.
    """
    asked = dialled(member.id, job, here, timeout)
    timeout = min(max(0.001, timeout), MAX_SECONDS)
    connection = _Unbuffered(*member.address, timeout, timeout)
    try:
        connection.connect()
        upgrade = {"Connection": "Upgrade", "Upgrade": PROTOCOL}
        target = asked.target(path)
        if ring is None:
            response, exchange = ask_plainly(connection, target, upgrade), None
        else:
            response, exchange = ask_signed(connection, target, ring, upgrade)
        if response.status != http.client.SWITCHING_PROTOCOLS:
            raise _refused(member, path, response, asked, exchange)
        answers = response.getheader(IDENTITY[0], "")
        if answers != member.id:
            raise DialError(f"{member} is over: another lifetime, {answers[:6]}, answers there", gone=True)
        sock = connection.release(response)
    except TimeoutError:
        text = f"nobody at {member} accepts {path} within {timeout:g} s: has its program come that far?"
        raise DialError(text) from None
    except (OSError, http.client.HTTPException, ValueError) as error:
        raise DialError(f"{member} cannot be reached: {type(error).__name__}: {error}") from error
    finally:
        connection.close()
    sock.settimeout(None)
    return Stream(sock, asked.key(exchange), member, dialled=True, here=here)


def _refused(
    member: Member, path: str, response: http.client.HTTPResponse, asked: Dialled, exchange: Exchange | None
) -> DialError:
    """The error for an answer that is no 101. With a secret its text is read only if a member sealed it.

    The agent seals it as every answer, and its program with the key of the stream.
    """
    if response.status == _GONE:
        return DialError(f"{member} is over: another lifetime answers there", gone=True)
    body = response.read(_MOST)
    text = _opened(body, asked.key(exchange), response.status)
    ended = text is not None and response.status == ENDED
    if text is None:
        text = body if exchange is None else _opened(body, exchange.body_key(), response.status)
    said = (text or b"").decode(errors="replace").strip() or f"status {response.status}"
    return DialError(f"{member} refuses a stream for {path}: {said}", ended=ended)


def _opened(body: bytes, key: bytes, status: int) -> bytes | None:
    """What was sealed with ``key``, None if it was not."""
    try:
        return Frames(key, status).read(io.BytesIO(body).read)[0]
    except (EOFError, SealError, SecretError, ValueError):
        return None


class _Response(http.client.HTTPResponse):
    """A response that reads not a byte beyond its head: what follows belongs to the stream."""

    def __init__(self, sock: socket.socket, *args: Any, **options: Any) -> None:
        super().__init__(sock, *args, **options)
        self.fp.close()
        self.fp = sock.makefile("rb", buffering=0)  # type: ignore[assignment]


class _Unbuffered(Connection):
    """A connection that can be taken out of HTTP."""

    response_class = _Response

    def release(self, response: http.client.HTTPResponse) -> socket.socket:
        """The socket, owned by the caller from here on."""
        sock = self.sock
        found = socket.socket(sock.family, sock.type, sock.proto, fileno=sock.detach())
        response.close()
        return found
