"""What caller and agent say to each other: frozen values, each a msgpack list of kind and fields behind four bytes of length.

Anything may stand before the agent's greeting (what a login shell prints); the greeting names the protocol and the release.
Functions, results and exceptions are opaque bytes here, in pieces.

The values are named tuples: a class of these is made in an eighth of the time of a data class, which counts where sixteen
agents start on one machine. Two of different kinds may be equal as tuples: tell them apart by their class.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from typing import Any, NamedTuple, get_args, get_origin, get_type_hints

import msgpack

from ...common.releases import release_of

PROTOCOL = 2
MOST = 8 << 20
"""Bytes of the largest message."""
PIECE = 128 << 10
"""Bytes of a piece of something large: so long a heartbeat waits behind it, at most."""
_GREETING = re.compile(rb"\x00ftlib-agent (\d{1,9}) ([^\x00]{1,64})\x00")
_LONGEST_GREETING = 96


def release() -> str:
    """The version of this ftlib; "unknown" for a source tree that nobody has installed."""
    return release_of("ftlib", "unknown")


def greeting() -> bytes:
    """The first that an agent says."""
    return b"\x00ftlib-agent %d %s\x00" % (PROTOCOL, release().encode())


class Beat(NamedTuple):
    """Both ways: nothing to say, and well."""


class Piece(NamedTuple):
    """Both ways: a part of something large. To the agent: the function (``worker`` -1). To the caller: a worker's result."""

    worker: int
    start: int
    data: bytes
    last: bool


# From the caller to the agent.


class Order(NamedTuple):
    """The first message: what this host is to do."""

    release: str
    job: str
    host: str
    """The name by which the caller knows this host."""
    environment: Mapping[str, str]
    """Variables that the caller adds to the host's own."""
    directory: str
    path: Sequence[str]
    """The caller's ``sys.path``."""
    preload: Sequence[str]
    command: Sequence[str]
    """A program to run; empty: a function, which follows in pieces."""
    results: str
    grace: float
    timeout: float
    """Seconds of the caller's silence after which everything here ends."""
    backend: str
    """Of the default group that a function finds; empty: it finds none."""
    worker_timeout: float
    """Seconds that operations of that group may take."""
    elastic: bool
    """Whether workers that end are started again."""
    secrets: str
    """What the user's file of secrets holds, where there is one: workers follow a copy of it."""


class Bind(NamedTuple):
    """Bind control sockets for so many founders at this address, and with ``master`` a port for the group's store."""

    address: str
    founding: int
    """Which founding this is for: the answer repeats it."""
    founders: int
    master: bool


class Start(NamedTuple):
    """Start a worker. ``founder``: which of the bound sockets are its own; -1: none."""

    worker: int
    start: int
    """Which of its starts this is, from 1 on: whatever is said of this lifetime names it."""
    local_rank: int
    environment: Mapping[str, str]
    """Variables of this start, which win over all others."""
    founder: int
    port: int
    """It begins again at this founding address; 0: elsewhere."""
    master: bool
    """It is given the group's store's socket."""
    name: str


class Stop(NamedTuple):
    """Send a worker SIGTERM, and SIGKILL after ``grace`` seconds; at once if that is 0. It is not needed any more."""

    worker: int
    grace: float
    cause: str


class Secrets(NamedTuple):
    """The user's file of secrets has changed: this is what it holds now."""

    text: str


class Credit(NamedTuple):
    """So many bytes of lines were handled: as many more may come."""

    size: int


class Bye(NamedTuple):
    """Kill what is left, and end."""


# From the agent to the caller.


class Here(NamedTuple):
    """What the agent's host has."""

    hostname: str
    pid: int
    python: str
    cloudpickle: str
    torch: str
    cpus: int
    gpus: int
    reached: str
    """The address at which the caller reached this host, as far as the login says it; else empty."""
    addresses: Sequence[str]


class Bound(NamedTuple):
    """The sockets are bound: ``host:port`` of each founder, of the fence endpoint, and the port for the group's store."""

    founding: int
    addresses: Sequence[str]
    supervisor: str
    master: int


class Started(NamedTuple):
    """A worker runs."""

    worker: int
    start: int
    pid: int


class Ended(NamedTuple):
    """A worker was reaped, or is stuck. Its result follows in pieces if it left one, then its last lines, then ``Drained``."""

    worker: int
    start: int
    pid: int
    code: int
    """As ``subprocess`` gives it."""
    cause: str
    """Why it was killed, if the launcher did it."""
    sent_away: bool
    stuck: bool
    """Whether it was killed, and its process is still there: the kernel does not let go of it."""
    result: int
    """Bytes of what it returned or raised; 0: it left nothing."""
    tail: Sequence[bytes]
    """Its last lines on stderr."""


class Drained(NamedTuple):
    """All lines of a worker that ended have been sent."""

    worker: int
    start: int


class Lines(NamedTuple):
    """Whole lines of a worker, or of the agent (``worker`` -1)."""

    worker: int
    error: bool
    lines: Sequence[bytes]


class Logged(NamedTuple):
    """What a worker's ``logging`` emitted, oldest first: level, logger, seconds since 1970, text."""

    worker: int
    records: Sequence[tuple[int, str, float, str]]


class Announced(NamedTuple):
    """A worker says where it listens, and of which view it is a member (see ``endpoint``)."""

    worker: int
    start: int
    member: str
    address: str
    epoch: int


class Again(NamedTuple):
    """A worker is about to end well, and wants to be started again then."""

    worker: int
    start: int


class Trouble(NamedTuple):
    """The agent cannot go on; it ends after this."""

    text: str


Message = (
    Beat | Piece | Order | Bind | Start | Stop | Secrets | Credit | Bye | Here | Bound | Started | Ended | Drained | Lines
    | Logged | Announced | Again | Trouble
)  # fmt: skip
_KINDS: tuple[type[Any], ...] = Message.__args__  # a union is its members
_KIND_OF = dict(enumerate(_KINDS))
_NUMBERS = {kind: number for number, kind in enumerate(_KINDS)}


class StreamError(Exception):
    """What came is none of ours."""


def encode(message: Message) -> bytes:
    """One message with its length in front."""
    body = msgpack.packb([_NUMBERS[type(message)], *message])
    return len(body).to_bytes(4, "big") + bytes(body)


def decode(body: bytes) -> Message:
    """The message of ``body``. Raises StreamError for anything else."""
    try:
        number, *values = msgpack.unpackb(body, strict_map_key=True)
        message: Message = _KIND_OF[number](*values)
    except Exception as error:  # noqa: BLE001 - msgpack documents several unrelated errors, and all mean the same here
        raise StreamError(f"a message that cannot be read: {error}") from None
    for (name, fits), value in zip(_fields(number), values, strict=True):
        if not fits(value):
            raise StreamError(f"a {type(message).__name__} whose {name} is {value!r:.40}")
    return message


@cache
def _fields(number: int) -> tuple[tuple[str, Callable[[Any], bool]], ...]:
    """The names of a kind's fields, each with what tells whether a value can be its own."""
    return tuple((name, _check(hint)) for name, hint in get_type_hints(_KIND_OF[number]).items())


def _check(hint: Any) -> Callable[[Any], bool]:
    parts = [_check(part) for part in get_args(hint)]
    match get_origin(hint):
        case None:
            kinds = {float, int} if hint is float else {hint}  # no bool is an int here
            return lambda value: type(value) in kinds
        case origin if origin is tuple:
            return lambda value: type(value) is list and len(value) == len(parts) and all(map(_fits, parts, value))
        case origin if origin is Mapping:
            return lambda value: type(value) is dict and all(parts[0](key) and parts[1](each) for key, each in value.items())
        case _:
            return lambda value: type(value) is list and all(map(parts[0], value))


def _fits(check: Callable[[Any], bool], value: Any) -> bool:
    return check(value)


class Decoder:
    """Bytes in, messages out."""

    def __init__(self) -> None:
        self._buffer = bytearray()

    def feed(self, chunk: bytes) -> list[tuple[Message, int]]:
        """The messages that ``chunk`` completes, each with its bytes on the stream. Raises StreamError."""
        self._buffer += chunk
        found = []
        at = 0
        while len(self._buffer) - at >= 4:
            size = int.from_bytes(self._buffer[at : at + 4], "big")
            if size > MOST:
                raise StreamError(f"a message of {size} bytes")
            if len(self._buffer) - at - 4 < size:
                break
            found.append((decode(bytes(self._buffer[at + 4 : at + 4 + size])), size + 4))
            at += 4 + size
        del self._buffer[:at]
        return found


class Greeted:
    """Looks for the agent's greeting in what comes first, which may be anything."""

    def __init__(self) -> None:
        self.noise = b""
        """The last of what stood before it."""
        self.protocol = 0
        self.release = ""
        self._seen = b""

    def feed(self, chunk: bytes) -> bytes | None:
        """What follows the greeting; None: it has not come yet."""
        self._seen += chunk
        match = _GREETING.search(self._seen)
        if match is None:
            self.noise = self._seen[-4096:]
            self._seen = self._seen[-_LONGEST_GREETING - 4096 :]
            return None
        self.protocol, self.release = int(match[1]), match[2].decode(errors="replace")
        return self._seen[match.end() :]
