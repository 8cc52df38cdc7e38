"""The joiner's end, over real sockets."""

from __future__ import annotations

import itertools
import logging
import os
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, nullcontext
from pathlib import Path
from unittest.mock import Mock

import msgpack
import pytest
import torch

from consensus import Answer, KeyRing, Member
from ftlib.common.threads import Threads
from ftlib.core.plane.plane import Plane
from ftlib.core.tensors.layout import lay_out, lay_out_in_order
from ftlib.recovery.catchup import _shards_of
from ftlib.recovery.donor import donor as donor_module
from ftlib.recovery.donor.replication_sender import STREAMS
from ftlib.recovery.joiner import http_transport as fetch
from ftlib.recovery.joiner.http_transport import (
    RETRY,
    FetchError,
    HTTPTransport,
    Later,
    Over,
    Refused,
    SnapshotOffer,
    pause_between_requests,
    pinned_shards,
)
from ftlib.recovery.joiner.limits import RateLimit
from ftlib.recovery.layout import shards as shards_module
from ftlib.recovery.layout.flat_state import FlatState
from ftlib.recovery.layout.manifest import split
from ftlib.recovery.layout.shards import BLOCK, ChunkRequest, Shard, cut, digest_of
from tests.harness.basics import around, eventually, free_ports
from tests.harness.company import in_thread
from tests.harness.fifo import hanging_for
from tests.harness.relay import Relay

from .holders import STATE_ID, TIMEOUT, VERSION, Holder, HolderProcess, Model, holders, meeting, somebody, whole

SIZES = [1_500_000, 3, 1_000_000, 700_000]
"""Elements: four blocks, some of which begin in one parameter and end in another."""
SECRET = "a secret of these tests"


def always() -> bool:
    return True


def never() -> bool:
    return False


def flat_of(model: Model) -> FlatState:
    return FlatState([row.detach() for row in model.rows], [str(index) for index in range(len(model.rows))])


def same(one: Model, other: Model) -> bool:
    return all(torch.equal(a, b) for a, b in zip(one.rows, other.rows, strict=True))


class Joiner:
    """What has arrived, and where."""

    def __init__(self, ring: KeyRing | None = None, **options: float) -> None:
        self.member = somebody()
        self.transport = HTTPTransport(ring, self.member.id, **options)
        self.model = Model(SIZES, seed=1)
        self.flat = flat_of(self.model)
        self.got = 0

    def count(self, nbytes: int) -> None:
        self.got += nbytes

    def offer(self, members: list[Member], **changes: object) -> fetch.SnapshotOffer:
        options = {"version": VERSION, "state_id": STATE_ID, "turn": 0, "inline_from": "", "go_on": always}
        return self.transport.offer(members, **{**options, **changes})  # type: ignore[arg-type]

    def all_of(self, holder: Holder) -> Shard:
        """Everything in one shard, pinned."""
        shard = whole(self.flat.nbytes, holder.member.id)
        holder.pin(self.member.id, shard)
        return shard

    def fetch(self, member: Member, shard: Shard, go_on: Callable[[], bool] = always) -> None:
        self.transport.shard(member, shard, self.flat, self.got, self.count, go_on)


@pytest.fixture
def joiner() -> Joiner:
    return Joiner()


@pytest.fixture
def holder(joiner: Joiner) -> Iterator[Holder]:
    with holders(1, lambda: Model(SIZES), joiner.member) as [found]:
        yield found


@contextmanager
def silence() -> Iterator[Member]:
    """Somebody who accepts connections, and nothing else."""
    with socket.create_server(("127.0.0.1", 0)) as subscriber:
        yield somebody(subscriber.getsockname()[1])


def behind(relay: Relay, holder: Holder) -> Member:
    return Member(holder.member.id, "127.0.0.1", relay.port)


def test_streams_of_many_spares_leave_room_for_what_others_ask(joiner: Joiner, holder: Holder) -> None:
    """Each stream lasts as long as its spare waits. Who gets none asks another member, and later this one again."""
    query = {"ask": "averages", "joiner": joiner.member.id, "signature": "00"}
    signature = lay_out("barrier", [], "SUM", 1 << 20).signature

    def listen(until: ExitStack) -> str:
        """Why not."""
        try:
            until.enter_context(joiner.transport.asked(holder.member, query, always)).readinto(memoryview(bytearray(1)))
        except Later as refusal:
            return str(refusal)
        return ""

    with ExitStack() as last:
        with ExitStack() as others:
            assert not any(listen(others) for _ in range(STREAMS))
            assert "as many spares as it can" in listen(last)
            assert joiner.transport.layout(holder.member, signature, always).signature == signature
        eventually(lambda: not listen(last), "one has ended")


class TestStripes:
    def test_of_two_donors_make_the_state(self, joiner: Joiner) -> None:
        with holders(2, lambda: Model(SIZES), joiner.member) as found:
            members = {holder.member.id: holder.member for holder in found}
            offer = joiner.offer(list(members.values()), inline_from=found[1].member.id)
            shards = cut(offer.nbytes, list(members), 0, VERSION)
            assert (offer.nbytes, offer.shards, offer.failed) == (joiner.flat.nbytes, len(shards), {})
            assert offer.packed
            for number, shard in enumerate(shards):
                assert len(shard.donors) == 2
                joiner.transport.shard(members[shard.donors[number % 2]], shard, joiner.flat, 0, joiner.count, always)
            assert joiner.got == joiner.flat.nbytes
            assert same(joiner.model, found[0].model)
            joiner.transport.release_all(list(members.values()))
            for holder in found:
                eventually(lambda holder=holder: not holder.donor._snapshots.nbytes, "it has dropped them")  # type: ignore[misc]
                with pytest.raises(Refused):
                    joiner.transport.shard(holder.member, shards[0], joiner.flat, 0, joiner.count, always)

    def test_where_memory_is_not_in_one_row(self, joiner: Joiner, holder: Holder) -> None:
        target = torch.zeros(joiner.flat.nbytes // 4, 2)[:, 0]
        joiner.flat = FlatState([target], ["strided"])
        assert joiner.flat.views(0, 100) is None
        joiner.fetch(holder.member, joiner.all_of(holder))
        assert torch.equal(target, torch.cat([row.detach() for row in holder.model.rows]))

    def test_go_on_at_the_block_where_the_connection_was_cut(self, joiner: Joiner, holder: Holder) -> None:
        shard, target = joiner.all_of(holder), holder.member.port
        with Relay(target, most=2 * BLOCK + BLOCK // 2) as relay, pytest.raises(FetchError, match=holder.member.id[:6]):
            joiner.fetch(behind(relay, holder), shard)
        assert joiner.got == 2 * BLOCK, "a part of a block does not count"
        joiner.fetch(holder.member, shard)
        assert joiner.got == joiner.flat.nbytes
        assert same(joiner.model, holder.model)

    def test_a_damaged_block_does_not_count(self, joiner: Joiner, holder: Holder, monkeypatch: pytest.MonkeyPatch) -> None:
        shard = joiner.all_of(holder)
        seen: list[int] = []

        def wrong_once(*parts: memoryview) -> bytes:
            seen.append(len(parts[0]))
            return b"?" * 16 if len(seen) == 2 else digest_of(*parts)

        monkeypatch.setattr(donor_module, "digest_of", wrong_once)
        with pytest.raises(FetchError, match=f"damaged from {holder.member}"):
            joiner.fetch(holder.member, shard)
        assert joiner.got == BLOCK
        joiner.fetch(holder.member, shard)
        assert joiner.got == joiner.flat.nbytes
        assert same(joiner.model, holder.model)

    def test_that_are_slowed_down_end_when_nobody_wants_them(self, holder: Holder, joiner: Joiner) -> None:
        limited, looks = HTTPTransport(None, joiner.member.id, bandwidth=1e5, threads=Clock()), itertools.count()
        shard = joiner.all_of(holder)
        with pytest.raises(FetchError, match="not wanted any more"):
            limited.shard(holder.member, shard, joiner.flat, 0, joiner.count, lambda: next(looks) < 3)
        assert joiner.got == 0

    def test_are_sealed_with_a_secret(self, caplog: pytest.LogCaptureFixture) -> None:
        caplog.set_level(logging.INFO, "ftlib")
        joiner, stranger = Joiner(KeyRing([SECRET])), Joiner()
        with holders(1, lambda: Model(SIZES), joiner.member, secret=SECRET) as [holder]:
            shard = joiner.all_of(holder)
            with Relay(holder.member.port, keep=True) as relay:
                joiner.fetch(behind(relay, holder), shard)
            assert same(joiner.model, holder.model)
            first = bytes(memoryview(holder.model.rows[0].detach().numpy()).cast("B")[:64])
            assert relay.kept is not None and len(relay.kept) > joiner.flat.nbytes
            assert first not in relay.kept
            stranger.member = joiner.member
            with pytest.raises(FetchError, match="secret"):
                stranger.fetch(holder.member, shard)
            assert stranger.got == 0
        assert not [record for record in caplog.records if record.name == "ftlib"], "it has not changed"

    def test_that_nobody_wants_any_more_end(self, joiner: Joiner, holder: Holder) -> None:
        shard = joiner.all_of(holder)
        with pytest.raises(FetchError, match="not wanted"):
            joiner.fetch(holder.member, shard, lambda: joiner.got < BLOCK)
        assert joiner.got == BLOCK

    def test_of_a_silent_donor_end_when_told(self, joiner: Joiner) -> None:
        over = threading.Event()
        with silence() as silent:
            threading.Timer(0.1, over.set).start()
            with pytest.raises(FetchError, match="given up"):
                joiner.fetch(silent, whole(8, silent.id), lambda: not over.is_set())

    def test_of_a_silent_donor_end_by_themselves(self, joiner: Joiner) -> None:
        with (
            silence() as silent,
            pytest.raises(FetchError, match="timed out"),
            joiner.transport.asked(silent, {"ask": "stripe"}, always, 0.2),
        ):
            pass

    def test_begin_at_blocks_only(self, joiner: Joiner, holder: Holder) -> None:
        shard = joiner.all_of(holder)
        with pytest.raises(ValueError, match="no block"):
            joiner.transport.shard(holder.member, shard, joiner.flat, 5, joiner.count, always)


def test_a_file_with_secrets_that_hangs_holds_up_no_request(tmp_path: Path) -> None:
    path = tmp_path / "secret"
    path.touch(0o600)
    path.write_text(SECRET)
    ring, began = KeyRing((), path), time.monotonic()
    member = Member("a" * 16, "127.0.0.1", free_ports(1)[0])
    with hanging_for(path), pytest.raises(FetchError), fetch.request(ring, member, "/recovery", {}, never):
        pass
    assert time.monotonic() - began < 30.0


@pytest.mark.soak
def test_a_donor_that_is_killed_is_given_up_at_once() -> None:
    joiner = Joiner()
    with HolderProcess(SIZES, joiner.member) as first, HolderProcess(SIZES, joiner.member) as second:
        for process in (first, second):
            process.hear()
        donors = [first.member, second.member]
        offer = joiner.offer(donors)
        assert not offer.failed
        shard, other = cut(offer.nbytes, [donor.id for donor in donors], 0, VERSION)
        assert shard.donors == (first.member.id, second.member.id)
        began = time.monotonic()
        with pytest.raises(FetchError, match=first.member.id[:6]):
            joiner.transport.shard(first.member, shard, joiner.flat, 0, lambda n: (joiner.count(n), first.close())[0], always)
        assert time.monotonic() - began < fetch.SILENCE
        assert 0 < joiner.got < shard.stop
        joiner.fetch(second.member, shard)
        assert joiner.got == shard.stop
        joiner.transport.shard(second.member, other, joiner.flat, 0, joiner.count, always)
        assert same(joiner.model, Model(SIZES))


class TestOffers:
    def test_are_waited_for(self, joiner: Joiner, holder: Holder) -> None:
        holder.leave()
        asked = threading.Event()

        def enter() -> None:
            assert asked.wait(TIMEOUT)
            holder.enter()

        late = in_thread(enter)
        offer = joiner.offer([holder.member], version=VERSION + 1, go_on=lambda: asked.set() is None)
        late.join()
        assert offer.nbytes == joiner.flat.nbytes

    def test_of_those_who_have_nothing_are_told_apart(self, joiner: Joiner) -> None:
        with holders(2, lambda: Model(SIZES), joiner.member) as [one, other]:
            other.leave()
            members = [one.member, other.member]
            offer = joiner.offer(members, inline_from=one.member.id)
            assert list(offer.failed) == [other.member.id]
            with pytest.raises(Refused, match=rf"{other.member}: call {VERSION} is over"):
                joiner.offer(members, inline_from=other.member.id)
            with pytest.raises(FetchError, match="nobody gives the state") as found:
                joiner.offer([somebody(), other.member])
            assert not isinstance(found.value, Over), "the other one is away: to ask earlier would not help"
            one.leave()
            with pytest.raises(Over, match="is over here"):
                joiner.offer(members)

    def test_that_came_too_late_for_a_donor_of_a_shard(self) -> None:
        """It is asked earlier then; another reason is told as such."""
        shard = Shard(0, 0, 8, VERSION, ("a", "b"))
        late, dead = Over(f"a: call {VERSION} is over here"), FetchError("b: refused")
        with pytest.raises(Over, match="is over here"):
            pinned_shards(SnapshotOffer(8, 1, b"", ((0, 8),), {"a": late, "b": dead}), [shard])
        with pytest.raises(FetchError, match="pinned by nobody"):
            pinned_shards(SnapshotOffer(8, 1, b"", ((0, 8),), {"a": dead, "b": dead}), [shard])
        [left] = pinned_shards(SnapshotOffer(8, 1, b"", ((0, 8),), {"a": late}), [shard])
        assert left.donors == ("b",)

    def test_that_are_given_back_hold_up_no_program_that_ends(self, joiner: Joiner, monkeypatch: pytest.MonkeyPatch) -> None:
        told, released, go_on = threading.Event(), list[threading.Thread](), threading.Event()

        def release(_member: Member, _number: int) -> None:
            released.append(threading.current_thread())
            told.set()
            assert go_on.wait(TIMEOUT)

        monkeypatch.setattr(joiner.transport, "release", release)
        joiner.transport.release_all([joiner.member])
        assert told.wait(TIMEOUT)
        go_on.set()
        assert released[0].daemon

    def test_are_not_read_to_their_end_if_nobody_wants_them(self, joiner: Joiner, monkeypatch: pytest.MonkeyPatch) -> None:
        """What is inline may be long."""
        answer = Mock(**{"read.side_effect": [b"first", b"second", b""]})
        monkeypatch.setattr(joiner.transport, "asked", lambda *_: nullcontext(answer))
        with pytest.raises(FetchError, match="is not wanted any more"):
            joiner.transport._whole(joiner.member, {}, never)
        answer.read.assert_called_once_with(BLOCK)
        answer.read.side_effect = [b"first", b"second", b""]
        assert joiner.transport._whole(joiner.member, {}, always) == b"firstsecond"

    def test_and_digests_are_all_of_an_answer(self, joiner: Joiner, holder: Holder, monkeypatch: pytest.MonkeyPatch) -> None:
        """A sealed one marks its end, and what goes on is something else than was asked for."""
        finish, finished = Answer.finish, list[str]()

        def noted(answer: Answer) -> None:
            finish(answer)
            finished.append("it")

        monkeypatch.setattr(Answer, "finish", noted)
        joiner.transport.digest(holder.member, VERSION, [(0, 8)], STATE_ID, always)
        assert finished == ["it"]
        joiner.fetch(holder.member, joiner.all_of(holder))
        assert finished == ["it"] * 2

    def test_of_who_answers_nonsense_are_none(self, joiner: Joiner, holder: Holder, monkeypatch: pytest.MonkeyPatch) -> None:
        """Nothing would come from there, and the shards are the others'."""
        other, usual = somebody(), joiner.transport._until_told
        monkeypatch.setattr(
            joiner.transport, "_until_told", lambda member, *rest: {}[1] if member is other else usual(member, *rest)
        )
        offer = joiner.offer([holder.member, other])
        assert [(name, str(error)) for name, error in offer.failed.items()] == [(other.id, f"{other}: KeyError: 1")]
        [shard, *_] = pinned_shards(offer, cut(offer.nbytes, [holder.member.id, other.id], 0, VERSION))
        assert shard.donors == (holder.member.id,)

    def test_of_other_states_are_refused(self, joiner: Joiner) -> None:
        models = iter([Model(SIZES), Model([*SIZES, 5])])
        with (
            holders(2, lambda: next(models), joiner.member) as found,
            pytest.raises(FetchError, match="disagree"),
        ):
            joiner.offer([holder.member for holder in found])

    def test_are_of_a_part_where_the_state_is_to_come_in_chunks(
        self, joiner: Joiner, holder: Holder, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(shards_module, "LARGE", 4 * SIZES[1])
        monkeypatch.setattr(shards_module, "MOST_CHUNKS", joiner.flat.nbytes)
        ends = [4 * sum(SIZES[:count]) for count in range(len(SIZES) + 1)]
        for chunk, chunks in ((None, [(0, ends[-1])]), (ChunkRequest(keep=VERSION), itertools.pairwise(ends))):
            assert joiner.offer([holder.member], chunk=chunk).chunks == tuple(chunks)

    def test_of_every_part_are_cut_alike_by_donors_and_joiner(self, joiner: Joiner, monkeypatch: pytest.MonkeyPatch) -> None:
        """Each donor pins what the joiner asks it for, and no other."""
        monkeypatch.setattr(shards_module, "LARGE", 4 * SIZES[1])
        monkeypatch.setattr(shards_module, "MOST_CHUNKS", joiner.flat.nbytes)
        with holders(3, lambda: Model(SIZES), joiner.member) as found:
            members = {holder.member.id: holder.member for holder in found}
            session, first = Mock(**{"plan.holders": tuple(members)}), 0
            for number in range(len(SIZES)):
                chunk = ChunkRequest(number, first, VERSION)
                offer = joiner.offer(list(members.values()), chunk=chunk)
                shards = _shards_of(offer, session, 0, VERSION, chunk)
                for shard in shards:
                    joiner.transport.shard(members[shard.donors[0]], shard, joiner.flat, 0, joiner.count, always)
                first += len(shards)
            assert joiner.got == joiner.flat.nbytes and same(joiner.model, found[0].model)

    def test_end_when_nobody_waits_for_them(self, joiner: Joiner, holder: Holder) -> None:
        with pytest.raises(FetchError, match="nobody gives the state"):
            joiner.offer([holder.member], version=VERSION + 1, go_on=never)

    def test_end_then_also_where_the_donor_says_later_at_once(
        self, joiner: Joiner, holder: Holder, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(donor_module, "POLL", 0.0)
        clock, looks = Clock(), itertools.count()

        def go_on() -> bool:
            assert len(clock.slept) < 5
            return next(looks) < 3

        joiner.transport = HTTPTransport(None, joiner.member.id, threads=clock)
        with pytest.raises(FetchError, match="is not wanted any more"):
            joiner.offer([holder.member], version=VERSION + 1, go_on=go_on)
        assert clock.slept, "nobody is asked as fast as can be"

    @pytest.mark.parametrize(
        "change",
        [
            {"portions": [[0, 4], [4, 8, 8]]},
            {"portions": [[0, 4], 8]},
            {"portions": [[0, 4], [4, "8"]]},
            {"portions": [[0, 4], [5, 8]]},
            {"portions": [[0, 4]]},
            {"portions": [[1, 8]]},
            {"nbytes": "8"},
            {"packed": ""},
        ],
    )
    def test_of_another_shape_are_refused(self, change: dict[str, object]) -> None:
        offer = {"nbytes": 8, "stripes": 1, "ground": "f", "packed": b"", "portions": [[0, 4], [4, 8]]}
        assert fetch._offered(somebody(), msgpack.packb(offer)).chunks == ((0, 4), (4, 8))
        with pytest.raises(FetchError, match="its offer has the wrong shape"):
            fetch._offered(somebody(), msgpack.packb({**offer, **change}))


class TestTheRest:
    def test_digests_are_of_the_state_now(self, joiner: Joiner, holder: Holder) -> None:
        ranges = [(0, 100), (101, joiner.flat.nbytes)]
        found = joiner.transport.digest(holder.member, VERSION, ranges, STATE_ID, always)
        data = torch.cat([row.detach() for row in holder.model.rows]).view(torch.uint8).numpy().data
        assert found == [digest_of(data[start:stop]) for start, stop in ranges]

    def test_inline_parts(self, joiner: Joiner, holder: Holder) -> None:
        registered = holder.transfer.registered
        assert registered is not None
        packed = split(registered, holder.plane.step)[0].packed
        assert joiner.transport.inline(holder.member, VERSION, STATE_ID, always) == packed

    def test_are_dropped_where_nobody_wants_them_any_more(self, joiner: Joiner, holder: Holder) -> None:
        with pytest.raises(FetchError, match="not wanted any more"):
            joiner.transport.inline(holder.member, VERSION, STATE_ID, never)

    def test_no_more_is_held_than_an_answer_may_have(
        self, joiner: Joiner, holder: Holder, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        found = joiner.transport.inline(holder.member, VERSION, STATE_ID, always)
        monkeypatch.setattr(fetch, "_MOST", len(found))
        assert joiner.transport.inline(holder.member, VERSION, STATE_ID, always) == found
        monkeypatch.setattr(fetch, "_MOST", len(found) - 1)
        with pytest.raises(FetchError, match=f"answers with more than {len(found) - 1} bytes"):
            joiner.transport.inline(holder.member, VERSION, STATE_ID, always)

    def test_layouts_of_calls(self, joiner: Joiner, holder: Holder) -> None:
        layout = lay_out("barrier", [], "SUM", 1 << 20)
        assert joiner.transport.layout(holder.member, layout.signature, always) == layout
        with pytest.raises(Refused, match="no call with signature"):
            joiner.transport.layout(holder.member, os.urandom(16), always)

    def test_a_layout_of_which_only_the_order_is_not_known(self, joiner: Joiner, holder: Holder) -> None:
        theirs, own = (lay_out_in_order("average", [(torch.float32, (4,))] * 2, order, 8, 8) for order in ([1, 0], [0, 1]))
        with pytest.raises(Refused, match="no call with signature"):
            joiner.transport.layout_like(holder.member, own, always)
        holder.layouts.note(theirs)
        found = joiner.transport.layout_like(holder.member, own, always)
        assert found.signature == theirs.signature != own.signature
        assert [bucket.indices for bucket in found.buckets] == [bucket.indices for bucket in theirs.buckets]

    def test_a_release_that_is_late_leaves_what_was_asked_for_since(
        self, joiner: Joiner, holder: Holder, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Its thread goes from member to member, and the one before may be gone."""
        go_on, told = threading.Event(), threading.Event()

        @around(monkeypatch, HTTPTransport, "release")
        def release(usual: Callable[..., None], *given: object) -> None:
            assert go_on.wait(TIMEOUT)
            usual(*given)
            told.set()

        joiner.transport.release_all([holder.member])
        shards = cut(joiner.offer([holder.member]).nbytes, [holder.member.id], 0, VERSION)
        go_on.set()
        assert told.wait(TIMEOUT)
        for shard in shards:
            joiner.transport.shard(holder.member, shard, joiner.flat, 0, joiner.count, always)
        assert same(joiner.model, holder.model)

    def test_whoever_is_gone_need_not_hear_of_a_release(self, joiner: Joiner) -> None:
        joiner.transport.release(somebody(), 1)

    def test_too_early_is_later(self, joiner: Joiner, holder: Holder, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(donor_module, "POLL", 0.01)
        with pytest.raises(Later, match="not inside call"):
            joiner.transport.inline(holder.member, VERSION + 1, STATE_ID, always)
        with pytest.raises(Refused, match="does not hold that state"):
            joiner.transport.inline(holder.member, VERSION, "another", always)


class Clock(Threads):
    """Time passes while somebody sleeps."""

    def __init__(self) -> None:
        self.time = 0.0
        self.slept: list[float] = []

    def now(self) -> float:
        return self.time

    def sleep(self, seconds: float) -> None:
        self.time += seconds
        self.slept.append(seconds)


@pytest.mark.parametrize(("kept_waiting", "pause"), [(0.0, RETRY), (RETRY / 2, RETRY / 2), (4 * RETRY, 0.0)])
def test_who_was_not_kept_waiting_pauses_before_the_next_request(
    kept_waiting: float, pause: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock, waits = Clock(), list[float]()
    plane, donor, own = Plane(somebody().id, threads=clock), somebody(), somebody()
    monkeypatch.setattr(plane, "wait_end", lambda _session, seconds: waits.append(seconds))
    asked = clock.now()
    clock.sleep(kept_waiting)
    pause_between_requests(plane, meeting([donor, own], own.id, None), asked)
    assert waits == [pytest.approx(pause)]


class TestBandwidth:
    def test_is_kept_over_all_who_share_it(self) -> None:
        clock = Clock()
        rate_limit = RateLimit(1000.0, clock)
        sizes = [rate_limit.piece(BLOCK), 10, 300, 5000, 1]
        for size in sizes * 4:
            assert rate_limit.take(size, always)
        assert clock.time == pytest.approx((sum(sizes) * 4 - 1) / 1000, abs=0.5)
        assert max(clock.slept) < 1.0, "whoever gives up has to be heard"
        assert not rate_limit.take(1, never)

    def test_is_kept_in_pieces_of_a_quarter_of_a_second(self) -> None:
        """Though of a byte at least, and of no more than are asked for."""
        assert [RateLimit(rate).piece(1000) for rate in (100_000.0, 1000.0, 1.0)] == [1000, 250, 1]

    def test_no_limit_is_none(self) -> None:
        clock = Clock()
        assert RateLimit(0.0, clock).take(1 << 60, never)
        assert RateLimit(0.0, clock).piece(BLOCK) == BLOCK
        assert not clock.slept

    def test_holds_for_shards(self, holder: Holder, joiner: Joiner) -> None:
        clock = Clock()
        limited = HTTPTransport(None, joiner.member.id, bandwidth=1e5, threads=clock)
        shard = joiner.all_of(holder)
        limited.shard(holder.member, shard, joiner.flat, 0, joiner.count, always)
        assert joiner.got == joiner.flat.nbytes
        assert clock.time == pytest.approx(joiner.got / 1e5, rel=0.1)
