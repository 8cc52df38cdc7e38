"""The way of registered state to a simulated joiner: the real donor's and the real needy one's code, with bytes that travel."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import partial
from http import HTTPStatus
from random import Random

from consensus import Member
from consensus.simulation import Host
from ftlib.core.plane.plane import Plane
from ftlib.recovery.joiner.http_transport import FetchError, refusal
from ftlib.recovery.whole_state import STATE_LIMIT, Transfer
from ftlib.state.codec import StateReader

from ..machine.links import connected
from ..machine.threads import Fibre, SimulatedThreads

CHUNK_TIME = 0.01
"""Seconds that a piece takes at most."""

GIVE_UP = 3.0
"""Seconds without a byte after which another donor is tried."""

Source = Callable[[Mapping[str, str]], Iterator[bytes | memoryview]]
Find = Callable[[str], "SimulatedTransfer | None"]


class SimulatedTransfer(Transfer):
    """Both sides of it at one process. ``find``: that of another member, None where it is gone."""

    def __init__(
        self, plane: Plane, host: Host, threads: SimulatedThreads, rng: Random, find: Find, tell: Callable[[str], None]
    ) -> None:
        super().__init__(plane, host.world.config.join_timeout, 600.0)
        self._host = host
        self._threads = threads
        self._rng = rng
        self._find = find
        self._tell = tell
        self._sources: dict[str, Source] = {Transfer.PATH: self.source}

    def serves(self, path: str, source: Source) -> None:
        """What is asked for at ``path`` is there."""
        self._sources[path] = source

    def receive(
        self, donor: Member, path: str, query: Mapping[str, str], go_on: Callable[[], bool], *, waited_for: bool = False
    ) -> object:
        other = self._find(donor.id)
        if other is None or not connected(self._host, other._host):
            self._threads.sleep(self._rng.uniform(0.001, 0.3))
            raise FetchError(f"{donor} is gone")
        self._tell("loading")
        stream = _Stream(self._threads, self._threads.current())
        other.serve(path, query, stream)
        try:
            if (refused := stream.first(GIVE_UP)) is not None:
                raise refusal(donor, getattr(refused, "status", HTTPStatus.CONFLICT), str(refused.args[0]))

            def read(count: int) -> bytes:
                if not go_on():
                    raise EOFError("the view changed")
                return stream.read(count, GIVE_UP)

            return StateReader(read).read(STATE_LIMIT)
        except (EOFError, ValueError) as error:
            raise FetchError(f"{donor}: {error}") from error
        finally:
            stream.closed = True

    def serve(self, path: str, query: Mapping[str, str], stream: _Stream) -> None:
        """Answer a request on a thread of its own."""
        world = self._host.world
        serve = partial(self._serve, self._sources[path], query, stream)
        request = partial(self._threads.happens, lambda: self._threads.thread(serve, "serve").start())
        world.after(self._rng.uniform(0.0, CHUNK_TIME), request)

    def _serve(self, source: Source, query: Mapping[str, str], stream: _Stream) -> None:
        try:
            chunks = source(query)
            for chunk in chunks:
                self._send(stream, bytes(chunk))
        except LookupError as error:
            self._send(stream, error)
        except ConnectionAbortedError:
            self._send(stream, None)

    def _send(self, stream: _Stream, piece: bytes | LookupError | None) -> None:
        self._threads.sleep(self._rng.uniform(0.0, CHUNK_TIME))
        if connected(self._host, stream.threads.host) and not stream.closed:
            stream.arrive(piece)


class _Stream:
    """What has arrived so far."""

    def __init__(self, threads: SimulatedThreads, reader: Fibre) -> None:
        self.threads = threads
        self.closed = False
        self._reader = reader
        self._bytes = b""
        self._refusal: LookupError | None = None
        self._broken = False

    def arrive(self, piece: bytes | LookupError | None) -> None:
        if isinstance(piece, bytes):
            self._bytes += piece
        elif piece is None:
            self._broken = True
        else:
            self._refusal = piece
        self.threads.wake(self._reader)

    def first(self, timeout: float) -> LookupError | None:
        """Wait for the answer's beginning: a refusal, or None."""
        self._wait(lambda: bool(self._bytes) or self._refusal is not None, timeout)
        return self._refusal

    def read(self, count: int, timeout: float) -> bytes:
        self._wait(lambda: len(self._bytes) >= count, timeout)
        data, self._bytes = self._bytes[:count], self._bytes[count:]
        return data

    def _wait(self, ready: Callable[[], bool], timeout: float) -> None:
        end = self.threads.now() + timeout
        while not ready():
            left = end - self.threads.now()
            if self._broken or left <= 0:
                raise EOFError("the donor broke off")
            self.threads.park(left)
