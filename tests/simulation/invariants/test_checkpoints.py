"""A model of writers: the rules of names and times suffice, and each is needed."""

from __future__ import annotations

from random import Random

import pytest

from consensus.simulation.invariants import Checkpoints, Violation
from consensus.simulation.invariants.checkpoints import Name
from consensus.view import View

from .stage import Stage


def checker(stage: Stage) -> Checkpoints:
    return stage.jury.of(Checkpoints)


def test_a_step_that_no_later_call_followed() -> None:
    stage = Stage(Checkpoints)
    with pytest.raises(Violation, match="no later call than 4 has finished"):
        checker(stage).begin(stage.hosts[0], Name(1, 4), "x", finished=4)


def test_a_name_of_another_epoch() -> None:
    stage = Stage(Checkpoints)
    with pytest.raises(Violation, match="acts in epoch 1 and writes"):
        checker(stage).begin(stage.hosts[0], Name(2, 4), "x", finished=5)


def test_two_contents_under_one_name() -> None:
    stage = Stage(Checkpoints)
    for host, content in zip(stage.hosts, "xy", strict=False):
        checker(stage).begin(host, Name(1, 4), content, finished=5)
    checker(stage).complete(stage.hosts[0])
    with pytest.raises(Violation, match="another content"):
        checker(stage).complete(stage.hosts[1])


def test_a_newer_epoch_that_went_back() -> None:
    stage = Stage(Checkpoints)
    old, new, _ = stage.hosts
    checker(stage).begin(old, Name(1, 9), "x", finished=10)
    stage.activate(stage.after(stage.view, old), new)
    checker(stage).begin(new, Name(2, 3), "y", finished=4)
    checker(stage).complete(old)
    with pytest.raises(Violation, match="the newer epoch has gone back"):
        checker(stage).complete(new)


def test_readers_never_go_back() -> None:
    stage = Stage(Checkpoints)
    checker(stage).begin(stage.hosts[0], Name(1, 4), "x", finished=5)
    checker(stage).complete(stage.hosts[0])
    checker(stage).read(Name(1, 4))
    with pytest.raises(Violation, match="a reader takes None"):
        checker(stage).read(None)


def history(seed: int, *, waits: bool) -> None:
    """Three members count calls; writers sleep between beginning and end, whole epochs long; who sleeps is excluded.

    ``waits``: a step is written only when a later call has finished; else at once, though others may have to undo it.
    """
    stage = Stage(Checkpoints)
    rng, shelf = Random(seed), checker(stage)
    view, step, finished = stage.view, 0, dict.fromkeys(stage.view.ids, 0)
    members, writing = list(stage.hosts), []
    for _ in range(60):
        match rng.randrange(4):
            case 0:  # a call; it may end at some and fail at others, who then redo it or not, as salvage says
                step += 1
                for host in members:
                    finished[host.id] = step
            case 1:  # begin to write
                writer = rng.choice(members)
                known = finished[writer.id]
                name = Name(view.epoch, known - 1 if waits else known)
                if name.step > 0 and writer not in writing:
                    shelf.begin(writer, name, f"state {name.step}", finished=known if waits else known + 1)
                    writing.append(writer)
            case 2 if writing:  # a write ends, perhaps one of a writer that was excluded long ago
                shelf.complete(writing.pop(rng.randrange(len(writing))))
                shelf.read(shelf.newest)
            case 3 if len(members) > 1 and writing and writing[0] in members:  # a writer sleeps, and the rest goes on
                out = writing[0]
                members.remove(out)
                step = finished[out.id] = max(0, step - (0 if waits else 1))  # its last call had not ended everywhere
                for host in members:
                    finished[host.id] = step
                view = View(view.epoch + 1, view.view_id, tuple(m for m in view.members if m.id != out.id))
                stage.activate(view, *members)


def histories(count: int, *, waits: bool) -> None:
    for seed in range(count):
        history(seed, waits=waits)


def test_paused_writers_replace_nothing() -> None:
    histories(60, waits=True)


def test_writing_too_early_shows() -> None:
    with pytest.raises(Violation, match="gone back"):
        histories(60, waits=False)
