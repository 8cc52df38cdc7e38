"""Whoever sends a trailer that says that it leaves is bound by that already (``docs/protocol.md``, rule 8)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from consensus import Consensus
from ftlib.core.calls.attempt import Attempt
from ftlib.core.calls.call import Call
from ftlib.core.calls.follow import FollowedAttempt
from ftlib.core.calls.session import Session
from ftlib.core.engine.engine import Engine
from ftlib.core.tensors.trailer import Flag, RankRecord
from tests.ftlib.crews.latecomers import late
from tests.ftlib.crews.workers import Job, Worker
from tests.harness.basics import TIMEOUT, eventually

Said = list[tuple[type[Attempt], bool, bool]]
"""What kind of attempt began, whether its trailer said goodbye, and whether its member was bound then."""


@pytest.fixture
def said(monkeypatch: pytest.MonkeyPatch) -> Said:
    found: Said = []
    callers: dict[Attempt, Consensus] = {}
    make = Engine._operations

    def attempt_at(engine: Engine, call: Call, session: Session) -> Attempt:
        attempt = make(engine, call, session)
        callers[attempt] = engine._consensus
        return attempt

    def watched(run: Callable[..., Any]) -> Callable[..., Any]:
        def watch(attempt: Attempt, record: RankRecord, *more: Any) -> Any:
            found.append((type(attempt), bool(record.flags & Flag.LEAVING), bound(callers.pop(attempt))))
            return run(attempt, record, *more)

        return watch

    monkeypatch.setattr(Engine, "_operations", attempt_at)
    for kind in (Attempt, FollowedAttempt):
        monkeypatch.setattr(kind, "run", watched(kind.run))  # type: ignore[attr-defined]
    return found


def bound(consensus: Any) -> bool:
    """Whether its agent would read so now."""
    return consensus.committed if hasattr(consensus, "committed") else consensus._host.cell.read().leaving


def bound_in_time(said: Said) -> bool:
    return all(bound == goodbye for _, goodbye, bound in said) and any(goodbye for _, goodbye, _ in said)


@pytest.mark.parametrize("kind", ["allreduce_average", "allreduce", "barrier", "execute"])
def test_of_a_program_in_any_kind_of_call(kind: str, said: Said) -> None:
    def call(worker: Worker) -> object:
        match kind:
            case "barrier":
                return worker.ft.barrier()
            case "execute":
                return worker.ft.execute(lambda: worker.ft.allreduce(torch.ones(3)))
        return getattr(worker.ft, kind)(torch.ones(3))

    def body(worker: Worker) -> None:
        worker.ft.register_state(state_dict=dict, load_state_dict=lambda _: None)
        for _ in range(3):
            call(worker)
        if worker.name == "w1":
            worker.ft._call_lock.leave()  # what the signal handler does
            with pytest.raises(SystemExit):
                call(worker)
            return
        call(worker)

    with Job(2) as job:
        job.run({"w0": body, "w1": body})
    assert bound_in_time(said)


def test_of_a_backup_worker_in_the_name_of_its_program(said: Said) -> None:
    with late() as made:
        first, _, last = made.pupils
        last.stay_away()
        last.ft._call_lock.leave()
        eventually(lambda: first.ft.size == 2, "the others go on without it")
        last.gate.set()
        made.threads[2].join(TIMEOUT)
    assert bound_in_time(said)
    assert any(kind is FollowedAttempt and goodbye for kind, goodbye, _ in said)
