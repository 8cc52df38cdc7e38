"""Meshes over the processes of a replica that do not come about: what is left of them."""

from __future__ import annotations

import pytest
import torch.distributed as dist

from ftlib.errors import JoinError
from ftlib.frameworks import sockets
from ftlib.lifecycle.replica.meshes import Meshes
from ftlib.settings.replicas import Part
from tests.harness.basics import TIMEOUT, eventually
from tests.harness.company import in_thread


def meshes(shards: int, patience: float) -> Meshes:
    """Of the first process of a replica, in a job that has nobody else."""
    made = Meshes(Part("r", 0, shards), None, lambda: (), lambda _: None, TIMEOUT, patience)
    made.bind("127.0.0.1")
    return made


def test_one_that_nobody_joins_leaves_no_store() -> None:
    before = sockets.snapshot()
    made = meshes(2, 0.1)
    for _ in range(2):
        with pytest.raises(JoinError, match=r"was not heard of within 0\.1 s"):
            made.mesh("cpu", (2,), ("shard",))
        assert not sockets.listeners("127.0.0.1", before)
    made.close()


def test_closing_ends_the_wait_for_the_others_and_says_so() -> None:
    before, said = sockets.snapshot(), []
    made = meshes(2, TIMEOUT)

    def wait() -> None:
        with pytest.raises(JoinError) as raised:
            made.mesh("cpu", (2,), ("shard",))
        said.append(str(raised.value))

    thread = in_thread(wait)
    eventually(lambda: sockets.listeners("127.0.0.1", before), "it waits for the others")
    made.close()
    thread.join(TIMEOUT)
    assert said == ["device_mesh: this worker has closed"]
    assert not sockets.listeners("127.0.0.1", before)


def test_none_comes_about_once_it_is_closed() -> None:
    before = sockets.snapshot()
    made = meshes(1, TIMEOUT)
    made.close()
    with pytest.raises(JoinError, match="has closed"):
        made.mesh("cpu", (1,), ("shard",))
    assert not dist.is_initialized()
    assert not sockets.listeners("127.0.0.1", before)
    again = meshes(1, TIMEOUT)
    try:
        assert again.mesh("cpu", (1,), ("shard",)).size() == 1
    finally:
        again.close()
    assert not dist.is_initialized()
    assert not sockets.listeners("127.0.0.1", before)
