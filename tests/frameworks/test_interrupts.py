"""In the middle of a group's own code: an exception, as a signal handler may raise one anywhere; or the end of the group."""

from __future__ import annotations

import threading
import weakref
from typing import Any

import pytest
import torch

from ftlib.frameworks.base import GroupSpec, Operation, OperationKind
from ftlib.frameworks.gloo_group import GlooGroup


class Interrupting:
    """In place of torch's object: Ctrl-C comes when it has begun an operation, before anybody knows of that."""

    def __getattr__(self, name: str) -> Any:
        def begin(*_: object) -> None:
            raise KeyboardInterrupt

        return begin


@pytest.mark.parametrize("numel", [3, 1 << 16])
@pytest.mark.parametrize("kind", list(OperationKind))
def test_an_exception_does_not_keep_the_backend(kind: OperationKind, numel: int) -> None:
    """The destructor of Gloo's waits for the operation, which may take as long as Gloo's own timeout. The thread that handles
    the exception must not be the one that waits there, at the end of its ``except``.
    """
    backend = Interrupting()
    there, given_back = weakref.ref(backend), threading.Event()
    group = GlooGroup(GroupSpec("v", 1, 0, 3, {}, timeout=1.0), backend, (), {}, give_back=given_back.set)
    del backend
    with pytest.raises(KeyboardInterrupt) as caught:
        group.submit(Operation(kind, torch.zeros(3 * numel), "SUM", peer=1))
    group.close()
    assert given_back.wait(10.0)
    assert there() is None
    assert caught.value.__traceback__ is not None


class Begun:
    """Torch's work, of an operation that has ended."""

    def is_completed(self) -> bool:
        return True

    def wait(self, *_: object) -> bool:
        return True


class Beginning:
    """In place of torch's object: an operation has begun, and the thread that began it is held up in there."""

    def __init__(self) -> None:
        self.there, self.returns = threading.Event(), threading.Event()

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)

        def begin(*_: object) -> Begun:
            self.there.set()
            assert self.returns.wait(10.0)
            return Begun()

        return begin


@pytest.mark.parametrize("numel", [3, 1 << 16])
@pytest.mark.parametrize("kind", list(OperationKind))
def test_a_thread_that_begins_is_never_the_last_to_have_the_backend(kind: OperationKind, numel: int) -> None:
    """A freeze closes the group while the training thread is in there, and the thread comes back late: it must not be the one
    that waits in the destructor.
    """
    backend, destroyed = Beginning(), list[int]()
    there, returns = backend.there, backend.returns
    weakref.finalize(backend, lambda: destroyed.append(threading.get_ident()))
    given_back = threading.Event()
    group = GlooGroup(GroupSpec("v", 1, 0, 3, {}, timeout=10.0), backend, (), {}, give_back=given_back.set)
    del backend
    operation = Operation(kind, torch.zeros(3 * numel), "SUM", peer=1)
    trains = threading.Thread(target=group.submit, args=(operation,))
    trains.start()
    assert there.wait(10.0)
    group.close()
    assert not given_back.wait(0.1), "who destroys it waits for the thread that is in there"
    returns.set()
    trains.join()
    assert given_back.wait(10.0)
    assert len(destroyed) == 1
    assert destroyed != [trains.ident]


def test_what_moves_stays_in_memory_whatever_other_threads_send() -> None:
    """Gloo has only the address of the tensor whose transfer was interrupted."""
    group = GlooGroup(GroupSpec("v", 1, 0, 3, {}, timeout=1.0), Interrupting(), (), {}, give_back=lambda: None)

    def send() -> weakref.ref[torch.Tensor]:
        tensor = torch.zeros(3)
        with pytest.raises(KeyboardInterrupt):
            group.submit(Operation(OperationKind.SEND, tensor, peer=1))
        return weakref.ref(tensor)

    here = send()
    other = threading.Thread(target=send)
    other.start()
    other.join()
    assert here() is not None
    assert send()() is not None
    assert here() is None, "one a thread"
    group.close()
