"""One communicator from its start to its release, where the thread that watches the start runs late."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest

from ftlib.frameworks.accelerators import managed
from ftlib.frameworks.accelerators.base import Communicator, Ticket
from ftlib.frameworks.accelerators.figures import Figures
from ftlib.frameworks.accelerators.managed import Deadlines, ManagedCommunicator
from ftlib.frameworks.base import GroupSpec, Operation
from tests.frameworks.threadless import no_thread_left
from tests.harness.basics import eventually

SPEC = GroupSpec("view", 1, 0, 2, {}, 20.0)


class Idle(Communicator):
    """One that is what it is told to be."""

    trouble = ""
    ready = False
    idle = True

    def launch(self, operations: Sequence[Operation], after: Callable[[], None] | None = None) -> Ticket:
        raise NotImplementedError

    def stop(self) -> None:
        self.ready = False

    def free(self) -> None:
        pass


@pytest.mark.parametrize("ready", [False, True])
def test_the_next_start_knows_how_long_this_one_took_once_it_is_stopped(ready: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """A first call waits for a start only if that may be over soon, which is judged by the one before."""
    late: list[Callable[[], None]] = []
    monkeypatch.setattr(managed, "start_task", lambda _name, task: late.append(task))
    figures, communicator = Figures(), Idle()

    def begin(decided: Callable[[], None]) -> Communicator:
        decided()
        return communicator

    one = ManagedCommunicator(SPEC, begin, figures, Deadlines(), lambda _: None, lambda _, __: None)
    communicator.ready = ready
    one.stop()
    assert (figures.last_start > 0.0) is ready
    for task in late:
        task()
    assert figures.as_dict()["accelerator_start_seconds"]["count"] == ready  # type: ignore[index]


class Busy(Idle):
    """Something runs on the device until it is stopped, as long as it may, or for ever."""

    ready = True
    idle = False

    def __init__(self, *, ends: bool) -> None:
        self._ends = ends
        self.freed = False

    def stop(self) -> None:
        self.ready = False
        self.idle = self._ends

    def free(self) -> None:
        self.freed = True


def managed_by(communicator: Communicator, said: list[str]) -> ManagedCommunicator:
    """``said``: gets why it is fatal, or unavailable."""
    deadlines = Deadlines(stop=0.1, stuck=0.2)
    return ManagedCommunicator(SPEC, lambda _: communicator, Figures(), deadlines, said.append, lambda why, _: said.append(why))


def test_it_is_stopped_where_no_thread_can_be_had_and_freed_once_there_is_one() -> None:
    said: list[str] = []
    communicator = Busy(ends=True)
    one = managed_by(communicator, said)
    with no_thread_left():
        one.stop()
        assert communicator.idle and one.stopped
        one.free()
        assert not one.gone
    one.free()
    eventually(lambda: one.freed, "it is freed")
    assert communicator.freed and not said


def test_operations_that_never_end_are_fatal_where_no_thread_can_be_had() -> None:
    said: list[str] = []
    one = managed_by(Busy(ends=False), said)
    with no_thread_left():
        one.stop()
    assert ["do not end on the device" in each for each in said] == [True]


def test_one_whose_start_nobody_can_wait_for_is_done_without() -> None:
    said: list[str] = []
    communicator = Busy(ends=True)
    with no_thread_left():
        one = managed_by(communicator, said)
    assert one.summary == "in trouble" and not one.usable
    assert said == ["nothing can wait for its start: can't start new thread"]
    one.stop()
    one.free()
    eventually(lambda: one.freed, "it is freed")
