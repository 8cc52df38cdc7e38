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


@pytest.mark.parametrize("way", WAYS)
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
@pytest.mark.parametrize("way", WAYS)
def test_a_worker_that_joins_has_what_the_others_have(way: str, nursery: Nursery, tmp_path: Path) -> None:
    """Samples are dealt by an ElasticSampler; a worker is killed, started again, and catches up beside the training."""
    found = learnt(nursery, tmp_path / "run", way, 1500, KILLED, "--elastic", restarts=1)
    assert len([step for step in found[2] if step > KILLED]) > 3, "it came back"
    assert sorted(found[0]) == sorted(found[1]) == list(range(1, 1501))
    for step in range(1, 1501):
        assert len({steps[step]["digest"] for steps in found.values() if step in steps}) == 1, f"after step {step}"
