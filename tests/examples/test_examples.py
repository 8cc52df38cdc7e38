"""The examples do what they say, as a user would start them."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.harness.basics import free_ports
from tests.harness.nursery import Nursery
from tests.harness.program import ROOT, Program, clean, ftlib_run

PATIENCE = 400.0
"""Seconds: they learn something, and a busy machine takes its time."""
PATIENT = {"FTLIB_EXCLUDE_AFTER": "30"}
"""So that nobody is lost who was not killed."""


def run(nursery: Nursery, where: Path, workers: int, name: str, *arguments: str) -> str:
    """What it printed."""
    with Program(
        nursery, where, *ftlib_run("-n", workers, ROOT / "examples" / name, *arguments), env=clean(**PATIENT)
    ) as launcher:
        assert launcher.wait(PATIENCE) == 0, launcher.stderr
        print(launcher.stderr)  # shown if the test fails
        return launcher.stdout


def accuracy(said: str) -> float:
    """What all told that told it: the first one may have left before another looks whether it is the first one now."""
    [found] = set(re.findall(r"test accuracy ([0-9.]+)%", said))
    return float(found)


@pytest.mark.process
def test_digits(nursery: Nursery, tmp_path: Path) -> None:
    said = run(nursery, tmp_path, 2, "digits.py", "5")
    assert re.search(r"epoch 2 step 100: loss [0-9.]+, 2 workers in view 1", said)
    assert accuracy(said) > 80


@pytest.mark.process
@pytest.mark.soak
def test_digits_with_whole_steps(nursery: Nursery, tmp_path: Path) -> None:
    said = run(nursery, tmp_path, 2, "digits_execute.py", "5")
    assert re.search(r"epoch 4 step 100: loss [0-9.]+, about [0-9]+ of 64 right, 2 workers", said)
    assert accuracy(said) > 80


@pytest.mark.process
@pytest.mark.soak
def test_digits_of_workers_that_seldom_meet(nursery: Nursery, tmp_path: Path) -> None:
    said = run(nursery, tmp_path, 2, "digits_diloco.py", "6")
    assert re.search(r"epoch 3 sync 10: loss [0-9.]+, 2 workers in view 1", said)
    assert accuracy(said) > 80


@pytest.mark.process
@pytest.mark.soak
def test_digits_in_tar_files(nursery: Nursery, tmp_path: Path) -> None:
    said = run(nursery, tmp_path, 2, "integrations/digits_tar.py", "5", str(tmp_path / "digits"))
    assert re.search(r"epoch \d step 100: loss [0-9.]+, 2 workers", said)
    assert accuracy(said) > 80


@pytest.mark.process
def test_a_parameter_server(nursery: Nursery, tmp_path: Path) -> None:
    """A worker is killed, and the server, which goes on from its checkpoint."""
    program = ROOT / "examples" / "parameter_server.py"
    with Program(nursery, tmp_path, program, env=clean(STEPS="2000", **PATIENT)) as demonstration:
        assert demonstration.wait(PATIENCE) == 0, demonstration.stderr
        said = demonstration.stdout
    assert said.index("is killed\n") < said.index("the server is killed") < said.index("server: goes on from step ")
    assert said.count("the server is gone after") == 2, "the workers that are left wait for it"
    assert accuracy(said) > 50


@pytest.mark.process
@pytest.mark.parametrize("style", [[], pytest.param(["--wrapped"], marks=pytest.mark.soak)], ids=["plain", "wrapped"])
@pytest.mark.soak
def test_the_transformer(nursery: Nursery, tmp_path: Path, style: list[str]) -> None:
    said = run(nursery, tmp_path, 2, "transformer.py", "1", "130000", *style)
    bits = [float(found) for found in re.findall(r"([0-9.]+) bits a letter, 2 workers", said)]
    assert len(bits) == 2
    assert bits[1] < bits[0] < 7.0
    assert "def " in said


@pytest.mark.process
def test_a_pipeline_of_three(nursery: Nursery, tmp_path: Path) -> None:
    said = run(nursery, tmp_path, 3, "pipeline.py", "3")
    assert re.search(r"epoch 2: loss [0-9.]+", said)
    assert accuracy(said) > 60


@pytest.mark.process
def test_rollout_workers_come_and_go(nursery: Nursery, tmp_path: Path) -> None:
    meet, trainers = (f"127.0.0.1:{port}" for port in free_ports(2))
    own = clean(STEPS="150", MEET=meet, TRAINERS=trainers, **PATIENT)
    with Program(nursery, tmp_path, ROOT / "examples" / "rollouts.py", env=own) as demonstration:
        assert demonstration.wait(PATIENCE) == 0, demonstration.stderr
        said = demonstration.stdout
    assert said.index("step 50: ") < said.index("rollout-0 is killed") < said.index("step 100: ")
    assert re.search(r"step 150: [0-9]+% right, played by rollout-1", said)
    assert said.count("ends, as ") == 2, "those that are left hear that the channel is gone"


@pytest.mark.process
def test_gradients_by_a_channel(nursery: Nursery, tmp_path: Path) -> None:
    """A worker is killed, and another one comes; no step waits for either."""
    own = clean(STEPS="300", MEET=f"127.0.0.1:{free_ports(1)[0]}", **PATIENT)
    with Program(nursery, tmp_path, ROOT / "examples" / "gradients.py", env=own) as demonstration:
        assert demonstration.wait(PATIENCE) == 0, demonstration.stderr
        said = demonstration.stdout
    assert said.index("step 100: ") < said.index("worker-0 is killed") < said.index("step 200: ") < said.index("step 300: ")
    assert re.search(r"server: \d+ steps, .*worker-3 \d+; test accuracy", said), "the new one takes part"
    assert said.count("ends, as ") == 3, "those that are left hear that the channel is gone"
    assert accuracy(said) > 50


@pytest.mark.process
def test_replicas_that_shard_their_model(nursery: Nursery, tmp_path: Path) -> None:
    command = ftlib_run("-n", 2, "--shards", 2, ROOT / "examples" / "digits_sharded.py", "6")
    with Program(nursery, tmp_path, *command, env=clean(**PATIENT)) as launcher:
        assert launcher.wait(PATIENCE) == 0, launcher.stderr
        said = launcher.stdout
    assert re.search(r"epoch 1 step 20: loss [0-9.]+, 2 replicas of 2", said), said
    assert accuracy(said) > 80


@pytest.mark.soak
@pytest.mark.process
@pytest.mark.parametrize(("way", "count"), [("lightning", "6"), ("accelerate", "6"), ("transformers", "150")])
def test_frameworks(way: str, count: str, nursery: Nursery, tmp_path: Path) -> None:
    pytest.importorskip(way)
    said = run(nursery, tmp_path, 2, f"integrations/digits_{way}.py", count)
    assert re.search(r"step [0-9]+.*, 2 workers", said), said
    assert accuracy(said) > 80
