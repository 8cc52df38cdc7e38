"""What a member does for a joiner comes after its own training."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from ftlib.recovery.donor import donor as donor_module
from ftlib.recovery.layout.shards import SMALLEST
from tests.harness.basics import eventually

from .holders import STATE_ID, VERSION, Holder, Model, somebody

SIZES = [1_500_000, 3, 1_000_000]
NBYTES = 4 * sum(SIZES)
JOINER = somebody()


@pytest.fixture
def holder(monkeypatch: pytest.MonkeyPatch) -> Iterator[Holder]:
    """Outside of calls."""
    monkeypatch.setattr(donor_module, "POLL", 0.05)
    made = Holder(Model(SIZES))
    made.meet([JOINER])
    yield made
    made.close()


def ask(holder: Holder, kind: str, **query: object) -> None:
    """Once; the answer is of no interest."""
    texts = {name: str(value) for name, value in query.items()}
    for _ in holder.donor.source({"ask": kind, "joiner": JOINER.id, "request": "0", "version": str(VERSION), **texts}):
        pass


def offer(holder: Holder, others: str = "", apart: int = 0) -> None:
    given = {"origin": STATE_ID, "holders": holder.member.id + others, "turn": 0, "inline": 0}
    ask(holder, "offer", **given, apart=apart, portion=0, first=0, keep=VERSION)


def test_memory_is_there_before_the_call(holder: Holder) -> None:
    """As much as is surely needed, where the state comes in chunks."""
    rooms = holder.donor._snapshots._pool
    for apart, others, enough in ((0, "", 0), (1, ",a,b,c", NBYTES // 2), (1, "", NBYTES)):
        with pytest.raises(LookupError, match="not inside call"):
            offer(holder, others, apart)
        eventually(lambda enough=enough: rooms.nbytes >= enough and not rooms._wanted, "it is touched")  # type: ignore[misc]
        assert rooms.nbytes < enough + SMALLEST
    ask(holder, "release")
    assert rooms.nbytes == 0


@pytest.mark.parametrize("large", [False, True])
def test_a_large_state_is_sent_when_nothing_else_is_to_be_done(
    holder: Holder, large: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(donor_module, "LARGE", NBYTES + (not large))
    niced: list[bool] = []
    monkeypatch.setattr(donor_module, "stand_back", lambda: niced.append(True))
    holder.enter()
    offer(holder)
    assert not niced, "the training may wait for what is asked about a call"
    eventually(lambda: holder.donor._snapshots.data(JOINER.id, 0, VERSION) is not None, "it is copied")
    ask(holder, "stripe", index=0, offset=0)
    assert niced == [True] * large
