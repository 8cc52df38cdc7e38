"""Tensors on real GPUs, between processes. Where there is none these leave themselves out."""

from __future__ import annotations

import pytest

from tests.harness.basics import TIMEOUT
from tests.harness.nursery import Nursery

from . import gpu_parts as parts
from .workers import company

pytestmark = [pytest.mark.process, pytest.mark.gpu]


@pytest.mark.parametrize("devices", [(0, 0), (0, 1)], ids=["one", "two"])
def test_memory_of_the_other_process(nursery: Nursery, devices: tuple[int, int]) -> None:
    """CUDA IPC in one device and between two: a kernel that still runs, a stream of the program's own, values."""
    with company(nursery, "a", "b") as workers:
        if not all(workers[name].do(parts.use, device) for name, device in zip("ab", devices, strict=True)):
            pytest.skip("there is one GPU only")
        ends = [workers[name].call(parts.exchange, ["a", "b"], name == "a", 50) for name in "ab"]
        assert [end.result(TIMEOUT) for end in ends] == ["ipc", "ipc"]


def test_through_host_memory(nursery: Nursery) -> None:
    """A peer that has not used a GPU: pinned memory."""
    with company(nursery, "a", "b") as workers:
        assert workers["a"].do(parts.use, 0)
        ends = [workers[name].call(parts.exchange, ["a", "b"], name == "a", 20) for name in "ab"]
        assert [end.result(TIMEOUT) for end in ends] == ["staging", "staging"]


def test_a_thousand_rounds_without_growth(nursery: Nursery) -> None:
    with company(nursery, "a", "b") as workers:
        for name in "ab":
            assert workers[name].do(parts.use, 0)
        grown = []
        for rounds in (100, 1000):
            ends = [workers[name].call(parts.exchange, ["a", "b"], name == "a", rounds) for name in "ab"]
            assert all(end.result(3 * TIMEOUT) == "ipc" for end in ends)
            grown.append([workers[name].do(parts.footprint) for name in "ab"])
        for early, late in zip(*grown, strict=True):
            assert late["threads"] <= early["threads"] + 2 and late["fds"] <= early["fds"] + 4
            assert late["gpu"] <= early["gpu"] + (1 << 20)
