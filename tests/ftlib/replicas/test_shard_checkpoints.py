"""Checkpoints of replicas that have several processes: which one a shard resumes from."""

from __future__ import annotations

import functools
import json
import shutil
import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest

from ftlib import ConfigError, FTLib
from ftlib.checkpoints import choice
from ftlib.checkpoints.choice import Choice, Chooser
from ftlib.checkpoints.depot import DirectoryDepot
from ftlib.checkpoints.manifest import CheckpointManifest
from ftlib.checkpoints.names import Name, ShardOf, of_shards, shard_folder, shards_in, whole_names
from ftlib.checkpoints.resume import Resumption
from ftlib.checkpoints.retention import Stay
from ftlib.core.plane.plane import Plane
from ftlib.recovery.joiner.http_transport import Later
from tests.ftlib.crews.saving import Trainee
from tests.harness.basics import TIMEOUT, eventually, free_ports
from tests.harness.company import Company, at_once


def written(path: Path, shard: int, shards: int, *steps: int) -> None:
    for step in steps:
        (path / shard_folder(shard, shards) / str(Name(step, 1))).mkdir(parents=True)


def test_a_step_is_whole_once_all_shards_have_it(tmp_path: Path) -> None:
    written(tmp_path, 0, 2, 10, 20, 30)
    written(tmp_path, 1, 2, 10, 20)
    assert whole_names(of_shards(tmp_path, 2)) == [Name(20, 1), Name(10, 1)]
    assert shards_in(tmp_path) == {2}


def test_without_a_step_of_all_shards_there_is_none(tmp_path: Path) -> None:
    written(tmp_path, 0, 2, 10)
    assert whole_names(of_shards(tmp_path, 2)) == []


def test_what_all_shards_have_stays() -> None:
    names = [Name(step, 1) for step in (50, 40, 30, 20, 10)]
    assert Stay(2).others(names) == names[2:]
    assert Stay(2, lambda: [Name(50, 1), Name(40, 1), Name(10, 1)]).others(names) == names[2:], "one that stays anyway"
    assert Stay(1, lambda: [Name(20, 1), Name(10, 1)]).others(names) == [Name(40, 1), Name(30, 1), Name(10, 1)]
    assert Stay(5, lambda: [Name(10, 1)]).others(names) == []


@pytest.mark.parametrize("shards", [2, 3])
def test_another_number_of_shards_is_an_error(tmp_path: Path, shards: int) -> None:
    written(tmp_path, 0, shards, 10)
    with FTLib.init(config={}) as ft:
        ft.register_state(extra=Nothing())
        with pytest.raises(ConfigError, match=f"of replicas of {shards} processes, and these have 1"):
            ft.load(tmp_path)


class Nothing:
    """Has a state."""

    def state_dict(self) -> dict[str, int]:
        return {}

    def load_state_dict(self, state: object) -> None:
        """Nothing to do."""


@pytest.mark.parametrize("of_shard", [False, True])
def test_who_reads_and_is_too_busy_is_asked_now_and_then(of_shard: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """It says so at once, where it would keep a request waiting else."""
    plane, clock, busy = Mock(step=0, member_id="b"), [100.0], Mock(side_effect=[Later("too many transfers at a time")] * 20)
    plane.threads.now = lambda: clock[0]
    plane.wait_end = lambda _session, seconds: clock.append(clock.pop() + seconds)
    session = Mock(**{"plan.holders": ("a",)})
    monkeypatch.setattr(choice, "request", busy)
    monkeypatch.setattr(choice, "_leaders", lambda *_: ["a"])
    transfer = Mock(receive=busy, **{"active.return_value": session})
    chooser = Chooser(plane, None, 2.0, (1, 2))
    resumption = Resumption(plane, transfer, 2.0, Mock(), Mock(), (0, 1))
    with pytest.raises(ConfigError, match="within 2 s"):
        next(chooser._proposals(session, 1, {})) if of_shard else resumption._settle(Mock(), Mock())
    assert 2 < busy.call_count < 10


def test_what_one_shard_cannot_read_none_begins_from() -> None:
    new, old = Name(20, 1), Name(10, 1)
    chosen = Choice([new, old], 2)
    chosen.intact(0, str(new), "r")
    assert chosen.name == new and not chosen.settled
    chosen.spoilt(str(new), "a file is gone")
    assert chosen.name == old and not chosen.settled, "shard 0 has to read this one, too"
    chosen.intact(1, str(new), "r")
    chosen.intact(1, str(old), "r")
    assert not chosen.settled
    chosen.intact(0, str(old), "r")
    chosen.spoilt(str(old), "too late: shard 0 may have loaded it")
    assert chosen.settled and chosen.name == old and chosen.torn == {str(new): "a file is gone"}


def test_shards_of_different_runs_are_passed_over() -> None:
    chosen = Choice([Name(20, 1)], 2)
    chosen.intact(0, str(Name(20, 1)), "r")
    chosen.intact(1, str(Name(20, 1)), "other")
    assert chosen.name is None and chosen.settled and "different runs" in chosen.torn[str(Name(20, 1))]


def test_who_asks_once_shard_0_has_begun_hears_what_was_passed_over(tmp_path: Path) -> None:
    """Its program would not say else that a newer one is damaged, which it may be in this very shard."""
    written(tmp_path, 0, 2, 10, 20)
    written(tmp_path, 1, 2, 10, 20)
    chooser, place = choice.Chooser(Plane("a"), None, TIMEOUT, ShardOf(0, 2)), DirectoryDepot(tmp_path)
    chosen = chooser._begin(place, 0, None).choice
    chosen.spoilt(str(Name(20, 1)), "shard 1: a file is gone")
    chooser.begun(Name(10, 1))
    for asked, torn in ((0, {str(Name(20, 1)): "shard 1: a file is gone"}), (1, {})):
        said = json.loads(b"".join(chooser.source({"round": str(asked), "shard": "1"})))
        assert (said["name"], said["settled"], said["torn"]) == (str(Name(10, 1)), True, torn)


def replica(body: Callable[[int, Trainee], Any], **settings: Any) -> list[Any]:
    """What ``body`` returns at each of the two processes of one replica."""
    made = Company(0, initial_size=1, replica="blue", shards=2, recovery="wait", **settings)
    [first] = made.settings["introducers"]

    def live(shard: int) -> Any:
        with made.init(shard=shard, bind=("127.0.0.1:0", first)[not shard]) as ft:
            trainee = Trainee(ft)
            trainee.register()
            return body(shard, trainee)

    return at_once(*[functools.partial(live, shard) for shard in range(2)])


def two_steps(path: Path) -> None:
    def train(_shard: int, trainee: Trainee) -> None:
        for _ in range(2):
            trainee.step()
            trainee.ft.save(path, wait=True)
        trainee.step()
        eventually(lambda: whole_names(of_shards(path, 2))[:1] == [Name(2, 1)], "both shards have the newest one")

    replica(train)
    assert whole_names(of_shards(path, 2)) == [Name(2, 1), Name(1, 1)]


def test_all_processes_of_a_replica_begin_from_the_same_step(tmp_path: Path) -> None:
    """Though shard 0 has looked before shard 1's newest one got its name, and shard 1 after that."""
    two_steps(tmp_path)
    late, hidden, choosers = tmp_path / "shard-1-of-2" / str(Name(2, 1)), tmp_path / "hidden", []
    late.rename(hidden)

    def resume(shard: int, trainee: Trainee) -> tuple[int, int]:
        if shard == 0:
            choosers.append(trainee.ft._lives.life._chooser)
        else:
            eventually(lambda: choosers and choosers[0]._rounds, "shard 0 has looked")
            hidden.rename(late)
        loaded = trainee.ft.load(tmp_path)
        assert loaded is not None
        trainee.step()
        return loaded.step, trainee.ft.step

    assert replica(resume) == [(1, 2), (1, 2)]


def test_a_torn_one_of_one_shard_is_taken_by_none(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    two_steps(tmp_path)
    (tmp_path / "shard-1-of-2" / str(Name(2, 1)) / ".metadata").unlink()

    def resume(_shard: int, trainee: Trainee) -> int:
        loaded = trainee.ft.load(tmp_path)
        trainee.step()
        return loaded.step if loaded is not None else 0

    assert replica(resume) == [1, 1]
    text = f"an older one is taken: {Name(2, 1)}: shard 1: "
    by = {record.threadName for record in caplog.records if text in record.getMessage()}
    assert len(by) == 2, "both say so"  # again, where a view changes meanwhile


def test_a_process_of_a_replica_that_does_not_load_is_found_out(tmp_path: Path) -> None:
    two_steps(tmp_path)
    found_out = threading.Event()

    def load(shard: int, trainee: Trainee) -> None:
        trainee.ft._lives.life._chooser._patience = 0.5  # not by the setting: they shall have the time to meet
        if shard == 0:
            with pytest.raises(ConfigError, match=r"load was called here, but within 0.5 s not by the process of shard 1"):
                trainee.ft.load(tmp_path)
            found_out.set()
        assert found_out.wait(TIMEOUT)

    replica(load)


class Store:
    """Lets nobody read or list the checkpoints of one shard while it is busy, as an object store may say."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, shard: int) -> None:
        self.busy = True
        self._folder = shard_folder(shard, 2)
        for name in ("newest", "whole_names"):
            monkeypatch.setattr(DirectoryDepot, name, self._refusing(getattr(DirectoryDepot, name), name))

    def _refusing(self, method: Callable[..., Any], name: str) -> Callable[..., Any]:
        def called(depot: DirectoryDepot, *args: Any) -> Any:
            if self.busy and (self._folder in str(depot) or (name == "whole_names" and "shard-0" in self._folder)):
                raise OSError("ClientError: 503 Slow Down")
            return method(depot, *args)

        return called


@pytest.mark.parametrize("refused", [0, 1])
def test_what_one_process_may_not_read_is_refused_at_all_of_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, refused: int
) -> None:
    """At once, and they may try again together."""
    two_steps(tmp_path)
    store = Store(monkeypatch, refused)
    barrier = threading.Barrier(2, lambda: setattr(store, "busy", False))

    def resume(shard: int, trainee: Trainee) -> int:
        where = "cannot be read" if shard == refused else f"refused at the process of shard {refused}"
        with pytest.raises(ConfigError, match=f"{where}: ClientError: 503 Slow Down"):
            trainee.ft.load(tmp_path)
        barrier.wait(TIMEOUT)
        assert trainee.ft.load(tmp_path) is not None
        trainee.step()
        return trainee.ft.step

    assert replica(resume) == [3, 3]


def test_a_process_that_loads_once_more_is_not_waited_for_in_the_load_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    two_steps(tmp_path)
    monkeypatch.setattr(choice, "POLL", 0.2)
    alone = threading.Event()

    def resume(shard: int, trainee: Trainee) -> int:
        chooser = trainee.ft._lives.life._chooser
        if shard == 1:
            chooser._patience = 0.3
            with pytest.raises(ConfigError, match=r"within 0\.3 s not by .*, which has shard 0"):
                trainee.ft.load(tmp_path)
            chooser._patience = TIMEOUT
            alone.set()
        else:
            assert alone.wait(TIMEOUT)
            with pytest.raises(ConfigError, match="refused at the process of shard 1, whose program has called it again"):
                trainee.ft.load(tmp_path)
        assert trainee.ft.load(tmp_path) is not None
        trainee.step()
        return trainee.ft.step

    assert replica(resume) == [3, 3]


def test_a_process_that_comes_late_hears_what_came_of_a_load_that_is_over(tmp_path: Path) -> None:
    """Shard 0 has found nothing in the first place, and waits in the second one."""
    two_steps(tmp_path)
    choosers: list[Any] = []

    def resume(shard: int, trainee: Trainee) -> int:
        if shard == 0:
            choosers.append(trainee.ft._lives.life._chooser)
        else:
            eventually(lambda: choosers and 1 in choosers[0]._rounds, "shard 0 is in the second place")
        assert trainee.ft.load(tmp_path / "empty") is None
        assert trainee.ft.load(tmp_path) is not None
        trainee.step()
        return trainee.ft.step

    assert replica(resume) == [3, 3]


def test_where_nobody_answers_for_shard_0_a_process_does_not_ask_for_ever(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    two_steps(tmp_path)
    [port] = free_ports(1)  # at which nobody listens
    leaders = choice._leaders
    monkeypatch.setattr(choice, "_leaders", lambda *given: [replace(each, port=port) for each in leaders(*given)])
    found_out = threading.Event()

    def load(shard: int, trainee: Trainee) -> None:
        if shard == 1:
            trainee.ft._lives.life._chooser._patience = 0.5
            with pytest.raises(ConfigError, match=r"load was called here, but .*, which has shard 0, does not answer \("):
                trainee.ft.load(tmp_path)
            found_out.set()
        assert found_out.wait(TIMEOUT)

    replica(load)


def test_a_step_that_is_named_is_taken_from_each_shards_folder(tmp_path: Path) -> None:
    two_steps(tmp_path)

    def resume(shard: int, trainee: Trainee) -> tuple[int, str]:
        loaded = trainee.ft.load(tmp_path / str(Name(1, 1)))
        assert loaded is not None
        trainee.step()
        return trainee.ft.step, Path(loaded.path).parent.name

    assert replica(resume) == [(2, "shard-0-of-2"), (2, "shard-1-of-2")]


@pytest.mark.parametrize("told_by", ["manifest", "folder"])
def test_no_process_takes_another_shards_checkpoint(tmp_path: Path, told_by: str) -> None:
    """Though the program names the same one at all of them: of shards of equal shapes nobody would notice."""
    two_steps(tmp_path)
    named = tmp_path / shard_folder(0, 2) / str(Name(2, 1))
    if told_by == "manifest":  # a copy of it lies elsewhere
        named = named.rename(tmp_path / "copy").rename(tmp_path / str(Name(2, 1)))
    else:  # an older release has written it
        manifest = CheckpointManifest.read(named)
        (named / "manifest.json").unlink()
        replace(manifest, shard=None).write(named)
    refused = threading.Barrier(2)

    def resume(shard: int, trainee: Trainee) -> None:
        if shard == 0:
            assert trainee.ft.load(named) is not None
        else:
            with pytest.raises(ConfigError, match=r"is of shard 0 of 2, and this process has shard 1 of 2: (name|give)"):
                trainee.ft.load(named)
        refused.wait(TIMEOUT)

    replica(resume)
    with FTLib.init(config={}) as ft:
        ft.register_state(extra=Nothing())
        with pytest.raises(ConfigError, match="is of shard 0 of 2, and this process has shard 0 of 1: give another one"):
            ft.load(named)


def test_a_shards_folder_with_the_files_of_another_one_is_torn(tmp_path: Path) -> None:
    two_steps(tmp_path)
    one, other = (tmp_path / shard_folder(shard, 2) / str(Name(2, 1)) for shard in range(2))
    shutil.rmtree(other)
    shutil.copytree(one, other)

    def resume(_shard: int, trainee: Trainee) -> int:
        loaded = trainee.ft.load(tmp_path)
        trainee.step()
        return loaded.step if loaded is not None else 0

    assert replica(resume) == [1, 1]


def test_a_replica_does_not_train_on_pieces_of_different_steps(tmp_path: Path) -> None:
    """Though its program names another checkpoint for each shard."""
    two_steps(tmp_path)

    def resume(shard: int, trainee: Trainee) -> None:
        assert trainee.ft.load(tmp_path / shard_folder(shard, 2) / str(Name(shard + 1, 1))) is not None
        with pytest.raises(ConfigError, match="begin from different steps, 1 and 2: load the same checkpoint"):
            trainee.step()

    replica(resume)
