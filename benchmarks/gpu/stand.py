"""On what is measured: a GPU with NCCL, or, to rehearse, the CPU with stand-ins for both."""

from __future__ import annotations

import argparse
import time
from dataclasses import dataclass
from pathlib import Path

import torch

from benchmarks.report import Report
from tests.harness.nursery import Nursery


@dataclass(frozen=True)
class Stand:
    """Names."""

    name: str
    device: str
    """Of the tensors, as torch has it."""
    place: str
    """The same, as ftlib has it (see ``common.devices``)."""
    accelerated: str
    """The framework with an accelerator in the process."""
    isolated: str
    """That with one in a process of its own."""
    backend: str
    """Of torch's own group, beside ``accelerated``."""

    @property
    def real(self) -> bool:
        """Whether it is a GPU."""
        return self.device != "cpu"

    def missing(self) -> str:
        """Why nothing can be measured on it; empty if it can."""
        return "no GPU" if self.real and not torch.cuda.is_available() else ""

    def synchronize(self) -> None:
        """Wait until the device has done everything."""
        if self.real:
            torch.cuda.synchronize(self.device)


REAL = Stand("gpu", "cuda:0", "cuda:0", "nccl", "isolated:nccl", "nccl")
REHEARSED = Stand("rehearsal", "cpu", "rehearsal:0", "rehearsal", "isolated:rehearsal", "gloo")
STANDS = {stand.name: stand for stand in (REAL, REHEARSED)}


@dataclass(frozen=True)
class Bench:
    """All that a part needs."""

    args: argparse.Namespace
    report: Report
    nursery: Nursery
    """Where its workers come from."""
    directory: Path
    until: float
    """CLOCK_MONOTONIC at which it is to have ended."""

    @property
    def stand(self) -> Stand:
        """On what."""
        stand: Stand = self.args.stand
        return stand

    @property
    def left(self) -> float:
        """Seconds; at least one, so that a wait that is bounded by it has a chance."""
        return max(1.0, self.until - time.monotonic())

    @property
    def over(self) -> bool:
        """Whether it has to come to its end."""
        return time.monotonic() > self.until
