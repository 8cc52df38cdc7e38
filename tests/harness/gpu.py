"""Tests that need a GPU: the marker ``gpu``, and why they are left out where there is none."""

from __future__ import annotations

import functools
from typing import Any

import pytest

PLACE = "cuda:0"
"""The GPU that they use."""


@functools.cache
def missing() -> str:
    """Why there are none of these tests here; empty if there are.

    Asked as such a test begins, not as tests are collected: where NVML does not answer, torch begins to use the driver to find
    out, and the processes that run the tests, forked later, could not use the GPU (see ``conftest``).
    """
    import torch  # not before: the tests of what needs no torch run without it (make matrix)

    return "" if torch.cuda.is_available() else "needs a GPU: no CUDA device is visible to torch"


def on_gpu(*values: Any, id: str | None = None) -> Any:  # noqa: A002 - as pytest calls it
    """A row of ``pytest.mark.parametrize``, or a parameter of a fixture, for tests on a GPU."""
    return pytest.param(*values, marks=pytest.mark.gpu, id=id)
