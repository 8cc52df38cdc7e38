"""A parameter server: a process that others visit. Each session is a process group of two, in which the server is rank 0.

A client opens a session by an HTTP request, and shows that it knows the job's secret. The request's connection stays open as
long as the session: its end tells the server at once that the client is gone, whatever the session's thread waits for. A server
without a secret listens on the loopback interface only.
"""

from __future__ import annotations

import contextlib
import errno
import json
import selectors
import socket
import threading
import time
import uuid
import weakref
from abc import ABC, abstractmethod
from datetime import timedelta
from typing import Any, Self

import torch.distributed as dist
from torch.distributed import TCPStore  # type: ignore[attr-defined]

from consensus import CarefulLogger, SecretError, get, parse_address, release_in_children, sign_in

from ..errors import ConfigError, FTLibError, GroupError
from ..frameworks.background import start_task
from ..frameworks.name_lookups import no_name_server
from ..launch.processes.credentials import ring_of_user
from .process_group import ProcessGroup, reconfigure_with_store

__all__ = ["ParameterServer"]

logger = CarefulLogger("ftlib")

_PATH = "/new_session"
_LOOPBACK = "127.0.0.1"
_STRANGERS = 64
"""The most connections at a time that have yet to show the secret; more are closed at once."""
_SHOW = 3.0
"""Seconds for a connection to show the secret."""
_CONNECT = timedelta(seconds=30)
"""For the two sides of a session to connect."""
_ANSWER = 5.0
"""Seconds that a client waits for a byte of the server's answer."""
_EXHAUSTED = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM})
"""Errors of a process, or a machine, that has no more descriptors or memory."""
_PAUSE = 1.0
"""Seconds until visitors are accepted again after such an error."""
_TOLD = 32
"""The most refusals that the log tells of."""
_END = 5.0
"""Seconds that ``shutdown`` waits for the threads of all sessions."""


class ParameterServer(ABC):
    """Subclass it in a module that server and clients import; override ``new_process_group`` and ``forward``.

    ::

        class Weights(ParameterServer):
            @classmethod
            def new_process_group(cls):
                return ProcessGroupGloo(timeout=60.0)

            def forward(self, session_id, pg):
                while True:
                    pg.recv([gradient], 1, 0).wait()
                    ...

        server = Weights(port=29600)         # in the server
        pg = Weights.new_session(address)    # in a client, with what server.address() returned

    It serves from the end of its constructor on, so a subclass sets its own attributes before ``super().__init__``. Also a
    context manager, which shuts it down.
    """

    def __init__(self, port: int, store_port: int = 0) -> None:
        """``port``: of requests for sessions; ``store_port``: of the store at which both sides of a session meet. 0: any.

        The secret is that of FTLIB_SECRET, FTLIB_SECRET_FILE or ftlib.toml; ``ftlib run`` sets it. ConfigError if a port cannot
        be listened at.
        """
        self._ring = ring_of_user()
        self._listener = _listen("port", port, everywhere=self._ring is not None)
        self._port = int(self._listener.getsockname()[1])
        listener = _listen("store_port", store_port, everywhere=self._ring is not None)
        self._store_port = int(listener.getsockname()[1])
        with no_name_server():
            self._store: Any = TCPStore(
                _LOOPBACK,
                self._store_port,
                None,
                True,
                _CONNECT,
                wait_for_workers=False,
                master_listen_fd=listener.detach(),  # the store owns it from here on
            )
        self._lock = threading.Lock()
        # Guarded by it:
        self._sessions: dict[str, _Session] = {}
        self._strangers = 0
        self._refused = 0
        self._closed = False
        self._unmet: dict[str, float] = {}
        """Sessions that never connected, and when they ended: somebody may wait for them in the store a little longer."""
        self._watch = _Watch(self._listener, self._came)
        self._watch.start()

    # --- what a subclass says --------------------------------------------------------------------------------------------

    @classmethod
    @abstractmethod
    def new_process_group(cls) -> ProcessGroup:
        """A process group that is not connected yet: one for each side of each session."""

    @abstractmethod
    def forward(self, session_id: str, pg: ProcessGroup) -> None:
        """One session, on a thread of its own: rank 0 of ``pg`` is here, rank 1 the client. It ends where this returns or
        raises.

        Sessions run at the same time: what they share needs a lock. Once the client is gone, every operation of ``pg`` raises.
        """

    # --- the server ------------------------------------------------------------------------------------------------------

    def address(self) -> str:
        """For ``new_session``: ``http://host:port/new_session``."""
        host = _LOOPBACK if self._ring is None else _own_name()
        return f"http://{host}:{self._port}{_PATH}"

    @property
    def port(self) -> int:
        """The port at which sessions are asked for."""
        return self._port

    @property
    def store_port(self) -> int:
        """The port at which both sides of a session meet."""
        return self._store_port

    @property
    def sessions(self) -> int:
        """How many sessions there are now."""
        with self._lock:
            return len(self._sessions)

    @property
    def refused(self) -> int:
        """How many connections were refused, since they did not show the secret."""
        with self._lock:
            return self._refused

    def shutdown(self) -> None:
        """End all sessions, and serve no more. Idempotent; waits for threads at most about ``_END`` seconds, all of them
        together. A session may call it.
        """
        deadline = time.monotonic() + _END
        with self._lock:
            self._closed = True
            sessions = list(self._sessions.values())
        self._watch.close(deadline)
        for session in sessions:
            session.end("the server was shut down")
        for session in sessions:
            if session.thread is not threading.current_thread():
                session.thread.join(max(0.0, deadline - time.monotonic()))
        self._store = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.shutdown()

    # --- the client ------------------------------------------------------------------------------------------------------

    @classmethod
    def new_session(cls, address: str) -> ProcessGroup:
        """Begin a session with the server whose ``address()`` was given: a connected process group, of rank 1.

        ``shutdown`` of that group ends the session. FTLibError if nobody answers, if the secrets differ, or if the two sides
        cannot connect.
        """
        where = address.removeprefix("http://").partition("/")[0]
        try:
            host_port = parse_address(where)
        except ValueError:
            raise ConfigError(f"{address!r} is no address of a parameter server: give what its address() returned") from None
        try:
            answer = get(host_port, _PATH, ring_of_user(), timeout=_ANSWER)
        except SecretError as error:
            raise FTLibError(f"{address}: {error}") from None
        except OSError as error:
            raise FTLibError(f"no parameter server answers at {address} ({error}): is it started, and reachable?") from None
        try:
            told = json.loads(answer.read())
            pg = cls.new_process_group()
            pg.set_rank_info(told["session_id"], 1, 2)
            reconfigure_with_store(pg, told["store_addr"], 1, 2, _CONNECT)
        except (OSError, EOFError, RuntimeError, KeyError, ValueError) as error:
            answer.close()
            raise FTLibError(f"the session with {address} could not begin: {type(error).__name__}: {error}") from error
        except BaseException:
            answer.close()
            raise
        release_in_children(answer, _descriptor_of(weakref.ref(answer)))  # a child would keep the session alive
        weakref.finalize(pg, answer.close)
        return pg

    # --- on its threads --------------------------------------------------------------------------------------------------

    def _came(self, connection: socket.socket) -> None:
        """Somebody has connected."""
        with self._lock:
            welcome = self._strangers < _STRANGERS and not self._closed
            self._strangers += welcome
        if not welcome:
            connection.close()
            return
        try:
            threading.Thread(target=self._meet, args=(connection,), name="ftlib-session", daemon=True).start()
        except RuntimeError as error:  # this process, or its user, has as many as it may; that may pass
            with self._lock:
                self._strangers -= 1
            connection.close()
            logger.warning("parameter server: turned a visitor away: %s", error, extra={"ftlib_event": "session_turned_away"})

    def _meet(self, connection: socket.socket) -> None:
        """Let in who knows the secret, and give it a session on this thread."""
        session = None
        try:
            try:
                session = self._admitted(connection)
            finally:
                with self._lock:
                    self._strangers -= 1
            if session is not None:
                self._serve(session)
        finally:
            connection.close()

    def _admitted(self, connection: socket.socket) -> _Session | None:
        source = _plain(connection.getpeername()[0])
        try:
            visit = sign_in(connection, self._ring, "parameter server", timeout=_SHOW)
            session = _Session(connection, threading.current_thread())
            if visit.target != _PATH:
                visit.answer(404, b"")
                return None
            host = _plain(connection.getsockname()[0])
            store = f"{f'[{host}]' if ':' in host else host}:{self._store_port}/session/{session.id}"
            visit.answer(200, json.dumps({"session_id": session.id, "store_addr": store}).encode())
        except SecretError as error:
            with self._lock:
                self._refused += 1
                told = self._refused <= _TOLD
            if told:
                logger.warning(
                    "parameter server: refused %s (%s)",
                    source,
                    error,
                    extra={"ftlib_event": "session_refused", "source": source},
                )
            return None
        except OSError:  # it has gone, or sends no request
            return None
        session.store_addr = store
        connection.settimeout(None)
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        for name, value in (("TCP_KEEPIDLE", 4), ("TCP_KEEPINTVL", 2), ("TCP_KEEPCNT", 3)):  # a host that vanished: 10 s
            if hasattr(socket, name):
                connection.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)
        with self._lock:
            if self._closed:
                return None
            self._sessions[session.id] = session
        self._watch.add(connection, lambda: session.end("the client is gone"))
        return session

    def _serve(self, session: _Session) -> None:
        try:
            pg = session.connect(self.new_process_group())
            if pg is not None:
                self.forward(session.id, pg)
        except (dist.DistBackendError, GroupError) as error:  # the client is gone, or has ended the session
            logger.info(
                "parameter server: session %s ended: %s",
                session.id,
                session.why or error,
                extra={"ftlib_event": "session_ended", "session": session.id},
            )
        except Exception as error:
            logger.warning(
                "parameter server: session %s failed: %s: %s",
                session.id,
                type(error).__name__,
                error,
                exc_info=error,
                extra={"ftlib_event": "session_failed", "session": session.id},
            )
        finally:
            self._watch.remove(session.connection)
            session.end("it has ended")
            session.close()
            with self._lock:
                del self._sessions[session.id]
            self._forget(session)

    def _forget(self, session: _Session) -> None:
        """The store need not know of this session any more; whoever still waits there for the client learns that it is gone."""
        store, now = self._store, time.monotonic()
        with self._lock:
            self._unmet |= {} if session.connected else {session.id: now}
            past = [each for each, when in self._unmet.items() if now > when + 2 * _CONNECT.total_seconds()]
            for each in past:
                del self._unmet[each]
        past += [session.id] if session.connected else []
        with contextlib.suppress(dist.DistError, RuntimeError):
            if store is None:
                return
            if not session.connected:
                store.set(f"session/{session.id}/handle/1", "gone")  # what the client would have written: no handle
            for key in store.list_keys():
                if any(each in key for each in past):
                    store.delete_key(key)


class _Session:
    """One client's visit, seen from the server."""

    def __init__(self, connection: socket.socket, thread: threading.Thread) -> None:
        self.id = str(uuid.uuid4())
        self.connection = connection
        self.thread = thread
        self.store_addr = ""
        self._changed = threading.Condition()
        # Guarded by it:
        self._why = ""
        self._pg: ProcessGroup | None = None
        self._connected = False
        self._failure: Exception | None = None

    @property
    def why(self) -> str:
        """Why it has ended, or has to; empty: it goes on."""
        return self._why

    @property
    def connected(self) -> bool:
        """Whether it ever was."""
        return self._connected

    def connect(self, pg: ProcessGroup) -> ProcessGroup | None:
        """Connect ``pg`` with the client's; None if the session ends before that. Raises what kept them from connecting.

        Connecting cannot be interrupted, so a background thread does it: this one is free as soon as the client is gone.
        """
        pg.set_rank_info(self.id, 0, 2)
        start_task("session-connect", lambda: self._connect(pg))
        with self._changed:
            self._changed.wait_for(lambda: self._connected or self._failure or self._why, _CONNECT.total_seconds() + 1.0)
            if self._why:
                return None
            if self._failure is not None:
                raise self._failure
            if not self._connected:
                raise FTLibError(f"no connection to the client within {_CONNECT.total_seconds():g} s")
        return pg

    def _connect(self, pg: ProcessGroup) -> None:
        failure: Exception | None = None
        try:
            reconfigure_with_store(pg, self.store_addr, 0, 2, _CONNECT)
        except Exception as error:  # noqa: BLE001 - the session's thread raises it
            failure = error
        with self._changed:
            unwanted = bool(self._why)
            self._failure, self._connected, self._pg = failure, failure is None, pg
            self._changed.notify_all()
        if unwanted:
            pg.shutdown()

    def end(self, why: str) -> None:
        """Make every operation of the session fail. Any thread; idempotent."""
        with self._changed:
            first, self._why = not self._why, self._why or why
            pg = self._pg
            self._changed.notify_all()
        if first and pg is not None:
            pg.abort()

    def close(self) -> None:
        """Give the group back; the session has ended."""
        with self._changed:
            pg = self._pg
        if pg is not None:
            pg.shutdown()


class _Watch(threading.Thread):
    """Accepts connections, and tells when those that were added have ended."""

    def __init__(self, listener: socket.socket, came: Any) -> None:
        """``came(connection)``: takes each new one, and returns at once."""
        super().__init__(name="ftlib-parameter-server", daemon=True)
        self._listener, self._on_arrival = listener, came
        self._bell, self._rope = socket.socketpair()
        self._lock = threading.Lock()
        self._selector = selectors.DefaultSelector()
        self._selector.register(listener, selectors.EVENT_READ, self._accept)
        self._selector.register(self._bell, selectors.EVENT_READ)
        self._over = False
        self._again: float | None = None
        """When to accept again: no descriptors are to be had now."""
        listener.setblocking(False)
        release_in_children(self, lambda: [listener.fileno()])

    def add(self, connection: socket.socket, ended: Any) -> None:
        """Call ``ended()`` once the other side has closed it."""
        with contextlib.suppress(ValueError, KeyError, RuntimeError, OSError):  # closed meanwhile, with all of this
            self._selector.register(connection, selectors.EVENT_READ, ended)

    def remove(self, connection: socket.socket) -> None:
        """Watch it no more. Idempotent."""
        with contextlib.suppress(ValueError, KeyError, RuntimeError, OSError):
            self._selector.unregister(connection)

    def close(self, deadline: float) -> None:
        """Accept no more; waits for the thread until ``deadline`` at most. Idempotent."""
        with self._lock:
            if self._over:
                return
            self._over = True
        self._rope.send(b"x")
        self.join(max(0.0, deadline - time.monotonic()))

    def run(self) -> None:
        """Until ``close``."""
        while not self._over:
            for key, _ in self._selector.select(self._rest()):
                if key.data == self._accept:
                    self._accept()
                elif key.data is not None:
                    self._look(key)
        self._selector.close()
        for each in (self._listener, self._bell, self._rope):
            each.close()

    def _look(self, key: selectors.SelectorKey) -> None:
        connection: Any = key.fileobj
        try:
            alive = bool(connection.recv(4096, socket.MSG_DONTWAIT))
        except BlockingIOError:
            return
        except OSError:
            alive = False
        if not alive:
            self.remove(connection)
            try:
                key.data()
            except Exception:  # of the program's process group: the others' sessions go on
                logger.exception("parameter server: a session could not be ended")

    def _accept(self) -> None:
        try:
            connection, _ = self._listener.accept()
        except OSError as error:
            if error.errno in _EXHAUSTED:  # the visitor stays in the queue: looking for it at once would only burn a processor
                logger.warning("parameter server: no visitor can come in for now: %s", error)
                self._selector.unregister(self._listener)
                self._again = time.monotonic() + _PAUSE
            return  # else it has gone again
        connection.setblocking(True)
        self._on_arrival(connection)

    def _rest(self) -> float | None:
        """Seconds until it is time to accept again; None: that is never, or goes on."""
        if self._again is None:
            return None
        if (left := self._again - time.monotonic()) > 0:
            return left
        self._again = None
        self._selector.register(self._listener, selectors.EVENT_READ, self._accept)
        return None


def _listen(name: str, port: int, *, everywhere: bool) -> socket.socket:
    try:
        if everywhere and socket.has_dualstack_ipv6():
            return socket.create_server(("", port), family=socket.AF_INET6, dualstack_ipv6=True, backlog=512)
        return socket.create_server(("" if everywhere else _LOOPBACK, port), backlog=512)
    except OSError as error:
        raise ConfigError(f"{name}={port}: cannot listen there ({error.strerror or error}): give another port, or 0") from None


def _own_name() -> str:
    """This host's name, if it leads to an address here; else the loopback address."""
    name = socket.gethostname()
    try:
        socket.getaddrinfo(name, None)
    except OSError:
        return _LOOPBACK
    return name


def _plain(host: str) -> str:
    return host.removeprefix("::ffff:").partition("%")[0]


def _descriptor_of(answer: weakref.ref[Any]) -> Any:
    def descriptors() -> list[int]:
        found = answer()
        return [] if found is None else [found.fileno()]

    return descriptors
