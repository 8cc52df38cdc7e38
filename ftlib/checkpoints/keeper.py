"""Which member writes a checkpoint, when it becomes complete, and which checkpoints are kept.

All members call ``save`` at the same point of the program. The member with rank 0 copies its state, and a thread writes the
copy beside the training; the other members return at once. If the writer dies, the next rank 0 writes the next checkpoint.

A checkpoint of step k gets its name once a later call has finished here. A call takes all members, so then all have finished k
with the same result. A member that is cut off right after a call may have a result that the others computed again without it.
It never finishes a later call, so its checkpoint never becomes complete. A worker that leaves while it is a member, as when
the job is done, has no later call to wait for, and completes its checkpoint. If the others computed step k again after all,
they did so in a newer epoch, and of one step the newest epoch counts.

A plain file cannot refuse a writer that was stopped before its last operation and wakes up after it was excluded. The
checkpoint that it completes then is older than what the others completed meanwhile; its name shows that, and it replaces
nothing.
"""

from __future__ import annotations

import errno
import threading
import time
from enum import Enum

from consensus import CarefulLogger, LeftError

from ..common.devices import thread_device
from ..common.traces import CheckpointRecord
from ..common.units import size, span
from ..core.calls.session import Session
from ..core.plane.phase import Phase
from ..core.plane.plane import Plane
from ..errors import ConfigError
from ..state.codec import flatten
from ..state.registry import Registered
from .checkpoint import Taken
from .depot import Depot
from .manifest import TornError
from .names import ALONE, Name, Part, ShardOf
from .retention import Stay, Whole

logger = CarefulLogger("ftlib")

LOOK = 0.5
"""Seconds between two checks whether a later call has finished; entering a call causes a check at once."""
NAMING = 2.0
"""Seconds that ``save`` waits for the checkpoint before, if that is written and only has to get its name."""
_ROOM = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})
_RIGHTS = frozenset({errno.EACCES, errno.EPERM, errno.EROFS})


class _Stage(Enum):
    WRITING = "is still being written"
    WAITING = "waits until a later call has finished"
    OVER = "is over"


class _GivenUp(Exception):
    """No error: there is nothing to write, or the checkpoint may not be completed."""


class _Foreign(Exception):
    """The directory has a checkpoint of another job, which this one must not replace as the newest."""


class Keeper:
    """Writes the checkpoints of one process, in all its lifetimes."""

    def __init__(self, keep: int, timeout: float, shard: ShardOf = ALONE) -> None:
        """``keep``: complete checkpoints that stay in a directory. ``timeout``: seconds to wait for one at most. ``shard``:
        whose state this process has.
        """
        self._keep = keep
        self._shard = shard
        self._timeout = timeout
        self._writing: _Writing | None = None
        """The newest one."""
        self._waiting: list[_Writing] = []
        """Those before it that are on the disk and wait for a later call, which only the training thread can make."""
        self._newest: tuple[Depot, Whole] | None = None
        """Where the program saved last."""
        self._begun = ""
        """The checkpoint from which this job began, as ``Depot.at`` names it."""
        self._lock = threading.Lock()
        self._checked = False
        """Whether the state was found to be of a kind that can be kept, at every worker alike."""

    def begun_from(self, place: str) -> None:
        """This job has begun from the checkpoint at ``place``: it needs no other one of that step."""
        self._begun = place

    def save(self, depot: Depot, plane: Plane, registered: Registered, *, wait: bool, whole: Whole = tuple) -> None:
        """Begin to write if this member has rank 0; called on the training thread, outside of calls.

        ``wait``: wait for a checkpoint under way instead of leaving this one out. ``whole``: see ``Whole``. Raises ConfigError
        if the state cannot be kept, at the first one. Later only the writer looks at the state, and logs and counts that.
        """
        self._newest = depot, whole
        if not self._checked:
            flatten(registered.tree(plane.step))
            self._checked = True
        with self._lock:
            with plane.changed:
                session, number = plane.session, plane.finished - plane.lag.calls
                step = plane.step - plane.lag.steps  # the registered state lacks the steps by which this worker is late
                outdated = plane.state_id != plane.current_state_id  # the next call brings the state
                if session is None or session.rank != 0 or plane.phase is Phase.STOPPED or outdated:
                    return
                # Not the epoch of a view that became active since: other processes of this replica may save before it does.
                name = Name(step, plane.finished_epoch if plane.finished_in else session.view.epoch)
            if not self._free(plane, depot, depot.at(name), wait=wait):
                return
            tree = registered.tree(step)
            with plane.changed:
                late = plane.lag.calls > 0
            if late and registered.count("sampler"):  # perhaps only since this began to wait
                plane.counters.checkpoints_skipped += 1
                text = "no checkpoint of step %d: this worker is late, and its sampler is further than its model"
                logger.info(text, step, extra=plane.about("checkpoint_skipped", stage="LATE"))
                return
            writing = _Writing(plane, session, number, depot, name, Stay(self._keep, whole), self._begun)
            if writing.start(tree, self._shard):
                self._writing = writing

    def save_again(self, plane: Plane, registered: Registered) -> None:
        """As ``save``, where the program saved last; nothing if it never has. What is registered is as on entry to a call."""
        if self._newest is not None:
            depot, whole = self._newest
            self.save(depot, plane, registered, wait=True, whole=whole)

    def nowhere(self, plane: Plane, path: str, error: OSError) -> None:
        """``save`` was called with a relative ``path``, and the current directory is gone: logged and counted by the writer."""
        with plane.changed:
            writes, step = plane.session is not None and plane.session.rank == 0, plane.step - plane.lag.steps
        if writes:
            text, extra = (
                "no checkpoint of step %d in %s: %s; training goes on without it: %s",
                plane.about("checkpoint_failed"),
            )
            logger.error(text, step, path, f"the current directory: {error.strerror}", "give an absolute path", extra=extra)
            plane.counters.checkpoint_failures += 1

    def close(self) -> None:
        """Wait until the checkpoint under way is complete or given up; at most ``timeout`` seconds. Idempotent."""
        deadline = time.monotonic() + self._timeout
        for writing in (*self._waiting, *([self._writing] if self._writing is not None else [])):
            if writing.ended(0.0):
                continue
            if not writing.ended(1.0):
                logger.info("waiting for %s to be written", writing)
            if not writing.ended(max(0.0, deadline - time.monotonic())):
                logger.error("%s was not written within %g s, and is left incomplete", writing, self._timeout)

    def _free(self, plane: Plane, depot: Depot, directory: str, *, wait: bool) -> bool:
        """Return True if no checkpoint is under way any more, so that ``directory`` can be written; else logs why not."""
        self._waiting = [each for each in self._waiting if not each.ended(0.0)]
        writing = None if self._writing is None or self._writing.ended(0.0) else self._writing
        if any(each.directory == directory for each in (writing, *self._waiting) if each is not None):
            return False
        # Then all processes of the replica leave this one out, though some could write it: else shard 0 might have every other
        # step and shard 1 the steps between, so that the job could begin again from none of them.
        together = plane.saves.replica and not wait
        if not together:
            if writing is None:
                return True
            if writing.written(self._timeout if wait else 0.0):
                if writing.due():
                    with plane.changed:
                        plane.changed.notify_all()
                    if writing.ended(NAMING if depot.prompt else self._timeout if wait else 0.0):
                        return True
                elif wait:  # for the call after this one: until then it holds no copy of the state, and both are written
                    self._waiting.append(writing)
                    return True
        plane.counters.checkpoints_skipped += 1
        stage = _Stage.WRITING if writing is None else writing.stage
        what = f"that of another process of this replica {stage.value}" if writing is None else f"{writing} {stage.value}"
        text, extra = "no checkpoint of step %d: %s; save less often, or with wait=True", plane.about("checkpoint_skipped")
        logger.info(text, plane.step - plane.lag.steps, what, extra={**extra, "stage": stage.name})
        return False


class _Writing:
    """One checkpoint on its way."""

    def __init__(self, plane: Plane, session: Session, number: int, depot: Depot, name: Name, stay: Stay, begun: str) -> None:
        """``number``: of the last call that had finished. ``stay``: which older ones stay. ``begun``: the one from which
        this job began.
        """
        self.stage = _Stage.WRITING
        self.directory = depot.at(name)
        self._plane, self._number = plane, number
        self._depot, self._part = depot, Part.of(name, session.member_id)
        self._name, self._size, self._job_run = name, session.size, session.whole.cluster
        self._begun = begun
        self._taken: Taken | None = None
        self._told = False
        """Whether the other processes of this replica have been told that this one writes it."""
        self._stay = stay
        self._torn: list[Name] = []
        """Newer checkpoints that are damaged: they are ignored."""
        self._share_device = thread_device()  # torch asks for the current device where there is one, and would wake the first
        self._began = plane.threads.now()
        self._written, self._over = threading.Event(), threading.Event()

    def __str__(self) -> str:
        return f"the checkpoint of step {self._name.step}"

    def start(self, tree: object, shard: ShardOf) -> bool:
        """Copy ``tree``, of ``shard``, and write the copy beside the training. False if that cannot be done, which is logged
        and counted.
        """
        try:
            self._taken = Taken.of(tree, self._name, self._size, self._job_run, shard)
            self._plane.saves.begin()
            self._told = True
            self._plane.threads.thread(self._run, "ftlib-checkpoint").start()
        except Exception as error:  # noqa: BLE001 - no memory, no thread, a value of another kind: the training goes on
            self._failed(error, "see to what is registered, and to this host's memory and threads")
            self._end()
            return False
        return True

    def written(self, timeout: float) -> bool:
        """Wait at most ``timeout`` seconds; True if the checkpoint is on the disk, or no longer being written."""
        return self._written.wait(timeout)

    def due(self) -> bool:
        """Whether a later call has finished."""
        return self._plane.finished > self._number

    def ended(self, timeout: float) -> bool:
        """Wait at most ``timeout`` seconds; True if this is over."""
        return self._over.wait(timeout)

    # --- on its thread -------------------------------------------------------------------------------------------------

    def _run(self) -> None:
        plane = self._plane
        try:
            self._share_device()
            self._write()
        except _GivenUp as reason:
            logger.info("%s was given up: %s", self, reason, extra=plane.about("checkpoint_given_up"))
            self._depot.remove(self._part)
        except Exception as error:  # noqa: BLE001 - whatever it is, the training goes on without it
            self._failed(error)
            self._depot.remove(self._part)
        finally:
            self._end()

    def _end(self) -> None:
        self._taken = None
        self.stage = _Stage.OVER
        self._told_written()
        self._written.set()
        self._over.set()

    def _told_written(self) -> None:
        if self._told:
            self._told = False
            self._plane.saves.written()

    def _write(self) -> None:
        plane, taken = self._plane, self._taken
        assert taken is not None
        self._depot.prepare()
        self._look_around()
        self._depot.remove(self._part)
        nbytes = self._depot.write(taken, self._part)
        written = plane.threads.now()
        took = written - self._began
        self._taken = taken = None
        self.stage = _Stage.WAITING
        if self._depot.prompt:  # else the next one is left out until this one has its name
            self._told_written()
        self._written.set()
        self._await_later_call()
        self._look_again()
        try:
            self._depot.publish(self._part)
        except OSError:
            self._look_again()  # perhaps another writer of this step was quicker
            raise
        plane.counters.checkpoints += 1
        plane.counters.checkpoint_step = self._name.step
        extra = plane.about("checkpoint", checkpoint=self.directory, checkpoint_bytes=nbytes, seconds=took)
        logger.info("%s is complete: %s, %s in %s", self, self.directory, size(nbytes), span(took), extra=extra)
        self._trace(written, nbytes)
        try:
            self._tidy()
        except OSError as error:  # it is complete all the same, and the next one tidies up
            text, extra = "older checkpoints in %s were not looked through: %s", plane.about("checkpoints_not_tidied")
            logger.info(text, self._depot, _text(error), extra=extra)

    def _trace(self, written: float, nbytes: int = 0, error: str = "") -> None:
        if (traces := self._plane.traces) is not None:
            ended, name = self._plane.threads.now(), self._name
            traces.add(CheckpointRecord(name.step, name.epoch, self._began, written or ended, ended, nbytes, error))

    def _look_around(self) -> None:
        """Check the checkpoints that are not older than this one. Those of other jobs are never written over."""
        for name in self._depot.complete():
            if name < (self._name.step, 0):
                break
            if (torn := self._depot.damage(name)) is not None:
                self._torn.append(name)
                if name == self._name and isinstance(torn, TornError):
                    self._depot.remove(self._name)
                continue
            if name.step > self._name.step:
                raise _Foreign(f"{name} in it is of a later step, which this job does not continue")
            if self._depot.at(name) == self._begun:
                raise _GivenUp(f"this job has begun from {name}")
            if name < self._name:  # of one step the newest epoch counts
                continue
            self._yield_to_equal()
        for part in self._depot.parts():
            if part.name.step > self._name.step:  # of a run that this job does not continue, which must not complete it now
                self._depot.remove(part)

    def _look_again(self) -> None:
        """Raises _GivenUp or _Foreign if one was completed meanwhile that is not older: a writer that has left since may have
        written this step, too.
        """
        for name in self._depot.complete():
            if name > self._name and name not in self._torn:
                raise _GivenUp(f"{name} is complete by now, which is newer")
            if name == self._name and name not in self._torn:
                self._yield_to_equal()

    def _yield_to_equal(self) -> None:
        """One of this step and epoch is complete: never written over."""
        if self._depot.manifest(self._name).run != self._job_run:
            raise _Foreign(f"{self._name} in it is of the same step of another run, which this job does not continue")
        raise _GivenUp(f"{self._name} is complete already")

    def _await_later_call(self) -> None:
        """Return once this checkpoint may be completed. Raises _GivenUp if it never may."""
        plane = self._plane
        with plane.changed:
            while not self.due() and plane.phase is not Phase.STOPPED:
                plane.changed.wait(LOOK)
            if plane.phase is Phase.STOPPED and not isinstance(plane.error, LeftError) and not self._said_goodbye():
                raise _GivenUp("this worker is no member any more")

    def _said_goodbye(self) -> bool:
        """Whether this worker left in a later call, and was excluded only because the others went on without it first."""
        return self._plane.leaving() and self.due()

    def _tidy(self) -> None:
        """Remove older complete checkpoints beyond those to be kept, and older ones that never became complete. Another writer
        of this step gives its own up itself.
        """
        for name in self._stay.others([name for name in self._depot.complete() if name <= self._name]):
            self._depot.remove(name)
        for part in self._depot.parts():
            if part.name < self._name:
                self._depot.remove(part)

    def _failed(self, error: Exception, remedy: str = "") -> None:
        """``remedy``: instead of what ``error`` suggests."""
        plane = self._plane
        if plane.phase is Phase.STOPPED and not isinstance(plane.error, LeftError):
            logger.info("%s was given up: this worker is no member any more", self, extra=plane.about("checkpoint_given_up"))
            return
        why, suggested = self._diagnosis(error) if not remedy else (_text(error), remedy)
        text, extra = "no checkpoint of step %d in %s: %s; training goes on without it: %s", plane.about("checkpoint_failed")
        logger.error(text, self._name.step, self._depot, why, suggested, extra=extra)
        plane.counters.checkpoint_failures += 1
        self._trace(0.0, error=why)

    def _diagnosis(self, error: Exception) -> tuple[str, str]:
        """Return what is wrong, and what to do. On a full disk, torch reports only that writing failed."""
        number = error.errno if isinstance(error, OSError) else None
        text = error.strerror or str(error) if isinstance(error, OSError) else " ".join(str(error).split())
        if isinstance(error, ConfigError):
            return text, "register what can be kept"
        if isinstance(error, _Foreign):
            return text, "move it away, load it, or give save another directory"
        if number in _ROOM or (number is None and self._depot.full):
            return (
                "no space is left on the device" if number is None else text,
                "make room there, or give save another directory",
            )
        if number in _RIGHTS:
            return text, "let this user write there, or give save another directory"
        return _text(error), "see to that file system, or give save another directory"


def _text(error: Exception) -> str:
    """What is wrong, in one line."""
    text = " ".join(str(getattr(error, "strerror", None) or error).split())
    plain = isinstance(error, ConfigError) or (type(error) is OSError and error.errno is None)  # which says itself what it was
    return text if plain else f"{type(error).__name__}: {text}"
