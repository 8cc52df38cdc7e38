"""``FTLib``: the object a training program holds. Puts consensus, framework and data plane together; decides nothing itself."""

from __future__ import annotations

import atexit
import contextlib
import functools
import hashlib
import ipaddress
import logging
import os
import secrets
import socket
import threading
import weakref
from collections.abc import Callable, Mapping, Sequence
from types import TracebackType
from typing import Any, Self

import torch

from consensus import (
    Bound,
    Consensus,
    ConsensusError,
    Gossip,
    KeyRing,
    LeftError,
    Member,
    Mode,
    View,
    format_address,
    parse_address,
)
from consensus import ConfigError as ConsensusConfigError

from .call import Call, Kind
from .caller import Caller, Limits
from .config import Settings, resolve
from .drain import Drain
from .errors import ConfigError, FTLibError, GroupError, JoinError
from .facts import facts
from .frameworks import framework_by_name
from .frameworks.base import Framework, Group, GroupSpec
from .launch.announce import announce
from .logs import about, configure
from .meeting import introduced, publish
from .plane import Phase, Plane
from .ranks import RankAssignScheme
from .rebuild import Rebuilder, RebuildError
from .registry import Registered
from .status import Status
from .targets import Layouts, Targets, targets_of
from .transfer import PATH, Transfer

__all__ = ["FTLib"]

logger = logging.getLogger("ftlib")

_OPERATIONS = ("MEAN", "SUM", "MIN", "MAX", "PRODUCT")
_CONTROL = ("messages", "tick_delay", "tick_delay_max", "awareness", "changing")
"""What ``metrics`` tells of the consensus."""
LEAVE_TIMEOUT = 5.0
"""Seconds that ``leave`` waits for the others to agree."""
CLOSE_TIMEOUT = 1.0
"""The same for ``close``."""
EXPLAIN_TIMEOUT = 3.0
"""Seconds that the consensus gets, after ``join_timeout``, to say what it found at the introducers."""


class FTLib:
    """One worker's part in a job. Make it with :meth:`init`; also a context manager that closes at its end."""

    def __init__(self, settings: Settings, consensus: Consensus, framework: Framework, rank_assign: RankAssignScheme) -> None:
        """Use :meth:`init`. Nothing is started here."""
        self.settings = settings
        self._consensus = consensus
        self._framework = framework
        self._rank_assign = rank_assign
        self._plane = Plane(lambda: consensus.member.id, consensus.progress)
        self._plane.job = settings.consensus.job
        tell = functools.partial(facts, self._plane)
        self._rebuilder = Rebuilder(self._plane, consensus, framework, self._rebuild, self._activated, tell)
        limits = Limits(settings.step_timeout, settings.min_size, may_be_spare=settings.consensus.max_size is not None)
        self._caller = Caller(self._plane, consensus, self._rebuilder, limits, settings.in_flight)
        self._ring = _ring_of(settings)
        self._transfer = Transfer(self._plane, settings.consensus.join_timeout, settings.step_timeout, self._ring)
        self._caller.load_state = self._transfer.load
        self._layouts = Layouts(framework, int(settings.bucket_mb * 2**20))
        self._drain = Drain(self._caller)
        self._callbacks: list[Callable[[View], None]] = []
        self._calling_back = 0
        """The thread that runs them now."""
        self._told = False
        """Whether the user was told that there is no gradient."""
        self._known: View | None = None
        self._at_exit: Callable[[], None] | None = None
        self._closing = threading.Lock()
        self._closed = False

    @classmethod
    def init(
        cls,
        consensus: str | Consensus = "gossip",
        framework: str | Framework = "gloo",
        *,
        config: str | os.PathLike[str] | Mapping[str, Any] | None = None,
        rank_assign: RankAssignScheme | None = None,
        **settings: Any,
    ) -> FTLib:
        """Start this worker and meet the others.

        A founding worker returns as a member of the first view. A worker that joins a running job returns once it has met the
        job; its first call admits it. Raises ConfigError, or JoinError after ``join_timeout``.
        """
        resolved = resolve(settings, config)
        configure(resolved.log_format, resolved.log_level)
        if resolved.launched is not None and consensus == "gossip":
            logger.info("%s", resolved.launched.says)
            resolved = introduced(resolved)
        backend = framework_by_name(framework) if isinstance(framework, str) else framework
        ft = cls(resolved, _consensus_of(consensus, resolved), backend, rank_assign or RankAssignScheme())
        try:
            ft._start()
        except BaseException:
            ft.close()
            raise
        return ft

    # --- calls ---------------------------------------------------------------------------------------------------------

    def allreduce_average(self, target: Any, *, weight: float = 1.0) -> Status:
        """Average over all members, weighted: ``sum(weight * tensor) / sum(weight)``.

        ``target``: a module or parameters (their ``.grad``; None contributes zeros and receives the average), other tensors or
        numpy arrays (in place), one or several. ``weight``: finite, at least 0; e.g. this worker's number of samples.
        """
        try:
            share = float(weight)
        except (TypeError, ValueError):
            share = float("nan")
        if not 0.0 <= share < float("inf"):
            raise ConfigError(f"weight={weight!r} must be a finite number of at least 0")
        targets = targets_of(target)
        if not self._told and targets.owners and all(source is None for source in targets.sources):
            self._told = True
            logger.warning(
                "no parameter has a gradient here: this worker contributes zeros; call loss.backward() before averaging",
                extra=about(self._plane, "no_gradient"),
            )
        layout = self._layouts.layout("average", targets, "SUM", mean=True)
        return self._run(Call(Kind.AVERAGE, layout, targets.sources, owners=targets.owners, weight=share, divide=True))

    def wait_gradients_ready(self, model: Any = None, params: Any = None) -> Status:
        """``allreduce_average`` under its older name; ``params`` may be numpy arrays."""
        if (model is None) == (params is None):
            raise ConfigError("wait_gradients_ready takes either model= or params=")
        return self.allreduce_average(params if model is None else model)

    def allreduce(self, tensor: Any, op: str = "MEAN") -> Status:
        """Reduce in place over all members: MEAN, SUM, MIN, MAX or PRODUCT."""
        if op not in _OPERATIONS:
            raise ConfigError(f"unknown operation {op!r}: choose one of {', '.join(_OPERATIONS)}")
        targets = targets_of(tensor)
        mean = op == "MEAN"
        layout = self._layouts.layout(f"allreduce {op}", targets, "SUM" if mean else op, mean=mean)
        return self._run(Call(Kind.ALLREDUCE, layout, targets.sources, owners=targets.owners, divide=mean))

    def broadcast(self, tensor: Any, root_rank: int) -> Status:
        """Copy the tensor of ``root_rank`` (a rank of the current view) to all members. FAIL if that member is gone."""
        sources = targets_of(tensor).sources
        owners = [source for source in sources if source is not None and source.layout is torch.strided]
        if len(owners) != len(sources):
            raise ConfigError(
                "broadcast: a tensor is sparse or a parameter has no gradient; pass dense tensors, e.g. parameter.data"
            )
        rows: list[torch.Tensor | None] = [tensor.contiguous().view(-1).view(torch.uint8) for tensor in owners]
        layout = self._layouts.layout(f"broadcast from {root_rank}", Targets(rows, list(owners)), "SUM")
        status = self._run(Call(Kind.BROADCAST, layout, rows, root_rank=root_rank))
        if status:
            for owner, row in zip(owners, rows, strict=True):
                if not owner.is_contiguous() and row is not None:
                    owner.copy_(row.view(owner.dtype).view(owner.shape))
        return status

    def barrier(self) -> Status:
        """Wait until all members are here."""
        return self._run(Call(Kind.BARRIER, self._layouts.layout("barrier", Targets([], []), "SUM"), []))

    def execute(self, func: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """Run ``func`` as one step and return what it returns; its exceptions pass through."""
        return func(*args, **kwargs)

    # --- membership ----------------------------------------------------------------------------------------------------

    def initialized(self) -> bool:
        """Whether a group is up and, in active mode, confirmed: false after a death, a failure or a join, until rebuilt."""
        if self._plane.phase is not Phase.ACTIVE:
            return False
        return self._consensus.passive_or_active() is Mode.PASSIVE or self._consensus.confirm()

    def skip_allreduce(self) -> bool:
        """Whether this worker is alone, so that there is nothing to average."""
        if self._consensus.passive_or_active() is Mode.ACTIVE:
            self._consensus.confirm()
        session = self._plane.session
        return session is not None and session.size == 1

    def register_state(
        self,
        model: Any = None,
        optimizer: Any = None,
        sampler: Any = None,
        extra: Any = None,
        *,
        apply: Callable[..., Any] | None = None,
        state_dict: Callable[[], Any] | None = None,
        load_state_dict: Callable[[Any], Any] | None = None,
    ) -> None:
        """Say what makes up the training state, so that joiners get it and founders start alike.

        Each takes one object with ``state_dict`` and ``load_state_dict`` or a list of them, or pass two callables. A founder
        returns with the most senior founder's state loaded; a joiner loads in its first call. ``apply`` is kept for replaying
        averages; this release loads before the first call instead.
        """
        if apply is not None and not callable(apply):
            raise ConfigError("apply= must be callable")
        roles = {"model": model, "optimizer": optimizer, "sampler": sampler, "extra": extra}
        self._transfer.register(Registered(roles, state_dict, load_state_dict))

    def on_view_change(self, callback: Callable[[View], None]) -> None:
        """Call ``callback(view)`` on the training thread, at the start of the next call after each view change.

        It may look at everything here but not average: workers are told at different calls.
        """
        self._callbacks.append(callback)

    def manual_join(self, addresses: Sequence[str] | str) -> bool:
        """Ask the members at these ``host:port`` to let this worker in; whether any of them answered."""
        try:
            return self._consensus.report_join([addresses] if isinstance(addresses, str) else list(addresses))
        except (ConsensusConfigError, ValueError) as error:
            raise ConfigError(str(error)) from None

    def leave(self) -> None:
        """Say goodbye, outside of a call. Calls return ABORT afterwards."""
        self._goodbye(LEAVE_TIMEOUT)

    def close(self) -> None:
        """Leave if still a member, and give everything back. Idempotent, at most about two seconds."""
        with self._closing:
            if self._closed:
                return
            self._closed = True
        if self._at_exit is not None:
            atexit.unregister(self._at_exit)
        self._drain.remove()
        if getattr(self._consensus, "member", None) is not None:
            self._goodbye(CLOSE_TIMEOUT)
        self._plane.stop(LeftError("closed"))
        with contextlib.suppress(ConsensusError):
            self._consensus.stop()
        self._rebuilder.close(CLOSE_TIMEOUT)
        self._framework.close()

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
        session = self._plane.session
        return -1 if session is None else session.rank

    @property
    def size(self) -> int:
        """Members of the newest active view; before the first, of the job that was met (0 for none)."""
        session = self._plane.session
        if session is not None:
            return session.size
        return 0 if self._known is None else len(self._known)

    @property
    def epoch(self) -> int:
        """Number of the newest active view, 0 before the first."""
        session = self._plane.session
        return 0 if session is None else session.view.epoch

    @property
    def view(self) -> View | None:
        """The newest active view, None before the first."""
        session = self._plane.session
        return None if session is None else session.view

    @property
    def member_list(self) -> tuple[Member, ...]:
        """Its members in seniority order."""
        session = self._plane.session
        return () if session is None else session.view.members

    @property
    def step(self) -> int:
        """Steps granted: averages that ended with SUCCESS or NO_NEED, of all lifetimes of the job."""
        return self._plane.step

    @property
    def group(self) -> Group | None:
        """The process group of the newest active view, None where this worker is alone."""
        session = self._plane.session
        return None if session is None else session.group

    def metrics(self) -> dict[str, Any]:
        """Plain counts since the start, and where this worker is: see the table in ``docs/observability.md``. Times in seconds.

        Asks the agent for its part, which takes it part of a millisecond: for every hundredth step, not for every one.
        """
        status = self._consensus.status()
        shared = {key: status[key] for key in _CONTROL if key in status}
        return {**facts(self._plane), "size": self.size, **shared}

    # --- inside --------------------------------------------------------------------------------------------------------

    def _start(self) -> None:
        meta = dict(self._framework.start(self._bind()))
        meta["room"] = secrets.token_hex(8)  # members alone learn it: with the view id, the name under which a group meets
        if self.settings.name:
            meta["name"] = self.settings.name
        if self.settings.supervisor:
            meta["supervisor"] = self.settings.supervisor
        self._consensus.serve(PATH, self._transfer.source)
        self._rebuilder.start()
        self._at_exit = functools.partial(_close, weakref.ref(self))
        atexit.register(self._at_exit)
        try:
            self._consensus.start(self._rebuilder, meta=meta)
        except ConsensusConfigError as error:
            raise ConfigError(str(error)) from None
        except ConsensusError as error:
            raise JoinError(str(error)) from error
        self._meet()
        self._drain.install()

    def _bind(self) -> str:
        """Bind the control address; the host that the framework listens on. ConfigError where it must not be that one."""
        settings = self.settings
        _check_bind(settings)
        try:
            bound = self._consensus.bind()
        except ConsensusConfigError as error:
            launch = settings.launched
            derived = launch is not None and launch.settings.get("bind") == settings.consensus.bind and launch.store is None
            hint = f"; under {launch.by} that is FTLIB_PORT, the same for all workers" if launch is not None and derived else ""
            raise ConfigError(f"{error}{hint}") from None
        if bound is None:
            return parse_address(settings.consensus.bind)[0]
        _check_bound(settings, bound)
        publish(settings, bound)
        return bound.interface

    def _meet(self) -> None:
        timeout = self.settings.consensus.join_timeout
        plane = self._plane
        # The consensus gives up by itself, and knows best why: it looks at the introducers once more before it says so.
        self._known = self._consensus.wait_known(timeout + EXPLAIN_TIMEOUT)
        admitted = self._known is not None and self._consensus.member.id in self._known
        if admitted or self._known is None:
            with plane.changed:
                plane.changed.wait_for(
                    lambda: plane.phase in (Phase.ACTIVE, Phase.STOPPED), timeout if admitted else EXPLAIN_TIMEOUT
                )
        if plane.error is not None:
            raise plane.error
        if self._known is not None and (plane.phase is Phase.ACTIVE or not admitted):
            return
        asked = ", ".join(self.settings.consensus.introducers) or "no introducers were given"
        wanted = self.settings.consensus.initial_size
        raise JoinError(
            f"no cluster of {wanted} members came up within {timeout:g} s ({asked}); are they started, and reachable?"
        )

    def _run(self, call: Call) -> Status:
        self._call_back()
        with torch.no_grad():
            status = self._caller.run(call)
        drained = self._caller.said_goodbye and status is not Status.ABORT
        if drained or (self._caller.leaving and self._plane.phase is Phase.STOPPED and not self._closed):
            self.leave()
            self.close()
            raise SystemExit(0)
        return status

    def _call_back(self) -> None:
        """Tell the program's callbacks of the views since the last call."""
        if self._calling_back == threading.get_ident():
            raise ConfigError(
                "a callback of on_view_change cannot average: workers run it at different calls; act after the call instead"
            )
        if not self._plane.changes:
            return
        with self._plane.changed:
            changes, self._plane.changes = self._plane.changes, []
        self._calling_back = threading.get_ident()
        try:
            for view in changes:
                for callback in self._callbacks:
                    callback(view)
        finally:
            self._calling_back = 0

    def _rebuild(self, view: View) -> tuple[Mapping[str, int], Group | None]:
        """From an installed view to a group, in three steps; on the rebuild thread. RebuildError, never a false success."""
        members = self._consensus.get_member_list()
        if tuple(member.id for member in members) != view.ids:
            raise RebuildError(f"the members changed while the group of {view} was to be built")
        own = self._consensus.member.id
        ranks = {member.id: self._rank_assign.get_rank_and_size(members, member.id)[0] for member in members}
        if sorted(ranks.values()) != list(range(len(members))):
            raise RebuildError(
                f"{type(self._rank_assign).__name__} gave ranks {sorted(ranks.values())} to {len(members)} members"
            )
        if len(members) == 1:
            return ranks, None
        host = view.members[view.epoch % len(members)]
        spec = GroupSpec(_room(view, host), view.epoch, ranks[own], len(members), dict(host.meta), self.settings.step_timeout)
        try:
            return ranks, self._framework.rebuild(spec)
        except GroupError as error:
            by_rank = {rank: member_id for member_id, rank in ranks.items()}
            raise RebuildError(str(error), [by_rank[peer] for peer in error.peers if peer in by_rank]) from error

    def _activated(self, view: View) -> None:
        """On the rebuild thread, after a view was activated: tell the launcher, on a thread of its own."""
        if not self.settings.supervisor:
            return
        member = self._consensus.member
        arguments = {
            "vouch": None if self._ring is None else self._ring.first.vouch,
            "job": self.settings.consensus.job,
            "member": member.id,
            "address": format_address(member.address),
            "epoch": view.epoch,
        }
        threading.Thread(
            target=announce, args=(self.settings.supervisor,), kwargs=arguments, name="ftlib-announce", daemon=True
        ).start()

    def _goodbye(self, timeout: float) -> None:
        plane = self._plane
        if self._caller.said_goodbye:  # the trailer told everybody: asking again could only disturb
            with plane.changed:
                plane.changed.wait_for(lambda: plane.phase is Phase.STOPPED, timeout / 2)
        if plane.phase is Phase.STOPPED:
            return
        with contextlib.suppress(ConsensusError):
            self._consensus.leave()
        with plane.changed:
            left = plane.changed.wait_for(lambda: plane.phase is Phase.STOPPED, timeout)
        if not left:
            logger.debug(
                "the others did not confirm this worker's leave within %g s", timeout, extra=about(plane, "leave_unconfirmed")
            )
            plane.stop(LeftError("left without the others' confirmation"))


def _consensus_of(choice: str | Consensus, settings: Settings) -> Consensus:
    if isinstance(choice, Consensus):
        return choice
    if choice == "gossip":
        return Gossip(settings.consensus)
    if choice == "shared_storage":
        raise ConfigError("consensus 'shared_storage' is not part of this release: choose gossip")
    raise ConfigError(f"unknown consensus {choice!r}: choose gossip")


def _ring_of(settings: Settings) -> KeyRing | None:
    try:
        return KeyRing.of(settings.consensus)
    except ConsensusConfigError as error:
        raise ConfigError(str(error)) from None


def _room(view: View, host: Member) -> str:
    """What a view's group is called in the store of ``host``: nothing that a stranger could guess."""
    return hashlib.blake2b(f"{host.fact('room')}|{view.view_id}".encode(), digest_size=16).hexdigest()


def _trust(settings: Settings, where: str) -> None:
    """ConfigError unless members know each other, or the user said that everybody can be believed."""
    if not (settings.consensus.secured or settings.consensus.insecure):
        raise ConfigError(
            f"bind={where} is reachable from other hosts: give all workers the same secret or secret_file (ftlib keys new "
            "makes one), or insecure=True where you trust everybody in that network"
        )


def _check_bind(settings: Settings) -> None:
    """Before anything listens. ConfigError unless it is this machine only, or strangers are kept out."""
    bind = settings.consensus.bind
    if not bind or bind.startswith(":"):
        return  # known once it is bound
    host = parse_address(bind)[0]
    try:
        found = {ipaddress.ip_address(item[4][0]) for item in socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)}
    except (OSError, UnicodeError):
        raise ConfigError(f"bind={bind}: cannot resolve {host!r}; give an address of this host") from None
    if not all(address.is_loopback for address in found):
        _trust(settings, bind)


def _check_bound(settings: Settings, bound: Bound) -> None:
    """The same for an address that was derived; and a loopback address is of no use to other hosts."""
    host, where = bound.interface, format_address(bound.address)
    loopback = ipaddress.ip_address(host).is_loopback
    if not loopback:
        _trust(settings, where)
    launch = settings.launched
    if loopback and launch is not None and launch.several_hosts:
        way_out = (
            "FTLIB_BIND=ADDRESS:0 here" if launch.store else "FTLIB_INTRODUCERS=ADDRESS:PORT and FTLIB_INITIAL_SIZE everywhere"
        )
        raise ConfigError(
            f"{launch.by} runs workers on several hosts, but here {where} is what leads to the first of them, which "
            f"is loopback: correct /etc/hosts, or set {way_out}, with an address that the others reach"
        )


def _close(reference: weakref.ref[FTLib]) -> None:
    """At the interpreter's end."""
    ft = reference()
    if ft is not None:
        with contextlib.suppress(FTLibError, ConsensusError):
            ft.close()
