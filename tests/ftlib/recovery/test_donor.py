"""What a donor answers, request by request; ``test_http_transport`` has what comes over the wire."""

from __future__ import annotations

import functools
import itertools
import threading
from collections.abc import Callable, Iterator
from typing import Any
from unittest.mock import Mock

import msgpack
import pytest
import torch

from consensus import RefusalError
from ftlib.common.refusals import Refusal
from ftlib.core.backup.backup_call import BackupCall
from ftlib.core.calls.call import Call, Kind, Results
from ftlib.core.plane.orders import Order
from ftlib.core.plane.plane import Plane
from ftlib.core.tensors.layout import lay_out
from ftlib.recovery.donor import donor as donor_module
from ftlib.recovery.donor import read_hold as hold
from ftlib.recovery.donor.group_sender import FIRST_TAG, RUN, GroupSender
from ftlib.recovery.donor.replication_sender import STANDBY_SILENCE, ReplicationSender, SnapshotRequest
from ftlib.recovery.layout import call_layouts as layouts
from ftlib.recovery.layout import shards as shards_module
from ftlib.recovery.layout.shards import BLOCK, Shard, cut, digest_of
from tests.harness.basics import around, eventually
from tests.harness.company import in_thread

from .holders import STATE_ID, TIMEOUT, VERSION, Holder, Model, meeting, somebody

SIZES = [1_500_000, 3, 1_000_000]
NBYTES = 4 * sum(SIZES)
BARRIER = lay_out("barrier", [], "SUM", 1 << 20)
RESULTS = Results(VERSION, BARRIER, (), 1.0)
JOINER = somebody()


@pytest.fixture
def holder(monkeypatch: pytest.MonkeyPatch) -> Iterator[Holder]:
    """Inside call ``VERSION``."""
    monkeypatch.setattr(donor_module, "POLL", 0.05)
    made = Holder(Model(SIZES))
    made.meet([JOINER])
    made.enter()
    yield made
    made.close()


def ask(holder: Holder, kind: str, **query: object) -> bytes:
    """Until pins that have begun are complete."""
    while True:
        try:
            return once(holder, kind, **query)
        except LookupError as error:
            if "not copied yet" not in str(error):
                raise


def once(holder: Holder, kind: str, **query: object) -> bytes:
    return b"".join(holder.donor.source({"ask": kind, **{name: str(value) for name, value in {"request": 0, **query}.items()}}))


def offer(holder: Holder, **changes: object) -> bytes:
    own = holder.member.id
    query = {"joiner": JOINER.id, "version": VERSION, "origin": STATE_ID, "holders": own, "turn": 0, "inline": 0}
    query |= {"apart": 0, "portion": 0, "first": 0, "keep": VERSION}
    return ask(holder, "offer", **{**query, **changes})


def pin(holder: Holder, start: int, stop: int) -> None:
    holder.pin(JOINER.id, Shard(0, start, stop, VERSION, (holder.member.id,)))


def state_of(holder: Holder) -> memoryview:
    return torch.cat([row.detach() for row in holder.model.rows]).view(torch.uint8).numpy().data


def data_of(answer: bytes) -> bytes:
    """A shard's bytes, without the digest that follows each block."""
    return b"".join(answer[start : start + BLOCK + 16][:-16] for start in range(0, len(answer), BLOCK + 16))


class Work:
    """A send that has ended, or has not."""

    def __init__(self, ended: bool) -> None:
        self.done = lambda: ended


class TestOffers:
    def test_pin_what_the_cut_says(self, holder: Holder) -> None:
        others = [holder.member.id, "a", "b"]
        found = msgpack.unpackb(offer(holder, holders=",".join(others), turn=1, inline=1))
        shards = cut(NBYTES, others, 1, VERSION)
        assert (found["nbytes"], found["stripes"]) == (NBYTES, len(shards))
        assert found["packed"]
        for shard in shards:
            query = {"joiner": JOINER.id, "index": shard.index, "version": VERSION, "offset": 0}
            if holder.member.id in shard.donors:
                assert data_of(ask(holder, "stripe", **query)) == state_of(holder)[shard.start : shard.stop]
            else:
                with pytest.raises(LookupError, match="is not pinned"):
                    ask(holder, "stripe", **query)

    def test_are_of_the_state_on_entry(self, holder: Holder) -> None:
        before = bytes(state_of(holder))
        offer(holder)
        holder.leave()
        step(holder)
        assert bytes(state_of(holder)) != before
        shards = cut(NBYTES, [holder.member.id], 0, VERSION)
        found = [ask(holder, "stripe", joiner=JOINER.id, index=s.index, version=VERSION, offset=0) for s in shards]
        assert b"".join(map(data_of, found)) == before

    @pytest.mark.parametrize(
        ("changes", "text"),
        [
            ({"version": VERSION + 1}, f"ask again: not inside call {VERSION + 1}"),
            ({"version": VERSION - 1}, f"call {VERSION - 1} is over here"),
            ({"origin": "another"}, "^this member does not hold that state"),
            ({"joiner": "stranger"}, "ask again: stranger is no member"),
            ({"holders": "a,b"}, "holders=a,b are others than this member"),
            ({"joiner": ""}, "expected joiner="),
            ({"origin": ""}, "expected origin="),
            ({"version": "x"}, "expected version=NUMBER, not 'x'"),
            ({"turn": "-1"}, "expected turn=NUMBER"),
            ({"turn": "9" * 30}, "expected turn=NUMBER"),
            ({"inline": ""}, "expected inline=NUMBER"),
            ({"portion": 1}, "portion=1 is none of 1"),
        ],
    )
    def test_are_refused_in_words(self, holder: Holder, changes: dict[str, object], text: str) -> None:
        with pytest.raises(LookupError, match=text):
            offer(holder, **changes)

    def test_need_state(self, holder: Holder) -> None:
        holder.transfer._registered = None
        with pytest.raises(LookupError, match="no state is registered here"):
            offer(holder)

    def test_are_of_no_call_that_changes_the_state(self, holder: Holder) -> None:
        """``execute``: its function may have changed anything."""
        unit = Call(Kind.BARRIER, BARRIER, ())
        unit.changes_state = True
        holder.leave()
        holder.plane.enter(unit)
        with pytest.raises(LookupError, match=f"call {VERSION + 1} is a whole step") as caught:
            offer(holder, version=VERSION + 1)
        assert not isinstance(caught.value, RefusalError), "it would ask for the same again"


def step(holder: Holder) -> None:
    """What a program does between two calls; the optimizer is the registered one."""
    optimizer = holder.optimizer
    for row in holder.model.rows:
        row.grad = torch.ones_like(row)
    optimizer.step()


class TestPortions:
    """The whole state is three parameters, and an optimizer that keeps nothing of them yet."""

    def test_are_pinned_one_after_the_other(self, holder: Holder, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(shards_module, "LARGE", 4 * SIZES[1])
        monkeypatch.setattr(shards_module, "MOST_CHUNKS", NBYTES)
        found = msgpack.unpackb(offer(holder, apart=1))
        ends = [4 * sum(SIZES[:count]) for count in range(4)]
        assert found["portions"] == [list(pair) for pair in itertools.pairwise(ends)]
        before = bytes(state_of(holder))
        query = {"joiner": JOINER.id, "offset": 0}
        assert data_of(ask(holder, "stripe", index=0, version=VERSION, **query)) == before[: ends[1]]
        holder.leave()
        step(holder)
        holder.enter()
        offer(holder, apart=1, portion=1, first=1, keep=VERSION, version=VERSION + 1)
        assert data_of(ask(holder, "stripe", index=0, version=VERSION, **query)) == before[: ends[1]], "it is kept"
        after = bytes(state_of(holder))
        assert data_of(ask(holder, "stripe", index=1, version=VERSION + 1, **query)) == after[ends[1] : ends[2]]
        offer(holder, apart=1, portion=2, first=2, keep=VERSION + 1, version=VERSION + 1)
        with pytest.raises(LookupError, match="is not pinned"):
            ask(holder, "stripe", index=0, version=VERSION, **query)


class TestOutdatedOffers:
    """What nobody waits for any more when the state has been looked at pins nothing."""

    @pytest.fixture
    def looked_at(self, holder: Holder, monkeypatch: pytest.MonkeyPatch) -> Iterator[threading.Event]:
        """When the first one has looked; until it is set again, at the end, that one does not go on."""
        monkeypatch.setattr(hold, "PATIENCE", TIMEOUT)
        original, first = holder.donor._look, threading.Event()
        reached, self.go_on = threading.Event(), threading.Event()

        def look(*args: Any) -> Any:
            found = original(*args)
            if not first.is_set():
                first.set()
                reached.set()
                assert self.go_on.wait(TIMEOUT)
            return found

        monkeypatch.setattr(holder.donor, "_look", look)
        yield reached
        self.go_on.set()

    def refused(self, holder: Holder, looked_at: threading.Event, meanwhile: Callable[[], object]) -> str:
        found: list[str] = []

        def first() -> None:
            with pytest.raises(LookupError) as caught:
                offer(holder)
            found.append(str(caught.value))

        thread = in_thread(first)
        assert looked_at.wait(TIMEOUT)
        meanwhile()
        self.go_on.set()
        thread.join(TIMEOUT)
        return found[0]

    def test_after_a_release(self, holder: Holder, looked_at: threading.Event) -> None:
        text = self.refused(holder, looked_at, lambda: ask(holder, "release", joiner=JOINER.id))
        assert "or for nothing any more" in text
        assert holder.donor._snapshots.nbytes == 0
        offer(holder)
        assert holder.donor._snapshots.nbytes == NBYTES

    def test_after_the_end_of_the_call(self, holder: Holder, looked_at: threading.Event) -> None:
        """The state may have changed by then."""
        assert f"call {VERSION} is over here" in self.refused(holder, looked_at, holder.leave)
        assert holder.donor._snapshots.nbytes == 0

    def test_after_another_request(self, holder: Holder, looked_at: threading.Event) -> None:
        others = f"{holder.member.id},a,b"
        text = self.refused(holder, looked_at, lambda: offer(holder, holders=others))
        assert "has asked for something else since" in text
        mine = [shard for shard in cut(NBYTES, others.split(","), 0, VERSION) if holder.member.id in shard.donors]
        assert holder.donor._snapshots.nbytes == sum(shard.stop - shard.start for shard in mine) < NBYTES
        assert not holder.donor._offers


class TestPins:
    def test_a_release_that_comes_late_does_not_concern_what_was_asked_for_since(self, holder: Holder) -> None:
        """It may have waited for a member that is gone."""
        offer(holder, request=1)
        offer(holder, request=3)
        assert ask(holder, "release", joiner=JOINER.id, request=2) != b"released"
        assert holder.donor._snapshots.nbytes == NBYTES
        assert ask(holder, "release", joiner=JOINER.id, request=4) == b"released"
        assert not holder.donor._snapshots.nbytes

    def test_go_with_their_joiner(self, holder: Holder) -> None:
        def gone() -> None:
            with pytest.raises(LookupError, match="is not pinned"):
                ask(holder, "stripe", joiner=JOINER.id, index=0, version=VERSION, offset=0)

        pin(holder, 0, 100)
        assert ask(holder, "release", joiner=JOINER.id) == b"released"
        gone()
        data = torch.zeros(100)
        done, not_done = Work(True), Work(False)
        holder.donor._group_sender._kept = [(done, data), (not_done, data)]
        assert ask(holder, "release", joiner=JOINER.id) == b"released"
        assert holder.donor._group_sender._kept == [(not_done, data)], "what is under way is kept until it has ended"
        pin(holder, 0, 100)
        holder.donor._observers.attach(holder.donor)
        holder.donor._group_sender._kept = [(done, data)]
        holder.plane.freeze(Order(9, None))
        holder.meet([], epoch=10)
        assert not holder.donor._observers.present, "from now on calls cost nothing more"
        assert not holder.donor._group_sender._kept
        gone()


class TestStripes:
    def test_from_a_block_on(self, holder: Holder) -> None:
        pin(holder, 4, NBYTES)
        query = {"joiner": JOINER.id, "index": 0, "version": VERSION}
        state = state_of(holder)[4:]
        assert ask(holder, "stripe", offset=BLOCK, **query) == b"".join(
            bytes(state[start : start + BLOCK]) + digest_of(state[start : start + BLOCK]) for start in (BLOCK, 2 * BLOCK)
        )
        assert ask(holder, "stripe", offset=0, **query)[:BLOCK] == state[:BLOCK]

    @pytest.mark.parametrize("offset", [1, BLOCK + 1, 3 * BLOCK])
    def test_from_elsewhere_are_refused(self, holder: Holder, offset: int) -> None:
        pin(holder, 0, NBYTES)
        with pytest.raises(LookupError, match=f"no block of {NBYTES} bytes begins at {offset}"):
            ask(holder, "stripe", joiner=JOINER.id, index=0, version=VERSION, offset=offset)


class TestDigests:
    def test_are_of_the_state_on_entry(self, holder: Holder) -> None:
        before = bytes(state_of(holder))
        chunks = holder.donor.source(
            {"ask": "digest", "version": str(VERSION), "origin": STATE_ID, "ranges": f"16:{NBYTES},8:24"}
        )
        holder.leave()
        step(holder)
        assert list(chunks) == [digest_of(memoryview(before)[16:]), digest_of(memoryview(before)[8:24])]

    @pytest.mark.parametrize("kind", ["digest", "offer"])
    def test_of_a_call_that_ends_meanwhile_are_not_given(
        self, holder: Holder, kind: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """From then on the state changes."""

        @around(monkeypatch, donor_module.Donor, "_look")
        def look(usual: Any, *arguments: Any) -> Any:
            found = usual(*arguments)
            holder.leave()
            return found

        with pytest.raises(RefusalError, match=f"call {VERSION} is over here") as refused:
            offer(holder) if kind == "offer" else ask(holder, kind, version=VERSION, origin=STATE_ID, ranges="0:8")
        assert refused.value.status == Refusal.OVER
        assert not holder.donor._snapshots.nbytes

    @pytest.mark.parametrize(
        "ranges",
        [
            "",
            "5:5",
            f"0:{NBYTES},0:1",
            f"0:{NBYTES + 1}",
            "1",
            "1:2:3",
            "1:x",
            ",".join(["0:5"] * 5000),
            f"0:5,{NBYTES - 1}:{NBYTES + 1}",
            ",".join(["0:5"] * (donor_module._MOST_RANGES + 1)),
        ],
    )
    def test_of_nothing(self, holder: Holder, ranges: str) -> None:
        with pytest.raises(LookupError, match=r"ranges=\.\.\.|ranges=NUMBER|not within"):
            ask(holder, "digest", version=VERSION, origin=STATE_ID, ranges=ranges)


class TestWatching:
    """A step must not begin before what is pinned is copied, so the registered optimizers are given a hook."""

    @pytest.fixture
    def outside(self) -> Iterator[Holder]:
        """Outside of calls."""
        made = Holder(Model([3]))
        made.meet([JOINER])
        yield made
        made.close()

    @pytest.mark.parametrize("entered", [False, True])
    def test_begins_when_a_call_is_entered_or_has_ended(self, outside: Holder, entered: bool) -> None:
        """The first request may come within the call."""
        if entered:
            outside.enter()
        else:
            outside.donor.finished(Call(Kind.BARRIER, BARRIER, ()), RESULTS)
        assert len(outside.optimizer._optimizer_step_pre_hooks) == 1

    @pytest.mark.parametrize("late", [False, True])
    def test_leaves_alone_the_step_of_another_thread(self, outside: Holder, late: bool) -> None:
        """A late program steps while its backup worker ends calls; a joiner's averages are applied while it follows more."""
        call: Call = BackupCall(0.0, veto=False, awaited=bool, present=bool) if late else Call(Kind.BARRIER, BARRIER, ())
        if not late:
            outside.plane.state_id = ""
        ended: list[object] = []

        def meanwhile(*_: object) -> None:
            in_thread(lambda: ended.append(outside.donor.finished(call, RESULTS))).join(TIMEOUT)

        for hook in (meanwhile, lambda *_: None):
            outside.optimizer.register_step_pre_hook(hook)
        step(outside)  # which goes from hook to hook, and raises if there is one more
        assert ended == [None]

    def test_is_for_what_is_registered(self, outside: Holder) -> None:
        outside.transfer._registered = None
        assert outside.donor.finished(Call(Kind.BARRIER, BARRIER, ()), RESULTS) is None


def test_what_is_inline_is_of_one_call_or_of_none(holder: Holder, monkeypatch: pytest.MonkeyPatch) -> None:
    assert ask(holder, "inline", version=VERSION, origin=STATE_ID)
    before = ask(holder, "inline", version=VERSION, origin=STATE_ID)

    @around(monkeypatch, donor_module, "split")
    def too_slow(original: Any, *args: Any) -> Any:
        holder.leave()
        return original(*args)

    assert ask(holder, "inline", version=VERSION, origin=STATE_ID) == before, "it was looked at once, and does for all"
    with holder.plane.changed:
        holder.plane.current = None  # that call is given up, and another one has its number
    holder.enter()
    with pytest.raises(LookupError, match=f"not read before the end of call {VERSION}: too much of it is inline") as caught:
        ask(holder, "inline", version=VERSION, origin=STATE_ID)
    assert not isinstance(caught.value, RefusalError), "it was not asked too late, which has a status of its own"


def test_layouts_of_calls(holder: Holder) -> None:
    assert layouts.decode(ask(holder, "layout", signature=BARRIER.signature.hex())) == BARRIER
    for text, match in (("", "expected signature="), ("xyz", "hexadecimal"), ("00" * 16, "no call with signature")):
        with pytest.raises(LookupError, match=match):
            ask(holder, "layout", signature=text)


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"count": 0}, "expected count of 1"),
        ({"count": RUN + 1}, "expected count of 1"),
        ({"count": 4}, "ends before 4 blocks"),
        ({"tag": FIRST_TAG - 1}, "tag of at least"),
        ({"offset": 7}, "no block"),
        ({"view": "another"}, "ask again: this member does not act in view another"),
        ({"rank": 1}, "rank=1 is no other member"),
        ({"rank": "x"}, "expected rank=NUMBER"),
        ({"view": ""}, "expected view="),
    ],
)
def test_sends_that_make_no_sense(holder: Holder, changes: dict[str, object], text: str) -> None:
    pin(holder, 0, NBYTES)
    assert holder.plane.session is not None
    view_id = holder.plane.session.view.view_id
    query = {"joiner": JOINER.id, "index": 0, "version": VERSION, "offset": 0, "count": 1, "rank": 1, "tag": FIRST_TAG}
    with pytest.raises(LookupError, match=text):
        ask(holder, "send", **{**query, "view": view_id, **changes})  # type: ignore[arg-type]


def test_as_many_blocks_are_sent_as_may_be_asked_for(holder: Holder) -> None:
    group, data = Mock(), torch.arange(RUN + 1, dtype=torch.uint8).repeat_interleave(BLOCK)
    session = meeting([JOINER, holder.member], holder.member.id, group)
    plane = Plane(holder.member.id)
    assert plane.activate(session)
    told = GroupSender(plane).send(data, BLOCK, RUN, session.view.view_id, 0, FIRST_TAG)
    assert list(told) == [digest_of(block.data) for block in data.numpy().reshape(RUN + 1, BLOCK)[1:]]
    assert [call.args[2] for call in group.send.call_args_list] == list(range(FIRST_TAG, FIRST_TAG + RUN))


def test_sends_go_to_any_other_rank(holder: Holder) -> None:
    """Of three; this member has the second. What is sent stays until it has gone."""
    group, data, works = Mock(), torch.arange(8, dtype=torch.uint8), [Work(True), Work(False)]
    group.send.side_effect = works
    session = meeting([JOINER, holder.member, somebody()], holder.member.id, group)
    plane = Plane(holder.member.id)
    assert plane.activate(session)
    sender = GroupSender(plane)
    send = functools.partial(sender.send, data, 0, 1, session.view.view_id)
    for rank in (0, 2):
        assert list(send(rank, FIRST_TAG)) == [digest_of(data.numpy().data)]
    for rank in (-1, 1, 3):
        with pytest.raises(LookupError, match=f"rank={rank} is no other member"):
            send(rank, FIRST_TAG)
    assert [call.args[1:] for call in group.send.call_args_list] == [(0, FIRST_TAG), (2, FIRST_TAG)]
    [(work, sent)] = sender._kept
    assert work is works[1] and torch.equal(sent, data)


@pytest.mark.parametrize("kind", ["", "state", "source"])
def test_other_requests(holder: Holder, kind: str) -> None:
    with pytest.raises(LookupError, match="expected ask= one of averages, begin, digest, inline"):
        ask(holder, kind)


def test_whoever_has_left_says_so(holder: Holder) -> None:
    holder.plane.stop(RuntimeError("left"))
    with pytest.raises(LookupError, match="has left the job"):
        offer(holder)


def test_a_request_waits_for_its_call(holder: Holder, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(donor_module, "POLL", TIMEOUT)
    answers: list[bytes] = []
    thread = in_thread(lambda: answers.append(offer(holder, version=VERSION + 1)))
    holder.leave()
    holder.enter()
    thread.join(TIMEOUT)
    assert msgpack.unpackb(answers[0])["nbytes"] == NBYTES


def test_a_request_that_came_too_late_does_not_wait(holder: Holder, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever asks learns at once that it has to ask earlier: the others train on meanwhile."""
    wait = Mock(side_effect=AssertionError("there is nothing to wait for"))
    monkeypatch.setattr(holder.plane.changed, "wait", wait)
    with pytest.raises(LookupError, match=f"call {VERSION - 1} is over here"):
        offer(holder, version=VERSION - 1)


def test_in_a_new_view_no_request_is_expected_back(holder: Holder) -> None:
    read_hold = holder.donor._read_hold
    with pytest.raises(RefusalError), read_hold.asking(VERSION):
        raise Refusal.LATER.error("ask again")
    assert read_hold._until(VERSION) > holder.plane.threads.now()
    assert holder.plane.session is not None
    holder.donor.activated(holder.plane.session)
    assert read_hold._until(VERSION) < holder.plane.threads.now()


def test_a_spare_of_another_state_gets_nothing_pinned(holder: Holder) -> None:
    request = SnapshotRequest(JOINER.id, "another", (holder.member.id,), 0, VERSION + 1, wants_inline=False)
    with pytest.raises(RefusalError, match="does not hold that state"):
        holder.donor.sender.begin(request)


@pytest.mark.parametrize("busy", ["a request", "copies", "a stream", ""])
def test_calls_are_watched_in_a_new_view_while_somebody_needs_it(holder: Holder, busy: str) -> None:
    """Else a spare's stream would say no more, and copies would not be complete before a step."""
    donor, session = holder.donor, holder.plane.session
    assert session is not None
    offer(holder)
    assert donor._parts is not None
    ask(holder, "release", joiner=JOINER.id)
    if busy == "copies":
        pin(holder, 0, 100)
    elif busy == "a request":
        donor._asking += 1
    elif busy == "a stream":
        stream = donor.source({"ask": "averages", "joiner": "spare", "signature": "00" * 16})
        next(stream)
    donor.activated(session)
    assert bool(donor._observers.present) == bool(busy)
    assert (donor._parts is not None) == bool(busy), "no call is held for nobody"


def test_a_call_whose_buffers_are_on_their_way_to_a_spare_goes_on_with_others(
    holder: Holder, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else the next average would be written over what is being sent."""
    monkeypatch.setattr(holder.donor.sender, "hand_on", handed := Mock())
    call = Call(Kind.BARRIER, BARRIER, ())
    assert holder.donor.finished(call, RESULTS) is handed.return_value
    handed.assert_called_once_with(call, RESULTS)


def test_a_state_on_a_device_is_pinned_after_what_was_enqueued_before_the_call(
    holder: Holder, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its tensors are read through the same fence later."""
    assert holder.plane.current is not None
    holder.plane.current.fence, fences = Mock(), list[object]()

    @around(monkeypatch, donor_module, "_split")
    def split(usual: Any, registered: Any, step: int, fence: Any) -> Any:
        fences.append(fence)
        return usual(registered, step, None)

    assert offer(holder)
    assert fences == [holder.plane.current.fence]


def test_a_state_that_was_read_in_a_call_that_was_given_up_is_not_pinned(
    holder: Holder, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The call that has its number now may have another state on entry."""

    @around(monkeypatch, donor_module, "_split")
    def split(usual: Any, *arguments: Any) -> Any:
        found = usual(*arguments)
        holder.plane.current = None
        holder.enter()
        return found

    with pytest.raises(RefusalError, match=f"call {VERSION} was entered anew here") as refused:
        offer(holder)
    assert refused.value.status == Refusal.LATER
    monkeypatch.undo()
    assert offer(holder)


def test_a_spare_that_asks_too_late_is_refused_at_once(holder: Holder) -> None:
    """This member is in that call already, and has not ended it."""
    request = SnapshotRequest("spare", STATE_ID, (holder.member.id,), 0, VERSION, wants_inline=False)
    with pytest.raises(LookupError, match=f"is past the beginning of call {VERSION}"):
        holder.donor.sender.begin(request)


def test_a_spare_whose_request_is_being_granted_waits_for_the_answer(holder: Holder, monkeypatch: pytest.MonkeyPatch) -> None:
    """If it asked again it would come too late, and the state would be copied for it once more."""
    sender = holder.donor.sender
    request = SnapshotRequest("spare", STATE_ID, (holder.member.id,), 0, VERSION + 1, wants_inline=False)
    meanwhile = iter([sender._requests.clear, lambda: request.answer.set_result(b"granted")])
    monkeypatch.setattr(holder.plane.changed, "wait_for", lambda *_: next(meanwhile)())
    assert sender.begin(request) == b"granted"


def serve(holder: Holder) -> ReplicationSender:
    """A spare has asked for all, as of the next call, and gets it."""
    sender = holder.donor.sender
    request = SnapshotRequest("spare", STATE_ID, (holder.member.id,), 0, VERSION + 1, wants_inline=False)
    asking = in_thread(lambda: sender.begin(request))
    eventually(lambda: sender.busy, "it has asked")
    holder.leave()
    holder.enter()
    asking.join(TIMEOUT)
    assert holder.donor._snapshots.nbytes == NBYTES
    return sender


def test_a_spare_that_gives_its_copies_back_is_served_no_more(holder: Holder) -> None:
    """Until then what is kept for it outlives the views without it, and long downloads."""
    sender, session = serve(holder), holder.plane.session
    assert session is not None
    sender._standbys["spare"] -= 2 * STANDBY_SILENCE
    ask(holder, "stripe", joiner="spare", index=0, version=VERSION + 1, offset=0)
    holder.leave()
    holder.enter()
    holder.donor.activated(session)
    assert holder.donor._snapshots.nbytes == NBYTES
    ask(holder, "release", joiner="spare")
    assert not sender.busy
    holder.donor.activated(session)
    assert not holder.donor._observers.present, "from now on calls cost nothing more"


def test_a_spares_late_release_does_not_concern_what_it_has_asked_for_since(holder: Holder) -> None:
    query = {"joiner": "spare", "origin": STATE_ID, "holders": holder.member.id, "turn": 0, "version": VERSION + 1, "inline": 0}
    asking = in_thread(lambda: ask(holder, "begin", **query, request=3))
    sender = holder.donor.sender
    eventually(lambda: sender.busy, "it has asked")
    ask(holder, "release", joiner="spare", request=2)
    holder.leave()
    holder.enter()
    asking.join(TIMEOUT)
    ask(holder, "release", joiner="spare", request=2)
    assert sender.busy and holder.donor._snapshots.nbytes == NBYTES
    ask(holder, "release", joiner="spare", request=4)
    assert not sender.busy and not holder.donor._snapshots.nbytes


def test_a_spare_that_reads_one_shard_for_long_is_not_silent(holder: Holder) -> None:
    sender = serve(holder)
    stripe = holder.donor.source({"ask": "stripe", "joiner": "spare", "index": "0", "version": str(VERSION + 1), "offset": "0"})
    next(stripe)
    sender._standbys["spare"] -= 2 * STANDBY_SILENCE
    next(stripe)
    holder.leave()
    holder.enter()
    assert sender.busy and holder.donor._snapshots.nbytes == NBYTES


def test_nothing_is_kept_for_a_spare_that_is_silent(holder: Holder) -> None:
    sender = serve(holder)
    sender._standbys["spare"] -= 2 * STANDBY_SILENCE
    holder.leave()
    holder.enter()
    assert not sender.busy and not holder.donor._snapshots.nbytes


def test_what_is_kept_for_a_member_stays_however_long_ago_it_was_a_spare(holder: Holder) -> None:
    sender = holder.donor.sender
    offer(holder)
    sender._standbys[JOINER.id] = holder.plane.threads.now() - 2 * STANDBY_SILENCE
    holder.leave()
    holder.enter()
    assert not sender.busy and holder.donor._snapshots.nbytes == NBYTES


def test_who_leaves_tells_the_spares_that_listen(holder: Holder) -> None:
    """They go on with another member at once; the stream would go on without a record, and they would wait for one."""
    sender, stream = serve(holder), holder.donor.source({"ask": "averages", "signature": "00"})
    assert next(stream)
    holder.donor.forget()
    with pytest.raises(LookupError, match="this member has left the job"):
        assert next(stream) is None
    assert not sender.busy


def test_what_a_spare_has_asked_for_is_not_pinned_once_it_is_a_member(holder: Holder) -> None:
    """It would take the place of what it has asked for as a joiner."""
    request = SnapshotRequest(JOINER.id, STATE_ID, (holder.member.id,), 0, VERSION + 1, wants_inline=False)
    told: list[str] = []

    def begin() -> None:
        with pytest.raises(LookupError) as error:
            holder.donor.sender.begin(request)
        told.append(str(error.value))

    waiting = in_thread(begin)
    eventually(lambda: holder.donor.sender.asked, "it waits for the call")
    offer(holder)
    holder.leave()
    holder.enter()
    waiting.join(TIMEOUT)
    assert told == [f"{JOINER.id} is no spare any more, but a member"]
    assert len(ask(holder, "stripe", joiner=JOINER.id, index=0, version=VERSION, offset=0)) > BLOCK
