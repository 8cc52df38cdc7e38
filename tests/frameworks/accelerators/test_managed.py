"""One communicator from its start to its release, where the thread that watches the start runs late."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest

from ftlib.frameworks.accelerators import managed
from ftlib.frameworks.accelerators.base import Communicator, Ticket
from ftlib.frameworks.accelerators.figures import Figures
from ftlib.frameworks.accelerators.managed import Deadlines, ManagedCommunicator
from ftlib.frameworks.base import GroupSpec, Operation


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
    spec = GroupSpec("view", 1, 0, 2, {}, 20.0)

    def begin(decided: Callable[[], None]) -> Communicator:
        decided()
        return communicator

    one = ManagedCommunicator(spec, begin, figures, Deadlines(), lambda _: None, lambda _, __: None)
    communicator.ready = ready
    one.stop()
    assert (figures.last_start > 0.0) is ready
    for task in late:
        task()
    assert figures.as_dict()["accelerator_start_seconds"]["count"] == ready  # type: ignore[index]
