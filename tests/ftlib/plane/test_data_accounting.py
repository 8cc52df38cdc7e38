"""What a sampler is told of a call and of the end of a lifetime, and which share this member claims."""

from __future__ import annotations

import gc
from unittest.mock import Mock

import pytest
import torch

from consensus import LeftError, View
from ftlib import ElasticSampler
from ftlib.core.backup.backup_call import BackupCall
from ftlib.core.calls.call import Call, Kind, Results
from ftlib.core.calls.follow import Followed
from ftlib.core.calls.salvage import Report, SalvagePlan, planned
from ftlib.core.calls.session import Session
from ftlib.core.plane.orders import Order
from ftlib.core.plane.plane import Plane
from ftlib.core.tensors.layout import lay_out
from ftlib.core.tensors.trailer import RankRecord, Trailer
from ftlib.data.mates import Drawing
from ftlib.data.sampling import Share
from ftlib.errors import Excluded, FTLibError, JobEnded, QuorumLost
from tests.ftlib.plane.sessions import AFTER_SEVEN, GROUP, LAYOUT, MEMBERS, Meanwhile, average, session
from tests.harness.basics import TIMEOUT

OWN, NONE = Share(samples=2, data_epoch=1, deal=7), Share()


@pytest.mark.parametrize("out", [False, True])
def test_a_newcomer_that_stays_out_claims_no_samples_any_more(out: bool) -> None:
    """It had the state on entry to that call, which has become another one with the call: its replica's processes say so."""
    plane, sampler = Plane("c"), Mock(closing=False)
    sampler.begin.return_value, sampler.follow.return_value, sampler.report.return_value = OWN, NONE, b"drawn"
    plane.data.register(sampler)
    here = session(2, SalvagePlan(7, 7, blank=("c",), newcomers=("c",), current_state_id="a", holders=("a",)), "c")
    assert plane.activate(here)
    plane.enter(call := average())
    assert plane.loaded(here, "a") and plane.begin(here)
    assert plane.data.share(call) == OWN
    results = Results(8, LAYOUT, (), 3.0)
    results.agreed_on(out=out, preface=False)
    assert plane.finish(here, call, Trailer.of(()), results)
    plane.enter(following := average())
    assert plane.newcomer is out
    assert plane.data.share(following) == (NONE if out else OWN)
    assert plane.data.report()[4:] == (b"" if out else b"drawn")
    assert plane.begin(here) and plane.finish(here, following, Trailer.of(()), Results(9, LAYOUT, (), 3.0))
    assert sampler.finished.call_count == (0 if out else 2)


def test_a_call_in_a_unit_that_weighs_nothing_leaves_the_weight_to_the_next_average() -> None:
    """Samples that were drawn before any average of it count, where that average uses none up."""
    plane, sampler = Plane("a"), Mock()
    sampler.weight.side_effect = lambda batches: 3.0 + 10.0 * batches
    barrier = Call(Kind.BARRIER, LAYOUT, ())
    assert plane.data.weigh(barrier, 0, 5.0) == 5.0, "without a sampler, too"
    plane.data.register(sampler)
    assert plane.data.weigh(barrier, 0, 5.0) == 5.0
    assert plane.data.weigh(average(), 0, None) == 3.0


def test_a_backup_worker_gives_the_share_of_a_late_program_and_a_learner_that_of_one_that_comes_in() -> None:
    """The late one goes on with its loop, before whose end no other one ends."""
    plane, sampler, late = Plane("a"), Mock(), Share(data_epoch=1, deal=7, late=True)
    sampler.late.return_value, sampler.follow.return_value = late, NONE
    assert plane.data.share(Followed(0.0, veto=False)) == NONE, "without a sampler"
    plane.data.register(sampler)
    assert plane.data.share(BackupCall(0.0, veto=False, awaited=lambda: False, present=plane.present)) is late
    assert plane.data.share(Followed(0.0, veto=False)) is NONE


@pytest.mark.parametrize("foreign", [False, True])
@pytest.mark.parametrize("unit", [False, True])
def test_a_call_of_the_programs_draws_nothing_until_it_ends(foreign: bool, unit: bool) -> None:
    """In a unit the function may draw, as its own calls use that up; beside a call of the others the program draws on."""
    plane, sampler = Plane("a"), Mock()
    plane.data.register(sampler)
    call = Followed(0.0, veto=False) if foreign else average()
    call.changes_state = unit
    plane.enter(call)
    assert sampler.begin.called is (not foreign and not unit)


def test_who_adopts_a_call_deals_its_samples_before_those_of_the_view_that_gave_it() -> None:
    plane, sampler = Plane("a"), Mock(report=lambda: b"drawn")
    plane.data.register(sampler)
    here = session(3, AFTER_SEVEN, "a")
    assert plane.activate(here)
    plane.enter(call := average())
    assert plane.loaded(here, "a") and plane.begin(here)
    plane.freeze(Order(4, None))
    drawn = (("a", bytes(4) + b"drawn"),)
    plan = SalvagePlan(8, 8, adoptions=(("a", "b"),), current_state_id="a", holders=("a", "b"), drawn=drawn)
    newest = session(4, plan, "a")
    assert plane.activate(newest) and plane.begin(newest)
    sampler.reset_mock()
    assert plane.adopt(newest, call, Results(8, LAYOUT, (), 3.0))
    assert [each[0] for each in sampler.method_calls] == ["finished", "activated"]


@pytest.mark.parametrize("foreign", [False, True])
def test_a_call_of_a_program_without_the_state_uses_nothing_up(foreign: bool) -> None:
    """Its batches were fillers: it draws them again. A call of the others' drew nothing."""
    plane, sampler = Plane("c"), Mock()
    plane.data.register(sampler)
    here = session(2, SalvagePlan(7, 7, blank=("c",), newcomers=("c",), current_state_id="a", holders=("a",)), "c")
    assert plane.activate(here)
    plane.enter(call := Followed(0.0, veto=False) if foreign else average())
    assert plane.begin(here) and plane.adopt(here, call, Results(8, LAYOUT, (), 3.0))
    assert sampler.unfinished.called is not foreign and not sampler.finished.called


@pytest.mark.parametrize("kind", [Kind.AVERAGE, Kind.BARRIER])
def test_a_newcomer_waits_three_times_where_the_others_only_average(kind: Kind) -> None:
    """In an average its fillers do no harm to the next epoch; what another call is for nobody knows."""
    plane, sampler = Plane("c"), Mock()
    plane.data.register(sampler)
    here = session(2, SalvagePlan(7, 7, blank=("c",), newcomers=("c",), current_state_id="a", holders=("a",)), "c")
    assert plane.activate(here)
    for number, each in ((8, kind), (9, Kind.AVERAGE)):
        plane.enter(call := Followed(0.0, veto=False))
        call.learn(lay_out(each.value, [(torch.float32, (3,))], "SUM", 1 << 20))
        assert plane.begin(here) and plane.adopt(here, call, Results(number, LAYOUT, (), 3.0))
    sampler.left_behind.return_value = True
    found = [plane.data.left_behind(1) for _ in range(5)]
    assert found == ([True] * 3 + [False] * 2 if kind is Kind.AVERAGE else [True] * 5)


def test_a_newcomer_goes_by_the_call_that_has_just_ended_not_by_the_view_change_before() -> None:
    """Both are remembered, for a state that may yet be loaded."""
    plane, sampler = Plane("c"), Mock(left_behind=Mock(return_value=True))
    plane.data.register(sampler)
    drawn = (("a", bytes(4) + b"drawn"),)
    plan = SalvagePlan(7, 7, blank=("c",), newcomers=("c",), current_state_id="a", holders=("a",), drawn=drawn)
    here, results = session(2, plan, "c"), Results(8, LAYOUT, (), 3.0)
    assert plane.activate(here)
    plane.enter(call := Followed(0.0, veto=False))
    call.learn(LAYOUT)
    results.share({"a": OWN})
    assert plane.begin(here) and plane.adopt(here, call, results)
    assert plane.data.left_behind(1)
    sampler.left_behind.assert_called_once_with({"a": OWN}, 8, 1)


def test_who_draws_no_samples_is_in_no_loop_over_them() -> None:
    """A schedule of local steps asks for it in every step, with a sampler or without one."""
    data = Plane("a").data
    assert (data.loops, data.closing, data.complete) == (0, False, False)
    data.register(Mock(loops=3, closing=False, complete=True))
    assert (data.loops, data.closing, data.complete) == (3, False, True)


@pytest.mark.parametrize("draws", [True, False])
def test_a_process_tells_its_replica_what_it_has_drawn_beyond_a_call_until_they_have_agreed(draws: bool) -> None:
    """What they have agreed on it says again in the next view, whatever it has drawn by then."""
    plane, results = Plane("a", replica="r"), Results(8, LAYOUT, (), 3.0)
    if draws:
        plane.data.register(Mock(ahead=lambda own: [own == OWN, False]))
    results.share({"q": NONE, "r": OWN})
    said = plane.data.drawing(results)
    assert said == Drawing((True, False) if draws else (), (NONE, OWN))
    plane.data.agree(results, [said, Drawing((False, False), said.shares)])
    assert plane.data.drawing(results) is results.drawing


@pytest.mark.parametrize(("name", "alike"), [("r", False), ("q", True), ("s", True)])
def test_what_a_replica_has_drawn_beyond_a_call_counts_unless_it_was_at_different_batches(name: str, alike: bool) -> None:
    """In that call. What another replica was at is not asked, nor in one that had no share in the call."""
    plane, results = Plane("a", replica=name), Results(8, LAYOUT, (), 3.0)
    results.share({"q": NONE, "r": OWN})
    plane.data.agree(results, [Drawing((True, True), (NONE, each)) for each in (OWN, Share(samples=1, data_epoch=1, deal=7))])
    assert results.drawing is not None and results.drawing.ahead == (alike, alike)


@pytest.mark.parametrize("drawing", [None, Drawing(ahead=(True, False), shares=(OWN,))])
def test_a_replica_goes_by_what_its_processes_have_drawn_ahead(drawing: Drawing | None) -> None:
    plane, sampler = Plane("a", replica="r"), Mock()
    plane.data.register(sampler)
    here = session(3, AFTER_SEVEN, "a")
    assert plane.activate(here)
    plane.enter(call := average())
    assert plane.begin(here)
    results = Results(8, LAYOUT, (), 3.0)
    results.share({"r": OWN})
    if drawing is not None:
        results.agree(drawing)
    assert plane.finish(here, call, Trailer.of(()), results)
    assert [tuple(call.args[0]) for call in sampler.level.call_args_list] == ([] if drawing is None else [(True, False)])


LEFT, OUT, LOST = LeftError("asked to leave"), Excluded("given up"), QuorumLost("too few")


@pytest.mark.parametrize(
    ("error", "late", "leaving", "rejoins", "told"),
    [
        pytest.param(JobEnded("it is over"), False, False, False, None, id="the job has ended"),
        pytest.param(OUT, False, False, True, None, id="it goes on in another lifetime"),
        pytest.param(LOST, False, False, True, LOST, id="there is none to go on in"),
        pytest.param(OUT, False, False, False, OUT, id="it does not rejoin"),
        pytest.param(LEFT, True, True, False, None, id="its backup worker has said goodbye"),
        pytest.param(OUT, True, False, False, OUT, id="late, and given up"),
        pytest.param(LEFT, False, True, False, "it draws no more", id="it has left"),
    ],
)
def test_a_loader_fails_at_the_end_unless_the_programs_call_ends_it(
    error: Exception, late: bool, leaving: bool, rejoins: bool, told: Exception | str | None
) -> None:
    """A loader that waits for samples in vain would hang; one that failed early would hide the reason."""
    plane, sampler = Plane("a", leaving=lambda: leaving, rejoins=rejoins), Mock()
    plane.data.register(sampler)
    if late:
        plane.lag.grow(1)
    plane.stop(error)
    [thawed] = [call.args[0] for call in sampler.thawed.call_args_list]
    if isinstance(told, str):
        assert type(thawed) is FTLibError and told in str(thawed)
    else:
        assert thawed is told


FOUNDING = SalvagePlan(0, 0, current_state_id="a", holders=("a",))


def test_a_founder_waits_until_its_samples_are_dealt() -> None:
    """Its loader would draw nothing before; who joins gets the state, and with it the deal, in its first call."""
    threads, sampler = Meanwhile(), Mock()
    plane, founding = Plane("a", threads=threads), session(1, FOUNDING, "a")
    plane.data.register(sampler)
    plane.data.settle(TIMEOUT)  # it does not know yet what it is
    assert plane.installing(founding.view)
    threads.happens.append(lambda: plane.activate(founding))
    plane.state_id = "a"
    plane.data.settle(TIMEOUT)
    assert not threads.happens
    assert [each[0] for each in sampler.method_calls] == ["bind", "found"]


def test_a_founder_without_the_first_ones_state_deals_once_it_has_loaded_a_checkpoint() -> None:
    """As the others do, with the same one: its loader may begin."""
    plane, sampler, founding = Plane("b"), Mock(report=lambda: b"drawn"), session(1, FOUNDING, "b")
    plane.data.register(sampler)
    assert plane.installing(founding.view) and plane.activate(founding)
    assert not sampler.found.called
    assert plane.resumed(founding, "saved", 5)
    sampler.found.assert_called_once_with(("a", "b", "c"))
    assert plane.data.report()[4:] == b"drawn"


def test_founders_that_load_a_checkpoint_deal_alike_though_one_has_missed_the_first_view() -> None:
    """It does not know over whom the others have dealt before; with the checkpoint they deal over those who load it."""
    old, planes = ElasticSampler(range(60), batch_size=3, seed=5), {name: Plane(name) for name in "ab"}
    samplers = {name: ElasticSampler(range(60), batch_size=3, seed=5) for name in planes}
    for name, plane in planes.items():
        plane.data.register(samplers[name])
    first = session(1, FOUNDING, "a")
    assert planes["a"].installing(first.view) and planes["a"].activate(first)
    reports = {name: frozen[0] for name, plane in planes.items() if (frozen := plane.freeze(Order(2, None))) is not None}
    second = View(2, first.view.view_id, MEMBERS[:2])
    chosen = planned(second, {name: Report.decode(data) for name, data in reports.items()})
    assert len(chosen.drawn) == 1, "of the one that has dealt"
    for name, plane in planes.items():
        here = Session(second, chosen, name, {"a": 0, "b": 1}, GROUP)
        assert plane.activate(here)
        plane.data.lost()
        samplers[name].load_state_dict(old.state_dict())
        assert plane.resumed(here, "a@5", 5)
    one, other = (sampler.begin(0) for sampler in samplers.values())
    assert one == other and one.deal


def test_founders_that_load_a_checkpoint_deal_alike_though_one_does_so_after_a_view_change() -> None:
    """One of three has loaded it, and one dies before it has."""
    old, planes = ElasticSampler(range(60), batch_size=3, seed=5), {name: Plane(name) for name in "ab"}
    samplers = {name: ElasticSampler(range(60), batch_size=3, seed=5) for name in planes}

    def loads(name: str, session: Session) -> None:
        planes[name].data.lost()
        samplers[name].load_state_dict(old.state_dict())
        assert planes[name].resumed(session, "a@5", 5)

    for name, plane in planes.items():
        plane.data.register(samplers[name])
        first = session(1, FOUNDING, name)
        assert plane.installing(first.view) and plane.activate(first)
        if name == "a":
            loads(name, first)
    reports = {name: frozen[0] for name, plane in planes.items() if (frozen := plane.freeze(Order(2, None))) is not None}
    second = View(2, first.view.view_id, MEMBERS[:2])
    chosen = planned(second, {name: Report.decode(data) for name, data in reports.items()})
    for name, plane in planes.items():
        here = Session(second, chosen, name, {"a": 0, "b": 1}, GROUP)
        assert plane.activate(here)
        if name == "b":
            loads(name, here)
    one, other = (sampler.begin(0) for sampler in samplers.values())
    assert one == other and one.deal


def test_who_is_healed_has_drawn_nothing() -> None:
    """Its sampler is as far behind as it is, also where the others' state is called after it: it gets theirs."""
    plane, sampler, here = Plane("a"), Mock(report=lambda: b"drawn"), session(3, AFTER_SEVEN, "a")
    sampler.begin.return_value, sampler.follow.return_value = OWN, NONE
    plane.data.register(sampler)
    assert plane.activate(here) and plane.loaded(here, "a")
    plane.freeze(Order(4, None))
    assert plane.data.report()[4:] == b"drawn"
    plan = SalvagePlan(20, 20, blank=("a",), newcomers=("a",), healed=("a",), current_state_id="a", holders=("b",))
    assert plane.activate(session(4, plan, "a"))
    assert plane.data.report() == b""
    plane.enter(call := average())
    assert plane.data.share(call) is NONE


def test_a_founder_remembers_no_calls_once_a_step_was_granted() -> None:
    """It gives its state to joiners as it is; what happened before is kept for founders without one alone."""
    plane, sampler, here = Plane("a"), Mock(report=lambda: b"drawn"), session(1, FOUNDING, "a")
    plane.data.register(sampler)
    assert plane.installing(here.view) and plane.activate(here)
    assert plane.loaded(here, "a")
    own = plane.data.report()
    assert own[:4] != bytes(4), "over whom it deals first"
    for number in range(1, 9):
        plane.enter(call := average())
        results = Results(number, LAYOUT, (), 3.0)
        results.share({"a": OWN})
        assert plane.begin(here) and plane.finish(here, call, Trailer.of(()), results)
    assert plane.data.report() == bytes(4) + b"drawn"
    assert len(plane.data._events) < 4


@pytest.mark.parametrize("held", [True, False])
@pytest.mark.parametrize("samples", [0, 2])
def test_a_result_knows_what_its_call_has_used_up(samples: int, held: bool) -> None:
    """Where it is held it may be finished in a later view, whose members are others: the trailer means nothing there. What the
    processes of a replica have agreed on meanwhile stays.
    """
    plane, here, results = Plane("a"), session(3, AFTER_SEVEN, "a"), Results(8, LAYOUT, (), 3.0)
    assert plane.activate(here)
    plane.enter(call := average())
    record = RankRecord(1.0, samples, 0, LAYOUT.check, data_epoch=int(samples > 0))
    trailer, used = Trailer.of((record,) * 3), dict.fromkeys("abc", 2) if samples else {}
    assert plane.begin(here)
    if held:
        assert plane.hold(here, results, trailer)
        assert {name: share.samples for name, share in results.shares.items()} == used
        results.share({"a": NONE})
    assert plane.finish(here, call, trailer, results)
    assert {name: share.samples for name, share in results.shares.items()} == ({"a": 0} if held else used)


def test_who_joins_before_the_first_step_does_not_say_over_whom_the_first_deal_is() -> None:
    """Founders that say another view than it would begin again, though all of them have dealt alike."""
    plane = Plane("c")
    view = View(2, "parent", MEMBERS)
    assert plane.installing(view)
    assert plane.activate(session(2, SalvagePlan(0, 0, blank=("c",), current_state_id="a", holders=("a", "b")), "c"))
    assert plane.data.report() == b""


@pytest.mark.parametrize("newcomer", [True, False])
@pytest.mark.parametrize("foreign", [True, False])
@pytest.mark.parametrize("left_behind", [True, False])
def test_a_newcomer_would_stay_out_where_the_others_leave_their_loop(newcomer: bool, foreign: bool, left_behind: bool) -> None:
    """As it says to its replica before the call is finished. In a call of the others it never comes in."""
    plane, sampler = Plane("c"), Mock()
    plane.data.register(sampler)
    new = ("c",) if newcomer else ()
    here = session(2, SalvagePlan(7, 7, blank=new, newcomers=new, current_state_id="a", holders=("a",)), "c")
    assert plane.activate(here)
    plane.enter(call := Followed(0.0, veto=False) if foreign else average())
    assert plane.loaded(here, "a")
    sampler.left_behind.return_value = left_behind
    results = Results(8, LAYOUT, (), 3.0)
    assert plane.data.stays_out(call, results) is (newcomer and (foreign or left_behind))
    if newcomer and not foreign:
        sampler.left_behind.assert_called_once_with(results.shares, 8, 0)


@pytest.mark.parametrize(
    ("kind", "weight", "step"), [(Kind.AVERAGE, 3.0, 8), (Kind.AVERAGE, 0.0, 7), (Kind.BARRIER, 3.0, 7), (Kind.BARRIER, 0.0, 7)]
)
def test_whether_the_others_leave_their_loop_depends_on_the_steps_so_far(kind: Kind, weight: float, step: int) -> None:
    """A call without a result grants none, nor does one that is no average."""
    plane, sampler = Plane("c"), Mock(left_behind=Mock(return_value=True))
    plane.data.register(sampler)
    here = session(2, SalvagePlan(7, 7, blank=("c",), newcomers=("c",), current_state_id="a", holders=("a",)), "c")
    assert plane.activate(here)
    plane.enter(call := Call(kind, LAYOUT, [torch.ones(3)], divide=kind is Kind.AVERAGE))
    assert plane.loaded(here, "a")
    results = Results(8, LAYOUT, (), weight)
    assert plane.data.stays_out(call, results)
    sampler.left_behind.assert_called_once_with(results.shares, step, 0)


@pytest.mark.parametrize("holders", ["b", "ab"])
def test_nobody_is_left_behind_by_those_who_have_lost_their_state_since(holders: str) -> None:
    """Then the newcomers that have it go on from it, and the others' loops do not end; unless one of those is there."""
    plane, sampler = Plane("c"), Mock()
    plane.data.register(sampler)
    sampler.left_behind.return_value = True
    new = ("b", "c")
    here = session(2, SalvagePlan(7, 7, blank=new, newcomers=new, current_state_id="a", holders=tuple(holders)), "c")
    assert plane.activate(here)
    plane.enter(call := average())
    assert plane.loaded(here, "a")
    assert plane.data.stays_out(call, Results(8, LAYOUT, (), 3.0)) is ("a" in holders)


def test_a_sampler_names_those_that_the_lifetime_waits_for() -> None:
    """While there is one: a sampler outlives lifetimes, and keeps none of them."""
    plane, sampler = Plane("a"), Mock()
    plane.data.register(sampler)
    blocking = sampler.bind.call_args.kwargs["blocking"]
    assert blocking() == "no view is active at this worker"
    del plane
    gc.collect()
    assert blocking() == ""
