"""How often the sampler looks at whom, in virtual time: it shares the processors with the training."""

from __future__ import annotations

import asyncio
import itertools
import json
from collections import defaultdict
from collections.abc import Callable, Mapping
from typing import Any

import pytest

from ftlib.dashboard.watch import Sources, Viewer, Watch
from ftlib.errors import FTLibError

from .statuses import member_id, status
from .virtual import run

FIRST, SECOND, THIRD = (member_id(number) for number in range(3))


class Job:
    """Three members with 4 steps a second, seen by their agent 0 (or from outside); notes who is asked when."""

    def __init__(self, *, inside: bool, size: int = 3) -> None:
        self.epoch = 4
        self.size = size
        self.change: Callable[[dict[str, Any]], None] = lambda _found: None
        """What is odd about a status of now."""
        self.looked: list[float] = []
        """When the first member was looked at."""
        self.asked: dict[str, list[float]] = defaultdict(list)
        """When each other member was asked."""
        self.page: dict[str, Any] = {}
        """As a viewer sees it now."""
        self.silent = ""
        """Why nobody answers, as the page says; empty while it does not say so."""
        self.launcher: list[float] = []
        """When the launcher was asked."""
        one = {"own": self._own, "place": lambda: self.epoch, "asked": 2} if inside else {}
        self.sought: list[str] = []
        """Where the launcher says that workers are."""
        sources = Sources(self._fetch, self._restarts, lambda: self.sought, **one)
        self.watch = Watch("" if inside else "127.0.0.1:7000", sources)
        viewer = self.watch.enter(0)
        assert viewer is not None
        self._reading = asyncio.create_task(self._read(viewer))

    async def passes(self, seconds: float) -> None:
        """Let so much time pass; what was noted before is forgotten."""
        self.looked.clear()
        self.asked.clear()
        self.launcher.clear()
        await asyncio.sleep(seconds)

    async def close(self) -> None:
        await self.watch.close()
        await self._reading

    def _restarts(self, _job: str) -> int:
        self.launcher.append(asyncio.get_running_loop().time())
        return 3

    async def _own(self) -> Mapping[str, Any]:
        return self._status(0)

    def _fetch(self, address: str, _timeout: float) -> dict[str, Any]:
        return self._status(int(address.rpartition(":")[2]) - 7000)

    def _status(self, number: int) -> dict[str, Any]:
        now = asyncio.get_running_loop().time()
        self.asked[member_id(number)].append(now) if number else self.looked.append(now)
        found = status(number, size=self.size, epoch=self.epoch, step=int(4 * now))
        self.change(found)
        return found

    async def _read(self, viewer: Viewer) -> None:
        while (text := await viewer.events.get()) is not None:
            head, _, data = text.partition("\ndata: ")
            told = json.loads(data)
            self.silent = told["why"] if head.endswith("silent") else "" if not head.endswith("changes") else self.silent
            if head.endswith("snapshot"):
                self.page = told
            elif head.endswith("patch"):
                self.page.update(told.get("facts", {}))
                for member, row in told.get("rows", {}).items():
                    self.page["rows"].setdefault(member, {}).update(row)


def gaps(moments: list[float]) -> set[float]:
    """The times between them, in hundredths of a second."""
    assert len(moments) > 2, moments
    return {round(later - sooner, 2) for sooner, later in itertools.pairwise(moments)}


def suspected(found: dict[str, Any]) -> None:
    """The third member does not answer pings."""
    found["members"][2]["status"] = "suspect"


def under_way(found: dict[str, Any]) -> None:
    found["changing"] = True


def stands_still(found: dict[str, Any]) -> None:
    """Its answers do not differ."""
    found["ftlib"].update(step=7, finished_calls=7)


def gone(_found: dict[str, Any]) -> None:
    raise FTLibError("nobody answers")


def unreadable(found: dict[str, Any]) -> None:
    found["history"] = [{"size": 3}]


def test_an_agent_looks_once_a_second_while_all_are_well() -> None:
    async def main() -> None:
        job = Job(inside=True)
        await job.passes(10.0)
        await job.passes(30.0)
        assert gaps(job.looked) == {1.0}
        assert set(job.asked) == {SECOND, THIRD}
        assert [gaps(each) for each in job.asked.values()] == [{5.0}, {5.0}]
        await job.close()

    run(main())


@pytest.mark.parametrize(("odd", "third"), [(suspected, 1.2), (under_way, 5.4)])
def test_an_agent_looks_more_often_while_somebody_is_in_trouble(odd: Callable[[dict[str, Any]], None], third: float) -> None:
    """And asks that one more often; who is well is left alone."""

    async def main() -> None:
        job = Job(inside=True)
        await job.passes(10.0)
        job.change = odd
        await job.passes(10.0)
        await job.passes(30.0)
        assert gaps(job.looked) == {0.6}
        assert gaps(job.asked[THIRD]) == {third}
        assert gaps(job.asked[SECOND]) == {5.4}
        await job.close()

    run(main())


@pytest.mark.parametrize("after", [0.01, 0.25, 0.5, 0.93])
def test_an_agent_shows_a_new_view_within_a_fifth_of_a_second(after: float) -> None:
    """However long ago its last look was."""

    async def main() -> None:
        loop = asyncio.get_running_loop()
        job = Job(inside=True)
        await job.passes(10.0)
        await job.passes(after)
        began = loop.time()
        job.epoch = 5
        while job.page["epoch"] != 5:
            await asyncio.sleep(0.005)
        assert loop.time() - began <= 0.17
        await job.close()

    run(main())


@pytest.mark.parametrize("lasts", [0.05, 30.0])
def test_whoever_recovers_has_the_processors_first(lasts: float) -> None:
    """A short view change is looked at once it is over, a long one while it lasts, too."""

    async def main() -> None:
        loop = asyncio.get_running_loop()
        job = Job(inside=True)
        await job.passes(10.0)
        await job.passes(0.2)
        job.looked.clear()
        began = loop.time()
        job.epoch = 5  # which is known, and does not act yet
        loop.call_later(lasts, setattr, job, "epoch", 6)
        await asyncio.sleep(0.3)
        assert len(job.looked) == 1
        over = lasts < 1.0
        assert lasts * over + 0.05 < job.looked[0] - began <= 0.23
        assert job.page["epoch"] == (6 if over else 5)
        await job.close()

    run(main())


def test_who_looks_from_outside_asks_one_member_four_times_a_second() -> None:
    async def main() -> None:
        job = Job(inside=False)
        await job.passes(10.0)
        await job.passes(30.0)
        assert gaps(job.looked) == {0.25}
        assert [gaps(each) for each in job.asked.values()] == [{5.0}, {5.0}]
        job.change = suspected
        await job.passes(10.0)
        await job.passes(30.0)
        assert gaps(job.asked[THIRD]) == {1.0}
        assert gaps(job.asked[SECOND]) == {5.0}
        await job.close()

    run(main())


def test_the_launcher_is_asked_every_ten_seconds_and_once_the_view_has_changed() -> None:
    async def main() -> None:
        job = Job(inside=True)
        await job.passes(5.0)
        await job.passes(60.0)
        assert gaps(job.launcher) == {10.0}
        await job.passes(5.5)
        job.epoch = 5
        await job.passes(0.2)
        assert len(job.launcher) == 1
        await job.close()

    run(main())


def test_an_answer_that_is_long_under_way_is_not_asked_for_again() -> None:
    async def main() -> None:
        job = Job(inside=True)
        job.change = suspected
        await job.passes(10.0)
        await job.passes(60.0)
        assert 1.9 <= min(gaps(job.asked[THIRD])) <= max(gaps(job.asked[THIRD])) <= 4.8, "once it has come and there is a place"
        await job.close()

    run(main(), away=1.9)


def test_a_call_that_lasts_is_shown_between_two_questions() -> None:
    """By its pings the member is still in it. What it said last would else be gone after 1.5 s, until it is asked again."""

    async def main() -> None:
        began = asyncio.get_running_loop().time()

        def stuck(found: dict[str, Any]) -> None:
            seconds = asyncio.get_running_loop().time() - began
            found["ftlib"]["in_call"] = {"number": 11, "seconds": seconds}
            for peer in found["ftlib"]["peers"].values():
                peer.update(current=11, seconds=seconds)

        job = Job(inside=True)
        job.change = stuck
        await job.passes(5.0)
        for _ in range(60):
            await job.passes(0.1)
            call = job.page["rows"][THIRD]["call"]
            assert call is not None
            assert 0 <= asyncio.get_running_loop().time() - began - call["seconds"] < 2.1
        job.change = lambda _found: None
        await job.passes(1.2)
        assert job.page["rows"][THIRD]["call"] is None, "its pings say that it is over"
        await job.close()

    run(main())


def test_the_steps_a_second_are_not_mistaken() -> None:
    """Members are looked at more often than they answer: what they said counts from when they said it."""

    async def main() -> None:
        job = Job(inside=True)
        await job.passes(4.0)
        for _ in range(100):
            await job.passes(0.1)
            assert job.page["rate"] == pytest.approx(4.0, abs=0.5)
        await job.close()

    run(main())


@pytest.mark.parametrize("inside", [True, False])
@pytest.mark.parametrize(
    ("odd", "why"), [(gone, "nobody answers"), (unreadable, "a status cannot be read (KeyError: 'epoch')")]
)
def test_a_page_says_that_nobody_answers_until_somebody_does(
    odd: Callable[[dict[str, Any]], None], why: str, *, inside: bool
) -> None:
    """Also where the answers are the same as before."""

    async def main() -> None:
        job = Job(inside=inside, size=1)
        job.change = stands_still
        await job.passes(20.0)
        assert job.silent == ""
        job.change = odd
        await job.passes(3.0)
        assert why in job.silent
        job.change = stands_still
        await job.passes(2.0)
        assert job.silent == ""
        assert job.page["step"] == 7
        await job.close()

    run(main())


@pytest.mark.parametrize("odd", [unreadable, lambda found: found["members"].append({})])
def test_another_member_is_asked_where_the_first_cannot_be_understood(odd: Callable[[dict[str, Any]], None]) -> None:
    async def main() -> None:
        job = Job(inside=False)
        await job.passes(5.0)
        job.change = lambda found: odd(found) if found["member"] == FIRST else None
        await job.passes(5.0)
        assert job.silent == ""
        assert job.page["asked"] in (SECOND, THIRD)
        await job.close()

    run(main())


def test_members_that_drop_packets_are_asked_at_once() -> None:
    """Each costs two seconds: one after the other they would keep the page still for as many times that."""

    def dead(found: dict[str, Any]) -> None:
        if found["address"] != "127.0.0.1:7055":
            raise FTLibError("no answer within 2 s")

    async def main() -> None:
        job = Job(inside=False, size=40)
        await job.passes(20.0)
        job.change = dead
        await job.passes(8.0)
        assert job.silent == "no answer within 2 s"
        job.sought, job.size = ["127.0.0.1:7055"], 60
        await job.passes(16.0)
        assert job.page["asked"] == member_id(55)
        await job.close()

    run(main(), away=2.0)


def test_a_member_whose_answer_raises_is_asked_again() -> None:
    def broken(found: dict[str, Any]) -> None:
        if found["member"] == THIRD:
            raise RuntimeError("too many levels")

    async def main() -> None:
        job = Job(inside=True)
        job.change = broken
        await job.passes(10.0)
        assert len(job.asked[THIRD]) > 2
        await job.close()

    run(main())


@pytest.mark.parametrize(
    "odd",
    [
        {"step": "12"},
        {"step": float("nan")},
        {"step": 10**400},
        {"in_call": "the fifth"},
        {"in_call": {"number": 5, "seconds": "long"}},
        {"recovery": {"total": [1]}},
        None,
    ],
)
def test_a_member_that_says_strange_things_of_itself_costs_no_other_row(odd: dict[str, Any] | None) -> None:
    """It has its row, too: what the one that is asked first says of it."""

    def strange(found: dict[str, Any]) -> None:
        if found["member"] == THIRD:
            found["ftlib"] = ["new"] if odd is None else found["ftlib"] | odd

    async def main() -> None:
        job = Job(inside=False)
        job.change = strange
        await job.passes(3.0)
        asked = 0
        for _ in range(10):
            await job.passes(0.7)
            asked += len(job.asked[THIRD])
            assert job.silent == ""
            steps = [job.page["rows"][each]["step"] for each in (FIRST, SECOND, THIRD)]
            now = int(4 * asyncio.get_running_loop().time())
            assert all(now - 8 <= step <= now for step in steps), steps
        assert asked
        await job.close()

    run(main())
