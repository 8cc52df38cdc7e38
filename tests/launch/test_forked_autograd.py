"""A process that is forked from one with torch may begin to train in several threads at once."""

from __future__ import annotations

import subprocess
import sys

import pytest
import torch

from ftlib.common.processes import settle_autograd
from tests.harness.nursery import ROOT

TOGETHER = """
import os, sys, threading
import torch
from ftlib.common.processes import settle_autograd

sys.setswitchinterval(1e-5)
torch.ones(1, requires_grad=True).sum().backward()  # whose threads the engine of a child forgets
with torch.no_grad():  # as a module may have it that was imported before
    failed = 0
    for _ in range(int(sys.argv[1])):
        if os.fork():
            failed += os.wait()[1] != 0
            continue
        if sys.argv[2] == "settled":
            settle_autograd()
        assert not torch.is_grad_enabled()
        barrier = threading.Barrier(3)

        def begin():
            inputs, weight, bias = torch.ones(4, 6), torch.ones(8, 6, requires_grad=True), torch.ones(8, requires_grad=True)
            barrier.wait()
            torch.nn.functional.linear(inputs, weight, bias).sum().backward()

        threads = [threading.Thread(target=begin) for _ in range(3)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        os._exit(0)
print(failed)
"""


def failures(forks: int, how: str) -> int:
    """How many of so many processes a signal has ended."""
    command = [sys.executable, "-c", TOGETHER, str(forks), how]
    environment = {"OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}
    return int(subprocess.run(command, env=environment, capture_output=True, text=True, check=True, timeout=600).stdout)


def test_an_operation_is_recorded_though_gradients_are_off() -> None:
    """Only one that saves a tensor has torch look at its engine."""
    saved: list[torch.Tensor] = []

    def keep(tensor: torch.Tensor) -> torch.Tensor:
        saved.append(tensor)
        return tensor

    with torch.no_grad(), torch.autograd.graph.saved_tensors_hooks(keep, keep):
        settle_autograd()
        assert not torch.is_grad_enabled()
    assert saved


@pytest.mark.soak
def test_thousands_of_times() -> None:
    """Without it some three of a thousand end by SIGSEGV: if none does any more, torch has mended it."""
    assert failures(3000, "settled") == 0
    assert failures(3000, "as forked") > 0


def test_without_torch_there_is_nothing_to_settle() -> None:
    text = "from ftlib.common import processes; import sys; processes.settle_autograd(); assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", text], env={"PYTHONPATH": str(ROOT)}, check=True, timeout=60)
