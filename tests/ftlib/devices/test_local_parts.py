"""Whether a tensor is sharded is asked by the training thread while others import what shards it."""

from __future__ import annotations

import sys
from types import ModuleType

import pytest
import torch

from ftlib.common.local_parts import is_sharded, local_part


def test_a_module_that_is_being_imported_has_no_tensors_yet(monkeypatch: pytest.MonkeyPatch) -> None:
    """The writer of a job's first checkpoint imports it, beside the training."""
    monkeypatch.setitem(sys.modules, "torch.distributed.tensor", ModuleType("torch.distributed.tensor"))
    tensor = torch.ones(3)
    assert not is_sharded(tensor)
    assert local_part(tensor) is tensor
