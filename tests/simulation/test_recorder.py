"""What the recorder keeps of a run."""

from __future__ import annotations

import pytest

from consensus.messages import Ping
from consensus.simulation import Host, World, judged
from consensus.simulation.transcript.recorder import Activity, Cover, Mark, ProcessSpan, Recorder


@pytest.fixture
def watched() -> tuple[World, Recorder, list[Host]]:
    world, recorder = judged(World(1)), Recorder()
    world.observe(recorder)
    hosts = world.cluster(4)
    world.run(0.6)
    return world, recorder, hosts


def covers(life: ProcessSpan, cover: Cover) -> list[tuple[float, float | None]]:
    return [(span.start, span.end) for kind, span in life.covers if kind is cover]


def test_a_killed_member_and_the_view_without_it(watched: tuple[World, Recorder, list[Host]]) -> None:
    world, recorder, hosts = watched
    at = recorder.time
    world.kill(hosts[2])
    world.run(1.0)
    recorder.close()
    dead, alive = recorder.lifetimes[hosts[2].id], recorder.lifetimes[hosts[1].id]
    assert dead.marks == [(Mark.KILLED, at)]
    assert dead.over == dead.phases[-1][1].end == at
    assert [phase for phase, _ in alive.phases] == [Activity.SEARCHING, Activity.ACTIVE, Activity.FROZEN, Activity.ACTIVE]
    ends = [span.end for _, span in alive.phases]
    assert ends[:-1] == [span.start for _, span in alive.phases[1:]]
    assert ends[-1] == recorder.time
    first, second = recorder.views.values()
    assert (first.cause, first.active_at, second.cause, second.active_at) == ("founded", 4, "proof", 3)
    assert second.removed == {"m2": ("proof", "connection refused by its host")}
    assert at < second.first <= second.last < at + 0.05
    assert 0.005 < second.seconds < 0.05
    assert not recorder.living_excluded


def test_a_pause_is_suspected_and_ends_in_exclusion(watched: tuple[World, Recorder, list[Host]]) -> None:
    world, recorder, hosts = watched
    at = recorder.time
    world.pause(hosts[3])
    world.run(4.0)
    back = recorder.time
    world.resume(hosts[3])
    world.run(1.0)
    recorder.close()
    life = recorder.lifetimes[hosts[3].id]
    assert covers(life, Cover.PAUSED) == [(at, back)]
    ((suspected, end),) = covers(life, Cover.SUSPECTED)
    ((distrusted, _),) = covers(life, Cover.DISTRUSTED)
    assert at < suspected <= distrusted < at + 1.5
    assert end is not None and end < back, "not any more once it is out"
    assert [mark for mark, _ in life.marks] == [Mark.EXCLUDED]
    assert life.phases[-1][0] is Activity.STOPPED
    assert recorder.living_excluded == [("m3", 2)]


def test_who_is_cut_off_joins_and_leaves(watched: tuple[World, Recorder, list[Host]]) -> None:
    world, recorder, hosts = watched
    world.isolate([hosts[0]], hosts[1:])
    at = recorder.time
    recorder.sample()
    world.run(0.3)
    world.faults.heal()
    recorder.sample()
    assert covers(recorder.lifetimes[hosts[0].id], Cover.CUT_OFF) == [(at, recorder.time)]
    assert not covers(recorder.lifetimes[hosts[1].id], Cover.CUT_OFF), "it has lost one of three"
    joiner = world.start("j0", introducers=("m1",))
    world.run_until(lambda: bool(joiner.activated), 5.0)
    world.inside(hosts[1], hosts[1].leave)
    world.run(1.0)
    assert [mark for mark, _ in recorder.lifetimes[joiner.id].marks] == [Mark.JOINED]
    assert [mark for mark, _ in recorder.lifetimes[hosts[1].id].marks] == [Mark.LEFT]
    assert list(recorder.views.values())[-1].removed == {"m1": ("left", "asked to leave")}


def test_messages_are_counted_and_weighed(watched: tuple[World, Recorder, list[Host]]) -> None:
    world, recorder, hosts = watched
    assert sum(recorder.messages().values()) == world.messages
    lengths = [len(world.network.codec.encode(envelope)) for envelope in _pings(world, hosts[0])]
    assert min(lengths) * 0.7 < recorder.length("Ping") < max(lengths) * 1.5
    assert recorder.bytes_sent(hosts[0].id) > recorder.sent_by[hosts[0].id]["Ping"] * min(lengths) * 0.7


def _pings(world: World, host: Host) -> list[object]:
    from consensus.messages import Envelope

    view = host.activated[-1]
    ping = Ping(1 << 20, view.ids[1], view.epoch, view.view_id)
    return [Envelope(world.config.job, host.id, host.member.address, ping)]
