"""Who may be asked for the state on entry to a call: a program that is inside of it, and has not changed it."""

from __future__ import annotations

import pytest
import torch

from ftlib.core.backup.backup_call import BackupCall
from ftlib.core.calls.call import Call, Kind
from ftlib.core.execute.unit import Unit
from ftlib.core.plane.plane import Plane
from ftlib.core.tensors.layout import lay_out
from ftlib.recovery import whole_state as module
from ftlib.recovery.whole_state import Transfer
from ftlib.state.codec import decode
from ftlib.state.registry import Registered
from ftlib.state.snapshot import Backup

LAYOUT = lay_out("barrier", [], "SUM", 1)


@pytest.fixture
def holder(monkeypatch: pytest.MonkeyPatch) -> Transfer:
    """Holds a tensor of ones."""
    monkeypatch.setattr(module, "POLL", 0.0)
    plane = Plane("me")
    plane.state_id = "me"
    transfer = Transfer(plane, 1.0, 1.0)
    tensor = torch.ones(3)
    transfer._registered = Registered({}, lambda: {"tensor": tensor}, lambda _: None)
    return transfer


def asked(transfer: Transfer) -> torch.Tensor:
    tree = decode(b"".join(transfer.source({"call": "1", "origin": "me"})))
    assert isinstance(tree, dict)
    tensor: torch.Tensor = tree["custom"]["tensor"]
    return tensor


def test_within_a_call_of_the_programs(holder: Transfer) -> None:
    with pytest.raises(LookupError, match="ask again"):
        asked(holder)
    holder._plane.enter(Call(Kind.BARRIER, LAYOUT, ()))
    assert asked(holder).tolist() == [1.0, 1.0, 1.0]


def test_a_backup_worker_is_in_the_call_and_the_program_is_not(holder: Transfer) -> None:
    holder._plane.enter(BackupCall(0.0, veto=False, awaited=bool, present=lambda: None))
    with pytest.raises(LookupError, match="ask again"):
        asked(holder)


def test_within_a_unit_it_is_what_was_kept(holder: Transfer) -> None:
    unit = Unit(int, LAYOUT)
    holder._plane.enter(unit)
    with pytest.raises(LookupError, match="ask again"):
        asked(holder)
    registered = holder.registered
    assert registered is not None
    unit.kept = Backup().keep(registered, 0)
    tree = registered.tree(0)
    tree["custom"]["tensor"].fill_(2.0)
    assert asked(holder).tolist() == [1.0, 1.0, 1.0]


def test_it_breaks_off_when_the_copy_is_given_up(holder: Transfer) -> None:
    unit = Unit(int, LAYOUT)
    holder._plane.enter(unit)
    registered = holder.registered
    assert registered is not None
    unit.kept = Backup().keep(registered, 0)
    chunks = holder.source({"call": "1", "origin": "me"})
    next(chunks)
    unit.kept = Backup().keep(registered, 0)
    with pytest.raises(ConnectionAbortedError):
        next(chunks)
