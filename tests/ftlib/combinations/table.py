"""What goes together: every two features of a program, what becomes of them, and why.

``docs/consensus.md#failure-model`` shows this table; ``test_combinations`` drives every cell of it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

FEATURES = {
    "sampler": "samples are dealt by an `ElasticSampler`",
    "look-ahead": "the loader of such a sampler prefetches",
    "execute": "each step is one `execute`",
    "spares": "a worker waits above `max_size`, and takes the place of one that dies",
    "wait": 'a worker joins with `recovery = "wait"`',
    "follow": 'a worker joins with `recovery = "live"`',
    "extra": "`extra=` is registered without `apply=`: averages cannot be replayed",
    "backup-workers": "`straggler_deadline` is set, and a worker is late",
    "evaluation": "an `allreduce` in each step, and another one after each loop",
    "barrier": "a `barrier` after each loop",
    "veto": "a gradient is not finite",
    "checkpoint": "`save` every few steps",
    "drain": "a worker is told to leave",
    "min_size": "for a while fewer members are there, and calls end with FAIL, until another one joins",
    "decline": "workers call `decline` in some steps instead of the average",
    "local-SGD": "the loop is that of a `LocalSGD`, and what is called a step here is a sync",
}
"""In the order of the table. Each job has three founders besides; in every other one a founder is killed."""

WHOLE, REFUSED = "whole", "refused"


@dataclass(frozen=True, slots=True)
class Cell:
    """Of two features. Whole: the job ends, all survivors are alike bit for bit, every sample is used once."""

    first: str
    second: str
    outcome: str
    why: str
    says: tuple[str, ...] = ()
    """Refused: what the ``ConfigError`` names."""
    begins: bool = False
    """Refused: the call alone is, at the worker that makes it; the job is whole."""


_TEXT = """
sampler look-ahead: what is drawn ahead is held by its drawer, and goes back when that is gone
sampler execute: a unit's samples are used up when it is committed, and go back when it is undone
sampler spares: a spare's sampler is told of all calls up to the one in which it counts
sampler wait: the sampler's state is loaded with the rest of the state
sampler follow: it draws from its own first call on; what its loader had before are fillers
sampler extra: both are state; the sampler's is computed from finished calls, not replayed
sampler backup-workers: what a late worker had drawn goes back; no loop ends before its own does
sampler evaluation: all loops end after the same call, so the next one is the same everywhere
sampler barrier: all loops end after the same call, and a barrier uses up nothing
sampler veto: a vetoed call has used up its samples, and the ledger says so
sampler checkpoint: it has what is used up as of the last finished call; all the rest is dealt again
sampler drain: what the leaver has drawn goes back after its last call
sampler min_size: what a call that was given up would have used up is dealt again
sampler decline: its batch is used up without a step, and the ledger says so
sampler local-SGD: a sync uses up the batches of the inner steps since the last one
look-ahead execute: what is drawn beyond a unit stays drawn when that is undone
look-ahead spares: who has drawn more than the others can wait for at a loop's end comes in in the next one
look-ahead wait: who has drawn more than the others can wait for at a loop's end comes in in the next one
look-ahead follow: who has drawn more than the others can wait for at a loop's end comes in in the next one
look-ahead extra: a loader's own state is none: only the sampler's counts
look-ahead backup-workers: the backup worker tells what its loader has drawn, and all loops go on for it
look-ahead evaluation: all loops hand out as many batches as that of the deepest loader
look-ahead barrier: all loops hand out as many batches as that of the deepest loader
look-ahead veto: the vetoed call's batches are used up, those drawn beyond it are not
look-ahead checkpoint: what is drawn and not used up is not in it, and is dealt again
look-ahead drain: batches in the leaver's loader go back with the others
look-ahead min_size: batches of a call that was given up go back, those drawn beyond it stay drawn
look-ahead decline: it uses up the batch of its step; what is drawn beyond that stays drawn
look-ahead local-SGD: what is drawn beyond the inner steps of a sync stays drawn
execute spares: units cannot be replayed: the others wait while a spare that counts loads the state
execute wait: the others wait while it loads the state, in its first unit
execute follow: units cannot be replayed: the others wait while it loads the state
execute extra: it returns to the last commit with the rest of the state
execute backup-workers: backup workers stay out of units: the others wait for who is late
execute evaluation: calls within a unit are done again with it, those between units are calls like any other
execute barrier: between two units a barrier is a call like any other
execute veto: a vetoed average grants no step, and the unit is committed all the same
execute checkpoint: saved between units: what was committed last
execute drain: the leaver's last unit is finished by all or by nobody
execute min_size: the unit raises RebuildTimeout and changes nothing, also where its commit failed; all begin it again
execute decline: an exception in the unit does that; the others begin it again with whoever declined
execute local-SGD: between syncs the local weights are each worker's own, and no state of all returns
spares wait: each loads the state by its own setting when a place is free
spares follow: both are admitted in the order in which they came, as places become free
spares extra: averages cannot be replayed: the others wait while a spare that counts loads the state
spares backup-workers: who waits for a place is in no call, so nobody stands in for it
spares evaluation: a spare replays averages alone; other calls change no state
spares barrier: a spare is in no call before it has a place
spares veto: nobody applies a vetoed average, and a spare does not replay it
spares checkpoint: spares save nothing before they count
spares drain: the leaver's place is free, and a spare takes it in the same view
spares min_size: a spare takes a place at once, and calls wait only where there are too few of them
spares decline: nobody applies a declined average, and a spare does not replay it
spares local-SGD: a spare comes in with the global weights, at a member's place in the round
wait follow: a setting of each worker's own: one is waited for, one follows
wait extra: all of the state is loaded: nothing has to be replayed
wait backup-workers: whom the joiner may ask for the state does not stay away
wait evaluation: a joiner learns which call comes next, and comes in with one of its own kind
wait barrier: a joiner learns which call comes next, and comes in with one of its own kind
wait veto: a vetoed call changes no state: it may load before or after it
wait checkpoint: what is saved meanwhile is a veteran's
wait drain: whoever leaves while the state is loaded is replaced as its donor
wait min_size: it is let in though no call ends, and the others decline what they gave up with it
wait decline: a declined call changes no state: it may load before or after it, or decline itself
wait local-SGD: it gets the state on entry to the loop, and begins at a member's place in the round
follow extra: averages cannot be replayed: the others wait while it loads the state
follow backup-workers: whom the joiner may ask for the state does not stay away
follow evaluation: it takes part in calls of other kinds with nothing of its own
follow barrier: it takes part in calls of other kinds with nothing of its own
follow veto: nobody applies a vetoed average, and a learner does not replay it
follow checkpoint: a learner has rank 0 only once it has the state
follow drain: every part of the state has two donors
follow min_size: it is let in though no call ends, and the others decline what they gave up with it
follow decline: nobody applies a declined average, and a learner does not replay it; it may begin with a decline
follow local-SGD: it gets the state on entry to the loop, beside the others' inner steps
extra backup-workers: a late worker could not take over the averages that it missed
extra evaluation: it is not changed by calls
extra barrier: it is not changed by calls
extra veto: it is not changed by calls
extra checkpoint: it is saved with the rest
extra drain: every member has all of it
extra min_size: it is not changed by calls
extra decline: it is not changed by calls
extra local-SGD: it is loaded with the rest, and syncs change nothing of it
backup-workers evaluation: a step may have several calls; a late program takes over whole steps
backup-workers barrier: a backup worker takes part in one call that belongs to no step, and its program makes it, too
backup-workers veto: a call that came to nothing is missed like any other, and nothing of it is applied
backup-workers checkpoint: a late worker saves the state that it has, or nothing where samples are dealt on
backup-workers drain: the backup worker says goodbye for a late worker
backup-workers min_size: a backup worker withdraws where members are too few, and its program waits as the others do
backup-workers decline: who is late takes over what it missed, and its own step has no result
backup-workers local-SGD: nobody stands in for a worker in a sync: the others wait for it
evaluation barrier: calls are made in one order, the same everywhere
evaluation veto: inf and nan pass through an allreduce; only averages are vetoed
evaluation checkpoint: saving is no call
evaluation drain: the leaver's last call may be of any kind
evaluation min_size: a call that one gives up has no result at any, and all are at the same one again
evaluation decline: the average fails at all, the step's other call is made; a joiner does not begin with a decline
evaluation local-SGD: calls between two inner steps are calls like any other
barrier veto: a vetoed average is a finished call: all go on to the barrier
barrier checkpoint: saving is no call
barrier drain: the leaver's last call may be the barrier
barrier min_size: a barrier is given up like any other call
barrier decline: a declined average is a finished call: all go on to the barrier
barrier local-SGD: a barrier after the loop comes after the same sync at all
veto checkpoint: a vetoed step changes nothing that is saved
veto drain: a vetoed call may be the leaver's last
veto min_size: nothing is looked at in a call that is given up
veto decline: nothing of a declined call is looked at, and an average comes to nothing in either way
veto local-SGD: a sync that holds inf or nan leaves all weights as they are, and the round counts on
checkpoint drain: a checkpoint that is under way is completed before the leaver ends
checkpoint min_size: a call that was given up changes nothing that is saved
checkpoint decline: a declined step changes nothing that is saved
checkpoint local-SGD: it has the global weights, as the last sync left them
drain min_size: who is told to leave while calls wait leaves at once
drain decline: a declined call may be the leaver's last
drain local-SGD: the leaver's last call is a sync, or it leaves between two inner steps
min_size decline: a decline is given up like any other call
min_size local-SGD: a sync that one gives up counts at none, and is made after the next inner step
decline local-SGD: syncs are counted, and who declines one would not know that it was one
"""

_REFUSED = {
    ("extra", "backup-workers"): ("straggler_deadline", "extra", "apply="),
    ("execute", "decline"): ("decline", "execute"),
    ("execute", "local-SGD"): ("inner step", "execute", "sync"),
    ("decline", "local-SGD"): ("decline", "LocalSGD", "sync"),
}
_AT_THE_CALL = {("execute", "decline"), ("execute", "local-SGD"), ("decline", "local-SGD")}


def _cells() -> Iterator[Cell]:
    for line in _TEXT.strip().splitlines():
        names, why = line.split(": ", 1)
        first, second = names.split()
        says = _REFUSED.get((first, second), ())
        yield Cell(first, second, REFUSED if says else WHOLE, why, says, (first, second) in _AT_THE_CALL)


CELLS = {(cell.first, cell.second): cell for cell in _cells()}
"""By their features, in the order of ``FEATURES``."""


def rendered() -> str:
    """The table as the page shows it: each feature with each that comes after it."""
    lines = ["| feature | what it is |", "| --- | --- |"]
    lines += [f"| {name} | {what} |" for name, what in FEATURES.items()]
    lines += ["", "| together | | since |", "| --- | --- | --- |"]
    lines += [f"| {found.first}, {found.second} | {found.outcome} | {found.why} |" for found in CELLS.values()]
    return "\n".join(lines) + "\n"
