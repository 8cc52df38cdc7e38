"""Which checkpoint the processes of a replica begin from: the newest one that each of them can read, its own shard of it.

Each process by itself might find another one. Who looks a moment later sees a newer step; who finds a file of its shard torn
takes an older one. So the process of shard 0 alone lists them, and proposes the newest. All of them read it beside each
other and say what came of that; if one cannot read it, the next older one is proposed. Only the processes that read for their
shard take part: the others get the state from these.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from consensus import KeyRing, Member

from ..common.refusals import Refusal
from ..common.units import whole_number
from ..core.calls.session import Session
from ..core.plane.phase import Phase
from ..core.plane.plane import Plane
from ..core.replicas.whole import whole_replicas
from ..errors import ConfigError
from ..recovery.joiner.http_transport import RETRY, FetchError, Later, Nothing, StillReading, pause_between_requests, request
from ..recovery.layout.requests import POLL, Body, pieces
from .checkpoint import Found
from .depot import Depot
from .manifest import OF_ONE, TornError
from .names import Name, ShardOf

_LIMIT = 1 << 20
"""Maximum bytes of an answer of the process of shard 0."""
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


@dataclass(slots=True)
class _Round:
    """One round of loads, at the process of shard 0."""

    wanted: tuple[Depot, Name | None]
    """What it is from: a place, or one checkpoint in each shard's folder there."""
    choice: Choice
    asked: set[int] = field(default_factory=set)
    """Shards whose processes have asked in it."""
    refused: str = ""
    """Why no process begins from anything in it: one of them was refused."""

    @property
    def open(self) -> bool:
        """Whether it is not known yet what the processes begin from."""
        return not self.refused and not self.choice.settled

    def refuse(self, why: str) -> None:
        """The first reason stays."""
        self.refused = self.refused or why


class _Proposal(NamedTuple):
    """What the process of shard 0 answers."""

    name: Name | None
    settled: bool
    torn: dict[str, str]
    refused: str


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
        self._rounds: dict[int, _Round] = {}
        """By their numbers. Those that are over stay: a process may ask late what has come of one."""
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

        ``only``: the one that they begin from, instead of the newest. Raises ViewChangedError; ConfigError if another shard's
        process does not call this, or was refused; TornError, OSError.
        """
        if self._shard == 0:
            return self._propose(session, place, number, only)
        with self._telling(session, number):
            place.check(self._shards)
        found: Found | None = None
        said: dict[str, str] = {}
        for name, settled, torn, refused in self._proposals(session, number, said):
            if refused:
                raise ConfigError(f"load was refused at {refused}")
            if name is None:
                _refuse(torn)
                return None
            if found is None or found.name != name:
                said.clear()
                try:
                    if only not in (None, name):
                        raise TornError(f"shard {self._shard}: its program names {only}")
                    with self._telling(session, number):
                        found, run = _read(place, name, self._own)
                    said.update(intact=str(name), run=run)
                except TornError as error:
                    if settled:
                        raise
                    said.update(torn=str(name), why=_short(str(error)))
                    continue
            if settled:
                return _beside(found, torn)
        raise ViewChangedError

    @contextmanager
    def _telling(self, session: Session, number: int) -> Iterator[None]:
        """If this block is refused, tell the process of shard 0 of it, so that no shard waits for this one."""
        try:
            yield
        except TornError:  # of one checkpoint
            raise
        except Exception as error:
            with suppress(ConfigError):  # that one has not called load, so nobody waits
                next(self._proposals(session, number, {"refused": self._here(error)}), None)
            raise

    def _here(self, error: Exception) -> str:
        """Where ``error`` was, and what it is, for the other shards."""
        text = (isinstance(error, OSError) and error.strerror) or str(error) or type(error).__name__
        return f"the process of shard {self._shard}: {_short(text.removeprefix('load: '))}"

    def _proposals(self, session: Session, number: int, said: Mapping[str, str]) -> Iterator[_Proposal]:
        """Ask the process of shard 0 again and again, until the view changes: what it proposes, whether all begin from that,
        and what was passed over. ``said``: what this process has to say by then.

        As a rule it is the one of this replica. After a death amid the founding another one may read for shard 0. Raises
        ConfigError if none of them answers.
        """
        plane = self._plane
        leaders = _leaders(session, plane.member_id)
        deadline = plane.threads.now() + self._patience
        while plane.newest_is(session):
            query, asked = {"round": str(number), "shard": str(self._shard), **said}, plane.threads.now()
            try:
                with request(self._ring, leaders[0], self.PATH, query, functools.partial(plane.newest_is, session)) as answer:
                    body = json.loads(answer.read(_LIMIT))
                    torn, refused = dict(body["torn"]), str(body.get("refused", ""))
                    found = _Proposal(Name.parse(body["name"]), bool(body["settled"]), torn, refused)
            except StillReading:
                deadline = plane.threads.now() + self._patience
                continue
            except (Later, Nothing):
                pause_between_requests(plane, session, asked)
                why = f"load was called here, but within {self._patience:g} s not by {leaders[0]}, which has shard 0"
            except FetchError as error:
                why = f"load was called here, but {leaders[0]}, which has shard 0, does not answer ({error})"
                plane.wait_end(session, RETRY)
            else:
                yield found
                deadline = plane.threads.now() + self._patience
                continue
            if plane.newest_is(session) and plane.threads.now() > deadline:
                raise ConfigError(f"{why}: {_EVERYWHERE}")
            leaders = [*leaders[1:], leaders[0]]

    def _propose(self, session: Session, place: Depot, number: int, only: Name | None) -> Found | None:
        """As ``read``, at the process of shard 0."""
        try:
            place.check(self._shards)
            this = self._begin(place, number, only)
            found = self._agree(session, place, this)
        except BaseException as error:
            with self._plane.changed:
                if isinstance(error, Exception) and not isinstance(error, ViewChangedError):
                    nothing = _Round((place, only), Choice((), self._shards))
                    self._rounds.setdefault(number, nothing).refuse(self._here(error))
                else:
                    self._rounds.pop(number, None)  # those who ask are told that nothing is proposed here
                self._plane.changed.notify_all()
            raise
        if found is None:
            _refuse(this.choice.torn)
            return None
        return _beside(found, this.choice.torn)

    def _agree(self, session: Session, place: Depot, this: _Round) -> Found | None:
        """Read what is proposed until all can read it; None if there is nothing that all can."""
        choice = this.choice
        found: Found | None = None
        while (name := choice.name) is not None:
            if found is None or found.name != name:
                try:
                    found, run = _read(place, name, self._own)
                except TornError as error:
                    if choice.settled:
                        raise
                    self._say(choice.spoilt, str(name), _short(str(error)))
                    continue
                self._say(choice.intact, self._shard, str(name), run)
            if self._agreed(session, this, name):
                return found
        return None

    def _begin(self, place: Depot, number: int, only: Name | None) -> _Round:
        """What is chosen from in that round; as it was, if that was settled before a view change."""
        with self._plane.changed:
            this = self._rounds.get(number)
            if this is not None and this.wanted == (place, only) and not this.refused:
                return this
            self._listing = True
        try:
            names = [name for name in place.whole_names(self._shards) if only in (None, name)]
        finally:
            with self._plane.changed:
                self._listing = False
        with self._plane.changed:
            this = self._rounds[number] = _Round((place, only), Choice(names, self._shards))
            self._plane.changed.notify_all()
        return this

    def _say(self, what: Callable[..., None], *values: object) -> None:
        with self._plane.changed:
            what(*values)
            self._plane.changed.notify_all()

    def _agreed(self, session: Session, this: _Round, name: Name) -> bool:
        """Wait for the others; False if another one is proposed by then.

        ConfigError if one of them was refused, or naming a shard that does not ask.
        """
        plane, choice = self._plane, this.choice
        with plane.changed:
            deadline = plane.threads.now() + self._patience
            while choice.name == name and not choice.settled:
                if plane.session is not session or plane.phase is Phase.STOPPED:
                    raise ViewChangedError
                if this.refused:
                    raise ConfigError(f"load was refused at {this.refused}")
                silent = set(range(self._shards)) - this.asked - {self._shard}
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
        plane, number, shard = self._plane, whole_number(query.get("round", "")), whole_number(query.get("shard", ""))
        if number is None or shard is None:
            raise LookupError("expected ?round=NUMBER&shard=NUMBER")
        with plane.changed:
            plane.changed.wait_for(lambda: self._news(number, shard, query), POLL)
            this = self._rounds.get(number)
            if self._begun is not None:
                return _answer(_Proposal(self._begun, True, {} if this is None else this.choice.torn, ""))
            if this is None:
                if plane.current is not None:
                    raise Refusal.NOTHING.error("this member is in a call")
                raise (Refusal.READING if self._listing else Refusal.LATER).error("no checkpoint is proposed here")
            choice = this.choice
            return _answer(_Proposal(choice.name, choice.settled, choice.torn, this.refused))

    def _news(self, number: int, shard: int, query: Mapping[str, str]) -> bool:
        """Hear what the process of ``shard`` says; whether there is something that it does not know. Under the plane's lock."""
        plane = self._plane
        if self._begun is not None or plane.current is not None or plane.phase is Phase.STOPPED:
            return True
        self._left_by(shard, number)
        this = self._rounds.get(number)
        if this is None:
            return False
        choice = this.choice
        before = choice.name, choice.settled, shard in this.asked, this.refused
        this.asked.add(shard)
        if "refused" in query and this.open:
            this.refuse(query["refused"])
        if "intact" in query:
            choice.intact(shard, query["intact"], query.get("run", ""))
        if "torn" in query:
            choice.spoilt(query["torn"], query.get("why", ""))
        if before != (choice.name, choice.settled, True, this.refused):
            plane.changed.notify_all()
        return bool(this.refused) or choice.settled or str(choice.name) != query.get("intact", "")

    def _left_by(self, shard: int, number: int) -> None:
        """The process of ``shard`` is in the round ``number``: from an earlier one that is open it has got nothing."""
        for earlier, this in self._rounds.items():
            if earlier < number and this.open:
                this.refuse(f"the process of shard {shard}, whose program has called it again")
                self._plane.changed.notify_all()


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


def _short(text: str) -> str:
    """As it can be sent: the name of a file may be no Unicode."""
    return text[:_SHOWN].encode(errors="replace").decode()


def _beside(found: Found | None, torn: Mapping[str, str]) -> Found:
    assert found is not None
    return replace(found, torn=tuple(f"{name}: {why}" for name, why in torn.items()))


def _refuse(torn: Mapping[str, str]) -> None:
    """Raise TornError if there are checkpoints of all shards."""
    if torn:
        raise TornError("; ".join(f"{name}: {why}" for name, why in torn.items()))


def _answer(said: _Proposal) -> Body:
    return pieces(json.dumps({**said._asdict(), "name": str(said.name or "")}).encode())
