"""Finding, cutting and, in forked children, letting go of sockets."""

from __future__ import annotations

import os
import socket
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from itertools import combinations
from typing import TYPE_CHECKING

import pytest
import torch

from ftlib.errors import ConfigError
from ftlib.frameworks import gloo_group, sockets
from ftlib.frameworks.base import GroupSpec, Operation, OperationKind
from ftlib.frameworks.gloo import GlooFramework
from ftlib.frameworks.gloo_group import GlooGroup
from ftlib.frameworks.rendezvous import interface_address, join_address, split_address

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ftlib.frameworks.base import Group

pytestmark = pytest.mark.skipif(not sockets.supported(), reason="needs /proc")

TIMEOUT = 20.0
"""Seconds that building and each operation may take."""


@pytest.fixture
def listener() -> Iterator[socket.socket]:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        yield listener


@pytest.fixture
def pair(listener: socket.socket) -> Iterator[tuple[socket.socket, socket.socket]]:
    with socket.create_connection(listener.getsockname()) as initiated:
        accepted, _ = listener.accept()
        with accepted:
            yield initiated, accepted


def test_both_ends_are_found(listener: socket.socket, pair: tuple[socket.socket, socket.socket]) -> None:
    initiated, accepted = pair
    address = listener.getsockname()
    by_remote = sockets.connections((), {address})
    by_local = sockets.connections({address}, ())
    assert [link.local for link in by_remote] == [initiated.getsockname()]
    assert [link.remote for link in by_local] == [accepted.getpeername()]
    for link in by_remote + by_local:
        link.close()


def test_listeners_are_found_and_never_among_connections(listener: socket.socket) -> None:
    address = listener.getsockname()
    assert address in sockets.listeners("127.0.0.1").values()
    assert address not in sockets.listeners("127.0.0.2").values()
    assert sockets.connections({address}, {address}) == []
    assert address not in sockets.listeners("127.0.0.1", sockets.snapshot()).values()


def test_snapshot_hides_what_was_there(listener: socket.socket, pair: tuple[socket.socket, socket.socket]) -> None:
    assert sockets.connections({listener.getsockname()}, (), sockets.snapshot()) == []


def test_cut_ends_both_ends_and_nothing_else(pair: tuple[socket.socket, socket.socket], listener: socket.socket) -> None:
    initiated, accepted = pair
    (link,) = sockets.connections((), {listener.getsockname()})
    number = initiated.detach()
    os.close(number)  # the owner lets go, and the number now means something else
    reader, writer = os.pipe()
    link.cut()
    link.cut()
    accepted.settimeout(TIMEOUT)
    assert accepted.recv(1) == b""
    os.write(writer, b"x")
    assert os.read(reader, 1) == b"x"
    os.close(reader)
    os.close(writer)
    link.close()
    link.close()
    link.cut()


class Reducing:
    """In place of torch's object, and of its work: an operation that is under way until ``over``."""

    def __init__(self) -> None:
        self.over = False

    def allreduce(self, *_: object) -> Reducing:
        return self

    def is_completed(self) -> bool:
        return self.over

    def wait(self, *_: object) -> bool:
        return True


@pytest.mark.parametrize("lets_go", [True, False])
def test_an_abort_ends_reading_before_writing(
    lets_go: bool, listener: socket.socket, pair: tuple[socket.socket, socket.socket], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A collective that begins to write to what is cut would never end: it may write until Gloo has read the end, and closed.

    Where Gloo does not come to that the peer does not wait for it.
    """
    if lets_go:  # however late it is on a busy machine
        monkeypatch.setattr(gloo_group, "_LETS_GO", TIMEOUT)
    gloo, peer = pair
    links, backend, noticed = sockets.connections((), {listener.getsockname()}), Reducing(), list[bytes]()

    def loop() -> None:
        noticed.append(gloo.recv(1))
        if lets_go:
            gloo.sendall(b"a message that had begun")
            gloo.close()

    group = GlooGroup(GroupSpec("v", 1, 0, 2, {}, TIMEOUT), backend, links, {}, give_back=lambda: None)
    group.submit(Operation(OperationKind.ALLREDUCE, torch.ones(3), "SUM"))
    with ThreadPoolExecutor(1) as pool:
        ended = pool.submit(loop)
        group.abort()
        ended.result(TIMEOUT)
    assert noticed == [b""]
    peer.settimeout(TIMEOUT)
    received = b"".join(iter(lambda: peer.recv(100), b""))
    assert received == (b"a message that had begun" if lets_go else b"")
    backend.over = True
    group.close()


def test_an_interrupted_abort_cuts_all_the_same_and_no_other_one_waits(
    listener: socket.socket, pair: tuple[socket.socket, socket.socket], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ctrl-C may come while it waits for Gloo; the peers would hear nothing."""
    links, backend = sockets.connections((), {listener.getsockname()}), Reducing()
    group = GlooGroup(GroupSpec("v", 1, 0, 2, {}, TIMEOUT), backend, links, {}, give_back=lambda: None)
    group.submit(Operation(OperationKind.ALLREDUCE, torch.ones(3), "SUM"))
    waits: list[GlooGroup] = []

    def interrupted(group: GlooGroup) -> None:
        waits.append(group)
        raise KeyboardInterrupt

    monkeypatch.setattr(GlooGroup, "_have_gloo_close", interrupted)
    with pytest.raises(KeyboardInterrupt):
        group.abort()
    pair[1].settimeout(TIMEOUT)
    assert pair[1].recv(1) == b""
    group.abort()
    assert waits == [group]
    backend.over = True
    group.close()


def test_mapped_addresses_are_seen_as_ipv4() -> None:
    with (
        socket.create_server(("::", 0), family=socket.AF_INET6, dualstack_ipv6=True) as listener,
        socket.create_connection(("127.0.0.1", listener.getsockname()[1])),
    ):
        accepted, _ = listener.accept()
        with accepted:
            (link,) = sockets.connections({("127.0.0.1", listener.getsockname()[1])}, ())
            assert link.local[0] == link.remote[0] == "127.0.0.1"
            link.close()


def test_forked_children_let_go(listener: socket.socket, pair: tuple[socket.socket, socket.socket]) -> None:
    sockets.guard_forks()
    (link,) = sockets.connections((), {listener.getsockname()})
    sockets.track([link.inode])
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        gone = not sockets.connections((), {listener.getsockname()})
        kept = listener.getsockname() in sockets.listeners("127.0.0.1").values()
        os.write(writer, f"{gone} {kept}".encode())
        os._exit(0)
    os.waitpid(child, 0)
    assert os.read(reader, 100) == b"True True"
    sockets.untrack([link.inode])
    os.close(reader)
    os.close(writer)
    assert link.remote == listener.getsockname()
    link.close()
    pair[0].sendall(b"x")
    assert pair[1].recv(1) == b"x"


@pytest.mark.parametrize("text", ["127.0.0.1:80", "[::1]:80", "host.example:1"])
def test_addresses_round_trip(text: str) -> None:
    assert join_address(split_address(text)) == text


@pytest.mark.parametrize("text", ["", "host", "host:", ":80", "host:port"])
def test_other_texts_are_no_addresses(text: str) -> None:
    with pytest.raises(ConfigError):
        split_address(text)


def test_interfaces_by_name_and_number() -> None:
    assert interface_address("127.0.0.1") == "127.0.0.1"
    assert interface_address("::1") == "::1"
    assert interface_address("localhost") in {"127.0.0.1", "::1"}
    with pytest.raises(ConfigError, match="numeric"):
        interface_address("no-such-host.invalid")


@pytest.fixture
def ranks() -> Iterator[list[GlooFramework]]:
    """Four ranks that share this process."""
    with ExitStack() as stack:
        frameworks = [GlooFramework() for _ in range(4)]
        for framework in frameworks:
            stack.callback(framework.close)
        yield frameworks


def built(frameworks: list[GlooFramework], epoch: int = 1) -> list[Group]:
    """A group of all, each rank on a thread of its own."""
    size = len(frameworks)
    stores = [framework.start("127.0.0.1") for framework in frameworks]
    specs = [GroupSpec(f"v{epoch}", epoch, rank, size, stores[0], TIMEOUT) for rank in range(size)]
    with ThreadPoolExecutor(size) as pool:
        return list(pool.map(lambda framework, spec: framework.rebuild(spec), frameworks, specs))


def ends(group: Group) -> set[tuple[sockets.Address, sockets.Address]]:
    assert isinstance(group, GlooGroup)
    return {(link.local, link.remote) for link in group._links}


def test_ranks_in_one_process_know_which_connections_are_theirs(ranks: list[GlooFramework]) -> None:
    groups = built(ranks)
    assert all(len(ends(group)) == 3 for group in groups), groups
    for one, other in combinations(groups, 2):
        shared = {(local, remote) for remote, local in ends(one)} & ends(other)
        assert len(shared) == 1, (one, other)
    assert len(frozenset[object]().union(*map(ends, groups))) == 12


def test_a_rank_that_aborts_leaves_connections_between_others(ranks: list[GlooFramework]) -> None:
    groups = built(ranks)
    groups[1].abort()
    received = torch.zeros(1000)
    works = [groups[0].send(torch.ones(1000), 2, 7), groups[2].recv(received, 0, 7)]
    assert all(work.wait(TIMEOUT) for work in works)
    assert received.sum() == 1000
    for rank in (0, 2, 3):
        error = groups[rank].broken()
        assert error is not None
        assert set(error.peers) <= {1}


def test_without_word_of_who_watches_no_connection_of_others_is_taken(
    ranks: list[GlooFramework], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sockets, "_DETAILS", "/proc/self/no-such-folder")
    groups = built(ranks)
    assert not all(group.exact for group in groups if isinstance(group, GlooGroup))
    taken = [end for group in groups for end in ends(group)]
    assert len(taken) == len(set(taken)) == 6  # each connection once, by who accepted it
