"""Small jobs that train, and histories that strike in the middle of their operations."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from random import Random
from typing import Any, Self

from consensus.simulation import Host, World, judged, living
from tests.simulation.data_plane import Accelerators, Ambush, Ambushes, Habits, Pace, Trainers
from tests.simulation.data_plane.cohorts import facts
from tests.simulation.data_plane.parts.accelerator import Draw


class Job:
    """A world whose processes train, and the script's hands on it."""

    def __init__(self, seed: int, size: int, *, shards: int = 1, **settings: object) -> None:
        """``size``: processes, of which so many ``shards`` make a replica each."""
        self.trainers = Trainers(seed, **settings)  # type: ignore[arg-type]
        own = {} if shards == 1 else {"facts": facts(shards)}
        self.world = judged(World(seed, plane=self.trainers.plane, **own))
        self.world.observe(self.trainers)
        self.world.observe(self.trainers.promises)
        self.hosts = self.world.cluster(size)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.trainers.close()

    def join(self, name: str) -> Host:
        return self.world.start(name, introducers=tuple(host.name for host in living(self.world)[:3]))

    def calls(self, host: Host) -> int:
        return self.trainers.processes[host.id].plane.finished

    def go_on(self, calls: int = 3, within: float = 10.0) -> None:
        """Everybody who lives finishes so many calls more."""
        before = {host.id: self.calls(host) for host in living(self.world)}

        def done() -> bool:
            return all(self.calls(host) >= before[host.id] + calls for host in living(self.world) if host.id in before)

        self.world.run_until(done, within)

    def total(self, count: str) -> int:
        """The sum of one of the counters of all data planes."""
        return sum(getattr(process.plane.counters, count) for process in self.trainers.processes.values())

    def ambush(self, moment: str, count: int, action: str, wait: float = 0.0, length: float = 0.3) -> None:
        strike = Ambush(moment, count, action, self.world.now, wait, length)
        self.world.observe(Ambushes(self.trainers, [strike], Random(self.trainers.seed)))


def torn(seed: int) -> Job:
    """Deaths right after everybody has entered an operation, so that some have its result and others not; and a joiner."""
    rng = Random(seed)
    with Job(seed, rng.choice([3, 4, 5]), compute=0.02, tensors=rng.choice([3, 5]), pace=Pace(unbuilt=0.0)) as job:
        for turn in range(3):
            if rng.random() < 0.7:
                job.join(f"j{turn}")
            job.world.run(rng.uniform(0.05, 0.6))
            moment = rng.choice(["reduced", "completed", "completed", "finished", "adopting", "loaded"])
            if len(living(job.world)) > 2:
                job.ambush(moment, rng.randint(1, 9), "kill-other", rng.uniform(0.0, 0.01))
            job.world.run(rng.uniform(0.3, 1.0))
        job.world.run(0.5)
    return job


def torn_shards(seed: int) -> Job:
    """Two or three replicas of two, and deaths when some processes hold a result, or get one, and others not; a third joins."""
    rng = Random(seed)
    count = rng.choice([2, 3])
    with Job(seed, 2 * count, shards=2, compute=0.02, tensors=rng.choice([1, 3]), pace=Pace(unbuilt=0.0)) as job:
        for turn in range(3):
            if rng.random() < 0.6:
                for shard in rng.sample(range(2), 2):
                    job.join(f"j{turn}.{shard}")
            slow = rng.choice([*living(job.world), None])
            if slow is not None:  # its results come later: its mate, and the others, have theirs by then
                job.trainers.rooms_of(job.trainers.processes[slow.id].part.shard).late[slow.id] = rng.choice([0.0, 0.03])
            job.world.run(rng.uniform(0.05, 0.6))
            if len(living(job.world)) > 4:
                moment = rng.choice(["reduced", "completed", "held", "held", "finished", "finished", "adopting", "loaded"])
                job.ambush(moment, rng.randint(1, 9), rng.choice(["kill-other", "kill-two"]), rng.uniform(0.0, 0.01))
            job.world.run(rng.uniform(0.3, 1.2))
            for host in [each for each in living(job.world) if broken(job.world, each)]:
                job.world.kill(host)
        job.world.run(0.5)
    return job


def torn_founders(seed: int) -> Job:
    """Three replicas of two that begin. The one whose initial state all get dies while they load it: in each shard others have
    it by then, and may be in their first call already, which gives it to the rest.
    """
    rng = Random(seed)
    with Job(seed, 6, shards=2, compute=0.002, tensors=1, pace=Pace(unbuilt=0.0)) as job:
        job.world.run(rng.uniform(0.02, 0.03))
        job.world.kill(rng.choice([host for host in job.hosts if job.trainers.processes[host.id].plane.level]))
        job.world.run(rng.uniform(0.5, 1.5))
        for host in [each for each in living(job.world) if broken(job.world, each)]:
            job.world.kill(host)
        job.world.run(1.0)
    return job


def torn_adoptions(seed: int) -> Job:
    """Three replicas of two. The last to get results adopts a call from the first, as the second dies; and once one of its two
    processes has the result, the donors die, too.
    """
    rng = Random(seed)
    with Job(seed, 6, shards=2, compute=0.02, tensors=rng.choice([1, 3]), pace=Pace(unbuilt=0.0)) as job:
        job.world.run(rng.uniform(0.4, 0.8))
        donors, others, behind = job.hosts[:2], job.hosts[2:4], job.hosts[4:]
        for host in behind:
            job.trainers.rooms_of(job.trainers.processes[host.id].part.shard).late[host.id] = 0.2

        def strike(host: Host, moment: str) -> None:
            if moment != "finished":
                return
            if host in donors and others[0].alive and all(job.calls(each) < job.calls(host) for each in behind):
                job.world.kill(rng.choice(others))
            elif host in behind and donors[0].alive and job.trainers.processes[host.id].plane.session.donor is not None:
                for donor in donors:
                    job.world.kill(donor)

        job.trainers.on_moment = strike
        job.world.run(6.0)
    return job


def local_shards(seed: int) -> Job:
    """Two or three replicas of two in rounds of private steps; another joins in one, process by process. Deaths meanwhile."""
    rng = Random(seed)
    return _locally(seed, rng, inner=5)


def mixed_shards(seed: int) -> Job:
    """As ``local_shards``, without private state: programs of several kinds of calls that catch up where their loop begins."""
    rng = Random(seed)
    habits = Habits(program=rng.choice(["XL", "XXL", "XYL", "XLB"]), catches_up=True, reorder=0, heavy=0.0)
    return _locally(seed, rng, habits=habits)


def _locally(seed: int, rng: Random, **more: Any) -> Job:
    count = rng.choice([2, 3])
    settings = {"compute": 0.03, "tensors": rng.choice([1, 3]), "pace": Pace(unbuilt=0.0), **more}
    with Job(seed, 2 * count, shards=2, **settings) as job:
        for turn in range(4):
            if not living(job.world):
                break  # whoever comes now begins another job
            if rng.random() < 0.8:
                for shard in rng.sample(range(2), 2):
                    job.join(f"j{turn}.{shard}")
                    job.world.run(rng.choice([0.0, rng.uniform(0.0, 0.1)]))
            job.world.run(rng.uniform(0.05, 0.5))
            if len(living(job.world)) > 4:
                moment = rng.choice(["loading", "loading", "loaded", "loaded", "activated", "held", "completed", "finished"])
                job.ambush(moment, rng.randint(1, 5), rng.choice(["kill-other", "kill-two", "kill"]), rng.uniform(0.0, 0.05))
            job.world.run(rng.uniform(0.3, 1.5))
            for host in [each for each in living(job.world) if broken(job.world, each)]:
                job.world.kill(host)
        job.world.run(1.0)
    return job


def broken(world: World, host: Host) -> bool:
    """Whether a process of its replica has ended."""
    return any(each.member.cohort == host.member.cohort and not each.alive for each in world.hosts.values())


def compressed(seed: int) -> Job:
    """As ``opened``, where a member owes a half of what it has to send."""
    return opened(seed, program="X", compressed=True, reorder=0)


def opened(seed: int, **more: Any) -> Job:
    """As ``torn``, where averages are open calls and backward takes a while: deaths at any moment of it, and after it.

    All weigh the same, so that results are shown as gradients; most are changed in place. ``more``: further ``Habits``.
    """
    rng = Random(seed)
    habits = Habits(restarts=0.15, raises=0.15, clips=0.6, thinks=0.15, views=0.8, heavy=0.0, **more)
    settings = {"compute": 0.02, "tensors": rng.choice([3, 5]), "pace": Pace(slow=0.1, unbuilt=0.0), "habits": habits}
    with Job(seed, rng.choice([3, 4, 5]), **settings) as job:
        late = rng.choice([*job.hosts, None, None])
        if late is not None:  # who gets its results later lacks one that the others have changed, if one of them dies now
            job.trainers.rooms.late[late.id] = 0.05
        for turn in range(3):
            if rng.random() < 0.5:
                job.join(f"j{turn}")
            job.world.run(rng.uniform(0.05, 0.6))
            moment = rng.choice(["entered", "reduced", "completed", "completed", "finished", "adopting", "loaded"])
            if len(living(job.world)) > 2:
                moment, action = (moment, "kill-other") if late is None or rng.random() < 0.3 else ("finished", "kill")
                job.ambush(moment, rng.randint(1, 9), action, rng.uniform(0.0, 0.02))
            job.world.run(rng.uniform(0.3, 1.0))
        job.world.run(0.5)
    return job


def mixed(seed: int) -> Job:
    """As ``opened``, with other calls between the averages; half of the jobs have backup workers, the others following joiners.

    Nothing takes long but now and then a step, so that a backup worker soon knows its program's pattern.
    """
    rng = Random(seed)
    late = rng.random() < 0.5
    habits = Habits(
        program=rng.choice(["X", "XL", "XXL", "XLB"] if late else ["XL", "XY", "XXL", "XYL", "XYXL"]),
        deadline=rng.choice([0.02, 0.05]) if late else None,
        follows=not late,
        reorder=0 if late else 13,
        raises=0.05,
        heavy=0.0,
        dawdles=0.03,
    )
    settings = {"compute": 0.004, "tensors": rng.choice([3, 5]), "long_steps": 0.03, "habits": habits}
    with Job(seed, rng.choice([3, 4]), pace=Pace(transit=0.003, slow=0.02, unbuilt=0.0), **settings) as job:
        job.world.run(rng.uniform(0.8, 1.2) if late else 0.3)
        for turn in range(3):
            if rng.random() < (0.3 if late else 0.7):
                job.join(f"j{turn}")
            job.world.run(rng.uniform(0.05, 0.5))
            moment = rng.choice(["entered", "reduced", "completed", "finished", "loaded"])
            if len(living(job.world)) > 2 and rng.random() < 0.5:
                job.ambush(moment, rng.randint(1, 9), "kill-other", rng.uniform(0.0, 0.02))
            job.world.run(rng.uniform(0.3, 0.8))
        job.world.run(0.5)
        job.go_on()
    return job


def local(seed: int) -> Job:
    """Rounds of private steps, and joiners that come in the middle of one; deaths while they get the state, and afterwards."""
    rng = Random(seed)
    with Job(seed, rng.choice([2, 3, 4]), compute=0.03, tensors=rng.choice([1, 3]), inner=5, pace=Pace(unbuilt=0.0)) as job:
        for turn in range(4):
            if rng.random() < 0.8:
                job.join(f"j{turn}")
            job.world.run(rng.uniform(0.05, 0.5))
            if len(living(job.world)) > 2:
                moment = rng.choice(["loading", "loading", "loaded", "activated", "completed", "finished"])
                job.ambush(moment, rng.randint(1, 5), rng.choice(["kill-other", "kill-other", "kill"]), rng.uniform(0.0, 0.05))
            job.world.run(rng.uniform(0.3, 1.5))
        job.world.run(1.0)
    return job


def late(seed: int) -> Job:
    """Nobody notices a death by itself, and operations take long to end: freezes come in the middle of them."""
    rng = Random(seed)
    pace = Pace(transit=0.05, notice=0.3, deaf=1.0, linger=0.05, endless=0.0, unbuilt=0.0)
    with Job(seed, rng.choice([3, 4, 5]), compute=0.01, tensors=1, pace=pace) as job:
        job.world.faults.latency = (0.01, 0.05)  # from the report to the new view takes long, too
        for _ in range(2):
            job.world.run(rng.uniform(0.1, 0.4))
            if len(living(job.world)) > 2:
                job.ambush("reduced", rng.randint(1, 9), "kill-other", rng.uniform(0.0, 0.01))
            job.world.run(0.6)
    return job


def interrupted(seed: int, draw: Draw) -> Job:
    """Deaths right after everybody has entered an operation, mostly one of the accelerators that ``draw`` gives the members.

    In the end training goes on.
    """
    rng = Random(seed)
    settings = {"compute": 0.02, "tensors": 3, "on_device": 3, "pace": Pace(unbuilt=0.0)}
    with Job(seed, rng.choice([3, 4, 5]), accelerators=Accelerators(seed, draw), **settings) as job:
        for turn in range(3):
            if rng.random() < 0.4:
                job.join(f"j{turn}")
            job.world.run(rng.uniform(0.3, 0.8))
            if len(living(job.world)) > 2:
                job.ambush(
                    rng.choice(["entered", "reduced", "completed"]), rng.randint(1, 9), "kill-other", rng.uniform(0.0, 0.01)
                )
            job.world.run(rng.uniform(0.3, 0.8))
        job.world.run(0.5)
        job.go_on()
    return job


def first_violation(tell: Callable[[int], object], seeds: Iterable[int]) -> tuple[int, str] | None:
    """The first of these histories that breaks something, and what."""
    for seed in seeds:
        try:
            tell(seed)
        except AssertionError as error:
            return seed, str(error)
    return None
