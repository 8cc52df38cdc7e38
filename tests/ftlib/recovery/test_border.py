"""``catch_up``: a member that lacks the state gets it between two calls; shared and private state, from one donor."""

from __future__ import annotations

import functools
import threading
import time
import zlib
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
import torch
from torch import nn

import ftlib.recovery.border as borders
import ftlib.recovery.donor.private_copies as copying
from consensus import LeftError, Member, RefusalError
from consensus.protocol.state.member_table import NEVER
from ftlib import ConfigError, FTLibError, RebuildTimeout, StateLost, Status
from ftlib.common.refusals import Refusal
from ftlib.core.calls.call import Kind
from ftlib.core.engine.catching_up import CatchUp, Obtained
from ftlib.core.plane.plane import Plane
from ftlib.recovery.border import Border
from ftlib.recovery.joiner.http_transport import FetchError, Later, Midway, Nothing
from ftlib.recovery.layout.requests import Failures
from ftlib.recovery.whole_state import Transfer
from ftlib.state.replay import replay
from tests.ftlib.crews.trainees import exclude
from tests.ftlib.recovery.holders import meeting, somebody
from tests.ftlib.recovery.local import Local, Plain
from tests.ftlib.recovery.pupils import Pupil, School, assert_equal, steps
from tests.harness.basics import TIMEOUT, eventually
from tests.harness.company import Company, at_once, company, in_thread
from tests.harness.threads import Clock, no_threads

FOREVER = 10**9
NOTHING, AWAY = Nothing("b: nothing"), FetchError("b: away")
QUERY = {"number": "4", "origin": "origin", "member": "b"}


@contextmanager
def training(count: int, make: Any, **settings: Any) -> Iterator[tuple[Company, list[Any]]]:
    """Founders that train."""
    with company(count, **settings) as crew:
        made = at_once(*[functools.partial(make, ft, seed) for seed, ft in enumerate(crew.members)])
        threads = [one.start() for one in made]
        try:
            yield crew, made
        finally:
            for one in made:
                one.over.set()
            at_once(*[ft.close for ft in crew.members])
            for thread in threads:
                thread.join(TIMEOUT)


def enrolled(crew: Company, made: list[Any], make: Any, **settings: Any) -> Any:
    """One more, which has caught up; it does not train yet."""
    one = make(crew.init(**settings), 99)
    made.append(one)
    return one


def rounds(made: list[Any], every: int) -> None:
    """Let all average after so many inner steps."""
    for one in made:
        one.every = every


def common_steps(*locals_: Any, of: str = "hashes") -> int:
    """How many steps all have in common, which must have led to the same."""
    histories = [getattr(one, of) for one in locals_]
    common = set.intersection(*map(set, histories))
    assert all(len({history[step] for history in histories}) == 1 for step in common)
    return len(common)


# --- private state -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("large", [True, pytest.param(False, marks=pytest.mark.soak)])
def test_a_joiner_comes_in_the_middle_of_a_round_with_one_donors_private_state(
    monkeypatch: pytest.MonkeyPatch, *, large: bool
) -> None:
    """``large``: the copy's memory is made by another thread, between two borders."""
    prepared: list[int] = []
    prepare = copying.Backup.prepare

    def noted(backup: Any, like: Any) -> None:
        prepared.append(len(like))
        prepare(backup, like)

    monkeypatch.setattr(copying.Backup, "prepare", noted)
    if large:
        monkeypatch.setattr(copying, "_SMALL", 0)
    with training(2, functools.partial(Local, every=20)) as (crew, made):
        eventually(lambda: len(made[0].hashes) > 1, "they average")
        rounds(made, FOREVER)  # nobody comes to a call before the joiner has all
        before = [one.inner_steps for one in made]
        joiner = enrolled(crew, made, functools.partial(Local, every=20))
        assert joiner.came
        assert joiner.shared_digest() == made[0].shared_digest()
        donors = [one for one in made[:2] if joiner.private_digest() in one.privates]
        assert len(donors) == 1, "as it was at one border of one donor: not in the middle of a step, and no mixture"
        assert [one.inner_steps for one in made[:2]] != before, "they went on"
        assert bool(prepared) == large
        copies = [one.ft._lives.life.transfer.copies for one in made[:2]]
        eventually(lambda: not any(each._wanted for each in copies), "nothing is kept")
        joiner.start()
        rounds(made, 20)
        eventually(lambda: len(joiner.hashes) > 2, "it averages with them")
        assert common_steps(*made) > 1
        assert not [one.error for one in made if one.error]


def test_its_first_average_counts_in_full() -> None:
    with company(2) as crew:
        one, two = at_once(*[functools.partial(Local, ft, seed) for seed, ft in enumerate(crew.members)])
        over = threading.Event()

        def paces(local: Local) -> None:
            while not over.is_set():
                local.inner_step()

        threads = [in_thread(functools.partial(paces, local)) for local in (one, two)]
        joiner = Local(crew.init(), 7)
        over.set()
        for thread in threads:
            thread.join(TIMEOUT)
        values = [torch.full((3,), float(value)) for value in (1, 2, 6)]
        calls = [
            functools.partial(local.ft.allreduce_average, value)
            for local, value in zip((one, two, joiner), values, strict=True)
        ]
        assert at_once(*calls) == [Status.SUCCESS] * 3
        assert all(torch.equal(value, torch.full((3,), 3.0)) for value in values)


def test_with_fresh_it_keeps_its_own() -> None:
    make = functools.partial(Local, private_from="fresh")
    with training(2, make) as (crew, made):
        eventually(lambda: made[0].hashes, "they average")
        assert made[0].began != made[1].began, "founders keep theirs, too"
        joiner = enrolled(crew, made, make)
        assert joiner.came
        assert joiner.private_digest() == joiner.began
        assert joiner.shared_digest() in {digest for one in made[:2] for digest in one.hashes.values()}


class TestCopies:
    """Of private state, for joiners that ask for it."""

    @pytest.fixture
    def clock(self) -> Clock:
        return Clock()

    @pytest.fixture
    def private(self) -> Mock:
        return Mock(first_optimizer=None, **{"part.return_value": {}})

    @pytest.fixture
    def copies(self, clock: Clock, private: Mock) -> copying.PrivateCopies:
        plane = Plane("a" * 16, threads=clock)
        plane.at_border()  # which it says only once
        copies = copying.PrivateCopies(plane, Failures(clock))
        copies.watch(Mock(private=private, **{"places.return_value": ()}))
        assert not any(self.copied(copies, joiner) for joiner in "bc")
        return copies

    def copied(self, copies: copying.PrivateCopies, joiner: str) -> bool:
        copy = copies.of(joiner, 1, 0.0, lambda: False)
        return copy is not None and copy.refusal is None

    def test_none_is_made_for_a_member_that_is_gone(self, copies: copying.PrivateCopies) -> None:
        copies.keep_only(["b"])
        copies.at_border()
        assert [self.copied(copies, joiner) for joiner in "bc"] == [True, False]

    def test_none_is_made_for_one_that_asks_no_more(self, copies: copying.PrivateCopies, clock: Clock) -> None:
        clock.at += copying._KEPT / 2
        assert not self.copied(copies, "b")
        clock.at += copying._KEPT / 2
        copies.at_border()
        assert [self.copied(copies, joiner) for joiner in "bc"] == [True, False]

    def test_who_waits_has_it_as_soon_as_it_is_made(self, copies: copying.PrivateCopies) -> None:
        found: list[object] = []
        waiting = in_thread(lambda: found.append(copies.of("b", 1, TIMEOUT, lambda: False)))
        eventually(lambda: copies._plane.changed._waiters, "it waits")  # type: ignore[attr-defined]
        copies.at_border()
        waiting.join(TIMEOUT / 8)
        assert found and found[0] is not None

    def test_one_that_cannot_be_made_says_why(self, copies: copying.PrivateCopies, private: Mock) -> None:
        private.part.side_effect = ConfigError("it cannot be sent")
        copies.at_border()
        found = copies.of("b", 1, 0.0, lambda: False)
        assert found is not None and str(found.refusal) == "it cannot be sent"

    def test_one_that_can_be_made_again_is_given(self, copies: copying.PrivateCopies, private: Mock) -> None:
        """The joiner came back only after the next call."""
        private.part.side_effect = MemoryError("no room for a moment")
        copies.at_border()
        private.part.side_effect = None
        plane = copies._plane
        plane.finished += 1
        copies.at_border()
        found = copies.of("b", 2, 0.0, lambda: False)
        assert found is not None and found.refusal is None

    def test_each_step_of_the_programs_own_is_a_border(self, clock: Clock, private: Mock) -> None:
        """Until its lifetime ends."""
        own = private.first_optimizer = torch.optim.SGD([nn.Parameter(torch.ones(2))], lr=0.1)
        registered = Mock(private=private, apply=own.step, **{"places.return_value": ()})
        copies = copying.PrivateCopies(Plane("a" * 16, threads=clock), Failures(clock))
        copies.watch(registered)
        assert not self.copied(copies, "b")
        replay(registered)
        assert not self.copied(copies, "b"), "this was an average, applied again"
        own.step()
        assert self.copied(copies, "b")
        copies.close()
        assert not self.copied(copies, "b"), "it is dropped"
        own.step()
        assert not self.copied(copies, "b")
        copies.watch(registered)
        copies.watch(registered)
        assert len(own._optimizer_step_pre_hooks) == 1
        del copies
        own.step()

    def test_only_one_that_nobody_needs_is_dropped(self, copies: copying.PrivateCopies) -> None:
        """A joiner may have asked for another one meanwhile."""
        copies.at_border()
        copies.drop("b", copying.PrivateCopy())
        assert self.copied(copies, "b")
        copies.drop("b", None)
        assert not self.copied(copies, "b")
        copies.drop("c", copies.of("c", 1, 0.0, lambda: False))
        assert not self.copied(copies, "c")

    def test_others_wait_for_its_devices(self, copies: copying.PrivateCopies, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(copying, "Fence", list)
        copies.watch(Mock(private=copies._registered.private, **{"places.return_value": ("", "gpu")}))  # type: ignore[union-attr]
        assert not self.copied(copies, "b")
        copies.at_border()
        found = copies.of("b", 1, 0.0, lambda: False)
        assert found is not None and found.fence == ["gpu"]

    def test_one_that_grows_from_border_to_border_is_made_at_last(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Three times its memory is made beside the training, and then does not do; from then on the program waits for it."""
        monkeypatch.setattr(copying, "_SMALL", 0)
        copy, plane, sizes = copying.PrivateCopy(), Plane("a" * 16), list[int]()
        private = Mock(**{"part.side_effect": lambda: {"grows": torch.ones(sizes[-1])}})
        registered = Mock(private=private, **{"places.return_value": ()})
        while not copy.version and len(sizes) < 10:
            sizes.append(100 * len(sizes) + 100)
            copy.make(registered, 7, Failures(plane.threads))
            if copy.lacks is not None:
                copy.prepare(plane)
        assert len(sizes) == 1 + copying._TRIES and copy.refusal is None

    def test_its_memory_is_made_when_nothing_else_is_to_be_done(self, monkeypatch: pytest.MonkeyPatch) -> None:
        stood_back = Mock()
        monkeypatch.setattr(copying, "stand_back", stood_back)
        copy = copying.PrivateCopy()
        copy.lacks = {}
        copy.prepare(Plane("a" * 16))
        stood_back.assert_called_once_with()
        assert copy.lacks is None


class Odd(Local):
    """It keeps something with its private state that cannot be sent, but not yet when it registers."""

    kept: object = None

    def state_dict(self) -> dict[str, Any]:
        return {**super().state_dict(), "kept": self.kept}


def test_private_state_that_cannot_be_sent_any_more_ends_the_joiner_alone() -> None:
    with training(1, Odd) as (crew, [first]):
        first.kept = object()
        eventually(lambda: first.ft.step >= 1, "it trains")
        rounds([first], FOREVER)  # so that its private state is copied between two of its steps
        with pytest.raises(
            ConfigError, match=r"cannot be given to this worker: .*a value of type object cannot be transferred"
        ):
            Odd(crew.init(), 99)
        crew.members[-1].close()
        before = first.inner_steps
        eventually(lambda: first.inner_steps > before + 20 and first.ft.size == 1, "it trains on")
        assert first.error is None


@pytest.mark.parametrize("want", [MemoryError("no room"), torch.OutOfMemoryError("no room"), OSError("no descriptors")])
def test_a_donor_that_is_short_of_something_for_a_moment_trains_on(want: Exception) -> None:
    """Its private state is copied within a step of the program's optimizer."""
    with training(1, functools.partial(Short, want=want)) as (crew, [first]):
        eventually(lambda: first.ft.step >= 1, "it trains")
        rounds([first], FOREVER)
        first.left = 2
        joiner = Local(crew.init(), 99)
        assert joiner.private_digest() in first.privates
        assert (first.left, first.error) == (0, None)
        joiner.ft.close()
        before = first.inner_steps
        eventually(lambda: first.inner_steps > before + 20, "it trains on")


class Short(Local):
    """Its state cannot be had a few times."""

    left = 0
    looking = False

    def __init__(self, *about: Any, want: Exception, **more: Any) -> None:
        self.want = want
        super().__init__(*about, **more)

    def state_dict(self) -> dict[str, Any]:
        if self.left and not self.looking:
            self.left -= 1
            raise self.want
        return super().state_dict()

    def private_digest(self) -> str:
        self.looking = True
        try:
            return super().private_digest()
        finally:
            self.looking = False


def test_a_donor_without_threads_for_a_moment_trains_on_and_copies_later(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(copying, "_SMALL", 0)
    with training(1, Local) as (crew, [first]):
        eventually(lambda: first.ft.step >= 1, "it trains")
        rounds([first], FOREVER)
        with no_threads("ftlib-private") as refused:
            joiner = Local(crew.init(), 99)
        assert refused and joiner.private_digest() in first.privates
        assert first.error is None
        joiner.ft.close()
        before = first.inner_steps
        eventually(lambda: first.inner_steps > before + 20, "it trains on")


def test_private_state_that_is_not_registered() -> None:
    with training(2, functools.partial(Unregistered, private="fresh")) as (crew, made):
        eventually(lambda: made[0].hashes, "they average")
        joiner = enrolled(crew, made, functools.partial(Unregistered, private="fresh"))
        assert joiner.private_digest() == joiner.began
        joiner.start()
        eventually(lambda: len(joiner.hashes) > 1, "it trains with them")
        assert common_steps(*made) > 0


class Unregistered(Local):
    """It says itself when it is at a border."""

    def inner_step(self) -> None:
        self.ft.catch_up()
        super().inner_step()


def test_the_others_wait_in_their_call_if_the_state_comes_late(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing of the shared state can change until the joiner has it, however slowly it comes."""
    going, slow = threading.Event(), Border._beside

    def held(*arguments: Any) -> Any:
        stream = slow(*arguments)
        yield next(stream)
        assert going.wait(TIMEOUT)
        yield from stream

    with training(2, Local) as (crew, made):
        eventually(lambda: made[0].hashes, "they average")
        monkeypatch.setattr(Border, "_beside", held)
        joining = in_thread(lambda: enrolled(crew, made, Local))
        eventually(lambda: made[0].ft.size == 3, "it is let in")
        eventually(lambda: all(one.ft._plane.current is not None for one in made[:2]), "the others are in their next call")
        step = made[0].ft.step
        time.sleep(0.1)
        assert made[0].ft.step == step
        going.set()
        joining.join(TIMEOUT)
        joiner = made[2]
        assert joiner.came
        assert joiner.shared_digest() == made[0].hashes[step]
        joiner.start()
        eventually(lambda: len(joiner.hashes) > 1, "all go on")
        assert common_steps(*made) > 0


def test_a_donor_that_dies_while_it_gives_is_replaced_for_all_of_it(monkeypatch: pytest.MonkeyPatch) -> None:
    dead: list[Any] = []
    gives = Border._beside

    def dies(border: Border, *arguments: Any) -> Any:
        stream = gives(border, *arguments)
        yield next(stream)
        if not dead:
            [local] = [one for one in made if one.ft._plane is border._plane]
            dead.append(local)
            local.over.set()
            Pupil.crash(local)
            raise ConnectionAbortedError
        yield from stream

    with training(3, functools.partial(Local, every=200)) as (crew, made):
        eventually(lambda: all(one.inner_steps for one in made), "they train")
        monkeypatch.setattr(Border, "_beside", dies)
        joiner = enrolled(crew, made, Local)
        assert joiner.came
        assert dead
        assert joiner.private_digest() not in dead[0].privates
        assert any(joiner.private_digest() in one.privates for one in made[:3] if one is not dead[0])


def test_what_is_private_travels_with_one_donors_inline_part_in_a_live_recovery() -> None:
    class Counted(Pupil):
        """It has a number of its own, in two places."""

        torn = False

        def register(self, **registered: Any) -> None:
            self.own = [nn.Parameter(torch.full((4,), torch.rand(()).item())), nn.Parameter(torch.zeros(4))]
            self.note_own()
            private = {"one": nn.ParameterList(self.own[:1]), "two": nn.ParameterList(self.own[1:])}
            super().register(private=private, **registered)
            self.note_own()

        def note_own(self) -> None:
            with torch.no_grad():
                self.own[1].copy_(self.own[0] * 2)

        def compute(self) -> None:
            self.torn = self.torn or not torch.equal(self.own[1], self.own[0] * 2)
            super().compute()

        def apply(self) -> None:
            super().apply()
            with torch.no_grad():
                self.own[0].add_(torch.rand(()))
            self.note_own()

    with company(3) as crew:
        school = School(crew, Counted)
        try:
            steps(school.pupils[0], 3)
            joiner = school.enrol()
            steps(joiner, 5)
            assert joiner.ft.metrics()["recoveries"] == 1, "beside the training"
            assert joiner.ft.metrics()["recovery_fallbacks"] == 0
            assert not joiner.torn, "it is of one moment"
            assert len({pupil.own[0][0].item() for pupil in school.pupils}) > 1, "and is compared with nobody's"
            assert assert_equal(*school.pupils) > 3
        finally:
            school.end()


# --- plain loops -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("marks", "loss"),
    [
        pytest.param(True, False, marks=pytest.mark.soak),
        (True, True),
        pytest.param(False, False, marks=pytest.mark.soak),
    ],
)
def test_a_joiners_first_forward_runs_on_the_loaded_weights(*, marks: bool, loss: bool) -> None:
    make = functools.partial(Plain, marks=marks, loss=loss)
    with training(2, make) as (crew, made):
        eventually(lambda: len(made[0].states) > 3, "they train")
        joiner = enrolled(crew, made, make)
        assert joiner.came
        joiner.start()
        eventually(lambda: len(joiner.states) > 5 or joiner.error, "it trains with them")
        assert joiner.error is None
        step, weights = joiner.forwards[0]
        assert weights == made[0].states[step], "those after the newest step"
        assert min(joiner.states) == step + 1, "and its first call was the one after that"
        assert common_steps(*made, of="states") > 3
        assert joiner.ft.metrics()["state_loads"] == 1


@pytest.mark.soak
def test_programs_that_never_say_where_their_loop_begins_may_have_to_load_twice() -> None:
    """The average is taken for the first call of the loop, and is the second one."""
    make = functools.partial(Plain, marks=False, loss=True)
    with training(2, make) as (crew, made):
        eventually(lambda: len(made[0].states) > 3, "they train")
        joiner = enrolled(crew, made, make)
        joiner.start()
        eventually(lambda: len(joiner.states) > 5 or joiner.error, "it trains with them")
        assert joiner.error is None
        assert common_steps(*made, of="states") > 3


@pytest.mark.soak
def test_a_joiner_among_units() -> None:
    """``execute`` is the first call of the loop."""

    class Units(Plain):
        def step(self) -> None:
            self.ft.execute(super().step)

    with training(2, functools.partial(Units, marks=False)) as (crew, made):
        eventually(lambda: len(made[0].states) > 3, "they train")
        joiner = enrolled(crew, made, functools.partial(Units, marks=False))
        assert joiner.came
        joiner.start()
        eventually(lambda: len(joiner.states) > 5 or joiner.error, "it trains with them")
        assert joiner.error is None
        assert common_steps(*made, of="states") > 3
        assert joiner.ft.metrics()["state_loads"] == 1


@pytest.mark.soak
def test_the_donor_of_a_plain_loop_dies_while_it_gives(monkeypatch: pytest.MonkeyPatch) -> None:
    dead: list[Any] = []
    gives = Transfer.guarded

    def dies(transfer: Transfer, *arguments: Any) -> Any:
        stream = gives(transfer, *arguments)
        yield next(stream)
        if not dead:
            [plain] = [one for one in made if one.ft._plane is transfer._plane]
            dead.append(plain)
            plain.over.set()
            Pupil.crash(plain)
            raise ConnectionAbortedError
        yield from stream

    with training(3, Plain) as (crew, made):
        eventually(lambda: len(made[0].states) > 3, "they train")
        monkeypatch.setattr(Transfer, "guarded", dies)
        joiner = enrolled(crew, made, Plain)
        assert joiner.came
        assert dead
        joiner.start()
        left = [one for one in made if one not in dead]
        eventually(lambda: len(joiner.states) > 3 or joiner.error, "it trains with those that are left")
        assert joiner.error is None
        assert common_steps(*left, of="states") > 2


# --- the rest ----------------------------------------------------------------------------------------------------------


def test_who_has_the_state_returns_at_once_and_sends_nothing() -> None:
    with company(2) as crew:
        one, two = at_once(*[functools.partial(Plain, ft, seed) for seed, ft in enumerate(crew.members)])
        assert not one.came
        assert not two.came
        before = one.ft.metrics()["calls"]
        assert [one.ft.catch_up() for _ in range(3)] == [False] * 3
        assert one.ft.metrics()["calls"] == before
        assert one.ft.metrics()["state_loads"] == 0


@pytest.mark.soak
def test_it_needs_registered_state() -> None:
    with company(1) as crew:
        [one] = crew.members
        plain = Plain(one, 0)
        over = threading.Event()

        def trains() -> None:
            while not over.is_set():
                plain.step()

        thread = in_thread(trains)
        joiner = crew.init()
        with pytest.raises(ConfigError, match="catch_up: no state is registered: call register_state before it"):
            joiner.catch_up()
        joiner.close()
        over.set()
        joiner.close()  # it may be in the view by now, and the other one in a call that waits for it
        thread.join(TIMEOUT)


@pytest.mark.soak
def test_it_is_told_if_nobody_else_registered_any() -> None:
    with company(1) as crew:
        [one] = crew.members
        thread = in_thread(lambda: [one.barrier() for _ in range(400) if not time.sleep(0.005)])
        with pytest.raises(ConfigError, match="registered no state, but this worker did"):
            Plain(crew.init(), 1)
        one.close()
        thread.join(TIMEOUT)


@pytest.mark.parametrize(
    ("facts", "donor"),
    [
        ((), "b"),
        ((("_replica", "r"), ("_shard", "1"), ("_shards", "2")), "r"),
        ((("_replica", "r"), ("_shard", "2"), ("_shards", "2")), "b"),  # it makes no sense
    ],
)
@pytest.mark.parametrize("travels", [True, False])
def test_who_gave_private_state_is_a_replica(facts: Any, donor: str, *, travels: bool) -> None:
    """All processes of a replica get theirs from one, and compare by its name what they have got."""
    transfer, call = Mock(), CatchUp()
    border = Border(Mock(loaded=Mock(return_value=True)), transfer, 1.0)
    registered = Mock(private=Mock(travels=travels))
    assert border._ask(Member("b", "10.0.0.1", 1, facts), call, Mock(), registered) is Obtained.HERE
    assert call.donor == (zlib.crc32(donor.encode()) if travels else 0)


@pytest.mark.parametrize("error", [Midway("in its loop"), Later("not yet"), FetchError("no")])
def test_what_a_donor_answers_is_told_apart(error: FTLibError) -> None:
    border = Border(Mock(), Mock(fetch=Mock(side_effect=error)), 1.0)
    found = border._ask(Member("b", "10.0.0.1", 1), CatchUp(), Mock(), Mock())
    assert found is (Obtained.MIDWAY if isinstance(error, Midway) else error)


@pytest.mark.parametrize(
    ("answers", "found"),
    [([NOTHING, NOTHING], None), ([NOTHING, AWAY, None], "b"), ([AWAY, NOTHING, NOTHING, None], "c")],
)
def test_that_nobody_registered_any_is_known_once_all_say_so(
    answers: list[FTLibError | None], found: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All of them in one turn: one may have gone, and come back, meanwhile."""
    monkeypatch.setattr(borders, "in_turn", lambda *_: [Member(name, "10.0.0.1", 1) for name in "bc"])
    plane, transfer, call = Mock(loaded=Mock(return_value=True)), Mock(**{"fetch.side_effect": answers}), CatchUp()
    plane.leaving.return_value = plane.threads.now.return_value = 0
    with nullcontext() if found else pytest.raises(ConfigError, match="registered no state"):
        assert Border(plane, transfer, 1.0).obtain(call, Mock(), 1.0) is Obtained.HERE
    assert transfer.fetch.call_count == len(answers)
    assert not found or transfer.fetch.call_args.args[0].id == found


def test_while_it_comes_this_member_shows_itself_to_those_that_wait_for_it() -> None:
    """They may know why they have to wait. Where it has to leave it does not go on."""
    plane, transfer, call = Mock(), Mock(), CatchUp()
    call.number = 7
    plane.peers.places, plane.leaving.return_value = {"b": (6, 6)}, False
    Border(plane, transfer, 1.0)._ask(Member("b", "10.0.0.1", 1), call, Mock(), Mock())
    go_on = transfer.fetch.call_args.args[3]
    assert go_on() and not plane.present.called
    plane.peers.places["c"] = (6, 7)
    assert go_on() and plane.present.called
    plane.leaving.return_value = True
    assert not go_on()
    plane.leaving.return_value, plane.acting_in.return_value = False, False
    assert not go_on()


def test_in_a_view_that_has_ended_nobody_is_asked() -> None:
    plane, joiner = Mock(**{"acting_in.return_value": False}), somebody()
    session = meeting([somebody(), joiner], joiner.id, None)
    assert Border(plane, Mock(), 1.0).obtain(CatchUp(), session, 1.0) is Obtained.OVER


@pytest.mark.parametrize(("blank", "error"), [(("b", "c"), StateLost), (("c",), ConfigError)])
def test_where_nobody_has_state_it_is_told_why(blank: tuple[str, ...], error: type[Exception]) -> None:
    session = Mock(**{"plan.blank": blank, "view.ids": ("c", "b"), "plan.holders": ()})
    with pytest.raises(error):
        Border(Mock(current_state_id=""), Mock(), 1.0).obtain(CatchUp(), session, 1.0)


def test_another_donor_is_asked_after_a_refusal_or_many_laters(monkeypatch: pytest.MonkeyPatch) -> None:
    """A copy of private state costs its donor: whoever says "later" may be making one."""
    monkeypatch.setattr(borders, "_PATIENT", 3)
    monkeypatch.setattr(borders, "in_turn", lambda *_: [Member(name, "10.0.0.1", 1) for name in "bcd"])
    asked: list[str] = []
    later, refused = Later("not yet"), FetchError("no")
    answers = iter([later, later, later, refused, later, refused, refused, None])

    def fetch(donor: Member, *_: object) -> None:
        asked.append(donor.id)
        if (error := next(answers)) is not None:
            raise error

    plane = Mock(loaded=Mock(return_value=True))
    plane.leaving.return_value = plane.threads.now.return_value = 0
    border = Border(plane, Mock(fetch=fetch), 1.0)
    monkeypatch.setattr(border, "_later", lambda deadline: deadline)
    assert border.obtain(CatchUp(), Mock(), 1.0) is Obtained.HERE
    assert "".join(asked) == "bbbcddbc"
    assert plane.wait_end.call_count == 4 + 1, "after each that says so at once, and after all have refused"


def test_who_asks_early_is_kept_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    plane, transfer = Plane("a" * 16), Mock(**{"entry.return_value": None, "registered.private": None})
    plane.finished, plane.state_id = 3, "origin"

    def wait(_seconds: float) -> None:
        plane.current = Mock(kind=Kind.AVERAGE)
        transfer.entry.return_value = Mock()

    transfer.registered.private = None
    monkeypatch.setattr(plane.changed, "wait", wait)
    assert Border(plane, transfer, 1.0).source(QUERY) is transfer.guarded.return_value


def test_who_asks_for_a_border_that_is_past_does_not_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    plane, transfer = Plane("a" * 16), Mock(**{"entry.return_value": None})
    plane.finished, plane.state_id, transfer.registered.private = 4, "origin", None
    monkeypatch.setattr(plane.changed, "wait", Mock(side_effect=AssertionError("there is nothing to wait for")))
    with pytest.raises(LookupError, match="not at a border before call 4"):
        Border(plane, transfer, 1.0).source({"number": "4", "origin": "origin", "member": "b"})


@pytest.mark.parametrize("query", [*({**QUERY, name: ""} for name in QUERY), {**QUERY, "number": "²"}])
def test_who_asks_has_to_say_for_what(query: dict[str, str]) -> None:
    with pytest.raises(LookupError, match="expected"):
        Border(Mock(), Mock(), 1.0).source(query)


@pytest.mark.parametrize(
    ("kind", "private", "before", "told", "given"),
    [
        (Kind.AVERAGE, None, 0, False, True),
        (Kind.UNIT, None, 0, False, True),
        (Kind.BARRIER, None, 0, False, False),
        (Kind.AVERAGE, None, 0, True, False),  # its loop begins elsewhere
        (Kind.BARRIER, None, 4, True, True),
        (Kind.AVERAGE, Mock(), 0, True, True),  # a step on private state says so
        (Kind.BARRIER, Mock(), 0, True, False),
    ],
)
def test_it_comes_in_at_the_beginning_of_a_loop(kind: Kind, private: object, before: int, *, told: bool, given: bool) -> None:
    entry = Mock()
    plane, transfer = Plane("a" * 16), Mock(**{"entry.return_value": entry, "copies.of.return_value": None})
    transfer.registered.private = private
    plane.state_id, plane.current = "origin", Mock(kind=kind, **{"layout.text": "a call"})
    plane.borders.before, plane.borders.told = before, told
    border = Border(plane, transfer, 1.0)
    if not given:
        with pytest.raises(RefusalError, match=r"call 4 .a call. is not the first of the loop here") as refused:
            border.source(QUERY)
        assert refused.value.status == Refusal.MIDWAY
        return
    assert border.source(QUERY) is transfer.guarded.return_value
    transfer.guarded.assert_called_once_with(4, entry, plane.current.fence)
    transfer.copies.drop.assert_called_once_with("b", None)


def test_a_copy_is_dropped_once_it_is_sent_or_nobody_reads_it_any_more(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is as large as the private state."""
    transfer, copy = Mock(**{"sent.side_effect": lambda *_: iter((b"one", b"two"))}), Mock(nbytes=8)
    sizes = iter([borders.LARGE - 8, borders.LARGE - 9])
    monkeypatch.setattr(borders, "nbytes_of_parameters", lambda _registered: next(sizes))
    monkeypatch.setattr(borders, "stand_back", stood_back := Mock())
    border = Border(Mock(), transfer, 1.0)
    assert b"".join(border._beside(Mock(), 4, copy, "b")) == b"onetwo"
    transfer.copies.drop.assert_called_once_with("b", copy)
    broken_off = border._beside(Mock(), 4, copy, "c")
    assert next(broken_off) == b"one"
    stood_back.assert_called_once_with()  # only for the large one
    broken_off.close()
    transfer.copies.drop.assert_called_with("c", copy)


def test_within_execute_it_is_refused() -> None:
    with company(1) as crew:
        plain = Plain(crew.members[0], 0)
        with pytest.raises(ConfigError, match="catch_up was called within execute"):
            plain.ft.execute(plain.ft.catch_up)


def test_it_has_a_deadline(monkeypatch: pytest.MonkeyPatch) -> None:
    """The others come to no call, and do not say that their shared state is at rest."""
    monkeypatch.setattr(borders, "POLL", 0.2)
    with company(2) as crew:
        at_once(*[functools.partial(Plain, ft, seed) for seed, ft in enumerate(crew.members)])
        began = time.monotonic()
        with pytest.raises(RebuildTimeout, match=r"catch_up: no state from .* within 1 s"):
            Plain(crew.init(step_timeout=1.0), 2)
        assert time.monotonic() - began < TIMEOUT / 2


def test_its_deadline_counts_from_the_others_last_step_by_themselves(monkeypatch: pytest.MonkeyPatch) -> None:
    """They are in a round that takes longer than ``step_timeout``, and give the state only in the call at its end."""
    monkeypatch.setattr(borders, "POLL", 0.2)
    with company(2) as crew:
        plain = at_once(*[functools.partial(Plain, ft, seed) for seed, ft in enumerate(crew.members)])
        over = threading.Event()

        def takes_long(one: Plain) -> None:
            steps = 0
            while not over.is_set():
                steps += 1
                one.ft.stepped(steps)
                time.sleep(0.05)
            one.ft.allreduce_average(torch.ones(1))

        threads = [in_thread(functools.partial(takes_long, one)) for one in plain]
        timer = threading.Timer(8.0, over.set)
        timer.start()
        joiner = Plain(crew.init(step_timeout=3.0), 2)
        assert joiner.came and over.is_set()
        joiner.ft.allreduce_average(torch.ones(1))
        for thread in threads:
            thread.join(TIMEOUT)


@pytest.mark.soak
def test_it_ends_when_this_worker_leaves() -> None:
    with company(2) as crew:
        at_once(*[functools.partial(Plain, ft, seed) for seed, ft in enumerate(crew.members)])
        joiner = crew.init()
        came: list[Any] = []

        def waits() -> None:
            try:
                came.append(Plain(joiner, 2).came)
            except (SystemExit, LeftError, Exception) as error:  # noqa: BLE001 - the test looks at it
                came.append(error)

        thread = in_thread(waits)
        eventually(lambda: joiner.size == 3, "it is let in")
        joiner.close()
        thread.join(TIMEOUT)
        assert came == [False]


def test_a_wait_for_the_state_is_no_evidence_against_the_others() -> None:
    """They compute for longer than anybody may come late to a call."""
    with company(2, stall_timeout=2.0) as crew:
        made = at_once(*[functools.partial(Local, ft, seed) for seed, ft in enumerate(crew.members)])
        joining = in_thread(lambda: Local(crew.init(), 2))
        eventually(lambda: made[0].ft.size == 3, "it is let in")
        time.sleep(4.0)
        assert made[0].ft.size == 3, "nobody is taken for hung"
        for one in made:
            one.inner_step()  # a border
        joining.join(TIMEOUT)
        assert not joining.is_alive()


@pytest.mark.soak
def test_an_excluded_worker_joins_again_in_catch_up() -> None:
    with training(3, Local, rejoin=True) as (_, made):
        eventually(lambda: all(one.hashes for one in made), "they average")
        out = made[2]
        out.over.set()
        eventually(lambda: out.ft._plane.current is None or out.error, "it stops")
        at = len(out.hashes)
        exclude(out.ft)
        eventually(lambda: len(made[0].hashes) > at + 1, "the others go on")
        assert out.ft.catch_up()
        assert out.ft.metrics()["rejoins"] == 1
        assert out.shared_digest() in made[0].hashes.values()
        assert any(out.private_digest() in one.privates for one in made[:2])
        out.over.clear()
        at = len(out.hashes)
        out.start()
        eventually(lambda: len(out.hashes) > at + 1 or out.error, "it trains with them again")
        assert out.error is None
        assert common_steps(*made) > 1


def test_it_ends_if_all_who_had_the_state_end() -> None:
    found: list[BaseException] = []

    def waits(ft: Any) -> None:
        try:
            Plain(ft, 3)
        except (FTLibError, SystemExit) as error:
            found.append(error)

    with company(2, exclude_after=12.0) as crew:
        founders = at_once(*[functools.partial(Plain, ft, seed) for seed, ft in enumerate(crew.members)])
        joiner = crew.init()
        thread = in_thread(functools.partial(waits, joiner))
        eventually(lambda: founders[0].ft.size == 3 == joiner.size, "it is let in")
        # Before it had an answer from each in this view, their deaths would not rule out that they had decided without it.
        table = joiner._lives.life.consensus._host.child.agent.driver.core._core.table  # type: ignore[attr-defined]
        eventually(lambda: all(peer.contact != NEVER for peer in table), "each has answered")
        at_once(*[functools.partial(Pupil.crash, one) for one in founders])
        thread.join(TIMEOUT)
        assert [type(error) for error in found] == [StateLost]


@pytest.mark.soak
def test_a_spare_waits_for_room() -> None:
    with training(2, Local, max_size=2) as (crew, made):
        eventually(lambda: all(one.hashes for one in made), "they average")
        came: list[Local] = []
        thread = in_thread(lambda: came.append(Local(crew.init(), 7)))
        eventually(lambda: len(made[0].hashes) > 4, "the others go on")
        assert not came
        made[1].over.set()
        made[1].ft.close()
        thread.join(TIMEOUT)
        assert came[0].came
        assert came[0].shared_digest() in made[0].hashes.values()


@pytest.mark.soak
def test_founders_begin_from_a_checkpoint_with_the_writers_private_state(tmp_path: Path) -> None:
    with company(2) as crew:
        one, two = at_once(*[functools.partial(Local, ft, seed) for seed, ft in enumerate(crew.members)])
        for _ in range(2):
            at_once(one.inner_step, two.inner_step)
            at_once(one.average, two.average)
        one.inner_step()
        two.inner_step()
        written = one.private_digest(), one.shared_digest()
        assert two.private_digest() != written[0]
        at_once(*[functools.partial(each.ft.save, tmp_path) for each in (one, two)])
    with company(2, resume=str(tmp_path)) as crew:
        again = at_once(*[functools.partial(Local, ft, 5 + seed) for seed, ft in enumerate(crew.members)])
        assert {(each.private_digest(), each.shared_digest()) for each in again} == {written}
        assert not any(each.came for each in again)


@pytest.mark.parametrize(
    ("called", "holds", "refusal"),
    [(False, False, Refusal.LATER), (False, True, Refusal.LATER), (True, True, Refusal.LATER), (True, False, Refusal.NOTHING)],
)
def test_who_registered_nothing_says_so_once_it_calls(
    monkeypatch: pytest.MonkeyPatch, *, called: bool, holds: bool, refusal: Refusal
) -> None:
    """Before that it may still register some, or may have done so a moment ago."""
    monkeypatch.setattr(borders, "POLL", TIMEOUT if called or holds else 0.0)
    plane = Mock(changed=threading.Condition(), current=object() if called else None, has_state=holds)
    monkeypatch.setattr(plane.changed, "wait", waits := Mock())
    border = Border(plane, Mock(registered=None), TIMEOUT)
    with pytest.raises(RefusalError, match="no state is registered here") as refused:
        border.source({"number": "1", "origin": "a", "member": "b"})
    assert refused.value.status == refusal
    assert waits.called != (called or holds)
