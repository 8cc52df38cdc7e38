"""``FTLib``: the object a training program holds. Puts consensus, framework and data plane together; decides nothing itself."""

from __future__ import annotations

import atexit
import contextlib
import functools
import os
import sys
import threading
import weakref
from collections.abc import Callable, Iterable, Mapping, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from torch.distributed.device_mesh import DeviceMesh

from consensus import CarefulLogger, Consensus, ConsensusError, Gossip, KeyRing, LeftError, Member, Membership, Mode, View
from consensus import ConfigError as ConsensusConfigError

from .checkpoints.depot import Depot
from .checkpoints.keeper import Keeper
from .checkpoints.names import ShardOf
from .checkpoints.places import depot_of, fault_of
from .checkpoints.resume import Loaded
from .common.counters import State
from .common.logs import configure
from .common.traces import Traces
from .core.calls.session import Session
from .core.engine.call_lock import CallLock
from .core.engine.handover import Handover
from .core.plane.facts import facts
from .core.plane.phase import Phase
from .core.plane.ranks import RankAssignScheme
from .core.tensors.targets import Layouts
from .errors import ConfigError, FTLibError, JobEnded
from .frameworks import framework_of
from .frameworks.base import Framework, Group
from .lifecycle.chaos import Chaos
from .lifecycle.drain import Drain, Stay
from .lifecycle.faults import Faults
from .lifecycle.lifetime import CLOSE_TIMEOUT, Lifetime, Means
from .lifecycle.meeting import introduced
from .lifecycle.rejoin import Rejoin
from .lifecycle.supervisor_client import ask_awaited
from .settings.config import BACKENDS, UNSAID, VETO, Settings, check_storage, resolve
from .state.private import DONOR, Private
from .state.registry import Registered
from .state.replay import replayed_step
from .training import Calls

if TYPE_CHECKING:
    from .lifecycle.preemption import Watch
    from .lifecycle.tracing.tracer import Tracer

logger = CarefulLogger("ftlib")

_CONTROL = ("messages", "tick_delay", "tick_delay_max", "awareness", "changing", "store")
"""The keys of the consensus's status that ``metrics`` returns."""
LEAVE_TIMEOUT = 5.0
"""Seconds that ``leave`` waits for the others to agree."""
BUSY_TIMEOUT = 0.2
"""Seconds that ``close`` waits in the middle of a call, which must end soon; else it waits ``CLOSE_TIMEOUT``."""


class FTLib(Calls):
    """One worker's part in a job. Make it with :meth:`init`; also a context manager that closes at its end."""

    def __init__(self, settings: Settings, consensus: Consensus, framework: Framework, rank_assign: RankAssignScheme) -> None:
        """Use :meth:`init`. Nothing is started here."""
        self.settings = settings
        self._framework = framework
        patience = 0.0 if settings.consensus.max_size == 1 else settings.handover  # nobody comes in beside it
        self._handover = Handover(lambda: self._plane, patience, launched=bool(settings.supervisor))
        blocking = lambda: self._plane.blocking()  # noqa: E731, PLW0108 - the plane of the lifetime at that time
        call_lock = CallLock(settings.step_timeout, stays=lambda: self._handover.stays, blocking=blocking)
        faults = Faults(call_lock) if settings.chaos else None
        ring = _ring_of(settings)
        chaos = None if faults is None else Chaos(faults, functools.partial(_drain, weakref.ref(self)), settings, ring)
        traces = None if settings.trace is None else Traces()
        means = Means(settings, framework, rank_assign, ring, call_lock, chaos=chaos, traces=traces)
        self._more_facts = means.more_facts
        self._more_facts["min_size"] = lambda: settings.min_size
        lives = Rejoin(Lifetime(means, consensus), call_lock, rejoin=settings.rejoin)
        layouts = Layouts(framework, int(settings.bucket_mb * 2**20))
        super().__init__(lives, call_lock, layouts, means.listeners, veto=settings.nonfinite == VETO, faults=faults)
        self._keeper = Keeper(settings.keep, settings.step_timeout, ShardOf(settings.shard, settings.shards))
        self._kept = False
        """Whether the last checkpoint was begun, of a worker that leaves though nobody else has the state."""
        ask = functools.partial(self._ask_awaited, ring) if settings.supervisor else None
        stay = Stay(self._handover, ask, self._about, lambda: lives.over, lives.wake)
        self._drain = Drain(call_lock, lambda: lives.over, lives.wake, stay)
        self._watch: Watch | None = None
        self._tracer = None if traces is None or settings.trace is None else self._traced(traces, settings.trace)
        self._at_exit: Callable[[], None] | None = None
        self._process = os.getpid()
        self._closing = threading.RLock()  # a signal handler may close in the middle of a close
        self._closed = False

    @classmethod
    def init(
        cls,
        consensus: str | Consensus = UNSAID,
        framework: str | Framework = "gloo",
        *,
        config: str | os.PathLike[str] | Mapping[str, Any] | None = None,
        rank_assign: RankAssignScheme | None = None,
        **settings: Any,
    ) -> FTLib:
        """Start this worker and meet the others.

        A founding worker returns as a member of the first view. A worker that joins a running job returns once it has met the
        job; its first call admits it. Raises ConfigError, or JoinError after ``join_timeout``.

        ``consensus``: ``gossip`` or ``shared_storage``; if it is not given, the environment or the file may set it.
        """
        if rank_assign is not None and (isinstance(rank_assign, type) or not hasattr(rank_assign, "get_rank_and_size")):
            raise ConfigError(f"rank_assign={rank_assign!r} has no get_rank_and_size: pass an object of a RankAssignScheme")
        resolved = resolve(settings, config, backend=Gossip if isinstance(consensus, Consensus) else _backend_of(consensus))
        backend = framework_of(framework)
        resolved = resolved.agreeing(framework=backend.family)
        kind = None if isinstance(consensus, Consensus) else resolved.backend
        if kind is not None:
            check_storage(resolved)
        configure(resolved.log_format, resolved.log_level)
        if resolved.launched is not None and kind is not None:
            logger.info("%s", resolved.launched.says)
            resolved = introduced(resolved) if kind is Gossip else resolved
        member = consensus if isinstance(consensus, Consensus) else resolved.backend(resolved.consensus)
        ft = cls(resolved, member, backend, RankAssignScheme() if rank_assign is None else rank_assign)
        try:
            ft._start()
        except BaseException as error:
            if isinstance(error, JobEnded):
                ft._not_needed(error)
                raise SystemExit(0) from None
            ft.close()
            if isinstance(error, LeftError) and ft._call_lock.leaving:
                raise SystemExit(0) from None
            raise
        return ft

    # --- membership ----------------------------------------------------------------------------------------------------

    def initialized(self) -> bool:
        """Whether a group is up and, in active mode, confirmed: false after a death, a failure or a join, until rebuilt.

        While operations are under way, no confirmation is needed: a joiner waits until they have ended.
        """
        plane = self._plane
        with plane.changed:
            active, locked = plane.phase is Phase.ACTIVE, plane.running is not None
        return active and (locked or self._confirmed())

    def skip_allreduce(self) -> bool:
        """Whether this worker is alone, so that there is nothing to average."""
        plane = self._plane
        with plane.changed:
            alone = plane.phase is Phase.ACTIVE and plane.session is not None and plane.session.size == 1
        return alone and self._confirmed()

    def register_state(
        self,
        model: Any = None,
        optimizer: Any = None,
        sampler: Any = None,
        extra: Any = None,
        *,
        apply: Callable[[], Any] | None = None,
        state_dict: Callable[[], Any] | None = None,
        load_state_dict: Callable[[Any], Any] | None = None,
        private: Any = None,
        private_from: str = DONOR,
        sync: bool = True,
    ) -> None:
        """Register the training state, so that joiners get it and all founders start with the same state.

        Each argument takes one object with ``state_dict`` and ``load_state_dict`` or a list of them, or pass two callables. A
        founder returns with the most senior founder's state loaded. A joiner gets the state in its first call, beside the
        others' training: averages that come meanwhile are replayed there through ``apply()``, which applies the gradients in
        the parameters (by default, the optimizers' step). If ``apply`` leaves out a part of the program's step, such as
        clipping, or if ``extra`` is registered without ``apply``, the others wait for the joiner instead.

        ``private``: what belongs to this member alone, as the inner optimizer of local training: an object with ``state_dict``
        and ``load_state_dict``, a list, or a dict of these by name. It is never compared between members. A joiner gets that of
        one donor, all of it as of one moment; with ``private_from="fresh"`` it keeps its own. ``private="fresh"`` says that
        there is private state which is not registered. The rest is shared: with ``private``, only what calls lead to may
        change it, before the next step of a private optimizer or ``catch_up`` (docs/state.md#state-that-is-not-shared).

        ``sync=False``: the founders promise that they start with equal shared states: digests are compared instead of states
        sent, and each founder keeps its private state. ConfigError names what differs.

        Pass an ``ElasticSampler`` as ``sampler``, before the first average: from then on every call reports the batches that it
        uses up.

        With the setting ``resume`` (``ftlib run --resume PATH``) founders then ``load`` that directory's newest checkpoint.
        """
        if self._execution is not None:
            raise ConfigError("register_state was called within execute: call it before")
        if apply is not None and not callable(apply):
            raise ConfigError("apply= must be callable")
        roles = {"model": model, "optimizer": optimizer, "sampler": sampler, "extra": extra}
        own = Private.of(private, private_from)
        registered = Registered(roles, state_dict, load_state_dict, apply, agreed=self.agreed, private=own)
        data = self._plane.data
        for elastic in registered.elastic():
            data.register(elastic)
        self._turn(State.COMPUTING)
        self._lives.life.register(registered, sync=sync)
        data.settle(self.settings.consensus.join_timeout)
        self._turn(State.COMPUTING, State.RECOVERING)
        if self.settings.resume:
            self.load(self.settings.resume)

    @property
    def registered(self) -> Registered | None:
        """What the program has registered so far, None before."""
        return self._lives.life.transfer.registered

    def save(self, path: str | os.PathLike[str], *, wait: bool = False) -> None:
        """Write the registered state to a checkpoint in the directory (or URL) ``path``, beside the training.

        Call it at every worker, after a step; the worker with rank 0 writes. The checkpoint becomes complete once a later call
        has finished, or when this worker leaves; ``close`` waits for it. While another checkpoint is being written, this one is
        left out, with a line in the log; with ``wait``, the call waits instead. What fails is logged as an error, and counted.
        Only errors of the program raise (ConfigError: nothing is registered, or in the first one a part that cannot be kept).
        """
        try:
            directory = self._place("save", path)
        except OSError as error:
            self._keeper.nowhere(self._plane, os.fspath(path), error)
            return
        registered = self._lives.life.transfer.registered
        if registered is None:
            raise ConfigError("save: no state is registered: call register_state before it")
        if not self._call_lock.departed:
            shards = self.settings.shards
            own = directory.of_shard(self.settings.shard, shards)
            whole = functools.partial(directory.whole_names, shards) if shards > 1 else tuple
            self._keeper.save(own, self._plane, registered, wait=wait, whole=whole)

    def load(self, path: str | os.PathLike[str]) -> Loaded | None:
        """Begin from the newest complete checkpoint in ``path`` (or from ``path``, if it is one); returns its step and path.

        Call it at every worker, after ``register_state`` and before the first average, with any number of workers. One
        founder reads the checkpoint, and the others get it from that founder. Returns None and loads nothing if there is no
        checkpoint, and at a worker that joins a running job. Raises ConfigError if all are damaged, or it does not fit.
        """
        try:
            directory = self._place("load", path)
        except OSError as error:
            raise ConfigError(f"load: {path}: the current directory: {error.strerror}; give an absolute path") from None
        self._turn(State.COMPUTING)
        try:
            loaded = self._lives.life.resumption.load(directory)
            if loaded is not None:
                self._keeper.begun_from(str(loaded.path))
            return loaded
        finally:
            self._turn(State.COMPUTING, State.RECOVERING)

    def manual_join(self, addresses: Sequence[str] | str) -> bool:
        """Ask the members at these ``host:port`` to let this worker in; True if any of them answered."""
        given: Any = [addresses] if isinstance(addresses, str) else addresses
        wanted = list(given) if isinstance(given, Iterable) else [given]
        if not all(isinstance(each, str) for each in wanted):
            raise ConfigError(f"manual_join: addresses={addresses!r} must be a host:port, or a list of them")
        try:
            return self._consensus.report_join(wanted)
        except (ConsensusConfigError, ValueError) as error:
            raise ConfigError(str(error)) from None
        except ConsensusError as error:
            raise FTLibError(f"{error}: this worker's part is over") from None

    @property
    def should_leave(self) -> bool:
        """Whether there was a notice that this worker has to go: SIGTERM, a preemption, or ``drain`` (docs/elasticity.md).

        A program that reads this ends its loop by itself, and then closes; otherwise the next call is this worker's last.
        """
        return self._drain.looked()

    def drain(self, why: str = "asked by the program", within: float | None = None) -> None:
        """Give this worker notice, as SIGTERM does: it leaves after a call. From any thread, also from a signal handler.

        ``within``: seconds that it stays at most where it alone has the state (instead of the setting ``handover``).
        """
        self._drain.notice(why, within)

    def leave(self) -> None:
        """Say goodbye. A call in progress in another thread, and calls afterwards, return ABORT."""
        if os.getpid() == self._process:
            self._call_lock.depart()
            self._apart(functools.partial(self._leave, self._ended()))

    def close(self) -> None:
        """Leave if still a member, and release everything. Idempotent, at most about two seconds; calls return ABORT.

        A checkpoint that is being written is completed first, which may take as long as ``step_timeout``.
        From inside a call (a callback, a signal handler) it returns at once, and a thread does the rest.
        In a forked child it does nothing.
        """
        if os.getpid() != self._process:
            return
        with self._closing:
            if self._closed:
                return
            self._closed = True
            self._call_lock.depart()
        if self._at_exit is not None:
            atexit.unregister(self._at_exit)
        farewell = functools.partial(self._close, self._ended())
        self._drain.part()
        try:
            if self._tracer is not None:
                self._tracer.close()  # before the end: the agent tells of the last view changes
        finally:  # an interrupt may come meanwhile, and nobody closes this a second time
            self._apart(farewell)
            self._drain.remove()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<FTLib {self._plane!r}>"

    # --- what is the case ----------------------------------------------------------------------------------------------

    @property
    def rank(self) -> int:
        """This worker's rank in the newest active view, -1 before the first."""
        session = self._session
        return -1 if session is None else session.rank

    @property
    def size(self) -> int:
        """Replicas in the newest active view, each a member or several; before the first, in the job that was met (0: none)."""
        session = self._session
        if session is not None:
            return session.size
        known = self._lives.life.known
        return 0 if known is None else len(known) // self.settings.shards

    @property
    def epoch(self) -> int:
        """Number of the newest active view, 0 before the first."""
        session = self._session
        return 0 if session is None else session.view.epoch

    @property
    def view(self) -> View | None:
        """The newest active view, None before the first."""
        session = self._session
        return None if session is None else session.whole

    @property
    def member_list(self) -> tuple[Member, ...]:
        """Members of the newest active view in seniority order."""
        session = self._session
        return () if session is None else session.whole.members

    @property
    def step(self) -> int:
        """Steps granted: averages that ended with SUCCESS or NO_NEED, of all lifetimes of the job.

        At a worker that is late, only the steps that it has taken over. While a joiner applies an average again (``apply=`` of
        ``register_state``), the step that it does again: there it is what it was at the others, so that a schedule may follow
        from it.
        """
        replayed = replayed_step()
        if replayed is not None:
            return replayed
        plane = self._plane
        with plane.changed:
            return plane.step - plane.lag.steps

    @property
    def consensus(self) -> Consensus:
        """The consensus of this worker's current lifetime: who is in, and streams to the others."""
        return self._consensus

    @property
    def group(self) -> Group | None:
        """The process group of the newest active view, None if this worker is alone. It takes CPU and CUDA tensors.

        Within ``execute``, the group of its attempt: read this property again in each attempt.
        """
        if (execution := self._execution) is not None:
            return execution.group
        session = self._session
        return None if session is None else session.program_group

    def device_mesh(self, device_type: str, shape: Sequence[int], names: Sequence[str]) -> DeviceMesh:
        """A ``torch.distributed.device_mesh.DeviceMesh`` over the processes of this replica, for ``fully_shard`` and the like.

        ``device_type``: ``"cpu"``. ``shape``: sizes of its dimensions, whose product is ``shards``; ``names``: one for each.
        Every process of the replica calls it, with the same arguments; it becomes the world of ``torch.distributed``, with its
        shard for a rank. Its operations raise ReplicaLost, within milliseconds, once a process of the replica is lost.
        Raises ConfigError, and JoinError if the others do not come within ``join_timeout``.
        """
        return self._lives.life.meshes.mesh(device_type, shape, names)

    def metrics(self) -> dict[str, Any]:
        """Return plain counts since the start, and where this worker is: see docs/observability.md. Times in seconds.

        Asks the agent for its part, which takes part of a millisecond: call it every hundredth step, not every step.
        """
        status = self._consensus.status()
        shared = {key: status[key] for key in _CONTROL if key in status}
        return {**facts(self._plane, self._framework, self._more_facts), "size": self.size, **shared}

    def add_metrics(self, name: str, get: Callable[[], Any]) -> None:
        """``metrics`` and ``/status`` show from now on, under ``name``, what ``get`` returns at once: plain values.

        Where it raises they show the error.
        """
        self._more_facts[name] = get

    # --- inside --------------------------------------------------------------------------------------------------------

    @property
    def _session(self) -> Session | None:
        """The newest active session; within ``execute``, that of the attempt."""
        execution = self._execution
        return self._plane.session if execution is None else execution.session

    @property
    def _consensus(self) -> Consensus:
        return self._lives.life.consensus

    def _start(self) -> None:
        self._at_exit = functools.partial(_close, weakref.ref(self))
        atexit.register(self._at_exit)
        self._drain.install(shield=not self.settings.supervisor)  # the launcher signals no group, and kills it with its worker
        if self.settings.preemption:
            from .lifecycle.preemption import Watch  # noqa: PLC0415 - an HTTP client, which few need
            from .settings.preemption import source_of  # noqa: PLC0415

            self._watch = Watch(source_of(self.settings.preemption), self._drain.notice)
            self._watch.start()
        self._lives.life.begin()
        self._turn(State.COMPUTING)
        if self._tracer is not None:
            self._tracer.start()

    def _traced(self, traces: Traces, every: int) -> Tracer:
        from .lifecycle.tracing.tracer import Tracer  # noqa: PLC0415 - with OpenTelemetry, which few have

        def status() -> dict[str, Any]:
            return self._consensus.status()  # of the lifetime then

        return Tracer(traces, self.settings.consensus.job, every, status, self.settings.name)

    def _about(self, event: str, **more: Any) -> dict[str, Any]:
        return self._plane.about(event, **more)

    def _ask_awaited(self, ring: KeyRing | None) -> bool | None:
        """The launcher's word whether another worker is coming."""
        if ring is None:
            return None
        settings, member = self.settings, self._consensus.id
        return ask_awaited(settings.supervisor, ring.first.vouch, job=settings.consensus.job, member=member)

    def _turn(self, state: State, before: State | None = None) -> None:
        plane = self._plane
        plane.counters.time_use.turn(plane.threads.now(), state, before)

    def _drained(self) -> None:
        self.leave()
        self.close()
        raise SystemExit(0)

    def _before_the_last(self) -> None:
        """Keep what would be gone with this worker, which alone has the state and may stay no longer."""
        registered = self._lives.life.transfer.registered
        if self._kept or registered is None or not self._handover.expired:
            return
        self._kept = True
        self._keeper.save_again(self._plane, registered)

    def _not_needed(self, reason: JobEnded) -> None:
        text = "%s: this worker is not needed any more"
        logger.info(text, reason, extra=self._plane.about("job_ended"))
        self.close()

    def _ended(self) -> bool:
        """Whether this worker leaves because its program has come to its end: no notice, and no exception that ends it."""
        error = sys.exc_info()[1] or getattr(sys, "last_value", None)
        clean = error is None or (isinstance(error, SystemExit) and error.code in (None, 0))
        return clean and not self._call_lock.noticed

    def _confirmed(self) -> bool:
        """In passive mode the consensus freezes the worker when the view changes; in active mode it is asked here."""
        return self._consensus.passive_or_active() is Mode.PASSIVE or self._consensus.confirm()

    def _place(self, what: str, path: str | os.PathLike[str]) -> Depot:
        """The place that ``path`` names, whatever the current directory is later. ConfigError; OSError if that is gone."""
        if os.getpid() != self._process:
            raise ConfigError(f"{what}: this process was forked from a worker and is none")
        if self._call_lock.inside():
            raise ConfigError(f"{what} was called within a call, from a callback, a signal handler or a state function")
        if (wrong := fault_of(path)) is not None:
            raise ConfigError(f"{what}: {wrong}: give a directory or a URL")
        return depot_of(path)

    def _apart(self, farewell: Callable[[], None]) -> None:
        """Run ``farewell`` here; on another thread if this one is inside a call, which cannot end now and may hold any lock."""
        if self._call_lock.inside():
            threading.Thread(target=farewell, name="ftlib-close").start()
        else:
            farewell()

    def _leave(self, ended: bool) -> None:
        self._drain.part()
        self._lives.goodbye(LEAVE_TIMEOUT, ended=ended)
        self._keeper.close()
        self._drain.part(parting=self._call_lock.noticed)  # then the process ends

    def _close(self, ended: bool) -> None:
        try:
            self._lives.goodbye(CLOSE_TIMEOUT if self._plane.current is None else BUSY_TIMEOUT, ended=ended)
        finally:
            self._lives.life.end()
        self._framework.close()
        if self._watch is not None:
            self._watch.stop()
        self._keeper.close()  # last: meanwhile the others go on


def _backend_of(choice: str) -> type[Membership] | None:
    """Return the backend of that name; None if the settings decide."""
    if choice is UNSAID:
        return None
    if choice not in BACKENDS:
        raise ConfigError(f"unknown consensus {choice!r}: choose {' or '.join(BACKENDS)}")
    return BACKENDS[choice]


def _ring_of(settings: Settings) -> KeyRing | None:
    try:
        return KeyRing.of(settings.consensus)
    except ConsensusConfigError as error:
        raise ConfigError(str(error)) from None


def _drain(reference: weakref.ref[FTLib], why: str) -> None:
    """Give notice, as somebody outside wants, who has as much time as a joiner."""
    ft = reference()
    if ft is not None:
        ft.drain(why, ft.settings.consensus.join_timeout)


def _close(reference: weakref.ref[FTLib]) -> None:
    """Close at the interpreter's end."""
    ft = reference()
    if ft is not None:
        with contextlib.suppress(FTLibError, ConsensusError):
            ft.close()
