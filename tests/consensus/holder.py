"""A process that holds a life lock until it ends in the way that it is told: ``python -m tests.consensus.holder MEGABYTES``.

Prints the descriptor of its lock once it is held, and then does what each line of its standard input says.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from consensus.runtime.host.life_lock import LifeLock
from consensus.runtime.host.robust_mutex import RobustMutex

from .peer import ROOT


class Holder:
    """The parent's handle."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self.process = process
        self.pid = process.pid
        self._lock_fd = int(self.line())

    def open(self) -> int:
        """A descriptor of its lock."""
        return os.open(f"/proc/{self.pid}/fd/{self._lock_fd}", os.O_RDWR | os.O_CLOEXEC)

    def line(self) -> str:
        """What it says next."""
        assert self.process.stdout is not None
        return self.process.stdout.readline().strip()

    def tell(self, order: str) -> None:
        """One of ``Orders``."""
        assert self.process.stdin is not None
        self.process.stdin.write(f"{order}\n")
        self.process.stdin.flush()


@contextmanager
def holder(megabytes: int = 0, *, directory: Path | None = None, prefix: tuple[str, ...] = ()) -> Iterator[Holder]:
    """One that has touched so much memory, its working directory there."""
    command = [*prefix, sys.executable, "-m", "tests.consensus.holder", str(megabytes)]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    with subprocess.Popen(
        command, cwd=directory or ROOT, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        try:
            yield Holder(process)
        finally:
            process.kill()


class Orders:
    """What it can be told."""

    def __init__(self, lock: LifeLock) -> None:
        self._lock = lock

    def release(self) -> None:
        self._lock.release()

    def exit(self) -> None:
        sys.exit()

    def leave(self) -> None:
        os._exit(0)

    def abort(self) -> None:
        os.abort()

    def execute(self) -> None:
        os.execv("/bin/sleep", ["sleep", "60"])

    def fork(self) -> None:
        """The child tries to let go, and ends."""
        pid = os.fork()
        if pid == 0:
            self._lock.release()
            os._exit(0)
        os.waitpid(pid, 0)

    def leave_a_child(self) -> None:
        """It lives until its input, the parent's, is closed."""
        if os.fork() == 0:
            sys.stdin.read()
            os._exit(0)

    def end_the_main_thread(self) -> None:
        threading.Thread(target=time.sleep, args=(60.0,)).start()
        ctypes.CDLL(None).pthread_exit(None)


def end_a_thread() -> None:
    """Hold a mutex by a thread that ends with it, and another one that lives: not what ``LifeLock`` does."""
    fd = os.memfd_create("abandoned")
    os.ftruncate(fd, RobustMutex.SIZE)
    mutex = RobustMutex.create(mmap.mmap(fd, RobustMutex.SIZE))
    held, over = threading.Event(), threading.Event()

    def hold() -> None:
        mutex.lock()
        held.set()
        over.wait()

    threading.Thread(target=hold).start()
    held.wait()
    print(fd, flush=True)
    if sys.stdin.readline() == "main too\n":
        threading.Thread(target=time.sleep, args=(60.0,)).start()
        over.set()
        ctypes.CDLL(None).pthread_exit(None)
    over.set()
    sys.stdin.read()


def main() -> None:
    """The child's side."""
    if sys.argv[1] == "-1":
        end_a_thread()
        return
    lock = LifeLock()
    fd = lock.hold("life")
    ballast = b"\1" * (int(sys.argv[1]) << 20)
    print(fd, flush=True)
    for line in sys.stdin:
        getattr(Orders(lock), line.strip())()
        print("done", flush=True)
    del ballast


if __name__ == "__main__":
    main()
