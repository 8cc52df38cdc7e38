"""What planes that take their time brought to light: words that come after they stopped to matter."""

from __future__ import annotations

from consensus.border import Flushed, Freeze, Order
from consensus.messages import Accept, Accepted, Chosen, FlushRequest, Install, Message, Ping, Promise
from consensus.simulation import Host, StubPlane, World, judged


class Slow(StubPlane):
    """Gives its report half a second late."""

    def handle(self, order: Order) -> None:
        if isinstance(order, Freeze):
            self._host.after(0.5, lambda: super(Slow, self).handle(order))
        else:
            super().handle(order)


def test_what_the_dead_chose_is_no_fork() -> None:
    """The most senior of two is a quorum. What it chose dies with it; its last pings still tell of that view."""
    world = judged(World(1))
    senior, other = world.cluster(2)
    world.run(0.6)
    pinged: list[Message] = []

    def watch(host: Host, message: Message) -> bool:
        if host is senior and isinstance(message, Ping) and message.epoch == 2:
            pinged.append(message)
        return not isinstance(message, (Accept, FlushRequest, Install, Chosen))

    world.watch = watch
    world.faults.slow[senior.id] = 0.2
    world.inside(senior, lambda: senior.fail(()))
    world.run_until(lambda: bool(pinged), 1.0)
    world.kill(senior)
    world.run_until(lambda: other.activated[-1].ids == (other.id,), 0.1)
    assert other.activated[-1].epoch == 2
    world.run(1.0)  # the ping arrives
    assert not [note for note in other.notes if note[1] == "fork"]


def test_a_vote_waits_for_the_report_though_a_promise_does_not() -> None:
    """The coordinator dies in a change; its successor is promised to before the old vote is sent. That vote was cast before."""
    world = judged(World(2, plane=Slow))
    hosts = world.cluster(4)
    world.run(0.6)
    said: list[tuple[str, str, int]] = []

    def watch(host: Host, message: Message) -> bool:
        if isinstance(message, (Promise, Accepted)):
            said.append((host.name, type(message).__name__, message.ballot[0]))
        return True

    world.watch = watch
    world.kill(hosts[2])
    world.run(0.1)
    world.kill(hosts[0])
    world.run_until(lambda: all(len(host.activated[-1]) == 2 for host in (hosts[1], hosts[3])), 10.0)
    voter = next(name for name, kind, _ in said if kind == "Promise")
    assert said.index((voter, "Promise", 1)) < said.index((voter, "Accepted", 0))


def test_a_report_of_an_older_epoch_is_not_kept() -> None:
    world = judged(World(3, plane=Slow))
    hosts = world.cluster(3)
    world.run(0.6)
    host = hosts[1]
    world.inside(host, lambda: host.fail(()))
    world.run_until(lambda: host.activated[-1].epoch == 2, 5.0)
    world.inside(host, lambda: host.machine.handle(Flushed(1, b"late"), host.now))
    assert host.machine._change.voter.report(1) is None
    assert host.machine._change.voter.report(2) is not None
