"""Histories that hypothesis writes, with every fault there is, and shrinks to a short script when one goes wrong."""

from __future__ import annotations

from collections.abc import Callable
from typing import ClassVar

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule, run_state_machine_as_test

from consensus.simulation import Scenario, World, judged, living, play, settled
from consensus.simulation.script.commands import COMMANDS
from tests.conftest import FUZZ
from tests.simulation.diary import Diary, source
from tests.simulation.planted.test_ballots import round_zero_for_all
from tests.simulation.planted.test_installs import reports_of_a_quorum
from tests.simulation.planted.test_leases import no_lease

INDEX = st.integers(0, 15)
MOMENTS = st.sampled_from([0.0005, 0.003, 0.01, 0.05, 0.3, 1.0, 2.2])
KINDS = st.sampled_from(["Accept", "Accepted", "Install", "Prepare", "Promise", "Ready", "Activate", "FlushRequest", "Chosen"])
MOST = 9
"""Processes of one history."""


class AnyHistory(RuleBasedStateMachine):
    """Processes, links and clocks misbehave as they like; then all is healed, and the living must agree, or block rightly.

    Every rule does one thing that a script can say (``consensus.simulation.script.commands``), or lets time pass.
    """

    last: ClassVar[Diary]
    """Of the history played last: the shrunk one, where one failed."""
    played: ClassVar[set[str]] = set()
    """Commands of all histories."""

    @initialize(
        size=st.sampled_from([1, 2, 3, 4, 5]),
        seed=st.integers(0, 2**16),
        fences=st.booleans(),
        firewalled=st.booleans(),
        drift=st.sampled_from([0.0, 0.9]),
    )
    def begin(self, size: int, seed: int, fences: bool, firewalled: bool, drift: float) -> None:
        skew = 1000.0 if drift else 0.0
        self.firewalled = firewalled
        beginning = Scenario(seed, size, fences, not firewalled, skew=skew, drift=drift)
        self.diary = AnyHistory.last = Diary(beginning)

    def names(self) -> list[str]:
        """Of the living, each at its place; a job that is all gone has one name, so that nothing happens."""
        return list(dict.fromkeys(host.name for host in living(self.diary.world))) or ["m0"]

    def pick(self, index: int) -> str:
        names = self.names()
        return names[index % len(names)]

    def room(self) -> bool:
        return len(self.diary.world.hosts) < MOST

    @rule(seconds=MOMENTS)
    def wait(self, seconds: float) -> None:
        self.diary.wait(seconds)

    # Membership

    @precondition(lambda self: self.room())
    @rule()
    def start(self) -> None:
        self.diary.do("start", f"j{len(self.diary.world.hosts)}", *self.names()[:3])

    @rule(index=INDEX)
    def leave(self, index: int) -> None:
        self.diary.do("leave", self.pick(index))

    @rule(index=INDEX, blames=st.lists(INDEX, max_size=2))
    def hint(self, index: int, blames: list[int]) -> None:
        self.diary.do("hint", self.pick(index), *dict.fromkeys(self.pick(each) for each in blames))

    # Processes

    @rule(victims=st.lists(INDEX, min_size=1, max_size=3))
    def kill(self, victims: list[int]) -> None:
        self.diary.do("kill", *dict.fromkeys(self.pick(each) for each in victims))

    @rule(victims=st.lists(INDEX, min_size=1, max_size=3))
    def bereave(self, victims: list[int]) -> None:
        self.diary.do("bereave", *dict.fromkeys(self.pick(each) for each in victims))

    @precondition(lambda self: self.room() and len(self.names()) > 1)
    @rule(index=INDEX)
    def restart(self, index: int) -> None:
        name = self.pick(index)
        self.diary.do("restart", name, *[other for other in self.names() if other != name][:3])

    @rule(index=INDEX)
    def pause_or_resume(self, index: int) -> None:
        name = self.pick(index)
        host = self.diary.world.find(name)
        self.diary.do("resume" if host is not None and host.paused else "pause", name)

    @rule(index=INDEX, seconds=st.sampled_from([0.1, 0.6, 1.5, 2.5]))
    def stall(self, index: int, seconds: float) -> None:
        self.diary.do("stall", self.pick(index), seconds)

    @rule(kind=KINDS, count=st.integers(1, 6), when=st.sampled_from(["before", "after"]))
    def trap(self, kind: str, count: int, when: str) -> None:
        self.diary.do("trap", "any", kind, count, when)

    # Links

    @rule(one=INDEX, other=INDEX, both=st.booleans())
    def cut(self, one: int, other: int, both: bool) -> None:
        first, second = self.pick(one), self.pick(other)
        if first != second:
            self.diary.do("cut", first, second)
            if both:
                self.diary.do("cut", second, first)

    @rule(groups=st.lists(st.integers(0, 2), min_size=MOST, max_size=MOST))
    def split(self, groups: list[int]) -> None:
        """Into up to three; who is in none reaches all."""
        names = self.names()
        sides = [[name for name, group in zip(names, groups, strict=False) if group == side] for side in (0, 1)]
        if all(sides):
            self.diary.do("split", *(",".join(side) for side in sides))

    @rule(index=INDEX)
    def isolate(self, index: int) -> None:
        self.diary.do("isolate", self.pick(index))

    @rule(index=INDEX)
    def rejoin(self, index: int) -> None:
        self.diary.do("rejoin", self.pick(index))

    @rule()
    def heal(self) -> None:
        self.diary.do("heal")

    @rule(index=INDEX, back=st.booleans())
    def clog(self, index: int, back: bool) -> None:
        self.diary.do("unclog" if back else "clog", self.pick(index))

    @precondition(lambda self: self.firewalled)
    @rule(one=INDEX, other=INDEX)
    def refuse(self, one: int, other: int) -> None:
        if self.pick(one) != self.pick(other):
            self.diary.do("refuse", self.pick(one), self.pick(other))

    # Messages

    @rule(loss=st.sampled_from([0.05, 0.3, 0.6]))
    def loss(self, loss: float) -> None:
        self.diary.do("loss", loss)

    @rule(one=INDEX, other=INDEX, loss=st.sampled_from([0.3, 0.8]))
    def lossy(self, one: int, other: int, loss: float) -> None:
        first, second = self.pick(one), self.pick(other)
        if first == second:
            self.diary.do("lossy", first, loss)
        else:
            self.diary.do("lossy_link", first, second, loss)

    @rule(
        share=st.sampled_from([0.1, 0.5]), what=st.sampled_from(["duplication", "reordering 0.2", "reordering 2", "replay 8"])
    )
    def strange(self, share: float, what: str) -> None:
        command, *more = what.split()
        self.diary.do(command, share, *more)

    @rule(index=INDEX, seconds=st.sampled_from([0.05, 0.4]))
    def slow(self, index: int, seconds: float) -> None:
        self.diary.do("slow", self.pick(index), seconds)

    @rule(spread=st.sampled_from(["exponential 0.001 0.02", "heavy 0.0005 0.002", "uniform 0.05 0.1"]))
    def latency(self, spread: str) -> None:
        self.diary.do("latency", *spread.split())

    @rule(index=INDEX)
    def jump(self, index: int) -> None:
        """By less than the drift leaves over."""
        self.diary.do("jump", self.pick(index), 0.02)

    def teardown(self) -> None:
        if hasattr(self, "diary"):
            AnyHistory.played.update(event.command for event in self.diary.scenario.events)
            self.diary.end()


ALIKE = settings.get_current_profile_name() != FUZZ
"""Whether the same histories are played each time, so that a failure is a change of the code, not luck."""
SEARCH = settings(
    max_examples=120,  # hypothesis draws from the constants of our modules, too: enough for every fault whatever the code says
    stateful_step_count=20,
    derandomize=ALIKE,
    database=None,
    deadline=None,
    report_multiple_bugs=False,
    phases=[Phase.generate, Phase.shrink],  # the latter costs nothing while nothing fails
    suppress_health_check=list(HealthCheck),
)


@pytest.mark.hypothesis  # as those with ``given`` are: make fuzz plays it
@pytest.mark.timeout(900)  # a violation is shrunk, which takes minutes
def test_any_history() -> None:
    """Every promise holds in each; and every fault is in one of them, or this would say little."""
    AnyHistory.played.clear()
    run_state_machine_as_test(AnyHistory, settings=SEARCH)
    if ALIKE:
        # of a store see test_random_storage
        assert AnyHistory.played == {command for command in COMMANDS if not command.startswith("store_")}


@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    ("bug", "most"),
    [
        (round_zero_for_all, 2),
        (reports_of_a_quorum, 3),
        pytest.param(no_lease, 3, marks=pytest.mark.soak),  # longer to find
    ],
    ids=lambda each: getattr(each, "__name__", each),
)
def test_a_violation_is_shrunk_to_a_short_script(bug: Callable[[pytest.MonkeyPatch], None], most: int) -> None:
    """With a bug planted hypothesis finds a history, and shrinks it to at most ``most`` events that fail alike as a script."""
    with pytest.MonkeyPatch.context() as patch:
        bug(patch)
        with pytest.raises(AssertionError) as found:
            run_state_machine_as_test(AnyHistory, settings=settings(SEARCH, max_examples=1000, derandomize=True))
        script = AnyHistory.last.scenario
        assert 0 < len(script.events) <= most, str(script)
        again = play(Scenario.parse(str(script)))
        assert again.violation.split("\n")[0] == str(found.value).split("\n")[0], "the script is the history"
        assert source(script).split('"""')[1].strip() == str(script)
        assert any("paste this into tests/transcripts" in note for note in getattr(found.value, "__notes__", ()))
    assert play(script).good, "and it is the bug's"


def test_the_source_of_a_script_is_a_test() -> None:
    scenario = Scenario.parse("seed=1 size=3\n0.5 kill m1")
    space: dict[str, object] = {"Scenario": Scenario, "play": play}
    exec(source(scenario, "it_runs"), space)
    space["test_it_runs"]()  # type: ignore[operator]
    assert "0.5 kill m1" in str(space["HISTORY"])


@settings(max_examples=25, derandomize=ALIKE, database=None, deadline=None, phases=[Phase.generate])
@given(
    size=st.integers(1, 8),
    seed=st.integers(0, 2**16),
    loss=st.sampled_from([0.0, 0.1, 0.3]),
    joiners=st.integers(0, 3),
    dead=st.integers(0, 3),
)
def test_membership_converges(size: int, seed: int, loss: float, joiners: int, dead: int) -> None:
    """Whoever joins, and whoever dies by less than half: all end up in one view of the living, in the order of admission."""
    world = judged(World(seed))
    world.cluster(size)
    world.run(1.0)
    before = next(iter(world.hosts.values())).activated[-1].ids
    world.faults.loss = loss
    introducers = tuple(host.name for host in living(world))
    for index in range(joiners):
        world.start(f"j{index}", introducers=introducers)
    for host in living(world)[: min(dead, (size - 1) // 2)]:
        world.kill(host)
    world.run_until(lambda: settled(world), 30.0)
    view = living(world)[0].activated[-1]
    kept = [key for key in before if world.hosts[key] in living(world)]
    assert list(view.ids[: len(kept)]) == kept, "survivors keep their order, joiners come last"
    world.faults.loss = 0.0
    world.run(3.0)
    assert settled(world), "and stay there"
