"""``FTLib``: the object a training program holds. Puts consensus, framework and data plane together; decides nothing itself."""

from __future__ import annotations

import atexit
import contextlib
import functools
import hashlib
import logging
import os
import secrets
import threading
import weakref
from collections.abc import Callable, Mapping, Sequence
from types import TracebackType
from typing import Any, Self

from consensus import ConfigError as ConsensusConfigError
from consensus import (
    Consensus,
    ConsensusError,
    Gossip,
    KeyRing,
    LeftError,
    Member,
    Mode,
    View,
    format_address,
)

from .binding import bind
from .caller import Caller, Limits
from .calls import Calls
from .config import VETO, Settings, resolve
from .drain import Drain
from .errors import ConfigError, FTLibError, GroupError, JoinError
from .facts import facts
from .frameworks import framework_by_name
from .frameworks.base import Framework, Group, GroupSpec
from .launch.announce import announce
from .logs import about, configure
from .meeting import introduced
from .plane import Phase, Plane
from .ranks import RankAssignScheme
from .rebuild import Rebuilder, RebuildError
from .registry import Registered
from .targets import Layouts
from .transfer import PATH, Transfer

__all__ = ["FTLib"]

logger = logging.getLogger("ftlib")

_CONTROL = ("messages", "tick_delay", "tick_delay_max", "awareness", "changing")
"""What ``metrics`` tells of the consensus."""
LEAVE_TIMEOUT = 5.0
"""Seconds that ``leave`` waits for the others to agree."""
CLOSE_TIMEOUT = 1.0
"""The same for ``close``."""
BUSY_TIMEOUT = 0.2
"""The same for ``close`` in the middle of a call, which shall end soon."""
EXPLAIN_TIMEOUT = 3.0
"""Seconds that the consensus gets, after ``join_timeout``, to say what it found at the introducers."""


class FTLib(Calls):
    """One worker's part in a job. Make it with :meth:`init`; also a context manager that closes at its end."""

    def __init__(self, settings: Settings, consensus: Consensus, framework: Framework, rank_assign: RankAssignScheme) -> None:
        """Use :meth:`init`. Nothing is started here."""
        self.settings = settings
        self._consensus = consensus
        self._framework = framework
        self._rank_assign = rank_assign
        plane = Plane(lambda: consensus.member.id, consensus.progress)
        plane.job = settings.consensus.job
        tell = functools.partial(facts, plane)
        self._rebuilder = Rebuilder(plane, consensus, framework, self._rebuild, self._activated, tell)
        limits = Limits(settings.step_timeout, settings.min_size, may_be_spare=settings.consensus.max_size is not None)
        caller = Caller(plane, consensus, self._rebuilder, limits, settings.in_flight)
        super().__init__(plane, caller, Layouts(framework, int(settings.bucket_mb * 2**20)), veto=settings.nonfinite == VETO)
        self._ring = _ring_of(settings)
        self._transfer = Transfer(plane, settings.consensus.join_timeout, settings.step_timeout, self._ring)
        caller.load_state = self._transfer.load
        self._drain = Drain(caller)
        self._known: View | None = None
        self._at_exit: Callable[[], None] | None = None
        self._process = os.getpid()
        self._closing = threading.RLock()  # a signal handler may close in the middle of a close
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

    # --- membership ----------------------------------------------------------------------------------------------------

    def initialized(self) -> bool:
        """Whether a group is up and, in active mode, confirmed: false after a death, a failure or a join, until rebuilt.

        While operations are under way it is not asked: a joiner waits until they have ended.
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

    def manual_join(self, addresses: Sequence[str] | str) -> bool:
        """Ask the members at these ``host:port`` to let this worker in; whether any of them answered."""
        try:
            return self._consensus.report_join([addresses] if isinstance(addresses, str) else list(addresses))
        except (ConsensusConfigError, ValueError) as error:
            raise ConfigError(str(error)) from None
        except ConsensusError as error:
            raise FTLibError(f"{error}: this worker's part is over") from None

    def leave(self) -> None:
        """Say goodbye. A call in progress in another thread, and calls afterwards, return ABORT."""
        if os.getpid() == self._process:
            self._caller.departed = True
            self._apart(functools.partial(self._goodbye, LEAVE_TIMEOUT))

    def close(self) -> None:
        """Leave if still a member, and give everything back. Idempotent, at most about two seconds; calls return ABORT.

        From inside a call (a callback, a signal handler) it returns at once, and a thread does the rest.
        In a forked child it does nothing.
        """
        if os.getpid() != self._process:
            return
        with self._closing:
            if self._closed:
                return
            self._closed = self._caller.departed = True
        if self._at_exit is not None:
            atexit.unregister(self._at_exit)
        self._drain.remove()
        self._apart(self._close)

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
        meta = dict(self._framework.start(bind(self._consensus, self.settings)))
        meta["_room"] = secrets.token_hex(8)  # members alone learn it: with the view id, the name under which a group meets
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

    def _drained(self) -> None:
        self.leave()
        self.close()
        raise SystemExit(0)

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
        if self.settings.supervisor:
            threading.Thread(target=self._announce, args=(view,), name="ftlib-announce", daemon=True).start()

    def _announce(self, view: View) -> None:
        if self._ring is not None and (line := self._ring.renew()) is not None:
            logger.info("%s", line)
        member = self._consensus.member
        announce(
            self.settings.supervisor,
            None if self._ring is None else self._ring.first.vouch,
            job=self.settings.consensus.job,
            member=member.id,
            address=format_address(member.address),
            epoch=view.epoch,
        )

    def _confirmed(self) -> bool:
        """In passive mode the consensus tells by freezing; in active mode it is asked for what it knows."""
        return self._consensus.passive_or_active() is Mode.PASSIVE or self._consensus.confirm()

    def _apart(self, farewell: Callable[[], None]) -> None:
        """Run it here, unless this thread is inside a call: that could not end meanwhile, and may hold any lock."""
        if self._caller.inside():
            threading.Thread(target=farewell, name="ftlib-close").start()
        else:
            farewell()

    def _close(self) -> None:
        plane = self._plane
        if getattr(self._consensus, "member", None) is not None:
            self._goodbye(CLOSE_TIMEOUT if plane.current is None else BUSY_TIMEOUT)
        group = plane.stop(LeftError("closed"))
        if group is not None and plane.running is not None:
            group.abort()
        with contextlib.suppress(ConsensusError):
            self._consensus.stop()
        self._rebuilder.close(CLOSE_TIMEOUT)
        self._framework.close()

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
    return hashlib.blake2b(f"{host.fact('_room')}|{view.view_id}".encode(), digest_size=16).hexdigest()


def _close(reference: weakref.ref[FTLib]) -> None:
    """At the interpreter's end."""
    ft = reference()
    if ft is not None:
        with contextlib.suppress(FTLibError, ConsensusError):
            ft.close()
