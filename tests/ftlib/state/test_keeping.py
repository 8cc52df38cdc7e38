"""``FTLib.save``: workers as threads, with the real agents."""

from __future__ import annotations

import errno
import logging
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

import ftlib.checkpoints.keeper as keeping
from ftlib import ConfigError, Excluded
from ftlib.checkpoints import checkpoint
from ftlib.checkpoints.checkpoint import Taken, read
from ftlib.checkpoints.depot import DirectoryDepot
from ftlib.checkpoints.names import Name, Part, complete, parts
from ftlib.state.registry import Registered
from tests.ftlib.crews.saving import all_of, crew, steps
from tests.ftlib.state.test_checkpoints import same, write
from tests.harness.basics import TIMEOUT, eventually
from tests.harness.company import in_thread


def test_it_is_complete_once_a_later_call_has_finished(tmp_path: Path) -> None:
    with crew(3) as trainees:
        steps(2, trainees)
        kept = Taken.of(Registered({"model": trainees[0].model, "optimizer": trainees[0].optimizer}).tree(2), Name(0, 0), 1)
        all_of(trainees, lambda trainee: trainee.ft.save(tmp_path))
        eventually(lambda: trainees[0].ft._keeper._writing.stage is keeping._Stage.WAITING, "it is on the disk")  # type: ignore[union-attr]
        time.sleep(2 * keeping.LOOK)
        assert complete(tmp_path) == [], "nobody knows yet whether step 2 will stand"
        assert [part.name.step for part in parts(tmp_path)] == [2]
        steps(1, trainees)
        eventually(lambda: complete(tmp_path) == [Name(2, 1)], "it is complete")
        assert parts(tmp_path) == []
        tree = read(tmp_path / str(Name(2, 1)))
        assert tree["step"] == 2  # type: ignore[index]
        found = Taken.of(tree, Name(0, 0), 1)
        assert same(found.copies, kept.copies)
        eventually(lambda: trainees[0].ft.metrics()["checkpoint_step"] == 2, "it was counted")
        assert [trainee.ft.metrics()["checkpoints"] for trainee in trainees] == [1, 0, 0]


def test_a_job_that_is_done_has_its_last_one(tmp_path: Path) -> None:
    """All close at once, and no later call ever finishes."""
    with crew(3) as trainees:
        steps(2, trainees)
        all_of(trainees, lambda trainee: trainee.ft.save(tmp_path))
        all_of(trainees, lambda trainee: trainee.ft.close())
        assert [name.step for name in complete(tmp_path)] == [2], "close waits for it"


def test_an_excluded_writer_completes_nothing(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "ftlib")
    with crew(2) as trainees:
        steps(2, trainees)
        all_of(trainees, lambda trainee: trainee.ft.save(tmp_path))
        trainees[0].ft._plane.stop(Excluded("told to"))
        eventually(lambda: trainees[0].ft._keeper._writing.ended(0.0), "it was given up")  # type: ignore[union-attr]
        assert (complete(tmp_path), parts(tmp_path)) == ([], [])
        assert "the checkpoint of step 2 was given up: this worker is no member any more" in caplog.text


def test_only_so_many_stay_and_leftovers_go(tmp_path: Path) -> None:
    """Among them what a killed writer left, and what a run that is not continued would still write."""
    for step in (1, 900):
        Taken.of({}, Name(step, 7), 1).write(tmp_path / str(Part.of(Name(step, 7), "gone")))
    (tmp_path / "notes.txt").touch()
    with crew(1, keep=2) as [trainee]:
        for _ in range(4):
            trainee.step()
            trainee.ft.save(tmp_path, wait=True)
    assert [name.step for name in complete(tmp_path)] == [4, 3]
    assert parts(tmp_path) == []
    assert (tmp_path / "notes.txt").exists()


@pytest.fixture(autouse=True)
def patience(monkeypatch: pytest.MonkeyPatch) -> None:
    """A disk that is busy with other things leaves none out."""
    monkeypatch.setattr(keeping, "NAMING", TIMEOUT)


@pytest.fixture
def slow(monkeypatch: pytest.MonkeyPatch) -> threading.Event:
    """Writing ends once it is set."""
    go = threading.Event()
    original = Taken.write
    monkeypatch.setattr(Taken, "write", lambda self, directory: go.wait(TIMEOUT) and original(self, directory))
    return go


def test_one_that_comes_too_early_is_left_out_or_waits(
    tmp_path: Path, slow: threading.Event, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "ftlib")
    with crew(1) as [trainee]:
        trainee.step()
        trainee.ft.save(tmp_path)
        trainee.step()
        trainee.ft.save(tmp_path)
        assert "no checkpoint of step 2: the checkpoint of step 1 is still being written" in caplog.text
        assert trainee.ft.metrics()["checkpoints_skipped"] == 1
        threading.Timer(0.2, slow.set).start()
        trainee.ft.save(tmp_path, wait=True)
        trainee.ft.save(tmp_path)  # the same again: nothing to say about it
        assert trainee.ft.metrics()["checkpoints_skipped"] == 1
    assert [name.step for name in complete(tmp_path)] == [2, 1]


def test_every_step_can_be_saved(tmp_path: Path) -> None:
    with crew(1, keep=100) as [trainee]:
        for _ in range(4):
            trainee.step()
            trainee.ft.save(tmp_path, wait=True)
        assert trainee.ft.metrics()["checkpoints_skipped"] == 0
    assert [name.step for name in complete(tmp_path)] == [4, 3, 2, 1]


def test_the_next_writer_takes_over(tmp_path: Path, slow: threading.Event) -> None:
    with crew(3) as trainees:
        steps(1, trainees)
        all_of(trainees, lambda trainee: trainee.ft.save(tmp_path))
        slow.set()
        trainees[0].ft.leave()
        rest = trainees[1:]
        steps(1, rest)
        all_of(rest, lambda trainee: trainee.ft.save(tmp_path))
        steps(1, rest)
        assert [trainee.ft.rank for trainee in rest] == [0, 1]
        eventually(lambda: complete(tmp_path)[:1] == [Name(2, rest[0].ft.epoch)], "the next one wrote")
        assert complete(tmp_path)[1:] == [Name(1, 1)], "and who left completed its own"


@pytest.mark.parametrize("first", ["who_left", "who_stays"])
def test_of_two_writers_of_one_step_the_later_one_has_not_failed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, first: str
) -> None:
    """A writer that leaves is about to complete its own, and the next one with rank 0 saves that step meanwhile."""
    named, go, publish = threading.Event(), threading.Event(), DirectoryDepot.publish

    def held_up(depot: DirectoryDepot, part: Part) -> None:
        if not named.is_set():
            named.set()
            assert go.wait(TIMEOUT)
        publish(depot, part)

    monkeypatch.setattr(DirectoryDepot, "publish", held_up)
    with crew(2) as (left, stays):
        steps(1, [left, stays])
        all_of([left, stays], lambda trainee: trainee.ft.save(tmp_path))
        leaving = in_thread(left.ft.leave)  # which waits for the checkpoint
        assert named.wait(TIMEOUT)
        eventually(lambda: stays.ft.rank == 0 and stays.ft.size == 1, "it is alone")
        stays.ft.save(tmp_path)
        one, other = (each.ft._keeper._writing for each in (left, stays))
        assert one is not None and other is not None and other.written(TIMEOUT) and len(parts(tmp_path)) == 2
        if first == "who_left":
            go.set()
            assert one.ended(TIMEOUT)
        stays.step()
        assert other.ended(TIMEOUT)
        go.set()
        assert one.ended(TIMEOUT)
        leaving.join(TIMEOUT)
        counts = [(each.ft._plane.counters.checkpoints, each.ft._plane.counters.checkpoint_failures) for each in (left, stays)]
    assert counts == ([(1, 0), (0, 0)] if first == "who_left" else [(0, 0), (1, 0)])
    assert (complete(tmp_path), parts(tmp_path)) == ([Name(1, 1)], [])


def test_another_jobs_later_one_is_never_written_over(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    foreign = write(tmp_path, {"x": 1}, step=500, epoch=7)
    with crew(1) as [trainee]:
        trainee.step()
        trainee.ft.save(tmp_path)
        eventually(lambda: trainee.ft.metrics()["checkpoint_failures"] == 1, "it was refused")
        assert trainee.ft._keeper._writing.ended(TIMEOUT), "it is counted a moment before"  # type: ignore[union-attr]
        assert "training goes on without it" in caplog.text
        assert "of a later step, which this job does not continue" in caplog.text
        (foreign / "manifest.json").unlink()  # what is torn is no obstacle
        trainee.ft.save(tmp_path)
        trainee.step()
        eventually(lambda: complete(tmp_path) == [Name(500, 7), Name(1, 1)], "it was written")


def saved(path: Path, *, load: bool = False) -> dict[str, Any]:
    """What a run of its own counts, which saves its third step alone: or, with ``load``, the one from which it began."""
    with crew(1) as [trainee]:
        if load:
            assert trainee.ft.load(path) is not None
        else:
            steps(3, [trainee])
        trainee.ft.save(path)
        trainee.ft.save(path)
        metrics = trainee.ft.metrics
    return metrics()


def test_another_runs_one_of_the_same_step_is_an_error(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Else the model of a second run that saves its last step into the same directory would be lost without a word."""
    assert saved(tmp_path)["checkpoint_failures"] == 0
    assert saved(tmp_path, load=True)["checkpoint_failures"] == 0, "it has begun from that one"
    assert saved(tmp_path)["checkpoint_failures"] > 0
    assert "of the same step of another run, which this job does not continue" in caplog.text
    assert "move it away, load it, or give save another directory" in caplog.text


def test_it_is_named_by_the_view_in_which_its_step_was_finished(tmp_path: Path) -> None:
    """Not by one that became active since: another process of the replica may have saved before that."""
    with crew(2) as trainees:
        steps(1, trainees)
        trainees[1].ft.leave()
        eventually(lambda: trainees[0].ft.epoch == 2, "it is alone")
        trainees[0].ft.save(tmp_path)
    assert complete(tmp_path) == [Name(1, 1)]


def test_one_of_the_same_step_and_a_lower_epoch_is_no_obstacle(tmp_path: Path) -> None:
    """Who was cut off has completed it, and the others have computed the step again: of one step the newest epoch counts."""
    write(tmp_path, {"x": 1}, step=1, epoch=1)
    with crew(2) as trainees:
        trainees[0].ft.leave()
        eventually(lambda: trainees[1].ft.epoch == 2, "it is alone")
        steps(1, trainees[1:])
        trainees[1].ft.save(tmp_path)
    assert complete(tmp_path) == [Name(1, 2), Name(1, 1)]


@pytest.mark.parametrize("state", ["file", "nothing"])
def test_errors_say_what_to_do_and_training_goes_on(
    tmp_path: Path, state: str, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = tmp_path / "file" / "below"
    if state == "file":
        (tmp_path / "file").touch()
    else:

        def fail(self: Taken, directory: Path) -> int:
            directory.mkdir()
            raise RuntimeError("PytorchStreamWriter failed writing")

        monkeypatch.setattr(Taken, "write", fail)
        monkeypatch.setattr(DirectoryDepot, "full", True)
    with crew(1) as [trainee]:
        for count in (1, 2):
            trainee.step()
            trainee.ft.save(place, wait=True)
            eventually(lambda count=count: trainee.ft.metrics()["checkpoint_failures"] == count, "it failed")
    expected = "see to that file system" if state == "file" else "no space is left on the device; training goes on without it"
    assert caplog.text.count(expected) == 2
    assert state == "file" or not list(place.iterdir()), "what was begun is gone"


def test_misuse_is_refused_at_every_worker(tmp_path: Path) -> None:
    with crew(2, registered=False) as trainees:
        for trainee in trainees:
            with pytest.raises(ConfigError, match="save: no state is registered"):
                trainee.ft.save(tmp_path)
            with pytest.raises(ConfigError, match="load: no state is registered"):
                trainee.ft.load(tmp_path)
            for path, text in [
                ("", "empty"),
                ("a\0b", "NUL"),
                ("\ud800", "no file system takes"),
                (b"a", "no path"),
                (None, "no path"),
            ]:
                for use in (trainee.ft.save, trainee.ft.load):
                    with pytest.raises(ConfigError, match=rf"{use.__name__}: .*{text}"):
                        use(path)  # type: ignore[operator]
        state: dict[str, object] = {}
        steps(1, trainees)
        all_of(trainees, lambda t: t.ft.register_state(state_dict=lambda: state, load_state_dict=lambda _: None))
        state["x"] = object()
        for trainee in trainees:
            with pytest.raises(ConfigError, match=r"state\['custom'\]\['x'\]: a value of type object"):
                trainee.ft.save(tmp_path)


def test_two_places_are_saved_to_in_one_step(tmp_path: Path) -> None:
    """The first waits for a later call, which only this thread can make: the second does not wait for that."""
    with crew(1) as [trainee]:
        trainee.step()
        for name in ("one", "two", "three", "one"):
            trainee.ft.save(tmp_path / name, wait=True)
        assert trainee.ft._plane.saves.here is (trainee.ft._keeper._writing.stage is keeping._Stage.WRITING)  # type: ignore[union-attr]
        assert trainee.ft.metrics()["checkpoints_skipped"] == 0
    assert [complete(tmp_path / name) for name in ("one", "two", "three")] == [[Name(1, 1)]] * 3, "close waits for all"
    assert not trainee.ft._plane.saves.here


def test_what_cannot_be_kept_later_does_not_end_the_training(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Neither at all workers nor, which was worse, at the writer alone: a value of another kind, and more than memory holds."""
    state: dict[str, object] = {}
    with crew(2, registered=False) as trainees:
        all_of(trainees, lambda t: t.ft.register_state(state_dict=lambda: state, load_state_dict=lambda _: None))
        steps(1, trainees)
        all_of(trainees, lambda trainee: trainee.ft.save(tmp_path))
        for count, value in enumerate((object(), torch.zeros(1).expand(1 << 50)), 1):
            state["x"] = value
            steps(1, trainees)
            all_of(trainees, lambda trainee: trainee.ft.save(tmp_path, wait=True))
            assert [trainee.ft.metrics()["checkpoint_failures"] for trainee in trainees] == [count, 0]
            assert not trainees[0].ft._plane.saves.here
        del state["x"]
        steps(1, trainees)
        all_of(trainees, lambda trainee: trainee.ft.save(tmp_path, wait=True))
        all_of(trainees, lambda trainee: trainee.ft.close())
    assert complete(tmp_path) == [Name(4, 1), Name(1, 1)]
    assert "state['custom']['x']: a value of type object cannot be transferred" in caplog.text
    assert "this host's memory and threads" in caplog.text


def test_without_a_thread_the_next_one_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    start = threading.Thread.start

    def fail(thread: threading.Thread) -> None:
        if thread.name == "ftlib-checkpoint":
            raise RuntimeError("can't start new thread")
        start(thread)

    with crew(1) as [trainee]:
        trainee.step()
        with monkeypatch.context() as full:
            full.setattr(threading.Thread, "start", fail)
            trainee.ft.save(tmp_path)
        assert trainee.ft.metrics()["checkpoint_failures"] == 1
        trainee.ft.save(tmp_path)
        assert trainee.ft.metrics()["checkpoints_skipped"] == 0
    assert complete(tmp_path) == [Name(1, 1)]


def test_a_relative_path_in_a_directory_that_is_gone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    gone = tmp_path / "gone"
    gone.mkdir()
    with crew(1) as [trainee]:
        trainee.step()
        monkeypatch.chdir(gone)
        gone.rmdir()
        trainee.ft.save("checkpoints")
        assert trainee.ft.metrics()["checkpoint_failures"] == 1
        assert "No such file or directory; training goes on without it: give an absolute path" in caplog.text
        with pytest.raises(ConfigError, match=r"load: checkpoints: the current directory: .*; give an absolute path"):
            trainee.ft.load("checkpoints")


@pytest.mark.parametrize("what", ["listing", "syncing"])
def test_one_that_is_complete_has_not_failed(
    what: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Though older ones cannot be listed after it has its name, or its directory cannot be synced."""
    caplog.set_level(logging.INFO, "ftlib")
    broken = threading.Event()
    original, sync, listed = DirectoryDepot.publish, checkpoint._sync, DirectoryDepot.complete

    def publish(depot: DirectoryDepot, part: Part) -> None:
        if what == "syncing":
            broken.set()
        original(depot, part)
        broken.set()

    def fail_once_broken(then: Callable[[Any], Any]) -> Callable[[Any], Any]:
        def call(place: Any) -> Any:
            if broken.is_set():
                raise OSError(errno.EIO, "Input/output error")
            return then(place)

        return call

    monkeypatch.setattr(DirectoryDepot, "publish", publish)
    if what == "listing":
        monkeypatch.setattr(DirectoryDepot, "complete", fail_once_broken(listed))
    else:
        monkeypatch.setattr(checkpoint, "_sync", fail_once_broken(sync))
    with crew(1) as [trainee]:
        trainee.step()
        trainee.ft.save(tmp_path)
        trainee.step()
        eventually(lambda: trainee.ft._keeper._writing.ended(0.0), "it is over")  # type: ignore[union-attr]
        metrics = trainee.ft.metrics()
        assert (metrics["checkpoints"], metrics["checkpoint_failures"]) == (1, 0)
    assert complete(tmp_path) == [Name(1, 1)]
    assert ("may not survive" if what == "syncing" else "were not looked through: OSError: Input/output error") in caplog.text


@pytest.mark.parametrize("prompt", [True, False])
def test_it_is_under_way_until_the_next_one_may_be_written(
    prompt: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Which the other processes of its replica are told. Where giving it its name takes long, that belongs to it."""
    monkeypatch.setattr(DirectoryDepot, "prompt", property(lambda _depot: prompt))
    with crew(2) as trainees:
        steps(2, trainees)
        saves = trainees[0].ft._plane.saves
        all_of(trainees, lambda trainee: trainee.ft.save(tmp_path))
        eventually(lambda: trainees[0].ft._keeper._writing.stage is keeping._Stage.WAITING, "it is on the disk")  # type: ignore[union-attr]
        eventually(lambda: trainees[0].ft._keeper._writing.written(0.0), "it is on the disk")  # type: ignore[union-attr]
        assert saves.here is not prompt
        steps(1, trainees)
        eventually(lambda: trainees[0].ft._keeper._writing.ended(0.0), "it is complete")  # type: ignore[union-attr]
        assert not saves.here


def test_one_is_left_out_while_another_process_of_the_replica_writes(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "ftlib")
    with crew(1) as [trainee]:
        trainee.step()
        trainee.ft._plane.saves.agree(writing=True)
        trainee.ft.save(tmp_path)
        assert "no checkpoint of step 1: that of another process of this replica is still being written" in caplog.text
        assert trainee.ft.metrics()["checkpoints_skipped"] == 1
        trainee.ft.save(tmp_path, wait=True)
    assert [name.step for name in complete(tmp_path)] == [1]
