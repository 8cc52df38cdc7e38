"""A shared store for a benchmark: a directory, a Redis server or an etcd server of its own, which can be taken away.

A directory goes as that of an unmounted file system does: the benchmark has a mount namespace of its own (for which it must be
root), and a tmpfs in it that is lazily unmounted. A server goes by SIGKILL, and comes back on its port and data.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import shutil
import subprocess
import tempfile
from abc import ABC, abstractmethod
from collections.abc import Iterator
from pathlib import Path

from benchmarks.bad_line import BadLine
from tests.servers import EtcdServer, RedisServer, Server

__all__ = ["KINDS", "Depot", "depot", "missing"]

KINDS = ("file", "redis", "etcd")
_SERVERS: dict[str, type[RedisServer | EtcdServer]] = {"redis": RedisServer, "etcd": EtcdServer}
_CLONE_NEWNS = 0x20000


class Depot(ABC):
    """One store. ``lose`` it and ``restore`` it."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.line: BadLine | None = None
        """What is between the members and a server, if anything."""

    @abstractmethod
    def lose(self) -> None:
        """From now on nobody reaches it."""

    @abstractmethod
    def restore(self) -> None:
        """As it was."""


class _Directory(Depot):
    """A directory below ``root``; one that can be lost is in a tmpfs."""

    def __init__(self, root: Path, *, mounted: bool) -> None:
        self._mount, self._kept = root / "mount", root / "kept"
        for path in (self._mount, self._kept):
            path.mkdir()
        if mounted:
            _run("mount", "-t", "tmpfs", "ftlib-benchmark", str(self._kept))
            (self._kept / "store").mkdir()
            self.restore()
        else:
            (self._mount / "store").mkdir()
        super().__init__(f"file://{self._mount / 'store'}")

    def lose(self) -> None:
        _run("umount", "--lazy", str(self._mount))

    def restore(self) -> None:
        _run("mount", "--bind", str(self._kept), str(self._mount))

    def close(self) -> None:
        """Unmount whatever is mounted."""
        for path in (self._mount, self._kept):
            if path.is_mount():
                _run("umount", "--lazy", str(path))


class _Served(Depot):
    """What a server keeps."""

    def __init__(self, server: Server, url: str) -> None:
        self._server = server
        super().__init__(url)

    def lose(self) -> None:
        self._server.kill()

    def restore(self) -> None:
        self._server.start()


def missing(kind: str) -> str:
    """What has to be installed for it, empty if nothing."""
    server = _SERVERS.get(kind)
    return "" if server is None or shutil.which(server.program) else f"apt-get install {server.package}"


@contextlib.contextmanager
def depot(kind: str, *, mounted: bool = False, trouble: int | None = None) -> Iterator[Depot]:
    """A store of that ``kind``, empty. ``mounted``: a directory that can be lost (PermissionError for who is not root).

    ``trouble``: a seed; between its members and a server is then a ``BadLine``.
    """
    root = Path(tempfile.mkdtemp(prefix=f"ftlib-{kind}-"))
    with contextlib.ExitStack() as stack:
        stack.callback(shutil.rmtree, root, ignore_errors=True)
        if kind == "file":
            if mounted:
                _own_mounts()
            directory = _Directory(root, mounted=mounted)
            stack.callback(directory.close)
            yield directory
            return
        server = _SERVERS[kind](root)
        server.start()
        stack.callback(server.kill)
        found = _Served(server, server.url)
        if trouble is not None:
            found.line = stack.enter_context(BadLine(server.port, trouble))
            found.url = f"{kind}://localhost:{found.line.port}"
        yield found


_mounts_are_own = False


def _own_mounts() -> None:
    """From now on this thread, and what it starts, has mounts that nobody else sees, and that go with the last of them."""
    global _mounts_are_own  # noqa: PLW0603 - as the namespace is the process's
    if not _mounts_are_own:
        if ctypes.CDLL(None, use_errno=True).unshare(_CLONE_NEWNS) != 0:
            raise PermissionError(ctypes.get_errno(), f"{os.strerror(ctypes.get_errno())}: mounts need root")
        _run("mount", "--make-rprivate", "/")
        _mounts_are_own = True


def _run(*command: str) -> None:
    subprocess.run(command, check=True, timeout=20, capture_output=True)
