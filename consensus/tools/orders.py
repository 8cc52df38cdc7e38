"""Gives a member's training process an order (see ``wire.orders``), in blocking code."""

from __future__ import annotations

from ..errors import SecretError
from ..member import Address
from ..wire.keys import KeyRing
from ..wire.orders import OutsideOrder
from .client import Connection, ask_signed

_MOST = 4096
"""The most bytes of an answer's text."""


def give_order(address: Address, order: OutsideOrder, ring: KeyRing, *, timeout: float) -> tuple[int, str]:
    """HTTP status and text of the answer of the member at ``address``; 200: it is done.

    Raises OSError if none comes in time, SecretError if the two sides do not have the same secret.
    """
    connection = Connection(*address, timeout, timeout)
    try:
        connection.connect()
        response, exchange = ask_signed(connection, order.target(), ring, method="POST")
        text, _ = exchange.frames(response.status).read(response.read)
    except (EOFError, ValueError) as error:
        raise SecretError(f"{address[0]}:{address[1]} answers what cannot be read: {error}") from None
    finally:
        connection.close()
    return response.status, text[:_MOST].decode(errors="replace").strip()
