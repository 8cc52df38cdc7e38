"""Histories that hypothesis writes, and shrinks when one goes wrong. The checkers are on all the time."""

from __future__ import annotations

from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule, run_state_machine_as_test

from consensus.simulation import Host, World

from .judgement import judge, living, settled

INDEX = st.integers(0, 31)
MOMENTS = st.sampled_from([0.0005, 0.003, 0.01, 0.05, 0.3, 1.0, 2.2])


class AnyHistory(RuleBasedStateMachine):
    """Processes and links misbehave as they like; afterwards the network heals and the living must agree, or block rightly."""

    @initialize(size=st.sampled_from([1, 2, 3, 4, 5]), seed=st.integers(0, 2**16), fences=st.booleans())
    def begin(self, size: int, seed: int, fences: bool) -> None:
        self.world = World(seed, fences=fences)
        self.world.cluster(size)

    def pick(self, index: int) -> Host:
        hosts = living(self.world)
        return hosts[index % len(hosts)]

    @rule(seconds=MOMENTS)
    def advance(self, seconds: float) -> None:
        self.world.run(seconds)

    @precondition(lambda self: len(self.world.hosts) < 9 and bool(living(self.world)))
    @rule()
    def start(self) -> None:
        names = tuple(host.name for host in living(self.world)[:3])
        self.world.start(f"j{len(self.world.hosts)}", introducers=names)

    @precondition(lambda self: len(living(self.world)) > 1)
    @rule(index=INDEX)
    def kill(self, index: int) -> None:
        self.world.kill(self.pick(index))

    @precondition(lambda self: bool(living(self.world)))
    @rule(index=INDEX)
    def restart(self, index: int) -> None:
        """The process dies, and another takes its address."""
        if len(self.world.hosts) < 9:
            old = self.pick(index)
            others = tuple(dict.fromkeys(host.name for host in living(self.world) if host is not old))
            self.world.kill(old)
            if others:
                self.world.start(old.name + "'", introducers=others[:3], port=old.machine.member.port)

    @precondition(lambda self: bool(living(self.world)))
    @rule(index=INDEX)
    def pause_or_resume(self, index: int) -> None:
        host = self.pick(index)
        if host.paused:
            self.world.resume(host)
        else:
            self.world.pause(host)

    @precondition(lambda self: len(living(self.world)) > 1)
    @rule(one=INDEX, other=INDEX, both=st.booleans())
    def cut(self, one: int, other: int, both: bool) -> None:
        first, second = self.pick(one).id, self.pick(other).id
        if first != second:
            self.world.faults.cut.add((first, second))
            if both:
                self.world.faults.cut.add((second, first))

    @rule()
    def heal(self) -> None:
        self.world.faults.heal()

    @rule(loss=st.sampled_from([0.05, 0.3, 0.6]), strange=st.booleans())
    def loss(self, loss: float, strange: bool) -> None:
        self.world.faults.loss = loss
        if strange:
            self.world.faults.duplication = self.world.faults.reordering = 0.1

    @precondition(lambda self: bool(living(self.world)))
    @rule(index=INDEX)
    def leave(self, index: int) -> None:
        host = self.pick(index)
        self.world.inside(host, lambda: host.machine.leave(None, self.world.now))

    @precondition(lambda self: bool(living(self.world)))
    @rule(index=INDEX)
    def data_plane_fails(self, index: int) -> None:
        host = self.pick(index)
        self.world.inside(host, lambda: host.machine.hint((), self.world.now))

    def teardown(self) -> None:
        if hasattr(self, "world"):
            judge(self.world)


def test_any_history() -> None:
    """Derandomized: the same histories each time, so that a failure is a change of the code, not luck."""
    run_state_machine_as_test(
        AnyHistory,
        settings=settings(
            max_examples=120,
            stateful_step_count=20,
            derandomize=True,
            database=None,
            deadline=None,
            phases=[Phase.generate],  # shrinking takes minutes; add Phase.shrink to look closer
            suppress_health_check=list(HealthCheck),
        ),
    )


@settings(max_examples=25, derandomize=True, database=None, deadline=None, phases=[Phase.generate])
@given(
    size=st.integers(1, 8),
    seed=st.integers(0, 2**16),
    loss=st.sampled_from([0.0, 0.1, 0.3]),
    joiners=st.integers(0, 3),
    dead=st.integers(0, 3),
)
def test_membership_converges(size: int, seed: int, loss: float, joiners: int, dead: int) -> None:
    """Whoever joins, and whoever dies by less than half: all end up in one view of the living, in the order of admission."""
    world = World(seed)
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
