"""Which checkpoint the processes of a replica begin from: the newest one that each of them can read, its own shard of it.

Each process by itself might find another one: who looks a moment later sees a newer step, and who finds a file of its shard
torn takes an older one. So the process of shard 0 alone lists them, and proposes the newest. All of them read it beside each
other and say what came of that; if one cannot read it, the next older one is proposed. Only the processes that read for their
shard take part: the others get the state from these.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace

from consensus import KeyRing, Member

from ..common.refusals import Refusal
from ..core.calls.session import Session
from ..core.plane.phase import Phase
from ..core.plane.plane import Plane
from ..core.replicas.whole import whole_replicas
from ..errors import ConfigError
from ..recovery.joiner.http_transport import FetchError, Later, Nothing, StillReading, request
from ..recovery.layout.requests import POLL, Body, pieces
from .checkpoint import Found
from .depot import Depot
from .manifest import OF_ONE, TornError
from .names import Name, ShardOf

_RETRY = 0.5
"""Seconds to wait for a view change if the process of shard 0 does not answer."""
_LIMIT = 1 << 20
"""Bytes that its answer may have."""
_SHOWN = 300
"""Characters that are passed on of why a checkpoint cannot be read."""
_EVERYWHERE = "call it at every worker, after register_state and before the first average"


class ViewChangedError(Exception):
    """The session ended before the processes of this replica had agreed."""


class Choice:
    """What they have said of the checkpoints that all shards have."""

    def __init__(self, names: Sequence[Name], shards: int) -> None:
        """``names``: these checkpoints, the newest first."""
        self._names = names
        self._shards = shards
        self._runs: dict[int, str] = {}
        """Which run wrote the proposed one, by the shards that have read it."""
        self.torn: dict[str, str] = {}
        """Why those that were passed over cannot be read."""

    @property
    def name(self) -> Name | None:
        """The proposed one; None if there is none, or none that all can read."""
        return next((name for name in self._names if str(name) not in self.torn), None)

    @property
    def settled(self) -> bool:
        """Whether all begin from the proposed one."""
        return self.name is None or len(self._runs) == self._shards

    def intact(self, shard: int, name: str, run: str) -> None:
        """That process has read ``name``, which ``run`` has written."""
        if name == str(self.name):
            self._runs[shard] = run
            if len(set(self._runs.values())) > 1:
                self.spoilt(name, "its shards are of different runs")

    def spoilt(self, name: str, why: str) -> None:
        """A process cannot read ``name``. Too late once all have."""
        if name == str(self.name) and not (self.settled and len(set(self._runs.values())) == 1):
            self.torn[name] = why
            self._runs.clear()


class Chooser:
    """Agrees with the other processes of this replica, in one lifetime."""

    PATH = "/resumption-choice"

    def __init__(self, plane: Plane, ring: KeyRing | None, patience: float, own: ShardOf) -> None:
        """``patience``: seconds to wait for a process that does not call ``load``. ``own``: the shard of this one."""
        self._plane = plane
        self._ring = ring
        self._patience = patience
        self._own = own
        self._shard, self._shards = own
        # Guarded by the plane's lock:
        self._round = 0
        self._choice: Choice | None = None
        """Of that round."""
        self._wanted: tuple[Depot, Name | None] | None = None
        """What it is from: a place, or one checkpoint in each shard's folder there."""
        self._heard: set[int] = set()
        """Shards whose processes have asked in that round."""
        self._listing = False
        self._begun: Name | None = None
        """The checkpoint that this process has loaded."""

    def begun(self, name: Name | None) -> None:
        """This process has loaded ``name``, or the state of one that has."""
        with self._plane.changed:
            self._begun = name
            self._plane.changed.notify_all()

    def read(self, session: Session, place: Depot, number: int, only: Name | None = None) -> Found | None:
        """This shard's part of what all shards begin from, in the round ``number`` of loads; None if there is nothing.

        ``only``: the one that they begin from, instead of the newest. Raises ViewChangedError; ConfigError if another shard's process does not call this; TornError, OSError.
        """
        place.check(self._shards)
        if self._shard == 0:
            return self._propose(session, place, number, only)
        found: Found | None = None
        said: dict[str, str] = {}
        for name, settled, torn in self._proposals(session, number, said):
            if name is None:
                _refuse(torn)
                return None
            if found is None or found.name != name:
                said.clear()
                try:
                    if only not in (None, name):
                        raise TornError(f"shard {self._shard}: its program names {only}")
                    found, run = _read(place, name, self._own)
                    said.update(intact=str(name), run=run)
                except TornError as error:
                    if settled:
                        raise
                    said.update(torn=str(name), why=str(error)[:_SHOWN])
                    continue
            if settled:
                return _beside(found, torn)
        raise ViewChangedError

    def _proposals(
        self, session: Session, number: int, said: Mapping[str, str]
    ) -> Iterator[tuple[Name | None, bool, dict[str, str]]]:
        """Ask the process of shard 0 again and again, until the view changes: what it proposes, whether all begin from that,
        and what was passed over. ``said``: what this process has to say by then.

        As a rule it is the one of this replica. After a death amid the founding another one may read for shard 0.
        """
        plane = self._plane
        leaders = _leaders(session, plane.member_id)
        deadline = plane.threads.now() + self._patience
        while plane.newest_is(session):
            query = {"round": str(number), "shard": str(self._shard), **said}
            try:
                with request(self._ring, leaders[0], self.PATH, query, functools.partial(plane.newest_is, session)) as answer:
                    body = json.loads(answer.read(_LIMIT))
                    found = Name.parse(body["name"]), bool(body["settled"]), dict(body["torn"])
            except StillReading:
                deadline = plane.threads.now() + self._patience
            except (Later, Nothing):
                if plane.threads.now() > deadline:
                    raise ConfigError(
                        f"load was called here, but within {self._patience:g} s not by {leaders[0]}, which has shard 0: "
                        f"{_EVERYWHERE}"
                    ) from None
                leaders = [*leaders[1:], leaders[0]]
            except FetchError:
                plane.wait_end(session, _RETRY)
            else:
                yield found
                deadline = plane.threads.now() + self._patience

    def _propose(self, session: Session, place: Depot, number: int, only: Name | None) -> Found | None:
        """As ``read``, at the process of shard 0."""
        plane = self._plane
        choice = self._begin(place, number, only)
        found: Found | None = None
        agreed = False
        try:
            while (name := choice.name) is not None:
                if found is None or found.name != name:
                    try:
                        found, run = _read(place, name, self._own)
                    except TornError as error:
                        if choice.settled:
                            raise
                        self._say(choice.spoilt, str(name), str(error)[:_SHOWN])
                        continue
                    self._say(choice.intact, self._shard, str(name), run)
                if self._agreed(session, choice, name):
                    break
            agreed = True
        finally:
            if not agreed:
                with plane.changed:
                    self._choice = None  # those who ask are told that nothing is proposed here
        if choice.name is None:
            _refuse(choice.torn)
            return None
        return _beside(found, choice.torn)

    def _begin(self, place: Depot, number: int, only: Name | None) -> Choice:
        """What is chosen from in that round; as it was, if that was settled before a view change."""
        with self._plane.changed:
            if self._choice is not None and (self._round, self._wanted) == (number, (place, only)):
                return self._choice
            self._listing = True
        try:
            names = [name for name in place.whole_names(self._shards) if only in (None, name)]
            choice = Choice(names, self._shards)
        finally:
            with self._plane.changed:
                self._listing = False
        with self._plane.changed:
            self._choice, self._round, self._wanted = choice, number, (place, only)
            self._heard.clear()
            self._plane.changed.notify_all()
        return choice

    def _say(self, what: Callable[..., None], *values: object) -> None:
        with self._plane.changed:
            what(*values)
            self._plane.changed.notify_all()

    def _agreed(self, session: Session, choice: Choice, name: Name) -> bool:
        """Wait for the others; False if another one is proposed by then. ConfigError naming a shard that does not ask."""
        plane = self._plane
        with plane.changed:
            deadline = plane.threads.now() + self._patience
            while choice.name == name and not choice.settled:
                if plane.session is not session or plane.phase is Phase.STOPPED:
                    raise ViewChangedError
                silent = set(range(self._shards)) - self._heard - {self._shard}
                left = deadline - plane.threads.now() if silent else POLL  # who has asked reads, however long that takes
                if left <= 0:
                    who = ", ".join(map(str, sorted(silent)))
                    raise ConfigError(
                        f"load was called here, but within {self._patience:g} s not by the process of shard {who} of this "
                        f"replica: {_EVERYWHERE}"
                    )
                plane.changed.wait(left)
            return choice.name == name

    # --- on a worker thread of the agent -------------------------------------------------------------------------------

    def source(self, query: Mapping[str, str]) -> Body:
        """Serve ``PATH``: what is proposed, and whether all begin from it. LookupError if there is nothing, or not yet."""
        plane, number, shard = self._plane, query.get("round", ""), query.get("shard", "")
        if not number.isdigit() or not shard.isdigit():
            raise LookupError("expected ?round=NUMBER&shard=NUMBER")
        with plane.changed:
            plane.changed.wait_for(lambda: self._news(int(number), int(shard), query), POLL)
            if self._begun is not None:
                return _answer(str(self._begun), settled=True, torn={})
            choice = self._of(int(number))
            if choice is None:
                if plane.current is not None:
                    raise Refusal.NOTHING.error("this member is in a call")
                raise (Refusal.READING if self._listing else Refusal.LATER).error("no checkpoint is proposed here")
            return _answer(str(choice.name or ""), settled=choice.settled, torn=choice.torn)

    def _of(self, number: int) -> Choice | None:
        return self._choice if self._round == number else None

    def _news(self, number: int, shard: int, query: Mapping[str, str]) -> bool:
        """Hear what the process of ``shard`` says; whether there is something that it does not know. Under the plane's lock."""
        choice = self._of(number)
        if self._begun is not None or self._plane.current is not None or self._plane.phase is Phase.STOPPED:
            return True
        if choice is None:
            return False
        before = choice.name, choice.settled, shard in self._heard
        self._heard.add(shard)
        if "intact" in query:
            choice.intact(shard, query["intact"], query.get("run", ""))
        if "torn" in query:
            choice.spoilt(query["torn"], query.get("why", ""))
        if before != (choice.name, choice.settled, True):
            self._plane.changed.notify_all()
        return choice.settled or str(choice.name) != query.get("intact", "")


def newest_whole(place: Depot, shards: int) -> list[Found] | None:
    """What each shard begins from, read by one process; None if no checkpoint is there of all shards. Raises TornError."""
    choice = Choice(place.whole_names(shards), shards)
    while (name := choice.name) is not None:
        found = []
        for shard in range(shards):
            try:
                each, run = _read(place, name, ShardOf(shard, shards))
            except TornError as error:
                choice.spoilt(str(name), str(error))
                break
            choice.intact(shard, str(name), run)
            found.append(each)
        if choice.name == name:
            return [_beside(each, choice.torn) for each in found]
    _refuse(choice.torn)
    return None


def _leaders(session: Session, own_id: str) -> list[Member]:
    """The processes of shard 0: that of the replica of ``own_id`` first."""
    replicas = sorted(whole_replicas(session.whole.members), key=lambda replica: own_id not in replica.ids)
    return [replica.members[0] for replica in replicas]


def _read(place: Depot, name: Name, own: ShardOf) -> tuple[Found, str]:
    """That checkpoint of a shard, and which run wrote it. Raises TornError; OSError if the fault is a more general one."""
    shard, folder = own.shard, place.of_shard(*own)
    try:
        found, manifest = folder.below(str(name)).newest(), folder.manifest(name)
    except OSError as error:
        if not (isinstance(error, FileNotFoundError) or error.errno in OF_ONE):
            raise
        raise TornError(f"shard {shard}: {error}") from None
    except TornError as error:
        raise TornError(f"shard {shard}: {error}") from None
    if found is None:
        raise TornError(f"shard {shard}: it is gone")
    if manifest.shard not in (None, own):
        raise TornError(f"shard {shard}: it is of {manifest.shard}")
    return found, manifest.run


def _beside(found: Found | None, torn: Mapping[str, str]) -> Found:
    assert found is not None
    return replace(found, torn=tuple(f"{name}: {why}" for name, why in torn.items()))


def _refuse(torn: Mapping[str, str]) -> None:
    """Raise TornError if there are checkpoints of all shards."""
    if torn:
        raise TornError("; ".join(f"{name}: {why}" for name, why in torn.items()))


def _answer(name: str, *, settled: bool, torn: Mapping[str, str]) -> Body:
    return pieces(json.dumps({"name": name, "settled": settled, "torn": dict(torn)}).encode())
