"""Meeting through torchrun's store: rank 0 publishes its address, the others wait for that. See ``environment``."""

from __future__ import annotations

import dataclasses
import socket
import time
from datetime import timedelta
from typing import Any

from torch.distributed import TCPStore  # type: ignore[attr-defined]

from consensus import Bound, format_address, parse_address

from ..errors import JoinError
from ..settings.config import Settings
from ..settings.environment import Store

_POLL = 0.05
_CONNECT_TIMEOUT = 2.0


def introduced(settings: Settings) -> Settings:
    """Return ``settings`` with rank 0's address as introducer, once known. Raises JoinError after ``join_timeout``."""
    launched = settings.launched
    if launched is None or launched.store is None or launched.rank == 0:
        return settings
    timeout = settings.consensus.join_timeout
    address = _wait(launched.store, timeout)
    return dataclasses.replace(settings, consensus=dataclasses.replace(settings.consensus, introducers=(address,)))


def publish(settings: Settings, bound: Bound) -> None:
    """Publish this member's address if it is rank 0. Raises JoinError if the store does not answer."""
    launched = settings.launched
    if launched is None or launched.store is None or launched.rank != 0:
        return
    try:
        _connect(launched.store, settings.consensus.join_timeout).set(launched.store.key, format_address(bound.address))
    except RuntimeError as error:
        raise JoinError(_broken(launched.store, error)) from error


def _wait(store: Store, timeout: float) -> str:
    deadline = time.monotonic() + timeout
    silent = ""
    try:
        client = _connect(store, timeout)
        while True:
            if client.check([store.key]):
                address = client.get(store.key).decode()
                # torchrun may start a new round under the same name: the address of an earlier rank 0 leads nowhere then.
                if _listens(address):
                    return str(address)
                silent = f"; {address}, which it published, does not answer"
            if time.monotonic() > deadline:
                break
            time.sleep(_POLL)
    except RuntimeError as error:
        raise JoinError(_broken(store, error)) from error
    raise JoinError(
        f"rank 0 has not published its address in torchrun's store at {store.host}:{store.port} within {timeout:g} s{silent}: "
        "does it call FTLib.init, and can this host reach it?"
    )


def _connect(store: Store, timeout: float) -> Any:
    return TCPStore(store.host, store.port, None, False, timedelta(seconds=timeout), wait_for_workers=False)


def _listens(address: str) -> bool:
    try:
        socket.create_connection(parse_address(address), timeout=_CONNECT_TIMEOUT).close()
    except OSError:
        return False
    return True


def _broken(store: Store, error: RuntimeError) -> str:
    return (
        f"torchrun's store at {store.host}:{store.port} does not answer ({str(error).splitlines()[0]}): "
        "set FTLIB_PORT to a port that is free at rank 0 to do without it"
    )
