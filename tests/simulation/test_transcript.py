"""A transcript: names for ids, one line for what is alike, and nothing that a reader would have to skip."""

from __future__ import annotations

import pytest

from consensus.simulation import World, draw, judged, play
from consensus.simulation.transcript import Transcript
from consensus.simulation.transcript.page import WIDTH, Page, PageLine
from consensus.simulation.transcript.people import People

IDS = {f"{index:06x}cafe": f"m{index}" for index in range(12)}


def told(*entries: PageLine) -> list[str]:
    page = Page(People(IDS))
    page.instant(0.0, entries)
    return str(page).splitlines()


def ids(*indexes: int) -> list[str]:
    return [list(IDS)[index] for index in indexes]


def test_members_have_names_in_their_order() -> None:
    people = People(IDS)
    assert people.names(ids(7, 1, 3)) == "m1 m3 m7"
    assert people.names(ids(0, 5, 4, 3, 2, 9, 10)) == "m0 m2..m5 m9 m10"
    assert people.names([]) == "nobody"
    assert people.name("0123456789") == "012345", "a stranger"


def test_a_later_lifetime_has_a_name_of_its_own() -> None:
    people = People({})
    for member_id in ("aaaaaa", "bbbbbb", "cccccc"):
        people.meet(member_id, "x")
    people.meet("aaaaaa", "y")
    assert people.names(["aaaaaa", "bbbbbb", "cccccc"]) == "x x' x''"


def test_ids_and_addresses_become_names() -> None:
    people = People(IDS)
    first, second = ids(0, 1)
    assert people.translate(f"waits for {first[:6]}@10.0.0.1:1000 (dead), {second}") == "waits for m0 (dead), m1"


def test_what_is_alike_is_one_line() -> None:
    a, b, c = ids(0, 1, 2)
    lines = told(*(PageLine(one, other, "HELLO") for one in (a, b) for other in (b, c)))
    assert [line.split() for line in lines] == [["0", "m0", "m1", "->", "m1", "m2", "HELLO"]]
    lines = told(PageLine(a, None, "is tired"), PageLine(b, None, "is tired"), PageLine(c, None, "sleeps"))
    assert [line.split() for line in lines] == [["0", "m0", "m1", "are", "tired"], ["m2", "sleeps"]]


def test_many_messages_are_counted() -> None:
    people = ids(*range(8))
    [line] = told(*(PageLine(one, other, "about {}", about) for one in people for other in ids(0) for about in ids(9, 10)))
    assert line.split() == ["0", "m0..m7", "->", "m0", "16", "x", "about", "m9", "m10"]
    mixed = [PageLine(one, people[(index + 1) % 8], "HELLO") for index, one in enumerate(people)]
    [line] = told(*mixed)
    assert line.split()[-3:] == ["8", "x", "HELLO"], "no eight lines for a round of eight"


def test_fates_are_told_apart() -> None:
    a, b, c = ids(0, 1, 2)
    lines = told(PageLine(a, b, "HELLO"), PageLine(a, c, "HELLO", fate="lost"))
    assert [line.split()[-1] for line in lines] == ["HELLO", "[lost]"]


@pytest.fixture
def watched() -> tuple[World, Transcript]:
    world = judged(World(1))
    hosts = world.cluster(3)
    world.run(1.0)
    page = Transcript()
    world.observe(page)
    page.begin(hosts)
    return world, page


def test_what_is_said_again_is_told_once(watched: tuple[World, Transcript]) -> None:
    """A member cannot vote for ten seconds; it is asked two hundred times."""
    world, page = watched
    members = [world.hosts[key] for key in world.named("m0").activated[-1].ids]
    world.pause(members[1])
    world.kill(members[2])
    world.run(1.5)
    world.resume(members[1])
    world.run(0.5)
    asked = [line for line in str(page).splitlines() if "ACCEPT ballot" in line and members[1].name in line.split("ACCEPT")[0]]
    assert len(asked) == 1


def test_who_does_nothing_is_not_written_about(watched: tuple[World, Transcript]) -> None:
    world, page = watched
    before = str(page)
    world.run(5.0)
    assert str(page) == before, "pings, acks and rumours are left out"
    page.talk = frozenset({"Ping"})
    world.run(1.0)
    assert "PING (knows epoch 1)" in str(page)


def test_a_message_that_gets_through_later_is_told_again(watched: tuple[World, Transcript]) -> None:
    world, page = watched
    members = [world.hosts[key] for key in world.named("m0").activated[-1].ids]
    world.faults.cut.add((members[0].id, members[1].id))
    world.kill(members[2])
    world.run(0.3)
    world.faults.heal()
    world.run(0.3)
    text = str(page)
    lost, again = text.index("[lost]"), text.index("(again)")
    assert lost < again
    assert "ACT in epoch 2" in text or text.count("ACTS in epoch 2") == 2


@pytest.mark.parametrize("seed", range(12))
def test_any_history_can_be_written_down_and_is_not_changed_by_it(seed: int) -> None:
    page = Transcript()
    result = play(draw(seed), observers=[page])
    lines = str(page).splitlines()
    assert result.good
    assert result.world.digest == play(draw(seed)).world.digest
    assert all(len(line) <= WIDTH for line in lines)
    acted = any(host.activated for host in result.world.hosts.values())
    assert acted == any(" ACT" in line and " in epoch " in line for line in lines)
