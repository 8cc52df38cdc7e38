"""The connections among the processes of one replica: words about calls, and the death of one of them, within milliseconds.

Each has a TCP connection to each other for as long as the replica lives; it never changes, as a replica that has lost a process
comes back with another name. The thread that carries out a call reads, any thread may send. A thread of its own only waits for
the end of a connection.
"""

from __future__ import annotations

import contextlib
import functools
import os
import select
import socket
import threading
import time
from collections.abc import Callable, Mapping

from consensus import CarefulLogger

from ...core.replicas.whole import Replica
from ...core.replicas.words import ReceivedWords, ReplicaVerdict, Word, WordFlag, read_words
from ...errors import GroupError, JobEnded, ReplicaLost
from .hellos import HelloListener, call, drop

logger = CarefulLogger("ftlib")

ENDED = "a process of this replica has come to the end of its program, and the replica ends with it"
_UNWANTED = "the view is not wanted any more"
_ENDS = select.POLLRDHUP | select.POLLHUP | select.POLLERR


class Connections:
    """This member's connections to the other members of its replica, its mates. ``Mates`` of the engine."""

    def __init__(self, shard: int, lost: Callable[[ReplicaLost], None]) -> None:
        """``lost``: called once, on any thread, if a mate has ended and did not say goodbye."""
        self._shard = shard
        self._lost = lost
        self._listener: HelloListener | None = None
        self._replica: Replica | None = None
        self._socks: dict[int, socket.socket] = {}
        """By shard."""
        self._rest: dict[int, bytes] = {}
        """The beginning of a word of which the end has not come yet, by shard."""
        self._gone: dict[int, bool] = {}
        """Shards that have said goodbye; True: because their programs have ended."""
        self._over: set[int] = set()
        """Shards whose connections have ended: all that they had said has been read."""
        self._received: ReceivedWords | None = None
        self._lock = threading.Lock()
        """Guards ``_received``, ``_goodbye``, ``_connecting`` and ``_closed``, sends, and the moment in which all are there."""
        self._reading = threading.Lock()
        """Guards ``_rest``, ``_gone``, ``_over``, ``_failure`` and ``_told``. Held from before a connection is read until what
        came is noted: so none is closed meanwhile, and nobody takes a goodbye that another thread is about to note for a death.
        """
        self._poll = select.poll()
        self._failure: ReplicaLost | None = None
        """That a mate has ended without a goodbye."""
        self._told = False
        """Whether ``_lost`` was called."""
        self._goodbye: bytes | None = None
        """What was said to the mates at the end."""
        self._connecting = self._closed = False
        self._stop_read, self._stop_write = os.pipe()

    def listen(self, host: str) -> Mapping[str, str]:
        """Listen on interface address ``host``; returns the facts by which mates find this member."""
        self._listener = HelloListener(host, self._stop_read)
        return self._listener.facts

    # --- at the first view, on the rebuild thread ----------------------------------------------------------------------

    def connect(self, replica: Replica, timeout: float, wanted: Callable[[], bool]) -> None:
        """Connect to all mates; at once if that was done. GroupError if one cannot be reached in ``timeout`` seconds, or if
        the view is not ``wanted`` any more.
        """
        if self._replica is not None:
            if self._replica.ids != replica.ids:
                raise GroupError(f"replica {replica.name} has other members now: its processes were not started as a whole")
            return
        with self._lock:
            if self._closed:
                raise GroupError(_UNWANTED)
            self._connecting = True  # who closes meanwhile leaves it to this thread to release what it uses
        try:
            self._gather(replica, functools.partial(self._check, time.monotonic() + timeout, wanted))
            self._begin(replica)
        except BaseException:
            self._give_up()
            raise

    def _gather(self, replica: Replica, check: Callable[[str], None]) -> None:
        """Call the mates before this one, and wait for the calls of the others."""
        assert self._listener is not None
        others = {shard: member for shard, member in enumerate(replica.members) if shard != self._shard}
        for shard, member in others.items():
            if shard < self._shard and shard not in self._socks:
                self._add(shard, call(member, self._shard, check))
        while missing := [shard for shard in others if shard not in self._socks]:
            check(f"shard {missing[0]} of replica {replica.name} did not connect")
            came = self._listener.next_caller(missing)
            if came is not None:
                self._add(*came)
        self._listener.close()  # whoever calls from now on is no mate

    def _begin(self, replica: Replica) -> None:
        """All mates are there: from now on they are heard, and their ends are seen."""
        with self._lock:
            if self._closed:
                raise GroupError(_UNWANTED)
            watching = threading.Thread(target=self._watch, name="ftlib-mates", daemon=True)
            try:
                watching.start()  # before anything says that all are there: the next attempt may have the thread
            except RuntimeError as error:
                raise GroupError(f"nobody can wait for the ends of the mates: {error}") from error
            for sock in self._socks.values():
                self._poll.register(sock, select.POLLIN)
            self._received = ReceivedWords(replica.ids)
            self._replica, self._connecting = replica, False

    def _give_up(self) -> None:
        with self._lock:
            self._connecting, closed = False, self._closed
        if closed:
            self._release()

    def _check(self, deadline: float, wanted: Callable[[], bool], what: str) -> None:
        if self._closed or not wanted():
            raise GroupError(_UNWANTED)
        if time.monotonic() > deadline:
            raise GroupError(what)

    def _add(self, shard: int, sock: socket.socket) -> None:
        sock.setblocking(True)
        with self._lock:
            self._socks[shard] = sock
            with contextlib.suppress(OSError):  # it has ended already, as will be seen
                sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                if self._goodbye is not None:
                    sock.sendall(self._goodbye)

    # --- words ---------------------------------------------------------------------------------------------------------

    def enter(self, word: Word, *, earlier: bool = False) -> None:
        """See ``Mates``."""
        received = self._received
        assert received is not None
        with self._lock:
            received.enter(word, earlier=earlier)
        self._say(word)

    def vouch(self, word: Word) -> None:
        """See ``Mates``."""
        self._say(word)

    def verdict(self, seconds: float) -> ReplicaVerdict | None:
        """See ``Mates``."""
        found = self._verdict()
        if found is not None:
            return found
        with self._reading:
            if self._closed:
                return None
            found = self._verdict()
            if found is None and self._failure is None and not self._gone:  # else another thread has read it just now
                for descriptor, _ in self._poll.poll(seconds * 1e3):
                    shard = next((shard for shard, sock in self._socks.items() if sock.fileno() == descriptor), None)
                    if shard is not None:
                        self._read(shard)
                found = self._verdict()
            failure, gone = self._failure, dict(self._gone)
        self._tell()
        if found is None and failure is not None:
            raise failure.with_traceback(None)
        if found is None and gone:
            if all(gone.values()):
                raise JobEnded(ENDED)
            raise ReplicaLost(f"{self._name(min(gone))} has left: this replica ends with it")
        return found

    @property
    def ended(self) -> bool:
        """True if a mate has said that its program has come to its end. Any thread."""
        with self._reading:
            if not self._closed and self._replica is not None:
                for shard in self._socks:
                    self._read(shard)
            ended = any(self._gone.values())
        self._tell()
        return ended

    def missing(self) -> str:
        """See ``Mates``."""
        with self._lock:
            ids = () if self._received is None else self._received.missing()
        replica = self._replica
        shards = [] if replica is None else [str(replica.ids.index(key)) for key in ids]
        return f"shard {', '.join(shards)} of this replica" if shards else "nobody of this replica"

    def _verdict(self) -> ReplicaVerdict | None:
        assert self._received is not None
        with self._lock:
            return self._received.verdict()

    def _say(self, word: Word) -> None:
        replica, received, data = self._replica, self._received, word.pack()
        if replica is None or received is None:
            return
        with self._lock:
            received.receive(replica.ids[self._shard], word)
            for sock in self._socks.values():
                with contextlib.suppress(OSError):  # the thread that waits for ends says who has ended
                    sock.sendall(data)

    def _read(self, shard: int) -> None:
        """Read what has come from ``shard``. Under the lock for reading."""
        replica, received = self._replica, self._received
        assert replica is not None and received is not None
        if shard in self._over:
            return
        try:
            data = self._socks[shard].recv(1 << 16, socket.MSG_DONTWAIT)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if not data:
            self._over.add(shard)
            self._poll.unregister(self._socks[shard])
            self._ended(shard)
            return
        words, self._rest[shard] = read_words(self._rest.get(shard, b"") + data)
        for word in words:
            if word.flags & WordFlag.BYE:
                self._gone[shard] = bool(word.flags & WordFlag.ENDED)
                continue
            with self._lock:
                received.receive(replica.ids[shard], word)

    # --- the end -------------------------------------------------------------------------------------------------------

    def part(self, *, ended: bool) -> None:
        """Say goodbye; ``ended``: because this member's program has come to its end. Only the first time counts."""
        with self._lock:
            if self._goodbye is not None:
                return
            self._goodbye = Word(0, 0, WordFlag.BYE | WordFlag.ENDED * ended).pack()
            for sock in self._socks.values():
                with contextlib.suppress(OSError):
                    sock.sendall(self._goodbye)

    def close(self) -> None:
        """Say goodbye, and close all connections. Idempotent."""
        self.part(ended=False)
        with self._lock:
            if self._closed:
                return
            self._closed = True
            for sock in self._socks.values():
                with contextlib.suppress(OSError):
                    sock.shutdown(socket.SHUT_WR)
            os.write(self._stop_write, b"x")
            unused = self._replica is None and not self._connecting
        if unused:
            self._release()

    def _watch(self) -> None:
        """Wait for the ends of the connections, and release everything when this member closes."""
        with self._lock:  # from then on all are there
            ends, shards = select.poll(), {sock.fileno(): shard for shard, sock in self._socks.items()}
        for descriptor in shards:
            ends.register(descriptor, _ENDS & ~select.POLLIN)
        ends.register(self._stop_read, select.POLLIN)
        while True:
            for descriptor, _ in ends.poll():
                if descriptor == self._stop_read:
                    self._release()
                    return
                ends.unregister(descriptor)
                self._read_to_the_end(shards.pop(descriptor))

    def _read_to_the_end(self, shard: int) -> None:
        """Read all that ``shard`` has said before its connection ended: a goodbye may be the last of it."""
        with self._reading:
            while shard not in self._over and not self._closed:
                self._read(shard)
        self._tell()

    def _ended(self, shard: int) -> None:
        """The connection to ``shard`` has ended, and all that it had said has been read. Under the lock for reading."""
        if self._closed or shard in self._gone or self._failure is not None:
            return
        replica = self._replica
        name = "" if replica is None else replica.name
        self._failure = ReplicaLost(
            f"{self._name(shard)} is lost, so replica {name} is not whole any more, and the others go on without it: start all "
            "of its processes again, under another name of the replica (ftlib run --shards does)"
        )

    def _tell(self) -> None:
        """Say once that a mate is lost. Under no lock: who is told may ask whether one has ``ended``."""
        with self._reading:
            failure = None if self._told else self._failure
            self._told = self._told or failure is not None
        if failure is not None:
            self._lost(failure)

    def _name(self, shard: int) -> str:
        replica = self._replica
        if replica is None:
            return f"shard {shard}"
        label = replica.members[shard].fact("name")
        return f"shard {shard} of replica {replica.name}" + (f" ({label})" if label else "")

    def _release(self) -> None:
        """Once, by whoever was the last to use all this: the thread that waits for ends, that which connects, or who closes."""
        with self._reading:
            for sock in self._socks.values():
                with contextlib.suppress(OSError):  # what is not read when it is closed would take the goodbye back
                    sock.recv(1 << 16, socket.MSG_DONTWAIT)
                drop(sock)
            if self._listener is not None:
                self._listener.close()
            os.close(self._stop_read)
            os.close(self._stop_write)
