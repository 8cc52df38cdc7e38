"""The promises "all or nothing, bit for bit" and "no step is lost", checked at each call that anybody finishes.

A call may have two results in one way only: all who finish it with the old view are dead or excluded before others have it,
and the others, who cannot know, redo it without them. So a result *stands* as soon as anybody who has it finishes another call,
for which everybody of the view must have it; no call has two that stand, and no view has members with different ones. Whoever
is excluded may have one call, its last, that the others did otherwise. Nobody is ever more than one call behind, unless a
script has made it so; then it is healed, and has to be like the others from there on. Under policy ``any`` all this holds on
each side of a partition (see ``lines``).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from consensus import View
from consensus.simulation import Host, Observer
from ftlib.core.calls.call import Call, CallOutcome, Results
from ftlib.core.calls.salvage import SalvagePlan
from ftlib.core.calls.session import Session
from ftlib.core.plane.phase import Phase
from ftlib.errors import ConfigError, RebuildTimeout, ReplicaLost, StateLost, StepMismatch

from ..groups.compressing import SENT
from ..parts.body import SAMPLES, WEIGHTS, Body
from .lines import Lines, OnLine

STORY = 5000
"""Lines of the story that are kept."""

DIGITS = 6
"""Of what was contributed, an integer: what was divided comes back as exactly as that."""

CLOSE = 1e-4
"""How much what ``Halving`` has sent in float32 may differ."""

ShardCall = tuple[int, int]
"""A call in the group of one shard; shard 0 where replicas have one process each."""

Sums = tuple[tuple[float, ...], ...]
"""By tensor and lane."""


@dataclass(frozen=True)
class Outcome:
    """One result of a call."""

    call: int
    sums: Sums
    """Bit for bit."""
    weight: float
    assumed: float = 1.0
    """What each contribution was divided by (see ``Results``)."""
    layout: bytes = b""
    """The signature of a compressed call's layout; empty for others. Then contributions are as ``Halving`` has sent them."""
    declined: bool = False
    """Whether a member declined it; then it has no result."""

    @cached_property
    def given(self) -> Sums:
        """What was contributed, undivided."""
        return tuple(tuple(round(value * self.assumed, DIGITS) if value else 0.0 for value in row) for row in self.sums)


@dataclass
class _Finish:
    """Who holds an outcome, and in which view the first of them finished it."""

    outcome: Outcome
    view: View
    holders: list[str] = field(default_factory=list)
    contributors: frozenset[str] = frozenset()
    owed: dict[str, float] = field(default_factory=dict)
    """What members owe after a compressed call: of the average of the first tensor, in their own lanes."""


@dataclass(frozen=True)
class _Made:
    """Where a result was reduced that waits until all of a replica hold theirs: it may be finished in a later view."""

    view: View
    void: frozenset[str]
    """Members that had no part in it."""


@dataclass(frozen=True)
class _Due:
    """What a member had to send in an attempt, if that was compressed; nothing if it took part in a call of the others."""

    share: float
    """Its contribution times its weight; 0 if it has no part."""
    owed: Mapping[bytes, float]
    """See ``_Place``."""


@dataclass
class _Place:
    """Where one process is, as far as it was seen."""

    token: int = 0
    weight: float = 0.0
    offers: dict[int, float] = field(default_factory=dict)
    """Weights of all its contributions by token."""
    reloaded: bool = False
    """Whether it loaded state within the call that it is in: its contribution does not count."""
    foreign: bool = False
    """Whether its newest attempt is at a call of the others: it neither contributes, nor sends what it owes."""
    outcome: Outcome | None = None
    """Of the call that it finished last."""
    view: View | None = None
    """In which it did so."""
    made: str = ""
    """The id of the view in which its result was made: another one where it was adopted."""
    counted: int = 0
    """The token of the last call that it finished, as that call's result has it or would have."""
    finished: int = 0
    """How many calls it has finished."""
    samples: int = 0
    """Of its own that the last call used up."""
    owed: dict[bytes, float] = field(default_factory=dict)
    """By compressed layout: see ``_Finish``."""
    dues: dict[tuple[int, str], _Due] = field(default_factory=dict)
    """By the number of a call and the id of the view in which it was attempted: whoever was stopped may find its result when
    the others are far ahead."""
    hinted: int = 0
    """The epoch of the newest session whose failure it has told the others."""
    applied: tuple[int, bytes] | None = None
    """The last average that it applied (``Trainer.clock``), and its parameters after that."""


def _sums(results: Results) -> Sums:
    """In the order of the tensors, however these are in buckets. What is on a device stays there."""
    parts: dict[tuple[int, int], list[float]] = {}
    for slot in results.slots:
        row = (slot.host if slot.row is None else slot.row).tolist()
        for piece in slot.bucket.pieces:
            parts[piece.index, piece.start] = row[piece.offset : piece.offset + piece.stop - piece.start]
    tensors: dict[int, list[float]] = {}
    for index, start in sorted(parts):
        tensors.setdefault(index, []).extend(parts[index, start])
    return tuple(map(tuple, tensors.values()))


class Promises(Observer):
    """Told by the processes what they do; every violation is an AssertionError that tells the story."""

    def __init__(self, processes: Mapping[str, Body], lanes: int, *, opens: bool) -> None:
        """``processes``: of the job, by their hosts' ids, as they come. ``lanes``: see ``Trainers``; ``opens``: open calls."""
        self._processes, self._lanes, self._opens = processes, lanes, opens
        self._places: dict[str, _Place] = {}
        self._calls: dict[ShardCall, list[_Finish]] = {}
        self._lines = Lines()
        self._made: OnLine[tuple[int, Outcome], _Made] = OnLine(self._lines)
        """By shard."""
        self._stands: OnLine[ShardCall, Outcome] = OnLine(self._lines)
        self._used: dict[tuple[str, int], int] = {}
        """In which call each contribution was counted."""
        self._void: set[tuple[str, int]] = set()
        """(member, call): it loaded state within that call, so that it has no part in it."""
        self._parameters: dict[ShardCall, list[tuple[bytes, list[str]]]] = {}
        """By shard and ``Trainer.clock``, as ``_parameters_stand``."""
        self._parameters_stand: OnLine[ShardCall, bytes] = OnLine(self._lines)
        self._drawn: dict[tuple[str, int], list[int]] = {}
        """The batch that each replica used up in each call."""
        self._plans: dict[tuple[int, str], SalvagePlan] = {}
        """By shard and view."""
        self._over: OnLine[int, frozenset[str]] = OnLine(self._lines)
        self._dealing: dict[tuple[int, str], dict[str, Any]] = {}
        """How the samples are dealt after each call, by its number and the id of the view in which its result was made."""
        """Over which replicas each call is that anybody has gone on with."""
        self._given: dict[str, tuple[int, int, int]] = {}
        """Of each member that got the state at a border: before which call, how many steps its donor had done, which replica
        that is of."""
        self.lagging: set[str] = set()
        """Members that a script has made lag."""
        self.odd: set[str] = set()
        """Members that a script has made do something else than the others."""
        self.violation = ""
        """The first one: threads of the data plane may swallow what is raised in them."""
        self.story: deque[str] = deque(maxlen=STORY)
        self.counts = {"finished": 0, "adopted": 0, "redone": 0, "loaded": 0, "views": 0, "orphans": 0, "healed": 0}
        self.counts |= {"drawn": 0, "dealt alike": 0, "epochs": 0, "accelerated": 0, "freed": 0}
        self.counts |= {"failed in backward": 0, "followed": 0, "caught up": 0, "stood in": 0, "taken over": 0}
        self.counts |= {"at a border": 0, "begun alike": 0, "inner steps": 0, "fits": 0, "kept": 0}
        self.counts |= {"replicas lost": 0, "state lost": 0, "apart": 0, "interrupted": 0}
        self.counts |= {
            "opened": 0,
            "not opened": 0,
            "abandoned": 0,
            "replaced": 0,
            "declined": 0,
            "declined late": 0,
            "made up for": 0,
        }
        """What there was to check; ``orphans``: results that nobody went on with; ``apart``: calls that two sides made."""

    def parts(self) -> Sequence[Observer]:
        """See ``Observer``."""
        return (self._lines,)

    # What processes tell

    def entered(self, process: Body, call: Call) -> None:
        """A program is about to make a call with its latest gradients."""
        place = self._place(process)
        trainer = process.trainer
        assert trainer.token == place.counted + 1, self._say(
            process, f"computes gradients {trainer.token} though {place.counted + 1} are next: a step was lost or repeated"
        )
        place.token, place.weight, place.reloaded = trainer.token, call.weight, False
        place.offers[trainer.token] = call.weight

    def opened(self, opened: bool) -> None:
        """A program would enter a call in the middle of backward."""
        self.counts["opened" if opened else "not opened"] += 1

    def abandoned(self, process: Body, call: Call) -> None:
        """A program's backward has raised: nobody may ever count these gradients."""
        place = self._place(process)
        assert place.offers.pop(place.token) == call.weight
        place.counted = place.token
        self.counts["abandoned"] += 1
        self._tell(process, f"raises in backward {place.token}")

    def hints(self, process: Body) -> None:
        """A process tells the others of a failure."""
        session = process.plane.session
        self._place(process).hinted = 0 if session is None else session.view.epoch

    def failed_in_backward(self, process: Body, session: Session) -> None:
        """An open call has failed in ``session``, or was given up, and backward or an ``except`` clause goes on: the others
        have been told, and what they have under way with this member ends.
        """
        self.counts["failed in backward"] += 1
        plane, group = process.plane, session.group
        assert not plane.acting_in(session), self._say(process, f"goes on in {session.view}, though its call has failed")
        assert group is None or group.broken() is not None, self._say(process, f"lets the others wait in {session.view}")
        ordered = plane._reported is not None and plane._reported.epoch > session.view.epoch
        told = ordered or plane.phase is Phase.STOPPED or self._place(process).hinted >= session.view.epoch
        assert told, self._say(process, f"tells nobody that its call in {session.view} has failed")

    def begins(self, process: Body, call: Call) -> None:
        """A process takes part in an attempt at ``call``; with its own contribution, or without one."""
        part = process.host.id, call.number
        self._place(process).foreign = call.foreign
        self._place(process).reloaded |= call.outdated  # also where a mate has loaded the state
        if call.foreign or call.outdated or call.declines:
            self._void.add(part)
        elif not self._place(process).reloaded:
            self._void.discard(part)
        place, session = self._place(process), process.plane.running
        if session is not None and not call.foreign:
            share = 0.0 if part in self._void else place.token * place.weight
            place.dues[call.number, session.view.view_id] = _Due(share, dict(place.owed))

    def stands_in(self, process: Body) -> None:
        """A backup worker enters the others' call: its program has begun none."""
        lock = process.call_lock
        program = process.plane.current is None and process.trainer.open is None
        assert program and lock.carrying, self._say(process, "has a backup worker in a call that its program has begun")

    def caught_up(self, process: Body, number: int) -> None:
        """A learner has got the state on entry to a call, which is its program's call from now on."""
        place = self._place(process)
        place.reloaded, place.applied, place.counted = True, None, place.token
        place.owed.clear()
        self.counts["caught up"] += 1
        self._tell(process, f"has caught up with call {number}")

    def taken_over(self, process: Body, *, declined: bool) -> None:
        """A call was finished without the program, which was late: nobody may ever count its gradients. ``declined``: it had
        none, and declined the call.
        """
        place = self._place(process)
        place.offers.pop(place.token)
        place.counted = place.token
        self.counts["taken over"] += 1
        self.counts["declined late"] += declined

    def loaded(self, process: Body, call: Call) -> None:
        """State was loaded within ``call``."""
        place = self._place(process)
        place.reloaded, place.applied = True, None
        place.owed.clear()
        own = process.host.id
        # It may be back in an earlier call, if all who had finished that one died: later calls are then to come again.
        self._void = {(member, number) for member, number in self._void if member != own or number < call.number}
        self._void.add((own, call.number))
        self.counts["loaded"] += 1
        self._tell(process, f"loaded the state on entry to call {call.number}")

    def at_border(self, process: Body, call: Call) -> None:
        """The state came before ``call``: what all have applied before it, and private state that is of one moment."""
        place = self._place(process)
        place.applied = None
        self.counts["at a border"] += 1
        self._tell(process, f"has the state before call {call.number}")
        data = b"".join(parameter.numpy().tobytes() for parameter in process.trainer.parameters)
        known = self._parameters.get((process.part.shard, process.trainer.averages(call.number - 1)))
        assert known is None or data in [each for each, _ in known], self._say(
            process, f"has other parameters before call {call.number} than anybody who applied call {call.number - 1}"
        )
        one, other, replica = process.trainer.own.tolist()
        assert one == other, self._say(process, f"has private state in the middle of a step: {one}, {other}")
        self._given[process.host.id] = call.number, one, replica

    def begins_at_border(self, process: Body) -> None:
        """The program goes on with the state that has come; private state is of one moment of one replica at all its mates."""
        number, steps, replica = self._given[process.host.id]
        for mate in self._processes.values():
            if mate.part.replica == process.part.replica and self._given.get(mate.host.id, (0, 0, 0))[0] == number:
                of_mate = self._given[mate.host.id]
                assert of_mate[1:] == (steps, replica), self._say(
                    process,
                    f"has private state of another moment than {mate.host.id} ({number}: {steps}, {replica}; {of_mate})",
                )
                self.counts["begun alike"] += mate is not process

    def held(self, process: Body, session: Session, results: Results) -> None:
        """A result was reduced in ``session``, and is held until all of its replica hold theirs."""
        call = process.plane.current
        assert call is not None
        void = frozenset(member for member, number in self._void if number == call.number)
        key = process.part.shard, self._outcome(process, call, results)
        if self._made.find(key, session.view) is None:
            self._made.settle(key, session.view, _Made(session.view, void))

    def _outcome(self, process: Body, call: Call, results: Results) -> Outcome:
        if results.outcome is CallOutcome.DECLINED_HERE:
            return Outcome(call.number, (), 0.0, declined=True)
        sums = _sums(results) if results.slots else self._alone(process, len(call.sources))
        compressed = bool(results.slots) and results.layout.compression is not None
        layout = results.layout.signature if compressed else b""
        return Outcome(call.number, sums, results.weight, results.assumed, layout)

    def finished(self, process: Body, call: Call, results: Results) -> None:
        """A call was finished, or adopted."""
        outcome = self._outcome(process, call, results)
        compressed, layout = bool(outcome.layout), outcome.layout
        place, session = self._place(process), process.plane.running or process.plane.session
        assert session is not None
        self.counts["finished"] += 1
        self.counts["accelerated"] += results.accelerated
        declined = results.outcome is CallOutcome.DECLINED_HERE
        self.counts["declined"] += declined
        # Before it could decline it, its backup worker was in the call, which others have finished.
        had_come = place.foreign and session.plan.call == call.number
        assert declined or not call.declines or had_come, self._say(process, f"declined call {call.number}, which has a result")
        self.counts["made up for"] += call.declines and not declined
        adopted = session.plan.donor_of(process.host.id) is not None and call.number == session.plan.call
        self.counts["adopted"] += adopted
        self.counts["kept"] += session.keeps and call.number == session.plan.call
        self._tell(process, f"{'adopted' if adopted else 'finished'} {self._text(outcome)} in {session.view}")
        if place.outcome is not None:
            assert call.number == place.outcome.call + 1, self._say(
                process, f"finished call {call.number} after call {place.outcome.call}"
            )
            self._stand(process, place.outcome, session.view)
        finish = self._finish(process, session, outcome, adopted=adopted)
        if compressed and not place.foreign and not call.void(results):  # nor where a mate's shard has no result
            place.owed[layout] = finish.owed.get(process.host.id, place.owed.get(layout, 0.0))
        self._own(process, place, outcome)
        if not results.out:  # else its replica comes in later, with the state as the others have it then
            finish.holders.append(process.host.id)
        for other in self._calls[process.part.shard, outcome.call]:
            if other is not finish:
                self._apart(process, *sorted((finish, other), key=lambda each: each.view.epoch))
        place.outcome, place.view, place.finished = outcome, session.view, place.finished + 1
        place.made = results.view_id
        self._fits(process, outcome)
        if call.foreign:
            self.counts["stood in" if call.by_backup else "followed"] += 1
        else:
            place.counted = place.token
            if place.foreign:  # its backup worker was in the call, and the program adopts the result
                place.offers.pop(place.token)
        share = results.shares.get(process.part.replica)
        place.samples = 0 if share is None else share.samples
        self.counts["drawn"] += place.samples

    def applied(self, process: Body, clock: int, call: Call | None) -> None:
        """The result of ``call`` was applied to the parameters, as the ``clock``-th; None: that of one that it missed."""
        if not process.plane.level:
            return  # it leaves without the state: what it makes of its own parameters concerns nobody
        place = self._place(process)
        if place.applied is not None:
            assert place.applied[0] + 1 == clock, self._say(process, f"applied average {clock} after {place.applied[0]}")
            self._parameters_of(process, *place.applied)
        data = b"".join(parameter.numpy().tobytes() for parameter in process.trainer.parameters)
        place.applied = (clock, data)
        known = self._parameters.setdefault((process.part.shard, clock), [])
        for other, holders in known:
            if other == data:
                holders.append(process.host.id)
                break
        else:
            known.append((data, [process.host.id]))
        if call is None:
            return
        shard = process.part.shard
        assert place.view is not None
        stands = self._parameters_stand.find((shard, clock), place.view)
        outcome, standing = place.outcome, self._stands.find((shard, call.number), place.view)
        if stands is not None and outcome == standing:
            assert stands == data, self._say(process, f"has other parameters after average {clock} than those who went on")

    def skipped(self, process: Body, clock: int) -> None:
        """The call that would have been the ``clock``-th average has no result, so that nobody applies it."""
        place = self._place(process)
        if place.applied is not None:
            place.applied = max(clock, place.applied[0]), place.applied[1]

    def used_up(self, process: Body, batch: list[int]) -> None:
        """The call that has just returned was made from ``batch``: the ledger has it, and no sample twice. All processes of a
        replica have used up the same.
        """
        place, sampler, step = self._place(process), process.trainer.sampler, process.plane.step
        books = sampler._drawer.ledgers
        rows = {epoch: list(sampler.ledger(epoch)) for epoch in books}
        drawn = batch if place.samples else []
        theirs = self._drawn.setdefault((process.part.replica, process.plane.finished), drawn)
        assert theirs == drawn, self._say(process, f"used up {drawn}, and another process of its replica {theirs}")
        if place.samples:
            which = process.part.replica, step
            own = [row.indices for each in rows.values() for row in each if (row.member, row.step) == which]
            assert len(batch) == place.samples, self._say(process, f"used up {batch}, but said {place.samples} samples")
            assert set(batch) <= {index for indices in own for index in indices}, self._say(
                process, f"used up {batch}, but its ledger says {own}"
            )
        for epoch, each in rows.items():
            used = [index for row in each for index in row.indices]
            assert len(set(used)) == len(used), self._say(process, f"has a sample twice in epoch {epoch}: {sorted(used)}")
            if epoch < max(rows):
                assert len(used) == SAMPLES, self._say(process, f"has {len(used)} of {SAMPLES} samples in epoch {epoch}")
                self.counts["epochs"] += 1

        self._deals_alike(process)

    def _deals_alike(self, process: Body) -> None:
        """After a call all members of the job deal the samples alike, in all shards."""
        if process.plane.level:
            which = process.plane.finished, self._place(process).made
            dealing = process.trainer.sampler.state_dict()["state"]
            known = self._dealing.setdefault(which, dealing)
            assert known == dealing, self._say(process, f"deals {dealing} after call {which[0]}, others {known}")
            self.counts["dealt alike"] += known is not dealing

    def acts(self, process: Body, session: Session) -> None:
        """A process acts in a view from now on."""
        self.counts["views"] += 1
        place, plan = self._place(process), session.plan
        self._whole(process, session)
        which = process.part.shard, session.view.view_id
        new = which not in self._plans
        known = self._plans.setdefault(which, plan)
        assert known == plan, self._say(process, f"follows another plan for {session.view} than the others: {plan}, {known}")
        self._tell(process, f"acts in {session.view}: {self._plan_text(plan)}")
        # A replica of several gets the state as a whole, where one of its processes lacks it.
        single = new and process.part.shards == 1
        unexpected = [m for m in plan.healed if single and m not in self.lagging and not self._replaced(m, plan)]
        assert not unexpected, self._say(process, f"takes {self._names(unexpected)} for more than one call behind")
        if process.host.id in plan.healed:  # it goes on like a joiner
            place.outcome = None
            self.counts["healed"] += 1
            self.counts["replaced"] += process.host.id not in self.lagging
        current = process.plane.current
        if current is not None and (place.reloaded or current.foreign):
            self._void.add((process.host.id, current.number))
        if place.outcome is not None and plan.donor_of(process.host.id) is None and not session.keeps:
            assert place.outcome.call == plan.call, self._say(
                process, f"goes on after call {plan.call}, but finished {place.outcome.call} last"
            )
            for other in session.view.ids:
                held = self._places[other].outcome if other in self._places else None
                if held is not None and held.call == plan.call:
                    text = f"acts in {session.view} after {self._text(place.outcome)}"
                    assert held == place.outcome, self._say(process, f"{text}, {self._names([other])} after {self._text(held)}")

    def reported(self, process: Body) -> None:
        """A process has told the others what it has finished: nothing that it has begun with them goes on."""
        session = process.plane.session
        assert session is None or not process.computes_on(session.view.view_id, calls=True), self._say(
            process, f"reports while operations of {session and session.view} run on its device"
        )

    def freed(self, process: Body, other: Body, view_id: str) -> None:
        """A process has freed what an earlier view's group used, also at ``other``, with which it goes on."""
        self.counts["freed"] += 1
        text = f"frees memory that operations of {self._names([other.host.id])} use, with which it goes on"
        assert not other.computes_on(view_id), self._say(process, text)

    def differ(self, host: Host, text: str) -> None:
        """Members began one operation with different sizes."""
        raise AssertionError(self._say(self._processes[host.id], text))

    def ended(self, process: Body, error: Exception) -> None:
        """A program ended with ``error``: members that do the same things are never told that they differ."""
        self._tell(process, f"ended: {type(error).__name__}: {error}")
        mismatch = isinstance(error, StepMismatch) and process.host.id not in self.odd
        crashed = mismatch or isinstance(error, (ConfigError, RebuildTimeout)) or error.__cause__ is not None
        assert not crashed, self._say(process, f"ended: {error}")
        if isinstance(error, StateLost):
            view = process.door.installed
            inside = [self._processes[member_id] for member_id in view.ids] if view is not None else []
            acted = [other for other in inside if not other.plane.blank]
            holders = [other for other in acted if other.plane.state_id or other.plane.founder]
            whole = [other for other in holders if self._all_of(other, holders)]
            self.counts["state lost"] += 1
            assert not whole, self._say(process, f"ended: {error}, though {whole} hold it")
        self.counts["replicas lost"] += isinstance(error, ReplicaLost)

    @staticmethod
    def _all_of(process: Body, there: list[Body]) -> bool:
        """Whether all processes of its replica are there."""
        return sum(other.part.replica == process.part.replica for other in there) == process.part.shards

    def killed(self, host: Host) -> None:
        """See ``Observer``."""
        if host.id in self._processes:
            self._tell(self._processes[host.id], "is dead")

    def paused(self, host: Host) -> None:
        """See ``Observer``."""
        if host.id in self._processes:
            self._tell(self._processes[host.id], "is stopped")

    def resumed(self, host: Host) -> None:
        """See ``Observer``."""
        if host.id in self._processes:
            self._tell(self._processes[host.id], "goes on")

    # What must hold

    def _finish(self, process: Body, session: Session, outcome: Outcome, *, adopted: bool) -> _Finish:
        """The record of this outcome; a new one is looked through."""
        known = self._calls.setdefault((process.part.shard, outcome.call), [])
        for finish in known:
            if finish.outcome == outcome and self._lines.same(finish.view, session.view):
                return finish
        made = self._made.find((process.part.shard, outcome), session.view)
        assert made or not adopted, self._say(process, f"adopted {self._text(outcome)}, which nobody has finished so")
        finish = _Finish(outcome, session.view if made is None else made.view)
        if outcome.layout:
            finish.owed, finish.contributors = self._sent(process, finish.view, outcome)
        else:
            void = frozenset(m for m, number in self._void if number == outcome.call) if made is None else made.void
            finish.contributors = self._contributors(process, finish.view, void, outcome)
        for other in known:
            if not self._lines.same(other.view, finish.view):
                self.counts["apart"] += 1
                continue
            self.counts["orphans"] += 1
            assert other.view.epoch != finish.view.epoch, self._say(
                process, f"finished {self._text(outcome)} in the view that also made {self._text(other.outcome)}"
            )
        known.append(finish)
        return finish

    def _apart(self, process: Body, older: _Finish, newer: _Finish) -> None:
        """Whoever has the older result is not of those who made the newer."""
        both = [holder for holder in older.holders if holder in newer.view]
        assert not both, self._say(
            process,
            f"brings about two results: {self._text(older.outcome)} at {self._names(older.holders)}, "
            f"{self._text(newer.outcome)} made by {newer.view}, {self._names(both)} included",
        )

    def _contributors(self, process: Body, view: View, void: frozenset[str], outcome: Outcome) -> frozenset[str]:
        """Who has a part in it: each bucket the same, each with what it offered for this call, together exactly the view in
        which it was made. ``void``: who had no part then.
        """
        if not outcome.sums:  # a barrier
            return frozenset()
        found: dict[str, float] = {}
        weights = 0.0
        for lane, values in enumerate(zip(*outcome.given, strict=True)):
            if not any(values):
                continue
            assert lane < len(self._processes), self._say(process, f"finds {values} in call {outcome.call}, of nobody")
            shares = {value / (number + 1) for number, value in enumerate(values)}
            other = self._by_lane(lane)
            offers = self._places[other].offers
            assert len(shares) == 1, self._say(process, f"mixes: {self._names([other])} gave {values} in {self._text(outcome)}")
            (share,) = shares
            tokens = [
                int(share // weight) for weight in WEIGHTS if offers.get(int(share // weight), 0.0) * (share // weight) == share
            ]
            token = next((token for token in tokens if self._fresh(other, token, outcome)), 0)
            assert token, self._say(
                process,
                f"counts {share:g} of {self._names([other])}, which never offered that for it, in {self._text(outcome)}",
            )
            assert other in view, self._say(
                process, f"counts {self._names([other])}, no member of {view}, in {self._text(outcome)}"
            )
            self._used[other, token] = outcome.call
            found[other] = share
            weights += offers[token]
        silent = [m for m in view.ids if m not in found and m not in void]
        assert not silent, self._say(process, f"lacks {self._names(silent)} of {view} in {self._text(outcome)}")
        assert weights == outcome.weight, self._say(
            process, f"divides by {outcome.weight:g}, the weights sum to {weights:g}, in {self._text(outcome)}"
        )
        counted = [m for m in found if m in void]
        assert not counted, self._say(
            process, f"counts {self._names(counted)}, computed on other weights, in call {outcome.call}"
        )
        return frozenset(found)

    def _sent(self, process: Body, view: View, outcome: Outcome) -> tuple[dict[str, float], frozenset[str]]:
        """What members owe after a compressed call, in which each has sent its part of what it had to send, and owed before;
        and who has given it a contribution.
        """
        owed, contributors = {}, set[str]()
        for lane, values in enumerate(zip(*outcome.sums, strict=True)):
            member = self._by_lane(lane) if lane < len(self._processes) else ""
            wanted = 0.0
            place = self._places.get(member)
            given = None if place is None else place.dues.get((outcome.call, view.view_id))
            if given is not None and member in view:  # a view of one shard, whose id the other shards' have, too
                own = given.share / outcome.weight if outcome.weight else 0.0  # all may have just loaded the state
                due = own + given.owed.get(outcome.layout, 0.0)
                wanted, owed[member] = due * SENT, due * (1.0 - SENT)
                if given.share:
                    contributors.add(member)
            for number, value in enumerate(values):
                assert abs(value - wanted * (number + 1)) <= CLOSE * (1.0 + abs(value)), self._say(
                    process, f"finds {value:g} of {member and self._names([member])} in call {outcome.call}, not {wanted:g}"
                )
        return owed, frozenset(contributors)

    def _fresh(self, member_id: str, token: int, outcome: Outcome) -> bool:
        """Whether no other call has counted it."""
        return self._used.get((member_id, token), outcome.call) == outcome.call

    def _own(self, process: Body, place: _Place, outcome: Outcome) -> None:
        """The own contribution is in it, exactly once."""
        if not outcome.sums or outcome.layout:
            return
        share = outcome.given[0][process.index]
        wanted = 0.0 if place.reloaded or place.foreign else place.token * place.weight
        assert share == wanted, self._say(
            process, f"finished {self._text(outcome)}, in which its own part is {share:g} instead of {wanted:g}"
        )

    def _replaced(self, member_id: str, plan: SalvagePlan) -> bool:
        """Whether it gets the state since all who have the result have changed it, only one call behind."""
        outcome = self._place(self._processes[member_id]).outcome
        return self._opens and (0 if outcome is None else outcome.call) == plan.call - 1

    def _stand(self, process: Body, outcome: Outcome, view: View) -> None:
        """Somebody goes on with it in ``view``."""
        stands = self._stands.settle((process.part.shard, outcome.call), view, outcome)
        assert stands == outcome, self._say(process, f"goes on after {self._text(outcome)}, others after {self._text(stands)}")
        replicas = self._replicas(process, outcome, view)
        over = self._over.settle(outcome.call, view, replicas) if replicas else replicas
        assert over == replicas, self._say(
            process, f"goes on after call {outcome.call} over {sorted(replicas)}, another shard over {sorted(over)}"
        )

    def _replicas(self, process: Body, outcome: Outcome, view: View) -> frozenset[str]:
        """The replicas whose contributions are in it; empty if that cannot be seen, or if all replicas are single processes.

        ``view``: of the line on which it was finished.
        """
        if process.part.shards == 1:
            return frozenset()
        known = self._calls[process.part.shard, outcome.call]
        finish = next(each for each in known if each.outcome == outcome and self._lines.same(each.view, view))
        return frozenset(self._processes[key].part.replica for key in finish.contributors)

    def _fits(self, process: Body, outcome: Outcome) -> None:
        """What the other shards of its replica have finished as this call is over the same replicas."""
        view = self._place(process).view
        assert view is not None
        own = self._replicas(process, outcome, view)
        for mate in self._mates(process):
            theirs, there = self._place(mate).outcome, self._place(mate).view
            if mate is process or theirs is None or there is None or theirs.call != outcome.call:
                continue
            other = self._replicas(mate, theirs, there)
            self.counts["fits"] += 1
            assert own == other or not own or not other, self._say(
                process, f"finished call {outcome.call} over {sorted(own)}, its mate {mate.host.name} over {sorted(other)}"
            )

    def _mates(self, process: Body) -> list[Body]:
        return [each for each in self._processes.values() if each.part.replica == process.part.replica]

    def _whole(self, process: Body, session: Session) -> None:
        """A view has all of a replica or none of it, unless none is whole: then nobody acts in it."""
        view = session.whole
        for member in view.members:
            name, size = member.cohort
            there = sum(other.cohort[0] == name for other in view.members)
            assert there == size, self._say(process, f"acts in {view}, in which {there} of {size} processes of {name} are")

    def _parameters_of(self, process: Body, clock: int, data: bytes) -> None:
        view = self._place(process).view
        assert view is not None
        stands = self._parameters_stand.settle((process.part.shard, clock), view, data)
        assert stands == data, self._say(process, f"goes on with other parameters after average {clock} than the others")

    # Words

    def _alone(self, process: Body, tensors: int) -> Sums:
        """What a single member contributes is the result."""
        place = self._place(process)
        lanes = [0.0] * self._lanes
        lanes[process.index] = 0.0 if place.reloaded else place.token * place.weight
        return tuple(tuple(value * (number + 1) for value in lanes) for number in range(tensors))

    def _place(self, process: Body) -> _Place:
        return self._places.setdefault(process.host.id, _Place())

    def _by_lane(self, lane: int) -> str:
        return list(self._processes)[lane]

    def _names(self, member_ids: list[str]) -> str:
        return ", ".join(self._processes[member_id].host.name for member_id in member_ids)

    def _text(self, outcome: Outcome) -> str:
        parts = [
            f"{self._processes[self._by_lane(lane)].host.name}:{share:g}"
            for lane, share in enumerate(outcome.given[0] if outcome.given else ())
            if share and lane < len(self._processes)
        ]
        return f"call {outcome.call} = ({' '.join(parts)})/{outcome.weight:g}"

    def _plan_text(self, plan: SalvagePlan) -> str:
        adoptions = ", ".join(f"{self._names([adopter])} from {self._names([donor])}" for adopter, donor in plan.adoptions)
        fault = f", {plan.fault}" if plan.fault else ""
        return f"call {plan.call} is finished" + (f", {adoptions}" if adoptions else "") + fault

    def _tell(self, process: Body, text: str) -> None:
        self.story.append(f"{self.now:9.4f} {process.host.name}: {text}")

    def _say(self, process: Body, text: str) -> str:
        """The violation, and how it came to it."""
        self.violation = self.violation or f"{process.host.name} {text}\n{self.tail()}"
        return self.violation

    def tail(self, lines: int = 60) -> str:
        """The latest of the story."""
        return "\n".join(list(self.story)[-lines:])
