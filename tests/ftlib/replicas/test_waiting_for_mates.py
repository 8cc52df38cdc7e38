"""A wait for the words of a replica ends, and says who did not speak."""

from __future__ import annotations

from types import SimpleNamespace
from typing import cast
from unittest.mock import Mock

import pytest

from ftlib.common.threads import Threads
from ftlib.core.calls.call import Call, Kind
from ftlib.core.calls.session import Session
from ftlib.core.engine.shard_agreement import ShardAgreement
from ftlib.core.engine.waiting import Limits, Waiting
from ftlib.core.plane.phase import Phase
from ftlib.core.plane.plane import Plane
from ftlib.core.replicas.words import Mates
from ftlib.core.tensors.layout import Layout
from ftlib.errors import RebuildTimeout


class Ticking(Threads):
    """Each look at its clock takes 50 ms."""

    clock = 100.0

    def now(self) -> float:
        self.clock += 0.05
        return self.clock


def test_the_mate_that_does_not_speak_is_named() -> None:
    plane = Plane("w0", threads=Ticking())
    view = SimpleNamespace(epoch=3, view_id="v3", ids=("w0", "w1"))
    session = cast("Session", SimpleNamespace(view=view, size=2, plan=SimpleNamespace(call=0)))
    plane.phase, plane.session = Phase.ACTIVE, session
    mates = Mock(spec=Mates)
    mates.verdict.return_value = None
    mates.missing.return_value = "shard 1 of this replica"
    call = Call(Kind.BARRIER, Layout(b"", "barrier", "barrier()", ()), [])
    call.number, call.began = 1, plane.threads.now()
    agreement = ShardAgreement(plane, Waiting(plane, Limits(2.0), lambda: True), mates, Mock())
    plane.newcomer = True
    with pytest.raises(RebuildTimeout, match="not finished within 2 s; waiting for the word of shard 1 of this replica"):
        agreement.counts(call, session)
