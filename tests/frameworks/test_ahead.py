"""Gloo groups that are built before anybody asks for them: used for that very view, dropped for any other."""

from __future__ import annotations

import resource
from collections.abc import Iterator

import pytest

from ftlib.errors import GroupError
from ftlib.frameworks import GroupSpec, gloo_build
from ftlib.frameworks.gloo import GlooFramework
from tests.frameworks.crew import Crew, Worker, rebuild
from tests.frameworks.orders import building_threads, exchange, reduce_one, try_rebuild
from tests.harness.basics import eventually


@pytest.fixture(scope="module")
def crew() -> Iterator[Crew]:
    made = Crew()
    yield made
    made.close()


def prepare(worker: Worker, spec: GroupSpec) -> None:
    worker.framework.prepare(spec)


def prepare_and_tell(worker: Worker, spec: GroupSpec) -> None:
    """Return once the others may know its address."""
    worker.framework.prepare(spec)
    assert isinstance(worker.framework, GlooFramework)
    ahead = worker.framework._builder._ahead
    assert ahead is not None
    eventually(lambda: ahead.told, "it has told")


def prepared(worker: Worker, spec: GroupSpec) -> bool:
    """Wait until the group that was prepared is built; whether ``rebuild`` gives that very one."""
    assert isinstance(worker.framework, GlooFramework)
    ahead = worker.framework._builder._ahead
    assert ahead is not None
    group = ahead.wait()
    assert worker.framework.group is not group, "nobody has asked for it"
    rebuild(worker, spec)
    return worker.group is group


def test_what_was_prepared_is_what_is_asked_for(crew: Crew) -> None:
    """While the group before it is at work."""
    hands = crew.hire(3)
    crew.build(hands)
    specs = crew.specs(hands)
    for hand, spec in zip(hands, specs, strict=True):
        hand.tell(prepare, spec)
        hand.answer()
    assert crew.run(hands, exchange, 1000) == [2.0, 0.0, 1.0]
    for hand, spec in zip(hands, specs, strict=True):
        hand.tell(prepared, spec)
    assert all(hand.answer() for hand in hands)
    assert crew.run(hands, reduce_one, 1000) == [3.0] * 3


def test_who_heard_of_it_meets_who_did_not(crew: Crew) -> None:
    hands = crew.hire(3)
    specs = crew.specs(hands)
    for hand, spec in list(zip(hands, specs, strict=True))[:2]:
        hand.tell(prepare, spec)
        hand.answer()
    for hand, spec in zip(hands, specs, strict=True):
        hand.tell(rebuild, spec)
    for hand in hands:
        hand.answer()
    assert crew.run(hands, reduce_one, 1000) == [3.0] * 3


def test_another_view_drops_it(crew: Crew) -> None:
    """At whatever stage it is: with one member missing, and complete."""
    hands = crew.hire(3)
    for heard in (2, 3):
        for hand, spec in list(zip(hands, crew.specs(hands), strict=True))[:heard]:
            hand.tell(prepare, spec)
            hand.answer()
        crew.build(hands)
        assert crew.run(hands, building_threads) == [0, 0, 0]
        assert crew.run(hands, reduce_one, 1000) == [3.0] * 3


def test_what_was_dropped_is_not_built_again(crew: Crew) -> None:
    """The others may hold the address of what is gone: that view fails at once, and another is needed."""
    hands = crew.hire(2)
    first, second = crew.specs(hands), crew.specs(hands)
    for spec in (first[0], second[0]):
        hands[0].tell(prepare_and_tell, spec)
        hands[0].answer()
    hands[0].tell(try_rebuild, first[0], None)
    assert "built ahead and dropped" in hands[0].answer()[1]
    crew.build(hands)
    assert crew.run(hands, reduce_one, 1000) == [2.0] * 2


def test_what_failed_before_anybody_could_notice_is_built_anew(crew: Crew) -> None:
    """As where no descriptor was left for a moment."""
    hands = crew.hire(2)
    specs = crew.specs(hands)
    hands[0].tell(prepare_in_vain, specs[0])
    assert "out of sockets" in hands[0].answer()
    for hand, spec in zip(hands, specs, strict=True):
        hand.tell(rebuild, spec)
    for hand in hands:
        hand.answer()
    assert crew.run(hands, reduce_one, 1000) == [2.0] * 2


def prepare_in_vain(worker: Worker, spec: GroupSpec) -> str:
    assert isinstance(worker.framework, GlooFramework)
    make = gloo_build._make_device

    def broken(_host: str) -> object:
        raise OSError("out of sockets")

    gloo_build._make_device = broken  # type: ignore[assignment]
    try:
        worker.framework.prepare(spec)
        assert worker.framework._builder._ahead is not None
        worker.framework._builder._ahead.wait()
    except GroupError as error:
        return str(error)
    finally:
        gloo_build._make_device = make
    return ""


def test_nothing_is_built_ahead_where_descriptors_are_scarce(crew: Crew) -> None:
    [hand] = crew.hire(1)
    hand.tell(prepare_many)
    assert hand.answer() is None


def prepare_many(worker: Worker) -> object:
    assert isinstance(worker.framework, GlooFramework)
    limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    worker.framework.prepare(GroupSpec("view", 2, 0, limit, {"store": "127.0.0.1:1"}, 1.0))
    return worker.framework._builder._ahead


def test_cancel_drops_it(crew: Crew) -> None:
    hands = crew.hire(2)
    [spec, _] = crew.specs(hands)
    hands[0].tell(prepare, spec)
    hands[0].answer()
    hands[0].tell(cancel_all)
    assert hands[0].answer() is None
    assert crew.run(hands, building_threads) == [0, 0]
    crew.build(hands)
    assert crew.run(hands, reduce_one, 1000) == [2.0] * 2


def cancel_all(worker: Worker) -> object:
    assert isinstance(worker.framework, GlooFramework)
    worker.framework.cancel()
    return worker.framework._builder._ahead
