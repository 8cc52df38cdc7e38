"""torch's groups among the processes of a replica: who destroys what Gloo has of them."""

from __future__ import annotations

import threading
import weakref

import pytest

from ftlib.errors import ReplicaLost
from ftlib.frameworks.base import GroupSpec
from ftlib.frameworks.gloo_group import GlooGroup
from ftlib.lifecycle.replica.torch_groups import TorchGroups


class Backend:
    """In place of torch's object."""


@pytest.mark.parametrize("lost", [False, True], ids=["healthy", "lost"])
def test_what_gloo_has_of_a_lost_replica_is_never_destroyed(lost: bool) -> None:
    """Gloo forgets operations now and then, and its destructor waits for them: at the end of a lost process, as long as its
    operations may take. So it did in 2 of 100 whose operation was cut off.
    """
    backend = Backend()
    there, given_back = weakref.ref(backend), threading.Event()
    groups = TorchGroups(lambda _: None)
    spec = GroupSpec("v", 1, 0, 3, {}, timeout=1.0)
    groups._groups.append(GlooGroup(spec, backend, (), {}, give_back=given_back.set))
    del backend
    if lost:
        groups.abort(ReplicaLost("shard 1 is lost"))
    groups.close()
    assert given_back.wait(10.0)
    assert (there() is not None) == lost
