"""State on a device that does everything late: it is given, taken, kept and written as it is after what is still under way."""

from __future__ import annotations

import functools
import logging
from collections.abc import Iterator
from typing import Any

import pytest
import torch

from ftlib.common import host_copies
from ftlib.common.device_waits import Fence
from ftlib.recovery.layout import flat_state
from ftlib.recovery.layout.flat_state import FlatState
from ftlib.state.codec import decode, snapshot
from tests.ftlib.late_state import LatePupil, on_device
from tests.ftlib.recovery.pupils import School, assert_equal, steps
from tests.harness.basics import eventually
from tests.harness.company import at_once, company
from tests.harness.late_device import PLACE, LateDevice


@pytest.fixture
def device() -> Iterator[LateDevice]:
    with LateDevice(7, on_device).placed() as device:
        yield device


@pytest.mark.parametrize(
    "settings",
    [{}, {"recovery_transport": "group"}, {"recovery_bandwidth": 100_000}, {"recovery": "wait"}],
    ids=["http", "group", "slow", "whole"],
)
def test_a_joiner_ends_up_with_what_the_others_have(
    device: LateDevice, settings: dict[str, Any], caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    with company(2, **settings) as crew:
        made = School(crew, functools.partial(LatePupil, device=device))
        eventually(lambda: made.pupils[0].ft.step > 3, "they train")
        joiner = made.enrol(make=functools.partial(LatePupil, device=device, scribbles=True))
        steps(joiner, 5)
        made.end()
    device.synchronize()
    assert assert_equal(*made.pupils) >= 4
    assert joiner.ft.metrics()["state_loads"] == 1
    assert joiner.ft.metrics()["recoveries"] == (settings.get("recovery") != "wait")
    assert not any(getattr(record, "ftlib_event", "") == "no_following" for record in caplog.records)


@pytest.mark.parametrize("plant", [None, "wait", "fence", "views"])
def test_bytes_are_read_after_what_another_thread_has_enqueued(
    device: LateDevice, plant: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With one wait, whatever the number of tensors; each wait that may be forgotten is."""
    if plant == "wait":
        monkeypatch.setattr(host_copies, "end", lambda _: None)
    elif plant == "fence":
        monkeypatch.setattr(Fence, "follow", lambda *_: None)
    elif plant == "views":
        monkeypatch.setattr(flat_state, "place_of", lambda _: "")
    rows = [torch.zeros(9, 30), torch.zeros(40), torch.zeros(6, 8).t(), torch.zeros(5, dtype=torch.float64)]
    wrong = 0
    for value in range(30):
        for row in rows:
            if on_device(row):
                device.enqueue(functools.partial(row.fill_, value), row)
            else:
                row.fill_(value)
        flat = FlatState(rows, list("abcd"), Fence([PLACE]))
        expected = torch.cat([torch.full((row.numel(),), value, dtype=row.dtype).view(torch.uint8) for row in rows])
        waits = device.waits
        read = torch.empty(flat.nbytes - 20, dtype=torch.uint8)
        at_once(lambda flat=flat, read=read: flat.copy_out(12, flat.nbytes - 8, read))
        wrong += not torch.equal(read, expected[12:-8])
        assert device.waits == waits + (plant != "views")
    assert bool(wrong) is (plant is not None)


@pytest.mark.parametrize("plant", [None, "wait", "device"])
def test_bytes_are_written_when_that_is_said(device: LateDevice, plant: str | None, monkeypatch: pytest.MonkeyPatch) -> None:
    """Their memory is reused at once, and other threads go on."""
    if plant == "wait":
        monkeypatch.setattr(host_copies, "end", lambda _: None)
    elif plant == "device":  # what is under way overwrites it
        monkeypatch.setattr(flat_state, "place_of", lambda _: "")
    rows = [torch.zeros(9, 30), torch.zeros(40), torch.zeros(6, 8).t()]
    flat = FlatState(rows, list("abc"))
    data = torch.empty(flat.nbytes - 40, dtype=torch.uint8)
    wrong = 0
    for value in range(30):
        for row in rows:
            device.enqueue(functools.partial(row.fill_, -1), row)
        given = torch.full((data.numel() // 4,), float(value)).view(torch.uint8)
        data.copy_(given)
        flat.copy_in(20, data)
        data.fill_(255)
        if plant == "device":
            device.synchronize()
        read = torch.cat([row.contiguous().view(-1).view(torch.uint8) for row in rows])
        wrong += not torch.equal(read[20:-20], given)
    assert bool(wrong) is (plant is not None)


def test_a_tree_is_read_in_bundles(device: LateDevice, monkeypatch: pytest.MonkeyPatch) -> None:
    """Small tensors need one wait for all of them; memory is bounded."""
    monkeypatch.setattr(host_copies, "_BUNDLE", 4000)
    rows = [torch.zeros(100, dtype=torch.float32 if index % 3 else torch.float64) for index in range(60)]
    for index, row in enumerate(rows):
        if on_device(row):
            device.enqueue(functools.partial(row.fill_, index), row)
        else:
            row.fill_(index)
    fence, waits = Fence([PLACE]), device.waits
    [data] = at_once(lambda: snapshot({"rows": rows}, fence))
    assert device.waits == waits + 4
    found = decode(data)
    assert isinstance(found, dict)
    assert [row[50].item() for row in found["rows"]] == list(range(60))
