"""What the log and the metrics tell of the transport: real Gloo groups with a rehearsed accelerator, in threads."""

from __future__ import annotations

import logging
from typing import Any

import pytest
import torch

from ftlib import FTLib
from ftlib.frameworks.accelerators.framework import HybridFramework
from ftlib.frameworks.accelerators.rehearsal import Faults
from ftlib.frameworks.accelerators.rehearsal.accelerator import RehearsedAccelerator
from tests.ftlib.crews.crew import Crew
from tests.harness.basics import eventually

CALLS = 5


class Picky(RehearsedAccelerator):
    """As NCCL, it does not take every dtype that may be on its device."""

    def takes(self, tensor: torch.Tensor) -> bool:
        return super().takes(tensor) and tensor.dtype is not torch.float64


def average(ft: FTLib, dtype: torch.dtype) -> dict[str, Any]:
    assert ft.allreduce_average(torch.ones(5, dtype=dtype))
    return ft.metrics()


def changes(caplog: pytest.LogCaptureFixture) -> list[logging.LogRecord]:
    return [record for record in caplog.records if getattr(record, "ftlib_event", "") == "transport"]


def test_one_line_a_change_and_calls_by_transport(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "ftlib")
    with Crew(2, lambda _: HybridFramework(Picky(Faults()))) as crew:

        def on() -> bool:
            return all(crew.all(lambda ft, _: average(ft, torch.float32)["calls_by_transport"]["rehearsal"] > 0))

        eventually(on, "the accelerators carry calls")
        before = crew.all(lambda ft, _: ft.metrics())
        for _ in range(CALLS):
            crew.all(lambda ft, _: average(ft, torch.float32))
            crew.all(lambda ft, _: average(ft, torch.float64))
        after = crew.all(lambda ft, _: ft.metrics())
    for old, new in zip(before, after, strict=True):
        assert new["accelerator_ready"]
        assert (new["accelerator_starts"], new["accelerator_start_seconds"]["count"]) == (1, 1)
        gained = {name: count - old["calls_by_transport"][name] for name, count in new["calls_by_transport"].items()}
        assert gained == {"gloo": CALLS, "rehearsal": CALLS}
        assert sum(new["calls_by_transport"].values()) == new["calls"]
    found = changes(caplog)
    assert [record.levelno for record in found] == [logging.INFO] * 2, "one line a worker, whatever the dtypes"
    assert all("go by accelerators: the accelerators of all members work" in record.getMessage() for record in found)
    assert [(record.accelerated, record.without) for record in found] == [(True, "")] * 2  # type: ignore[attr-defined]
