"""The file store when system calls fail, hang, or lie; when its directory is wiped; when many open it at once."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from consensus.errors import AmbiguousWriteError, StoreAwayError, StoreRefusedError
from consensus.storage.files import compactions, folder
from consensus.storage.files.os_errors import DirectoryState
from consensus.storage.store import Created, Unreadable
from tests.harness.basics import TIMEOUT

from .directory import Directory, error_of, files
from .patience import SOON, impatient


@pytest.fixture
def place(tmp_path: Path) -> Directory:
    return Directory(tmp_path)


# What may go wrong


async def test_a_link_that_was_made_though_the_server_says_that_the_name_is_taken_is_ours(
    place: Directory, monkeypatch: pytest.MonkeyPatch
) -> None:
    """NFS: the answer is lost, the client asks again, and the server sees the name taken."""
    async with place.store() as store:
        await store.write("views/0", b"")

        def link(*args: Any) -> None:
            really(*args)
            raise error_of(errno.EEXIST)

        really = os.link
        monkeypatch.setattr(os, "link", link)
        assert await store.create("views/1", b"mine") is Created.DONE
        assert await store.create("views/1", b"again") is Created.EXISTS
        assert await store.read("views/1") == b"mine"


async def test_a_compaction_between_looking_and_creating_is_seen(place: Directory, monkeypatch: pytest.MonkeyPatch) -> None:
    """A member falls asleep after it has looked; when it wakes up the others have cleaned away what it is about to create."""
    async with place.store() as sleeper:
        await sleeper.create("views/5", b"", number=5, series="views")

        def link(*args: Any) -> None:
            compactions.compact(place.root() / "floors" / "views", 7)
            really(*args)

        really = os.link
        monkeypatch.setattr(os, "link", link)
        assert await sleeper.create("views/6", b"", number=6, series="views") is Created.BELOW
        assert await sleeper.create("views/7", b"", number=7, series="views") is Created.DONE
        assert list(await sleeper.list("views/")) == ["views/5", "views/7"]
        assert files(place.root() / "temp") == []


async def test_a_rename_that_was_made_though_the_server_says_that_there_is_nothing_to_rename_is_done(
    place: Directory, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with place.store() as store:

        def rename(*args: Any) -> None:
            really(*args)
            raise error_of(errno.ENOENT)

        really = os.replace
        monkeypatch.setattr(os, "replace", rename)
        await store.write("members/a", b"1")
        assert await store.read("members/a") == b"1"


@pytest.mark.parametrize(
    ("call", "number", "kind", "text"),
    [
        ("link", errno.EIO, StoreAwayError, "look at the disk"),
        ("link", errno.ENOSPC, StoreAwayError, "free some space"),
        ("link", errno.EDQUOT, StoreAwayError, "raise the quota"),
        ("link", errno.EACCES, StoreRefusedError, "run all workers of a job as one user"),
        ("link", errno.EPERM, StoreRefusedError, "run all workers of a job as one user"),
        ("link", errno.EROFS, StoreRefusedError, "mount it for writing"),
        ("link", errno.ESTALE, StoreAwayError, "look at the disk"),
        ("fsync", errno.EIO, StoreAwayError, "look at the disk"),
        ("write", errno.ENOSPC, StoreAwayError, "free some space"),
        ("open", errno.EMFILE, StoreAwayError, "ulimit -n"),
    ],
)
async def test_what_failed_before_it_was_done_is_said_so(
    place: Directory, monkeypatch: pytest.MonkeyPatch, call: str, number: int, kind: type[Exception], text: str
) -> None:
    async with place.store() as store:
        await store.write("views/0", b"")

        def fail(*args: Any, **kwargs: Any) -> None:
            raise error_of(number)

        with monkeypatch.context() as patch:
            patch.setattr(os, call, fail)
            with pytest.raises(kind, match=rf"^the store file://\S+: views/1 cannot be created: .*{text}") as caught:
                await store.create("views/1", b"1")
            assert "\n" not in str(caught.value)
        assert await store.create("views/1", b"1") is Created.DONE
        assert files(place.root() / "temp") == []


@pytest.mark.parametrize("number", [errno.EIO, errno.EMFILE, errno.ENOSPC])
async def test_what_failed_afterwards_may_have_been_done(
    place: Directory, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    async with place.store() as store:
        await store.write("views/0", b"")

        def fail(path: Path) -> None:
            raise error_of(number)

        for change in (store.create("views/1", b"1"), store.write("views/2", b"2")):
            with monkeypatch.context() as patch:
                patch.setattr(folder, "sync_directory", fail)
                with pytest.raises(AmbiguousWriteError, match="it may have been done"):
                    await change
        assert list(await store.list("views/")) == ["views/0", "views/1", "views/2"]


async def test_a_rename_with_an_io_error_may_have_been_done_and_one_without_space_was_not(
    place: Directory, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with place.store() as store:
        for number, kind in (
            (errno.EIO, AmbiguousWriteError),
            (errno.ENOSPC, StoreAwayError),
            (errno.EROFS, StoreRefusedError),
        ):

            def fail(*args: Any, number: int = number) -> None:
                raise error_of(number)

            with monkeypatch.context() as patch:
                patch.setattr(os, "replace", fail)
                with pytest.raises(kind):
                    await store.write("members/a", b"")


@pytest.mark.parametrize("number", [errno.EUCLEAN, errno.ESTALE, errno.EIO, errno.EACCES, errno.ENAMETOOLONG])
async def test_an_error_of_one_file_hides_no_other(place: Directory, monkeypatch: pytest.MonkeyPatch, number: int) -> None:
    async with place.store() as store:
        await store.write("views/1", b"1")
        await store.write("views/2", b"2")
        damaged = place.root() / "keys" / "views" / "2"
        with monkeypatch.context() as patch:
            failing(patch, damaged, number)
            found = dict(await store.list("views/"))
            assert await store.read("views/2") == found["views/2"]
            assert await store.create("views/2", b"") is Created.EXISTS
        value = found["views/2"]
        assert found["views/1"] == b"1" and isinstance(value, Unreadable)
        assert str(damaged) in value.why and os.strerror(number) in value.why and "remove it" in value.why
        assert await store.read("views/2") == b"2"


@pytest.mark.parametrize("number", [errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.ETIMEDOUT])
async def test_an_error_that_is_not_the_files_own_is_none_of_it(
    place: Directory, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    async with place.store() as store:
        await store.write("views/1", b"1")
        failing(monkeypatch, place.root() / "keys" / "views" / "1", number)
        for attempt in (store.list("views/"), store.read("views/1")):
            with pytest.raises(StoreAwayError):
                await attempt


async def test_a_directory_that_is_gone_amid_a_listing_is_not_taken_for_a_damaged_file(
    place: Directory, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with place.store() as store:
        await store.write("views/1", b"1")
        failing(monkeypatch, place.root() / "keys" / "views" / "1", errno.ESTALE)
        monkeypatch.setattr(folder.Folder, "_standing", lambda self: DirectoryState.AWAY)
        with pytest.raises(StoreAwayError, match="is not there: mount the file system again"):
            await store.list("views/")


async def test_a_file_whose_kind_cannot_be_told_is_read(place: Directory, monkeypatch: pytest.MonkeyPatch) -> None:
    """A record is never taken for absent."""

    class Odd:
        def __init__(self, entry: os.DirEntry[str]) -> None:
            self.name, self.path = entry.name, entry.path

        def is_dir(self, *, follow_symlinks: bool) -> bool:
            raise error_of(errno.EUCLEAN)

    @contextlib.contextmanager
    def scan(path: Path) -> Iterator[Iterator[Odd]]:
        with really(path) as entries:
            yield map(Odd, entries)

    really = os.scandir
    async with place.store() as store:
        await store.write("views/1", b"1")
        monkeypatch.setattr(os, "scandir", scan)
        assert await store.list("views/") == {"views/1": b"1"}


def failing(patch: pytest.MonkeyPatch, path: Path, number: int) -> None:
    """That file cannot be opened."""

    def open_(name: Any, *args: Any, **options: Any) -> int:
        if os.fspath(name) == os.fspath(path):
            raise error_of(number)
        return really(name, *args, **options)

    really = os.open
    patch.setattr(os, "open", open_)


async def test_a_key_cannot_be_the_beginning_of_another(place: Directory) -> None:
    async with place.store() as store:
        await store.write("members/a", b"")
        for key in ("members/a/b", "members/a/b/c"):
            with pytest.raises(StoreRefusedError, match="the beginning of this name is a key of its own"):
                await store.write(key, b"")
            with pytest.raises(StoreRefusedError, match="the beginning of this name is a key of its own"):
                await store.create(key, b"")
            assert await store.read(key) is None
        with pytest.raises(StoreRefusedError, match="this name is the beginning of other keys"):
            await store.write("members", b"")
        assert await store.create("members", b"") is Created.EXISTS
        assert await store.list("members/") == {"members/a": b""}


async def test_a_directory_that_is_not_there_is_refused(place: Directory) -> None:
    store = Directory(place.path / "none").make()
    with pytest.raises(StoreRefusedError, match="there is no such directory: make it on the shared file system, or mount that"):
        await store.open()
    (place.path / "none").write_text("a file")
    with pytest.raises(StoreRefusedError, match="there is no such directory"):
        await store.open()
    await store.close()
    assert files(place.path) == ["none"]


async def test_wiped_and_founded_anew_nothing_of_an_old_member_gets_in(place: Directory) -> None:
    async with place.store() as old:
        await old.create("views/7", b"7")
        await old.compact("views", 7)
        place.wipe()
        async with place.store() as new:
            await new.create("views/1", b"1")
            for change in (
                old.create("views/8", b"8", number=8, series="views"),
                old.create("views/8", b"8"),
                old.write("members/a", b""),
                old.compact("views", 8),
            ):
                with pytest.raises(
                    StoreRefusedError, match="was wiped, or removed: what was decided there is gone; stop the job"
                ):
                    await change
            await old.delete("views/1")
            assert await old.read("views/1") is None
            assert await old.list("views/") == {}
            assert await old.compacted("views") == 0
            assert await new.list("views/") == {"views/1": b"1"}
            assert await new.compacted("views") == 0


async def test_somebody_elses_file_in_the_place_of_the_id_is_refused(place: Directory) -> None:
    (place.path / "job").mkdir()
    (place.path / "job" / "id").write_text("mine")
    store = place.make()
    with pytest.raises(StoreRefusedError, match="job/id holds no value of ftlib's: remove it"):
        await store.open()
    await store.close()


async def test_many_open_one_new_directory_at_once(place: Directory) -> None:
    stores = [place.make() for _ in range(8)]
    await asyncio.gather(*(store.open() for store in stores))
    for number, store in enumerate(stores):
        await store.write(f"members/{number}", b"")
    assert len(await stores[0].list("members/")) == len(stores)
    assert files(place.path / "job").count("id") == 1
    for store in stores:
        await store.close()


# What hangs


class Gate:
    """Holds up a system call until it is opened."""

    def __init__(self, patch: pytest.MonkeyPatch, name: str) -> None:
        self.entered = threading.Semaphore(0)
        self._opened = threading.Event()
        self._really = getattr(os, name)
        patch.setattr(os, name, self._call)

    def _call(self, *args: Any, **kwargs: Any) -> Any:
        self.entered.release()
        assert self._opened.wait(TIMEOUT)
        return self._really(*args, **kwargs)

    def open(self) -> None:
        self._opened.set()


async def _until(condition: Callable[[], Any]) -> None:
    async with asyncio.timeout(TIMEOUT):
        while not condition():
            await asyncio.sleep(0.002)


async def test_a_creation_that_hangs_is_ambiguous_and_does_nothing_once_it_is_given_up(
    place: Directory, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with place.store() as store, place.store() as other:
        with monkeypatch.context() as patch, impatient(store):
            gate = Gate(patch, "fsync")
            with pytest.raises(AmbiguousWriteError, match=f"to create views/1 was begun and not finished within {SOON:g} s"):
                await store.create("views/1", b"late")
        gate.open()
        await _until(lambda: store._pool.hanging == 0)  # type: ignore[attr-defined]
        assert await other.read("views/1") is None
        assert await store.create("views/1", b"in time") is Created.DONE


async def test_an_old_heartbeat_never_replaces_a_newer_one(place: Directory, monkeypatch: pytest.MonkeyPatch) -> None:
    async with place.store() as store:
        with monkeypatch.context() as patch, impatient(store):
            gate = Gate(patch, "replace")
            with pytest.raises(AmbiguousWriteError):
                await store.write("members/a", b"1", expires=1)
        with impatient(store):
            for change in (store.write("members/a", b"2", expires=1), store.delete("members/b", "members/a")):
                with pytest.raises(StoreAwayError, match="an earlier change of it still hangs"):
                    await change
        await store.write("members/b", b"", expires=1)
        gate.open()
        await _until(lambda: store._pool.hanging == 0)  # type: ignore[attr-defined]
        await store.write("members/a", b"3", expires=1)
        assert await store.list("members/") == {"members/a": b"3", "members/b": b""}
