"""A model of a job in memory: members come, go, die and freeze between any two of their actions, and its books are kept apart.

What is claimed is checked against the batches that the programs held in their hands when a call finished.
"""

from __future__ import annotations

import random
from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from typing import Any

from ftlib.data.sampling import Share

from .people import FILL, WIDTH, Hand, Person
from .plot import Plot

LIMIT = 3000
"""Calls in one case: nobody is stuck."""


class Job:
    """All members, the view, and what was committed."""

    def __init__(self, plot: Plot) -> None:
        self.plot = plot
        self.luck = random.Random(~plot.seed)
        self.more = random.Random(f"{plot.seed} more")
        """For what only some kinds of cases have, so that the others stay as they are."""
        self.people: dict[str, Person] = {}
        self.calls = 0
        self.step = 0
        self.view = 0
        self.reports: dict[str, list[bytes]] = {}
        """Of the newest view change."""
        self.settled = True
        """Whether a call has finished in the newest view."""
        self.ending: tuple[int, int, int | None, set[str]] = (-1, -1, None, set())
        """As of a finished call: its number, the data epoch, how many batches its loops still hand out, whose word that is."""
        self.names = 0
        self.books: dict[int, list[tuple[int, str, bool, tuple[int, ...]]]] = defaultdict(list)
        """Data epoch -> what was committed: step, member, whether the step was granted, samples."""
        self.everybody: list[Person] = []
        self.resumed = False

    # --- a job's beginning and end -------------------------------------------------------------------------------------

    def found(self, state: dict[str, Any] | None) -> None:
        """Start ``founders`` members; ``state``: a checkpoint."""
        late = self.luck.random() < 0.5
        self.people = {}
        people = [self.newcomer() for _ in range(self.plot.founders)]
        names = [person.name for person in people]
        self.view += 1
        self.reports, self.settled = {}, True
        for person in people:
            self.people[person.name] = person
            if state is not None and not late:
                person.sampler.load_state_dict(state)
            person.sampler.bind(person.name)
            person.sampler.found(names)
            person.view, person.finished, person.step = self.view, self.calls, self.step
            person.starts = self.calls
        if state is not None and late:
            self.jitter(3 * len(people))
            for person in people:
                person.sampler.load_state_dict(state)
                person.sampler.found(names)
                person.founder = False  # what it has drawn is void, as a joiner's is
        elif self.plot.shared:
            self.jitter(3 * len(people))
            self.gather(people)
            senior = people[0].sampler.state_dict()
            for person in people[1:]:
                person.sampler.load_state_dict(senior)
                person.sampler.found(names)

    def resume(self) -> None:
        """All die, and others go on from what one of them had saved."""
        self.resumed = True
        saved = self.luck.choice([person for person in self.people.values() if person.joined])
        assert saved.finished == self.calls
        self.found(saved.sampler.state_dict())

    def gather(self, people: Sequence[Person]) -> None:
        """Let everybody come to a call, or to an end."""
        for person in people:
            while person.waiting is None and not person.over:
                person.go()

    def newcomer(self) -> Person:
        self.names += 1
        person = Person.new(f"m{self.names}-{self.luck.randrange(1000)}", self.plot, self.luck)
        self.everybody.append(person)
        return person

    # --- moments -------------------------------------------------------------------------------------------------------

    def jitter(self, times: int) -> None:
        """Let some members do something, as far as they can."""
        people = list(self.people.values())
        for _ in range(self.luck.randint(0, times)):
            self.luck.choice(people).go()

    def danger(self) -> bool:
        return self.luck.random() < self.plot.danger

    def play(self) -> None:
        """Until all programs have ended."""
        while self.people:
            if 0 < self.plot.resumes <= self.calls and not self.resumed:
                self.resume()
            over = [name for name, person in self.people.items() if person.over]
            if over and all(person.over or person.waiting for person in self.people.values()):
                self._ledgers()
                for name in over:
                    del self.people[name]
                if not any(person.joined for person in self.people.values()):
                    return  # nobody is left to give the state
                self.change()
            elif self.danger():
                self.disturb()
            elif all(person.waiting for person in self.people.values()) or self.impatient():
                self.call()
            else:
                self.jitter(2 * len(self.people))

    def impatient(self) -> bool:
        """Whether the call is carried out without some who are late, whose backup workers say that nothing of them counts.

        Waited for are those whom a joiner may ask for the state, and who have not made a call yet. Where loops end after
        different calls, who comes early to the next one would begin it apart from the others.
        """
        everybody = list(self.people.values())
        late = [person for person in everybody if not person.waiting]
        possible = len(late) < len(everybody) and all(person.joined for person in everybody)
        possible = possible and not any(person.sampler.closing or person.reached < 0 for person in late)
        possible = possible and (self.plot.even or len({person.sampler.epoch for person in everybody}) == 1)
        return possible and self.luck.random() < self.plot.backup_workers

    def rejoin(self) -> None:
        """A member that the others left behind comes again, as another, with all that its loader had drawn."""
        holders = [person for person in self.people.values() if person.joined]
        if len(holders) > 1:
            person = self.luck.choice(holders)
            del self.people[person.name]
            self.names += 1
            person.name = f"m{self.names}-again"
            person.joined = person.founder = False
            person.ends.clear()
            person.reached = -1  # a loop that is over by now was over before it came again
            if person.waiting:
                person.sampler.unfinished()
            person.missed = None
            person.sampler.thawed(None)
            self.jitter(2)
            person.sampler.bind(person.name)
            self.people[person.name] = person

    def disturb(self) -> None:
        """A member dies or leaves, or one comes, or both."""
        if self.luck.random() < 0.2:
            self.rejoin()
        if len(self.people) > 1 and self.luck.random() < 0.6:
            self.kill()
        if len(self.people) < 6 and self.luck.random() < 0.5:
            person = self.newcomer()
            person.joined = person.founder = False
            person.sampler.bind(person.name)
            for _ in range(self.luck.choice((0, 3, 100))):
                person.go()
            self.people[person.name] = person
        self.change()

    def kill(self) -> None:
        """One of those that may die: someone with the state stays."""
        holders = [name for name, person in self.people.items() if person.joined]
        victims = list(self.people) if len(holders) > 1 else [name for name in self.people if name not in holders]
        if victims:
            del self.people[self.luck.choice(victims)]

    # --- view changes --------------------------------------------------------------------------------------------------

    def change(self) -> None:
        """A view change, which others may interrupt at any moment."""
        while not self._changed():
            self.kill()

    def _changed(self) -> bool:
        self.view += 1
        members = self._shuffled()
        reports = {}
        for person in members:
            report = person.sampler.report()
            if person.joined:
                assert 0 < len(report) <= 64
                reports[person.name] = [report]
            self.jitter(2)
        if self.danger() and len(members) > 1:
            return False
        # A call that somebody has finished is adopted by all, before they hear of the view.
        last = max(person.finished for person in members)
        for person in self._shuffled():
            if person.finished < last and person.joined:
                assert person.finished == last - 1
                if person.name in self.elsewhere and person.waiting:
                    person.sampler.begin(len(person.waiting.batches))
                self._end(person, self.shares, True)
            self.jitter(2)
            if self.danger() and len(members) > 1:
                return False
            person.sampler.activated(list(self.people), reports)
            person.view = self.view
            self.jitter(2)
        self.calls = last
        self.reports, self.settled = reports, False
        if self.calls and last == self.pending:
            self._booked()
        return True

    def _shuffled(self) -> list[Person]:
        return self.luck.sample(list(self.people.values()), len(self.people))

    # --- calls ---------------------------------------------------------------------------------------------------------

    elsewhere: frozenset[str] | set[str] = frozenset()
    """Who has left the newest call by an exception, and is in the next one of its program by now."""
    pending = -1
    """The call whose outcome is known to some, and booked once it is known to all."""

    def call(self) -> None:
        """One attempt of the next call."""
        assert self.calls < LIMIT, "stuck"
        people = list(self.people.values())
        self.elsewhere = frozenset()
        self.shares: dict[str, Share] = {}
        self.hands = {person.name: person.waiting or Hand([]) for person in people}
        counts: dict[str, int] = {}
        entering: list[Person] = []
        alike = (
            len({bool(person.waiting.batches) for person in people if person.waiting}) == 1
        )  # a joiner comes in where its own call is made
        for person in self._shuffled():
            if not person.waiting:
                self.shares[person.name] = person.sampler.late()
                continue
            hand = person.waiting
            share = person.sampler.begin(len(hand.batches), beside=hand.beside - len(hand.drawn), kept=self.plot.local)
            while person.draw_beside():
                pass
            counts[person.name] = int(person.sampler.weight(len(person.waiting.batches))) if share.samples else 0
            if not person.joined:
                assert not share.samples
                if alike and self.luck.random() < 0.5:
                    entering.append(person)
                    self.enter(person)
                share = person.sampler.follow()
            self.shares[person.name] = share
        self.shares = {name: self.shares[name] for name in self.people}
        self.late = {person.name for person in people if not person.waiting}
        checks = {(share.data_epoch, share.deal) for share in self.shares.values() if share.data_epoch}
        epochs = {epoch for epoch, _ in checks}
        assert len(checks) == len(epochs), f"members deal differently: {checks}"
        assert len(checks) <= 1 or not self.plot.even, f"members are in different epochs: {checks}"
        self.counts = counts
        real = sum(counts.values())
        self.granted = real > 0 and self.luck.random() >= self.plot.vetoes
        self.granted = self.granted and not (self.plot.declines and self.more.random() < self.plot.declines)
        self.entering = {person.name for person in entering}
        if self.luck.random() < self.plot.fails:
            self._unfinished(people)
            return
        self.pending = self.calls + 1
        taking_part = [person for person in self._shuffled() if person.joined or person in entering]
        if (self.danger() or (self.plot.gives_up and self.more.random() < 0.3)) and len(people) > 1:
            # It breaks in the middle: some have finished, others have not, and one of either dies.
            finishing = self.luck.randint(0, len(taking_part))
            for person in taking_part[:finishing]:
                person.joined = True
                self._end(person, self.shares, True)
            self.elsewhere = {person.name for person in taking_part[finishing:] if self._gives_up(person)}
            self.kill()
            self.change()
            return
        for person in taking_part:
            person.joined = True
            self._end(person, self.shares, True)
        self.calls += 1
        self.settled = True
        self._booked()
        self._agree()
        self._ends_nearer()

    def _gives_up(self, person: Person) -> bool:
        """Whether it leaves its call by an exception: then it goes on to its next one."""
        others = any(other.joined for other in self.people.values() if other is not person)
        if not person.joined or not person.waiting or not others or self.more.random() >= self.plot.gives_up:
            return False
        self._end(person, {}, False)
        self.gather([person])
        if person.over:
            del self.people[person.name]
        return True

    def _ends_nearer(self) -> None:
        """The loops of a complete epoch end one call sooner with each call of a batch, unless somebody comes or is late."""
        inside = {name for name, person in self.people.items() if person.joined}
        state = next(self.people[name].sampler for name in inside)._drawer.state
        assert state is not None
        (call, epoch, left, known), told = self.ending, {name for name in inside if self.shares[name].data_epoch}
        self.ending = self.calls, state.epoch, state.left, told
        same = (call, epoch) == (self.calls - 1, state.epoch) and inside <= known
        if same and left and state.left is not None and not self.late and not self.plot.delay:
            assert state.left < left or not all(self.hands[name].batches for name in inside), "the loops never end"

    def enter(self, person: Person) -> None:
        """Give a joiner the state, as of this call."""
        donors = [other for other in self.people.values() if other.joined]
        donor = self.luck.choice(donors)
        person.sampler.load_state_dict(donor.sampler.state_dict())
        person.step = donor.step
        person.finished = donor.finished
        if not self.settled:
            person.sampler.activated(list(self.people), self.reports)
        assert not person.sampler.begin(len(person.waiting.batches)).samples

    def _end(self, person: Person, shares: dict[str, Share], finished: bool) -> None:
        if finished:
            person.step += self.granted
            person.sampler.finished(shares, person.step)
            person.finished += 1
            person.ended(self.granted, late=person.name in self.late)
        else:
            person.sampler.unfinished()
            person.ended(None)

    def _unfinished(self, people: list[Person]) -> None:
        """All of them have to ask anew: too few members, or an exception."""
        for person in people:
            if person.joined and person.waiting:
                self._end(person, {}, False)

    # --- books ---------------------------------------------------------------------------------------------------------

    def _booked(self) -> None:
        """Everybody has finished the call."""
        self.pending = -1
        self.step += self.granted
        for name, share in self.shares.items():
            hand = self.hands[name]
            real = [batch for batch in hand.batches if batch is not FILL and batch != FILL]
            samples: list[int] = []
            count = self.counts.get(name, 0)
            while real and len(samples) < count:
                samples = real.pop() + samples
            assert len(samples) == count <= share.samples, f"{name} used {hand.batches}, said {share}, and weighed {count}"
            assert self.plot.shards or count == share.samples
            if samples:
                self.books[share.data_epoch - 1].append((self.step, name, self.granted, tuple(samples)))

    def _agree(self) -> None:
        """All that have the state have the same. Who has begun the next epoch is ahead until a call of its own tells that."""
        found = {person.name: person.sampler.state_dict()["state"] for person in self.people.values() if person.joined}
        told = any(share.data_epoch for share in self.shares.values())
        states = [state for name, state in found.items() if not told or name not in self.late]
        for state in states:
            assert state == states[0] or (not told and state["deal"]["epoch"] != states[0]["deal"]["epoch"])
        for name in found.keys() & self.late:
            assert found[name] in states or found[name]["deal"]["epoch"] > states[0]["deal"]["epoch"] or not told

    def verify(self, *, complete: bool) -> None:
        """Every sample once an epoch, and all left their loops together."""
        if self.plot.even:
            self._together()
        for epoch in range(self.plot.epochs):
            counts = Counter(index for *_, samples in self.books[epoch] for index in samples)
            assert not [index for index, count in counts.items() if count > 1], f"epoch {epoch}: committed twice"
            if complete and not self.plot.breaks:
                assert sum(counts.values()) == self.plot.total, f"epoch {epoch}: {sum(counts.values())} committed"

    def _ledgers(self) -> None:
        """What anybody's ledger tells is what happened. A member that has been there for an epoch only knows none before."""
        for person in self.people.values():
            for epoch in person.sampler._drawer.ledgers if person.joined else ():
                happened: dict[tuple[int, str, bool], tuple[int, ...]] = defaultdict(tuple)
                for step, name, granted, samples in self.books[epoch]:
                    happened[step, name, granted] += samples
                told = {
                    (row.step, row.member, row.granted): tuple(
                        index[0] * WIDTH + index[1] if isinstance(index, tuple) else index for index in row.indices
                    )
                    for row in person.sampler.ledger(epoch)
                }
                if self.plot.shards and self.plot.breaks:
                    continue  # how long the shards are that nobody has read to the end is not known
                assert told == happened, f"{person.name}: ledger of epoch {epoch}"

    def _together(self) -> None:
        # A joiner's first loop may be longer than the others', by what its loader had drawn before it had the state.
        settled = {
            person.name: person.starts if person.founder else min(person.ends, default=LIMIT) for person in self.everybody
        }
        for person in self.everybody:
            for end in person.ends:
                for other in self.everybody:
                    there = settled[person.name] < end and settled[other.name] < end
                    if there and (other.reached > end or (other.over and other.reached == end)):
                        assert end in other.ends, f"{person.name} left its loop after call {end}, {other.name} did not"


def play(seed: int, make: Callable[[int], Plot] = Plot.of) -> Job:
    """Play one case, and check it. ``make``: makes the case of the seed."""
    plot = make(seed)
    job = Job(plot)
    job.found(None)
    job.play()
    job.verify(complete=True)
    return job
