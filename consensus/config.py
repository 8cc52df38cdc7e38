"""Every constant of the membership protocol, with unit, trade-off and source. Validated once, here.

``exclude_after`` (T_excl) is part of the job's *terms*: a joiner with another value is refused, because a voter's waiting time
protects other members only if all voters wait equally long.
"""

from __future__ import annotations

import math
import shlex
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from enum import Enum
from typing import Any, Literal, TypeAlias

from .errors import ConfigError
from .interface import Mode
from .member import parse_address

MAX_JOB = 64
"""Characters of a job's name."""

MIN_SECRET = 16
"""The least bytes of a secret."""

MAX_SECONDS = 1e9
"""The longest duration, 31 years: what can wait at all can wait for so long, which is not so for any number of seconds."""

PROTOCOL_VERSION = 7
"""Raised whenever two versions could misunderstand each other; members of different versions refuse each other."""


Seconds: TypeAlias = float
"""A duration, above 0 and at most ``MAX_SECONDS``; a reader of settings also takes text with a unit."""

Count: TypeAlias = int
"""At least 1."""


class Home(Enum):
    """Where an agent runs (``agent=``). In a process of its own it goes on while the training process cannot: a long hold of
    the interpreter's lock stops every thread of a process. A thread is lighter, but goes silent with its process.
    """

    PROCESS = "process"
    THREAD = "thread"


class Liveness(Enum):
    """How members find out who is alive: by pinging each other, or by leases in a shared store."""

    PINGS = "pings"
    LEASES = "leases"


class Policy(Enum):
    """Who may decide the next view; see ``protocol/quorum.py``.

    Under ANY no member ever blocks, and a job cut in two goes on as two until they meet: see ``protocol/agreement/contact.py``.
    """

    MAJORITY = "majority"
    STORAGE = "storage"
    ANY = "any"


@dataclass(frozen=True)
class Config:
    """Settings of one member. docs/operations.md has tables made of the fields: name, default, the first paragraph below."""

    job: str = "default"
    """Members of different jobs never mix, even at the same addresses. ``ftlib run`` draws one."""

    introducers: tuple[str, ...] = ()
    """``host:port`` of members to join through; the first may found. Empty: found alone. A name may stand for several
    (docs/network.md#addresses)."""

    initial_size: Count = 1
    """How many members must have met before the first view. ``ftlib run`` sets it."""

    bind: str = "127.0.0.1:0"
    """Where to listen: one port number for UDP and HTTP, 0 for any free one. With ``introducers`` the default is the first of
    them that is this host's and free. Gloo binds to the same interface.

    Empty: the first free address of this host among ``introducers``, else any port on the interface that leads to them.
    ``:port``: that port on that interface.
    """

    advertise: str | None = None
    """The address that others use; derived from ``bind`` where it is not given."""

    secret: str | tuple[str, ...] = field(default=(), repr=False)
    """Shared by all members; of several the first encrypts, all are accepted (docs/network.md#security).
    ``ftlib run`` draws one."""

    secret_file: str = ""
    """A file with one secret a line instead, read again whenever it changes."""

    insecure: bool = False
    """Whether to listen beyond loopback though there is no secret: anybody who reaches the port is then believed."""

    max_size: int | None = None
    """Joiners above so many members wait until there is room (spares); none: all are admitted. The coordinator's counts."""

    policy: Policy = Policy.MAJORITY
    """Who may decide the next view: ``majority`` (may block, never forks), ``storage`` (the store decides, needs ``storage``)
    or ``any`` (never blocks, may fork): docs/consensus.md#policies."""

    mode: Mode | None = None
    """``active``: ``initialized()`` and ``skip_allreduce()`` confirm first; ``passive``: they are told. The default is active
    for gossip and passive for shared storage."""

    agent: Home = Home.PROCESS
    """Where a member's agent runs: ``process``, or ``thread`` (lighter, but a hang of one is a hang of both)."""

    liveness: Liveness = Liveness.PINGS
    """``shared_storage`` takes leases. Pings are then a second opinion, asked where a lease was not renewed."""

    exclude_after: Seconds = 2.0
    """T_excl: nobody is excluded by silence earlier than this after the last sign of life. How long a live member may be away.
    With shared storage it is ``lease``."""

    stall_timeout: Seconds = 60.0
    """At least half of the view waits in a call that a member has not entered for so long: that member is taken for hung."""

    quorum_timeout: Seconds = 600.0
    """A view change without quorum ends with ``QuorumLost`` after this."""

    join_timeout: Seconds = 60.0
    """Looking for the job ends with ``JoinError`` after this."""

    link_timeout: Seconds | Literal[0] = 5.0
    """Two living members that have not reached each other for so long, over UDP or TCP, cannot work together: one has to go.
    0: they stay, and whatever they do together waits.

    See ``protocol/detection/links``; up to ``mesh_limit`` members. Ten pings long: with 30 % loss each way half of them are not
    answered, and nobody should have to go for that.
    """

    fence_command: str = ""
    """A command that kills the member which its environment names, and exits with 0 once that process is certainly gone:
    docs/operations.md#fencing-without-ftlib-run."""

    fence_timeout: Seconds = 10.0
    """``fence_command`` is killed after so long, and has then proven nothing."""

    remote_orders: bool = False
    """Whether the dashboard of an agent takes orders (drain, kill) from browsers on other hosts, too: over plain HTTP, where
    who listens can steal the page's cookie (docs/observability.md#a-page-in-the-browser)."""

    trust_refused: bool = True
    """Whether "connection refused by its host" proves death. Turn it off where a firewall may send resets."""

    storage: str = field(default="", repr=False)
    """The store that all members share: ``file:///directory``, ``redis://[[user]:password@]host:port/0``, ``etcd://host:port``,
    with TLS ``rediss://``, ``etcds://`` (docs/storage.md). With shared storage the default is ``ftlib`` in the user's cache."""

    lease: Seconds = 2.0
    """Shared storage: who renewed its lease within so long is not excluded. Equal at all members.

    With leases this is T_excl, and ``exclude_after`` becomes it.
    """

    storage_username: str = ""
    """Who we are to Redis or etcd, instead of what the URL says."""

    storage_password: str = field(default="", repr=False)
    """The same; never logged."""

    storage_ca: str = ""
    """A file with the authorities that the server's certificate is checked against (TLS); the system's where empty."""

    storage_cert: str = ""
    """A file with our own certificate, for a server that asks for one."""

    storage_key: str = ""
    """The file with its key."""

    storage_timeout: Seconds = 5.0
    """An operation of the store that takes longer has failed (a write: it may have been done)."""

    # Constants of the protocol.

    probe_interval: Seconds = 0.5
    """SWIM protocol period; at most a quarter of ``exclude_after`` up to ``mesh_limit`` members, a fifth beyond.

    memberlist's LAN profile uses 1 s; shorter finds silence sooner and costs packets.
    """

    probe_timeout: Seconds = 0.15
    """A direct ping unanswered for so long is tried through others."""

    nack_share: float = 0.7
    """Helpers say Nack at this share of the prober's remaining time, so that it still arrives (Lifeguard, IV-A)."""

    indirect_probes: int = 3
    """k of SWIM: how many helpers ping on a prober's behalf."""

    gossip_interval: Seconds = 0.1
    """How often rumours are spread."""

    gossip_fanout: int = 3
    """To how many members."""

    retransmit_mult: int = 4
    """A rumour is sent ``mult * ceil(log10(n + 1))`` times."""

    suspicion_max_mult: float = 2.0
    """Suspicion lasts at most this times its minimum (``exclude_after / 2``), less with confirmations (Lifeguard, IV-B)."""

    awareness_max: int = 8
    """Upper end of the local health score that stretches own timeouts (Lifeguard, IV-A)."""

    mesh_limit: int = 32
    """Up to so many members everybody pings everybody each ``exclude_after / 4``: the contact that discounting needs."""

    fence_after: float = 0.75
    """Share of ``exclude_after`` after which a suspect's supervisor is asked to kill it, or ``fence_command`` runs."""

    drift: float = 0.05
    """Share of ``exclude_after`` allowed for clocks that run apart, when dead members are discounted."""

    settle_proof: Seconds = 0.005
    """Wait after the first proof, so that several crashes are one view change."""

    settle_quiet: Seconds = 0.002
    """But no longer than this after the latest proof: members that are killed together say so within a millisecond or two."""

    settle_silence: Seconds = 0.1
    """The same after silence."""

    settle_max: Seconds = 0.5
    """The longest that unfinished checks may hold a proposal back."""

    boundary_wait: Seconds = 1.0
    """How long joins and leaves wait for the coordinator's next call before they freeze at once (before the first: 0.1 s)."""

    frozen_wait: Seconds = 0.2
    """A member frozen for so long without ACCEPT asks for a new epoch."""

    resend: Seconds = 0.05
    """Unanswered view change messages are sent again after this."""

    ready_timeout: Seconds = 10.0
    """A member that has not built its group for so long while the others have is removed as unready."""

    tethers: int = 3
    """How many successors in the view a member keeps a connection to; a crash closes it at once."""

    storage_poll: Seconds = 4.0
    """How often a member looks for a newer view in the store while nothing tells it to look."""

    max_members: int = 16384
    """Larger views and join queues are refused."""

    # Set by a launcher or by the layer above, not by people.

    agreement: str = ""
    """What the layer above needs to be equal at all members; part of the job's terms, checked at join."""

    pages: str = ""
    """``module:function`` that makes pages of the layer above, which the agent serves (see ``runtime/net/pages.py``)."""

    socket_fds: tuple[int, ...] = ()
    """(UDP, TCP) descriptors bound beforehand by a launcher, used instead of binding ``bind``."""

    def __post_init__(self) -> None:  # noqa: C901, PLR0912 - one condition a setting, read as a table
        """Refuse what cannot work, naming the setting and the remedy."""
        for item in fields(self):
            _check_kind(item.name, getattr(self, item.name), str(item.type), shown=item.repr)
        for name in ("introducers", "secret", "socket_fds"):
            value = getattr(self, name)
            if isinstance(value, list):
                object.__setattr__(self, name, tuple(value))
        if self.liveness is Liveness.LEASES:
            object.__setattr__(self, "exclude_after", self.lease)
        if not self.job or len(self.job) > MAX_JOB:
            raise ConfigError(f"job={self.job!r} must have 1 to {MAX_JOB} characters")
        for name, word in [("job", self.job), ("agreement", self.agreement)]:
            if not is_unicode(word):
                raise ConfigError(f"{name}={word!r} is no Unicode, and could not be sent: give another one")
        if self.policy is Policy.STORAGE and not self.storage:
            raise ConfigError(
                "policy=storage needs a store that all members reach: give storage=file:///dir, redis:// or etcd://"
            )
        if self.liveness is Liveness.LEASES and self.policy is not Policy.STORAGE:
            raise ConfigError(f"leases in a store go with policy=storage, not with policy={self.policy.value}")
        if self.lease < 0.05:
            raise ConfigError(f"lease={self.lease} is below 0.05 s: scheduling noise would exclude members")
        if self.exclude_after < 0.05:
            raise ConfigError(f"exclude_after={self.exclude_after} is below 0.05 s: scheduling noise would exclude members")
        try:
            words = shlex.split(self.fence_command)
        except ValueError as error:
            raise ConfigError(f"fence_command={self.fence_command!r} is no command line: {error}") from None
        if self.fence_command and not words:
            raise ConfigError(f"fence_command={self.fence_command!r} names no program: give one, or leave it out")
        if len(self.socket_fds) not in (0, 2):
            raise ConfigError("socket_fds takes two descriptors: a UDP and a listening TCP socket")
        for name, text in [("bind", self.bind), ("advertise", self.advertise)]:
            if text:
                _checked_address(name, f"127.0.0.1{text}" if name == "bind" and text.startswith(":") else text)
        for text in self.introducers:
            _checked_address("introducers", text)
        for secret in self.secrets:
            check_secret("secret", secret)
        if self.secret and self.secret_file:
            raise ConfigError("secret and secret_file are both given: give one of them")

    @property
    def storage_options(self) -> dict[str, str]:
        """The given settings of this member's access to a store server, besides the URL: name -> value."""
        names = ("username", "password", "ca", "cert", "key")
        return {name: value for name in names if (value := getattr(self, f"storage_{name}"))}

    @property
    def room(self) -> int:
        """The most members that a view may have."""
        return self.max_members if self.max_size is None else min(self.max_size, self.max_members)

    @property
    def secrets(self) -> tuple[str, ...]:
        """``secret`` as a tuple."""
        return (self.secret,) if isinstance(self.secret, str) else self.secret

    @property
    def secured(self) -> bool:
        """Whether members authenticate each other."""
        return bool(self.secret or self.secret_file)

    @property
    def contact_interval(self) -> float:
        """Period of the pings that keep contact fresh enough for discounting."""
        return min(self.probe_interval, self.exclude_after / 4)

    @property
    def watch_interval(self) -> float:
        """Period of the pings in views beyond ``mesh_limit``. Half a ``settle_max`` less than T_excl allows for:
        members that fall silent together are noticed within one period (see ``protocol/detection/watch.py``), in one view
        change.
        """
        return min(self.probe_interval, self.exclude_after / 5)

    @property
    def ping_timeout(self) -> float:
        """``probe_timeout``, or less if ``exclude_after`` is too short for it."""
        return min(self.probe_timeout, self.exclude_after / 4)

    @property
    def silence_settle(self) -> float:
        """``settle_silence``, or less if ``exclude_after`` is too short for it."""
        return min(self.settle_silence, self.exclude_after / 6)

    @property
    def terms(self) -> str:
        """What all members of a job must agree on, as one comparable line. Members with and without leases do not mix."""
        silence = "lease" if self.liveness is Liveness.LEASES else "exclude_after"
        return f"{silence}={self.exclude_after:g} policy={self.policy.value} {self.agreement}".strip()


def _is_number(value: Any, least: float, most: float = math.inf) -> bool:
    """Whether it is a finite number from ``least`` to ``most``."""
    return isinstance(value, (int, float)) and not isinstance(value, bool) and least <= value <= most and value != math.inf


def _is_whole(value: Any, least: int) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= least


def _is_row(value: Any, kind: type) -> bool:
    """Whether it is a tuple, or a list, of ``kind``."""
    return isinstance(value, (tuple, list)) and all(isinstance(part, kind) for part in value)


def _one_of(kind: type[Enum], *, optional: bool = False) -> tuple[Callable[[Any], bool], str]:
    items = " or ".join(str(item) for item in kind)
    return lambda value: isinstance(value, kind) or (optional and value is None), items


_KINDS: Mapping[str, tuple[Callable[[Any], bool], str]] = {
    "str": (lambda value: isinstance(value, str), "a string"),
    "str | None": (lambda value: value is None or isinstance(value, str), "a string, or None"),
    "str | tuple[str, ...]": (lambda value: isinstance(value, str) or _is_row(value, str), "a string, or several in a tuple"),
    "tuple[str, ...]": (lambda value: _is_row(value, str), "strings in a tuple, as in ('host:port',)"),
    "tuple[int, ...]": (lambda value: _is_row(value, int), "whole numbers in a tuple"),
    "bool": (lambda value: isinstance(value, bool), "True or False"),
    "int": (lambda value: _is_whole(value, 0), "a whole number of at least 0"),
    "int | None": (lambda value: value is None or _is_whole(value, 1), "a whole number of at least 1, or None"),
    "Count": (lambda value: _is_whole(value, 1), "a whole number of at least 1"),
    "float": (lambda value: _is_number(value, 0), "a number of at least 0"),
    "Seconds": (
        lambda value: _is_number(value, 0, MAX_SECONDS) and value > 0,
        f"seconds above 0, and at most {MAX_SECONDS:.0f}",
    ),
    "Seconds | Literal[0]": (lambda value: _is_number(value, 0, MAX_SECONDS), f"seconds from 0 to {MAX_SECONDS:.0f}"),
    "Home": _one_of(Home),
    "Liveness": _one_of(Liveness),
    "Policy": _one_of(Policy),
    "Mode | None": _one_of(Mode, optional=True),
}
"""What a field of each type takes: a test of a value, and its words."""


def _check_kind(name: str, value: Any, kind: str, *, shown: bool) -> None:
    """Raise ConfigError if ``value`` is nothing that a field of type ``kind`` takes; with the value only if it is ``shown``."""
    fits, expected = _KINDS[kind]
    if not fits(value):
        given = f"={value!r}" if shown else ""
        raise ConfigError(f"{name}{given}: expected {expected}")


def is_unicode(text: str) -> bool:
    """Whether ``text`` has an encoding: bytes of a variable or an argument that are not UTF-8 have none."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def check_secret(name: str, secret: str) -> None:
    """Raise ConfigError, without the secret in its text, if ``secret`` is too short to protect anything."""
    size = len(secret.encode("utf-8", "surrogateescape"))
    if size < MIN_SECRET:
        raise ConfigError(
            f"{name}: a secret of {size} bytes is too short, {MIN_SECRET} are the least: make one with ftlib keys new"
        )


def _checked_address(name: str, text: str) -> None:
    try:
        parse_address(text)
    except ValueError as error:
        raise ConfigError(f"{name}: {error}") from None
