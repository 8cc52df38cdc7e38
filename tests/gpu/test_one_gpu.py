"""Workers that have a GPU together pose as hosts of their own, and no others do."""

from __future__ import annotations

import os

import pytest

from tests.harness.one_gpu import pose_as_a_host, variables


def test_only_on_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "environ", {})
    pose_as_a_host("cpu")
    assert not os.environ
    pose_as_a_host("cuda:0")
    assert os.environ == variables(f"process-{os.getpid()}")


def test_no_two_are_one_host() -> None:
    one, other = variables("one"), variables("other")
    assert {name for name in one if one[name] != other[name]} == {"NCCL_HOSTID"}
