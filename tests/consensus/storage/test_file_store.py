"""The file store on this host's disk: what all stores do, and what becomes of its files."""

from __future__ import annotations

import asyncio
import fcntl
import os
import shutil
import signal
import string
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from consensus.errors import ConfigError
from consensus.storage.files import compactions, folder, probe
from consensus.storage.store import Created, Unreadable
from tests.harness.basics import TIMEOUT

from .conformance import Conformance
from .directory import Directory, files
from .place import Place


@pytest.fixture
def place(tmp_path: Path) -> Directory:
    return Directory(tmp_path)


class TestFileStore(Conformance):
    @pytest.fixture
    def place(self, tmp_path: Path) -> Place:
        return Directory(tmp_path)


# A dictionary does the same

KEYS = st.sampled_from([f"{top}/{name}" for top in ("members", "views", "views/old") for name in ("a", "b-1", "c.d")])
NAMES = st.sampled_from(["views", "steps"])
NUMBERS = st.integers(0, 4)
OPERATIONS = st.one_of(
    st.tuples(st.just("create"), KEYS, st.binary(max_size=8), st.none() | NUMBERS, NAMES),
    st.tuples(st.just("write"), KEYS, st.binary(max_size=8), st.sampled_from([None, 1.0])),
    st.tuples(st.just("delete"), st.lists(KEYS, max_size=3)),
    st.tuples(st.just("read"), KEYS),
    st.tuples(st.just("list"), st.sampled_from(["members/", "views/", "views/old/", "none/"])),
    st.tuples(st.just("compacted"), NAMES),
    st.tuples(st.just("compact"), NAMES, NUMBERS),
    st.tuples(st.just("reopen")),
)


class Model:
    def __init__(self) -> None:
        self.values: dict[str, bytes] = {}
        self.revisions: dict[str, int] = {}

    def create(self, key: str, value: bytes, number: int | None, series: str) -> set[Created]:
        """What may be answered: of what exists already and is below the compacted revision, both is true."""
        below = number is not None and number < self.revisions.get(series, 0)
        if below or key in self.values:
            return {Created.BELOW} if below else {Created.EXISTS}
        self.values[key] = value
        return {Created.DONE}

    def write(self, key: str, value: bytes, _expires: float | None) -> None:
        self.values[key] = value

    def delete(self, keys: list[str]) -> None:
        for key in keys:
            self.values.pop(key, None)

    def list(self, prefix: str) -> dict[str, bytes]:
        return {key: value for key, value in sorted(self.values.items()) if key.startswith(prefix)}

    def compact(self, series: str, number: int) -> int:
        self.revisions[series] = max(number, self.revisions.get(series, 0))
        return self.revisions[series]


async def _play(place: Place, operations: list[tuple[Any, ...]]) -> None:
    model, store = Model(), place.make()
    await store.open()
    for name, *arguments in operations:
        match name:
            case "create":
                key, value, number, series = arguments
                assert await store.create(key, value, number=number, series=series) in model.create(*arguments)
            case "write":
                key, value, expires = arguments
                await store.write(key, value, expires=expires)
                model.write(*arguments)
            case "delete":
                await store.delete(*arguments[0])
                model.delete(arguments[0])
            case "read":
                assert await store.read(arguments[0]) == model.values.get(arguments[0])
            case "list":
                assert list((await store.list(arguments[0])).items()) == list(model.list(arguments[0]).items())
            case "compacted":
                assert await store.compacted(arguments[0]) == model.revisions.get(arguments[0], 0)
            case "compact":
                assert await store.compact(*arguments) == model.compact(*arguments)
            case "reopen":
                await store.close()
                store = place.make()
                await store.open()
    await store.close()


@settings(max_examples=60)
@given(operations=st.lists(OPERATIONS, max_size=25))
def test_a_dictionary_does_the_same(operations: list[tuple[Any, ...]]) -> None:
    with tempfile.TemporaryDirectory(dir="/dev/shm") as directory:
        asyncio.run(_play(Directory(Path(directory)), operations))


# Files


def nest(directory: Path, first: str, levels: int, name: str = "a") -> None:
    """Make ``first`` in ``directory``, with ``levels`` directories in each other below it."""
    (directory / first).mkdir()
    file = os.open(directory / first, os.O_RDONLY)
    for _ in range(levels):
        os.mkdir(name, dir_fd=file)
        inner = os.open(name, os.O_RDONLY, dir_fd=file)
        os.close(file)
        file = inner
    os.close(file)


def unnest(path: Path) -> None:
    """Remove what ``nest`` made, which is too deep for Python, and for pytest's own cleaning."""
    subprocess.run(["rm", "-r", path], check=True, timeout=TIMEOUT)


async def test_what_is_left_are_values_compactions_and_the_id_and_only_their_owner_may_look(place: Directory) -> None:
    async with place.store() as store:
        await store.create("views/1", b"1", number=1, series="views")
        await store.create("views/1", b"2", number=1, series="views")
        await store.write("members/a", b"1", expires=1)
        await store.write("members/a", b"2", expires=1)
        await store.compact("views", 2)
        await store.create("views/0", b"2", number=0, series="views")
    assert files(place.root()) == ["floors/views/0000000000000002", "keys/members/a", "keys/views/1"]
    assert {"id", place.root().name} == {path.name for path in (place.path / "job").iterdir()}
    assert {path.stat().st_mode & 0o077 for path in place.path.rglob("*")} == {0}


@pytest.mark.parametrize(
    "content", [b"", b"ftlib 1 ", b"ftlib 1 00000000 5\nab", b"ftlib 1 00000000 2\nab", b"\0" * 4096, b"x" * (1 << 21)]
)
async def test_a_torn_file_is_no_value_and_hides_no_other(place: Directory, content: bytes) -> None:
    async with place.store() as store:
        await store.write("views/1", b"1")
        torn = place.root() / "keys" / "views" / "2"
        torn.write_bytes(content)
        unreadable = Unreadable(f"{torn} holds no value of ftlib's: remove it")
        assert await store.list("views/") == {"views/1": b"1", "views/2": unreadable}
        assert await store.read("views/2") == unreadable
        assert await store.create("views/2", b"2") is Created.EXISTS
        await store.write("views/2", b"2")
        assert await store.read("views/2") == b"2"


async def test_strangers_are_passed_over(place: Directory, caplog: pytest.LogCaptureFixture) -> None:
    async with place.store() as store:
        await store.write("members/a", b"1")
        keys = place.root() / "keys" / "members"
        os.mkfifo(keys / "pipe")
        (keys / "link").symlink_to(keys / "a")
        (keys / "Notes (copy).txt").write_text("mine")
        (keys / ".nfs0000000001").write_text("removed while in use")
        (keys / "empty").mkdir()
        (place.root() / "floors" / "members").mkdir()
        (place.root() / "floors" / "members" / "12").touch()
        (place.root() / "floors" / "members" / "backup").touch()
        os.truncate(os.open(keys / "huge", os.O_CREAT | os.O_WRONLY), 1 << 40)
        found = dict(await store.list("members/"))
        assert found.pop("members/a") == b"1"
        for name in ("pipe", "link", "huge"):
            assert found.pop(f"members/{name}") == Unreadable(f"{keys / name} holds no value of ftlib's: remove it")
            assert await store.create(f"members/{name}", b"") is Created.EXISTS
        assert not found and await store.read("members/empty") is None
        assert await store.compacted("members") == 0
    said = " ".join(record.getMessage() for record in caplog.records)
    assert "Notes (copy).txt" in said and "nfs" not in said


@pytest.mark.parametrize(("name", "levels"), [("a", 1500), ("a" * 200, 22), ("a", 3)])
async def test_directories_in_directories_hide_nothing(
    place: Directory, caplog: pytest.LogCaptureFixture, name: str, levels: int
) -> None:
    async with place.store() as store:
        await store.write("members/a", b"1")
        await store.write("members/b/c/d", b"2")
        keys = place.root() / "keys" / "members"
        nest(keys, "deep", levels, name)
        try:
            for _ in range(2):
                assert await store.list("members/") == {"members/a": b"1", "members/b/c/d": b"2"}
        finally:
            unnest(keys / "deep")
    said = [record.getMessage() for record in caplog.records]
    assert len(said) == 1 and str(keys / "deep") in said[0] and "is passed over: remove it" in said[0], said


async def test_a_key_has_only_so_many_parts(place: Directory) -> None:
    async with place.store() as store:
        for attempt in (store.write("a/b/c/d/e", b""), store.read("a/b/c/d/e"), store.list("a/b/c/d/")):
            with pytest.raises(ConfigError, match=r"no (key|prefix) of a store"):
                await attempt


async def test_a_file_that_somebody_holds_hides_nothing(place: Directory) -> None:
    async with place.store() as store:
        await store.write("members/a", b"1")
        held = place.root() / "keys" / "members" / "held"
        file = os.open(held, os.O_RDWR | os.O_CREAT)
        before = signal.signal(signal.SIGIO, signal.SIG_IGN)  # the kernel asks the holder to let go
        try:
            fcntl.fcntl(file, fcntl.F_SETLEASE, fcntl.F_WRLCK)
            found = await store.list("members/")
            assert await store.read("members/held") == found["members/held"]
        finally:
            os.close(file)
            signal.signal(signal.SIGIO, before)
    assert found["members/a"] == b"1"
    why = f"{held} cannot be opened (Resource temporarily unavailable): end the process that holds it, or remove it"
    assert found["members/held"] == Unreadable(why)


async def test_a_name_that_a_directory_does_not_show_while_it_is_rewritten_is_listed_all_the_same(
    place: Directory, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with place.store() as store:
        for key in ("members/a", "members/b", "members/c"):
            await store.write(key, b"")
        await store.list("members/")
        await store.delete("members/c")
        monkeypatch.setattr(folder.Folder, "_names", lambda self, directory, prefix: iter(["members/b"]))
        for _ in range(2):
            assert list(await store.list("members/")) == ["members/a", "members/b"]


async def test_what_dead_processes_left_is_removed_when_it_is_old(place: Directory) -> None:
    async with place.store():
        temp = place.root() / "temp"
    old, new = time.time() - folder.LEFT_OVER - 60, time.time() - folder.LEFT_OVER + 60
    for stamp in (old, new):
        for path in (temp / f"value-{stamp:.0f}", place.path / "job" / f"trial-{stamp:.0f}"):
            path.write_bytes(b"")
            os.utime(path, (stamp, stamp))
    trial = place.path / "job" / "trial-directory"
    trial.mkdir()
    (trial / "first").touch()
    os.utime(trial, (old, old))
    async with place.store():
        assert files(temp) == [f"value-{new:.0f}"]
        assert [path.name for path in (place.path / "job").glob("trial-*")] == [f"trial-{new:.0f}"]


async def test_a_directory_too_deep_to_be_removed_keeps_nobody_out(place: Directory, caplog: pytest.LogCaptureFixture) -> None:
    async with place.store():
        temp = place.root() / "temp"
    nest(temp, "deep", 1500)
    old = time.time() - folder.LEFT_OVER - 60
    os.utime(temp / "deep", (old, old))
    try:
        async with place.store() as store:
            await store.write("members/a", b"1")
    finally:
        unnest(temp / "deep")
    assert f"{temp / 'deep'} holds no value of ftlib's and is passed over: remove it" in caplog.text


async def test_leases_that_were_not_renewed_for_an_hour_are_removed(place: Directory) -> None:
    """Those of members that were never in a view: nobody withdraws them. What else is old stays."""
    async with place.store() as sleeper:
        for key in ("leases/new", "leases/old", "leases/asleep", "views/1"):
            await sleeper.write(key, b"1", expires=60)
        keys = place.root() / "keys"
        (keys / "leases" / "torn").write_bytes(b"")
        (keys / "leases" / "directory").mkdir()
        old, new = time.time() - folder.LEFT_OVER - 60, time.time() - folder.LEFT_OVER + 60
        for name in ("leases/old", "leases/asleep", "leases/torn", "leases/directory", "views/1"):
            os.utime(keys / name, (old, old))
        os.utime(keys / "leases" / "new", (new, new))
        async with place.store() as store:
            assert await store.list("leases/") == {"leases/new": b"1"}
            assert await store.list("views/") == {"views/1": b"1"}
            await sleeper.write("leases/asleep", b"2", expires=60)
            assert await store.list("leases/") == {"leases/asleep": b"2", "leases/new": b"1"}
        assert (keys / "leases" / "directory").is_dir()


@pytest.mark.parametrize("name", ["temp", "keys/leases"])
async def test_nothing_is_removed_where_a_symbolic_link_leads(place: Directory, tmp_path_factory: Any, name: str) -> None:
    """Who may write in the store may not have its members remove files elsewhere."""
    async with place.store() as store:
        await store.write("leases/a", b"1", expires=60)
        link = place.root() / name
    elsewhere: Path = tmp_path_factory.mktemp("elsewhere")
    old = time.time() - folder.LEFT_OVER - 60
    for kept in (elsewhere / "thesis", elsewhere / "data" / "1"):
        kept.parent.mkdir(exist_ok=True)
        kept.write_text("mine")
        os.utime(kept, (old, old))
    os.utime(elsewhere / "data", (old, old))
    shutil.rmtree(link)
    link.symlink_to(elsewhere)
    async with place.store():
        assert files(elsewhere) == ["data/1", "thesis"]


async def test_lower_compactions_go_once_a_higher_one_has_stood_for_long(place: Directory) -> None:
    async with place.store() as store:
        for number in (1, 2, 3):
            await store.compact("views", number)
        directory = place.root() / "floors" / "views"
        assert [int(path) for path in files(directory)] == [1, 2, 3]
        for number, age in ((1, 3), (2, 2), (3, 0.5)):
            stamp = time.time() - age * compactions.GRACE
            os.utime(directory / f"{number:016}", (stamp, stamp))
        assert await store.compact("views", 4) == 4
        assert [int(path) for path in files(directory)] == [2, 3, 4]


def test_a_listing_that_took_too_long_is_taken_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The number that it should have found may have been removed for a higher one, which it did not find either."""
    (tmp_path / f"{5:016}").touch()
    calls = 0

    def slow(path: Path) -> Iterator[Path]:
        nonlocal calls
        calls += 1
        return iter([]) if calls == 1 else really(path)

    ticks = iter([0.0, compactions.GRACE, compactions.GRACE, compactions.GRACE + 1])
    really = Path.iterdir
    monkeypatch.setattr(Path, "iterdir", slow)
    monkeypatch.setattr(time, "clock_gettime", lambda _: next(ticks))
    assert compactions.compacted(tmp_path) == 5


def test_names_of_jobs_are_names_of_directories() -> None:
    assert folder.folder_name("train-2024.06_01") == "train-2024.06_01"
    strange = ["Train", "train/", "TRAIN", ".", "..", "", "x" * 64, "\N{CAT}" * 64, "train~", "a/../b", "tr ain", "\ud800"]
    names = [folder.folder_name(job) for job in strange]
    allowed = set(string.ascii_lowercase + string.digits + "-~")
    assert len({name.lower() for name in names}) == len(strange)
    assert all(0 < len(name) <= 128 and set(name) <= allowed for name in names)


@pytest.mark.parametrize("job", ["a", "0.1", "_"])
def test_a_plain_name_is_never_that_of_a_strange_one(job: str) -> None:
    assert "~" not in folder.folder_name(job)


# NFS

MOUNTS = "29 1 254:0 / / rw - ext4 /dev/root rw\n40 29 0:52 / /mnt rw,relatime shared:9 - nfs4 host:/x {}\n"


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ("rw,vers=4.2,hard,addr=10.0.0.1", "lookupcache=positive,actimeo=1"),
        ("rw,vers=3,nocto,lookupcache=none", "mount it without"),
        ("rw,vers=4.2,lookupcache=pos", None),
        ("rw,vers=4.2,lookupcache=none", None),
        ("rw,sync,noac", None),
    ],
)
def test_mount_options_that_make_news_late_are_named(options: str, text: str | None) -> None:
    said = probe.advice(os.makedev(0, 52), MOUNTS.format(options))
    assert said is None if text is None else said is not None and text in said
    assert probe.advice(os.makedev(254, 0), MOUNTS.format(options)) is None
    assert probe.advice(Path("/").stat().st_dev, Path("/proc/self/mountinfo").read_text()) is None
