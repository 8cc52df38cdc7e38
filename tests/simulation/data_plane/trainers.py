"""All the training processes of a simulated job, and what may go wrong with them: give ``plane`` to a ``World``."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from random import Random

from consensus.simulation import Host, Observer

from .groups.collective import Rooms
from .groups.pace import Pace
from .judging.promises import Promises
from .machine.system import simulated_system
from .parts.accelerator import Accelerators
from .peers.habits import Habits
from .peers.job import Colleague
from .peers.state import SimulatedTransfer
from .process import Process

Happens = Callable[[Host, str], None]


class Trainers(Observer):
    """Makes them, and follows what becomes of their hosts. ``world.observe`` it, and its ``promises``."""

    def __init__(
        self,
        seed: int,
        *,
        lanes: int = 64,
        tensors: int = 3,
        in_flight: int = 2,
        compute: float = 0.05,
        long_steps: float = 0.02,
        veto: bool = False,
        pace: Pace | None = None,
        accelerators: Accelerators | None = None,
        on_device: int = 0,
        habits: Habits | None = None,
        inner: int = 0,
        handover: float = 0.0,
        interrupts: float = 0.0,
    ) -> None:
        """``lanes``: at least as many as processes will be started. ``compute``: mean seconds of a forward and backward pass.

        ``tensors``: also the buckets of a call. ``long_steps``: share of the passes that take up to a second longer.
        ``accelerators``: those of the processes, if their groups have some; ``on_device``: so many of the tensors are there.
        ``habits``: of programs whose averages are open calls; None where they are not. ``inner``: at most so many steps on
        private state before each average; programs that make some begin their loop with ``catch_up``. ``handover``: seconds for
        which a process with notice stays where it alone has the state (see ``Handover``). ``interrupts``: how often, of its
        looks for the words of its mates, a program leaves its call by an exception instead, to make it again.
        """
        self.seed = seed
        self.lanes = lanes
        self.tensors = tensors
        self.in_flight = in_flight
        self.compute = compute
        self.long_steps = long_steps
        self.veto = veto
        self.accelerators = accelerators
        self.on_device = on_device
        self.habits = habits
        self.inner = inner
        self.handover = handover
        self.interrupts = interrupts
        self._system = ExitStack()
        if accelerators is not None or (habits is not None and habits.compressed):
            self._system.enter_context(simulated_system())
        self.processes: dict[str, Process] = {}
        self.promises = Promises(self.processes, lanes, opens=habits is not None)
        self.on_moment: Happens | None = None
        """A script's: told of each moment (see ``tell``), within whatever happens there."""
        self.rng = Random(f"{seed} trainers")
        self._pace = pace
        self.rooms = Rooms(self.rng, pace, self.tell, self.promises.differ)
        self._rooms = {0: self.rooms}

    def plane(self, host: Host) -> Process:
        """The data plane of a new process (``MakePlane``)."""
        index = len(self.processes)
        assert index < self.lanes, f"more than lanes={self.lanes} processes"
        process = self.processes[host.id] = Process(host, self, index)
        return process

    def rooms_of(self, shard: int) -> Rooms:
        """Where the members with that shard meet: each shard has groups of its own."""
        if shard not in self._rooms:
            self._rooms[shard] = Rooms(self.rng, self._pace, self.tell, self.promises.differ)
        return self._rooms[shard]

    def transfer_of(self, member_id: str) -> SimulatedTransfer | None:
        """The donor's side at a member, None where it is gone."""
        process = self.processes.get(member_id)
        return None if process is None or process.threads.over else process.transfer

    def living(self, member_id: str) -> Process | None:
        """A member's process, None where it is gone."""
        process = self.processes.get(member_id)
        return None if process is None or process.threads.over else process

    def tell(self, host: Host, moment: str) -> None:
        """One of ``ambush.MOMENTS`` has come for a process."""
        if moment == "reported" and not self.processes[host.id].threads.over:
            self.promises.reported(self.processes[host.id])
        if moment == "hinted":
            self.promises.hints(self.processes[host.id])
        if self.on_moment is not None:
            self.on_moment(host, moment)

    def drain(self, host: Host) -> None:
        """SIGTERM: leave after the next call."""
        process = self.processes[host.id]

        def terminate() -> None:
            host.leaving = True
            process.notice()

        process.threads.happens(terminate)

    def ended(self, process: Colleague) -> None:
        """A program has ended; its process follows, mostly."""
        if self.rng.random() < 0.8:
            self.world.after(self.rng.uniform(0.0, 0.05), lambda: self._exit(process.host))

    def _exit(self, host: Host) -> None:
        if host.alive:
            self.world.kill(host)

    def killed(self, host: Host) -> None:
        """See ``Observer``."""
        process = self.processes.get(host.id)
        if process is not None:
            process.threads.end()
            for rooms in self._rooms.values():
                rooms.lose(host)
            if process.mates is not None:
                process.mates.end()

    def resumed(self, host: Host) -> None:
        """See ``Observer``."""
        process = self.processes.get(host.id)
        if process is not None:
            process.threads.resumed()

    def close(self) -> None:
        """End all threads; nothing happens any more."""
        for process in self.processes.values():
            process.threads.end()
        self._system.close()
