"""An agent on a thread of the training process: light, but silent while other code there keeps the interpreter's lock."""

from __future__ import annotations

import asyncio
import selectors
import socket
import threading
import weakref
from collections.abc import Callable, Iterable

from ...logs import CarefulLogger
from ..net.fork import release_in_children
from .child import Child
from .host import Host
from .progress_cell import ProgressCell

_LOG = CarefulLogger()
_QUIT_TIMEOUT = 5.0


class ThreadHost(Host):
    """See ``Host``."""

    _place = "thread"

    def __init__(self) -> None:
        """Starts nothing."""
        super().__init__(ProgressCell())
        self.child: Child | None = None
        """The agent's side, for reading."""
        self._thread: threading.Thread | None = None

    def _launch(self, name: str, pipe: socket.socket, handoff: socket.socket) -> None:
        selector = selectors.DefaultSelector()
        child = self.child = Child(handoff, self.cell.read)
        release_in_children(child, _descriptors_of(weakref.ref(child), selector, pipe))
        self._thread = threading.Thread(target=_run, args=(child, pipe, selector), name=name, daemon=True)
        self._thread.start()

    def _exit(self) -> str:
        return "its thread has ended: see the log"

    def _quit(self, *, now: bool) -> None:  # noqa: ARG002 - a thread cannot be ended from outside
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join(_QUIT_TIMEOUT)
            if self._thread.is_alive():
                _LOG.error("the agent's thread did not end within %g s: it hangs", _QUIT_TIMEOUT)


def _run(child: Child, pipe: socket.socket, selector: selectors.BaseSelector) -> None:
    try:
        with asyncio.Runner(loop_factory=lambda: asyncio.SelectorEventLoop(selector)) as runner:
            runner.run(child.run(pipe))
    except BaseException as error:  # noqa: BLE001 - the last frame of the thread; the host sees the end of the pair
        _LOG.critical("the agent's loop failed", exc_info=error)
    finally:
        pipe.close()
        child.close()


def _descriptors_of(
    child: weakref.ref[Child], selector: selectors.BaseSelector, pipe: socket.socket
) -> Callable[[], Iterable[int]]:
    """Descriptors that a forked child must close: the agent's sockets, and all that the loop watches. Takes no lock."""

    def descriptors() -> Iterable[int]:
        alive, watched = child(), selector.get_map()
        fds = [pipe.fileno(), *(() if alive is None else alive.descriptors())]
        if watched is not None:
            fds += [key.fd for key in list(watched.values())]
            fileno = getattr(selector, "fileno", None)
            fds += [] if fileno is None else [fileno()]
        return fds

    return descriptors
