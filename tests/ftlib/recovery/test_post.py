"""The process group's way, in memory: its other end is a real donor behind a real agent."""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import pytest
import torch

from consensus import Member
from ftlib import donation
from ftlib.errors import GroupError
from ftlib.frameworks.base import Group, GroupSpec, Work
from ftlib.frameworks.gloo import GlooFramework
from ftlib.frameworks.memory import MemoryHub
from ftlib.plane import Order, Plane
from ftlib.recovery import post as post_module
from ftlib.recovery import sending as sending_module
from ftlib.recovery.blocks import BLOCK, digest_of
from ftlib.recovery.fetch import FetchError, HttpSource, Later
from ftlib.recovery.flat import Ground
from ftlib.recovery.post import WINDOW, Post, Tainted
from ftlib.recovery.sending import FIRST_TAG
from ftlib.recovery.stripes import Stripe
from tests.ftlib.real import at_once, in_thread

from .holders import TIMEOUT, Holder, Model, meeting, somebody, whole

SIZES = [1_500_000, 3, 1_000_000, 700_000]


def always() -> bool:
    return True


class Pair:
    """A holder and a joiner in one view."""

    def __init__(self, backend: str = "memory", **options: float) -> None:
        hub = MemoryHub()
        self.frameworks = [hub.framework(), hub.framework()] if backend == "memory" else [GlooFramework(), GlooFramework()]
        facts = [dict(framework.start("127.0.0.1")) for framework in self.frameworks]
        self._store = facts[0]
        self.holder = Holder(Model(SIZES))
        self.member = self.holder.member
        self.joiner = somebody()
        self.plane = Plane(lambda: self.joiner.id)
        self.http = HttpSource(None, self.joiner.id, **options)
        self.source = Post(self.http, self.plane, patience=5.0)
        self.model = Model(SIZES, seed=1)
        self.ground = Ground([row.detach() for row in self.model.rows], [str(index) for index in range(len(SIZES))])
        self.stripe = whole(self.ground.nbytes, self.member.id)
        self.got = 0
        self.groups: list[Group] = []
        self.meet(2)
        self.holder.enter()
        self.holder.pin(self.joiner.id, self.stripe)

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

    def fetch(self, go_on: Callable[[], bool] = always, stripe: Stripe | None = None) -> None:
        def count(nbytes: int) -> None:
            self.got += nbytes

        self.source.stripe(self.member, stripe or self.stripe, self.ground, self.got, count, go_on)

    @property
    def whole(self) -> bool:
        rows = zip(self.model.rows, self.holder.model.rows, strict=True)
        return self.got == self.ground.nbytes and all(torch.equal(a, b) for a, b in rows)

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
def test_a_stripe_arrives_in_place(backend: str) -> None:
    pair = Pair(backend)
    pair.fetch()
    assert pair.whole
    pair.close()


def test_parts_of_a_stripe_in_several_runs(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(post_module, "RUN", 2)
    asked: list[int] = []
    original = HttpSource.asked

    def noted(self: HttpSource, member: Member, query: Mapping[str, Any], *more: Any) -> Any:
        asked.append(query["tag"])
        return original(self, member, query, *more)

    monkeypatch.setattr(HttpSource, "asked", noted)
    pair.got = BLOCK
    pair.ground.copy_in(0, torch.cat([row.detach() for row in pair.holder.model.rows]).view(torch.uint8)[:BLOCK])
    pair.fetch()
    assert pair.whole
    assert asked == [FIRST_TAG, FIRST_TAG + 2], "each message has a tag of its own"


def test_only_so_much_is_under_way_at_a_time(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    """Averages share the connection. Gloo sends nothing before it is received."""
    works: list[Work] = []
    most = 0
    recv = pair.groups[1].recv

    def noted(tensor: torch.Tensor, source: int, tag: int) -> Work:
        nonlocal most
        ended = {id(work) for work in works if work.done()}
        most = max(most, 1 + len(works) - len(ended))
        works.append(recv(tensor, source, tag))
        return works[-1]

    monkeypatch.setattr(pair.groups[1], "recv", noted)
    pair.fetch()
    assert pair.whole
    assert len(works) == -(-pair.ground.nbytes // BLOCK) > WINDOW
    assert most <= WINDOW


def test_tags_are_not_those_of_donated_results() -> None:
    assert donation._tag(2**40 - 1, 65534) < FIRST_TAG


def test_a_damaged_block_does_not_count(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(sending_module, "digest_of", lambda piece: b"?" * 16 if len(piece) < BLOCK else digest_of(piece))
        with pytest.raises(FetchError, match=f"damaged from {pair.member}"):
            pair.fetch()
    assert pair.got == pair.ground.nbytes // BLOCK * BLOCK
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

    pair.source = Post(pair.http, pair.plane, patience=0.05)
    monkeypatch.setattr(post_module, "_LOOK", 0.01)
    monkeypatch.setattr(pair.groups[1], "recv", lambda *_: Endless())
    with pytest.raises(Tainted, match="start this worker anew"):
        pair.fetch()
    assert pair.got == 0


def test_what_is_under_way_is_taken_though_nobody_wants_it(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    """Else the donor's messages would stay in the group for ever."""
    with monkeypatch.context() as patch:
        patch.setattr(post_module, "digest_of", lambda *_: b"?" * 16)
        with pytest.raises(FetchError, match="damaged"):
            pair.fetch()
    assert all(work.done() for work, _ in pair.holder.donor._sending._kept)
    with pytest.raises(FetchError, match="not wanted"):
        pair.fetch(lambda: False)
    assert pair.got == 0


def test_donors_in_another_view_are_asked_again(pair: Pair) -> None:
    pair.holder.plane.freeze(Order(9, None))
    with pytest.raises(Later, match="does not act in view"):
        pair.fetch()


def test_the_limit_holds_here_too() -> None:
    class Clock(post_module.Threads):
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
