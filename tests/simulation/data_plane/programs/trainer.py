"""The program that a simulated process runs: a training loop whose gradients tell who contributed what, and how often.

A member's contribution to a call is a vector with a lane for each process of the job: its own lane holds a number that it uses
once, the others are zero. So a sum tells whose contributions it has, and a parameter, an integer, what was applied in which
order.
"""

from __future__ import annotations

import functools
from collections import deque
from collections.abc import Iterator, Mapping
from random import Random
from typing import Any
from zlib import crc32

import torch

from ftlib.common.devices import HOST
from ftlib.core.calls.call import Call, Kind
from ftlib.core.calls.follow import Declined
from ftlib.core.engine.catching_up import CatchUp
from ftlib.core.plane.phase import Phase
from ftlib.core.tensors.layout import lay_out
from ftlib.data.elastic_sampler import ElasticSampler
from ftlib.errors import FTLibError
from ftlib.frameworks.accelerators.rehearsal.accelerator import PLACE
from ftlib.state.private import Private
from ftlib.state.registry import Registered
from ftlib.status import Status

from ..parts.body import BATCH, SAMPLES, WEIGHTS
from ..peers.job import Colleague
from ..peers.mates import Interrupted

_SCALE = 720720
"""Multiple of 1 to 16: an average of integers by such a weight is an integer again."""


class Counting(ElasticSampler):
    """Fillers weigh as much as what the program says, so that gradients tell of every call whose they are."""

    def weight(self, batches: int) -> float:
        """See ``Sampling``."""
        del batches
        return 1.0


class _Own:
    """A tensor as registered private state."""

    def __init__(self, tensor: torch.Tensor) -> None:
        self._tensor = tensor

    def state_dict(self) -> dict[str, torch.Tensor]:
        """See ``Stateful``."""
        return {"own": self._tensor}

    def load_state_dict(self, state: Mapping[str, torch.Tensor]) -> None:
        """See ``Stateful``."""
        self._tensor.copy_(state["own"])


class Trainer:
    """One process's training loop and its state."""

    def __init__(self, process: Colleague, rng: Random) -> None:
        jobs = process.jobs
        self._process = process
        self._rng = rng
        self._pace = jobs.compute
        self._specs = [(torch.float64, (jobs.lanes,))] * jobs.tensors
        places = [PLACE if number < jobs.on_device else HOST for number in range(jobs.tensors)]
        self._layout = lay_out("average", self._specs, "SUM", jobs.lanes * torch.float64.itemsize, places)
        self._gradients = [torch.zeros(jobs.lanes, dtype=torch.float64) for _ in range(jobs.tensors)]
        self.parameters = [torch.full((jobs.lanes,), 7 + process.index, dtype=torch.int64) for _ in range(jobs.tensors)]
        self.token = 0
        """Forward and backward passes so far."""
        self.weight = 1.0
        """Of the latest."""
        self.open: Call | None = None
        """The call that was begun in backward, until it ends."""
        self.own = torch.zeros(3, dtype=torch.int64)
        """Private: equal numbers, except in the middle of a step; and the replica that has done the newest step."""
        self._name = crc32(process.part.replica.encode())
        self.ending = ""
        self.sampler = Counting(range(SAMPLES), batch_size=BATCH, seed=jobs.seed)
        self._depth = rng.choice([0, 1, 3])
        self._declining = 0.0 if jobs.habits is None else jobs.habits.declines
        """Share of the calls that it declines."""
        self._tarrying = 0.0 if jobs.habits is None else jobs.habits.tarries
        self._heavy = 0.25
        """Share of the passes that weigh more."""

    # What ``register_state`` is given

    def state_dict(self) -> dict[str, Any]:
        """The parameters themselves, not copies."""
        return {"parameters": self.parameters}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take over a donor's."""
        for own, given in zip(self.parameters, state["parameters"], strict=True):
            own.copy_(given)

    # The program

    def run(self) -> None:
        """The whole program, with what a process does when a call raises: it ends."""
        try:
            self._train()
        except FTLibError as error:
            self.ending = f"{type(error).__name__}: {error}"
            self._process.jobs.promises.ended(self._process, error)
        else:
            self.ending = "left"
        self._process.jobs.ended(self._process)

    def _train(self) -> None:
        process, threads = self._process, self._process.threads
        if not self._admitted():
            return
        process.plane.data.register(self.sampler)
        private = Private.of(_Own(self.own)) if process.jobs.inner else None
        own = (self.state_dict, self.load_state_dict, self.replay)
        process.transfer.register(Registered({"sampler": self.sampler}, *own, private=private))
        process.plane.data.settle(process.host.world.config.join_timeout)
        if process.jobs.inner and not self._catch_up():
            return
        batches = self._batches()
        while self._begins():
            declines = self._declining > 0.0 and self._rng.random() < self._declining
            batch = next(batches) if not declines and self._draws() else []
            if process.jobs.inner and not self._inner_steps():
                return
            threads.sleep(self._rng.expovariate(1.0 / self._pace))
            if self._rng.random() < process.jobs.long_steps:
                threads.sleep(self._rng.uniform(0.0, 1.0))
            if declines and self._tarrying and self._rng.random() < self._tarrying:
                threads.sleep(self._rng.uniform(0.0, 1.0))
            status, call = self._decline() if declines else self._perform()
            if status is Status.ABORT:
                if process.call_lock.says_goodbye:
                    self._leave()
                return
            process.jobs.promises.used_up(process, batch)
            if status and call.counts_as_step:
                if self._rng.random() < 0.3:
                    threads.sleep(self._rng.uniform(0.0, 0.02))  # clips, logs
                self._step(call)
                process.jobs.promises.applied(process, self.clock(call), call)
            elif process.plane.void and call.counts_as_step:
                process.jobs.promises.skipped(process, self.clock(call))
            self._returned(call)
            if process.engine.said_goodbye:
                self._leave()
                return

    def replay(self) -> None:
        """Apply an average that a backup worker or a joiner got (``apply=`` of ``register_state``)."""
        raise NotImplementedError

    def clock(self, call: Call | None) -> int:
        """The number of the average that is applied, equal at all members. ``call``: None where it is replayed."""
        assert call is not None
        return call.number

    def averages(self, calls: int) -> int:
        """How many averages are in the parameters, after so many calls."""
        return calls

    def _draws(self) -> bool:
        """Whether the next call uses up a batch."""
        return True

    def _returned(self, call: Call) -> None:
        """The program is done with a call."""

    def _begins(self) -> bool:
        """What the program does before it draws; False if this worker has left."""
        return True

    def _inner_steps(self) -> bool:
        """Some steps on private state, each after a border; False if this worker has left. Mates do as many."""
        process, rng = self._process, self._rng
        if process.mates is not None:
            rng = Random(f"{process.jobs.seed} {process.part.replica} {process.plane.finished}")
        for _ in range(rng.randint(1, process.jobs.inner)):
            if not self._catch_up():
                return False
            self.own[0] += 1
            self._process.threads.sleep(self._rng.expovariate(1.0 / self._pace))
            self.own[1] += 1
            self.own[2] = self._name
            self._process.jobs.promises.counts["inner steps"] += 1
        return True

    def _catch_up(self) -> bool:
        """``FTLib.catch_up``; False if this worker has left."""
        process = self._process
        if not process.plane.level or process.plane.phase is Phase.STOPPED:
            own = CatchUp()
            status = process.call_lock.take("catch_up", functools.partial(process.engine.run, own), lambda: None)
            if status is Status.ABORT:
                if process.call_lock.says_goodbye:
                    self._leave()
                return False
            if status is Status.SUCCESS:
                process.jobs.promises.begins_at_border(process)
        process.transfer.copies.at_border()
        return True

    def _batches(self) -> Iterator[list[int]]:
        """One epoch after the other, drawn ahead as by a loader."""
        while True:
            loop, ahead = iter(self.sampler), deque[list[int]]()
            for _ in range(self._depth):
                ahead.extend(batch for batch in [next(loop, None)] if batch is not None)
            while True:
                ahead.extend(batch for batch in [next(loop, None)] if batch is not None)
                if not ahead:
                    break
                yield ahead.popleft()

    def _leave(self) -> None:
        """``FTLib.leave``: the goodbye rode on the last call."""
        process = self._process
        process.call_lock.depart()
        if process.mates is not None:
            process.mates.part()
        process.door.leave()
        end = process.threads.now() + 5.0
        with process.plane.changed:
            process.plane.changed.wait_for(lambda: process.plane.phase is Phase.STOPPED, end - process.threads.now())

    def _admitted(self) -> bool:
        """``FTLib.init``: a founder returns in the first view, a joiner once it has met the job."""
        plane, threads = self._process.plane, self._process.threads
        machine = self._process.host.machine
        while plane.phase is Phase.WAITING:
            known = machine.known_view
            if known is not None and machine.member.id not in known:
                threads.sleep(self._rng.uniform(0.0, 0.3))
                return True
            threads.sleep(0.02)
        return plane.phase is not Phase.STOPPED

    def _perform(self) -> tuple[Status, Call]:
        """One pass, and the call that averages its gradients."""
        process = self._process
        self._begin_pass()
        self._backward()
        call = self._call()
        process.jobs.promises.entered(process, call)
        return self._blocking(call), call

    def _decline(self) -> tuple[Status, Call]:
        """``FTLib.decline``."""
        process = self._process
        self._begin_pass()
        call = Declined(veto=process.jobs.veto)
        process.jobs.promises.entered(process, call)
        return self._blocking(call), call

    def _blocking(self, call: Call) -> Status:
        """Carry out a call, as ``FTLib`` does. A program that is interrupted in it makes it again."""
        process = self._process
        while True:
            try:
                return process.call_lock.take(call.layout.text, functools.partial(process.run, call), lambda: None)
            except Interrupted:
                process.jobs.promises.counts["interrupted"] += 1
                call.anew()
                process.threads.sleep(self._rng.expovariate(1.0 / self._pace))

    def _begin_pass(self) -> None:
        self.token += 1
        self.weight = WEIGHTS[self._rng.random() < self._heavy]

    def _backward(self) -> None:
        for number, gradient in enumerate(self._gradients):
            gradient.zero_()
            gradient[self._process.index] = self.token * (number + 1)

    def _call(self) -> Call:
        veto = self._process.jobs.veto
        return Call(Kind.AVERAGE, self._layout, self._gradients, weight=self.weight, batches=1, divide=True, veto=veto)

    def _step(self, call: Call) -> None:
        """Apply what ``call`` has averaged."""
        del call
        for parameter, gradient in zip(self.parameters, self._gradients, strict=True):
            self._apply(parameter, gradient)

    def _apply(self, parameter: torch.Tensor, gradient: torch.Tensor) -> None:
        parameter.mul_(3).add_((gradient * _SCALE).round_().to(torch.int64))
