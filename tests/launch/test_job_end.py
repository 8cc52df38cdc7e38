"""The end of a job under ``ftlib run``: workers die in its last calls, spares wait, and joiners come as the last members leave.

Whatever the moment, the job has ended well: the run's exit code is 0, nobody hangs, and nobody says that the state is lost or
that calls differ. All is timed by the job's own progress, so that a draw means the same on any machine.
"""

from __future__ import annotations

import json
import random
from dataclasses import asdict, dataclass
from pathlib import Path

import pytest

from tests.harness.nursery import Nursery

from .helpers import forked, script

pytestmark = [pytest.mark.process, pytest.mark.timeout(600)]

STEPS = 30

BODY = """
import json
import torch
from consensus.membership import Membership
from ftlib import FTLib
from ftlib.core.plane.plane import Plane

plot = json.loads(sys.argv[1])
anew = not first(f"first-{INDEX}")

def before(owner, name, condition):
    original = getattr(owner, name)
    def wrapped(*args, **kwargs):
        if condition(*args):
            os.kill(os.getpid(), signal.SIGKILL)
        return original(*args, **kwargs)
    setattr(owner, name, wrapped)

def others_have_trained():
    pids = [name.removeprefix("trained-") for name in os.listdir() if name.startswith("trained-")]
    return any(int(pid) != os.getpid() and os.path.exists("/proc/" + pid) for pid in pids)

def leaves(*_):  # it dies as the others say goodbye, who do not end before it is gone
    while others_have_trained():
        if os.path.exists("leaving"):
            write("dying", os.getpid())
            return True
        time.sleep(0.005)  # between two looks
    return False  # a spare has come in too late to get the state: with this one the job would be lost

def arm(step, place):
    if place == "leave":
        before(Membership, "leave", leaves)
    else:
        before(Plane, place, lambda plane, *_: plane.finished + 1 == 2 * step)

if anew:
    write("imported")
model = torch.nn.Linear(2, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
loss = torch.zeros(1)
mine = None
with FTLib.init() as ft:
    ft.register_state(model=model, optimizer=optimizer)
    if anew:
        write("met")
    while ft.step < plot["steps"]:
        if not anew and ft.step == plot["steps"] - plot["late"]:
            wait(plot["gate"])
        time.sleep(0.01)
        optimizer.zero_grad()
        model(torch.ones(1, 2)).sum().backward()
        assert ft.allreduce_average(model)
        optimizer.step()
        first(f"trained-{os.getpid()}")
        assert ft.allreduce(loss)
        if ft.step == 1 and (mine := plot["deaths"].get(str(ft.rank))):
            arm(*mine)
    if mine is None:
        first("leaving")
if mine is None and any(place == "leave" for _, place in plot["deaths"].values()):
    wait("dying")
    while os.path.exists("/proc/" + open("dying").read()):
        time.sleep(0.005)
"""


@dataclass(frozen=True)
class Plot:
    """What happens: ``deaths`` by rank in the first view, each a step and a place in it (``leave``: as the others say goodbye).

    The first to die comes back, and the others do not begin their last ``late`` steps before it has come as far as ``gate``.
    """

    deaths: dict[str, tuple[int, str]]
    gate: str
    late: int
    workers: int
    spare: bool
    """Whether one of them waits outside: who comes back is a spare then, and else a joiner."""
    steps: int = STEPS

    @classmethod
    def drawn(cls, seed: int) -> Plot:
        """One of two or three members comes back for the end, and another dies near it."""
        chance = random.Random(seed)
        workers, spare, late = chance.choice([3, 4]), chance.random() < 0.5, chance.randrange(6)
        early, last = chance.sample(range(workers - spare), 2)
        deaths = {str(early): (STEPS - late - chance.randint(1, 5), chance.choice(["enter", "finish"]))}
        place = chance.choice(["enter", "finish", "leave", "leave"])
        deaths[str(last)] = (STEPS - chance.randrange(1 + late), place)
        return cls(deaths, chance.choice(["imported", "met"]), late, workers, spare)


@pytest.mark.parametrize("seed", [1, *(pytest.param(seed, marks=pytest.mark.soak) for seed in range(2, 14))])
def test_it_ends_well(nursery: Nursery, tmp_path: Path, seed: int) -> None:
    plot = Plot.drawn(seed)
    arguments = (json.dumps(asdict(plot)),)
    limit = ["--max", plot.workers - 1] if plot.spare else []
    with forked(nursery, tmp_path, "-n", plot.workers, *limit, script=script(BODY), args=arguments) as run:
        _, err = run.finish(0)
    assert "StateLost" not in err and "StepMismatch" not in err and "Excluded" not in err, err
