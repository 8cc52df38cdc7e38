"""How the ranks of a process group meet: addresses of stores, handles, and who is which rank."""

from __future__ import annotations

import json
import os
import socket
import uuid
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any, NamedTuple

import psutil
import torch.distributed as dist
from torch.distributed import PrefixStore, TCPStore  # type: ignore[attr-defined]

from ...common.threads import LONGEST
from ...errors import ConfigError
from ...frameworks.name_lookups import no_name_server

__all__ = ["ReconfigureOptions", "Rendezvous", "address_near", "create_store_client", "reconfigure_with_store", "split"]

_MINUTE = timedelta(seconds=60)
_LONGEST = timedelta(seconds=LONGEST)
_ANYWHERE = ("192.0.2.1", 9)
"""An address that nobody has (RFC 5737): the way to it tells which interface leads out. Nothing is sent there."""


@dataclass
class _ReconfigureOptions:
    """Who is in a group from now on."""

    uuid: int = 0
    """Of this group alone; equal at all ranks."""
    handles: list[str] = field(default_factory=list)
    """What ``get_reconfigure_handle`` of each rank has returned, in the order of the ranks."""
    timeout: timedelta | None = None
    hints: dict[str, str] = field(default_factory=dict)


ReconfigureOptions: Any = getattr(dist, "ReconfigureOptions", _ReconfigureOptions)
"""torch's own from 2.14 on."""


class Rendezvous(NamedTuple):
    """A rank's place in the group that options describe."""

    store_addr: str
    """``host:port/prefix``, of the store at rank 0."""
    rank: int
    world_size: int
    uuid: int
    generation: int
    """Higher than that of any group that one of the ranks was in before."""
    global_ranks: list[int] | None


def rendezvous(options: Any, me: str) -> Rendezvous:
    """The place of the rank whose handle has the id ``me``. ValueError if handles are in no order, or ``me`` is not there."""
    if not isinstance(options.handles, list):
        # torch's options take sets, too
        raise ValueError("a process group needs its handles in the order of the ranks: give a list")  # noqa: TRY004
    peers = [json.loads(handle) for handle in options.handles]
    ids = [peer["id"] for peer in peers]
    if me not in ids:
        raise ValueError("this process group is not among the handles: add what its get_reconfigure_handle() returns")
    globally = [peer.get("global_rank") for peer in peers]
    return Rendezvous(
        f"{peers[0]['store']}/torchft/{options.uuid}",
        ids.index(me),
        len(peers),
        options.uuid,
        1 + max(peer.get("generation", 0) for peer in peers),
        None if None in globally else globally,
    )


def split(store_addr: str) -> tuple[str, int, str]:
    """Host, port and prefix of ``host:port/prefix``; a host of IPv6 with or without brackets. ConfigError if it is no such."""
    address, _, prefix = store_addr.partition("/")
    host, _, port = address.rpartition(":")
    if not host or not port.isdigit():
        raise ConfigError(f"{store_addr!r} is no address of a store: write host:port/prefix")
    return host.strip("[]"), int(port), prefix


def create_store_client(store_addr: str, timeout: timedelta) -> Any:
    """A client of the ``TCPStore`` at ``host:port/prefix``, which sees only keys with that prefix."""
    host, port, prefix = split(store_addr)
    with no_name_server():
        return PrefixStore(prefix, TCPStore(host, port, None, False, min(timeout, _LONGEST), wait_for_workers=False))


def reconfigure_with_store(pg: Any, store_addr: str, rank: int, world_size: int, timeout: timedelta = _MINUTE) -> None:
    """Connect ``pg`` with the groups that call this with the same address; returns once it is ready.

    ``store_addr``: ``host:port/prefix`` of a ``TCPStore``; every group needs a prefix of its own. DistStoreError if not all
    come within ``timeout``, which names the missing ranks; what else fails is a RuntimeError.
    """
    timeout = min(timeout, _LONGEST)
    store = create_store_client(store_addr, timeout)
    approach = getattr(pg, "approach", None)
    if approach is not None:
        approach(store_addr)
    store.set(f"handle/{rank}", pg.get_reconfigure_handle())
    if rank == 0:
        store.set("uuid", str(uuid.uuid4().int >> 65))
    keys = ["uuid", *(f"handle/{peer}" for peer in range(world_size))]
    try:
        store.wait(keys, timeout)
    except dist.DistStoreError as error:
        missing = _missing(store, world_size)
        raise dist.DistStoreError(f"{store_addr}: no sign of {missing} within {timeout.total_seconds():g} s") from error
    number, *handles = store.multi_get(keys)
    options = ReconfigureOptions()
    options.uuid = int(number)
    options.handles = [handle.decode() for handle in handles]
    options.timeout = timeout
    pg.reconfigure(options).wait()


def address_near(host: str, port: int, timeout: float) -> str:
    """The address of this machine at which those who know the store under ``host`` can reach it.

    That of the interface which GLOO_SOCKET_IFNAME names, if it is set. Else this end of a connection to the store; where the
    store is here and its name leads back to this machine, that of the interface which leads out.
    """
    if named := _named_interface():
        return named
    with socket.create_connection((host, port), timeout) as connection:
        near = str(connection.getsockname()[0])
    if not _loopback(near) or _loopback(host) or host == "localhost":
        return near
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(_ANYWHERE)
            return str(probe.getsockname()[0])
        except OSError:  # no way out: all ranks are here
            return near


def _named_interface() -> str:
    """The address of the interface that the variable names; empty if it is not set."""
    name = os.environ.get("GLOO_SOCKET_IFNAME", "").partition(",")[0]
    if not name:
        return ""
    addresses: Sequence[Any] = psutil.net_if_addrs().get(name, ())
    for family in (socket.AF_INET, socket.AF_INET6):
        for address in addresses:
            if address.family == family:
                return str(address.address).partition("%")[0]
    raise ConfigError(f"GLOO_SOCKET_IFNAME={name}: this machine has no address at that interface: see `ip address`")


def _loopback(address: str) -> bool:
    return address.startswith("127.") or address == "::1"


def _missing(store: Any, world_size: int) -> str:
    ranks = [str(rank) for rank in range(world_size) if not store.check([f"handle/{rank}"])]
    return f"rank {', '.join(ranks)}" if ranks else "rank 0's number for the group"
