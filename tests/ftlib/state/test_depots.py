"""The promises of checkpoints, at a directory and at URLs alike: complete or not there, never replaced, never mixed."""

from __future__ import annotations

import functools
import itertools
import json
import logging
import multiprocessing
import os
import random
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

import ftlib.checkpoints.command as stored
import ftlib.checkpoints.keeper as keeping
from ftlib import ConfigError
from ftlib.checkpoints.checkpoint import Taken
from ftlib.checkpoints.choice import newest_whole
from ftlib.checkpoints.depot import Depot
from ftlib.checkpoints.manifest import TornError
from ftlib.checkpoints.names import Name, Part
from ftlib.checkpoints.places import depot_of
from ftlib.launch.run.plan import StartPlan
from tests.ftlib.crews.saving import all_of, crew, equal, steps
from tests.ftlib.state.test_checkpoints import same
from tests.harness.basics import TIMEOUT, eventually
from tests.harness.company import at_once
from tests.harness.narrow import Narrow
from tests.harness.objects import ObjectStore
from tests.harness.relay import Relay

COUNT = itertools.count()


@pytest.fixture(scope="module")
def objects() -> Iterator[ObjectStore]:
    with ObjectStore() as store:
        yield store


@pytest.fixture(params=["directory", "memory", "s3"])
def place(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """Where nothing is yet."""
    if request.param == "directory":
        return str(tmp_path / "run")
    pytest.importorskip("fsspec")
    if request.param == "memory":
        return f"memory://bucket-{next(COUNT)}/run"
    store: ObjectStore = request.getfixturevalue("objects")
    for key, value in store.environment.items():
        monkeypatch.setenv(key, value)
    return f"s3://{store.bucket()}/run"


@pytest.fixture
def depot(place: str) -> Depot:
    depot = depot_of(place)
    depot.prepare()
    return depot


def taken(step: int, epoch: int = 1, **values: Any) -> Taken:
    return Taken.of({"x": torch.arange(float(step)), **values}, Name(step, epoch), 2)


def write(depot: Depot, step: int, epoch: int = 1, writer: str = "aa", **values: Any) -> Name:
    part = Part.of(Name(step, epoch), writer)
    depot.write(taken(step, epoch, **values), part)
    depot.publish(part)
    return part.name


def test_it_is_complete_or_not_there(depot: Depot) -> None:
    part = Part.of(Name(4, 1), "aa")
    assert depot.complete() == [] and depot.parts() == [] and depot.newest() is None
    assert depot.write(taken(4, w=True), part) > 0
    assert depot.complete() == [] and depot.parts() == [part] and depot.newest() is None
    depot.publish(part)
    assert depot.complete() == [Name(4, 1)] and depot.parts() == []
    found = depot.newest()
    assert found is not None and found.name == Name(4, 1)
    assert same(found.tree, {"x": torch.arange(4.0), "w": True})
    assert depot.damage(Name(4, 1)) is None
    assert depot.manifest(Name(4, 1)).step == 4
    [single] = [depot_of(depot.at(Name(4, 1)))]
    assert single.single == Name(4, 1) and same(single.newest().tree, found.tree)  # type: ignore[union-attr]


def test_the_newest_is_taken_and_one_that_is_removed_is_gone(depot: Depot) -> None:
    for step in (3, 12, 5):
        write(depot, step)
    assert depot.complete() == [Name(12, 1), Name(5, 1), Name(3, 1)]
    depot.remove(Name(12, 1))
    depot.remove(Name(77, 1))
    assert depot.complete() == [Name(5, 1), Name(3, 1)] and depot.parts() == []
    assert depot.newest().name == Name(5, 1)  # type: ignore[union-attr]


def test_nothing_that_is_complete_is_replaced(depot: Depot) -> None:
    """Not by a writer of the same name, which was stopped before its last operation and wakes up now."""
    late = Part.of(Name(4, 1), "bb")
    depot.write(taken(4, whose="late"), late)
    write(depot, 4, whose="first")
    with pytest.raises(OSError, match=r".*"):
        depot.publish(late)
    assert depot.newest().tree["whose"] == "first"  # type: ignore[union-attr, index]
    depot.remove(late)
    assert depot.newest().tree["whose"] == "first"  # type: ignore[union-attr, index]


def test_a_writer_whose_files_are_gone_completes_nothing(depot: Depot) -> None:
    late = Part.of(Name(4, 1), "aa")
    depot.write(taken(4), late)
    other = depot_of(str(depot))
    for part in other.parts():
        other.remove(part)
    with pytest.raises(OSError, match=r".*"):
        depot.publish(late)
    assert other.complete() == [] and other.parts() == []


def test_of_many_writers_of_one_name_one_completes_it(place: str) -> None:
    """And what it completes is its own, whole."""
    depots = [depot_of(place) for _ in range(6)]
    depots[0].prepare()
    names = [Part.of(Name(9, 2), f"w{number}") for number in range(6)]
    for number, (depot, part) in enumerate(zip(depots, names, strict=True)):
        depot.write(taken(9, 2, whose=number), part)
    won: list[int] = []

    def publish(number: int) -> None:
        try:
            depots[number].publish(names[number])
            won.append(number)
        except OSError:
            pass

    at_once(*[functools.partial(publish, number) for number in range(6)])
    [winner] = won
    found = depots[0].newest()
    assert found is not None and found.tree["whose"] == winner  # type: ignore[index]


def test_an_answer_that_is_lost(objects: ObjectStore, monkeypatch: pytest.MonkeyPatch) -> None:
    """The manifest arrives, its answer does not: the client sends it again, and is told that there is one."""
    for key, value in objects.environment.items():
        monkeypatch.setenv(key, value)
    place = f"s3://{objects.bucket()}/run"
    with Relay(objects.port, lose=b"/manifest.json HTTP/1.1\r\n") as relay:
        monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://127.0.0.1:{relay.port}")
        write(depot_of(place), 4)
        assert relay.lost.is_set()
    monkeypatch.setenv("AWS_ENDPOINT_URL", objects.endpoint)
    assert depot_of(place).newest().name == Name(4, 1)  # type: ignore[union-attr]


def of_shards(depot: Depot, shards: int, *steps: list[int]) -> None:
    """``steps``: of each shard."""
    for shard, each in enumerate(steps):
        own = depot.of_shard(shard, shards)
        own.prepare()
        for step in each:
            write(own, step, shard=shard)


def test_a_shard_begins_from_the_newest_step_that_all_have(depot: Depot) -> None:
    assert depot.shards() == set() and newest_whole(depot, 2) is None
    of_shards(depot, 2, [1, 3, 4], [1, 3])
    begun = newest_whole(depot, 2)
    assert begun is not None
    for shard, found in enumerate(begun):
        assert found.name == Name(3, 1)
        assert found.tree["shard"] == shard  # type: ignore[index]
        assert str(found.directory) == depot.of_shard(shard, 2).at(Name(3, 1))
    assert depot.complete() == [] and depot.newest() is None


def test_without_a_step_that_all_shards_have_none_of_them_begins_from_one(depot: Depot) -> None:
    of_shards(depot, 2, [4], [])
    assert newest_whole(depot, 2) is None


def test_one_step_in_different_epochs_is_not_the_same(depot: Depot) -> None:
    """It was computed again by others, or by a run that was founded again: pieces of both are no state."""
    of_shards(depot, 2, [3], [3])
    write(depot.of_shard(0, 2), 4, epoch=4, shard=0)
    write(depot.of_shard(1, 2), 4, epoch=3, shard=1)
    assert depot.whole_names(2) == [Name(3, 1)]


@pytest.mark.parametrize("damage", ["manifest", "data", "gone"])
def test_one_of_which_a_shard_is_torn_is_taken_by_none(depot: Depot, damage: str) -> None:
    of_shards(depot, 2, [3, 4], [3, 4])
    spoil(depot.of_shard(1, 2), Name(4, 1), damage)
    begun = newest_whole(depot, 2)
    assert begun is not None and [found.name for found in begun] == [Name(3, 1)] * 2
    assert all(found.torn[0].startswith(f"{Name(4, 1)}: shard 1: ") for found in begun)
    spoil(depot.of_shard(0, 2), Name(3, 1), damage)
    with pytest.raises(TornError):
        newest_whole(depot, 2)


def test_shards_of_different_runs_are_no_state(depot: Depot) -> None:
    """A run that was killed when one shard had that step, and another one that went on from an older one."""
    of_shards(depot, 2, [3], [3])
    for shard in range(2):
        part, own = Part.of(Name(4, 1), "aa"), depot.of_shard(shard, 2)
        own.write(replace(taken(4), run=f"run-{shard}"), part)
        own.publish(part)
    begun = newest_whole(depot, 2)
    assert begun is not None and [found.name for found in begun] == [Name(3, 1)] * 2
    assert begun[0].torn == (f"{Name(4, 1)}: its shards are of different runs",)


@pytest.mark.parametrize("shards", [1, 4])
def test_another_number_of_shards_is_refused(depot: Depot, shards: int) -> None:
    """Rather than begin from scratch, in silence."""
    of_shards(depot, 2, [3], [3])
    with pytest.raises(ConfigError, match=f"are of replicas of 2 processes, and these have {shards}: start as many"):
        depot.check(shards)
    write(depot, 5)
    assert depot.shards() == {1, 2}
    depot.check(1)
    depot.check(2)
    depot_of(depot.of_shard(0, 2).at(Name(3, 1))).check(4)


def test_shards_that_have_completed_nothing_are_of_no_number(depot: Depot) -> None:
    own = depot.of_shard(0, 2)
    own.prepare()
    own.write(taken(4), Part.of(Name(4, 1), "aa"))
    assert depot.shards() == set()
    depot.check(4)


def test_a_job_that_has_another_number_of_shards_does_not_begin(place: str) -> None:
    of_shards(depot_of(place), 2, [3], [3])
    with crew(1) as [trainee], pytest.raises(ConfigError, match="of replicas of 2 processes, and these have 1"):
        trainee.ft.load(place)


def test_a_folder_may_be_named_like_the_bucket() -> None:
    pytest.importorskip("fsspec")
    depot = depot_of("memory://cafe")
    write(depot, 3, writer="cafe")
    assert depot.complete() == [Name(3, 1)] and depot.parts() == []
    found = depot.newest()
    assert found is not None and found.name == Name(3, 1)


def failing(system: Any, name: str, error: Exception, *, late: bool = False, only: str = "") -> Any:
    """That method of a file system, which fails. ``late``: after it has done what it does. ``only``: at such paths."""
    original = getattr(type(system), name)

    def method(self: Any, path: str, *args: Any, **options: Any) -> Any:
        if late:
            original(self, path, *args, **options)
        if path.endswith(only):
            raise error
        return original(self, path, *args, **options)

    return method


@pytest.fixture
def remote() -> Depot:
    pytest.importorskip("fsspec")
    return depot_of(f"memory://bucket-{next(COUNT)}/run")


def test_what_may_be_complete_keeps_its_files(remote: Depot, monkeypatch: pytest.MonkeyPatch) -> None:
    """The manifest arrives, and from then on the store does not answer: nobody knows, so nothing is removed."""
    import fsspec

    system, _ = fsspec.core.url_to_fs(str(remote))
    part = Part.of(Name(4, 1), "aa")
    remote.write(taken(4), part)
    with monkeypatch.context() as broken:
        broken.setattr(type(system), "pipe_file", failing(system, "pipe_file", TimeoutError("no answer"), late=True))
        broken.setattr(type(system), "cat_file", failing(system, "cat_file", TimeoutError("no answer")))
        with pytest.raises(TimeoutError):
            remote.publish(part)
        remote.remove(part)
    remote.remove(part)
    assert remote.newest().name == Name(4, 1)  # type: ignore[union-attr]


def test_a_manifest_that_cannot_be_removed_keeps_its_files(remote: Depot, monkeypatch: pytest.MonkeyPatch) -> None:
    import fsspec

    system, _ = fsspec.core.url_to_fs(str(remote))
    name, rm_file = write(remote, 4), type(system).rm_file

    def all_but_it(self: Any, path: str, **_: object) -> None:
        """As a store does that is asked to remove many at once, and may not remove that one."""
        for file in self.find(path):
            if not file.endswith("manifest.json"):
                rm_file(self, file)

    with monkeypatch.context() as broken:
        broken.setattr(type(system), "rm", all_but_it)
        broken.setattr(type(system), "rm_file", failing(system, "rm_file", PermissionError("no"), only="manifest.json"))
        remote.remove(name)
    assert remote.newest().name == name  # type: ignore[union-attr]
    remote.remove(name)
    assert remote.complete() == [] and remote.parts() == []


def test_a_store_that_cannot_create_is_named_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    remote = pytest.importorskip("ftlib.checkpoints.remote")
    monkeypatch.setattr(remote, "_warned", set())
    for place in (f"file://{tmp_path}", f"file://{tmp_path}/other", f"memory://bucket-{next(COUNT)}"):
        depot_of(place)
    [said] = [record.message for record in caplog.records if record.levelno == logging.WARNING]
    assert said.startswith("file:// is not known to have a request that creates") and "give a directory, s3://" in said


@pytest.mark.parametrize("damage", ["manifest", "data", "gone"])
def test_a_torn_one_is_left_and_the_next_older_one_taken(depot: Depot, damage: str) -> None:
    write(depot, 3)
    torn = write(depot, 4)
    spoil(depot, torn, damage)
    assert isinstance(depot.damage(torn), TornError)
    found = depot.newest()
    assert found is not None and found.name == Name(3, 1)
    assert len(found.torn) == 1
    spoil(depot, Name(3, 1), damage)
    with pytest.raises(TornError):
        depot.newest()


def spoil(depot: Depot, name: Name, how: str) -> None:
    """As a disk or a copy might."""
    import fsspec

    where = depot.at(name)
    system, root = fsspec.core.url_to_fs(where)
    system.invalidate_cache()
    files = system.find(root)
    [file] = [file for file in files if file.endswith("manifest.json" if how == "manifest" else ".distcp")]
    if how == "gone":
        system.rm_file(file)
    else:
        data = bytearray(system.cat_file(file))
        data[len(data) // 2] ^= 1
        system.pipe_file(file, bytes(data))


def test_a_job_saves_there_and_another_one_goes_on(
    place: str, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With another number of workers."""
    caplog.set_level(logging.INFO, "ftlib")
    monkeypatch.setattr(keeping, "NAMING", TIMEOUT)  # a busy disk leaves none out
    with crew(2, keep=2) as trainees:
        for _ in range(3):
            steps(1, trainees)
            all_of(trainees, lambda trainee: trainee.ft.save(place, wait=True))
        steps(1, trainees)
        eventually(lambda: depot_of(place).complete()[:1] == [Name(3, 1)], "the last one is complete")
        eventually(lambda: trainees[0].ft.metrics()["checkpoints"] == 3, "it has counted the last one, too")
        assert trainees[0].ft.metrics()["checkpoint_failures"] == 0
    assert [name.step for name in depot_of(place).complete()] == [3, 2]
    assert depot_of(place).parts() == []
    with crew(3) as trainees:
        loaded = all_of(trainees, lambda trainee: trainee.ft.load(place))
        assert [each.step for each in loaded] == [3, 3, 3]
        assert {str(each.path) for each in loaded} == {depot_of(place).at(Name(3, 1))}
        assert all(equal(trainees[0], other) for other in trainees[1:])
        steps(1, trainees)
        assert {trainee.ft.step for trainee in trainees} == {4}


def test_training_waits_for_one_copy_and_not_for_the_store(place: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """However long the store takes."""
    go = threading.Event()
    original = type(depot_of(place)).write

    def slow(self: Any, taken: Taken, part: Part) -> int:
        assert go.wait(TIMEOUT)
        return original(self, taken, part)

    monkeypatch.setattr(type(depot_of(place)), "write", slow)
    with crew(1) as [trainee]:
        trainee.step()
        trainee.ft.save(place)
        for _ in range(3):
            trainee.step()
        assert depot_of(place).complete() == []
        go.set()
        eventually(lambda: depot_of(place).complete() == [Name(1, 1)], "it is complete")


@pytest.mark.soak
@pytest.mark.timeout(900)
def test_what_has_to_be_resumed_may_be_at_a_url(objects: ObjectStore, monkeypatch: pytest.MonkeyPatch) -> None:
    """``ftlib run --resume URL --resume-required``."""
    for key, value in objects.environment.items():
        monkeypatch.setenv(key, value)
    place = f"s3://{objects.bucket()}/run"
    wanted: dict[str, Any] = {"command": ("x",), "workers": 1, "resume": place, "resume_required": True}
    depot = depot_of(place)
    depot.write(taken(3), Part.of(Name(3, 1), "aa"))
    with pytest.raises(ConfigError, match="no complete checkpoint at s3://"):
        StartPlan(**wanted)
    of_shards(depot, 2, [4, 5], [4])
    with pytest.raises(ConfigError, match="no complete checkpoint at s3://"):
        StartPlan(**wanted)
    assert StartPlan(**{**wanted, "workers": 2, "shards": 2})
    with pytest.raises(ConfigError, match=r"no complete checkpoint at s3://.* of all 4 shards: give another"):
        StartPlan(**{**wanted, "workers": 4, "shards": 4})
    write(depot, 4)
    assert StartPlan(**wanted)


WRITER = """
import sys, torch
from ftlib.checkpoints.checkpoint import Taken
from ftlib.checkpoints.names import Name, Part
from ftlib.checkpoints.places import depot_of
from ftlib.launch.run.plan import StartPlan
depot, part = depot_of(sys.argv[1]), Part.of(Name(7, 1), sys.argv[2])
depot.write(Taken.of({"x": torch.full((300_000,), 7.0)}, part.name, 1), part)
depot.publish(part)
"""


@pytest.mark.soak
@pytest.mark.timeout(900)
@pytest.mark.parametrize("killed", [True, False], ids=["killed", "slow"])
def test_an_upload_that_stands_still(objects: ObjectStore, *, killed: bool) -> None:
    """The store takes 100 kB of it and then nothing. A writer that is killed there leaves no checkpoint."""
    place = f"s3://{objects.bucket()}/run"
    with Narrow(objects.endpoint, 100_000) as narrow:
        environment = {**os.environ, **objects.environment, "AWS_ENDPOINT_URL": narrow.endpoint}
        writer = subprocess.Popen([sys.executable, "-c", WRITER, place, "aa"], env=environment)
        try:
            assert narrow.full.wait(TIMEOUT), "it has sent so much"
            assert writer.poll() is None
            listed = [sys.executable, "-m", "ftlib.checkpoints.command", "list", place, "--json"]
            asked = {**os.environ, **objects.environment}
            said = subprocess.run(listed, env=asked, capture_output=True, text=True, check=True, timeout=TIMEOUT).stdout
            assert not [line for line in said.splitlines() if "members" in line], "it is not complete"
            if killed:
                writer.kill()
                writer.wait(TIMEOUT)
            narrow.go.set()
            if killed:
                command = [sys.executable, "-c", WRITER, place, "bb"]
                subprocess.run(command, env=asked, check=True, timeout=TIMEOUT)
            else:
                assert writer.wait(TIMEOUT) == 0
            verified = [sys.executable, "-m", "ftlib.checkpoints.command", "verify", place]
            said = subprocess.run(verified, env=asked, capture_output=True, text=True, check=True, timeout=TIMEOUT).stdout
            assert said.splitlines() == [f"{Name(7, 1)}  intact"]
        finally:
            writer.kill()
            writer.wait(TIMEOUT)


def writes(place: str, first: int) -> None:
    """One checkpoint after the other, until it is killed. In a child."""
    depot = depot_of(place)
    for step in itertools.count(first):
        part = Part.of(Name(step, 1), f"w{os.getpid()}")
        depot.write(Taken.of({"x": torch.full((300_000,), float(step))}, part.name, 1), part)
        depot.publish(part)
        for name in depot.complete()[2:]:
            depot.remove(name)


@pytest.mark.soak
@pytest.mark.timeout(900)
def test_writers_are_killed_and_the_newest_intact_one_loads(place: str) -> None:
    """Fifty of them, at any moment; the first has to complete one."""
    if place.startswith("memory"):
        pytest.skip("no two processes share it")
    depot, chance, fork = depot_of(place), random.Random(5), multiprocessing.get_context("fork")
    depot.prepare()
    step, partial = 0, 0
    for number in range(50):
        writer = fork.Process(target=writes, args=(place, step + 1))
        writer.start()
        if number == 0:
            eventually(lambda: depot_of(place).complete(), "there is one")
        writer.join(chance.uniform(0.05, 0.6))
        assert writer.is_alive(), "it writes until it is killed"
        writer.kill()
        writer.join()
        found = depot.newest()
        assert found is not None
        assert found.torn == ()
        assert found.name.step >= step
        assert same(found.tree, {"x": torch.full((300_000,), float(found.name.step))})
        partial += bool(depot.parts())
        step = found.name.step
    print(f"50 of 50; {partial} left something that is not complete; step {step}")


@pytest.mark.parametrize(("url", "says"), [("nosuch://x/y", "install fsspec, and what it needs for nosuch://")])
def test_a_url_that_nobody_knows_is_refused(url: str, says: str) -> None:
    pytest.importorskip("fsspec")
    with pytest.raises(ConfigError, match=says):
        depot_of(url)


@pytest.fixture
def asked(capsys: pytest.CaptureFixture[str]) -> Callable[..., SimpleNamespace]:
    """``ftlib checkpoints``, in this process."""

    def ask(*words: object) -> SimpleNamespace:
        code = stored.main(list(map(str, words)))
        out, err = capsys.readouterr()
        return SimpleNamespace(returncode=code, stdout=out, stderr=err)

    return ask


def test_the_command_knows_shards(depot: Depot, tmp_path: Path, asked: Callable[..., SimpleNamespace]) -> None:
    of_shards(depot, 2, [3, 4, 5], [3, 4])
    half = depot.of_shard(1, 2)
    half.write(taken(5), Part.of(Name(5, 1), "me"))
    said = [json.loads(line) for line in asked("list", depot, "--json").stdout.splitlines()]
    each = [(row["checkpoint"], row["shard"], row.get("complete", True)) for row in said if "checkpoint" in row]
    names = [f"shard-{shard}-of-2/{Name(step, 1)}" for shard, step in ((0, 5), (0, 4), (0, 3), (1, 4), (1, 3), (1, 5))]
    assert each == [(name, int(name[6]), name != names[-1]) for name in names]
    assert said[6:] == [
        {"step": 5, "shards": 2, "whole": False, "missing": [1]},
        {"step": 4, "shards": 2, "whole": True, "missing": []},
        {"step": 3, "shards": 2, "whole": True, "missing": []},
    ]
    verified = asked("verify", depot)
    assert verified.returncode == 0 and verified.stderr == ""
    assert verified.stdout.splitlines()[-3:] == [
        "step 5  not whole: there is no intact one of shard 1 of 2",
        "step 4  whole: of 2 shards",
        "step 3  whole: of 2 shards",
    ]
    spoil(half, Name(4, 1), "data")
    verified = asked("verify", depot, "--json")
    assert verified.returncode == 1
    rows = [json.loads(line) for line in verified.stdout.splitlines()]
    assert [row["checkpoint"] for row in rows if row.get("torn")] == [f"shard-1-of-2/{Name(4, 1)}"]
    assert {row["step"]: row["missing"] for row in rows if "whole" in row} == {5: [1], 4: [1], 3: []}
    assert asked("verify", half.at(Name(3, 1))).returncode == 0, "one checkpoint of one shard is a place of its own"
    half.remove(Name(4, 1))
    half.remove(Name(3, 1))
    assert asked("verify", depot).returncode == 1, "there is none to begin from"


def test_shards_are_exported_to_a_file_each(depot: Depot, tmp_path: Path, asked: Callable[..., SimpleNamespace]) -> None:
    safetensors = pytest.importorskip("safetensors.torch")
    of_shards(depot, 2, [3, 4], [3])
    done = asked("export", depot, tmp_path / "all.safetensors")
    assert done.returncode == 0, done.stderr
    files = [tmp_path / f"all-shard-{shard}-of-2.safetensors" for shard in range(2)]
    assert sorted(tmp_path.glob("*.safetensors")) == files
    assert done.stdout.splitlines() == [f"1 tensors of step 3 are in {file}" for file in files]
    assert all(same(safetensors.load_file(file), {"state['x']": torch.arange(3.0)}) for file in files)
    depot.of_shard(1, 2).remove(Name(3, 1))
    assert "there is no step with a complete checkpoint of all 2 shards in" in asked("export", depot, files[0]).stderr
    of_shards(depot, 4, [3])
    assert f"give the place of one shard, e.g. {depot.of_shard(0, 2)}" in asked("export", depot, files[0]).stderr


def test_one_that_cannot_be_read_hides_no_other(tmp_path: Path, asked: Callable[..., SimpleNamespace]) -> None:
    depot = depot_of(tmp_path)
    for step in (3, 4):
        write(depot, step)
    manifest = tmp_path / str(Name(4, 1)) / "manifest.json"
    manifest.unlink()
    manifest.symlink_to(manifest.name)
    said = asked("list", depot)
    assert said.returncode == 0
    assert [line.split()[0] for line in said.stdout.splitlines()] == [str(Name(4, 1)), str(Name(3, 1))]
    assert "torn: " in said.stdout.splitlines()[0]


def test_what_cannot_be_exported_is_said(tmp_path: Path, asked: Callable[..., SimpleNamespace]) -> None:
    pytest.importorskip("safetensors")
    depot = depot_of(tmp_path)
    write(depot, 3)
    exported = asked("export", depot, tmp_path / "none" / "x.safetensors")
    assert exported.returncode == 1 and "none is no directory: make it" in exported.stderr
    exported = asked("export", depot, tmp_path)
    assert exported.returncode == 1 and "give another file" in exported.stderr
    write(depot, 4, z=torch.ones(2, dtype=torch.complex128))
    exported = asked("export", depot, tmp_path / "x.safetensors")
    assert exported.returncode == 1 and "torch.complex128, which state['z'] is of" in exported.stderr


def test_a_store_raises_what_an_operating_system_raises(tmp_path: Path, asked: Callable[..., SimpleNamespace]) -> None:
    """Its package has errors of its own: here that there is no such name for a bucket."""
    pytest.importorskip("s3fs")
    with crew(1) as [trainee]:
        with pytest.raises(ConfigError, match="load: s3://no,bucket/run cannot be read: "):
            trainee.ft.load("s3://no,bucket/run")
        trainee.step()
        trainee.ft.save("s3://no,bucket/run", wait=True)
        trainee.step()
        eventually(lambda: trainee.ft.metrics()["checkpoint_failures"] == 1, "it was counted")
    said = asked("list", "s3://no,bucket/run")
    assert said.returncode == 1 and said.stderr.startswith("ftlib checkpoints: s3://no,bucket/run: ")


def test_the_command_lists_verifies_and_exports(tmp_path: Path, asked: Callable[..., SimpleNamespace]) -> None:
    depot = depot_of(tmp_path / "run")
    depot.prepare()
    for step in (3, 4):
        write(depot, step, nested={"y": [torch.ones(2, 2)]})
    depot.write(taken(5), Part.of(Name(5, 1), "me"))
    listed = asked("list", tmp_path / "run", "--json")
    found = [json.loads(line) for line in listed.stdout.splitlines()]
    assert [(each["step"], each.get("complete", True)) for each in found] == [(4, True), (3, True), (5, False)]
    assert found[0]["tensors"] == 2 and found[0]["members"] == 2
    assert asked("verify", tmp_path / "run").returncode == 0
    file = next((tmp_path / "run" / str(Name(4, 1))).glob("*.distcp"))
    file.write_bytes(file.read_bytes()[:-1])
    verified = asked("verify", tmp_path / "run", "--json")
    assert verified.returncode == 1
    assert [json.loads(line)["torn"] is None for line in verified.stdout.splitlines()] == [False, True]
    safetensors = pytest.importorskip("safetensors.torch")
    exported = asked("export", tmp_path / "run", tmp_path / "all.safetensors")
    assert exported.returncode == 0, exported.stderr
    assert same(
        safetensors.load_file(tmp_path / "all.safetensors"),
        {"state['nested']['y'][0]": torch.ones(2, 2), "state['x']": torch.arange(3.0)},
    )
    assert asked("export", tmp_path / "none", tmp_path / "x").returncode == 1
