"""One member of a cluster, from ``start`` to ``stop``: what all backends of ``Consensus`` have in common.

The protocol runs in an agent (``runtime``), in a process of its own or on a thread. Methods that read look at an immutable
snapshot that the agent publishes: they neither wait nor send. Methods that write hand a report to the agent and return.
"""

from __future__ import annotations

import os
import secrets
import shlex
import shutil
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Self

from .border import Boundary, Built, Flushed, Hint, Leave, Report, SeekAdmission, Stopped
from .config import Config, Home, Policy
from .errors import CodecError, ConfigError, ConsensusError, DialError, StoppedError
from .interface import Bound, Consensus, DataPlane, Mode, NullPlane, Source, Stream
from .logs import CarefulLogger
from .member import Address, Member
from .progress import Progress
from .runtime.agent.clock import now
from .runtime.agent.snapshot import Snapshot, Watchers
from .runtime.host.exchange import Find, ReadStatus
from .runtime.host.host import Delegate, Host
from .runtime.net.fork import release_in_children
from .runtime.net.names import Introducers, lookup, parsed
from .runtime.net.sockets import SocketPair, open_pair, require_secret
from .storage.locate import store_at
from .tools.dial import dial
from .view import Reason, View
from .wire.facts import Facts, check_facts
from .wire.keys import KeyRing

_LOG = CarefulLogger()
_START_TIMEOUT = 10.0
"""Seconds for the agent to start, or ``join_timeout`` where that is longer: a loaded machine may import slowly."""
_STOP_TIMEOUT = 5.0
_STATUS_TIMEOUT = 1.0
_FIND_TIMEOUT = 1.5
_MET = 16
"""The next lifetime asks so many members of the view to let it in: one that lives suffices, and names the others."""
_OWN_PATHS = ("/message", "/tether", "/identity", "/status", "/metrics")


class Membership(Consensus):
    """One member for one lifetime: ``start`` once, ``stop`` at the end. ``member`` exists from ``start`` on.

    The subclass chooses how members find out who is alive and who decides; all of that is in the settings.
    """

    usual_mode = Mode.ACTIVE
    """The mode if none was configured."""

    def __init__(self, config: Config | None = None, *, met: Sequence[Address] | None = None, elsewhere: bool = False) -> None:
        """Nothing is bound or sent before ``start``. ``anew`` gives ``met`` and ``elsewhere``."""
        self._config = self.settled(config or Config())
        self._met = None if met is None else tuple(met)
        self._changed = threading.Condition()
        self._snapshot = Snapshot()
        self._latest_view: View | None = None
        """The newest known view, kept after the agent has ended."""
        self._id = secrets.token_hex(8)
        self._begun: Host | None = None
        """The agent's host from ``bind`` until ``start``."""
        self._host: Host | None = None
        self._sources: dict[str, Source] = {}
        self._plane: DataPlane | None = None
        self._latest_call: int | None = None
        self._latest_status: dict[str, Any] = {}
        self._stopping = False
        self._introducers = Introducers()
        self._pair: SocketPair | None = None
        self._ring: KeyRing | None = None
        """The secrets that ``dial`` signs with."""
        self._accepted: dict[str, _Acceptance] = {}
        self._watchers = Watchers()
        self._elsewhere = elsewhere
        """Whether a launcher chose the port of ``bind``, so that another port will do."""

    @classmethod
    def settled(cls, config: Config) -> Config:
        """``config`` with this backend's defaults; raises ConfigError if the settings do not fit this backend."""
        return config if config.mode is not None else replace(config, mode=cls.usual_mode)

    @property
    def config(self) -> Config:
        """The settings."""
        return self._config

    @property
    def trust_refused(self) -> bool:
        """See ``Consensus`` and ``Config``."""
        return self._config.trust_refused

    # Life

    def bind(self) -> Bound:
        """Bind the control address, once; without this call ``start`` does it. Raises ConfigError if that cannot work here.

        The agent begins to start meanwhile (ConsensusError if it cannot), so that the caller's work until ``start`` costs no
        extra time.
        """
        if self._pair is None:
            self._ring = KeyRing.of(self._config)  # a fault of the file is raised here, to the caller
            _require_command(self._config.fence_command)
            _require_store(self._config)
            host = self._begun = _host_for(self._config)
            try:
                host.begin(self._id)
                self._introducers = replace(lookup(self._config.introducers), met=self._met)
                pair = open_pair(self._config, self._introducers.addresses, elsewhere=self._elsewhere)
                require_secret(self._config, pair)
            except BaseException:
                self._begun = None
                host.stop(_STOP_TIMEOUT)
                raise
            self._pair = pair
            release_in_children(self, lambda: (pair.udp.fileno(), pair.tcp.fileno()))  # until the agent has them
        return Bound(self._pair.advertised, self._pair.interface)

    @property
    def id(self) -> str:
        """See ``Consensus``."""
        return self._id

    def start(self, data_plane: DataPlane | None = None, *, meta: Mapping[str, str] | None = None) -> None:
        """Bind, start the agent, and look for the cluster; raises ConfigError if the settings cannot work on this host.

        Without a ``data_plane`` views are installed at once (``NullPlane``). This process's ``pid`` is added to ``meta``: at
        most 64 facts, each name and value at most 4096 bytes.
        """
        if self._host is not None or self._stopping:
            raise ConsensusError("start was called before; a new lifetime needs a new " + type(self).__name__)
        facts = _facts(meta or {})
        self.bind()
        sockets, introducers, place = self._pair, self._introducers, self._begun
        assert sockets is not None and place is not None  # bound above
        host, port = sockets.advertised
        self.member = Member(self._id, host, port, facts)
        self._plane = data_plane if data_plane is not None else NullPlane(self)
        self._host, self._begun = place, None
        for path, source in self._sources.items():
            self._host.serve(path, source)
        for path, acceptance in list(self._accepted.items()):
            acceptance.begin(self._host, path)
        try:
            timeout = max(_START_TIMEOUT, self._config.join_timeout)
            delegate = Delegate(self._plane, self._publish, self._failed)
            self._host.start(self._config, self.member, introducers, sockets, delegate, timeout)
        except BaseException:
            self._stopping = True
            raise

    def stop(self) -> None:
        """End the agent without a goodbye: the others will take this member for dead. Idempotent."""
        self._stopping = True
        if self._host is not None:
            self._host.stop(_STOP_TIMEOUT)
        elif self._pair is not None and self._begun is not None:
            self._begun.stop(_STOP_TIMEOUT)
            self._pair.close()
        with self._changed:
            self._changed.notify_all()

    def anew(self) -> Self:
        """A member for this process's next lifetime, at the same port if ``bind`` names one.

        A port that a launcher chose may be in use by a connection meanwhile: then the new member takes another one.
        """
        # The members that went on without this one, if it knows them: some of its own view may be excluded, too.
        view: View | None = getattr(self._snapshot.stopped, "view", None) or self._latest_view
        members = () if view is None else view.members[:_MET]
        met = tuple(member.address for member in members if member.id != self.member.id)
        elsewhere = self._elsewhere or bool(self._config.socket_fds)
        return type(self)(replace(self._config, socket_fds=()), met=met or self._met or (), elsewhere=elsewhere)

    def leave(self, *, ended: bool = False) -> None:
        """Say goodbye after the last call that ``average_success`` reported; no call may be entered after it.

        ``ended``: the program has ended.
        """
        self._tell(Leave(self._latest_call, ended))

    # What is known here and now

    @property
    def view(self) -> View | None:
        """The active view, None before the first."""
        return self._snapshot.active

    @property
    def stopped(self) -> StoppedError | None:
        """Why this lifetime is over, or None."""
        return self._snapshot.stopped

    def why(self, member_id: str) -> Reason | None:
        """Why a member of the previous view is not in the newest installed one."""
        return self._snapshot.reasons.get(member_id)

    @property
    def driver(self) -> str:
        """Id of the member that drove the change to the newest view."""
        return self._snapshot.driver

    def confirm(self) -> bool:
        """Whether the active view is the newest known and no change is under way. Sends nothing."""
        return self._snapshot.confirmed

    def get_member_list(self) -> tuple[Member, ...]:
        """The members of the newest installed view in seniority order (empty before the first)."""
        installed = self._snapshot.installed
        return () if installed is None else installed.members

    def passive_or_active(self) -> Mode:
        """The mode that was configured."""
        return self._config.mode or self.usual_mode

    def new_member_join(self) -> bool:
        """Whether a joiner waits to be admitted at the next boundary."""
        return self._snapshot.applicants_waiting

    def wait_view(self, timeout: float) -> View | None:
        """Block until a view is active; None after ``timeout`` seconds, or if this lifetime has ended."""
        return self._wait(lambda snapshot: snapshot.active, timeout)

    def wait_known(self, timeout: float) -> View | None:
        """Block until this member knows a cluster; returns its newest view, or None as ``wait_view`` does."""
        return self._wait(lambda snapshot: snapshot.known, timeout)

    def status(self) -> dict[str, Any]:
        """What this member believes, as plain values; after its end, what it believed last."""
        if self._host is None:
            return {}
        try:
            self._latest_status = self._host.ask(ReadStatus(), _STATUS_TIMEOUT)
        except (TimeoutError, ConsensusError):
            stopped = self._snapshot.stopped
            said = {} if stopped is None else {"stopped": f"{type(stopped).__name__}: {stopped}"}
            return {"job": self._config.job, "member": self.member.id, **self._latest_status, **said, "stale": True}
        return self._latest_status

    # Reports of the layer above

    def report_join(self, addresses: Sequence[str]) -> bool:
        """Join through ``addresses`` too; False if no member of this job answers there within about a second."""
        wanted = tuple(parsed("addresses", text) for text in addresses)
        try:
            return bool(self._running().ask(Find(wanted), _FIND_TIMEOUT))
        except TimeoutError:
            return False

    def seek_admission(self) -> None:
        """This member is ready to take part."""
        self._tell(SeekAdmission())

    def progress(self, finished: int, current: int, *, busy: bool = False, inner: int = 0) -> None:
        """Where the data plane is."""
        if self._host is not None:
            self._host.cell.write(Progress(finished, current, now(), busy, inner=inner))

    def commit_to_leave(self) -> None:
        """From now on others may learn that this member leaves."""
        if self._host is not None:
            self._host.commit_to_leave()

    def average_success(self, call: int) -> None:
        """Remember that ``call`` is finished. Sends nothing."""
        self._latest_call = call

    def average_failure(self, call: int, suspects: Sequence[str]) -> None:
        """``call`` failed here: ``suspects`` are checked at once, and this member is owed a new epoch."""
        accused = tuple(suspects)
        names = [str(member) for member in self.get_member_list() if member.id in accused]
        text = ", ".join(names) or "nobody in particular"
        fields = {"ftlib_event": "failure", "job": self._config.job, "member": self.member.id, "call": call}
        # Only for debugging: after one death healthy neighbours are suspected too; the result of the check is what counts.
        _LOG.debug("call %d failed; suspected: %s", call, text, extra={**fields, "suspects": list(accused)})
        self._tell(Hint(accused))

    def flushed(self, epoch: int, report: bytes) -> None:
        """Answer to ``Freeze``."""
        self._tell(Flushed(epoch, report))

    def ready(self, view_id: str) -> None:
        """Answer to ``Installed``."""
        self._tell(Built(view_id))

    def boundary(self, call: int, leavers: Sequence[str] = ()) -> None:
        """The data plane froze itself after ``call``, because its trailer asked for it."""
        self._tell(Boundary(call, tuple(leavers)))

    def serve(self, path: str, source: Source) -> None:
        """Answer GET ``path`` with what ``source`` yields in this process. May be called before ``start``."""
        _require_path(path)
        self._sources[path] = source
        if self._host is not None:
            self._host.serve(path, source)

    def accept(self, path: str, handler: Callable[[Stream], None]) -> Callable[[], None]:
        """See ``Consensus``."""
        _require_path(path)
        if path in self._accepted:
            raise ConfigError(f"path {path!r} is accepted already: end that first, or take another path")
        acceptance = self._accepted[path] = _Acceptance(handler)
        if self._host is not None:
            acceptance.begin(self._host, path)

        def end() -> None:
            if self._accepted.get(path) is acceptance:
                del self._accepted[path]
                acceptance.end()

        return end

    def dial(self, member: Member, path: str, *, timeout: float) -> Stream:
        """See ``Consensus``."""
        _require_path(path)
        host = self._running()
        if host.here():
            raise ConsensusError("dial waits for the network and cannot be called from a callback of the agent")
        if member.id == self._id:
            raise DialError(f"{member} is this member itself: there is no stream to oneself")
        if self._ring is not None:
            began = time.monotonic()
            if (line := self._ring.follow(timeout)) is not None:
                _LOG.info("%s", line)
            timeout -= time.monotonic() - began
        return dial(member, path, self.member, self._config.job, self._ring, timeout)

    def watch(self, callback: Callable[[Member, str], None]) -> Callable[[], None]:
        """See ``Consensus``."""
        return self._watchers.add(callback)

    # Faults on purpose

    @property
    def agent_pid(self) -> int:
        """See ``Consensus``."""
        return 0 if self._host is None else self._host.pid

    def cut_off(self, seconds: float) -> bool:
        """See ``Consensus``."""
        if self._host is None:
            return False
        self._host.cut_off(seconds)
        return True

    # Inside

    def _running(self) -> Host:
        if self._host is None or not self._host.running:
            raise ConsensusError("the agent does not run: call start first" if self._host is None else "the agent has stopped")
        return self._host

    def _tell(self, report: Report) -> None:
        """Hand ``report`` to the agent; after ``stop`` it is dropped, as the messages of a dead member are."""
        if self._host is None:
            raise ConsensusError("the agent does not run: call start first")
        if not self._stopping:
            self._host.tell(report)

    def _publish(self, snapshot: Snapshot) -> None:
        with self._changed:
            self._snapshot = snapshot
            self._latest_view = snapshot.known or self._latest_view
            self._changed.notify_all()
        self._watchers.hear(self.member, snapshot)

    def _wait(self, get: Callable[[Snapshot], View | None], timeout: float) -> View | None:
        deadline = time.monotonic() + timeout
        with self._changed:
            while True:
                found = get(self._snapshot)
                rest = deadline - time.monotonic()
                if found is not None or self._snapshot.stopped is not None or self._stopping or rest <= 0:
                    return found
                self._changed.wait(min(rest, threading.TIMEOUT_MAX))

    def _failed(self, stopped: StoppedError) -> None:
        """The agent ended by itself: nothing more will be decided here."""
        if self._snapshot.stopped is not None:
            return
        self._publish(Snapshot(stopped=stopped))
        if self._plane is not None:
            self._plane.handle(Stopped(stopped))


class _Acceptance:
    """That the program accepts a path, from then on until it ends that: a later one of the same handler is another."""

    def __init__(self, handler: Callable[[Stream], None]) -> None:
        """It holds at a host from ``begin`` on."""
        self._handler = handler
        self._cancel: Callable[[], None] | None = None

    def begin(self, host: Host, path: str) -> None:
        """``host`` takes streams for ``path``."""
        self._cancel = host.accept(path, self._handler)

    def end(self) -> None:
        """No more, once it has begun."""
        if self._cancel is not None:
            self._cancel()


def _require_path(path: str) -> None:
    if not path.startswith("/") or path in _OWN_PATHS or "?" in path:
        raise ConfigError(f"path {path!r} cannot be served: give one that starts with / and is none of {_OWN_PATHS}")


def _facts(meta: Mapping[str, str]) -> Facts:
    """What the other members are to know of this one; raises ConfigError if they could not read it."""
    facts = {"pid": str(os.getpid()), **meta}
    try:
        check_facts(tuple(facts.items()))
    except CodecError as error:
        raise ConfigError(f"meta: {error}") from None
    return tuple(sorted(facts.items()))


def _require_command(line: str) -> None:
    """Raise ConfigError if ``fence_command`` could never run: better now than when it is needed."""
    if line and shutil.which(program := shlex.split(line)[0]) is None:
        raise ConfigError(f"fence_command: there is no program {program!r} on this host; give the path of one")


def _require_store(config: Config) -> None:
    """Raise ConfigError if ``storage`` names no store that this process could use. Does not check that the store answers."""
    if config.policy is Policy.STORAGE:
        store_at(config.storage, config.job, timeout=config.storage_timeout, **config.storage_options)


def _host_for(config: Config) -> Host:
    """The host for the agent. Its modules are imported only here: that takes longer than all the rest of ``consensus``."""
    if config.agent is Home.PROCESS:
        from .runtime.host.process_host import ProcessHost  # noqa: PLC0415

        return ProcessHost(tls=config.policy is Policy.STORAGE)
    from .runtime.host.thread_host import ThreadHost  # noqa: PLC0415

    return ThreadHost()
