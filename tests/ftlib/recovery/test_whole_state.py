"""What a member does about the whole state before it asks for it; ``tests/ftlib/state`` has whole jobs."""

from __future__ import annotations

import io
from collections.abc import Callable
from contextlib import nullcontext
from unittest.mock import Mock

import pytest
import torch

from consensus import LeftError, Member, RefusalError
from ftlib import ConfigError, RebuildTimeout
from ftlib.common.refusals import Refusal
from ftlib.common.traces import FetchRecord, RecoveryRecord, Traces
from ftlib.core.calls.call import Call, Kind
from ftlib.core.calls.observer import Observers
from ftlib.core.calls.session import Session
from ftlib.core.plane.phase import Phase
from ftlib.core.plane.plane import Plane
from ftlib.core.plane.progress import Progress
from ftlib.core.tensors.layout import lay_out
from ftlib.recovery import whole_state
from ftlib.recovery.joiner.http_transport import RETRY, FetchError, Later, Nothing, Refused
from ftlib.recovery.layout.requests import POLL
from ftlib.recovery.whole_state import Transfer
from ftlib.state import codec
from ftlib.state.codec import snapshot
from ftlib.state.private import Private
from ftlib.state.registry import Registered
from tests.ftlib.recovery.holders import STATE_ID, Model, meeting, optimizer_of, somebody
from tests.harness.basics import TIMEOUT, eventually
from tests.harness.company import in_thread
from tests.harness.threads import Clock

HOLDER, OWN, OTHER = somebody(), somebody(), somebody()


@pytest.fixture
def plane() -> Plane:
    return Plane(OWN.id)


@pytest.fixture
def session(plane: Plane) -> Session:
    """The first of three holds the state."""
    session = meeting([HOLDER, OWN, OTHER], OWN.id, None)
    assert plane.activate(session)
    return session


def test_copies_are_kept_for_members_that_lack_the_state(
    plane: Plane, session: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    transfer, copies = Transfer(plane, 1.0, 1.0), Mock()
    monkeypatch.setattr(transfer, "copies", copies)
    transfer.activated(session)
    copies.keep_only.assert_called_once_with([OWN.id, OTHER.id])


def test_who_registered_nothing_asks_once_whether_the_others_did(
    plane: Plane, session: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(whole_state, "request", asked := Mock(side_effect=Refused("nor here")))
    transfer, call = Transfer(plane, 1.0, 1.0), Mock(began=plane.threads.now())
    alone = meeting([OWN, OTHER], OWN.id, None)
    for given, count in ((alone, 0), (session, 1), (session, 1)):
        assert not transfer.load(call, given)
        assert asked.call_count == count


@pytest.mark.parametrize("founds", [True, False])
@pytest.mark.parametrize(("takes", "most"), [(0.0, 2.0 / RETRY + 2), (POLL, 1)])
def test_a_donor_that_is_too_busy_is_asked_now_and_then(
    founds: bool, takes: float, most: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It says so at once, where it would keep a request waiting else; hundreds may ask it."""
    clock = Clock()
    plane, asked, waits = Plane(OWN.id, threads=clock), list[float](), list[float]()

    def request(*_: object) -> Mock:
        asked.append(clock.at)
        assert len(asked) < 50
        clock.at += takes
        raise Later("too many transfers at a time")

    def wait_end(_session: Session, seconds: float) -> None:
        waits.append(seconds)
        clock.at += seconds

    monkeypatch.setattr(whole_state, "request", request)
    monkeypatch.setattr(plane, "wait_end", wait_end)
    transfer = Transfer(plane, 2.0, 2.0)
    session = meeting([HOLDER, OWN], OWN.id, None, version=1)
    assert plane.activate(session)
    plane.founder = founds
    if founds:
        with pytest.raises(ConfigError, match="has not registered state within 2 s"):
            transfer.register(Registered({"model": Model([1])}))
    else:
        transfer._registered = Mock()
        with pytest.raises(RebuildTimeout, match=r"no state from .* within 2 s"):
            transfer.load(Mock(began=clock.at), session)
    assert 1 <= len(asked) <= most
    assert sum(waits) == 0.0 or not takes, "who was kept waiting asks again at once"


def test_a_founder_asks_a_donor_that_is_away_again_after_a_while(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its end may have to be noticed first. And who has nothing for it any more is not waited for."""
    plane, waits = Plane(OWN.id), list[float]()
    assert plane.activate(meeting([HOLDER, OWN], OWN.id, None, version=1))
    monkeypatch.setattr(plane, "wait_end", lambda _session, seconds: waits.append(seconds))
    monkeypatch.setattr(whole_state, "request", Mock(side_effect=[AWAY, NOTHING]))
    plane.founder = True
    Transfer(plane, 60.0, 60.0).register(Registered({"model": Model([1])}))
    assert waits == [whole_state.RETRY]


def test_a_founder_whose_view_ends_as_it_loads_asks_again(plane: Plane, monkeypatch: pytest.MonkeyPatch) -> None:
    """What it has loaded may not be what the next view begins with. And it gives nothing that it has got."""
    plane.founder = True
    assert plane.activate(meeting([HOLDER, OWN], OWN.id, None, version=1))
    transfer = Transfer(plane, 60.0, 60.0)
    monkeypatch.setattr(transfer, "fetch", fetch := Mock())
    monkeypatch.setattr(plane, "loaded", Mock(side_effect=[False, True]))
    transfer.register(Registered({"model": Model([1])}))
    assert fetch.call_count == 2 and transfer._snapshot is None


def test_a_founder_asks_no_more_once_a_checkpoint_is_loaded(plane: Plane, monkeypatch: pytest.MonkeyPatch) -> None:
    """That has the state, or the first call brings it."""
    plane.founder = True
    assert plane.activate(meeting([HOLDER, OWN], OWN.id, None, version=1))
    monkeypatch.setattr(whole_state, "pause_between_requests", lambda *_: setattr(plane, "step", 1))
    monkeypatch.setattr(whole_state, "request", asked := Mock(side_effect=Later("not yet")))
    Transfer(plane, 60.0, 60.0).register(Registered({"model": Model([1])}))
    assert asked.call_count == 1


class Answer:
    """Of a donor, over HTTP."""

    def __init__(self, data: bytes) -> None:
        self._data = io.BytesIO(data)
        self.read = self._data.read

    def finish(self) -> None:
        """All of it was read."""


def test_who_registered_nothing_asks_again_where_a_donor_does_not_know_yet(
    plane: Plane, session: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    waits: list[float] = []
    monkeypatch.setattr(plane, "wait_end", lambda _session, seconds: waits.append(seconds))
    monkeypatch.setattr(whole_state, "request", Mock(side_effect=[Later("not yet"), nullcontext(Answer(b"registered"))]))
    with pytest.raises(ConfigError, match="this worker registered no state, but"):
        Transfer(plane, 60.0, 60.0).load(Mock(began=plane.threads.now()), session)
    assert waits == [RETRY]


NOTHING, LATER, AWAY = Nothing("b: nothing"), Later("c: not yet"), FetchError("c: away")


@pytest.mark.parametrize("errors", [[NOTHING, AWAY], [AWAY, AWAY], [LATER, AWAY], [NOTHING, LATER]])
def test_all_holders_are_asked_in_turn_until_one_gives_the_state(
    plane: Plane, session: Session, errors: list[Exception], monkeypatch: pytest.MonkeyPatch
) -> None:
    """That some have registered nothing is an error once all have said so."""
    asked, waits, answers = list[str](), list[float](), iter([*errors, None])

    def fetch(holder: Member, *_: object) -> None:
        asked.append(holder.id)
        if (error := next(answers)) is not None:
            clock.at += 2 * RETRY
            raise error

    clock = Clock()
    plane = Plane(OWN.id, threads=clock)
    assert plane.activate(session)
    monkeypatch.setattr(plane, "wait_end", lambda _session, seconds: waits.append(seconds))
    monkeypatch.setattr(whole_state, "in_turn", lambda _session: [HOLDER, OTHER])
    transfer = Transfer(plane, 60.0, 60.0)
    transfer._registered = Mock()
    monkeypatch.setattr(transfer, "fetch", fetch)
    assert transfer.load(Mock(began=clock.at, number=5), session)
    assert asked == [HOLDER.id, OTHER.id, HOLDER.id]
    assert waits == [0.0 if LATER in errors else RETRY], "who was kept waiting asks again at once"
    assert plane.state_id == plane.current_state_id


@pytest.mark.parametrize("ends", [True, False])
def test_that_nobody_registered_any_is_an_error_once_all_have_said_so(
    plane: Plane, session: Session, ends: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In a view that ends meanwhile not all are asked."""

    def fetch(*_: object) -> None:
        if ends:
            plane.stop(LeftError("it is over"))
        raise NOTHING

    monkeypatch.setattr(whole_state, "in_turn", lambda _session: [HOLDER, OTHER])
    transfer = Transfer(plane, 60.0, 60.0)
    transfer._registered = Mock()
    monkeypatch.setattr(transfer, "fetch", fetch)
    with nullcontext() if ends else pytest.raises(ConfigError, match="registered no state, but this worker did"):
        assert not transfer.load(Mock(began=plane.threads.now(), number=5), session)


def test_who_has_to_leave_without_the_state_gives_nothing(
    plane: Plane, session: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its gradients are those of other parameters."""
    transfer = Transfer(plane, 60.0, 60.0)
    transfer._registered = Mock()
    monkeypatch.setattr(plane, "leaving", lambda: True)
    monkeypatch.setattr(transfer, "fetch", Mock(side_effect=AWAY))
    assert transfer.load(Mock(began=plane.threads.now(), number=5), session)
    assert plane.state_id != plane.current_state_id


def test_nobody_is_asked_for_a_view_that_has_ended(plane: Plane, session: Session, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []

    def fetch(holder: Member, _query: object, _registered: object, go_on: Callable[[], bool]) -> None:
        asked.append(holder.id)
        assert go_on()
        with monkeypatch.context() as patch:
            patch.setattr(plane, "leaving", lambda: True)
            assert not go_on(), "it has to leave"
        plane.stop(LeftError("it is over"))
        raise AWAY

    monkeypatch.setattr(whole_state, "in_turn", lambda _session: [HOLDER, OTHER])
    transfer = Transfer(plane, 60.0, 60.0)
    transfer._registered = Mock()
    monkeypatch.setattr(transfer, "fetch", fetch)
    assert not transfer.load(Mock(began=plane.threads.now(), number=5), session)
    assert asked == [HOLDER.id]


def test_what_has_come_is_counted_and_traced(session: Session, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock()
    plane = Plane(OWN.id, threads=clock, traces=Traces())
    assert plane.activate(session) and plane.traces is not None
    plane.counters.state_bytes = 1000  # of an earlier one

    class Slow(Answer):
        def finish(self) -> None:
            assert plane.recovery is None, "it is here"
            clock.at += 2.0

    data = snapshot({"model": [torch.ones(8)]})
    monkeypatch.setattr(whole_state, "request", lambda *_: nullcontext(Slow(data)))
    registered = Mock()
    Transfer(plane, 1.0, 1.0).fetch(HOLDER, {"call": "5"}, registered, lambda: True)
    [tree] = registered.load.call_args.args
    assert torch.equal(tree["model"][0], torch.ones(8))
    nbytes, view_id = plane.counters.state_bytes - 1000, session.whole.view_id
    assert 32 < nbytes <= len(data)
    assert plane.traces.take()[1:] == [
        FetchRecord(HOLDER.id, -1, 100.0, 102.0, nbytes, ""),
        RecoveryRecord(OWN.id, 100.0, 102.0, nbytes, 0, 0, view_id, waited_for=True),
    ]


@pytest.mark.parametrize(
    ("step", "current", "status"), [(0, None, Refusal.LATER), (1, None, Refusal.NOTHING), (0, Mock(), Refusal.NOTHING)]
)
@pytest.mark.parametrize("query", [{"founding": "1"}, {"registered": "1"}])
def test_who_registered_nothing_says_so_once_it_is_too_late(
    plane: Plane, query: dict[str, str], step: int, current: object, status: Refusal, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Until then it may do so any moment, and who asks is kept waiting."""
    monkeypatch.setattr(plane.changed, "wait", waits := Mock())
    monkeypatch.setattr(whole_state, "POLL", 0.0 if status is Refusal.LATER else POLL)
    plane.step, plane.current = step, current
    with pytest.raises(RefusalError) as refused:
        Transfer(plane, 1.0, 1.0).source(query)
    assert refused.value.status == status
    assert waits.called == (status is Refusal.LATER)


@pytest.mark.parametrize(
    "query", [{}, {"call": "5"}, {"origin": STATE_ID}, {"call": "five", "origin": STATE_ID}, {"call": "²", "origin": STATE_ID}]
)
def test_who_asks_has_to_say_for_what(plane: Plane, query: dict[str, str]) -> None:
    with pytest.raises(LookupError, match=r"expected .call=NUMBER&origin=ID, or founding=1"):
        Transfer(plane, 1.0, 1.0).source(query)


def test_a_view_is_waited_for_until_the_deadline(monkeypatch: pytest.MonkeyPatch) -> None:
    plane, waits = Plane(OWN.id, threads=Clock()), list[float]()
    monkeypatch.setattr(plane.changed, "wait_for", lambda _ready, seconds: waits.append(seconds))
    for deadline in (103.0, 90.0):
        with pytest.raises(RebuildTimeout, match="no view became active within 3 s"):
            Transfer(plane, 3.0, 1.0).active(deadline)
    assert waits == [3.0, 0.0]


def test_a_view_that_is_frozen_is_not_waited_for_any_more_than_none(session: Session, monkeypatch: pytest.MonkeyPatch) -> None:
    """What its plan says may not be so in the next one."""
    plane = Plane(OWN.id, threads=Clock())
    assert plane.activate(session)
    transfer = Transfer(plane, 3.0, 1.0)
    assert transfer.active(103.0) is session
    plane.phase = Phase.WAITING
    monkeypatch.setattr(plane.changed, "wait_for", Mock())
    with pytest.raises(RebuildTimeout, match="no view became active within 3 s"):
        transfer.active(103.0)


def test_after_the_first_step_nobody_needs_the_initial_state(plane: Plane) -> None:
    observers = Observers()
    transfer = Transfer(plane, 1.0, 1.0, observers=observers)
    transfer._snapshot = b"state"
    observers.attach(transfer)
    transfer.entering(1)
    assert transfer._snapshot is not None and observers.present
    plane.step = 1
    transfer.entering(2)
    assert transfer._snapshot is None and not observers.present


def test_the_initial_state_is_dropped_once_all_others_have_it(plane: Plane, session: Session) -> None:
    """It is as large as the model."""
    transfer = Transfer(plane, 1.0, 1.0)
    transfer._snapshot = b"state"
    first = transfer.source({"founding": "1"})
    assert transfer._snapshot is not None, "it is not given yet"
    assert [b"".join(first), b"".join(transfer.source({"founding": "1"}))] == [b"state"] * 2
    assert transfer._snapshot is None, "two others are in the view"


def test_a_state_on_a_device_is_read_after_what_was_enqueued_before_the_call(plane: Plane, session: Session) -> None:
    transfer, fence = Transfer(plane, 1.0, 1.0), Mock()
    transfer._registered = Registered({"model": Model([1])})
    plane.state_id, plane.current = STATE_ID, None
    call = Call(Kind.BARRIER, lay_out("barrier", [], "SUM", 1 << 20), ())
    plane.enter(call)
    call.fence = fence
    assert b"".join(transfer.source({"call": str(call.number), "origin": STATE_ID}))
    assert fence.share_device.called
    assert transfer.entry(call.number + 1) is None
    plane.current = None
    assert transfer.entry(call.number) is None


def test_private_state_is_where_it_is_whether_it_travels_or_not(plane: Plane, monkeypatch: pytest.MonkeyPatch) -> None:
    """Before other threads write the state, all that was enqueued there has to end."""
    model, own = Model([1]), Model([1], seed=1)
    monkeypatch.setattr(whole_state, "place_of", lambda tensor: "gpu" if torch.equal(tensor, own.rows[0]) else "")
    Transfer(plane, 1.0, 1.0).register(Registered({"model": model}, private=Private({"own": own}, travels=False)))
    assert plane.state_places == ("gpu",)


def test_borders_are_those_of_the_lifetime_in_progress(plane: Plane) -> None:
    """A worker that has joined again gives its private state from then on, and its former lifetime holds no copy of it."""
    own = Model([1])
    optimizer = optimizer_of(own)
    former = Transfer(plane, 1.0, 1.0)
    former.register(Registered({"model": Model([1])}, private=Private({"own": optimizer}, travels=True)))
    former.copies.of("b", 1, 0.0, lambda: True)
    former._snapshot, plane.state_places = b"the initial state", ("gpu",)
    former.close()
    assert not optimizer._optimizer_step_pre_hooks and not former.copies._wanted and former._snapshot is None
    again = Plane(OTHER.id)
    transfer = Transfer(again, 1.0, 1.0, former=former)
    optimizer.step()
    assert again.borders.before == 1 and plane.borders.before == 0
    assert again.state_places == ("gpu",), "they are the same objects"
    transfer.close()
    assert Transfer(Plane(OTHER.id), 1.0, 1.0, former=Transfer(plane, 1.0, 1.0)).registered is None


def test_who_has_the_state_keeps_its_gradients(plane: Plane, session: Session) -> None:
    plane.state_id = plane.current_state_id
    assert not Transfer(plane, 1.0, 1.0).load(Mock(), session)


def test_a_state_of_a_former_lifetime_is_not_used_if_nobody_can_replace_it(plane: Plane, session: Session) -> None:
    former = Transfer(plane, 1.0, 1.0)
    former._registered = Mock(private=None)
    plane.current_state_id = ""
    assert not former.load(Mock(), session), "it is as the program has made it"
    with pytest.raises(ConfigError, match=r"nobody in .* registered state, but this worker did"):
        Transfer(plane, 1.0, 1.0, former=former).load(Mock(), session)


@pytest.mark.parametrize("sync", [True, False])
def test_a_founder_gives_its_initial_state_until_the_first_step(plane: Plane, sync: bool) -> None:
    """Only its digests, if all are to be equal. A lone one keeps nothing."""
    plane.founder = True
    for members, kept in (([OWN], False), ([OWN, OTHER], True)):
        plane.phase, observers = Phase.WAITING, Observers()
        assert plane.activate(meeting(members, OWN.id, None, version=1))
        plane.state_id = plane.current_state_id
        transfer = Transfer(plane, 1.0, 1.0, observers=observers)
        transfer.register(Registered({"model": Model([1])}), sync=sync)
        assert (transfer._snapshot is not None) == bool(observers.present) == kept
    with pytest.raises(RefusalError, match="it was registered with sync="):
        transfer.source({"founding": whole_state.PROMISED if sync else "1"})
    assert b"".join(transfer.source({"founding": "1" if sync else whole_state.PROMISED}))
    assert transfer._snapshot is None


@pytest.mark.parametrize(("query", "waited_for"), [({"call": "5"}, True), ({"founding": "1"}, False)])
def test_who_looks_sees_how_much_has_come_and_whether_the_others_wait(
    plane: Plane, query: dict[str, str], waited_for: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen = list[Progress]()

    def look() -> bool:
        if plane.recovery is not None:
            seen.append(plane.recovery())
        return True

    data = snapshot({"model": [torch.ones(8), torch.ones(8)]})
    monkeypatch.setattr(whole_state, "request", lambda *_: nullcontext(Answer(data)))
    Transfer(plane, 1.0, 1.0).fetch(HOLDER, query, Mock(), look)
    received = [progress.got for progress in seen]
    assert received[0] == 0 and received == sorted(set(received)) and seen[-1].total == plane.counters.state_bytes
    assert all(progress.braking == waited_for for progress in seen)


def test_who_asks_for_the_state_before_that_call_is_kept_waiting(plane: Plane, session: Session) -> None:
    """To be sent away would cost it a moment in which the others wait for it."""
    transfer, given = Transfer(plane, 1.0, 1.0), list[bytes]()
    transfer._registered, plane.state_id = Registered({"model": Model([1])}), STATE_ID
    call = Call(Kind.BARRIER, lay_out("barrier", [], "SUM", 1 << 20), ())
    query = {"call": str(plane.finished + 1), "origin": STATE_ID}
    asking = in_thread(lambda: given.append(b"".join(transfer.source(query))))
    eventually(lambda: plane.changed._waiters, "it waits")  # type: ignore[attr-defined]
    plane.enter(call)
    asking.join(TIMEOUT)
    assert given


def test_who_asks_for_the_state_of_a_call_that_is_over_is_not(plane: Plane, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plane.changed, "wait", Mock(side_effect=AssertionError("there is nothing to wait for")))
    plane.finished = 5
    with pytest.raises(RefusalError, match="not inside call 5") as refused:
        Transfer(plane, 1.0, 1.0).source({"call": "5", "origin": STATE_ID})
    assert refused.value.status == Refusal.LATER


def test_a_founder_that_asks_early_gets_the_state_once_it_is_registered(plane: Plane, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(whole_state, "POLL", TIMEOUT)
    plane.founder = True
    assert plane.activate(meeting([OWN, OTHER], OWN.id, None, version=1))
    plane.state_id, transfer, given = plane.current_state_id, Transfer(plane, 1.0, 1.0), list[bytes]()
    asking = in_thread(lambda: given.append(b"".join(transfer.source({"founding": "1"}))))
    eventually(lambda: plane.changed._waiters, "it waits")  # type: ignore[attr-defined]
    transfer.register(Registered({"model": Model([1])}))
    asking.join(TIMEOUT / 8)
    assert given


def test_a_state_that_cannot_be_read_is_refused_unless_its_call_is_over_or_some_of_it_is_sent(plane: Plane) -> None:
    """Then who asked has to ask again: what was wrong may have been only that the state was changing."""
    transfer, wrong = Transfer(plane, 1.0, 1.0), KeyError("lr")

    def unreadable() -> object:
        raise wrong

    with pytest.raises(RefusalError) as refused:
        list(transfer.sent(unreadable, None, lambda: True, "over"))
    assert refused.value.status == Refusal.UNFIT
    with pytest.raises(KeyError):
        list(transfer.sent(unreadable, None, lambda: False, "over"))
    body = iter(transfer.sent(lambda: {"model": [torch.ones(1 << 20)]}, None, lambda: True, "over"))
    next(body)
    with pytest.raises(KeyError):
        body.throw(wrong)  # type: ignore[attr-defined]


def test_what_no_reader_would_take_is_an_error_at_once(plane: Plane, monkeypatch: pytest.MonkeyPatch) -> None:
    """Unless it stays where it is."""
    monkeypatch.setattr(codec, "HEADER_LIMIT", 1000)
    large = Mock(spec=["state_dict", "load_state_dict"], **{"state_dict.return_value": {"text": "x" * 2000}})
    transfer = Transfer(plane, 1.0, 1.0)
    model = Model([1])
    transfer.register(Registered({"model": model}, private=Private({"own": large}, travels=False)))
    for kept in (Registered({"extra": large}), Registered({"model": model}, private=Private({"own": large}, travels=True))):
        with pytest.raises(ConfigError, match="keep large values in tensors"):
            transfer.register(kept)
