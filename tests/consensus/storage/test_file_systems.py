"""The file store on file systems that are full, read-only, gone, of another user, without hard links, or do not answer at all.

They are mounted for the purpose, which takes root; on FUSE, a daemon that is stopped is a file server that hangs.
"""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from consensus.errors import AmbiguousWriteError, StoreAwayError, StoreRefusedError
from consensus.storage.store import Created
from tests.harness.basics import TIMEOUT, stop_child

from .directory import Directory, error_of, files
from .patience import SOON, impatient

pytestmark = pytest.mark.process

_PACKAGES = {"mkfs.exfat": "exfatprogs", "mount.exfat-fuse": "exfat-fuse"}
"""By a command, where they have another name."""


def _run(*command: object) -> str:
    """Skips where this cannot be done here."""
    try:
        done = subprocess.run([str(word) for word in command], capture_output=True, text=True, timeout=TIMEOUT, check=False)
    except FileNotFoundError:
        package = _PACKAGES.get(str(command[0]), str(command[0]))
        pytest.skip(f"{command[0]} is not installed: apt-get install {package}")
    if done.returncode:
        pytest.skip(f"{command[0]}: {done.stderr.strip() or done.stdout.strip()}")
    return done.stdout.strip()


@contextmanager
def mounted(path: Path, *command: object) -> Iterator[Directory]:
    """``command`` mounts at ``path``."""
    if os.geteuid():
        pytest.skip("only root may mount")
    path.mkdir(exist_ok=True)
    _run(*command, path)
    try:
        yield Directory(path)
    finally:
        subprocess.run(["umount", "-l", str(path)], capture_output=True, check=False)


def small(path: Path) -> Any:
    return mounted(path, "mount", "-t", "tmpfs", "-o", "size=256k,mode=700", "none")


class Served(Directory):
    """Below a daemon that can be stopped: every call in there then waits for it."""

    def __init__(self, path: Path, daemon: subprocess.Popen[bytes]) -> None:
        super().__init__(path)
        self.daemon = daemon


@pytest.fixture
def served(tmp_path: Path) -> Iterator[Served]:
    if os.geteuid():
        pytest.skip("only root may mount")
    if shutil.which("bindfs") is None:
        pytest.skip("bindfs is not installed: apt-get install bindfs")
    path, behind = tmp_path / "served", tmp_path / "behind"
    path.mkdir()
    behind.mkdir()
    daemon = subprocess.Popen(["bindfs", "-f", str(behind), str(path)])
    try:
        began = time.monotonic()
        while not path.is_mount():
            if daemon.poll() is not None or time.monotonic() - began > 10:
                pytest.skip("bindfs does not mount here")
            time.sleep(0.01)
        yield Served(path, daemon)
    finally:
        daemon.send_signal(signal.SIGCONT)
        daemon.kill()
        daemon.wait(TIMEOUT)
        subprocess.run(["umount", "-l", str(path)], capture_output=True, check=False)


async def refusal(place: Directory) -> str:
    store = place.make()
    with pytest.raises(StoreRefusedError) as caught:
        await store.open()
    await store.close()
    assert "\n" not in str(caught.value)
    return str(caught.value)


# What will not do


async def test_exfat_is_refused(tmp_path: Path) -> None:
    image = tmp_path / "image"
    image.write_bytes(b"")
    os.truncate(image, 4 << 20)
    _run("mkfs.exfat", image)
    device = _run("losetup", "-f", "--show", image)
    try:
        with mounted(tmp_path / "mnt", "mount.exfat-fuse", device) as place:
            assert "its file system is without hard links (Operation not permitted): choose a directory on" in await refusal(
                place
            )
            assert files(place.path) == []
    finally:
        _run("losetup", "-d", device)


async def test_a_file_system_that_does_not_count_links_is_refused(tmp_path: Path) -> None:
    (tmp_path / "behind").mkdir()
    with mounted(tmp_path / "mnt", "bindfs", "--hide-hard-links", tmp_path / "behind") as place:
        assert "its file system does not count hard links: choose" in await refusal(place)


async def test_a_file_system_without_renaming_is_refused(tmp_path: Path) -> None:
    (tmp_path / "behind").mkdir()
    with mounted(tmp_path / "mnt", "bindfs", "--rename-deny", tmp_path / "behind") as place:
        assert "its file system is without renaming over a file (Operation not permitted)" in await refusal(place)


@pytest.mark.parametrize(
    ("call", "text"),
    [
        ("link", "is without hard links"),
        ("replace", "is without renaming over a file"),
        ("fsync", "is without fsync"),
    ],
)
async def test_what_a_file_system_lacks_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: str, text: str) -> None:
    def fail(*args: object) -> None:
        raise error_of(95)

    monkeypatch.setattr(os, call, fail)
    assert f"its file system {text} (Operation not supported): choose" in await refusal(Directory(tmp_path))
    assert files(tmp_path) == []


@pytest.mark.parametrize(
    ("call", "instead", "text"),
    [
        ("link", shutil.copyfile, "does not count hard links"),
        ("replace", shutil.copyfile, "does not replace a file when another one is renamed to it"),
    ],
)
async def test_a_file_system_that_pretends_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: str, instead: Callable[..., object], text: str
) -> None:
    monkeypatch.setattr(os, call, instead)
    assert f"its file system {text}" in await refusal(Directory(tmp_path))


async def test_links_that_replace_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def link(source: Path, target: Path) -> None:
        target.unlink(missing_ok=True)
        really(source, target)

    really = os.link
    monkeypatch.setattr(os, "link", link)
    assert "lets a hard link replace a file, so two members could decide the same thing" in await refusal(Directory(tmp_path))


async def test_read_only_is_refused(tmp_path: Path) -> None:
    with small(tmp_path / "mnt") as place:
        _run("mount", "-o", "remount,ro", place.path)
        assert "Read-only file system" in (text := await refusal(place)) and text.endswith("mount it for writing")


# What may become better


async def test_full_and_then_free_again(tmp_path: Path) -> None:
    with small(tmp_path / "mnt") as place:
        async with place.store() as store:
            await store.create("views/1", b"1")
            ballast = place.path / "ballast"
            with pytest.raises(OSError, match="No space left"):
                ballast.write_bytes(b"\0" * (1 << 20))
            for change in (store.create("views/2", b"x" * 9000), store.write("members/a", b"x" * 9000)):
                with pytest.raises(StoreAwayError, match=r"No space left on device.*: free some space"):
                    await change
            assert await store.list("views/") == {"views/1": b"1"}
            ballast.unlink()
            assert await store.create("views/2", b"2") is Created.DONE
            assert files(place.root() / "temp") == []


async def test_unmounted_is_away_and_mounted_again_is_well(tmp_path: Path) -> None:
    """And the empty directory below the mount point is not taken for a store that was wiped."""
    with mounted(tmp_path / "mnt", "mount", "--bind", "/dev/shm") as shm:
        behind = Directory(shm.path / f"ftlib-test-{os.getpid()}")
        behind.path.mkdir()
        try:
            async with behind.store() as store:
                await store.create("views/1", b"1")
                _run("umount", "-l", shm.path)
                for attempt in (
                    store.read("views/1"),
                    store.list("views/"),
                    store.compacted("views"),
                    store.create("views/2", b"2"),
                    store.write("members/a", b""),
                    store.delete("views/1"),
                ):
                    with pytest.raises(StoreAwayError, match="is not there: mount the file system again, or stop the job"):
                        await attempt
                _run("mount", "--bind", "/dev/shm", shm.path)
                assert await store.read("views/1") == b"1"
                assert await store.create("views/2", b"2") is Created.DONE
        finally:
            shutil.rmtree(behind.path, ignore_errors=True)


async def test_a_file_server_that_hangs_holds_up_nobody(served: Served) -> None:
    """Reads are away, writes that were begun ambiguous; soon nothing is begun any more; and when it goes on all is well."""
    async with served.store() as store:
        await store.create("views/1", b"1")
        stop_child(served.daemon.pid)
        ticks = 0

        async def tick() -> None:
            nonlocal ticks
            while True:
                await asyncio.sleep(0.001)
                ticks += 1

        ticking = asyncio.create_task(tick())
        with impatient(store):
            results = await asyncio.gather(
                store.read("views/1"),
                store.list("views/"),
                store.compacted("views"),
                store.create("views/2", b"2"),
                store.write("members/a", b""),
                return_exceptions=True,
            )
        kinds = [StoreAwayError, StoreAwayError, StoreAwayError, AmbiguousWriteError, StoreAwayError]
        assert [type(result) for result in results] == kinds  # the fifth found four threads busy: never begun
        assert f"did not answer within {SOON:g} s: look at the file server" in str(results[0])
        for attempt in (store.write("members/b", b""), store.read("views/1")):
            with pytest.raises(StoreAwayError, match="4 earlier calls still hang: look at the file server"):
                await attempt
        ticking.cancel()
        assert ticks > 5  # the loop went on
        served.daemon.send_signal(signal.SIGCONT)
        async with asyncio.timeout(TIMEOUT):
            while store._pool.hanging:  # type: ignore[attr-defined]
                await asyncio.sleep(0.01)
        assert await store.read("views/1") == b"1"
        assert await store.create("views/3", b"3") is Created.DONE


def test_a_process_ends_though_its_file_server_hangs(served: Served) -> None:
    script = """
import asyncio, os, signal, sys
from consensus.storage.locate import store_at
async def main():
    store = store_at(sys.argv[1], "job", timeout=1)
    await store.open()
    os.kill(int(sys.argv[2]), signal.SIGSTOP)
    try:
        await store.read("views/1")
    except Exception as error:
        print(type(error).__name__)
    await store.close()
asyncio.run(main())
"""
    command = [sys.executable, "-c", script, served.url, str(served.daemon.pid)]
    assert subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT, check=True).stdout == "StoreAwayError\n"


async def test_a_file_server_that_is_gone_is_away(served: Served) -> None:
    async with served.store() as store:
        await store.create("views/1", b"1")
        served.daemon.kill()
        served.daemon.wait(TIMEOUT)
        for attempt in (store.read("views/1"), store.create("views/2", b""), store.write("members/a", b"")):
            with pytest.raises(StoreAwayError, match=r"Transport endpoint is not connected|is not there"):
                await attempt


# Users

AS_NOBODY = """
import asyncio, json, os, sys
from consensus.storage.locate import store_at
store = store_at(sys.argv[1], "job")
os.setgid(65534)
os.setuid(65534)
async def main():
    try:
        await store.open()
    except Exception as error:
        return type(error).__name__, str(error)
print(json.dumps(asyncio.run(main())))
"""


@pytest.mark.parametrize("open_to_all", [False, True])
def test_two_users_cannot_share_a_job(open_to_all: bool) -> None:
    if os.geteuid():
        pytest.skip("only root can be another user")
    reachable = Path(tempfile.mkdtemp())
    reachable.chmod(0o755)
    try:
        place = Directory(reachable)
        asyncio.run(_open_and_close(place))
        (place.path / "job").chmod(0o777 if open_to_all else 0o700)
        command = [sys.executable, "-c", AS_NOBODY, place.url]
        kind, text = json.loads(subprocess.run(command, capture_output=True, timeout=TIMEOUT, check=True).stdout)
    finally:
        shutil.rmtree(reachable)
    assert kind == "StoreRefusedError"
    assert "run all workers of a job as one user (this one is uid 65534), or give each user a directory" in text
    if open_to_all:
        assert "it belongs to uid 0, what is written here to uid 65534" in text


async def _open_and_close(place: Directory) -> None:
    async with place.store():
        pass
