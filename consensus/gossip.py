"""The gossip backend of ``Consensus``: SWIM detection with evidence, and one Paxos instance an epoch.

The protocol runs on a thread of its own (``runtime``). Reading methods look at an immutable snapshot which that
thread publishes: they neither wait nor send. Writing methods hand their call over and return.
"""

from __future__ import annotations

import contextlib
import logging
import os
import random
import secrets
import threading
import time
import weakref
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from .config import Config
from .errors import ConfigError, ConsensusError, StoppedError
from .interface import Bound, Consensus, DataPlane, Mode, Source
from .member import Member
from .null_plane import NullPlane
from .protocol.machine import Machine
from .runtime.background import Background
from .runtime.driver import Core, Snapshot
from .runtime.fork import release_in_children
from .runtime.names import Introducers, lookup, parsed
from .runtime.sockets import SocketPair, open_pair
from .view import Cause, View

if TYPE_CHECKING:
    from .runtime.agent import Agent

__all__ = ["Gossip"]

_LOG = logging.getLogger("ftlib.consensus")
_START_TIMEOUT = 10.0
_STOP_TIMEOUT = 5.0
_STATUS_TIMEOUT = 1.0
_FIND_TIMEOUT = 1.5
_OWN_PATHS = ("/message", "/tether", "/identity")


class Gossip(Consensus):
    """One member of a gossip cluster, for one lifetime: ``start`` once, ``stop`` at the end.

    ``member`` exists from ``start`` on.
    """

    def __init__(self, config: Config | None = None) -> None:
        """Nothing is bound or sent before ``start``."""
        self._config = config or Config()
        self._changed = threading.Condition()
        self._snapshot = Snapshot()
        self._background: Background | None = None
        self._agent: Agent | None = None
        self._plane: DataPlane | None = None
        self._sources: dict[str, Source] = {}
        self._latest_call: int | None = None
        self._latest_status: dict[str, Any] = {}
        self._stopping = False
        self._introducers = Introducers()
        self._pair: SocketPair | None = None

    @property
    def config(self) -> Config:
        """The settings."""
        return self._config

    # Life

    def bind(self) -> Bound:
        """Bind the control address, now and once; ``start`` does it otherwise. ConfigError: it cannot work on this host."""
        if self._pair is None:
            self._introducers = lookup(self._config.introducers)
            self._pair = open_pair(self._config, self._introducers.addresses)
        return Bound(self._pair.advertised, self._pair.interface)

    def start(self, data_plane: DataPlane | None = None, *, meta: Mapping[str, str] | None = None) -> None:
        """Bind, start the agent, and look for the cluster; ConfigError where the settings cannot work on this host.

        Without a ``data_plane`` views are installed at once (``NullPlane``). This process's ``pid`` joins ``meta``.
        """
        if self._background is not None or self._stopping:
            raise ConsensusError("start was called before; a new lifetime needs a new Gossip")
        self.bind()
        pair, introducers = self._pair, self._introducers
        assert pair is not None  # bound above
        host, port = pair.advertised
        facts = {"pid": str(os.getpid()), **(meta or {})}
        self.member = Member(secrets.token_hex(8), host, port, tuple(sorted(facts.items())))
        self._plane = data_plane if data_plane is not None else NullPlane(self)
        background = Background(f"ftlib-agent-{self.member.id[:6]}", self._loop_failed)
        self._background = background
        release_in_children(background, _descriptors_of(pair, background))
        background.start()
        try:
            background.call(self._open(pair, introducers, self._plane), _START_TIMEOUT)
        except BaseException as error:
            self._stopping = True
            background.stop()
            pair.close()
            if isinstance(error, TimeoutError):
                raise ConsensusError(f"the agent did not start within {_START_TIMEOUT:g} s") from None
            raise

    def stop(self) -> None:
        """End the agent without a goodbye: to the others this member is then dead. Idempotent."""
        with self._changed:
            first, self._stopping = not self._stopping, True
        background, agent = self._background, self._agent
        if background is None:
            if self._pair is not None:
                self._pair.close()
            return
        if background.here():  # from a callback: it cannot be waited for
            if first and agent is not None:
                closing = background.loop.create_task(agent.close())
                closing.add_done_callback(lambda _task: background.stop())
            return
        if not first:  # whoever came first ends it
            background.join()
            return
        if agent is not None and background.running:
            with contextlib.suppress(TimeoutError):  # then the sockets go with the loop
                background.call(agent.close(), _STOP_TIMEOUT)
        background.stop()
        with self._changed:
            self._changed.notify_all()

    def leave(self) -> None:
        """Say goodbye after the last call that ``average_success`` reported; no call may be entered after it."""
        after = self._latest_call
        self._perform(lambda core, now: core.leave(after, now))

    # What is known here and now

    @property
    def view(self) -> View | None:
        """The active view, None before the first."""
        return self._snapshot.active

    @property
    def stopped(self) -> StoppedError | None:
        """Why this lifetime is over, or None."""
        return self._snapshot.stopped

    def why(self, member_id: str) -> Cause | None:
        """Why a member of the view before is not in the newest installed one."""
        return self._snapshot.reasons.get(member_id)

    def confirm(self) -> bool:
        """Whether the active view is the newest known and no change is under way. Sends nothing."""
        return self._snapshot.confirmed

    def get_member_list(self) -> tuple[Member, ...]:
        """The members of the newest installed view in seniority order (empty before the first)."""
        installed = self._snapshot.installed
        return () if installed is None else installed.members

    def passive_or_active(self) -> Mode:
        """The mode that was configured."""
        return self._config.mode

    def new_member_join(self) -> bool:
        """Whether a joiner waits to be admitted at the next boundary."""
        return self._snapshot.applicants_waiting

    def wait_view(self, timeout: float) -> View | None:
        """Block until a view is active; None after ``timeout`` seconds, or where this lifetime has ended."""
        return self._wait(lambda snapshot: snapshot.active, timeout)

    def wait_known(self, timeout: float) -> View | None:
        """Block until this member knows a cluster; its newest view, or None as for ``wait_view``."""
        return self._wait(lambda snapshot: snapshot.known, timeout)

    def status(self) -> dict[str, Any]:
        """What this member believes, as plain values; after its end what it believed last."""
        background, agent = self._background, self._agent
        if background is None or agent is None:
            return {}
        if background.here() or not background.running:  # nobody else changes it now
            return agent.status()
        try:
            self._latest_status = background.call(_status_of(agent), _STATUS_TIMEOUT)
        except (TimeoutError, ConsensusError):
            return {**self._latest_status, "stale": True}
        return self._latest_status

    # What the layer above says

    def report_join(self, addresses: Sequence[str]) -> bool:
        """Join through ``addresses`` too; False where no member of this job answered there within about a second."""
        wanted = tuple(parsed("addresses", text) for text in addresses)
        background, agent = self._running()
        try:
            return bool(background.call(agent.find(wanted), _FIND_TIMEOUT))
        except TimeoutError:
            return False

    def seek_admission(self) -> None:
        """This member is ready to take part."""
        self._perform(lambda core, now: core.seek_admission(now))

    def average_success(self, call: int) -> None:
        """Remember that ``call`` is finished. Sends nothing."""
        self._latest_call = call

    def average_failure(self, call: int, suspects: Sequence[str]) -> None:
        """``call`` failed here: ``suspects`` are checked at once, and this member is owed a new epoch."""
        accused = tuple(suspects)
        names = [str(member) for member in self.get_member_list() if member.id in accused]
        _LOG.info("call %d failed; suspected: %s", call, ", ".join(names) or "nobody in particular")
        self._perform(lambda core, now: core.hint(accused, now))

    def flushed(self, epoch: int, report: bytes) -> None:
        """Answer to ``DataPlane.freeze``."""
        self._perform(lambda core, now: core.flushed(epoch, report, now))

    def ready(self, view_id: str) -> None:
        """Answer to ``DataPlane.install``."""
        self._perform(lambda core, now: core.ready(view_id, now))

    def boundary(self, call: int, leavers: Sequence[str] = ()) -> None:
        """The data plane froze itself after ``call``, because its trailer asked for it."""
        gone = tuple(leavers)
        self._perform(lambda core, now: core.boundary(call, gone, now))

    def serve(self, path: str, source: Source) -> None:
        """Answer GET ``path`` with what ``source`` yields; also before ``start``. ``/status`` may be replaced."""
        if not path.startswith("/") or path in _OWN_PATHS or "?" in path:
            raise ConfigError(f"path {path!r} cannot be served: give one that starts with / and is none of {_OWN_PATHS}")
        self._sources[path] = source

    # Inside

    async def _open(self, pair: SocketPair, introducers: Introducers, plane: DataPlane) -> None:
        """On the loop's thread: put the agent together and start it."""
        from .runtime.agent import Agent  # noqa: PLC0415 - aiohttp takes longer to import than all of consensus

        own, size = self.member.address, self._config.initial_size
        machine = Machine(
            self._config,
            self.member,
            random.Random(random.SystemRandom().getrandbits(128)),
            founder=introducers.founder(own, size),
            introducers=tuple(address for address in introducers.addresses if address != own),
            voted=introducers.named,
            barred=introducers.barred(size),
        )
        self._agent = Agent(
            self._config, self.member, pair, machine, plane, self._publish, self._sources, introducers.addresses
        )
        await self._agent.start()

    def _running(self) -> tuple[Background, Agent]:
        background, agent = self._background, self._agent
        if background is None or agent is None or not background.running:
            raise ConsensusError("the agent does not run: call start first" if background is None else "the agent has stopped")
        return background, agent

    def _perform(self, action: Callable[[Core, float], object]) -> None:
        """Hand ``action`` to the loop's thread; after the end it is dropped, as a dead member's words are."""
        background, agent = self._background, self._agent
        if background is None:
            raise ConsensusError("the agent does not run: call start first")
        if agent is None or self._stopping:
            return
        driver = agent.driver

        def run(now: float) -> None:
            action(driver.core, now)

        if background.here():
            driver.perform(run)
        else:
            background.post(driver.perform, run)

    def _publish(self, snapshot: Snapshot) -> None:
        with self._changed:
            self._snapshot = snapshot
            self._changed.notify_all()

    def _wait(self, get: Callable[[Snapshot], View | None], timeout: float) -> View | None:
        deadline = time.monotonic() + timeout
        with self._changed:
            while True:
                found = get(self._snapshot)
                rest = deadline - time.monotonic()
                if found is not None or self._snapshot.stopped is not None or self._stopping or rest <= 0:
                    return found
                self._changed.wait(rest)

    def _loop_failed(self, error: BaseException) -> None:
        """The loop itself ended by an exception: nothing more will be decided here."""
        if self._snapshot.stopped is not None:
            return
        stopped = StoppedError(f"the agent's loop failed: {type(error).__name__}: {error}")
        self._publish(Snapshot(stopped=stopped))
        if self._plane is not None:
            self._plane.stopped(stopped)


async def _status_of(agent: Agent) -> dict[str, Any]:
    return agent.status()


def _descriptors_of(pair: SocketPair, background: Background) -> Callable[[], Iterable[int]]:
    """What a forked child must let go of, without keeping the agent alive; nothing after its end."""
    reference = weakref.ref(background)

    def descriptors() -> Iterable[int]:
        loop = reference()
        watched = () if loop is None else loop.descriptors()
        return [pair.tcp.fileno(), pair.udp.fileno(), *watched]

    return descriptors
