"""Workers on several hosts: hosts that vanish, links that are cut one way or both, halves, loss and delay, and what comes back.

Times are those of ``exclude_after=2``, the default.
"""

from __future__ import annotations

import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.harness.cluster import Worker
from tests.harness.network import Host, Network, needs_bridge_filter, needs_delay, needs_network
from tests.harness.nursery import Nursery
from tests.harness.verdict import Verdict
from tests.processes.faults.test_kills import CHANGE, DRIVER, JOINER
from tests.processes.jobs.fleet import Fleet

pytestmark = [pytest.mark.process, needs_network, needs_bridge_filter]

T_EXCL = 2.0
SOON = 60.0
"""Seconds within which a job has gone on: twice T_EXCL on an idle machine, and before anything else than T_EXCL ends a wait."""
SETTINGS = {"bucket_mb": 0.08, "exclude_after": T_EXCL, "link_timeout": T_EXCL, "rejoin": True}
TASK = {"sizes": [20_000, 300], "pause": 0.004}


@pytest.fixture(scope="module")
def hosts(nursery: Nursery, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fleet]:
    """Five hosts at a bridge."""
    network = Network(5)
    with network, Fleet(tmp_path_factory.mktemp("fleet"), network, nursery, **TASK, settings=SETTINGS) as fleet:
        yield fleet


@pytest.fixture
def fleet(hosts: Fleet) -> Iterator[Fleet]:
    """Nobody yet; and whatever a test did, what all workers say must fit together."""
    hosts.anew()
    yield hosts
    hosts.read()
    verdict = Verdict()
    verdict.check(hosts.workers)
    assert not verdict.violations


def start(fleet: Fleet, size: int = 4, **settings: Any) -> list[Worker]:
    """They train; in seniority order."""
    fleet.found(size, settings=settings)
    fleet.training(size)
    fleet.advanced()
    return sorted(fleet.workers, key=lambda worker: worker.last["rank"])


def stopped_acting(workers: list[Worker], since: float) -> None:
    """Whoever is cut off finishes at most the calls whose last packets had come by then; who acts does hundreds meanwhile."""
    for worker in workers:
        worker.read()
        late = [line for line in worker.calls if line["end"] > since]
        assert len(late) <= 2, f"{worker.task.name} went on: {late}"


def return_all(fleet: Fleet, workers: list[Worker], size: int) -> None:
    """The network is mended: they learn that the others went on without them, and join again."""
    healed = time.monotonic()
    fleet.heal()
    for worker in workers:
        worker.killed = 0.0
    fleet.training(size)
    for worker in workers:
        assert worker.last["lifetime"] == 1
        first = next(line["end"] for line in worker.calls if line["lifetime"])
        assert first - healed < SOON  # on an idle machine one to three


def test_hosts_vanish_one_after_another_and_come_back(fleet: Fleet) -> None:
    """A junior one's, then the most senior one's: no connection is closed, no packet answered any more."""
    one, two, three, four = start(fleet)
    assert fleet.went_on([one, two, four], fleet.vanish(three)) < SOON
    assert fleet.went_on([two, four], fleet.vanish(one)) < SOON
    fleet.heal()
    fleet.join()
    fleet.join()
    fleet.training(4)


def test_a_host_that_is_back_without_its_worker_refuses_connections_which_is_proof(fleet: Fleet) -> None:
    workers = start(fleet, exclude_after=60.0)  # no silence would do
    gone = workers.pop(1)
    vanished = fleet.vanish(gone, unplug=False)
    fleet.heal()
    assert fleet.went_on(workers, vanished) < SOON


def test_a_host_is_cut_off_and_healed(fleet: Fleet) -> None:
    """The most senior one's, whose agent would coordinate: it blocks, and learns that it is out."""
    senior, *others = start(fleet)
    cut = fleet.lost(senior)
    assert fleet.went_on(others, cut) < SOON
    stopped_acting([senior], cut)
    return_all(fleet, [senior], 4)


def test_of_two_halves_the_one_with_the_most_senior_goes_on(fleet: Fleet) -> None:
    one, two, three, four = start(fleet)
    cut = fleet.lost(two, four)
    assert fleet.went_on([one, three], cut) < SOON
    time.sleep(0.5)
    stopped_acting([two, four], cut)
    assert two.code is None and four.code is None, "they block"
    return_all(fleet, [two, four], 4)


@pytest.mark.soak
@pytest.mark.parametrize(("place", "fault"), [(2, Network.gag), (0, Network.deafen)], ids=["mute", "deaf"])
def test_a_host_that_is_heard_or_hears_one_way_only(fleet: Fleet, place: int, fault: Callable[[Network, Host], None]) -> None:
    """Mute, it hears the others, and so learns at once that it is out. Deaf, its pings are heard, and answered until the others
    are asked to vote it out; then T_excl begins.
    """
    workers = start(fleet)
    out = workers.pop(place)
    fault(fleet.network, fleet.host_of(out))
    cut = time.monotonic()
    out.killed = cut
    assert fleet.went_on(workers, cut) < SOON
    stopped_acting([out], cut)
    return_all(fleet, [out], 4)


@pytest.mark.parametrize("ways", [1, pytest.param(2, marks=pytest.mark.soak)])
def test_a_link_between_two_living_hosts_is_cut(fleet: Fleet, ways: int) -> None:
    """Everybody lives, and no group of all can work: the junior one of the two has to go."""
    one, two, three, four = start(fleet, rejoin=False)
    first, second = fleet.host_of(two), fleet.host_of(three)
    if ways == 1:
        fleet.network.cut(first, second)
    else:
        fleet.network.split([first], [second])
    cut = time.monotonic()
    three.killed = cut
    assert fleet.went_on([one, two, four], cut) < SOON
    stopped_acting([three], cut)
    fleet.until("it learns it", lambda: three.code is not None)
    assert three.events[-1]["text"].startswith("Excluded: the other members went on without this one")
    assert "(cut off: " in one.output()


@pytest.mark.soak
def test_halves_that_one_host_connects(fleet: Fleet) -> None:
    """The third reaches everybody: the most senior stays with those that it reaches itself."""
    one, two, three, four, five = start(fleet, 5, rejoin=False)
    fleet.network.split([fleet.host_of(one), fleet.host_of(two)], [fleet.host_of(four), fleet.host_of(five)])
    cut = time.monotonic()
    four.killed = five.killed = cut
    assert fleet.went_on([one, two, three], cut) < SOON
    stopped_acting([four, five], cut)
    fleet.until("they learn it", lambda: four.code is not None and five.code is not None)


def test_a_short_cut_excludes_nobody(fleet: Fleet) -> None:
    """Connections that stood still for less than T_excl go on where they were."""
    t_excl = 12.0  # what a busy machine takes to cut and to mend comes on top
    workers = start(fleet, exclude_after=t_excl, link_timeout=t_excl)
    before = workers[0].last["epoch"]
    fleet.network.isolate(fleet.host_of(workers[1]))
    time.sleep(3.0)
    fleet.heal()
    fleet.advanced()
    fleet.training(4)
    assert workers[0].last["epoch"] == before


@pytest.mark.soak
def test_one_host_vanishes_and_a_process_is_killed_at_the_same_time(fleet: Fleet) -> None:
    """Silence and proof: three of five are a quorum whatever comes first."""
    workers = start(fleet, 5)
    vanished = fleet.vanish(workers.pop(1))
    workers.pop(1).kill()
    assert fleet.went_on(workers, vanished) < SOON


@pytest.mark.soak
@pytest.mark.parametrize("moment", [*CHANGE, *DRIVER])
def test_a_host_vanishes_in_the_middle_of_a_view_change(fleet: Fleet, moment: str) -> None:
    """Of the most senior one, which drives the change that removes the host that vanished before."""
    driver, gone, *others = fleet.found(5, first={"kill_at": f"later {moment}", "silently": True})
    fleet.training(5)
    fleet.until("it has made ten steps", lambda: len(driver.calls) > 10)
    fleet.vanish(gone)
    fleet.until("the driver's host vanishes too", lambda: driver.code is not None)
    assert driver.code == -signal.SIGKILL
    driver.killed = driver.ended
    assert fleet.went_on(others, driver.ended) < SOON


@pytest.mark.soak
@pytest.mark.parametrize("moment", JOINER)
def test_a_host_vanishes_while_its_worker_joins(fleet: Fleet, moment: str) -> None:
    members = start(fleet, 3)
    joiner = fleet.join(kill_at=moment, silently=True)
    fleet.until("the joiner's host vanishes", lambda: joiner.code is not None)
    joiner.killed = joiner.ended
    assert fleet.went_on(members, joiner.ended) < SOON


@pytest.mark.soak
def test_a_donor_vanishes_in_the_middle_of_a_transfer_of_state(fleet: Fleet) -> None:
    """32 MB for the joiner, from several donors: it takes the rest from those that are left."""
    large = {"sizes": [8_000_000], "digest": True, "pause": 0.0, "settings": {"bucket_mb": 16}}
    donors = fleet.found(4, **large)
    fleet.training(4)
    joiner = fleet.join(**large)
    fleet.until("it is let in", lambda: donors[0].last["size"] == 5 or "size 4 -> 5" in donors[0].output())
    vanished = fleet.vanish(donors[3])
    fleet.went_on([*donors[:3], joiner], vanished, 40.0)


@needs_delay
@pytest.mark.parametrize(("size", "seconds"), [(3, 2.0), pytest.param(4, 60.0, marks=pytest.mark.soak)])
def test_loss_and_delay_exclude_nobody(nursery: Nursery, tmp_path: Path, size: int, seconds: float) -> None:
    """5 % of all packets are lost each way, the others take 15 to 25 ms and overtake each other.

    All settings are defaults but for the time of silence, since the machine is busy, too.
    """
    network, patient = Network(size, delay=0.02, jitter=0.005), {"exclude_after": 12.0}
    with network, Fleet(tmp_path, network, nursery, sizes=[300], pause=0.004, settings=patient) as fleet:
        network.degrade(0.05)
        workers = fleet.found(size)
        fleet.training(size)
        time.sleep(seconds)
        fleet.training(size)
        assert all(line["epoch"] == 1 for worker in workers for line in worker.calls), "nobody was excluded"
        gone = workers.pop(0)
        killed = gone.kill()
        fleet.went_on(workers, killed)
        verdict = Verdict()
        verdict.check(fleet.workers)
        assert not [*verdict.violations, *fleet.faults()]
