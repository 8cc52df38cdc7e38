"""The connections among the processes of one replica: words about calls, and the death of one of them, within milliseconds.

Each has a TCP connection to each other for as long as the replica lives; it never changes, as a replica that has lost a process
comes back with another name. The thread that carries out a call reads, any thread may send. A thread of its own only waits for
the end of a connection.
"""

from __future__ import annotations

import contextlib
import hashlib
import hmac
import logging
import os
import secrets
import select
import socket
import struct
import threading
import time
from collections.abc import Callable, Mapping

from consensus import Member, format_address, parse_address

from ...core.replicas.whole import Replica
from ...core.replicas.words import Heard, Verdict, Word, WordFlag, read_words
from ...errors import GroupError, JobEnded, ReplicaLost
from ...frameworks import sockets

__all__ = ["ENDED", "Connections"]

logger = logging.getLogger("ftlib")

ENDED = "a process of this replica has come to the end of its program, and the replica ends with it"
FACT, _KEY = "_mates", "_mates_key"
_HELLO = struct.Struct("<I32s")
"""Who connects: its shard, and that it knows what only members of the job know."""
_LOOK = 0.1
"""Seconds between two looks whether the view is still wanted while the others are waited for."""
_HELLO_TIMEOUT = 2.0
_ENDS = select.POLLRDHUP | select.POLLHUP | select.POLLERR


class Connections:
    """This member's connections to the other members of its replica, its mates. ``Mates`` of the engine."""

    def __init__(self, shard: int, lost: Callable[[ReplicaLost], None]) -> None:
        """``lost``: called once, on any thread, if a mate has ended and did not say goodbye."""
        self._shard = shard
        self._lost = lost
        self._listener: socket.socket | None = None
        self._key = secrets.token_hex(16)
        self._replica: Replica | None = None
        self._socks: dict[int, socket.socket] = {}
        """By shard."""
        self._rest: dict[int, bytes] = {}
        """The beginning of a word of which the end has not come yet, by shard."""
        self._gone: dict[int, bool] = {}
        """Shards that have said goodbye; True: because their programs have ended."""
        self._over: set[int] = set()
        """Shards whose connections have ended: all that they had said has been read."""
        self._heard: Heard | None = None
        self._lock = threading.Lock()
        """Guards ``_heard``, and sends."""
        self._reading = threading.Lock()
        """Guards ``_rest``, ``_gone``, ``_over``, ``_failure`` and ``_told``. Held from before a connection is read until what
        came is noted: so none is closed meanwhile, and nobody takes a goodbye that another thread is about to note for a death.
        """
        self._poll = select.poll()
        self._failure: ReplicaLost | None = None
        """That a mate has ended without a goodbye."""
        self._told = False
        """Whether ``_lost`` was called."""
        self._parted = self._closed = False
        self._stop_read, self._stop_write = os.pipe()

    def listen(self, host: str) -> Mapping[str, str]:
        """Listen on interface address ``host``; returns the facts by which mates find this member."""
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        listener = self._listener = socket.socket(family, socket.SOCK_STREAM)
        listener.bind((host, 0))
        listener.listen(64)
        listener.settimeout(_LOOK)
        _track(listener)
        return {FACT: format_address((host, listener.getsockname()[1])), _KEY: self._key}

    # --- at the first view, on the rebuild thread ----------------------------------------------------------------------

    def connect(self, replica: Replica, timeout: float, wanted: Callable[[], bool]) -> None:
        """Connect to all mates; at once if that was done. GroupError if one cannot be reached in ``timeout`` seconds, or if
        the view is not ``wanted`` any more.
        """
        if self._replica is not None:
            if self._replica.ids != replica.ids:
                raise GroupError(f"replica {replica.name} has other members now: its processes were not started as a whole")
            return
        deadline = time.monotonic() + timeout
        others = {shard: member for shard, member in enumerate(replica.members) if shard != self._shard}
        for shard, member in others.items():
            if shard < self._shard and shard not in self._socks:
                self._add(shard, self._dial(member, deadline, wanted))
        while missing := [shard for shard in others if shard not in self._socks]:
            self._check(f"shard {missing[0]} of replica {replica.name} did not connect", deadline, wanted)
            self._accept(missing)
        self._heard = Heard(replica.ids)
        self._replica = replica
        for sock in self._socks.values():
            self._poll.register(sock, select.POLLIN)
        threading.Thread(target=self._watch, name="ftlib-mates", daemon=True).start()

    def _dial(self, member: Member, deadline: float, wanted: Callable[[], bool]) -> socket.socket:
        where, key = member.fact(FACT), member.fact(_KEY)
        if where is None or key is None:
            raise GroupError(f"{member} says nowhere how its mates reach it: run one release everywhere")
        address = parse_address(where)
        while True:
            self._check(f"{member} does not answer its mates at {where}", deadline, wanted)
            try:
                sock = socket.create_connection(address, timeout=_HELLO_TIMEOUT)
            except OSError:
                time.sleep(_LOOK / 10)
                continue
            sock.sendall(_HELLO.pack(self._shard, _vouch(key, self._shard)))
            return sock

    def _accept(self, missing: list[int]) -> None:
        assert self._listener is not None
        try:
            sock, _ = self._listener.accept()
        except TimeoutError:
            return
        sock.settimeout(_HELLO_TIMEOUT)
        shard, told = -1, b""
        with contextlib.suppress(OSError, struct.error):
            shard, told = _HELLO.unpack(_exactly(sock, _HELLO.size))
        if shard in missing and hmac.compare_digest(told, _vouch(self._key, shard)):
            self._add(shard, sock)
        else:
            sock.close()  # a stranger

    def _check(self, what: str, deadline: float, wanted: Callable[[], bool]) -> None:
        if self._closed or not wanted():
            raise GroupError("the view is not wanted any more")
        if time.monotonic() > deadline:
            raise GroupError(what)

    def _add(self, shard: int, sock: socket.socket) -> None:
        sock.settimeout(None)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        _track(sock)
        self._socks[shard] = sock

    # --- words ---------------------------------------------------------------------------------------------------------

    def enter(self, word: Word, *, earlier: bool = False) -> None:
        """See ``Mates``."""
        heard = self._heard
        assert heard is not None
        with self._lock:
            heard.enter(word, earlier=earlier)
        self._say(word)

    def vouch(self, word: Word) -> None:
        """See ``Mates``."""
        self._say(word)

    def verdict(self, seconds: float) -> Verdict | None:
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
            if not self._closed:
                for shard in self._socks:
                    self._read(shard)
            ended = any(self._gone.values())
        self._tell()
        return ended

    def missing(self) -> str:
        """See ``Mates``."""
        with self._lock:
            ids = () if self._heard is None else self._heard.missing()
        replica = self._replica
        shards = [] if replica is None else [str(replica.ids.index(key)) for key in ids]
        return f"shard {', '.join(shards)} of this replica" if shards else "nobody of this replica"

    def _verdict(self) -> Verdict | None:
        assert self._heard is not None
        with self._lock:
            return self._heard.verdict()

    def _say(self, word: Word) -> None:
        replica, heard, data = self._replica, self._heard, word.pack()
        if replica is None or heard is None:
            return
        with self._lock:
            heard.hear(replica.ids[self._shard], word)
            for sock in self._socks.values():
                with contextlib.suppress(OSError):  # the thread that waits for ends says who has ended
                    sock.sendall(data)

    def _read(self, shard: int) -> None:
        """Read what has come from ``shard``. Under the lock for reading."""
        replica, heard = self._replica, self._heard
        assert replica is not None and heard is not None
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
                heard.hear(replica.ids[shard], word)

    # --- the end -------------------------------------------------------------------------------------------------------

    def part(self, *, ended: bool) -> None:
        """Say goodbye; ``ended``: because this member's program has come to its end. Only the first time counts."""
        with self._lock:
            if self._parted:
                return
            self._parted = True
            for sock in self._socks.values():
                with contextlib.suppress(OSError):
                    sock.sendall(Word(0, 0, WordFlag.BYE | WordFlag.ENDED * ended).pack())

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
        if self._listener is not None:
            _drop(self._listener)
        if self._replica is None:
            self._release()

    def _watch(self) -> None:
        """Wait for the ends of the connections, and release everything when this member closes."""
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
        with self._reading:
            for sock in self._socks.values():
                with contextlib.suppress(OSError):  # what is not read when it is closed would take the goodbye back
                    sock.recv(1 << 16, socket.MSG_DONTWAIT)
                _drop(sock)
            os.close(self._stop_read)
            os.close(self._stop_write)


def _vouch(key: str, shard: int) -> bytes:
    return hashlib.blake2b(f"{key}|{shard}".encode(), digest_size=32).digest()


def _exactly(sock: socket.socket, count: int) -> bytes:
    data = b""
    while len(data) < count and (more := sock.recv(count - len(data))):
        data += more
    return data


def _track(sock: socket.socket) -> None:
    """A forked child must not keep the connection open: the others would not see this process end."""
    sockets.guard_forks()
    status = os.fstat(sock.fileno())
    sockets.track([(status.st_dev, status.st_ino)])


def _drop(sock: socket.socket) -> None:
    with contextlib.suppress(OSError):
        status = os.fstat(sock.fileno())
        sockets.untrack([(status.st_dev, status.st_ino)])
    sock.close()
