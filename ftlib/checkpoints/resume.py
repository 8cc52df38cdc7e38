"""The founders of a job begin from one checkpoint: one of them reads it, and the others get it from the reader.

The reader is the most senior member of those whose state counts (see ``salvage``); the other hosts need not have the files.
``load`` returns at the reader only when all founders have the state, so that a founder which does not call ``load`` is found
before the first call. The state's id in the flush reports changes too: after a death in the middle, the plan has the state of
each member.

Joiners get the state from the job, as always.
"""

from __future__ import annotations

import functools
import posixpath
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from consensus import CarefulLogger

from ..common.refusals import Refusal
from ..common.units import whole_number
from ..core.calls.observer import Observer, Observers
from ..core.calls.session import Session
from ..core.plane.phase import Phase
from ..core.plane.plane import Plane
from ..errors import ConfigError, FTLibError
from ..recovery.joiner.http_transport import RETRY, FetchError, Later, Nothing, StillReading, pause_between_requests
from ..recovery.layout.requests import POLL, Body, pieces
from ..recovery.whole_state import Transfer
from ..state.codec import snapshot
from ..state.registry import Registered
from ..state.snapshot import Before
from .checkpoint import Found
from .choice import Chooser, ViewChangedError
from .depot import Depot, is_url
from .manifest import TornError
from .names import Name, ShardOf

logger = CarefulLogger("ftlib")

PATH = "/resumption"
_EVERYWHERE = "call it at every worker, after register_state and before the first average"


class Loaded(NamedTuple):
    """What ``FTLib.load`` loaded."""

    step: int
    path: Path | str
    """The checkpoint's directory or URL, at the worker that read it."""


class Resumption(Observer):
    """Reader and receiver of a checkpoint at one member, in one lifetime."""

    def __init__(
        self, plane: Plane, transfer: Transfer, patience: float, observers: Observers, chooser: Chooser, own: ShardOf
    ) -> None:
        """``patience``: seconds without progress after which a worker stops waiting for others. ``observers``: of this
        member's calls. ``chooser``: agrees with the other processes of its replica, if that has several. ``own``: the shard of
        this process.
        """
        self._chooser, self._own = chooser, own
        self._observers = observers
        self._plane = plane
        self._transfer = transfer
        self._patience = patience
        self._rounds = 0
        """Times that ``load`` has returned here."""
        self._loaded: Loaded | None = None
        # Guarded by the plane's lock:
        self._decided: dict[int, bytes] = {}
        """What was found in each round, for the others; empty once it is not kept any more. The reader files it under the same
        round as those who ask: it may have become the reader only since the last one."""
        self._finished = 0
        """Calls finished at the last decision."""
        self._reading = False
        self._served: set[tuple[int, str]] = set()
        """(round, member) of each member that got the state."""
        self._progress = 0.0
        """Time at which a member last got a piece."""

    # --- on the training thread ----------------------------------------------------------------------------------------

    def load(self, path: Depot) -> Loaded | None:
        """Load the newest intact checkpoint in ``path`` at all founders; returns None if there is none, and at joiners.

        Raises ConfigError if there are checkpoints but none is intact, if it does not fit, and if other founders do not call
        this.
        """
        plane, registered = self._plane, self._transfer.registered
        if registered is None:
            raise ConfigError("load: no state is registered: call register_state before it")
        if not plane.founder:
            extra = plane.about("not_resumed")
            logger.info("%s is not loaded here: a joiner gets its state from the job", path, extra=extra)
            return None
        if self._loaded is not None:
            logger.info("%s is not loaded: %s was, already", path, self._loaded.path, extra=plane.about("not_resumed"))
            return self._loaded
        if plane.step > 0 and plane.state_id == plane.current_state_id:
            raise ConfigError(f"load: this worker has finished {plane.step} steps already: {_EVERYWHERE}")
        self._loaded = self._settle(path, registered)
        self._rounds += 1
        return self._loaded

    def entering(self, number: int) -> None:  # noqa: ARG002 - whichever it is
        """See ``Observer``: once a call has finished since, no member requests the loaded state any more."""
        if self._plane.finished > self._finished:
            self.forget()
            self._observers.detach(self)

    def forget(self) -> None:
        """Drop the copies kept for other members."""
        with self._plane.changed:
            self._decided = dict.fromkeys(self._decided, b"")

    def _settle(self, path: Depot, registered: Registered) -> Loaded | None:
        plane = self._plane
        deadline = plane.threads.now() + self._patience
        while True:
            session = self._transfer.active(deadline)
            # The state was loaded, and kept through a view change.
            if plane.step > 0 and plane.state_id == plane.current_state_id:
                return self._loaded
            reader = (*session.plan.holders, plane.member_id)[0]
            if reader == plane.member_id:
                if self._lead(session, path, registered):
                    return self._loaded
                deadline = plane.threads.now() + self._patience
                continue
            donor = session.view.member(reader)
            query, asked = {"round": str(self._rounds), "member": plane.member_id}, plane.threads.now()
            try:
                got = self._transfer.receive(donor, PATH, query, functools.partial(plane.newest_is, session))
            except Nothing:
                return self._too_late(session, reader, path)
            except StillReading:
                deadline = plane.threads.now() + self._patience
            except Later:
                pause_between_requests(plane, session, asked)
            except FetchError:
                plane.wait_end(session, RETRY)
            else:
                if self._follow(session, reader, got, registered):
                    return self._loaded
            if plane.threads.now() > deadline:
                who = session.name(reader)
                raise ConfigError(f"{who} has not called load within {self._patience:g} s, but this worker has: {_EVERYWHERE}")

    def _too_late(self, session: Session, reader: str, path: Depot) -> Loaded:
        """Handle a reader that is in a call: the state comes with the first call; ConfigError if the reader loaded nothing."""
        if self._plane.step > 0:
            return Loaded(self._plane.step, _path(str(path)))
        raise ConfigError(f"load was called here, but not by {session.name(reader)}, which is in a call: {_EVERYWHERE}")

    # --- at the reader -------------------------------------------------------------------------------------------------

    def _lead(self, session: Session, path: Depot, registered: Registered) -> bool:
        """Read, begin with what was found, and wait until the others have it; False if the session ended meanwhile."""
        try:
            with self._told_of_reading(), self._told_of_refusal():
                taken = self._take(session, self._read(session, path), registered)
        except ViewChangedError:
            return False
        if taken:
            self._await_others()
        return taken

    @contextmanager
    def _told_of_reading(self) -> Iterator[None]:
        """Answer the others, while this block runs, that reading takes long."""
        self._reading = True
        try:
            yield
        finally:
            self._reading = False

    @contextmanager
    def _told_of_refusal(self) -> Iterator[None]:
        """Answer the others that this block was refused, if it is: then none of them has a checkpoint from this round."""
        try:
            yield
        except ConfigError as error:
            self._keep(snapshot({"refused": str(error)}))
            self._rounds += 1
            raise

    def _read(self, session: Session, path: Depot) -> Found | None:
        plane = self._plane
        try:
            found = self._found(session, path)
        except TornError as error:
            raise ConfigError(f"load: no checkpoint in {path} is intact ({error}): give another directory") from None
        except OSError as error:
            text = error.strerror or str(error)
            raise ConfigError(
                f"load: {path} cannot be read: {text}; let this user read it, or give another directory"
            ) from None
        for torn in () if found is None else found.torn:
            extra = plane.about("checkpoint_torn")
            logger.warning("a checkpoint in %s is damaged, and an older one is taken: %s", path, torn, extra=extra)
        if found is None:
            alone = self._own.shards == 1
            what = "complete checkpoint" if alone else "step of which all shards have a complete checkpoint"
            extra = plane.about("no_checkpoint")
            logger.warning("there is no %s in %s: the job starts from scratch", what, path, extra=extra)
        return found

    def _found(self, session: Session, path: Depot) -> Found | None:
        """What to begin from; None if there is nothing. Raises TornError, OSError; ConfigError if it is not this shard's."""
        named, alone = path.single, self._own.shards == 1
        if named is None and alone:
            path.check(1)
            return path.newest()
        if named is None:
            return self._chooser.read(session, path, self._rounds)
        place = path.parent
        if not alone and place.shard is None and named not in place.complete():  # each has its own, in its shard's folder
            return self._chooser.read(session, place, self._rounds, named)
        if named in place.complete() and (theirs := path.manifest(named).shard or place.shard) not in (None, self._own):
            another = place.shard is not None and theirs.shards == self._own.shards
            remedy = f"name {place.parent.at(named)}, and each process takes its own" if another else "give another one"
            raise ConfigError(f"load: {path} is of {theirs}, and this process has {self._own}: {remedy}")
        return path.newest()

    def _take(self, session: Session, found: Found | None, registered: Registered) -> bool:
        """Begin with the checkpoint ``found``, and offer it to the others; False if the session ended meanwhile."""
        plane = self._plane
        if found is None:
            data = snapshot(None)
        else:
            state_id, path = f"{plane.member_id}@{found.name.step}", str(found.directory)
            try:
                # Before it is loaded: that is the program's own code, which may change what it gets.
                data = snapshot({"origin": state_id, "path": path, "state": found.tree, "step": found.name.step})
                self._load(found.tree, registered)
            except ConfigError as error:
                raise ConfigError(f"load: {path}: {error}") from None
            if not plane.resumed(session, state_id, found.name.step):
                return False
            self._note(found.name.step, found.directory)
        self._keep(data)
        return True

    def _keep(self, data: bytes) -> None:
        """Serve ``data`` as what was found in this round, until a call has finished."""
        plane = self._plane
        with plane.changed:
            self._decided[self._rounds] = data
            self._observers.attach(self)
            self._finished = plane.finished
            self._progress = plane.threads.now()
            plane.changed.notify_all()

    def _await_others(self) -> None:
        """Return once all founders in the view have got the state. Raises ConfigError naming members that do not request it."""
        plane, number = self._plane, self._rounds
        with plane.changed:
            self._progress = plane.threads.now()
            while True:
                if plane.phase is Phase.STOPPED:
                    raise (
                        plane.error if isinstance(plane.error, FTLibError) else FTLibError("load: this worker has left the job")
                    )
                session = plane.session
                assert session is not None  # one was active
                others = [m for m in session.view.ids if m != plane.member_id and m not in session.plan.blank]
                missing = [m for m in others if (number, m) not in self._served]
                if not missing:
                    return
                left = self._progress + self._patience - plane.threads.now()
                if left <= 0:
                    raise ConfigError(
                        f"load was called here, but within {self._patience:g} s not by {session.names(missing)}: {_EVERYWHERE}"
                    )
                plane.changed.wait(left)

    # --- the others ----------------------------------------------------------------------------------------------------

    def _follow(self, session: Session, reader: str, got: object, registered: Registered) -> bool:
        """Begin with the checkpoint that the reader found; False if the session ended meanwhile.

        Raises ConfigError if it was refused there, or is here.
        """
        plane = self._plane
        match got:
            case None:
                self._keep(snapshot(None))  # the reader may end before all have heard it, and then this member is asked
                return True
            case {"origin": str(state_id), "path": str(path), "state": tree, "step": int(step)}:
                try:
                    self._load(tree, registered)
                except BaseException as error:  # the others have it, also if this program goes on after an interrupt
                    plane.not_resumed(session, state_id, step)
                    if isinstance(error, ConfigError):
                        raise ConfigError(f"load: {path}: {error}") from None
                    raise
                if not plane.resumed(session, state_id, step):
                    return False
                self._note(step, _path(path))
                return True
            case {"refused": str(text)}:
                self._keep(snapshot(got))  # as above
                self._rounds += 1
                raise ConfigError(f"load was refused at {session.name(reader)}: {text.removeprefix('load: ')}")
        raise ConfigError("load: what the others have loaded has the wrong shape: run one release everywhere")

    # --- both ----------------------------------------------------------------------------------------------------------

    def _load(self, tree: object, registered: Registered) -> None:
        """Load ``tree``. If that is refused (ConfigError), or interrupted, the registered state is as before."""
        plane, before = self._plane, Before(registered)
        plane.data.lost()
        try:
            registered.load(tree)
        except BaseException:
            self._return(before)
            with plane.changed:
                if plane.state_id == plane.current_state_id:
                    plane.data.loaded()
            raise

    def _return(self, before: Before) -> None:
        try:
            before.restore()
        except BaseException:
            self._plane.unload()  # what is half loaded must not count as the state that the others have
            raise

    def _note(self, step: int, directory: Path | str) -> None:
        self._loaded = Loaded(step, directory)
        self._chooser.begun(Name.parse(posixpath.basename(str(directory))))
        extra = self._plane.about("resumed", checkpoint=str(directory))
        logger.info("resumed at step %d from %s", step, directory, extra=extra)

    # --- on a worker thread of the agent -------------------------------------------------------------------------------

    def source(self, query: Mapping[str, str]) -> Body:
        """Serve ``PATH``. Raises LookupError with the reason if there is nothing, or nothing yet."""
        plane, number, member = self._plane, whole_number(query.get("round", "")), query.get("member", "")
        if number is None or not member:
            raise LookupError("expected ?round=NUMBER&member=ID")
        with plane.changed:
            plane.changed.wait_for(
                lambda: number in self._decided or plane.current is not None or plane.phase is Phase.STOPPED, POLL
            )
            data = self._decided.get(number, b"")
            if not data:
                if plane.current is not None:
                    raise Refusal.NOTHING.error("this member is in a call")
                if self._reading:
                    raise Refusal.READING.error("it reads the checkpoint")
                raise Refusal.LATER.error("load has not been called here")
        return self._given(data, number, member)

    def _given(self, data: bytes, number: int, member: str) -> Body:
        plane = self._plane
        for piece in pieces(data):
            yield piece
            with plane.changed:
                self._progress = plane.threads.now()
        with plane.changed:
            self._served.add((number, member))
            plane.changed.notify_all()


def _path(text: str) -> Path | str:
    return text if is_url(text) else Path(text)
