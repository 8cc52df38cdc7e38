"""The same job through Lightning, accelerate and transformers: the plain loop's losses and parameters, to the bit.

Skipped by name where a framework is not installed.
"""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path
from typing import Any

import pytest

from tests.harness.nursery import Nursery
from tests.harness.program import ROOT, Program, clean, ftlib_run

LEARNER = ROOT / "tests/integrations/learner.py"
PATIENCE = 280.0
"""Seconds: each worker imports a large framework."""
STEPS = 8
KILLED = 5
"""The step in which the worker of rank 2 dies."""
EXTRAS = {"lightning": "lightning", "accelerate": "hf", "transformers": "hf"}
WAYS = list(EXTRAS)

pytestmark = [pytest.mark.process, pytest.mark.timeout(900)]


def learnt(nursery: Nursery, where: Path, way: str, *orders: object, restarts: int = 0) -> dict[int, dict[int, Any]]:
    """What each worker said of each of its steps: by the rank that it had first, then by step."""
    if way != "plain" and importlib.util.find_spec(way) is None:
        pytest.skip(f"{way} is not installed: pip install 'ftlib[{EXTRAS[way]}]'")
    where.mkdir()
    command = ftlib_run("-n", 3, "--max-restarts", restarts, LEARNER, way, *orders)
    with Program(nursery, where, *command, env=clean(FTLIB_EXCLUDE_AFTER="30", FTLIB_STALL_TIMEOUT="200")) as launcher:
        launcher.wait(PATIENCE)
        said, errors = launcher.stdout, launcher.stderr
    print(errors)  # shown if the test fails
    found: dict[int, dict[int, Any]] = {}
    for line in said.splitlines():
        _, _, record = line.partition("] ")
        if record.startswith('{"place"'):
            step = json.loads(record)
            found.setdefault(step["place"], {})[step["step"]] = step
    return found


@pytest.fixture(scope="module")
def plain(nursery: Nursery, tmp_path_factory: pytest.TempPathFactory) -> dict[int, dict[int, Any]]:
    """The plain loop, of whose workers one is killed."""
    return learnt(nursery, tmp_path_factory.mktemp("plain") / "run", "plain", STEPS, KILLED)


@pytest.mark.parametrize("way", [pytest.param(each, marks=[pytest.mark.soak] * (each == "lightning")) for each in WAYS])
def test_losses_are_those_of_the_plain_loop(
    way: str, plain: dict[int, dict[int, Any]], nursery: Nursery, tmp_path: Path
) -> None:
    """Before a worker dies, in the step in which it does, and after it: losses and parameters are equal to the bit."""
    found = learnt(nursery, tmp_path / "run", way, STEPS, KILLED)
    assert {worker: sorted(steps) for worker, steps in found.items()} == {
        0: list(range(1, STEPS + 1)),
        1: list(range(1, STEPS + 1)),
        2: list(range(1, KILLED)),
    }
    assert found == plain
    for step in range(1, STEPS + 1):
        assert len({steps[step]["digest"] for steps in found.values() if step in steps}) == 1, f"after step {step}"


@pytest.mark.soak
def test_a_trainer_of_transformers_takes_a_stream(nursery: Nursery, tmp_path: Path) -> None:
    """It is dealt by itself: as a dataset with indices it would be read from its beginning to its end at every worker."""
    found = learnt(nursery, tmp_path / "run", "transformers", 4, 0, "--stream")
    assert {worker: sorted(steps) for worker, steps in found.items()} == {worker: [1, 2, 3, 4] for worker in range(3)}
    for step in range(1, 5):
        assert len({steps[step]["digest"] for steps in found.values()}) == 1, f"after step {step}"
        assert len({tuple(steps[step]["losses"]) for steps in found.values()}) == 3, "each has batches of its own"


@pytest.fixture(scope="module")
def undisturbed(nursery: Nursery, tmp_path_factory: pytest.TempPathFactory) -> dict[int, dict[int, Any]]:
    """The plain loop, of whose workers none is killed."""
    return learnt(nursery, tmp_path_factory.mktemp("undisturbed") / "run", "plain", STEPS, 0)


@pytest.mark.soak
@pytest.mark.parametrize("way", WAYS)
def test_losses_without_a_kill_are_those_of_the_plain_loop(
    way: str, undisturbed: dict[int, dict[int, Any]], nursery: Nursery, tmp_path: Path
) -> None:
    found = learnt(nursery, tmp_path / "run", way, STEPS, 0)
    assert {worker: sorted(steps) for worker, steps in found.items()} == {
        worker: list(range(1, STEPS + 1)) for worker in range(3)
    }
    assert found == undisturbed


@pytest.mark.soak
@pytest.mark.parametrize("way", WAYS)
def test_a_worker_that_joins_has_what_the_others_have(way: str, nursery: Nursery, tmp_path: Path) -> None:
    """Samples are dealt by an ElasticSampler; a worker is killed, started again, and catches up beside the training."""
    found = learnt(nursery, tmp_path / "run", way, 1500, KILLED, "--elastic", restarts=1)
    assert len([step for step in found[2] if step > KILLED]) > 3, "it came back"
    assert sorted(found[0]) == sorted(found[1]) == list(range(1, 1501))
    for step in range(1, 1501):
        assert len({steps[step]["digest"] for steps in found.values() if step in steps}) == 1, f"after step {step}"


@pytest.mark.parametrize("way", [each if each == "accelerate" else pytest.param(each, marks=pytest.mark.soak) for each in WAYS])
def test_an_overflow_at_one_worker_is_skipped_by_all(way: str, nursery: Nursery, tmp_path: Path) -> None:
    """With a GradScaler: no parameter changes in that step, and all scales are halved; the steps after it are steps."""
    found = learnt(nursery, tmp_path / "run", way, 5, 0, "--overflow")
    assert {worker: sorted(steps) for worker, steps in found.items()} == {worker: [1, 2, 3, 4, 5] for worker in range(3)}
    for step in range(1, 6):
        assert len({(steps[step]["digest"], steps[step]["scale"]) for steps in found.values()}) == 1, f"after step {step}"
    digests, scales = ([found[0][step][what] for step in range(1, 6)] for what in ("digest", "scale"))
    assert scales == [1024.0, 1024.0, 512.0, 512.0, 512.0]
    assert digests[1] == digests[2]
    assert len(set(digests)) == 4


@pytest.mark.soak
@pytest.mark.parametrize("way", WAYS)
def test_a_worker_that_joins_has_the_scale(way: str, nursery: Nursery, tmp_path: Path) -> None:
    """It was lowered before the worker was killed, and grows every 200 steps."""
    found = learnt(nursery, tmp_path / "run", way, 1500, KILLED, "--elastic", "--overflow", restarts=1)
    back = [step for step in found[2] if step > KILLED]
    assert len(back) > 3, "it came back"
    for step in range(1, 1501):
        told = {(steps[step]["digest"], steps[step]["scale"]) for steps in found.values() if step in steps}
        assert len(told) == 1, f"after step {step}"
    assert found[0][1500]["scale"] > 512.0
