"""The process group's way, in memory: its other end is a real donor behind a real agent."""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import nullcontext
from typing import Any

import pytest
import torch

from consensus import Member
from ftlib.common.memory import room
from ftlib.core.calls import adoption as donation
from ftlib.core.plane.orders import Order
from ftlib.core.plane.plane import Plane
from ftlib.errors import GroupError
from ftlib.frameworks.base import Framework, Group, GroupSpec, Work
from ftlib.frameworks.gloo import GlooFramework
from ftlib.frameworks.isolated.framework import IsolatedFramework
from ftlib.frameworks.isolated.segments import Segments
from ftlib.frameworks.memory import MemoryHub
from ftlib.recovery.donor import group_sender as sender_module
from ftlib.recovery.donor.group_sender import FIRST_TAG
from ftlib.recovery.joiner import group_transport as group_module
from ftlib.recovery.joiner.group_transport import WINDOW, GroupTransport, Tainted
from ftlib.recovery.joiner.http_transport import FetchError, HTTPTransport, Later
from ftlib.recovery.layout.flat_state import FlatState
from ftlib.recovery.layout.shards import BLOCK, Shard, digest_of
from tests.harness.basics import around
from tests.harness.company import at_once, in_thread
from tests.harness.threads import Clock

from .holders import TIMEOUT, Holder, Model, meeting, somebody, whole

SIZES = [1_500_000, 3, 1_000_000, 700_000]


def always() -> bool:
    return True


class Pair:
    """A holder and a joiner in one view."""

    def __init__(self, backend: str = "memory", **options: Any) -> None:
        hub = MemoryHub()
        make = {"memory": hub.framework, "gloo": GlooFramework, "isolated:gloo": IsolatedFramework}[backend]
        self.frameworks: list[Framework] = [make(), make()]
        facts = [dict(framework.start("127.0.0.1")) for framework in self.frameworks]
        self._store = facts[0]
        self.holder = Holder(Model(SIZES), allocate=self.frameworks[0].allocate)
        self.member = self.holder.member
        self.joiner = somebody()
        self.plane = Plane(self.joiner.id)
        self.transport = GroupTransport(None, self.plane, patience=5.0, allocate=self.frameworks[1].allocate, **options)
        self.model = Model(SIZES, seed=1)
        self.flat = FlatState([row.detach() for row in self.model.rows], [str(index) for index in range(len(SIZES))])
        self.shard = whole(self.flat.nbytes, self.member.id)
        self.got = 0
        self.groups: list[Group] = []
        self.meet(2)
        self.holder.enter()
        self.holder.pin(self.joiner.id, self.shard)

    def meet(self, epoch: int) -> None:
        """In a new group."""
        specs = [GroupSpec(f"view {epoch}", epoch, rank, 2, self._store, TIMEOUT) for rank in (0, 1)]
        self.groups = at_once(
            *[functools.partial(framework.rebuild, spec) for framework, spec in zip(self.frameworks, specs, strict=True)]
        )
        for plane, group in zip((self.holder.plane, self.plane), self.groups, strict=True):
            if plane is self.holder.plane:
                self.holder.meet([self.joiner], group, epoch=epoch)
            else:
                assert plane.activate(meeting([self.member, self.joiner], plane.member_id, group, epoch=epoch))

    def freeze(self) -> None:
        """As both rebuild threads do it."""
        for plane, group in zip((self.holder.plane, self.plane), self.groups, strict=True):
            plane.freeze(Order(9, None))
            group.abort()

    def fetch(self, go_on: Callable[[], bool] = always, shard: Shard | None = None) -> None:
        def count(nbytes: int) -> None:
            self.got += nbytes

        self.transport.shard(self.member, shard or self.shard, self.flat, self.got, count, go_on)

    @property
    def whole(self) -> bool:
        rows = zip(self.model.rows, self.holder.model.rows, strict=True)
        return self.got == self.flat.nbytes and all(torch.equal(a, b) for a, b in rows)

    def close(self) -> None:
        self.holder.close()
        for framework in self.frameworks:
            framework.close()


@pytest.fixture
def pair() -> Iterator[Pair]:
    made = Pair()
    yield made
    made.close()


@pytest.mark.parametrize("backend", ["memory", "gloo"])
def test_a_shard_arrives_in_place(backend: str) -> None:
    pair = Pair(backend)
    pair.fetch()
    assert pair.whole
    pair.close()


def test_what_a_donor_sends_is_in_the_memory_of_its_groups_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """Only what the joiner receives in place, in its model, is copied from there. All of it is given back."""
    borrowed: list[int] = []

    @around(monkeypatch, Segments, "borrow")
    def noted(original: Any, self: Segments, nbytes: int) -> torch.Tensor:
        borrowed.append(id(self))
        return original(self, nbytes)

    pair = Pair("isolated:gloo")
    donors = next(framework._segments for framework in pair.frameworks if isinstance(framework, IsolatedFramework))
    pair.fetch()
    assert pair.whole
    assert borrowed and id(donors) not in borrowed
    pair.holder.donor.forget()
    assert sum(segment.alive for segment in donors._known) <= 2, "the newest of each kind"
    pair.close()


def test_parts_of_a_shard_in_several_runs(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(group_module, "RUN", 2)
    asked: list[int] = []

    @around(monkeypatch, HTTPTransport, "asked")
    def noted(original: Any, self: HTTPTransport, member: Member, query: Mapping[str, Any], *more: Any) -> Any:
        asked.append(query["tag"])
        return original(self, member, query, *more)

    pair.got = BLOCK
    pair.flat.copy_in(0, torch.cat([row.detach() for row in pair.holder.model.rows]).view(torch.uint8)[:BLOCK])
    pair.fetch()
    assert pair.whole
    assert asked == [FIRST_TAG, FIRST_TAG + 2], "each message has a tag of its own"


def test_only_so_much_is_under_way_at_a_time(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    """Averages share the connection. Gloo sends nothing before it is received."""
    works: list[Work] = []
    most = 0

    @around(monkeypatch, pair.groups[1], "recv")
    def noted(recv: Any, tensor: torch.Tensor, source: int, tag: int) -> Work:
        nonlocal most
        ended = {id(work) for work in works if work.done()}
        most = max(most, 1 + len(works) - len(ended))
        works.append(recv(tensor, source, tag))
        return works[-1]

    pair.fetch()
    assert pair.whole
    assert len(works) == -(-pair.flat.nbytes // BLOCK) > WINDOW
    assert most <= WINDOW


def test_buffers_are_used_again() -> None:
    """The first touch of new memory costs more than the copy into it."""
    buffers = group_module._Buffers(room)
    one, other = buffers.take(), buffers.take()
    assert one is not other
    buffers.give(one)
    assert buffers.take() is one


def test_a_block_in_several_places_gives_its_buffer_back_once_it_is_there(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[int] = []

    @around(monkeypatch, group_module._Buffers, "take")
    def noted(take: Any, self: group_module._Buffers) -> torch.Tensor:
        made.append(self._free.qsize())
        return take(self)

    pair = Pair()
    pair.fetch()
    assert pair.whole
    assert made
    assert pair.transport._buffers._free.qsize() == len(made) - sum(map(bool, made))
    pair.close()


def test_tags_are_not_those_of_donated_results() -> None:
    assert donation._tag(2**40 - 1, 65534) < FIRST_TAG


def test_a_damaged_block_does_not_count(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(sender_module, "digest_of", lambda piece: b"?" * 16 if len(piece) < BLOCK else digest_of(piece))
        with pytest.raises(FetchError, match=f"damaged from {pair.member}"):
            pair.fetch()
    assert pair.got == pair.flat.nbytes // BLOCK * BLOCK
    pair.fetch()
    assert pair.whole


class Slow(Work):
    """One that ends when it is told to, and not before."""

    def __init__(self, may_end: threading.Event, raw: Callable[[], Work]) -> None:
        self._may_end, self._raw = may_end, raw
        self._work: Work | None = None

    def wait(self, timeout: float) -> bool:
        if not self._may_end.wait(timeout):
            return False
        self._work = self._work or self._raw()
        return self._work.wait(timeout)

    def done(self) -> bool:
        return self._may_end.is_set()


def test_a_view_change_in_the_middle_costs_no_block(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    """The donor has sent one block when its group is aborted."""
    send, sent = pair.groups[0].send, []

    def once(tensor: torch.Tensor, to: int, tag: int) -> Work:
        sent.append(tag)
        return send(tensor, to, tag) if len(sent) == 1 else Slow(threading.Event(), lambda: send(tensor, to, tag))

    monkeypatch.setattr(pair.groups[0], "send", once)
    errors: list[BaseException] = []

    def fetch() -> None:
        try:
            pair.fetch()
        except FetchError as error:
            errors.append(error)

    thread = in_thread(fetch)
    waiter = threading.Event()
    while pair.got != BLOCK:
        assert thread.is_alive() and not waiter.wait(0.001)
    pair.freeze()
    thread.join(TIMEOUT)
    [error] = errors
    assert pair.member.id[:6] in str(error)
    assert pair.got == BLOCK
    with pytest.raises(Later, match="no group"):
        pair.fetch()
    pair.meet(10)
    pair.fetch()
    assert pair.whole


def test_an_operation_that_does_not_end_taints_the_model(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    class Endless(Work):
        def wait(self, timeout: float) -> bool:
            raise GroupError("abandoned")

        def done(self) -> bool:
            return False

    pair.transport = GroupTransport(None, pair.plane, patience=0.05)
    monkeypatch.setattr(group_module, "_LOOK", 0.01)
    monkeypatch.setattr(pair.groups[1], "recv", lambda *_: Endless())
    with pytest.raises(Tainted, match="start this worker anew"):
        pair.fetch()
    assert pair.got == 0


def test_what_is_under_way_is_taken_though_nobody_wants_it(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    """Else the donor's messages would stay in the group for ever."""
    with monkeypatch.context() as patch:
        patch.setattr(group_module, "digest_of", lambda *_: b"?" * 16)
        with pytest.raises(FetchError, match="damaged"):
            pair.fetch()
    assert all(work.done() for work, _ in pair.holder.donor._group_sender._kept)
    with pytest.raises(FetchError, match="not wanted"):
        pair.fetch(lambda: False)
    assert pair.got == 0


def test_donors_in_another_view_are_asked_again(pair: Pair) -> None:
    pair.holder.plane.freeze(Order(9, None))
    with pytest.raises(Later, match="does not act in view"):
        pair.fetch()


def test_the_limit_holds_here_too() -> None:
    class Clock(group_module.Threads):
        time = 0.0

        def now(self) -> float:
            return self.time

        def sleep(self, seconds: float) -> None:
            self.time += seconds

    clock = Clock()
    pair = Pair(bandwidth=1e6, threads=clock)  # type: ignore[arg-type]
    pair.fetch()
    assert pair.whole
    assert clock.time == pytest.approx(pair.got // BLOCK * BLOCK / 1e6, abs=1.0), "all but the last block was waited for"
    pair.close()


@pytest.mark.parametrize(("ends", "slept"), [(True, [0.0]), (False, [group_module._LOOK] * 3)])
def test_who_drains_what_has_failed_waits_only_while_it_may_still_write(ends: bool, slept: list[float]) -> None:
    """Each view change fails operations under way, and the shards go on after that."""

    class Slept(Clock):
        def __init__(self) -> None:
            super().__init__()
            self.slept: list[float] = []

        def sleep(self, seconds: float) -> None:
            self.slept.append(seconds)
            self.at += seconds

    class Failed(Work):
        failed = False

        def wait(self, timeout: float) -> bool:
            self.failed = True
            raise GroupError("aborted")

        def done(self) -> bool:
            return ends and self.failed

    clock = Slept()
    transport = GroupTransport(None, Plane("a" * 16), patience=2 * group_module._LOOK, threads=clock)
    with nullcontext() if ends else pytest.raises(Tainted):
        transport._drain(somebody(), Failed())
    assert clock.slept == slept


def test_an_operation_may_take_as_long_as_it_was_allowed_to() -> None:
    class Lasting(Work):
        looks = 0

        def wait(self, timeout: float) -> bool:
            self.looks += 1
            clock.at += timeout
            return self.looks > 3

        def done(self) -> bool:
            return self.looks > 3

    clock = Clock()
    for patience, given_up in ((2.0, False), (1.0, True)):
        transport = GroupTransport(None, Plane("a" * 16), patience=patience, threads=clock)
        with pytest.raises(FetchError, match="within 1 s") if given_up else nullcontext():
            transport._wait(somebody(), Lasting())


def test_who_drains_waits_for_the_operation_and_does_not_look_again_and_again() -> None:
    class Waited(Work):
        looks = 0

        def wait(self, timeout: float) -> bool:
            self.looks = 10
            return True

        def done(self) -> bool:
            self.looks += 1
            return self.looks > 10

    work = Waited()
    GroupTransport(None, Plane("a" * 16), patience=0.0)._drain(somebody(), work)
    assert work.looks == 12, "once before the wait, and twice after it"
