"""A late worker and the samples: what it drew and did not use goes back, and every sample is used once an epoch."""

from __future__ import annotations

import time

import pytest
import torch

from ftlib import ElasticSampler, FTLib
from ftlib.core.backup.pattern import WINDOW
from tests.ftlib.crews.scholars import Scholar, judge, together
from tests.ftlib.crews.workers import Job
from tests.ftlib.recovery.pupils import Pupil, assert_equal
from tests.harness.basics import eventually
from tests.harness.company import at_once, company

SAMPLES, BATCH, EPOCHS = 360, 4, 2


class Reader(Pupil):
    """It runs through the epochs with a sampler, and naps before each call."""

    def __init__(self, ft: FTLib, seed: int, nap: float) -> None:
        self.sampler = ElasticSampler(range(SAMPLES), batch_size=BATCH)
        super().__init__(ft, seed, sampler=self.sampler)
        self.nap = nap

    def read(self) -> list[list[int]]:
        seen = []
        for epoch in range(EPOCHS):
            self.sampler.set_epoch(epoch)
            for batch in self.sampler:
                time.sleep(self.nap)  # what makes it slow
                self.optimizer.zero_grad()
                data = torch.full((8, 64), float(len(batch)))
                self.model(data).square().mean().backward()
                if self.ft.allreduce_average(self.model):
                    self.apply()
                    self.hashes[self.ft.step] = self.digest()
            seen.append(sorted(index for row in self.sampler.ledger(epoch) for index in row.indices))
        return seen


def test_every_sample_is_used_once_although_one_is_late() -> None:
    with company(3, straggler_deadline=0.1) as crew:
        naps = [0.01, 0.01, 0.25]
        readers = at_once(*[lambda ft=ft, i=i: Reader(ft, i, naps[i]) for i, ft in enumerate(crew.members)])
        found = at_once(*[reader.read for reader in readers])
        assert readers[2].ft.metrics()["stood_in"] > 10
        assert found == [[list(range(SAMPLES))] * EPOCHS] * 3
        assert len({reader.digest() for reader in readers}) == 1
    assert assert_equal(*readers) > 10


@pytest.mark.parametrize(("members", "depth"), [(2, 0), (2, 4), (3, 4)])
def test_loops_end_together_although_one_is_late_at_the_end_of_an_epoch(members: int, depth: int) -> None:
    """Its loader has drawn what the others do not have: they go on until it is level, and all make the same call after that."""
    calls, batch = WINDOW + 6, 3
    size = members * batch * calls
    with Job(members, straggler_deadline=0.1) as job:
        scholars = {f"w{i}": Scholar(size, batch, 2, depth) for i in range(members)}
        last = members - 1

        def nap() -> None:
            """Once, until nobody goes on without it any more."""
            ft = job.workers[f"w{last}"].ft
            backup_worker = ft._lives.life.backup_worker
            if ft.step == calls - 3 and not ft.metrics()["stood_in"]:
                eventually(lambda: backup_worker is not None and backup_worker._retired, "the epoch is complete")

        scholars[f"w{last}"].hook = nap
        together(job, scholars, {})
        assert job.workers[f"w{last}"].ft.metrics()["stood_in"] > 2
        assert {scholar.ending for scholar in scholars.values()} == {"done"}
        judge(list(scholars.values()), epochs=2, size=size)
